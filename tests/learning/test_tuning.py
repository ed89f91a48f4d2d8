"""Label-free tuning: rows within the bound, choices without a label, and how good they are with one."""

from __future__ import annotations

import inspect
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.features.extract import gram_of
from labeldp.learning.heads import eigenbasis, ridge, ridge_head, softmax_head
from labeldp.learning.tuning import Plan, class_sums, mock_release, prepare, spectrum, tune
from tests.learning.test_moments import accuracy, rng


def spread_out(rows=3000, width=40, seed=0, steep=1.0):
    """Features whose variance falls as a power of their number, not aligned with the axes."""
    scale = torch.arange(1, width + 1).pow(-steep)
    turn = torch.linalg.qr(torch.randn(width, width, generator=rng(seed + 1))).Q
    return (torch.randn(rows, width, generator=rng(seed)) * scale) @ turn + 3.0


def modes(rows=8000, width=64, count=60, classes=5, seed=0):
    """Many modes of falling spread; a class is some of them, at random. Features and labels."""
    scale = torch.arange(1, width + 1).pow(-0.7)
    centres = torch.randn(count, width, generator=rng(seed)) * scale
    which = torch.randint(count, (rows,), generator=rng(seed + 1))
    features = centres[which] + 0.25 * torch.randn(rows, width, generator=rng(seed + 2)) * scale
    return features, (torch.arange(count) % classes)[which]


# -- plans ----------------------------------------------------------------------------------------------------


@given(
    rank=st.integers(1, 60),
    power=st.floats(0, 1.5),
    quantile=st.sampled_from([0.0, 0.3, 1.0]),
    constant=st.sampled_from([0.0, 0.3, 2.0]),
)
@settings(max_examples=40)
def test_rows_are_no_longer_than_one(rank, power, quantile, constant):
    features = spread_out(rows=300)
    basis = prepare(Plan(rank, power, quantile, constant), spectrum(features), features)
    rows = basis(features)
    lengths = rows.norm(dim=1)
    assert rows.shape == (300, min(rank, 40) + (constant > 0))
    assert basis.width == rows.shape[1]
    assert float(lengths.max()) <= 1 + 1e-6
    full = (lengths > 1 - 1e-4).double().mean()
    assert float(full) >= 1 - quantile - 0.01
    if quantile == 1.0:
        assert float(full) < 0.1


def test_whitening_by_its_power():
    features = spread_out(rows=20_000)
    found = spectrum(features)
    free = [prepare(Plan(10, power), found, features) for power in (0.0, 0.5, 1.0)]
    deviations = [basis._plain(features)[:, :-1].std(dim=0) for basis in free]
    torch.testing.assert_close(deviations[0], found.variances[:10].sqrt(), rtol=0.02, atol=0)
    torch.testing.assert_close(deviations[1], found.variances[:10].pow(0.25), rtol=0.02, atol=0)
    torch.testing.assert_close(deviations[2], torch.ones(10), rtol=0.02, atol=0)


@pytest.mark.parametrize("plan", [Plan(5), Plan(40, 1.0, 0.5), Plan(3, 0.0, 1.0, constant=0.0)])
def test_the_layer_on_plain_features_decides_as_the_head_does(plan):
    features = spread_out(rows=500)
    basis = prepare(plan, spectrum(features), features)
    weight = torch.randn(4, basis.width, generator=rng(3))
    layer = basis.linear(weight)
    assert (layer(features).argmax(dim=1) == (basis(features) @ weight.T).argmax(dim=1)).all()
    assert not layer.weight.requires_grad


def test_features_without_spread_and_bad_plans_are_refused():
    with pytest.raises(ValueError, match="do not vary"):
        prepare(Plan(2), spectrum(torch.ones(9, 3)), torch.ones(9, 3))
    with pytest.raises(ValueError, match="rank"):
        Plan(0)
    with pytest.raises(ValueError, match=r"quantile=1\.5"):
        Plan(3, quantile=1.5)
    with pytest.raises(ValueError, match="power=-1"):
        Plan(3, power=-1)
    with pytest.raises(ValueError, match="features has shape"):
        spectrum(torch.ones(9))
    with pytest.raises(ValueError, match="not finite"):
        spectrum(torch.full((9, 3), math.inf))


