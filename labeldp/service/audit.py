"""Check a store against its log: every release that is kept, and every charge of an analyst, has its entry.

What the log proves by itself is in `labeldp.service.log`. Here the owner's tables are compared with it: a release that
was taken out, changed or put in, and a charge that no release and no plan explains, are found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from labeldp.budgets.tables import CHARGES, DATASETS, Database, sa, whole_line
from labeldp.service import logbook
from labeldp.service.log import Line
from labeldp.service.tables import JOBS, REQUESTS


def problems_of_store(database: Database, lines: Sequence[Line]) -> tuple[str, ...]:
    """Return what is wrong, as sentences; nothing when the tables and the log say the same.

    What a running service has written since the lines were read is seen with its own lines.
    """
    problems: list[str] = []
    plans: set[tuple[str, str]] = set()
    with database.reading() as connection:
        newer = logbook.read_in(connection, after=lines[-1].number if lines else 0)
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
