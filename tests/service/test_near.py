"""The socket beside that of gRPC: the same answers and refusals; whatever is sent, no charge without a release."""

import contextlib
import os
import secrets
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.budgets.store import BudgetStore
from labeldp.core.ledger import BudgetExceededError
from labeldp.mechanisms.counts import LaplaceNoise
from labeldp.mechanisms.moments import GridSum, Moments
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.service import log, logbook, near, wire
from labeldp.service.logbook import problems_of_store
from labeldp.service.wire import AccessError, WireError
from tests.service.asking import ask, bound, header
from tests.service.servicehelp import NAME, labels, service

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory with seals is Linux's")
ROWS, WIDTH = 3000, 32
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH))
QUESTION = Moments(X, 3, LaplaceNoise(0.5), 20.0)


@pytest.fixture
def found():
    with service(labels(ROWS)[0]) as served:
        served.direct = served.connection()
        served.named = bound(served.direct, ROWS)
        yield served


def charges(found):
    """How many there are, each with a release and a line in a log that verifies."""
    lines = logbook.read(found.database)
    assert log.verify(lines, [found.signer.public]) == ()
    assert problems_of_store(found.database, lines) == ()
    return len(BudgetStore.open(found.place, create=False).history(NAME))


def caller(found, token=None):
    return near.Caller(near.beside(found.address), found.token if token is None else token)


def asked(found, rows=X, **more):
    told, _ = header(found.named, QUESTION, again=False, **more)
    line = caller(found)
    try:
        return line.ask_rows(wire.framed(told), [rows], "float64", WIDTH)
    finally:
        line.close()


def test_rows_in_memory_are_the_question_that_rows_through_grpc_are(found):
    kind, content = asked(found, request="one")
    assert kind == b"A"
    _, release = wire.unframed(content)
    told, columns = header(found.named, QUESTION, request="one", again=True)
    assert ask(found.direct, told, columns)[1] == bytes(release)
    assert charges(found) == 1


@pytest.mark.parametrize("change", ["number", "rows", "columns"])
def test_other_rows_under_the_same_id_are_refused(found, change):
    assert asked(found, request="one")[0] == b"A"
    other = {"number": X + (np.arange(ROWS * WIDTH).reshape(X.shape) == 777), "rows": X[::-1], "columns": X[:, ::-1]}
    kind, content = asked(found, np.ascontiguousarray(other[change]), request="one")
    assert kind == b"E"
    assert b"was another question before" in bytes(content)
    assert charges(found) == 1


@pytest.mark.parametrize("count", [0, 10, ROWS - 1, ROWS + 1])
def test_fewer_or_more_rows_than_are_asked_cost_nothing(found, count):
    assert asked(found, np.resize(X, (count, WIDTH)))[0] == b"E"
    assert charges(found) == 0


def test_rows_that_are_not_finite_cost_nothing_that_was_not_kept(found):
    kind, _ = asked(found, np.where(X[5, 5] == X, np.nan, X))
    assert charges(found) == (kind == b"A")


@pytest.mark.parametrize("rows", [X, X[:-1]], ids=["all", "fewer"])
def test_a_draw_that_fails_at_the_first_rows_is_charged_whatever_comes_after_them(found, monkeypatch, rows):
    """It was unpaid where rows were left that it had not read, and what was said told that it had failed."""

    def fails(*_):
        raise RuntimeError("because of a label")

    monkeypatch.setattr(GridSum, "add", fails)
    kind, content = asked(found, rows, request="one")
    assert kind == b"A"
    assert bytes(wire.unframed(content)[1]) == wire.FAILED
    assert charges(found) == 1


def test_a_draw_that_fails_is_charged_when_its_analyst_hangs_up(found, monkeypatch):
    def fails(*_):
        raise RuntimeError("because of a label")

    monkeypatch.setattr(GridSum, "add", fails)
    line = caller(found)
    line._line.send(b"M", wire.framed(header(found.named, QUESTION, again=False)[0]))
    head, files, _, _ = socket.recv_fds(line._line.channel, 5, 1)
    line._line.take(1000, head)
    # What was sent before a line ends is read before its end is seen.
    line._line.send(b"R", (100).to_bytes(4, "little"))
    line.close()
    os.close(files[0])
    for _ in range(200):
        if charges(found):
            break
        time.sleep(0.05)
    assert charges(found) == 1


def test_a_token_that_does_not_count_is_refused(found):
    line = caller(found, "ldp.000000000000.wrong")
    kind, content = line.ask(wire.framed(header(found.named, QUESTION)[0]))
    line.close()
    assert kind == b"E"
    assert b'"access"' in bytes(content)


@pytest.mark.parametrize("bytewise", [False, True], ids=["refused", "bytewise"])
def test_strangers_hold_no_line(found, monkeypatch, bytewise):
    """After a refusal a line stayed open for ever, and a byte every ten seconds kept one open before it."""
    monkeypatch.setattr(near, "HELLO_SECONDS", 1.0)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(near.beside(found.address)))
        channel.settimeout(10)
        begun = time.monotonic()
        frame = struct.pack("<cI", b"T", 100)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if bytewise:
                for place in range(80):
                    channel.sendall((frame + bytes(80))[place : place + 1])
                    time.sleep(0.1)
            else:
                channel.sendall(struct.pack("<cI", b"T", 3) + b"bad" + struct.pack("<cI", b"A", 2) + b"{}")
            while channel.recv(1 << 10):
                pass
        assert time.monotonic() - begun < 6
    for _ in range(100):
        if not found.server._door._lines:
            break
        time.sleep(0.05)
    assert not found.server._door._lines


