"""From settings to a trained model: one adapter per family of recipes.

A new recipe is one entry in `FAMILIES`. Settings that no code reads are refused: a line of results must not claim
a setting that had no effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments import pate, public_features, semi
from experiments.networks import OverShifts, model
from experiments.settings import Run, named
from labeldp.core.vault import LabelVault
from labeldp.features import augment
from labeldp.features.augment import learned_view
from labeldp.features.clusters import Clusters, SoftClusters
from labeldp.features.encoders import OverCrops, begin_as
from labeldp.learning import optimisers as schedules
from labeldp.learning.optimisers import adam, rmsprop, sgd
from labeldp.learning.progress import Report
from labeldp.learning.train import Inputs, accuracy, fit, predict
from labeldp.learning.tuning import tune
from labeldp.recipes import (
    cluster_votes,
    distil,
    labeldp_pro,
    lp_mst,
    one_shot,
    ratings,
    rounds,
    ssl_prior,
)
from labeldp.recipes.catalogue import BY_KEY, keys
from labeldp.recipes.job import Job, public_seed
from labeldp.recipes.job import run as run_recipe
from labeldp.results.measure import auc

AUGMENTS = {
    "crop": augment.random_crop(4),
    "small crop": augment.random_crop(2),
    "flip": augment.random_flip(),
    "cutout": augment.cutout(8),
}
OPTIMIZERS = {"sgd": sgd, "adam": adam}
SCHEDULES = {
    "constant": schedules.constant,
    "linear": schedules.linear,
    "piecewise": schedules.piecewise,
    "one_cycle": schedules.one_cycle,
    "cosine": schedules.cosine,
}
DENOISERS = {
    "no_op": labeldp_pro.no_op,
    "alt_conv": labeldp_pro.alt_conv,
    "alt_rows": labeldp_pro.alt_rows,
    "self_span": labeldp_pro.self_span,
    "self_conv": labeldp_pro.self_conv,
}
METRICS: dict[str, Callable[[nn.Module, Inputs, Any], float]] = {
    "accuracy": lambda model, images, labels: 100 * accuracy(model, images, labels),
    "rmse": lambda model, pairs, labels: ratings.root_mean_square_error(
        ratings.expected_rating(predict(model, pairs)), 1 + torch.as_tensor(labels)
    ),
    "auc": lambda model, rows, labels: auc(
        predict(model, rows).double() @ torch.tensor([-1.0, 1.0]).to(rows[0]).double(), labels
    ),
}


@dataclass(frozen=True)
class Training:
    """What an adapter gets for one run: everything on its device, the labels in a vault of their own.

    `kept` is a folder of moments and taught networks that runs may share (`experiments.kept_distillations`); what an
    adapter puts into `notes` goes to the run's line. `keep` is told of every network on the way, by a name.
    """

    model: nn.Module
    inputs: Any
    vault: LabelVault
    epsilon: float
    seed: int
    settings: Mapping[str, Any]
    report: Report | None = None
    kept: Path | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[str, nn.Module], None] = lambda name, network: None


Adapter = Callable[[Training], nn.Module]


@dataclass(frozen=True)
class Family:
    """How a recipe is called, and the settings it must and may have besides those of every run."""

    train: Adapter
    needs: frozenset[str]
    may_have: frozenset[str]


def responses(key: str) -> Adapter:
    """Run a recipe of the catalogue that releases one response per label and fits once."""
    recipe = BY_KEY[key].function()

    def train(job: Training) -> nn.Module:
        return recipe(job.model, job.inputs, job.vault, epsilon=job.epsilon, fit=_fits(job)[0], **_of_users(job))

    return train


def _of_users(job: Training) -> dict[str, Any]:
    """Return the settings of user-level runs: how many rows of a user count, and whether all labels respond alike."""
    return {name: job.settings[name] for name in _USERS_MAY_HAVE if name in job.settings}


def catalogued(key: str) -> Adapter:
    """Run any recipe of the catalogue that trains a network or a layer, with its defaults less what `settings` has."""

    def train(job: Training) -> nn.Module:
        settings, linear = job.settings, BY_KEY[key].network == "linear"
        public = semi.public_of(job) if "features" in settings else None
        features = job.inputs.flatten(1).float() if public is None else public.features
        made = Job(
            features, features if linear else job.inputs, job.vault, job.epsilon, settings.get("delta", 0.0),
            None if linear else job.model, settings.get("settings", {}), job.seed, job.report,
        )  # fmt: skip
        with public_seed(job.seed):
            found = run_recipe(BY_KEY[key], made)
        layer = getattr(found, "model", found)
        if not linear:
            return layer
        return nn.Sequential(nn.Flatten(), layer) if public is None else public.on_images(layer)

    return train


def rated(job: Training) -> nn.Module:
    """Ratings as classes, by LP-MST with as many stages as there are shares."""
    settings = job.settings
    return ratings.train(
        job.model, job.inputs, job.vault, epsilon=job.epsilon, fit=_fits(job)[0], shares=settings["shares"],
        temperature=settings["temperature"], seed=job.seed,
    )  # fmt: skip


def stages(job: Training) -> nn.Module:
    """LP-MST: as many stages as there are shares."""
    settings, fits = job.settings, _fits(job)
    return lp_mst.train(
        job.model, job.inputs, job.vault,
        epsilon=job.epsilon, fit=fits if len(fits) > 1 else fits[0], seed=job.seed,
        shares=settings["shares"], temperature=settings["temperature"],
        learn=named("learn", settings.get("learn", "hard_answers"), semi.LEARNS),
        keep_plausible=settings.get("keep_plausible", True),
    )  # fmt: skip


def gradients(job: Training) -> nn.Module:
    """DP-SGD and LabelDP-Pro: noise for the run's epsilon, or a paper's noise at whatever epsilon that really is."""
    settings = job.settings
    given = {"noise_multiplier": settings["noise_multiplier"]} if "noise_multiplier" in settings else {}
    denoiser = named("denoiser", settings["denoiser"], DENOISERS)
    return labeldp_pro.train(
        job.model, job.inputs.float() if isinstance(job.inputs, Tensor) else job.inputs, job.vault, **_of_users(job),
        delta=settings["delta"], **(given or {"epsilon": job.epsilon}), epochs=settings["epochs"],
        batch_size=settings["batch_size"], bound=_bound(settings), denoiser=denoiser(**settings.get("projection", {})),
        optimizer=_descent(settings), schedule=named("schedule", settings["schedule"], SCHEDULES)(),
        average=settings.get("average", 0.0), seed=job.seed, report=job.report,
    )  # fmt: skip


def query(job: Training) -> nn.Module:
    """One-shot moment: features, moment, head."""
    public = semi.public_of(job)
    return public.on_images(_shot(job, public, job.epsilon, public.features).layer)


def moment_and_student(job: Training) -> nn.Module:
    """One moment, then a network on the head's probabilities, in generations matched to the moment."""
    public, settings = semi.public_of(job), job.settings
    shot = _shot(job, public, job.epsilon, public.features)
    if "start" in settings:
        begin_as(job.model, job.inputs, shot.logits(public.features))
    return distil.train_after(
        shot, public.features, job.model, job.inputs, generations=settings["generations"], fit=_fits(job)[0],
        weigh=distil.by_confidence(settings.get("confidence", 1.0)),
    )  # fmt: skip


