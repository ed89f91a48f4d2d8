"""Write the owner's page: what every analyst has spent, when and of what, people and tokens, certificates, the log.

One HTML file that fetches and runs nothing, made beside the store by whoever has its key. There is nothing to attack in
it: no port, no password, no session. It holds no label, no release and no token; it names people and what they asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from labeldp.atomic import replacing
from labeldp.budgets.batch import Batch, Book
from labeldp.budgets.store import BudgetStore
from labeldp.budgets.tables import CHARGES, DATASETS, Database, DataSet, now, recorded_charge, sa
from labeldp.core.ledger import Budget, Ledger
from labeldp.results.card import at_most, render
from labeldp.results.charts import DARK, LIGHT, Axis, Series, chart
from labeldp.results.report import Table
from labeldp.service import log, logbook
from labeldp.service.access import Access
from labeldp.service.logbook import problems_of_store
from labeldp.service.tables import REQUESTS

# Lines of one chart beside that of all together, points of a line that are composed, and entries of the log shown.
_MOST_LINES, _MOST_POINTS, _MOST_ENTRIES = 4, 40, 60
_ANALYST = "analyst "
_DAY = 86_400.0


@dataclass
class _Spent:
    """What one of them has spent in the course of time: books as they were after every plan."""

    books: list[tuple[str, Book]] = field(default_factory=list[tuple[str, Book]])

    def course(self, delta: float) -> list[tuple[float, float]]:
        """Return (time, ε) at some of the moments when it grew, the last one among them."""
        stride = max(1, -(-len(self.books) // _MOST_POINTS))
        return [(_seconds(time), book.ledger.epsilon(delta)) for time, book in self.books[::-1][::stride]][::-1]


def write_page(database: Database, path: Path) -> None:
    """Write the page, whole or not at all; readable for its owner alone."""
    text = page(database)
    with replacing(path) as draft:
        draft.touch(mode=0o600)
        draft.write_text(text, encoding="utf-8")


def page(database: Database) -> str:
    """Return the page as HTML."""
    lines, access = logbook.read(database), Access(database)
    problems = log.verify(lines)
    problems += () if problems else problems_of_store(database, lines)
    return render(
        "owner.html",
        name=Path(database.name).name,
        time=now(),
        light=LIGHT,
        dark=DARK,
        problems=problems,
        entries=len(lines),
        signer=lines[-1].signer if lines else "",
        datasets=[_dataset(database, each, access) for each in BudgetStore(database).datasets()],
        people=_people(access),
        log=_log(lines),
    )


# -- a data set --------------------------------------------------------------------------------------------------------


def _dataset(database: Database, dataset: DataSet, access: Access) -> dict[str, Any]:
    """Return what the page shows of one data set."""
    budget, spent = dataset.budget, _spent(database, dataset)
    grants = {person: grant for name, person, grant in access.grants() if name == dataset.name}
    courses = {who: each.course(budget.delta) for who, each in spent.items()}
    total = courses[""][-1][1] if courses[""] else 0.0
    return {
        "name": dataset.name,
        "tiles": [
            ("all may spend", f"ε = {budget.epsilon:g}"),
            ("spent by all together", f"ε ≤ {at_most(total)}" if total else "nothing"),
            ("at δ", f"{budget.delta:g}"),
            (dataset.unit.counted if dataset.grouping else "labels", f"{dataset.units:,}"),
        ],
        "chart": _chart(dataset.name, budget, courses) if courses[""] else "",
        "analysts": _analysts(database, dataset, grants, spent),
    }  # fmt: skip


def _spent(database: Database, dataset: DataSet) -> dict[str, _Spent]:
    """Replay the charges, whose seals are checked first: of each who spends, and under "" of all together."""
    found = {"": _Spent()}
    with database.writing() as connection:
        Batch(database, connection, dataset.name)
        here = sa.select(DATASETS.c.id).where(DATASETS.c.name == dataset.name).scalar_subquery()
        asked = sa.select(CHARGES).where(CHARGES.c.dataset == here).order_by(CHARGES.c.number)
        charges = connection.execute(asked).mappings().all()
    for _, plan in groupby(charges, lambda each: each["plan"] or each["number"]):
        of_plan = list(plan)
        together = [recorded_charge(each, dataset.units) for each in of_plan]
        for who in ("", of_plan[0]["who"]):
            books = found.setdefault(who, _Spent()).books
            before = books[-1][1] if books else Book(Ledger(dataset.units))
            books.append((of_plan[0]["time"], before.charged(together)))
    return found


def _chart(name: str, budget: Budget, courses: dict[str, list[tuple[float, float]]]) -> str:
    """Return ε in the course of time, as steps, of all together and of those who have spent most."""
    first, last = courses[""][0][0], _seconds(now())
    days = last - first > 3 * _DAY
    unit, since = (_DAY, "days") if days else (3600.0, "hours")
    end = max((last - first) / unit, 0.01)
    whose = sorted((who for who in courses if who), key=lambda who: -courses[who][-1][1])[:_MOST_LINES]
    shown = [
        Series(
            "all together" if not who else who.removeprefix(_ANALYST), list(_steps(courses[who], first, unit, end)),
            tone=tone, dotted=not who,
        )
        for tone, who in zip((5, 1, 2, 3, 4), ("", *whose), strict=False)
    ]  # fmt: skip
    begun = f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC"
    most = max(budget.epsilon, courses[""][-1][1])
    shown.append(Series("the budget of all", [(0.0, budget.epsilon), (end, budget.epsilon)], tone=5, dashed=True))
    return chart(
        f"What was spent on {name}",
        f"{len(whose)} who spend; all together have spent {at_most(courses[''][-1][1])} of {budget.epsilon:g}.",
        Axis(f"{since} since {begun}", 0.0, end),
        Axis("ε", 0.0, 1.05 * most),
        shown,
    )


def _steps(
    course: Sequence[tuple[float, float]], first: float, unit: float, end: float
) -> Iterator[tuple[float, float]]:
    """Yield the corners of a line that stays as it is between two queries."""
    before = 0.0
    yield 0.0, before
    for time, spent in course:
        place = (time - first) / unit
        yield place, before
        yield place, spent
        before = spent
    yield end, before


def _analysts(database: Database, dataset: DataSet, grants: dict[str, Budget], spent: dict[str, _Spent]) -> Table:
    """Return who may spend how much, what each has spent, and the entry that their certificate names."""
    newest = sa.select(REQUESTS.c.person, sa.func.count(), sa.func.max(REQUESTS.c.entry)).where(
        REQUESTS.c.dataset == dataset.name
    )
    with database.reading() as connection:
        asked = {person: (count, entry) for person, count, entry in connection.execute(newest.group_by("person"))}
        last = [entry for _, entry in asked.values()]
        at = connection.execute(sa.select(REQUESTS.c.entry, REQUESTS.c.hash).where(REQUESTS.c.entry.in_(last)))
        hashes = {line.entry: line.hash for line in at}
    rows = []
    others = sorted(who for who in spent if who and who.removeprefix(_ANALYST) not in grants)
    for who in (*sorted(grants), *others):
        grant, books = grants.get(who), spent.get(who if who in spent else f"{_ANALYST}{who}", _Spent()).books
        delta = dataset.budget.delta if grant is None else grant.delta
        epsilon = books[-1][1].ledger.epsilon(delta) if books else 0.0
        count, entry = asked.get(who, (0, None))
        rows.append([
            who,
            "no grant; has the store's key" if grant is None else f"ε = {grant.epsilon:g}, δ = {delta:g}",
            f"ε ≤ {at_most(epsilon)}" if epsilon else "nothing",
            f"{count:,}",
            _day(books[-1][0]) if books else "never",
            "none" if entry is None else f"{entry}: {hashes[entry][:16]}…",
        ])  # fmt: skip
    head = ["who", "may spend", "has spent", "releases", "last charged", "certificate names entry"]
    return Table("What each may spend, and what a certificate of the service states", head, rows, (3,))


# -- people, and the log -----------------------------------------------------------------------------------------------


def _people(access: Access) -> Table:
    tokens, rows = access.tokens(), []
    for person in access.people():
        own = [token for token in tokens if token.person == person.name]
        rows += [
            [person.name, person.role, token.id, _day(token.created),
             f"revoked {_day(token.revoked)}" if token.revoked else f"expires {_day(token.expires)}"]
            for token in own
        ] or [[person.name, person.role, "none", "", ""]]  # fmt: skip
    return Table(
        "Tokens by their ids; a token itself cannot be shown again", ["who", "role", "token", "made", "state"], rows
    )


def _log(lines: Sequence[log.Line]) -> Table:
    rows = []
    for line in lines[: -_MOST_ENTRIES - 1 : -1]:
        entry = json.loads(line.entry)
        about = [str(entry[name]) for name in ("dataset", "verb", "recipe", "role", "token", "reason") if name in entry]
        about += [f"{entry['rows']:,} rows"] if "rows" in entry else []
        rows.append([
            str(line.number), _day(entry["time"]), entry["kind"], str(entry.get("who", "")), ", ".join(about),
            f"{line.hash[:16]}…",
        ])  # fmt: skip
    shown = "all of it" if len(lines) <= _MOST_ENTRIES else f"the last {_MOST_ENTRIES} of {len(lines):,} entries"
    return Table(f"The newest first; {shown}", ["entry", "time (UTC)", "what", "who", "about", "hash"], rows)


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _day(time: str) -> str:
    """Return a time of the store without its seconds."""
    return time[:16].replace("T", " ")
