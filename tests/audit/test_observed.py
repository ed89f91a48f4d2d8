"""Audits of models that exist: valid where the proxy is right, forgiving by as much as it may be wrong."""

import numpy as np
import pytest

from labeldp.audit.bounds import Claim
from labeldp.audit.training import audit_observed
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse

SURE = 1 - 1e-6
N, K = 30_000, 4


def world(seed=0):
    """Labels drawn from a known law of their features: the perfect proxy."""
    rng = np.random.default_rng(seed)
    proxy = rng.dirichlet(np.full(K, 0.7), size=N)
    return proxy, (proxy.cumsum(axis=1)[:, :-1] < rng.random((N, 1))).sum(axis=1)


def responses(labels, epsilon, seed=1000):
    return LabelVault(labels, K, rng=SecureRandom(seed)).release(RandomizedResponse(epsilon, K))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_honest_models_stay_below(epsilon):
    """The most a model can know: the proxy and the private answers, put together by Bayes."""
    proxy, labels = world()
    known = np.log(proxy) + responses(labels, epsilon).log_likelihood()
    result = audit_observed(known, labels, proxy, Claim(epsilon), confidence=SURE, seed=0)
    assert result.bound <= epsilon
    assert "labels are drawn from the proxy" in result.verdict
    if epsilon >= 1:
        assert result.bound > 0.5 * epsilon


def test_a_model_that_only_knows_the_proxy_is_never_accused():
    proxy, labels = world()
    assert audit_observed(np.log(proxy), labels, proxy, Claim(0.0), confidence=SURE, seed=0).bound == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_half_the_noise_is_caught(epsilon):
    proxy, labels = world()
    known = np.log(proxy) + responses(labels, 2 * epsilon).log_likelihood()
    assert audit_observed(known, labels, proxy, Claim(epsilon), confidence=SURE, seed=0).contradicts


def test_memorised_labels_are_caught_with_a_delta_too():
    proxy, labels = world()
    result = audit_observed(np.eye(K)[labels], labels, proxy, Claim(2.0, 1e-7), seed=0)
    assert result.contradicts


def test_a_wrong_proxy_accuses_unless_its_error_is_allowed_for():
    """A model that knows the features, audited with a proxy that does not, seems to have memorised."""
    proxy, labels = world()
    flat = np.full(K, 1 / K)
    accused = audit_observed(np.log(proxy), labels, flat, Claim(0.1), confidence=SURE, seed=0)
    assert accused.contradicts
    spared = audit_observed(np.log(proxy), labels, flat, Claim(0.1), proxy_error=20.0, confidence=SURE, seed=0)
    assert not spared.contradicts
    assert "e^20" in spared.verdict
    # A little wrong: log-odds off by 0.2 at most are covered by exactly that.
    bent = proxy * np.exp(np.random.default_rng(1).uniform(-0.1, 0.1, size=proxy.shape))
    known = np.log(proxy) + responses(labels, 1.0).log_likelihood()
    result = audit_observed(known, labels, bent, Claim(1.0), proxy_error=0.2, confidence=SURE, seed=0)
    assert 0.2 < result.bound <= 1.0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"labels": np.zeros(3, dtype=int)}, "labels"),
        ({"labels": np.full(10, 9)}, "10 labels are not among"),
        ({"labels": np.zeros(10)}, "class numbers"),
        ({"proxy": [0.5, 0.5]}, "proxy"),
        ({"proxy": [-1.0, 1.0, 0.5, 0.5]}, "proxy"),
        ({"proxy": [0.0, 0.0, 0.0, 0.0]}, "proxy"),
        ({"scores": np.zeros(10)}, "scores"),
        ({"proxy_error": -1.0}, "proxy_error"),
        ({"proxy_error": 1.0, "claim": Claim(1.0, 1e-5)}, "proxy_error"),
    ],
)
def test_nonsense_is_refused(change, what):
    right = {"scores": np.zeros((10, K)), "labels": np.zeros(10, dtype=int), "proxy": [1, 1, 1, 1], "claim": Claim(1.0)}
    with pytest.raises(ValueError, match=what):
        audit_observed(**(right | change))


def test_a_proxy_that_is_certain_leaves_nothing_to_guess():
    with pytest.raises(ValueError, match="certain"):
        audit_observed(np.zeros((5, 2)), np.zeros(5, dtype=int), [1.0, 0.0], Claim(1.0), seed=0)
