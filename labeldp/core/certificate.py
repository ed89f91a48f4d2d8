"""The claim, its ledger and its assumptions, as a JSON file anyone can recompute.

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

from labeldp.core.accountant import accountant_name
from labeldp.core.events import PureDP, Query, event_from_json, event_to_json
from labeldp.core.ledger import ONE_LABEL, Group, Unit, unit_of_words, worst_epsilon

FORMAT = "labeldp-certificate/1"
# The only source of noise this library certifies (labeldp.core.random says where it comes from).
SECURE_NOISE = "operating-system entropy, AES-256-CTR"
# A composed ε may differ in the last digits on another machine; 1e-7 is less than the accountant's own safety margin.
# Sums of pure epsilons are exact everywhere.
_TOLERANCE, _EXACT = 1e-7, 1e-15


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
    whose labels may change at once, and so what a group counts: rows or users.
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

    def about(self, artifact: Path, name: str | None = None) -> Certificate:
        """Return the same certificate, bound to this file (under the name it will have)."""
        return replace(self, artifact=describe_artifact(artifact, name))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values with a checksum over all of them."""
        artifact = self.artifact
        body = {
            "format": FORMAT,
            "created": self.created,
            "claim": {
                "epsilon": "infinity" if math.isinf(self.epsilon) else self.epsilon,
                "delta": self.delta,
                "protects": self.unit.protects,
                "neighbours": self.unit.neighbours,
            },
            "ledger": [_group_to_json(group, self.unit) for group in self.groups],
            "accountant": self.accountant,
            "noise": {"source": self.noise, "seeded": self.seeded},
            "library": self.made_by,
            "artifact": artifact and {"name": artifact.name, "sha256": artifact.sha256, "bytes": artifact.size},
            "release": self.release and dict(self.release),
        }
        return {**body, "checksum": _checksum(body)}

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
) -> Certificate:
    """Return the certificate of these groups at this delta; each group counts units."""
    return Certificate(
        worst_epsilon(groups, delta), delta, groups, _accountants(groups, delta), noise, seeded,
        made_by=f"labeldp {metadata.version('labeldp')}", created=datetime.now(UTC).isoformat(timespec="seconds"),
        release=release, unit=unit,
    )  # fmt: skip


