"""Sections on how good a model is: measures, learning curves, accuracy against ε, recipes compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labeldp.accounting.words import at_most
from labeldp.artifacts.card import measure_words
from labeldp.choosing.measured import accuracy, along, labels_per_class, references
from labeldp.choosing.predict import Ranked
from labeldp.choosing.recipes import BY_NAME
from labeldp.choosing.words import count
from labeldp.report import markup as m
from labeldp.report.charts import Series, bars, chart, legend
from labeldp.report.facts import DEVICE, Facts, case_of
from labeldp.report.privacy import belief_after
from labeldp.report.scales import Axis

_POINTS = 25
# A chart of accuracy against ε reaches this factor to either side of what was measured.
_REACH = 8.0
_ROUNDING = 1e-6


def quality_section(facts: Facts) -> str:
    """Measures, curves, and accuracy against ε."""
    pictures = [one for one in (against_epsilon(facts), *curves(facts.metrics)) if one]
    parts = [m.side_by_side(f"<div>{_measures(facts.metrics)}</div>", *pictures)]
    if facts.story.method in ("one_shot", "one_shot+linear"):
        parts.append(m.paragraph("There is no learning curve: the model is solved for after one look.", "soft"))
    what = "accuracy" if facts.classes else "error"
    last = f"There is no {what} on the training labels here: it would be a look that nobody paid for."
    return m.section("quality", "How good it is", *parts, m.paragraph(last, "soft"))


def _measures(metrics: Mapping[str, Any]) -> str:
    test = metrics.get("test")
    rows = [("open labels", name, value) for name, value in (test or {}).items() if name != "rows"]
    rows += [("public rows and the private model", name, value) for name, value in metrics.get("expected", {}).items()]
    said = (
        f"On {test['rows']:,} rows whose labels were given as public." if test
        else "Not measured on labels: no table with public labels was given (--test)."
    )  # fmt: skip
    cells = [(measure_words(name), f"{value:.4g}", origin) for origin, name, value in rows if _is_number(value)]
    return m.paragraph(said) + (m.table("Measures", ["measure", "value", "from"], cells, numbers=(1,)) if cells else "")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --- learning curves ------------------------------------------------------------------------------------------------


def curves(metrics: Mapping[str, Any]) -> list[str]:
    """One chart for each entry of `metrics["curves"]`: {"name", "x_name", "x": [...], "y": [...]}.

    Values that are not finite are left out; so is a curve that has fewer than two left.
    """
    return [drawn for one in metrics.get("curves", ()) if (drawn := _curve(one))]


def _curve(one: Mapping[str, Any]) -> str:
    pairs = zip(one.get("x", ()), one.get("y", ()), strict=False)
    points = sorted((float(x), float(y)) for x, y in pairs if _is_number(x) and _is_number(y))
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return ""
    name, by = str(one.get("name", "value")), str(one.get("x_name", "step"))
    told = f"From {points[0][1]:.3g} to {points[-1][1]:.3g} over {points[-1][0]:g} {by}s."
    whole = all(place.is_integer() for place, _ in points)
    x = Axis(by, points[0][0], points[-1][0], whole=whole)
    y = Axis(name, *_around([value for _, value in points]))
    shown = [Series("", points, dots=len(points) <= 12)]
    return m.figure(chart(f"Learning curve: {name}", told, x, y, shown), f"Learning curve: {name}. {told}")


def _around(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """A range that holds all values with some air."""
    low, high = min(values), max(values)
    air = pad * (high - low) or pad * abs(high) or pad
    return low - air, high + air


# --- accuracy against ε ---------------------------------------------------------------------------------------------


def against_epsilon(facts: Facts) -> str:
    """Accuracy against ε: measured, expected, of single answers, and without privacy where it is known.

    For numbers it is R², measured and without privacy: nothing is expected, and single answers have none.
    """
    if not 0 < facts.certificate.epsilon < math.inf:
        return ""
    grid = _grid([facts.certificate.epsilon, *(one.epsilon for one in facts.beside if math.isfinite(one.epsilon))])
    likely = [] if facts.classes is None else [*_expected(facts, grid), _answers(facts.classes, grid)]
    shown = [*likely, *_non_private(facts, grid), *_measured(facts)]
    if sum(len(one.points) for one in shown) < 2:
        return ""
    low, high = _around([value for one in shown for _, value in one.points])
    x, y = Axis("ε (smaller is more private)", grid[0], grid[-1], log=True), _scale(facts, low, min(high, 1.0))
    title = f"{'R²' if facts.classes is None else 'Accuracy'} against epsilon"
    return m.figure(chart(title, _told(facts), x, y, shown), _told(facts), legend(shown))


def _scale(facts: Facts, low: float, high: float) -> Axis:
    # A model that is worse than the mean of all labels has an R² below 0.
    return Axis("R²", low, high) if facts.classes is None else Axis("accuracy", max(low, 0.0), high, percent=True)


def _score(facts: Facts, value: float) -> str:
    return f"{value:.3f}" if facts.classes is None else f"{value:.1%}"


def _grid(epsilons: Sequence[float]) -> list[float]:
    low, high = max(1e-4, min(epsilons) / _REACH), min(30.0, max(epsilons) * _REACH)
    ratio = max(high / low, 4.0)
    return sorted({*(low * ratio ** (index / (_POINTS - 1)) for index in range(_POINTS)), *epsilons})


def _expected(facts: Facts, grid: Sequence[float]) -> list[Series]:
    """What was measured of the recipe on the data set most like this one, carried over to as many rows and classes.

    Only between results: nothing is drawn beyond the clean labels per class at which it was measured.
    """
    recipe, case = BY_NAME.get(facts.story.method), case_of(facts)
    found = references(case, DEVICE)
    curve = found[0].curve(recipe) if recipe is not None and found else ()
    if recipe is None or len(curve) < 2:
        return []
    ends = sorted(labels_per_class(recipe, point.case, point.epsilon) for point in curve)
    low, high = ends[0] * (1 - _ROUNDING), ends[-1] * (1 + _ROUNDING)
    places = [(epsilon, labels_per_class(recipe, case, epsilon)) for epsilon in grid]
    inside = [(epsilon, along(curve, worth)[0]) for epsilon, worth in places if low <= worth <= high]
    points = [(epsilon, accuracy(odds, case.num_classes) / 100) for epsilon, odds in inside]
    return [Series(f"{recipe.name} on data like {found[0].dataset}", points, tone=4, dashed=True)] if points else []


def _answers(classes: int, grid: Sequence[float]) -> Series:
    points = [(epsilon, belief_after(1 / classes, epsilon)) for epsilon in grid]
    return Series("labels right, answered one by one", points, tone=5, dashed=True)


def _non_private(facts: Facts, grid: Sequence[float]) -> list[Series]:
    if facts.non_private is None:
        return []
    return [Series("without privacy", [(grid[0], facts.non_private), (grid[-1], facts.non_private)], tone=3)]


def _measured(facts: Facts) -> list[Series]:
    found = [] if facts.score is None else [(facts.certificate.epsilon, facts.score)]
    others = [(one.epsilon, one.score) for one in facts.beside if math.isfinite(one.epsilon)]
    shown = [Series("other results", sorted(others), tone=2, line=False)] if others else []
    return [*shown, *([Series("this model, measured", found, tone=1, line=False)] if found else [])]


def _told(facts: Facts) -> str:
    said = f"How {'R²' if facts.classes is None else 'accuracy'} goes with ε."
    if facts.score is not None:
        said += f" This model: {_score(facts, facts.score)} at ε = {at_most(facts.certificate.epsilon, 4)}."
    if facts.non_private is not None:
        said += f" Without privacy: {_score(facts, facts.non_private)}."
    return said


# --- recipes --------------------------------------------------------------------------------------------------------


def methods_section(facts: Facts) -> str:
    """All recipes, what their looks are worth and what is expected of them; other results where given."""
    parts = [m.paragraph(f"Method: {facts.story.method}. {facts.story.reason}".strip())]
    if facts.beside:
        rows = [(one.name, one.method, at_most(one.epsilon, 4), _score(facts, one.score)) for one in facts.beside]
        head = ["folder", "method", "ε", "R²" if facts.classes is None else "accuracy"]
        parts.append(m.table("Other results, measured", head, rows, numbers=(2, 3)))
    if facts.choice is not None:
        parts += _ranking(facts, facts.choice.ranking, facts.choice.alike)
    return m.section("methods", "Methods compared", *parts)


def _ranking(facts: Facts, ranking: Sequence[Ranked], alike: Sequence[str]) -> list[str]:
    mine = facts.story.method
    known = [one for one in ranking if one.clean_labels > 0]
    values = [(one.recipe, one.clean_labels, count(one.clean_labels), one.recipe == mine) for one in known]
    told = f"As many of {facts.story.rows:,} labels without noise would teach a linear model what each method learns."
    picture = m.figure(
        bars("Methods by what their looks are worth in clean labels", told, values), f"Clean labels. {told}"
    )
    said = [m.paragraph("Compared from public numbers alone, for a machine with a GPU.", "soft")]
    if not alike:
        unknown = "Nothing like these data was measured yet, so no accuracy is told; a network's bar counts a quarter."
        said.insert(0, m.paragraph(unknown))
        return [m.side_by_side(picture, f"<div>{''.join(said)}</div>")]
    caption = f"Expected, with caution, on data like {' and '.join(alike)}; yours may be easier or harder"
    cells = [_cells(one) for one in ranking]
    return [m.side_by_side(picture, m.table(caption, ["method", "accuracy", "rests on"], cells, numbers=(1,))), *said]


def _cells(one: Ranked) -> tuple[str, str, str]:
    return one.recipe, "–" if one.accuracy is None else f"{one.accuracy:.1f}%", one.obstacle or one.evidence
