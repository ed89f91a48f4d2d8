import itertools
import math
import subprocess
import sys
import time
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from labeldp.core.accountant import accountant_name, epsilon
from labeldp.core.events import (
    DiscreteGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PartitionGaussian,
    PoissonGaussian,
    PublicBatchGaussian,
    PureDP,
    Query,
)
from labeldp.core.gaussian import AccountingError, gaussian_delta, gaussian_epsilon
from labeldp.core.inverse import delta, gaussian_mu, pld_delta
from labeldp.core.pld import connect_dots, pld_epsilon

Q = 1024 / 60000

PRIVATE: list[Event] = [
    PureDP(0.3),
    Gaussian(8.0, 2.0),
    PartitionGaussian(8.0, 2.0),
    PoissonGaussian(1.5, 1.0, 2.0, 0.05),
    PoissonGaussian(1.5, 1.0, 1.1, 0.05),
    FixedSizeGaussian(3.0, 1.0, 2.0, 0.05),
    PublicBatchGaussian(9.0, 2.0, 0.1),
    DiscreteGaussian(9.0, (1, 1)),
]


# ------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("eps", [0.0, 0.003, 0.1, 1.0, 12.0])
@pytest.mark.parametrize("mu", [1e-5, 4e-4, 0.03, 0.4999, 0.5001, 1.0, 4.0, 12.0])
def test_gaussian_delta_to_twelve_digits(mu: float, eps: float) -> None:
    with mpmath.workdps(60):
        z = mpmath.mpf(mu) / 2 - mpmath.mpf(eps) / mpmath.mpf(mu)
        exact = mpmath.ncdf(z) - mpmath.exp(eps) * mpmath.ncdf(z - mu)
    if exact > 1e-200:
        # e^{−z²/2} itself amplifies the rounding of z by z².
        assert gaussian_delta(mu, eps) == pytest.approx(float(exact), rel=1e-13 + 4e-16 * float(z) ** 2)


@pytest.mark.parametrize("eps", [0.003, 0.1, 1.0, 12.0])
@pytest.mark.parametrize("target", [1e-12, 1e-5, 0.1])
def test_gaussian_inverses_are_tight_and_safe(eps: float, target: float) -> None:
    mu = gaussian_mu(eps, target)
    with mpmath.workdps(50):

        def exact(m):
            z = m / 2 - mpmath.mpf(eps) / m
            return mpmath.log(mpmath.ncdf(z) - mpmath.exp(eps) * mpmath.ncdf(z - m)) - mpmath.log(target)

        best = float(mpmath.findroot(exact, mu))
    assert best * (1 - 1e-12) <= mu <= best
    assert gaussian_epsilon(best, target) == pytest.approx(eps, rel=1e-11)
    assert gaussian_delta(mu, eps) <= target


# --------------------------------------------------------------------- independent references


def _inversion(r: float, d: float, rate: float, steps: int, eps: float) -> float:
    """δ(ε) by Laplace inversion, (1/2πi)∫ e^{K(s) − sε} / (s(1+s)) ds, with K by quadrature over the output."""
    x = np.linspace(r - d / 2, r - d / 2 + 14, 3001)
    # Simpson's rule: the law starts with a jump at loss 0.
    weight = np.full_like(x, 4 / 3 * (x[1] - x[0]))
    weight[2:-1:2] /= 2
    weight[[0, -1]] /= 4
    bell = lambda m: np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi)  # noqa: E731
    p = (1 - rate) * bell(0) + rate * bell(r)
    q = (1 - rate) * bell(0) + rate * bell(r - d)
    loss, p, q = np.log(p / q), p * weight, q * weight
    rest = 1 - p.sum() - q.sum()
    spread = math.sqrt(steps * np.sum((p + q) * loss**2))
    tilts = np.geomspace(0.1, 10, 400) / spread
    moments = np.exp(np.outer(tilts, loss)) @ p + np.exp(np.outer(-tilts, loss)) @ q + rest
    tilt = tilts[np.argmin(steps * np.log(moments) - tilts * eps - np.log(tilts * (1 + tilts)))]
    t = np.arange(0, 40, 0.02) / spread
    total = 0.0
    for block in np.array_split(t, 20):
        s = tilt + 1j * block
        moment = np.exp(np.outer(s, loss)) @ p + np.exp(np.outer(-s, loss)) @ q + rest
        values = (moment**steps * np.exp(-s * eps) / (s * (1 + s))).real
        if block[0] == 0:
            values[0] /= 2
        total += float(values.sum())
    return total * (t[1] - t[0]) / math.pi


