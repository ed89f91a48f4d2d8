"""Ridge from a noisy moment: the algebra without noise, the shrinkage against an oracle that knows the signal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from labeldp.learning.heads import class_shares, eigenbasis, power_law, ridge, shrinkage
from labeldp.releases import NoisyMoments


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(rows=2000, classes=4, width=6, apart=3.0, seed=0, shares=None):
    """Gaussian classes around random centres: features (n, d) with a constant last, and labels."""
    weights = torch.ones(classes) if shares is None else torch.tensor(shares)
    labels = torch.multinomial(weights, rows, replacement=True, generator=rng(seed))
    centres = apart * torch.randn(classes, width, generator=rng(seed + 1))
    rows_ = centres[labels] + torch.randn(rows, width, generator=rng(seed + 2))
    return torch.cat((rows_, torch.ones(rows, 1)), dim=1), labels


def moment_of(features, labels, classes, noise_std=0.0, seed=9):
    """What a mechanism would release."""
    onehot = torch.nn.functional.one_hot(labels, classes).double()
    exact = onehot.T @ features.double()
    noise = torch.randn(exact.shape, generator=rng(seed), dtype=torch.float64) * noise_std
    value = exact + noise - noise.mean(dim=0)
    return NoisyMoments(
        value.numpy(), exact.sum(dim=0).numpy(), len(features), "discrete Gaussian", noise_std, radius=1.0
    )


def accuracy(features, labels, weight):
    return float(((features @ weight.T).argmax(dim=1) == labels).double().mean())


# -- ridge --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constant", [None, 6])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_without_noise_it_is_least_squares(classes, constant):
    features, labels = blobs(rows=50_000, classes=classes)
    noisy = moment_of(features, labels, classes)
    gram = features.T @ features
    expected = torch.linalg.solve(gram.double(), torch.tensor(noisy.value).T).T.float()
    found = ridge(noisy, gram, constant=constant)
    # 50,000 rows: what is left of the shrinkage is that of ridge regression with so many.
    torch.testing.assert_close(found, expected, atol=4e-3, rtol=0)
    assert accuracy(features, labels, found) >= accuracy(features, labels, expected) - 1e-4


def test_the_moment_is_taken_apart_and_put_together_again():
    features, labels = blobs()
    noisy = moment_of(features, labels, 4, noise_std=5.0)
    parts = shrinkage(noisy, features.T @ features, constant=6)
    together = parts.contrasts @ parts.axes.vectors.T + parts.shares[:, None] * torch.tensor(noisy.total)
    np.testing.assert_allclose(together, noisy.value, atol=1e-9)
    assert (parts.axes.values[:-1] >= parts.axes.values[1:]).all()
    assert ((parts.factors >= 0) & (parts.factors <= 1)).all()


def spectrum_problem(exponent, snr, width=400, classes=10, seed=0):
    """A moment whose true contrasts follow v_j = c·λ_j^a exactly, in the basis of a diagonal Gram matrix."""
    values = torch.logspace(5, 1, width, dtype=torch.float64)
    signal = snr * 400.0**2 * (values / values[0]) ** exponent
    true = torch.randn(classes, width, generator=rng(seed), dtype=torch.float64) * signal.sqrt()
    true -= true.mean(dim=0)
    noise = torch.randn(classes, width, generator=rng(seed + 1), dtype=torch.float64) * 400.0
    value = true + noise - noise.mean(dim=0)
    noisy = NoisyMoments(value.numpy(), np.zeros(width), 10**5, "discrete Gaussian", 400.0, radius=1.0)
    return noisy, values, signal, true


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("snr", [1.0, 30.0, 1000.0])
def test_shrinkage_is_nearly_as_good_as_knowing_the_signal(exponent, snr):
    """Prediction error Σ_j |ŵ_j − w_j|²·λ_j against the oracle's factors, mean of 5 draws."""
    errors = {"oracle": 0.0, "found": 0.0, "raw": 0.0}
    for seed in range(5):
        noisy, values, signal, true = spectrum_problem(exponent, snr, seed=10 * seed)
        found = shrinkage(noisy, torch.diag(values))
        oracle = signal / (signal + 400.0**2 + 0.1 * values)
        for name, factors in (("oracle", oracle), ("found", found.factors), ("raw", torch.ones(400))):
            errors[name] += float((((torch.tensor(noisy.value) * factors - true) ** 2) / values).sum())
    # Little signal leaves few directions to learn two numbers from.
    close = 1.5 if snr == 1 else 1.06
    assert 0.999 * errors["oracle"] <= errors["found"] <= close * errors["oracle"]
    # Where nearly all is signal there is little to gain.
    assert errors["found"] < (0.7 if snr * 1e-4**exponent < 1 else 1.0) * errors["raw"]


