"""Know who asks and what they may: owners, analysts and auditors, by tokens that are hashed, expire and can be revoked.

    owner     reads everything but labels: budgets, the log, metrics
    analyst   spends what was granted on each data set, within the budget of all together
    auditor   reads the log

People, tokens and grants are made beside the store (`labeldp access`), by whoever has its key. A grant cannot be
changed, as no budget can. Whoever has no grant on a data set is told the same as if there were none, on the same path.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from labeldp.budgets.keys import StoreError
from labeldp.budgets.tables import Database, checked_name, now, sa, sealed_line, tampered, whole_line
from labeldp.core.ledger import Budget
from labeldp.service.tables import GRANTS, PEOPLE, TOKENS
from labeldp.service.wire import AccessError

ROLES = ("owner", "analyst", "auditor")
_TOKEN = "ldp"
# How long an answer about a token or a grant serves before the store is asked again: what revoking may take.
FRESH_SECONDS = 1.0
_MOST_REMEMBERED = 10_000
# A token's line that is in no store.
_NOBODYS = dict.fromkeys(("id", "person", "hash", "created", "expires", "revoked", "seal"), "0" * 40)


@dataclass(frozen=True)
class Person:
    """Who asks, as the store knows them."""

    name: str
    role: str

    @property
    def spends_as(self) -> str:
        """The name in the store's charges: no user of the machine is called that."""
        return f"analyst {self.name}"


@dataclass(frozen=True)
class TokenFacts:
    """What may be shown of a token."""

    id: str
    person: str
    created: str
    expires: str
    revoked: str


