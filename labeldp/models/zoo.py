"""The networks of the label-privacy papers, as plain functions, and group norm in place of batch norm.

Convolutions and hidden layers start with He's variance, heads near zero, all from torch's global generator:
`torch.manual_seed` decides. Every network but `linear_head` keeps its last linear layer in `model.head`; image
networks keep the rest in `model.body`, which gives the features. Nothing here scales or augments its input.

A small network for clicks: many categorical columns, some with very many values, and few parameters.

Noise on a gradient falls on every parameter, used or not. So that a column with tens of thousands of values does not
bring millions of them, its values share a limited number of rows (feature hashing, Weinberger et al. 2009).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

Given = ParamSpec("Given")


def named(make: Callable[Given, nn.Module]) -> Callable[Given, nn.Module]:
    """Let the networks of a function know, in `model.zoo`, by which name and arguments they were made.

    So they can be made again elsewhere from plain values (`labeldp.service.networks`).
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Given.args, **kwargs: Given.kwargs) -> nn.Module:
        model, bound = make(*args, **kwargs), signature.bind(*args, **kwargs)
        bound.apply_defaults()
        vars(model)["zoo"] = {"zoo": make.__name__, "arguments": dict(bound.arguments), "group_norm": None}
        return model

    return made


# -- what the networks share ---------------------------------------------------------------------------------


def checked_count(name: str, value: Any, low: int = 1) -> int:
    """A whole number of at least `low`, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise ValueError(f"{name} is {value!r}; give a whole number of at least {low}")
    return int(value)


def checked_counts(name: str, values: Any) -> tuple[int, ...]:
    """Whole numbers of at least 1, possibly none, or ValueError."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {values!r}; give a sequence of whole numbers")
    return tuple(checked_count(f"{name}[{index}]", value) for index, value in enumerate(values))


def checked_dropout(dropout: Any) -> float:
    """A share of units to drop, 0 ≤ dropout < 1, or ValueError."""
    if isinstance(dropout, bool) or not isinstance(dropout, Real) or not 0 <= float(dropout) < 1:
        raise ValueError(f"dropout is {dropout!r}; give a number from 0 up to, but not including, 1")
    return float(dropout)


