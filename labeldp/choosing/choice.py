"""Choose a recipe for a problem: public numbers in, a ranking and a sentence out.

Nothing here takes a label, or a column that holds one: the number of rows and the list of classes are public, whatever
the labels are, so a choice costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from labeldp.choosing import words
from labeldp.choosing.predict import NEEDS_DELTA, Ranked, rank
from labeldp.recipes.catalogue import BY_KEY, RECIPES, Recipe
from labeldp.recipes.worth import MODALITIES, Case, crossing, moment_distance, moment_labels, response_labels
from labeldp.results.words import at_most, odds_in_words

DEVICES = ("cpu", "cuda")
# Responses of users beat gradients of users from about this ε per label on (Ghazi et al. 2024, Table 7).
_RESPONSES_FROM = 1.5
# Below this the accountant does not go; see `labeldp.core.accountant`.
_SMALLEST_DELTA = 1e-12


@dataclass(frozen=True)
class Choice:
    """A recipe, and why.

    Args:
        recipe: the winner's name.
        call: the function that runs it.
        reason: one sentence.
        ranking: all recipes, best first; those that cannot be used come last, with the obstacle.
        settings: where to start.
        price: what is promised about a label, in words.
        crossing: ε from which one response per row is worth more than one noisy moment; None where they do not cross.
        alike: the measured data sets it was compared on, nearest first.
        notes: what else to know.
    """

    recipe: str
    call: str
    reason: str
    ranking: tuple[Ranked, ...]
    settings: Mapping[str, str | float | int] = field(hash=False)
    price: str
    crossing: float | None = None
    alike: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {**asdict(self), "settings": dict(self.settings)}


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

    >>> choose(60_000, 10, epsilon=0.05, feature_dim=784).recipe
    'one_shot+linear'
    >>> choose(60_000, 10, epsilon=4.0, feature_dim=784, device="cuda").recipe
    'lp_mst'
    >>> [choose(10_000, None, epsilon, modality="table").recipe for epsilon in (1.0, 8.0)]
    ['one_shot', 'binned_regression']
    """
    _at_least(1, num_rows=num_rows, feature_dim=feature_dim, rows_per_user=rows_per_user)
    _at_least(2, num_classes=num_classes)
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
        return _for_numbers(case, epsilon, notes)
    if cap > 1:
        return _for_users(case, epsilon, cap, notes)
    ranking, alike = rank(case, epsilon, device, hours)
    recipe = BY_KEY[ranking[0].recipe]
    cross = crossing(num_rows, num_classes, delta, case.width) if delta > 0 else None
    return Choice(
        recipe=recipe.key,
        call=recipe.call(),
        reason=words.reason(ranking, case, epsilon, cross, alike),
        ranking=ranking,
        settings=words.settings(recipe, case, epsilon, device),
        price=words.price(recipe, epsilon, delta),
        crossing=cross,
        alike=alike,
        notes=(*notes, *_out_of_reach(ranking)),
    )


def _out_of_reach(ranking: tuple[Ranked, ...]) -> tuple[str, ...]:
    """Name the best recipe that something stands in the way of, where it would be a point better."""
    best = ranking[0].accuracy
    if best is None:
        return ()
    blocked = [(one.accuracy - best, one) for one in ranking if one.obstacle and one.accuracy is not None]
    gain, one = max(blocked, key=lambda pair: pair[0], default=(0.0, ranking[0]))
    return (f"{one.recipe} could be {gain:.0f} points better, but {one.obstacle}.",) if gain >= 1 else ()


# --- problems with few recipes ---------------------------------------------------------------------------------------


def _for_numbers(case: Case, epsilon: float, notes: tuple[str, ...]) -> Choice:
    """Choose the recipe whose query is worth more: one moment of all numbers, or one response per row."""
    moment = moment_labels(case.num_rows, case.num_classes, moment_distance(case, epsilon), case.width)
    responses = response_labels(case.num_rows, case.num_classes, epsilon)
    known = [recipe for recipe in RECIPES if recipe.numbers]
    ranking = [Ranked(recipe.key, responses if recipe.pure else moment) for recipe in known]
    ranking.sort(key=lambda one: -one.clean_labels)
    best = BY_KEY[ranking[0].recipe]
    delta = 0.0 if best.pure else case.delta
    reason = (
        f"One noisy sum over all {case.num_rows:,} numbers is worth about {moment:,.0f} clean labels and one private "
        f"response per row about {responses:,.0f}, so {best.key} is taken; this rests on formulas alone."
    )
    start = {"epsilon": epsilon, "delta": delta, **best.shown(case, epsilon)}
    price = f"ε = {at_most(epsilon)}, δ = {at_most(delta, 3)}, for the replacement of one number. "
    price += odds_in_words(epsilon, delta)
    return Choice(best.key, best.call("numbers"), reason, tuple(ranking), start, price, notes=notes)


def _for_users(case: Case, epsilon: float, cap: int, notes: tuple[str, ...]) -> Choice:
    """Choose responses at ε/k per label, or gradients with one vector per user, which pay for δ."""
    per_label = epsilon / cap
    for_users = [recipe for recipe in RECIPES if recipe.users and recipe.worth is not None]
    one_by_one = next(recipe for recipe in for_users if recipe.pure)
    summed = next(recipe for recipe in for_users if recipe.needs_delta)
    responses = Ranked(one_by_one.key, response_labels(case.num_rows, case.num_classes, per_label))
    obstacle = "" if case.delta > 0 else NEEDS_DELTA
    gradients = Ranked(summed.key, 0.0, evidence="paper", obstacle=obstacle)
    by_responses = per_label >= _RESPONSES_FROM or case.delta == 0
    best, other = (responses, gradients) if by_responses else (gradients, responses)
    recipe: Recipe = one_by_one if by_responses else summed
    why = "enough for each response to carry something" if by_responses else "too little for single responses"
    reason = (
        f"With up to {cap} labels per user a response can have ε = {per_label:.2g} only, {why}, so {best.recipe}, "
        + "which "
        + ("releases one response of every kept row," if by_responses else "adds one clipped gradient per user,")
        + " is expected to do best; in Ghazi et al. 2024, Table 7, the two change places between ε/k = 1 and 2.5."
    )
    delta = 0.0 if by_responses else case.delta
    start = {"epsilon": epsilon, "delta": delta, "cap": cap, **({} if by_responses else {"epochs": 5})}
    price = f"ε = {at_most(epsilon)}, δ = {at_most(delta, 3)}, for all labels of one user together. "
    price += odds_in_words(epsilon, delta, "all labels of one user")
    return Choice(best.recipe, recipe.call(), reason, (best, other), start, price, notes=notes)


def _at_least(least: int, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
