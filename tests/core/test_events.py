import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from labeldp.core.events import (
    BaseEvent,
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PartitionGaussian,
    PoissonGaussian,
    PublicBatchGaussian,
    PureDP,
    Query,
    event_from_json,
    event_to_json,
)

INF, NAN = math.inf, math.nan

EVENTS = [
    PureDP(0.7),
    PureDP(30.0),
    Gaussian(3.0, 2.0),
    Gaussian(0.2, 2.0),
    PoissonGaussian(2.0, 1.0, 2.0, 0.1),
    PoissonGaussian(0.5, 1.0, 1.2, 0.01),
    PoissonGaussian(50.0, 1.0, 0.3, 0.3),
    FixedSizeGaussian(2.0, 1.0, 2.0, 0.1),
    FixedSizeGaussian(2.0, 1.0, 0.5, 0.1),
    PublicBatchGaussian(2.0, 2.0, 0.1),
    PartitionGaussian(3.0, 2.0),
    DiscreteGaussian(3.0, (1, 1)),
    DiscreteGaussian(0.4, (1, -2, 0)),
    DiscreteGaussian(400.0, (3, 3)),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
class TestEveryEvent:
    def test_tail_is_a_symmetric_law(self, event: BaseEvent) -> None:
        eps = np.linspace(0, 60, 4000)
        p, q = event.tail(eps)
        assert np.all(np.diff(p) <= 1e-16)
        assert np.all(q * np.exp(eps) <= p * (1 + 1e-12))
        assert p[0] + q[0] <= 1 + 1e-15

    def test_profile_is_the_tail_difference(self, event: BaseEvent) -> None:
        eps = np.linspace(0, 3, 100)
        p, q = event.tail(eps)
        np.testing.assert_allclose(event.profile(eps), p - np.exp(eps) * q, rtol=1e-6, atol=1e-15)

    def test_profile_below_zero_is_the_mirror(self, event: BaseEvent) -> None:
        eps = np.array([0.1, 1.0, 2.0])
        mirrored = 1 - np.exp(-eps) + np.exp(-eps) * event.profile(eps)
        np.testing.assert_allclose(event.profile(-eps), mirrored, rtol=1e-13)

    def test_tail_is_the_slope_of_the_profile(self, event: BaseEvent) -> None:
        if isinstance(event, DiscreteGaussian | PureDP):
            pytest.skip("profile has corners")
        eps = np.array([0.02, 0.3, 1.0])
        a, h = np.exp(eps), 1e-5
        slope = (event.profile(np.log(a * (1 + h))) - event.profile(np.log(a * (1 - h)))) / (2 * h * a)
        np.testing.assert_allclose(-slope, event.tail(eps)[1], rtol=1e-5, atol=1e-9)

    def test_json_round_trip_is_exact(self, event: BaseEvent) -> None:
        assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event  # pyright: ignore

    def test_hashable_and_frozen(self, event: BaseEvent) -> None:
        assert hash(event) == hash(event_from_json(event_to_json(event)))  # pyright: ignore
        with pytest.raises(AttributeError):
            setattr(event, dataclasses.fields(event)[0].name, 3.0)  # pyright: ignore


@given(
    sigma=st.floats(0.3, 30),
    rate=st.floats(1e-4, 0.999),
    eps=st.floats(1e-3, 3),
)
def test_closed_form_of_norm_clipping(sigma: float, rate: float, eps: float) -> None:
    mu = 1 / sigma
    k = (1 - rate) / rate * math.exp(mu * mu / 2)
    x = (math.asinh(k * math.sinh(eps / 2)) + eps / 2) / mu
    p = (1 - rate) * norm.cdf(-x) + rate * norm.cdf(mu - x)
    q = (1 - rate) * norm.cdf(-x) + rate * norm.cdf(-mu - x)
    event = PoissonGaussian(sigma, 1, 2, rate)
    tail_p, tail_q = event.tail(np.array([eps]))
    assert tail_p[0] == pytest.approx(p, rel=1e-9)
    assert tail_q[0] == pytest.approx(q, rel=1e-9)
    assert event.profile(eps)[0] == pytest.approx(p - math.exp(eps) * q, rel=1e-6, abs=1e-15)


def test_no_pair_in_the_plane_beats_the_profile() -> None:
    rng = np.random.default_rng(3)
    axis = np.linspace(-9, 9, 361)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi)
    for _ in range(30):
        radius, rate, eps = rng.uniform(0.3, 2), rng.uniform(0.02, 0.9), rng.uniform(0, 2)
        v, w = (radius * rng.uniform() ** 0.5 * _direction(rng) for _ in range(2))
        diameter = float(np.linalg.norm(v - w))
        base, at_v, at_w = (np.exp(-0.5 * np.sum((grid - m) ** 2, axis=1)) * cell for m in (np.zeros(2), v, w))
        gap = (1 - rate) * base + rate * at_v - math.exp(eps) * ((1 - rate) * base + rate * at_w)
        found = np.sum(np.maximum(gap, 0))
        assert found <= PoissonGaussian(1.0, radius, diameter, rate).profile(eps)[0] + 2e-5


