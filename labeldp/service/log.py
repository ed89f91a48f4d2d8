"""Keep a log that cannot be rewritten in silence: every line holds the hash of the one before it, and heads are signed.

    hash      = SHA-256(the entry as canonical JSON, which holds the hash of the entry before it)
    signature = Ed25519(private key, "labeldp-log/1" + line feed + hash), of the last entry of every commit

So a signature covers all entries up to its own. Whoever changes, drops or inserts one without the key is found out by
`verify`. A log that was cut off at the end is shorter than what certificates name, and than the witness beside the
store says (`labeldp.service.logbook`). Entries hold no label, no prior, no token: who asked which data set what, at
what price, and the hash of what was released.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from labeldp.atomic import replacing

FORMAT = "labeldp-log/1"
_PREFIX = "ed25519:"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


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
            whole = canonical(entry) == line.entry and entry["format"] == FORMAT
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
        public.verify(bytes.fromhex(line.signature), message(line.hash))
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


def canonical(entry: Mapping[str, Any]) -> str:
    """Return an entry in one spelling."""
    return _canonical(entry)


def message(head: str) -> bytes:
    """Return what is signed for a hash."""
    return f"{FORMAT}\n{head}".encode("ascii")


def sentence(place: Place, signer: str) -> str:
    """Return how a certificate names an entry."""
    return f"A service drew the noise and keeps the labels: entry {place.number} of its log, {place.hash}, by {signer}."