def test_refusals_are_the_errors_of_grpc(found):
    told, _ = header(found.named, QUESTION, again=False, dataset="elsewhere")
    with pytest.raises(AccessError):
        found.direct.ask(told, [])
    told, _ = header(found.named, Moments(X, 3, LaplaceNoise(5000.0), 20.0))
    schema = wire.arrow_schema({wire.FEATURES: ("float64", WIDTH)})
    with pytest.raises(BudgetExceededError):
        found.direct.ask_rows(told, schema, lambda: [X])
    assert charges(found) == 0


@pytest.mark.parametrize("awake", [False, True], ids=["asleep", "awake"])
def test_frames_are_taken_whole_however_they_come(awake):
    """Short ones come several at once, long ones in pieces."""
    random = np.random.default_rng(3)
    sent = [
        (bytes([65 + number % 26]), random.bytes(int(random.choice([0, 4, 8, 5000, 70_000])))) for number in range(200)
    ]
    stream = b"".join(struct.pack("<cI", kind, len(content)) + content for kind, content in sent)
    here, there = socket.socketpair()

    def send():
        done = 0
        while done < len(stream):
            done += there.send(stream[done : done + int(random.integers(1, 9000))])
        there.close()

    with ThreadPoolExecutor(1) as other, here:
        written, line = other.submit(send), near.Line(here)
        line.awake = awake
        assert [(kind, bytes(content)) for kind, content in (line.take(1 << 20) for _ in sent)] == sent
        written.result()
        with pytest.raises(EOFError):
            line.take(1 << 20)


def test_memory_keeps_its_size(found):
    memory = near.Memory.new()
    for size in (0, near.SLOTS * near.SLOT_BYTES * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.file, size)
    memory.close()


def test_rows_are_read_once(found, monkeypatch):
    """A slot that is overwritten after it was taken changes nothing: what is added up is a copy."""
    # Slots are so small that all of them are used more than once.
    monkeypatch.setattr(near, "SLOT_BYTES", 1 << 15)
    told, _ = header(found.named, QUESTION, again=False)
    send, rows, slots, overwritten = near.Line.send, near.Memory.rows, {}, []

    def late(self, kind, *parts, file=None):
        if kind == b"C":
            for _ in range(int.from_bytes(parts[0], "little")):
                slots[len(overwritten) % near.SLOTS][:] = np.nan
                overwritten.append(kind)
        send(self, kind, *parts, file=file)

    def seen(self, slot, kind, width):
        return slots.setdefault(slot, rows(self, slot, kind, width))

    monkeypatch.setattr(near.Memory, "rows", seen)
    monkeypatch.setattr(near.Line, "send", late)
    line = caller(found)
    kind, content = line.ask_rows(wire.framed(told), [X], "float64", WIDTH)
    line.close()
    slots.clear()
    assert kind == b"A"
    assert len(overwritten) > near.SLOTS
    assert bytes(wire.unframed(content)[1]) == wire.pack(labels(ROWS)[0].release(QUESTION))
    assert charges(found) == 1


def test_a_full_door_sends_analysts_through_grpc(found, monkeypatch):
    monkeypatch.setattr(near, "MOST_LINES", 0)
    monkeypatch.setattr(near, "MOST_MEMORIES", 0)
    told, _ = header(found.named, QUESTION)
    schema = wire.arrow_schema({wire.FEATURES: ("float64", WIDTH)})
    answer, release = found.direct.ask_rows(told, schema, lambda: [X])
    assert answer["bytes"] == len(release)
    assert charges(found) == 1


def hostile(found, count, seed):
    """Send so many broken conversations; how many ended with an answer."""
    random, answered = np.random.default_rng(seed), 0
    for _ in range(count):
        question = QUESTION if random.random() < 0.5 else RandomizedResponse(1e-3, 3)
        told, _ = header(found.named, question, again=False, request=secrets.token_hex(8))
        message = bytearray(wire.framed(told))
        if random.random() < 0.5:
            for place in random.integers(0, len(message), random.integers(1, 4)):
                message[place] = random.integers(0, 256)
        frames = [(b"T", found.token.encode()), (bytes([random.choice(list(b"AMRSX"))]), bytes(message))]
        frames += [
            (bytes([random.choice(list(b"RRRSAMCT"))]), random.bytes(int(random.integers(0, 10))))
            for _ in range(random.integers(0, 6))
        ]
        if random.random() < 0.2:
            random.shuffle(frames)
        wrong = random.integers(0, len(frames)) if random.random() < 0.2 else -1
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(10)
            channel.connect(str(near.beside(found.address)))
            try:
                for number, (kind, content) in enumerate(frames):
                    size = int(random.integers(0, 1 << 32)) if number == wrong else len(content)
                    channel.sendall(struct.pack("<cI", kind, size) + content)
                channel.shutdown(socket.SHUT_WR)
                come = b""
                while part := channel.recv(1 << 16):
                    come += part
            except OSError:
                continue
        assert b"Traceback" not in come
        answered += come[:1] == b"A"
    return answered


def test_some_hundred_broken_conversations(found):
    answered = hostile(found, 300, seed=1)
    # Some were whole after all. What was charged is kept, also where whoever asked had hung up.
    assert 0 < answered <= charges(found)
    # It still answers.
    assert asked(found)[0] == b"A"


def test_a_question_too_long_is_hung_up_on(found):
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(near.beside(found.address)))
        line = near.Line(channel)
        line.send(b"T", found.token.encode())
        channel.sendall(struct.pack("<cI", b"A", near.MOST_MESSAGE + 1))
        with pytest.raises((EOFError, ConnectionResetError)):
            line.take(100)
    a, b = socket.socketpair()
    with a, b:
        b.sendall(struct.pack("<cI", b"A", 11))
        with pytest.raises(WireError):
            near.Line(a).take(10)
