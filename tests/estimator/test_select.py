"""`select`: the better candidate wins, everything is on one certificate, and a store is charged for all of it."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from torch import nn

from labeldp import LabelVault
from labeldp.budgets.store import BudgetStore
from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.select import select
from labeldp.estimator.spending import RepeatedFitWarning
from tests.estimator.helpers import CLASSES, columns, numbers


def candidates(*epsilons, **settings):
    return [LabelDPClassifier(epsilon, 1e-6, "one_shot", **settings) for epsilon in epsilons]


def test_the_better_candidate_wins_and_all_of_it_is_certified():
    x, y = numbers(1500)
    found = select(candidates(0.001, 2.0), x, y, epsilon=1.0, classes=CLASSES, random_state=0)
    assert found.index == 1
    assert found.best is found.candidates[1]
    assert (found.best.predict(x) == y).mean() > 0.8
    fitted, held = sorted(found.certificate.groups, key=lambda group: -group.rows)
    assert (fitted.rows, held.rows) == (1200, 300)
    assert [(query.event, query.times) for query in held.queries] == [(PureDP(1.0), 1)]
    assert len(fitted.queries) == 2
    assert 1.9 < found.certificate.epsilon < 2.1
    assert found.certificate.delta == 2e-6
    assert verify(found.certificate) == ()


def test_the_choice_may_be_what_costs_most():
    x, y = numbers(300)
    found = select(candidates(0.01), x, y, epsilon=3.0, classes=CLASSES)
    assert found.certificate.epsilon == pytest.approx(3.0, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
def test_candidates_that_are_alike_are_chosen_by_chance():
    x, y = numbers(100)
    useless = candidates(1e-4, 1e-4)
    wins = {select(useless, x, y, epsilon=0.01, classes=CLASSES).index for _ in range(15)}
    # Two sides of a coin, nearly: all alike with chance 2^-14.
    assert wins == {0, 1}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_tables_are_split(make):
    data, y = columns(300)
    found = select(candidates(4.0), make(data), y, epsilon=1.0, classes=CLASSES)
    assert found.best.feature_names_in_.tolist() == list(data)


def test_a_store_pays_for_fits_and_choice(tmp_path):
    x, y = numbers(300)
    store = BudgetStore.open(tmp_path / "budgets.db")
    store.create("visits", LabelVault((y == "yes").astype(int), 2), Budget(1.5, 1e-5))
    found = select(candidates(0.5, 0.5), x, y, epsilon=1.0, classes=CLASSES, store=store, note="two of them")
    entries = store.history("visits")
    assert [entry.rows for entry in entries] == [240, 240, 60]
    assert {entry.note for entry in entries} == {"two of them"}
    assert store.epsilon("visits") == pytest.approx(found.certificate.epsilon, rel=0.1)
    with pytest.raises(BudgetExceededError):
        select(candidates(1.0, 1.0), x, y, epsilon=1.0, classes=CLASSES, store=store)
    assert store.epsilon("visits") <= 1.5


def test_without_a_store_a_second_search_warns():
    x, y = numbers(200)
    select(candidates(1.0), x, y, epsilon=1.0, classes=CLASSES)
    with pytest.warns(RepeatedFitWarning):
        select(candidates(1.0), x, y, epsilon=1.0, classes=CLASSES)


def test_bad_settings_are_refused():
    x, y = numbers(100)
    with pytest.raises(ValueError, match="at least one"):
        select([], x, y, epsilon=1.0)
    with pytest.raises(ValueError, match="at least one"):
        select(["model"], x, y, epsilon=1.0)
    with pytest.raises(ValueError, match="held_out=1"):
        select(candidates(1.0), x, y, epsilon=1.0, classes=CLASSES, held_out=1)
    with pytest.raises(ValueError, match="epsilon"):
        select(candidates(1.0), x, y, epsilon=-1.0, classes=CLASSES)


@pytest.mark.parametrize(
    "wrong", [{"settings": {"lr": 0.1}}, {"model": nn.Linear(1, 2), "method": "rr"}, {"method": "x"}]
)
def test_a_mistake_in_the_last_candidate_costs_nothing(wrong):
    x, y = numbers(100)
    vault = LabelVault((y == "yes").astype(int), 2)
    with pytest.raises(ValueError):
        select([*candidates(1.0), candidates(1.0)[0].set_params(**wrong)], x, vault, epsilon=1.0, classes=CLASSES)
    assert vault.certificate().epsilon == 0.0


def test_nothing_is_asked_when_the_choice_is_refused():
    x, y = numbers(100)
    reports = []
    with pytest.raises(ValueError, match="epsilon"):
        select(candidates(1.0, report=reports.append), x, y, epsilon=np.nan, classes=CLASSES)
    assert reports == []
