"""All that a page says, gathered from a result folder and what is given beside it. Nothing here reads a label."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labeldp.audit.folders import AUDIT
from labeldp.audit.result import AuditResult
from labeldp.choosing.choice import Choice, choose
from labeldp.choosing.recipes import Case
from labeldp.core.certificate import Certificate
from labeldp.results.card import Story
from labeldp.results.folder import FILES, ArtifactError, read
from labeldp.results.verify import verify_folder

# Recipes are compared for a machine that can train all of them.
DEVICE = "cuda"


@dataclass(frozen=True)
class Measured:
    """One result on a chart of accuracy, or R², against ε."""

    name: str
    method: str
    epsilon: float
    score: float


@dataclass(frozen=True)
class Facts:
    """What is known about a result.

    Args:
        name: of the folder.
        certificate, story, metrics: as the folder has them.
        files: name and SHA-256 of each file, as certified.
        problems: what `labeldp verify` says against it.
        choice: recipes compared for such data; None for labels that are numbers.
        width: numbers per row that the recipes were compared for; None where not known.
        audit: a lower bound on ε, where one was made.
        audited: the SHA-256 of the model whose folder the audit was of; None for an audit of a recipe or a file.
        beside: other results to compare with.
        non_private: accuracy (R² for numbers) without privacy, as a share, where it is known.
    """

    name: str
    certificate: Certificate
    story: Story
    metrics: Mapping[str, Any] = field(hash=False)
    files: Mapping[str, str] = field(hash=False)
    problems: tuple[str, ...] = ()
    choice: Choice | None = None
    width: int | None = None
    audit: AuditResult | None = None
    audited: str | None = None
    beside: tuple[Measured, ...] = ()
    non_private: float | None = None

    @property
    def classes(self) -> int | None:
        """K, or None for numbers."""
        return None if self.story.classes is None else len(self.story.classes)

    @property
    def score(self) -> float | None:
        """Accuracy, or R² of numbers, on open labels, where some were given."""
        return self.metrics.get("test", {}).get(_measure(self.story))

    @property
    def modality(self) -> str:
        """Pictures, or a table."""
        return "images" if self.story.features[:1] and self.story.features[0].endswith(" pixels") else "table"


def gather(
    folder: Path | str,
    *,
    audit: Path | str | None = None,
    beside: Sequence[Path | str] = (),
    non_private: float | None = None,
) -> Facts:
    """Read a result folder.

    Args:
        folder: as `labeldp train` writes it.
        audit: what `labeldp audit --json` printed; `audit.json` in the folder where None and there is one.
        beside: other result folders of the same data.
        non_private: accuracy (R² for numbers) of the same kind of model without privacy, a share; the folder's own
            figure where None (`non_private` in metrics.json).
    """
    folder = Path(folder)
    result = read(folder)
    story, certificate = result.story, result.certificate
    width, (bound, of) = _width(story, result.tensors), _audit(folder, audit)
    facts = Facts(
        folder.resolve().name, certificate, story, result.metrics, _hashes(certificate), verify_folder(folder),
        width=width, audit=bound, audited=of, beside=tuple(_measured(Path(one), story) for one in beside),
        non_private=_non_private(result.metrics, story, non_private),
    )  # fmt: skip
    return facts if facts.classes is None else _with_choice(facts)


def _with_choice(facts: Facts) -> Facts:
    case, story = case_of(facts), facts.story
    size = {"feature_dim": case.feature_dim, "modality": case.modality, "device": DEVICE}
    return replace(facts, choice=choose(case.num_rows, case.num_classes, story.epsilon, story.delta, **size))


def case_of(facts: Facts) -> Case:
    """The learning problem by its public numbers."""
    return Case(facts.story.rows, facts.classes or 2, facts.width, facts.modality, facts.story.delta)


def _width(story: Story, tensors: Mapping[str, Any]) -> int | None:
    """Numbers per row as the recipes saw them: pixels, or the features that a head was solved on."""
    first = story.features[0] if story.features else ""
    if first.endswith(" pixels"):
        return math.prod(int(size) for size in first.removesuffix(" pixels").split(" × "))
    return int(tensors["head.mean"].shape[0]) if "head.mean" in tensors else None


def _hashes(certificate: Certificate) -> dict[str, str]:
    artifact, stated = certificate.artifact, dict((certificate.release or {}).get("files", {}))
    if artifact is not None:
        stated = {artifact.name: artifact.sha256, **stated}
    return {name: str(stated[name]) for name in FILES if name in stated}


def _measure(story: Story) -> str:
    """What results are compared by."""
    return "r2" if story.classes is None else "accuracy"


def _measured(folder: Path, story: Story) -> Measured:
    result = read(folder)
    if _measure(result.story) != _measure(story):
        raise ArtifactError(f"of {str(folder)!r} and this result one predicts a class and one a number; leave it out")
    score = result.metrics.get("test", {}).get(_measure(story))
    if score is None:
        raise ArtifactError(f"{str(folder)!r} was not measured on open labels; train it with --test, or leave it out")
    return Measured(folder.resolve().name, result.story.method, result.certificate.epsilon, float(score))


def _non_private(metrics: Mapping[str, Any], story: Story, given: float | None) -> float | None:
    found = metrics.get("non_private", {}).get(_measure(story)) if given is None else given
    if found is not None and not 0 <= found <= 1:
        what = "an R²" if story.classes is None else "a share of right predictions"
        raise ArtifactError(f"non_private={found} is not {what}; give a number from 0 to 1")
    return found


def _audit(folder: Path, given: Path | str | None) -> tuple[AuditResult | None, str | None]:
    """The bound, and whose it is."""
    path = folder / AUDIT if given is None else Path(given)
    if given is None and not path.is_file():
        return None, None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        told: dict[str, Any] = {name: fields[name] for name in AuditResult.__dataclass_fields__}
        told |= {name: math.inf for name, value in told.items() if value == "infinity"}
        return AuditResult(**told), fields["of"]["model"] if "of" in fields else None
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read ({error.strerror}); give a file of labeldp audit") from None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{str(path)!r} is not what labeldp audit --json prints; make it anew") from None
