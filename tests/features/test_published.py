"""Published networks from a file of weights alone: outputs are those of torchvision 0.29 and timm 1.0.

The expected numbers were printed by those packages, whose networks had the weights that `filled` makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from labeldp import LabelDPClassifier
from labeldp.data import OpenLabels
from labeldp.features.encoders import Encoder, load_encoder, save_encoder
from labeldp.features.published import MEAN, rebuilt
from labeldp.models.zoo import resnet18_v2

Shapes = dict[str, tuple[int, ...]]


def filled(shapes: Shapes) -> dict[str, Tensor]:
    """Weights that follow from names and shapes alone."""
    found = {}
    for name, shape in shapes.items():
        count = torch.arange(int(torch.tensor(shape).prod()) if shape else 1, dtype=torch.float64)
        waves = torch.sin(0.7 * count + len(name)).float()
        if name.endswith("num_batches_tracked"):
            found[name] = torch.tensor(1)
            continue
        into = count.numel() // shape[0] if len(shape) in (2, 4) else 100
        positive = name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight"))
        found[name] = (1 + 0.5 * waves if positive else waves * into**-0.5).reshape(shape)
    return found


def picture(side: int) -> Tensor:
    return torch.sin(torch.arange(2 * 3 * side * side) * 0.01).reshape(2, 3, side, side)


def norm(name: str, width: int) -> Shapes:
    return {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")} | {
        f"{name}.num_batches_tracked": ()
    }


def resnet(deep: bool, groups: int = 1) -> Shapes:
    """The names of a ResNet with one block in a stage; deep ones have three convolutions in it."""
    found: Shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for stage in range(1, 5):
        width, block = 64 * 2 ** (stage - 1), f"layer{stage}.0"
        after = 4 * width if deep else width
        sides = [(width, before, 1), (width, width // groups, 3), (after, width, 1)] if deep else []
        for number, (wide, into, side) in enumerate(sides or [(width, before, 3), (width, width, 3)], 1):
            found |= {f"{block}.conv{number}.weight": (wide, into, side, side), **norm(f"{block}.bn{number}", wide)}
        if before != after:
            found |= {f"{block}.downsample.0.weight": (after, before, 1, 1), **norm(f"{block}.downsample.1", after)}
        before = after
    return found | {"fc.weight": (10, before), "fc.bias": (10,)}


def transformer(scaled: bool) -> Shapes:
    """The names of a vision transformer of width 128 and depth 2, for images of 16 pixels in patches of 4."""
    found: Shapes = {"cls_token": (1, 1, 128), "pos_embed": (1, 17, 128), "patch_embed.proj.weight": (128, 3, 4, 4)}
    found |= {"patch_embed.proj.bias": (128,), "norm.weight": (128,), "norm.bias": (128,)}
    for block in ("blocks.0", "blocks.1"):
        for part in ("norm1", "norm2"):
            found |= {f"{block}.{part}.weight": (128,), f"{block}.{part}.bias": (128,)}
        sizes = {"attn.qkv": (384, 128), "attn.proj": (128, 128), "mlp.fc1": (512, 128), "mlp.fc2": (128, 512)}
        for part, shape in sizes.items():
            found |= {f"{block}.{part}.weight": shape, f"{block}.{part}.bias": shape[:1]}
        found |= {f"{block}.{part}.gamma": (128,) for part in ("ls1", "ls2") if scaled}
    return found | {"head.weight": (10, 128), "head.bias": (10,)}


def summary(outputs: Tensor) -> Tensor:
    """Four numbers about the second row: where it is large decides over two of them."""
    row, places = outputs[1].double(), torch.arange(outputs.shape[1]).double()
    return torch.stack([row.norm(), row.mean(), (row * torch.sin(places)).sum(), row.max()]).float()


CASES: dict[str, tuple[Shapes, int, list[float]]] = {
    "ResNet": (resnet(deep=False), 32, [281.625916, 7.391244, 3.706445, 33.976112]),
    "ResNet, deep": (resnet(deep=True), 32, [24.135328, 0.332043, 2.060856, 1.504795]),
    "ResNeXt": (resnet(deep=True, groups=4), 32, [43.357128, 0.602422, 6.843975, 2.594748]),
    "transformer": (transformer(scaled=False), 16, [11.911288, -0.014489, -5.663568, 2.461621]),
    "transformer, scaled": (transformer(scaled=True), 16, [12.431069, -0.119378, -4.85417, 2.049762]),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_the_published_network(case: str) -> None:
    shapes, side, expected = CASES[case]
    with torch.no_grad():
        found = rebuilt(filled(shapes), "a file")(picture(side))
    assert torch.allclose(summary(found), torch.tensor(expected), rtol=1e-3)


def test_weights_within_another_network_are_found(tmp_path: Any) -> None:
    weights = filled(resnet(deep=False))
    torch.save({f"module.encoder_q.{name}": value for name, value in weights.items()}, tmp_path / "moco.pt")
    torch.save(weights, tmp_path / "plain.pt")
    found, plain = (load_encoder(tmp_path / name).fit(picture(32)) for name in ("moco.pt", "plain.pt"))
    assert torch.equal(found.features(picture(32)), plain.features(picture(32)))
    assert load_encoder(tmp_path / "plain.pt").mean == MEAN


@pytest.mark.parametrize("mean", [(0.3,), None])
def test_an_encoder_that_was_trained_here_is_read_again(mean: Any, tmp_path: Any) -> None:
    """Also one that takes images as they are: it is not scaled as ImageNet's networks are."""
    chance = torch.Generator().manual_seed(0)
    body = resnet18_v2(2, 1, 4).get_submodule("body").eval()
    images = torch.rand(3, 1, 16, 16, generator=chance)
    encoder = Encoder(body, mean, None if mean is None else (0.5,), standardise=False)
    save_encoder(tmp_path / "own.safetensors", encoder, half=False)
    found = replace(load_encoder(tmp_path / "own.safetensors"), standardise=False)
    assert found.mean == mean
    assert torch.allclose(found.fit(images).features(images), encoder.fit(images).features(images), atol=1e-6)


