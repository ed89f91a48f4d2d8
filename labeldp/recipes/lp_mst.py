"""LP-MST: multi-stage training with randomized response under the previous stage's prior (Ghazi et al. 2021).

    split the rows into S₁ … S_T, without their labels
    for t = 1 … T:  p = softmax(model_{t−1} / τ) on S_t (uniform for t = 1)
                    ỹ = RRWithPrior(y; p) on S_t
                    train model_t on ỹ of S₁ … S_t, warm-started from model_{t−1}

Every row responds in one stage only, and its prior comes from other rows' responses: by parallel composition the whole
run costs ε, not T·ε, even if all responses and models are published. The vault's ledger says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import Objective, evidence, forward_loss, on_classes, on_targets, posterior
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.responses import PriorResponse
from labeldp.recipes.arguments import Fit, checked, device_of
from labeldp.recipes.kept import checkpoint_of, in_folder, release_labels


@dataclass(frozen=True)
class Known:
    """What a stage may learn from: all responses so far, and the scores of the previous stage's model, on the device.

    `responses` (n,) is −1 and `evidence` (n, K) zero for rows without one; `scores` (n, K) is None in stage one.
    """

    responses: Tensor
    evidence: Tensor
    scores: Tensor | None


Learn = Callable[[Known], Objective]


def hard_responses(known: Known) -> Objective:
    """Return cross-entropy with the responses taken at their word, as published."""
    return on_classes(known.responses)


def likelihood(known: Known) -> Objective:
    """Return the exact likelihood of the responses: no mixup needed, and one without information teaches nothing."""
    return lambda logits, rows: forward_loss(logits, known.evidence[rows])


def posterior_of_model(known: Known) -> Objective:
    """Return cross-entropy with the posterior under the previous model as prior; the likelihood in stage one.

    Self-training with evidence: rows whose response has no information are learnt from the previous model alone. A
    heuristic: that model has seen the earlier rows' responses already, so for those rows the evidence counts twice.
    """
    if known.scores is None:
        return likelihood(known)
    return on_targets(posterior(known.evidence, log_softmax(known.scores, dim=1)))


@dataclass(frozen=True)
class Prior:
    """A public guess for every row, (n, K), and its weight against the model's: w·guess + (1 − w)·model."""

    guess: npt.ArrayLike
    weight: float


@checked
def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    fit: Fit | Sequence[Fit],
    shares: Sequence[float] = (0.6, 0.4),
    temperature: float = 0.5,
    prior: Prior | None = None,
    learn: Learn = hard_responses,
    keep_plausible: bool = True,
    seed: int = 0,
    folder: Path | None = None,
) -> nn.Module:
    """Train in `len(shares)` stages at `epsilon` in all; one stage is LP-1ST.

    Args:
        fit: the training algorithm, one for all stages or one for each (a later stage wants less mixup).
        shares: the part of the rows in each stage; they add up to 1.
        temperature: τ of the prior; below 1 it trusts the model more. 0 takes the model's first choice only.
        prior: public knowledge to mix in.
        learn: what to minimise: `hard_responses` (published), `likelihood` or `posterior_of_model`.
        keep_plausible: train stage t only on those earlier responses that are among the previous model's k likeliest
            classes, k being the mean number of allowed classes in stage t, rounded.
        seed: of the split.
        folder: keeps each stage's responses and checkpoint, so that a killed run goes on and draws nothing twice.
    """
    check_learn(learn, vault.num_classes)
    stages = split(len(vault), shares, seed)
    fits = list(fit) if isinstance(fit, Sequence) else [fit] * len(stages)
    if len(fits) != len(stages):
        raise ValueError(f"fit has {len(fits)} entries for {len(stages)} stages; give one, or one for each stage")
    device, responses = device_of(model), torch.full((len(vault),), -1, dtype=torch.long)
    seen = torch.zeros(len(vault), vault.num_classes)
    released = torch.zeros(len(vault), dtype=torch.bool)
    for number, (rows, fit_stage) in enumerate(zip(stages, fits, strict=True), start=1):
        scores = predict(model, inputs).cpu() if number > 1 else None
        belief = stage_prior(scores, rows, vault.num_classes, temperature, prior)
        private = release_labels(
            vault, PriorResponse(epsilon, belief), rows, in_folder(folder, f"responses-{number}.npz")
        )
        keep = released.clone()
        if scores is not None and keep_plausible:
            keep &= plausible(scores, responses, mean_set_size(private))
        responses[rows], seen[rows] = torch.from_numpy(private.hard()), evidence(private)
        released[rows] = keep[rows] = True
        known = Known(responses.to(device), seen.to(device), None if scores is None else scores.to(device))
        settings = checkpoint_of(folder, responses.numpy(), keep.numpy())
        model = fit_stage(model, inputs, learn(known), rows=keep.nonzero().squeeze(1).to(device), **settings)
    return model


