"""Put queries and releases into plain values: a verb, checked settings, columns of numbers; no code and no pickles.

A query travels as JSON, `{"verb": ..., "settings": {...}}`, and one Arrow column for each of the mechanism's arrays
that have an entry per row. Every verb declares its settings and columns below; whatever else a message holds is refused
before a mechanism is made of it. A release travels as named arrays (safetensors) and JSON.

What the analyst computed for itself stays there: of a prior only the sets that it allows are sent, of bins not the
values that stand for them. The channel of a release is the mechanism that the analyst asked with.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import safetensors.numpy

from labeldp.core.vault import MechanismError
from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.evaluation import ErrorCounts, ScoreCounts
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.mechanisms.responses import RandomizedResponse, SetResponse, TopKResponse
from labeldp.mechanisms.selection import BestCandidate, GroupVotes
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import Users
from labeldp.mechanisms.values import Binned, BinnedResponse, NoisyValues, Rounded
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.recipes import kept
from labeldp.releases import NoisyLabels

Array = npt.NDArray[Any]
Settings = dict[str, Any]
Check = Callable[[str, Any], Any]

# Classes, groups, levels and candidates that a query may name: their product with classes is what a release holds.
MOST_CLASSES, MOST_CELLS, MOST_WIDTH = 1 << 16, 1 << 26, 1 << 16
# Responses of one user that are composed at a δ, which takes seconds of thousands.
MOST_COMPOSED = 1 << 10
# Bytes of one release, which is kept whole, and of columns that have to be gathered before it is drawn.
MOST_BYTES, MOST_GATHERED = 1 << 29, 1 << 32


class WireError(ValueError):
    """A message that is not as declared. One sentence; it quotes settings, which are public, and never data."""


class AccessError(ValueError):
    """Somebody who may not do what they ask for. The sentence does not say what there is."""


class BusyError(AccessError):
    """Somebody who asks too often."""


@dataclass(frozen=True)
class Question:
    """A mechanism in plain values.

    Args:
        verb: which one.
        settings: its public settings, as JSON has them.
        columns: arrays with one entry, or a row of entries, per row that is asked.
        stream: features that come in chunks of rows, in place of a column.
    """

    verb: str
    settings: Settings
    columns: Mapping[str, Array] = field(default_factory=dict)
    stream: RowChunks | None = None


# -- checks of settings ------------------------------------------------------------------------------------------------


def number(low: float, high: float = math.inf) -> Check:
    """Return a check for a finite number in [low, high]."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise WireError(f"{name}={_shown(value)} is not a finite number; give one")
        if not low <= value <= high:
            raise WireError(f"{name}={_shown(value)} is not in {low:g} … {high:g}; give a number that is")
        return float(value)

    return check


def integer(low: int, high: int) -> Check:
    """Return a check for a whole number in [low, high]."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise WireError(f"{name}={_shown(value)} is not a whole number in {low} … {high}; give one")
        return value

    return check


def integers(most: int, low: int, high: int) -> Check:
    """Return a check for a list of at most so many whole numbers, as an array."""

    def check(name: str, value: Any) -> npt.NDArray[np.int64]:
        if not isinstance(value, list) or not 0 < len(value) <= most:
            raise WireError(f"{name} is not a list of 1 … {most} whole numbers; give one")
        if not all(type(each) is int and low <= each <= high for each in value):
            raise WireError(f"{name} has entries that are not whole numbers in {low} … {high}; give others")
        return np.array(value, dtype=np.int64)

    return check


def choice(*allowed: str) -> Check:
    """Return a check for one of these words."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise WireError(f"{name}={_shown(value)} is not one of {', '.join(allowed)}; give one of them")
        return value

    return check


def flag(name: str, value: Any) -> bool:
    """Check that it is true or false."""
    if not isinstance(value, bool):
        raise WireError(f"{name}={_shown(value)} is neither true nor false; give one of them")
    return value


