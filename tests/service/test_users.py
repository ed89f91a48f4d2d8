"""All labels of a user protected together behind a service: who pays, what is told, what is refused."""

import json
import re
import sqlite3

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import ONE_USER, Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import UserVault
from labeldp.service import log, logbook, wire
from labeldp.service.logbook import problems_of_store
from labeldp.service.owner import page
from labeldp.service.wire import WireError
from tests.service.asking import ask, bound, header
from tests.service.hostile import CLASSES, KINDS, ROWS, WRONG, Fuzzer, changed, mechanisms, places
from tests.service.servicehelp import NAME, names, service

# Of one to five rows; the first rows are not those of the first user.
OWNERS = np.repeat(np.arange(20), [1, 2, 3, 4, 5] * 4)[::-1]
VALUES = np.random.default_rng(4).integers(0, CLASSES, ROWS)
ORDER = np.random.default_rng(6).permutation(ROWS)


def sealed(order=None):
    place = np.arange(ROWS) if order is None else order
    whose = [f"person {owner}" for owner in OWNERS[place]]
    return UserVault(VALUES[place], whose, CLASSES, rng=SecureRandom(seed=3))


@pytest.fixture
def found():
    with service(sealed()) as served:
        yield served


def charged(found):
    assert problems_of_store(found.database, logbook.read(found.database)) == ()
    return BudgetStore.open(found.place, create=False).ledger(NAME)


def test_whose_rows_are_is_told_in_the_order_of_who_asks(found):
    remote, here = found.remote([names(ROWS)[row] for row in ORDER]), sealed(ORDER)
    assert isinstance(remote, UserVault)
    assert remote.unit == ONE_USER
    np.testing.assert_array_equal(remote.users.owner, here.users.owner)
    some = found.remote([names(ROWS)[row] for row in ORDER[:25]])
    assert some.users.same_as(here.users.take(np.arange(25)))


@pytest.mark.parametrize("more", [{}, {"cap": 7}, {"delta": 1e-4}], ids=str)
@pytest.mark.parametrize("rows", [None, ORDER[:30]], ids=["all", "some"])
def test_responses_of_users_are_those_of_in_process_and_are_charged_to_them(found, more, rows):
    remote, here = found.remote(), sealed()
    answers = [
        vault.release(UserResponse(1.0, CLASSES, vault.users.take(rows), **more), rows) for vault in (remote, here)
    ]
    np.testing.assert_array_equal(*(answer.responses for answer in answers))
    np.testing.assert_array_equal(*(answer.channel.epsilons for answer in answers))
    delta = more.get("delta", 0.0)
    service_claim = remote.service_certificate(delta)
    assert service_claim.unit == remote.certificate(delta).unit == ONE_USER
    assert service_claim.epsilon == remote.certificate(delta).epsilon == here.certificate(delta).epsilon
    # Per user, in the owner's numbers: those that were not asked have paid nothing.
    assert charged(found).num_rows == len(here.users)
    assert sorted(map(repr, charged(found).groups())) == sorted(map(repr, here.ledger.groups()))


def test_queries_made_for_one_label_cost_a_user_as_many_as_it_has_rows(found):
    remote = found.remote()
    remote.release(RandomizedResponse(0.5, CLASSES))
    # Five rows of one user, and not the sum over users with one, two, … rows.
    assert remote.service_certificate(0.0).epsilon == remote.certificate(0.0).epsilon == 2.5
    assert charged(found).epsilon(0.0) == 2.5
    remote.release(GroupCounts(np.arange(ROWS) % 4, 4, CLASSES, LaplaceNoise(0.25)))
    assert remote.service_certificate(0.0).epsilon == remote.certificate(0.0).epsilon == 3.75
    (_, entry), (_, other) = [(line.number, json.loads(line.entry)) for line in logbook.read(found.database)]
    assert entry["rows"] == other["rows"] == ROWS
    assert sorted((event["epsilon"], times, users) for event, times, users in entry["queries"]) == [
        (0.5 * rows, 1, 4) for rows in range(1, 6)
    ]


def test_what_has_no_stated_cost_for_users_is_refused_unpaid(found):
    remote, features = found.remote(), np.ones((ROWS, 2))
    counts = GroupCounts(np.arange(ROWS) % 4, 4, CLASSES, GaussianNoise(5.0))
    with pytest.raises(ValueError, match="no stated cost"):
        remote.release(counts)
    told, columns = header(remote._account.rows, counts)
    with pytest.raises(WireError, match="no stated cost"):
        ask(found.connection(), told, columns)
    with pytest.raises(ValueError, match=r"Moments\(users=\.\.\.\) cannot be asked"):
        remote.release(Moments(features, CLASSES, LaplaceNoise(1.0), 2.0, users=remote.users))
    with pytest.raises(ValueError, match="pay one by one"):
        remote.plan([])
    assert remote.spent() == 0
    assert charged(found).epsilon(0.0) == 0


@pytest.mark.parametrize("more", [{"plan_id": "p"}, {"plan_id": "p", "plan": []}, {"plan": []}], ids=str)
def test_a_plan_of_users_is_refused(found, more):
    connection = found.connection()
    told, _ = header(bound(connection, ROWS), RandomizedResponse(0.1, CLASSES), **more)
    with pytest.raises(WireError, match="send no plan"):
        ask(connection, told)
    assert charged(found).epsilon(0.0) == 0


