"""Exact checks: what a row adds, and how far a replaced label moves it, against the event's radius and diameter."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labeldp.core.events import Gaussian
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.per_example import gradients
from labeldp.mechanisms.gradients.sums import DiameterBound, GradientSum, NormBound
from labeldp.models.zoo import mnist_cnn


def tied(logits, labels):
    """Classes 0 and 1 have the same loss: two candidates at the same point."""
    return cross_entropy(logits, labels.clamp(min=1))


def flat(logits, labels):
    """Class 0 has no gradient at all."""
    return cross_entropy(logits, labels) * (labels > 0)


def squared(logits, labels):
    """Not a likelihood: any loss of (logits, label) will do."""
    return (logits[:, 0] - labels).square()


LOSSES = {"cross entropy": cross_entropy, "tied": tied, "flat": flat, "squared": squared}
NETWORKS = {
    "linear": lambda k: nn.Sequential(nn.Flatten(), nn.Linear(18, k)),
    "hidden": lambda k: nn.Sequential(nn.Flatten(), nn.Linear(18, 7), nn.ReLU(), nn.Linear(7, k)),
    "places": lambda k: nn.Sequential(nn.Conv2d(2, 6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(24, k)),
    "normed": lambda k: nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(True), nn.Flatten(), nn.Linear(16, k)
    ),
}  # fmt: skip


def bounds():
    share = st.sampled_from([0.03, 0.1, 0.5, 1.0, 1.3, 2.0])
    clip = st.floats(-3, 3).map(lambda exponent: 10**exponent)
    return st.one_of(
        st.builds(NormBound, clip), st.builds(lambda c, s: DiameterBound(c, min(c * s, 2 * c)), clip, share)
    )


def contribution(ask, row, label):
    """What the row adds to the sum under this label, exactly as float32 has it."""
    return ask.total(np.array([label], dtype=np.uint8), None)().double()


@given(
    network=st.sampled_from(sorted(NETWORKS)), loss=st.sampled_from(sorted(LOSSES)), classes=st.integers(2, 5),
    bound=bounds(), size=st.floats(-2, 2) | st.floats(-40, 40), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=200)
def test_contributions_keep_radius_and_diameter(network, loss, classes, bound, size, seed):
    """For every label of a row |v| ≤ R, and |v − v′| ≤ D for every pair of labels. No tolerance."""
    torch.manual_seed(seed)
    row = torch.randn(1, 2, 3, 3) * 10**size
    ask = GradientSum(NETWORKS[network](classes), row, bound, 1.0, loss=LOSSES[loss], num_classes=classes)
    added = torch.stack([contribution(ask, row, label) for label in range(classes)])
    assert added.norm(dim=1).max().item() <= bound.radius
    assert (
        torch.cdist(added[None], added[None], compute_mode="donot_use_mm_for_euclid_dist").max().item()
        <= bound.diameter
    )


@given(
    network=st.sampled_from(sorted(NETWORKS)), classes=st.integers(2, 5), share=st.sampled_from([0.1, 1.0, 1.5]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=60)
def test_the_public_diameter_wastes_next_to_nothing(network, classes, share, seed):
    """Against the definition in float64: clip every candidate, then one factor for all."""
    torch.manual_seed(seed)
    row, model = torch.randn(1, 2, 3, 3), NETWORKS[network](classes)
    every = torch.cat([gradients(model, cross_entropy, row, torch.tensor([k])) for k in range(classes)]).double()
    clip = every.norm(dim=1).median().item()
    clipped = every * (clip / every.norm(dim=1, keepdim=True)).clamp(max=1.0)
    apart = torch.cdist(clipped[None], clipped[None], compute_mode="donot_use_mm_for_euclid_dist").max().item()
    expected = clipped * min(1.0, share * clip / apart)
    ask = GradientSum(model, row, DiameterBound(clip, share * clip), 1.0)
    for label in range(classes):
        added = contribution(ask, row, label)
        assert (added - expected[label]).norm().item() <= 2e-3 * clip * max(1.0, share)


def test_two_candidates_at_opposite_ends_and_none_at_all():
    """K = 2, linear head, no bias: the candidates point in opposite directions; a row of zeros has none."""
    ask = GradientSum(nn.Linear(3, 2, bias=False), torch.tensor([[1.0, 2.0, 2.0]]), DiameterBound(1.0, 0.8), 1.0)
    nn.init.zeros_(ask.model.weight)
    ends = [contribution(ask, None, label) for label in (0, 1)]
    assert (ends[0] - ends[1]).norm().item() == pytest.approx(0.8, rel=1e-3)
    torch.testing.assert_close(ends[0], -ends[1])
    empty = GradientSum(ask.model, torch.zeros(1, 3), DiameterBound(1.0, 0.8), 1.0)
    assert contribution(empty, None, 1).abs().max().item() == 0.0


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e35])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_row_with_one_unusable_candidate_adds_nothing_under_any_label(network, bad):
    """Dropped alone, the candidate would be further than D from the others where D is less than C."""

    def broken(logits, labels):
        return cross_entropy(logits, labels) * torch.where(labels == 0, bad, 1.0)

    torch.manual_seed(0)
    ask = GradientSum(NETWORKS[network](3), torch.randn(1, 2, 3, 3), DiameterBound(1e-3, 1e-4), 1.0, loss=broken)
    assert [contribution(ask, None, label).abs().max().item() for label in range(3)] == [0.0, 0.0, 0.0]


@given(bound=bounds(), seed=st.integers(0, 2**31), row=st.integers(0, 11), label=st.integers(0, 3))
@settings(max_examples=40)
def test_a_replaced_label_moves_a_release_by_the_diameter_at_most(bound, seed, row, label):
    """The same vault stream, so the same batch and noise: the difference of two releases is what the label did."""
    torch.manual_seed(seed)
    ours = np.random.default_rng(seed).integers(0, 4, 12).astype(np.uint8)
    theirs = ours.copy()
    theirs[row] = label
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 6), nn.ReLU(), nn.Linear(6, 4))
    for rate in (1.0, 0.5):
        ask = GradientSum(model, torch.randn(12, 2, 3, 3), bound, 1e-3 * bound.radius, rate=rate)
        here, there = (ask.sample(responses, SecureRandom(seed)).value.double() for responses in (ours, theirs))
        moved = ((here - there) * ask.expected_batch).norm().item()
        # Sums of twelve rows in float32, rounded once more at the end.
        assert moved <= bound.diameter + 1e-5 * bound.radius


def test_public_diameters_are_shorter_on_a_real_network():
    """Ten classes: even with images of noise and fresh weights, clipped candidates are less than 2C apart."""
    torch.manual_seed(0)
    model, images = mnist_cnn(), torch.randn(6, 1, 28, 28)
    every = torch.stack([gradients(model, cross_entropy, images, torch.full((6,), k)) for k in range(10)], dim=1)
    clip = every.norm(dim=2).median().item()
    clipped = every * (clip / every.norm(dim=2, keepdim=True)).clamp(max=1.0)
    assert torch.cdist(clipped, clipped).amax((1, 2)).max().item() < 1.95 * clip
    event = GradientSum(model, images, DiameterBound(clip, 1.95 * clip), 1.0).event()
    assert isinstance(event, Gaussian)
    assert event.diameter == pytest.approx(1.95 * clip, rel=1e-4)
