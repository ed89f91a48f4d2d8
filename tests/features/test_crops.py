"""Outputs averaged over crops and mirrors, against crops made by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

from labeldp.features.encoders import Encoder, OverCrops


def images(side=8):
    return torch.rand(5, 3, side, side, generator=torch.Generator().manual_seed(0))


def body():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()


def test_the_mean_over_crops_made_by_hand():
    network, x = body(), images()
    found = OverCrops(network, side=0.75, grid=2)(x)
    cuts = [x[:, :, a : a + 6, b : b + 6] for a in (0, 2) for b in (0, 2)]
    whole = [interpolate(cut, (8, 8), mode="bilinear") for cut in cuts]
    by_hand = sum(network(part) + network(part.flip(-1)) for part in whole) / 8
    assert torch.allclose(found, by_hand, atol=1e-6)
    assert not torch.allclose(found, network(x), atol=1e-3)


def test_as_many_passes_as_said():
    passes = []
    model = nn.Sequential(nn.Flatten())
    model.register_forward_hook(lambda *_: passes.append(1))
    OverCrops(model, side=0.5, grid=3)(images())
    OverCrops(model, side=0.5, grid=3, flip=False)(images())
    OverCrops(model, side=1.0, grid=3, flip=False)(images())
    OverCrops(model, side=0.9, grid=3, flip=False)(images(9))
    assert len(passes) == 18 + 9 + 1 + 4  # one place for the whole image, two where one pixel is left over


def test_a_classifier_says_the_same_of_an_image_and_its_mirror():
    model = OverCrops(body(), side=1.0, grid=1)
    assert torch.allclose(model(images()), model(images().flip(-1)), atol=1e-6)
    assert not torch.allclose(body()(images()), body()(images().flip(-1)), atol=1e-3)


def test_an_encoder_over_crops_is_another_encoder():
    plain, cropped, other = (Encoder(model) for model in (body(), OverCrops(body()), OverCrops(body(), grid=2)))
    assert len({each.fingerprint() for each in (plain, cropped, other)}) == 3
    assert cropped.fit(images()).features(images()).shape == (5, 16)


def test_refuses_what_cannot_be():
    with pytest.raises(ValueError, match=r"side=1\.5"):
        OverCrops(body(), side=1.5)
    with pytest.raises(ValueError, match="grid is 0"):
        OverCrops(body(), grid=0)
    with pytest.raises(ValueError, match="crops are of images"):
        OverCrops(nn.Flatten())(torch.zeros(3, 4))
