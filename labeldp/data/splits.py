"""What every benchmark loader returns: public features, sealed training labels, open test labels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.files import CorruptDataError

Images = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
Features = TypeVar("Features", bound=Sized)
Arguments = ParamSpec("Arguments")
Out = TypeVar("Out")


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table of public features.

    Args:
        numeric: float32 (n, d), standardised by the training features.
        categorical: int64 (n, c), codes 0 … cardinality − 1 in the sorted order of the public values.
        cardinalities: how many values each of the c columns has.
        users: int64 (n,), which person a row belongs to, where the data set says so.
    """

    numeric: npt.NDArray[np.float32]
    categorical: IntArray
    cardinalities: tuple[int, ...]
    users: IntArray | None = None

    def __len__(self) -> int:
        return len(self.numeric)

    def __repr__(self) -> str:
        return f"Columns({len(self)} rows, {self.numeric.shape[1]} numeric, cardinalities={self.cardinalities})"


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Who rated what: the public side of a table of ratings. Both int64 (n,), counted from 0."""

    users: IntArray
    items: IntArray
    num_users: int
    num_items: int

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} rows, {self.num_users} users, {self.num_items} items)"


@dataclass(frozen=True, eq=False)
class OpenLabels:
    """Public labels of a test table, (n,): class numbers or numbers. For measuring; nothing can be trained on them.

    >>> len(OpenLabels(np.array([0, 1, 1])))
    3
    """

    values: npt.NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("OpenLabels are for measuring, not for training; bring training labels in by labeldp.data.read")


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark(Generic[Features]):
    """A data set with its training labels in a vault.

    Args:
        name: the data set, as in `load(name)`.
        train: public training features; images are uint8 (n, channels, height, width).
        vault: the training labels, sealed. The only way to them is a mechanism.
        test: public test features, shaped like `train`.
        test_labels: open, int64 (m,) in `test_labels.values`: for measuring, never for choosing.
        num_classes: declared for the data set, never read off labels.
        classes: the name of each class.
    """

    name: str
    train: Features
    vault: LabelVault
    test: Features
    test_labels: OpenLabels
    num_classes: int
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Benchmark({self.name}: {len(self.vault)} training rows, labels sealed; {len(self.test_labels)} test "
            f"rows; {self.num_classes} classes)"
        )


def seal(
    name: str,
    classes: tuple[str, ...],
    train: tuple[Features, npt.NDArray[Any]],
    test: tuple[Features, npt.NDArray[Any]],
    *,
    rng: SecureRandom | None,
    budget: Budget | None,
) -> Benchmark[Features]:
    """Move the training labels into a vault. Both splits are (features, labels); the vault keeps its own copy."""
    for part, (features, labels) in (("training", train), ("test", test)):
        if len(features) != len(labels):
            raise CorruptDataError(f"{name}: {len(features)} {part} rows have {len(labels)} labels; download it again")
    vault = LabelVault(train[1], len(classes), budget, rng=rng)
    return Benchmark(name, train[0], vault, test[0], _opened(name, test[1], len(classes)), len(classes), classes)


def _opened(name: str, labels: npt.NDArray[Any], num_classes: int) -> OpenLabels:
    opened = labels.astype(np.int64)
    outside = int(np.count_nonzero((opened < 0) | (opened >= num_classes)))
    if outside:
        raise CorruptDataError(f"{name}: {outside} test labels are outside 0 … {num_classes - 1}; download it again")
    return OpenLabels(opened)


def refusing(loader: Callable[Arguments, Out]) -> Callable[Arguments, Out]:
    """Let a loader's refusals travel without their frames, whose local variables hold labels.

    Crash reporters and test runners print the variables of every frame. Other exceptions are bugs and keep theirs.
    """

    @functools.wraps(loader)
    def refuse(*args: Arguments.args, **settings: Arguments.kwargs) -> Out:
        try:
            return loader(*args, **settings)
        except (ValueError, FileNotFoundError) as error:
            refusal = error.with_traceback(None)
        # Outside the handler, so that no chain leads back either.
        raise refusal

    return refuse
