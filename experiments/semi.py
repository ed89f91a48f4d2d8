"""Adapters of the semi-supervised recipes: private labels of each kind, FixMatch or two networks to learn from them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from experiments import kept_distillations, networks, public_features
from experiments.settings import named
from labeldp.features.augment import Augment, compose, cutout, learned_view, scaled, strong_view, weak_view
from labeldp.features.clusters import Clusters, SoftClusters
from labeldp.features.encoders import OverCrops, begin_as, probe, probed
from labeldp.learning import evidence
from labeldp.learning.consensus import consensus
from labeldp.learning.crossfit import crossfit
from labeldp.learning.dividemix import co_refine
from labeldp.learning.evidence import Labels
from labeldp.learning.fixmatch import FreeThreshold, SoftThreshold, fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import one_cycle, piecewise, seven_sixteenths, sgd, weights_sgd
from labeldp.learning.train import fit, predict
from labeldp.learning.tuning import Stage, tune
from labeldp.recipes import aug_descent, denoise_ssl, distil, lp_mst, one_shot, one_shot_prior, per_row
from labeldp.recipes.budget import split_budget

if TYPE_CHECKING:
    from experiments.adapters import Training


LEARNS = {
    "hard_answers": lp_mst.hard_responses,
    "likelihood": lp_mst.likelihood,
    "posterior_of_model": lp_mst.posterior_of_model,
}
SCHEDULES = {"seven_sixteenths": seven_sixteenths, "one_cycle": lambda: one_cycle(0.2)}
OBJECTIVES = {"answers": evidence.on_responses, "likelihood": evidence.forward_corrected}
VIEWS_MAY_HAVE = frozenset({"padding", "flip", "cut", "compiled", "recorded"})
FIXMATCH_NEEDS = frozenset({"batch_size", "learning_rate", "weight_decay"})
FIXMATCH_MAY_HAVE = VIEWS_MAY_HAVE | {
    "ratio", "threshold", "temperature", "strength", "average", "aligned", "apart", "schedule", "algorithm", "ramp",
    "probe", "settled",
}  # fmt: skip
# In place of a number.
THRESHOLDS = {"soft": lambda classes: SoftThreshold(), "free": FreeThreshold}
# Settings of what is queried after a distillation (`kept_distillations`).
_AFTER_DISTILLATION = frozenset({"share", "first", "shares", "learn", "consensus", "crossfit"})
_PLAIN_MAY_HAVE = frozenset({"epochs", "batch_size", "learning_rate", "weight_decay", "average", "mixup", "cutout"})
# Epochs between two checkpoints of a distillation, which takes minutes.
_EVERY = 50
REFINE_NEEDS = frozenset({"batch_size", "learning_rate", "weight_decay", "warmup", "switch"})
REFINE_MAY_HAVE = VIEWS_MAY_HAVE | {"threshold", "strength", "ramp", "history", "mixup", "steps", "probe"}


def answers_and_fixmatch(job: Training) -> nn.Module:
    """LDP-SSL: randomized response, then FixMatch on the responses as they are or on their likelihood."""
    objective = named("objective", job.settings.get("objective", "answers"), OBJECTIVES)
    return per_row.ldp_ssl(
        job.model, job.inputs, job.vault, epsilon=job.epsilon, fit=learner_of(job), objective=objective
    )


def kept_answers_and_fixmatch(job: Training) -> nn.Module:
    """DenoiseSSL: responses that agree with their cluster's majority, or with a head where `share` is given."""
    settings, public = job.settings, public_of(job)
    if "share" in settings:
        return denoise_ssl.train_with_head(
            job.model, job.inputs, public.features, job.vault, epsilon=job.epsilon, delta=settings["delta"],
            share=settings["share"], fit=learner_of(job), tune=_tuning(job, public),
        )  # fmt: skip
    return denoise_ssl.train(
        job.model, job.inputs, job.vault, epsilon=job.epsilon, fit=learner_of(job), clusters=clusters_of(job, public)
    )


def clusters_of(job: Training, public: public_features.Public) -> Clusters | SoftClusters:
    """So many clusters of the features as `clusters` says, by k-means, or with `by = "scan"` by SCAN."""
    by = {"kmeans": public.clusters, "scan": public.scan}
    return named("by", job.settings.get("by", "kmeans"), by)(job.settings["clusters"])


