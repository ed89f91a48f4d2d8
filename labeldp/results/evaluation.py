"""Turn counts of rows that were set aside into measures with error bars: post-processing, which costs nothing.

A release has noisy counts n̂ of classes (or of rounded errors) in public groups of rows. How many rows a group has is
public, so what the noise added to that is taken off in equal parts; counts may be negative, so that sums of them stay
unbiased. All measures are sums of counts, their ratios, or, for AUC, sums of products. Within a group the model itself
says which of its rows have a class: of the group's rows of class k, q_ik / Σ_j q_jk count as row i, where q ∝ p^τ are
its probabilities made as sure, on average, as it is right.

Error bars hold the unknown value in 95 of 100 cases. They come from simulation: rows are drawn from the estimated
distribution, exact noise like the first is added, everything is computed again, and the margin is what 95% of the
deviations stay below. So they include which rows happened to be set aside, and the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labeldp.core.display import table
from labeldp.learning.evidence import project_to_simplex
from labeldp.mechanisms.evaluation import ErrorCounts, ScoreCounts
from labeldp.releases import FloatArray, NoisyCounts, NoisyErrors, NoisyScores
from labeldp.results.card import measure_words

# Simulated evaluations, and fewer where there are very many cells.
_DRAWS, _FEWER_DRAWS, _MANY_CELLS = 1_000, 300, 5_000
_CONFIDENCE = 0.95
# A class is measured if its rows are more than three deviations of the noise on their number.
_ABOVE_NOISE = 3.0
_LEAST = 1e-12
PERCENT = ("accuracy", "majority_baseline", "calibration_error", "at_bounds")


@dataclass(frozen=True)
class Measure:
    """A value, and how far from it the true one may be: 95 of 100 such intervals hold it."""

    value: float
    margin: float


@dataclass(frozen=True)
class Evaluation:
    """How good a model is, by rows whose labels paid for this and nothing else.

    Args:
        rows: set aside for it.
        epsilon: what each of them paid.
        measures: by name: accuracy, majority_baseline (the accuracy of always saying the most frequent class), auc
            (mean over classes, one against the rest), log_loss, calibration_error (mean distance between score and
            observed share); of numbers mean_absolute_error, root_mean_squared_error, r2, and at_bounds, the share of
            labels at the declared bounds, where those beyond are cut off.
        classes: in the order of the model; empty for numbers.
        confusion: rows by true class, then by predicted one, as estimated.
        recall, precision: of each class; None where noise drowns it.
        roc: false and true positive rate of the second of two classes, from threshold to threshold.
        calibration: mean score, observed share and its margin in each bin: of the second of two classes, or, for more,
            of the predicted one.

    >>> Evaluation(500, 1.0, {"accuracy": Measure(0.841, 0.034), "auc": Measure(0.89, 0.03)})
    Evaluation(500 rows at epsilon 1: accuracy 84.1% ± 3.4, AUC 0.890 ± 0.030)
    """

    rows: int
    epsilon: float
    measures: Mapping[str, Measure] = field(hash=False)
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[float, ...], ...] = ()
    recall: tuple[Measure | None, ...] = ()
    precision: tuple[Measure | None, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()
    calibration: tuple[tuple[float, float, float], ...] = ()

    def __repr__(self) -> str:
        return f"Evaluation({self.rows:,} rows at epsilon {self.epsilon:g}: {self.words(*self.measures)})"

    def _repr_html_(self) -> str:
        lines = [(measure_words(name), shown(name, one)) for name, one in self.measures.items()]
        for place, name in enumerate(self.classes if self.recall else ()):
            lines.append(
                (f"{name}: recall, precision", f"{self.side('recall', place)}, {self.side('precision', place)}")
            )
        return table(f"On {self.rows:,} rows set aside, with 95% error bars", lines)

    @property
    def majority(self) -> str:
        """The class that is most frequent among the rows set aside; empty where none is known."""
        totals = [sum(line) for line in self.confusion]
        return self.classes[totals.index(max(totals))] if totals and max(totals) > 0 else ""

    def words(self, *names: str) -> str:
        """Return these measures in words, those that there are."""
        return ", ".join(
            f"{measure_words(name)} {shown(name, self.measures[name])}" for name in names if name in self.measures
        )

    def side(self, name: str, place: int) -> str:
        """Return recall or precision of a class in words; a dash where noise drowns it."""
        one = getattr(self, name)[place]
        return "–" if one is None else _percent(one)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, rounded to what they are good for."""
        found = {**asdict(self), "measures": {name: asdict(one) for name, one in self.measures.items()}}
        return {**_rounded(found), "epsilon": self.epsilon}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation of plain values; raise TypeError, KeyError or ValueError where they are none."""

        def measure(one: Any) -> Measure:
            return Measure(*(_number(one[name]) for name in ("value", "margin")))

        def numbers(table: Any, width: int) -> tuple[Any, ...]:
            found = tuple(tuple(map(_number, line)) for line in table)
            if any(len(line) != width for line in found):
                raise ValueError("a line of a table has another length")
            return found

        classes = tuple(str(name) for name in fields["classes"])
        recall, precision = (
            tuple(None if one is None else measure(one) for one in fields[side]) for side in ("recall", "precision")
        )
        confusion = numbers(fields["confusion"], len(classes))
        if any(len(part) not in (0, len(classes)) for part in (recall, precision, confusion)):
            raise ValueError("there are not as many entries as classes")
        if type(fields["rows"]) is not int or not 0 < fields["rows"] < 1 << 53:
            raise ValueError("rows is no number of them")
        return cls(
            fields["rows"], _number(fields["epsilon"]),
            {str(name): measure(one) for name, one in fields["measures"].items()}, classes, confusion, recall,
            precision, numbers(fields["roc"], 2), numbers(fields["calibration"], 3),
        )  # fmt: skip


def evaluation_of(metrics: Mapping[str, Any]) -> Evaluation | None:
    """Return the evaluation in the measures of a folder; None where there is none, or what is there is none."""
    try:
        return Evaluation.from_json(metrics["evaluation"])
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None


def shown(name: str, one: Measure) -> str:
    """Return a measure with its margin, to as many digits as that has.

    >>> shown("accuracy", Measure(0.8412, 0.0091)), shown("auc", Measure(0.891, 0.0142))
    ('84.1% ± 0.9', '0.891 ± 0.014')
    >>> shown("auc", Measure(1.0, 1e-16))
    '1.0000 ± 0.0000'
    """
    if name in PERCENT:
        return _percent(one)
    # A margin that is rounding has no digits of its own.
    known = one.margin > 1e-9 * abs(one.value)
    digits = max(0, 1 - math.floor(math.log10(one.margin))) if known else 4
    return f"{one.value:.{min(digits, 12)}f} ± {one.margin:.{min(digits, 12)}f}"


def _percent(one: Measure) -> str:
    # A share lies between 0 and 1, however wide its error bar.
    return f"{one.value:.1%} ± {100 * min(one.margin, max(one.value, 1 - one.value)):.1f}"


def _rounded(value: Any) -> Any:
    """Return plain lists and dictionaries, floats to six significant digits."""
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("a number of the evaluation is none")
    return float(value)


# -- classes ----------------------------------------------------------------------------------------------------------


def evaluate_classes(
    probabilities: npt.NDArray[np.floating], query: ScoreCounts, release: NoisyScores, classes: Sequence[object]
) -> Evaluation:
    """Measure a classifier by what was released about it.

    Args:
        probabilities: public, of the rows set aside, (m, K).
        query: what was asked about them.
        release: the counts.
        classes: K names.
    """
    rows, names = len(probabilities), tuple(map(str, classes))
    chance = np.random.default_rng(0)
    share = min(max(release.right / rows, 0.0), 1.0)
    drawn = chance.binomial(rows, share, _DRAWS) + _noise(chance, release.right_std, (_DRAWS,))
    measures = {"accuracy": Measure(share, _margin(drawn / rows - share))}
    if query.cells.num_groups == 1 or len(names) < 2:
        return Evaluation(rows, query.epsilon, measures, names)
    public = _Public(probabilities.astype(np.float64), query, share)
    possible = np.broadcast_to(public.sizes[:, None] > 0, release.cells.counts.shape)
    found, off, cells = _simulated(release.cells, possible, chance, public.statistics)
    noise = release.cells.noise_std * math.sqrt(np.count_nonzero(public.sizes) * (1 - 1 / len(names)))
    totals = cells.sum(axis=0)
    most = int(totals.argmax())
    most_share = float(np.clip(found["shares"][most], 0, 1))
    measures["majority_baseline"] = Measure(most_share, _margin(off["shares"][:, most]))
    seen = np.minimum(totals, rows - totals) > max(_ABOVE_NOISE * noise, 0.5)
    kept = [1] if len(names) == 2 else list(np.flatnonzero(seen))
    if kept and seen[kept].all():
        area, around = found["auc"][kept].mean(), off["auc"][:, kept].mean(axis=1)
        measures["auc"] = Measure(float(np.clip(area, 0, 1)), _margin(around))
    measures["log_loss"] = Measure(max(0.0, float(found["log_loss"])), _margin(off["log_loss"]))
    deviations = off["observed"].std(axis=0)
    distance = np.sqrt(np.maximum((found["observed"] - public.scores) ** 2 - deviations**2, 0))
    again = np.sqrt(np.maximum((found["observed"] + off["observed"] - public.scores) ** 2 - 2 * deviations**2, 0))
    weights = public.weights / rows
    error = float(distance @ weights)
    measures["calibration_error"] = Measure(min(error, 1.0), _margin(again @ weights - error))
    return Evaluation(
        rows, query.epsilon, measures, names,
        tuple(map(tuple, public.confusion(_projected(cells, public.sizes)).tolist())),
        _sides(found["recall"], off["recall"], totals > max(_ABOVE_NOISE * noise, 0.5)),
        _sides(found["precision"], off["precision"], public.confusion(cells).sum(axis=0) > 0),
        public.roc(_projected(cells, public.sizes)) if len(names) == 2 else (),
        tuple(
            (float(score), float(np.clip(value, 0, 1)), _margin(around))
            for score, value, around in zip(public.scores, found["observed"], off["observed"].T, strict=True)
        ),
    )  # fmt: skip


class _Public:
    """What measures need to know besides counts: sums over the public rows of each group."""

    def __init__(self, probabilities: FloatArray, query: ScoreCounts, share: float) -> None:
        groups, self.bins = query.cells.groups, query.cells.num_groups // query.num_classes
        member = np.zeros((query.cells.num_groups, len(groups)))
        member[groups, np.arange(len(groups))] = 1.0
        self.classes, self.rows = query.num_classes, len(groups)
        self.sizes = member.sum(axis=1)
        self.predicted = np.arange(query.cells.num_groups) // self.bins
        belief = tempered(probabilities, share)
        losses = -np.log(np.clip(probabilities, _LEAST, 1))
        self.loss = _over(member @ (belief * losses), member @ belief)
        compared = [1] if self.classes == 2 else range(self.classes)
        self.order = {k: _order(probabilities[:, k], belief[:, k], member) for k in compared}
        # Where calibration is looked at: in every group, or in every bin of the classes together.
        together = self.classes > 2 and self.bins > 1
        point = np.arange(len(self.sizes)) % self.bins if together else np.arange(len(self.sizes))
        self.points = np.zeros((point.max() + 1, len(self.sizes)))
        self.points[point, np.arange(len(point))] = 1.0
        watched = probabilities[:, 1] if self.classes == 2 else probabilities.max(axis=1)
        used = self.points @ self.sizes > 0
        self.points = self.points[used]
        self.weights = self.points @ self.sizes
        self.scores = (self.points @ member @ watched) / self.weights
        self.by_score = np.argsort(-_over(member @ watched, self.sizes), kind="stable")

    def statistics(self, cells: FloatArray, noise: float) -> dict[str, FloatArray]:
        """Return measures of counts (…, groups, classes) whose noise has this variance."""
        sizes, filled = cells.sum(axis=-1), np.count_nonzero(self.sizes)
        matrix = self.confusion(cells)
        right = np.diagonal(matrix, axis1=-2, axis2=-1)
        watched = cells[..., np.arange(len(self.sizes)), 1 if self.classes == 2 else self.predicted]
        areas = np.full((*cells.shape[:-2], self.classes), np.nan)
        for k, order in self.order.items():
            ones, zeros = cells[..., k], sizes - cells[..., k]
            # Noise on a group's count of the class is, with the other sign, that on its count of the others.
            pairs = ones.sum(axis=-1) * zeros.sum(axis=-1) + noise * filled
            won = np.einsum("...g,gh,...h->...", ones, order, zeros, optimize=True)
            areas[..., k] = _over(won + noise * np.trace(order), pairs)
        return {
            "auc": areas,
            "shares": cells.sum(axis=-2) / self.rows,
            "log_loss": np.einsum("...gk,gk->...", cells, self.loss) / self.rows,
            "recall": _over(right, cells.sum(axis=-2)),
            "precision": _over(right, matrix.sum(axis=-2)),
            "observed": _over(watched @ self.points.T, sizes @ self.points.T),
        }

    def confusion(self, cells: FloatArray) -> FloatArray:
        """Return rows by true class and predicted class, (…, K, K)."""
        split = cells.reshape(*cells.shape[:-2], self.classes, self.bins, self.classes)
        return np.swapaxes(split.sum(axis=-2), -1, -2)

    def roc(self, cells: FloatArray) -> tuple[tuple[float, float], ...]:
        """Return false and true positive rates of two classes, the rows of the highest scores first."""
        zeros, ones = np.cumsum(cells[self.by_score], axis=0).T
        rates = zip(_over(zeros, zeros[-1:]), _over(ones, ones[-1:]), strict=True)
        return ((0.0, 0.0), *((float(x), float(y)) for x, y in rates))


def tempered(probabilities: FloatArray, share: float) -> FloatArray:
    """Return probabilities ∝ p^τ whose largest ones have this mean, or the nearest for τ from 1/16 to 16.

    >>> tempered(np.array([[0.9, 0.1], [0.1, 0.9]]), 0.75).round(2)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    logs = np.log(np.clip(probabilities, _LEAST, 1))
    logs -= logs.max(axis=1, keepdims=True)
    low, high = -4.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        sure = (1 / np.exp(2**middle * logs).sum(axis=1)).mean()
        low, high = (middle, high) if sure < share else (low, middle)
    powers = np.exp(2**low * logs)
    return powers / powers.sum(axis=1, keepdims=True)


