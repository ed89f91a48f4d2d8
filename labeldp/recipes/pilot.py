"""Let some rows decide what is asked of the others: one noisy moment, or a response of every row.

Which of the two teaches more depends on the table, and no formula knows the table. So a pilot, rows drawn at random
without labels, responds first, at the whole ε, and the learner that predicts its responses best is taken for the truth
(parametric bootstrap; Efron 1979):

    1. labels of all rows are drawn from what the pilot taught
    2. both ways are played on them, with noise as large as it would be: how often is each right?
    3. the better one is asked of the other rows, at the whole ε: their responses, which join the pilot's, so that
       nothing is lost; or a moment, of features alone or with cosines beside them

A row pays once: those of the pilot for their responses, all others for what was chosen. Given what the pilot released,
the second query concerns other rows, and a replaced label is in one of the two (parallel composition): (ε, δ) in all.
Steps 1 and 2 are post-processing.
"""

from __future__ import annotations

import functools
import json
import math
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
from labeldp.learning.learners import Candidate, Task
from labeldp.learning.progress import Report, listening
from labeldp.learning.tuning import Stage
from labeldp.learning.tuning import tune as label_free
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes import one_shot
from labeldp.recipes.arguments import checked
from labeldp.recipes.kept import check_affordable, in_folder, release_labels
from labeldp.recipes.learner import Taught, View, seen_by_learners, teach
from labeldp.recipes.one_shot import HEADS, Clock, OneShot, Tune, check_features, event_of, noise_by_width, noise_for
from labeldp.recipes.one_shot_kernel import COSINES, WIDTH, Lifted
from labeldp.recipes.worth import response_labels
from labeldp.releases import NoisyLabels

# Clean labels per class that a pilot's responses should be worth, and the least and largest share of rows for that.
_ENOUGH, _LEAST_SHARE, _MOST_SHARE = 200.0, 0.1, 0.2
# Points by which what is played flatters responses, and the share of a clean label in one up to which it does.
_FLATTERED, _LITTLE = 0.015, 0.43
# By how much cosines have to be ahead, as played, to be put beside the features: noise has to be shared with them.
_COSINES_AHEAD = 0.003
# Rows on which both ways are played, sets of labels drawn for the moment, and the rows held out of the responses.
_PLAYED, _SETS, _HELD_OUT = 12_000, 3, 0.2


