"""State what is requested of a table, check it before anything is spent, and seal the labels chunk by chunk.

What cannot be done is refused by a `TableError`: one sentence that says what to do and quotes no label.
"""

from __future__ import annotations

import difflib
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.core.events import PureDP
from labeldp.core.ledger import ONE_LABEL, ONE_USER, Group, Ledger, Unit, merge_disjoint
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import FloatArray, NoisyLabels

# The second format is written where all labels of a user are protected together, which the first cannot say.
FORMAT, FORMAT_USERS = "labeldp-table/1", "labeldp-table/2"
SCALAR = ("randomized-response", "prior-response", "top-k-response")
VECTOR = ("bit-flip", "laplace-one-hot")
LARGEST_WEIGHT = 1e300
WITH_PRIOR = ("prior-response", "top-k-response")

Codes = npt.NDArray[np.signedinteger[Any]]
Arguments = ParamSpec("Arguments")
Out = TypeVar("Out")

# Called now and then with the number of rows written and the fraction of the source read so far.
Report = Callable[[int, float], None]


# -- refusals --------------------------------------------------------------------------------------------------------


class TableError(ValueError):
    """A table cannot be privatized, read or written as requested. One sentence; it never quotes a label."""


def refusing(function: Callable[Arguments, Out]) -> Callable[Arguments, Out]:
    """Let refusals travel without the frames in which they were raised: local variables there hold labels.

    Crash reporters and test runners print the variables of every frame. Other exceptions are bugs and keep theirs.
    """

    @functools.wraps(function)
    def refuse(*args: Arguments.args, **settings: Arguments.kwargs) -> Out:
        try:
            return function(*args, **settings)
        except (ValueError, FileNotFoundError) as error:
            refusal = error.with_traceback(None)
        # Outside the handler, so that no chain leads back; nor does what the refusal was made of.
        refusal.__cause__ = refusal.__context__ = None
        raise refusal

    return refuse


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return public names for a message, quoted so that a stray space shows."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def column_advice(name: str, names: Sequence[str]) -> str:
    """Return what to do about a column that is not there once.

    Names are not quoted unless they are nearly the one that was given: where a CSV file has no header, they are the
    cells of its first row, label included.

    >>> column_advice("Income", ["age", "income "])
    "did you mean 'income '?"
    """
    if names.count(name) > 1:
        return f"{names.count(name)} of its {len(names)} columns have that name: rename all but one"
    folded = {other.strip().casefold(): other for other in names if other != name}
    near = difflib.get_close_matches(name.strip().casefold(), folded, 3, cutoff=0.8)
    if near:
        return f"did you mean {' or '.join(repr(folded[one]) for one in near)}?"
    return (
        f"it is not among its {len(names)} columns: check the spelling (case matters), the --delimiter, and that "
        "the first line of a CSV file names the columns"
    )


# -- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owners:
    """Whose the rows of a table are: the column that says it, how many users there are, and the most rows of one."""

    column: str
    users: int
    most_rows: int

    def __post_init__(self) -> None:
        if not all(type(count) is int and count >= 1 for count in (self.users, self.most_rows)):
            raise TableError(f"users: {self.users!r} users with at most {self.most_rows!r} rows cannot be")

    @classmethod
    def of(cls, column: str, ids: Sequence[str]) -> Owners:
        """Count the users of this column, and the rows of each; there must be some."""
        counts = Counter(ids)
        if not counts:
            raise TableError(f"the column {column!r} has no rows; give a table with some")
        return cls(column, len(counts), max(counts.values()))


