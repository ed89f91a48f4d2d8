"""Rebuild published networks from their weights: names and shapes of tensors say what a network is made of.

torchvision and timm call the tensors of a ResNet alike, and timm those of a vision transformer as DINO does. A file of
such tensors then says everything that a network of them needs, and neither package has to be installed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu, scaled_dot_product_attention

from labeldp.models.zoo import resnet18_v2

# Of ImageNet's pixels in [0, 1], by which nearly all published networks scale.
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Nearly all published transformers divide their width into heads of so many numbers; a file of weights does not say.
_HEAD = 64
_KNOWN = "a ResNet (torchvision, timm, or resnet18_v2 of this library) or a vision transformer (timm, DINO)"


class _Block(nn.Module):
    """A residual block: two 3×3 convolutions, or three with a narrow 3×3 one in the middle, which has the stride."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], stride: int) -> None:
        super().__init__()
        deep = "conv3.weight" in shapes
        for number in range(1, 4 if deep else 3):
            after, each, side = shapes[f"conv{number}.weight"][:3]
            # The first convolution says how many channels come in; later ones may see them in groups.
            before = each if number == 1 else shapes[f"conv{number - 1}.weight"][0]
            step = stride if number == (2 if deep else 1) else 1
            made = nn.Conv2d(before, after, side, step, side // 2, groups=before // each, bias=False)
            self.add_module(f"conv{number}", made)
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
        self.count = 3 if deep else 2
        self.downsample = None
        if "downsample.0.weight" in shapes:
            after, before = shapes["downsample.0.weight"][:2]
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images: Tensor) -> Tensor:
        found = images
        for number in range(1, self.count + 1):
            found = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(found))
            found = relu(found) if number < self.count else found
        return relu(found + (images if self.downsample is None else self.downsample(images)))


class _ResNet(nn.Module):
    """He et al. 2016 as torchvision has it: a 7×7 stem and pooling, or a 3×3 stem for small images; four stages."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        width, channels, side = shapes["conv1.weight"][:3]
        self.conv1 = nn.Conv2d(channels, width, side, 2 if side > 3 else 1, side // 2, bias=False)
        self.bn1, self.large = nn.BatchNorm2d(width), side > 3
        stages: dict[int, dict[int, dict[str, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
        for name, shape in shapes.items():
            if match := re.fullmatch(r"layer(\d+)\.(\d+)\.(.+)", name):
                stages[int(match[1])][int(match[2])][match[3]] = shape
        self.count = max(stages)
        for stage in range(1, self.count + 1):
            blocks = (
                _Block(stages[stage][number], 2 if stage > 1 and number == 0 else 1)
                for number in range(len(stages[stage]))
            )
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))

    def forward(self, images: Tensor) -> Tensor:
        found = relu(self.bn1(self.conv1(images)))
        found = nn.functional.max_pool2d(found, 3, 2, 1) if self.large else found
        for stage in range(1, self.count + 1):
            found = self.get_submodule(f"layer{stage}")(found)
        return found.mean((2, 3))


class _Attention(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.heads = width // _HEAD
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        count, length, width = tokens.shape
        parts = self.qkv(tokens).reshape(count, length, 3, self.heads, _HEAD).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.proj(mixed.transpose(1, 2).reshape(count, length, width))


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


class _Layer(nn.Module):
    def __init__(self, width: int, hidden: int, bias: bool, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = _Attention(width, bias)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.ls1, self.ls2 = (_Scale(width) if scaled else nn.Identity() for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        hidden = nn.functional.gelu(self.mlp.get_submodule("fc1")(self.norm2(tokens)))
        return tokens + self.ls2(self.mlp.get_submodule("fc2")(hidden))


class _Transformer(nn.Module):
    """Dosovitskiy et al. 2021 as timm has it; images are stretched to the size it was trained on; the class token."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        width, channels, patch = shapes["patch_embed.proj.weight"][:3]
        grid = round((shapes["pos_embed"][1] - 1) ** 0.5)
        self.side = grid * patch
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(channels, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid * grid, width))
        hidden, bias = shapes["blocks.0.mlp.fc1.weight"][0], "blocks.0.attn.qkv.bias" in shapes
        count = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("blocks."))
        scaled = "blocks.0.ls1.gamma" in shapes
        self.blocks = nn.Sequential(*(_Layer(width, hidden, bias, scaled) for _ in range(count)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2:] != (self.side, self.side):
            images = interpolate(images, (self.side, self.side), mode="bilinear", antialias=True, align_corners=False)
        patches = self.patch_embed.get_submodule("proj")(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], 1) + self.pos_embed
        return self.norm(self.blocks(tokens))[:, 0]


# What a network is known by, and how it is made. Its last layer, the classifier, is left out.
def _own_body(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    width, channels = shapes["0.weight"][:2]
    return resnet18_v2(2, channels, width).get_submodule("body")


_FAMILIES = (
    ("layer1.0.conv1.weight", _ResNet, r"fc\..*"),
    ("blocks.0.attn.qkv.weight", _Transformer, r"(head|fc_norm|mask_token).*"),
    # What SimCLR and BYOL train here, as `save_encoder` writes it.
    ("8.norm2.weight", _own_body, r"$^"),
)


def rebuilt(weights: Mapping[str, Tensor], name: str) -> nn.Module:
    """Return the network that these weights are of, filled, from images to its last features.

    Weights may lie within another network, as those of `module.encoder_q` do.

    Args:
        weights: by name, as in a state dict.
        name: of the file, for messages.

    Raises:
        ValueError: where the names are those of no network that is known here, or are not all of it.
    """
    for sign, make, beyond in _FAMILIES:
        prefixes = sorted((found.removesuffix(sign) for found in weights if found.endswith(sign)), key=len)
        for prefix in prefixes:
            own = {found.removeprefix(prefix): value for found, value in weights.items() if found.startswith(prefix)}
            own = {found: value for found, value in own.items() if not re.fullmatch(beyond, found)}
            try:
                body = make({found: tuple(value.shape) for found, value in own.items()})
                body.load_state_dict({found: value.float() if value.is_floating_point() else value
                                      for found, value in own.items()})  # fmt: skip
            except (KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
                reason = " ".join(str(error).split())[:120]
                raise ValueError(
                    f"{name} begins like {_KNOWN} and is not one ({reason}); make the network and give it "
                    "as body, or trace it to a TorchScript file"
                ) from None
            return body.eval()
    raise ValueError(
        f"{name} holds weights of no network that is known here, {_KNOWN}; make the network and give it as body, or "
        "trace it to a TorchScript file"
    )
