"""Privatize whole files: put private labels in place of the true ones, and a certificate beside them.

`privatize` reads a Parquet or CSV file once, chunk by chunk. Each chunk of labels goes into a vault and only
private responses come out; features are copied as they are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from labeldp.atomic import Room, draft_of, publish, reserve
from labeldp.budgets.journal import Journal
from labeldp.core.certificate import Certificate, certify, verify
from labeldp.core.certificate import read as read_certificate
from labeldp.core.events import PureDP, Query
from labeldp.core.ledger import ONE_LABEL, ONE_USER
from labeldp.core.random import SecureRandom
from labeldp.data.columns import COMPRESSED, PARQUET, TEXT, open_table
from labeldp.data.csv import CsvTable
from labeldp.data.door import PrivateData, beside, read_ids
from labeldp.data.parquet import ParquetTable
from labeldp.data.released import ReleasedLabels
from labeldp.data.request import (
    FORMAT,
    FORMAT_USERS,
    Owners,
    Report,
    Request,
    Sealer,
    TableError,
    checked,
    refusing,
    usable,
)
from labeldp.mechanisms.channels import channel_from_description
from labeldp.releases import Channel, FloatArray, NoisyLabels

__all__ = [
    "PrivateTable", "TableError", "certificate_path", "find_certificate", "privatize", "read_private", "read_released",
    "verify_file",
]  # fmt: skip

_NOTE = ".certificate.json"
# A column of vectors, or another compression, may take more than the source did.
_MORE_ROOM = 1 << 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class PrivateTable:
    """A privatized file, read back: public features, private responses with their channel, and the claim.

    `certificate` is None when a Parquet file has lost the certificate beside it; the channel is in the file.
    """

    features: pa.Table
    labels: NoisyLabels
    label: str
    classes: tuple[str, ...]
    certificate: Certificate | None


@refusing
def privatize(
    source: Path | str,
    target: Path | str,
    *,
    label: str,
    classes: Iterable[object],
    epsilon: float,
    mechanism: str | None = None,
    prior_columns: Sequence[str] = (),
    k: int | None = None,
    users: str | None = None,
    journal: Journal | None = None,
    rng: SecureRandom | None = None,
    delimiter: str | None = None,
    report: Report | None = None,
) -> Certificate:
    """Copy a table with its label column replaced by ε-private responses; write a certificate beside it.

    Args:
        source: a `.parquet`/`.pq` or `.csv`/`.tsv`/`.txt` file. Only read.
        target: the file to write, of the same format. Neither it nor its certificate may exist.
        label: the name of the label column.
        classes: all values a label may have. Declared, never read off the data: that would leak.
        epsilon: the privacy parameter of every row (of every user), finite, ≥ 0.
        mechanism: randomized-response (default), prior-response (default when there are prior_columns),
            top-k-response; or, in Parquet only, bit-flip and laplace-one-hot (K numbers per row).
        prior_columns: for the two mechanisms with a prior, one numeric column per class, in class order.
        k: for top-k-response, how many responses a row may have.
        users: a public column that says whose each row is. ε is then for all labels of a user together, and every label
            is answered at ε divided by the most rows that one of them has.
        journal: charged with PureDP(epsilon) once all labels are known to be usable and before the first response is
            drawn; a later failure leaves it so.
        rng: the noise; operating-system entropy when None.
        delimiter: of a CSV file; a tab for `.tsv` and a comma otherwise when None.
        report: called with (rows written, fraction of the source read) after every chunk. For the eyes of
            whoever holds the source: the fraction of a CSV file depends on its size, labels included.

    Raises:
        TableError: with one sentence. Nothing is left behind and the source is as it was.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.csv").write_text("age,income\\n31,low\\n57,high\\n")
    >>> source, target = folder / "in.csv", folder / "out.csv"
    >>> privatize(source, target, label="income", classes=["low", "high"], epsilon=1.0).epsilon
    1.0
    >>> len(read_private(target).labels), verify_file(target)
    (2, ())
    """
    source, target = Path(source), Path(target)
    settings: dict[str, Any] = {"mechanism": mechanism, "prior_columns": prior_columns, "k": k}
    request = checked(label, classes, epsilon, **settings)
    table = _source(source, target, delimiter)
    writer = table.writer(request)
    if users is not None:
        request = checked(label, classes, epsilon, **settings, owners=_owners(table, users, label, delimiter))
    sealer = Sealer(request, SecureRandom() if rng is None else rng)
    with publishing(target) as draft:
        if journal is not None:
            # What can be spent only once must not go for a misspelt class, nor for a disk that turns out to be full.
            for _ in usable(table.codes(label, request.classes), request.classes):
                pass
            # The account of a store knows itself whether it counts rows or users.
            unit: dict[str, Any] = {"unit": request.unit} if isinstance(journal, Journal) else {}
            with Room(target, table.size + _MORE_ROOM):
                try:
                    journal.charge(
                        request.event, note=f"privatize column {label!r} of {source.name} into {target.name}", **unit
                    )
                except OSError as error:
                    raise TableError(
                        f"journal={str(journal.path)!r} cannot be written ({error.strerror}); nothing was drawn"
                    ) from None
        writer.write(draft.path, sealer, report or (lambda _rows, _fraction: None))
        public = request.public(sealer.rng, **table.public)
        seeded = sealer.rng.seed is not None
        how: dict[str, Any] = {"noise": sealer.rng.source, "seeded": seeded, "unit": request.unit}
        return draft.seal(certify(sealer.groups, 0.0, release=public, **how))


@refusing
def has_rows(source: Path, delimiter: str | None = None) -> bool:
    """Return whether a table has a row; no more of it is read than that takes."""
    return open_table(source, delimiter, "source").has_rows()


def _source(source: Path, target: Path, delimiter: str | None) -> CsvTable | ParquetTable:
    """Open the source; refuse a target that is the source itself, or of another format."""
    table = open_table(source, delimiter, "source")
    if source.suffix.lower() in COMPRESSED:
        raise TableError(f"source={str(source)!r} is compressed, and is copied byte by byte; decompress it first")
    if target.suffix.lower() not in TEXT + PARQUET:
        known = ", ".join(PARQUET + TEXT)
        raise TableError(f"target={str(target)!r} has no known format; its name must end in {known}")
    if (target.suffix.lower() in TEXT) != isinstance(table, CsvTable):
        raise TableError(
            f"source and target differ in format ({source.suffix} and {target.suffix}); give them the same"
        )
    if os.path.exists(target) and source.samefile(target):
        raise TableError(f"target={str(target)!r} is the source itself; choose another target")
    return table


def _owners(table: CsvTable | ParquetTable, column: str, label: str, delimiter: str | None) -> Owners:
    """Count the rows of every user; two readers must agree on what a row is."""
    if column == label:
        raise TableError(f"users={column!r} is the label itself; name the column that says whose each row is")
    ids, rows = read_ids(table.path, column, delimiter), table.count_rows()
    if len(ids) != rows:
        name = table.path.name
        raise TableError(f"{name} has {rows} rows and {len(ids)} users; remove blank lines, and check the quotes")
    return Owners.of(column, ids)


# -- reading back ----------------------------------------------------------------------------------------------------


def read_private(path: Path | str, certificate: Path | str | None = None) -> PrivateTable:
    """Read a file that `privatize` wrote, with everything a learner needs to use the responses.

    The channel comes from the file itself (Parquet) or from the certificate beside it (CSV, which has no other
    place for it), or kept elsewhere and named. Call `verify_file` to check the claim.
    """
    path = Path(path)
    if not path.is_file():
        raise TableError(f"path={str(path)!r} is not a file; give a file that privatize wrote")
    note = certificate_path(path) if certificate is None else Path(certificate)
    try:
        claim = read_certificate(note) if note.is_file() else None
    except (OSError, ValueError) as error:
        raise TableError(f"the certificate {note.name!r} cannot be read: {error}") from None
    public, table = _opened(path, claim.release if claim else None)
    request = _request(public)
    features, responses, prior = table.released(request)
    try:
        channel = _channel(request, public["mechanism"], prior, len(responses))
    except ValueError as error:
        raise TableError(f"the channel of the table cannot be rebuilt: {error}") from None
    labels = NoisyLabels(channel, responses)
    return PrivateTable(features, labels, request.label, request.classes, claim)


def find_certificate(path: Path | str, certificate: Path | str | None = None) -> Path | None:
    """Return where the certificate of a file that `privatize` wrote is; None for any other table.

    The one that is named, else the one beside the file. A Parquet file that says itself that it holds responses is
    refused without one: they are not to be taken for labels. A CSV file cannot say so.
    """
    path, beside_it = Path(path), certificate_path(path)
    if certificate is not None or not path.is_file():
        return None if certificate is None else Path(certificate)
    if beside_it.is_file():
        return beside_it
    if path.suffix.lower() in PARQUET:
        table = open_table(path)
        if isinstance(table, ParquetTable) and table.release is not None:
            raise TableError(
                f"{path.name} holds private responses and not labels, and its certificate {beside_it.name!r} is not "
                "beside it; put it there, or name it with --certificate"
            )
    return None


@refusing
def read_released(
    table: Path | str,
    *,
    certificate: Path | str | None = None,
    ids: str | None = None,
    drop: Sequence[str] = (),
    number: Sequence[str] = (),
    category: Sequence[str] = (),
    text: Sequence[str] = (),
    date: Sequence[str] = (),
    test: Path | str | None = None,
) -> PrivateData:
    """Read public features and the responses beside them from a file that `privatize` wrote, if its certificate holds.

    Label, classes, channel and users come from the certificate; learning from the responses costs nothing more. Other
    arguments are those of `labeldp.data.read`.

    Args:
        certificate: where it is, if not beside the table.

    Raises:
        TableError: where table or certificate were changed, or do not belong together.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.csv").write_text("age,income\\n31,low\\n57,high\\n")
    >>> _ = privatize(folder / "in.csv", folder / "out.csv", label="income", classes=["low", "high"], epsilon=1.0)
    >>> read_released(folder / "out.csv").vault
    ReleasedLabels(2 responses, num_classes=2, epsilon=1.0)
    """
    path = Path(table)
    if not path.is_file():
        raise TableError(f"table={str(path)!r} is not a file; give a file that privatize wrote")
    problems = verify_file(path, certificate)
    if problems:
        raise TableError(f"{path.name} and its certificate do not hold: {problems[0]}")
    private = read_private(path, certificate)
    if not private.labels.informative().any():
        raise TableError(
            f"the responses in {path.name} say nothing about the labels (epsilon 0); nothing can be learnt"
        )
    public: Any = private.certificate and private.certificate.release
    return beside(
        path, private.label, private.classes, lambda: ReleasedLabels(private.labels, private.certificate),
        users=public.get("users", {}).get("column"), ids=ids, drop=drop,
        kinds={"number": number, "category": category, "text": text, "date": date},
        delimiter=public.get("delimiter"), test=test,
    )  # fmt: skip


def _opened(path: Path, kept: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], CsvTable | ParquetTable]:
    """Open a private table, and find its public parameters: in a Parquet file itself, else those that were `kept`."""
    table = None if path.suffix.lower() in TEXT else open_table(path, argument="path")
    public = table.release if isinstance(table, ParquetTable) else kept
    if not public or public.get("format") not in (FORMAT, FORMAT_USERS):
        raise TableError(
            f"path={str(path)!r} does not say how its labels were made (format {FORMAT!r}); a CSV file needs "
            "its certificate beside it, and both must be the work of privatize"
        )
    return public, table or open_table(path, str(public.get("delimiter")), "path")


def _request(public: Mapping[str, Any]) -> Request:
    try:
        channel, owners = public["mechanism"], public.get("users")
        return checked(
            public["label"],
            public["classes"],
            public["epsilon"],
            mechanism=channel["mechanism"],
            prior_columns=public["prior_columns"],
            k=channel.get("k"),
            owners=None if owners is None else Owners(**owners),
        )
    except (KeyError, TypeError, AttributeError):
        raise TableError("the public parameters of the table are incomplete; it was changed after privatize") from None


def _channel(request: Request, description: Mapping[str, Any], prior: FloatArray | None, rows: int) -> Channel:
    if prior is None:
        return channel_from_description(description)
    # A channel of no rows cannot state its own k, so it is cut from a channel of one.
    known = prior if rows else request.uniform_prior(1)
    return channel_from_description({**description, "rows": len(known)}, known).take(np.arange(rows))


# -- verifying -------------------------------------------------------------------------------------------------------


def certificate_of(path: Path | str) -> Certificate:
    """Return the certificate of an artifact; `path` is either of the two."""
    path = Path(path)
    return read_certificate(path if path.name.endswith(_NOTE) or _is_bare(path) else certificate_path(path))


def _is_bare(path: Path) -> bool:
    """Return whether this is a certificate kept under a name of its own: no artifact is named after it."""
    return path.suffix == ".json" and not path.name.endswith(_NOTE) and not certificate_path(path).is_file()


def verify_file(path: Path | str, certificate: Path | str | None = None) -> tuple[str, ...]:
    """Return all that is wrong with a privatized file or its certificate, as sentences; nothing when they hold.

    `path` is either of the two; or the file, where its certificate is kept elsewhere and named. Recomputes the claim,
    the hash and the number of rows. A Parquet file repeats its public parameters inside, so a certificate that was
    rewritten, checksum and all, is caught there too. A CSV file has only its certificate. A certificate of no file at
    all (`vault.certificate()`, written under any name that does not belong to an artifact) is checked by itself.
    """
    path = Path(path)
    bare = certificate is None and _is_bare(path)
    note = path if bare or path.name.endswith(_NOTE) else certificate_path(path)
    artifact = note.with_name(note.name.removesuffix(_NOTE))
    if certificate is not None:
        note, artifact = Path(certificate), path
    if not note.is_file():
        return (
            f"there is no certificate {note.name!r} beside {artifact.name!r}; give a file that labeldp privatize "
            "wrote, with its certificate, or a folder of labeldp train",
        )
    try:
        claim = read_certificate(note)
        if not bare:
            return (*verify(claim, artifact), *_table_problems(claim, artifact))
        if claim.artifact is None:
            return verify(claim)
        home = claim.artifact.name + _NOTE
        return (f"the certificate speaks about {claim.artifact.name!r}; keep it beside that file as {home!r}",)
    except Exception as error:
        # Whatever is in the file, the outcome is a sentence.
        return (f"the certificate {note.name!r} cannot be verified: {str(error) or type(error).__name__}",)


def _table_problems(certificate: Certificate, artifact: Path) -> list[str]:
    public = dict(certificate.release or {})
    unit = {FORMAT: ONE_LABEL, FORMAT_USERS: ONE_USER}.get(str(public.get("format")))
    if certificate.artifact is None or unit is None:
        return [f"the certificate does not speak about a table (format {FORMAT!r})"]
    problems: list[str] = []
    if certificate.unit != unit or (unit is ONE_USER) != ("users" in public):
        problems.append(f"the certificate protects {certificate.unit.protects}, and its table {unit.protects}")
    if public.get("noise") != certificate.noise:
        problems.append("the certificate names two different sources of noise")
    # Every epsilon in it must be that of the one query that a privatized table is.
    channel, queries = public.get("mechanism"), (Query(PureDP(certificate.epsilon)),)
    answered = channel.get("epsilon") if isinstance(channel, dict) else None
    differs = public.get("epsilon") != certificate.epsilon or answered != _request(public).label_epsilon
    if differs or any(group.queries != queries for group in certificate.groups):
        problems.append(
            "the certificate does not give one epsilon throughout: claim, ledger, release and mechanism differ"
        )
    if artifact.is_file():
        problems += _content_problems(certificate, public, artifact)
    return problems


def _content_problems(certificate: Certificate, public: dict[str, Any], artifact: Path) -> list[str]:
    try:
        inside, table = _opened(artifact, public)
        rows, owners = table.count_rows(), _request(public).owners
        if owners is not None:
            ids = read_ids(artifact, owners.column, table.public.get("delimiter"))
            if Owners.of(owners.column, ids) != owners:
                return [f"the column {owners.column!r} does not have the users that the certificate counts"]
            rows = owners.users
    except TableError as error:
        return [f"the artifact cannot be read: {error}"]
    problems: list[str] = []
    if inside != public:
        odd = sorted(key for key in {*public, *inside} if public.get(key) != inside.get(key))
        problems.append(f"the certificate and the artifact state different parameters: {', '.join(odd)}")
    counted = sum(group.rows for group in certificate.groups)
    if counted != rows:
        problems.append(f"the ledger counts {counted} {certificate.unit.counted} and the artifact holds {rows}")
    return problems


# -- publishing: an artifact and its certificate appear together under their names, or neither does ------------------


def certificate_path(target: Path | str) -> Path:
    """Return where the certificate of an artifact lies: beside it, with `.certificate.json` added to its name."""
    target = Path(target)
    return target.with_name(target.name + _NOTE)


@dataclass
class Draft:
    """An artifact in the making. Write `path`, then `seal` it; leaving the block publishes both files."""

    target: Path
    path: Path
    certificate: Certificate | None = None

    def seal(self, certificate: Certificate) -> Certificate:
        """Bind this certificate to the file as it now is, under the name it will have."""
        self.certificate = certificate.about(self.path, name=self.target.name)
        return self.certificate


@contextmanager
def publishing(target: Path) -> Iterator[Draft]:
    """Yield a draft in the target's folder, published when the block ends and removed when it fails.

    Nothing is ever overwritten. The certificate is published first, so the artifact never stands without
    one. Files go to the disk before they get their names. Only a killed process can leave something: a
    hidden file `.NAME.….part`, which holds private responses and may be deleted.
    """
    if not target.parent.is_dir():
        raise TableError(f"the folder of target={str(target)!r} does not exist; create it first")
    for path in (target, certificate_path(target)):
        if os.path.lexists(path):
            raise TableError(f"{str(path)!r} exists already and is never overwritten; move it or choose another target")
    draft, note = Draft(target, draft_of(target)), draft_of(certificate_path(target))
    try:
        reserve(draft.path)
        yield draft
        if draft.certificate is None:
            raise RuntimeError("the draft was never sealed; call draft.seal(certificate) at the end of the block")
        reserve(note)
        draft.certificate.write(note)
        publish([(note, certificate_path(target)), (draft.path, target)])
    except OSError as error:
        raise TableError(_explain(error, target)) from None
    finally:
        for path in (draft.path, note):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _explain(error: OSError, target: Path) -> str:
    if error.errno in _NO_ROOM:
        return f"no room for target={str(target)!r} ({os.strerror(error.errno or 0)}); free some and try again"
    if isinstance(error, FileExistsError):
        return f"target={str(target)!r} or its certificate appeared meanwhile; nothing was overwritten"
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"target={str(target)!r} cannot be written ({reason}); nothing was left behind"
