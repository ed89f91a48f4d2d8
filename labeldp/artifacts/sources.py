"""What a model is trained on and measured on: tables of the user's, or data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labeldp.artifacts.columns import Column, columns_of, conformed, read_public
from labeldp.artifacts.numbers import OwnNumbers, read_numbers
from labeldp.audit.labels import OwnLabels, read_labels
from labeldp.data import official as facts
from labeldp.data.imagefiles import read_cifar, read_folders, read_idx
from labeldp.data.locate import MissingDataError, Official
from labeldp.data.request import TableError
from labeldp.data.samples import ADULT_CLASSES, adult_path

Features = pa.Table | npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Rows:
    """Public features, and labels: secret ones to train on, or open ones to measure with."""

    features: Features = field(repr=False)
    # OwnLabels, or OwnNumbers; which of them, the source says.
    labels: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def given(self) -> npt.NDArray[Any]:
        """The labels as an estimator is given them: class numbers, or numbers."""
        return self.labels.values if isinstance(self.labels, OwnNumbers) else self.labels.codes


@dataclass(frozen=True, eq=False)
class Source:
    """Rows to train on, open ones to measure with where there are some, and what their columns are.

    Args:
        name: for people.
        label: the secret column; empty for pictures.
        classes: as declared, or as published; empty where the label is a number.
        columns: of a table; None for pictures.
        left_out: public columns that hold one value.
        bounds: of a label that is a number, as declared; None for classes.
    """

    name: str
    label: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows | None
    columns: tuple[Column, ...] | None
    left_out: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None

    @property
    def described(self) -> tuple[str, ...]:
        """The features in a few words."""
        if self.columns is not None:
            return tuple(column.name for column in self.columns)
        return (" × ".join(map(str, self.train.features.shape[1:])) + " pixels",)


def table_source(
    path: Path,
    label: str,
    classes: Sequence[str] = (),
    *,
    bounds: tuple[float, float] | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    test: Path | None = None,
) -> Source:
    """A table of the user's. Features are read without the label column; of its labels, errors give counts only.

    Labels are among `classes` or, where there are none, numbers with these declared `bounds`.
    """
    if bool(classes) == (bounds is not None):
        raise TableError(f"classes={classes!r} and bounds={bounds!r}: give the classes, or bounds for numbers")
    if label in drop:
        raise TableError(f"drop names {label!r}, which is the label and is never a feature; leave it out of --drop")
    table = read_public(path, (label, *drop), delimiter)
    columns, left_out = columns_of(table)
    train = Rows(conformed(table, columns), _labels(path, label, classes, delimiter))
    open_rows = None if test is None else open_table(test, label, classes, columns, delimiter)
    return Source(path.name, label, tuple(classes), train, open_rows, columns, left_out, bounds)


def open_table(
    path: Path, label: str, classes: Sequence[str], columns: Sequence[Column], delimiter: str | None = None
) -> Rows:
    """A table like the one trained on, whose labels are public: numbers where there are no classes."""
    return Rows(new_rows(path, columns, delimiter), _labels(path, label, classes, delimiter))


def _labels(path: Path, label: str, classes: Sequence[str], delimiter: str | None) -> OwnLabels | OwnNumbers:
    if not classes:
        return read_numbers(path, label, delimiter=delimiter)
    return read_labels(path, label, classes, delimiter=delimiter)


def new_rows(path: Path, columns: Sequence[Column], delimiter: str | None = None) -> pa.Table:
    """The columns that a model reads, from a table that may have others."""
    texts = [column.name for column in columns if column.kind == "category"]
    return conformed(read_public(path, delimiter=delimiter, as_text=texts), columns)


# -- data sets by name -----------------------------------------------------------------------------------------------

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]
Reader = Callable[[Official, Path | None], tuple[Labelled, Labelled]]


def _cifar(label_bytes: int) -> Reader:
    return lambda official, root: read_cifar(official, root, label_bytes=label_bytes)


_IMAGES: dict[str, tuple[Official, Reader]] = {
    "mnist": (facts.MNIST, read_idx),
    "fashion_mnist": (facts.FASHION_MNIST, read_idx),
    "kmnist": (facts.KMNIST, read_idx),
    "cifar10": (facts.CIFAR10, _cifar(1)),
    "cifar100": (facts.CIFAR100, _cifar(2)),
    "cinic10": (facts.CINIC10, read_folders),
}
NAMES = ("adult", *_IMAGES)


def named_source(name: str) -> Source:
    """A data set by name: pictures found through $LABELDP_DATA, or the bundled Adult table."""
    if name == "adult":
        return table_source(adult_path(), "income", ADULT_CLASSES, test=adult_path("test"))
    official, reader = _IMAGES[name]
    try:
        train, test = (_pictures(part, len(official.classes)) for part in reader(official, None))
    except MissingDataError as error:
        raise TableError(str(error)) from None
    return Source(name, "", official.classes, train, test, None)


def new_pictures(name: str) -> npt.NDArray[np.uint8]:
    """The test pictures of a data set."""
    return np.asarray(named_source(name).test.features)  # type: ignore[union-attr]


def _pictures(part: Labelled, num_classes: int) -> Rows:
    images, labels = part
    return Rows(images, OwnLabels(np.asarray(labels, dtype=np.int64), num_classes))
