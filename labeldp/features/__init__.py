"""Public inputs to rows of features, without a label: nothing here has an argument that could hold one."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("labeldp.features needs PyTorch; install it with: pip install 'labeldp[torch]'")
