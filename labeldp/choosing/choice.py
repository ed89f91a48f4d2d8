"""Which recipe for which problem: asked with public numbers, answered with a ranking and a sentence.

Nothing here takes a label, or a column that holds one: the number of rows and the list of classes are public, whatever
the labels are, so a choice costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from labeldp.choosing.predict import NEEDS_DELTA, Ranked, rank
from labeldp.choosing.recipes import BY_NAME, MODALITIES, Case, Recipe, moment_distance
from labeldp.choosing.worth import crossing, directions, moment_labels, response_labels
from labeldp.results.words import at_most, odds_in_words

# --- words --------------------
#
# A choice in plain words: why, with which settings to start, and what is promised for it.


Settings = dict[str, str | float | int]

_FEATURES = {
    "images": "labeldp.features.extract.Patches()",
    "table": "labeldp.features.tables.Table()",
    "text": "labeldp.features.extract.Raw()",
    "embeddings": "labeldp.features.extract.Raw()",
}
_SPLITS = {
    "rounds": "half of μ² for each of two looks",
    "one_shot_prior": "rehearsed on clusters of the public features",
}


def reason(ranking: tuple[Ranked, ...], case: Case, epsilon: float, cross: float | None, alike: tuple[str, ...]) -> str:
    """One sentence: what each kind of look is worth here, and what follows."""
    best, some_left_out = ranking[0], any(one.obstacle for one in ranking)
    idea = f"{best.recipe}, which {BY_NAME[best.recipe].idea},"
    return f"At ε = {epsilon:g} {_worths(case, epsilon, cross)}; {idea} {_standing(best, alike, some_left_out)}."


def _worths(case: Case, epsilon: float, cross: float | None) -> str:
    responses = count(response_labels(case.num_rows, case.num_classes, epsilon))
    moment = count(moment_labels(case.num_rows, case.num_classes, moment_distance(case, epsilon), case.width))
    text = f"one noisy sum over all {case.num_rows:,} labels is worth about {moment} clean labels and one private "
    text += f"answer per row about {responses}"
    return text if cross is None else f"{text} (they cross near ε = {cross:.2g})"


def _standing(best: Ranked, alike: tuple[str, ...], some_left_out: bool) -> str:
    if best.regret is None or best.accuracy is None:
        soon = "" if best.seconds is None else f" in some {best.seconds:.2g} s on one core"
        return (
            f"is taken{soon}; nothing of this kind was compared, so this rests on such formulas, of which networks get "
            "a quarter: on parts of Adult they learnt far less than formulas say"
        )
    rivals = "the best that can be used here" if some_left_out else "the best"
    far = "to be" if best.regret < 0.05 else f"within {best.regret:.1f} points of"
    return f"is expected {far} {rivals} on what is most like this ({' and '.join(alike)})"


def count(labels: float) -> str:
    """A number of labels to two digits.

    >>> count(1362.2), count(6.7), count(0.0), count(43887)
    ('1,400', '7', '0', '44,000')
    """
    if labels < 10:
        return f"{labels:.0f}"
    return f"{round(labels, 1 - math.floor(math.log10(labels))):,.0f}"


def price(recipe: Recipe, epsilon: float, delta: float) -> str:
    """What the promise means, and how it is kept."""
    paid = 0.0 if recipe.pure else delta
    how = "δ = 0" if paid == 0 else f"δ = {at_most(paid, 3)}"
    return f"ε = {at_most(epsilon)}, {how}, for the replacement of one label. {odds_in_words(epsilon, paid)}"


def settings(recipe: Recipe, case: Case, epsilon: float, device: str) -> Settings:
    """Where to start. What depends on the features is rehearsed on them by the recipe itself, without a label."""
    start: Settings = {"epsilon": epsilon, "delta": 0.0 if recipe.pure else case.delta}
    match recipe.name:
        case "one_shot" | "one_shot+linear" | "one_shot+student" | "rounds" | "one_shot_prior":
            start |= _moment(recipe, case, epsilon, device)
        case "cluster_votes" | "ssl_prior":
            start |= {"features": _FEATURES[case.modality], "clusters": case.clusters}
        case "labeldp_pro" | "dp_sgd":
            start |= {"epochs": 5, "batch_size": max(1, min(1024, case.num_rows // 10))}
    match recipe.name:
        case "cluster_votes":
            start["vote"] = "cluster_votes.permute_and_flip"
        case "ssl_prior":
            start["prior_epsilon"] = min(epsilon / 2, 25.0 * case.clusters / case.num_rows)
        case "lp_mst":
            start |= {"shares": "0.6, 0.4", "learn": "lp_mst.likelihood"}
        case "labeldp_pro":
            start |= {"denoiser": "labeldp_pro.alt_rows()", "bound": "labeldp_pro.DiameterBound(1.0, 1.0)"}
        case "dp_sgd":
            start |= {"denoiser": "labeldp_pro.no_op()", "bound": "labeldp_pro.NormBound(1.0)"}
    return start


def _moment(recipe: Recipe, case: Case, epsilon: float, device: str) -> Settings:
    mu = moment_distance(case, epsilon)
    start: Settings = {"features": _FEATURES[case.modality]}
    if case.modality == "images" and device == "cuda":
        start["better features"] = "labeldp.features.contrastive, where the GPU has half an hour to spare"
    if recipe.name in ("one_shot", "one_shot+linear", "one_shot+student"):
        if case.delta > 0:
            start["noise multiplier"] = float(at_most(math.sqrt(2.0) / mu, 5))
        start["rank"] = f"rehearsed; about {directions(case.num_rows, case.num_classes, mu, case.width):.0f}"
    else:
        start["split of epsilon"] = _SPLITS[recipe.name]
    return start


DEVICES = ("cpu", "cuda")
# Answers of users beat gradients of users from about this ε per label on (Ghazi et al. 2024, Table 7).
_ANSWERS_FROM = 1.5
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
        crossing: ε from which one answer per row is worth more than one noisy moment; None where they do not cross.
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
        """Plain values for `json.dumps`."""
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
    """The recipe that is expected to do best, from public numbers alone.

    Every look is first put on one scale, the number of clean labels it is worth (`labeldp.choosing.worth`). Results of
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
    >>> choose(100_000, None, epsilon=1.0, modality="table").recipe
    'binned_regression'
    """
    _check(num_rows, num_classes, epsilon, delta, feature_dim, modality, device, rows_per_user, hours)
    notes = _about_delta(num_rows, delta)
    if num_classes is None:
        return _for_numbers(num_rows, epsilon, rows_per_user, notes)
    case = Case(num_rows, num_classes, feature_dim, modality, delta)
    if rows_per_user is not None and rows_per_user > 1:
        return _for_users(case, epsilon, rows_per_user, notes)
    ranking, alike = rank(case, epsilon, device, hours)
    best = ranking[0]
    recipe = BY_NAME[best.recipe]
    cross = crossing(num_rows, num_classes, delta, case.width) if delta > 0 else None
    return Choice(
        recipe=recipe.name,
        call=recipe.call,
        reason=reason(ranking, case, epsilon, cross, alike),
        ranking=ranking,
        settings=settings(recipe, case, epsilon, device),
        price=price(recipe, epsilon, delta),
        crossing=cross,
        alike=alike,
        notes=(*notes, *_out_of_reach(ranking)),
    )


def _about_delta(num_rows: int, delta: float) -> tuple[str, ...]:
    if delta * num_rows >= 1:
        return (f"delta={delta:g} is not below one over the {num_rows:,} rows: it would allow one label to be shown.",)
    return ()


def _out_of_reach(ranking: tuple[Ranked, ...]) -> tuple[str, ...]:
    """The best recipe that something stands in the way of, where it would be a point better."""
    best = ranking[0].accuracy
    if best is None:
        return ()
    blocked = [(one.accuracy - best, one) for one in ranking if one.obstacle and one.accuracy is not None]
    gain, one = max(blocked, key=lambda pair: pair[0], default=(0.0, ranking[0]))
    return (f"{one.recipe} could be {gain:.0f} points better, but {one.obstacle}.",) if gain >= 1 else ()


# --- problems with one answer ---------------------------------------------------------------------------------------


def _for_numbers(num_rows: int, epsilon: float, rows_per_user: int | None, notes: tuple[str, ...]) -> Choice:
    if rows_per_user is not None and rows_per_user > 1:
        raise ValueError(
            f"rows_per_user={rows_per_user} with num_classes=None: no recipe protects the numbers of a user together; "
            "declare classes (bins), or protect each number by itself"
        )
    reason = (
        "The labels are numbers, and binned_regression, which answers every row with the value of a bin, places the "
        "bins so that private answers of this kind have the least expected loss (Ghazi et al. 2023)."
    )
    start = {"epsilon": epsilon, "histogram_share": 0.2, "cells": 32}
    price = f"ε = {at_most(epsilon)}, δ = 0, for the replacement of one number. {odds_in_words(epsilon, 0.0)}"
    ranking = (Ranked("binned_regression", float(num_rows)),)
    call = "labeldp.recipes.binned_regression.train"
    return Choice("binned_regression", call, reason, ranking, start, price, notes=notes)


def _for_users(case: Case, epsilon: float, cap: int, notes: tuple[str, ...]) -> Choice:
    """Answers at ε/k per label, or gradients with one vector per user, which pay for δ."""
    per_label = epsilon / cap
    responses = Ranked("user_level.train_on_answers", response_labels(case.num_rows, case.num_classes, per_label))
    obstacle = "" if case.delta > 0 else NEEDS_DELTA
    gradients = Ranked("user_level.train_on_gradients", 0.0, evidence="paper", obstacle=obstacle)
    by_responses = per_label >= _ANSWERS_FROM or case.delta == 0
    best, other = (responses, gradients) if by_responses else (gradients, responses)
    why = "enough for each answer to say something" if by_responses else "too little for single answers"
    reason = (
        f"With up to {cap} labels per user an answer can have ε = {per_label:.2g} only, {why}, so {best.recipe}, which "
        + ("asks every kept row once," if by_responses else "adds one clipped gradient per user,")
        + " is expected to do best; in Ghazi et al. 2024, Table 7, the two change places between ε/k = 1 and 2.5."
    )
    delta = 0.0 if by_responses else case.delta
    start = {"epsilon": epsilon, "delta": delta, "cap": cap, **({} if by_responses else {"epochs": 5})}
    price = f"ε = {at_most(epsilon)}, δ = {at_most(delta, 3)}, for all labels of one user together. "
    price += odds_in_words(epsilon, delta, "all labels of one user")
    call = f"labeldp.recipes.{best.recipe}"
    return Choice(best.recipe, call, reason, (best, other), start, price, notes=notes)


# --- arguments ------------------------------------------------------------------------------------------------------


def _check(
    num_rows: int,
    num_classes: int | None,
    epsilon: float,
    delta: float,
    feature_dim: int | None,
    modality: str,
    device: str,
    rows_per_user: int | None,
    hours: float,
) -> None:
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


def _at_least(least: int, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


# --- show --------------------
#
# A choice for people's eyes: the sentence, the promise, where to start, and the ranking as a table.


# Pipes and files have no width of their own.
_WIDTH = 110


def show(choice: Choice, console: Console | None = None) -> None:
    """Print it, wrapped to the terminal."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
    console.print(Group(_said(choice), _ranking(choice.ranking), *_below(choice)))