def answers_and_two_networks(job: Training) -> nn.Module:
    """AugDescent on randomized response."""
    known = job.settings.get("known_noise", False)
    return aug_descent.train(
        job.model, job.inputs, job.vault, epsilon=job.epsilon, refine=refine_of(job), known_noise=known
    )


def head_and_fixmatch(job: Training) -> nn.Module:
    """The one-shot moment, then FixMatch on the most confident labels of every class: the head's, or a `student`'s.

    With `linear` the head's linear student, on all features, stands for the head; with `graph` the moment is of so many
    eigenvectors of a graph of the features.
    """
    public, settings = public_of(job), job.settings
    if settings.get("linear", False):
        return studied(job, linear_teacher(job, public), public.features, settings)
    if "graph" in settings:
        raise ValueError("graph is of the moment of a linear student; give linear = true, or graph among the features")
    shot = _shot(job, public)
    return studied(job, shot, public.features, settings)


def linear_teacher(job: Training, public: public_features.Public) -> distil.LinearStudent:
    """The one-shot moment, of a graph of the features where one is asked for, and its linear student on all of them."""
    if "graph" not in job.settings:
        return distil.linear_after(_shot(job, public), public.features)
    seen = public.graph(job.settings["graph"], job.vault.num_classes)
    tuning = functools.partial(tune, stage=seen.stage, seed=job.seed)
    shot = one_shot.train(
        seen.features, job.vault, epsilon=job.epsilon, delta=job.settings["delta"], tune=tuning
    )  # fmt: skip
    return distil.linear_after(shot, public.features, seen=seen.features)


def studied(job: Training, teacher: Any, features: Tensor, settings: Mapping[str, Any]) -> nn.Module:
    """The model after FixMatch on the surest labels of a teacher that was paid for, or of a `student` of it."""
    student = student_of(job) if "student" in settings else None
    if student is not None and "start" in settings:
        begin_as(job.model, job.inputs, scores_of(teacher, features))
    return distil.train_on_most_confident(
        teacher, features, job.model, job.inputs, per_class=settings["per_class"],
        fit=learner_of(replace(job, settings=settings)), student=student,
    )  # fmt: skip


def scores_of(teacher: Any, features: Tensor) -> Tensor:
    """A head's scores; of a linear student the logarithms of its probabilities."""
    if isinstance(teacher, one_shot.OneShot):
        return teacher.logits(features)
    return teacher.probabilities(features).clamp_min(1e-12).log()


def studied_head_and_answers(job: Training) -> nn.Module:
    """The moment, `head_and_fixmatch` by the settings in `study`, responses under that network, then the posterior.

    With `part` only so many of the rows are in the moment, and the others respond with all of ε. With `crossfit`
    networks make the prior better by each other's responses (`labeldp.learning.crossfit`). With `consensus` the
    posterior is learnt twice: by the network, going on, and by one of the `model` in there, from random weights, on
    the rows where both agree (`labeldp.learning.consensus`).
    """
    public, settings, own = public_of(job), job.settings, job.settings["study"]
    _check_own("study", own, FIXMATCH_NEEDS | FIXMATCH_MAY_HAVE | {"epochs", "per_class"})
    learner, student = learner_of(replace(job, settings={**settings, **own})), student_of(job)

    fit = _plainly(job, settings) if "consensus" not in settings else consensus_of(job)
    inside = _in_moment(job)
    begun = list[nn.Module]()

    def teach(model: nn.Module, inputs: Any, shot: one_shot.OneShot, folder: Path | None = None) -> nn.Module:
        teacher: Any = shot
        if settings.get("linear", False):
            teacher = distil.linear_after(shot, public.features if inside is None else public.features[inside])
            if "start" in settings:
                begin_as(model, inputs, scores_of(teacher, public.features))
        return distil.train_on_most_confident(
            teacher, public.features, model, inputs, per_class=own["per_class"], fit=learner, student=student,
            folder=folder,
        )  # fmt: skip

    def teach_plainly(model: nn.Module, inputs: Any, shot: one_shot.OneShot) -> nn.Module:
        begun.append(copy.deepcopy(model))
        return teach(model, inputs, shot)

    ask: dict[str, Any] = {
        "shares": tuple(settings.get("shares", [1.0])), "begin": "start" in settings,
        "judge": crossfit_of(job, begun) if "crossfit" in settings else None,
        "believe": _mirrored if settings.get("mirrored", False) else predict,
    }  # fmt: skip
    if job.kept is None:
        return moment_then_responses(job, public, fit, distil=teach_plainly, **ask)
    run = sorted(settings.items(), key=str), job.epsilon
    with kept_distillations.distillation(job.kept, _of_distillation(job), run, job.notes) as kept:

        def once(model: nn.Module, inputs: Any, shot: one_shot.OneShot) -> nn.Module:
            begun.append(copy.deepcopy(model))
            made = kept.once(model, lambda: teach(model, inputs, shot, kept.folder))
            job.keep("student", made)
            return made

        return moment_then_responses(job, public, fit, distil=once, folder=kept.folder, **ask)


