"""Check a whole result: hashes, the claim recomputed from its ledger, that all files tell one story, who signed it.

A certificate cannot show that its ledger lists every query of the labels. A budget store can, as far as every query
went through it: signed by whoever runs the store, its history is a file that a certificate is held against.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.atomic import replacing
from labeldp.core.certificate import Certificate, describe_artifact, verify
from labeldp.data import tables
from labeldp.results import signing
from labeldp.results.card import Story, at_most, promise
from labeldp.results.folder import (
    CARD,
    CONFIG,
    FILES,
    HASHED,
    METRICS,
    MODEL,
    ArtifactError,
    certificate_in,
    read_config,
    read_metrics,
    read_model,
    read_text,
    story_of,
)

HISTORY_FORMAT = "labeldp-history/1"
_MOST_HISTORY = 64 << 20
# A composed ε is rounded up to a hair above what was requested, at most.
_SLACK = 1e-6


@dataclass(frozen=True)
class Verdict:
    """What came out of checking a result.

    Args:
        problems: everything that is wrong with it, as sentences; empty where all of it holds.
        certificate: None where it cannot be read, or the file is the history of a store.
        spent: ε and δ that are claimed; None where they cannot be read.
        signature: None where it is not signed.
        trusted: whether one of the signers that are required has signed it.
    """

    problems: tuple[str, ...]
    certificate: Certificate | None = None
    spent: tuple[float, float] | None = None
    signature: signing.Signature | None = None
    trusted: bool = False

    @property
    def proved(self) -> str:
        """What checking has shown, in one sentence; empty where something is wrong."""
        if self.problems or self.spent is None:
            return ""
        cost = f"epsilon {at_most(self.spent[0])} at delta {at_most(self.spent[1])}"
        if self.certificate is None:
            shown = f"the history is whole and ends at {cost}"
        else:
            about = "" if self.certificate.artifact is None else ", and every file is the certified one"
            shown = f"{cost} follows from the ledger{about}"
        return shown + (f"; {self.signature.signer} signed all of it" if self.signature is not None else "")

    @property
    def not_proved(self) -> str:
        """What nobody can see from the files, in one sentence."""
        ledger = f"that the {'ledger' if self.certificate else 'history'} lists every query of these labels"
        if self.signature is None:
            return f"{ledger}. It is not signed: whoever had the files could have rewritten all of them"
        if not self.trusted:
            return f"{ledger}, nor that this signer may be trusted; name the one you trust with --signer"
        return f"{ledger}; for that the signer's word stands, or the history of a budget store"


def check(
    path: Path | str,
    *,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
    signers: Collection[str | Path] = (),
) -> Verdict:
    """Check whatever has a certificate: a folder, a privatized file, a certificate by itself; or a store's history.

    Args:
        path: any of them.
        max_epsilon, max_delta: the most that you accept.
        signers: public keys, or files that hold one; one of them must have signed.
    """
    path, wanted = Path(path), [signing.public_key(signer) for signer in signers]
    certificate = spent = None
    problems: list[str] = []
    try:
        if path.suffix == ".json" and (history := read_history(path)) is not None:
            problems += history_problems(history)
            spent = spent_in(history)
        else:
            problems += verify_folder(path) if path.is_dir() else tables.verify_file(path)
            certificate = certificate_in(path) if path.is_dir() else tables.certificate_of(path)
            spent = certificate.epsilon, certificate.delta
    except Exception:
        # Whatever is in the file: its problems say what is wrong with it.
        problems = problems or ["it cannot be read; restore it from a copy"]
    for name, claimed, most in zip(("epsilon", "delta"), spent or (), (max_epsilon, max_delta), strict=False):
        if most is not None and not claimed <= most * (1 + _SLACK):
            problems.append(f"the claim is {name}={claimed:.9g}, more than the {most:g} that you accept")
    signature, unsigned = signing.check(path, wanted)
    trusted = signature is not None and signature.signer in wanted and not unsigned
    return Verdict((*problems, *unsigned), certificate, spent, signature, trusted)


def verify_folder(folder: Path) -> tuple[str, ...]:
    """Return everything that is wrong with a result, as sentences; nothing when all of it holds.

    The signature is not looked at: see `check`.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        return tuple(f"there is no {name} in {str(folder)!r}" for name in missing)
    try:
        certificate = certificate_in(folder)
        story = story_of(certificate)
        problems = [*verify(certificate, folder / MODEL)]
    except Exception as error:
        # Whatever is in the file, the outcome is a sentence.
        return (f"the certificate cannot be verified: {str(error) or type(error).__name__}",)
    for name, compare in CHECKS.items():
        try:
            problems += compare(folder, certificate, story)
        except Exception as error:
            problems.append(f"{name}: {str(error) or type(error).__name__}")
    return tuple(problems)


# -- what the files of a folder say ------------------------------------------------------------------------------------


def _files(folder: Path, certificate: Certificate, _story: Story) -> Iterable[str]:
    stated = dict((certificate.release or {}).get("files", {}))
    for name in HASHED:
        if stated.get(name) != describe_artifact(folder / name).sha256:
            yield f"{name} was changed after it was certified"


