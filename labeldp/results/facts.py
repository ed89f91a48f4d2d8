"""Gather all that a report says from a result folder and what is given beside it. Nothing here reads a label."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labeldp.audit.bounds import AuditResult
from labeldp.choosing.choice import DEVICES, Choice, choose
from labeldp.core.certificate import Certificate
from labeldp.recipes.worth import MODALITIES, Case
from labeldp.results.card import Story, is_number
from labeldp.results.evaluation import Evaluation, evaluation_of
from labeldp.results.folder import FILES, IN_PYTHON, ArtifactError, read
from labeldp.results.signing import AUDIT
from labeldp.results.verify import check

# What a run was chosen for besides numbers.
_KNOWN = {"device": DEVICES, "modality": MODALITIES}


@dataclass(frozen=True)
class Measured:
    """One result on a chart of accuracy, or R², against ε."""

    name: str
    method: str
    epsilon: float
    delta: float
    score: float


@dataclass(frozen=True)
class Facts:
    """What is known about a result.

    Args:
        name: of the folder.
        certificate, story, metrics: as the folder has them.
        files: name and SHA-256 of each file, as certified.
        problems: what `labeldp verify` finds wrong with it.
        signer: the public key that signed all of it; empty where none did.
        choice: recipes compared for such data; None for labels that are numbers.
        width: numbers per row that the recipes were compared for; None where not known.
        audit: a lower bound on ε, where one was made.
        audited: the SHA-256 of the model whose folder the audit was of; None for an audit of a recipe or a file.
        beside: other results to compare with.
        non_private: accuracy (R² for numbers) without privacy, as a share, where it is known.
        evaluation: by rows that were set aside, where some were.
        repeatable: whether a command can make it again from its config.toml; no estimator in Python can.
    """

    name: str
    certificate: Certificate
    story: Story
    metrics: Mapping[str, Any] = field(hash=False)
    files: Mapping[str, str] = field(hash=False)
    problems: tuple[str, ...] = ()
    signer: str = ""
    choice: Choice | None = None
    width: int | None = None
    audit: AuditResult | None = None
    audited: str | None = None
    beside: tuple[Measured, ...] = ()
    non_private: float | None = None
    evaluation: Evaluation | None = None
    repeatable: bool = True

    @property
    def classes(self) -> int | None:
        """The number of classes, or None for numbers."""
        return None if self.story.classes is None else len(self.story.classes)

    @property
    def score(self) -> float | None:
        """Accuracy, or R² of numbers, on open labels, where some were given, else on rows set aside."""
        return _score(self.metrics, self.evaluation, self.story)

    @property
    def margin(self) -> float:
        """How far the score may be off, 95 of 100 times; 0 where it was measured on open labels."""
        name = _measure(self.story)
        own = None if name in self.metrics["test"] or self.evaluation is None else self.evaluation.measures.get(name)
        return min(max(own.margin, 0.0), 1.0) if own else 0.0

    @property
    def baseline(self) -> float | None:
        """The score without any learning, where it is known: of always the most frequent class, or the mean."""
        if self.classes is None:
            return 0.0
        own = self.evaluation.measures.get("majority_baseline") if self.evaluation else None
        share = self.metrics["test"].get("majority_baseline", own.value if own else None)
        return share if share is not None and 0 <= share <= 1 else None

    @property
    def measure_name(self) -> str:
        """What results are compared by, as people call it."""
        return "R²" if self.classes is None else "accuracy"

    def score_words(self, value: float) -> str:
        """Return a score as it is shown: accuracy in percent, R² as a number."""
        return f"{value:.3f}" if self.classes is None else f"{value:.1%}"

    @property
    def modality(self) -> str:
        """Images, or a table."""
        return _modality(self.story)

    @property
    def rows(self) -> int:
        """How many rows the recipes were compared for."""
        return self.story.rows if self.choice is None else self.choice.problem["num_rows"]

    @property
    def device(self) -> str:
        """The machine that they were compared for: "cpu" or "cuda"."""
        return "cpu" if self.choice is None else self.choice.problem["device"]

    @property
    def case(self) -> Case:
        """The learning problem by its public numbers."""
        return Case(self.rows, self.classes or 2, self.width, self.modality, self.story.delta)


def gather(
    folder: Path | str,
    *,
    audit: Path | str | None = None,
    beside: Sequence[Path | str] = (),
    non_private: float | None = None,
) -> Facts:
    """Read a result folder, and what is given beside it.

    Args:
        folder: as `labeldp train` writes it.
        audit: the output of `labeldp audit --json`; `audit.json` in the folder where None and there is one.
        beside: other result folders of the same data.
        non_private: accuracy (R² for numbers) of the same kind of model without privacy, a share; the folder's own
            figure where None (`non_private` in metrics.json).
    """
    folder = Path(folder)
    result = read(folder)
    story, certificate, metrics = result.story, result.certificate, _shown(result.metrics)
    hashes = dict((certificate.release or {}).get("files", {}))
    if certificate.artifact is not None:
        hashes = {certificate.artifact.name: certificate.artifact.sha256, **hashes}
    known = metrics["non_private"].get(_measure(story)) if non_private is None else non_private
    if known is not None and not 0 <= known <= 1:
        what = "an R²" if story.classes is None else "a share of right predictions"
        raise ArtifactError(f"non_private={known} is not {what}; give a number from 0 to 1")
    # Numbers per row as the recipes saw them: pixels, or the features that a head was solved on.
    modality, width = _modality(story), None
    if modality == "images":
        width = math.prod(int(size) for size in story.features[0].removesuffix(" pixels").split(" × "))
    elif "head.mean" in result.tensors:
        width = int(result.tensors["head.mean"].shape[0])
    own, choice = evaluation_of(result.metrics), None
    if story.classes is not None:
        problem = {
            "num_rows": max(1, story.rows - (own.rows if own else 0)),
            "feature_dim": width,
            "modality": modality,
        }
        problem |= _chosen_for(result.metrics.get("chosen_for"))
        choice = choose(num_classes=len(story.classes), epsilon=story.epsilon, delta=story.delta, **problem)
        width = choice.problem["feature_dim"]
    bound, audited = _audit(folder, audit)
    verdict = check(folder)
    return Facts(
        folder.resolve().name, certificate, story, metrics,
        files={name: str(hashes[name]) for name in FILES if name in hashes}, problems=verdict.problems,
        signer="" if verdict.signature is None else verdict.signature.signer,
        choice=choice, width=width, audit=bound, audited=audited,
        beside=tuple(_measured(Path(one), story) for one in beside), non_private=known, evaluation=own,
        repeatable=next(iter(result.run), "") != IN_PYTHON,
    )  # fmt: skip


def _shown(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of the measures: numbers under names, and curves; whatever else is there is not."""
    curves = metrics.get("curves")
    listed = curves if isinstance(curves, list) else ()
    found: dict[str, Any] = {"curves": [one for one in listed if isinstance(one, Mapping)]}
    for part in ("test", "expected", "non_private"):
        values = metrics.get(part)
        named = values.items() if isinstance(values, Mapping) else ()
        found[part] = {str(name): value for name, value in named if is_number(value)}
    return found


