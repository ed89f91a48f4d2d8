"""Heads from a noisy moment and the features of all rows: ridge, softmax regression, projection onto what is possible.

Every head is a function (noisy, features, gram, *, constant=None) → weights (K, d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from labeldp.learning.moments import Axes, as_tensor, eigenbasis, ridge, shrinkage
from labeldp.learning.simplex import project_to_simplex
from labeldp.releases import NoisyMoments

# Logits held at once, in floats: 4 MB stay near a CPU's cache, 256 MB keep a GPU busy.
_CPU_CELLS, _GPU_CELLS = 1 << 20, 1 << 26
_CHECK_EVERY = 10


class Head(Protocol):
    """A way from a noisy moment to a linear head."""

    def __call__(
        self, noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None
    ) -> Tensor:
        """Weights (K, d) for the same features as the moment was made of."""
        ...


def ridge_head(noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None) -> Tensor:
    """`ridge`, which needs no features but their Gram matrix: the best head where noise is large."""
    _check_rows(noisy, features)
    return ridge(noisy, gram, constant=constant)


def hull_head(noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None) -> Tensor:
    """`ridge` on the moment's projection onto the `hull`, with the noise that is left."""
    axes = eigenbasis(gram)
    nearest = hull(noisy, features, axes)
    return ridge(noisy, axes, value=nearest.value, noise_std=nearest.noise_std, constant=constant)


# -- softmax regression ---------------------------------------------------------------------------------------


def softmax_head(
    noisy: NoisyMoments,
    features: Tensor,
    gram: Tensor | Axes,
    *,
    constant: int | None = None,
    strength: float = 3.0,
    steps: int = 50,
) -> Tensor:
    """Softmax regression with the noisy moment in place of the labels; weights (K, d).

    min over W of Σ_i lse(Wφ_i) − ⟨W, S̃⟩ + ½ Σ_j ρ_j |w_j|², w_j the part of W along eigenvector j of the Gram matrix.
    With the true S this is the penalised log-likelihood, exactly: the labels enter through S alone. The penalty follows
    from the noise. Around W = 0 the gradient moves by c_j = λ_j/K per unit of w_j and has an error of variance
    s² + c_j; for w_j of variance τ_j² the best linear estimate has ρ_j = (s² + c_j)/(c_j·τ_j²), where τ_j² = v_j/c_j²
    with the signal's variance v_j as in `ridge`. Where rows are confidently classified the curvature is smaller than
    c_j, about a third of it in our measurements; `strength` is that factor.

    Better than `ridge` where noise is small; worse where it is large, because a saturated softmax answers noise with
    large weights. Which of the two: `labeldp.learning.rehearsal`.

    Solved by L-BFGS (Liu and Nocedal 1989) in the eigenbasis, scaled by the curvature, over all rows at every step.

    Args:
        noisy: the moment.
        features: the same features as it was made of, (n, d), on the device where the work is to be done.
        gram: Φ'Φ of them, or its `eigenbasis`.
        constant: as in `ridge`.
        strength: the penalty is this many times the one above.
        steps: at most so many steps.

    >>> import numpy as np
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    >>> sums = np.array([[1.0, 0.0], [0.5, 1.5]])
    >>> exact = NoisyMoments(sums, sums.sum(axis=0), 3, "none", noise_std=0.0, radius=1.0)
    >>> (x @ softmax_head(exact, x, x.T @ x, strength=0.01).T).argmax(dim=1)
    tensor([0, 1, 1])
    """
    _check_rows(noisy, features)
    found = shrinkage(noisy, gram, constant=constant)
    curvature = found.axes.values / noisy.num_classes
    penalty = strength * found.noise * _over(curvature, found.signal)
    # Directions without signal or without features get no weight.
    scale = torch.where(found.signal * curvature > 0, (curvature + penalty).rsqrt(), 0.0)
    turn = (found.axes.vectors * scale).to(features)
    penalty = torch.where(scale > 0, penalty * scale.square(), 0.0).to(features)
    moment = as_tensor(noisy.value, features)
    # In units of the rows: the optimiser's tolerances are then about one row's gradient.
    problem = _Softmax(features, moment, turn, penalty, 1.0 / max(noisy.num_rows, 1))
    return problem.solve(torch.zeros_like(moment), steps) @ turn.T


def _over(curvature: Tensor, signal: Tensor) -> Tensor:
    """c/v, and 0 where nothing is left of either."""
    return torch.where(signal > 0, curvature / signal.clamp_min(1e-300), 0.0)


