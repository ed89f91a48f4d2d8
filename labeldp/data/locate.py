"""Find the files of a data set, read them whole, and check that they are the official ones.

Nothing is downloaded. Error messages give names, sizes and expected digests; never the digest of what was
found, which for a file of labels would be a statement about labels.
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
        elsewhere: further folders to look in when no root is given.
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
    """The folder of all data sets: $LABELDP_DATA, else ~/.cache/labeldp."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "labeldp").expanduser()


def folders(official: Official, root: Path | str | None) -> list[Path]:
    """Where the files may be. A root that is given is the only place; without one there may be others."""
    if root is not None:
        homes = [Path(root) / official.name]
    else:
        homes = [data_root() / official.name, *map(Path, official.elsewhere)]
    return [place for home in homes for place in ([home, home / official.inside] if official.inside else [home])]


def find(places: list[Path], name: str) -> Path | None:
    """The first of name and name.gz that is a file."""
    candidates = (place / (name + suffix) for place in places for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def contents(official: Official, root: Path | str | None) -> dict[str, bytes]:
    """Every official file, uncompressed and checked: from loose files, else out of the official archive."""
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
    """The uncompressed content of one file."""
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
    """The content itself, if its digest is the official one or none is known."""
    known = official.digests.get(name)
    if known is None or digest(content, known.partition(":")[0]) == known:
        return content
    raise CorruptDataError(
        f"{official.name}: {name} ({len(content)} bytes) is not the official file ({known} expected): it is cut "
        f"short, changed or of another version; download it again from {official.site}"
    )


def digest(content: bytes, algorithm: str) -> str:
    """The digest as "algorithm:hex". md5 is what some authors published; it guards against accidents."""
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def check_rows(official: Official, part: str, found: int, expected: int) -> None:
    """Refuse a part with another number of rows than was published."""
    if found != expected:
        raise CorruptDataError(
            f"{official.name}: the {part} part has {found} rows; the official one has {expected}. Download it again "
            f"from {official.site}"
        )


def missing(official: Official, root: Path | str | None, files: tuple[str, ...] | None = None) -> MissingDataError:
    """The error for absent files, with what to do about it. It is returned, not raised."""
    places = folders(official, root)
    absent = [name for name in files or official.files if find(places, name) is None]
    what = official.archive or ", ".join(absent)
    sentences = [
        f"{official.name}: {', '.join(absent)} not found in {places[0]}.",
        f"Download {what} from {official.site} and put it into that folder, or set {VARIABLE} to the folder that "
        f"holds {official.name}/.",
        official.note,
        _about_pickles(official, places),
    ]
    return MissingDataError(" ".join(filter(None, sentences)))


def _about_pickles(official: Official, places: list[Path]) -> str:
    found = [name for name in official.pickled if any((place / name).exists() for place in places)]
    if not found:
        return ""
    return (
        f"Found {', '.join(found)}: that is the Python version, a pickle, which can run any code and is never read "
        "here; use the binary version."
    )


def _unpacked(official: Official, archive: Path) -> dict[str, bytes]:
    try:
        checked(official, archive.name, archive.read_bytes())
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as bundle:
                return {name: bundle.read(f"{official.inside}/{name}") for name in official.files}
        with tarfile.open(archive) as bundle:
            return {name: _member(bundle, f"{official.inside}/{name}") for name in official.files}
    except _DAMAGED as error:
        kind = type(error).__name__
    raise CorruptDataError(
        f"{official.name}: {archive} cannot be unpacked ({kind}): it is cut short, damaged or another file; "
        f"download it again from {official.site}"
    )


def _member(bundle: tarfile.TarFile, name: str) -> bytes:
    stream = bundle.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream.read()