def _said(choice: Choice) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("recipe", Text(choice.recipe, style="bold green"))
    grid.add_row("call", Text(choice.call))
    grid.add_row("why", Text(choice.reason))
    grid.add_row("promise", Text(choice.price))
    grid.add_row("start with", Text("\n".join(f"{name} = {value}" for name, value in choice.settings.items())))
    for note in choice.notes:
        grid.add_row("note", Text(note, style="yellow"))
    return grid


def _ranking(ranking: tuple[Ranked, ...]) -> RenderableType:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in ("worth in clean labels", "accuracy", "behind by", "training"):
        table.add_column(name, justify="right")
    table.add_column("rests on")
    for one in ranking:
        style = "dim" if one.obstacle else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(one)))
    return table


def _cells(one: Ranked) -> tuple[str, ...]:
    return (
        one.recipe,
        count(one.clean_labels) if one.clean_labels else "–",
        "–" if one.accuracy is None else f"{one.accuracy:.1f} %",
        "–" if one.regret is None else f"{max(one.regret, 0.0):.1f}",
        _time(one.seconds),
        one.obstacle or one.evidence,
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _below(choice: Choice) -> tuple[RenderableType, ...]:
    if not choice.alike:
        return ()
    names = " and ".join(choice.alike)
    return (
        Text(f"Accuracy: expected, with caution, on data like {names}; yours may be easier or harder. Behind by: most "
             "points lost to the best recipe on one of them."),
    )  # fmt: skip
