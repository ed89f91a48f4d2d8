"""One moment of features and cosines: it sees what columns say together, and costs what one moment does."""

import functools

import pytest
import torch

from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.learning.tuning import Plan, tune
from labeldp.recipes import one_shot, one_shot_kernel

quick = functools.partial(tune, plans=[Plan(40)], clusterings=2, draws=1)
X = torch.randn(6000, 3, generator=torch.Generator().manual_seed(0))
CROSSED = (X[:, 0] * X[:, 1] > 0).long()


def right(found):
    return float((found.logits(X).argmax(dim=1) == CROSSED).double().mean())


def test_it_learns_a_label_that_is_in_no_column_and_costs_one_moment(tmp_path):
    vault = LabelVault(CROSSED, 2, Budget(1.0, 1e-6))
    found = one_shot_kernel.train(X, vault, epsilon=1.0, delta=1e-6, tune=quick, cosines=200, folder=tmp_path)
    assert right(found) > 0.8
    (group,) = vault.ledger.groups()
    assert [query.times for query in group.queries] == [1]
    assert vault.certificate(1e-6).epsilon <= 1.0
    # The columns alone know nothing of it.
    assert right(one_shot.train(X, LabelVault(CROSSED, 2), epsilon=1.0, delta=1e-6, tune=quick)) < 0.6
    # A run that goes on draws nothing.
    again = LabelVault(CROSSED, 2, Budget(1.0, 1e-6))
    kept = one_shot_kernel.train(X, again, epsilon=1.0, delta=1e-6, tune=quick, cosines=200, folder=tmp_path)
    assert torch.equal(kept.logits(X), found.logits(X))
    assert verify(again.certificate(1e-6)) == ()


def test_mistakes_cost_nothing():
    vault = LabelVault(CROSSED, 2, Budget(1.0, 1e-6))
    for wrong, words in (({"width": -1.0}, "width=-1.0"), ({"cosines": 0}, "count")):
        with pytest.raises(ValueError, match=words):
            one_shot_kernel.train(X, vault, epsilon=1.0, delta=1e-6, tune=quick, **wrong)
    with pytest.raises(BudgetExceededError):
        one_shot_kernel.train(X, vault, epsilon=2.0, delta=1e-6, tune=quick)
    assert not any(group.queries for group in vault.ledger.groups())


def test_columns_are_weighed_by_the_same_release(tmp_path):
    idle = torch.randn(4000, 7, generator=torch.Generator().manual_seed(1))
    x, crossed, seen = torch.cat([X[:4000], idle], dim=1), CROSSED[:4000], []
    settings = {
        "epsilon": 0.7,
        "delta": 1e-6,
        "tune": functools.partial(tune, plans=[Plan(150)], clusterings=2, draws=1),
    }
    vault = LabelVault(crossed, 2, Budget(0.7, 1e-6))
    found = one_shot_kernel.train(x, vault, folder=tmp_path, report=seen.append, **settings)
    assert found.weighed is not None
    assert "weighed" in seen[-1].detail

    def share(scores):
        return float((scores.argmax(dim=1) == crossed).double().mean())

    assert share(found.logits(x)) > share(found.shot.logits(found.lift(x))) + 0.02
    assert found.probabilities(x).sum(dim=1) == pytest.approx(1.0, abs=1e-5)
    # One query, whatever is made of it, and what is kept gives the same again.
    (group,) = vault.ledger.groups()
    assert [query.times for query in group.queries] == [1]
    kept = one_shot_kernel.train(x, LabelVault(crossed, 2, Budget(0.7, 1e-6)), folder=tmp_path, **settings)
    assert torch.equal(kept.logits(x), found.logits(x))
    # Probabilities that classes are weighed by are those of the linear head.
    weighted = one_shot_kernel.train(x, LabelVault(crossed, 2), weighted=True, **settings)
    assert weighted.weighed is None