@dataclass(frozen=True)
class Request:
    """The public settings of one release. Build it with `checked`.

    With `owners`, ε is for all labels of one user together. Every label is then answered at ε/m, m the most rows that
    a user has. Proof: replacing the labels of a user changes at most m factors of the product of all responses'
    probabilities, each by at most e^(ε/m), so the odds move by at most e^ε; m is public.
    """

    label: str
    classes: tuple[str, ...]
    epsilon: float
    mechanism: str = "randomized-response"
    prior_columns: tuple[str, ...] = ()
    k: int | None = None
    owners: Owners | None = None

    @property
    def unit(self) -> Unit:
        """Return whose labels may change at once."""
        return ONE_LABEL if self.owners is None else ONE_USER

    @property
    def label_epsilon(self) -> float:
        """Return what one label is answered at: for users the largest float whose m-fold, exactly, is at most ε.

        >>> Request("y", ("a", "b"), 1.0, owners=Owners("who", 5, 3)).label_epsilon * 3 <= 1
        True
        """
        if self.owners is None:
            return self.epsilon
        most = self.owners.most_rows
        part = self.epsilon / most
        return part if Fraction(part) * most <= Fraction(self.epsilon) else math.nextafter(part, 0.0)

    @property
    def is_vector(self) -> bool:
        """Return whether a response is a vector with one entry per class, rather than a class."""
        return self.mechanism in VECTOR

    @property
    def needs_prior(self) -> bool:
        """Return whether every row needs a prior over the classes."""
        return self.mechanism in WITH_PRIOR

    @property
    def event(self) -> PureDP:
        """Return what the release costs every row, or every user."""
        return PureDP(self.epsilon)

    def uniform_prior(self, num_rows: int) -> FloatArray:
        """Return the prior that says nothing, (num_rows, K)."""
        return np.full((num_rows, len(self.classes)), 1 / len(self.classes))

    def randomizer(self, prior: FloatArray) -> Any:
        """Return the mechanism for rows with this prior, (n, K); mechanisms that need none ignore it."""
        match self.mechanism:
            case "prior-response":
                return PriorResponse(self.label_epsilon, prior)
            case "top-k-response":
                return TopKResponse.of_prior(self.label_epsilon, prior, self.k or 0)
            case "bit-flip":
                return BitFlip(self.label_epsilon, len(self.classes))
            case "laplace-one-hot":
                return LaplaceOneHot(self.label_epsilon, len(self.classes))
            case _:
                return RandomizedResponse(self.label_epsilon, len(self.classes))

    def public(self, rng: SecureRandom, **more: Any) -> dict[str, Any]:
        """Return the parameters that travel with the artifact, as plain JSON values."""
        description = dict(self.randomizer(self.uniform_prior(1)).describe())
        # Some channels are per row; how many rows there are, a stream knows only at its end.
        description.pop("rows", None)
        return {
            "format": FORMAT if self.owners is None else FORMAT_USERS,
            "epsilon": self.epsilon,
            "label": self.label,
            "classes": list(self.classes),
            "mechanism": description,
            "prior_columns": list(self.prior_columns),
            "noise": rng.source,
            **({} if self.owners is None else {"users": asdict(self.owners)}),
            **more,
        }


def checked(
    label: str,
    classes: Iterable[object],
    epsilon: float,
    *,
    mechanism: str | None = None,
    prior_columns: Sequence[str] = (),
    k: int | None = None,
    owners: Owners | None = None,
) -> Request:
    """Return a request whose settings fit together, or raise a TableError that names the one that does not."""
    if isinstance(prior_columns, str):
        raise TableError(f"prior_columns={prior_columns!r} is one text; give a list of them, as in ['no', 'yes']")
    names = declared_classes(label, classes)
    number = isinstance(epsilon, (int, float, np.integer, np.floating)) and not isinstance(epsilon, bool)
    # Compared before it is converted: a huge whole number has no float.
    if not number or not 0 <= epsilon <= sys.float_info.max:
        raise TableError(f"epsilon={epsilon!r} is not a privacy parameter; give a finite number ≥ 0, say 1.0")
    if mechanism is None:
        mechanism = "prior-response" if prior_columns else "randomized-response"
    _check_texts(prior_columns, "prior_columns")
    request = Request(label, names, float(epsilon), mechanism, tuple(prior_columns), k, owners)
    _check_mechanism(request)
    try:
        request.randomizer(request.uniform_prior(1))
    except (ValueError, TypeError, OverflowError) as error:
        raise TableError(str(error)) from None
    return request


def declared_classes(label: str, classes: Iterable[object]) -> tuple[str, ...]:
    """Return the classes as texts that a label column can hold, or raise TableError."""
    if isinstance(classes, str):
        raise TableError(f"classes={classes!r} is one text; give a list of them, as in ['no', 'yes']")
    names = tuple(str(name) for name in classes)
    if not names:
        raise TableError("classes is empty; declare every class a label may have (they are never read off the data)")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise TableError(f"classes names {name!r} {times} times; declare each class once")
    _check_texts((label,), "label")
    _check_texts(names, "classes")
    return names


def _check_texts(names: Iterable[object], argument: str) -> None:
    for name in names:
        try:
            usable = isinstance(name, str) and b"\0" not in name.encode()
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise TableError(f"{argument}: {name!r} is not text that UTF-8 can hold; rename it")


