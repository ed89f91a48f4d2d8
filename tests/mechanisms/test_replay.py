"""Recorded gradient sums: the same numbers as without a recording. The recording itself needs a GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from labeldp.mechanisms.gradients.layers import cross_entropy, own_generator, pieces
from labeldp.mechanisms.gradients.per_example import (
    bounded,
    bounded_sum,
    candidates_of,
    load_parameter_vector,
    norm_factors,
    parameter_vector,
    trainable,
)
from labeldp.mechanisms.gradients.plans import plan_for
from labeldp.mechanisms.gradients.replay import ReplayedSum, padded
from labeldp.mechanisms.gradients.sums import DiameterBound
from labeldp.models.zoo import cifar_cnn, mnist_cnn

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
clip = partial(norm_factors, 1.0)


def batch(rows: int, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 1, 28, 28, generator=generator)
    return images.to(device), torch.randint(10, (rows,), generator=generator).to(device)


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 500, 1000, 1024, 1025, 60_000])
def test_sizes_are_few_and_never_too_small(rows: int) -> None:
    assert rows <= padded(rows) < max(rows + 32, rows * 1.25)
    assert padded(padded(rows)) == padded(rows)
    assert len({padded(size) for size in range(900, 1150)}) <= 6


@pytest.mark.parametrize("num_classes", [None, 10])
def test_rows_of_weight_zero_add_nothing(num_classes: int | None) -> None:
    model = mnist_cnn()
    factors = clip if num_classes is None else DiameterBound(1.0, 1.2).factors
    images, labels = batch(8)
    every, choice = candidates_of(labels, num_classes)
    plan = plan_for(model, cross_entropy, (images,), trainable(model))
    found = pieces(plan, model, cross_entropy, (images,), every, trainable(model))
    weights = torch.tensor([1.0] * 5 + [0.0] * 3, dtype=torch.float64)
    nothing = torch.zeros(len(parameter_vector(model)), dtype=torch.float64)
    some = bounded(nothing.clone(), found, factors, choice, model, weights=weights)
    alone = bounded_sum(model, cross_entropy, images[:5], labels[:5], factors, num_classes=num_classes)
    torch.testing.assert_close(some, alone, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(some, bounded(nothing, found, factors, choice, model), atol=1e-3)


def test_nothing_is_recorded_on_a_processor() -> None:
    replayed = ReplayedSum(mnist_cnn(), cross_entropy, clip, None)
    for _ in range(3):
        images, labels = batch(40)
        assert replayed((images,), labels) is None


def on_gpu(model: nn.Module, replayed: ReplayedSum, images: Tensor, labels: Tensor) -> Tensor:
    """The recorded sum, with the first time, which is never recorded, behind it."""
    replayed((images,), labels)
    found = replayed((images,), labels)
    assert found is not None
    return found


@needs_gpu
@pytest.mark.parametrize("num_classes", [None, 10])
def test_replayed_sums_are_the_plain_ones_for_every_size_and_weights(num_classes: int | None) -> None:
    model = mnist_cnn().cuda()
    factors = clip if num_classes is None else DiameterBound(1.0, 1.2).factors
    replayed = ReplayedSum(model, cross_entropy, factors, num_classes)
    for step, rows in enumerate((40, 64, 33, 50, 200)):
        images, labels = batch(rows, "cuda", seed=step)
        plain = bounded_sum(model, cross_entropy, images, labels, factors, num_classes=num_classes)
        torch.testing.assert_close(on_gpu(model, replayed, images, labels), plain, rtol=1e-3, atol=1e-5)
        load_parameter_vector(model, parameter_vector(model) + 0.01)


@needs_gpu
def test_weights_in_other_memory_are_recorded_anew() -> None:
    model = mnist_cnn().cuda()
    replayed = ReplayedSum(model, cross_entropy, clip, None)
    images, labels = batch(64, "cuda")
    before = on_gpu(model, replayed, images, labels)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(2 * layer.weight.detach())
    plain = bounded_sum(model, cross_entropy, images, labels, clip)
    after = on_gpu(model, replayed, images, labels)
    torch.testing.assert_close(after, plain, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(before, after, atol=1e-3)


@needs_gpu
def test_dropout_masks_of_a_replay_follow_the_generator() -> None:
    model = cifar_cnn().cuda().train()
    replayed = ReplayedSum(model, cross_entropy, clip, None)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 32, 32, generator=generator).cuda()
    labels = torch.randint(10, (64,), generator=generator).cuda()

    def drawn(seed: int) -> Tensor:
        with own_generator(seed, images.device):
            found = replayed((images,), labels)
        assert found is not None
        return found

    on_gpu(model, replayed, images, labels)
    first, again, other = drawn(1), drawn(1), drawn(2)
    # Sums over rows are not always added up in the same order there.
    torch.testing.assert_close(first, again, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(first, other, atol=1e-3)
