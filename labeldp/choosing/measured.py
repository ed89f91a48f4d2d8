"""Carry what was measured over to other public numbers, along the worth in clean labels per class.

`measured.csv` is made from experiments/results by `python -m experiments.choices`; the papers' figures stand in for
recipes that have no result of ours on a data set. Between two points a recipe's accuracy is interpolated, beyond them
it is continued cautiously.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from labeldp.recipes.catalogue import BY_KEY, Recipe
from labeldp.recipes.worth import Case

# Change of the log odds of being right (chance taken off) per factor e of clean labels, below and above what was
# measured: below, steeper than any curve measured, because training breaks down there; above, flatter.
_BELOW, _ABOVE = 0.6, 0.15
# How far apart, in powers of e, two worths may be and still count as measured.
_NEAR = 0.05
_TEXT_IS = {"text": "embeddings"}


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
    have nothing as near.
    """
    kind = _TEXT_IS.get(case.modality, case.modality)
    kinds = {p.dataset for p in points() if _TEXT_IS.get(p.case.modality, p.case.modality) == kind}
    found = sorted((_reference(name, device) for name in kinds), key=lambda r: (distance_to(case, r.case), r.dataset))
    if not found:
        return ()
    nearest = distance_to(case, found[0].case)
    near = [one for one in found if distance_to(case, one.case) <= nearest + 0.5]
    return tuple([one for one in near if one.ours] or near)


def _reference(dataset: str, device: str) -> Reference:
    """Keep for each recipe the points of this device, else of any: accuracy hardly depends on where it was computed."""
    mine = [p for p in points() if p.dataset == dataset]
    there = {p.recipe.key for p in mine if p.device == device}
    kept = tuple(p for p in mine if p.device == device or p.recipe.key not in there)
    return Reference(dataset, mine[0].case, kept)


def distance_to(case: Case, other: Case) -> float:
    """Return how unlike two problems are: one for a factor e in classes, half for features, a third for rows."""
    apart = abs(math.log(case.num_classes / other.num_classes))
    apart += abs(math.log(case.num_rows / other.num_rows)) / 3
    if case.feature_dim is None or other.feature_dim is None:
        return apart
    return apart + abs(math.log(case.feature_dim / other.feature_dim)) / 2


# --- curves -----------------------------------------------------------------------------------------------------


def labels_per_class(recipe: Recipe, case: Case, epsilon: float) -> float:
    """Return the worth of a ranked recipe, in clean labels per class."""
    assert recipe.worth is not None, f"{recipe.key} is not ranked"
    return max(recipe.worth(case, epsilon), 1e-9) / case.num_classes


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
