"""Write and check certificates: the claim, its ledger and its assumptions, as a JSON file that anyone can recompute.

A certificate is evidence, not a signature: `verify` catches mistakes, damage and careless edits, because
every number in it is recomputed or compared. Somebody who rewrites the whole file, the artifact included,
makes a new certificate; where that matters, sign the file with the tool your organisation trusts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from labeldp.core.accountant import Plans, accountant_name
from labeldp.core.display import certificate_html
from labeldp.core.events import PureDP, Query, event_from_json, event_to_json
from labeldp.core.gaussian import AccountingError
from labeldp.core.ledger import ONE_LABEL, Group, Unit, merge_disjoint, unit_of_words, worst_epsilon
from labeldp.core.limits import DEEPEST, MOST_TEXT, MOST_WORK, composed_events, depth

# The second format has fields for what the first one cannot say, and is written only where they are needed.
FORMAT, FORMAT_2 = "labeldp-certificate/1", "labeldp-certificate/2"
# The sources of noise this library certifies: labeldp.core.random and labeldp.core.keyed say where they come from.
SECURE_NOISE = "operating-system entropy, AES-256-CTR"
KEYED_NOISE = "operating-system entropy, AES-256 keyed by row"
# A composed ε may differ in the last digits on another machine; 1e-7 is less than the accountant's own safety margin.
# Sums of pure epsilons are exact everywhere.
_TOLERANCE, _EXACT = 1e-7, 1e-15
# Numbers that floats still count one by one.
_MOST = 1 << 53
_MISSING = object()


class CertificateError(ValueError):
    """A certificate that cannot be read."""


@dataclass(frozen=True)
class Artifact:
    """The file a certificate speaks about."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Certificate:
    """What was promised, and all that is needed to check it.

    `groups` is the ledger by distinct history; `release` the public parameters of what was handed out; `unit` says
    whose labels may change at once, and so what a group counts: rows or users; `assumptions` are sentences that the
    claim rests on and no ledger can show.
    """

    epsilon: float
    delta: float
    groups: tuple[Group, ...]
    accountant: str
    noise: str
    seeded: bool
    made_by: str
    created: str
    artifact: Artifact | None = None
    release: Mapping[str, Any] | None = field(default=None, hash=False)
    unit: Unit = ONE_LABEL
    assumptions: tuple[str, ...] = ()

    def about(self, artifact: Path, name: str | None = None) -> Certificate:
        """Return the same certificate, bound to this file (under the name it will have)."""
        return replace(self, artifact=describe_artifact(artifact, name))

    def _repr_html_(self) -> str:
        return certificate_html(self)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values with a checksum over all of them."""
        body = self.body(second=bool(self.assumptions) or any(len(group.plans) > 1 for group in self.groups))
        return {**body, "checksum": _checksum(body)}

    def body(self, *, second: bool) -> dict[str, Any]:
        """Return all but the checksum, in the first or the second format."""
        artifact, unit = self.artifact, self.unit
        return {
            "format": FORMAT_2 if second else FORMAT,
            "created": self.created,
            "claim": {
                "epsilon": "infinity" if math.isinf(self.epsilon) else self.epsilon,
                "delta": self.delta,
                "protects": unit.protects,
                "neighbours": unit.neighbours,
            },
            "ledger": [{unit.counted: group.rows, **_plans_to_json(group.plans, second)} for group in self.groups],
            "accountant": self.accountant,
            "noise": {"source": self.noise, "seeded": self.seeded},
            "library": self.made_by,
            "artifact": artifact and {"name": artifact.name, "sha256": artifact.sha256, "bytes": artifact.size},
            "release": self.release and dict(self.release),
            **({"assumptions": list(self.assumptions)} if second else {}),
        }

    def dumps(self) -> str:
        """Return the certificate as readable JSON text."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: Path | str) -> None:
        """Write the certificate as readable JSON."""
        Path(path).write_text(self.dumps(), encoding="utf-8")