def moment_and_linear_student(job: Training) -> nn.Module:
    """One moment of a graph's features, then a linear layer on the plain ones, taught by the head's surest labels."""
    public, settings = semi.public_of(job), job.settings
    plain, classes = public.plain, job.vault.num_classes
    taught = _shot(job, public, job.epsilon, public.features).probabilities(public.features)
    weights = distil.most_confident(settings["surest"])(taught)
    layer = _layer(job, plain)
    # First choices, not probabilities: a layer of the same kind would only learn the head's doubts.
    labels = nn.functional.one_hot(taught.argmax(dim=1), classes).float()
    student = distil.train(layer, plain.features, labels, fit=_fits(job)[0], weigh=lambda _: weights)
    return plain.on_images(student)


def moment_and_all_features(job: Training) -> nn.Module:
    """One moment, of a graph of the features where one is asked for, then a linear student on all of them."""
    public, settings = semi.public_of(job), job.settings
    if "graph" not in settings:
        shot = _shot(job, public, job.epsilon, public.features)
        return public.on_images(_Probabilities(distil.linear_after(shot, public.features)))
    seen = public.graph(settings["graph"], job.vault.num_classes)
    tuning = functools.partial(tune, stage=seen.stage, seed=job.seed)
    shot = one_shot.train(seen.features, job.vault, epsilon=job.epsilon, delta=settings["delta"], tune=tuning)
    student = distil.linear_after(shot, public.features, seen=seen.features)
    return public.on_images(_Probabilities(student))


