"""The head of one moment as the prior of randomized response, then any model on the responses.

    1. one moment at (ε₁, δ): `one_shot`, whose head gives every row honest class probabilities p_i
    2. split the rows into S₁ … S_T, without their labels; for t = 1 … T:
         ỹ_i = randomized response among the likeliest classes under p_i, at ε₂, for i in S_t
         train on the posterior of y_i ∝ p_i(c)·P(ỹ_i | c), then on the likelihood of the responses
         p_i = the model's probabilities

Each of the two does what it is good at: a moment of all rows is nearly free at small ε, where single responses carry
nothing; a single response under a good prior has to tell two or three classes apart and not ten (Ghazi et al. 2021,
whose LP-MST is the second step; here its first stage has a prior, too).

With `distil` the model learns from the head before any row responds, by any method that needs no more labels, and its
probabilities are the prior: a network that has seen all images is right more often than a head, and the posterior is
still honest, for the prior knows nothing of the responses. (A model that learns from posteriors under its own beliefs
remembers rows in time, and counts their responses again: see experiments/posteriors.py.) With `judge` models learn
from responses before the posterior is taken, each from other rows than it judges (`learning.crossfit`).

Every row is in the moment and responds once: adaptive composition of a Gaussian query and a pure one. ε₁ is the largest
for which the two together cost (ε, δ) by their privacy loss distributions, a little more than ε − ε₂
(`budget.split_budget`). How to split is tuned on clusters, without labels (`tune_split`). Where responses would be no
better than the head, all of ε goes into the moment, and the model is a student of the head.

Or rows are split instead: a random part of them is in the moment at ε₁ and responds at ε₂, all others respond at the
whole ε (`Split.part`). A replaced label is in one of the two parts, so that (ε, δ) covers both (parallel composition).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import xlogy
from torch import Tensor, nn

from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.events import PureDP, Query
from labeldp.core.vault import LabelVault
from labeldp.features.encoders import begin_as, body_and_last
from labeldp.learning.evidence import evidence
from labeldp.learning.heads import Head, ridge_head, scale_by_responses, softened
from labeldp.learning.train import Inputs, predict
from labeldp.learning.tuning import Stage, tune
from labeldp.mechanisms.responses import PriorResponse, TopKResponse
from labeldp.recipes import lp_mst, one_shot
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.budget import split_budget
from labeldp.recipes.kept import checkpoint_of, in_folder, planned, release_labels
from labeldp.recipes.lp_mst import Known, Learn
from labeldp.recipes.one_shot import OneShot, Report, Tune, check_features, event_of, noise_by_width, noise_for
from labeldp.releases import BoolArray, FloatArray, NoisyLabels

# Shares of ε that `tune_split` tries for the moment; 1 leaves nothing for responses.
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
# The model, its inputs and the head ↦ the model, taught by the head alone.
Distil = Callable[[nn.Module, Inputs, OneShot], nn.Module]
# The model and its inputs ↦ its scores of all rows, (n, K).
Believe = Callable[[nn.Module, Inputs], Tensor]
# The model, its inputs and what is known ↦ honest scores of all rows, (n, K): none has seen its own row's response.
Judge = Callable[..., Tensor]
# Prior (n, K) and ε ↦ which classes a row may respond with, booleans (n, K), at least one in each row.
Sets = Callable[[npt.NDArray[np.float64], float], BoolArray]


@dataclass(frozen=True)
class Split:
    """A budget in two parts, (ε₁, δ) and ε₂, and the share of pseudo-labels that responses would have right.

    Args:
        first, second: ε₁ and ε₂.
        expected: the share of pseudo-labels; NaN where nobody has tried.
        part: the share of rows that pay for both, drawn without labels; the others only respond, with all of ε.
    """

    first: float
    second: float
    expected: float
    part: float = 1.0

    def rows(self, count: int, seed: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return which of so many rows are in the moment, and the others; both sorted."""
        # Not the stages' own order, or the first stage would have the rows of the moment.
        order = np.random.default_rng([seed, 1]).permutation(count)
        inside, outside = np.split(order, [round(self.part * count)])
        return np.sort(inside), np.sort(outside)


