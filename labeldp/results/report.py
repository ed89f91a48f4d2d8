"""The page: everything in one file, nothing fetched, nothing run."""

from __future__ import annotations

import math
import os
import secrets
from pathlib import Path

from labeldp.results.card import number_words
from labeldp.results.facts import Facts
from labeldp.results.folder import ArtifactError
from labeldp.results.markup import escape, paragraph, stylesheet
from labeldp.results.sections import (
    audit_section,
    check_section,
    ledger_section,
    methods_section,
    noise_section,
    promise_section,
    quality_section,
    status,
)
from labeldp.results.words import at_most

# The browser is told to fetch and run nothing, whatever a name in the data may look like.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(facts: Facts) -> str:
    """The whole page as HTML."""
    sections = (
        promise_section(facts), ledger_section(facts), noise_section(facts), quality_section(facts),
        methods_section(facts), audit_section(facts), check_section(facts),
    )  # fmt: skip
    title = f"{facts.name}: a model trained on private labels"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        f"<title>{escape(title)}</title>\n<style>{stylesheet()}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{escape(facts.name)}</h1>{_what(facts)}{status(facts)}{_tiles(facts)}</header>\n"
        + "\n".join(part for part in sections if part)
        + f"\n<footer>{paragraph(f'Written by {facts.certificate.made_by}. This page needs no network.')}</footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def write_page(facts: Facts, path: Path) -> None:
    """Write the page, whole or not at all."""
    if path.is_dir():
        raise ArtifactError(f"{str(path)!r} is a folder; name a file to write, such as report.html")
    if not path.parent.is_dir():
        raise ArtifactError(f"the folder {str(path.parent)!r} does not exist; create it first, or choose another --out")
    text = page(facts)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _what(facts: Facts) -> str:
    story = facts.story
    secret = story.label or "the label"
    of = number_words(story) if facts.classes is None else f"{facts.classes} classes"
    count = len(story.features)
    seen = story.features[0] if facts.modality == "images" else f"{count} public feature{'' if count == 1 else 's'}"
    return paragraph(
        f"Predicts {secret} ({of}) from {seen}. Trained on {story.rows:,} secret labels of {story.data}.", "soft"
    )


def _tiles(facts: Facts) -> str:
    certificate, test = facts.certificate, facts.metrics.get("test", {})
    odds = f"{at_most(math.exp(certificate.epsilon), 3)}×" if certificate.epsilon < 50 else "no bound to speak of"
    told = [
        ("ε", at_most(certificate.epsilon, 4)),
        ("δ", at_most(certificate.delta, 2)),
        ("odds of a label move by", odds),
    ]
    if "accuracy" in test:
        told.append(("accuracy", f"{test['accuracy']:.1%}"))
    if "auc" in test:
        told.append(("AUC", f"{test['auc']:.3f}"))
    if "r2" in test:
        told.append(("R²", f"{test['r2']:.3f}"))
    if "mean_absolute_error" in test:
        told.append(("mean absolute error", f"{test['mean_absolute_error']:.4g}"))
    told.append(("method", facts.story.method))
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in told)
    return f'<dl class="tiles">{tiles}</dl>'