def _direction(rng: np.random.Generator) -> np.ndarray:
    vector = rng.standard_normal(2)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(("radius", "diameter"), [(1.0, 2.0), (1.3, 2.0), (2.0, 2.0), (3.0, 0.5)])
def test_profile_is_attained_on_the_line(radius: float, diameter: float) -> None:
    x = np.linspace(-12, 14, 400_001)
    rate, eps = 0.07, 0.4
    channel = [(1 - rate) * norm.pdf(x) + rate * norm.pdf(x, m) for m in (radius, radius - diameter)]
    found = np.sum(np.maximum(channel[0] - math.exp(eps) * channel[1], 0)) * (x[1] - x[0])
    assert PoissonGaussian(1.0, radius, diameter, rate).profile(eps)[0] == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("slope", [0.5, 0.5 + 1e-9, 0.7, 1.0, 1 + 1e-9, 3.0])
def test_general_root_agrees_with_the_closed_ones(slope: float) -> None:
    eps = np.array([0.0, 1e-9, 0.01, 0.3, 1.0, 20.0])
    near = PoissonGaussian(1.0, 2 * slope, 2.0, 0.2)
    nudged = PoissonGaussian(1.0, 2 * slope * (1 + 1e-9), 2.0, 0.2)
    for one, other in zip(near.tail(eps), nudged.tail(eps), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("noise_std", [0.3, 0.7, 1.5, 2.7, 2.9])
@pytest.mark.parametrize("moves", [(1,), (1, 1), (2, 2), (1, -2), (0, 3), (6, 4)])
@pytest.mark.parametrize("eps", [0.0, 0.21, 1.0, 4.0])
def test_discrete_gaussian_by_brute_force(noise_std: float, moves: tuple[int, ...], eps: float) -> None:
    k = np.arange(-45, 46)
    weights = np.exp(-0.5 * (k / noise_std) ** 2)
    channel = weights / weights.sum()

    def shifted(move: int) -> np.ndarray:
        moved = np.exp(-0.5 * ((k - move) / noise_std) ** 2)
        return moved / weights.sum()

    p, q = channel, shifted(moves[0])
    for move in moves[1:]:
        p, q = np.multiply.outer(p, channel), np.multiply.outer(q, shifted(move))
    expected = np.sum(np.maximum(p - math.exp(eps) * q, 0))
    assert DiscreteGaussian(noise_std, moves).profile(eps)[0] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_discrete_gaussian_is_not_the_continuous_one_but_tends_to_it() -> None:
    small = DiscreteGaussian(0.5, (1, 1)).profile(2.0)[0]
    assert abs(small / Gaussian(0.5, math.sqrt(2)).profile(2.0)[0] - 1) > 0.01
    large = DiscreteGaussian(300.0, (1, 1)).profile(0.01)[0]
    assert large == pytest.approx(Gaussian(300.0, math.sqrt(2)).profile(0.01)[0], rel=1e-3)


@settings(max_examples=30)
@given(st.floats(2.83, 12))
def test_smooth_shortcut_equals_the_sum(noise_std: float) -> None:
    from labeldp.core import gaussian

    summed = gaussian._convolved(noise_std, (1, 1))
    direct = gaussian._pmf(noise_std * math.sqrt(2))
    centre, other, span = len(summed) // 2, len(direct) // 2, int(20 * noise_std)
    np.testing.assert_allclose(summed[centre - span : centre + span], direct[other - span : other + span], rtol=1e-11)


def test_limits_of_sampling() -> None:
    eps = np.array([0.0, 0.5, 2.0])
    plain = Gaussian(2.0, 2.0).profile(eps)
    for event in (PoissonGaussian(2, 1, 2, 1), FixedSizeGaussian(2, 1, 2, 1), PublicBatchGaussian(2, 2, 1)):
        np.testing.assert_allclose(event.profile(eps), plain, rtol=1e-13)
    for free in (
        PoissonGaussian(2, 1, 2, 0),
        PoissonGaussian(2, 1, 0, 0.5),
        FixedSizeGaussian(2, 1, 0, 0.5),
        PublicBatchGaussian(2, 0, 0.5),
        Gaussian(1, 0),
        PureDP(0),
        DiscreteGaussian(1.0, (0, 0)),
        DiscreteGaussian(1.0, ()),
    ):
        assert free.free
        assert free.profile(eps).max() == 0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: PureDP(-0.1), "epsilon"),
        (lambda: PureDP(NAN), "epsilon"),
        (lambda: PureDP("1"), "epsilon"),
        (lambda: PureDP(True), "epsilon"),
        (lambda: Gaussian(0, 1), "noise_std"),
        (lambda: Gaussian(-1, 1), "noise_std"),
        (lambda: Gaussian(INF, 1), "noise_std"),
        (lambda: Gaussian(1, NAN), "diameter"),
        (lambda: Gaussian(1, INF), "diameter"),
        (lambda: PoissonGaussian(1, 1, 2.1, 0.5), "diameter"),
        (lambda: PoissonGaussian(1, -1, 2, 0.5), "radius"),
        (lambda: PoissonGaussian(1, 1, 2, 1.5), "rate"),
        (lambda: FixedSizeGaussian(1, 1, 2, NAN), "rate"),
        (lambda: FixedSizeGaussian(1, 1, 3, 0.1), "diameter"),
        (lambda: PublicBatchGaussian(1, 1, -0.1), "rate"),
        (lambda: DiscreteGaussian(1e9, (1, 1)), "noise_std"),
        (lambda: DiscreteGaussian(1.0, (1.5,)), "moves"),
        (lambda: DiscreteGaussian(1.0, [1, 1]), "moves"),
        (lambda: DiscreteGaussian(1.0, (99, 1)), "noise_std"),
        (lambda: NonPrivate(""), "reason"),
        (lambda: NonPrivate(3), "reason"),
        (lambda: Query(PureDP(1), -1), "times"),
        (lambda: Query(PureDP(1), 1.5), "times"),
        (lambda: Query("x"), "event"),
    ],
)
def test_bad_settings_are_named(make, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "Laplace", "epsilon": 1.0},
        {"kind": "PureDP"},
        {"kind": "PureDP", "epsilon": 1.0, "delta": 0.1},
        {"kind": "PureDP", "epsilon": "1.0"},
        {"kind": "PureDP", "epsilon": None},
        {"kind": "Gaussian", "noise_std": True, "diameter": 1.0},
        {"kind": "Gaussian", "noise_std": "inf", "diameter": 1.0},
        {"kind": "DiscreteGaussian", "noise_std": 1.0, "moves": "11"},
        {"kind": "DiscreteGaussian", "noise_std": 1.0, "moves": [1, True]},
        {"kind": ["PureDP"], "epsilon": 1.0},
        [],
    ],
    ids=repr,
)
def test_bad_records_are_refused(record) -> None:
    with pytest.raises(ValueError):
        event_from_json(record)


def test_infinite_epsilon_survives_strict_json() -> None:
    text = json.dumps(event_to_json(PureDP(INF)), allow_nan=False)
    assert event_from_json(json.loads(text)) == PureDP(INF)
    assert event_from_json(event_to_json(NonPrivate("inf"))) == NonPrivate("inf")