def _order(scores: FloatArray, belief: FloatArray, member: FloatArray) -> FloatArray:
    """Return P(a row of the class in group g scores above one of the others in group h) + ½ P(equal), (G, G)."""
    ones, zeros = (_over(member * weight, (member @ weight)[:, None]) for weight in (belief, 1 - belief))
    values, place = np.unique(scores, return_inverse=True)
    below = np.zeros((len(values) + 1, len(member)))
    np.add.at(below[1:], place, zeros.T)
    below = np.cumsum(below, axis=0)
    return ones @ ((below[place] + below[place + 1]) / 2)


# -- numbers ----------------------------------------------------------------------------------------------------------


def evaluate_numbers(query: ErrorCounts, release: NoisyCounts, bounds: tuple[float, float]) -> Evaluation:
    """Measure a regressor by what was released about its errors, in the unit of the bounds."""
    grid, predicted = query.grid.astype(np.float64), query.predicted.astype(np.float64)
    gaps = np.diff(grid)
    left, right = np.append(0.0, gaps), np.append(gaps, 0.0)
    # Rounding adds (e − a)(b − e) to a square: for errors spread evenly between the points, this much in the mean.
    squares = np.maximum(grid**2 - (left**3 + right**3) / (6 * (left + right)), 0)
    sizes, centred = release.group_sizes, predicted - predicted.mean()
    means = _over(np.bincount(query.cells.groups, centred, minlength=len(sizes)).astype(np.float64), sizes)
    spread, between = centred @ centred, means**2 @ sizes
    unit = (float(bounds[1]) - float(bounds[0])) / (query.num_levels - 1)
    # Which points an error can be rounded to: labels lie within the bounds.
    least, most = (np.full(len(sizes), edge) for edge in (np.inf, -np.inf))
    np.minimum.at(least, query.cells.groups, -predicted)
    np.maximum.at(most, query.cells.groups, query.num_levels - 1 - predicted)
    possible = (np.append(grid[1:], np.inf) > least[:, None]) & (np.append(-np.inf, grid[:-1]) < most[:, None])
    chance = np.random.default_rng(0)

    def statistics(cells: FloatArray, noise: float) -> dict[str, FloatArray]:
        rows = cells.sum(axis=(-2, -1))
        squared = (cells @ squares).sum(axis=-1)
        drift = cells @ grid
        # Labels are predictions plus errors; that errors go with predictions is seen between the groups.
        along = 0.0 if between == 0 else (drift @ means) * (spread / between)
        other = chance.normal(0, math.sqrt(len(centred)) * (centred**2).std(), rows.shape) if rows.ndim else 0.0
        around = spread + other + 2 * along + squared - drift.sum(axis=-1) ** 2 / rows
        return {
            "mean_absolute_error": unit * (cells @ np.abs(grid)).sum(axis=-1) / rows,
            "root_mean_squared_error": unit * np.sqrt(np.maximum(squared, 0) / rows),
            "r2": 1 - np.divide(squared, around, out=np.full_like(squared, np.nan), where=around > 0),
        }

    widths = np.maximum((left + right) / 2, 0.5)
    found, off, _ = _simulated(
        release, possible, chance, statistics, lambda cells, sizes: _single_peaked(cells, sizes, widths)
    )
    measures = {
        name: Measure(max(0.0, float(value)) if name != "r2" else min(1.0, float(value)), _margin(off[name]))
        for name, value in found.items()
        if np.isfinite(value) and np.isfinite(off[name]).all()
    }
    # What an earlier version has kept does not have it.
    if isinstance(release, NoisyErrors):
        share = min(max(release.at_bounds / len(predicted), 0.0), 1.0)
        drawn = chance.binomial(len(predicted), share, _DRAWS) + _noise(chance, release.at_bounds_std, (_DRAWS,))
        measures["at_bounds"] = Measure(share, _margin(drawn / len(predicted) - share))
    return Evaluation(len(predicted), query.epsilon, measures)


