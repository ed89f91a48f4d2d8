"""Networks for small images: float tensors (n, channels, height, width), already scaled → logits (n, num_classes)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from labeldp.models.shared import checked_count, checked_dropout, with_head


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


def resnet18_v2(num_classes: int, channels: int = 3, width: int = 64) -> nn.Module:
    """Pre-activation ResNet-18 for 32×32 images (He et al. 2016, "Identity mappings in deep residual networks").

    A 3×3 stem of stride 1 and no max pooling, four stages of two blocks with `width` · 1, 2, 4, 8 channels, a last
    batch norm and ReLU, global mean, linear head. 11,172,170 parameters for 10 classes.
    """
    width = checked_count("width", width)
    widths = (width, 2 * width, 4 * width, 8 * width)
    return with_head(_residual_body(channels, width, widths, blocks=2, dropout=0.0), widths[-1], num_classes)


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