class _Softmax:
    """The objective in rotated and scaled weights V (K, d), W = V·turnᵀ, divided by the number of rows."""

    def __init__(self, features: Tensor, moment: Tensor, turn: Tensor, penalty: Tensor, scale: float) -> None:
        self.features = features
        self.moment = moment
        self.turn = turn
        self.penalty = penalty
        self.scale = scale

    def solve(self, start: Tensor, steps: int) -> Tensor:
        weights = start.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            [weights], max_iter=steps, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-7
        )

        def closure() -> Tensor:
            value, weights.grad = self.value_and_slope(weights.detach())
            return value

        # The line search asks for the value as a number: a few waits per step, each of which reads all rows.
        optimizer.step(closure)
        return weights.detach()

    def value_and_slope(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        plain = weights @ self.turn.T
        value = 0.5 * (self.penalty * weights.square()).sum() - (plain * self.moment).sum()
        slope = -self.moment.clone()
        for rows in _chunks(self.features, len(weights)):
            logits = rows @ plain.T
            top = torch.logsumexp(logits, dim=1, keepdim=True)
            value = value + top.sum()
            slope.addmm_((logits - top).exp_().T, rows)
        return value * self.scale, (slope @ self.turn + self.penalty * weights) * self.scale


# -- the hull of all rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Hull:
    """The nearest moment that some labels could have, and how near to the nearest it surely is.

    Args:
        value: Σ_i α_i ⊗ φ_i with every α_i in the simplex, (K, d) in float64.
        noise_std: deviation of the noise that is left, for `ridge`: s·√(1 − |S̃ − value|²/E|noise|²).
        gap: the duality gap, in units of the objective ½|S̃ − value|².
        steps: how many were taken.
        labels: α, (n, K), the soft labels that give it.
    """

    value: Tensor
    noise_std: float
    gap: float
    steps: int
    labels: Tensor


def hull(
    noisy: NoisyMoments,
    features: Tensor,
    gram: Tensor | Axes,
    *,
    tolerance: float = 0.01,
    most: int = 500,
) -> Hull:
    """The nearest point to the noisy moment in {Σ_i α_i ⊗ φ_i : α_i in the simplex}, over all rows.

    The true moment lies in that set, with α_i = onehot(y_i), whatever the labels; noise has no reason to. Projecting
    onto a convex set that holds the truth never takes the estimate further from it. Accelerated projected gradient
    with restarts (Beck and Teboulle 2009; O'Donoghue and Candès 2015), step 1/λ_max(Φ'Φ); stops when the duality gap
    Σ_i ⟨α_i, g_i⟩ − min_k g_ik, g = ∇ of ½|S̃ − Σ α ⊗ φ|², is at most `tolerance` of the objective.

    Args:
        noisy: the moment.
        features: the same features as it was made of, (n, d), on the device where the work is to be done.
        gram: Φ'Φ of them, or its `eigenbasis`.
        tolerance: relative gap to stop at.
        most: at most so many steps; each reads the features twice.
    """
    _check_rows(noisy, features)
    target = as_tensor(noisy.value, features)
    bound = max(1.01 * float(eigenbasis(gram).values[0]), 1e-30)
    alpha = torch.full((len(features), noisy.num_classes), 1.0 / noisy.num_classes).to(features)
    ahead, momentum, step = alpha, torch.ones((), dtype=features.dtype, device=features.device), 0
    for step in range(1, most + 1):
        moved = project_to_simplex(ahead - _correlate(features, ahead.T @ features - target) / bound)
        momentum, ahead = _next(momentum, ahead, alpha, moved)
        alpha = moved
        # A number is waited for only now and then.
        if step % _CHECK_EVERY == 0 and _gap(features, alpha, target) <= tolerance:
            break
    value = (alpha.T @ features).double()
    return Hull(value, _noise_left(noisy, value), _gap(features, alpha, target), step, alpha)


def _next(momentum: Tensor, ahead: Tensor, before: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Momentum and the point to step from; the momentum starts again when the last step went against it."""
    push = moved - before
    momentum = torch.where(((ahead - moved) * push).sum() > 0, torch.ones_like(momentum), momentum)
    after = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
    return after, moved + ((momentum - 1) / after) * push


def _gap(features: Tensor, alpha: Tensor, target: Tensor) -> float:
    residual = alpha.T @ features - target
    slope = _correlate(features, residual)
    gap = (slope * alpha).sum(dtype=torch.float64) - slope.amin(dim=1).sum(dtype=torch.float64)
    objective = 0.5 * residual.double().square().sum()
    return max(0.0, float(gap / objective.clamp_min(1e-12)))


def _correlate(features: Tensor, residual: Tensor) -> Tensor:
    return features @ residual.T


def _noise_left(noisy: NoisyMoments, value: Tensor) -> float:
    """The noise less what the projection took off; at least a tenth, since it cannot be told apart that finely."""
    expected = noisy.noise_std**2 * (noisy.num_classes - 1) * value.shape[1]
    if expected == 0:
        return 0.0
    removed = float((as_tensor(noisy.value, value) - value).square().sum())
    return noisy.noise_std * math.sqrt(max(0.1, 1.0 - removed / expected))


# -- shared -------------------------------------------------------------------------------------------------------


def _chunks(features: Tensor, columns: int) -> Iterator[Tensor]:
    cells = _GPU_CELLS if features.is_cuda else _CPU_CELLS
    yield from features.split(max(1, cells // max(columns, 1)))


def _check_rows(noisy: NoisyMoments, features: Tensor) -> None:
    shape = (noisy.num_rows, noisy.value.shape[1])
    if tuple(features.shape) != shape:
        raise ValueError(f"features has shape {tuple(features.shape)}; the moment is of {shape}: give the same rows")
