"""Let some rows decide what is asked of the others: one noisy moment, or a response of every row.

Which of the two teaches more depends on the table, and no formula knows the table. A moment has far less noise, but its
features are fixed before a label is seen; learners on responses find out which columns matter and where to cut them.
So a pilot, rows drawn at random without labels, responds first, at the whole ε:

    1. learners that adapt to the table, and others that cannot, predict its responses, fold by fold: does it pay?
    2. if so, the other rows respond, too, and join the pilot, so that nothing is lost
    3. if not, they enter a moment, of features alone or with cosines beside them: as played on labels drawn from what
       the pilot taught, with noise as large as it will be (parametric bootstrap; Efron 1979)

A row pays once: those of the pilot for their responses, all others for what was chosen. Given what the pilot released,
the second query concerns other rows, and a replaced label is in one of the two (parallel composition): (ε, δ) in all.
Whatever the pilot decides is post-processing of its responses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

from labeldp.atomic import replacing
from labeldp.core.events import PureDP
from labeldp.core.vault import LabelVault
from labeldp.features.kernels import random_cosines
from labeldp.learning.learners import Task, adapting
from labeldp.learning.progress import Report, listening
from labeldp.learning.tuning import Stage
from labeldp.learning.tuning import tune as label_free
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes import one_shot
from labeldp.recipes.arguments import checked
from labeldp.recipes.kept import check_affordable, in_folder, release_labels
from labeldp.recipes.learner import Taught, seen_by_learners, teach
from labeldp.recipes.one_shot import HEADS, Clock, OneShot, Tune, check_features, event_of, noise_by_width, noise_for
from labeldp.recipes.one_shot_kernel import COSINES, WIDTH, Lifted, columns_weighed
from labeldp.recipes.worth import response_labels, responses_say_more
from labeldp.releases import NoisyLabels

# Clean labels that a pilot's responses should be worth, and the least and largest share of rows for that.
_ENOUGH, _LEAST_SHARE, _MOST_SHARE = 600.0, 0.05, 0.2
# Nats by which learners that adapt have to predict responses better than others, to be more than luck, and the share of
# what those gain on a guess, for which a moment's smaller noise makes up; and the nats that either has to gain: below,
# the pilot has nothing to say, and a formula decides.
_GAINED, _MADE_UP, _LEARNT = 3.0, 0.1, 20.0
# By how much cosines have to be ahead, as played, to be put beside the features: noise has to be shared with them.
_COSINES_AHEAD = 0.003
# Rows on which a moment is played, and sets of labels drawn for it.
_PLAYED, _SETS = 12_000, 3


@dataclass(frozen=True, eq=False)
class Decided:
    """What was learnt, and how it was decided what to learn from.

    Args:
        found: a learner taught by responses of all rows, or a head on a moment of those outside of the pilot, of their
            features or of these and cosines.
        pilot: how many rows were in the pilot.
        fixed, adapting: what learners that cannot and that can adapt to the table gained on a guess, in nats.
    """

    found: Taught | Lifted | OneShot
    pilot: int
    fixed: float
    adapting: float

    def logits(self, features: Tensor) -> Tensor:
        """Return scores whose softmax are probabilities, (n, K)."""
        return self.found.logits(features)

    def probabilities(self, features: Tensor) -> Tensor:
        """Return class probabilities, (n, K)."""
        return self.found.probabilities(features)

    @property
    def reason(self) -> str:
        """Return the evidence in words."""
        asked = "a response of each" if isinstance(self.found, Taught) else "one noisy sum over all of them"
        better = "better than" if self.adapting > self.fixed else "no better than"
        told = "trees and kernels, which find out which columns matter, predicted held-out responses "
        told += f"{better} a fixed set of features does"
        if max(self.fixed, self.adapting) < _LEARNT:
            told = "responses said too little to judge by, and a formula decided"
        return f"In a pilot of {self.pilot:,} rows {told}. So the other rows were asked for {asked}."


@checked
def train(
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    tune: Tune = label_free,
    columns: npt.ArrayLike | None = None,
    share: float | None = None,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> Decided:
    """Draw the pilot's responses, decide, ask the other rows, learn: (`epsilon`, `delta`) in all.

    Args:
        features: public, (n, p), in the vault's order.
        tune: as for `one_shot.train`.
        columns: numbers of the features that say everything once: what learners and the kernel see; all when None.
        share: of the rows in the pilot; None for as many as ε needs, from a twentieth to a fifth.
        seed: of the pilot and of all that is played; public.
        folder: keeps releases and the decision, so that a killed run goes on and draws nothing twice.
        report: gets every step.

    >>> x = torch.randn(4000, 3, generator=Generator().manual_seed(0))
    >>> label = (x[:, 0] * x[:, 1] > 0).long()
    >>> vault = LabelVault(label, num_classes=2)
    >>> found = train(x, vault, epsilon=2.0, delta=1e-6)
    >>> bool((found.logits(x).argmax(dim=1) == label).float().mean() > 0.9), vault.certificate(1e-6).epsilon <= 2.0
    (True, True)
    """
    check_features(features, vault)
    if share is not None and not 0 < share < 1:
        raise ValueError(f"share={share} is not a share of the rows; give a number above 0 and below 1, or None")
    clock, classes = Clock(report), vault.num_classes
    if share is None:
        share = min(_MOST_SHARE, max(_LEAST_SHARE, _ENOUGH / response_labels(len(vault), classes, epsilon)))
    order = torch.randperm(len(vault), generator=Generator().manual_seed(seed)).numpy()
    cut = min(len(order) - 1, max(1, round(share * len(order))))
    pilot, rest = np.sort(order[:cut]), np.sort(order[cut:])
    noise, asked = noise_for(epsilon, delta), in_folder(folder, "pilot.npz")
    # Whichever is chosen later, it must be affordable now.
    for event in (event_of(noise), PureDP(epsilon)):
        check_affordable(vault, (PureDP(epsilon), pilot, asked), (event, rest, None))
    mechanism, view = RandomizedResponse(epsilon, classes), seen_by_learners(features, columns)
    private = release_labels(vault, mechanism, pilot, asked)
    first = features[torch.from_numpy(pilot).to(features.device)]
    others = features[torch.from_numpy(rest).to(features.device)]
    lift = random_cosines(features, COSINES, columns=columns, width=WIDTH, seed=seed)
    file = in_folder(folder, "decision.json")
    if file is not None and file.exists():
        fixed, adapts, lifted = json.loads(file.read_text(encoding="utf-8"))
    else:
        clock("decision", "learners are tried on the pilot's responses", 0.0)
        with listening(None):
            fixed, adapts = adapting(Task.split(view(first), private, seed), seed)
        lifted = 0.0
        if not _respond(fixed, adapts, len(vault), classes, epsilon):
            clock("decision", "a moment is tried on labels drawn from the pilot's model", 0.6)
            with listening(None):
                likely = teach(first, private, view, (), seed, None).probabilities(others).double()
                played = [_played(likely, noise_by_width(noise), seed, seen) for seen in (others, lift(others))]
            lifted = played[1] - played[0]
        if file is not None:
            with replacing(file) as draft:
                draft.write_text(json.dumps([fixed, adapts, lifted]), encoding="utf-8")
    clock("decision", f"learners that adapt gain {adapts:.0f} nats on a guess, others {fixed:.0f}")
    if _respond(fixed, adapts, len(vault), classes, epsilon):
        more = release_labels(vault, mechanism, rest, in_folder(folder, "responses.npz"))
        together = np.empty(len(vault), dtype=more.responses.dtype)
        together[pilot], together[rest] = private.responses, more.responses
        taught = teach(features, NoisyLabels(mechanism, together), view, (), seed, report)
        return Decided(taught, cut, fixed, adapts)
    # Tuned on clusters, as ever: what a pilot teaches is simpler than the truth, and wants too few directions.
    with_cosines = lifted > _COSINES_AHEAD
    shot = one_shot.train(
        lift(others) if with_cosines else others, vault.part(rest), epsilon=epsilon, delta=delta, tune=tune,
        folder=folder, report=report,
    )  # fmt: skip
    found = columns_weighed(others, lift, shot, columns, seed, report) if with_cosines else shot
    return Decided(found, cut, fixed, adapts)


def _respond(fixed: float, adapts: float, rows: int, classes: int, epsilon: float) -> bool:
    """Return whether the others respond, too: where adapting pays or, if the pilot cannot tell, by a formula."""
    if max(fixed, adapts) < _LEARNT:
        return responses_say_more(rows, classes, epsilon)
    return adapts > fixed + max(_GAINED, _MADE_UP * fixed)


def _played(likely: Tensor, noise: Callable[[int], float], seed: int, seen: Tensor) -> float:
    """Return how often the head of a moment is right on held-out rows, with labels drawn from what is known."""
    generator = Generator().manual_seed(seed)
    drawn = [torch.multinomial(likely.cpu(), 1, generator=generator)[:, 0] for _ in range(_SETS)]
    stage = Stage(seen, likely.shape[1], rows=_PLAYED, seed=seed, drawn=drawn)
    found = label_free(seen, likely.shape[1], noise, heads=HEADS, draws=1, stage=stage)
    held = likely[stage.held.to(likely.device)]
    right = [
        np.mean([float(held.gather(1, scores.argmax(dim=1, keepdim=True)).mean()) for scores, _ in played])
        for played in (stage.play(found.plan, head, noise, 1) for head in HEADS)
    ]
    return float(max(right))
