"""Malformed and hostile messages for a service, made from a seed: for the quick test and for the campaign."""

import contextlib
import json
import random

import numpy as np
import pyarrow as pa
from pyarrow import flight

from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.mechanisms.evaluation import ErrorCounts, ScoreCounts
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.selection import BestCandidate, GroupVotes
from labeldp.mechanisms.values import Binned, BinnedResponse, Rounded
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.service import wire
from labeldp.service.server import ACTIONS
from tests.service.asking import header

ROWS, CLASSES = 60, 3
KINDS = {"rows", "message", "budget", "busy", "access", "store"}
WRONG = (None, True, -1, 0, 1e308, 2**70, 0.5, "x", "", "x" * 300, [], [1], ["x"], [[]], {}, {"x": 1}, "\x00", [None])
_GROUPS = np.arange(ROWS) % 4
_COUNTS = GroupCounts(_GROUPS, 4, CLASSES, LaplaceNoise(1e-3))


def mechanisms():
    """One of every verb."""
    features = np.linspace(-1, 1, 2 * ROWS).reshape(ROWS, 2)
    return {
        "responses": RandomizedResponse(1e-3, CLASSES),
        "sets": PriorResponse(1e-3, np.tile([0.5, 0.3, 0.2], (ROWS, 1))),
        "sets of all": TopKResponse(1e-3, [True, True, False]),
        "vectors": LaplaceOneHot(1e-3, CLASSES, 4),
        "bits": BitFlip(1e-3, CLASSES),
        "bins": BinnedResponse(1e-3, [0, 0, 1]),
        "counts": _COUNTS,
        "votes": GroupVotes(_GROUPS, 4, CLASSES, 1e-3),
        "best": BestCandidate(np.zeros((2, ROWS), dtype=int), CLASSES, 1e-3),
        "scores": ScoreCounts(np.zeros(ROWS, dtype=int), _GROUPS, 4, CLASSES, 1e-3),
        "errors": ErrorCounts(np.zeros(ROWS, dtype=int), _GROUPS, 4, CLASSES, [0, 1, 2], 1e-3),
        "moments": Moments(features.astype(np.float32), CLASSES, GaussianNoise(1e4), 2.0),
        "binned": Binned([0, 0, 1], GroupCounts(_GROUPS, 4, 2, LaplaceNoise(1e-3))),
        "rounded": Rounded(Moments(features, 2, LaplaceNoise(1e-3), 3.0), CLASSES, 2),
    }


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def changed(value, path, new):
    """The value with another one at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


class Fuzzer:
    """Messages from a seed; `send` returns how the service ended the call, and what it said."""

    def __init__(self, connection, named, seed, more=()):
        self._connection, self._named, self._random = connection, named, random.Random(seed)
        self._made = [header(named, each, again=False) for each in (*mechanisms().values(), *more)]

    def send(self):
        """Send one message."""
        choose = self._random
        told, columns = choose.choice(self._made)
        told = {**told, "request": f"f{choose.getrandbits(64)}"}
        kind = choose.randrange(8)
        columns = dict(columns)
        if kind < 3:
            place = choose.choice(list(places(told)))
            told = changed(told, place, choose.choice(WRONG))
        elif kind == 3 and columns:
            name = choose.choice(list(columns))
            columns[name] = self._spoilt(columns[name])
        elif kind == 4:
            columns = {f"x{name}": column for name, column in columns.items()} or {"x": np.arange(3)}
        elif kind == 5:
            return self._act()
        command = json.dumps(told, allow_nan=True).encode()
        if kind == 6:
            command = self._damaged(command)
        data = self._stream(columns) if kind != 7 else None
        return self.exchange(command, columns, data)

    def _spoilt(self, column):
        choose = self._random
        options = [
            lambda: column[: choose.randrange(len(column))],
            lambda: np.concatenate([column, column]),
            lambda: column.astype(np.float64) * np.nan,
            lambda: column.astype(np.int8),
            lambda: np.full(column.shape, -1).astype(column.dtype),
            lambda: np.full(column.shape, 2**62).astype(column.dtype),
            lambda: column.reshape(-1)[:ROWS].astype(str),
            lambda: np.full(column.shape, np.inf),
            lambda: column[:0],
        ]
        with np.errstate(all="ignore"):
            return choose.choice(options)()

    def _damaged(self, command):
        choose, content = self._random, bytearray(command)
        for _ in range(choose.randrange(1, 8)):
            place = choose.randrange(len(content))
            content[place : place + choose.randrange(3)] = choose.randbytes(choose.randrange(4))
        return bytes(content)

    def _stream(self, columns):
        arrays = {}
        for name, column in columns.items():
            flat = pa.array(column.reshape(-1))
            arrays[name] = flat if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) > 1:
            arrays = {name: array.slice(0, min(lengths)) for name, array in arrays.items()}
        fields = [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))

    def _act(self):
        choose = self._random
        action = choose.choice([*ACTIONS, "shutdown", "", "x" * 1000])
        given = {name: choose.choice(WRONG) for name in ACTIONS.get(action, {"x": 1})}
        body = json.dumps(given, allow_nan=True).encode()
        if choose.random() < 0.3:
            body = choose.randbytes(choose.randrange(200))
        client = self._connection._client
        return self._ended(lambda: list(client.do_action(flight.Action(action, body), self._connection._options)))

    def exchange(self, command, columns, batch):
        """Send a command and, if it has one, a record batch."""

        def call():
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, reader = self._connection._client.do_exchange(descriptor, self._connection._options)
            try:
                with contextlib.suppress(pa.ArrowException, flight.FlightError):
                    if batch is not None and batch.num_columns:
                        writer.begin(batch.schema)
                        writer.write_batch(batch)
                    writer.done_writing()
                return reader.read_chunk().app_metadata.to_pybytes()
            finally:
                with contextlib.suppress(pa.ArrowException, flight.FlightError):
                    writer.close()

        return self._ended(call)

    def _ended(self, call):
        try:
            call()
        except flight.FlightError as error:
            return bytes(error.extra_info or b"?").decode(), str(error)
        except StopIteration:
            return "ended", ""
        return "ok", ""


__all__ = ["CLASSES", "KINDS", "ROWS", "WRONG", "Fuzzer", "changed", "mechanisms", "places", "wire"]