def he_weights(module: nn.Module) -> None:
    """Var(w) = 2 / fan-in for what feeds a ReLU (He et al. 2015), biases zero. For `Module.apply`."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def head_layer(features: int, num_classes: int) -> nn.Linear:
    """The last layer: weights uniform in ±1/√features (torch's own), biases zero, so first guesses are near uniform."""
    head = nn.Linear(features, checked_count("num_classes", num_classes))
    nn.init.zeros_(head.bias)
    return head


def with_head(body: nn.Module, features: int, num_classes: int) -> nn.Sequential:
    """`body`, He-initialised, then `head`: (n, …) → (n, features) → (n, num_classes)."""
    return nn.Sequential(OrderedDict(body=body.apply(he_weights), head=head_layer(features, num_classes)))


def hidden_layers(features: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear and ReLU, once per hidden width; He-initialised."""
    layers: list[nn.Module] = []
    for before, after in zip((features, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers).apply(he_weights)


# -- small images: (n, channels, height, width), scaled → logits (n, num_classes) ----------------------------


class _GlobalMean(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


class _GlobalMax(nn.Module):
    # amax, because the backward pass of AdaptiveMaxPool2d is not deterministic on a GPU
    def forward(self, images: Tensor) -> Tensor:
        return images.amax((2, 3))


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


def _conv_bn_relu(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_conv(before, after, kernel, stride), nn.BatchNorm2d(after), nn.ReLU())


class _PreActivationBlock(nn.Module):
    """Normalise, ReLU, convolve, twice, plus the input; a changed shape is matched by a 1×1 convolution."""

    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = _conv(before, after, stride=stride)
        self.norm2 = nn.BatchNorm2d(after)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = _conv(after, after)
        self.shortcut = _conv(before, after, kernel=1, stride=stride) if stride != 1 or before != after else None

    def forward(self, images: Tensor) -> Tensor:
        active = relu(self.norm1(images))
        residual = self.conv2(self.dropout(relu(self.norm2(self.conv1(active)))))
        return residual + (images if self.shortcut is None else self.shortcut(active))


def _residual_body(channels: int, stem: int, widths: tuple[int, ...], blocks: int, dropout: float) -> nn.Sequential:
    """3×3 stem, then one stage of `blocks` blocks per width; every stage but the first halves the image."""
    layers: list[nn.Module] = [_conv(checked_count("channels", channels), stem)]
    before = stem
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_PreActivationBlock(before, width, stride, dropout))
            before = width
    return nn.Sequential(*layers, nn.BatchNorm2d(before), nn.ReLU(), _GlobalMean())


@named
def resnet18_v2(num_classes: int, channels: int = 3, width: int = 64) -> nn.Module:
    """Pre-activation ResNet-18 for 32×32 images (He et al. 2016, "Identity mappings in deep residual networks").

    A 3×3 stem of stride 1 and no max pooling, four stages of two blocks with `width` · 1, 2, 4, 8 channels, a last
    batch norm and ReLU, global mean, linear head. 11,172,170 parameters for 10 classes.
    """
    width = checked_count("width", width)
    widths = (width, 2 * width, 4 * width, 8 * width)
    return with_head(_residual_body(channels, width, widths, blocks=2, dropout=0.0), widths[-1], num_classes)


@named
def wide_resnet(
    num_classes: int, depth: int = 28, widen: int = 4, channels: int = 3, dropout: float = 0.0
) -> nn.Module:
    """Wide residual network WRN-`depth`-`widen` for 32×32 images (Zagoruyko and Komodakis 2016).

    A 3×3 stem of 16 channels, three stages of (depth − 4) / 6 pre-activation blocks with `widen` · 16, 32, 64
    channels, dropout between the two convolutions of a block, a last batch norm and ReLU, global mean, linear head.
    WRN-28-4 has 5,849,050 parameters for 10 classes.
    """
    depth, widen = checked_count("depth", depth, low=10), checked_count("widen", widen)
    if depth % 6 != 4:
        raise ValueError(f"depth is {depth}; give 6·b + 4 for b blocks per stage, such as 10, 16, 22, 28 or 40")
    widths = (16 * widen, 32 * widen, 64 * widen)
    body = _residual_body(channels, 16, widths, blocks=(depth - 4) // 6, dropout=checked_dropout(dropout))
    return with_head(body, widths[-1], num_classes)


@named
def vgg16(num_classes: int, channels: int = 3) -> nn.Module:
    """VGG-16 with batch norm for 32×32 images (Simonyan and Zisserman 2015; batch norm of Ioffe and Szegedy 2015).

    Thirteen 3×3 convolutions of 64, 64 | 128, 128 | 256 ×3 | 512 ×3 | 512 ×3 channels, max pooling after each
    group, and one linear layer in place of the original three. 14,718,912 parameters without the head, 14,724,042
    for 10 classes. Smaller images than 32×32 do not survive the five poolings.
    """
    layers: list[nn.Module] = []
    before = checked_count("channels", channels)
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers.append(_conv_bn_relu(before, width))
            before = width
        layers.append(nn.MaxPool2d(2))
    return with_head(nn.Sequential(*layers, _GlobalMean()), before, num_classes)


class _InceptionBlock(nn.Module):
    """A 1×1 and a 3×3 convolution side by side."""

    def __init__(self, before: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.narrow = _conv_bn_relu(before, narrow, kernel=1)
        self.wide = _conv_bn_relu(before, wide)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat((self.narrow(images), self.wide(images)), dim=1)


# (channels of the 1×1, channels of the 3×3) for a block; one number for a 3×3 convolution of stride 2.
_INCEPTION = ((32, 32), (32, 48), 160, (112, 48), (96, 64), (80, 80), (48, 96), 240, (176, 160), (176, 160))


@named
def small_inception(num_classes: int, channels: int = 1) -> nn.Module:
    """The simplified Inception of Ghazi et al. 2021 for MNIST-like 28×28 images (after Szegedy et al. 2015).

    Conv-96, then blocks (32,32) (32,48), Conv-160/2, blocks (112,48) (96,64) (80,80) (48,96), Conv-240/2, blocks
    (176,160) (176,160), global max, linear head. A block (a,b) concatenates a 1×1 convolution of a channels and a
    3×3 of b; each convolution is followed by batch norm and ReLU. 1,894,058 parameters for 10 classes.
    """
    layers: list[nn.Module] = [_conv_bn_relu(checked_count("channels", channels), 96)]
    before = 96
    for part in _INCEPTION:
        if isinstance(part, int):
            layers.append(_conv_bn_relu(before, part, stride=2))
            before = part
        else:
            layers.append(_InceptionBlock(before, *part))
            before = sum(part)
    return with_head(nn.Sequential(*layers, _GlobalMax()), before, num_classes)


@named
def mnist_cnn(num_classes: int = 10, channels: int = 1) -> nn.Module:
    """The small CNN of LabelDP-Pro for 28×28 images (Ghazi et al. 2024, Table 10a).

    Twice: 3×3 convolution of 16 channels without padding, ReLU, 2×2 mean pooling; then 16 hidden units and the
    head. No batch norm and no dropout: every example's gradient is its own. 9,066 parameters for 10 classes.
    """
    body = nn.Sequential(
        nn.Conv2d(checked_count("channels", channels), 16, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * 5 * 5, 16), nn.ReLU(),
    )  # fmt: skip
    return with_head(body, 16, num_classes)


@named
def cifar_cnn(num_classes: int = 10, dropout: float = 0.2) -> nn.Module:
    """The small CNN of LabelDP-Pro for 3×32×32 images (Ghazi et al. 2024, Table 10b).

    Three times, with 32, 64, 128 channels: 3×3 convolution, ReLU, 2×2 max pooling, dropout; then 80 hidden units,
    dropout and the head. No batch norm: every example's gradient is its own (with dropout, `torch.func.vmap` needs
    randomness="different"). The paper does not state the padding; none here, as in `mnist_cnn`. The convolutions start
    with a third of He's variance, which max pooling makes up for. 135,098 parameters for 10 classes.
    """
    dropout = checked_dropout(dropout)
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout)]
    layers += [nn.Flatten(), nn.Linear(128 * 2 * 2, 80), nn.ReLU(), nn.Dropout(dropout)]
    model = with_head(nn.Sequential(*layers), 80, num_classes)
    # The largest of four has three times the second moment of one; no norm layer takes that back.
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                layer.weight.div_(3**0.5)
    return model


# -- ratings, tables and features; two inputs are taken as `model(*inputs)` ----------------------------------


def _unit_embedding(rows: int, dim: int) -> nn.Embedding:
    """Rows of length about 1, whatever the dimension, so that products of two tables start at a learnable size."""
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table


class _CollaborativeFilter(nn.Module):
    def __init__(self, num_users: int, num_items: int, num_outputs: int, dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.product_users, self.product_items = _unit_embedding(num_users, dim), _unit_embedding(num_items, dim)
        self.joined_users, self.joined_items = _unit_embedding(num_users, dim), _unit_embedding(num_items, dim)
        self.layers = hidden_layers(2 * dim, hidden)
        self.head = head_layer(dim + (hidden[-1] if hidden else 2 * dim), num_outputs)

    def forward(self, users: Tensor, items: Tensor | None = None) -> Tensor:
        if items is None:
            if users.shape[-1] != 2:
                raise ValueError(f"users is {tuple(users.shape)} and items is missing; give both, or pairs (n, 2)")
            users, items = users.unbind(-1)
        product = self.product_users(users) * self.product_items(items)
        joined = self.layers(torch.cat((self.joined_users(users), self.joined_items(items)), dim=-1))
        return self.head(torch.cat((product, joined), dim=-1))


@named
def collaborative_filter(
    num_users: int, num_items: int, num_outputs: int = 5, dim: int = 64, hidden: Sequence[int] = (128, 64)
) -> nn.Module:
    """Two-branch neural collaborative filtering, NeuMF (He et al. 2017), with one logit per rating.

    One branch multiplies a user and an item embedding elementwise; the other joins two further embeddings and
    passes them through ReLU layers; a linear head reads both. `model(users, items)` takes two long tensors (n,),
    `model(pairs)` one of (n, 2). 1,272,901 parameters for MovieLens-1M (6,040 users, 3,706 rated movies).

    >>> model = collaborative_filter(num_users=100, num_items=50)
    >>> model(torch.tensor([3, 99]), torch.tensor([0, 49])).shape
    torch.Size([2, 5])
    """
    return _CollaborativeFilter(
        checked_count("num_users", num_users),
        checked_count("num_items", num_items),
        checked_count("num_outputs", num_outputs),
        checked_count("dim", dim),
        checked_counts("hidden", hidden),
    )


def linear_head(dim: int, num_classes: int, bias: bool = True) -> nn.Linear:
    """Multinomial logistic regression on features (n, dim), all weights zero: the loss is convex, so this is the start.

    dim · num_classes parameters, and num_classes more with a bias: 5,130 for 512 features and 10 classes.

    >>> linear_head(512, 10)(torch.ones(1, 512)).abs().sum().item()
    0.0
    """
    head = nn.Linear(checked_count("dim", dim), checked_count("num_classes", num_classes), bias=bool(bias))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


class FeatureNet(nn.Module):
    """One hidden layer beside a linear one, on features (n, p): starts as the zero function.

    `body` holds all but the last layer, as `labeldp.recipes.rounds` wants it.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 64) -> None:
        super().__init__()
        self.sizes = {"inputs": inputs, "outputs": outputs, "hidden": hidden}
        self.body = _Beside(checked_count("inputs", inputs), checked_count("hidden", hidden))
        self.head = linear_head(inputs + hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, p) → (n, outputs)."""
        return self.head(self.body(rows))


class _Beside(nn.Module):
    """x ↦ (x, relu(Wx + b))."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat((rows, torch.relu(self.hidden(rows))), dim=1)


