"""Turn a noisy moment and public features into a linear head with honest probabilities: ridge and softmax regression.

Least squares for the one-hot label on features φ (Gram matrix G = Σ φφᵀ) is W = S G^{-1} with the label-feature moment
S = Σ onehot(y) ⊗ φ. Only S is private, and in the eigenbasis of G its noise is white, so that each direction can be
shrunk by itself, by noise that is known exactly. All of it is post-processing of `NoisyMoments` with public features;
no choice here needs a true label. Every head is a function (noisy, features, gram, *, constant=None) → weights (K, d).
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from labeldp.learning.evidence import project_to_simplex
from labeldp.releases import NoisyMoments

# Directions in which the features hardly vary: their share of the largest eigenvalue is rounding.
_FLAT = 1e-9
_LARGEST_EXPONENT = 4.0
# Points per axis of the grid on which the likelihood is maximised.
_GRID = 15
# Logits held at once, in floats: 4 MB stay near a CPU's cache, 256 MB keep a GPU busy.
_CPU_CELLS, _GPU_CELLS = 1 << 20, 1 << 26
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-3, 1e4
# Halvings of the interval of its logarithm: what is left is a millionth.
_HALVINGS = 24
# How far the scale of clusters may be from that of real classes at the least, and where one clustering is all there is.
_LEAST_SPREAD, _UNKNOWN_SPREAD = 0.2, 0.5
# Scores whose softmax is evaluated: the sum over all rows is needed to a per cent only.
_CELLS = 1 << 16
_SCALES = 97
# Between which `scale_by_responses` searches, a step of it being six per cent.
_SOFTEST, _SHARPEST = 0.05, 20.0
# Of slope and levels: scores whose softmax is evaluated at every step, and steps at most.
_LEVEL_CELLS, _STEPS = 1 << 17, 50
# Of a slope that nothing else would hold, where there is no noise; how far a logit may go in one of Newton's steps.
_KAPPA, _FURTHEST = 1e-6, 4.0


@dataclass(frozen=True, eq=False)
class Axes:
    """The eigenbasis of a Gram matrix, in float64.

    Args:
        values: eigenvalues λ_j, falling, (d,); zero where the features hardly vary.
        vectors: the eigenvectors, (d, d), one per column.
    """

    values: Tensor
    vectors: Tensor

    def inverse(self) -> Tensor:
        """Return 1/λ_j, and 0 where λ_j is 0, (d,)."""
        return torch.where(self.values > 0, 1.0 / self.values.clamp_min(1e-300), 0.0)


@dataclass(frozen=True, eq=False)
class EstimatedMoments(NoisyMoments):
    """The moment of some rows as that of many more has it, so that labels scatter less in it than in one of their own.

    Args:
        scatter: the variance of random labels given the features, over that of labels of these rows alone.
    """

    scatter: float = 1.0


class Head(Protocol):
    """A way from a noisy moment to a linear head."""

    def __call__(
        self, noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None
    ) -> Tensor:
        """Return weights (K, d) for the same features as the moment was made of."""
        ...


def ridge_head(noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None) -> Tensor:
    """Return the weights of `ridge`, which needs no features but their Gram matrix: the best where noise is large."""
    _check_rows(noisy, features)
    return ridge(noisy, gram, constant=constant)


def softmax_head(
    noisy: NoisyMoments,
    features: Tensor,
    gram: Tensor | Axes,
    *,
    constant: int | None = None,
    strength: float = 3.0,
    steps: int = 50,
) -> Tensor:
    """Return weights (K, d): softmax regression with the noisy moment in place of the labels.

    min over W of Σ_i lse(Wφ_i) − ⟨W, S̃⟩ + ½ Σ_j ρ_j |w_j|², w_j the part of W along eigenvector j of the Gram matrix.
    With the true S this is the penalised log-likelihood, exactly: the labels enter through S alone. The penalty follows
    from the noise. Around W = 0 the gradient moves by c_j = λ_j/K per unit of w_j and has an error of variance
    s² + c_j; for w_j of variance τ_j² the best linear estimate has ρ_j = (s² + c_j)/(c_j·τ_j²), where τ_j² = v_j/c_j²
    with the signal's variance v_j as in `ridge`. Where rows are confidently classified the curvature is smaller than
    c_j, about a third of it in our measurements; `strength` is that factor.

    Better than `ridge` where noise is small; worse where it is large, because a saturated softmax follows noise with
    large weights. Which of the two: `labeldp.learning.tuning`.

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
    over_signal = torch.where(found.signal > 0, curvature / found.signal.clamp_min(1e-300), 0.0)
    penalty = strength * found.noise * over_signal
    # Directions without signal or without features get no weight.
    scale = torch.where(found.signal * curvature > 0, (curvature + penalty).rsqrt(), 0.0)
    turn = (found.axes.vectors * scale).to(features)
    penalty = torch.where(scale > 0, penalty * scale.square(), 0.0).to(features)
    moment = as_tensor(noisy.value, features)
    # In units of the rows: the optimiser's tolerances are then about one row's gradient.
    problem = _Softmax(features, moment, turn, penalty, 1.0 / max(noisy.num_rows, 1))
    return problem.solve(torch.zeros_like(moment), steps) @ turn.T


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

        # The line search needs the value as a number: a few waits per step, each of which reads all rows.
        optimizer.step(closure)
        return weights.detach()

    def value_and_slope(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        plain = weights @ self.turn.T
        value = 0.5 * (self.penalty * weights.square()).sum() - (plain * self.moment).sum()
        slope = -self.moment.clone()
        cells = _GPU_CELLS if self.features.is_cuda else _CPU_CELLS
        for rows in self.features.split(max(1, cells // len(weights))):
            logits = rows @ plain.T
            top = torch.logsumexp(logits, dim=1, keepdim=True)
            value = value + top.sum()
            slope.addmm_((logits - top).exp_().T, rows)
        return value * self.scale, (slope @ self.turn + self.penalty * weights) * self.scale


def _check_rows(noisy: NoisyMoments, features: Tensor) -> None:
    shape = (noisy.num_rows, noisy.value.shape[1])
    if tuple(features.shape) != shape:
        raise ValueError(f"features has shape {tuple(features.shape)}; the moment is of {shape}: give the same rows")


# -- shrinkage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """The noisy moment in the eigenbasis of the Gram matrix, and how much of it is signal.

    Args:
        axes: the eigenbasis.
        shares: estimated share π_k of each class, (K,).
        contrasts: S̃ − π ⊗ total in the eigenbasis, (K, d).
        signal: estimated variance v_j of the true contrasts, per class, (d,).
        noise: their error's variance u_j, (d,): that of the added noise, and λ_j/K of random labels given the features.
        exponent: a of the power law v_j ∝ λ_j^a.
    """

    axes: Axes
    shares: Tensor
    contrasts: Tensor
    signal: Tensor
    noise: Tensor
    exponent: float

    @property
    def factors(self) -> Tensor:
        """Return v/(v + u): what is kept of each direction, (d,)."""
        return self.signal / (self.signal + self.noise).clamp_min(torch.finfo(self.signal.dtype).tiny)


def ridge(
    noisy: NoisyMoments,
    gram: Tensor | Axes,
    *,
    constant: int | None = None,
) -> Tensor:
    """Return weights (K, d): least squares on the noisy moment, each direction shrunk by its signal-to-noise ratio.

    W = π ⊗ G^{-1}t + Σ_j f_j·c_j ⊗ u_j/λ_j with the public total t, the contrasts c of S̃ − π ⊗ t in the eigenbasis
    (λ_j, u_j) of G, and f_j = v_j/(v_j + noise_j). The signal's variance follows a power law in the eigenvalue,
    v_j = c·λ_j^a, whose two numbers maximise the likelihood of the noisy moment (empirical Bayes; Efron and Morris
    1973): the noise is known, so what is more than noise is signal. Plain ridge has f_j = λ_j/(λ_j + ρ), whatever the
    noise.

    A row φ is given the class with the largest Wφ. Memory and time are those of one `eigenbasis`.

    Args:
        noisy: the moment.
        gram: Φ'Φ of the same features, (d, d), or its `eigenbasis`, on the device where the work is to be done.
        constant: the column whose moment shows how many rows each class has; None takes the classes as equally large.

    >>> import numpy as np
    >>> sums = np.array([[4.0, 0.0], [0.0, 2.0]])
    >>> exact = NoisyMoments(sums, sums.sum(axis=0), 6, "none", noise_std=0.0, radius=1.0)
    >>> ridge(exact, torch.diag(torch.tensor([4.0, 2.0]))).argmax(dim=1)
    tensor([0, 1])
    """
    found = shrinkage(noisy, gram, constant=constant)
    inverse = found.axes.inverse()
    total = as_tensor(noisy.total, inverse) @ found.axes.vectors
    rotated = found.shares[:, None] * (total * inverse) + found.contrasts * (found.factors * inverse)
    return (rotated @ found.axes.vectors.T).float()


def shrinkage(noisy: NoisyMoments, gram: Tensor | Axes, *, constant: int | None = None) -> Shrinkage:
    """Estimate how much of the noisy moment is signal, by direction; see `ridge`."""
    axes, (classes, width) = eigenbasis(gram), noisy.value.shape
    if len(axes.values) != width:
        raise ValueError(f"gram has {len(axes.values)} rows; the moment has {width} features: give ({width}, {width})")
    moment, total = as_tensor(noisy.value, axes.values), as_tensor(noisy.total, axes.values)
    shares = class_shares(moment, total, noisy.noise_std, constant)
    contrasts = (moment - shares[:, None] * total) @ axes.vectors
    spread = float((shares * (1 - shares)).sum()) / max(classes - 1, 1)
    spread *= noisy.scatter if isinstance(noisy, EstimatedMoments) else 1.0
    noise = noisy.noise_std**2 + spread * axes.values
    power = contrasts.square().sum(dim=0) / max(classes - 1, 1)
    signal, exponent = power_law(power, axes.values, noise)
    return Shrinkage(axes, shares, contrasts, signal, noise, exponent)


def eigenbasis(gram: Tensor | Axes) -> Axes:
    """Return eigenvalues and eigenvectors of Φ'Φ, values that are only rounding as zero; an eigenbasis as it is.

    One eigendecomposition, (d, d) in float64: seconds for d = 10³ on a CPU, minutes for 10⁴ (seconds on a GPU).
    """
    if isinstance(gram, Axes):
        return gram
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not math.isfinite(float(gram.sum())):
        raise ValueError(f"gram has shape {tuple(gram.shape)} or is not finite; give Φ'Φ, (d, d), of finite features")
    values, vectors = torch.linalg.eigh(gram.double())
    values, vectors = values.flip(0), vectors.flip(1)
    return Axes(torch.where(values > _FLAT * values[0].clamp_min(0.0), values, 0.0), vectors)


def class_shares(moment: Tensor, total: Tensor, noise_std: float, constant: int | None = None) -> Tensor:
    """Return the share of rows in each class, (K,), from the moment of a constant feature; equal where there is none.

    π̃_k = S̃_k/Σ_i φ_i has noise of a known deviation; it is shrunk towards 1/K by what its spread exceeds that noise,
    and brought into the simplex.
    """
    classes = len(moment)
    equal = torch.full((classes,), 1.0 / classes, dtype=torch.float64, device=moment.device)
    if constant is None or classes == 1:
        return equal
    weight = total[constant]
    offset = moment[:, constant] / weight - equal
    noise = (noise_std / weight).square()
    signal = (offset.square().sum() / (classes - 1) - noise).clamp_min(0.0)
    return project_to_simplex(equal + offset * (signal / (signal + noise).clamp_min(1e-300)))


def power_law(power: Tensor, values: Tensor, noise: Tensor) -> tuple[Tensor, float]:
    """Return the signal variance v_j = c·λ_j^a for which squares `power` of mean v_j + noise_j are likeliest, and a.

    Gaussian likelihood: −Σ_j log(v_j + u_j) + power_j/(v_j + u_j), over 0 ≤ a ≤ 4 and all c, by a grid that is refined
    five times, for groups of directions with neighbouring λ_j where there are many. Zero where λ_j is zero.
    """
    used = values > 0
    scale = torch.where(used, values / values[0].clamp_min(1e-300), 1.0).log()
    counts, *sums = _grouped(torch.stack((used.to(scale), power * used, scale * used, noise * used)))
    level, exponent = _likeliest(counts, *(part / counts.clamp_min(1.0) for part in sums))
    return torch.exp(level + exponent * scale) * used, float(exponent)


def _likeliest(counts: Tensor, power: Tensor, scale: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return log c and a, from the means over groups of directions."""
    largest = (power * (counts > 0)).amax().clamp_min(1e-300).log()
    grid = torch.linspace(-1, 1, _GRID, dtype=scale.dtype, device=scale.device)
    # A signal of a millionth of the largest entry cannot be distinguished from none.
    centre, reach = torch.stack((torch.full_like(largest, 2.0), largest - 5.5)), scale.new_tensor([2.0, 8.5])
    for _ in range(6):
        exponents = (centre[0] + reach[0] * grid).clamp(0.0, _LARGEST_EXPONENT)
        levels = centre[1] + reach[1] * grid
        # A variance of nothing has no logarithm, and groups without directions do not count.
        variance = (torch.exp(levels[:, None] + exponents[:, None, None] * scale) + noise).clamp_min(1e-300)
        fit = -((variance.log() + power / variance) * counts).sum(dim=-1)
        place = fit.argmax()
        centre = torch.stack((exponents[place // _GRID], levels[place % _GRID]))
        # Not faster: the two go together, and the best point of a coarse grid can lie along the valley.
        reach = reach * 0.45
    return centre[1], centre[0]


def _grouped(columns: Tensor) -> Tensor:
    """Add up groups of neighbouring columns, (m, d) → (m, groups): the first 32 each alone, then 16 to a doubling."""
    width = columns.shape[1]
    edges = sorted({*range(min(width, 32) + 1), *(round(32 * 2 ** (k / 16)) for k in range(1, 480)), width})
    edges = torch.tensor([edge for edge in edges if edge <= width], device=columns.device)
    summed = torch.nn.functional.pad(columns.cumsum(dim=1), (1, 0))
    return summed[:, edges].diff(dim=1)


def as_tensor(array: object, like: Tensor) -> Tensor:
    """Return a copy in the type and on the device of another tensor."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


# -- honest probabilities ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A factor t for softmax(t·scores), and the standard deviation of its logarithm."""

    value: float
    spread: float


def pooled_scale(values: Iterable[float]) -> Scale:
    """Return their geometric mean, and how far apart they are.

    >>> pooled_scale([1.0, 1.0, 1.0])
    Scale(value=1.0, spread=0.2)
    """
    logs = np.log(np.fromiter(values, dtype=np.float64))
    spread = max(_LEAST_SPREAD, float(logs.std(ddof=1))) if len(logs) > 1 else _UNKNOWN_SPREAD
    return Scale(math.exp(float(logs.mean())), spread)


def likeliest_scale(scores: Tensor, gain: Tensor) -> float:
    """Return the t in [10⁻³, 10⁴] that maximises t·gain − Σ_i lse(t·s_i), for scores s (n, K).

    That is the log-likelihood of labels whose own scores add up to `gain`. It is concave in t; the zero of its slope is
    found by halving.

    >>> round(likeliest_scale(torch.tensor([[1.0, 0.0]]), torch.tensor(0.75)), 3)
    1.099
    """
    low, high = math.log(_SMALLEST_SCALE), math.log(_LARGEST_SCALE)
    lowest, highest = (torch.full_like(gain, edge, dtype=torch.float64) for edge in (low, high))
    for _ in range(_HALVINGS):
        middle = (lowest + highest) / 2
        rising = gain > _expected_gain(scores, middle.exp())
        lowest, highest = torch.where(rising, middle, lowest), torch.where(rising, highest, middle)
    return math.exp(float(lowest + highest) / 2)


def softened(scores: Tensor, confidence: float) -> Tensor:
    """Return t·scores, t ≤ 1 such that the mean largest probability is `confidence`, or less where it was less before.

    For networks that were trained to be sure of their own guesses, and are surer than they are right.

    >>> softened(torch.tensor([[4.0, 0.0]]), 0.75).softmax(dim=1)
    tensor([[0.7500, 0.2500]])
    """
    if not 0 < confidence <= 1:
        raise ValueError(f"confidence={confidence} is no share of rows; give a number above 0 and at most 1")
    low, high = 0.0, 1.0
    if float(torch.softmax(scores, dim=1).amax(dim=1).mean()) <= confidence:
        return scores
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        sure = float(torch.softmax(middle * scores, dim=1).amax(dim=1).mean()) > confidence
        low, high = (low, middle) if sure else (middle, high)
    return (low + high) / 2 * scores


def scale_by_responses(scores: Tensor, evidence: Tensor) -> float:
    """Return the t for which the responses are likeliest if softmax(t·scores) were the rows' class probabilities.

        t = argmax Σ_i log Σ_c softmax(t·s_i)_c · P(response_i | c)

    One number from all responses, which were paid for. It is honest where the scores have not seen these responses.

    Args:
        scores: (n, K), not made with these responses.
        evidence: log P(response | c) of each row, (n, K), up to a constant of the row (`learning.evidence.evidence`).
    """
    steps = torch.linspace(math.log(_SOFTEST), math.log(_SHARPEST), _SCALES, dtype=torch.float64).exp()
    likely = [
        torch.logsumexp(torch.log_softmax(float(t) * scores.float(), dim=1) + evidence.float(), dim=1).sum()
        for t in steps
    ]
    return float(steps[int(torch.stack(likely).argmax())])


def honest_scale(
    head: Head,
    noisy: NoisyMoments,
    rows: Tensor,
    axes: Axes,
    tuned: Scale,
    *,
    constant: int | None = None,
    draws: int = 4,
    part: float = 0.5,
    seed: int = 0,
) -> float:
    """Return the factor t for which softmax(t·Wφ) are honest probabilities, from label-free tuning and the release.

    Honest means Σ_i Σ_k p_ik·s_ik = Σ_i s_{i,y_i} for the scores s = Wφ (t maximises the likelihood of the labels), and
    the right side is ⟨W, S⟩: it needs no more of the labels than the moment. With S̃ for S it would praise a W that fits
    the noise. So the noise, whose distribution is known, is split: for η distributed as the noise,

        S₁ = S̃ + a·η   and   S₂ = S̃ − η/a

    have uncorrelated errors (independent ones, if Gaussian). W is fitted to S₁ and judged by S₂, as if S₂ were another
    release (coupled bootstrap; Oliveira, Lei and Tibshirani 2021). ⟨W, S₂⟩ has an error of known deviation, which is
    large where ε is small; the t of label-free tuning, with its spread, is the prior it is weighed against: what is
    returned is the likeliest under both.

    Args:
        head: how W is found from a moment.
        noisy: the moment.
        rows: the features it was made of, (n, d).
        axes: the eigenbasis of their Gram matrix.
        tuned: the scale of label-free tuning.
        constant: as in `ridge`.
        draws: splits of the noise.
        part: a.
        seed: of η and of the rows sampled; public, for nothing is protected by it.
    """
    order = torch.randperm(len(rows), generator=Generator().manual_seed(seed))
    some = rows[order[: max(256, _CELLS // noisy.num_classes)].to(rows.device)]
    gains, sizes, scores = [], [], []
    for draw in range(draws if noisy.noise_std > 0 else 1):
        fitted, judge = split_noise(noisy, part, seed + draw)
        weight = head(fitted, rows, axes, constant=constant).to(rows)
        gains.append((weight * as_tensor(judge.value, weight)).sum(dtype=torch.float64))
        sizes.append((weight - weight.mean(dim=0)).double().square().sum())
        scores.append(some @ weight.T)
    gain, error = torch.stack(gains).mean(), torch.stack(sizes).mean().sqrt()
    error = error * noisy.noise_std * math.sqrt(1 + 1 / (part**2 * len(gains)))
    steps = torch.linspace(-6, 6, _SCALES, dtype=torch.float64, device=gain.device)
    together, share = torch.cat(scores), len(rows) / (len(some) * len(scores))

    @functools.cache
    def found(step: int) -> Tensor:
        return _expected_gain(together, tuned.value * (tuned.spread * steps[step]).exp()) * share

    # What is expected grows with the scale: the best step lies between the prior's and the first that expects the gain,
    # and no step is better than its distance from the prior.
    first, prior = bisect_left(range(_SCALES), True, key=lambda step: bool(found(step) >= gain)), _SCALES // 2
    towards = range(prior, min(first, _SCALES - 1) + 1) if first > prior else range(prior, max(first - 2, -1), -1)
    # The rows sampled are some of all: an error of a per cent or so in itself.
    doubt = error.square() + (0.01 * gain).square() + 1e-30
    best, least = prior, math.inf
    for step in towards:
        away = float(steps[step]) ** 2
        if away > least:
            break
        distance = float((found(step) - gain).square() / doubt) + away
        best, least = (step, distance) if distance < least else (best, least)
    return tuned.value * math.exp(tuned.spread * float(steps[best]))


def split_noise(noisy: NoisyMoments, part: float, seed: int) -> tuple[NoisyMoments, NoisyMoments]:
    """Return two moments with uncorrelated noise, of √(1 + a²) and √(1 + 1/a²) times the deviation."""
    drawn = torch.randn(noisy.value.shape, generator=Generator().manual_seed(seed), dtype=torch.float64).numpy()
    noise = (drawn - drawn.mean(axis=0)) * noisy.noise_std
    return (
        replace(noisy, value=noisy.value + part * noise, noise_std=noisy.noise_std * math.hypot(1, part)),
        replace(noisy, value=noisy.value - noise / part, noise_std=noisy.noise_std * math.hypot(1, 1 / part)),
    )


def _expected_gain(scores: Tensor, scale: Tensor) -> Tensor:
    """Return Σ_i Σ_k p_ik·s_ik with p = softmax(t·s)."""
    weights = torch.softmax(scores * scale.to(scores), dim=1)
    return (weights * scores).sum(dtype=torch.float64)


# -- where a class is rare: one slope, and a level of every class ------------------------------------------------------


def levelled(
    head: Head,
    noisy: NoisyMoments,
    rows: Tensor,
    axes: Axes,
    constant: int,
    *,
    draws: int = 4,
    part: float = 0.5,
    seed: int = 0,
) -> tuple[Tensor, float]:
    """Return weights (K, d) with the constant's column fitted anew, and the slope a of the others: for rare classes.

    One factor on all scores (`honest_scale`) is settled by the frequent class. Where a class has one row in two hundred
    the probabilities of the rare one then hardly vary from row to row: they rank rows well, and whoever weighs the
    classes differently still finds all rows on one side. So every class has a level here.

    With scores s = Wφ of a head W without its constant, and φ_c the constant's feature, the likelihood of the labels
    under logits a·s_k + b_k·φ_c is

        a·⟨W, S⟩ + Σ_k b_k·S_kc − Σ_i lse_k(a·s_ik + b_k·φ_ic),

    in which the labels appear through their moment S alone, so that maximising it over a and b is post-processing. As
    in `honest_scale`, a W is fitted to S̃ + part·η and judged by S̃ − η/part, η distributed as the noise: judged by the
    S̃ it came from, it would be praised for fitting the noise. A class whose sum is lost in the noise counts as one
    deviation of it. The sum over i is estimated from some rows, and their mean score, by the classes' shares, is
    corrected to that of all rows (difference estimator).

    Where a head separates the classes, noise may ask for more than any slope reaches, and slope and levels would grow
    until all rows are of one class. So a slope costs ½κa² per row, κ the variance of the gain: then it stays of the
    order of one over the gain's deviation.

    Args:
        head: how W is found from a moment.
        noisy: the moment.
        rows: the features it was made of, (n, d).
        axes: the eigenbasis of their Gram matrix.
        constant: the column of the constant.
        draws, part, seed: as in `honest_scale`.
    """
    order = torch.randperm(len(rows), generator=Generator().manual_seed(seed))
    some = rows[order[: max(256, _LEVEL_CELLS // (draws * noisy.num_classes))].to(rows.device)]

    def bare(moment: NoisyMoments) -> Tensor:
        weight = head(moment, rows, axes, constant=constant).double()
        weight[:, constant] = 0.0
        return weight - weight.mean(dim=0)

    sums = as_tensor(noisy.value, some.double())[:, constant].clamp_min(max(noisy.noise_std, 1e-9))
    shares = sums / sums.sum()
    # Means over all rows of what all have in common: the rows sampled differ in it by more than a rare class adds.
    usual = as_tensor(noisy.total, shares) / noisy.num_rows - some.double().mean(dim=0)
    gains, sizes, scores = [], [], []
    for draw in range(draws if noisy.noise_std > 0 else 1):
        fitted, judge = split_noise(noisy, part, seed + draw)
        weight = bare(fitted)
        gains.append((weight * as_tensor(judge.value, weight)).sum() / noisy.num_rows - shares @ weight @ usual)
        sizes.append(weight.square().sum())
        scores.append(some.double() @ weight.T)
    together, gain, level = torch.cat(scores), torch.stack(gains).mean(), some[:, constant].double().repeat(len(scores))
    # In units in which a slope of 1 is neither much nor little.
    unit = together.std().clamp_min(1e-12)
    error = noisy.noise_std * math.sqrt((1 + 1 / part**2 / len(gains)) * float(torch.stack(sizes).mean()))
    kappa = max(_KAPPA, (error / noisy.num_rows / float(unit)) ** 2)
    slope, levels = _likeliest_levels(together / unit, level, gain / unit, shares * level.mean(), kappa)
    # A slope below zero would say that the head is wrong throughout: its rows are then all alike.
    found = max(slope / float(unit), 0.0)
    weight = found * bare(noisy)
    weight[:, constant] = levels
    return weight.to(rows), found


def _likeliest_levels(scores: Tensor, level: Tensor, gain: Tensor, sums: Tensor, kappa: float) -> tuple[float, Tensor]:
    """Maximise a·gain + Σ_k b_k·sums_k − mean_i lse_k(a·s_ik + b_k·c_i) − ½κa² by Newton's steps, halved as needed."""

    def loss(slope: Tensor, levels: Tensor) -> Tensor:
        lse = (slope * scores + levels * level[:, None]).logsumexp(dim=1).mean()
        return lse - slope * gain - levels @ sums + 0.5 * kappa * slope**2

    # From where all rows are alike, with the right sums.
    slope, levels = torch.zeros_like(gain), (sums / sums.sum()).log() / level.mean()
    now = loss(slope, levels)
    for _ in range(_STEPS):
        likely = torch.softmax(slope * scores + levels * level[:, None], dim=1)
        mean = (likely * scores).sum(dim=1)
        pull = torch.cat([(mean.mean() - gain + kappa * slope)[None], (likely * level[:, None]).mean(dim=0) - sums])
        along = (likely * scores.square()).sum(dim=1) - mean.square()
        across = (likely * (scores - mean[:, None]) * level[:, None]).mean(dim=0)
        weighted = likely * level[:, None]
        curved = torch.diag((weighted * level[:, None]).mean(dim=0)) - weighted.T @ weighted / len(level)
        top = torch.cat([(along.mean() + kappa)[None], across])
        curvature = torch.cat([top[None], torch.cat([across[:, None], curved], dim=1)])
        # Levels that all rise together change nothing: the smallest step that does what is needed.
        step = torch.linalg.pinv(curvature, hermitian=True, rtol=1e-12) @ pull
        # Where rows are sure of their class nothing curves, and a whole step would leave for good.
        moved = (step[0] * scores + step[1:] * level[:, None]).abs().amax()
        size = min(1.0, _FURTHEST / max(float(moved), 1e-300))
        while size > 1e-6 and not loss(slope - size * step[0], levels - size * step[1:]) <= now:
            size /= 2
        slope, levels = slope - size * step[0], levels - size * step[1:]
        before, now = now, loss(slope, levels)
        if size <= 1e-6 or before - now < 1e-12:
            break
    return float(slope), levels