def text(most: int) -> Check:
    """Return a check for printable text of 1 to so many characters."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
            raise WireError(f"{name}={_shown(value)} is not a text of 1 … {most} characters; give one")
        return value

    return check


def optional(check: Check) -> Check:
    """Return the check for a value that may be null."""
    return lambda name, value: None if value is None else check(name, value)


def listed(most: int, check: Check) -> Check:
    """Return a check for a list of at most so many values that pass a check."""

    def checked(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise WireError(f"{name} is not a list of at most {most} values; give one")
        return [check(f"{name}[{place}]", each) for place, each in enumerate(value)]

    return checked


def fields(declared: Mapping[str, Check]) -> Check:
    """Return a check for an object that has exactly these fields; one that may be null may be left out."""

    def check(name: str, value: Any) -> Settings:
        if not isinstance(value, dict):
            raise WireError(f"{name} is not an object with the fields {', '.join(declared)}; give one")
        odd = sorted(set(value) - set(declared))
        if odd:
            raise WireError(f"{name} has a field {_shown(odd[0])} that is not declared; leave it out")
        return {key: one(key if name in ("", "settings") else f"{name}.{key}", value.get(key))
                for key, one in declared.items()}  # fmt: skip

    return check


def parsed(message: bytes | memoryview, declared: Mapping[str, Check], most: int = 1 << 24) -> Settings:
    """Return the fields of a JSON message that has exactly the declared ones; WireError otherwise."""
    return fields(declared)("", loaded(message, most))


def loaded(message: bytes | memoryview, most: int = 1 << 24) -> Any:
    """Return the value of a JSON message, unchecked but for what JSON allows and this library does not."""
    if len(message) > most:
        raise WireError(f"the message has {len(message)} bytes, more than {most}; send less at once")
    try:
        return json.loads(bytes(message).decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except WireError:
        raise
    except (ValueError, RecursionError):
        raise WireError("the message is not JSON; use RemoteVault, or see docs/service.md") from None


def _once(pairs: list[tuple[str, Any]]) -> Settings:
    if len(dict(pairs)) != len(pairs):
        raise WireError("a field is given twice; give it once")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise WireError(f"{name} is not a number that JSON has; give a finite one")


def _shown(value: Any) -> str:
    """Return a setting as a message may quote it: short, and a number or text only."""
    shown = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _noise(name: str, value: Any) -> GaussianNoise | LaplaceNoise:
    given = fields({"kind": choice("laplace", "gaussian"), "size": number(0.0, 1e15)})(name, value)
    kind = LaplaceNoise if given["kind"] == "laplace" else GaussianNoise
    return _made(kind, given["size"])


_EPSILON, _CLASSES, _GROUPS = number(0.0, 1e4), integer(1, MOST_CLASSES), integer(1, MOST_CELLS)
_INNER = fields({"verb": choice("counts", "moments"), "settings": lambda name, value: value})
# What each verb takes. A column is (type, width): width is the setting that counts entries per row, None for one.
SETTINGS: Mapping[str, Mapping[str, Check]] = {
    "responses": {"epsilon": _EPSILON, "num_classes": _CLASSES},
    "sets": {"epsilon": _EPSILON, "num_classes": _CLASSES,
             "members": optional(integers(MOST_CLASSES, 0, MOST_CLASSES - 1))},
    "vectors": {"epsilon": _EPSILON, "num_classes": _CLASSES, "levels": integer(1, 65535)},
    "bits": {"epsilon": _EPSILON, "num_classes": _CLASSES},
    "bins": {"epsilon": _EPSILON, "bins": integers(MOST_CLASSES, 0, MOST_CLASSES)},
    "user_responses": {"epsilon": _EPSILON, "num_classes": _CLASSES, "cap": optional(integer(1, 1 << 31)),
                       "delta": number(0.0, 0.999)},
    "counts": {"num_groups": _GROUPS, "num_classes": _CLASSES, "noise": _noise},
    "votes": {"num_groups": _GROUPS, "num_classes": _CLASSES, "epsilon": _EPSILON},
    "best": {"candidates": integer(1, 4096), "num_classes": _CLASSES, "epsilon": _EPSILON},
    "scores": {"num_groups": _GROUPS, "num_classes": _CLASSES, "epsilon": _EPSILON},
    "errors": {"num_groups": _GROUPS, "num_levels": integer(2, MOST_CLASSES), "epsilon": _EPSILON,
               "grid": integers(MOST_CLASSES, -MOST_CLASSES, MOST_CLASSES)},
    "moments": {"num_classes": _CLASSES, "noise": _noise, "radius": number(0.0, 1e300), "exact": flag,
                "width": integer(1, MOST_WIDTH), "kind": choice("float32", "float64")},
    "binned": {"bins": integers(MOST_CLASSES, 0, MOST_CLASSES), "inner": _INNER},
    "rounded": {"num_classes": integer(2, MOST_CLASSES), "classes": integer(2, MOST_CLASSES), "inner": _INNER},
}  # fmt: skip
VERBS = tuple(SETTINGS)
FEATURES = "features"


def checked_settings(verb: str, settings: Any) -> Settings:
    """Return the settings of a verb, each checked; those of an inner mechanism, too."""
    given = fields(SETTINGS[verb])("settings", settings)
    if "inner" in given:
        inner = given["inner"]
        given["inner"] = {"verb": inner["verb"], "settings": checked_settings(inner["verb"], inner["settings"])}
    return given


def declared_columns(verb: str, settings: Settings) -> dict[str, tuple[str, int | None]]:  # noqa: PLR0911 - one case for each verb
    """Return the columns that belong to a query: their type, and how many entries a row has, None for a bare number."""
    if "inner" in settings:
        return declared_columns(settings["inner"]["verb"], settings["inner"]["settings"])
    one = ("int64", None)
    match verb:
        case "sets" if settings["members"] is None:
            return {"sets": ("uint8", -(-settings["num_classes"] // 8))}
        case "counts" | "votes":
            return {"groups": one}
        case "scores" | "errors":
            return {"predicted": one, "groups": one}
        case "best":
            return {"predictions": ("int64", settings["candidates"])}
        case "moments":
            return {FEATURES: (settings["kind"], settings["width"])}
    return {}


def streams(verb: str, settings: Settings) -> bool:
    """Return whether the columns are read while the labels are, and not gathered before."""
    return FEATURES in declared_columns(verb, settings)


def check_size(verb: str, settings: Settings, num_rows: int, num_classes: int) -> None:
    """Raise WireError, before anything is read or made, for other classes than the data's or too much at once."""
    given = settings.get("num_classes", settings.get("num_levels", len(settings.get("bins", ()))))
    if verb != "best" and given != num_classes:
        raise WireError(f"num_classes is {given} in the query and {num_classes} in the data; make it equal")
    if release_bytes(verb, settings, num_rows) > MOST_BYTES:
        raise WireError(f"the release would have more than {MOST_BYTES >> 20} MiB; ask for parts of the rows")
    columns = declared_columns(verb, settings)
    wide = sum(np.dtype(kind).itemsize * (width or 1) for name, (kind, width) in columns.items() if name != FEATURES)
    if num_rows * wide > MOST_GATHERED:
        raise WireError(f"the columns would have more than {MOST_GATHERED >> 20} MiB; ask for parts of the rows")


