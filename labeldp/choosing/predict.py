"""Rank recipes by what they are expected to reach: results on data sets alike, else their worth in clean labels.

`measured.csv` has the results, made from experiments/results by `python -m experiments.choices`; the papers' figures
stand in for recipes that have no result of ours on a data set. Between two results a recipe's accuracy is interpolated
along its worth in clean labels per class (`labeldp.recipes.worth`), beyond them it is continued cautiously. A recipe
without results gets what its kin learnt from labels of the same worth.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import median

from labeldp.recipes.catalogue import BY_KEY, ON_TABLES, RANKED, Recipe
from labeldp.recipes.worth import Case

NEEDS_DELTA = "needs delta > 0"
NEEDS_NETWORK = "trains a network, and none is at hand"
_TEXT_IS = {"text": "embeddings"}


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


def rank(
    case: Case, epsilon: float, device: str, hours: float, network: bool = True
) -> tuple[tuple[Ranked, ...], tuple[str, ...]]:
    """Return all ranked recipes, best first, and the names of the data sets they were compared on.

    The order is by the largest loss to the best recipe over the data sets most like this one: a choice that is never
    far off, rather than one that is best on average. A guess, or a paper's figure, has to be clearly ahead to be put
    before a result of ours. Without such data sets the order is by clean labels, of which a network has to promise
    four times as many as a head. A simpler recipe that is as good to a third of a point comes first.
    """
    found = references(case, device)
    if not found:
        return _by_worth(case, epsilon, device, hours, network), ()
    ranked = _by_results(case, epsilon, device, hours, network, found)
    if all(one.obstacle for one in ranked):
        # Nothing is quick enough: what is best then, is best to know.
        ranked = _by_results(case, epsilon, device, math.inf, network, found)
    order = sorted(ranked, key=lambda one: (bool(one.obstacle), one.regret, -(one.accuracy or 0.0)))
    # The recipes are listed from simple to intricate. Being simple is never worth as much as a point.
    least = order[0].regret or 0.0
    limit = min(least + _AS_GOOD, max(least, _POINT))
    first = next(one for one in ranked if not one.obstacle and (one.regret or 0.0) <= limit)
    return (first, *(one for one in order if one is not first)), tuple(one.dataset for one in found)


# --- results ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One recipe on one data set at one ε: mean accuracy in percent over runs."""

    dataset: str
    case: Case
    device: str
    recipe: Recipe
    epsilon: float
    accuracy: float
    runs: int
    seconds: float | None
    origin: str

    @classmethod
    def from_row(cls, row: dict[str, str]) -> Point:
        """Read a row of the table."""
        case = Case(int(row["rows"]), int(row["classes"]), int(row["features"]), row["modality"], float(row["delta"]))
        seconds = float(row["seconds"]) if row["seconds"] else None
        measured = float(row["epsilon"]), float(row["accuracy"]), int(row["runs"])
        return cls(row["dataset"], case, row["device"], BY_KEY[row["recipe"]], *measured, seconds, row["origin"])

    @property
    def ours(self) -> bool:
        """Return whether it is this library's own result, not a paper's."""
        return self.origin == "ours"


@lru_cache(maxsize=1)
def points() -> tuple[Point, ...]:
    """Return everything in `measured.csv`."""
    text = (files("labeldp.choosing") / "measured.csv").read_text(encoding="utf-8")
    return tuple(map(Point.from_row, csv.DictReader(text.splitlines())))


@dataclass(frozen=True)
class Reference:
    """All that is known about one data set, for one device: accuracies of some recipes at some ε."""

    dataset: str
    case: Case
    points: tuple[Point, ...]

    @property
    def ours(self) -> bool:
        """Return whether any of it was measured by this library."""
        return any(point.ours for point in self.points)

    def curve(self, recipe: Recipe) -> tuple[Point, ...]:
        """Return the points of one recipe, ε rising."""
        return tuple(sorted((p for p in self.points if p.recipe is recipe), key=lambda point: point.epsilon))