def test_what_is_not_quite_a_known_network_is_refused() -> None:
    weights = filled(resnet(deep=False))
    for odd in ({"layer1.0.se.fc.weight": torch.ones(4, 4)}, {"layer2.0.conv1.weight": torch.ones(3)}):
        with pytest.raises(ValueError, match=r"odd\.pt begins like a ResNet .* is not one"):
            rebuilt({**weights, **odd}, "odd.pt")
    with pytest.raises(ValueError, match=r"odd\.pt holds weights of no network that is known"):
        rebuilt({"weight": torch.ones(2)}, "odd.pt")


def test_an_estimator_takes_it(tmp_path: Any) -> None:
    """A network with random weights still sees how bright a picture is."""
    chance = torch.Generator().manual_seed(0)
    weights = filled(resnet(deep=False))
    for name, value in weights.items():
        if value.dim() == 4:
            weights[name] = torch.randn(value.shape, generator=chance) * (2 / value[0].numel()) ** 0.5
    torch.save(weights, tmp_path / "plain.pt")
    labels = torch.randint(2, (200,), generator=chance)
    images = torch.rand(200, 3, 32, 32, generator=chance) * 0.5 + 0.5 * labels[:, None, None, None]
    encoder = replace(load_encoder(tmp_path / "plain.pt"), dims=4)
    model = LabelDPClassifier(epsilon=20.0, classes=[0, 1], method="one_shot", features=encoder, random_state=0)
    model.fit(images[:150].numpy(), labels[:150].numpy())
    assert model.score(images[150:].numpy(), OpenLabels(labels[150:].numpy())) > 0.9
