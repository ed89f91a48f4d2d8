"""Real-valued labels in a vault, and randomized response on their bins."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.values import Binned, BinnedResponse, Grid, NoisyValues, ValueVault, seal_values
from labeldp.testing import ContractError, check_mechanism, check_randomizer
from tests.mechanisms.frequencies import follows

BINS = [0, 0, 0, 1, 1, 2, 2, 2]
OUTPUTS = [0.5, 2.0, 9.0]
EPSILONS = [0.0, 1e-6, 0.1, 1.0, 4.0, 30.0, 5000.0, math.inf]


def channel(epsilon=1.0):
    return BinnedResponse(epsilon, BINS, OUTPUTS)


# -- the law ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_law_is_randomized_response_on_the_bin_and_spends_epsilon_exactly(epsilon):
    own = 1 / (1 + 2 * math.exp(-epsilon))
    tables = np.concatenate([channel(epsilon).probabilities(level) for level in range(8)])
    assert (tables[:, 3:] == 0).all()
    for level, table in enumerate(tables):
        expected = np.full(3, own * math.exp(-epsilon))
        expected[BINS[level]] = own
        assert table[:3] == pytest.approx(expected, rel=1e-12)
    with np.errstate(divide="ignore"):
        spread = np.log(tables[:, :3]).max(axis=0) - np.log(tables[:, :3]).min(axis=0)
    assert epsilon > 700 or spread == pytest.approx(np.full(3, epsilon), abs=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_likelihood_is_the_law(epsilon):
    responses = np.arange(4)
    with np.errstate(divide="ignore"):
        expected = np.log([channel(epsilon).probabilities(level)[0, responses] for level in range(8)]).T
    log = channel(epsilon).log_likelihood(responses)
    assert (log[3] == -np.inf).all()
    sane = expected > -700
    assert log[sane] == pytest.approx(expected[sane], rel=1e-10, abs=1e-12)
    assert not np.isnan(log).any()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0, math.inf])
def test_the_linear_estimate_is_uniform_on_the_bin(epsilon):
    estimates = channel(epsilon).unbiased(np.arange(3))
    for level, bin_ in enumerate(BINS):
        mean = channel(epsilon).probabilities(level)[0, :3] @ estimates
        assert mean == pytest.approx((np.array(BINS) == bin_) / BINS.count(bin_), abs=1e-9)


def test_rows_that_say_nothing():
    for silent in (channel(0.0), BinnedResponse(1.0, [0, 0, 0])):
        assert not silent.informative(2).any()
        assert not silent.unbiased(np.zeros(2, dtype=np.uint8)).any()
    assert channel(1.0).informative(2).all()


def test_no_privacy_answers_the_bin():
    release = channel(math.inf).sample(np.arange(8, dtype=np.uint8), SecureRandom(1))
    assert release.responses.tolist() == BINS
    assert release.values().tolist() == [OUTPUTS[b] for b in BINS]
    assert release.hard().tolist() == [0, 0, 0, 3, 3, 5, 5, 5]


def test_event_description_and_fit():
    assert channel(0.7).event() == PureDP(0.7)
    shown = channel(math.inf).describe()
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["starts"] == [0, 3, 5]
    assert shown["outputs"] == OUTPUTS
    with pytest.raises(ValueError, match="num_classes is 8"):
        channel().fits(5, 9)


def test_a_release_is_a_release():
    release = channel().sample(np.arange(8, dtype=np.uint8), SecureRandom(1))
    assert isinstance(release, NoisyValues)
    assert not release.responses.flags.writeable
    part = release.take([5, 1])
    assert (part.values() == release.values()[[5, 1]]).all()
    assert isinstance(part, NoisyValues)
    assert release.posterior().shape == (8, 8)


def test_bins_without_outputs_answer_their_number():
    assert BinnedResponse(1.0, [0, 1, 1]).outputs.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("bins", [[], [[0, 1]], [0.0, 1.0], [1, 2], [0, 2], [0, 1, 0], [-1, 0], [True, False]])
def test_bad_bins(bins):
    with pytest.raises(ValueError, match="bins"):
        BinnedResponse(1.0, bins)


@pytest.mark.parametrize("outputs", [[1.0], [1.0, math.nan], [1.0, math.inf], [[1.0, 2.0]]])
def test_bad_outputs(outputs):
    with pytest.raises(ValueError, match="outputs has shape"):
        BinnedResponse(1.0, [0, 1], outputs)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, None])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon is"):
        BinnedResponse(epsilon, [0, 1])


# -- the sampler --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "randomizer",
    [
        channel(1.0),
        channel(0.0),
        channel(4.0),
        BinnedResponse(1.0, [0] * 5),
        BinnedResponse(1.0, [0]),
        BinnedResponse(2.0, np.arange(300)),
    ],
    ids=lambda r: f"{r.epsilon}-{r.num_classes}-{r.num_bins}",
)
def test_it_keeps_the_contract(randomizer):
    check_randomizer(randomizer, draws=200_000)


class UnderDeclared(BinnedResponse):
    def event(self):
        return PureDP(self.epsilon / 2)


class SaysOneDoesAnother(BinnedResponse):
    def sample(self, labels, rng):
        drawn = BinnedResponse(self.epsilon * 1.02, self.bins).sample(labels, rng)
        return NoisyValues(self, drawn.responses.copy(), self.outputs)


class MovesTheBins(BinnedResponse):
    """Bins that follow the data: here, all rows are read off the first one."""

    def sample(self, labels, rng):
        moved = self.bins[np.maximum(labels, labels[:1])]
        return NoisyValues(
            self, RandomizedResponse(self.epsilon, self.num_bins).sample(moved, rng).responses, self.outputs
        )


@pytest.mark.parametrize(
    ("cheat", "what"),
    [(UnderDeclared, "declared"), (SaysOneDoesAnother, "does not follow"), (MovesTheBins, "does not follow")],
)
def test_cheats_are_caught(cheat, what):
    with pytest.raises(ContractError, match=what):
        check_randomizer(cheat(1.0, BINS, OUTPUTS), draws=1_000_000)


def test_draws_follow_the_law_and_the_test_can_tell():
    """2·10^6 draws, false alarms 1e-9; the same sampler with ε two percent too large is rejected."""
    labels = np.full(2 * 10**6, 4, dtype=np.uint8)
    counts, planted = (
        np.bincount(channel(epsilon).sample(labels, SecureRandom(5)).responses, minlength=8) for epsilon in (1.0, 1.02)
    )
    assert follows(counts, channel(1.0).probabilities(4)[0])
    assert not follows(planted, channel(1.0).probabilities(4)[0])


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows(n):
    release = channel().sample(np.zeros(n, dtype=np.uint8), SecureRandom(1))
    assert release.values().shape == release.hard().shape == (n,)
    assert release.log_likelihood().shape == (n, 8)


# -- any mechanism on bins ----------------------------------------------------------------------------------


def test_counts_on_bins_keep_their_contract_and_cost():
    counts = GroupCounts([0] * 4, 1, 3, LaplaceNoise(1.0))
    coarse = Binned(BINS, counts)
    assert coarse.event() == counts.event()
    check_mechanism(coarse, [0, 3, 7, 1], [7, 3, 7, 1], 8, draws=4000)
    with pytest.raises(ValueError, match="num_classes is 8"):
        coarse.fits(4, 3)
    with pytest.raises(ValueError, match="num_classes is 2"):
        Binned(BINS, GroupCounts([0] * 4, 1, 2, LaplaceNoise(1.0))).fits(4, 8)


# -- the grid and the vault ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.0, 1.0, "low < high"),
        (2.0, 1.0, "low < high"),
        (math.nan, 1.0, "low is nan"),
        (0.0, math.nan, "high is nan"),
        (0.0, math.inf, "high is inf"),
        (0.0, "1", "high is '1'"),
        (True, 2.0, "low is True"),
        (-1e308, 1e308, "told apart"),
        (1.0, math.nextafter(1.0, 2.0), "told apart"),
    ],
)
def test_bad_ranges(low, high, words):
    with pytest.raises(ValueError, match=words):
        seal_values([0.5], low, high)


@pytest.mark.parametrize("levels", [0, -1, 1.5, True, 1 << 20])
def test_bad_levels(levels):
    with pytest.raises(ValueError, match="levels is"):
        Grid(0.0, 1.0, levels)


@given(st.lists(st.floats(-20, 20), max_size=30), st.integers(2, 600))
@settings(max_examples=60, deadline=None)
def test_a_value_becomes_its_nearest_level(values, levels):
    grid = Grid(-3.0, 7.5, levels)
    vault = ValueVault(values, grid, rng=SecureRandom(1))
    found = grid.values()[vault.reveal("a test")]
    step = 10.5 / (levels - 1)
    assert np.abs(found - np.clip(values, -3.0, 7.5)).max(initial=0.0) <= step / 2 * (1 + 1e-9)


def test_one_level_is_the_middle():
    vault = seal_values([0.1, 9.0, 500.0], 0.0, 10.0, levels=1)
    assert vault.grid.values().tolist() == [5.0]
    assert vault.reveal("a test").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "values",
    [
        [0.25, 17.0, 0.5],
        np.array([0.25, 17.0, 0.5], dtype=np.float32),
        np.array([0.25, 17, Decimal("0.5")], dtype=object),
    ],
)
def test_numbers_of_every_kind(values):
    assert seal_values(values, 0, 1, levels=5).reveal("a test").tolist() == [1, 4, 2]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([0.1, math.nan, 0.2], 1),
        ([math.inf, -math.inf], 2),
        (np.array([0.5, None, "717171", 10**400], dtype=object), 3),
    ],
)
def test_missing_values_are_counted_and_not_shown(values, count):
    with pytest.raises(ValueError, match=f"{count} are missing") as error:
        seal_values(values, 0.0, 1.0)
    assert "717171" not in str(error.value)
    assert error.value.__context__ is None


def test_values_of_the_wrong_kind_or_shape():
    with pytest.raises(ValueError, match="values are text"):
        seal_values(["0.717171"], 0.0, 1.0)
    with pytest.raises(ValueError, match="shape"):
        seal_values(np.zeros((2, 2)), 0.0, 1.0)


def test_the_vault_is_a_vault():
    vault = seal_values([0.717171, 0.2], 0.0, 1.0, levels=8, budget=Budget(1.0), rng=SecureRandom(1))
    assert "0.71" not in repr(vault)
    assert len(vault.release(channel(1.0))) == 2
    assert vault.certificate().epsilon == 1.0
    with pytest.raises(BudgetExceededError):
        vault.release(channel(0.1))
    with pytest.raises(TypeError):
        vault[0]


def test_zero_rows():
    assert len(seal_values([], 0.0, 1.0, levels=8).release(channel())) == 0
