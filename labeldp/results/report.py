"""Write the report of a result: one HTML page with everything in it, which fetches and runs nothing.

Each section works out its sentences, tables and figures here; the template `page.html.jinja` has the fixed text.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labeldp.atomic import replacing
from labeldp.choosing.choice import count
from labeldp.choosing.predict import accuracy, along, labels_per_class, references
from labeldp.core import events as ev
from labeldp.core.accountant import Plans, plans_epsilon
from labeldp.core.ledger import Group, worst_epsilon
from labeldp.recipes.catalogue import BY_KEY
from labeldp.results.card import (
    BELIEFS,
    COUNTS,
    at_most,
    belief_after,
    belief_below,
    belief_in_words,
    column_cells,
    headline,
    is_number,
    measure_words,
    not_protected,
    number_words,
    promise,
    released_words,
    render,
    unmeasured,
)
from labeldp.results.charts import DARK, LIGHT, Axis, Band, Series, bars, chart, dot_grid, heat_table
from labeldp.results.evaluation import PERCENT, Evaluation, shown
from labeldp.results.facts import Facts, Measured
from labeldp.results.folder import MODEL, ArtifactError

# The narrower kinds first: some are Gaussians, too.
_EVENTS = (
    (ev.PoissonGaussian, "a noisy sum over a secret batch"),
    (ev.FixedSizeGaussian, "a noisy sum over a secret batch"),
    (ev.PublicBatchGaussian, "a noisy sum over a batch that is known"),
    (ev.PartitionGaussian, "a noisy sum over a batch that is known"),
    (ev.DiscreteGaussian, "noisy counts in whole numbers"),
    (ev.Gaussian, "a noisy sum over all rows"),
)
_MOST_GROUPS, _MOST_QUERIES = 8, 12
# Points on a line of ε against queries, and of accuracy against ε.
_STEPS, _POINTS = 8, 25
# A chart of accuracy against ε reaches this factor to either side of what was measured.
_REACH = 8.0
_ROUNDING = 1e-6
# Classes of a confusion matrix that can be drawn, and of which recall and precision are listed.
_MOST_CLASSES, _MOST_LISTED = 30, 100


class Table(NamedTuple):
    """A table with headers; `numbers` are the columns that are aligned on the right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


class Figure(NamedTuple):
    """An SVG chart with its caption."""

    image: str
    caption: str


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
        released=released_words(facts.story),
        machine="with a GPU" if facts.device == "cuda" else "without a GPU",
        ledger=ledger_section(facts),
        noise=noise_section(facts),
        quality=quality_section(facts),
        methods=methods_section(facts),
        audit=audit_section(facts),
        columns=columns_section(facts),
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


def _tiles(facts: Facts) -> list[list[tuple[str, str]]]:
    """Return the figures at the top in two lines: how good it is, and how private."""
    certificate, test = facts.certificate, facts.metrics["test"]
    measures = {
        "accuracy": ("accuracy", "{:.1%}"),
        "majority_baseline": ("always the most frequent class", "{:.1%}"),
        "auc": ("AUC", "{:.3f}"),
        "r2": ("R²", "{:.3f}"),
        "mean_absolute_error": ("mean absolute error", "{:.4g}"),
    }
    own = facts.evaluation.measures if facts.evaluation and not test else {}
    tiles = [(name, form.format(test[key])) for key, (name, form) in measures.items() if key in test]
    tiles += [(name, shown(key, own[key])) for key, (name, _) in measures.items() if key in own]
    odds = f"{at_most(math.exp(certificate.epsilon), 3)}×" if certificate.epsilon < 50 else "no bound to speak of"
    learnt = facts.story.rows - (facts.evaluation.rows if facts.evaluation else 0)
    good = [*(tiles or [(facts.measure_name, "not measured")]), ("training labels", f"{learnt:,}")]
    private = [("ε", at_most(certificate.epsilon, 4)), ("δ", at_most(certificate.delta, 2))]
    return [good, [*private, ("a label's odds move by at most", odds), ("method", facts.story.method)]]


# -- the promise -----------------------------------------------------------------------------------------------------


