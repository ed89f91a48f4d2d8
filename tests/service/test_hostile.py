"""Whatever is sent: no crash, no label, no charge without a release. 10⁴ messages are sent by tests/stress."""

import json

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import MechanismError
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.service import log, logbook, wire
from labeldp.service.logbook import problems_of_store
from labeldp.service.wire import WireError
from tests.service.asking import ask, bound, header
from tests.service.hostile import CLASSES, KINDS, ROWS, WRONG, Fuzzer, changed, mechanisms, places
from tests.service.servicehelp import NAME, labels, service


@pytest.fixture(scope="module")
def found():
    with service(labels(ROWS, CLASSES)[0]) as served:
        served.direct = served.connection()
        served.named = bound(served.direct, ROWS)
        yield served


def in_order(found):
    """Nothing is charged that was not released and logged."""
    lines = logbook.read(found.database)
    assert log.verify(lines, [found.signer.public]) == ()
    assert problems_of_store(found.database, lines) == ()
    return len(BudgetStore.open(found.place, create=False).history(NAME))


@pytest.mark.parametrize("verb", mechanisms())
def test_every_verb_answers_and_refuses_every_wrong_type_everywhere(found, verb):
    """Each place of the message gets every wrong value; what is still right is answered, the rest is one sentence."""
    told, columns = header(found.named, mechanisms()[verb], again=False)
    ask(found.direct, told, columns)
    before, fuzzer, answered = in_order(found), Fuzzer(found.direct, found.named, 0), 0
    batch = fuzzer._stream(columns)
    for number, place in enumerate(places(told)):
        for other, wrong in enumerate(WRONG):
            if place and place[0] == "settings" and len(place) > 3 and other % 3:
                # The third entry of a list is no other than the second.
                continue
            message = changed({**told, "request": f"{verb} {number} {other}"}, place, wrong)
            outcome, said = fuzzer.exchange(json.dumps(message).encode(), columns, batch)
            answered += outcome == "ok"
            assert outcome == "ok" or outcome in KINDS, (place, wrong, outcome, said)
    assert in_order(found) == before + answered


def test_some_hundred_hostile_messages(found):
    before, fuzzer = in_order(found), Fuzzer(found.direct, found.named, 1)
    outcomes = [fuzzer.send() for _ in range(400)]
    assert {kind for kind, _ in outcomes} <= {*KINDS, "ok"}
    assert {kind for kind, _ in outcomes} >= {"message", "ok"}
    assert in_order(found) >= before
    assert found.direct.act("health")["healthy"]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda c: {"groups": c["groups"][:-1]}, "ended after 59 of the 60"),
        (lambda c: {"groups": np.append(c["groups"], 0)}, "more than the 60 rows"),
        (lambda c: {"groups": c["groups"].astype(np.int32)}, "not groups as declared"),
        (lambda c: {"groups": c["groups"], "more": c["groups"]}, "not groups as declared"),
        (lambda c: {"groups": c["groups"] - 9}, "entries outside 0"),
        (lambda c: {}, "ended after 0 of the 60"),
    ],
)
def test_columns_that_are_not_as_declared(found, spoil, match):
    told, columns = header(found.named, GroupCounts(np.arange(ROWS) % 4, 4, CLASSES, LaplaceNoise(0.1)))
    before = in_order(found)
    with pytest.raises(WireError, match=match):
        ask(found.direct, told, spoil(columns))
    assert in_order(found) == before


@pytest.mark.parametrize("rows", [0, 1, 59, 61, 120])
def test_features_for_other_rows_are_refused_while_they_arrive(found, rows):
    told, columns = header(found.named, mechanisms()["moments"])
    before = in_order(found)
    with pytest.raises(WireError, match="could not be read as declared; nothing was charged"):
        ask(found.direct, told, {"features": np.resize(columns["features"], (rows, 2))} if rows else {})
    assert in_order(found) == before


def test_queries_without_noise_are_refused(found):
    for epsilon in (1e4, 5e3):
        told = header(found.named, RandomizedResponse(1.0, CLASSES))[0]
        told["settings"]["epsilon"] = epsilon
        with pytest.raises((WireError, BudgetExceededError)):
            ask(found.direct, told)
    told["settings"]["epsilon"] = float("inf")
    fuzzer = Fuzzer(found.direct, found.named, 0)
    assert fuzzer.exchange(json.dumps({**told, "again": False}).encode(), {}, None)[0] == "message"


def test_too_much_at_once_is_refused(found, monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 50)
    told, _ = header(found.named, RandomizedResponse(0.1, CLASSES))
    with pytest.raises(WireError, match="ask for parts"):
        ask(found.direct, told)
    monkeypatch.undo()
    monkeypatch.setattr(wire, "MOST_GATHERED", 50)
    told, columns = header(found.named, GroupCounts(np.arange(ROWS) % 2, 2, CLASSES, LaplaceNoise(0.1)))
    with pytest.raises(WireError, match="columns would have more"):
        ask(found.direct, told, columns)
    monkeypatch.undo()
    monkeypatch.setattr(found.server, "_most_bytes", 100)
    told, columns = header(found.named, GroupCounts(np.arange(ROWS) % 2, 2, CLASSES, LaplaceNoise(0.1)))
    with pytest.raises(WireError):
        ask(found.direct, told, columns)


def test_a_draw_that_fails_with_labels_in_its_hands_is_charged(found, monkeypatch):
    """Whether it fails may depend on a label: for nothing, it could be asked again and again."""

    def fails(*_):
        raise RuntimeError("the label of row 7 is 2")

    told, columns = header(found.named, GroupCounts(np.arange(ROWS) % 4, 4, CLASSES, LaplaceNoise(0.1)))
    before = in_order(found)
    monkeypatch.setattr(GroupCounts, "sample", fails)
    _, content = ask(found.direct, told, columns)
    with pytest.raises(MechanismError, match="stays charged") as refused:
        wire.unpack(content, None)
    assert "label of" not in str(refused.value)
    assert in_order(found) == before + 1


def test_every_release_arrives_as_it_was_drawn(found):
    labels = (np.arange(ROWS) % CLASSES).astype(np.uint8)
    for name, mechanism in mechanisms().items():
        drawn = mechanism.sample(labels, SecureRandom(seed=1))
        come = wire.unpack(wire.pack(drawn), mechanism)
        # Of the same kind, so that no field can be missing, and the same bytes again.
        assert type(come) is type(drawn), name
        assert wire.pack(come) == wire.pack(drawn), name


def test_what_nobody_meant_is_withheld(found, monkeypatch):
    def fails(*_):
        raise RuntimeError("the label of row 7 is 2")

    monkeypatch.setattr(found.engine, "spent", fails)
    with pytest.raises(ValueError, match="failed with RuntimeError") as refused:
        found.direct.act("budget", dataset=NAME)
    assert "label" not in str(refused.value)


def test_logs_and_metrics_hold_no_settings_and_no_tokens(found, capsys):
    import io

    from labeldp.service.metrics import Metrics

    metrics = Metrics(io.StringIO())
    found.server.metrics, old = metrics, found.server.metrics
    fuzzer = Fuzzer(found.direct, found.named, 2)
    for _ in range(40):
        fuzzer.send()
    found.server.metrics = old
    text = metrics._logs.getvalue() + metrics.text()
    assert found.token.split(".")[2] not in text
    assert all(set(json.loads(line)) <= {"time", "call", "verb", "outcome", "seconds", "who", "dataset"}
               for line in metrics._logs.getvalue().splitlines())  # fmt: skip
