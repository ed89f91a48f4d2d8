"""A choice in plain words: why, with which settings to start, and what is promised for it."""

from __future__ import annotations

import math

from labeldp.accounting.words import at_most, odds_in_words
from labeldp.choosing.predict import Ranked
from labeldp.choosing.recipes import BY_NAME, Case, Recipe, moment_distance
from labeldp.choosing.worth import answer_labels, directions, moment_labels

Settings = dict[str, str | float | int]

_FEATURES = {
    "images": "labeldp.learning.features.Patches()",
    "table": "labeldp.learning.tabular.Table()",
    "text": "labeldp.learning.features.Raw()",
    "embeddings": "labeldp.learning.features.Raw()",
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
    answers = count(answer_labels(case.num_rows, case.num_classes, epsilon))
    moment = count(moment_labels(case.num_rows, case.num_classes, moment_distance(case, epsilon), case.width))
    text = f"one noisy sum over all {case.num_rows:,} labels is worth about {moment} clean labels and one private "
    text += f"answer per row about {answers}"
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
        start["better features"] = "labeldp.learning.selfsupervised, where the GPU has half an hour to spare"
    if recipe.name in ("one_shot", "one_shot+linear", "one_shot+student"):
        if case.delta > 0:
            start["noise multiplier"] = float(at_most(math.sqrt(2.0) / mu, 5))
        start["rank"] = f"rehearsed; about {directions(case.num_rows, case.num_classes, mu, case.width):.0f}"
    else:
        start["split of epsilon"] = _SPLITS[recipe.name]
    return start