def crossfit_of(job: Training, begun: list[nn.Module]) -> Any:
    """Cross-fitting by the settings in `crossfit`: how often, in how many folds, and the plain training of each.

    Networks begin as the one in `begun`, before it was taught.
    """
    settings, own = job.settings, job.settings["crossfit"]
    _check_own("crossfit", own, _PLAIN_MAY_HAVE | {"rounds", "folds"})
    likely, plain = job.notes.setdefault("crossfit", {}), _plainly(job, {**settings, **own})

    def judge(model: nn.Module, inputs: Any, known: lp_mst.Known, **more: Any) -> Tensor:
        return crossfit(
            begun[0], inputs, known.scores, known.evidence, fit=plain, folds=own["folds"], times=own["rounds"],
            believe=_mirrored if settings.get("mirrored", False) else predict, seed=job.seed,
            report=lambda number, value: likely.update({str(number): round(value, 6)}), **more,
        )  # fmt: skip

    return judge


def consensus_of(job: Training) -> Any:
    """The run's plain training and, by the settings in `consensus`, that of a second network, from random weights."""
    settings, own = job.settings, job.settings["consensus"]
    _check_own("consensus", own, _PLAIN_MAY_HAVE | {"model"})
    fresh = {name: value for name, value in {**settings, **own}.items() if name != "start"}
    return functools.partial(
        consensus,
        fit=_kept_as("first", job, _plainly(job, settings)),
        again=_kept_as("second", job, _plainly(job, fresh)),
        second=lambda: networks.model(fresh, job.inputs, job.vault.num_classes, job.seed + 1),
        believe=_mirrored if settings.get("mirrored", False) else predict,
    )


def _kept_as(name: str, job: Training, fit: Any) -> Any:
    """The training, whose network is kept as soon as it is there."""

    def train(model: nn.Module, inputs: Any, objective: Any, **settings: Any) -> nn.Module:
        made = fit(model, inputs, objective, **settings)
        job.keep(name, made)
        return made

    return train


def _of_distillation(job: Training) -> Any:
    """All that decides what a moment teaches: both trainings' settings, but not what is queried afterwards."""
    split = _split(job)
    if split is None:
        raise ValueError("distillations are kept of one moment's epsilon; give first, or share, in the settings")
    before = {name: value for name, value in job.settings.items() if name not in _AFTER_DISTILLATION}
    parts = [sorted({**before, **before[part]}.items(), key=str) for part in ("student", "study")]
    return parts, split.first, job.seed, len(job.vault), str(job.inputs.device)


def _mirrored(model: nn.Module, images: Any) -> Tensor:
    """Scores, the mean over an image and its mirror."""
    return predict(OverCrops(model, side=1.0, grid=1), images)


def student_of(job: Training) -> Any:
    """Plain training with the settings in `student` before the run's own."""
    own = job.settings["student"]
    _check_own("student", own, _PLAIN_MAY_HAVE)
    return _plainly(job, {**job.settings, **own})


def _check_own(name: str, own: Mapping[str, Any], known: Set[str]) -> None:
    if unread := set(own) - known:
        raise ValueError(f"{name} has settings that its training does not read: {sorted(unread)}")


