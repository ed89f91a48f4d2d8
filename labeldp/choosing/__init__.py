"""Which recipe for which problem, from public numbers alone: `labeldp.choose` and `labeldp plan`."""
