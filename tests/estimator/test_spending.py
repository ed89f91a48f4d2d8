"""No fit spends in silence: warnings without a store, refusals with one."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from labeldp import LabelVault
from labeldp.budgets.store import BudgetStore, UnknownDataSetError
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.spending import RepeatedFitWarning
from tests.estimator.helpers import CLASSES, numbers

X, Y = numbers(240)
CODES = (Y == "yes").astype(int)


def classifier(**settings):
    return LabelDPClassifier(**{"epsilon": 1.0, "delta": 1e-6, "method": "one_shot", "classes": CLASSES, **settings})


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [one.category for one in caught]


def test_one_fit_is_silent_and_the_second_of_the_same_labels_warns_once():
    assert warned(lambda: classifier().fit(X, Y)) == []
    with pytest.warns(RepeatedFitWarning) as caught:
        classifier().fit(X, Y)
    assert caught[0].filename == __file__
    assert warned(lambda: classifier().fit(X, Y)) == []


def test_a_fit_hashes_its_labels_once(monkeypatch):
    asked, real = [], LabelVault.fingerprint
    monkeypatch.setattr(LabelVault, "fingerprint", lambda self, key: asked.append(key) or real(self, key))
    classifier().fit(X, Y)
    assert len(asked) == 1


def test_other_labels_are_other_labels():
    classifier().fit(X, Y)
    assert warned(lambda: classifier().fit(X, Y[::-1])) == []


def test_parts_that_clones_fit_to_are_known_by_their_family():
    model = classifier()
    assert warned(lambda: model.fit(X[:120], Y[:120])) == []
    assert warned(lambda: clone(model).fit(X[120:], Y[120:])) == [RepeatedFitWarning]


def test_a_fit_that_is_refused_does_not_count():
    with pytest.raises(ValueError, match="which the estimator sets"):
        classifier(settings={"epsilon": 9.0}).fit(X, Y)
    assert warned(lambda: classifier().fit(X, Y)) == []


# -- with a store -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    opened = BudgetStore.open(tmp_path / "budgets.db")
    opened.create("visits", LabelVault(CODES, 2), Budget(2.5, 1e-5))
    return opened


def refused(model):
    try:
        model.fit(X, Y)
    except BudgetExceededError:
        return True
    return False


def test_every_fit_is_charged_and_refused_past_the_budget(store, tmp_path):
    model = classifier(store=str(tmp_path / "budgets.db"), delta=1e-6, note="first")
    fits = 0
    while fits < 20 and not refused(model):
        fits += 1
    assert 2 <= fits < 20
    assert len(store.history("visits")) == fits
    assert {entry.note for entry in store.history("visits")} == {"first"}
    assert store.epsilon("visits") <= 2.5


def test_with_a_store_nothing_is_warned_of(store):
    model = classifier(store=store, epsilon=0.5)
    assert warned(lambda: (model.fit(X, Y), model.fit(X, Y))) == []


def test_clones_keep_the_store(store, tmp_path):
    assert clone(classifier(store=store)).store is store
    assert clone(classifier(store=str(tmp_path / "budgets.db"))).store == str(tmp_path / "budgets.db")


def test_clones_on_parts_cannot_overspend(store):
    model, parts = classifier(store=store, dataset="visits"), range(10)
    with pytest.raises(BudgetExceededError):
        [clone(model).fit(X[part::10], Y[part::10]) for part in parts]
    assert store.epsilon("visits") <= 2.5
    assert len(store.history("visits")) < 10


def test_a_part_has_to_be_named(store):
    with pytest.raises(UnknownDataSetError, match="dataset="):
        classifier(store=store).fit(X[:100], Y[:100])
    classifier(store=store, dataset="visits").fit(X[:100], Y[:100])
    assert [entry.rows for entry in store.history("visits")] == [240]


def test_a_wrong_name_is_refused(store):
    store.create("others", LabelVault(CODES[::-1], 2), Budget(1.0))
    with pytest.raises(ValueError, match="knows these labels as 'visits'"):
        classifier(store=store, dataset="others").fit(X, Y)


def test_delta_is_at_most_the_stores(tmp_path):
    store = BudgetStore.open(tmp_path / "pure.db")
    store.create("pure", LabelVault(CODES, 2), Budget(2.0))
    model = classifier(store=store, delta=None, method="auto").fit(X, Y)
    assert model.certificate_.delta == 0.0
    assert store.epsilon("pure") == 1.0


def test_a_store_has_to_exist(tmp_path):
    with pytest.raises(ValueError):
        classifier(store=str(tmp_path / "nowhere.db")).fit(X, Y)


def test_an_open_store_does_not_travel_and_a_path_does(store, tmp_path):
    with pytest.raises(TypeError, match="give its path"):
        pickle.dumps(classifier(store=store))
    kept = pickle.loads(pickle.dumps(classifier(store=str(tmp_path / "budgets.db")).fit(X, Y)))
    assert np.array_equal(kept.predict(X), kept.predict(X))