def release_bytes(verb: str, settings: Settings, num_rows: int) -> int:
    """Return about how many bytes the release of a query will have, so that too large a one is refused unpaid."""
    if "inner" in settings:
        return release_bytes(settings["inner"]["verb"], settings["inner"]["settings"], num_rows)
    match verb:
        case "responses" | "sets" | "bits" | "vectors" | "bins" | "user_responses":
            classes = settings["num_classes"] if verb in ("bits", "vectors") else 1
            return num_rows * classes * (2 if verb == "vectors" or settings.get("num_classes", 257) > 256 else 1)
        case "moments":
            return 8 * settings["width"] * (settings["num_classes"] + 1)
        case "best":
            return 8
        case "errors":
            return 8 * settings["num_groups"] * len(settings["grid"])
    return 8 * settings["num_groups"] * (settings["num_classes"] + 1)


# -- from a mechanism to plain values ----------------------------------------------------------------------------------


def encode(mechanism: Any) -> Question:  # noqa: PLR0911, PLR0912 - one case for each verb
    """Return a mechanism in plain values; ValueError for one that a service does not answer, because it runs code."""
    match mechanism:
        case RandomizedResponse():
            return Question("responses", {"epsilon": mechanism.epsilon, "num_classes": mechanism.num_classes})
        case SetResponse(sets=sets) if sets is not None:
            given = {"epsilon": mechanism.epsilon, "num_classes": mechanism.num_classes, "members": None}
            if sets.ndim == 1:
                return Question("sets", {**given, "members": np.flatnonzero(sets).tolist()})
            return Question("sets", given, {"sets": np.packbits(sets, axis=1)})
        case LaplaceOneHot():
            return Question("vectors", {name: getattr(mechanism, name) for name in SETTINGS["vectors"]})
        case BitFlip():
            return Question("bits", {"epsilon": mechanism.epsilon, "num_classes": mechanism.num_classes})
        case UserResponse():
            given = {"epsilon": mechanism.user_epsilon, "num_classes": mechanism.num_classes}
            return Question("user_responses", {**given, "cap": mechanism.cap, "delta": mechanism.delta})
        case BinnedResponse():
            return Question("bins", {"epsilon": mechanism.epsilon, "bins": mechanism.bins.tolist()})
        case GroupCounts():
            given = {"num_groups": mechanism.num_groups, "num_classes": mechanism.num_classes}
            return Question("counts", {**given, "noise": _plain_noise(mechanism.noise)}, {"groups": mechanism.groups})
        case GroupVotes():
            given = {name: getattr(mechanism, name) for name in SETTINGS["votes"]}
            return Question("votes", given, {"groups": mechanism.groups})
        case BestCandidate(predictions=table):
            given = {"candidates": len(table), "num_classes": mechanism.num_classes, "epsilon": mechanism.epsilon}
            return Question("best", given, {"predictions": np.ascontiguousarray(table.T)})
        case ScoreCounts(cells=cells):
            given = {"num_groups": cells.num_groups, "num_classes": cells.num_classes, "epsilon": mechanism.epsilon}
            return Question("scores", given, {"predicted": mechanism.predicted, "groups": cells.groups})
        case ErrorCounts(cells=cells):
            given = {"num_groups": cells.num_groups, "num_levels": mechanism.num_levels, "epsilon": mechanism.epsilon}
            columns = {"predicted": mechanism.predicted, "groups": cells.groups}
            return Question("errors", {**given, "grid": mechanism.grid.tolist()}, columns)
        case Moments(users=None):
            return _moment(mechanism)
        case Binned(mechanism=about) | Rounded(inner=about):
            inner = encode(about)
            if inner.verb in ("counts", "moments"):
                outer = {"bins": mechanism.bins.tolist()} if isinstance(mechanism, Binned) else {
                    "num_classes": mechanism.num_classes, "classes": mechanism.classes
                }  # fmt: skip
                verb = "binned" if isinstance(mechanism, Binned) else "rounded"
                given = {**outer, "inner": {"verb": inner.verb, "settings": inner.settings}}
                return Question(verb, given, inner.columns, inner.stream)
    raise ValueError(
        f"{_called(mechanism)} cannot be asked of a service, which takes data and settings, reads features once, and "
        "runs no code; choose another recipe, or run this one where the labels are"
    )