def _chosen_for(kept: Any) -> dict[str, Any]:
    """Return what a run was chosen for, of values that may be a stranger's; nothing of what cannot be."""
    given: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
    counts = {name: given.get(name) for name in ("num_rows", "feature_dim")}
    found: dict[str, Any] = {name: one for name, one in counts.items() if type(one) is int and 0 < one < 1 << 53}
    found |= {name: given[name] for name, known in _KNOWN.items() if given.get(name) in known}
    return found if given.get("network") is not False else {**found, "network": False}


def _modality(story: Story) -> str:
    return "images" if story.features[:1] and story.features[0].endswith(" pixels") else "table"


def _measure(story: Story) -> str:
    """Return what results are compared by, as metrics.json names it."""
    return "r2" if story.classes is None else "accuracy"


def _score(metrics: Mapping[str, Any], own: Evaluation | None, story: Story) -> float | None:
    name = _measure(story)
    measured = own.measures.get(name) if own else None
    return metrics["test"].get(name, measured.value if measured else None)


def _measured(folder: Path, story: Story) -> Measured:
    result = read(folder)
    if _measure(result.story) != _measure(story):
        raise ArtifactError(f"of {str(folder)!r} and this result one predicts a class and one a number; leave it out")
    score = _score(_shown(result.metrics), evaluation_of(result.metrics), story)
    if score is None:
        raise ArtifactError(f"{str(folder)!r} was not measured; train it with --holdout or --test, or leave it out")
    claim = result.certificate
    return Measured(folder.resolve().name, result.story.method, claim.epsilon, claim.delta, float(score))


def _audit(folder: Path, given: Path | str | None) -> tuple[AuditResult | None, str | None]:
    """Return the bound, and the hash of the model that it is of."""
    path = folder / AUDIT if given is None else Path(given)
    if given is None and not path.is_file():
        return None, None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        found: dict[str, Any] = {name: fields[name] for name in AuditResult.__dataclass_fields__}
        found |= {name: math.inf for name, value in found.items() if value == "infinity"}
        return AuditResult(**found), fields["of"]["model"] if "of" in fields else None
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read ({error.strerror}); give a file of labeldp audit") from None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{str(path)!r} is not what labeldp audit --json prints; make it anew") from None