def describe_artifact(path: Path, name: str | None = None) -> Artifact:
    """Return name, SHA-256 and size of a file, read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(name or path.name, digest, path.stat().st_size)


# -- checking ------------------------------------------------------------------------------------------------


def verify(certificate: Certificate, artifact: Path | None = None) -> tuple[str, ...]:
    """Return everything that is wrong with a certificate, as sentences; nothing when it holds.

    Recomputes epsilon from the ledger and, when the certificate names an artifact, its size and hash.
    """
    problems: list[str] = []
    claimed, actual = certificate.epsilon, worst_epsilon(certificate.groups, certificate.delta)
    pure = all(isinstance(query.event, PureDP) for group in certificate.groups for query in group.queries)
    if actual != claimed and not abs(actual - claimed) <= (_EXACT if pure else _TOLERANCE) * max(actual, claimed):
        problems.append(
            f"the claim is epsilon={claimed:.9g} but the ledger gives {actual:.9g} at delta={certificate.delta:.3g}"
        )
    expected = _accountants(certificate.groups, certificate.delta)
    # What earlier versions of this library called a query.
    if certificate.accountant.replace("one look", "one query") != expected:
        problems.append(f"the accountant is given as {certificate.accountant!r}; this ledger needs {expected!r}")
    stated = (certificate.release or {}).get("epsilon", 0.0)
    if _number(stated) > claimed * (1 + _EXACT):
        problems.append(f"the release was made with epsilon={stated}, more than the claim of {claimed}")
    if certificate.seeded:
        problems.append("the noise came from a seed: anyone who knows the seed can undo it. Only good for tests")
    elif certificate.noise != SECURE_NOISE:
        problems.append(f"the noise source {certificate.noise!r} is not one this library certifies")
    if certificate.artifact is not None:
        problems += _check_artifact(certificate.artifact, artifact)
    return tuple(problems)


def _check_artifact(expected: Artifact, path: Path | None) -> list[str]:
    if path is None or not path.is_file():
        return [f"the artifact {expected.name!r} was not found beside the certificate"]
    found = describe_artifact(path)
    if found.sha256 != expected.sha256 or found.size != expected.size:
        return [f"the artifact {path.name!r} is not the certified one: its SHA-256 is {found.sha256}"]
    return []


def _accountants(groups: tuple[Group, ...], delta: float) -> str:
    names = {accountant_name(group.queries, delta) for group in groups if group.queries}
    return "; ".join(sorted(names)) or "nothing was asked"


# -- reading -------------------------------------------------------------------------------------------------


def read(path: Path | str) -> Certificate:
    """Read a certificate; CertificateError says what is wrong with it."""
    return parse(Path(path).read_text(encoding="utf-8"))


def parse(text: str) -> Certificate:
    """Parse certificate text strictly: unknown, missing or repeated fields are errors."""
    try:
        fields: object = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constant)
        if not isinstance(fields, dict):
            raise CertificateError("the file holds no JSON object")
        return _from_json(cast("dict[str, Any]", fields))
    except CertificateError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CertificateError(f"not a certificate: {error}") from None


def _from_json(fields: dict[str, Any]) -> Certificate:
    _expect(fields, "format created claim ledger accountant noise library artifact release checksum", "a certificate")
    if fields["checksum"] != _checksum({name: value for name, value in fields.items() if name != "checksum"}):
        raise CertificateError("the certificate was changed after it was written: its checksum does not match")
    claim, noise, artifact = fields["claim"], fields["noise"], fields["artifact"]
    _expect(claim, "epsilon delta protects neighbours", "the claim")
    _expect(noise, "source seeded", "the noise")
    if fields["format"] != FORMAT:
        raise CertificateError(f"format {fields['format']!r} is not {FORMAT!r}; use the version that wrote it")
    unit = unit_of_words(claim["protects"], claim["neighbours"])
    if unit is None:
        raise CertificateError("the claim is not worded as this library words it, so it may promise something else")
    if not isinstance(noise["seeded"], bool):
        raise CertificateError(f"noise.seeded={noise['seeded']!r} is not true or false")
    if fields["release"] is not None:
        _number(fields["release"].get("epsilon", 0.0))
    if artifact is not None:
        _expect(artifact, "name sha256 bytes", "the artifact")
        artifact = Artifact(str(artifact["name"]), str(artifact["sha256"]), _count(artifact["bytes"], 0))
    delta = _number(claim["delta"])
    if delta >= 1:
        raise CertificateError(f"delta={delta} is not a probability below 1")
    return Certificate(
        _number(claim["epsilon"]), delta, tuple(_group_from_json(group, unit) for group in fields["ledger"]),
        str(fields["accountant"]), str(noise["source"]), noise["seeded"], made_by=str(fields["library"]),
        created=str(fields["created"]), artifact=artifact, release=fields["release"], unit=unit,
    )  # fmt: skip


def _group_to_json(group: Group, unit: Unit) -> dict[str, Any]:
    queries = [{"event": event_to_json(query.event), "times": query.times} for query in group.queries]
    return {unit.counted: group.rows, "looks": queries}


def _group_from_json(fields: Mapping[str, Any], unit: Unit) -> Group:
    _expect(fields, f"{unit.counted} looks", "a ledger entry")
    for query in fields["looks"]:
        _expect(query, "event times", "a query")
    queries = [Query(event_from_json(query["event"]), _count(query["times"], 1)) for query in fields["looks"]]
    if len({query.event for query in queries}) < len(queries):
        raise CertificateError("a ledger entry lists an event twice")
    return Group(_count(fields[unit.counted], 0), tuple(queries))


def _expect(fields: Mapping[str, Any], names: str, what: str) -> None:
    wanted = set(names.split())
    if set(fields) != wanted:
        raise CertificateError(f"{what} should have the fields {sorted(wanted)}; check {sorted(set(fields) ^ wanted)}")


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
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CertificateError(f"{value!r} is not a count of at least {least}")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