class _Probabilities(nn.Module):
    """Log-probabilities of features, for the runner to take the largest of."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self._student = student

    def forward(self, rows: Tensor) -> Tensor:
        return self._student.probabilities(rows).clamp_min(1e-12).log()


def on_public_features(key: str) -> Callable[[Training], nn.Module]:
    """Return a recipe of heads, trees or learners, run on public features with its defaults."""

    def train(job: Training) -> nn.Module:
        public, delta = semi.public_of(job), job.settings.get("delta", 0.0)
        asked = Job(public.features, public.features, job.vault, job.epsilon, delta, None, {}, job.seed, job.report)
        return public.on_images(_Probabilities(run_recipe(BY_KEY[key], asked)))

    return train


def several_moments(job: Training) -> nn.Module:
    """As many moments as there are shares, each with a student."""
    public = semi.public_of(job)

    def once(features: Tensor, vault: LabelVault, /, *, epsilon: float, delta: float, folder: Any) -> Any:
        # Not the job's vault: this one draws both moments as one plan.
        return _shot(job, public, epsilon, features, vault)

    return rounds.train(
        job.model, job.inputs, public.features, job.vault, epsilon=job.epsilon, delta=job.settings["delta"],
        shares=job.settings["shares"], query=once,
        teach=functools.partial(
            distil.train, fit=_fits(job)[0], weigh=distil.by_confidence(job.settings.get("confidence", 1.0))
        ),
    ).model  # fmt: skip


def moment_and_responses(job: Training) -> nn.Module:
    """One moment, then responses under its head as prior."""
    return semi.moment_then_responses(job, semi.public_of(job), _fits(job)[0], shares=job.settings["shares"])


def on_features(train: Adapter) -> Adapter:
    """Return the adapter, training a linear layer on public features where the settings name some, not a network."""

    def adapted(job: Training) -> nn.Module:
        if "features" not in job.settings:
            return train(job)
        public = semi.public_of(job)
        return public.on_images(train(replace(job, model=_layer(job, public), inputs=public.features)))

    return adapted


def linear_moment_and_responses(job: Training) -> nn.Module:
    """`moment_and_responses` with a linear layer on features as the model."""
    public = semi.public_of(job)
    linear = replace(job, model=_layer(job, public), inputs=public.features)
    return public.on_images(semi.moment_then_responses(linear, public, _fits(job)[0], shares=job.settings["shares"]))


def _layer(job: Training, public: public_features.Public) -> nn.Linear:
    layer = nn.Linear(public.features.shape[1], job.vault.num_classes).to(public.features.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def cluster_prior(job: Training) -> nn.Module:
    """Noisy class counts of clusters of the features, then responses under them, for a network or a linear layer."""
    settings, many, public = job.settings, job.settings["clusters"], semi.public_of(job)
    part = None
    if settings.get("part") == "fitted":
        part = ssl_prior.fitted_part(job.epsilon, len(job.vault), many, job.vault.num_classes)
    linear = settings["model"] == "head"
    model, inputs = (_layer(job, public), public.features) if linear else (job.model, job.inputs)
    found = ssl_prior.train(
        model, inputs, job.vault, epsilon=job.epsilon, fit=_fits(job)[0], prior_epsilon=part,
        clusters=public.clusters(many), learn=named("learn", settings.get("learn", "hard_answers"), semi.LEARNS),
    )  # fmt: skip
    return public.on_images(found) if linear else found


def cluster_majorities(job: Training) -> nn.Module:
    """NoiseCluster: a noisy majority label for each cluster, and so for every image, old or new.

    With `by = "scan"` clusters are SCAN's instead of those of k-means.
    """
    public = semi.public_of(job)
    found = semi.clusters_of(job, public)
    labels = cluster_votes.label(found, job.vault, epsilon=job.epsilon)
    return public.on_images(_OfCluster(found, labels, job.vault.num_classes))


class _OfCluster(nn.Module):
    """The label of a row's cluster, as scores."""

    def __init__(
        self, clusters: Clusters | SoftClusters, labels: cluster_votes.ClusterLabels, num_classes: int
    ) -> None:
        super().__init__()
        self._clusters, self._labels, self._num_classes = clusters, labels, num_classes

    def forward(self, rows: Tensor) -> Tensor:
        classes = self._labels.predict(self._clusters.assign(rows).cpu().numpy())
        return nn.functional.one_hot(torch.from_numpy(classes), self._num_classes).to(rows)


