"""LDP-SSL and AugDescent as recipes: one query at ε, other private labels for nothing, heads as teachers, resuming."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest
import torch

from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.dividemix import co_refine
from labeldp.learning.evidence import forward_corrected, from_classes, most_confident, on_rows
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import adam, constant
from labeldp.learning.train import accuracy, fit, predict
from labeldp.mechanisms.vectors import LaplaceOneHot
from labeldp.recipes import aug_descent, distil, one_shot, per_row
from tests.learning.semihelp import STRONG, WEAK, K, network, pictures
from tests.trained import weights

COMMON = {"weak": WEAK, "strong": STRONG, "optimizer": adam(5e-3), "schedule": constant()}
FIT = functools.partial(fixmatch, epochs=12, batch_size=16, ratio=4, threshold=0.8, average=0.9, **COMMON)
REFINE = functools.partial(co_refine, epochs=10, warmup=5, batch_size=32, strength=5.0, **COMMON)
BRIEF_FIT, BRIEF_REFINE = functools.partial(FIT, epochs=1), functools.partial(REFINE, epochs=2, warmup=1)


def sealed(seed=0):
    return LabelVault(pictures()[1], K, rng=SecureRandom(seed))


def score(model):
    return accuracy(model, *pictures(600, 1))


@functools.cache
def shot():
    """A head from one query at ε = 1 on features that tell the classes apart, with noise."""
    vault = sealed()
    return one_shot.train(features(), vault, epsilon=1.0, delta=1e-5), vault


@functools.cache
def features():
    generator = torch.Generator().manual_seed(2)
    return torch.eye(K)[pictures()[1]] + 0.4 * torch.randn(600, K, generator=generator)


RECIPES = {
    "ldp_ssl": functools.partial(per_row.ldp_ssl, fit=BRIEF_FIT),
    "aug_descent": functools.partial(aug_descent.train, refine=BRIEF_REFINE),
}


@pytest.mark.parametrize("train", RECIPES.values(), ids=RECIPES)
def test_one_look_is_all_that_is_asked(train):
    vault = sealed()
    train(network(), pictures()[0], vault, epsilon=1.5)
    (group,) = vault.ledger.groups()
    assert [query.event for query in group.queries] == [PureDP(1.5)]


@pytest.mark.parametrize("train", RECIPES.values(), ids=RECIPES)
def test_the_same_folder_asks_once_and_trains_the_same(train, tmp_path):
    vault = sealed()
    first, again = (train(network(), pictures()[0], vault, epsilon=1.0, folder=tmp_path / "new") for _ in range(2))
    assert vault.certificate().epsilon == 1.0
    assert torch.equal(weights(first), weights(again))


def test_fixmatch_on_responses():
    """At ε = 2 four responses in five are right; the likelihood of the responses takes more noise than their word."""
    plain = per_row.ldp_ssl(network(), pictures()[0], sealed(), epsilon=2.0, fit=FIT)
    assert score(plain) > 0.9
    likely = per_row.ldp_ssl(network(), pictures()[0], sealed(), epsilon=1.0, fit=FIT, objective=forward_corrected)
    assert score(likely) > 0.9


def test_any_recipe_can_train_by_fixmatch():
    same = per_row.forward(network(), pictures()[0], sealed(), epsilon=1.0, fit=BRIEF_FIT)
    ours = per_row.ldp_ssl(network(), pictures()[0], sealed(), epsilon=1.0, fit=BRIEF_FIT, objective=forward_corrected)
    assert torch.equal(weights(same), weights(ours))


@pytest.mark.parametrize("known_noise", [False, True])
def test_aug_descent_on_responses(known_noise):
    """Responses at ε = 1.2 are right on 62%."""
    settings = {"epsilon": 1.2, "refine": REFINE, "known_noise": known_noise}
    assert score(aug_descent.train(network(), pictures()[0], sealed(), **settings)) > 0.95


def test_known_noise_reaches_the_judge():
    """With ε so large that every answer is believed."""
    reports = []
    refine = functools.partial(BRIEF_REFINE, report=reports.append)
    aug_descent.train(network(), pictures()[0], sealed(), epsilon=40.0, refine=refine, known_noise=True)
    assert reports[-1].believed == 1.0


def test_responses_of_other_randomizers_and_of_teachers():
    noisy = sealed().release(LaplaceOneHot(3.0, K))
    assert torch.isfinite(weights(per_row.learn(network(), pictures()[0], noisy, fit=BRIEF_FIT))).all()
    assert torch.isfinite(weights(aug_descent.learn(network(), pictures()[0], noisy, refine=BRIEF_REFINE))).all()
    answered = np.arange(0, 600, 15)
    votes = on_rows(answered, pictures()[1][answered], 600, K)
    assert score(per_row.learn(network(), pictures()[0], votes, fit=FIT)) > 0.95
    every = functools.partial(REFINE, steps=18)
    assert score(aug_descent.learn(network(), pictures()[0], votes, refine=every)) > 0.95


def test_the_surest_labels_of_a_head_teach_a_network():
    found, vault = shot()
    spent = vault.certificate(1e-5).epsilon
    head = float((found.predict(features()) == pictures()[1]).float().mean())
    picked = most_confident(found.probabilities(features()), 30)
    right = float((picked.targets.argmax(1) == pictures()[1])[picked.rows()].float().mean())
    model = distil.train_on_most_confident(found, features(), network(), pictures()[0], per_class=30, fit=FIT)
    assert len(picked.rows()) == 90
    assert right > head
    assert score(model) > max(head, 0.95)
    assert vault.certificate(1e-5).epsilon == spent


def test_a_student_of_the_head_goes_first():
    """FixMatch gets the student's labels and weights: with none of its own, the student alone comes back."""
    found, vault = shot()
    spent = vault.certificate(1e-5).epsilon
    taught = []

    def student(model, inputs, objective, **settings):
        taught.append(fit(model, inputs, objective, epochs=10, batch_size=32, optimizer=adam(5e-3), **settings))
        return taught[0]

    def keep(model, inputs, objective, *, rows, **settings):
        own = predict(model, inputs).softmax(dim=1)
        assert torch.equal(rows, most_confident(own, 30).rows())
        assert model is taught[0]
        return model

    settings = {"per_class": 30, "student": student}
    model = distil.train_on_most_confident(found, features(), network(), pictures()[0], fit=keep, **settings)
    head = float((found.predict(features()) == pictures()[1]).float().mean())
    assert score(model) > head
    assert (
        score(distil.train_on_most_confident(found, features(), network(), pictures()[0], fit=FIT, **settings)) > 0.95
    )
    assert vault.certificate(1e-5).epsilon == spent