def test_responses_of_users_are_refused_where_labels_are_protected_one_by_one():
    ask_users = UserResponse(1.0, CLASSES, sealed().users)
    with service(LabelVault(VALUES, CLASSES)) as found:
        connection = found.connection()
        with pytest.raises(WireError, match="one by one"):
            ask(connection, header(bound(connection, ROWS), ask_users)[0])
        told = {"do": "users", "dataset": NAME, "rows": bound(connection, ROWS)}
        with pytest.raises(WireError, match="knows no users"):
            connection.exchange(told, wire.arrow_schema({}), list)


def test_responses_that_take_long_to_compose_are_refused_at_once(found):
    connection = found.connection()
    told, _ = header(bound(connection, ROWS), UserResponse(1.0, CLASSES, sealed().users, delta=1e-5))
    for cap in (1025, 1 << 31):
        with pytest.raises(WireError, match="ask about fewer"):
            ask(connection, told | {"settings": told["settings"] | {"cap": cap}})
    assert charged(found).epsilon(0.0) == 0


def test_budgets_are_of_users():
    half = OWNERS < 10
    with service(sealed(), total=Budget(1.0), grant=Budget(1.0)) as found:
        found.access.add("bob", "analyst")
        found.access.grant(NAME, "bob", Budget(1.0))
        mine = found.remote(np.array(names(ROWS))[half].tolist())
        bobs = found.remote(np.array(names(ROWS))[~half].tolist(), token=found.access.issue("bob", 1))
        for remote in (mine, bobs):
            remote.release(UserResponse(1.0, CLASSES, remote.users))
        # Different users: together they cost what one of them costs, and nothing is left for either.
        assert charged(found).epsilon(0.0) == 1.0
        with pytest.raises(BudgetExceededError):
            mine.release(UserResponse(0.01, CLASSES, mine.users))
        everybody = found.remote(token=found.access.issue("bob", 1))
        with pytest.raises(BudgetExceededError, match="all who spend"):
            everybody.release(UserResponse(0.01, CLASSES, everybody.users.take(np.flatnonzero(half))), half)


def test_a_store_knows_that_a_data_set_is_of_users(found):
    assert re.search(r"users\W.*?\b20\b", page(found.database), re.DOTALL)
    with sqlite3.connect(found.place) as raw:
        assert raw.execute("SELECT units FROM labeldp_datasets").fetchone() == (20,)
    raw.close()
    assert not any(f"person {owner}".encode() in found.place.read_bytes() for owner in set(OWNERS))


def test_the_same_request_is_drawn_and_charged_once(found, tmp_path):
    from labeldp.budgets.counter import QueryCounter

    question, remote = UserResponse(1.0, CLASSES, sealed().users), found.remote()
    with QueryCounter(tmp_path / "q.counter", {}) as counter:
        first = remote.lease(question, 1, counter=counter)()
        # As a process does that was killed before it could keep the release.
        again = found.remote()
        again._charge(again._charges(question, 1, None), counter.query_id)
        sent = question, wire.encode(question), np.arange(ROWS), counter.query_id, None, None
        second, _ = found.remote()._account.send(*sent)
    np.testing.assert_array_equal(first.responses, second.responses)
    assert again.certificate(0.0).epsilon == 1.0
    assert charged(found).epsilon(0.0) == 1.0


def test_what_is_kept_of_some_users_is_not_taken_for_that_of_others(found, tmp_path):
    """As many users with as many rows, so that nothing but the ids tells them apart."""
    torch = pytest.importorskip("torch")
    from labeldp.recipes.per_row import rr

    def learn(owners):
        remote = found.remote(np.array(names(ROWS))[np.isin(OWNERS, owners)].tolist())
        given = {"epsilon": 1.0, "fit": lambda model, *_, **__: model, "folder": tmp_path / "run"}
        rr(torch.nn.Linear(1, CLASSES), torch.ones(len(remote), 1), remote, **given)
        return remote

    learn(range(5, 10))
    with pytest.raises(ValueError, match="another query"):
        learn(range(10, 15))
    assert learn(range(5, 10)).service_certificate(0.0).epsilon == 1.0


USER_VERBS = {**mechanisms(), "user_responses": UserResponse(1e-3, CLASSES, sealed().users)}


@pytest.mark.parametrize("verb", USER_VERBS)
def test_every_verb_answers_or_refuses_every_wrong_type_everywhere(found, verb):
    direct = found.connection()
    named = bound(direct, ROWS)
    told, columns = header(named, USER_VERBS[verb], again=False)
    fuzzer, answered = Fuzzer(direct, named, 0), 0
    batch = fuzzer._stream(columns) if columns else None
    for number, place in enumerate(places(told)):
        for other, wrong in enumerate(WRONG[:: 1 if verb == "user_responses" else 4]):
            message = changed({**told, "request": f"{verb} {number} {other}"}, place, wrong)
            outcome, said = fuzzer.exchange(json.dumps(message).encode(), columns, batch)
            answered += outcome == "ok"
            assert outcome == "ok" or outcome in KINDS, (place, wrong, outcome, said)
    lines = logbook.read(found.database)
    assert log.verify(lines) + problems_of_store(found.database, lines) == ()
    assert len(lines) == answered
