"""Choose a recipe for a problem: public numbers in, a ranking and a sentence out.

Nothing here takes a label, or a column that holds one: the number of rows and the list of classes are public, whatever
the labels are, so a choice costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from labeldp.choosing.predict import NEEDS_DELTA, Ranked, rank
from labeldp.recipes.catalogue import BY_KEY, RECIPES, Lazy, Recipe
from labeldp.recipes.worth import (
    MODALITIES,
    Case,
    crossing,
    directions,
    moment_distance,
    moment_labels,
    response_labels,
)
from labeldp.results.card import at_most, odds_in_words

DEVICES = ("cpu", "cuda")
# Responses of users beat gradients of users from about this ε per label on (Ghazi et al. 2024, Table 7).
_RESPONSES_FROM = 1.5
# Below this the accountant does not go; see `labeldp.core.accountant`.
_SMALLEST_DELTA = 1e-12
_FEATURES = {
    "images": "labeldp.features.extract.Patches()",
    "table": "labeldp.features.tables.Table()",
    "text": "labeldp.features.extract.Raw()",
    "embeddings": "labeldp.features.extract.Raw()",
}
# What a neighbouring data set differs in, and whose value stays uncertain.
_PROTECTS = {
    "label": ("the replacement of one label", "one label"),
    "number": ("the replacement of one number", "one label"),
    "user": ("all labels of one user together", "all labels of one user"),
}


@dataclass(frozen=True)
class Choice:
    """A recipe, and why.

    Args:
        recipe: the winner's name.
        call: the function that runs it.
        reason: three sentences: what queries are worth here, which recipe is taken, and why.
        ranking: all recipes, best first; those that cannot be used come last, with the obstacle.
        settings: where to start.
        protects: what is protected as one.
        crossing: ε from which one response per row is worth more than one noisy moment; None where they do not cross.
        alike: the measured data sets it was compared on, nearest first.
        notes: what else to know.
        worth: the first sentence of the reason.
        problem: what was asked, as arguments of `choose`.
    """

    recipe: str
    call: str
    reason: str
    ranking: tuple[Ranked, ...]
    settings: Mapping[str, str | float | int] = field(hash=False)
    protects: Literal["label", "number", "user"] = "label"
    crossing: float | None = None
    alike: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    worth: str = ""
    problem: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def price(self) -> str:
        """Return what is promised about a label, in words."""
        epsilon, delta = float(self.settings["epsilon"]), float(self.settings["delta"])
        what, of_what = _PROTECTS[self.protects]
        promise = f"ε = {at_most(epsilon)}, δ = {at_most(delta, 3)}, for {what}. "
        return promise + odds_in_words(epsilon, delta, of_what)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        plain = {"settings": dict(self.settings), "problem": dict(self.problem)}
        return {**asdict(self), **plain, "price": self.price}


def choose(
    num_rows: int,
    num_classes: int | None,
    epsilon: float,
    delta: float = 1e-5,
    *,
    feature_dim: int | None = None,
    modality: str = "images",
    device: str = "cpu",
    rows_per_user: int | None = None,
    hours: float = 4.0,
    network: bool = True,
) -> Choice:
    """Return the recipe that is expected to do best, from public numbers alone.

    Every query is first put on one scale, the number of clean labels it is worth (`labeldp.recipes.worth`). Results of
    this library on the data sets most like the problem, and papers' where there are none, are then carried over along
    that scale, and the recipe is taken that loses least to the best one on any of them.

    Args:
        num_rows: how many labels there are.
        num_classes: K, as you would declare it to a vault, never counted in the labels; None for numbers (regression).
        epsilon, delta: the budget for one label (for all labels of one user with `rows_per_user`). δ = 0 leaves out
            what needs Gaussian noise.
        feature_dim: numbers per row of the public features, before any extractor.
        modality: "images", "table", "text" (embedded), or "embeddings" (outputs of a good encoder).
        device: "cpu" or "cuda".
        rows_per_user: where all labels of one user are protected together, the most rows one of them has.
        hours: recipes that would train for longer are not chosen.
        network: whether a network that takes the inputs is at hand; without, what trains one is not chosen.

    >>> choose(60_000, 10, epsilon=0.05, feature_dim=784).recipe
    'one_shot+linear'
    >>> choose(60_000, 10, epsilon=4.0, feature_dim=784, device="cuda").recipe
    'lp_mst'
    >>> [choose(10_000, None, epsilon, modality="table").recipe for epsilon in (1.0, 8.0)]
    ['one_shot', 'binned_regression']
    """
    counts = {"num_rows": (num_rows, 1), "feature_dim": (feature_dim, 1), "rows_per_user": (rows_per_user, 1)}
    for name, (value, least) in {**counts, "num_classes": (num_classes, 2)}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} must be above 0 and finite; 0.01 to 4 is usual")
    if not (delta == 0 or _SMALLEST_DELTA <= delta < 1):
        raise ValueError(f"delta={delta} must be 0, or from {_SMALLEST_DELTA:g} to below 1; 1e-5 is usual")
    if not hours > 0:
        raise ValueError(f"hours={hours} must be above 0")
    for name, value, known in (("modality", modality, MODALITIES), ("device", device, DEVICES)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not known here; give one of {', '.join(known)}")
    too_much = f"delta={delta:g} is not below one over the {num_rows:,} rows: it would allow one label to be shown."
    notes = (too_much,) if delta * num_rows >= 1 else ()
    cap = rows_per_user or 1
    if cap > 1 and num_classes is None:
        raise ValueError(
            f"rows_per_user={rows_per_user} with num_classes=None: no recipe protects the numbers of a user together; "
            "declare classes (bins), or protect each number by itself"
        )
    # As many rows of two classes, low and high, are what numbers are worth.
    case = Case(num_rows, 2 if num_classes is None else num_classes, feature_dim, modality, delta)
    if num_classes is None:
        found = _for_numbers(case, epsilon, notes)
    elif cap > 1:
        found = _for_users(case, epsilon, cap, notes)
    else:
        found = _for_classes(case, epsilon, device, hours, network, notes)
    asked = {
        "num_rows": num_rows, "num_classes": num_classes, "epsilon": epsilon, "delta": delta,
        "feature_dim": feature_dim, "modality": modality, "device": device, "rows_per_user": cap if cap > 1 else None,
        "hours": hours, **({} if network else {"network": False}),
    }  # fmt: skip
    return replace(found, problem=asked)


def _for_classes(
    case: Case, epsilon: float, device: str, hours: float, network: bool, notes: tuple[str, ...]
) -> Choice:
    """Choose the recipe that the ranking has first, and name the best one that something stands in the way of."""
    ranking, alike = rank(case, epsilon, device, hours, network)
    best, recipe = ranking[0], BY_KEY[ranking[0].recipe]
    cross = crossing(case.num_rows, case.num_classes, case.delta, case.width) if case.delta > 0 else None
    moment, responses = _worths(case, epsilon)
    if best.regret is not None and best.accuracy is not None:
        left_out = any(one.obstacle for one in ranking)
        far = "to be" if best.regret < 0.05 else f"to come within {best.regret:.1f} points of"
        standing = f"It is expected {far} the best{' that can be used here' if left_out else ''} on what is most like "
        standing += f"this ({' and '.join(alike)})."
    elif recipe.leads is not None:
        # Of less worth and yet better: clean labels are counted as a linear head would use them.
        fewer = recipe.kin == "responses" and responses < moment
        standing = "A sum teaches a linear model only, and responses teach any: on tables" if fewer else "On tables"
        standing += " this way of choosing was more accurate, on average, than any single method."
    else:
        standing = "It is worth most by these formulas, on which this choice rests: nothing of the kind was compared."
    worth = (
        f"At ε = {epsilon:g} one noisy sum over {case.num_rows:,} labels is worth about {count(moment)} clean labels, "
        f"and one private response per row about {count(responses)}."
    )
    reason = f"{worth} The choice is {recipe.key}, which {recipe.idea}. {standing}"
    blocked = [(one.accuracy or 0.0, one) for one in ranking if one.obstacle and one.accuracy is not None]
    value, one = max(blocked, key=lambda pair: pair[0], default=(0.0, best))
    if best.accuracy is not None and value - best.accuracy >= 1:
        notes = (*notes, f"{one.recipe} could be {value - best.accuracy:.0f} points better, but {one.obstacle}.")
    settings = _settings(recipe, case, epsilon, device)
    return Choice(recipe.key, recipe.call(), reason, ranking, settings, "label", cross, alike, notes, worth)


def _for_numbers(case: Case, epsilon: float, notes: tuple[str, ...]) -> Choice:
    """Choose the recipe whose query is worth more: one moment of all numbers, or one response per row."""
    moment, responses = _worths(case, epsilon)
    known = [recipe for recipe in RECIPES if recipe.numbers]
    ranking = [Ranked(recipe.key, responses if recipe.pure else moment) for recipe in known]
    ranking.sort(key=lambda one: -one.clean_labels)
    best = BY_KEY[ranking[0].recipe]
    worth = (
        f"At ε = {epsilon:g} one noisy sum over {case.num_rows:,} numbers is worth about {count(moment)} clean labels, "
        f"and one private response per row about {count(responses)}."
    )
    reason = f"{worth} The choice is {best.key}, which {best.idea}. This rests on formulas alone."
    start = {"epsilon": epsilon, "delta": 0.0 if best.pure else case.delta, **best.shown(case, epsilon)}
    return Choice(best.key, best.call("numbers"), reason, tuple(ranking), start, "number", notes=notes, worth=worth)


def _for_users(case: Case, epsilon: float, cap: int, notes: tuple[str, ...]) -> Choice:
    """Choose responses at ε/k per label, or gradients with one vector per user, which pay for δ."""
    per_label = epsilon / cap
    for_users = [recipe for recipe in RECIPES if recipe.users and recipe.worth is not None]
    one_by_one = next(recipe for recipe in for_users if recipe.pure)
    summed = next(recipe for recipe in for_users if recipe.needs_delta)
    responses = Ranked(one_by_one.key, response_labels(case.num_rows, case.num_classes, per_label))
    obstacle = "" if case.delta > 0 else NEEDS_DELTA
    gradients = Ranked(summed.key, 0.0, evidence="paper", obstacle=obstacle)
    start: dict[str, str | float | int] = {"epsilon": epsilon, "delta": 0.0, "cap": cap}
    if per_label >= _RESPONSES_FROM or case.delta == 0:
        recipe, ranking = one_by_one, (responses, gradients)
        why, how = "enough for each to carry something", "releases one response of every kept row"
    else:
        recipe, ranking = summed, (gradients, responses)
        why, how = "too little for single responses", "adds one clipped gradient per user"
        start |= {"delta": case.delta, "epochs": 5}
    worth = f"With up to {cap} labels per user a response can have ε = {per_label:.2g}, {why}."
    reason = (
        f"{worth} The choice is {recipe.key}, which {how}: in Ghazi et al. 2024, Table 7, gradients and responses "
        "change places between ε = 1 and 2.5 per label."
    )
    return Choice(recipe.key, recipe.call(), reason, ranking, start, "user", notes=notes, worth=worth)


def _worths(case: Case, epsilon: float) -> tuple[float, float]:
    """Return the clean labels that one moment of all rows is worth, and one response per row."""
    moment = moment_labels(case.num_rows, case.num_classes, moment_distance(case, epsilon), case.width)
    return moment, response_labels(case.num_rows, case.num_classes, epsilon)


def _settings(recipe: Recipe, case: Case, epsilon: float, device: str) -> dict[str, str | float | int]:
    """Return where to start: the recipe's defaults. What depends on the features is tuned on them, without labels."""
    start: dict[str, str | float | int] = {"epsilon": epsilon, "delta": 0.0 if recipe.pure else case.delta}
    own = {**recipe.settings(case, epsilon), **recipe.shown(case, epsilon)}
    if recipe.kin == "moment" or "clusters" in own:
        start["features"] = _FEATURES[case.modality]
    if recipe.kin == "moment" and "clusters" not in own:
        mu = moment_distance(case, epsilon)
        if case.modality == "images" and device == "cuda":
            start["better features"] = "labeldp.features.contrastive, where the GPU has half an hour to spare"
        if not recipe.needs_delta:
            if case.delta > 0:
                start["noise multiplier"] = float(at_most(math.sqrt(2.0) / mu, 5))
            start["rank"] = f"tuned; about {directions(case.num_rows, case.num_classes, mu, case.width):.0f}"
    for name, value in own.items():
        # Without the seed, and functions that `plan` need not show.
        if name not in ("seed", "tune"):
            joined = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            start[name] = str(joined) if isinstance(joined, Lazy) else joined
    return start


def count(labels: float) -> str:
    """Return a number of labels to two digits.

    >>> count(1362.2), count(6.7), count(0.0), count(43887)
    ('1,400', '7', '0', '44,000')
    """
    if labels < 10:
        return f"{labels:.0f}"
    return f"{round(labels, 1 - math.floor(math.log10(labels))):,.0f}"
