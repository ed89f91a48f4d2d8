"""Open the labels of one partition, on the machine that has them: answer them, add them up.

A distributed engine hands over Arrow batches and takes Arrow batches; what these functions need to know besides is
plain, public and small (`Keyed`), and travels with the task. The key does not: it is read where the work is done. A
task may run twice, at once or again: it gives the same rows both times, because noise is keyed by row
(`labeldp.core.keyed`) and sums are sums of integers.

No message quotes a label: what goes wrong on another machine ends up in its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from labeldp.core.keyed import Ids, KeyedRandom
from labeldp.core.random import SecureRandom
from labeldp.data.labels import arrow_numbers, class_values, column_codes, numpy_numbers, pc, response_column
from labeldp.data.request import Request, Sealer, TableError
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.evaluation import ScoreCounts
from labeldp.mechanisms.moments import Moments, MomentSum, RowChunks
from labeldp.releases import NoisyMoments, NoisyScores

KEY_BYTES = 32
_NAN = pa.scalar(float("nan"))


@dataclass(frozen=True)
class Keyed:
    """What a task must know: what is requested, which column says which row it is, and where the key will be found.

    Args:
        request: the public settings.
        id: the column of ids, unique and public.
        release: the name of the release.
        folder: that of the run; it holds the key while there is one, and every machine sees it under this name.
    """

    request: Request
    id: str
    release: str
    folder: str

    @property
    def key(self) -> Path:
        """The file of the key."""
        return Path(self.folder, "key")


def is_id(kind: pa.DataType) -> bool:
    """Return whether a column of this type can tell rows apart: whole numbers, or text."""
    return types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)


def ids_of(column: Any) -> Ids:
    """Return ids as keyed noise takes them; there is none missing."""
    if types.is_integer(column.type):
        return np.asarray(numpy_numbers(column, column.type.to_pandas_dtype()))
    return column.to_pylist()


def withheld(task: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Let a task fail without a word that it did not choose: messages of readers quote what they stumbled over."""

    def careful(*args: Any) -> Iterator[Any]:
        try:
            yield from task(*args)
        except TableError as error:
            said = str(error)
        except GeneratorExit:
            raise
        except BaseException as error:
            said = f"a task failed with {type(error).__name__}; its message is withheld because it could quote a label"
        else:
            return
        # Outside the handler, so that no chain leads back to frames that hold labels.
        raise TableError(said)

    return careful


# -- before anything is spent ------------------------------------------------------------------------------------------


def check_kinds(request: Request, id: str, schema: pa.Schema) -> None:
    """Raise TableError where columns are not of types that labels, ids or priors have."""
    class_values(request.classes, schema.field(request.label).type)
    kind = schema.field(id).type
    if not is_id(kind):
        raise TableError(f"id={id!r} has type {kind}; ids are whole numbers or text")
    for name in request.prior_columns:
        weights = schema.field(name).type
        if not (types.is_floating(weights) or types.is_integer(weights) or types.is_decimal(weights)):
            raise TableError(f"prior_columns: column {name!r} has type {weights}; a prior needs numbers")


# -- responses ---------------------------------------------------------------------------------------------------------


def response_kind(kind: pa.DataType, request: Request) -> pa.DataType:
    """Return the type of the private column: the label's own, or lists of small whole numbers, which engines have."""
    return pa.list_(pa.int16()) if request.is_vector else kind


