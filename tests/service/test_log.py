"""The log: chained, signed, complete; rewriting it, the releases or the charges is found out, and so is a rollback."""

import json
import shutil
import sqlite3

import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.results.signing import SigningKey
from labeldp.service import log, logbook
from labeldp.service.logbook import Witness, problems_of_store
from tests.service.servicehelp import labels, service


@pytest.fixture(scope="module")
def found():
    with service(labels()[0]) as served:
        remote = served.remote()
        for epsilon in (0.1, 0.2, 0.3):
            remote.release(RandomizedResponse(epsilon, 3))
        logbook.note(served.database, served.signer, kind="note", text="é \u2028 0.1")
        served.lines = logbook.read(served.database)
        yield served


def test_a_log_holds_and_names_what_was_asked(found):
    assert log.verify(found.lines, [found.signer.public]) == ()
    entry = json.loads(found.lines[0].entry)
    said = [entry[name] for name in ("kind", "who", "verb", "rows", "charge")]
    assert said == ["release", "ann", "responses", 60, 1]
    assert problems_of_store(found.database, found.lines) == ()


def rewritten(lines, number, **changes):
    """The log with one entry changed and its hash made to fit."""
    import hashlib

    line = lines[number - 1]
    entry = json.dumps(json.loads(line.entry) | changes, sort_keys=True, separators=(",", ":"))
    return [
        *lines[: number - 1],
        line._replace(entry=entry, hash=hashlib.sha256(entry.encode()).hexdigest()),
        *lines[number:],
    ]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda lines, key: [lines[0]._replace(entry=lines[0].entry.replace("0.1", "0.01"))], "entry 1 was changed"),
        (lambda lines, key: rewritten(lines, 1, rows=1), "signature at entry 1"),
        (lambda lines, key: [lines[0]._replace(signature="", signer=""), *rewritten(lines, 1, rows=1)[1:]], None),
        (lambda lines, key: lines[1:], "entry 1 was changed"),
        (lambda lines, key: [lines[0], *lines[2:]], "entry 2 was changed"),
        (lambda lines, key: [lines[0], lines[0], *lines[1:]], "entry 2 was changed"),
        (lambda lines, key: [*lines[:-1], lines[-1]._replace(signature="")], "last 1 entries are not signed"),
        (lambda lines, key: [*lines[:-1], lines[-1]._replace(signature="00" * 64)], "signature at entry 4"),
        (lambda lines, key: [*lines[:-1], lines[-1]._replace(signer=key.public)], "signature at entry 4"),
        (lambda lines, key: [*lines[:-1], lines[-1]._replace(signer=key.public,
                             signature=key.sign(log.message(lines[-1].hash)))], "not a signer that you want"),
        (lambda lines, key: [lines[0]._replace(entry="[]"), *lines[1:]], "entry 1 was changed"),
        (lambda lines, key: [lines[0]._replace(entry="{"), *lines[1:]], "entry 1 was changed"),
    ],
)  # fmt: skip
def test_what_was_rewritten_is_found_out(found, change, match):
    problems = log.verify(change(found.lines, SigningKey.new()), [found.signer.public])
    if match is None:
        # Its own signature is gone, but a later one covers it.
        assert problems == ()
    else:
        assert match in problems[0]


def test_a_log_goes_through_a_file(found, tmp_path):
    log.write(tmp_path / "log.jsonl", found.lines)
    assert log.load(tmp_path / "log.jsonl") == found.lines
    (tmp_path / "odd").write_text('{"number": 1}\n')
    with pytest.raises(ValueError, match="odd is not a log"):
        log.load(tmp_path / "odd")


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE labeldp_requests SET release = X'00' WHERE entry = 2", "release of entry 2 is not the one"),
        ("UPDATE labeldp_requests SET digest = 'x' WHERE entry = 2", "release of entry 2 is not the one"),
        ("DELETE FROM labeldp_requests WHERE entry = 2", "charge 2 of 'visits' has no release"),
        ("UPDATE labeldp_requests SET seal = 'x' WHERE entry = 3", "release of entry 3 is not the one"),
    ],
)
def test_tables_that_do_not_match_the_log_are_found_out(statement, match):
    with service(labels()[0]) as found:
        remote = found.remote()
        for epsilon in (0.1, 0.2, 0.3):
            remote.release(RandomizedResponse(epsilon, 3))
        raw = sqlite3.connect(found.place)
        with raw:
            raw.execute(statement)
        raw.close()
        assert match in problems_of_store(found.database, logbook.read(found.database))[0]


def test_a_store_that_is_written_to_while_it_is_checked_has_no_problem():
    """As `labeldp log verify` and the owner's page read it, beside a service that goes on answering."""
    with service(labels()[0]) as found:
        found.remote().release(RandomizedResponse(0.1, 3))
        lines = logbook.read(found.database)
        found.remote().release(RandomizedResponse(0.1, 3))
        assert problems_of_store(found.database, lines) == ()
        assert problems_of_store(found.database, []) == ()


def test_an_older_copy_of_the_store_is_noticed():
    with service(labels()[0]) as found:
        witness, remote = Witness(found.folder / "witness"), found.remote()
        remote.release(RandomizedResponse(0.1, 3))
        shutil.copy(found.place, found.folder / "backup.db")
        assert witness.problem(found.database) == ""
        remote.release(RandomizedResponse(0.1, 3))
        assert witness.problem(found.database) == ""
        shutil.copy(found.folder / "backup.db", found.place)
        assert "shorter than it was: the witness witness has seen entry 2" in witness.problem(found.database)
        # A log that grew to the same length on the older copy is another one.
        logbook.note(found.database, found.signer, kind="opened")
        assert "is another one" in witness.problem(found.database)
        (found.folder / "witness").write_text("?")
        assert "cannot be read" in witness.problem(found.database)
