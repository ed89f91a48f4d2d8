"""The networks of the label-privacy papers, as plain functions, and group norm in place of batch norm.

Convolutions and hidden layers start with He's variance, heads near zero, all from torch's global generator:
`torch.manual_seed` decides. Every network but `linear_head` keeps its last linear layer in `model.head`; image
networks keep the rest in `model.body`, which gives the features. Nothing here scales or augments its input.
"""

from __future__ import annotations

import copy

from torch import nn

from labeldp.models.images import cifar_cnn, mnist_cnn, resnet18_v2, small_inception, vgg16, wide_resnet
from labeldp.models.shared import checked_count
from labeldp.models.tables import collaborative_filter, linear_head, tabular_mlp

__all__ = [
    "cifar_cnn",
    "collaborative_filter",
    "group_norm",
    "linear_head",
    "mnist_cnn",
    "resnet18_v2",
    "small_inception",
    "tabular_mlp",
    "vgg16",
    "wide_resnet",
]

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def group_norm(model: nn.Module, groups: int = 16) -> nn.Module:
    """A copy of `model` with group norm (Wu and He 2018) in place of every batch norm; `model` stays as it is.

    Batch norm mixes the examples of a batch, so no example has a gradient of its own; group norm does not. Each
    layer gets the largest number of groups, at most `groups`, that divides its channels and leaves at least two in a
    group (16 groups: De et al. 2022). Learned scales, shifts and ε are kept, running statistics are dropped; the
    number of parameters stays the same.

    >>> group_norm(nn.BatchNorm2d(48), groups=32).num_groups
    24
    """
    groups = checked_count("groups", groups)
    # One replacement per layer, so that a layer used in two places stays one layer.
    replaced: dict[nn.Module, nn.Module] = {}

    def replacement(module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm) and module not in replaced:
            replaced[module] = _as_group_norm(module, groups)
        return replaced.get(module, module)

    root = replacement(copy.deepcopy(model))
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                parent._modules[name] = replacement(child)
    return root


def _as_group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = [count for count in range(1, min(groups, channels // 2) + 1) if channels % count == 0]
    made = nn.GroupNorm(max(fitting, default=1), channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)
