"""DenoiseSSL: how right the kept labels are, against the closed form by simulation; clusters and heads as guesses."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import from_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import adam, constant
from labeldp.learning.train import accuracy
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.vectors import BitFlip
from labeldp.recipes import denoise_ssl
from labeldp.recipes.denoise_ssl import denoise, kept_accuracy, majority
from tests.learning.semihelp import STRONG, WEAK, K, network, pictures
from tests.trained import weights

ROWS, CLASSES, RIGHT, EPSILON = 1_000_000, 4, 0.55, 0.7
# Two-sided, of a normal: a false alarm in 10⁹ runs.
SIGMAS = 6.2
FIT = functools.partial(
    fixmatch, epochs=12, batch_size=16, ratio=4, threshold=0.8, weak=WEAK, strong=STRONG, optimizer=adam(5e-3),
    schedule=constant(), average=0.9,
)  # fmt: skip


@functools.cache
def simulated():
    """True labels, and guesses right with probability 0.55 whose errors are all the next class: as uneven as can be."""
    generator = np.random.default_rng(0)
    truth = generator.integers(0, CLASSES, ROWS)
    guesses = np.where(generator.random(ROWS) < RIGHT, truth, (truth + 1) % CLASSES)
    return truth, guesses


def kept_share(epsilon, num_classes, guesses_right):
    """q + a·(p − q): the share of randomized-response labels that agree with the guesses."""
    return (1 + guesses_right * math.expm1(epsilon)) / (math.exp(epsilon) + num_classes - 1)


def off(asked_at: float) -> tuple[float, float, float]:
    """Standard deviations by which kept share, kept accuracy and estimated guess accuracy miss the closed form."""
    truth, guesses = simulated()
    private = LabelVault(truth, CLASSES).release(RandomizedResponse(asked_at, CLASSES))
    found = denoise(private, guesses)
    kept = (found.labels.weights > 0).numpy()
    right = float((private.hard() == truth)[kept].mean())
    share, accuracy_ = kept_share(EPSILON, CLASSES, RIGHT), kept_accuracy(EPSILON, RIGHT)
    share_off = (found.share - share) / math.sqrt(share * (1 - share) / ROWS)
    right_off = (right - accuracy_) / math.sqrt(accuracy_ * (1 - accuracy_) / kept.sum())
    # The estimate is the share, moved and stretched.
    slope = kept_share(EPSILON, CLASSES, 1.0) - kept_share(EPSILON, CLASSES, 0.0)
    guess_off = (found.guesses_right - RIGHT) * slope / math.sqrt(share * (1 - share) / ROWS)
    return share_off, right_off, guess_off


def test_kept_labels_are_as_right_as_the_closed_form_says():
    """A million rows; 3 comparisons at 6.2 standard deviations: fewer than 2 false alarms in 10⁹."""
    assert max(map(abs, off(EPSILON))) < SIGMAS


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_other_noise_is_noticed(factor):
    """Responses at a tenth more or less ε than stated do not pass."""
    share_off, right_off, _ = off(factor * EPSILON)
    assert min(abs(share_off), abs(right_off)) > SIGMAS


def test_the_expected_share_is_told():
    truth, guesses = simulated()
    private = LabelVault(truth, CLASSES).release(RandomizedResponse(EPSILON, CLASSES))
    found = denoise(private, guesses)
    assert found.expected == pytest.approx(kept_accuracy(EPSILON, RIGHT), abs=0.01)
    assert np.array_equal(found.guesses, guesses)
    kept = (found.labels.weights > 0).numpy()
    assert np.array_equal(kept, private.hard() == guesses)


@given(st.floats(0, 8), st.integers(2, 100), st.floats(0, 1))
def test_the_closed_form_is_bayes_rule(epsilon, classes, right):
    p = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    q = (1 - p) / (classes - 1)
    kept = right * p + (1 - right) * q
    assert kept_share(epsilon, classes, right) == pytest.approx(kept, rel=1e-9)
    assert kept_accuracy(epsilon, right) == pytest.approx(right * p / kept, rel=1e-9, abs=1e-12)


def test_a_guess_that_knows_nothing_changes_nothing():
    """a = 1/K keeps the accuracy of randomized response itself."""
    assert kept_accuracy(1.0, 0.1) == pytest.approx(math.e / (math.e + 9))
    assert kept_accuracy(800.0, 0.1) == 1.0


def test_tang_et_al_cifar10():
    """Clusters right on 88.3%, ε = 0.5: the text's example of how much a weak answer gains."""
    assert kept_accuracy(0.5, 0.883) == pytest.approx(0.9256, abs=1e-4)


# -- guesses ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=40), st.booleans())
def test_majorities_by_counting(pairs, others_only):
    responses, groups = (np.array(part) for part in zip(*pairs, strict=True))
    found = majority(responses, groups, 3, others_only=others_only)
    for i in range(len(pairs)):
        others = [a for j, (a, g) in enumerate(pairs) if g == groups[i] and not (others_only and j == i)]
        counts = [others.count(c) for c in range(3)]
        assert counts[found[i]] == max(counts)
        assert found[i] == counts.index(max(counts))


def test_a_row_alone_in_its_group_does_not_agree_with_itself():
    assert majority([1, 1], [0, 1], 2).tolist() == [1, 1]
    assert majority([1, 1], [0, 1], 2, others_only=True).tolist() == [0, 0]