# -- tuning ---------------------------------------------------------------------------------------------------


def test_nothing_here_could_hold_a_label():
    names = set(inspect.signature(tune).parameters)
    assert not {name for name in names if "label" in name or "vault" in name or name in {"y", "targets"}}


def test_the_same_seed_gives_the_same_choice_and_scores():
    features = spread_out()
    first, second = (tune(features, 4, 20.0, plans=[Plan(4), Plan(16)], seed=5) for _ in range(2))
    assert first.tried == second.tried
    assert first.plan == second.plan


@pytest.mark.slow
def test_less_noise_more_directions():
    features, _ = modes()
    ranks = [tune(features, 5, noise, heads=[ridge_head]).plan.rank for noise in (100.0, 20.0, 1.0)]
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]


@pytest.mark.parametrize("noise", [60.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_the_choice_is_good_for_labels_it_has_never_seen(noise):
    """Regret on real labels of the plan chosen by pseudo-labels: at most two points."""
    features, labels = modes(rows=12_000)
    found = spectrum(features)
    plans = [Plan(rank, power) for power in (0.0, 0.5, 1.0) for rank in (2, 8, 32, 64)]
    chosen = tune(features, 5, noise, plans=plans, heads=[ridge_head]).plan
    scores = {plan: real_accuracy(plan, found, features, labels, noise) for plan in plans}
    assert scores[chosen] >= max(scores.values()) - 0.02
    assert np.median([*scores.values()]) < max(scores.values()) - 0.05, "there was something to choose"


def real_accuracy(plan, found, features, labels, noise):
    basis = prepare(plan, found, features)
    rows = basis(features)
    axes, moment = eigenbasis(gram_of(rows)), class_sums(rows, labels, 5)
    draws = [mock_release(moment, noise, len(rows), seed) for seed in range(100, 104)]
    return np.mean([accuracy(rows, labels, ridge(noisy, axes, constant=basis.constant_column)) for noisy in draws])


def test_noise_is_scaled_to_the_rows_tuned_on():
    """A fifth of the rows with a fifth of the noise scores as all rows do, and not as a fifth with all of it."""
    features, _ = modes(rows=20_000)
    settings_ = {"plans": [Plan(32)], "clusterings": 6, "draws": 4, "heads": [ridge_head]}
    few, whole = (tune(features, 5, 40.0, rows=rows, **settings_).tried[0].score for rows in (4000, 20_000))
    unscaled = tune(features, 5, 200.0, rows=4000, **settings_).tried[0].score
    assert few == pytest.approx(whole, abs=0.05)
    assert unscaled < whole - 0.15


def test_a_scale_for_every_head():
    """Scores that are ten times as large need a tenth of the factor."""
    features, _ = modes()

    def louder(noisy, rows, gram, *, constant=None):
        return 10 * ridge_head(noisy, rows, gram, constant=constant)

    plain, loud = tune(features, 5, 5.0, plans=[Plan(16)], heads=[ridge_head, louder]).scales
    assert plain.value == pytest.approx(10 * loud.value, rel=1e-3)
    assert 0.2 <= plain.spread < 1


def test_few_components_of_many_are_those_of_all():
    """Subspace iteration finds the directions of an eigendecomposition where variances differ."""
    features = spread_out(rows=2000, width=200)
    whole, few = spectrum(features), spectrum(features, most=10)
    torch.testing.assert_close(few.variances, whole.variances[:10], rtol=1e-3, atol=0)
    overlap = (few.components.T @ whole.components[:, :10]).diagonal().abs()
    assert float(overlap[:5].min()) > 0.999
    torch.testing.assert_close(few.components.T @ few.components, torch.eye(10), rtol=0, atol=1e-5)


def test_every_plan_is_reported():
    heard = []
    found = tune(spread_out(), 4, 20.0, plans=[Plan(4), Plan(8)], report=heard.append)
    assert tuple(heard) == found.tried


@pytest.mark.slow
def test_noise_may_depend_on_the_directions():
    """Noise that grows with the number of directions makes it smaller."""
    features, _ = modes()
    plain, growing = (tune(features, 5, noise).plan.rank for noise in (5.0, lambda width: 5.0 * width))
    assert growing < plain


@pytest.mark.parametrize("classes", [1, 2, 40])
def test_few_rows_and_any_number_of_classes(classes):
    features = spread_out(rows=200, width=5)
    found = tune(features, classes, 1.0, plans=[Plan(3)], clusterings=1, draws=1)
    assert 0 <= found.tried[0].score <= 1
    rows = found.basis(features)
    moment = mock_release(class_sums(rows, torch.arange(200) % classes, classes), 1.0, 200, 0)
    assert found.fit(moment, rows)(features).shape == (200, classes)


def test_refusals():
    features = spread_out(rows=50, width=5)
    with pytest.raises(ValueError, match="noise=-1"):
        tune(features, 2, -1.0)
    with pytest.raises(ValueError, match="plans is empty"):
        tune(features, 2, 1.0, plans=[])
    with pytest.raises(ValueError, match="heads"):
        tune(features, 2, 1.0, heads=[])
    with pytest.raises(ValueError, match="num_classes"):
        tune(features, 0, 1.0)
    with pytest.raises(ValueError, match="at least 3"):
        tune(features[:2], 2, 1.0)


def test_moments_of_tuning_have_the_noise_they_state():
    moment = torch.zeros(5, 40_000, dtype=torch.float64)
    noisy = mock_release(moment, 3.0, 10, seed=1)
    np.testing.assert_allclose(noisy.value.sum(axis=0), 0, atol=1e-9)
    assert noisy.value.std() == pytest.approx(noisy.noise_std * math.sqrt(4 / 5), rel=0.01)


@pytest.mark.slow
@pytest.mark.skipif("LABELDP_DATA" not in os.environ, reason="needs $LABELDP_DATA with fashion_mnist")
@pytest.mark.parametrize(("epsilon", "least"), [(0.1, 0.76), (1.0, 0.8)])
def test_one_look_at_fashion_mnist_from_pixels(epsilon, least):
    """The whole way with the real vault: tune, ask once, fit; nothing is chosen by a label."""
    from labeldp.core.ledger import Budget
    from labeldp.data.benchmarks import load
    from labeldp.data.files import MissingDataError
    from labeldp.mechanisms.counts import GaussianNoise
    from labeldp.mechanisms.moments import Moments

    try:
        data = load("fashion_mnist", budget=Budget(epsilon, 1e-5))
    except MissingDataError:
        pytest.skip("no fashion_mnist in $LABELDP_DATA")
    train, test = (torch.tensor(images).flatten(1).float() / 255 for images in (data.train, data.test))
    noise = GaussianNoise.for_budget(epsilon, 1e-5)
    found = tune(train, 10, noise.std)
    rows = found.basis(train)
    noisy = data.vault.release(Moments(rows.numpy(), 10, noise, radius=1.0))
    assert noisy.scaled_rows == 0
    head = found.fit(noisy, rows)
    found_share = float((head(test).argmax(dim=1).numpy() == data.test_labels.values).mean())
    assert found_share > least
    assert data.vault.certificate().epsilon <= epsilon


def test_all_heads_have_one_shape():
    for head in (ridge_head, softmax_head):
        assert [*inspect.signature(head).parameters][:3] == ["noisy", "features", "gram"]
        assert "constant" in inspect.signature(head).parameters


def test_many_features_of_few_rows_have_the_same_spectrum():
    wide = torch.randn(40, 100, generator=torch.Generator().manual_seed(0)) * torch.linspace(2, 0.1, 100)
    found = spectrum(wide)
    centred = (wide - wide.mean(dim=0)).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / 40)
    assert torch.allclose(found.variances[:39].double(), values.flip(0)[:39], rtol=1e-4)
    assert torch.allclose(
        (found.components[:, :39].T.double() @ vectors.flip(1)[:, :39]).abs(), torch.eye(39).double(), atol=1e-3
    )
