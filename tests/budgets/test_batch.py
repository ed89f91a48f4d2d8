"""Charges of many in one transaction: the same lines, seals and budgets as one at a time, and a book for each."""

import contextlib
import random

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="budgets in a database need SQLAlchemy")

from labeldp.budgets.batch import Batch, Book, State
from labeldp.budgets.ids import Charge
from labeldp.budgets.keys import StoreError
from labeldp.budgets.store import BudgetStore
from labeldp.budgets.tables import open_database
from labeldp.core.events import Gaussian, GridGaussian, PureDP
from labeldp.core.ledger import ONE_LABEL, Budget, BudgetExceededError, Ledger, worst_epsilon
from labeldp.core.vault import LabelVault

ROWS = 8
PLENTY = Budget(100.0, 1e-6)


@pytest.fixture
def opened(tmp_path):
    store = BudgetStore.open(tmp_path / "budgets.db")
    store.create("visits", LabelVault([0, 1] * 4, 2), Budget(2.0, 1e-6))
    return store, open_database(tmp_path / "budgets.db", None, False)


def charged(database, plans, known=None, own=PLENTY):
    with database.writing() as connection:
        batch = Batch(database, connection, "visits", known)
        numbers = [
            batch.charge(plan, who=who, query_id=f"{who} {place}", note="", own=own)
            for place, (who, plan) in enumerate(plans)
        ]
        batch.write()
    return numbers, batch.state


def test_a_batch_is_read_like_charges_one_by_one(opened):
    store, database = opened
    half = np.arange(4)
    plans = [("ann", [Charge(PureDP(0.5))]), ("bob", [Charge(PureDP(0.25), 1, half), Charge(GridGaussian(50.0, 1.4))])]
    numbers, state = charged(database, plans)
    assert numbers == [[1], [2, 3]]
    assert [entry.who for entry in store.history("visits")] == ["ann", "bob", "bob"]
    assert store.ledger("visits").groups() == state.total.ledger.groups()
    assert state.own["ann"].ledger.epsilon(0.0) == 0.5
    # Others go on with the same store, and a batch sees what they have charged.
    store.reserve("visits", [[Charge(PureDP(0.1))]], note="in process")
    _, later = charged(database, [("ann", [Charge(PureDP(0.125))])], known=state)
    assert later.count == 5
    assert later.own["ann"].ledger.epsilon(0.0) == 0.625
    assert len(later.own) == 3
    _, anew = charged(database, [])
    assert anew.total.ledger.groups() == later.total.ledger.groups()
    assert (anew.count, anew.head) == (later.count, later.head)


def test_each_and_all_together_have_a_budget(opened):
    _, database = opened
    _, state = charged(database, [("ann", [Charge(PureDP(1.5))])])
    with pytest.raises(BudgetExceededError, match="epsilon=1, delta=1e-06"):
        charged(database, [("bob", [Charge(PureDP(1.25))])], state, own=Budget(1.0, 1e-6))
    with pytest.raises(BudgetExceededError, match="for all who spend on it together"):
        charged(database, [("bob", [Charge(PureDP(0.75))])], state)
    charged(database, [("bob", [Charge(PureDP(0.5))])], state)


def test_a_batch_that_is_rolled_back_leaves_nothing(opened):
    store, database = opened
    with contextlib.suppress(RuntimeError), database.writing() as connection:
        batch = Batch(database, connection, "visits")
        batch.charge([Charge(PureDP(0.5))], who="ann", query_id="q", note="", own=PLENTY)
        batch.write()
        raise RuntimeError
    assert store.history("visits") == ()


def test_damage_and_others_plans_are_found_out(opened):
    import sqlite3

    _, database = opened
    charged(database, [("ann", [Charge(PureDP(0.5))])])
    with database.writing() as connection:
        batch = Batch(database, connection, "visits")
        assert [number for number, _ in batch.plan_of("ann 0", "ann")] == [1]
        with pytest.raises(StoreError, match="not yours"):
            batch.plan_of("ann 0", "bob")
        assert batch.plan_of("other", "bob") == []
    raw = sqlite3.connect(database.engine.url.database)
    with raw:
        raw.execute("UPDATE labeldp_charges SET who = 'bob'")
    raw.close()
    with pytest.raises(StoreError, match="changed or damaged"):
        charged(database, [])
    with pytest.raises(StoreError, match="no data set"), database.writing() as connection:
        Batch(database, connection, "nowhere")


def test_the_plain_sum_is_never_less_than_what_a_row_costs():
    """It decides alone where it is within the budget, so it must bound the ledger's figure from above, at every δ."""
    choose = random.Random(0)
    for _ in range(200):
        book = Book(Ledger(ROWS))
        for _ in range(choose.randrange(1, 6)):
            rows = None if choose.random() < 0.3 else np.array(choose.sample(range(ROWS), choose.randrange(1, ROWS)))
            plan = [Charge(PureDP(choose.choice([0.1, 0.3, 1 / 3, 2.0])), choose.randrange(1, 3), rows)]
            after = book.charged(plan)
            for delta in (0.0, 1e-6):
                cost = worst_epsilon(after.ledger.groups(), delta)
                assert Budget(float(after.at_most), delta).allows(cost)
                budget = Budget(choose.uniform(0.1, 3.0), delta)
                for check in (after.check, lambda *given, book=book, plan=plan: book.check_with(plan, *given)):
                    if budget.allows(cost):
                        check(budget, ONE_LABEL)
                    else:
                        with pytest.raises(BudgetExceededError):
                            check(budget, ONE_LABEL)
            book = after


@pytest.mark.parametrize("event", [Gaussian(3.0, 1.0), PureDP(float("inf"))])
def test_what_has_no_sum_is_composed(event):
    book = Book(Ledger(ROWS)).charged([Charge(event)])
    assert book.at_most is None
    with pytest.raises(BudgetExceededError):
        book.check(Budget(1e-3, 1e-9), ONE_LABEL)
    assert State.empty(ROWS).charged([Charge(event)], "ann", 1, "x").own["ann"].at_most is None


def test_plans_of_everybody_stay_plans():
    """What was chosen after earlier answers is composed by a filter: one plan of all of them would cost less."""
    book, gauss = Book(Ledger(3)), Charge(GridGaussian(5.0, 2**0.5))
    for _ in range(3):
        book = book.charged([gauss])
    (group,) = book.ledger.groups()
    assert len(group.plans) == 3
    at_once = Book(Ledger(3)).charged([gauss] * 3).ledger
    assert worst_epsilon(book.ledger.groups(), 1e-6) > worst_epsilon(at_once.groups(), 1e-6)
