"""Write the model card: what is protected, what is not, and what epsilon means, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labeldp.core.certificate import Certificate
from labeldp.results.words import BELIEFS, belief_in_words, odds_in_words
from labeldp.results.writing import render

# Whole numbers beyond this are not exact as floats; no table has so many rows.
_MOST = 1 << 53
# What `metrics.json` says of a test beside measures.
COUNTS = ("rows", "training_rows_left_out")


@dataclass(frozen=True)
class Story:
    """What a result was made of, in public numbers and names.

    Args:
        data: the table or data set, by name.
        label: the secret column, empty where a data set has none of its own.
        classes: as declared; None for a number.
        rows: labels in the vault.
        features: the public columns the model reads, or one line that says what they are.
        method: the recipe.
        reason: why that one.
        epsilon, delta: as requested; the certificate states what was spent.
        bounds: of a number, as declared; None for classes.
    """

    data: str
    label: str
    classes: tuple[str, ...] | None
    rows: int
    features: tuple[str, ...]
    method: str
    reason: str
    epsilon: float
    delta: float
    bounds: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        fields = asdict(self)
        lists = ("classes", "features", "bounds")
        return fields | {name: None if fields[name] is None else list(fields[name]) for name in lists}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Story:
        """Return the story of plain values; raise TypeError, KeyError or ValueError where they are none."""
        # Folders that were written before numbers could be trained on have no bounds.
        known = {"bounds": None, **fields}
        lists = {name: None if known[name] is None else tuple(known[name]) for name in ("classes", "bounds")}
        story = cls(**{**known, **lists, "features": tuple(known["features"])})
        texts = (story.data, story.label, story.method, story.reason, *story.features, *(story.classes or ()))
        numbers = (story.rows, story.epsilon, story.delta, *(story.bounds or ()))
        if not all(isinstance(text, str) for text in texts) or not all(map(is_number, numbers)):
            raise TypeError("a text or a number of the story is none")
        if not isinstance(story.rows, int) or story.rows < 0 or not 0 <= story.delta < 1 or not story.epsilon >= 0:
            raise ValueError("rows, epsilon or delta are out of range")
        if story.bounds is not None and (len(story.bounds) != 2 or not story.bounds[0] < story.bounds[1]):
            raise ValueError("bounds are two numbers")
        return story


def is_number(value: object) -> bool:
    """Whether this is a plain number that can be shown: finite, and no larger than it could be counted."""
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) <= _MOST)


def promise(certificate: Certificate) -> str:
    """Return the claim in one sentence, as the card and the command line give it."""
    return odds_in_words(certificate.epsilon, certificate.delta, certificate.unit.protects)


def not_protected(story: Story) -> list[tuple[str, str]]:
    """Return what the promise does not cover: what, and a sentence that goes on from it."""
    declared = (
        ("The list of classes", " was declared, not read off the labels.")
        if story.classes is not None
        else (
            "The bounds of the label",
            " were declared, not read off the labels; numbers beyond them count as the nearer bound, and how many "
            "there are is not released.",
        )
    )
    return [
        ("Features", ", and that a row is in the data. They count as public here; the model may show them."),
        ("What the features reveal", ". If a label can be guessed from them, this model may guess it right, also for "
         "people who were never in the data."),
        declared,
        ("Other releases", " of the same labels. Their epsilons add up with this one; keep one budget store for all."),
        ("Several labels of one person", ", unless the promise above is for all labels of one user."),
    ]  # fmt: skip


def number_words(story: Story) -> str:
    """Return what is predicted where it is no class."""
    return "a number" if story.bounds is None else "a number from {:g} to {:g}".format(*story.bounds)


def measure_words(name: str) -> str:
    """Return a measure as people call it.

    >>> measure_words("log_loss"), measure_words("r2"), measure_words("auc")
    ('log loss', 'R²', 'AUC')
    """
    return {"r2": "R²", "auc": "AUC"}.get(name, name.replace("_", " "))


def model_card(certificate: Certificate, story: Story, metrics: Mapping[str, Any], name: str) -> str:
    """Return the card as Markdown, with the header that model hubs read."""
    test: Mapping[str, Any] = metrics.get("test") or {}
    measures = (f"{measure_words(name)} {value:.4g}" for name, value in test.items() if name not in COUNTS)
    expected = metrics.get("expected", {})
    # A name that a shell or a block of code could misread is left to the reader.
    folder = name if re.fullmatch(r"[\w.+@%,=-]+", name) else "FOLDER"
    return render(
        "model_card.md", name=name, folder=folder, certificate=certificate, story=story, promise=promise(certificate),
        number=number_words(story), beliefs=[(f"{p:.0%}", belief_in_words(p, certificate.epsilon)) for p in BELIEFS],
        not_protected=not_protected(story), test=test, measures=", ".join(measures),
        expected=[(measure_words(name), f"{value:.4g}") for name, value in expected.items()],
    )  # fmt: skip