def _claim(_folder: Path, certificate: Certificate, story: Story) -> Iterable[str]:
    if certificate.artifact is None or certificate.artifact.name != MODEL:
        yield f"the certificate does not speak about {MODEL}"
    if not certificate.epsilon <= story.epsilon * (1 + _SLACK) or certificate.delta > story.delta:
        yield (
            f"requested were epsilon={story.epsilon:g}, delta={story.delta:g}, and the claim is "
            f"epsilon={certificate.epsilon:.9g}, delta={certificate.delta:g}: more was spent than requested"
        )
    counted = {group.rows for group in certificate.groups}
    if certificate.unit.counted == "rows" and sum(group.rows for group in certificate.groups) != story.rows:
        yield f"the ledger counts {sum(counted)} rows and the result speaks of {story.rows}"


def _run(folder: Path, _certificate: Certificate, story: Story) -> Iterable[str]:
    (run,) = read_config(folder).values()
    stated = {
        "epsilon": story.epsilon,
        "method": story.method,
        "label": story.label or None,
        "classes": story.classes and list(story.classes),
        "range": story.bounds and list(story.bounds),
        "task": "regression" if story.classes is None else "classification",
    }
    for name, value in stated.items():
        if name in run and run[name] != value:
            yield f"{CONFIG} and the certificate differ in {name}"


def _model(folder: Path, certificate: Certificate, story: Story) -> Iterable[str]:
    kind, described, tensors = read_model(folder)
    if kind != (certificate.release or {}).get("kind"):
        yield "the model and the certificate name different kinds of model"
    described = described.get("estimator", described)
    stated = {"epsilon": story.epsilon, "method": story.method, "bounds": story.bounds and list(story.bounds)}
    for name, value in stated.items():
        if described.get(name, value) != value:
            yield f"the model and the certificate differ in {name}"
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            yield f"tensor {name!r} of the model has values that are not finite"


def _card(folder: Path, certificate: Certificate, _story: Story) -> Iterable[str]:
    if promise(certificate) not in read_text(folder, CARD):
        yield f"{CARD} does not state the certificate's promise"


def _metrics(folder: Path, certificate: Certificate, _story: Story) -> Iterable[str]:
    found = read_metrics(folder)
    stated = found.get("epsilon")
    same = stated == certificate.epsilon or (stated == "infinity" and math.isinf(certificate.epsilon))
    if not same or found.get("delta") != certificate.delta:
        yield f"{METRICS} and the certificate state different epsilons or deltas"


Check = Callable[[Path, Certificate, Story], Iterable[str]]
CHECKS: dict[str, Check] = {
    "files": _files,
    "claim": _claim,
    "config": _run,
    "model": _model,
    "card": _card,
    "metrics": _metrics,
}


# -- the history of a budget store -------------------------------------------------------------------------------------


def write_history(path: Path, history: Mapping[str, Any]) -> None:
    """Write a history, whole or not at all; nothing is overwritten.

    Args:
        path: the file.
        history: "store", "dataset" and "charges", as `labeldp budget` prints them.
    """
    if os.path.lexists(path) or not path.parent.is_dir():
        raise ArtifactError(f"{str(path)!r} is there already, or its folder is not; choose another --out")
    with replacing(path) as draft:
        draft.write_text(json.dumps({"format": HISTORY_FORMAT, **history}, indent=2) + "\n", encoding="utf-8")


def read_history(path: Path) -> dict[str, Any] | None:
    """Return the history in a file, or None where it holds something else."""
    try:
        if path.stat().st_size > _MOST_HISTORY:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("format") == HISTORY_FORMAT else None


def history_problems(history: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts itself in a history: charges that are missing, or more than the budget.

    Beside the charges of its analysts a service writes the plain sum of all so far, as long as there is one: what was
    spent at most. Composed it may be less, so that these lines may fall, but never below one that was composed before.
    """
    try:
        spent = [_number(charge["epsilon"]) for charge in history["charges"]]
        summed = [str(charge["who"]).startswith("analyst ") for charge in history["charges"]]
        numbers = [charge["number"] for charge in history["charges"]]
        budget, total = _number(history["dataset"]["epsilon"]), _number(history["dataset"]["spent"])
    except (LookupError, TypeError, ValueError):
        yield "the history is incomplete; export it again"
        return
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) != history["dataset"].get("charges"):
        yield "charges are missing from the history, or out of order"
    composed = list(accumulate((0.0 if at_most else one for one, at_most in zip(spent, summed, strict=True)), max))
    last, least = (spent[-1], composed[-1]) if spent else (0.0, 0.0)
    falls = any(one < before for one, before in zip(spent[1:], composed, strict=False))
    if falls or not least * (1 - 1e-9) - 1e-12 <= total <= last * (1 + 1e-9) + 1e-12:
        yield "epsilon falls in the course of the history, or does not end at what was spent"
    if not total <= budget * (1 + 1e-9):
        yield f"epsilon {total:.6g} was spent of a budget of {budget:.6g}"


def spent_in(history: Mapping[str, Any]) -> tuple[float, float]:
    """Return ε spent, and the δ of the budget."""
    return _number(history["dataset"]["spent"]), _number(history["dataset"]["delta"])


def _number(value: object) -> float:
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError("not a number ≥ 0")
    return float(value)