def promise_section(facts: Facts) -> dict[str, Any]:
    """Return what is promised, what that means for beliefs, and what is not promised."""
    certificate = facts.certificate
    but = f" (except with probability {at_most(certificate.delta, 3)})" if certificate.delta else ""
    rows = [(f"{belief:.0%}", belief_in_words(belief, certificate.epsilon)) for belief in BELIEFS]
    bounded = math.isfinite(certificate.epsilon)
    return {
        "sentence": promise(certificate),
        "even": belief_in_words(0.5, certificate.epsilon) if bounded else "",
        "figure": _beliefs(certificate.epsilon) if bounded else None,
        "beliefs": Table(f"Belief in one value of a label against another{but}", ["before", "after, at most"], rows)
        if bounded else None,
        "not_protected": not_protected(facts.story, certificate),
    }  # fmt: skip


def _beliefs(epsilon: float) -> Figure:
    shares, drawn = [index / 40 for index in range(41)], min(epsilon, 50.0)
    high, low = ([bound(share, drawn) for share in shares] for bound in (belief_after, belief_below))
    shown = [
        Band("after, at most and at least", shares, low, high),
        Series("", list(zip(shares, high, strict=True))), Series("", list(zip(shares, low, strict=True))),
        Series("nothing learnt", [(0, 0), (1, 1)], tone=5, dashed=True),
    ]  # fmt: skip
    most = belief_in_words(0.5, drawn)
    summary = f"Someone who considers two values of a label equally likely can become at most {most} sure of one."
    x, y = Axis("belief before", 0, 1, percent=True), Axis("belief after", 0, 1, percent=True)
    image = chart("Belief in one value of a label, before and after", summary, x, y, shown)
    return Figure(image, f"What anyone can learn about one label at ε = {at_most(epsilon, 4)}. {summary}")


# -- the ledger ------------------------------------------------------------------------------------------------------


def ledger_section(facts: Facts) -> dict[str, Any]:
    """Return every query with ε so far, the costliest history first, and how ε of that one grew."""
    certificate = facts.certificate
    groups = sorted(
        (group for group in certificate.groups if group.rows or group.queries),
        key=lambda group: -worst_epsilon((group,), certificate.delta),
    )
    rows = [row for group in groups[:_MOST_GROUPS] for row in _queries(group, certificate.delta)]
    head = [certificate.unit.counted, "queries", "what each was", "ε so far"]
    return {
        "queries": Table("Queries of the labels, the costliest history first", head, rows, numbers=(0, 1, 3)),
        "more": max(len(groups) - _MOST_GROUPS, 0),
        "growth": _growth(groups[0], certificate.delta) if groups else None,
    }


def _queries(group: Group, delta: float) -> list[list[str]]:
    """Return one line for each kind of query of a plan, with ε of all up to it."""
    lines = [(plan, place, query) for plan, queries in enumerate(group.plans) for place, query in enumerate(queries)]
    rows = []
    for plan, place, query in lines[:_MOST_QUERIES]:
        so_far = (*group.plans[:plan], group.plans[plan][: place + 1])
        cost = at_most(plans_epsilon(so_far, delta))
        rows.append([f"{group.rows:,}", f"{query.times:,}", event_words(query.event), cost])
    if rest := [query for _, _, query in lines[_MOST_QUERIES:]]:
        whole = at_most(plans_epsilon(group.plans, delta))
        rows.append([f"{group.rows:,}", f"{sum(query.times for query in rest):,}", f"{len(rest)} more kinds", whole])
    return rows or [[f"{group.rows:,}", "0", "not queried", "0"]]


def event_words(event: object) -> str:
    """Return what a query was, in words.

    >>> event_words(ev.PureDP(1.0))
    'a private response, pure ε = 1'
    """
    if isinstance(event, ev.PureDP):
        return f"a private response, pure ε = {at_most(event.epsilon, 4)}"
    words = next((words for kind, words in _EVENTS if isinstance(event, kind)), None)
    if words is None:
        return "everything, without noise" if isinstance(event, ev.NonPrivate) else str(event)
    rate, diameter = getattr(event, "rate", None), getattr(event, "diameter", None)
    words += "" if rate is None else f" of {rate:.3g} of the rows"
    words += f", noise of deviation {getattr(event, 'noise_std', math.nan):.4g}"
    return words if diameter is None else f"{words}; one label moves it by at most {diameter:.4g}"


