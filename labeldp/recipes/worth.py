"""What a query is worth, in clean labels: the one scale on which responses per row and one noisy moment compare.

A noisy release lets a linear statistic of the labels be estimated as well as m rows with clean labels would. Closed
forms, from public numbers only:

    responses per row   m = n (e^ε − 1)² / ((e^ε + K − 2)² + K − 1)   n over 1 + the variance of a debiased label
    one moment          1/m = 1/n + 2 K r / (n μ)²                    r directions, one Gaussian query at distance μ

Their quotient, where both are far below n, is n v μ² / 2r with v = (n/m − 1)/K the variance per class: independent of
the data, and of ε where ε is small. Responses win from the crossing on, the moment below it. Heuristic where the model
is not linear: that is what `labeldp.choosing.predict` is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

MODALITIES = ("images", "table", "text", "embeddings")
# Directions that features offer where none is named: patch dictionaries and hashed tables have as many as one likes.
_WIDTHS = {"images": 4096, "table": 128, "text": 384, "embeddings": 512}
# Raw pixels are where features of images are made from, not the features themselves.
_MADE_HERE = ("images",)


@dataclass(frozen=True)
class Case:
    """A learning problem by its public numbers. Nothing here comes from a label.

    Args:
        num_rows: n.
        num_classes: K, as declared.
        feature_dim: numbers per row as given, before any extractor; None where it is not known.
        modality: one of `MODALITIES`; "embeddings" are the outputs of a good encoder, "text" is embedded text.
        delta: of queries with Gaussian noise; the others need none.
    """

    num_rows: int
    num_classes: int
    feature_dim: int | None
    modality: str
    delta: float = 1e-5

    @property
    def width(self) -> int:
        """Return how many directions the public features offer to a linear head."""
        usual = _WIDTHS[self.modality]
        if self.feature_dim is None:
            return usual
        return max(self.feature_dim, usual) if self.modality in _MADE_HERE else self.feature_dim

    @property
    def clusters(self) -> int:
        """Return how many clusters to make: a hundred as in the papers, fewer where one would have less than 50 rows.

        On parts of Adult (1,000 to 20,000 rows, ε from 0.05 to 4) votes of clusters of 50 rows were right up to ten
        points more often than those of 500, and less often only where ε times rows of a cluster is below about 5.
        """
        return max(self.num_classes, min(100, self.num_rows // 50))


Worth = Callable[[Case, float], float]


# --- the formulas -------------------------------------------------------------------------------------------------

# Directions of the features that pay, per unit of nμ/K: what label-free tuning chose, 16 at ε = 0.01 to 512 at 0.5 on
# Fashion-MNIST, 64 at 0.05 to 1,500 at 1 on CIFAR-10.
_DIRECTIONS = 0.7
_LARGEST = 40.0
_LEAST_EPSILON, _MOST_EPSILON = 1e-4, 30.0


@lru_cache(maxsize=1024)
def distance(epsilon: float, delta: float) -> float:
    """Return μ of one Gaussian query at (ε, δ); infinite for ε = ∞."""
    # Imported here: a command line that only lists recipes starts without numpy and scipy.
    from labeldp.core.inverse import gaussian_mu

    return math.inf if math.isinf(epsilon) else gaussian_mu(epsilon, delta)


def response_labels(num_rows: float, num_classes: float, epsilon: float) -> float:
    """Return the clean labels that one randomized response per row is worth (Ghazi et al. 2021 for the channel).

    >>> round(response_labels(60_000, 10, 1.0)), round(response_labels(60_000, 10, 0.1))
    (1430, 7)
    """
    gain = math.expm1(min(epsilon, _LARGEST))
    return num_rows * gain**2 / ((gain + num_classes - 1) ** 2 + num_classes - 1)


def directions(num_rows: float, num_classes: float, mu: float, width: float) -> float:
    """Return how many directions of `width` public features are worth a place in the moment: 0.7 nμ/K at most."""
    return min(width, max(1.0, _DIRECTIONS * num_rows * mu / num_classes))


def moment_labels(num_rows: float, num_classes: float, mu: float, width: float) -> float:
    """Return the clean labels that the moment Σ onehot(y) ⊗ φ, released at distance μ, is worth to a linear head.

    >>> round(moment_labels(60_000, 10, distance(0.1, 1e-5), width=4096), -1)
    1360.0
    """
    if mu <= 0 or math.isinf(mu):
        return 0.0 if mu <= 0 else float(num_rows)
    rank = directions(num_rows, num_classes, mu, width)
    return 1.0 / (1.0 / num_rows + 2.0 * num_classes * rank / (num_rows * mu) ** 2)


def pure_distance(num_rows: float, num_classes: float, epsilon: float, width: float) -> float:
    """Return μ of the Gaussian noise as large as the Laplace noise of a moment with δ = 0: ε/(2√r).

    Laplace noise of scale 2√r/ε has deviation 2√2·√r/ε where Gaussian noise has √2/μ; r follows from μ as above.

    >>> round(pure_distance(60_000, 10, 1.0, 4096), 3), round(distance(1.0, 1e-5), 3)
    (0.039, 0.268)
    """
    rank = (_DIRECTIONS * num_rows * epsilon / (2 * num_classes)) ** (2 / 3)
    return epsilon / (2 * math.sqrt(min(width, max(1.0, rank))))


@lru_cache(maxsize=1024)
def crossing(num_rows: int, num_classes: int, delta: float, width: float) -> float | None:
    """Return the ε from which responses are worth more than one moment; None where the moment never is, or always.

    Where all `width` directions are in the moment this is the crossing of the variances of d isotropic features, at
    n v μ² = 2d; where noise leaves fewer it is a little higher, and the same for every n.

    >>> round(crossing(60_000, 10, 1e-5, width=784) or 0, 1), round(crossing(60_000, 2, 1e-5, width=784) or 0, 1)
    (4.3, 3.2)
    """

    def lead(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        moment = moment_labels(num_rows, num_classes, distance(epsilon, delta), width)
        return math.log(moment) - math.log(response_labels(num_rows, num_classes, epsilon))

    low, high = math.log(_LEAST_EPSILON), math.log(_MOST_EPSILON)
    if lead(low) <= 0 or lead(high) >= 0:
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if lead(middle) > 0 else (low, middle)
    return math.exp(high)


def vote_labels(num_rows: float, num_classes: int, epsilon: float, clusters: int) -> float:
    """Return the clean labels that a noisy majority class per cluster is worth: one per cluster with a right vote.

    Right beyond chance, that is. A class that leads by g rows wins by permute-and-flip (McKenna & Sheldon 2020) with
    probability at least 1/(1 + (K − 1) e^{−ε g/2}); half of a mean cluster is taken for g.

    >>> [round(vote_labels(50_000, 10, epsilon, 100)) for epsilon in (0.01, 0.02, 0.05)]
    [20, 53, 98]
    """
    lead = 0.5 * num_rows / clusters
    right = 1.0 / (1.0 + (num_classes - 1) * math.exp(-min(epsilon * lead / 2, 700.0)))
    return clusters * (right - 1 / num_classes) / (1 - 1 / num_classes)


# --- of recipes -----------------------------------------------------------------------------------------------------


def moment_distance(case: Case, epsilon: float) -> float:
    """Return μ of one moment; where δ = 0, that of a Gaussian with as large noise as Laplace's.

    Laplace noise hides the norm of order 1, up to √r times the length of a row of r directions.
    """
    if case.delta > 0:
        return distance(epsilon, case.delta)
    return pure_distance(case.num_rows, case.num_classes, epsilon, case.width)


def of_moment(share: float) -> Worth:
    """Value a moment of all rows, `share` of its worth reaching the model."""

    def worth(case: Case, epsilon: float) -> float:
        mu = moment_distance(case, epsilon)
        return share * moment_labels(case.num_rows, case.num_classes, mu, case.width)

    return worth


def of_responses(gain: float) -> Worth:
    """Value one response per row; a prior makes responses worth `gain` times as much."""

    def worth(case: Case, epsilon: float) -> float:
        return min(float(case.num_rows), gain * response_labels(case.num_rows, case.num_classes, epsilon))

    return worth


def of_moment_then_responses(case: Case, epsilon: float) -> float:
    """Value a moment and responses, at the best of some splits: as if their knowledge only added up."""
    if math.isinf(epsilon):
        return float(case.num_rows)
    moment, responses = of_moment(1.0), of_responses(PRIOR_GAIN)
    both = (moment(case, part * epsilon) + responses(case, (1 - part) * epsilon) for part in _PARTS)
    return min(float(case.num_rows), max(both))


def of_either(case: Case, epsilon: float) -> float:
    """Value the better of a moment and responses, whichever a pilot finds it to be."""
    return max(of_moment(0.8)(case, epsilon), of_responses(1.0)(case, epsilon))


def moment_leads(case: Case, epsilon: float) -> bool:
    """Return whether one moment, with cosines, was measured to be ahead on such tables: responses would say too little.

    Not where noise leaves so few directions that none can be spared for cosines.
    """
    enough = case.delta > 0 and epsilon * case.num_rows / case.num_classes >= _FEW_DIRECTIONS
    return _many_rows(case) and enough and not (responses_lead(case, epsilon) or pilot_pays(case, epsilon))


def responses_lead(case: Case, epsilon: float) -> bool:
    """Return whether responses were, or hardly behind where they were not."""
    told = responses_say_more(case.num_rows, case.num_classes, epsilon)
    return _many_rows(case) and told and not pilot_pays(case, epsilon)


def pilot_pays(case: Case, epsilon: float) -> bool:
    """Return whether the table itself can tell: its responses say much in all, though one alone does not.

    Of fewer rows a pilot costs a moment more than its verdict is worth: where there is enough to see in a fifth of
    them, responses of all are hardly behind a moment on any table.
    """
    unclear = response_labels(1, case.num_classes, epsilon) < _CLEAR
    worth = response_labels(case.num_rows, case.num_classes, epsilon)
    many = _many_rows(case) and case.num_rows >= _PILOTED_ROWS and worth >= _PILOTED_LABELS
    return many and case.delta > 0 and unclear


def responses_say_more(num_rows: int, num_classes: int, epsilon: float) -> bool:
    """Return whether responses were ahead on most tables with as many clean labels per class in them at this ε.

    >>> responses_say_more(9000, 2, 1.0), responses_say_more(9000, 2, 0.5), responses_say_more(9000, 26, 2.0)
    (True, False, False)
    """
    falling = _FALLING if epsilon < 1 else _FALLING_ABOVE
    return response_labels(num_rows, num_classes, epsilon) / num_classes >= _PER_CLASS * epsilon**-falling


def _many_rows(case: Case) -> bool:
    return case.modality == "table" and _LEAST_ROWS <= case.num_rows <= _MOST_ROWS


def of_votes(case: Case, epsilon: float) -> float:
    """Value one noisy majority class per cluster."""
    return vote_labels(case.num_rows, case.num_classes, epsilon, case.clusters)


def of_gradients(of_nets: float, of_heads: float) -> Worth:
    """Value many noisy gradients, as a share of one moment: what they reach in Ghazi et al. 2024, Tables 6 and 14."""

    def worth(case: Case, epsilon: float) -> float:
        return of_moment(of_nets if case.modality in _MADE_HERE else of_heads)(case, epsilon)

    return worth


# Shares of ε for the moment, as `one_shot_prior.tune_split` tries them.
_PARTS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
# Rows up to which cosines and learners were tried, and fit in memory without a thought.
_MOST_ROWS = 100_000
# Rows from which methods were compared, and nε/K up to which cosines cost more than they tell; clean labels per class
# from which responses were ahead at ε = 1, and how fast that falls with ε, below 1 and above: settled on the tables of
# benchmarks/development.py.
_LEAST_ROWS, _FEW_DIRECTIONS, _PER_CLASS, _FALLING, _FALLING_ABOVE = 1000, 30.0, 120.0, 3.3, 0.5
# Of a pilot: rows and clean labels in their responses from which it pays, and the share of one in a response from which
# responses are taken anyway.
_PILOTED_ROWS, _PILOTED_LABELS, _CLEAR = 15_000, 2500.0, 0.4
# LP-2ST does about as well as LP-1ST would with this many times the labels (experiments/results, ε = 1 and 2).
PRIOR_GAIN = 1.3