def _check_mechanism(request: Request) -> None:
    name, columns = request.mechanism, request.prior_columns
    if name not in SCALAR + VECTOR:
        raise TableError(f"mechanism={name!r} is not one of {', '.join(SCALAR + VECTOR)}")
    if request.needs_prior and len(columns) != len(request.classes):
        raise TableError(
            f"mechanism={name!r} needs prior_columns, one per class in the order of classes; "
            f"{len(columns)} given for {len(request.classes)} classes"
        )
    if columns and not request.needs_prior:
        raise TableError(f"mechanism={name!r} takes no prior; leave out prior_columns or use 'prior-response'")
    if request.k is None and name == "top-k-response":
        raise TableError(f"mechanism={name!r} needs k, the number of responses a row may have")
    if request.k is not None and name != "top-k-response":
        raise TableError(f"k={request.k} does not fit mechanism={name!r}; k belongs to 'top-k-response' only")
    if request.label in columns:
        raise TableError(f"prior_columns contains the label column {request.label!r}: a prior must be public")
    if len(set(columns)) < len(columns):
        raise TableError("prior_columns names a column twice; give one column per class")


# -- sealing ---------------------------------------------------------------------------------------------------------


@dataclass
class Sealer:
    """Turns chunks of labels into private responses, and keeps the ledger of all of them.

    Chunks share no row, so their ledgers stand side by side: every row is queried once, at one epsilon. A user may have
    rows in several chunks, so users are charged once, in advance, for all of them.
    """

    request: Request
    rng: SecureRandom
    rows: int = 0
    # Not empty even for a table without rows: the query was paid for, so the certificate says what it costs.
    groups: tuple[Group, ...] = field(init=False)

    def __post_init__(self) -> None:
        owners = self.request.owners
        self.groups = Ledger(0 if owners is None else owners.users).charge(self.request.event).groups()

    def response(self, codes: Codes, missing: int, prior: FloatArray | None = None) -> NoisyLabels:
        """Return private responses for labels 0 … K − 1; −1 stands for the `missing` ones and the undeclared ones."""
        self.rows += len(codes)
        _check_usable(int(np.count_nonzero(codes < 0)), missing, self.rows, self.request.classes)
        vault = LabelVault(codes, len(self.request.classes), rng=self.rng)
        private = vault.release(self.request.randomizer(self.request.uniform_prior(1) if prior is None else prior))
        if self.request.owners is None:
            self.groups = merge_disjoint((self.groups, vault.ledger.groups()))
        return private


def usable(parts: Iterable[tuple[Codes, int]], classes: tuple[str, ...]) -> Iterator[Codes]:
    """Yield the codes of a column's parts; after the last, raise TableError if something in it cannot be sealed.

    Each part comes with how many of its labels are missing. A code of −1 stands for what is missing or undeclared. The
    message has counts only.
    """
    rows = unusable = missing = 0
    for codes, absent in parts:
        rows, unusable, missing = rows + len(codes), unusable + int(np.count_nonzero(codes < 0)), missing + absent
        yield codes
    _check_usable(unusable, missing, rows, classes)


def _check_usable(unusable: int, missing: int, rows: int, classes: tuple[str, ...]) -> None:
    if unusable:
        wrong, of = unusable - missing, f"of {rows} labels read so far are"
        exactly = "declare every class exactly as the table has it, spaces and capital letters included"
        absent = "leave out rows without a label, or give them a class of their own"
        if not wrong:
            raise TableError(f"{missing} {of} missing; {absent}")
        among = f"{wrong} {of} not among the declared classes {listed(classes)}"
        if not missing:
            raise TableError(f"{among}; {exactly}")
        raise TableError(f"{among} and {missing} are missing; {exactly}, and {absent}")


def check_prior(prior: FloatArray, rows_before: int) -> FloatArray:
    """Return the prior (n, K) if all of it is finite and none negative. A row of zeros counts as uniform."""
    # A NaN fails both comparisons.
    bad = ~((prior >= 0) & (prior <= LARGEST_WEIGHT)).all(axis=1)
    if bad.any():
        raise TableError(
            f"prior_columns: {int(bad.sum())} of data rows {rows_before + 1} to {rows_before + len(prior)} "
            "hold something missing, infinite or negative; give one weight ≥ 0 per class"
        )
    return prior
