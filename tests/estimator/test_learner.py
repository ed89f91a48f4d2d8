"""Learners behind the estimator: which features they see, when they are refused, and which can be kept in a folder."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.serialise import PartsError
from labeldp.learning import learners
from labeldp.recipes.catalogue import RECIPES
from tests.estimator.helpers import CLASSES, columns, numbers
from tests.estimator.test_serialise import travelled

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
METHOD = next(recipe.key for recipe in RECIPES if recipe.learner == "any")


class Watching(LogisticRegression):
    """Keeps the rows that it was fitted to."""

    def fit(self, rows, responses, sample_weight=None):
        self.rows_ = rows
        return super().fit(rows, responses, sample_weight)


def test_a_learner_sees_numbers_and_categories_and_no_bins():
    data, y = columns()
    frame = pd.DataFrame(data)
    frame.loc[::7, "other"] = np.nan
    model = LabelDPClassifier(4.0, classes=CLASSES, learner=Watching()).fit(frame, y)
    assert model.method_ == METHOD
    assert model.choice_ is None
    assert model.certificate_.epsilon == 4.0
    assert model.certificate_.delta == 0.0
    assert (model.predict(frame) == y).mean() > 0.8
    seen = model._predictor.found.learnt.fitted.rows_
    # Two numbers, whether one is missing, a category of three values, and a flag, as a number or as two values.
    assert seen.shape[1] in (7, 8)
    marks = np.isin(seen, (0.0, 1.0)).all(axis=0)
    np.testing.assert_allclose(seen[:, ~marks].std(axis=0), 1.0, atol=1e-4)


def test_a_clone_has_the_learner_and_searches_reach_its_settings():
    model = LabelDPClassifier(1.0, classes=CLASSES, learner=KNeighborsClassifier(3))
    twin = clone(model).set_params(learner__n_neighbors=7)
    assert twin.learner.n_neighbors == 7
    assert model.learner.n_neighbors == 3


@pytest.mark.parametrize("family", ["linear", "kernel", "trees"])
def test_a_learner_that_is_built_in_can_be_kept(family, monkeypatch):
    real = learners.choose

    def only(task, seed):
        return (candidate for candidate in real(task, seed) if family in candidate.name)

    monkeypatch.setattr("labeldp.recipes.learner.choose", only)
    monkeypatch.setattr(learners, "_COSINES", 100)
    monkeypatch.setattr(learners, "_ROUNDS", 1)
    x, y = numbers(300)
    model = LabelDPClassifier(6.0, method=METHOD, classes=CLASSES, random_state=0).fit(x, y)
    again = travelled(model, certificate=model.certificate_)
    assert family in model.to_parts()[0]["predictor"]["name"]
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), rtol=0, atol=1e-5)
    assert again.method_ == METHOD


def test_a_learner_of_the_users_cannot_be_kept():
    x, y = numbers(200)
    model = LabelDPClassifier(2.0, classes=CLASSES, learner=LogisticRegression()).fit(x, y)
    with pytest.raises(PartsError, match=r"LogisticRegression.*only a pickle could keep"):
        model.to_parts()


def test_what_does_not_go_together_is_refused():
    x, y = numbers(200)
    with pytest.raises(ValueError, match="method='rr' cannot teach a learner"):
        LabelDPClassifier(1.0, method="rr", classes=CLASSES, learner=LogisticRegression()).fit(x, y)
    with pytest.raises(ValueError, match="trains no network, but model is given"):
        LabelDPClassifier(1.0, classes=CLASSES, learner=LogisticRegression(), model=nn.Linear(4, 2)).fit(x, y)
    with pytest.raises(ValueError, match="has no fit and no predict_proba"):
        LabelDPClassifier(1.0, classes=CLASSES, learner=object()).fit(x, y)
    with pytest.raises(ValueError, match=r"settings has \['epochs'\]"):
        LabelDPClassifier(1.0, method=METHOD, classes=CLASSES, settings={"epochs": 3}).fit(x, y)
