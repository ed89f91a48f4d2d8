"""How a network's weights lie in memory while it is trained.

A GPU convolves fastest with the channels of a pixel side by side. The input of a convolution follows its weights, and
what comes out stays so, so the weights alone decide. On other devices, and without convolutions, nothing changes.
"""

from __future__ import annotations

import torch
from torch import nn

# Devices whose convolutions gain by it.
_FASTER_ON = frozenset({"cuda"})


def channels_last(network: nn.Module) -> None:
    """Lay the weights of convolutions out for a GPU, in place; call it before anything refers to their memory."""
    _lay(network, torch.channels_last)


def channels_first(network: nn.Module) -> None:
    """Lay them out as usual again: what reads or saves weights expects that."""
    _lay(network, torch.contiguous_format)


def _lay(network: nn.Module, layout: torch.memory_format) -> None:
    for parameter in network.parameters():
        if parameter.device.type in _FASTER_ON and parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
