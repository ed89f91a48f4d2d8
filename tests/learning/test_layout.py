"""Weights lie channels last while a network is trained on a device that gains by it, and as usual before and after."""

import pytest
import torch
from torch import nn

from labeldp.learning import train as layout
from labeldp.learning.dividemix import co_refine
from labeldp.learning.evidence import from_classes, on_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import constant, sgd
from labeldp.learning.train import fit
from tests.learning.semihelp import STRONG, WEAK, K, pictures
from tests.trained import weights

N = 96
VIEWS = {"weak": WEAK, "strong": STRONG, "optimizer": sgd(0.01), "schedule": constant(), "epochs": 2, "seed": 3}


def network():
    """Two convolutions: a weight of one channel lies both ways at once."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, K))


def plainly(model):
    images, classes = pictures(N)
    return fit(model, images, on_classes(classes), epochs=2, batch_size=32, optimizer=sgd(0.01), average=0.9, seed=3)


def by(train, **settings):
    images, classes = pictures(N)
    return lambda model: train(model, images, on_classes(classes), batch_size=16, average=0.9, **VIEWS, **settings)


def together(model):
    images, classes = pictures(N)
    return co_refine(model, images, from_classes(classes, K), batch_size=16, warmup=1, **VIEWS)


TRAININGS = {
    "fit": plainly, "fixmatch": by(fixmatch, ratio=2, threshold=0.3), "mean teacher": by(mean_teacher),
    "co-refinement": together,
}  # fmt: skip


def lies_last(model):
    return [p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in wide(model)]


def wide(model):
    return [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1]


@pytest.fixture
def gains(monkeypatch):
    monkeypatch.setattr(layout, "_FASTER_ON", frozenset({"cpu"}))


@pytest.mark.parametrize("train", TRAININGS.values(), ids=TRAININGS)
def test_channels_are_last_in_training_and_only_then(train, gains):
    model, seen = network(), []
    model.register_forward_hook(lambda module, *_: seen.extend(lies_last(module)) if module.training else None)
    trained = train(model)
    assert seen
    assert all(seen)
    assert all(p.is_contiguous() for p in trained.parameters())


@pytest.mark.parametrize("train", TRAININGS.values(), ids=TRAININGS)
def test_the_layout_changes_rounding_alone(train, monkeypatch):
    usual, before = weights(train(network())), weights(network())
    monkeypatch.setattr(layout, "_FASTER_ON", frozenset({"cpu"}))
    other = weights(train(network()))
    # A moving average that followed the old memory would stand still.
    assert (usual[: len(before)] - before).abs().max() > 1e-3
    assert torch.allclose(usual, other, rtol=1e-3, atol=1e-4)


def test_a_cpu_keeps_its_layout():
    model = network()
    layout.channels_last(model)
    assert not any(lies_last(model))


def test_what_an_optimiser_holds_stays_the_models(gains):
    model = network()
    held = list(model.parameters())
    layout.channels_last(model)
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    assert all(lies_last(model))
    layout.channels_first(model)
    assert not any(lies_last(model))
    assert torch.equal(weights(model), weights(network()))