__all__ = [
    "attribution_network",
    "cifar_cnn",
    "collaborative_filter",
    "group_norm",
    "linear_head",
    "mnist_cnn",
    "resnet18_v2",
    "small_inception",
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
            channels = module.num_features
            fitting = [count for count in range(1, min(groups, channels // 2) + 1) if channels % count == 0]
            made = nn.GroupNorm(max(fitting, default=1), channels, eps=module.eps, affine=module.affine)
            if module.affine:
                made.weight, made.bias = module.weight, module.bias
            replaced[module] = made.train(module.training)
        return replaced.get(module, module)

    root = replacement(copy.deepcopy(model))
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                parent._modules[name] = replacement(child)
    if "zoo" in vars(root):
        vars(root)["zoo"] = {**vars(root)["zoo"], "group_norm": groups}
    return root


# -- clicks: many categorical columns, few parameters --------------------------------------------------------


class _AttributionNetwork(nn.Module):
    def __init__(
        self, num_numeric: int, sizes: tuple[int, ...], num_classes: int, dim: int, hidden: tuple[int, ...]
    ) -> None:
        super().__init__()
        # One table for all columns: one lookup instead of one per column. Entries are buffers, not parameters.
        starts = [sum(sizes[:column]) for column in range(len(sizes))]
        self.register_buffer("starts", torch.tensor(starts, dtype=torch.long), persistent=False)
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long), persistent=False)
        self.table = nn.Embedding(sum(sizes), dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        features = num_numeric + dim * len(sizes)
        self.layers = hidden_layers(features, hidden)
        self.head = head_layer(hidden[-1] if hidden else features, num_classes)

    starts: Tensor
    sizes: Tensor

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        embedded = self.table(categorical % self.sizes + self.starts).flatten(-2)
        return self.head(self.layers(torch.cat((numeric, embedded), dim=-1)))


@named
def attribution_network(
    num_numeric: int,
    cardinalities: Sequence[int],
    num_classes: int = 2,
    buckets: int = 1000,
    dim: int = 8,
    hidden: Sequence[int] = (64, 32),
) -> nn.Module:
    """Embeddings of the categorical columns beside the numeric ones, into ReLU layers; at most `buckets` rows a column.

    `model(numeric, categorical)` takes floats (n, num_numeric), standardised beforehand, and codes
    (n, len(cardinalities)) ≥ 0; codes that are equal modulo the column's rows share one. The paper that made this a
    benchmark of user-level label privacy (Ghazi et al. 2024) names the features, not the network: this one is ours.

    >>> model = attribution_network(1, cardinalities=(675, 57_196))
    >>> model(torch.zeros(4, 1), torch.tensor([[0, 0], [674, 57_195], [1, 2], [3, 4]])).shape
    torch.Size([4, 2])
    """
    rows = tuple(
        min(size, checked_count("buckets", buckets)) for size in checked_counts("cardinalities", cardinalities)
    )
    if not rows:
        raise ValueError("cardinalities is empty; give at least one categorical column")
    return _AttributionNetwork(
        checked_count("num_numeric", num_numeric, low=0),
        rows,
        checked_count("num_classes", num_classes),
        checked_count("dim", dim),
        checked_counts("hidden", hidden),
    )