def growth(plans: Plans, delta: float, steps: int = _STEPS) -> list[tuple[float, float]]:
    """Return ε after so many queries, in the order of the ledger: about `steps` points, the last for all of them."""
    total = sum(query.times for plan in plans for query in plan)
    counts = sorted({max(1, round(total * step / steps)) for step in range(1, steps + 1)})
    return [(float(count), plans_epsilon(_first(plans, count), delta)) for count in counts]


def _first(plans: Plans, count: int) -> Plans:
    """Return so many queries of the history, plan by plan."""
    taken: list[ev.Queries] = []
    for plan in plans:
        part: list[ev.Query] = []
        for query in plan:
            if count > 0:
                part.append(ev.Query(query.event, min(query.times, count)))
                count -= query.times
        taken.append(tuple(part))
    return tuple(taken)


def _growth(group: Group, delta: float) -> Figure | None:
    points = growth(group.plans, delta) if sum(query.times for query in group.queries) > 1 else []
    if len(points) < 2 or not all(math.isfinite(value) for _, value in points) or points[-1][1] <= 0:
        return None
    summary = f"After {points[-1][0]:,.0f} queries ε is {at_most(points[-1][1], 4)}."
    x, y = Axis("queries", 0, points[-1][0], whole=True), Axis("ε so far", 0, 1.05 * points[-1][1])
    image = chart("Epsilon as queries add up", summary, x, y, [Series("", points, dots=True)])
    return Figure(image, f"How ε of the costliest history grew, in the order of the ledger. {summary}")


# -- the noise -------------------------------------------------------------------------------------------------------


def noise_section(facts: Facts) -> dict[str, Any] | None:
    """Return what one label by itself would look like behind as much privacy; None where there is nothing to say."""
    epsilon, classes, recipe = facts.certificate.epsilon, facts.classes, BY_KEY.get(facts.story.method)
    if not math.isfinite(epsilon):
        return None
    if classes is None:
        words = "" if recipe is None else recipe.numbers_in_words
        return {"words": words, "figure": None} if words else None
    filled = round(100 * belief_after(1 / classes, epsilon))
    summary = f"{filled} of 100 would be the true label; blind guessing gives {100 / classes:.3g}."
    image = dot_grid(
        "Labels released one by one", summary, filled, ("the true label", "another class, drawn at random")
    )
    caption = (
        f"If every label were released by itself at ε = {at_most(epsilon, 4)}, as a randomized response among "
        f"{classes} classes: {summary}"
    )
    words = (
        "Labels were released one by one. Each response carries this noise, or less if a public guess narrowed the "
        "classes. The model never saw a true label. It can learn because it is known how the noise was drawn."
        if recipe is not None and recipe.per_row
        else "Here the noise was added to sums or counts over many rows, where it matters less: one label hides in "
        "the sum, while what all labels have in common stays visible. That is why the model can be right more often "
        "than single private responses."
    )
    return {"words": words, "figure": Figure(image, caption)}


# -- quality ---------------------------------------------------------------------------------------------------------


def quality_section(facts: Facts) -> dict[str, Any]:
    """Return how good it is: a sentence, measures, curves by rows set aside, and accuracy against ε."""
    test, own = facts.metrics["test"], facts.evaluation
    aside = {} if own is None else own.measures
    names = [*dict.fromkeys([*aside, *(name for name in test if name not in COUNTS)])]
    columns = {
        "rows set aside": {name: shown(name, one) for name, one in aside.items()},
        "public test rows": {
            name: f"{value:.1%}" if name in PERCENT else f"{value:.4g}" for name, value in test.items()
        },
    }
    kept = {head: cells for head, cells in columns.items() if cells}
    cells = [(measure_words(name), *(found.get(name, "–") for found in kept.values())) for name in names]
    figures = [roc(own), confusion(own), reliability(own)] if own else []
    figures += [against_epsilon(facts), *map(learning_curve, facts.metrics["curves"])]
    return {
        "lead": headline(facts.story, test, own),
        "own": own,
        "unmeasured": unmeasured(facts.story, facts.certificate),
        "test_rows": test.get("rows"),
        "left_out": test.get("training_rows_left_out"),
        "measures": Table("Measures", ["measure", *kept], cells, numbers=(1, 2)) if cells else None,
        "sides": _sides(own) if own else None,
        "figures": [one for one in figures if one is not None],
        "expected": [(measure_words(name), f"{value:.4g}") for name, value in facts.metrics["expected"].items()],
        "one_query": facts.story.method in BY_KEY and not BY_KEY[facts.story.method].network,
    }


