"""The folder of a result: written whole or not at all, read back with nothing run.

    model.safetensors   the numbers of the model, and its description as JSON in the header
    certificate.json    the claim and its ledger, bound to the model and, by hashes, to the other files
    config.toml         the run: every option as it was resolved
    model_card.md       what is protected and what is not, in words
    metrics.json        how good it is, from public numbers and releases already paid for
    signature.json      who vouches for all of these, where it was signed

Nothing in it comes from a true label but through releases that the certificate counts. Until it is there, what its run
has paid for is kept in a hidden folder beside it (`RunFolder`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from labeldp.atomic import check_room, draft_of, flush, rename, replacing
from labeldp.budgets.keys import shown_address, shown_path
from labeldp.core.certificate import Certificate, CertificateError, describe_artifact
from labeldp.core.certificate import read as read_certificate
from labeldp.core.ledger import BudgetExceededError
from labeldp.results.card import Story, model_card, one_line
from labeldp.results.signing import SigningKey, sign

FORMAT = "labeldp-model/1"
MODEL, CERTIFICATE, CONFIG = "model.safetensors", "certificate.json", "config.toml"
CARD, METRICS = "model_card.md", "metrics.json"
FILES = (MODEL, CERTIFICATE, CONFIG, CARD, METRICS)
# What config.toml calls the run of an estimator, which no command can repeat.
IN_PYTHON = "fit"
# Beside the model, which the certificate names itself.
HASHED = (CONFIG, CARD, METRICS)
# What is read of a folder that a stranger wrote: no text beyond this, and no more tensors.
_MOST_BYTES, _MOST_TENSORS = 16 << 20, 100_000
_QUOTED, _MOST_DOTS = re.compile(r'"(?:\\.|[^"\\\n])*"'), 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Options that open a store or sign a result: a result says neither what they are nor where they are kept.
_SECRET = {"key", "sign", "passphrase"}
_LOGIN = re.compile(r"([A-Za-z][\w+.-]*://)\S*@")

Tensors = Mapping[str, npt.NDArray[Any]]


class ArtifactError(ValueError):
    """A folder cannot be written or read as requested. One sentence that says what to do."""


@dataclass(frozen=True, eq=False)
class Result:
    """All that a folder holds.

    Args:
        kind: the class that can be rebuilt from `model` and `tensors`.
        model: its description, plain JSON values.
        tensors: its numbers.
        certificate: the claim; bound to the files when they are written.
        run: the options of the run, by command: {"train": {...}}.
        story: what the card and the certificate say about the data and the method.
        metrics: plain JSON values.
    """

    kind: str
    model: Mapping[str, Any] = field(repr=False)
    tensors: Tensors = field(repr=False)
    certificate: Certificate
    run: Mapping[str, Any]
    story: Story
    metrics: Mapping[str, Any]


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A folder in the making: `write` a result into it and leave the block."""

    target: Path
    path: Path
    written: bool = False

    def write(self, result: Result, key: SigningKey | None = None) -> Certificate:
        """Write all files, signed where a key is given, and return the certificate, bound to them."""
        from safetensors.numpy import save_file

        described = json.dumps(dict(result.model), ensure_ascii=False, allow_nan=False)
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in result.tensors.items()}
        save_file(tensors, self.path / MODEL, metadata={"format": FORMAT, "kind": result.kind, "model": described})
        name, command = one_line(self.target.name), next(iter(result.run))
        anew = "from the same responses, for nothing" if result.story.released else "with noise drawn and paid for anew"
        again = (
            f"# How {name} was made. Do it again, {anew}:\n#   labeldp {command} --config {name}/{CONFIG} --out ANOTHER"
        )
        if command == IN_PYTHON:
            again = f"# How {name} was made: by an estimator, in Python."
        texts = {
            CONFIG: f"{again}\n\n{run_toml(result.run)}",
            CARD: model_card(result.certificate, result.story, result.metrics, self.target.name),
            METRICS: json.dumps(dict(result.metrics), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        }
        for name, text in texts.items():
            (self.path / name).write_text(text, encoding="utf-8")
        hashes = {name: describe_artifact(self.path / name).sha256 for name in HASHED}
        release = {"format": FORMAT, "kind": result.kind, "story": result.story.to_json(), "files": hashes}
        certificate = replace(result.certificate, release=release).about(self.path / MODEL)
        certificate.write(self.path / CERTIFICATE)
        if key is not None:
            sign(self.path, key)
        self.written = True
        return certificate


@contextmanager
def drafting(target: Path) -> Iterator[Draft]:
    """Make a hidden folder beside `target`, which gets its name when the block ends and is removed when it fails.

    It is made before anything is spent, so that a place that cannot be written costs nothing. Only a killed process
    can leave it behind: `.NAME.….part`, which may be deleted.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "model"
    >>> with drafting(target) as draft:
    ...     raise_or_write = draft.path.name.startswith(".model.")
    >>> raise_or_write, target.exists()
    (True, False)
    """
    if os.path.lexists(target):
        raise ArtifactError(f"{str(target)!r} exists already and is never overwritten; choose another --out or move it")
    if not target.parent.is_dir():
        raise ArtifactError(
            f"the folder {str(target.parent)!r} does not exist; create it first, or choose another --out"
        )
    draft = Draft(target, draft_of(target))
    try:
        draft.path.mkdir()
    except OSError as error:
        raise ArtifactError(_explain(error, target)) from None
    try:
        yield draft
        if draft.written:
            for file in (*draft.path.iterdir(), draft.path):
                flush(file)
            # Fails where the name was taken meanwhile by anything but an empty folder.
            rename(draft.path, target)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(draft.path)):
            raise
        raise ArtifactError(_explain(error, target)) from None
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)


