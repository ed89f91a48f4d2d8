"""Adapters of PATE-FM: linear teachers on features vote; FixMatch learns from the responses, others from its labels."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from experiments import semi
from labeldp.learning.evidence import Labels, from_classes
from labeldp.learning.teachers import one_shot_teachers, ridge_teachers
from labeldp.recipes import aug_descent, denoise_ssl, pate, per_row

if TYPE_CHECKING:
    from experiments.adapters import Training


TEACHERS = {"one look": one_shot_teachers, "ridge": ridge_teachers}
NEEDS = frozenset({"delta", "features", "teachers", "queries", "answers"})
MAY_HAVE = frozenset({"heads", "ridge", "agreement", "noise_ratio", "at_once"})


def votes_and_fixmatch(job: Training) -> nn.Module:
    """Pipeline 3: the student of the responses is the model."""
    return pate.train(
        job.model, job.inputs, job.vault, epsilon=job.epsilon, delta=job.settings["delta"], fit=semi.learner_of(job),
        teachers=_teachers(job), ballot=_ballot(job),
    )  # fmt: skip


def votes_and_two_networks(job: Training) -> nn.Module:
    """Pipeline 2 with AugDescent: the student labels all rows, two networks learn from that."""
    return aug_descent.learn(job.model, job.inputs, _labelled(job), refine=semi.refine_of(job))


def votes_and_fixmatch_again(job: Training) -> nn.Module:
    """Pipeline 2 with LDP-SSL: FixMatch once more, every row with the student's label."""
    return per_row.learn(job.model, job.inputs, _labelled(job), fit=semi.learner_of(job))


def votes_and_kept_labels(job: Training) -> nn.Module:
    """Pipeline 2 with DenoiseSSL: of the student's labels those that agree with their cluster's majority."""
    groups = semi.clusters_of(job, semi.public_of(job)).members.cpu().numpy()
    private = _labelled(job)
    guesses = denoise_ssl.majority(private.targets.argmax(dim=1), groups, job.vault.num_classes)
    return denoise_ssl.learn(job.model, job.inputs, private, guesses, fit=semi.learner_of(job))


def _labelled(job: Training) -> Labels:
    """Labels of all rows by the student of the votes, which has the settings in `student` before the run's own."""
    unread = set(job.settings["student"]) - semi.FIXMATCH_NEEDS - semi.FIXMATCH_MAY_HAVE - {"epochs"}
    if unread:
        raise ValueError(f"student has settings that FixMatch does not read: {sorted(unread)}")
    first = replace(job, model=copy.deepcopy(job.model), settings={**job.settings, **job.settings["student"]})
    return from_classes(pate.relabel(votes_and_fixmatch(first), job.inputs), job.vault.num_classes)


def _teachers(job: Training) -> pate.Teachers:
    settings, features = job.settings, semi.public_of(job).features
    name = settings.get("heads", "one look")
    if name not in TEACHERS:
        raise ValueError(f"heads={name!r} is not known; give one of {', '.join(TEACHERS)}")
    ridge = {"ridge": settings["ridge"]} if "ridge" in settings else {}
    return lambda rows: TEACHERS[name](features, features[rows], job.vault.num_classes, **ridge)


def _ballot(job: Training) -> pate.Ballot:
    settings = job.settings
    # The settings' names are those of the result lines.
    named: dict[str, Any] = {name: settings[name] for name in ("teachers", "queries")}
    others = {"answers": "responses", "agreement": "threshold", "noise_ratio": "ratio", "at_once": "at_once"}
    named |= {field: settings[name] for name, field in others.items() if name in settings}
    return pate.Ballot(**named, seed=job.seed)