def _called(mechanism: Any) -> str:
    users = isinstance(mechanism, Moments) and mechanism.users is not None
    return "Moments(users=...)" if users else type(mechanism).__name__


def _moment(mechanism: Moments) -> Question:
    chunks, kind = mechanism.chunks, "float64"
    for chunk in chunks.read():
        kind = "float32" if np.asanyarray(chunk).dtype == np.float32 else "float64"
        break
    given = {"num_classes": mechanism.num_classes, "noise": _plain_noise(mechanism.noise), "radius": mechanism.radius,
             "exact": mechanism.exact, "width": chunks.width, "kind": kind}  # fmt: skip
    return Question("moments", given, stream=chunks)


def _plain_noise(noise: GaussianNoise | LaplaceNoise) -> Settings:
    if isinstance(noise, LaplaceNoise):
        return {"kind": "laplace", "size": noise.epsilon}
    return {"kind": "gaussian", "size": noise.std}


# -- from plain values to a mechanism ----------------------------------------------------------------------------------


def decode(  # noqa: PLR0911, PLR0912 - one case for each verb
    verb: str,
    settings: Settings,
    num_rows: int,
    parts: Iterator[Mapping[str, Array]],
    users: Callable[[], Users | None] = lambda: None,
) -> Any:
    """Return the mechanism of checked settings and of columns that come in parts of the rows.

    Features are not gathered: the mechanism reads them as they come, once, in the memory of one part. `users` says
    whose the rows are, where all labels of a user are protected together.
    """
    if verb in ("binned", "rounded"):
        inner = decode(settings["inner"]["verb"], settings["inner"]["settings"], num_rows, parts)
        if verb == "binned":
            return _made(Binned, settings["bins"], inner)
        return _made(Rounded, inner, settings["num_classes"], settings["classes"])
    if verb == "moments":
        chunks = RowChunks(num_rows, settings["width"], lambda: (part[FEATURES] for part in parts))
        given = {"exact": settings["exact"]}
        return _made(Moments, chunks, settings["num_classes"], settings["noise"], settings["radius"], **given)
    declared = declared_columns(verb, settings)
    columns = _gathered(declared, num_rows, parts) if declared else {}
    match verb:
        case "responses":
            return _made(RandomizedResponse, settings["epsilon"], settings["num_classes"])
        case "sets":
            return _made(TopKResponse, settings["epsilon"], _sets(settings, columns))
        case "vectors":
            return _made(LaplaceOneHot, settings["epsilon"], settings["num_classes"], settings["levels"])
        case "bits":
            return _made(BitFlip, settings["epsilon"], settings["num_classes"])
        case "user_responses":
            if (known := users()) is None:
                raise WireError("the data set protects its labels one by one; ask for responses, without users")
            epsilon, classes = _of(settings, "epsilon", "num_classes")
            if settings["delta"] and (settings["cap"] or int(known.sizes.max())) > MOST_COMPOSED:
                raise WireError(f"with a delta a user may have {MOST_COMPOSED} rows in the question; ask about fewer")
            return _made(UserResponse, epsilon, classes, known, cap=settings["cap"], delta=settings["delta"])
        case "bins":
            return _made(BinnedResponse, settings["epsilon"], settings["bins"])
        case "counts":
            return _made(GroupCounts, columns["groups"], *_of(settings, "num_groups", "num_classes", "noise"))
        case "votes":
            return _made(GroupVotes, columns["groups"], *_of(settings, "num_groups", "num_classes", "epsilon"))
        case "best":
            return _made(BestCandidate, columns["predictions"].T, *_of(settings, "num_classes", "epsilon"))
        case "scores":
            both = columns["predicted"], columns["groups"]
            return _made(ScoreCounts, *both, *_of(settings, "num_groups", "num_classes", "epsilon"))
        case _:
            both = columns["predicted"], columns["groups"]
            return _made(ErrorCounts, *both, *_of(settings, "num_groups", "num_levels", "grid", "epsilon"))


