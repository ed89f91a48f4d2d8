"""Write the log of a service into its store, read it, check the store by it, and notice an older copy of the store.

What an entry is and how a log is checked by itself is said in `labeldp.service.log`, which needs no database. Here the
owner's tables are compared with it: a release that was taken out, changed or put in, and a charge that no release and
no plan explains, are found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labeldp.budgets.tables import CHARGES, DATASETS, Database, now, sa, whole_line
from labeldp.results.signing import SigningKey
from labeldp.service.log import FORMAT, Line, Place, canonical, message
from labeldp.service.tables import APPENDING, JOBS, LOG, REQUESTS

_LAST, _LINE = sa.select(LOG.c.number, LOG.c.hash).order_by(LOG.c.number.desc()).limit(1), sa.insert(LOG)


def append(
    database: Database, connection: sa.Connection, entries: Sequence[Mapping[str, Any]], key: SigningKey
) -> list[Place]:
    """Append entries within a transaction, sign the last, and return their places."""
    if not entries:
        return []
    if not database.is_file:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(APPENDING)))
    last, time = connection.execute(_LAST).first(), now()
    number, before = (0, "") if last is None else (int(last.number), str(last.hash))
    lines: list[dict[str, Any]] = []
    for entry in entries:
        number += 1
        text = canonical({**entry, "format": FORMAT, "number": number, "time": time, "before": before})
        before = hashlib.sha256(text.encode()).hexdigest()
        lines.append({"number": number, "entry": text, "hash": before, "signer": "", "signature": ""})
    lines[-1] |= {"signer": key.public, "signature": key.sign(message(before))}
    connection.execute(_LINE, lines)
    return [Place(line["number"], line["hash"]) for line in lines]


def note(database: Database, key: SigningKey, **entry: Any) -> Place:
    """Append one entry in a transaction of its own."""
    with database.writing() as connection:
        return append(database, connection, [entry], key)[0]


def read(database: Database, after: int = 0) -> list[Line]:
    """Return all lines after this number."""
    with database.reading() as connection:
        return read_in(connection, after)


def read_in(connection: sa.Connection, after: int = 0) -> list[Line]:
    """Return all lines after this number, as a transaction sees them."""
    found = connection.execute(sa.select(LOG).where(LOG.c.number > after).order_by(LOG.c.number))
    return [Line(int(each.number), each.entry, each.hash, each.signer, each.signature) for each in found]


def problems_of_store(database: Database, lines: Sequence[Line]) -> tuple[str, ...]:
    """Return what is wrong with releases, jobs and charges of analysts, as sentences; nothing when the log agrees.

    What a running service has written since the lines were read is seen with its own lines.
    """
    problems: list[str] = []
    plans: set[tuple[str, str]] = set()
    with database.reading() as connection:
        newer = read_in(connection, after=lines[-1].number if lines else 0)
        entries = {line.number: (line.hash, json.loads(line.entry)) for line in (*lines, *newer)}
        releases = {number for number, (_, entry) in entries.items() if entry["kind"] == "release"}
        for request in connection.execute(sa.select(REQUESTS).order_by(REQUESTS.c.entry)).mappings():
            found, entry = entries.get(request["entry"], ("", {}))
            said = {
                "who": request["person"], "dataset": request["dataset"], "request": request["id"],
                "question": request["digest"], "charge": request["charge"],
                "released": hashlib.sha256(request["release"]).hexdigest(),
            }  # fmt: skip
            differs = any(entry.get(name) != value for name, value in said.items())
            if found != request["hash"] or differs or not whole_line(database.key, request):
                problems.append(f"the release of entry {request['entry']} is not the one that was logged")
            releases.discard(request["entry"])
            plans.add((request["dataset"], request["plan"]))
        for job in connection.execute(sa.select(JOBS).order_by(JOBS.c.entry)).mappings():
            found, entry = entries.get(job["entry"], ("", {}))
            said = {"who": job["person"], "request": job["id"], "question": job["digest"], "charge": job["charge"]}
            differs = entry.get("kind") != "job" or any(entry.get(name) != value for name, value in said.items())
            if found != job["hash"] or differs or not whole_line(database.key, job):
                problems.append(f"the job of entry {job['entry']} is not the one that was logged")
            # Paid for before it releases anything, or where it failed and never will.
            plans.add((job["dataset"], job["plan"]))
        names = {line["id"]: line["name"] for line in connection.execute(sa.select(DATASETS)).mappings()}
        asked = sa.select(CHARGES.c.dataset, CHARGES.c.number, CHARGES.c.receipt)
        for charge in connection.execute(asked.where(CHARGES.c.who.startswith("analyst "))):
            if (names[charge.dataset], charge.receipt) not in plans:
                problems.append(f"charge {charge.number} of {names[charge.dataset]!r} has no release in the log")
    problems += [f"the release of entry {number} is missing" for number in sorted(releases)]
    return tuple(problems)


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
