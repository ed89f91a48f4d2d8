"""Networks and what they need. Torch only; knows no label, no vault and no budget."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("labeldp.models needs PyTorch; install it with: pip install 'labeldp[torch]'")