def answer(task: Keyed, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with private responses in place of labels; a row gets the same one whenever it is answered."""
    key = read_key(task)
    for batch in batches:
        place = batch.schema.get_field_index(task.request.label)
        given = batch.column(place)
        codes, missing = column_codes(pa.chunked_array([given]), task.request.classes)
        noise = KeyedRandom(key, task.release, ids_of(batch.column(task.id)))
        weights = [pc.coalesce(batch.column(name).cast(pa.float64()), _NAN) for name in task.request.prior_columns]
        prior = np.stack([numpy_numbers(column, np.float64) for column in weights], axis=1) if weights else None
        responses = Sealer(task.request, noise).response(codes, missing, prior).responses
        kind = response_kind(given.type, task.request)
        if task.request.is_vector:
            rows, classes = responses.shape
            offsets = arrow_numbers(np.arange(0, (rows + 1) * classes, classes, dtype=np.int32)[: rows + 1])
            numbers = arrow_numbers(responses.reshape(-1).astype(np.int16))
            private: Any = pa.ListArray.from_arrays(offsets, numbers)
        else:
            private = response_column(responses, kind, task.request)
        schema = batch.schema.set(place, batch.schema.field(place).with_type(kind))
        yield pa.RecordBatch.from_arrays(
            [private if i == place else column for i, column in enumerate(batch.columns)], schema=schema
        )


def read_key(task: Keyed) -> bytes:
    """Return the key of the release, or raise TableError; nothing keeps it but the task."""
    try:
        key = task.key.read_bytes()
    except OSError as error:
        reason = type(error).__name__
    else:
        if len(key) == KEY_BYTES:
            return key
        reason = f"{len(key)} bytes"
    raise TableError(f"the key of the release {task.release!r} cannot be read on this machine ({reason})")


# -- sums --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MomentTask:
    """What a task must know to add up its part of a moment: `phi` gives the public features of a batch, (n, width).

    `aside` says which rows are set aside, by their ids; they are left out.
    """

    label: str
    classes: tuple[str, ...]
    id: str
    noise: GaussianNoise | LaplaceNoise
    radius: float
    width: int
    phi: Callable[[pa.Table], npt.NDArray[np.float32]]
    aside: Callable[[Ids], npt.NDArray[np.bool_]]

    @property
    def length(self) -> int:
        """How many numbers a line has."""
        return 3 + len(self.classes) * self.width

    def empty(self) -> MomentSum:
        """Return the sum of no rows."""
        return MomentSum(np.zeros((len(self.classes), self.width), dtype=np.int64), 0, 0, 0)


def add_moment(task: MomentTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one line, the sum of a partition without noise: integers, the same whatever the order of the rows."""
    whole = task.empty()
    for batch in batches:
        used = pa.Table.from_batches([batch])
        rows = np.flatnonzero(~task.aside(ids_of(batch.column(task.id))))
        used = used if len(rows) == len(used) else used.take(arrow_numbers(rows))
        codes, _ = column_codes(used.column(task.label), task.classes)
        features = task.phi(used)
        chunks = RowChunks(len(features), task.width, lambda features=features: [features])
        part = Moments(chunks, len(task.classes), task.noise, task.radius)
        whole = whole + part.added(codes.astype(np.min_scalar_type(len(task.classes) - 1)))
    yield as_line(whole.to_numbers())


def as_line(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return whole numbers as a batch of one line."""
    content = pa.array([np.ascontiguousarray(numbers, dtype="<i8").tobytes()], pa.binary())
    return pa.RecordBatch.from_arrays([content], ["sums"])


def added_up(length: int, batches: Iterable[Any]) -> npt.NDArray[np.int64]:
    """Return the sum of all lines, so many numbers."""
    whole = np.zeros(length, dtype=np.int64)
    for batch in batches:
        for content in batch.column("sums").to_pylist():
            whole += np.frombuffer(content, dtype="<i8")
    return whole


def noisy_moment(task: MomentTask, mechanism: Moments, lines: Any, rng: SecureRandom) -> NoisyMoments:
    """Release the moment that these lines add up to; what they hold without noise goes no further."""
    empty = task.empty()
    return mechanism.noised(empty.from_numbers(added_up(task.length, [lines])), rng)


def join(length: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one line, the sum of those given."""
    yield as_line(added_up(length, batches))


@dataclass(frozen=True)
class CountTask:
    """What a task must know to count the rows that were set aside: their ids in order, and each one's public cell.

    `predicted` is the class that is predicted for a row, and `groups` its group.
    """

    label: str
    classes: tuple[str, ...]
    id: str
    ids: Any
    predicted: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    num_groups: int

    @property
    def length(self) -> int:
        """How many numbers a line has."""
        return 2 + self.num_groups * len(self.classes)


def count_labels(task: CountTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one line: rows, how many of them are predicted right, and how many of each group have each class."""
    cells = np.zeros(task.num_groups * len(task.classes), dtype=np.int64)
    rows = right = 0
    for batch in batches:
        place = numpy_numbers(pc.fill_null(pc.index_in(batch.column(task.id), value_set=task.ids), -1), np.int32)
        here = np.flatnonzero(place >= 0)
        codes, _ = column_codes(pa.chunked_array([batch.column(task.label)]).take(arrow_numbers(here)), task.classes)
        known = place[here]
        cells += np.bincount(task.groups[known] * len(task.classes) + codes, minlength=len(cells))
        right += int(np.count_nonzero(task.predicted[known] == codes))
        rows += len(here)
    yield as_line(np.concatenate([[rows, right], cells]))


def noisy_scores(task: CountTask, query: ScoreCounts, lines: Any, rng: SecureRandom) -> NoisyScores:
    """Release the counts that these lines add up to; TableError unless they are of all rows set aside."""
    numbers = added_up(task.length, [lines])
    if numbers[0] != len(query.predicted):
        raise TableError(
            f"{numbers[0]} of {len(query.predicted)} rows set aside were found again; the snapshot changed"
        )
    return query.noised(int(numbers[1]), numbers[2:], rng)