def _plainly(job: Training, settings: Mapping[str, Any]) -> Any:
    """`fit` under AutoAugment's views, with these settings bound; its checkpoint is written at the end alone."""
    view = learned_view(**_sizes(settings))
    if "cutout" in settings:
        view = compose(view, cutout(settings["cutout"], fill=0.5))
    return functools.partial(
        fit, epochs=settings["epochs"], batch_size=settings["batch_size"], schedule=one_cycle(0.2), seed=job.seed,
        optimizer=sgd(settings["learning_rate"], weight_decay=settings["weight_decay"]), report=job.report,
        augment=views(settings, view)[1], mixup=settings.get("mixup", 0.0), average=settings.get("average", 0.0),
        compiled=settings.get("compiled", False), recorded=settings.get("recorded", False), every=settings["epochs"],
    )  # fmt: skip


def head_and_two_networks(job: Training) -> nn.Module:
    """The one-shot moment, then AugDescent on the head's labels."""
    public = public_of(job)
    return aug_descent.train_after(_shot(job, public), public.features, job.model, job.inputs, refine=refine_of(job))


def head_and_answers(job: Training) -> nn.Module:
    """The one-shot moment; the network begins as its head where it has the encoder's weights; responses under it."""
    return moment_then_responses(job, public_of(job), learner_of(job), shares=(1.0,), begin="start" in job.settings)


def moment_then_responses(job: Training, public: public_features.Public, fit: Any, **more: Any) -> nn.Module:
    """The one-shot moment, then responses under its head as prior; the split tuned, or by `first` or `share`."""
    settings = job.settings
    names = settings.get("learn", ["posterior_of_model", "likelihood"])
    learns = [named("learn", name, LEARNS) for name in ([names] if isinstance(names, str) else names)]
    return one_shot_prior.train(
        job.model, job.inputs, public.features, job.vault, epsilon=job.epsilon, delta=settings["delta"], fit=fit,
        learn=learns, split=_split(job), tune=_tuning(job, public), seed=job.seed, **more,
    ).model  # fmt: skip


def _split(job: Training) -> one_shot_prior.Split | None:
    """By the moment's own epsilon, `first`, or by its `share` of the budget."""
    settings = job.settings
    if "first" in settings:
        if "share" in settings or not 0 < settings["first"] <= job.epsilon:
            raise ValueError(f"first={settings['first']} of epsilon={job.epsilon}: give at most that, and no share")
        part = settings.get("part", 1.0)
        return one_shot_prior.Split(settings["first"], job.epsilon - settings["first"], math.nan, part)
    if "share" not in settings:
        return None
    shares = settings["share"], 1 - settings["share"]
    first, second = split_budget(job.epsilon, settings["delta"], shares, last_pure=True)
    return one_shot_prior.Split(first, second, math.nan)


def learner_of(job: Training) -> Any:
    """FixMatch, or the mean teacher, with the run's settings bound; with `probe`, the last layer alone goes first."""
    made = named("algorithm", job.settings.get("algorithm", "fixmatch"), ALGORITHMS)(job)
    return probed(made, seed=job.seed) if job.settings.get("probe", False) else made


def teacher_of(job: Training) -> Any:
    """The mean teacher with the run's settings bound."""
    settings = job.settings
    _refuse(settings, "the mean teacher", {"ratio", "threshold", "apart", "schedule", "cut"})
    weak, strong = views(settings, learned_view(**_sizes(settings)))
    return functools.partial(
        mean_teacher, epochs=settings["epochs"], batch_size=settings["batch_size"], weak=weak, strong=strong,
        optimizer=sgd(settings["learning_rate"], weight_decay=settings["weight_decay"]), seed=job.seed,
        report=job.report, prior=_even(job), average=settings.get("average", 0.99),
        compiled=settings.get("compiled", False), recorded=settings.get("recorded", False),
        **{name: settings[name] for name in ("temperature", "strength", "ramp") if name in settings},
    )  # fmt: skip