@dataclass(frozen=True, eq=False)
class OneShotPrior:
    """The model, and all it has learnt from. Holds no label.

    Args:
        model: trained.
        shot: the moment and its head.
        responses: of each stage, of rows of its own; none where all of ε went into the moment.
        split: of the budget.
    """

    model: nn.Module
    shot: OneShot
    responses: tuple[NoisyLabels, ...]
    split: Split


def informative_sets(prior: npt.ArrayLike, epsilon: float) -> BoolArray:
    """Return the k likeliest classes of each row, k such that the response is most informative: booleans (n, K).

    With a = e^ε/(e^ε + k − 1) and b = 1/(e^ε + k − 1), P(ỹ = c) = p_c·(a − b) + P(S)·b + (1 − P(S))/k for c in S, and

        I(ỹ; y) = H(ỹ) − P(S)·H(a, b, …, b) − (1 − P(S))·log k   is largest.

    RRWithPrior takes the set for which the response is right most often. Where the prior is confident that is one
    class, and the response carries nothing: best for whoever takes responses at their word, and a waste for whoever
    weighs them against the prior over many rows, as the likelihood does. Here at least two classes are allowed.

    >>> informative_sets([[0.96, 0.03, 0.01], [0.4, 0.3, 0.3]], 1.0)
    array([[ True,  True, False],
           [ True,  True,  True]])
    """
    weights = np.asarray(prior, dtype=np.float64)
    order = np.argsort(-weights, axis=1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=1)
    bits = np.stack([_information(ranked[:, :k], epsilon) for k in range(1, ranked.shape[1] + 1)])
    sets = np.empty(weights.shape, dtype=np.bool_)
    sizes = 1 + bits.argmax(axis=0)
    np.put_along_axis(sets, order, np.arange(weights.shape[1]) < sizes[:, None], axis=1)
    return sets