def _sides(own: Evaluation) -> Table | None:
    """Return recall and precision of each class."""
    cells = [
        (name, own.side("recall", place), own.side("precision", place))
        for place, name in enumerate(own.classes[:_MOST_LISTED] if own.recall and own.precision else ())
    ]
    many = len(own.classes)
    part = "" if many <= _MOST_LISTED else f"; the first {_MOST_LISTED} of {many:,} classes"
    head = ["class", "recall", "precision"]
    return Table(f"By class, on rows set aside{part}", head, cells, numbers=(1, 2)) if cells else None


def confusion(own: Evaluation) -> Figure | None:
    """Return which classes are taken for which: of each true class, the share of its rows that each prediction got.

    The diagonal is the recall that the page lists, where there is one: noisy counts that must not be negative favour
    the wrong cells. What is left is divided among the other cells as the counts are.
    """
    if not own.confusion or len(own.classes) > _MOST_CLASSES:
        return None
    rows = [[max(0.0, count) / max(sum(line), 1.0) for count in line] for line in own.confusion]
    for place, (row, known) in enumerate(zip(rows, own.recall, strict=False)):
        if known is not None:
            right, wrong = min(max(known.value, 0.0), 1.0), sum(row) - row[place]
            row[:] = [(1 - right) * (share / wrong if wrong > 0 else 1 / (len(row) - 1 or 1)) for share in row]
            row[place] = right
    summary = "Each line is a true class; its cells are the shares of its rows that were predicted as each class."
    image = heat_table("Confusion matrix", summary, own.classes, rows, "predicted as")
    noisy = "Cells are noisy estimates; those on the diagonal are the recall of the class."
    return Figure(image, f"Confusion matrix, estimated from {own.rows:,} rows set aside. {summary} {noisy}")


def roc(own: Evaluation) -> Figure | None:
    """Return the true against the false positive rate of two classes."""
    if len(own.roc) < 2 or len(own.classes) != 2 or "auc" not in own.measures:
        return None
    points = [(min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)) for x, y in own.roc]
    lines = [Series("this model", sorted(points)), Series("guessing", [(0, 0), (1, 1)], tone=5, dashed=True)]
    summary = f"The area under the curve is {shown('auc', own.measures['auc'])}."
    x, y = (Axis(f"{which} positive rate", 0, 1, percent=True) for which in ("false", "true"))
    image = chart("ROC curve", summary, x, y, lines)
    return Figure(image, f"ROC curve of {own.classes[-1]}, estimated from noisy counts of rows set aside. {summary}")


def reliability(own: Evaluation) -> Figure | None:
    """Return how often a class comes true against the probability that the model gives it."""
    points = sorted(own.calibration)
    if len(points) < 2 or "calibration_error" not in own.measures:
        return None
    xs, low, high = (
        [min(max(value, 0.0), 1.0) for value in values]
        for values in zip(*((score, seen - margin, seen + margin) for score, seen, margin in points), strict=True)
    )
    line = [(x, min(max(seen, 0.0), 1.0)) for x, (_, seen, _) in zip(xs, points, strict=True)]
    drawn = [
        Band("95% error bars", xs, low, high), Series("this model", line, dots=True),
        Series("calibrated", [(0, 0), (1, 1)], tone=5, dashed=True),
    ]  # fmt: skip
    summary = f"On average they differ by {shown('calibration_error', own.measures['calibration_error'])}."
    x, y = Axis("probability given", 0, 1, percent=True), Axis("share that came true", 0, 1, percent=True)
    image = chart("Reliability diagram", summary, x, y, drawn)
    return Figure(image, f"Probabilities that the model gave, and how often they came true. {summary}")


