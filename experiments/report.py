"""Print results beside the papers' figures:  python -m experiments.report experiments/results/noisy_labels.jsonl

Lines of the same settings are averaged, lines of different settings never. Quick lines are left out.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path

from experiments import records
from experiments.records import Record
from experiments.settings import Run
from experiments.tables import Figures, Table, tables

_COLUMNS = ("data", "method", "training", "ε", "ours: mean ± spread (runs)", "paper", "difference", "s per run")


def all_lines(paths: list[Path]) -> str:
    """A Markdown table of every setting found in these files, in their order."""
    figures = {group: table.figures for table in tables().values() for group in table.groups}
    settings: list[list[Record]] = []
    for record in (record for path in paths for record in records.read(path)):
        if record["settings"].get("quick"):
            continue
        same = next((found for found in settings if _alike(found[0], record)), None)
        if same is None:
            settings.append([record])
        else:
            same.append(record)
    return markdown([row(found, figures.get(found[0].get("group", ""), {})) for found in settings])


def _alike(one: Record, other: Record) -> bool:
    fields = ("dataset", "method", "metric", "settings")
    return all(one[name] == other[name] for name in fields) and records.asked(one) == records.asked(other)


def paper_table(table: Table, runs: list[Run], lines: list[Record]) -> str:
    """A Markdown table of these runs' settings, with what the reader must know to judge it."""
    settings: list[Run] = []
    for run in (replace(run, seed=0) for run in runs):
        if run not in settings:
            settings.append(run)
    rows = [
        row(found, table.figures) if (found := records.of_setting(lines, run)) else _empty(run, table)
        for run in settings
    ]
    quick = any(run.settings.get("quick") for run in runs)
    lacking = [run for run in settings if not records.of_setting(lines, run)]
    said = _remarks(table, runs, quick) + ([f"No line yet: {_named(lacking)}."] if lacking else [])
    return "\n".join([f"{table.name}: {table.title}", "", markdown(rows), "", *said])


def _named(runs: list[Run]) -> str:
    """Methods, and at which ε."""
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(f"{run.dataset} {run.method}", []).append(run.epsilon)
    return "; ".join(f"{name} at ε = {', '.join(f'{e:g}' for e in sorted(set(at)))}" for name, at in found.items())


def _remarks(table: Table, runs: list[Run], quick: bool) -> list[str]:
    deltas = ", ".join(f"{delta:g}" for delta in sorted({run.settings.get("delta", 0.0) for run in runs}))
    what = "all labels of one user" if any("cap" in run.settings for run in runs) else "one label"
    remarks = [f"ε is exact for the replacement of {what}, δ = {deltas}; ± is the standard deviation over runs."]
    if quick:
        remarks.insert(0, "QUICK: one seed and few epochs, to see that it works. Nothing to compare with the paper.")
    if table.note:
        remarks.append(table.note)
    chosen = {run.group for run in runs}
    remarks += [f"{group}: {note}" for group, note in table.provenance().items() if note and group in chosen]
    left = [
        f"{dataset} {method} at ε = {', '.join(f'{epsilon:g}' for epsilon in sorted(epsilons))}"
        for (dataset, method), epsilons in table.without_settings().items()
    ]
    return remarks + ([f"In the paper, without settings here: {'; '.join(left)}."] if left else [])


def row(lines: list[Record], figures: Figures) -> tuple[str, ...]:
    """Mean and spread of lines of one setting, the paper's figure, the difference, the usual time."""
    first = lines[0]
    values = [line["value"] for line in lines]
    mean, listed = statistics.mean(values), records.asked(first)
    spread = f" ± {_number(statistics.stdev(values), first['metric'])}" if len(values) > 1 else ""
    paper = figures.get((first["dataset"], first["method"], listed, first["metric"]))
    epsilon = f"{listed:g}" if "listed_epsilon" not in first else f"{listed:g} (exact: {first['epsilon']:g})"
    return (
        first["dataset"], first["method"], _training(first["settings"]), epsilon,
        f"{_number(mean, first['metric'])}{spread} ({len(values)})",
        "–" if paper is None else _number(paper, first["metric"]),
        "–" if paper is None else f"{'+' if mean >= paper else '-'}{_number(abs(mean - paper), first['metric'])}",
        f"{statistics.median(line['seconds'] for line in lines):.0f}",
    )  # fmt: skip


def _empty(run: Run, table: Table) -> tuple[str, ...]:
    paper = table.paper(run)
    shown = "–" if paper is None else _number(paper, run.metric)
    return (run.dataset, run.method, _training(run.settings), f"{run.epsilon:g}", "not run", shown, "–", "–")


def _training(settings: dict[str, object]) -> str:
    """In a few words what tells two trainings of one method apart."""
    loss = settings.get("learn", "") if settings["recipe"] == "lp_mst" else ""
    return ", ".join(filter(None, [str(settings["recipe"]), str(loss), _epochs(settings)]))


def _epochs(settings: dict[str, object]) -> str:
    return f"{settings['epochs']} epoch{'' if settings['epochs'] == 1 else 's'}"


def _number(value: float, metric: str) -> str:
    # Percentages as the papers print them; errors and areas lie around one and need a digit more.
    return f"{value:.2f}" if metric == "accuracy" else f"{value:.3f}"


def markdown(rows: list[tuple[str, ...]]) -> str:
    """Columns padded to the same width: readable in a terminal, and valid Markdown."""
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    lines = [_COLUMNS, tuple("-" * width for width in widths), *rows]
    return "\n".join(f"| {' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))} |" for line in lines)


if __name__ == "__main__":
    print(all_lines([Path(name) for name in sys.argv[1:]]))