def _information(inside: FloatArray, epsilon: float) -> FloatArray:
    """Return I(ỹ; y) for responses among these classes, whose probabilities are (n, k)."""
    k, covered = inside.shape[1], inside.sum(axis=1)
    # e^−ε and not e^ε, which may be too large.
    wrong = math.exp(-epsilon) / (1 + (k - 1) * math.exp(-epsilon))
    right = 1 - (k - 1) * wrong
    chances = inside * (right - wrong) + (covered * wrong + (1 - covered) / k)[:, None]
    kept = xlogy(right, right) + (k - 1) * xlogy(wrong, wrong)
    return -xlogy(chances, chances).sum(axis=1) + covered * kept - (1 - covered) * math.log(k)


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    features: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    fit: Fit,
    learn: Sequence[Learn] = (lp_mst.posterior_of_model, lp_mst.likelihood),
    sets: Sets = informative_sets,
    shares: Sequence[float] = (0.6, 0.4),
    split: Split | None = None,
    tune: Tune = tune,
    begin: bool = False,
    distil: Distil | None = None,
    judge: Judge | None = None,
    believe: Believe = predict,
    seed: int = 0,
    folder: Path | None = None,
    report: Report | None = None,
) -> OneShotPrior:
    """Release the moment, then responses under its head, and train: at (`epsilon`, `delta`) in all.

    Args:
        model: any; maps inputs to K scores.
        inputs: public, on the model's device, in the vault's order.
        features: public, (n, p), of the same rows: what the head sees.
        fit: the training algorithm.
        learn: what to minimise in the first stage, in turn, each going on from the last; later stages only the last of
            them. `lp_mst.posterior_of_model` uses responses and prior (first the head's, then the model's own),
            `lp_mst.likelihood` the responses alone. The posterior keeps the head's errors where responses are weak, the
            likelihood forgets the head: one after the other has both.
        sets: the classes a row may respond with, from the prior and ε₂: `informative_sets`, or `likely_sets` as
            published.
        shares: the part of the rows in each stage; they add up to 1.
        split: of the budget; `tune_split` when None.
        tune: of the head, as in `one_shot.train`.
        begin: set the model's last layer so that it begins as the head (`features.encoders.begin_as`): for a model
            whose body is the encoder that made the features.
        distil: what the model learns from the head before any row responds, such as `distil.train_on_most_confident`
            or `distil.train_after`. Its probabilities, no more confident on average than the head's, are then the
            prior; how confident it may be is settled by the responses (`learning.heads.scale_by_responses`). Learn
            from them by `lp_mst.posterior_of_model` alone. To go on after a kill it needs the folder, too.
        judge: makes the prior of the last stage better by responses of other rows, such as
            `learning.crossfit.crossfit` with its settings bound. Learn from it by `lp_mst.posterior_of_model` alone.
        believe: the scores of a model, which are the next prior, such as their mean over an image and its mirror
            (`features.encoders.OverCrops`).
        seed: of the stages' rows, and of those in the moment.
        folder: keeps all releases and checkpoints, so that a killed run goes on and draws nothing twice.
        report: as in `one_shot.train`.
    """
    stages = lp_mst.split(len(vault), shares, seed)
    if begin:
        _beginner(model, inputs)  # refused before anything is spent
    if not learn:
        raise ValueError("learn is empty; give at least one way to learn from responses")
    for one in learn:
        lp_mst.check_learn(one, vault.num_classes)
    if split is None:
        check_features(features, vault)
        split = tune_split(features, vault.num_classes, epsilon, delta)
    _check_split(split, epsilon, delta)
    inside, outside = split.rows(len(vault), seed)
    # No row is in two stages, so the responses cost what those of one stage do.
    parts = [(inside, split.second, "")] * (split.second > 0) + [(outside, epsilon, "-outside")] * (len(outside) > 0)
    blocks = [
        [
            _Block(np.intersect1d(rows, part), spent, in_folder(folder, f"responses-{number}{name}.npz"))
            for part, spent, name in parts
        ]
        for number, rows in enumerate(stages, start=1)
    ]
    seen = None if split.part == 1 else inside
    moment = (event_of(noise_for(split.first, delta)), seen, in_folder(folder, "moment.npz"))
    vault = planned(vault, moment, *((PureDP(one.epsilon), one.rows, one.kept) for stage in blocks for one in stage))
    some = features if seen is None else features[torch.from_numpy(seen).to(features.device)]
    shot = one_shot.train(
        some, vault, epsilon=split.first, delta=delta, tune=tune, rows=seen, folder=folder, report=report
    )
    scores = shot.logits(features).to(device_of(model))
    if begin:
        begin_as(model, _beginner(model, inputs), scores)
    if distil is not None:
        model = distil(model, inputs, shot)
        if not parts:
            return OneShotPrior(model, shot, (), split)
        scores = softened(believe(model, inputs), shot.confidence)
    if not parts:
        # Without responses the posterior is the prior, and there is no likelihood to go on with.
        known = Known(scores.argmax(dim=1), torch.zeros_like(scores), scores)
        settings = checkpoint_of(folder, scores.cpu().numpy())
        return OneShotPrior(fit(model, inputs, lp_mst.posterior_of_model(known), **settings), shot, (), split)
    responses = _Responses(vault, sets, scores)
    for number, rows in enumerate(stages, start=1):
        responses.draw(blocks[number - 1], scores)
        for turn, learner in enumerate(learn if number == 1 else learn[-1:]):
            known = responses.known(scores)
            if distil is not None and turn == 0:
                known = responses.honest(rows, scores)
            settings = checkpoint_of(folder, responses.digested(), np.array([number, turn]))
            if judge is not None and number == len(stages) and turn == 0:
                known = Known(known.responses, known.evidence, judge(model, inputs, known, **settings))
            model = fit(model, inputs, learner(known), **settings)
            scores = believe(model, inputs)
    return OneShotPrior(model, shot, tuple(responses.released), split)


