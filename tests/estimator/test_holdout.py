"""Measured for free: every row pays at most ε, for training or for the measurement, whatever keeps the books."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from labeldp import LabelVault
from labeldp.budgets.store import BudgetStore
from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.estimator import reading, spending
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.recipes import one_shot
from labeldp.recipes.holdout import released, rows_set_aside, score_query
from tests.estimator.helpers import CLASSES, columns, numbers

X, Y = numbers(1200)
CODES = (Y == "yes").astype(int)


def model(**settings):
    usual = {"epsilon": 1.0, "delta": 1e-6, "method": "one_shot", "classes": CLASSES, "random_state": 0}
    return LabelDPClassifier(**{**usual, **settings})


def test_every_row_pays_once_and_the_certificate_is_of_the_whole():
    vault = LabelVault(CODES, 2)
    fitted = model().fit(X, vault)
    assert fitted.evaluation_.rows == 120
    assert sorted(group.rows for group in vault.ledger.groups()) == [120, 1080]
    assert all(len(group.plans) == 1 for group in vault.ledger.groups())
    assert vault.ledger.epsilon(1e-6) <= 1.0
    assert fitted.certificate_.groups == vault.ledger.groups()
    assert fitted.certificate_.epsilon == vault.ledger.epsilon(1e-6)
    assert verify(fitted.certificate_) == ()


def test_the_claim_of_a_pure_method_is_exactly_epsilon():
    fitted = model(method="cluster_votes", delta=None).fit(X, Y)
    assert (fitted.certificate_.epsilon, fitted.certificate_.delta) == (1.0, 0.0)
    assert fitted.evaluation_ is not None


def test_it_is_what_open_labels_say():
    fitted = model(epsilon=4.0, holdout=0.5).fit(*numbers(8000))
    x, y = numbers(20_000, seed=3)
    found = fitted.evaluation_.measures["accuracy"]
    assert abs(found.value - (fitted.predict(x) == y).mean()) < 2 * found.margin
    assert found.margin < 0.02
    assert fitted.evaluation_.classes == ("no", "yes")


def test_a_row_that_is_measured_is_not_trained_on(monkeypatch):
    """Predictions of the others stay what they are when a label set aside changes; one that was trained on does not."""
    held = rows_set_aside(len(Y), None, int(np.random.RandomState(0).randint(2**31 - 1)))
    other = Y.copy()
    other[held] = np.where(other[held] == "yes", "no", "yes")
    monkeypatch.setattr("labeldp.core.random.system_key", lambda: bytes(32))
    first, second = (model().fit(X, y) for y in (Y, other))
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert first.evaluation_.measures["accuracy"].value > 0.8 > 0.4 > second.evaluation_.measures["accuracy"].value


def test_a_row_on_both_sides_is_refused_by_its_budget(monkeypatch):
    """The planted bug: training sees all rows. Those set aside would pay twice."""
    monkeypatch.setattr(np, "setdiff1d", lambda rows, _, **how: rows)
    with pytest.warns(UserWarning, match="not measured on rows set aside"):
        fitted = model().fit(X, Y)
    assert fitted.evaluation_ is None
    assert fitted.certificate_.epsilon <= 1.0


def test_training_rows_that_are_measured_are_refused_by_their_budget(monkeypatch):
    """The planted bug: the measurement asks about rows that were trained on."""

    def planted(self, inputs, vault, epsilon, folder):
        whole = vault._whole[0]
        rows = np.setdiff1d(np.arange(len(whole)), vault._whole[1])[: len(vault)]
        return released(whole.part(rows, whole.budget), score_query(self.predict_proba(X[rows]), epsilon), folder)

    monkeypatch.setattr(LabelDPClassifier, "_measured", planted)
    with pytest.warns(UserWarning, match="not measured on rows set aside"):
        assert model().fit(X, Y).evaluation_ is None


def test_none_below_a_thousand_rows_and_none_where_it_is_not_wanted():
    assert model().fit(X[:900], Y[:900]).evaluation_ is None
    unmeasured = model(holdout=0).fit(X, Y[::-1])
    assert unmeasured.evaluation_ is None
    assert [group.rows for group in unmeasured.certificate_.groups] == [1200]
    assert model(holdout=50).fit(X[:500], Y[:500][::-1]).evaluation_.rows == 50


@pytest.mark.parametrize("holdout", [1.5, -1, 1200, "half", True, 1199, 2, 0.005])
def test_what_is_no_part_is_refused_before_anything_is_spent(holdout):
    vault = LabelVault(CODES, 2)
    with pytest.raises(ValueError, match="holdout="):
        model(holdout=holdout).fit(X, vault)
    assert vault.ledger.epsilon(0) == 0


def test_numbers_are_measured_too():
    x = np.random.default_rng(0).normal(size=(6000, 3))
    fitted = LabelDPRegressor(2.0, (-4, 4), 1e-6, random_state=0).fit(x, np.clip(x[:, 0], -4, 4))
    assert fitted.evaluation_.rows == 600
    assert set(fitted.evaluation_.measures) == {"mean_absolute_error", "root_mean_squared_error", "r2", "at_bounds"}
    fresh = np.random.default_rng(1).normal(size=(6000, 3))
    error, found = (
        np.abs(fitted.predict(fresh) - fresh[:, 0]).mean(),
        fitted.evaluation_.measures["mean_absolute_error"],
    )
    assert abs(found.value - error) < 2 * found.margin
    assert fitted.certificate_.epsilon <= 2.0


def test_images_are_measured_too():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    x = rng.normal(size=(600, 1, 8, 8)) + 2 * y[:, None, None, None]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    fitted = LabelDPClassifier(
        4.0, method="rr", classes=[0, 1], model=net, holdout=0.25, settings={"epochs": 2}, random_state=0
    ).fit(x, y)
    assert fitted.evaluation_.rows == 150
    assert fitted.evaluation_.measures["accuracy"].value > 0.7


def test_tables_that_come_in_parts_are_measured_too(monkeypatch):
    monkeypatch.setattr(reading, "_FEW_ROWS", 1000)
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 700)
    monkeypatch.setattr(reading, "MOST_CELLS", 100_000)
    monkeypatch.setattr(one_shot, "HELD_CELLS", 100_000)
    data, y = columns(4000)
    reports = []
    fitted = model(epsilon=3.0, report=reports.append).fit(pa.table(data), y)
    assert any("made as they are needed" in one.detail for one in reports)
    assert any(one.phase == "evaluation" for one in reports)
    assert fitted.evaluation_.rows == 400
    assert fitted.evaluation_.measures["accuracy"].value > 0.8


def test_users_are_not_split():
    users = np.arange(1200) % 400
    fitted = model(method="rr", settings={"epochs": 1}).fit(X, Y, users=users)
    assert fitted.evaluation_ is None
    with pytest.raises(ValueError, match="users pay for all of their rows together"):
        model(method="rr", holdout=0.1).fit(X, Y, users=users)


# -- with a store ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    opened = BudgetStore.open(tmp_path / "budgets.db")
    opened.create("visits", LabelVault(CODES, 2), Budget(1.0, 1e-6))
    return opened


def test_a_store_charges_no_row_twice(store):
    """The budget of the store is exactly that of the fit: anything more would be refused."""
    fitted = model(store=store).fit(X, Y)
    assert fitted.evaluation_.rows == 120
    assert [entry.rows for entry in store.history("visits")] == [1080, 120]
    assert store.epsilon("visits") <= 1.0


def test_rows_with_ids_pay_each_for_themselves(tmp_path):
    opened = BudgetStore.open(tmp_path / "ids.db")
    ids = [f"row {number}" for number in range(1200)]
    opened.create("visits", LabelVault(CODES, 2), Budget(1.0, 1e-6), ids=ids)
    assert model(store=opened.with_ids(ids)).fit(X, Y).evaluation_.rows == 120
    assert opened.epsilon("visits") <= 1.0
    twice = BudgetStore.open(tmp_path / "twice.db")
    twice.create("visits", LabelVault(CODES, 2), Budget(9.0, 1e-6), ids=[name[:-1] for name in ids])
    again = model(store=twice.with_ids([name[:-1] for name in ids]), epsilon=0.2)
    assert again.fit(X, Y).evaluation_ is None


def test_a_part_of_a_data_set_would_pay_twice_and_is_not_split(store):
    fold = model(store=store, dataset="visits").fit(X[:1100], Y[:1100])
    assert fold.evaluation_ is None
    assert store.epsilon("visits") <= 1.0
    with pytest.raises(ValueError, match="the store charges several rows together"):
        model(store=store, dataset="visits", holdout=100).fit(X[:1100], Y[:1100])


def test_a_vault_whose_own_store_charges_rows_together_is_not_split(store):
    fold = LabelVault(CODES[:1100], 2).part(store=store.part_of("visits"))
    assert model().fit(X[:1100], fold).evaluation_ is None
    assert store.epsilon("visits") <= 1.0
    with pytest.raises(ValueError, match="the store charges several rows together"):
        model(holdout=0.1).fit(X[:1100], fold)


def test_what_the_store_refuses_is_not_measured_and_the_model_stays(store, monkeypatch):
    account = store.account(LabelVault(CODES, 2))
    held = rows_set_aside(1200, None, int(np.random.RandomState(0).randint(2**31 - 1)))
    account.charge(PureDP(0.5), rows=held)
    with pytest.warns(UserWarning, match="the model was trained, but not measured"):
        fitted = model(store=store).fit(X, Y)
    assert fitted.evaluation_ is None
    assert (fitted.predict(X) == Y).mean() > 0.8
    assert store.epsilon("visits") <= 1.0


def test_a_run_that_goes_on_draws_nothing_twice(store, tmp_path):
    """Killed after the measurement: the next run in the folder reads it, and the store is not charged again."""
    first, second = (model(store=store, settings={"folder": tmp_path / "run"}).fit(X, Y) for _ in range(2))
    assert first.evaluation_.to_json() == second.evaluation_.to_json()
    assert len(store.history("visits")) == 2
    assert second.certificate_.groups == first.certificate_.groups


def test_a_run_that_stops_before_it_measures_pays_for_that_once(store, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LabelDPClassifier, "_measured", stopped)
        with pytest.raises(KeyboardInterrupt):
            model(store=store, settings={"folder": tmp_path / "run"}).fit(X, Y)
    assert model(store=store, settings={"folder": tmp_path / "run"}).fit(X, Y).evaluation_ is not None
    assert [entry.rows for entry in store.history("visits")] == [1080, 120]


def test_a_vault_that_cannot_pay_is_refused_before_training():
    vault = LabelVault(CODES, 2, Budget(0.5, 1e-6))
    with pytest.raises(BudgetExceededError):
        model().fit(X, vault)


# -- a folder knows which rows were set aside --------------------------------------------------------------------------


def stopped_before_it_measures(estimator, features, labels, monkeypatch):
    """Fit, and stop where rows set aside would be measured."""

    def stops(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(estimator), "_evaluate", stops)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(features, labels)


@pytest.mark.parametrize("change", ["random_state", "order"])
def test_rows_that_responded_are_never_set_aside_later(tmp_path, monkeypatch, change):
    """The responses in the folder are of other rows: those set aside now would pay twice, and the certificate not."""
    features, labels = numbers(1200)[0], np.arange(1200) % 2
    first = LabelDPClassifier(1.0, method="rr+learner", classes=[0, 1], settings={"folder": tmp_path}, random_state=1)
    stopped_before_it_measures(first, features, labels, monkeypatch)
    if change == "order":
        again, order = first, np.arange(1200)[::-1]
    else:
        again, order = LabelDPClassifier(**{**first.get_params(), "random_state": 2}), np.arange(1200)
    vault = LabelVault(labels[order], 2)
    with pytest.raises(ValueError, match="set other rows aside"):
        again.fit(features[order], vault)
    assert vault.certificate().epsilon == 0.0


def test_a_fit_without_random_state_goes_on_with_the_rows_it_had_set_aside(tmp_path, monkeypatch):
    features, labels = numbers(1200)[0], np.arange(1200) % 2
    made = [
        LabelDPClassifier(1.0, method="rr+learner", classes=[0, 1], settings={"folder": tmp_path}) for _ in range(2)
    ]
    stopped_before_it_measures(made[0], features, LabelVault(labels, 2), monkeypatch)
    spending.MEMORY.forget()
    before = (tmp_path / "responses.npz").read_bytes()
    made[1].fit(features, labels)
    assert (tmp_path / "responses.npz").read_bytes() == before
    assert made[1].evaluation_ is not None
    assert made[1].certificate_.epsilon == 1.0


def test_a_folder_in_which_nothing_was_paid_for_binds_nobody(tmp_path):
    features, labels = numbers(1200)[0], np.arange(1200) % 2
    settings = {"method": "rr+learner", "classes": [0, 1]}
    with pytest.raises(ValueError, match="epoch"):
        LabelDPClassifier(1.0, **settings, settings={"folder": tmp_path, "epoch": 1}, random_state=1).fit(
            features, labels
        )
    LabelDPClassifier(1.0, **settings, settings={"folder": tmp_path}, random_state=2).fit(features, labels)
