"""Check a whole result: hashes, the claim recomputed from its ledger, and that all files tell one story."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labeldp.core.certificate import Certificate, describe_artifact, verify
from labeldp.data import tables
from labeldp.results.card import Story, promise
from labeldp.results.folder import CARD, CONFIG, FILES, HASHED, METRICS, MODEL, certificate_in, read_config, read_model

# A composed ε is rounded up to a hair above what was requested, at most.
_SLACK = 1e-6


def verify_folder(folder: Path) -> tuple[str, ...]:
    """Everything that is wrong with a result, as sentences; empty when all of it holds."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        return tuple(f"there is no {name} in {str(folder)!r}" for name in missing)
    try:
        certificate = certificate_in(folder)
        story = Story.from_json((certificate.release or {})["story"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        return (f"the certificate cannot be verified: {str(error) or type(error).__name__}",)
    checks = (_files, _claim, _run, _model, _card, _metrics)
    return (*verify(certificate, folder / MODEL), *_found(checks, folder, certificate, story))


def problems_of(path: Path) -> tuple[str, ...]:
    """The same for whatever has a certificate: a folder, a privatized file, or a certificate by itself."""
    return verify_folder(path) if path.is_dir() else tables.verify_file(path)


def certificate_of(path: Path) -> Certificate:
    """The certificate of a folder, a privatized file, or one by itself."""
    return certificate_in(path) if path.is_dir() else tables.certificate_of(path)


Check = Callable[[Path, Certificate, Story], Iterable[str]]


def _found(checks: tuple[Check, ...], folder: Path, certificate: Certificate, story: Story) -> list[str]:
    problems: list[str] = []
    for check in checks:
        try:
            problems += check(folder, certificate, story)
        except Exception as error:
            # Whatever is in the files, the outcome is a sentence.
            problems.append(f"{check.__name__.lstrip('_')}: {str(error) or type(error).__name__}")
    return problems


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
    metadata, tensors = read_model(folder)
    if metadata["kind"] != (certificate.release or {}).get("kind"):
        yield "the model and the certificate name different kinds of model"
    described = json.loads(metadata["model"])
    described = described.get("estimator", described)
    stated = {"epsilon": story.epsilon, "method": story.method, "bounds": story.bounds and list(story.bounds)}
    for name, value in stated.items():
        if described.get(name, value) != value:
            yield f"the model and the certificate differ in {name}"
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            yield f"tensor {name!r} of the model has values that are not finite"


def _card(folder: Path, certificate: Certificate, _story: Story) -> Iterable[str]:
    if promise(certificate) not in (folder / CARD).read_text(encoding="utf-8"):
        yield f"{CARD} does not state the certificate's promise"


def _metrics(folder: Path, certificate: Certificate, _story: Story) -> Iterable[str]:
    found: Mapping[str, Any] = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    stated = found.get("epsilon")
    same = stated == certificate.epsilon or (stated == "infinity" and math.isinf(certificate.epsilon))
    if not same or found.get("delta") != certificate.delta:
        yield f"{METRICS} and the certificate state different epsilons or deltas"