@dataclass(frozen=True, eq=False)
class Decided:
    """What was learnt, and how it was decided what to learn from.

    Args:
        found: a learner taught by responses of all rows, or a head on a moment of those outside of the pilot, of their
            features or of these and cosines.
        pilot: how many rows were in the pilot.
        moment, responses: how often each way is right, as played on labels drawn from what the pilot taught.
        lead: by how much responses had to be ahead of that, because they are flattered or the moment is.
    """

    found: Taught | Lifted | OneShot
    pilot: int
    moment: float
    responses: float
    lead: float

    def logits(self, features: Tensor) -> Tensor:
        """Return scores whose softmax are probabilities, (n, K)."""
        return self.found.logits(features)

    def probabilities(self, features: Tensor) -> Tensor:
        """Return class probabilities, (n, K)."""
        return self.found.probabilities(features)

    @property
    def reason(self) -> str:
        """Return the evidence in words."""
        taken = "a response of every row" if isinstance(self.found, Taught) else "one noisy moment"
        lead = f"had to be {self.lead:.1%} ahead" if self.lead > 0 else f"might be {-self.lead:.1%} behind"
        return (
            f"In a pilot of {self.pilot:,} rows a moment was expected to be right on {self.moment:.1%} of the rows and "
            f"responses, which {lead}, on {self.responses:.1%}, so the other rows were asked for {taken}."
        )


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
        share: of the rows in the pilot; None for as many as ε needs, from a tenth to a fifth.
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
        worth = response_labels(len(vault), classes, epsilon) / classes
        share = min(_MOST_SHARE, max(_LEAST_SHARE, _ENOUGH / worth))
    order = torch.randperm(len(vault), generator=Generator().manual_seed(seed)).numpy()
    cut = min(len(order) - 1, max(1, round(share * len(order))))
    pilot, rest = np.sort(order[:cut]), np.sort(order[cut:])
    noise, asked = noise_for(epsilon, delta), in_folder(folder, "pilot.npz")
    # Whichever is chosen later, it must be affordable now.
    for event in (event_of(noise), PureDP(epsilon)):
        check_affordable(vault, (PureDP(epsilon), pilot, asked), (event, rest, None))
    mechanism, view = RandomizedResponse(epsilon, classes), seen_by_learners(features, columns)
    private = release_labels(vault, mechanism, pilot, asked)
    known, how = teach(features[torch.from_numpy(pilot).to(features.device)], private, view, (), seed, report)
    others = torch.from_numpy(rest).to(features.device)
    plain, lift = features[others], random_cosines(features, COSINES, columns=columns, width=WIDTH, seed=seed)
    played = functools.partial(_moment_played, known.probabilities(plain).double(), noise_by_width(noise), seed)
    file = in_folder(folder, "decision.json")
    if file is not None and file.exists():
        *moments, responses = json.loads(file.read_text(encoding="utf-8"))
    else:
        moments = []
        with listening(None):
            for number, way in enumerate((plain, lift(plain))):
                clock("decision", "a moment is tried on labels drawn from the pilot's model", number / 3)
                moments.append(played(way))
        clock("decision", "responses are tried on labels drawn from the pilot's model", 2 / 3)
        responses = _responses_played(features, known, how, view, len(vault), epsilon, seed)
        if file is not None:
            with replacing(file) as draft:
                draft.write_text(json.dumps([*moments, responses]), encoding="utf-8")
    lifted = moments[1] > moments[0] + _COSINES_AHEAD
    moment = moments[lifted]
    clock("decision", f"on labels drawn from its model a moment is right on {moment:.1%}, responses on {responses:.1%}")
    lead = _lead(classes, epsilon)
    if responses >= moment + lead:
        more = release_labels(vault, mechanism, rest, in_folder(folder, "responses.npz"))
        together = np.empty(len(vault), dtype=more.responses.dtype)
        together[pilot], together[rest] = private.responses, more.responses
        found, _ = teach(features, NoisyLabels(mechanism, together), view, (), seed, report)
        return Decided(found, cut, moment, responses, lead)
    # Tuned on clusters, as ever: what a pilot teaches is simpler than the truth, and wants too few directions.
    shot = one_shot.train(
        lift(plain) if lifted else plain, vault.part(rest), epsilon=epsilon, delta=delta, tune=tune, folder=folder,
        report=report,
    )  # fmt: skip
    return Decided(Lifted(lift, shot) if lifted else shot, cut, moment, responses, lead)


def _lead(classes: int, epsilon: float) -> float:
    """Return by how much responses have to be ahead, as played, to be asked for.

    Labels drawn from what responses taught are easy to learn from responses. Where those say little of a label a moment
    was right more often than it seemed; where they say much, it was the other way round (benchmarks/tabular.py).
    """
    return _FLATTERED if response_labels(1, classes, epsilon) < _LITTLE else -_FLATTERED


def _moment_played(likely: Tensor, noise: Callable[[int], float], seed: int, seen: Tensor) -> float:
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


def _responses_played(
    features: Tensor, known: Taught, how: Candidate, view: View, rows: int, epsilon: float, seed: int
) -> float:
    """Return how often a learner of this kind is right, where rows respond with labels drawn from what is known.

    On fewer rows than there are, which respond with less noise: as many clean labels are in their responses.
    """
    order = torch.randperm(len(features), generator=Generator().manual_seed(seed + 1))[:_PLAYED].to(features.device)
    held = max(1, round(_HELD_OUT * len(order)))
    likely = known.probabilities(features[order]).double()
    classes, chance = likely.shape[1], np.random.default_rng(seed)
    generator = Generator().manual_seed(seed + 1)
    drawn = torch.multinomial(likely[held:].cpu(), 1, generator=generator)[:, 0].numpy()
    # P(response = label) − P(response = another class): e^ε − 1 over e^ε + K − 1.
    signal = math.expm1(epsilon) / (math.expm1(epsilon) + classes)
    signal = min(0.99, signal * math.sqrt(rows / len(drawn)))
    responded = np.where(chance.random(len(drawn)) < signal, drawn, chance.integers(0, classes, len(drawn)))
    channel = RandomizedResponse(math.log1p(classes * signal / (1 - signal)), classes)
    seen = view(features[order])
    learnt = how.again(Task.split(seen[held:], NoisyLabels(channel, responded), seed)).refit()
    return float(likely[:held].gather(1, learnt.logits(seen[:held]).argmax(dim=1, keepdim=True)).mean())