def test_pure_noise_is_shrunk_to_nothing():
    values = torch.logspace(4, 1, 300, dtype=torch.float64)
    noisy, *_ = spectrum_problem(1.0, 0.0, width=300)
    factors = shrinkage(noisy, torch.diag(values)).factors
    assert float(factors.mean()) < 0.05


def test_the_law_is_the_likeliest_one():
    """Against a general-purpose optimiser from many starts."""
    noisy, values, *_ = spectrum_problem(1.7, 10.0)
    power = torch.tensor(noisy.value).square().sum(dim=0) / 9
    noise = torch.full_like(values, 400.0**2)
    signal, exponent = power_law(power, values, noise)

    def misfit(level_and_exponent):
        level, a = level_and_exponent
        variance = math.exp(level) * (values / values[0]) ** a + noise
        return float((variance.log() + power / variance).sum())

    starts = [(level, a) for level in (8.0, 12.0, 16.0) for a in (0.2, 1.0, 3.0)]
    bounds = [(0.0, 25.0), (0.0, 4.0)]
    best = min((minimize(misfit, start, bounds=bounds, method="L-BFGS-B") for start in starts), key=lambda r: r.fun)
    assert misfit((float(signal[0].log()), exponent)) <= best.fun + 1e-3
    assert exponent == pytest.approx(1.7, abs=0.2)


# -- shapes and shares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (2, 40), (1000, 30)])
def test_two_classes_and_a_thousand(classes, width):
    features, labels = blobs(rows=4000, classes=classes, width=width, apart=4.0)
    noisy = moment_of(features, labels, classes, noise_std=1.0)
    weight = ridge(noisy, features.T @ features, constant=width)
    assert weight.shape == (classes, width + 1)
    assert weight.dtype == torch.float32
    assert accuracy(features, labels, weight) > {1: 0.75, 40: 0.95, 30: 0.3}[width]


def test_features_that_never_vary_get_no_weight():
    features, labels = blobs()
    padded = torch.cat((features, torch.zeros(len(features), 2)), dim=1)
    noisy = moment_of(padded, labels, 4, noise_std=50.0)
    weight = ridge(noisy, padded.T @ padded, constant=6)
    assert torch.isfinite(weight).all()
    assert float(weight[:, -2:].abs().max()) < 1e-9
    doubled = torch.cat((features, features), dim=1)
    assert torch.isfinite(ridge(moment_of(doubled, labels, 4, 50.0), doubled.T @ doubled)).all()
    assert (eigenbasis(doubled.T @ doubled).values > 0).sum() == 7


def test_shares_are_those_of_the_classes():
    features, labels = blobs(rows=20_000, shares=[0.7, 0.2, 0.09, 0.01])
    noisy = moment_of(features, labels, 4, noise_std=100.0)
    value, total = torch.tensor(noisy.value), torch.tensor(noisy.total)
    shares = class_shares(value, total, 100.0, constant=6)
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.09, 0.01], atol=0.02)
    assert float(shares.sum()) == pytest.approx(1.0)
    assert shares.min() >= 0
    assert class_shares(value, total, 100.0).tolist() == [0.25] * 4
    # Noise far beyond the counts says nothing about them.
    lost = moment_of(features, labels, 4, noise_std=1e6)
    drowned = class_shares(torch.tensor(lost.value), total, 1e6, constant=6)
    assert float(drowned.sum()) == pytest.approx(1.0)


def test_the_majority_is_the_guess_where_features_say_nothing():
    features = torch.cat((torch.randn(5000, 3, generator=rng()), torch.ones(5000, 1)), dim=1)
    labels = (torch.rand(5000, generator=rng(1)) < 0.05).long()
    noisy = moment_of(features, labels, 2, noise_std=30.0)
    assert accuracy(features, labels, ridge(noisy, features.T @ features, constant=3)) > 0.93


def test_refusals():
    features, labels = blobs()
    noisy = moment_of(features, labels, 4)
    with pytest.raises(ValueError, match="gram has 3 rows; the moment has 7 features"):
        ridge(noisy, torch.eye(3))
    with pytest.raises(ValueError, match="gram has shape"):
        ridge(noisy, torch.ones(7, 6))
    with pytest.raises(ValueError, match="not finite"):
        ridge(noisy, torch.full((7, 7), math.nan))
