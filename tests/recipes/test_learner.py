"""Any learner on responses: one query of every row, checked before and kept after, and the best learner taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from labeldp.core.certificate import verify
from labeldp.core.vault import LabelVault
from labeldp.learning.learners import Own
from labeldp.recipes import learner

X = torch.randn(800, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] * X[:, 1] > 0).long()


def untouched(vault):
    return not any(group.queries for group in vault.ledger.groups())


class Plain:
    """A learner that knows nothing of scikit-learn: no `get_params`, no `classes_`, a `fit` that returns nothing."""

    def fit(self, rows, responses):
        self.shares = np.bincount(responses, minlength=2) / len(responses)

    def predict_proba(self, rows):
        return np.tile(self.shares, (len(rows), 1))


class Narrow(Plain):
    def predict_proba(self, rows):
        return np.full((len(rows), 2), np.nan)


def test_it_learns_and_costs_one_response_of_every_row(monkeypatch):
    monkeypatch.setattr("labeldp.learning.learners._COSINES", 200)
    vault, told = LabelVault(LABELS, 2), []
    found = learner.train(X, vault, epsilon=4.0, report=told.append)
    assert float((found.probabilities(X).argmax(dim=1) == LABELS).double().mean()) > 0.85
    certificate = vault.certificate(0.0)
    assert certificate.epsilon == 4.0
    assert verify(certificate) == ()
    assert {sum(query.times for query in group.queries) for group in vault.ledger.groups()} == {1}
    assert max(found.judged, key=lambda pair: pair[1])[0] == found.name
    assert [progress.phase for progress in told] == ["learner"] * len(found.judged)


def test_of_several_learners_the_best_is_taken():
    able = make_pipeline(PolynomialFeatures(2), LogisticRegression())
    found = learner.train(X, LabelVault(LABELS, 2), epsilon=4.0, learner=[DummyClassifier(), able, Plain()])
    assert found.name == repr(able)
    assert len(found.judged) == 3


@pytest.mark.parametrize("given", [Plain(), HistGradientBoostingClassifier(max_iter=5), KNeighborsClassifier(20)])
def test_a_single_learner_is_fitted_to_all_rows(given):
    found = learner.train(X, LabelVault(LABELS, 2), epsilon=4.0, learner=given)
    assert isinstance(found.learnt, Own)
    assert found.judged == ()
    assert torch.allclose(found.probabilities(X).sum(dim=1), torch.ones(800, dtype=torch.float64))


@pytest.mark.parametrize(("package", "name"), [("lightgbm", "LGBMClassifier"), ("xgboost", "XGBClassifier")])
def test_boosters_of_others(package, name):
    made = getattr(pytest.importorskip(package), name)(n_estimators=20)
    found = learner.train(X, LabelVault(LABELS, 2), epsilon=4.0, learner=made)
    assert float((found.probabilities(X).argmax(dim=1) == LABELS).double().mean()) > 0.8


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (Ridge(), "has no predict_proba"),
        ("boosting", "has no fit and no predict_proba"),
        (LogisticRegression, "it is a class"),
        ([], "is empty"),
        ([LogisticRegression(), 3], "has no fit"),
        (LogisticRegression(C=-1.0), "cannot be fitted to 200 rows and made-up classes 0 … 1, so nothing was spent"),
        (Narrow(), "predicts no probabilities of 2 classes"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_a_learner_that_cannot_learn_is_refused_before_anything_is_spent(wrong, match):
    vault = LabelVault(LABELS, 2)
    with pytest.raises(ValueError, match=match):
        learner.train(X, vault, epsilon=1.0, learner=wrong)
    assert untouched(vault)


def test_features_that_are_not_finite_are_refused_before_anything_is_spent():
    vault, holes = LabelVault(LABELS, 2), X.clone()
    holes[3, 1] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        learner.train(holes, vault, epsilon=1.0)
    assert untouched(vault)


def test_only_the_columns_asked_for_are_seen_and_numbers_have_variance_one():
    mixed = torch.cat([5 * X[:, :1] + 3, (X[:, 1:2] > 0).float(), torch.ones(800, 1), X[:, 2:]], dim=1)
    found = learner.train(mixed, LabelVault(LABELS, 2), epsilon=1.0, learner=Plain(), columns=[0, 1, 2])
    assert found.columns.tolist() == [0, 1, 2]
    assert found.scale.tolist() == pytest.approx([1 / float(mixed[:, 0].std(correction=0)), 1.0, 1.0])


def test_responses_are_kept_and_not_drawn_twice(tmp_path):
    first = learner.train(X, LabelVault(LABELS, 2), epsilon=1.0, learner=KNeighborsClassifier(1), folder=tmp_path)
    vault = LabelVault(LABELS, 2)
    again = learner.train(X, vault, epsilon=1.0, learner=KNeighborsClassifier(1), folder=tmp_path)
    assert torch.equal(first.probabilities(X), again.probabilities(X))
    assert vault.certificate(0.0).epsilon == 1.0
    with pytest.raises(ValueError, match="another query"):
        learner.train(X, LabelVault(LABELS, 2), epsilon=2.0, folder=tmp_path)
