"""Write the report of a result: one HTML page with everything in it, which fetches and runs nothing."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from labeldp.atomic import replacing
from labeldp.results.card import number_words
from labeldp.results.charts import DARK, LIGHT
from labeldp.results.facts import Facts
from labeldp.results.folder import ArtifactError
from labeldp.results.sections import (
    Table,
    audit_section,
    ledger_section,
    methods_section,
    noise_section,
    promise_section,
    quality_section,
)
from labeldp.results.words import at_most
from labeldp.results.writing import render


def page(facts: Facts) -> str:
    """Return the whole page as HTML."""
    columns = len(facts.story.features)
    plain = f"{columns} public feature{'' if columns == 1 else 's'}"
    return render(
        "page.html",
        facts=facts,
        light=LIGHT,
        dark=DARK,
        quoted=shlex.quote(facts.name),
        predicted=number_words(facts.story) if facts.classes is None else f"{facts.classes} classes",
        read=facts.story.features[0] if facts.modality == "images" else plain,
        tiles=_tiles(facts),
        promise=promise_section(facts),
        ledger=ledger_section(facts),
        noise=noise_section(facts),
        quality=quality_section(facts),
        methods=methods_section(facts),
        audit=audit_section(facts),
        files=Table("SHA-256 of the files, as the certificate has them", ["file", "SHA-256"], [*facts.files.items()]),
    )


def write_page(facts: Facts, path: Path) -> None:
    """Write the page, whole or not at all."""
    if path.is_dir():
        raise ArtifactError(f"{str(path)!r} is a folder; name a file to write, such as report.html")
    if not path.parent.is_dir():
        raise ArtifactError(f"the folder {str(path.parent)!r} does not exist; create it first, or choose another --out")
    text = page(facts)
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _tiles(facts: Facts) -> list[tuple[str, str]]:
    """Return the figures at the top: the price first, then what it bought."""
    certificate, test = facts.certificate, facts.metrics["test"]
    odds = f"{at_most(math.exp(certificate.epsilon), 3)}×" if certificate.epsilon < 50 else "no bound to speak of"
    tiles = [
        ("ε", at_most(certificate.epsilon, 4)),
        ("δ", at_most(certificate.delta, 2)),
        ("odds of a label move by", odds),
    ]
    measures = {
        "accuracy": ("accuracy", "{:.1%}"),
        "auc": ("AUC", "{:.3f}"),
        "r2": ("R²", "{:.3f}"),
        "mean_absolute_error": ("mean absolute error", "{:.4g}"),
    }
    tiles += [(name, form.format(test[key])) for key, (name, form) in measures.items() if key in test]
    return [*tiles, ("method", facts.story.method)]