@pytest.mark.parametrize(
    ("event", "r", "d", "eps"),
    [
        (PoissonGaussian(2.0, 1.0, 2.0, Q), 0.5, 1.0, 1.0),
        (PoissonGaussian(2.0, 1.3416, 2.0, Q), 0.6708, 1.0, 1.3),
        (PoissonGaussian(2.0, 2.0, 1.0, Q), 1.0, 0.5, 0.7),
        (FixedSizeGaussian(3.0, 1.0, 2.0, Q), 2 / 3, 2 / 3, 1.0),
    ],
)
def test_against_laplace_inversion(event: Event, r: float, d: float, eps: float) -> None:
    expected = _inversion(r, d, Q, 293, eps)
    queries = [Query(event, 293)]
    value = delta(queries, eps)
    assert expected * (1 - 1e-9) <= value <= expected * (1 + 1e-6)
    assert epsilon(queries, expected) == pytest.approx(eps, rel=1e-6)


def test_public_batches_against_the_binomial_mixture() -> None:
    rate, steps, mu = 0.05, 60, 0.3
    j = np.arange(1, steps + 1)
    for eps in (0.1, 0.8, 2.0):
        each = np.array([gaussian_delta(mu * math.sqrt(n), eps) for n in j])
        expected = float(binom.pmf(j, steps, rate) @ each)
        value = delta([Query(PublicBatchGaussian(1.0, mu, rate), steps)], eps)
        assert expected * (1 - 1e-12) <= value <= expected * (1 + 1e-6)


def test_discrete_gaussian_composes_like_more_coordinates() -> None:
    for noise in (0.6, 3.0, 40.0):
        one = DiscreteGaussian(noise, (1, 1) * 3)
        for eps in (0.05, 0.6, 3.0):
            expected = float(one.profile(eps)[0])
            if expected > 1e-30:
                value = delta([Query(DiscreteGaussian(noise, (1, 1)), 3)], eps)
                assert expected * (1 - 1e-10) <= value <= expected * (1 + 2e-6)


def test_mixed_pure_and_gaussian_against_the_exact_mixture() -> None:
    mu, rr, eps = 0.5, 0.7, 1.5
    up = math.exp(rr) / (1 + math.exp(rr))
    expected = up * gaussian_delta(mu, eps - rr) + (1 - up) * gaussian_delta(mu, eps + rr)
    value = delta([Query(PureDP(rr)), Query(Gaussian(2.0, 1.0))], eps)
    assert expected <= value <= expected * (1 + 1e-6)


def test_gaussian_through_the_general_accountant() -> None:
    queries = [Query(Gaussian(10.0, 2.0), 25)]
    for target in (1e-12, 1e-5, 1e-2):
        exact = epsilon(queries, target)
        assert exact <= pld_epsilon(queries, target) <= exact * (1 + 1e-6)


def test_against_dp_accounting() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dp = pytest.importorskip("dp_accounting")
        from dp_accounting.pld import PLDAccountant
    for sigma, steps, rate, target in ((2.0, 293, Q, 1e-5), (1.0, 50, 0.05, 1e-6)):
        peer = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4)
        peer.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps)
        ours = epsilon([Query(PoissonGaussian(sigma, 1, 2, rate), steps)], target)
        # Both are upper bounds; the peer's grid is the coarser one.
        assert ours <= peer.get_epsilon(target) * (1 + 1e-6)
        assert ours >= peer.get_epsilon(target) * (1 - 2e-4)


