"""Every recipe stays below its claim on the worst made-up data, and shows each bug that is planted in it."""

import dataclasses

import pytest

from labeldp.audit.selftest import self_test, subjects
from labeldp.core.events import PureDP
from labeldp.core.random import SecureRandom
from labeldp.mechanisms import counts, responses, selection, user_responses, values, vectors
from labeldp.recipes.catalogue import RECIPES

pytest.importorskip("torch", reason="recipes need PyTorch")

SURE = 1 - 1e-6
GAUSSIAN = [name for name, (_, test) in subjects().items() if not test.pure]
PURE = [name for name, (_, test) in subjects().items() if test.pure]
# They tune without labels, then do what others do, too: seconds each.
LONG = {"one_shot+student", "one_shot+linear", "one_shot+kernel", "one_shot_prior", "pilot", "rounds"}
DESCENTS = {"dp_sgd", "lp_normal_sgd", "self_span", "user_gradients", "lp_rr_sgd"}


class Noise:
    def __init__(self):
        self.next = 1000

    def __call__(self):
        self.next += 1
        return SecureRandom(self.next)


def audited(name, epsilon, **more):
    return self_test(name, epsilon, seed=0, **{"confidence": SURE, "noise": Noise(), **more})


@pytest.mark.parametrize("name", [one for one in subjects() if one not in LONG])
def test_recipes_stay_below_their_claims(name):
    stays_below(name, 3.0, rows=100)


@pytest.mark.slow
@pytest.mark.parametrize("name", subjects())
@pytest.mark.parametrize("epsilon", [3.0, 0.5])
def test_every_recipe_stays_below_its_claim(name, epsilon):
    stays_below(name, epsilon)


def stays_below(name, epsilon, **more):
    result = audited(name, epsilon, **more)
    assert result.bound <= result.epsilon <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", ["rr", "debiased", "forward", "lp_mst", "cluster_votes", "binned_regression"])
def test_bounds_for_pure_recipes_are_worth_something(name):
    assert audited(name, 3.0).bound > 1.4


@pytest.mark.parametrize("name", ["moments", "dp_sgd", "lp_normal_sgd"])
def test_bounds_for_gaussian_recipes_are_worth_something(name):
    assert audited(name, 4.0).bound > 1.5


@pytest.mark.parametrize("name", PURE)
def test_less_noise_than_claimed_is_caught_in_answers(name, monkeypatch):
    """Each mechanism claims a third of what it spends."""
    for place in (responses.SetResponse, vectors.VectorResponse, selection.GroupVotes, values.BinnedResponse):
        monkeypatch.setattr(place, "event", lambda self: PureDP(self.epsilon / 3))
    monkeypatch.setattr(counts.GroupCounts, "event", lambda self: PureDP(self.noise.epsilon / 3))
    charges = user_responses.UserResponse.charges
    monkeypatch.setattr(user_responses.UserResponse, "charges", lambda *asked: a_third(charges(*asked)))
    result = audited(name, 3.0)
    assert result.epsilon == pytest.approx(1.0)
    assert result.contradicts


def a_third(charges):
    return [dataclasses.replace(charge, event=PureDP(charge.event.epsilon / 3)) for charge in charges]


@pytest.mark.parametrize("name", ["moments", "dp_sgd", "lp_normal_sgd", "user_gradients"])
def test_half_the_noise_is_caught_in_sums(name, monkeypatch):
    honest = SecureRandom.rounded_gaussian
    monkeypatch.setattr(SecureRandom, "rounded_gaussian", lambda self, std, size: honest(self, std / 2, size))
    result = audited(name, 4.0)
    assert result.contradicts
    assert result.p_value < 1e-6


@pytest.mark.parametrize("name", [*PURE, "moments", "dp_sgd", "lp_normal_sgd", "self_span", "user_gradients"])
def test_a_seed_used_again_is_caught(name):
    rows = 100 if name in DESCENTS else None
    result = audited(name, 1.0, rows=rows, noise=lambda: SecureRandom(4321), confidence=0.999)
    assert result.contradicts
    assert "a repeated run" in result.attack


def test_unknown_recipes_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"recipe='sgd' is not one of one_shot.*dp_sgd"):
        self_test("sgd", 1.0)


def test_more_canaries_find_more():
    few, many = (self_test("rr", 1.0, rows=rows, seed=0, noise=Noise()).bound for rows in (100, 2000))
    assert few < many


def test_all_published_recipes_are_there():
    """A recipe that joins the library joins the audit."""
    published = {recipe.key for recipe in RECIPES if recipe.classes or recipe.numbers}
    published |= {"rr", "debiased", "forward", "alibi", "lp_mst", "ssl_prior", "cluster_votes", "one_shot", "dp_sgd"}
    published |= {"labeldp_pro", "lp_normal_sgd", "binned_regression", "user_responses", "user_gradients"}
    assert published <= set(subjects())