def _shot(
    job: Training, public: public_features.Public, epsilon: float, features: Tensor, vault: LabelVault | None = None
) -> one_shot.OneShot:
    stage = public.stage(job.vault.num_classes) if features is public.features else None
    tuning = functools.partial(tune, stage=stage, seed=job.seed)
    return one_shot.train(
        features, job.vault if vault is None else vault, epsilon=epsilon, delta=job.settings["delta"], tune=tuning
    )


def _bound(settings: Mapping[str, Any]) -> labeldp_pro.NormBound | labeldp_pro.DiameterBound:
    if "diameter" in settings:
        return labeldp_pro.DiameterBound(settings["clip"], settings["diameter"])
    return labeldp_pro.NormBound(settings["clip"])


def _descent(settings: Mapping[str, Any]) -> Any:
    rate, momentum = settings["learning_rate"], settings.get("momentum", 0.0)
    made = {
        "sgd": lambda: sgd(rate, momentum=momentum, weight_decay=0.0),
        "adam": lambda: adam(rate),
        "rmsprop": lambda: rmsprop(rate, momentum=momentum),
    }
    return named("optimizer", settings["optimizer"], made)()


_EVERY_NEEDS = frozenset({"dataset", "model", "recipe", "epochs"})
_EVERY_MAY_HAVE = frozenset(
    {"delta", "metric", "listed_as", "claimed_epsilon", "quick", "start", "mirrored", "shifted"}
)
_FIT_NEEDS = frozenset({"batch_size", "optimizer", "learning_rate", "weight_decay", "schedule", "augment"})
_FIT_MAY_HAVE = frozenset({"mixup", "average", "compiled", "recorded"})
_DESCENT_NEED = frozenset({"delta", "batch_size", "optimizer", "learning_rate", "schedule", "clip", "denoiser"})
_DESCENT_MAY_HAVE = frozenset({"diameter", "projection", "momentum", "average", "noise_multiplier", "cap"})
_USERS_MAY_HAVE = ("cap", "alike")
_HEAD_NEEDS = frozenset({"delta", "features"})