def certify(
    groups: tuple[Group, ...],
    delta: float,
    *,
    noise: str,
    seeded: bool,
    release: Mapping[str, Any] | None = None,
    unit: Unit = ONE_LABEL,
    assumptions: tuple[str, ...] = (),
) -> Certificate:
    """Return the certificate of these groups at this delta; each group counts units."""
    if delta == 0 and all(isinstance(query.event, PureDP) for group in groups for query in group.queries):
        # Sums of pure epsilons know no plans.
        groups = merge_disjoint([tuple(replace(group, plans=(group.queries,) * bool(group.plans)) for group in groups)])
    return Certificate(
        worst_epsilon(groups, delta), delta, groups, _accountants(groups, delta), noise, seeded,
        made_by=f"labeldp {metadata.version('labeldp')}", created=datetime.now(UTC).isoformat(timespec="seconds"),
        release=release, unit=unit, assumptions=assumptions,
    )  # fmt: skip


def describe_artifact(path: Path, name: str | None = None) -> Artifact:
    """Return name, SHA-256 and size of a file, read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(name or path.name, digest, path.stat().st_size)


# -- checking ------------------------------------------------------------------------------------------------


def verify(certificate: Certificate, artifact: Path | None = None) -> tuple[str, ...]:
    """Return everything that is wrong with a certificate, as sentences; nothing when it holds.

    Recomputes epsilon from the ledger and, when the certificate names an artifact, its size and hash. A claim that
    protects nothing is wrong: an infinite epsilon, or a delta of one over the number of rows or more, at which the
    label of a random row may be published.
    """
    if (work := composed_events(certificate.groups, certificate.delta)) > MOST_WORK:
        return (f"the ledger takes {work:.0f} compositions to recompute, more than the {MOST_WORK} that are tried",)
    problems: list[str] = []
    try:
        claimed, actual = certificate.epsilon, worst_epsilon(certificate.groups, certificate.delta)
        expected = _accountants(certificate.groups, certificate.delta)
    except AccountingError as error:
        return (f"the ledger cannot be accounted for: {error}",)
    near = _TOLERANCE if certificate.delta > 0 else _EXACT
    if actual != claimed and not abs(actual - claimed) <= near * max(actual, claimed):
        problems.append(
            f"the claim is epsilon={claimed:.9g} but the ledger gives {actual:.9g} at delta={certificate.delta:.3g}"
        )
    if math.isinf(claimed):
        problems.append("epsilon is infinite: labels were seen, or noise was left out, and nothing is protected")
    rows = sum(group.rows for group in certificate.groups)
    if certificate.delta * rows >= 1:
        counted = certificate.unit.counted
        problems.append(
            f"delta={certificate.delta:.3g} is one over the {rows} {counted} or more: it allows to publish one of them"
        )
    # What earlier versions of this library called a query.
    if certificate.accountant.replace("one look", "one query") != expected:
        problems.append(f"the accountant is given as {certificate.accountant!r}; this ledger needs {expected!r}")
    stated = (certificate.release or {}).get("epsilon", 0.0)
    if _number(stated) > claimed * (1 + _EXACT):
        problems.append(f"the release was made with epsilon={stated}, more than the claim of {claimed}")
    if certificate.seeded:
        problems.append("the noise came from a seed: anyone who knows the seed can undo it. Only good for tests")
    elif certificate.noise not in (SECURE_NOISE, KEYED_NOISE):
        problems.append(f"the noise source {certificate.noise!r} is not one this library certifies")
    if certificate.artifact is not None:
        name = certificate.artifact.name
        if artifact is None or not artifact.is_file():
            problems.append(f"the artifact {name!r} was not found beside the certificate")
        elif (found := describe_artifact(artifact, name)) != certificate.artifact:
            problems.append(f"the artifact {artifact.name!r} is not the certified one: its SHA-256 is {found.sha256}")
    return tuple(problems)


def _accountants(groups: tuple[Group, ...], delta: float) -> str:
    names = {accountant_name(group.plans, delta) for group in groups if group.plans}
    return "; ".join(sorted(names)) or "nothing was asked"


# -- reading -------------------------------------------------------------------------------------------------


def read(path: Path | str) -> Certificate:
    """Read a certificate; CertificateError says what is wrong with it."""
    with Path(path).open("rb") as file:
        content = file.read(MOST_TEXT + 1)
    try:
        return parse(content.decode())
    except UnicodeDecodeError:
        raise CertificateError("not a certificate: it is not text in UTF-8") from None


def parse(text: str) -> Certificate:
    """Parse certificate text strictly: what this library would not write just so is an error, or what is too large.

    What is read is written again and compared: no field can be missing, unknown, repeated or of another kind.
    """
    if len(text) > MOST_TEXT:
        raise CertificateError(f"it has more than {MOST_TEXT} characters; no certificate of this library does")
    try:
        fields: Any = json.loads(text, object_pairs_hook=_no_repeats)
        if not isinstance(fields, dict):
            raise CertificateError("the file holds no JSON object")
        return _from_json(cast("dict[str, Any]", fields))
    except CertificateError:
        raise
    except RecursionError:
        raise CertificateError(f"it is nested more than {DEEPEST} levels deep") from None
    except KeyError as error:
        raise CertificateError(f"not a certificate: the field {error} is missing") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CertificateError(f"not a certificate: {error}") from None


def _from_json(fields: dict[str, Any]) -> Certificate:
    if depth(fields) > DEEPEST:
        raise RecursionError
    second = fields.get("format") == FORMAT_2
    if not second and fields.get("format") != FORMAT:
        raise CertificateError(f"format {fields.get('format')!r} is not {FORMAT!r}; use the version that wrote it")
    if fields.pop("checksum") != _checksum(fields):
        raise CertificateError("the certificate was changed after it was written: its checksum does not match")
    claim, noise, artifact = fields["claim"], fields["noise"], fields["artifact"]
    unit = unit_of_words(claim["protects"], claim["neighbours"])
    if unit is None:
        raise CertificateError("the claim is not worded as this library words it, so it may promise something else")
    delta = _number(claim["delta"])
    if delta >= 1:
        raise CertificateError(f"delta={delta} is not a probability below 1")
    if fields["release"] is not None:
        _number(fields["release"].get("epsilon", 0.0))
    if artifact is not None:
        artifact = Artifact(str(artifact["name"]), str(artifact["sha256"]), _count(artifact["bytes"], 0))
    groups = [Group(_count(group[unit.counted], 0), _plans_from_json(group, second)) for group in fields["ledger"]]
    read = Certificate(
        _number(claim["epsilon"]), delta, tuple(groups), str(fields["accountant"]), str(noise["source"]),
        noise["seeded"] is True, made_by=str(fields["library"]), created=str(fields["created"]), artifact=artifact,
        release=fields["release"], unit=unit, assumptions=tuple(map(str, fields.get("assumptions", ()))),
    )  # fmt: skip
    written = read.body(second=second)
    odd = [name for name in {**written, **fields} if written.get(name, _MISSING) != fields.get(name, _MISSING)]
    if odd:
        raise CertificateError(f"not as this library writes it, so it may promise something else: check {sorted(odd)}")
    return read


def _plans_to_json(plans: Plans, second: bool) -> dict[str, Any]:
    found = [[{"event": event_to_json(query.event), "times": query.times} for query in plan] for plan in plans]
    return {"plans": found} if second else {"looks": found[0] if found else []}


def _plans_from_json(group: Mapping[str, Any], second: bool) -> Plans:
    plans = group["plans"] if second else [group["looks"]] if group["looks"] else []
    found = [tuple(Query(event_from_json(q["event"]), _count(q["times"], 1)) for q in plan) for plan in plans]
    if any(not plan or len({query.event for query in plan}) < len(plan) for plan in found):
        raise CertificateError("a ledger entry has a plan without queries, or lists an event twice in one")
    return tuple(found)


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _number(value: object) -> float:
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise CertificateError(f"{value!r} is not a number ≥ 0")
    return float(value)


def _count(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise CertificateError(f"{value!r:.80} is not a count from {least} to {_MOST}")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields
