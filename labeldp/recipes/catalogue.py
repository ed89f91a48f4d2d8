"""The recipes: one entry for each, read by command line, estimators, `choose`, reports, audits and experiments.

A recipe is a function in one file and one entry here; nobody else spells its key. To add one, write the function with
arguments of the shared vocabulary (`labeldp.recipes.job`) and add its entry to `RECIPES`.

This file imports neither PyTorch nor NumPy, so that `labeldp --help` and `labeldp plan` start at once: functions and
values that need them are named, and loaded when a recipe runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from labeldp.recipes.worth import (
    PRIOR_GAIN,
    Case,
    Worth,
    distance,
    moment_leads,
    of_either,
    of_gradients,
    of_moment,
    of_moment_then_responses,
    of_responses,
    of_votes,
    pilot_pays,
    responses_lead,
)

# A method that is not a recipe: the one that `choose` recommends.
AUTO = "auto"
Task = Literal["classes", "numbers"]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Lazy:
    """A value that needs PyTorch, named until a recipe runs: a function, or what it returns for these arguments.

    >>> str(Lazy("labeldp_pro.alt_rows", ())), str(Lazy("lp_mst.likelihood"))
    ('labeldp_pro.alt_rows()', 'lp_mst.likelihood')
    """

    name: str
    arguments: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.arguments is None else f"{self.name}({', '.join(map(repr, self.arguments))})"

    def load(self) -> Any:
        """Import and return the value."""
        found = loaded(self.name)
        return found if self.arguments is None else found(*self.arguments)


@dataclass(frozen=True)
class SelfTest:
    """How `labeldp.audit.selftest` runs a recipe on made-up labels.

    Args:
        rows: how many canaries it gets by default.
        separate: whether its canaries leave each other alone; see `audit_training`.
        pure: whether it is run without δ.
        labels: what the vault holds: classes, numbers, or the classes of users.
        network: whether the model is a small network on shared features; else a linear one on a feature per row.
        scale: of the feature per row.
        settings: for the function, besides the entry's; functions of (rows, ε) are called.
        function: another function than the entry's.
    """

    rows: int
    separate: bool = False
    pure: bool = True
    labels: Literal["classes", "numbers", "users"] = "classes"
    network: bool = False
    scale: float = 1.0
    settings: Settings = field(default_factory=dict, hash=False)
    function: str = ""


@dataclass(frozen=True)
class Recipe:
    """What a recipe is, what it needs, what it is worth, and how it is run and tested.

    Args:
        key: its one name.
        idea: what it does, as the end of a sentence: "…, which ‹idea›".
        paper: where it comes from.
        classes, numbers: the function for labels of that kind, "file.function" in `labeldp.recipes`; empty where none.
        benchmark: the function that runs a data set's own benchmark, where that is all there is.
        pure: whether it spends no δ.
        needs_delta: whether its noise is Gaussian by nature; a moment by itself can also take Laplace noise.
        network: what it trains: nothing (a head on the features), a linear layer, or any network.
        loop: the training loop: `fit`; FixMatch or two networks, which need images; or FixMatch where there are images.
        users: whether it can protect all labels of a user together.
        coded: whether it takes features that do not fit in memory.
        settings: (problem, ε) → its default settings; `Lazy` ones are loaded when it runs.
        shown: (problem, ε) → settings that `choose` shows besides those.
        worth: clean labels it is worth at ε, a coordinate along which its measured accuracy is carried over; None for
            recipes that `choose` does not rank.
        learner: what learns: "head" (closed form), "student" (a network taught by a head), "net" (a network), "any"
            (the user's classifier, or one that is chosen on responses).
        kin: recipes of the same kin stand in for each other's results, in the catalogue's order.
        stands_in: by modality ("" for all others), its place among those whose results stand in for any recipe's.
        table_seconds: of one core on tables, at the start and per row, where they were measured (Adult's columns).
        unfit: a modality on which it was measured and found to lose to simpler recipes.
        leads: for recipes that `choose` ranks on tables only: (problem, ε) → whether it was measured to be the best for
            such a table (benchmarks/tabular.py).
        apart: whether it asks other things of some rows than of others, so that rows have to pay each for themselves.
        per_row: whether it releases a response for every row, and nothing else of the labels.
        released: whether it asks once for a response of every row and reads their channel off the release, so that it
            can learn from responses which were released before (`labeldp.data.released`).
        beside: whether it runs a model, or teachers, beside the labels: at a service it is a job, not a query.
        numbers_in_words: how it releases labels that are numbers, for the report.
        self_tests: by name; "" is the recipe as it is run.
    """

    key: str
    idea: str
    paper: str
    classes: str = ""
    numbers: str = ""
    benchmark: str = ""
    pure: bool = True
    needs_delta: bool = False
    network: Literal["", "linear", "any"] = "any"
    loop: Literal["fit", "student", "fixmatch", "fixmatch or fit", "refine"] = "fit"
    users: bool = False
    coded: bool = False
    settings: Callable[[Case, float], Settings] = field(default=lambda case, epsilon: {}, hash=False)
    shown: Callable[[Case, float], Settings] = field(default=lambda case, epsilon: {}, hash=False)
    worth: Worth | None = None
    learner: Literal["head", "student", "net", "any"] = "net"
    kin: str = ""
    stands_in: Settings = field(default_factory=dict, hash=False)
    table_seconds: tuple[float, float] | None = None
    unfit: str = ""
    leads: Callable[[Case, float], bool] | None = field(default=None, hash=False)
    apart: bool = False
    per_row: bool = False
    released: bool = False
    beside: bool = False
    numbers_in_words: str = ""
    self_tests: Mapping[str, SelfTest] = field(default_factory=dict, hash=False)

    @property
    def shards(self) -> bool:
        """Return whether several processes train it together: by sums of gradients, or by shares of every batch."""
        return bool(self.network) and self.loop != "refine"

    @property
    def needs_images(self) -> bool:
        """Return whether it learns from changed copies of images and can do nothing with a table."""
        return self.loop in ("fixmatch", "refine")

    def call(self, task: Task = "classes") -> str:
        """Return the full name of its function."""
        return f"labeldp.recipes.{getattr(self, task) or self.benchmark}"

    def function(self, task: Task = "classes") -> Callable[..., Any]:
        """Import and return its function."""
        return loaded(getattr(self, task))


def loaded(name: str) -> Any:
    """Import "file.function" of `labeldp.recipes`, or a full name."""
    home, _, attribute = (name if name.count(".") > 1 else f"labeldp.recipes.{name}").rpartition(".")
    return getattr(import_module(home), attribute)


# --- settings -------------------------------------------------------------------------------------------------------


def _clusters(case: Case, epsilon: float) -> Settings:
    return {"clusters": case.clusters}


def _descent(**more: Any) -> Callable[[Case, float], Settings]:
    return lambda case, epsilon: {"epochs": 5, "batch_size": max(1, min(1024, case.num_rows // 10)), **more}


def _one_pass(diameter: float) -> Callable[[Case, float], Settings]:
    return lambda case, epsilon: {"diameter": diameter, "batch_size": max(1, min(256, case.num_rows // 40))}


def _ballot(case: Case, epsilon: float) -> Settings:
    """Return shards of ten labels, and as many queries as a student of few rows needs."""
    teachers = max(2, min(case.num_rows // 10, 3000))
    queries = max(1, min(1000, case.num_rows // 2))
    return {"ballot": Lazy("pate.Ballot", (teachers, queries, max(1, queries // 4)))}


def _histograms(case: Case, epsilon: float) -> Settings:
    """Return more bins and rounds the less noise weighs, by n·μ²: found on six made-up tables, on no real labels."""
    weight = case.num_rows * distance(epsilon, case.delta) ** 2 if 0 < case.delta < 1 else 0.0
    if weight > 2000:
        return {"rounds": 6, "depth": 4, "bins": 32, "features_per_round": 8, "first_share": 0.7}
    return {"rounds": 4, "depth": 3, "bins": 16 if weight > 30 else 8, "features_per_round": 4, "first_share": 0.7}


def _own_clusters(rows: int, epsilon: float) -> list[int]:
    return list(range(rows))


# Steps so small that the weights stay where they began, and none is averaged away: what a gradient shows, they show.
_SLOW = {
    "optimizer": Lazy("labeldp.learning.optimisers.sgd", (1e-4, 0.0, 0.0)), "epochs": 2,
    "batch_size": lambda rows, epsilon: max(1, rows // 2), "average": 0.0,
}  # fmt: skip
_ROW_TEST = {"": SelfTest(2000)}


def _descent_test(rows: int, separate: bool = False, **settings: Any) -> SelfTest:
    return SelfTest(rows, separate, pure=False, scale=10.0, settings={**_SLOW, **settings})


# --- the entries ----------------------------------------------------------------------------------------------------

# In the order in which ties are broken: the simpler first.
RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "one_shot", "releases one noisy moment of labels and public features and solves a linear head from it",
        "this library, docs/one_shot.md", classes="one_shot.train", numbers="regression.moment", pure=False,
        network="", coded=True, worth=of_moment(1.0), learner="head", kin="moment", stands_in={"images": 2, "": 1},
        table_seconds=(0.3, 2e-4),
        numbers_in_words="Every number was rounded at random, without bias, to the low end, the middle or the high end "
        "of the declared range. Noise was then added to sums over all rows, where it weighs less: one number hides in "
        "the sum, while what all numbers have in common stays visible.",
        self_tests={
            "": SelfTest(1000, pure=False),
            "moments": SelfTest(4000, True, False, function="labeldp.audit.selftest.exact_moments"),
        },
    ),
    Recipe(
        "one_shot+kernel", "releases one noisy moment of labels, public features and cosines of them, and solves a "
        "head that sees what columns say together", "this library, docs/one_shot.md", classes="one_shot_kernel.train",
        pure=False, network="", coded=True, worth=of_moment(1.0), learner="head", kin="moment",
        leads=moment_leads, table_seconds=(1.0, 1.5e-4),
        self_tests={"": SelfTest(500, pure=False)},
    ),
    Recipe(
        "pilot", "lets some rows respond first, who decide whether the others are asked for one noisy moment or for a "
        "response each", "this library, docs/recipes.md", classes="pilot.train", pure=False, network="",
        worth=of_either, learner="head", kin="moment", leads=pilot_pays, table_seconds=(2.0, 6e-4),
        apart=True, self_tests={"": SelfTest(500, pure=False)},
    ),
    Recipe(
        "one_shot+linear", "hands what the head of one noisy moment knows to a linear layer on all features, which "
        "costs no further privacy", "this library, docs/one_shot.md", classes="distil.linear", pure=False, network="",
        coded=True, worth=of_moment(1.0), learner="head", kin="moment", unfit="table",
        self_tests={"": SelfTest(500, pure=False)},
    ),
    Recipe(
        "one_shot+student", "trains a network on the labels of a head that came from one noisy moment, which costs no "
        "further privacy", "this library, docs/one_shot.md", classes="distil.one_shot_student", pure=False,
        loop="student", worth=of_moment(1.0), learner="student", kin="moment",
        self_tests={"": SelfTest(500, pure=False, network=True)},
    ),
    Recipe(
        "rounds", "takes several noisy moments, each on features learnt from the one before",
        "this library, docs/one_shot.md", classes="rounds.train", pure=False, needs_delta=True,
        shown=lambda case, epsilon: {"split of epsilon": "half of μ² for each of two moments"},
        worth=of_moment(1.0), learner="student", kin="moment",
        self_tests={"": SelfTest(500, pure=False, network=True)},
    ),
    Recipe(
        "one_shot_prior", "spends a part on one noisy moment and releases a response of every row among the classes "
        "its head finds plausible", "this library, docs/one_shot.md", classes="one_shot_prior.train", pure=False,
        needs_delta=True,
        # Seed and tuning as they have always been, whatever the estimator's seed: figures stay comparable.
        settings=lambda case, epsilon: {"seed": 0, "tune": Lazy("labeldp.learning.tuning.tune")},
        shown=lambda case, epsilon: {"split of epsilon": "tuned on clusters of the public features"},
        worth=of_moment_then_responses, learner="student", kin="moment", table_seconds=(2.5, 1e-3),
        self_tests={"": SelfTest(1000, pure=False)},
    ),
    Recipe(
        "boosting", "releases a few noisy histograms of labels over public bins and boosts trees on them",
        "this library, docs/recipes.md", classes="boosting.train", pure=False, needs_delta=True, network="",
        settings=_histograms, learner="head", self_tests={"": SelfTest(500, pure=False)},
    ),
    Recipe(
        "cluster_votes", "gives every cluster of public features its noisy majority class",
        "NoiseCluster, Tang et al. 2022", classes="cluster_votes.train",
        settings=lambda case, epsilon: {**_clusters(case, epsilon), "vote": Lazy("cluster_votes.permute_and_flip")},
        worth=of_votes, learner="head", kin="moment",
        self_tests={"": SelfTest(2000, settings={"clusters": _own_clusters})},
    ),
    Recipe(
        "rr", "releases one randomized response of every row and trains on the responses as they are",
        "LP-1ST, Ghazi et al. 2021", classes="per_row.rr", users=True, per_row=True, released=True,
        self_tests={
            **_ROW_TEST,
            "user_responses": SelfTest(1000, labels="users"),
        },
    ),
    Recipe(
        "forward", "releases one randomized response of every row and fits the likelihood of the responses (LP-1ST)",
        "Patrini et al. 2017; Ghazi et al. 2021", classes="per_row.forward", users=True, per_row=True, released=True,
        worth=of_responses(1.0), kin="responses", stands_in={"images": 1}, table_seconds=(1.0, 2.5e-4),
        self_tests=_ROW_TEST,
    ),
    Recipe(
        "debiased", "releases one randomized response of every row and minimises an unbiased estimate of the loss",
        "Ghazi et al. 2021, Algorithm 5", classes="per_row.debiased", users=True, per_row=True, released=True,
        self_tests=_ROW_TEST,
    ),
    Recipe(
        "rr+learner", "releases one randomized response of every row, and keeps the learner that predicts held-out "
        "responses best: a linear model, a kernel, trees or a classifier of yours", "this library, docs/estimators.md",
        classes="learner.train", network="", learner="any", worth=of_responses(1.0), kin="responses",
        per_row=True, released=True, leads=responses_lead,
        table_seconds=(3.0, 6e-4),
        # It remembers every response: nothing can show more.
        self_tests={"": SelfTest(2000, settings={"learner": Lazy("sklearn.neighbors.KNeighborsClassifier", (1,))})},
    ),
    Recipe(
        "lp_mst", "lets the rows respond in stages, each among the classes that the model so far finds plausible "
        "(LP-2ST)", "LP-MST, Ghazi et al. 2021", classes="lp_mst.train", per_row=True,
        # The seed of the stages as it has always been, whatever the estimator's.
        settings=lambda case, epsilon: {"learn": Lazy("lp_mst.likelihood"), "shares": (0.6, 0.4), "seed": 0},
        worth=of_responses(PRIOR_GAIN), kin="responses", stands_in={"images": 3, "": 3}, self_tests=_ROW_TEST,
    ),
    Recipe(
        "ssl_prior", "counts classes per cluster of public features and releases a response of every row among the "
        "plausible ones", "Ghazi et al. 2021, Algorithm 4", classes="ssl_prior.train",
        settings=lambda case, epsilon: {**_clusters(case, epsilon), "learn": Lazy("lp_mst.posterior_of_model")},
        shown=lambda case, epsilon: {"prior_epsilon": min(epsilon / 2, 25.0 * case.clusters / case.num_rows)},
        worth=of_responses(1.2), kin="responses",
        self_tests={
            "": SelfTest(
                2000,
                settings={
                    "clusters": _own_clusters, "prior_epsilon": lambda rows, epsilon: epsilon / 2,
                    "learn": Lazy("lp_mst.hard_responses"),
                },
            )
        },
    ),
    Recipe(
        "alibi", "releases a noisy vector of every row and turns it into a soft label", "ALIBI, Malek et al. 2021",
        classes="per_row.alibi", per_row=True, released=True, worth=of_responses(0.8), kin="responses",
        self_tests=_ROW_TEST,
    ),
    Recipe(
        "ldp_ssl", "releases one randomized response of every row and trains by FixMatch, which learns from changed "
        "copies of images", "LDP-SSL, Tang et al. 2022", classes="per_row.ldp_ssl", loop="fixmatch", per_row=True,
        released=True, self_tests=_ROW_TEST,
    ),
    Recipe(
        "denoise_ssl", "keeps a randomized response only where the majority of its cluster agrees, and trains by "
        "FixMatch", "DenoiseSSL, Tang et al. 2022, Algorithm 7", classes="denoise_ssl.train", loop="fixmatch",
        settings=_clusters, per_row=True, released=True,
        self_tests={"": SelfTest(2000, settings={"clusters": _own_clusters})},
    ),
    Recipe(
        "aug_descent", "releases one randomized response of every row, and two networks judge which to believe",
        "AugDescent, Tang et al. 2022; Nishi et al. 2021", classes="aug_descent.train", loop="refine", per_row=True,
        released=True, self_tests=_ROW_TEST,
    ),
    Recipe(
        "pate_fm", "lets teachers on disjoint parts of the labels vote on a few rows, from which a student learns",
        "PATE-FM, Malek et al. 2021; Tang et al. 2022", classes="pate.train", pure=False, needs_delta=True,
        loop="fixmatch or fit", settings=_ballot, beside=True,
        self_tests={
            "": SelfTest(
                1000, pure=False, function="pate.label",
                settings={"ballot": lambda rows, epsilon: Lazy("pate.Ballot", (rows // 4, 80, 40))},
            )
        },
    ),
    Recipe(
        "labeldp_pro", "descends on noisy gradients, projected onto what the public features allow",
        "LabelDP-Pro, Ghazi et al. 2024", classes="labeldp_pro.train", pure=False, needs_delta=True, users=True,
        beside=True,
        # Few rows to project onto: seconds where all of a batch take minutes, and on parts of Adult ahead of DP-SGD.
        settings=_descent(denoiser=Lazy("labeldp_pro.alt_conv", (16,)), bound=Lazy("labeldp_pro.NormBound", (1.0,))),
        worth=of_gradients(0.12, 0.6), kin="gradients", stands_in={"images": 4, "": 2},
        self_tests={
            "": _descent_test(200),
            "alt_conv": _descent_test(200, denoiser=Lazy("labeldp_pro.alt_conv", ())),
            "self_span": _descent_test(1000, denoiser=Lazy("labeldp_pro.self_span", ())),
            "self_conv": _descent_test(200, denoiser=Lazy("labeldp_pro.self_conv", ())),
        },
    ),
    Recipe(
        "dp_sgd", "descends on noisy gradients", "DP-SGD, Abadi et al. 2016, under label replacement",
        classes="labeldp_pro.train", pure=False, needs_delta=True, users=True, beside=True,
        settings=_descent(denoiser=Lazy("labeldp_pro.no_op", ()), bound=Lazy("labeldp_pro.NormBound", (1.0,))),
        worth=of_gradients(0.1, 0.5), kin="gradients",
        self_tests={
            "": _descent_test(2500, True),
            "user_gradients": SelfTest(1000, True, False, "users", scale=10.0, settings=_SLOW),
        },
    ),
    Recipe(
        "lp_normal_sgd", "makes one pass of SGD with Gaussian noise in the few directions a label can move",
        "LP-Normal-SGD, Ghazi et al. 2021, Algorithm 6", classes="labeldp_pro.lp_normal_sgd", pure=False,
        needs_delta=True, network="linear", settings=_one_pass(10.0), beside=True,
        self_tests={
            "": SelfTest(
                2500, True, False, scale=10.0,
                settings={"diameter": 1e-3, "batch_size": lambda rows, epsilon: max(1, rows // 10), "average": 0.0},
            )
        },
    ),
    Recipe(
        "lp_rr_sgd", "makes one pass of projected SGD on unbiased gradients of randomized responses",
        "LP-RR-SGD, Ghazi et al. 2021", classes="per_row.lp_rr_sgd", network="linear", settings=_one_pass(100.0),
        per_row=True, released=True, self_tests={"": SelfTest(2000, settings={"diameter": 1e3, "batch_size": 1})},
    ),
    Recipe(
        "binned_regression", "releases the value of a bin for every row", "RR-on-Bins, Ghazi et al. 2023",
        numbers="regression.train", shown=lambda case, epsilon: {"histogram_share": 0.2, "cells": 32},
        numbers_in_words="One response was released for every number: the value of its bin or, at random, of another "
        "bin. The bins were chosen by the declared range and a noisy histogram of all numbers, whose price is in the "
        "ledger. The model never saw a true number; it learns because the channel of the noise is known.",
        self_tests={"": SelfTest(2000, labels="numbers", function="regression.privatize_values")},
    ),
    Recipe(
        "ratings", "learns ratings as classes by LP-MST and predicts their mean", "Ghazi et al. 2021, Table 3",
        benchmark="ratings.train", per_row=True,
    ),
    Recipe(
        "attribution", "protects all clicks of a user in the attribution of purchases", "Ghazi et al. 2024, Table 7",
        benchmark="attribution.outcomes", pure=False, users=True,
    ),
)  # fmt: skip
BY_KEY: Mapping[str, Recipe] = MappingProxyType({recipe.key: recipe for recipe in RECIPES})
# Those that `choose` compares, and those that it compares on tables besides.
RANKED = tuple(recipe for recipe in RECIPES if recipe.worth is not None and recipe.leads is None)
ON_TABLES = tuple(recipe for recipe in RECIPES if recipe.leads is not None)


def keys(task: Task) -> tuple[str, ...]:
    """Return the keys of the recipes for such labels."""
    return tuple(recipe.key for recipe in RECIPES if getattr(recipe, task))


def canonical(name: str) -> str:
    """Return a name as the catalogue spells it: `-` is read as `_`.

    >>> canonical("lp-mst"), canonical("one_shot+linear")
    ('lp_mst', 'one_shot+linear')
    """
    return name.replace("-", "_")


def find(name: object, task: Task = "classes") -> Recipe:
    """Return the recipe of this name for such labels, or raise ValueError that lists what there is.

    >>> find("lp-mst").key
    'lp_mst'
    """
    known = keys(task)
    if isinstance(name, str) and canonical(name) in known:
        return BY_KEY[canonical(name)]
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"method={name!r} is not known{hint}; give {AUTO!r} or one of {', '.join(known)}")
