"""The public checks accept our mechanisms and catch planted cheats."""

import numpy as np
import pytest

from labeldp.core.events import DiscreteGaussian, PureDP
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.values import BinnedResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import NoisyLabels
from labeldp.testing import ContractError, check_mechanism, check_randomizer

PRIOR = np.array([[0.5, 0.3, 0.1, 0.05, 0.05]])
HONEST = [
    RandomizedResponse(1.0, 2),
    RandomizedResponse(1.0, 10),
    RandomizedResponse(0.0, 5),
    RandomizedResponse(1.0, 1),
    RandomizedResponse(3.0, 1000),
    TopKResponse(1.0, np.array([True, False, True, True])),
    PriorResponse(1.0, PRIOR),
    PriorResponse(3.0, PRIOR),
    LaplaceOneHot(1.0, 4),
    BitFlip(1.0, 4),
    BitFlip(4.0, 3),
    BinnedResponse(1.0, np.array([0, 0, 1, 1, 1, 2]), np.array([0.5, 3.0, 5.0])),
]


@pytest.mark.parametrize("randomizer", HONEST, ids=lambda r: f"{type(r).__name__}-{r.epsilon}-{r.num_classes}")
def test_our_randomizers_keep_the_contract(randomizer):
    check_randomizer(randomizer, draws=200_000)


class UnderDeclared(RandomizedResponse):
    """Cheat 1: says half of what it spends."""

    def event(self):
        return PureDP(self.epsilon / 2)


class SaysOneDoesAnother(RandomizedResponse):
    """Cheat 2: the sampler spends two percent more than the stated law."""

    def sample(self, labels, rng):
        drawn = RandomizedResponse(self.epsilon * 1.02, self.num_classes).sample(labels, rng)
        return NoisyLabels(self, drawn.responses.copy())


class LooksAtTheNeighbour(RandomizedResponse):
    """Cheat 3: answers for the row before."""

    def sample(self, labels, rng):
        drawn = RandomizedResponse(self.epsilon, self.num_classes).sample(np.roll(labels, 1), rng)
        return NoisyLabels(self, drawn.responses.copy())


class LooksAtTheFirstRow(RandomizedResponse):
    """Cheat 4: the noise depends on the first row's label."""

    def sample(self, labels, rng):
        shift = 0 if len(labels) == 0 else int(labels[0] > 0)
        epsilon = self.epsilon * (0.8 if shift else 1.0)
        drawn = RandomizedResponse(epsilon, self.num_classes).sample(labels, rng)
        return NoisyLabels(self, drawn.responses.copy())


class OneCoinForAll(RandomizedResponse):
    """Cheat 5: every row has the right law, but neighbouring rows share their coin."""

    def sample(self, labels, rng):
        drawn = RandomizedResponse(self.epsilon, self.num_classes).sample(labels, rng).responses
        moved = (drawn.astype(int) - labels) % self.num_classes
        moved[1::2] = moved[: 2 * (len(moved) // 2) : 2]
        return NoisyLabels(self, ((labels + moved) % self.num_classes).astype(drawn.dtype))


class AnswersAnyone(RandomizedResponse):
    """Cheat 6: accepts a vault it was not made for."""

    def fits(self, num_rows, num_classes):
        pass


@pytest.mark.parametrize(
    ("cheat", "what"),
    [
        (UnderDeclared, "declared epsilon"),
        (SaysOneDoesAnother, "does not follow"),
        (LooksAtTheNeighbour, "does not follow"),
        (LooksAtTheFirstRow, "does not follow"),
        (OneCoinForAll, "does not follow"),
        (AnswersAnyone, "fits"),
    ],
)
def test_cheats_are_caught(cheat, what):
    with pytest.raises(ContractError, match=what):
        check_randomizer(cheat(1.0, 10), draws=1_000_000)


class WrongLikelihood(LaplaceOneHot):
    def log_likelihood(self, responses):
        return super().log_likelihood(responses) * 1.01


def test_a_likelihood_that_is_not_the_law_is_caught():
    with pytest.raises(ContractError, match="log_likelihood"):
        check_randomizer(WrongLikelihood(1.0, 4), draws=10_000)


GROUPS = np.array([0, 0, 1, 1, 1])
OURS, THEIRS = [0, 1, 1, 2, 0], [0, 1, 2, 2, 0]


@pytest.mark.parametrize("noise", [LaplaceNoise(1.0), GaussianNoise(2.0)])
def test_our_counts_keep_the_contract(noise):
    check_mechanism(GroupCounts(GROUPS, 2, 3, noise), OURS, THEIRS, 3, draws=2000)


class HalfTheNoise(GroupCounts):
    """Declares the noise of twice its epsilon: sensitivity 1 instead of 2, the classic slip."""

    def event(self):
        if isinstance(self.noise, LaplaceNoise):
            return PureDP(self.noise.epsilon / 2)
        return DiscreteGaussian(self.noise.std, (1, 0))


@pytest.mark.parametrize("noise", [LaplaceNoise(4.0), pytest.param(GaussianNoise(0.6), marks=pytest.mark.slow)])
def test_counts_that_claim_sensitivity_one_are_caught(noise):
    with pytest.raises(ContractError, match="neighbour"):
        check_mechanism(HalfTheNoise(GROUPS, 2, 3, noise), OURS, THEIRS, 3, draws=6000)


def test_labels_that_are_no_neighbours_are_refused():
    counts = GroupCounts(GROUPS, 2, 3, LaplaceNoise(1.0))
    with pytest.raises(ValueError, match="exactly one place"):
        check_mechanism(counts, OURS, OURS, 3)