def references(case: Case, device: str) -> tuple[Reference, ...]:
    """Return the data sets most like `case`, nearest first; empty where none of its kind was measured.

    Alike means the same modality and, after that, about the same classes, features and rows. Papers count only where we
    have nothing as near. Of each recipe the points of this device are kept, else of any: accuracy hardly depends on
    where it was computed.
    """
    kind = _TEXT_IS.get(case.modality, case.modality)
    found = []
    for name in {p.dataset for p in points() if _TEXT_IS.get(p.case.modality, p.case.modality) == kind}:
        mine = [p for p in points() if p.dataset == name]
        there = {p.recipe.key for p in mine if p.device == device}
        kept = tuple(p for p in mine if p.device == device or p.recipe.key not in there)
        found.append(Reference(name, mine[0].case, kept))
    if not found:
        return ()
    found.sort(key=lambda one: (unlikeness(case, one.case), one.dataset))
    nearest = unlikeness(case, found[0].case)
    near = [one for one in found if unlikeness(case, one.case) <= nearest + 0.5]
    return tuple([one for one in near if one.ours] or near)


def unlikeness(case: Case, other: Case) -> float:
    """Return how unlike two problems are: one for a factor e in classes, half for features, a third for rows."""
    apart = abs(math.log(case.num_classes / other.num_classes))
    apart += abs(math.log(case.num_rows / other.num_rows)) / 3
    if case.feature_dim is None or other.feature_dim is None:
        return apart
    return apart + abs(math.log(case.feature_dim / other.feature_dim)) / 2


# --- from results to an expectation --------------------------------------------------------------------------------

# Change of the log odds of being right (chance taken off) per factor e of clean labels, below and above what was
# measured: below, steeper than any curve measured, because training breaks down there; above, flatter.
_BELOW, _ABOVE = 0.6, 0.15
# How far apart, in powers of e, two worths may be and still count as measured.
_NEAR = 0.05
# Log odds taken off a prediction for what it rests on, so that a guess does not beat a result by a hair.
_CAUTION = {"measured": 0.0, "between results": 0.0, "beyond results": 0.1, "paper": 0.1, "formula": 0.3}
_AMONG_KIN = 0.2
# Log odds between what a network and a linear head learn from as many labels, on images. A student is in between.
_GAP = {"head": 0.4, "student": 0.2, "net": 0.0}


def labels_per_class(recipe: Recipe, case: Case, epsilon: float) -> float:
    """Return the worth of a ranked recipe, in clean labels per class."""
    return max(_worth(recipe, case, epsilon), 1e-9) / case.num_classes


def _worth(recipe: Recipe, case: Case, epsilon: float) -> float:
    assert recipe.worth is not None, f"{recipe.key} is not ranked"
    return recipe.worth(case, epsilon)


def along(curve: Iterable[Point], where: float) -> tuple[float, bool]:
    """Return log odds at `where` clean labels per class on a curve, not empty, and whether they were measured."""
    known = sorted((math.log(labels_per_class(p.recipe, p.case, p.epsilon)), log_odds(p)) for p in curve)
    places, odds = [place for place, _ in known], [value for _, value in known]
    at = math.log(where)
    measured = any(abs(at - place) <= _NEAR for place in places)
    if at <= places[0]:
        return odds[0] - _BELOW * (places[0] - at), measured
    if at >= places[-1]:
        return odds[-1] + _ABOVE * (at - places[-1]), measured
    right = bisect_left(places, at)
    left = right - 1
    part = (at - places[left]) / max(places[right] - places[left], 1e-12)
    return odds[left] + part * (odds[right] - odds[left]), measured


def log_odds(point: Point) -> float:
    """Return log(q/(1 − q)) of the share q of rows that are right beyond chance."""
    chance = 1.0 / point.case.num_classes
    share = (point.accuracy / 100 - chance) / (1 - chance)
    share = min(max(share, 1e-3), 1 - 1e-4)
    return math.log(share / (1 - share))


