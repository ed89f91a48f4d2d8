"""Privatize whole files: private labels in place of the true ones, and a certificate beside them.

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
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from labeldp.atomic import Room, draft_of, flush
from labeldp.budgets.journal import Journal
from labeldp.core.certificate import Certificate, certify, verify
from labeldp.core.certificate import read as read_certificate
from labeldp.core.events import PureDP, Query
from labeldp.core.ledger import ONE_LABEL, ONE_USER
from labeldp.core.random import SecureRandom
from labeldp.data import csv, parquet
from labeldp.data.door import read_ids
from labeldp.data.request import FORMAT, FORMAT_USERS, Owners, Report, Request, Sealer, TableError, checked
from labeldp.mechanisms.responses import channel_from_description
from labeldp.releases import Channel, FloatArray, NoisyLabels

__all__ = ["PrivateTable", "TableError", "certificate_path", "privatize", "read_private", "verify_file"]

_NOTE = ".certificate.json"
_SUFFIXES = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".tsv": "CSV", ".txt": "CSV"}
# A column of vectors, or another compression, may take more than the source did.
_MORE_ROOM = 1 << 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}


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
    table = _opened(source, target, request, delimiter)
    if users is not None:
        request = checked(label, classes, epsilon, **settings, owners=_owners(source, users, label, delimiter))
    sealer = Sealer(request, SecureRandom() if rng is None else rng)
    try:
        return _privatized(table, target, sealer, journal, report or (lambda _rows, _fraction: None), source)
    except TableError as error:
        reason = str(error)
    # Raised outside the handler: the frames in which it happened hold labels.
    raise TableError(reason)


def _privatized(
    table: _Table, target: Path, sealer: Sealer, journal: Journal | None, report: Report, source: Path
) -> Certificate:
    request = sealer.request
    with publishing(target) as draft:
        if journal is not None:
            # What can be spent only once must not go for a misspelt class, nor for a disk that turns out to be full.
            table.check_labels(request)
            with Room(target, source.stat().st_size + _MORE_ROOM):
                _charge(journal, request, f"privatize column {request.label!r} of {source.name} into {target.name}")
        table.privatize(draft.path, sealer, report)
        public = request.public(sealer.rng, **table.public)
        seeded = sealer.rng.seed is not None
        how: dict[str, Any] = {"noise": sealer.rng.source, "seeded": seeded, "unit": request.unit}
        return draft.seal(certify(sealer.groups, 0.0, release=public, **how))


def _charge(journal: Journal, request: Request, note: str) -> None:
    # The account of a store knows itself whether it counts rows or users.
    unit: dict[str, Any] = {"unit": request.unit} if isinstance(journal, Journal) else {}
    try:
        journal.charge(request.event, note=note, **unit)
    except OSError as error:
        raise TableError(
            f"journal={str(journal.path)!r} cannot be written ({error.strerror}); nothing was drawn"
        ) from None


def _owners(path: Path, column: str, label: str, delimiter: str | None) -> Owners:
    """Count the rows of every user; two readers must agree on what a row is."""
    if column == label:
        raise TableError(f"users={column!r} is the label itself; name the column that says whose each row is")
    ids = read_ids(path, column, delimiter)
    rows = csv.count_rows(path, delimiter) if _format(path, "source") == "CSV" else parquet.count_rows(path)
    if len(ids) != rows:
        raise TableError(f"{path.name} has {rows} rows and {len(ids)} users; remove blank lines, and check the quotes")
    return Owners.of(column, ids)


class _Table(Protocol):
    """What both formats offer once a file is opened and checked."""

    @property
    def public(self) -> Mapping[str, Any]: ...

    def check_labels(self, request: Request) -> None: ...

    def privatize(self, draft: Path, sealer: Sealer, report: Report) -> None: ...


def _opened(source: Path, target: Path, request: Request, delimiter: str | None) -> _Table:
    if _format(source, "source") != _format(target, "target"):
        raise TableError(
            f"source and target differ in format ({source.suffix} and {target.suffix}); give them the same"
        )
    if not source.is_file():
        raise TableError(f"source={str(source)!r} is not a file; give the path of one Parquet or CSV file")
    if os.path.exists(target) and source.samefile(target):
        raise TableError(f"target={str(target)!r} is the source itself; choose another target")
    if _format(source, "source") == "CSV":
        return csv.open_csv(source, request, delimiter)
    if delimiter is not None:
        raise TableError(f"delimiter={delimiter!r} has no meaning for Parquet; leave it out")
    return parquet.open_parquet(source, request)


def _format(path: Path, argument: str) -> str:
    try:
        return _SUFFIXES[path.suffix.lower()]
    except KeyError:
        known = ", ".join(_SUFFIXES)
        raise TableError(f"{argument}={str(path)!r} has no known format; its name must end in {known}") from None


def read_private(path: Path | str) -> PrivateTable:
    """Read a file that `privatize` wrote, with everything a learner needs to use the responses.

    The channel comes from the file itself (Parquet) or from the certificate beside it (CSV, which has no other
    place for it). Call `verify_file` to check the claim.
    """
    path = Path(path)
    if not path.is_file():
        raise TableError(f"path={str(path)!r} is not a file; give a file that privatize wrote")
    note = certificate_path(path)
    try:
        certificate = read_certificate(note) if note.is_file() else None
    except (OSError, ValueError) as error:
        raise TableError(f"the certificate {note.name!r} cannot be read: {error}") from None
    if _format(path, "path") == "CSV":
        public = _known((certificate and certificate.release) or None, path)
        features, responses, prior = csv.read_csv(path, _request(public), str(public.get("delimiter")))
    else:
        public = _known(parquet.read_public(path), path)
        features, responses, prior = parquet.read_parquet(path, _request(public))
    labels = NoisyLabels(_channel(_request(public), public["mechanism"], prior, len(responses)), responses)
    return PrivateTable(features, labels, public["label"], tuple(public["classes"]), certificate)


def _known(public: Mapping[str, Any] | None, path: Path) -> Mapping[str, Any]:
    if public is None or public.get("format") not in (FORMAT, FORMAT_USERS):
        raise TableError(
            f"path={str(path)!r} does not say how its labels were made (format {FORMAT!r}); a CSV file needs "
            "its certificate beside it, and both must be the work of privatize"
        )
    return public


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
    try:
        if prior is None:
            return channel_from_description(description)
        # A channel of no rows cannot state its own k, so it is cut from a channel of one.
        known = prior if rows else request.uniform_prior(1)
        return channel_from_description({**description, "rows": len(known)}, known).take(np.arange(rows))
    except ValueError as error:
        raise TableError(f"the channel of the table cannot be rebuilt: {error}") from None


def certificate_of(path: Path | str) -> Certificate:
    """Return the certificate of an artifact; `path` is either of the two."""
    path = Path(path)
    return read_certificate(path if path.name.endswith(_NOTE) or _is_bare(path) else certificate_path(path))


def _is_bare(path: Path) -> bool:
    """Whether this is a certificate kept under a name of its own: no artifact is named after it."""
    return path.suffix == ".json" and not path.name.endswith(_NOTE) and not certificate_path(path).is_file()


def verify_file(path: Path | str) -> tuple[str, ...]:
    """Return all that is wrong with a privatized file or its certificate, as sentences; nothing when they hold.

    `path` is either of the two. Recomputes the claim, the hash and the number of rows. A Parquet file repeats
    its public parameters inside, so a certificate that was rewritten, checksum and all, is caught there too.
    A CSV file has only its certificate. A certificate of no file at all (`vault.certificate()`, written under any name
    that does not belong to an artifact) is checked by itself.
    """
    path = Path(path)
    if _is_bare(path):
        return _bare_problems(path)
    note = path if path.name.endswith(_NOTE) else certificate_path(path)
    artifact = note.with_name(note.name.removesuffix(_NOTE))
    if not note.is_file():
        return (f"there is no certificate {note.name!r} beside {artifact.name!r}",)
    try:
        certificate = read_certificate(note)
        return (*verify(certificate, artifact), *_table_problems(certificate, artifact))
    except Exception as error:
        # Whatever is in the file, the outcome is a sentence.
        return (f"the certificate {note.name!r} cannot be verified: {str(error) or type(error).__name__}",)


def _bare_problems(path: Path) -> tuple[str, ...]:
    try:
        certificate = read_certificate(path)
        if certificate.artifact is None:
            return verify(certificate)
        home = certificate.artifact.name + _NOTE
        return (f"the certificate speaks about {certificate.artifact.name!r}; keep it beside that file as {home!r}",)
    except Exception as error:
        # Whatever is in the file, the outcome is a sentence.
        return (f"the certificate {path.name!r} cannot be verified: {str(error) or type(error).__name__}",)


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
    problems += _epsilon_problems(certificate, public)
    if artifact.is_file():
        problems += _content_problems(certificate, public, artifact)
    return problems


def _epsilon_problems(certificate: Certificate, public: dict[str, Any]) -> list[str]:
    """Every epsilon in it must be that of the one query that a privatized table is."""
    channel = public.get("mechanism")
    answered = channel.get("epsilon") if isinstance(channel, dict) else None
    queries = (Query(PureDP(certificate.epsilon)),)
    differs = public.get("epsilon") != certificate.epsilon or answered != _request(public).label_epsilon
    if differs or any(group.queries != queries for group in certificate.groups):
        return ["the certificate does not give one epsilon throughout: claim, ledger, release and mechanism differ"]
    return []


def _content_problems(certificate: Certificate, public: dict[str, Any], artifact: Path) -> list[str]:
    try:
        is_text = _format(artifact, "artifact") == "CSV"
        rows = csv.count_rows(artifact, str(public.get("delimiter"))) if is_text else parquet.count_rows(artifact)
        inside = public if is_text else parquet.read_public(artifact)
        owners = _request(public).owners
        if owners is not None:
            ids = read_ids(artifact, owners.column, str(public.get("delimiter")) if is_text else None)
            if Owners.of(owners.column, ids) != owners:
                return [f"the column {owners.column!r} does not have the users that the certificate counts"]
            rows = owners.users
    except TableError as error:
        return [f"the artifact cannot be read: {error}"]
    problems: list[str] = []
    if inside != public:
        odd = sorted(key for key in {*public, *(inside or {})} if public.get(key) != (inside or {}).get(key))
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
        _create(draft.path)
        yield draft
        if draft.certificate is None:
            raise RuntimeError("the draft was never sealed; call draft.seal(certificate) at the end of the block")
        _create(note)
        draft.certificate.write(note)
        _publish(draft, note)
    except OSError as error:
        raise TableError(_explain(error, target)) from None
    finally:
        for path in (draft.path, note):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _publish(draft: Draft, note: Path) -> None:
    flush(draft.path)
    flush(note)
    certificate = certificate_path(draft.target)
    try:
        _name(note, certificate)
        _name(draft.path, draft.target)
        flush(draft.target.parent)
    except BaseException:
        # An interrupt can fall between any two lines: take back what is ours, the artifact first.
        _take_back(draft.path, draft.target)
        _take_back(note, certificate)
        raise


def _take_back(path: Path, final: Path) -> None:
    """Remove `final` if it is this draft's file (linked, or renamed away) and not somebody else's."""
    with suppress(OSError):
        if not path.exists() or path.samefile(final):
            final.unlink()


def _name(path: Path, final: Path) -> None:
    """Give the file its final name, atomically, and fail if the name is taken."""
    try:
        os.link(path, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here (exFAT, some network shares): reserve the name, then rename onto the reservation.
        _create(final)
        os.replace(path, final)


def _explain(error: OSError, target: Path) -> str:
    if error.errno in _NO_ROOM:
        return f"no room for target={str(target)!r} ({os.strerror(error.errno or 0)}); free some and try again"
    if isinstance(error, FileExistsError):
        return f"target={str(target)!r} or its certificate appeared meanwhile; nothing was overwritten"
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"target={str(target)!r} cannot be written ({reason}); nothing was left behind"
