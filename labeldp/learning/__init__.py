"""Post-processing of releases into models. Knows no vault and no budget."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("labeldp.learning needs PyTorch; install it with: pip install 'labeldp[torch]'")