def test_own_votes_break_the_closed_form_in_small_groups():
    """Groups of six rows, a third of the responses right at random: with its own vote a label agrees with itself.

    40,000 kept labels and more: without the own vote the closed form holds to 6.2 standard deviations, with it the
    kept labels miss it by 20 and more. (Rows of a group share votes, so the deviations are somewhat larger than of
    independent rows; the margin is measured, and the noise has a seed.)
    """
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(50_000), 6)
    truth = np.repeat(generator.integers(0, CLASSES, 50_000), 6)
    private = LabelVault(truth, CLASSES, rng=SecureRandom(1)).release(RandomizedResponse(0.4, CLASSES))

    def missed(others_only):
        guesses = majority(private.hard(), groups, CLASSES, others_only=others_only)
        kept = (denoise(private, guesses).labels.weights > 0).numpy()
        expected = kept_accuracy(0.4, float((guesses == truth).mean()))
        right = float((private.hard() == truth)[kept].mean())
        return abs(right - expected) / math.sqrt(expected * (1 - expected) / kept.sum())

    assert missed(others_only=True) < SIGMAS
    assert missed(others_only=False) > 20


# -- the recipe ---------------------------------------------------------------------------------------------------


def sealed(seed=0, **settings):
    return LabelVault(pictures()[1], K, rng=SecureRandom(seed), **settings)


@functools.cache
def clusters():
    """Nine clusters, each nearly of one class: every tenth row is in a cluster of another class."""
    generator, classes = np.random.default_rng(1), pictures()[1].numpy()
    seen = np.where(generator.random(len(classes)) < 0.9, classes, (classes + 1) % K)
    return seen * 3 + generator.integers(0, 3, len(classes))


def test_one_look_is_all_that_is_asked():
    """Clusters are voted on by private labels: the vault is queried for responses, and for nothing else."""
    vault = sealed()
    denoise_ssl.train(
        network(), pictures()[0], vault, epsilon=2.0, clusters=clusters(), fit=functools.partial(FIT, epochs=1)
    )
    (group,) = vault.ledger.groups()
    assert [query.event for query in group.queries] == [PureDP(2.0)]
    assert vault.certificate().epsilon == 2.0


def test_learns_more_than_responses_and_clusters_say():
    """Responses at ε = 1 are right on 58%, clusters on 90%: the student is right on more than either."""
    model = denoise_ssl.train(network(), pictures()[0], sealed(), epsilon=1.0, clusters=clusters(), fit=FIT)
    assert accuracy(model, *pictures(600, 1)) > 0.95


def test_the_same_folder_asks_once_and_trains_the_same(tmp_path):
    vault, fit = sealed(), functools.partial(FIT, epochs=2)
    settings = {"epsilon": 1.0, "clusters": clusters(), "fit": fit, "folder": tmp_path, "others_only": False}
    first = denoise_ssl.train(network(), pictures()[0], vault, **settings)
    again = denoise_ssl.train(network(5), pictures()[0], vault, **settings)
    assert torch.equal(weights(first), weights(again))
    assert vault.certificate().epsilon == 1.0


def features():
    """Public features that tell the classes apart, with noise."""
    generator = torch.Generator().manual_seed(2)
    return torch.eye(K)[pictures()[1]] + 0.5 * torch.randn(600, K, generator=generator)


def test_a_head_in_place_of_clusters_costs_exactly_what_was_given():
    vault = sealed(budget=Budget(2.0, 1e-5))
    model = denoise_ssl.train_with_head(
        network(), pictures()[0], features(), vault, epsilon=2.0, delta=1e-5, share=0.4, fit=FIT
    )
    assert 1.99 < vault.certificate(1e-5).epsilon <= 2.0
    assert accuracy(model, *pictures(600, 1)) > 0.9


def test_a_budget_too_small_for_both_queries_is_refused_before_the_first():
    vault = sealed(budget=Budget(1.5, 1e-5))
    with pytest.raises(BudgetExceededError):
        denoise_ssl.train_with_head(network(), pictures()[0], features(), vault, epsilon=2.0, delta=1e-5, fit=FIT)
    assert vault.certificate(1e-5).epsilon == 0


def test_all_of_the_budget_for_the_head_is_refused():
    with pytest.raises(ValueError, match="share=1"):
        denoise_ssl.train_with_head(
            network(), pictures()[0], features(), sealed(), epsilon=2.0, delta=1e-5, share=1.0, fit=FIT
        )


def test_labels_of_teachers_are_denoised_too():
    """Votes on some rows only; there is no law, so nothing is claimed about how right they are."""
    votes = np.full(600, -1)
    votes[:200] = pictures()[1][:200]
    votes[:50] = (votes[:50] + 1) % K
    found = denoise(from_classes(votes, K), pictures()[1])
    assert found.labels.rows().tolist() == list(range(50, 200))
    assert found.share == pytest.approx(0.75)
    assert math.isnan(found.expected)
    model = denoise_ssl.learn(network(), pictures()[0], from_classes(votes, K), pictures()[1], fit=FIT)
    assert accuracy(model, *pictures(600, 1)) > 0.95


def test_other_randomizers_are_kept_by_their_likeliest_class():
    noisy = sealed().release(BitFlip(3.0, K))
    found = denoise(noisy, pictures()[1])
    assert torch.equal(found.labels.weights > 0, torch.from_numpy(noisy.hard()) == pictures()[1])
    assert math.isnan(found.guesses_right)


def test_refuses_what_does_not_fit():
    labels = from_classes([0, 1], 2)
    with pytest.raises(ValueError, match="2 private labels for 3"):
        denoise(labels, [0, 1, 1])
    with pytest.raises(ValueError, match="none would be kept"):
        denoise(labels, [1, 0])
    with pytest.raises(ValueError, match="guesses_right"):
        kept_accuracy(1.0, 1.5)