def _beginner(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the inputs, or raise ValueError if the model cannot begin as a head on its own features."""
    if not isinstance(inputs, Tensor):
        raise ValueError("inputs is a tuple, and begin is for models of one tensor; leave begin out")
    body_and_last(model)
    return inputs


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows that respond together, at one ε, and the file that keeps their responses."""

    rows: npt.NDArray[np.intp]
    epsilon: float
    kept: Path | None


class _Responses:
    """All responses so far, as a learner may know them."""

    def __init__(self, vault: LabelVault, sets: Sets, scores: Tensor) -> None:
        self._vault, self._sets = vault, sets
        # Rows without a response have no evidence: the likelihood passes them over, the posterior is the prior.
        self._responses, self._evidence = scores.argmax(dim=1), torch.zeros_like(scores)
        self._prior, self._settled = scores, torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        self.released: list[NoisyLabels] = []

    def draw(self, blocks: Sequence[_Block], scores: Tensor) -> None:
        """Release the responses of a stage's rows under the prior."""
        for block in blocks:
            place = torch.from_numpy(block.rows).to(scores.device)
            prior = scores[place].softmax(dim=1).cpu().double().numpy()
            mechanism = TopKResponse(block.epsilon, self._sets(prior, block.epsilon))
            private = release_labels(self._vault, mechanism, block.rows, block.kept)
            self._responses[place] = torch.from_numpy(private.hard()).to(place.device)
            self._evidence[place] = evidence(private, place.device)
            self.released.append(private)

    def known(self, scores: Tensor) -> Known:
        """Return what is known under these scores as prior."""
        return Known(self._responses, self._evidence, scores)

    def honest(self, rows: npt.NDArray[np.intp], scores: Tensor) -> Known:
        """Return what is known, every row's prior from before its response, as confident as the responses allow.

        The scores know nothing of the responses of these rows. They may know those of earlier stages, whose rows keep
        the priors that they had.
        """
        place = torch.from_numpy(rows).to(scores.device)
        prior = scores * scale_by_responses(scores[place], self._evidence[place])
        prior[self._settled] = self._prior[self._settled]
        self._settled[place] = True
        self._prior = prior
        return Known(self._responses, self._evidence, prior)

    def digested(self) -> npt.NDArray[np.int64]:
        """Return what names a checkpoint: all responses so far."""
        return self._responses.cpu().numpy()


def tune_split(
    features: Tensor,
    num_classes: int,
    epsilon: float,
    delta: float,
    *,
    shares: Sequence[float] = SHARES,
    head: Head = ridge_head,
    clusterings: int = 3,
    seed: int = 0,
) -> Split:
    """Return the split for which most responses would be right, were clusters the labels. No true label is touched.

    For each share of ε: a head from pseudo-labels at the noise of ε₁, honest probabilities of held-out rows from it,
    and the chance that RRWithPrior under these, at ε₂, responds with the pseudo-label:

        P(ỹ = y) = e^ε₂/(e^ε₂ + |S| − 1) if y is in the row's set S, else 0.

    Two clusters make a pseudo-class: so few that heads do about as well on them as on real classes.
    """
    stage = Stage(features, num_classes, clusterings=clusterings, per_class=2, seed=seed)
    splits = [split_budget(epsilon, delta, (share, 1 - share), last_pure=True) for share in shares]
    found = [Split(first, second, _expected(stage, head, first, second, delta)) for first, second in splits]
    return max(found, key=lambda split: split.expected)


def _expected(stage: Stage, head: Head, first: float, second: float, delta: float) -> float:
    noise = noise_by_width(noise_for(first, delta))
    found = tune(stage.features, stage.num_classes, noise, heads=[head], draws=1, stage=stage)
    right: list[float] = []
    for scores, labels in stage.play(found.plan, head, noise, 1):
        channel = PriorResponse(second, torch.softmax(found.scales[0].value * scores, dim=1).cpu().double().numpy())
        inside = channel.members()[np.arange(len(labels)), labels.cpu().numpy()]
        right.append(float(np.mean(inside / (1.0 + (channel.set_sizes() - 1.0) * math.exp(-second)))))
    return float(np.mean(right))


def _check_split(split: Split, epsilon: float, delta: float) -> None:
    if not 0 < split.part <= 1:
        raise ValueError(f"split.part={split.part} is no share of the rows; give a number above 0 and at most 1")
    queries = (Query(event_of(noise_for(split.first, delta))), Query(PureDP(split.second)))
    cost = epsilon_of(queries if split.second > 0 else queries[:1], delta)
    if not cost <= epsilon * (1 + 1e-12):
        raise ValueError(f"split costs ε = {cost:.6g}, more than epsilon={epsilon}; see budget.split_budget")