FAMILIES: dict[str, Family] = {
    # Whatever the catalogue has is run with its defaults, unless an adapter below sets more of it.
    **{
        key: Family(catalogued(key), frozenset(), frozenset({"settings", "features"}))
        for key in keys("classes")
        if BY_KEY[key].network
    },
    **{
        key: Family(
            on_features(responses(key)), _FIT_NEEDS,
            _FIT_MAY_HAVE | {"features"} | set(_USERS_MAY_HAVE if BY_KEY[key].users else ()),
        )
        for key in keys("classes")
        if BY_KEY[key].classes.startswith("per_row.") and (BY_KEY[key].loop, BY_KEY[key].network) == ("fit", "any")
    },
    **{
        key: Family(on_public_features(key), frozenset({"features"}), frozenset({"delta"}))
        for key in ("rr+learner", "one_shot+kernel", "pilot", "boosting")
    },
    "ratings": Family(rated, _FIT_NEEDS | {"shares", "temperature"}, _FIT_MAY_HAVE),
    "lp_mst": Family(
        on_features(stages), _FIT_NEEDS | {"shares", "temperature"},
        _FIT_MAY_HAVE | {"learn", "keep_plausible", "features"},
    ),
    "labeldp_pro": Family(on_features(gradients), _DESCENT_NEED, _DESCENT_MAY_HAVE | {"features"}),
    "one_shot": Family(query, _HEAD_NEEDS, frozenset()),
    "one_shot_student": Family(
        moment_and_student, _HEAD_NEEDS | _FIT_NEEDS | {"generations"}, _FIT_MAY_HAVE | {"confidence"}
    ),
    "one_shot_linear_student": Family(
        moment_and_linear_student, _HEAD_NEEDS | _FIT_NEEDS | {"surest"}, _FIT_MAY_HAVE
    ),
    "linear_student": Family(moment_and_all_features, _HEAD_NEEDS, frozenset({"graph"})),
    "one_shot+linear": Family(moment_and_all_features, _HEAD_NEEDS, frozenset({"graph"})),
    "one_shot_prior": Family(
        moment_and_responses, _HEAD_NEEDS | _FIT_NEEDS | {"shares"}, _FIT_MAY_HAVE | {"learn", "share"}
    ),
    "linear_answers": Family(on_features(responses("forward")), _FIT_NEEDS | {"features"}, _FIT_MAY_HAVE),
    "linear_one_shot_prior": Family(
        linear_moment_and_responses, _HEAD_NEEDS | _FIT_NEEDS | {"shares"}, _FIT_MAY_HAVE | {"learn", "share"}
    ),
    "rounds": Family(
        several_moments, _HEAD_NEEDS | _FIT_NEEDS | {"shares"}, _FIT_MAY_HAVE | {"confidence"}
    ),
    "ssl_prior": Family(
        cluster_prior, _FIT_NEEDS | {"features", "clusters"}, _FIT_MAY_HAVE | {"learn", "part"}
    ),
    "ldp_ssl": Family(semi.answers_and_fixmatch, semi.FIXMATCH_NEEDS, semi.FIXMATCH_MAY_HAVE | {"objective"}),
    "denoise_ssl": Family(
        semi.kept_answers_and_fixmatch, semi.FIXMATCH_NEEDS | {"features"},
        semi.FIXMATCH_MAY_HAVE | {"clusters", "share", "by"},
    ),
    "aug_descent": Family(
        semi.answers_and_two_networks, semi.REFINE_NEEDS, semi.REFINE_MAY_HAVE | {"known_noise"}
    ),
    "one_shot_fixmatch": Family(
        semi.head_and_fixmatch, _HEAD_NEEDS | semi.FIXMATCH_NEEDS | {"per_class"},
        semi.FIXMATCH_MAY_HAVE | {"student", "linear", "graph"},
    ),
    "one_shot_answers": Family(
        semi.head_and_answers, _HEAD_NEEDS | semi.FIXMATCH_NEEDS | {"share", "learn"}, semi.FIXMATCH_MAY_HAVE
    ),
    "one_shot_studied": Family(
        semi.studied_head_and_answers,
        _HEAD_NEEDS | semi.FIXMATCH_NEEDS | {"learn", "study", "student"},
        semi.VIEWS_MAY_HAVE
        | {"average", "aligned", "shares", "share", "first", "part", "linear", "crossfit", "consensus"},
    ),
    "one_shot_aug_descent": Family(
        semi.head_and_two_networks, _HEAD_NEEDS | semi.REFINE_NEEDS, semi.REFINE_MAY_HAVE
    ),
    "pate_fm": Family(
        pate.votes_and_fixmatch, pate.NEEDS | semi.FIXMATCH_NEEDS, pate.MAY_HAVE | semi.FIXMATCH_MAY_HAVE
    ),
    "pate_aug_descent": Family(
        pate.votes_and_two_networks, pate.NEEDS | semi.REFINE_NEEDS | {"student"}, pate.MAY_HAVE | semi.REFINE_MAY_HAVE
    ),
    "pate_ldp_ssl": Family(
        pate.votes_and_fixmatch_again, pate.NEEDS | semi.FIXMATCH_NEEDS | {"student"},
        pate.MAY_HAVE | semi.FIXMATCH_MAY_HAVE,
    ),
    "pate_denoise_ssl": Family(
        pate.votes_and_kept_labels, pate.NEEDS | semi.FIXMATCH_NEEDS | {"student", "clusters"},
        pate.MAY_HAVE | semi.FIXMATCH_MAY_HAVE | {"by"},
    ),
    "noise_cluster": Family(cluster_majorities, frozenset({"features", "clusters"}), frozenset({"by"})),
    "cluster_votes": Family(cluster_majorities, frozenset({"features", "clusters"}), frozenset({"by"})),
}  # fmt: skip