class Access:
    """People, tokens and grants of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._remembered: OrderedDict[tuple[str, ...], tuple[float, Person | Budget | None]] = OrderedDict()

    # -- made by the owner, beside the store ---------------------------------------------------------------------

    def add(self, name: str, role: str) -> Person:
        """Make a person known; doing it again changes nothing."""
        if role not in ROLES:
            raise AccessError(f"role={role!r} is not one of {', '.join(ROLES)}; give one of them")
        checked_name(name)
        with self._database.writing() as connection:
            line = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.name == name)).mappings().one_or_none()
            if line is not None and line["role"] != role:
                raise AccessError(f"{name!r} is known as {line['role']}; choose another name for another role")
            if line is None:
                made = sealed_line(self._database.key, name=name, role=role, created=now())
                connection.execute(sa.insert(PEOPLE).values(**made))
        return Person(name, role)

    def issue(self, name: str, days: float) -> str:
        """Return a new token of a person, which is shown this once and kept as a keyed hash."""
        if not 0 < days <= 3660:
            raise AccessError(f"days={days} is not a life of a token; give a number above 0, say 90")
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        expires = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="milliseconds")
        made = sealed_line(
            self._database.key, id=identity, person=self.person(name).name, hash=self._hash(identity, secret),
            created=now(), expires=expires, revoked="",
        )  # fmt: skip
        with self._database.writing() as connection:
            connection.execute(sa.insert(TOKENS).values(**made))
        return f"{_TOKEN}.{identity}.{secret}"

    def revoke(self, identity: str) -> None:
        """Let a token count for nothing from now on."""
        with self._database.writing() as connection:
            here = TOKENS.c.id == identity
            line = connection.execute(sa.select(TOKENS).where(here)).mappings().one_or_none()
            if line is None:
                raise AccessError(f"there is no token {identity!r}; see: labeldp access list")
            kept = {key: value for key, value in line.items() if key != "seal"}
            made = sealed_line(self._database.key, **{**kept, "revoked": line["revoked"] or now()})
            connection.execute(sa.update(TOKENS).where(here).values(**made))
        self.forget()

    def grant(self, dataset: str, name: str, budget: Budget) -> None:
        """Let an analyst spend this much on a data set, once and for all; the same again changes nothing."""
        person = self.person(name)
        if person.role != "analyst":
            raise AccessError(f"{name!r} is {person.role} and does not spend; give the grant to an analyst")
        if not 0 < budget.epsilon < float("inf"):
            raise AccessError(f"epsilon={budget.epsilon} is not a grant; give a finite number above 0")
        with self._database.writing() as connection:
            here = (GRANTS.c.dataset == dataset, GRANTS.c.person == name)
            line = connection.execute(sa.select(GRANTS).where(*here)).mappings().one_or_none()
            if line is not None and (line["epsilon"], line["delta"]) != (budget.epsilon, budget.delta):
                raise AccessError(
                    f"{name!r} was granted epsilon {line['epsilon']:g}, delta {line['delta']:g} on {dataset!r}, which "
                    "cannot be changed: a budget that can be raised later is none"
                )
            if line is None:
                made = sealed_line(
                    self._database.key, dataset=dataset, person=name, epsilon=float(budget.epsilon),
                    delta=float(budget.delta), created=now(),
                )  # fmt: skip
                connection.execute(sa.insert(GRANTS).values(**made))
        self.forget()

    def person(self, name: str) -> Person:
        """Return a person; AccessError where there is none of that name."""
        with self._database.reading() as connection:
            line = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.name == name)).mappings().one_or_none()
        if line is None:
            raise AccessError(f"there is nobody called {name!r}; see: labeldp access list")
        return Person(line["name"], self._whole(line)["role"])

    def people(self) -> list[Person]:
        """Return everybody, by name."""
        with self._database.reading() as connection:
            lines = connection.execute(sa.select(PEOPLE).order_by(PEOPLE.c.name)).mappings().all()
        return [Person(line["name"], self._whole(line)["role"]) for line in lines]

    def tokens(self) -> list[TokenFacts]:
        """Return what may be shown of all tokens, the newest last."""
        with self._database.reading() as connection:
            lines = connection.execute(sa.select(TOKENS).order_by(TOKENS.c.created)).mappings().all()
        return [TokenFacts(*(self._whole(line)[name] for name in TokenFacts.__dataclass_fields__)) for line in lines]

    def grants(self) -> list[tuple[str, str, Budget]]:
        """Return (data set, analyst, budget) of all grants."""
        with self._database.reading() as connection:
            lines = connection.execute(sa.select(GRANTS).order_by(GRANTS.c.dataset, GRANTS.c.person)).mappings().all()
        return [(line["dataset"], line["person"], _budget(self._whole(line))) for line in lines]

    # -- asked by the server, at every call ----------------------------------------------------------------------

    def who(self, token: str) -> Person:
        """Return whose token this is; one sentence for tokens that are wrong, expired or revoked."""
        person = self._fresh(("token", self._hash("", token)), lambda: self._of_token(token))
        if not isinstance(person, Person):
            raise AccessError("the token does not count here; ask the data owner for one: labeldp access token")
        return person

    def allowance(self, person: Person, dataset: str, role: str = "analyst") -> Budget:
        """Return what an analyst may spend on a data set; one sentence where it has no grant, or there is no such."""
        budget = self._fresh(("grant", dataset, person.name), lambda: self._of_grant(dataset, person.name))
        if person.role != role or not isinstance(budget, Budget):
            raise AccessError(f"there is no data set {dataset!r} that you may ask; see its name, or ask its owner")
        return budget

    def forget(self) -> None:
        """Ask the store again for everything."""
        with self._lock:
            self._remembered.clear()

    def _fresh(self, about: tuple[str, ...], find: object) -> Person | Budget | None:
        with self._lock:
            made, found = self._remembered.get(about, (-1e9, None))
        if time.monotonic() - made > FRESH_SECONDS:
            found = find()  # type: ignore[operator]
            with self._lock:
                self._remembered[about] = time.monotonic(), found
                while len(self._remembered) > _MOST_REMEMBERED:
                    self._remembered.popitem(last=False)
        return found

    def _of_token(self, token: str) -> Person | None:
        """Return whose token it is; None where it is wrong, expired or revoked, found out on one path."""
        mark, _, rest = token.partition(".")
        identity, _, secret = rest.partition(".")
        with self._database.reading() as connection:
            line = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == identity)).mappings().one_or_none()
            whose = "" if line is None else line["person"]
            person = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.name == whose)).mappings().one_or_none()
        # Of a token that is not there as much is hashed as of one that is.
        kept = self._whole(line)["hash"] if line is not None else str(whole_line(self._database.key, _NOBODYS))
        same = hmac.compare_digest(kept, self._hash(identity, secret)) and mark == _TOKEN
        if line is None or person is None or not same or line["revoked"]:
            return None
        alive = datetime.fromisoformat(line["expires"]) > datetime.now(UTC)
        return Person(person["name"], self._whole(person)["role"]) if alive else None

    def _of_grant(self, dataset: str, name: str) -> Budget | None:
        with self._database.reading() as connection:
            here = (GRANTS.c.dataset == dataset, GRANTS.c.person == name)
            line = connection.execute(sa.select(GRANTS).where(*here)).mappings().one_or_none()
        return None if line is None else _budget(self._whole(line))

    def _hash(self, identity: str, secret: str) -> str:
        # 256 random bits need no slow hash.
        return self._database.key.digest("token/1", f"{identity} {secret}").hex()

    def _whole(self, line: sa.RowMapping) -> sa.RowMapping:
        if not whole_line(self._database.key, line):
            raise StoreError(tampered("people and grants", self._database.name))
        return line


def _budget(line: sa.RowMapping) -> Budget:
    return Budget(line["epsilon"], line["delta"])


class RateLimit:
    """Let each person ask so often: a bucket that fills at a rate and is emptied by asking.

    >>> limit = RateLimit(per_second=1.0, at_once=2)
    >>> [limit.allows("ann", at=0.0) for _ in range(3)], limit.allows("ann", at=1.0), limit.allows("bob", at=0.0)
    ([True, True, False], True, True)
    """

    def __init__(self, per_second: float, at_once: int) -> None:
        self._rate, self._most = per_second, float(at_once)
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, name: str, at: float | None = None) -> bool:
        """Return whether somebody may ask now, and count it."""
        moment = time.monotonic() if at is None else at
        with self._lock:
            left, seen = self._buckets.get(name, (self._most, moment))
            left = min(self._most, left + (moment - seen) * self._rate)
            allowed = left >= 1.0
            self._buckets[name] = (left - 1.0 if allowed else left), moment
            return allowed
