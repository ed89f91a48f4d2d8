"""Sections on privacy: the promise, what one label's odds do, the ledger, the noise."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from labeldp.choosing.choice import count
from labeldp.choosing.measured import accuracy, along, labels_per_class, references
from labeldp.choosing.predict import Ranked
from labeldp.choosing.recipes import BY_NAME
from labeldp.core import accountant
from labeldp.core import events as ev
from labeldp.core.certificate import Certificate
from labeldp.core.ledger import Group, worst_epsilon
from labeldp.results import markup as m
from labeldp.results.card import measure_words, promise
from labeldp.results.charts import Axis, Band, Series, bars, chart, dot_grid, legend
from labeldp.results.facts import DEVICE, Facts, case_of
from labeldp.results.folder import MODEL
from labeldp.results.words import at_most

_BELIEFS = (0.01, 0.1, 0.5, 0.9)
# The narrower kinds first: some are Gaussians, too.
_EVENTS = (
    (ev.PoissonGaussian, "a noisy sum over a secret batch"),
    (ev.FixedSizeGaussian, "a noisy sum over a secret batch"),
    (ev.PublicBatchGaussian, "a noisy sum over a batch that is known"),
    (ev.PartitionGaussian, "a noisy sum over a batch that is known"),
    (ev.DiscreteGaussian, "noisy counts in whole numbers"),
    (ev.Gaussian, "a noisy sum over all rows"),
)
# Methods that ask every row for an answer of its own, and nothing else of the labels.
_ANSWERING = ("rr", "forward", "debiased", "alibi", "lp_mst")
# How labels that are numbers were asked for, by method.
_NUMBERS = {
    "one_shot": "Every number was rounded at random, without bias, to the low end, the middle or the high end of the "
    "declared range. Noise was then added to sums over all rows, where it weighs less: one number hides in the sum, "
    "while what all numbers have in common stays visible.",
    "binned_regression": "Every number was answered once, by the value of its bin or, at random, of another bin. The "
    "bins were chosen by the declared range and a noisy histogram of all numbers, whose price is in the ledger. The "
    "model never saw a true number; it learns because the law of the noise is known.",
}
_MOST_GROUPS, _MOST_QUERIES = 8, 12
_STEPS = 8


def belief_after(belief: float, epsilon: float) -> float:
    """The largest belief in one value, against another, that was `belief` before: odds times e^ε.

    >>> round(belief_after(0.5, 1.0), 4), round(belief_after(0.01, 1.0), 4), belief_after(0.0, 1.0)
    (0.7311, 0.0267, 0.0)
    """
    # 1/(1 + (1 − p)/p e^−ε), written so that no ε overflows.
    return 0.0 if belief <= 0 else belief / (belief + (1 - belief) * math.exp(-epsilon))


def belief_below(belief: float, epsilon: float) -> float:
    """The smallest: odds divided by e^ε."""
    return 1 - belief_after(1 - belief, epsilon)


def promise_section(facts: Facts) -> str:
    """What is promised, to whom, and what is not."""
    certificate = facts.certificate
    parts = [
        m.paragraph(promise(certificate), "lead"),
        m.paragraph(
            f"This holds for {certificate.unit.protects}, whoever it belongs to, against anyone who has the folder, "
            "knows all features and all other labels, and has any amount of computing power. It holds for ever; other "
            "releases of the same labels add to it."
        ),
    ]
    if certificate.seeded:
        parts.append(m.paragraph("Not private: the noise came from a seed, and whoever knows it can undo the noise."))
    if math.isfinite(certificate.epsilon):
        parts.append(m.side_by_side(_belief_figure(certificate), _belief_table(certificate)))
    return m.section("promise", "What is promised", *parts, "<h3>What is not promised</h3>", _not_promised(facts))


def _belief_figure(certificate: Certificate) -> str:
    epsilon = min(certificate.epsilon, 50.0)
    places = [index / 40 for index in range(41)]
    high, low = ([channel(p, epsilon) for p in places] for channel in (belief_after, belief_below))
    shown = [
        Band("after, at most and at least", places, low, high),
        Series("", list(zip(places, high, strict=True))), Series("", list(zip(places, low, strict=True))),
        Series("nothing learnt", [(0, 0), (1, 1)], tone=5, dashed=True),
    ]  # fmt: skip
    most = _percent(belief_after(0.5, epsilon))
    told = f"Who gave one value of a label even odds against another can come to at most {most}."
    x, y = Axis("belief before", 0, 1, percent=True), Axis("belief after", 0, 1, percent=True)
    image = chart("Belief in one value of a label, before and after", told, x, y, shown)
    return m.figure(
        image,
        f"What anyone can learn about one label at ε = {at_most(certificate.epsilon, 4)}. {told}",
        legend(shown),
    )


def _belief_table(certificate: Certificate) -> str:
    rows = [(f"{belief:.0%}", _percent(belief_after(belief, certificate.epsilon))) for belief in _BELIEFS]
    but = f" (except with probability {at_most(certificate.delta, 3)})" if certificate.delta else ""
    return m.table(f"Belief in one value of a label against another{but}", ["before", "after, at most"], rows)


def _percent(share: float) -> str:
    """Rounded up; never a certainty that is not there."""
    said = at_most(100 * share, 3)
    return "almost 100%" if float(said) >= 100 else f"{said}%"


def _not_promised(facts: Facts) -> str:
    declared, how = ("list of classes", "was declared, not read off the labels.")
    if not facts.classes:
        declared, how = (
            "bounds of the label",
            "were declared, not read off the labels; a number beyond counts as a bound.",
        )
    return m.bullets([
        ("Features,", "and that a row is in the data, count as public; the model may show them."),
        ("What the features tell:", "if a label can be guessed from them, the model may guess it right, also for "
         "people who were never in the data."),
        (f"The {declared}", how),
        ("Other releases", "of the same labels: their epsilons add up with this one. Keep one budget store for all."),
        ("Several labels of one person,", "unless the promise above says all labels of one user."),
    ])  # fmt: skip


# --- the ledger -----------------------------------------------------------------------------------------------------


def event_words(event: object) -> str:
    """What a look was, in words.

    >>> event_words(ev.PureDP(1.0))
    'a private answer, pure ε = 1'
    """
    if isinstance(event, ev.PureDP):
        return f"a private answer, pure ε = {at_most(event.epsilon, 4)}"
    said = next((words for kind, words in _EVENTS if isinstance(event, kind)), None)
    if said is None:
        return "everything, without noise" if isinstance(event, ev.NonPrivate) else str(event)
    rate = getattr(event, "rate", None)
    return f"{said}{'' if rate is None else f' of {rate:.3g} of the rows'}, {_noise(event)}"


def _noise(event: object) -> str:
    said = f"noise of deviation {getattr(event, 'noise_std', math.nan):.4g}"
    diameter = getattr(event, "diameter", None)
    return said if diameter is None else f"{said}; one label moves it by at most {diameter:.4g}"


def ledger_section(facts: Facts) -> str:
    """Every look, with ε so far; and how it grew."""
    certificate = facts.certificate
    groups = sorted(
        (group for group in certificate.groups if group.rows or group.queries),
        key=lambda group: -worst_epsilon((group,), certificate.delta),
    )
    asked, spent = at_most(facts.story.epsilon), at_most(certificate.epsilon)
    parts = [
        m.paragraph(f"Asked for: ε = {asked}, δ = {at_most(facts.story.delta, 3)}. Spent by the label that was "
                    f"looked at most: ε = {spent}, at δ = {at_most(certificate.delta, 3)}. A look is written down and "
                    "paid for before its noise is drawn.")
    ]  # fmt: skip
    rows = [row for group in groups[:_MOST_GROUPS] for row in _queries(group, certificate.delta)]
    head = [certificate.unit.counted, "looks", "what each was", "ε so far"]
    parts.append(m.table("Looks at the labels, the costliest history first", head, rows, numbers=(0, 1, 3)))
    if len(groups) > _MOST_GROUPS:
        parts.append(
            m.paragraph(f"And {len(groups) - _MOST_GROUPS:,} more histories, none of which cost more.", "soft")
        )
    if groups and sum(query.times for query in groups[0].queries) > 1:
        parts.append(_growth(groups[0], certificate.delta))
    return m.section("ledger", "What it cost", *parts, m.paragraph(_composed(certificate), "soft"))


def _composed(certificate: Certificate) -> str:
    return f"Composed by: {certificate.accountant}. Noise from: {certificate.noise}."


def _queries(group: Group, delta: float) -> list[list[str]]:
    """One line for each kind of look; ε of all up to it."""
    rows = []
    for place, query in enumerate(group.queries[:_MOST_QUERIES]):
        so_far = at_most(accountant.epsilon(group.queries[: place + 1], delta))
        rows.append([f"{group.rows:,}", f"{query.times:,}", event_words(query.event), so_far])
    if len(group.queries) > _MOST_QUERIES:
        whole = at_most(accountant.epsilon(group.queries, delta))
        rest = group.queries[_MOST_QUERIES:]
        rows.append([f"{group.rows:,}", f"{sum(query.times for query in rest):,}", f"{len(rest)} more kinds", whole])
    return rows or [[f"{group.rows:,}", "0", "not looked at", "0"]]


def growth(queries: ev.Queries, delta: float, steps: int = _STEPS) -> list[tuple[float, float]]:
    """ε after so many looks, taken in the order of the ledger: about `steps` points, the last for all of them."""
    total = sum(query.times for query in queries)
    counts = sorted({max(1, round(total * step / steps)) for step in range(1, steps + 1)})
    return [(float(count), accountant.epsilon(_first(queries, count), delta)) for count in counts]


def _first(queries: ev.Queries, count: int) -> ev.Queries:
    taken: list[ev.Query] = []
    for query in queries:
        if count > 0:
            taken.append(ev.Query(query.event, min(query.times, count)))
            count -= query.times
    return tuple(taken)


def _growth(group: Group, delta: float) -> str:
    points = growth(group.queries, delta)
    if len(points) < 2 or not all(math.isfinite(value) for _, value in points) or points[-1][1] <= 0:
        return ""
    shown = [Series("", points, dots=True)]
    told = f"After {points[-1][0]:,.0f} looks ε is {at_most(points[-1][1], 4)}."
    x, y = Axis("looks", 0, points[-1][0]), Axis("ε so far", 0, 1.05 * points[-1][1])
    image = chart("Epsilon as looks add up", told, x, y, shown)
    return m.side_by_side(m.figure(image, f"How ε of the costliest history grew, in the order of the ledger. {told}"))


# --- the noise ------------------------------------------------------------------------------------------------------


def noise_section(facts: Facts) -> str:
    """What one label by itself would look like behind as much privacy."""
    if not math.isfinite(facts.certificate.epsilon):
        return ""
    if facts.classes is None:
        said = _NUMBERS.get(facts.story.method)
        return m.section("noise", "How much noise that is", m.paragraph(said)) if said else ""
    epsilon, classes = facts.certificate.epsilon, facts.classes
    right = belief_after(1 / classes, epsilon)
    filled = round(100 * right)
    told = f"{filled} of 100 would be the true one; guessing blindly gives {100 / classes:.3g}."
    image = dot_grid("Labels handed out one by one", told, filled)
    said = f"If every label were handed out by itself at ε = {at_most(epsilon, 4)}, as a randomized answer among "
    caption = f"{said}{classes} classes: {told}"
    return m.section("noise", "How much noise that is", m.side_by_side(
        m.figure(image, caption, _dots_legend()), f"<div>{_noise_words(facts)}</div>"))  # fmt: skip


def _dots_legend() -> str:
    shown: Sequence[tuple[str, str]] = (("dot t1", "the true label"), ("hollow", "another class, drawn at random"))
    items = (
        f'<li><svg class="sample" viewBox="0 0 26 14" aria-hidden="true"><circle class="{kind}" cx="13" cy="7" r="5"/>'
        f"</svg>{m.escape(name)}</li>" for kind, name in shown
    )  # fmt: skip
    return f'<ul class="legend">{"".join(items)}</ul>'


def _noise_words(facts: Facts) -> str:
    if facts.story.method in _ANSWERING:
        return m.paragraph(
            "Labels were answered one by one: each answer carries this noise, or less where a public guess narrowed "
            "the classes. The model never saw a true label; it learns because the law of the noise is known."
        )
    return m.paragraph(
        "Here noise was added to sums or counts over many rows, where it weighs less: one "
        "label hides in the sum, while what all labels have in common stays visible. That is why the model can be "
        "right more often than single private answers would be."
    )


# --- quality --------------------
#
# Sections on how good a model is: measures, learning curves, accuracy against ε, recipes compared.


_POINTS = 25
# A chart of accuracy against ε reaches this factor to either side of what was measured.
_REACH = 8.0
_ROUNDING = 1e-6


def quality_section(facts: Facts) -> str:
    """Measures, curves, and accuracy against ε."""
    images = [one for one in (against_epsilon(facts), *curves(facts.metrics)) if one]
    parts = [m.side_by_side(f"<div>{_measures(facts.metrics)}</div>", *images)]
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
    likely = [] if facts.classes is None else [*_expected(facts, grid), _responses(facts.classes, grid)]
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


def _responses(classes: int, grid: Sequence[float]) -> Series:
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
    image = m.figure(
        bars("Methods by what their looks are worth in clean labels", told, values), f"Clean labels. {told}"
    )
    said = [m.paragraph("Compared from public numbers alone, for a machine with a GPU.", "soft")]
    if not alike:
        unknown = "Nothing like these data was measured yet, so no accuracy is told; a network's bar counts a quarter."
        said.insert(0, m.paragraph(unknown))
        return [m.side_by_side(image, f"<div>{''.join(said)}</div>")]
    caption = f"Expected, with caution, on data like {' and '.join(alike)}; yours may be easier or harder"
    cells = [_cells(one) for one in ranking]
    return [m.side_by_side(image, m.table(caption, ["method", "accuracy", "rests on"], cells, numbers=(1,))), *said]


def _cells(one: Ranked) -> tuple[str, str, str]:
    return one.recipe, "–" if one.accuracy is None else f"{one.accuracy:.1f}%", one.obstacle or one.evidence


# --- checks --------------------
#
# Sections on trust: the audit, and how anyone can check the result.


def audit_section(facts: Facts) -> str:
    """The lower bound beside the claim; or that there was no audit."""
    found = facts.audit
    if found is None:
        said = "Nobody has tried to catch this promise broken, or the result was not given to this page."
        name = shlex.quote(facts.name)
        advice = [f"labeldp audit {name} --table TABLE", f"labeldp report {name}"]
        return m.section("audit", "Audit", m.paragraph(said), m.code(advice))
    parts = [m.paragraph(found.verdict, "lead" if found.contradicts else "")]
    if math.isfinite(found.epsilon):
        told = f"An attack proves ε of at least {found.bound:.3g}; {found.epsilon:.3g} is claimed."
        values = [
            ("what an attack proves, at least", found.bound, f"{found.bound:.3g}", found.contradicts),
            ("what is claimed, at most", found.epsilon, f"{found.epsilon:.3g}", not found.contradicts),
        ]  # fmt: skip
        parts.append(m.side_by_side(m.figure(bars("Audit: lower bound beside the claim", told, values), told)))
    if not _same_claim(facts):
        parts.append(m.paragraph("The audit was of another claim than this result's; make one that fits.", "soft"))
    parts.append(m.paragraph(_rests_on(facts), "soft"))
    return m.section("audit", "Audit", *parts)


def _rests_on(facts: Facts) -> str:
    found, certificate = facts.audit, facts.certificate
    if facts.audited is None or found is None:
        return "An audit that used true labels is not private itself: then keep this page to yourself."
    same = (
        f" The claim is that of the ledger's looks at δ = {at_most(found.delta, 3)}, where one run can be held against "
        f"it; at δ = {at_most(certificate.delta, 3)} the same looks cost ε = {at_most(certificate.epsilon)}."
        if found.delta != certificate.delta
        else ""
    )
    return (
        f"The method was run again on the same features, with labels made up by coins.{same} No true label was used, "
        "so the audit cost no privacy; and it speaks of the method as it was run here, not of this model's numbers."
    )


def _same_claim(facts: Facts) -> bool:
    found = facts.audit
    if found is not None and facts.audited is not None:
        return facts.audited == facts.files.get(MODEL)
    return found is not None and math.isclose(found.epsilon, facts.story.epsilon, rel_tol=1e-3)


def check_section(facts: Facts) -> str:
    """Hashes, and the commands that recompute everything."""
    certificate, name = facts.certificate, shlex.quote(facts.name)
    rows = list(facts.files.items())
    return m.section(
        "check", "Check it yourself",
        m.paragraph("Whoever has the folder can recompute ε from the ledger and compare every file with its hash; no "
                    "secret is needed. The second command trains again, with noise drawn and paid for anew."),
        m.code([f"labeldp verify {name}", f"labeldp train --config {name}/config.toml --out ANOTHER"]),
        m.table("SHA-256 of the files, as the certificate has them", ["file", "SHA-256"], rows),
        m.paragraph(f"Certificate made {certificate.created} by {certificate.made_by}. δ = "
                    f"{at_most(certificate.delta)}, ε = {at_most(certificate.epsilon, 9)}.", "soft"),
    )  # fmt: skip


def status(facts: Facts) -> str:
    """Whether the folder verifies, first of all."""
    if not facts.problems:
        said = "<b>Verified.</b> Files, ledger and claim of the folder fit together."
        return f'<div class="status" role="status">{said}</div>'
    items = "".join(f"<li>{m.escape(problem)}</li>" for problem in facts.problems)
    said = f"<b>This result does not verify.</b> Do not rely on it:<ul>{items}</ul>"
    return f'<div class="status bad" role="alert">{said}</div>'
