"""Predict how well each recipe would do, from results on data sets alike, else from its worth in clean labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from labeldp.choosing.measured import Point, Reference, accuracy, along, labels_per_class, points, references
from labeldp.recipes.catalogue import BY_KEY, RANKED, Recipe
from labeldp.recipes.worth import Case

# Log odds taken off a prediction for what it rests on, so that a guess does not beat a result by a hair.
_CAUTION = {"measured": 0.0, "between results": 0.0, "beyond results": 0.1, "paper": 0.1, "formula": 0.3}
_AMONG_KIN = 0.2
# Log odds between what a network and a linear head learn from as many labels, on images. A student is in between.
_GAP = {"head": 0.4, "student": 0.2, "net": 0.0}
# An epoch of the small Inception network takes 1.3 s on an H200 and some 1,900 s on two (shared) CPU cores.
_CPU_SLOWER = 1000.0
# What counts of a formula's clean labels where a network learns from features as they are and nothing was compared: on
# 200 to 10,000 rows of Adult, ε = 0.5 to 4, heads of one moment led networks that the formulas put before them.
_OF_FORMULA = 0.25
# Points lost that a simpler recipe is never chosen at, with room for what rounding and interpolation lose.
_POINT = 0.9
# Points by which a guess must be ahead of all results of ours to be put before them.
_CLEARLY = 2.0
NEEDS_DELTA = "needs delta > 0"


@dataclass(frozen=True)
class Ranked:
    """One recipe's place.

    Args:
        recipe: its name.
        clean_labels: how many rows with clean labels would teach a linear model as much as its releases.
        accuracy: percent expected, cautiously, on the data sets most like this one; None where none was measured.
        regret: most points lost to the best result on one of those data sets; below 0 for a guess that is ahead on
            all of them; None without them.
        evidence: what the expectation rests on: measured, between results, beyond results, paper or formula.
        seconds: rough time to train; None where it is not known.
        obstacle: why it cannot be chosen, in words; empty where it can.
    """

    recipe: str
    clean_labels: float
    accuracy: float | None = None
    regret: float | None = None
    evidence: str = "formula"
    seconds: float | None = None
    obstacle: str = ""


def rank(case: Case, epsilon: float, device: str, hours: float) -> tuple[tuple[Ranked, ...], tuple[str, ...]]:
    """Return all ranked recipes, best first, and the names of the data sets they were compared on.

    The order is by the largest loss to the best recipe over the data sets most like this one: a choice that is never
    far off, rather than one that is best on average. A guess, or a paper's figure, has to be clearly ahead to be put
    before a result of ours. Without such data sets the order is by clean labels, of which a network has to promise
    four times as many as a head. A simpler recipe that is as good to a third of a point comes first.
    """
    found = references(case, device)
    if not found:
        return _by_worth([_unmeasured(recipe, case, epsilon, device, hours) for recipe in RANKED]), ()
    ranked = _compared(case, epsilon, device, hours, found)
    if all(one.obstacle for one in ranked):
        # Nothing is quick enough: what is best then, is best to know.
        ranked = _compared(case, epsilon, device, math.inf, found)
    return _simplest_first(ranked, 0.3), tuple(one.dataset for one in found)


@dataclass(frozen=True)
class _Expected:
    """Percent expected of one recipe on one data set, and what that rests on."""

    value: float
    evidence: str

    @property
    def backed(self) -> bool:
        return self.evidence in ("measured", "between results")


def _compared(case: Case, epsilon: float, device: str, hours: float, found: Sequence[Reference]) -> list[Ranked]:
    blocked = [_obstacle(recipe, case, device, hours, found) for recipe in RANKED]
    usable = [not obstacle for obstacle, _ in blocked]
    # Data sets without a result of ours near this ε have a say only where none has one.
    columns = [
        _results_first([_expected(recipe, case, epsilon, one) for recipe in RANKED], usable) for one in found
    ]  # fmt: skip
    columns = [column for column in columns if any(one.backed for one in column)] or columns
    best = [_top(column, usable) for column in columns]
    ranked = []
    for recipe, row, (obstacle, seconds) in zip(RANKED, zip(*columns, strict=True), blocked, strict=True):
        mean = sum(one.value for one in row) / len(row)
        regret = max(top - one.value for top, one in zip(best, row, strict=True))
        evidence = max((one.evidence for one in row), key=list(_CAUTION).index)
        ranked.append(Ranked(recipe.key, _worth(recipe, case, epsilon), mean, regret, evidence, seconds, obstacle))
    return ranked


def _results_first(column: list[_Expected], usable: list[bool]) -> list[_Expected]:
    """Put guesses that are hardly better than results of ours half a point behind them, where there are some."""
    results = [one.value for one, free in zip(column, usable, strict=True) if free and one.backed]
    if not results:
        return column
    best = max(results)
    return [
        _Expected(best - 0.5, one.evidence)
        if free and not one.backed and best - 0.5 < one.value < best + _CLEARLY
        else one
        for one, free in zip(column, usable, strict=True)
    ]


def _top(column: list[_Expected], usable: list[bool]) -> float:
    """Return the best result of ours, else the best guess: one that is off must not blur the order of the results."""
    free = [one for one, usable_too in zip(column, usable, strict=True) if usable_too]
    results = [one.value for one in free if one.backed]
    return max(results or [one.value for one in free], default=0.0)


def _by_worth(ranked: list[Ranked]) -> tuple[Ranked, ...]:
    free = [one for one in ranked if not one.obstacle]
    enough = max((_cautious_worth(one) for one in free), default=0.0) * 0.9
    first = next((one for one in free if _cautious_worth(one) >= enough), ranked[0])
    rest = sorted((r for r in ranked if r is not first), key=lambda r: (bool(r.obstacle), -_cautious_worth(r)))
    return (first, *rest)


def _cautious_worth(one: Ranked) -> float:
    """Return the clean labels, less what formulas overrate."""
    return one.clean_labels * (1.0 if BY_KEY[one.recipe].learner == "head" else _OF_FORMULA)


def _simplest_first(ranked: list[Ranked], slack: float) -> tuple[Ranked, ...]:
    # The recipes are listed from simple to intricate.
    order = sorted(ranked, key=lambda one: (bool(one.obstacle), one.regret, -(one.accuracy or 0.0)))
    least = order[0].regret or 0.0
    # Being simple is never worth as much as a point.
    limit = min(least + slack, max(least, _POINT))
    first = next(one for one in ranked if not one.obstacle and (one.regret or 0.0) <= limit)
    return (first, *(one for one in order if one is not first))


def _worth(recipe: Recipe, case: Case, epsilon: float) -> float:
    assert recipe.worth is not None, f"{recipe.key} is not ranked"
    return recipe.worth(case, epsilon)


def _unmeasured(recipe: Recipe, case: Case, epsilon: float, device: str, hours: float) -> Ranked:
    seconds = None
    if case.modality == "table" and device == "cpu" and recipe.table_seconds is not None:
        # Rough time on one core, where it was measured.
        start, per_row = recipe.table_seconds
        seconds = start + per_row * case.num_rows
    obstacle = _out_of_place(recipe, case) or _too_long(seconds, hours)
    return Ranked(recipe.key, _worth(recipe, case, epsilon), seconds=seconds, obstacle=obstacle)


def _out_of_place(recipe: Recipe, case: Case) -> str:
    """Return why it is not for such a problem, however long it may take; empty where it is."""
    if recipe.needs_delta and case.delta == 0:
        return NEEDS_DELTA
    return f"was behind simpler recipes on data of the kind {case.modality}" if recipe.unfit == case.modality else ""


def _too_long(seconds: float | None, hours: float) -> str:
    if seconds is None or seconds <= 3600 * hours:
        return ""
    return f"trains too long: some {seconds / 3600:.0f} hours"


def _obstacle(
    recipe: Recipe, case: Case, device: str, hours: float, found: Sequence[Reference]
) -> tuple[str, float | None]:
    """Return what stands in the way, in words, and the time to train where it was measured for this recipe."""
    timed = [p for one in found for p in one.curve(recipe) if p.seconds is not None]
    # Most networks take about as long as one another.
    nets = [p for p in points() if p.seconds is not None and p.recipe.learner == "net"]
    seconds = _seconds(recipe, case, device, timed or (nets if _trains_net(recipe, case) else []))
    known = seconds if timed else None
    if obstacle := _out_of_place(recipe, case):
        return obstacle, known
    slow = _too_long(seconds, hours)
    return slow, seconds if slow else known


def _seconds(recipe: Recipe, case: Case, device: str, timed: Sequence[Point]) -> float | None:
    """Scale times by rows; a network on a CPU takes about a thousand times as long, and a head was not compared."""
    here = [p for p in timed if p.device == device]
    elsewhere = [] if here or not _trains_net(recipe, case) else timed
    slower = _CPU_SLOWER if device == "cpu" and elsewhere else 1.0
    times = [slower * (p.seconds or 0.0) * case.num_rows / p.case.num_rows for p in here or elsewhere]
    return median(times) if times else None


def _trains_net(recipe: Recipe, case: Case) -> bool:
    return recipe.learner in ("net", "student") and case.modality == "images"


# --- one recipe on one data set -----------------------------------------------------------------------------------


def _expected(recipe: Recipe, case: Case, epsilon: float, reference: Reference) -> _Expected:
    """Expect what was measured, carried over along the worth, less some caution; else what kin of the recipe reach."""
    where = labels_per_class(recipe, case, epsilon)
    curve = reference.curve(recipe)
    if not curve:
        return _Expected(accuracy(_guess(recipe, case, epsilon, reference), case.num_classes), "formula")
    odds, measured = along(curve, where)
    low, high = (labels_per_class(recipe, p.case, p.epsilon) for p in (curve[0], curve[-1]))
    evidence = "measured" if measured else "between results" if low <= where <= high else "beyond results"
    evidence = evidence if curve[0].ours else "paper"
    return _Expected(accuracy(odds - _CAUTION[evidence], case.num_classes), evidence)


def _guess(recipe: Recipe, case: Case, epsilon: float, reference: Reference) -> float:
    """Guess log odds from what another recipe learnt from labels of the same worth, and how their learners differ."""
    # Whose curve stands in: the first of its kin that the data set has, else of those that stand in for any other.
    kin = [one for one in RANKED if one.kin == recipe.kin]
    listed = case.modality if any(case.modality in one.stands_in for one in RANKED) else ""
    standards = sorted((one for one in RANKED if listed in one.stands_in), key=lambda one: one.stands_in[listed])
    standard = next((one for one in (*kin, *standards) if reference.curve(one)), None)
    curve = reference.curve(standard) if standard else reference.points
    value, _ = along(curve, labels_per_class(recipe, case, epsilon))
    if case.modality != "images" or standard is None:
        # On features that are learnt from as they are, the learners are alike, and a guess is as good as a paper.
        return value - _CAUTION["paper"]
    caution = _AMONG_KIN if standard.kin == recipe.kin else _CAUTION["formula"]
    return value - _GAP[recipe.learner] + _GAP[standard.learner] - caution