# -- counts and their noise -------------------------------------------------------------------------------------------

Statistics = Callable[[FloatArray, float], dict[str, FloatArray]]


def _simulated(
    release: NoisyCounts,
    possible: npt.NDArray[np.bool_],
    chance: np.random.Generator,
    statistics: Statistics,
    nearest: Callable[[FloatArray, FloatArray], FloatArray] | None = None,
) -> tuple[dict[str, FloatArray], dict[str, FloatArray], FloatArray]:
    """Return what counts say, by how much simulated ones are off (draws first), and the counts themselves.

    Cells that are not `possible`, which is public, hold nothing but noise. `nearest` takes counts and sizes to counts
    that can be: not negative ones when None.
    """
    sizes, classes = release.group_sizes.astype(np.float64), release.counts.shape[1]
    noise, rows = release.noise_std**2 * (1 - 1 / classes), int(release.group_sizes.sum())
    cells = _consistent(release.counts.astype(np.float64), sizes, possible)
    assumed = (nearest or _projected)(np.where(possible, cells, 0.0 if nearest else -rows), sizes)
    truth = statistics(assumed, 0.0)
    draws = _DRAWS if cells.size <= _MANY_CELLS else _FEWER_DRAWS
    chances = assumed.ravel() / assumed.sum()
    drawn = chance.multinomial(rows, chances / chances.sum(), draws).reshape(draws, *cells.shape).astype(np.float64)
    drawn = _consistent(drawn + _noise(chance, release.noise_std, drawn.shape), drawn.sum(axis=-1), possible)
    again = statistics(drawn, noise)
    return statistics(cells, noise), {name: again[name] - truth[name] for name in truth}, cells