def check_learn(learn: Learn, num_classes: int) -> None:
    """Raise ValueError unless `learn` makes a loss of responses: tried on three made-up rows, before any is drawn."""
    scores = torch.zeros(3, num_classes)
    for seen in (None, scores):
        objective = learn(Known(torch.arange(3) % num_classes, torch.zeros_like(scores), seen))
        if not callable(objective) or tuple(objective(scores, torch.arange(3)).shape) != (3,):
            raise ValueError(f"learn={learn!r} makes no loss per row; give, say, lp_mst.likelihood")


def split(num_rows: int, shares: Sequence[float], seed: int) -> list[npt.NDArray[np.intp]]:
    """Return row numbers of each stage, by a seeded shuffle that never saw a label; sorted within a stage."""
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares={tuple(shares)} do not split the rows; give positive numbers that add up to 1")
    order = np.random.default_rng(seed).permutation(num_rows)
    cuts = np.round(np.cumsum(shares)[:-1] * num_rows).astype(int)
    stages = [np.sort(part) for part in np.split(order, cuts)]
    if any(len(stage) == 0 for stage in stages):
        raise ValueError(f"{len(stages)} stages leave one without rows ({num_rows} in all); use fewer stages")
    return stages


def stage_prior(
    scores: Tensor | None, rows: npt.NDArray[np.intp], num_classes: int, temperature: float, prior: Prior | None
) -> npt.NDArray[np.float64]:
    """Return the prior of a stage's rows: the model's, sharpened, with the public one mixed in. (K,) when uniform."""
    if scores is None and prior is None:
        return np.full(num_classes, 1.0 / num_classes)
    belief = np.full((len(rows), num_classes), 1.0 / num_classes)
    if scores is not None:
        belief = sharpened(scores[torch.from_numpy(rows)], temperature)
    if prior is None:
        return belief
    if not 0 <= prior.weight <= 1:
        raise ValueError(f"prior.weight={prior.weight} is not a weight; give a number from 0 to 1")
    guess = np.asarray(prior.guess, dtype=np.float64)[rows]
    return prior.weight * guess + (1 - prior.weight) * belief


def sharpened(scores: Tensor, temperature: float) -> npt.NDArray[np.float64]:
    """Return softmax(scores / τ); at τ = 0 all weight is on the first choice, shared between ties."""
    if not temperature >= 0:
        raise ValueError(f"temperature={temperature} is negative; give a number ≥ 0")
    if temperature == 0:
        best = (scores == scores.amax(dim=1, keepdim=True)).double()
        return (best / best.sum(dim=1, keepdim=True)).numpy()
    return torch.softmax(scores.double() / temperature, dim=1).numpy()


def mean_set_size(private: object) -> int:
    """Return the mean number of allowed classes, rounded: a mean of 1.86 is 2."""
    channel = private.channel  # type: ignore[attr-defined]
    return max(1, round(float(np.mean(channel.set_sizes()))))


def plausible(scores: Tensor, responses: Tensor, k: int) -> Tensor:
    """Return which rows' response is among the model's k likeliest classes; rows without one are not."""
    own = scores.gather(1, responses.clamp_min(0)[:, None])
    rank = (scores > own).sum(dim=1)
    return (rank < k) & (responses >= 0)