def accuracy(odds: float, num_classes: int) -> float:
    """Return log odds as percent, for K classes.

    >>> round(accuracy(0.0, 2), 1), round(accuracy(50.0, 10), 1)
    (75.0, 100.0)
    """
    share = 1.0 / (1.0 + math.exp(-max(min(odds, 500.0), -500.0)))
    return 100.0 * (share + (1.0 - share) / num_classes)


@dataclass(frozen=True)
class Expected:
    """Percent expected of one recipe on one data set, and what that rests on."""

    value: float
    evidence: str

    @property
    def backed(self) -> bool:
        """Return whether it is a result of ours, or between two."""
        return self.evidence in ("measured", "between results")


def expected(recipe: Recipe, case: Case, epsilon: float, reference: Reference) -> Expected:
    """Expect what was measured, carried over along the worth, less some caution; else what kin of the recipe reach."""
    where, curve = labels_per_class(recipe, case, epsilon), reference.curve(recipe)
    if curve:
        odds, measured = along(curve, where)
        low, high = (labels_per_class(recipe, p.case, p.epsilon) for p in (curve[0], curve[-1]))
        evidence = "measured" if measured else "between results" if low <= where <= high else "beyond results"
        evidence = evidence if curve[0].ours else "paper"
        return Expected(accuracy(odds - _CAUTION[evidence], case.num_classes), evidence)
    # Whose curve stands in: the first of its kin that the data set has, else of those that stand in for any other.
    kin = [one for one in RANKED if one.kin == recipe.kin]
    listed = case.modality if any(case.modality in one.stands_in for one in RANKED) else ""
    standards = sorted((one for one in RANKED if listed in one.stands_in), key=lambda one: one.stands_in[listed])
    standard = next((one for one in (*kin, *standards) if reference.curve(one)), None)
    odds, _ = along(reference.curve(standard) if standard else reference.points, where)
    if case.modality != "images" or standard is None:
        # On features that are learnt from as they are, the learners are alike, and a guess is as good as a paper.
        odds -= _CAUTION["paper"]
    else:
        odds += _GAP[standard.learner] - _GAP[recipe.learner]
        odds -= _AMONG_KIN if standard.kin == recipe.kin else _CAUTION["formula"]
    return Expected(accuracy(odds, case.num_classes), "formula")


# --- the order ----------------------------------------------------------------------------------------------------

# Points within which the simpler of two recipes is taken, and which it never loses, with room for what rounding and
# interpolation lose.
_AS_GOOD, _POINT = 0.3, 0.9
# Points by which a guess must be ahead of all results of ours to be put before them.
_CLEARLY = 2.0
# An epoch of the small Inception network takes 1.3 s on an H200 and some 1,900 s on two (shared) CPU cores.
_CPU_SLOWER = 1000.0
# What counts of a formula's clean labels where a network learns from features as they are and nothing was compared: on
# 200 to 10,000 rows of Adult, ε = 0.5 to 4, heads of one moment led networks that the formulas put before them.
_OF_FORMULA = 0.25


def _by_results(
    case: Case, epsilon: float, device: str, hours: float, network: bool, found: Sequence[Reference]
) -> list[Ranked]:
    """Return every recipe with what it is expected to reach on these data sets, in the catalogue's order."""
    times = [_seconds(recipe, case, device, found) for recipe in RANKED]
    both = zip(RANKED, times, strict=True)
    obstacles = [_obstacle(recipe, case, time, hours, network) for recipe, (time, _) in both]
    compared = []
    for reference in found:
        column = [expected(recipe, case, epsilon, reference) for recipe in RANKED]
        free = [one for one, obstacle in zip(column, obstacles, strict=True) if not obstacle]
        results = [one.value for one in free if one.backed]
        # The best result of ours, else the best guess: one that is off must not blur the order of the results.
        top = max(results or [one.value for one in free], default=0.0)
        for place, one in enumerate(column):
            hardly = results and not one.backed and top - 0.5 < one.value < top + _CLEARLY
            if hardly and not obstacles[place]:
                column[place] = Expected(top - 0.5, one.evidence)
        compared.append((top, column))
    # Data sets without a result of ours near this ε have a say only where none has one.
    compared = [pair for pair in compared if any(one.backed for one in pair[1])] or compared
    ranked = []
    for place, (recipe, (time, own), obstacle) in enumerate(zip(RANKED, times, obstacles, strict=True)):
        row = [(top, column[place]) for top, column in compared]
        mean = sum(one.value for _, one in row) / len(row)
        regret = max(top - one.value for top, one in row)
        evidence = max((one.evidence for _, one in row), key=list(_CAUTION).index)
        seconds = time if own or obstacle.startswith("trains") else None
        ranked.append(Ranked(recipe.key, _worth(recipe, case, epsilon), mean, regret, evidence, seconds, obstacle))
    return ranked