def fixmatch_of(job: Training) -> Any:
    """FixMatch with the run's settings bound."""
    settings = job.settings
    _refuse(settings, "FixMatch", {"ramp"})
    names = ("ratio", "threshold", "temperature", "strength", "settled")
    given = {name: settings[name] for name in names if name in settings}
    if isinstance(given.get("threshold"), str):
        given["threshold"] = named("threshold", given["threshold"], THRESHOLDS)(job.vault.num_classes)
    weak, strong = views(settings, strong_view(**_sizes(settings), cut=settings.get("cut", 16)))
    return functools.partial(
        fixmatch, epochs=settings["epochs"], batch_size=settings["batch_size"], weak=weak, strong=strong, seed=job.seed,
        optimizer=weights_sgd(settings["learning_rate"], weight_decay=settings["weight_decay"]), report=job.report,
        prior=_even(job), average=settings.get("average", 0.999), compiled=settings.get("compiled", False),
        apart=settings.get("apart", False), recorded=settings.get("recorded", False), every=_EVERY,
        schedule=named("schedule", settings.get("schedule", "seven_sixteenths"), SCHEDULES)(), **given,
    )  # fmt: skip


def _refuse(settings: Mapping[str, Any], who: str, strange: set[str]) -> None:
    """A line of results must not claim a setting that had no effect."""
    if unread := set(settings) & strange:
        raise ValueError(f"{who} does not read {sorted(unread)}; leave them out")


def _even(job: Training) -> Tensor | None:
    classes = job.vault.num_classes
    return torch.full((classes,), 1 / classes) if job.settings.get("aligned", False) else None


ALGORITHMS = {"fixmatch": fixmatch_of, "mean teacher": teacher_of}


def refine_of(job: Training) -> Any:
    """Co-refinement with the run's settings bound; the rate falls to a tenth at epoch `switch`."""
    settings = job.settings
    if "start" not in settings:
        _refuse(settings, "AugDescent from random weights", {"probe"})
    names = ("warmup", "threshold", "strength", "ramp", "history", "mixup", "steps", "compiled")
    weak, strong = views(settings, learned_view(**_sizes(settings)))
    refine = functools.partial(
        co_refine, epochs=settings["epochs"], batch_size=settings["batch_size"], weak=weak, strong=strong,
        optimizer=sgd(settings["learning_rate"], weight_decay=settings["weight_decay"], nesterov=False),
        schedule=piecewise((settings["switch"] / settings["epochs"],), warmup=0.0), seed=job.seed, report=job.report,
        **{name: settings[name] for name in names if name in settings},
    )  # fmt: skip
    return functools.partial(_begun, refine, job) if "start" in settings else refine


def _begun(refine: Any, job: Training, model: nn.Module, inputs: Tensor, labels: Labels, **more: Any) -> nn.Module:
    """Two networks with an encoder's weights: the usual twin, its weights in another order, would lose them."""
    if job.settings.get("probe", False):
        probe(model, inputs, labels.objective(), rows=labels.rows(), seed=job.seed)
    return refine(model, inputs, labels, twin=copy.deepcopy(model), **more)


def views(settings: Any, strong: Augment) -> tuple[Augment, Augment]:
    """The weak view and this strong one, for the runner's scaled images."""
    pixels = public_features.Pixels(settings["dataset"])
    mean, spread = (tuple((part.flatten() / 255).tolist()) for part in (pixels.mean, pixels.spread))
    return scaled(weak_view(**_sizes(settings)), mean, spread), scaled(strong, mean, spread)


def _sizes(settings: Any) -> dict[str, Any]:
    return {"padding": settings.get("padding", 4), "flip": settings.get("flip", True)}


def public_of(job: Training) -> public_features.Public:
    """Features of the run's images by its settings."""
    return public_features.public(job.settings["dataset"], job.inputs, job.settings["features"], job.seed)


def _tuning(job: Training, public: public_features.Public) -> Any:
    inside, classes = _in_moment(job), job.vault.num_classes
    # As many rows as the moment will have: noise weighs more against fewer.
    stage = public.stage(classes) if inside is None else Stage(public.features[inside], classes, seed=public.seed)
    return functools.partial(tune, stage=stage, seed=job.seed)


def _in_moment(job: Training) -> Tensor | None:
    """The rows whose labels are in the moment; None for all."""
    if "part" not in job.settings:
        return None
    split = _split(job)
    if split is None:
        raise ValueError(f"part={job.settings['part']} of the rows at which epsilon? give first as well")
    return torch.from_numpy(split.rows(len(job.vault), job.seed)[0]).to(job.inputs.device)


def _shot(job: Training, public: public_features.Public) -> one_shot.OneShot:
    return one_shot.train(
        public.features, job.vault, epsilon=job.epsilon, delta=job.settings["delta"], tune=_tuning(job, public)
    )
