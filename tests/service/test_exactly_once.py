"""Exactly once: a query is charged, drawn and kept together or not at all; asked again it costs nothing."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.events import DiscreteGaussian, PureDP, event_to_json
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.service import logbook
from labeldp.service.access import Access
from labeldp.service.client import ServiceError
from labeldp.service.engine import Engine
from labeldp.service.logbook import problems_of_store
from labeldp.service.wire import WireError
from tests.service.asking import ask, bound, header
from tests.service.servicehelp import NAME, labels, names, service

ROWS = 60
RESPONSES = RandomizedResponse(0.5, 3)


@pytest.fixture
def found():
    with service(labels(ROWS)[0]) as served:
        yield served


def charges(found):
    return len(BudgetStore.open(found.place, create=False).history(NAME))


@pytest.mark.parametrize(
    "mechanism",
    [
        RESPONSES,
        GroupCounts(np.arange(ROWS) % 4, 4, 3, LaplaceNoise(0.5)),
        Moments(np.ones((ROWS, 2)), 3, LaplaceNoise(0.5), 2.0),
    ],
    ids=["responses", "counts", "moments"],
)
@pytest.mark.parametrize("told", [False, True], ids=["unaware", "told"])
def test_the_same_request_returns_what_was_released_and_charges_nothing(found, mechanism, told):
    connection = found.connection()
    message, columns = header(bound(connection, ROWS), mechanism)
    first = ask(connection, message, columns)
    for _ in range(3):
        assert ask(connection, message | ({"again": True} if told else {}), columns) == first
    assert charges(found) == 1


@pytest.mark.parametrize("change", ["settings", "columns", "verb", "rows", "plan"])
def test_another_question_under_the_same_id_is_refused(found, change):
    connection = found.connection()
    named = bound(connection, ROWS)
    counts = GroupCounts(np.arange(ROWS) % 4, 4, 3, LaplaceNoise(0.5))
    message, columns = header(named, counts)
    ask(connection, message, columns)
    other = {
        "settings": GroupCounts(np.arange(ROWS) % 4, 4, 3, LaplaceNoise(0.25)),
        "columns": GroupCounts((np.arange(ROWS) + 1) % 4, 4, 3, LaplaceNoise(0.5)),
        "verb": RESPONSES,
    }.get(change, counts)
    if change == "rows":
        remote = found.remote()
        named = remote._account._named(np.arange(ROWS)[::-1])
    more = {"request": message["request"], "plan_id": "a plan" if change == "plan" else None}
    message, columns = header(named, other, **more)
    with pytest.raises(WireError, match="another question"):
        ask(connection, message, columns)
    assert charges(found) == 1


def test_copies_of_a_request_at_once_are_drawn_and_charged_once(found):
    connection = found.connection()
    message, columns = header(bound(connection, ROWS), RESPONSES)
    with ThreadPoolExecutor(8) as crowd:
        results = list(crowd.map(lambda _: ask(found.connection(), message, columns), range(16)))
    assert len({content for _, content in results}) == 1
    assert charges(found) == 1


def test_a_service_that_was_started_anew_knows_its_releases(found):
    connection = found.connection()
    message, columns = header(bound(connection, ROWS), RESPONSES)
    first = ask(connection, message, columns)
    engine = Engine(found.database, list(found.engine.served.values()), found.signer)
    found.server.engine.close()
    found.server.engine = engine
    with pytest.raises(ServiceError, match="not known here"):
        ask(connection, message, columns)
    bound(connection, ROWS)
    assert ask(connection, message | {"again": True}, columns) == first
    assert charges(found) == 1


def test_a_remote_vault_names_its_rows_again_to_a_service_that_forgot_them(found):
    remote = found.remote()
    found.engine.choices.__init__()
    part = remote.part(np.arange(30))
    assert len(part.release(RESPONSES)) == 30
    found.engine.choices.__init__()
    assert len(part.release(RESPONSES)) == 30
    assert charges(found) == 2


@pytest.mark.parametrize("where", ["append", "write"])
def test_a_commit_that_fails_leaves_no_trace_and_the_next_one_works(found, monkeypatch, where):
    remote = found.remote()
    from labeldp.budgets.batch import Batch

    def fails(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(*((logbook, "append", fails) if where == "append" else (Batch, "write", fails)))
        with pytest.raises(ServiceError, match="OSError; nothing was charged"):
            remote.release(RESPONSES)
    assert charges(found) == 0
    assert not any(group.queries for group in remote.ledger.groups())
    assert len(remote.release(RESPONSES)) == ROWS
    assert charges(found) == 1
    assert problems_of_store(found.database, logbook.read(found.database)) == ()


def test_a_refused_query_leaves_no_trace_here_or_there():
    with service(labels(ROWS)[0], grant=Budget(0.6)) as found:
        remote = found.remote()
        part = remote.part(budget=Budget(10.0))
        part.release(RESPONSES)
        again = found.remote()
        with pytest.raises(BudgetExceededError, match=r"epsilon=0.6, delta=0 and this query would bring .* epsilon=1"):
            again.release(RESPONSES)
        assert again.ledger.epsilon(0.0) == 0
        assert again.spent() == 0.5
        assert charges(found) == 1


def test_what_others_spent_is_not_told():
    with service(labels(ROWS)[0], total=Budget(0.8), grant=Budget(0.7)) as found:
        found.access.add("bob", "analyst")
        found.access.grant(NAME, "bob", Budget(0.7))
        found.remote().release(RESPONSES)
        bob = found.remote(token=found.access.issue("bob", 1))
        with pytest.raises(BudgetExceededError) as refused:
            bob.release(RESPONSES)
        assert "0.5" not in str(refused.value)
        assert "all who spend on it together" in str(refused.value)
        assert bob.spent() == 0
        assert len(bob.release(RandomizedResponse(0.3, 3))) == ROWS


def test_disjoint_rows_of_two_analysts_cost_what_one_of_them_costs():
    with service(labels(ROWS)[0], total=Budget(0.5), grant=Budget(0.5)) as found:
        found.access.add("bob", "analyst")
        found.access.grant(NAME, "bob", Budget(0.5))
        found.remote(names(ROWS)[:30]).release(RESPONSES)
        found.remote(names(ROWS)[30:], token=found.access.issue("bob", 1)).release(RESPONSES)
        assert BudgetStore.open(found.place, create=False).epsilon(NAME) == 0.5


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_charged_as_one_and_each_of_its_queries_is_drawn_once(found):
    remote = found.remote()
    plan = remote.plan([(PureDP(0.5), 1, None), (PureDP(0.25), 1, np.arange(10))])
    plan.release(RandomizedResponse(0.25, 3), np.arange(10))
    assert charges(found) == 2
    plan.release(RESPONSES)
    assert charges(found) == 2
    with pytest.raises(BudgetExceededError, match="not in the plan"):
        plan.release(RESPONSES)
    ledger = BudgetStore.open(found.place, create=False).ledger(NAME)
    assert {len(group.plans) for group in ledger.groups()} == {1}
    assert ledger.epsilon(0.0) == remote.ledger.epsilon(0.0) == 0.75


def plan_of(named, *epsilons):
    return [{"event": event_to_json(PureDP(epsilon)), "rows": named} for epsilon in epsilons]


def test_a_plan_pays_for_its_own_queries_only(found):
    connection = found.connection()
    named = bound(connection, ROWS)
    with pytest.raises(WireError, match="was not paid for"):
        ask(connection, header(named, RESPONSES, plan_id="unpaid")[0])
    ask(connection, header(named, RESPONSES, plan_id="mine", plan=plan_of(named, 0.5, 0.1))[0])
    assert charges(found) == 2
    for mechanism in (RESPONSES, RandomizedResponse(0.2, 3)):
        with pytest.raises(WireError, match="not in the plan"):
            ask(connection, header(named, mechanism, plan_id="mine")[0])
    ask(connection, header(named, RandomizedResponse(0.1, 3), plan_id="mine")[0])
    with pytest.raises(WireError, match="not in the plan"):
        ask(connection, header(named, RandomizedResponse(0.1, 3), plan_id="mine", plan=plan_of(named, 0.1))[0])
    assert charges(found) == 2


@pytest.mark.parametrize("plan", [(), (0.001,), (0.5,)])
def test_a_query_without_a_plans_id_cannot_be_paid_for_by_a_plan(found, plan):
    connection = found.connection()
    named = bound(connection, ROWS)
    with pytest.raises(WireError, match="without a plan_id"):
        ask(connection, header(named, RESPONSES, plan=plan_of(named, *plan))[0])
    assert charges(found) == 0


def test_a_plan_that_does_not_hold_its_first_query_is_charged_nothing(found):
    connection = found.connection()
    named = bound(connection, ROWS)
    with pytest.raises(WireError, match="not in the plan"):
        ask(connection, header(named, RESPONSES, plan_id="odd", plan=plan_of(named, 0.1))[0])
    assert charges(found) == 0


def test_a_plan_that_takes_minutes_to_compose_is_refused_at_once(found):
    """A thousand different events took 40 s, in the transaction that everybody waits for."""
    connection = found.connection()
    named = bound(connection, ROWS)
    many = plan_of(named, 0.5) + [
        {"event": event_to_json(DiscreteGaussian(100 + number / 100, (1, 1))), "rows": named} for number in range(1000)
    ]
    begun = time.perf_counter()
    with pytest.raises(WireError, match="1001 different events"):
        ask(connection, header(named, RESPONSES, plan_id="long", plan=many)[0])
    assert time.perf_counter() - begun < 5
    ask(connection, header(named, RESPONSES, plan_id="equal", plan=plan_of(named, *[0.5] * 20))[0])
    assert charges(found) == 20


def test_ids_are_each_persons_own(found):
    connection = found.connection()
    named = bound(connection, ROWS)
    message = header(named, RESPONSES, plan_id="p", plan=plan_of(named, 0.5, 0.5), request="r")[0]
    ask(connection, message)
    found.access.add("bob", "analyst")
    found.access.grant(NAME, "bob", Budget(10.0))
    bob = found.connection(found.access.issue("bob", 1))
    ask(bob, message)
    assert charges(found) == 4
    assert not bob.act("holds", dataset=NAME, plan="other")["holds"]
    assert bob.act("holds", dataset=NAME, plan="p")["holds"]


def test_certificates_name_their_entries(found):
    from labeldp.core.certificate import verify

    remote = found.remote()
    remote.release(RESPONSES)
    lines = logbook.read(found.database)
    entry = f"entry {lines[-1].number} of its log, {lines[-1].hash}, by {found.signer.public}"
    for certificate in (remote.certificate(0.0), remote.service_certificate(0.0)):
        assert entry in certificate.assumptions[-1]
        assert certificate.epsilon == 0.5
        assert verify(certificate) == (
            "the noise came from a seed: anyone who knows the seed can undo it. Only good for tests",
        )


def test_people_are_found_again_by_another_process(found):
    other = Access(found.database)
    assert other.who(found.token).name == "ann"


def test_what_is_kept_of_some_ids_is_not_taken_for_that_of_others(tmp_path, monkeypatch):
    """Ids that were put right before a run went on: the same places are other people, who would be asked twice."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from labeldp.estimator import classifier
    from labeldp.estimator.classifier import LabelDPClassifier

    features = np.random.default_rng(0).normal(size=(60, 2))

    def fit(ids):
        given = {"method": "rr+learner", "classes": range(3), "holdout": 20, "random_state": 0}
        return LabelDPClassifier(1.0, settings={"folder": tmp_path / "run"}, **given).fit(features, found.remote(ids))

    with service(labels()[0]) as found:
        with monkeypatch.context() as stopped:
            stopped.setattr(classifier, "released", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fit(names(60))
        with pytest.raises(ValueError, match="another query"):
            fit([*names(60)[1:], names(60)[0]])
        assert fit(names(60)).certificate_.epsilon == found.remote().service_certificate(0.0).epsilon == 1.0
