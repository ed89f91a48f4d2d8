"""The moment on made-up labels: exact sums and bounds, the distribution of the noise, and what a query costs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chi2, norm

from labeldp.core.certificate import parse, verify
from labeldp.core.events import DiscreteGaussian, Gaussian, GridGaussian, PureDP
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.common import grid_std
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.moments import GridSum, Moments, RowChunks
from labeldp.testing import ContractError, check_mechanism
from tests.mechanisms.frequencies import FALSE_ALARM, follows

NOISE = GaussianNoise(5.0)
SILENT = LaplaceNoise(math.inf)


def labels_of(num_rows, num_classes, seed=0):
    return np.random.default_rng(seed).integers(0, num_classes, num_rows).astype(np.uint8)


def rows_within(radius, shape, seed=0, dtype=np.float32, order=2):
    table = np.random.default_rng(seed).standard_normal(shape)
    return (radius * table / np.linalg.norm(table, ord=order, axis=1, keepdims=True)).astype(dtype)


def split(table, sizes):
    """The same rows in chunks of these sizes, again and again until all are read."""

    def read():
        start = 0
        while start < len(table):
            for size in sizes:
                yield table[start : start + size]
                start += size
                if start >= len(table):
                    return

    return RowChunks(*table.shape, read)


# -- sums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
@pytest.mark.parametrize("num_classes", [1, 2, 7, 300])
def test_without_noise_it_is_the_moment_of_the_rounded_features(dtype, num_classes):
    table = (4 * rows_within(1.0, (900, 5), dtype=np.float64)).astype(dtype)
    truth = np.random.default_rng(3).integers(0, num_classes, 900).astype(np.uint16)
    ask = Moments(table, num_classes, SILENT, radius=16.0)
    release = ask.sample(truth, SecureRandom(1))
    steps = np.zeros((num_classes, 5), dtype=np.int64)
    np.add.at(steps, truth, np.rint(table.astype(np.float64) / ask.grid.step).astype(np.int64))
    assert (release.value / ask.grid.step).tolist() == steps.tolist()
    assert (release.total / ask.grid.step).tolist() == steps.sum(axis=0).tolist()
    assert (release.num_rows, release.scaled_rows, release.dropped_rows, release.noise_std) == (900, 0, 0, 0.0)


@given(data=st.data())
@settings(max_examples=60)
def test_the_answer_does_not_depend_on_the_chunks(data):
    """Bit by bit, with the noise of one seed, whatever is read at once; rows too long and broken ones included."""
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    shape = (data.draw(st.integers(0, 40)), data.draw(st.integers(1, 9)))
    value = st.floats(-3, 3, width=32) | st.sampled_from([0.0, 1e30, -1e-30, np.nan, np.inf])
    table = data.draw(hnp.arrays(dtype, shape, elements=value))
    sizes = data.draw(st.lists(st.integers(0, 17), min_size=1).filter(any))
    truth = labels_of(shape[0], 3)
    noise = data.draw(st.sampled_from([NOISE, LaplaceNoise(1.0)]))
    whole = Moments(table, 3, noise, radius=2.0).sample(truth, SecureRandom(4))
    parts = Moments(split(table, sizes), 3, noise, radius=2.0).sample(truth, SecureRandom(4))
    assert whole.value.tobytes() == parts.value.tobytes()
    assert whole.total.tobytes() == parts.total.tobytes()
    assert (whole.scaled_rows, whole.dropped_rows) == (parts.scaled_rows, parts.dropped_rows)


@given(
    exponent=st.integers(-40, 20),
    steps=hnp.arrays(np.int64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(-(2**20), 2**20)),
    kind=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60)
def test_grid_sums_are_the_sums_of_python_integers(exponent, steps, kind):
    """At the largest reach of float32, where one bit more would be lost; ties go to the even step."""
    half = np.random.default_rng(0).integers(-1, 2, steps.shape) / 2
    block = ((steps + half) * 2.0**exponent).astype(kind)
    sums = GridSum(2, steps.shape[1], exponent, reach=(1 << 21) - 1)
    truth = labels_of(len(steps), 2)
    sums.add(truth, block)
    expected = [[0] * steps.shape[1] for _ in range(2)]
    for row, label in zip(block, truth, strict=True):
        for j, x in enumerate(row):
            expected[label][j] += round(Fraction(float(x)) / Fraction(2) ** exponent)
    assert sums.total.tolist() == expected


def test_sums_beyond_32_bits():
    table = np.full((70_000, 2), 0.7, dtype=np.float32)
    ask = Moments(table, 2, SILENT, radius=1.4)
    release = ask.sample(np.zeros(70_000, dtype=np.uint8), SecureRandom(1))
    per_row = round(float(np.float32(0.7)) / ask.grid.step)
    assert 70_000 * per_row > 2**31 or ask.grid.reach < 2**16
    assert (release.value[0] / ask.grid.step).tolist() == [70_000 * per_row] * 2
    # 10⁶ rows of one value through a wide block: every partial sum at the edge of its 32 bits.
    sums = GridSum(1, 1, 0, reach=(1 << 21) - 1)
    for _ in range(8):
        sums.add(np.zeros(1 << 17, dtype=np.uint8), np.full((1 << 17, 1), (1 << 21) - 1, dtype=np.float32))
    assert sums.total.item() == (1 << 20) * ((1 << 21) - 1)


def test_streaming_takes_the_memory_of_a_chunk():
    import tracemalloc

    chunk = rows_within(1.0, (4096, 64))
    ask = Moments(RowChunks(4096 * 200, 64, lambda: (chunk for _ in range(200))), 10, NOISE, radius=1.0)
    truth = labels_of(4096 * 200, 10)
    tracemalloc.start()
    ask.sample(truth, SecureRandom(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20, "200 MB of features went through"


def test_memory_maps_and_columns_of_larger_arrays(tmp_path):
    table = rows_within(1.0, (50, 6))
    table.tofile(tmp_path / "features")
    mapped = np.memmap(tmp_path / "features", dtype=np.float32, shape=(50, 6), mode="r")
    truth = labels_of(50, 3)
    plain = Moments(table, 3, NOISE, 1.0).sample(truth, SecureRandom(2)).value
    assert Moments(mapped, 3, NOISE, 1.0).sample(truth, SecureRandom(2)).value.tolist() == plain.tolist()
    turned = np.asfortranarray(table)
    assert Moments(turned, 3, NOISE, 1.0).sample(truth, SecureRandom(2)).value.tolist() == plain.tolist()


# -- how far one label moves it -------------------------------------------------------------------------------


def moves_in_steps(mechanism, table, truth):
    """The integer move of the moment for every row, when its label is replaced by the next class."""
    for row in range(len(table)):
        other = truth.copy()
        other[row] = (other[row] + 1) % mechanism.num_classes
        sums = []
        for labels in (truth, other):
            value = mechanism.sample(labels, SecureRandom(1)).value / mechanism.grid.step
            sums.append(np.rint(value * mechanism.num_classes).astype(np.int64))
        yield (sums[0] - sums[1]) / mechanism.num_classes


class RoundsAfterAdding(Moments):
    """Planted bug: floats are added up and the sum is rounded, so that a label can move every entry by a step more."""

    def sample(self, labels, rng):
        table = np.concatenate(list(self.chunks.read())).astype(np.float64)
        sums = np.zeros((self.num_classes, table.shape[1]))
        np.add.at(sums, labels, table)
        rounded = np.rint(sums / self.grid.step).astype(np.int64)
        value = self._noisy(rounded, rng) * self.grid.step
        return type("Release", (), {"value": value})


def crafted(width=256):
    """One row of norm 1 whose entries lie just above a step, among rows that bring the sums just below a half."""
    step = Moments(np.zeros((1, width)), 2, NOISE, 1.0).grid.step
    entry = math.floor(1 / (math.sqrt(width) * step))
    first = np.full((1, width), (entry + 0.02) * step)
    return np.concatenate([first, np.full((1, width), 0.49 * step), np.full((1, width), -0.51 * step)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_label_moves_it_further_than_stated(seed, dtype):
    """Exact, on integers: |move|² ≤ 2·reach², the length that the event is about."""
    table = np.concatenate([rows_within(2.0, (12, 50), seed, dtype), 3 * rows_within(2.0, (3, 50), 9, dtype)])
    ask = Moments(table, 4, NOISE, radius=2.0)
    longest = max(float((move**2).sum()) for move in moves_in_steps(ask, table, labels_of(15, 4)))
    assert longest <= 2 * ask.grid.reach**2
    assert longest >= 2 * ask.grid.reach**2 * 0.998, "the bound is tight"


def test_rounding_after_adding_is_caught():
    table, truth = crafted(), np.array([0, 1, 0], dtype=np.uint8)
    honest, planted = Moments(table, 2, NOISE, 1.0), RoundsAfterAdding(table, 2, NOISE, 1.0)
    bound = 2 * honest.grid.reach**2
    assert max(float((move**2).sum()) for move in moves_in_steps(honest, table, truth)) <= bound
    assert max(float((move**2).sum()) for move in moves_in_steps(planted, table, truth)) > bound


def test_laplace_moves_are_bounded_in_the_norm_of_order_one():
    table = np.concatenate([rows_within(1.0, (12, 30), order=1), 5 * rows_within(1.0, (3, 30), 8)])
    ask = Moments(table, 3, LaplaceNoise(0.7), radius=1.0)
    longest = max(float(np.abs(move).sum()) for move in moves_in_steps(ask, table, labels_of(15, 3)))
    assert 2 * ask.grid.reach * 0.99 <= longest <= 2 * ask.grid.reach
    # The exponents of the two laws then differ by at most longest · rate.
    assert Fraction(longest) * ask._rate(ask.noise) <= Fraction(0.7)


def test_long_rows_are_scaled_and_broken_rows_are_nothing():
    table = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [np.inf, 0.0], [1e30, 0.0], [0.0, 0.0]], dtype=np.float32)
    release = Moments(table, 1, SILENT, radius=1.4).sample(np.zeros(6, dtype=np.uint8), SecureRandom(1))
    # Norm of order 1: 7 and 1e30 are too long.
    assert (release.scaled_rows, release.dropped_rows) == (2, 2)
    np.testing.assert_allclose(release.value[0], [0.6 + 0.3 + 1.4, 0.8 + 0.4], atol=1e-3)
    release = Moments(table, 1, GaussianNoise(1e-3), radius=1.0).sample(np.zeros(6, dtype=np.uint8), SecureRandom(1))
    np.testing.assert_allclose(release.value[0], [0.6 + 0.3 + 1.0, 0.8 + 0.4], atol=1e-3)


def test_rows_of_the_very_radius_are_left_alone():
    table = rows_within(1.0, (1000, 256))
    release = Moments(table, 2, NOISE, radius=1.0).sample(labels_of(1000, 2), SecureRandom(1))
    assert release.scaled_rows == 0


# -- the noise --------------------------------------------------------------------------------------------------


def standardised(mechanism, cells=10**6):
    """Class 0 minus class 1 over 10⁶ features without rows: the difference of two noises, in units of σB."""
    release = mechanism.sample(np.zeros(0, dtype=np.uint8), SecureRandom(6))
    difference = release.value[0] - release.value[1]
    assert difference.size == cells
    return difference / (math.sqrt(2.0) * release.noise_std), difference


def no_rows(width):
    return RowChunks(0, width, lambda: iter(()))


class TwoPercentLow(Moments):
    """Planted bug."""

    def _noisy(self, exact, rng):
        low = Moments(self.chunks, 2, GaussianNoise(0.98 * self.noise.std), self.radius, exact=self.exact)
        return low._noisy(exact, rng)


def in_bins(draws):
    """Counts of 40 bins of equal probability under the standard normal law."""
    edges = norm.ppf(np.linspace(0, 1, 41)[1:-1])
    return np.bincount(np.searchsorted(edges, draws), minlength=40), np.full(40, 1 / 40)


@pytest.mark.parametrize("exact", [True, False])
def test_every_entry_has_gaussian_noise_of_the_stated_deviation(exact):
    """10⁶ differences of two draws, false alarm 1e-9; noise 2% low, the planted bug, is rejected."""
    ask = Moments(no_rows(10**6), 2, NOISE, 1.0, exact=exact)
    drawn, difference = standardised(ask)
    assert follows(*in_bins(drawn))
    on_grid = difference / ask.grid.step
    assert np.all(on_grid == np.rint(on_grid))
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 6 / 1e3
    assert not follows(*in_bins(standardised(TwoPercentLow(no_rows(10**6), 2, NOISE, 1.0, exact=exact))[0]))


def measured_mu(mechanism, move):
    """Move of the moment over the deviation of its noise, seen in 10⁶ draws: an interval with error 1e-9."""
    drawn = standardised(mechanism)[1]
    squares, freedom = float((drawn**2).sum()) / 2, drawn.size
    low, high = (math.sqrt(squares / chi2.ppf(q, freedom)) for q in (1 - FALSE_ALARM / 2, FALSE_ALARM / 2))
    return move / high, move / low


class ForgetsTheRoot(Moments):
    """Planted bug: says that a label moves the moment by B; it leaves one class *and* enters another."""

    def event(self):
        return Gaussian(self.noise.std, 1.0)


def test_the_event_is_what_moves_over_what_is_drawn():
    """μ of the event lies where the measured ratio does, and not a hair (1%) elsewhere; 10⁶ draws."""
    row = np.zeros((1, 10**6), dtype=np.float32)
    row[0, 0] = 1.0
    still = Moments(row, 2, NOISE, 1.0, exact=False)
    values = [still.sample(np.array([y], dtype=np.uint8), SecureRandom(3)).value for y in (0, 1)]
    # The bound allows for the rounding of a million features: a row could have moved it that much further.
    move = float(np.linalg.norm(values[0] - values[1])) * still.grid.radius
    low, high = measured_mu(Moments(no_rows(10**6), 2, NOISE, 1.0, exact=False), move)
    assert low > high * 0.99
    assert low <= still.event().mu <= high
    assert low > ForgetsTheRoot(row, 2, NOISE, 1.0).event().mu
    assert measured_mu(TwoPercentLow(no_rows(10**6), 2, NOISE, 1.0, exact=False), move)[0] > still.event().mu


@pytest.mark.parametrize("planted", [False, True])
def test_every_entry_has_laplace_noise_of_the_stated_rate(planted):
    """10⁶ entries in 40 bins of the exact geometric law, false alarm 1e-9; a rate 2% high is rejected."""
    ask = Moments(no_rows(5 * 10**5), 2, LaplaceNoise(1.0), 1.0)
    rate = float(ask._rate(ask.noise))
    drawn = ask._noisy(np.zeros((2, 5 * 10**5), dtype=np.int64), SecureRandom(8)).ravel()
    # P(|X| ≥ m) = 2e^{-am}/(1 + e^{-a}) for m ≥ 1.
    chance = rate * (1.02 if planted else 1.0)
    cuts = np.unique(np.ceil(-np.log(np.linspace(1, 0, 41)[1:-1]) / rate)).astype(int)
    above = np.concatenate([[1.0], 2 * np.exp(-chance * cuts) / (1 + math.exp(-chance)), [0.0]])
    counts = np.bincount(np.searchsorted(cuts, np.abs(drawn), side="right"), minlength=len(cuts) + 1)
    assert follows(counts, -np.diff(above)) != planted
    assert ask.noise_std == pytest.approx(drawn.std() * ask.grid.step, rel=0.01)


@pytest.mark.parametrize("std", [2.05, 2.5, 4.0, 9.0])
@pytest.mark.parametrize("moves", [(1,), (1, 1), (3, 2), (1, 1, 1, 1), (5, 5)])
def test_discrete_noise_costs_no_more_than_gaussian_noise_of_variance_four_less(std, moves):
    """The lemma of the docstring against the exact lattice sums, where the difference can be seen."""
    eps = np.linspace(0, 12, 400)
    exact = DiscreteGaussian(std, moves).profile(eps)
    length = math.sqrt(sum(m * m for m in moves))
    assert (exact <= GridGaussian(math.sqrt(std**2 - 4), length).profile(eps) * (1 + 1e-9) + 1e-300).all()


def test_without_the_four_the_lemma_would_be_wrong():
    eps = np.linspace(0, 6, 4000)
    exact = DiscreteGaussian(2.5, (1, 1)).profile(eps)
    assert (exact > Gaussian(2.5, math.sqrt(2)).profile(eps) * (1 + 1e-6)).any()


@given(std=st.floats(1e-3, 1e4), width=st.integers(1, 10**5), radius=st.floats(1e-6, 1e6))
@settings(max_examples=60)
def test_the_deviation_drawn_covers_the_deviation_stated(std, width, radius):
    ask = Moments(no_rows(width), 2, GaussianNoise(std), radius)
    drawn, least = Fraction(grid_std(std, ask.grid.reach)) ** 2, (Fraction(std) * ask.grid.reach) ** 2
    assert ask.noise_std == grid_std(std, ask.grid.reach) * ask.grid.step
    assert drawn - 4 >= least * (1 + Fraction(1, 2**39))
    assert drawn - 4 <= least * (1 + Fraction(1, 2**38)) + Fraction(1, 2**40)
    # A row is at least 2^12 times as long as rounding moves it (by half a step or more), and `reach` is rounded up.
    assert ask.grid.radius <= radius * (1 + 3 * 2.0**-12 + (width + 9) * 2.0**-22)
    assert Fraction(ask.grid.radius) >= Fraction(radius)


@pytest.mark.parametrize("num_classes", [1, 2, 5])
def test_the_sum_over_classes_is_the_public_one(num_classes):
    table, truth = rows_within(1.0, (30, 20_000)), labels_of(30, num_classes)
    release = Moments(table, num_classes, NOISE, 1.0).sample(truth, SecureRandom(1))
    np.testing.assert_allclose(release.value.sum(axis=0), release.total, atol=1e-10)
    np.testing.assert_allclose(release.total, table.sum(axis=0, dtype=np.float64), atol=30 * 2.0**-19)
    noise = release.value - Moments(table, num_classes, SILENT, 200.0).sample(truth, SecureRandom(1)).value
    # What the noise added to the sum was taken off in equal parts.
    left = release.noise_std * math.sqrt(1 - 1 / num_classes)
    assert noise.std() == pytest.approx(left, rel=0.03, abs=1e-3)


# -- in a vault ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("noise", [GaussianNoise(0.8), LaplaceNoise(1.5)])
def test_the_public_check_accepts_it_and_catches_a_cheat(noise):
    """Answers on two neighbours, from the outside; 2·4,000 draws, false alarm 1e-6."""
    table = np.ones((3, 1), dtype=np.float32)
    ours, theirs = [0, 1, 1], [1, 1, 1]

    def statistic(release):
        return release.value[0, 0] - release.value[1, 0]

    check_mechanism(Moments(table, 2, noise, 1.0), ours, theirs, 2, statistic=statistic, draws=4000)

    class ThirdOfTheNoise(Moments):
        def _noisy(self, exact, rng):
            return exact + 0.3 * (super()._noisy(0 * exact, rng))

    with pytest.raises(ContractError, match="declared"):
        check_mechanism(ThirdOfTheNoise(table, 2, noise, 1.0), ours, theirs, 2, statistic=statistic, draws=4000)


def test_events_say_how_the_noise_was_drawn():
    table = rows_within(1.0, (6, 4))
    assert Moments(table, 3, NOISE, 1.0).event() == GridGaussian(5.0, math.sqrt(2))
    assert Moments(table, 3, NOISE, 1.0, exact=False).event() == GridGaussian(5.0, math.sqrt(2))
    assert Moments(table, 3, LaplaceNoise(0.25), 1.0).event() == PureDP(0.25)
    assert Moments(no_rows(1 << 20), 4, NOISE, 1.0).exact
    assert not Moments(no_rows((1 << 20) + 1), 4, NOISE, 1.0).exact


@pytest.mark.parametrize("exact", [True, False])
def test_a_budget_is_met_and_the_certificate_says_how(exact):
    vault = LabelVault(labels_of(40, 3), 3, Budget(0.5, 1e-5))
    ask = Moments(rows_within(1.0, (40, 4)), 3, GaussianNoise.for_budget(0.5, 1e-5), 1.0, exact=exact)
    release = vault.release(ask)
    assert release.value.shape == (3, 4)
    assert release.noise == ("discrete Gaussian" if exact else "rounded Gaussian")
    claim = parse(vault.certificate().dumps())
    assert [query.event.__class__.__name__ for group in claim.groups for query in group.queries] == ["GridGaussian"]
    assert verify(claim) == ()
    assert 0.5 * (1 - 2e-3) <= claim.epsilon <= 0.5


def test_some_rows_of_a_vault():
    table, truth = rows_within(1.0, (40, 4)), labels_of(40, 3)
    chosen = np.array([7, 3, 30])
    vault = LabelVault(truth, 3)
    lease = vault.lease(Moments(table[chosen], 3, SILENT, 2.0), 2, rows=chosen)
    expected = np.zeros((3, 4))
    np.add.at(expected, truth[chosen], table[chosen])
    np.testing.assert_allclose(lease().value, expected, atol=1e-3)
    assert lease().num_rows == 3
    with pytest.raises(ValueError, match="features has 40 rows, the data 3"):
        vault.release(Moments(table, 3, NOISE, 1.0), rows=chosen)
    with pytest.raises(ValueError, match="num_classes is 4 in the mechanism and 3"):
        vault.release(Moments(table, 4, NOISE, 1.0))
    assert [group.queries[0].times for group in vault.ledger.groups() if group.queries] == [2]


def test_streams_that_end_early_or_late_fail_whatever_the_labels():
    from labeldp.core.vault import MechanismError

    table = rows_within(1.0, (10, 4))
    for rows, width in ((9, 4), (11, 4), (10, 5)):
        source = RowChunks(rows, width, lambda: iter([table[:5], table[5:]]))
        with pytest.raises(MechanismError):
            LabelVault(labels_of(rows, 2), 2).release(Moments(source, 2, NOISE, 1.0))


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"features": np.zeros(3)}, "shape"),
        ({"features": np.zeros((3, 0))}, "shape"),
        ({"features": np.array([["a"]])}, "type"),
        ({"radius": 0.0}, "radius is 0.0"),
        ({"radius": math.nan}, "radius is nan"),
        ({"radius": True}, "radius is True"),
        ({"num_classes": 0}, "num_classes"),
        ({"noise": 3.0}, "GaussianNoise"),
        ({"noise": LaplaceNoise(1.0), "exact": False}, "exact"),
        ({"noise": LaplaceNoise(2.0**-40)}, "epsilon is too small"),
        ({"noise": GaussianNoise(6e4), "features": no_rows(1 << 30)}, "too large"),
    ],
)
def test_refusals(settings_, words):
    with pytest.raises(ValueError, match=words):
        Moments(**{"features": np.zeros((3, 2)), "num_classes": 2, "noise": NOISE, "radius": 1.0, **settings_})


def test_rows_that_would_overflow_are_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="overflow"):
        Moments(RowChunks(1 << 50, 4, lambda: iter(())), 2, NOISE, 1.0).fits(1 << 50, 2)


def test_nothing_shows_the_features_and_the_description_is_public():
    ask = Moments(rows_within(1.0, (6, 4)), 3, NOISE, 1.0)
    assert "chunks" not in repr(ask)
    assert ask.describe()["noise"] == "discrete Gaussian"
    assert ask.describe()["radius"] == ask.grid.radius