def learning_curve(curve: Mapping[str, Any]) -> Figure | None:
    """Return a chart of {"name", "x_name", "x": [...], "y": [...]}, without values that are not finite.

    None where fewer than two points are left.
    """
    pairs = zip(*(one if isinstance(one, list) else () for one in (curve.get("x"), curve.get("y"))), strict=False)
    points = sorted((float(x), float(y)) for x, y in pairs if is_number(x) and is_number(y))
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    name, by = str(curve.get("name", "value")), str(curve.get("x_name", "step"))
    summary = f"From {points[0][1]:.3g} to {points[-1][1]:.3g} over {points[-1][0]:g} {by}s."
    x = Axis(by, points[0][0], points[-1][0], whole=all(place.is_integer() for place, _ in points))
    y = Axis(name, *_around([value for _, value in points]))
    image = chart(f"Learning curve: {name}", summary, x, y, [Series("", points, dots=len(points) <= 12)])
    return Figure(image, f"Learning curve: {name}. {summary}")


def _around(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """Return a range that holds all values with some air."""
    low, high = min(values), max(values)
    air = pad * (high - low) or pad * abs(high) or pad
    return low - air, high + air


def against_epsilon(facts: Facts) -> Figure | None:
    """Return accuracy against ε: measured, expected, of single responses, and without privacy where it is known.

    For numbers it is R², measured and without privacy: nothing is expected, and single responses have none.
    """
    spent = facts.certificate.epsilon
    if not 0 < spent < math.inf:
        return None
    others = sorted((one.epsilon, one.score) for one in facts.beside if math.isfinite(one.epsilon))
    known = [spent, *(epsilon for epsilon, _ in others)]
    least, most = max(1e-4, min(known) / _REACH), min(30.0, max(known) * _REACH)
    ratio = max(most / least, 4.0)
    grid = sorted({*(least * ratio ** (index / (_POINTS - 1)) for index in range(_POINTS)), *known})
    shown: list[Series] = []
    if facts.classes is not None:
        responses = [(epsilon, belief_after(1 / facts.classes, epsilon)) for epsilon in grid]
        shown += [*expected(facts, grid), Series("right labels if released one by one", responses, tone=5, dashed=True)]
    if facts.non_private is not None:
        shown.append(Series("without privacy", [(end, facts.non_private) for end in (grid[0], grid[-1])], tone=3))
    if others:
        shown.append(Series("other results", others, tone=2, line=False))
    if facts.baseline is not None and facts.classes is not None:
        level = [(end, facts.baseline) for end in (grid[0], grid[-1])]
        shown.append(Series("always the most frequent class", level, tone=5, dotted=True))
    if (facts.score is None and not others) or (facts.classes is None and not others and facts.non_private is None):
        # Without a point of this model the lines would say nothing about it, and a point by itself says nothing more.
        return None
    ends: list[float] = []
    if facts.score is not None:
        margins = (facts.margin,) if facts.margin else ()
        shown.append(Series("this model, measured", [(spent, facts.score)], tone=1, line=False, margins=margins))
        ends = [facts.score - facts.margin, facts.score + facts.margin]
    low, high = _around([*ends, *(value for one in shown for _, value in one.points)])
    # A model that is worse than the mean of all labels has an R² below 0.
    named = facts.measure_name
    y = Axis(named, low if facts.classes is None else max(low, 0.0), min(high, 1.0), percent=facts.classes is not None)
    x = Axis("ε (smaller is more private)", grid[0], grid[-1], log=True)
    summary = f"How {named} depends on ε."
    if facts.score is not None:
        delta = at_most(facts.certificate.delta, 3)
        summary += f" This model: {facts.score_words(facts.score)} at ε = {at_most(spent, 4)}, δ = {delta}."
    if facts.non_private is not None:
        summary += f" Without privacy: {facts.score_words(facts.non_private)}."
    title = f"{named[:1].upper()}{named[1:]} against epsilon"
    return Figure(chart(title, summary, x, y, shown), summary)


def expected(facts: Facts, grid: Sequence[float]) -> list[Series]:
    """Return what the recipe did on the data set most like this one, carried over to as many rows and classes.

    Only between results: nothing is drawn beyond the clean labels per class at which it was measured.
    """
    recipe, case = BY_KEY.get(facts.story.method), facts.case
    found = references(case, facts.device)
    curve = found[0].curve(recipe) if recipe is not None and found else ()
    if recipe is None or len(curve) < 2:
        return []
    ends = sorted(labels_per_class(recipe, point.case, point.epsilon) for point in curve)
    low, high = ends[0] * (1 - _ROUNDING), ends[-1] * (1 + _ROUNDING)
    places = [(epsilon, labels_per_class(recipe, case, epsilon)) for epsilon in grid]
    inside = [(epsilon, along(curve, worth)[0]) for epsilon, worth in places if low <= worth <= high]
    points = [(epsilon, accuracy(odds, case.num_classes) / 100) for epsilon, odds in inside]
    return [Series(f"{recipe.key} on data like {found[0].dataset}", points, tone=4, dashed=True)] if points else []


# -- columns ---------------------------------------------------------------------------------------------------------


def columns_section(facts: Facts) -> Table | None:
    """Return how each public column was read; None for images, and for folders that do not say."""
    cells = column_cells(facts.story.columns)
    # An array has no gaps to count and nothing to note: a column without a single entry says nothing.
    named = [("column", 0), ("read as", 1), ("missing", 2), ("values", 3), ("note", 4)]
    kept = [(name, place) for name, place in named if any(line[place] for line in cells)]
    rows = [[line[place] for _, place in kept] for line in cells]
    numbers = [at for at, (_, place) in enumerate(kept) if place in (2, 3)]
    return Table("How each public column was read", [name for name, _ in kept], rows, numbers) if cells else None


# -- methods ---------------------------------------------------------------------------------------------------------


def methods_section(facts: Facts) -> dict[str, Any]:
    """Return all recipes, what their queries are worth and what is expected of them; other results where given."""
    claim, results = facts.certificate, [(one.name, one) for one in facts.beside]
    if facts.score is not None:
        mine = Measured(facts.name, facts.story.method, claim.epsilon, claim.delta, facts.score)
        results.insert(0, (f"{facts.name} (this one)", mine))
    beside = [
        (name, one.method, at_most(one.epsilon, 4), at_most(one.delta, 3), facts.score_words(one.score))
        for name, one in results
    ]
    head = ["folder", "method", "ε", "δ", facts.measure_name]
    found: dict[str, Any] = {
        "beside": Table("Results, measured", head, beside, numbers=(2, 3, 4)) if facts.beside else None,
        "figure": None,
        "expected": None,
    }
    if facts.choice is None:
        return found
    ranking, alike, mine = facts.choice.ranking, facts.choice.alike, facts.story.method
    # Of responses that were released before, other methods cannot ask.
    possible = [one for one in ranking if not facts.story.released or BY_KEY[one.recipe].released or one.recipe == mine]
    known = sorted((one for one in possible if one.clean_labels > 0), key=lambda one: -one.clean_labels)
    values = [(one.recipe, one.clean_labels, count(one.clean_labels), one.recipe == mine) for one in known]
    rows, price = f"{facts.rows:,}", f"ε = {at_most(facts.story.epsilon, 4)}, δ = {at_most(facts.story.delta, 3)}"
    summary = f"As many of {rows} labels without noise would teach a linear model what each method learns at {price}."
    image = bars("Methods by what their queries are worth in clean labels", summary, values)
    found["figure"] = Figure(image, f"Clean labels. {summary}")
    if alike:
        caption = (
            f"Expected at {price}, with caution, on data like {' and '.join(alike)}; yours may be easier or harder"
        )
        cells = [
            (one.recipe, "–" if one.accuracy is None else f"{one.accuracy:.1f}%", one.obstacle or one.evidence)
            for one in possible
        ]
        found["expected"] = Table(caption, ["method", "accuracy", "rests on"], cells, numbers=(1,))
    return found


# -- trust -----------------------------------------------------------------------------------------------------------


def audit_section(facts: Facts) -> dict[str, Any]:
    """Return the lower bound beside the claim, and whether the audit was of this claim."""
    found = facts.audit
    if found is None:
        return {"figure": None, "same_claim": True}
    shown = None
    if math.isfinite(found.epsilon):
        summary = f"An attack proves ε of at least {found.bound:.3g}; {found.epsilon:.3g} is claimed."
        values = [
            ("what an attack proves, at least", found.bound, f"{found.bound:.3g}", found.contradicts),
            ("what is claimed, at most", found.epsilon, f"{found.epsilon:.3g}", not found.contradicts),
        ]  # fmt: skip
        shown = Figure(bars("Audit: lower bound beside the claim", summary, values), summary)
    same = (
        math.isclose(found.epsilon, facts.story.epsilon, rel_tol=1e-3)
        if facts.audited is None
        else facts.audited == facts.files.get(MODEL)
    )
    return {"figure": shown, "same_claim": same}