def _by_worth(case: Case, epsilon: float, device: str, hours: float, network: bool) -> tuple[Ranked, ...]:
    """Return every recipe, most clean labels first, less what formulas overrate; the simpler one of two alike.

    On tables the first is the one that was measured to lead on such ones, where there is one.
    """
    ranked = []
    for recipe in (*RANKED, *(ON_TABLES if case.modality == "table" else ())):
        seconds = None
        if case.modality == "table" and device == "cpu" and recipe.table_seconds is not None:
            # Rough time on one core, where it was measured.
            start, per_row = recipe.table_seconds
            seconds = start + per_row * case.num_rows
        obstacle = _obstacle(recipe, case, seconds, hours, network)
        ranked.append(Ranked(recipe.key, _worth(recipe, case, epsilon), seconds=seconds, obstacle=obstacle))
    worth = {r.recipe: r.clean_labels * (1.0 if BY_KEY[r.recipe].learner == "head" else _OF_FORMULA) for r in ranked}
    leading = [one for one in ranked if (leads := BY_KEY[one.recipe].leads) is not None and leads(case, epsilon)]
    free = [one for one in ranked if not one.obstacle]
    anywhere = [one for one in free if BY_KEY[one.recipe].leads is None]
    enough = max((worth[one.recipe] for one in anywhere), default=0.0) * 0.9
    first = next((one for one in anywhere if worth[one.recipe] >= enough), ranked[0])
    first = next((one for one in leading if not one.obstacle), first)
    rest = sorted((one for one in ranked if one is not first), key=lambda r: (bool(r.obstacle), -worth[r.recipe]))
    return (first, *rest)


def _obstacle(recipe: Recipe, case: Case, seconds: float | None, hours: float, network: bool) -> str:
    """Return what stands in the way, in words; empty where nothing does."""
    if recipe.needs_delta and case.delta == 0:
        return NEEDS_DELTA
    if recipe.unfit == case.modality:
        return f"was behind simpler recipes on data of the kind {case.modality}"
    if recipe.network and not network:
        return NEEDS_NETWORK
    if seconds is None or seconds <= 3600 * hours:
        return ""
    return f"trains too long: some {seconds / 3600:.0f} hours"


def _seconds(recipe: Recipe, case: Case, device: str, found: Sequence[Reference]) -> tuple[float | None, bool]:
    """Return the time to train, scaled by rows, and whether it was measured for this recipe.

    A network on a CPU takes about a thousand times as long as on a GPU; a head was not compared.
    """
    trains_net = recipe.learner in ("net", "student") and case.modality == "images"
    timed = [p for one in found for p in one.curve(recipe) if p.seconds is not None]
    own = bool(timed)
    if not own and trains_net:
        # Most networks take about as long as one another on a GPU; those that were timed on a CPU are small.
        timed = [p for p in points() if p.seconds is not None and p.recipe.learner == "net" and p.device == "cuda"]
    here = [p for p in timed if p.device == device]
    elsewhere = [] if here or not trains_net else timed
    slower = _CPU_SLOWER if device == "cpu" and elsewhere else 1.0
    times = [slower * (p.seconds or 0.0) * case.num_rows / p.case.num_rows for p in here or elsewhere]
    return (median(times) if times else None), own
