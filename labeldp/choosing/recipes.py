"""The recipes that can be chosen: what each asks, what it trains, what it is worth where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from labeldp.choosing.worth import distance, moment_labels, pure_distance, response_labels, vote_labels

MODALITIES = ("images", "table", "text", "embeddings")
# Directions that features offer where none is named: patch dictionaries and hashed tables have as many as one likes.
_WIDTHS = {"images": 4096, "table": 128, "text": 384, "embeddings": 512}
# Raw pixels are where features of pictures are made from, not the features themselves.
_MADE_HERE = ("images",)


@dataclass(frozen=True)
class Case:
    """A learning problem by its public numbers. Nothing here comes from a label.

    Args:
        num_rows: n.
        num_classes: K, as declared.
        feature_dim: numbers per row as given, before any extractor; None where it is not known.
        modality: one of `MODALITIES`; "embeddings" are the outputs of a good encoder, "text" is embedded text.
        delta: of looks with Gaussian noise; the others need none.
    """

    num_rows: int
    num_classes: int
    feature_dim: int | None
    modality: str
    delta: float = 1e-5

    @property
    def width(self) -> int:
        """Directions that the public features offer to a linear head."""
        usual = _WIDTHS[self.modality]
        if self.feature_dim is None:
            return usual
        return max(self.feature_dim, usual) if self.modality in _MADE_HERE else self.feature_dim

    @property
    def clusters(self) -> int:
        """Clusters of public features: a hundred as in the papers, fewer where they would be small."""
        return max(self.num_classes, min(100, self.num_rows // 500))


Worth = Callable[[Case, float], float]


@dataclass(frozen=True)
class Recipe:
    """What a recipe is, in one line and in numbers.

    Args:
        name: as in the ranking.
        call: the function that runs it.
        idea: what it does, as the end of a sentence.
        worth: clean labels it is worth at ε; a coordinate along which its measured accuracy is carried over.
        learner: "head" (closed form), "student" (a network taught by a head), "net" (a network on the answers).
        pure: whether it spends no δ.
        needs_delta: whether its noise is Gaussian by nature; a moment by itself can also take Laplace noise.
        unfit: a modality on which it was measured and found to lose to simpler recipes.
    """

    name: str
    call: str
    idea: str
    worth: Worth
    learner: str
    pure: bool
    needs_delta: bool = False
    unfit: str = ""


def moment_distance(case: Case, epsilon: float) -> float:
    """μ of one look at the moment; where δ = 0, that of a Gaussian with as large noise as Laplace's.

    Laplace noise hides the norm of order 1, up to √r times the length of a row of r directions.
    """
    if case.delta > 0:
        return distance(epsilon, case.delta)
    return pure_distance(case.num_rows, case.num_classes, epsilon, case.width)


def _moment(share: float) -> Worth:
    """A Gaussian look at everything, `share` of its worth reaching the model."""

    def worth(case: Case, epsilon: float) -> float:
        mu = moment_distance(case, epsilon)
        return share * moment_labels(case.num_rows, case.num_classes, mu, case.width)

    return worth


def _responses(gain: float) -> Worth:
    """One answer per row; a prior makes the answers worth `gain` times as much."""

    def worth(case: Case, epsilon: float) -> float:
        return min(float(case.num_rows), gain * response_labels(case.num_rows, case.num_classes, epsilon))

    return worth


def _moment_then_answers(case: Case, epsilon: float) -> float:
    """Both looks' worth, at the best of some splits: as if the head's knowledge and the answers' only added up."""
    if math.isinf(epsilon):
        return float(case.num_rows)
    moment, responses = _moment(1.0), _responses(_PRIOR_GAIN)
    both = (moment(case, part * epsilon) + responses(case, (1 - part) * epsilon) for part in _PARTS)
    return min(float(case.num_rows), max(both))


def _votes(case: Case, epsilon: float) -> float:
    return vote_labels(case.num_rows, case.num_classes, epsilon, case.clusters)


def _gradients(of_nets: float, of_heads: float) -> Worth:
    """Many noisy gradients, as a share of one moment: what they reach in Ghazi et al. 2024, Tables 6 and 14."""

    def worth(case: Case, epsilon: float) -> float:
        return _moment(of_nets if case.modality in _MADE_HERE else of_heads)(case, epsilon)

    return worth


# Shares of ε for the first look, as `one_shot_prior` tries them.
_PARTS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
# LP-2ST does about as well as LP-1ST would with this many times the labels (experiments/results, ε = 1 and 2).
_PRIOR_GAIN = 1.3

# In the order in which ties are broken: the simpler first.
RECIPES: tuple[Recipe, ...] = (
    Recipe("one_shot", "labeldp.recipes.one_shot.train", "releases one noisy moment of labels and public features and "
           "solves a linear head from it", _moment(1.0), "head", pure=False),
    Recipe("one_shot+linear", "labeldp.recipes.linear_student.train", "hands what the head of one noisy moment knows "
           "to a linear layer on all features, which costs no further privacy", _moment(1.0), "head", pure=False,
           unfit="table"),
    Recipe("one_shot+student", "labeldp.recipes.students.train", "trains a network on the labels of a head that came "
           "from one noisy moment, which costs no further privacy", _moment(1.0), "student", pure=False),
    Recipe("rounds", "labeldp.recipes.rounds.train", "takes several noisy moments, each on features learnt from the "
           "one before", _moment(1.0), "student", pure=False, needs_delta=True),
    Recipe("one_shot_prior", "labeldp.recipes.one_shot_prior.train", "spends a part on one noisy moment and asks every "
           "row for an answer among the classes its head finds plausible", _moment_then_answers, "student", pure=False,
           needs_delta=True),
    Recipe("cluster_votes", "labeldp.recipes.cluster_votes.train", "gives every cluster of public features its noisy "
           "majority class", _votes, "head", pure=True),
    Recipe("forward", "labeldp.recipes.forward.train", "asks every row for one randomized answer and fits the "
           "likelihood of the answers (LP-1ST)", _responses(1.0), "net", pure=True),
    Recipe("lp_mst", "labeldp.recipes.lp_mst.train", "asks the rows in stages, each among the classes that the model "
           "so far finds plausible (LP-2ST)", _responses(_PRIOR_GAIN), "net", pure=True),
    Recipe("ssl_prior", "labeldp.recipes.ssl_prior.train", "counts classes per cluster of public features and asks "
           "every row among the plausible ones", _responses(1.2), "net", pure=True),
    Recipe("alibi", "labeldp.recipes.alibi.train", "asks every row for a noisy vector and turns it into a soft label",
           _responses(0.8), "net", pure=True),
    Recipe("labeldp_pro", "labeldp.recipes.labeldp_pro.train", "descends on noisy gradients, projected onto what the "
           "public features allow", _gradients(0.12, 0.6), "net", pure=False, needs_delta=True),
    Recipe("dp_sgd", "labeldp.recipes.labeldp_pro.train", "descends on noisy gradients", _gradients(0.1, 0.5), "net",
           pure=False, needs_delta=True),
)  # fmt: skip
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