def _of(settings: Settings, *names: str) -> list[Any]:
    return [settings[name] for name in names]


def _made(kind: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """Return a mechanism, or raise WireError with what is wrong about its settings."""
    try:
        return kind(*given, **more)
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise WireError(str(error)) from None


def _sets(settings: Settings, columns: Mapping[str, Array]) -> npt.NDArray[np.bool_]:
    classes = settings["num_classes"]
    if settings["members"] is None:
        return np.unpackbits(columns["sets"], axis=1, count=classes).astype(np.bool_)
    if settings["members"].max() >= classes:
        raise WireError(f"members has classes beyond num_classes={classes}; leave them out")
    sets = np.zeros(classes, dtype=np.bool_)
    sets[settings["members"]] = True
    return sets


def _gathered(
    declared: Mapping[str, tuple[str, int | None]], num_rows: int, parts: Iterator[Mapping[str, Array]]
) -> dict[str, Array]:
    """Return whole columns, written in place as their parts come."""
    columns = {
        name: np.empty((num_rows,) if width is None else (num_rows, width), dtype=kind)
        for name, (kind, width) in declared.items()
    }
    done = 0
    for part in parts:
        size = len(next(iter(part.values())))
        if done + size > num_rows:
            raise WireError(f"the columns have more than the {num_rows} rows that are asked; send one entry for each")
        for name, column in columns.items():
            column[done : done + size] = part[name]
        done += size
    if done != num_rows:
        raise WireError(f"the columns ended after {done} of the {num_rows} rows that are asked; send one for each")
    return columns


# -- columns as Arrow has them -----------------------------------------------------------------------------------------


def arrow_schema(declared: Mapping[str, tuple[str, int | None]]) -> pa.Schema:
    """Return the one schema in which these columns travel."""
    kinds = {name: pa.from_numpy_dtype(np.dtype(kind)) for name, (kind, _) in declared.items()}
    return pa.schema([
        pa.field(name, kinds[name] if width is None else pa.list_(kinds[name], width), nullable=False)
        for name, (_, width) in declared.items()
    ])  # fmt: skip


def to_batch(schema: pa.Schema, columns: Mapping[str, Array]) -> pa.RecordBatch:
    """Return rows of columns as one record batch; numbers are not copied where they lie in order."""
    arrays: list[Any] = []
    for each in schema:
        flat = pa.array(np.ascontiguousarray(columns[each.name]).reshape(-1))
        wide = pa.types.is_fixed_size_list(each.type)
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=each.type) if wide else flat)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_batch(schema: pa.Schema, batch: pa.RecordBatch) -> dict[str, Array]:
    """Return the columns of a record batch; WireError where it has others, or values that are missing."""
    if not batch.schema.equals(schema):
        raise WireError(f"the columns are not {', '.join(schema.names) or 'none'} as declared; send these")
    found: dict[str, Array] = {}
    for each in schema:
        column = batch.column(each.name)
        wide = pa.types.is_fixed_size_list(each.type)
        flat = column.flatten() if wide else column
        if column.null_count or flat.null_count or (wide and len(flat) != len(column) * each.type.list_size):
            raise WireError(f"the column {each.name!r} has missing values; fill them in")
        values = flat.to_numpy(zero_copy_only=True)
        found[each.name] = values.reshape(len(column), each.type.list_size) if wide else values
    return found