def _explain(error: OSError, target: Path) -> str:
    if error.errno in _NO_ROOM:
        return f"no room for {str(target)!r} ({os.strerror(error.errno or 0)}); free some and try again"
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
        return f"{str(target)!r} appeared meanwhile; nothing was overwritten. Choose another --out"
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"{str(target)!r} cannot be written ({reason}); choose an --out where you may write"


def run_toml(run: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the options of a run as TOML, without secrets: the one way in which options come into a file.

    A store is named by scheme and database. It is not left out: a run that is repeated from the file must charge it,
    or fail. None is left out, for which TOML has no word.

    >>> print(run_toml({"train": {"store": "postgresql://ann:secret@host/budgets", "key": "/keys/ann"}}), end="")
    [train]
    store = "postgresql:///budgets"
    """

    def public(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [public(name, one) for one in value]
        if name == "store":
            return shown_address(value)
        return shown_path(_LOGIN.sub(r"\1", value)) if isinstance(value, str) else value

    return tomli_w.dumps({
        command: {
            name: public(name, value)
            for name, value in options.items()
            if name not in _SECRET and value is not None
        }
        for command, options in run.items()
    })  # fmt: skip


# -- reading -----------------------------------------------------------------------------------------------------------


def read(folder: Path) -> Result:
    """Return the result in a folder, its model checked against the certificate; `verify_folder` checks all of it."""
    certificate = certificate_in(folder)
    if certificate.artifact != describe_artifact(_present(folder, MODEL)):
        raise ArtifactError(
            f"{MODEL} in {str(folder)!r} is not the certified one: it was damaged or replaced. Restore the folder from "
            "a copy, or train again"
        )
    kind, model, tensors = read_model(folder)
    return Result(kind, model, tensors, certificate, read_config(folder), story_of(certificate), read_metrics(folder))


def certificate_in(folder: Path) -> Certificate:
    """Return the certificate of a folder that this library wrote."""
    try:
        certificate = read_certificate(_present(folder, CERTIFICATE))
    except (CertificateError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{CERTIFICATE} in {str(folder)!r}: {error}; restore it from a copy") from None
    if (certificate.release or {}).get("format") != FORMAT:
        raise ArtifactError(f"{str(folder)!r} does not hold a model of this library (format {FORMAT!r})")
    return certificate


def story_of(certificate: Certificate) -> Story:
    """Return what a certificate says that its model was made of."""
    try:
        return Story.from_json((certificate.release or {})["story"])
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ArtifactError(f"{CERTIFICATE} does not say what the model was made of; restore it from a copy") from None


def read_model(folder: Path) -> tuple[str, dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the kind of the model, its description and its tensors."""
    from safetensors import safe_open

    path = _present(folder, MODEL)
    try:
        with safe_open(path, framework="numpy") as file:
            notes = file.metadata() or {}
            names = list(file.keys())
            if notes["format"] != FORMAT or len(names) > _MOST_TENSORS:
                raise ValueError("not ours")
            return notes["kind"], dict(json.loads(notes["model"])), {name: file.get_tensor(name) for name in names}
    except Exception:
        # Whatever is in the file: its reader has errors of its own, and the description may be anything.
        raise ArtifactError(
            f"{MODEL} in {str(folder)!r} cannot be read; restore it from a copy, or train again"
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the options of the run."""
    try:
        text = read_text(folder, CONFIG)
        # Reading a key of many parts takes time by their square; ours have one.
        if any(line.count(".") > _MOST_DOTS for line in _QUOTED.sub("", text).splitlines()):
            raise ValueError("dots")
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{CONFIG} in {str(folder)!r} is not TOML; restore it from a copy") from None


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the measures."""
    try:
        found = json.loads(read_text(folder, METRICS))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ArtifactError(f"{METRICS} in {str(folder)!r} is no JSON object; restore it from a copy")
    return found


def read_text(folder: Path, name: str) -> str:
    """Return a text of the folder, unless it is larger than any that this library writes."""
    path = _present(folder, name)
    if path.stat().st_size > _MOST_BYTES:
        raise ArtifactError(f"{name} in {str(folder)!r} has {path.stat().st_size:,} bytes; this library writes no such")
    return path.read_text(encoding="utf-8")


def _present(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise ArtifactError(f"{str(folder)!r} is not a folder; give the folder that labeldp train wrote")
    if not (folder / name).is_file():
        raise ArtifactError(f"there is no {name} in {str(folder)!r}; give a whole folder that labeldp train wrote")
    return folder / name


# -- a run that was stopped --------------------------------------------------------------------------------------------


class RunFolder:
    """The folder in which the run that makes `target` keeps what it pays for; removed when the block ends well.

    Killed, or out of disk, a command is simply given again: it finds its own folder, takes the releases from there, and
    pays for what is missing only. The folder of another command is refused, because it was paid for.

    Args:
        target: what the run makes.
        say: called with a sentence for the user when the run stops and something was kept.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "model"
    >>> with RunFolder(target) as run:
    ...     folder = run.of({"epsilon": 1.0})
    >>> folder.name, folder.exists()
    ('.model.run', False)
    """

    def __init__(self, target: Path, say: Callable[[str], None] | None = None) -> None:
        self._folder, self._say, self._mine = target.with_name(f".{target.name}.run"), say, False

    def of(self, settings: Mapping[str, Any]) -> Path:
        """Return the folder, made for a run with these settings (plain JSON values) or left by one with the same."""
        file, now = self._folder / "run.json", json.loads(json.dumps(dict(settings)))
        try:
            check_room(self._folder, 1 << 20)
        except ValueError as error:
            raise ArtifactError(str(error)) from None
        if not file.exists():
            with replacing(file) as draft:
                draft.write_text(json.dumps(now), encoding="utf-8")
        earlier = json.loads(file.read_text(encoding="utf-8"))
        odd = sorted(key for key in earlier.keys() | now.keys() if earlier.get(key) != now.get(key))
        if odd:
            raise ArtifactError(
                f"{str(self._folder)!r} keeps what another command has paid for ({', '.join(odd)} differ): give that "
                "command again to go on with it, choose another --out, or delete the folder and what was spent for it"
            )
        self._mine = True
        return self._folder

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A run that ends before it asks for the folder, a dry one say, leaves what an earlier one has paid for.
        if kind is None and not self._mine:
            return
        # Every query that was paid for has a count; without one there is nothing to go on from. A query that the budget
        # refused has a count, too, of two lines: what was to be charged and that nothing was begun.
        least = 3 if kind is not None and issubclass(kind, BudgetExceededError) else 1
        counts = (file.read_bytes().count(b"\n") for file in self._folder.rglob("*.counter"))
        if kind is None or not any(lines >= least for lines in counts):
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self._say is not None:
            self._say(
                f"What was paid for is kept in {str(self._folder)!r}: give the same command again to go on from there."
            )


def features_digest(features: Any) -> str:
    """Return a hash of public features, a table or an array, by which a run knows them again.

    >>> import pyarrow as pa
    >>> features_digest(pa.table({"a": [1, None]})) == features_digest(pa.table({"a": [1, 0]}))
    False
    """
    import pyarrow as pa

    from labeldp.data.stored import StoredTable

    content = hashlib.sha256()
    if isinstance(features, StoredTable):
        # The sample stands for the rows: whoever goes on with a run knows its table by it, and it is not read again.
        return hashlib.sha256(f"{len(features)} {features_digest(features.sample)}".encode()).hexdigest()[:32]
    if not isinstance(features, pa.Table):
        content.update(repr((features.dtype, features.shape)).encode() + np.ascontiguousarray(features).data)
        return content.hexdigest()[:32]
    for name, column in zip(features.column_names, features.columns, strict=True):
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        filled = column.cast(pa.float64()).fill_null(np.nan) if number else column.cast(pa.string()).fill_null("\0")
        content.update(repr((name, str(column.type), len(column))).encode())
        for chunk in filled.chunks:
            # By values and not by the memory of the chunk, where what lies under a missing cell is anything.
            raw = chunk.to_numpy() if number else "\1".join(chunk.to_pylist()).encode()
            content.update(np.ascontiguousarray(raw).data if number else raw)
    return content.hexdigest()[:32]
