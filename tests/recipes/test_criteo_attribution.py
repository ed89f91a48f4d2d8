"""The attribution benchmark: on a synthetic stand-in always, on the official file where it is."""

from __future__ import annotations

import functools
import os

import pytest
import torch

from experiments.synthetic import synthetic_attribution_stand_in
from labeldp.core.random import SecureRandom
from labeldp.data.benchmarks import attribution_by_user
from labeldp.data.files import MissingDataError
from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import adam
from labeldp.learning.train import fit
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.mechanisms.users import UserVault
from labeldp.models.zoo import attribution_network
from labeldp.recipes.attribution import features, methods, network, outcomes, score
from labeldp.recipes.denoisers import alt_rows, no_op
from labeldp.recipes.labeldp_pro import train as train_on_gradients
from labeldp.recipes.per_row import rr as train_on_responses


def small(data):
    return attribution_network(1, data.train.cardinalities, dim=2, hidden=(8,), buckets=32)


def test_every_method_runs_on_the_synthetic_stand_in_and_keeps_its_budget():
    data = synthetic_attribution_stand_in(400, 200, rng=SecureRandom(0))
    tried = methods(epochs=1, batch_size=100)
    found = list(outcomes(data, tried, epsilons=(2.0,), caps=(2,), make=small))
    assert [outcome.method for outcome in found] == list(tried)
    for outcome in found:
        assert 0.5 < outcome.epsilon <= 2.0
        assert outcome.delta == 1e-5
        assert 0.0 < outcome.auc < 1.0
    assert data.vault.certificate(1e-5).epsilon > 2.0 * (len(found) - 2)


def test_more_privacy_costs_accuracy_on_the_synthetic_stand_in():
    """At ε = 20 each method learns; at ε = 0.01 none knows more than chance does. Wide margins, fixed seeds."""
    data = synthetic_attribution_stand_in(3000, 3000, rng=SecureRandom(1))
    tried = {
        "responses": functools.partial(
            train_on_responses, fit=functools.partial(fit, epochs=4, batch_size=128, optimizer=adam(3e-3))
        ),
        "gradients": functools.partial(
            train_on_gradients, delta=1e-5, epochs=6, batch_size=150, bound=NormBound(1.0), denoiser=no_op(),
            optimizer=adam(1e-2),
        ),
    }  # fmt: skip
    found = list(outcomes(data, tried, epsilons=(20.0, 0.01), caps=(2,), make=small))
    strong = {outcome.method: outcome.auc for outcome in found if outcome.epsilon > 1}
    weak = {outcome.method: outcome.auc for outcome in found if outcome.epsilon < 1}
    assert min(strong.values()) > 0.66
    assert max(weak.values()) < 0.62


def test_the_network_learns_the_synthetic_stand_in_without_privacy():
    data = synthetic_attribution_stand_in(3000, 3000)
    labels = torch.from_numpy(data.vault.reveal("a test of the network alone"))
    torch.manual_seed(0)
    model = fit(small(data), features(data.train), on_classes(labels), epochs=4, batch_size=128, optimizer=adam(3e-3))
    assert score(model, data) > 0.7
    assert network(data).head.out_features == 2


def official():
    try:
        return attribution_by_user(os.environ.get("LABELDP_DATA"))
    except MissingDataError:
        pytest.skip("criteo_attribution is not there; set LABELDP_DATA to a folder that holds criteo_attribution/")


@pytest.mark.slow
def test_the_official_file():
    """One pass of DP-SGD and of LabelDP-Pro at ε = 5 on 200,000 users: above chance, within the budget."""
    data = official()
    assert len(data.vault.users) == 200_000
    gradients = functools.partial(
        train_on_gradients, delta=1e-6, epochs=1, batch_size=1024, optimizer=adam(2e-3), cap=2, epsilon=5.0
    )
    labels = data.vault.reveal("a published benchmark: every training gets a vault of its own")
    for denoiser in (no_op(), alt_rows(rows=256)):
        torch.manual_seed(0)
        vault = UserVault(labels, data.vault.users, 2)
        model = gradients(network(data), features(data.train), vault, denoiser=denoiser)
        assert score(model, data) > 0.55
        assert vault.certificate(1e-6).epsilon <= 5.0