# -- small queries, as one message -------------------------------------------------------------------------------------


def framed(header: Mapping[str, Any], content: Iterable[bytes | memoryview] = ()) -> bytes:
    """Return one message: the length of a header in JSON, the header, and bytes after it."""
    told = json.dumps(header, allow_nan=False).encode()
    return b"".join([len(told).to_bytes(4, "little"), told, *content])


def unframed(message: memoryview) -> tuple[memoryview, memoryview]:
    """Return the header, not parsed yet, and the bytes after it; WireError where the message ends before that."""
    end = 4 + int.from_bytes(message[:4], "little")
    if not 4 < end <= len(message):
        raise WireError("the message is not a header and what it announces; use RemoteVault, or see docs/service.md")
    return message[4:end], message[end:]


def to_bytes(declared: Mapping[str, tuple[str, int | None]], columns: Mapping[str, Array]) -> list[memoryview]:
    """Return whole columns as bytes, one after the other in the order in which they are declared."""
    return [np.ascontiguousarray(columns[name], _little(kind)).reshape(-1).view(np.uint8).data
            for name, (kind, _) in declared.items()]  # fmt: skip


def from_bytes(
    declared: Mapping[str, tuple[str, int | None]], num_rows: int, content: memoryview
) -> Iterator[dict[str, Array]]:
    """Yield the columns of so many rows, at once; WireError where the bytes are not as many as that takes."""
    sizes = [_little(kind).itemsize * (1 if width is None else width) * num_rows for kind, width in declared.values()]
    if sum(sizes) != len(content):
        raise WireError(f"the columns have {len(content)} bytes and {num_rows} rows take {sum(sizes)}; send these")
    found: dict[str, Array] = {}
    for (name, (kind, width)), size in zip(declared.items(), sizes, strict=True):
        found[name] = np.frombuffer(content[:size], _little(kind)).reshape(
            (num_rows,) if width is None else (-1, width)
        )
        content = content[size:]
    if found and num_rows:
        yield found


# Of a check sum.
SUM_BYTES = 8


class CheckSum:
    """Of rows of numbers, however they are cut: finds another number, and rows or columns in another order.

    It adds up bits as whole numbers, along every row and every column, as fast as they are read; it withstands mistakes
    and not somebody who wants to be mistaken.

    >>> one, other = CheckSum(), CheckSum()
    >>> one.update(np.eye(3)), other.update(np.eye(3)[:1]), other.update(np.eye(3)[1:])
    (None, None, None)
    >>> one.hexdigest() == other.hexdigest()
    True
    """

    def __init__(self) -> None:
        self._rows, self._columns = 0, None

    def update(self, block: Array) -> None:
        """Add rows, in order."""
        words = block.view(np.dtype(f"u{block.itemsize}"))
        self._rows = zlib.crc32(np.add.reduce(words, axis=1, dtype=words.dtype).data, self._rows)
        columns = np.add.reduce(words, axis=0, dtype=words.dtype)
        self._columns = columns if self._columns is None else self._columns + columns

    def hexdigest(self) -> str:
        """Return the sum as a text."""
        columns = b"" if self._columns is None else self._columns.tobytes()
        return f"{self._rows:08x}{zlib.crc32(columns):08x}"


def _little(kind: str) -> np.dtype[Any]:
    return np.dtype(kind).newbyteorder("<")


# -- releases ----------------------------------------------------------------------------------------------------------


