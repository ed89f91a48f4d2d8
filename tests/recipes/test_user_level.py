"""Recipes on a vault of users: randomized response."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from experiments.synthetic import synthetic_attribution_stand_in
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.learning.evidence import forward_corrected
from labeldp.learning.optimisers import adam
from labeldp.learning.train import fit, predict
from labeldp.mechanisms.users import UserVault
from labeldp.models.zoo import attribution_network
from labeldp.recipes import per_row
from labeldp.recipes.arguments import take_rows
from labeldp.recipes.per_row import rr as train_on_responses
from labeldp.results.measure import auc


def tensors(columns):
    return torch.from_numpy(columns.numeric), torch.from_numpy(columns.categorical)


@functools.cache
def clicks(budget=None):
    return synthetic_attribution_stand_in(4000, 2000, rng=SecureRandom(3), budget=budget)


def network(data):
    torch.manual_seed(0)
    return attribution_network(1, data.train.cardinalities, dim=4, hidden=(16,))


def score(model, data):
    logits = predict(model, tensors(data.test))
    return auc(logits[:, 1] - logits[:, 0], data.test_labels.values)


LEARN = functools.partial(fit, epochs=4, batch_size=128, optimizer=adam(3e-3))


def test_responses_teach_and_the_worst_user_pays_epsilon():
    data = synthetic_attribution_stand_in(4000, 2000, budget=Budget(8.0))
    model = train_on_responses(network(data), tensors(data.train), data.vault, epsilon=8.0, cap=2, fit=LEARN)
    assert score(model, data) > 0.7
    claim = data.vault.certificate()
    assert claim.epsilon == 8.0
    assert claim.unit.protects == "all labels of one user"
    with pytest.raises(BudgetExceededError):
        train_on_responses(network(data), tensors(data.train), data.vault, epsilon=0.1, cap=2, fit=LEARN)


@pytest.mark.parametrize("more", [{"alike": True}, {"delta": 1e-5}, {"objective": forward_corrected}])
def test_other_ways_to_share_and_to_learn(more):
    data = synthetic_attribution_stand_in(500, 10, budget=Budget(6.0, more.get("delta", 0.0)))
    train_on_responses(network(data), tensors(data.train), data.vault, epsilon=6.0, cap=3, fit=LEARN, **more)
    assert 0.99 * 6 < data.vault.certificate().epsilon <= 6.0


def seen_by_fit(vault, cap, **more):
    """What `fit` is given: the row numbers it trains on and the objective's private responses."""
    got = {}

    def spy(model, inputs, objective, /, *, rows, **_):
        got.update(inputs=inputs, rows=rows, objective=objective)
        return model

    inputs = torch.arange(len(vault), dtype=torch.float32)[:, None]
    model = torch.nn.Linear(1, 2)
    train_on_responses(model, inputs, vault, epsilon=2.0, cap=cap, fit=spy, **more)
    return got


def test_every_user_counts_cap_times_and_a_repeated_row_has_one_answer():
    owners = np.repeat(np.arange(60), np.arange(60) % 4 + 1)
    vault = UserVault(np.arange(len(owners)) % 2, owners, 2)
    got = seen_by_fit(vault, cap=3)
    trained = got["inputs"][:, 0].long()[got["rows"]]
    assert np.bincount(owners[trained.numpy()]).tolist() == [3] * 60
    # The loss of a row depends on its private answer alone, so copies of a row must have equal losses.
    losses = got["objective"](torch.tensor([[0.0, 2.0]]).expand(len(trained), 2), got["rows"])
    for row in trained.unique():
        assert losses[trained == row].unique().numel() == 1
    assert losses.unique().numel() == 2


def responses_of(vault, folder, epsilon=1.0, cap=2, delta=0.0):
    inputs = torch.zeros(len(vault), 1)
    return per_row._of_users(vault, inputs, epsilon, delta, cap, False, 0, folder / "responses.npz")[0]


def test_a_resumed_run_does_not_ask_again(tmp_path):
    data = clicks()
    spent = data.vault.certificate().epsilon
    first, again = (responses_of(data.vault, tmp_path, cap=2) for _ in range(2))
    assert np.array_equal(first.responses, again.responses)
    assert np.array_equal(first.log_likelihood(), again.log_likelihood())
    assert data.vault.certificate().epsilon == spent + 1.0
    other = synthetic_attribution_stand_in(4000, 2000)
    later = responses_of(other.vault, tmp_path, cap=2)
    assert np.array_equal(first.responses, later.responses)
    assert other.vault.certificate().epsilon == 1.0


@pytest.mark.parametrize("change", [{"epsilon": 2.0}, {"cap": 3}, {"delta": 1e-3}])
def test_kept_responses_to_another_query_are_refused(tmp_path, change):
    vault = UserVault(np.zeros(40, int), np.repeat(np.arange(10), 4), 2)

    responses_of(vault, tmp_path)
    with pytest.raises(ValueError, match="another query"):
        responses_of(vault, tmp_path, **change)


def test_a_killed_training_goes_on_from_its_folder(tmp_path):
    data = synthetic_attribution_stand_in(300, 10)
    seen, settings = [], {"epsilon": 3.0, "cap": 2, "folder": tmp_path}
    for epochs in (2, 5):
        learn = functools.partial(LEARN, epochs=epochs, report=lambda progress: seen.append(progress.epoch))
        train_on_responses(network(data), tensors(data.train), data.vault, fit=learn, **settings)
    assert seen == [1, 2, 3, 4, 5]
    assert data.vault.certificate().epsilon == 3.0


def test_mistakes_cost_nothing():
    data = synthetic_attribution_stand_in(50, 10)
    wrong = attribution_network(1, data.train.cardinalities, num_classes=3)
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        train_on_responses(wrong, tensors(data.train), data.vault, epsilon=1.0, cap=2, fit=LEARN)
    with pytest.raises(ValueError, match="k is"):
        train_on_responses(network(data), tensors(data.train), data.vault, epsilon=1.0, cap=0, fit=LEARN)
    assert data.vault.certificate().epsilon == 0.0


def test_rows_of_one_or_several_inputs():
    x = torch.arange(6).reshape(3, 2)
    rows = np.array([2, 0, 2])
    assert torch.equal(take_rows(x, rows), x[[2, 0, 2]])
    assert [part.tolist() for part in take_rows((x, x[:, 0]), rows)] == [x[[2, 0, 2]].tolist(), [4, 0, 4]]
