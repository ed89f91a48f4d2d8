import math
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labeldp.budgets.calibrate import calibrate, noise_multiplier
from labeldp.core.accountant import epsilon
from labeldp.core.events import (
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PartitionGaussian,
    PoissonGaussian,
    PublicBatchGaussian,
    PureDP,
    Queries,
    Query,
)
from labeldp.core.gaussian import AccountingError
from labeldp.core.inverse import analytic_gaussian_std

Q = 1024 / 60000


def _dp_sgd(batches: str, noise: float, steps: int, rate: float) -> Queries:
    return {
        "poisson": (Query(PoissonGaussian(noise, 1, 2, rate), steps),),
        "fixed-size": (Query(FixedSizeGaussian(noise, 1, 2, rate), steps),),
        "public": (Query(PublicBatchGaussian(noise, 2, rate), steps),),
        "partition": (Query(PartitionGaussian(noise, 2), math.ceil(steps * rate)),),
    }[batches]


# privacy.md, "other schemes": 293 steps, delta 1e-5.
@pytest.mark.parametrize(
    ("batches", "eps", "sigma"),
    [
        ("poisson", 0.1, 17.97),
        ("poisson", 2.0, 1.215),
        ("fixed-size", 0.1, 18.77),
        ("fixed-size", 1.0, 3.016),
        ("fixed-size", 2.0, 2.046),
        ("public", 0.1, 157.97),
        ("public", 1.0, 20.04),
        ("public", 2.0, 10.90),
    ],
)
def test_schemes(batches, eps: float, sigma: float) -> None:
    found = noise_multiplier(eps, 1e-5, 293, Q, batches)
    assert found == pytest.approx(sigma, rel=5e-4)
    assert epsilon(_dp_sgd(batches, found, 293, Q), 1e-5) <= eps
    assert epsilon(_dp_sgd(batches, found * (1 - 4e-6), 293, Q), 1e-5) > eps


@pytest.mark.parametrize(("eps", "sigma"), [(0.1, 137.52), (0.5, 31.45), (1.0, 16.68), (2.0, 8.917)])
def test_partition_counts_passes(eps: float, sigma: float) -> None:
    assert noise_multiplier(eps, 1e-5, 290, 5 / 290, "partition") == pytest.approx(sigma, rel=5e-4)


@pytest.mark.parametrize("steps", [293, 10_000])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0, 10.0])
def test_calibration_is_quick_and_checked(eps: float, delta: float, steps: int) -> None:
    start = time.process_time()
    sigma = noise_multiplier(eps, delta, steps, Q)
    assert time.process_time() - start < 2
    spent = epsilon(_dp_sgd("poisson", sigma, steps, Q), delta)
    assert eps * (1 - 1e-4) <= spent <= eps


@settings(max_examples=25, deadline=None)
@given(
    eps=st.floats(0.02, 8),
    log_delta=st.floats(-12, -1),
    steps=st.integers(1, 400),
    rate=st.floats(1e-3, 1),
    batches=st.sampled_from(["poisson", "fixed-size", "public", "partition"]),
)
def test_calibrated_noise_always_meets_the_target(eps, log_delta, steps, rate, batches) -> None:
    delta = max(10**log_delta, 1e-12)
    assume(delta < 0.9 * rate)  # else no noise at all may do
    sigma = noise_multiplier(eps, delta, steps, rate, batches, rtol=1e-4)
    assert epsilon(_dp_sgd(batches, sigma, steps, rate), delta) <= eps


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.0625), (2, 0.03125)])
def test_a_delta_that_covers_the_chance_of_a_look_is_refused(steps: int, rate: float) -> None:
    """Rows are looked at with chance below δ = 0.1, so ε = 0 needs no noise, and none is the smallest."""
    with pytest.raises(AccountingError, match="Give a smaller delta"):
        noise_multiplier(1.0, 0.1, steps, rate)


@pytest.mark.parametrize("guess", [1e-6, 1.0, 1e6])
def test_any_guess_will_do(guess: float) -> None:
    std = calibrate(lambda noise: (Query(Gaussian(noise, 2**0.5)),), 0.5, 1e-5, guess=guess)
    exact = analytic_gaussian_std(0.5, 1e-5, 2**0.5)
    assert exact * (1 - 1e-9) <= std <= exact * (1 + 1.1e-6)


def test_mixed_budget() -> None:
    def queries(noise: float) -> Queries:
        return (Query(PureDP(0.2)), Query(DiscreteGaussian(noise, (1, 1))), Query(PoissonGaussian(noise, 1, 2, Q), 50))

    noise = calibrate(queries, 1.0, 1e-6, guess=5.0)
    assert 0.999 < epsilon(queries(noise), 1e-6) <= 1.0


def test_pure_noise_at_delta_zero() -> None:
    scale = calibrate(lambda b: (Query(PureDP(2 / b), 3),), 1.5, 0.0)
    assert scale == pytest.approx(4.0, rel=1e-5)


def test_noise_without_bound_below_is_refused() -> None:
    with pytest.raises(AccountingError):
        calibrate(lambda _: (), 1.0, 1e-5)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: noise_multiplier(0.0, 1e-5, 10, 0.1), "epsilon"),
        (lambda: noise_multiplier(math.inf, 1e-5, 10, 0.1), "epsilon"),
        (lambda: noise_multiplier(math.nan, 1e-5, 10, 0.1), "epsilon"),
        (lambda: noise_multiplier(1.0, 0.0, 10, 0.1), "delta"),
        (lambda: noise_multiplier(1.0, 1e-13, 10, 0.1), "delta"),
        (lambda: noise_multiplier(1.0, 1e-5, 0, 0.1), "steps"),
        (lambda: noise_multiplier(1.0, 1e-5, 10, 0.0), "rate"),
        (lambda: noise_multiplier(1.0, 1e-5, 10, 1.5), "rate"),
        (lambda: noise_multiplier(1.0, 1e-5, 10, 0.1, "shuffle"), "batches"),
        (lambda: calibrate(lambda s: (Query(Gaussian(s, 1)),), 1.0, 0.0), "no noise"),
        (lambda: calibrate(lambda s: (Query(NonPrivate("seen")),), 1.0, 1e-5), "no noise"),
        (lambda: calibrate(lambda s: (Query(Gaussian(s, 1)), Query(PureDP(2))), 1.0, 1e-5), "no noise"),
        (lambda: calibrate(lambda s: (Query(Gaussian(s, 1)),), 1.0, 1e-5, guess=0.0), "guess"),
    ],
)
def test_impossible_targets_are_refused_quickly(call, word: str) -> None:
    start = time.process_time()
    with pytest.raises(AccountingError, match=word):
        call()
    assert time.process_time() - start < 3
