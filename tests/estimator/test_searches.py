"""A search that compares candidates with the true labels is refused before anything is spent; `select` is the way.

What a search chooses, and the scores it reports, come from labels that nobody paid for: the winner's certificate would
be false.
"""

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from labeldp import LabelVault
from labeldp.core.certificate import verify
from labeldp.data import OpenLabels
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.estimator.spending import UnpaidSearchError
from tests.estimator.helpers import numbers

X, TEXT = numbers(90)
Y = (TEXT == "yes").astype(int)
SELECT = r"labeldp\.estimator\.select"
GRID = {"epsilon": [0.5, 2.0]}
pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.FitFailedWarning", "ignore:Scoring failed:UserWarning"
)


def classifier(**settings):
    return LabelDPClassifier(1.0, 1e-6, "one_shot", classes=[0, 1], **settings)


class Own(ClassifierMixin, BaseEstimator):
    """Somebody's wrapper, which seals by itself."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        self.model_ = classifier().fit(X, LabelVault(y, 2))
        return self

    def predict(self, X):
        return self.model_.predict(X)


SEARCHES = {
    "grid": lambda model, **how: GridSearchCV(model, GRID, cv=2, **how).fit(X, Y),
    "random": lambda model, **how: RandomizedSearchCV(model, GRID, n_iter=1, cv=2, **how).fit(X, Y),
    "scores": lambda model, **how: cross_val_score(model, X, Y, cv=2, **how),
    "several scores": lambda model, **how: cross_validate(model, X, Y, cv=2, scoring=["accuracy", "roc_auc"], **how),
    "learning curve": lambda model, **how: learning_curve(model, X, Y, cv=2, train_sizes=[0.5], **how),
    "validation curve": lambda model, **how: validation_curve(
        model, X, Y, param_name="epsilon", param_range=[0.5], cv=2, **how
    ),
}
# `error_score="raise"`: scikit-learn would otherwise count a refusal as NaN, and raise when all of them are.
RAISING = {"error_score": "raise"}


@pytest.mark.parametrize("scoring", [None, "accuracy", "neg_log_loss"])
@pytest.mark.parametrize("search", ["grid", "random", "scores", "learning curve", "validation curve"])
def test_searches_are_refused_whatever_they_score_by(search, scoring, spent):
    with pytest.raises(UnpaidSearchError, match=SELECT):
        SEARCHES[search](classifier(), scoring=scoring, **RAISING)
    assert spent() == 0


@pytest.mark.parametrize("search", ["grid", "scores", "several scores"])
def test_failures_that_count_as_nan_end_in_the_same_words(search):
    with pytest.raises(ValueError, match=SELECT):
        SEARCHES[search](classifier())


@pytest.mark.slow
def test_a_search_in_other_processes_is_refused():
    with pytest.raises(UnpaidSearchError, match=SELECT):
        SEARCHES["scores"](classifier(), scoring="accuracy", n_jobs=2, **RAISING)


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(StandardScaler(), classifier()),
        Own(),
        clone(classifier()),
        pickle.loads(pickle.dumps(classifier())),
    ],
    ids=["pipeline", "wrapper", "clone", "pickle"],
)
def test_wrapped_estimators_are_refused_too(model):
    with pytest.raises(UnpaidSearchError):
        cross_val_score(model, X, Y, cv=2, scoring="accuracy", **RAISING)


@pytest.mark.parametrize(
    "run",
    [
        lambda: cross_val_predict(classifier(), X, Y, cv=2),
        lambda: CalibratedClassifierCV(classifier(), cv=2).fit(X, Y),
        lambda: StackingClassifier([("one", classifier())], cv=2).fit(X, Y),
        lambda: BaggingClassifier(classifier(), n_estimators=2).fit(X, Y),
    ],
    ids=["predictions", "calibration", "stacking", "bagging"],
)
def test_what_uses_the_labels_beside_the_fit_is_refused(run, spent):
    """Bagging draws rows with repeats: a label that is in a sample three times would pay three times, unseen."""
    with pytest.raises(UnpaidSearchError):
        run()
    assert spent() == 0


def test_numbers_are_refused_alike():
    model = LabelDPRegressor(1.0, (-4, 4), 1e-6, "one_shot")
    with pytest.raises(UnpaidSearchError):
        cross_val_score(model, X, X[:, 0], cv=2, scoring="r2", **RAISING)


@pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
def test_a_plain_fit_a_clone_and_a_pipeline_are_not_searches():
    assert verify(clone(classifier()).fit(X, Y).certificate_) == ()
    assert len(make_pipeline(StandardScaler(), classifier()).fit(X, Y).predict(X)) == 90


# -- score ------------------------------------------------------------------------------------------------------------


def test_a_score_takes_labels_that_are_declared_open():
    model = classifier().fit(X, Y)
    other, words = numbers(300, seed=5)
    labels = (words == "yes").astype(int)
    share = model.score(other, OpenLabels(labels))
    assert share == pytest.approx((model.predict(other) == labels).mean())
    assert model.score(other, OpenLabels(labels), sample_weight=labels) <= 1
    with pytest.raises(TypeError, match=r"score\(X, OpenLabels\(y\)\)"):
        model.score(other, labels)


def test_a_score_on_the_labels_of_the_fit_is_refused():
    model = classifier().fit(X, Y)
    with pytest.raises(ValueError, match="the labels that were fitted to"):
        model.score(X, OpenLabels(Y))
    numbers_model = LabelDPRegressor(1.0, (-4, 4), 1e-6, "one_shot").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="the labels that were fitted to"):
        numbers_model.score(X, OpenLabels(X[:, 0]))
    with pytest.raises(TypeError, match="OpenLabels"):
        numbers_model.score(X, X[:, 1])
    assert np.isfinite(numbers_model.score(X, OpenLabels(X[:, 1])))


@pytest.fixture
def spent(monkeypatch):
    """How many queries were charged in this process."""
    charged = []
    before = LabelVault._charge

    def counting(self, *args, **settings):
        charged.append(args)
        return before(self, *args, **settings)

    monkeypatch.setattr(LabelVault, "_charge", counting)
    return lambda: len(charged)
