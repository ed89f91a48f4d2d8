"""Starting from weights trained elsewhere, on public data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def load_matching(model: nn.Module, path: Path | str) -> list[str]:
    """Copy every tensor of the file whose name and shape fit; returns the names left as they were (a new head).

    The file is a state dict written by `torch.save(model.state_dict(), path)`. Raises ValueError when nothing fits.
    """
    saved = torch.load(Path(path), map_location="cpu", weights_only=True)
    own = model.state_dict()
    fitting = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise ValueError(f"no tensor of {Path(path).name} fits the model by name and shape; is it of the same kind?")
    model.load_state_dict(fitting, strict=False)
    return sorted(set(own) - set(fitting))