def test_two_networks_find_the_errors_of_a_head():
    found, _ = shot()
    head = float((found.predict(features()) == pictures()[1]).float().mean())
    model = aug_descent.train_after(found, features(), network(), pictures()[0], refine=REFINE)
    assert score(model) > max(head, 0.95)


LEARNERS = [per_row.learn, distil.train_on_most_confident, aug_descent.learn, aug_descent.train_after]


@pytest.mark.parametrize("function", LEARNERS)
def test_post_processing_cannot_ask_a_vault(function):
    assert not any("Vault" in str(p.annotation) for p in inspect.signature(function).parameters.values())


def test_learn_goes_on_in_its_folder_and_not_with_other_labels(tmp_path):
    labels = from_classes(pictures()[1], K)
    first = per_row.learn(network(), pictures()[0], labels, fit=BRIEF_FIT, folder=tmp_path)
    again = per_row.learn(network(3), pictures()[0], labels, fit=BRIEF_FIT, folder=tmp_path)
    assert torch.equal(weights(first), weights(again))
    shifted = from_classes((pictures()[1] + 1) % K, K)
    other = per_row.learn(network(), pictures()[0], shifted, fit=BRIEF_FIT, folder=tmp_path)
    assert not torch.equal(weights(first), weights(other))


def test_refuses_labels_of_other_rows():
    with pytest.raises(ValueError, match="3 private labels for 600"):
        per_row.learn(network(), pictures()[0], from_classes([0, 1, 2], K), fit=BRIEF_FIT)
    with pytest.raises(ValueError, match="3 private labels for 600"):
        aug_descent.learn(network(), pictures()[0], from_classes([0, 1, 2], K), refine=BRIEF_REFINE)
