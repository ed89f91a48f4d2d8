"""Keep a log that cannot be rewritten in silence: every line holds the hash of the one before it, and heads are signed.

    hash      = SHA-256(the entry as canonical JSON, which holds the hash of the entry before it)
    signature = Ed25519(private key, "labeldp-log/1" + line feed + hash), of the last entry of every commit

So a signature covers all entries up to its own. Whoever changes, drops or inserts one without the key is found out by
`verify`. A log that was cut off at the end is shorter than what certificates name, and than the witness beside the
store says (`Witness`). Entries hold no label, no prior, no token: who asked which data set what, at what price, and the
hash of what was released.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from labeldp.atomic import replacing
from labeldp.budgets.tables import Database, now, sa
from labeldp.results.signing import SigningKey
from labeldp.service.tables import APPENDING, LOG

FORMAT = "labeldp-log/1"
_PREFIX = "ed25519:"


class Place(NamedTuple):
    """Where an entry is: its number, counted from 1, and its hash."""

    number: int
    hash: str


class Line(NamedTuple):
    """One line of the log, as it is kept and exported."""

    number: int
    entry: str
    hash: str
    signer: str
    signature: str


def append(
    database: Database, connection: sa.Connection, entries: Sequence[Mapping[str, Any]], key: SigningKey
) -> list[Place]:
    """Append entries within a transaction, sign the last, and return their places."""
    if not entries:
        return []
    if not database.is_file:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(APPENDING)))
    last = connection.execute(sa.select(LOG.c.number, LOG.c.hash).order_by(LOG.c.number.desc()).limit(1)).first()
    number, before = (0, "") if last is None else (int(last.number), str(last.hash))
    lines: list[dict[str, Any]] = []
    for entry in entries:
        number += 1
        text = _canonical({**entry, "format": FORMAT, "number": number, "time": now(), "before": before})
        before = hashlib.sha256(text.encode()).hexdigest()
        lines.append({"number": number, "entry": text, "hash": before, "signer": "", "signature": ""})
    lines[-1] |= {"signer": key.public, "signature": key.sign(_message(before))}
    connection.execute(sa.insert(LOG), lines)
    return [Place(line["number"], line["hash"]) for line in lines]


def note(database: Database, key: SigningKey, **entry: Any) -> Place:
    """Append one entry in a transaction of its own."""
    with database.writing() as connection:
        return append(database, connection, [entry], key)[0]


def read(database: Database, after: int = 0) -> list[Line]:
    """Return all lines after this number."""
    with database.reading() as connection:
        found = connection.execute(sa.select(LOG).where(LOG.c.number > after).order_by(LOG.c.number))
        return [Line(int(each.number), each.entry, each.hash, each.signer, each.signature) for each in found]


def verify(lines: Iterable[Line], signers: Collection[str] = ()) -> tuple[str, ...]:
    """Return what is wrong with a whole log, as sentences; nothing when it holds.

    Args:
        lines: all of it, in order.
        signers: public keys; where some are given, others' signatures count for nothing.
    """
    before, number, signed = "", 0, 0
    for line in lines:
        number += 1
        try:
            entry = json.loads(line.entry)
            whole = _canonical(entry) == line.entry and entry["format"] == FORMAT
            chained = (entry["number"], entry["before"], line.number) == (number, before, number)
        except (ValueError, KeyError, TypeError):
            whole = chained = False
        if not (whole and chained) or hashlib.sha256(line.entry.encode()).hexdigest() != line.hash:
            return (f"entry {number} was changed, or entries before it were taken out or put in",)
        before = line.hash
        if line.signature:
            if not _holds(line):
                return (f"the signature at entry {number} was not made by the key that it names",)
            if signers and line.signer not in signers:
                return (f"entry {number} is signed by {line.signer}, which is not a signer that you want",)
            signed = number
    if number != signed:
        return (f"the last {number - signed} entries are not signed: the log was cut off, or written without the key",)
    return ()


def _holds(line: Line) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(line.signer.removeprefix(_PREFIX)))
        public.verify(bytes.fromhex(line.signature), _message(line.hash))
    except (InvalidSignature, ValueError):
        return False
    return line.signer.startswith(_PREFIX)


def write(path: Path, lines: Iterable[Line]) -> None:
    """Write a log as JSON lines, for those who have no access to the store."""
    with replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line._asdict()) + "\n")


def load(path: Path) -> list[Line]:
    """Return the lines of a file that `write` wrote; ValueError where it holds something else."""
    found: list[Line] = []
    with path.open(encoding="utf-8") as file:
        for each in file:
            try:
                fields = json.loads(each)
                line = Line(**fields)
                plain = type(line.number) is int and all(isinstance(part, str) for part in line[1:])
            except (ValueError, TypeError):
                plain, line = False, None
            if not plain or line is None:
                raise ValueError(f"{path.name} is not a log of this library; export one with: labeldp log export")
            found.append(line)
    return found


def _canonical(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _message(head: str) -> bytes:
    return f"{FORMAT}\n{head}".encode("ascii")


class Witness:
    """Remember outside of the store how far its log has come: an older copy of the store, put back, is shorter.

    A small file beside the store, or anywhere else that is not restored with it. It is written after a commit and not
    waited for, so that it may lag behind by the last moment before a power cut, and never lead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, place: Place) -> None:
        """Remember this place."""
        draft = self.path.with_name(self.path.name + ".new")
        draft.write_text(json.dumps(place._asdict()) + "\n", encoding="ascii")
        draft.replace(self.path)

    def problem(self, database: Database) -> str:
        """Return what is wrong with the store's log as far as the witness can tell; nothing when it is as it was."""
        try:
            seen = Place(**json.loads(self.path.read_text(encoding="ascii")))
        except FileNotFoundError:
            return ""
        except (ValueError, TypeError):
            return f"the witness {self.path.name} cannot be read; look at the log, and take the file away"
        with database.reading() as connection:
            found = connection.execute(sa.select(LOG.c.hash).where(LOG.c.number == seen.number)).scalar()
        if found == seen.hash:
            return ""
        what = "is shorter than it was" if found is None else "is another one"
        return (
            f"the log {what}: the witness {self.path.name} has seen entry {seen.number}. An older copy of the store "
            "was put in its place, and releases made since are not counted; put the newest copy back"
        )