def _consistent(counts: FloatArray, sizes: FloatArray, possible: npt.NDArray[np.bool_]) -> FloatArray:
    """Return counts that add up to the public size of their group, 0 where there can be none."""
    off = (np.where(possible, counts, 0.0).sum(axis=-1) - sizes) / np.maximum(possible.sum(axis=-1), 1)
    return np.where(possible, counts - off[..., None], 0.0)


def _projected(cells: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return the nearest counts that are not negative, group by group."""
    shares = project_to_simplex(torch.from_numpy(_over(cells, sizes[:, None]))).numpy()
    return shares * sizes[:, None]


def _single_peaked(cells: FloatArray, sizes: FloatArray, widths: FloatArray) -> FloatArray:
    """Return the nearest counts, group by group, whose number per width falls to both sides of its peak.

    Cells of far errors are empty but for noise. Without its negative half that would be large errors that nobody made;
    falling, neighbours are averaged, halves and all.
    """
    from sklearn.isotonic import isotonic_regression

    found, weights = np.zeros_like(cells), widths**2
    for place, heights in enumerate(cells / widths):
        peak = int(np.argmax(heights))
        for side, rising in ((slice(peak + 1), True), (slice(peak, None), False)):
            found[place, side] = isotonic_regression(
                heights[side], sample_weight=weights[side], y_min=0, increasing=rising
            )
    found *= widths
    return found * _over(sizes, found.sum(axis=1))[:, None]


def _noise(chance: np.random.Generator, std: float, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Draw discrete Laplace noise of this deviation, 1/(√2·sinh(rate/2)): a difference of two geometric numbers."""
    if std == 0:
        return np.zeros(shape, dtype=np.int64)
    stop = -math.expm1(-2 * math.asinh(1 / (math.sqrt(2) * std)))
    return chance.geometric(stop, shape) - chance.geometric(stop, shape)


def _margin(deviations: FloatArray) -> float:
    return float(np.quantile(np.abs(deviations), _CONFIDENCE))


def _sides(found: FloatArray, off: FloatArray, seen: npt.NDArray[np.bool_]) -> tuple[Measure | None, ...]:
    usable = seen & np.isfinite(found) & np.isfinite(off).all(axis=0)
    return tuple(
        Measure(float(np.clip(value, 0, 1)), min(_margin(around), 1.0)) if one else None
        for value, around, one in zip(found, off.T, usable, strict=True)
    )


def _over(above: FloatArray, below: FloatArray | npt.NDArray[np.integer]) -> FloatArray:
    """Return a quotient, 0 where there is nothing to divide by."""
    bottom = np.broadcast_to(below, np.shape(above))
    return np.divide(above, bottom, out=np.zeros_like(above, dtype=np.float64), where=bottom != 0)