def test_grid_dominates_the_event() -> None:
    eps = np.linspace(-3, 3, 241)
    for event in PRIVATE:
        grid = connect_dots(event, 0.05, 200)
        assert grid.mass.sum() + grid.infinite == pytest.approx(1, abs=1e-12)
        gap = -np.expm1(np.minimum(eps[:, None] - grid.positions, 0))
        assert np.all(gap @ grid.mass + grid.infinite >= event.profile(eps) * (1 - 1e-12) - 1e-15)


# ---------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("event", PRIVATE, ids=repr)
def test_n_fold_is_a_loop_of_one_fold(event: Event) -> None:
    for n in (2, 7):
        assert epsilon([Query(event, n)], 1e-6) == epsilon([Query(event)] * n, 1e-6)
        assert delta([Query(event, n)], 0.2) == delta([Query(event)] * n, 0.2)


@pytest.mark.parametrize("event", PRIVATE, ids=repr)
def test_one_look_equals_its_composition(event: Event) -> None:
    for eps in (0.01, 0.2):
        exact = float(event.profile(eps)[0])
        assert exact * (1 - 1e-9) <= pld_delta([Query(event)], eps) <= exact * (1 + 1e-5)


@pytest.mark.parametrize("event", PRIVATE, ids=repr)
def test_more_looks_cost_more(event: Event) -> None:
    spent = [epsilon([Query(event, n)], 1e-6) for n in (1, 2, 3, 10, 100)]
    assert all(b > a for a, b in itertools.pairwise(spent))


def test_smaller_delta_costs_more() -> None:
    queries = [Query(PoissonGaussian(1.0, 1, 2, Q), 293)]
    spent = [epsilon(queries, d) for d in (0.5, 1e-2, 1e-5, 1e-8, 1e-12)]
    assert spent == sorted(spent)


def test_pure_events_add_up() -> None:
    rr = math.log(0.55 / 0.05)  # ten classes, keep with probability one half and else uniform
    ten = epsilon([Query(PureDP(rr), 10)], 0.0)
    assert ten == pytest.approx(23.979, abs=1e-3)
    assert ten >= 10 * rr
    assert epsilon([Query(PureDP(rr), 10)], 1e-9) <= ten
    assert epsilon([Query(PureDP(0.1)), Query(PureDP(0.2), 2)], 0.0) == pytest.approx(0.5, rel=1e-15)


def test_different_pure_events_compose_exactly() -> None:
    queries = [Query(PureDP(0.3), 3), Query(PureDP(0.11), 4), Query(PureDP(0.7))]
    exact = epsilon(queries, 1e-6)
    assert exact <= pld_epsilon(queries, 1e-6) <= exact * (1 + 1e-3)
    assert exact <= epsilon(queries, 0.0)


def test_infinite_is_honest() -> None:
    for event in (NonPrivate("plot of the labels"), PureDP(math.inf)):
        queries = [Query(PureDP(0.1)), Query(event)]
        assert epsilon(queries, 1e-5) == math.inf
        assert epsilon(queries, 0.0) == math.inf
        assert delta(queries, 100.0) == 1.0
        assert accountant_name((tuple(queries),), 1e-5) == "infinite"
    assert epsilon([Query(NonPrivate("never asked"), 0)], 1e-5) == 0.0


def test_nothing_costs_nothing() -> None:
    free = [Query(PureDP(0)), Query(PoissonGaussian(1, 1, 0, 0.5), 9), Query(Gaussian(1, 1), 0)]
    for queries in ([], free):
        assert epsilon(queries, 1e-5) == epsilon(queries, 0.0) == delta(queries, 0.0) == 0.0
        assert accountant_name((tuple(queries),), 1e-5) == "nothing to account"


def test_delta_zero_needs_pure_events() -> None:
    assert epsilon([Query(Gaussian(1, 1))], 0.0) == math.inf
    assert epsilon([Query(PureDP(1)), Query(PoissonGaussian(1, 1, 2, 0.1))], 0.0) == math.inf


def test_a_generous_delta_gives_epsilon_zero() -> None:
    queries = [Query(PoissonGaussian(100.0, 1, 2, 0.01), 10)]
    assert delta(queries, 0.0) < 1e-2
    assert epsilon(queries, 1e-2) == 0.0
    assert epsilon(queries, 1.0) == 0.0


