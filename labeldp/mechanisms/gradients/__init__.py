"""Release noisy gradient sums: per-example gradients, their bounds, the batch and the noise."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("labeldp.mechanisms.gradients needs PyTorch; install it with: pip install 'labeldp[torch]'")
