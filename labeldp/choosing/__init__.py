"""Choose a recipe from public numbers alone: `labeldp.choose` and `labeldp plan`."""