def test_gaussians_join_in_square() -> None:
    queries = [Query(Gaussian(2, 1), 3), Query(PartitionGaussian(1, 0.5), 4), Query(PoissonGaussian(4, 2, 4, 1.0))]
    assert epsilon(queries, 1e-5) == gaussian_epsilon(math.sqrt(3 / 4 + 1 + 1), 1e-5)
    assert accountant_name((tuple(queries),), 1e-5) == "Gaussian closed form"


def test_names() -> None:
    assert accountant_name(((Query(PureDP(1)),),), 0.0) == "sum of pure epsilons"
    assert accountant_name(((Query(PureDP(1)),),), 1e-5) == "composed randomized responses"
    assert accountant_name(((Query(DiscreteGaussian(3.0, (1, 1))),),), 1e-5) == "privacy profile of one query"
    name = accountant_name(((Query(PoissonGaussian(1, 1, 2, 0.1), 9),),), 1e-5)
    assert name == "privacy loss distribution, connect-the-dots"


# --------------------------------------------------------------------------------- properties

_queries = st.lists(st.builds(Query, st.sampled_from(PRIVATE), st.integers(1, 40)), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(_queries, st.floats(1e-9, 1e-2))
def test_epsilon_and_delta_are_inverse(queries: list[Query], target: float) -> None:
    eps = epsilon(queries, target)
    assert epsilon(queries[::-1], target) == eps
    if eps > 0:
        assert delta(queries, eps) == pytest.approx(target, rel=1e-4)
        assert epsilon([*queries, Query(PRIVATE[3])], target) > eps
    else:
        assert delta(queries, 0.0) <= target * (1 + 1e-6)


# ------------------------------------------------------------------------ extremes, refusals


@pytest.mark.parametrize(
    ("noise", "steps", "rate"),
    [(0.1, 293, Q), (1e3, 293, Q), (1e3, 100_000, Q), (1.0, 100_000, Q), (1e3, 100_000, 1e-6), (2.0, 293, 1.0)],
)
def test_extremes_are_answered_quickly(noise: float, steps: int, rate: float) -> None:
    start = time.process_time()
    eps = epsilon([Query(PoissonGaussian(noise, 1, 2, rate), steps)], 1e-8)
    assert time.process_time() - start < 5
    assert 0 < eps <= gaussian_epsilon(2 / noise * math.sqrt(steps), 1e-8) * (1 + 1e-9)


def test_almost_certain_sampling_is_the_gaussian() -> None:
    queries = [Query(PoissonGaussian(20.0, 1, 2, 1 - 1e-12), 100)]
    assert epsilon(queries, 1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-6)


@pytest.mark.parametrize("bad", [-1e-9, 1.1, math.nan, 1e-13, 1e-300, math.inf])
def test_bad_delta_is_refused(bad: float) -> None:
    with pytest.raises(AccountingError, match="delta"):
        epsilon([Query(PureDP(1))], bad)


@pytest.mark.parametrize("bad", [-1e-9, math.nan])
def test_bad_epsilon_is_refused(bad: float) -> None:
    with pytest.raises(AccountingError, match="epsilon"):
        delta([Query(PureDP(1))], bad)


def test_hopeless_questions_are_refused_quickly() -> None:
    start = time.process_time()
    with pytest.raises(AccountingError, match="reach"):
        epsilon([Query(PoissonGaussian(5.0, 1, 2, 1e-3), 10**14)], 1e-5)
    with pytest.raises(AccountingError, match="noise"):
        epsilon([Query(PoissonGaussian(1e-8, 1, 2, 0.5), 10)], 1e-5)
    assert time.process_time() - start < 2


def test_tiny_answers_stay_sound() -> None:
    queries = [Query(PoissonGaussian(1.0, 1, 2, Q), 293)]
    values = [delta(queries, eps) for eps in (0.0, 1.0, 5.0, 50.0, 1e4)]
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 1e-50
    assert delta(queries, math.inf) == 0.0


def test_import_is_light() -> None:
    code = "import sys, labeldp.core.accountant; print({'torch', 'dp_accounting'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