def check_settings(run: Run) -> None:
    """Refuse what is missing, unknown or misspelt, before anything is trained."""
    settings = run.settings
    if settings.get("recipe") not in FAMILIES:
        raise ValueError(f"{run.name}: recipe={settings.get('recipe')!r}; give one of {', '.join(FAMILIES)}")
    named("metric", run.metric, METRICS)
    family = FAMILIES[settings["recipe"]]
    absent = (_EVERY_NEEDS | family.needs) - set(settings)
    if absent:
        raise ValueError(f"{run.name}: settings missing: {', '.join(sorted(absent))}")
    strange = set(settings) - _EVERY_NEEDS - family.needs - _EVERY_MAY_HAVE - family.may_have
    if strange:
        raise ValueError(f"{run.name}: settings that recipe {settings['recipe']!r} does not read: {sorted(strange)}")


def train(
    run: Run,
    inputs: Any,
    vault: LabelVault,
    report: Report | None,
    kept: Path | None = None,
    notes: dict[str, Any] | None = None,
    shape: Any = None,
    keep: Callable[[str, nn.Module], None] = lambda name, network: None,
) -> nn.Module:
    """The run's recipe with the run's settings, on a fresh model; `kept`, `notes` and `keep` as in `Training`.

    `shape` is what a network must know of its inputs; of images it is seen when None.
    """
    check_settings(run)
    made = model(run.settings, inputs, vault.num_classes, run.seed, shape)
    job = Training(
        made, inputs, vault, run.epsilon, run.seed, run.settings, report, kept, {} if notes is None else notes, keep
    )
    trained = FAMILIES[run.settings["recipe"]].train(job)
    return as_measured(run, trained)


def as_measured(run: Run, network: nn.Module) -> nn.Module:
    """The network as it is measured: over an image and its mirror, and shifts, where the run's settings want that."""
    if run.settings.get("mirrored", False):
        network = OverCrops(network, side=1.0, grid=1)
    return OverShifts(network, run.settings["shifted"]) if run.settings.get("shifted", 0) else network


def _fits(job: Training) -> list[Any]:
    """One bound `fit` for every value of mixup: one for all stages, or one per stage."""
    settings = job.settings
    mixups = settings.get("mixup", 0.0)
    optimizer = named("optimizer", settings["optimizer"], OPTIMIZERS)
    return [
        functools.partial(
            fit,
            epochs=settings["epochs"],
            batch_size=settings["batch_size"],
            optimizer=optimizer(settings["learning_rate"], weight_decay=settings["weight_decay"]),
            schedule=named("schedule", settings["schedule"], SCHEDULES)(),
            augment=_changes(settings),
            mixup=mixup,
            average=settings.get("average", 0.0),
            compiled=settings.get("compiled", False),
            recorded=settings.get("recorded", False),
            seed=job.seed,
            report=job.report,
        )
        for mixup in (mixups if isinstance(mixups, list) else [mixups])
    ]


def _changes(settings: Mapping[str, Any]) -> augment.Augment | None:
    """The changes by name, None for rows of a table; "learned" is AutoAugment's policy with crop and mirror, alone."""
    if not settings["augment"]:
        return None
    if settings["augment"] == ["learned"]:
        return semi.views(settings, learned_view())[1]
    return augment.compose(*(named("augment", name, AUGMENTS) for name in settings["augment"]))
