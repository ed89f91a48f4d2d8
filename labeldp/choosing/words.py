"""Put a choice in plain words: why, with which settings to start, and what is promised for it."""

from __future__ import annotations

import math

from labeldp.choosing.predict import Ranked
from labeldp.recipes.catalogue import BY_KEY, Lazy, Recipe
from labeldp.recipes.worth import Case, directions, moment_distance, moment_labels, response_labels
from labeldp.results.words import at_most, odds_in_words

Settings = dict[str, str | float | int]

_FEATURES = {
    "images": "labeldp.features.extract.Patches()",
    "table": "labeldp.features.tables.Table()",
    "text": "labeldp.features.extract.Raw()",
    "embeddings": "labeldp.features.extract.Raw()",
}


def reason(ranking: tuple[Ranked, ...], case: Case, epsilon: float, cross: float | None, alike: tuple[str, ...]) -> str:
    """Return one sentence: what each kind of query is worth here, and what follows."""
    best, some_left_out = ranking[0], any(one.obstacle for one in ranking)
    idea = f"{best.recipe}, which {BY_KEY[best.recipe].idea},"
    responses = count(response_labels(case.num_rows, case.num_classes, epsilon))
    moment = count(moment_labels(case.num_rows, case.num_classes, moment_distance(case, epsilon), case.width))
    worths = f"one noisy sum over all {case.num_rows:,} labels is worth about {moment} clean labels and one private "
    worths += f"response per row about {responses}"
    worths += "" if cross is None else f" (they cross near ε = {cross:.2g})"
    return f"At ε = {epsilon:g} {worths}; {idea} {_standing(best, alike, some_left_out)}."


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
    """Return a number of labels to two digits.

    >>> count(1362.2), count(6.7), count(0.0), count(43887)
    ('1,400', '7', '0', '44,000')
    """
    if labels < 10:
        return f"{labels:.0f}"
    return f"{round(labels, 1 - math.floor(math.log10(labels))):,.0f}"


def price(recipe: Recipe, epsilon: float, delta: float) -> str:
    """Return what the promise means, and how it is kept."""
    paid = 0.0 if recipe.pure else delta
    how = "δ = 0" if paid == 0 else f"δ = {at_most(paid, 3)}"
    return f"ε = {at_most(epsilon)}, {how}, for the replacement of one label. {odds_in_words(epsilon, paid)}"


def settings(recipe: Recipe, case: Case, epsilon: float, device: str) -> Settings:
    """Return where to start: the recipe's defaults. What depends on the features is tuned on them, without labels."""
    start: Settings = {"epsilon": epsilon, "delta": 0.0 if recipe.pure else case.delta}
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
    # The seed, and functions that `plan` need not show.
    hidden = {"seed", "tune"}
    return start | {name: _plain(value) for name, value in own.items() if name not in hidden}


def _plain(value: object) -> str | float | int:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, Lazy) else value  # type: ignore[return-value]