def pack(release: Any) -> bytes:
    """Return a release as bytes: named arrays and JSON. The channel stays behind: who asked has it."""
    match release:
        case NoisyLabels():
            kind = "labels"
            arrays, fields = _narrowed(release.responses)
        case int():
            kind, arrays, fields = "winner", {}, {"winner": release}
        case _:
            kind, arrays, fields = kept.plain(release)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(whole, {"release": json.dumps({"kind": kind, **fields})})


# Pieces of responses that stay in the cache.
_NARROWED = 1 << 17


def _narrowed(responses: Array) -> tuple[dict[str, Array], Settings]:
    """Return responses in as few bits as they need: they are hashed, written to the disk and sent."""
    flat = np.ascontiguousarray(responses).reshape(-1)
    most = int(flat.max(initial=0)) if flat.dtype == np.uint8 else 255
    fields = {"shape": list(responses.shape), "bits": 1 if most < 2 else 4 if most < 16 else 8}
    if fields["bits"] == 1:
        return {"responses": np.packbits(flat)}, fields
    if fields["bits"] == 8:
        return {"responses": responses}, fields
    packed = np.empty(len(flat) // 2 + len(flat) % 2, np.uint8)
    for start in range(0, len(flat) - 1, _NARROWED):
        pair = flat[start : min(start + _NARROWED, len(flat) // 2 * 2)].view("<u2")
        # Two bytes below 16 side by side: the lower byte of this has both.
        packed[start // 2 : start // 2 + len(pair)] = (pair >> 4) | pair
    if len(flat) % 2:
        packed[-1] = flat[-1]
    return {"responses": packed}, fields


def _widened(packed: Array, shape: list[int], bits: int) -> Array:
    """Return the responses of which `_narrowed` made this."""
    size = math.prod(shape)
    if bits == 1:
        return np.unpackbits(packed, count=size).reshape(shape)
    if bits == 8:
        return packed.reshape(shape)
    flat = np.empty(2 * len(packed), np.uint8)
    for start in range(0, len(packed), _NARROWED):
        byte = packed[start : start + _NARROWED].astype("<u2")
        np.bitwise_and((byte << 4) | byte, 0x0F0F, out=flat[2 * start : 2 * (start + len(byte))].view("<u2"))
    return flat[:size].reshape(shape)


# In place of a release, where drawing it failed.
FAILED = safetensors.numpy.save({}, {"release": json.dumps({"kind": "failed"})})


def unpack(content: bytes | memoryview, mechanism: Any) -> Any:
    """Return the release that a mechanism was asked for."""
    try:
        arrays, plain = _read(memoryview(content))
        return _rebuilt(plain.pop("kind"), plain, arrays, mechanism)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise WireError(f"the service sent a release that cannot be read ({type(error).__name__})") from None


# Kinds of numbers in a release, as safetensors calls them.
_KINDS = {"BOOL": "?", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "i1", "I16": "<i2", "I32": "<i4",
          "I64": "<i8", "F32": "<f4", "F64": "<f8"}  # fmt: skip


def _read(content: memoryview) -> tuple[dict[str, Array], Settings]:
    """Return the arrays of a safetensors file and what it says, read where they lie: the library copies them twice."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:end]))
    said, data, arrays = json.loads(header.pop("__metadata__")["release"]), content[end:], dict[str, Array]()
    for name, each in header.items():
        first, last = each["data_offsets"]
        found = np.frombuffer(data[first:last], _KINDS[each["dtype"]]).reshape(each["shape"])
        arrays[name] = np.require(found, requirements="A")
    return arrays, said


def _rebuilt(kind: str, plain: Settings, arrays: Mapping[str, Array], mechanism: Any) -> Any:
    match kind:
        case "labels":
            responses = _widened(arrays["responses"], plain["shape"], plain["bits"])
            if isinstance(mechanism, BinnedResponse):
                return NoisyValues(mechanism, responses, mechanism.outputs)
            return NoisyLabels(mechanism, responses)
        case "winner":
            return int(plain["winner"])
        case "failed":
            raise MechanismError("the query failed at the service; it stays charged, and the reason is withheld there")
    release = kept.rebuilt(kind, arrays, plain)
    if kind == "winners":
        release.setflags(write=False)
    return release


def rows_of(columns: Mapping[str, Array], at_once: int) -> Iterable[dict[str, Array]]:
    """Yield columns in parts of at most so many rows."""
    total = len(next(iter(columns.values()))) if columns else 0
    for start in range(0, total, at_once):
        yield {name: column[start : start + at_once] for name, column in columns.items()}
