"""From a noisy moment to a linear head: ridge regression whose shrinkage comes from the noise, which is known exactly.

All of it is post-processing of `NoisyMoments` with public features; no choice here needs a true label. Least squares
for the one-hot label on features φ (Gram matrix G = Σ φφᵀ) is W = S G^{-1} with the moment S = Σ onehot(y) ⊗ φ. Only S
is private, and in the eigenbasis of G its noise is white, so each direction can be shrunk by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labeldp.learning.simplex import project_to_simplex
from labeldp.releases import NoisyMoments

# Directions in which the features hardly vary: their share of the largest eigenvalue is rounding.
_FLAT = 1e-9
_LARGEST_EXPONENT = 4.0
# Points per axis of the grid on which the likelihood is maximised.
_GRID = 15


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
        """1/λ_j, and 0 where λ_j is 0, (d,)."""
        return torch.where(self.values > 0, 1.0 / self.values.clamp_min(1e-300), 0.0)


def eigenbasis(gram: Tensor | Axes) -> Axes:
    """Eigenvalues and eigenvectors of Φ'Φ; values that are only rounding become zero. An eigenbasis is kept as it is.

    One eigendecomposition, (d, d) in float64: seconds for d = 10³ on a CPU, minutes for 10⁴ (seconds on a GPU).
    """
    if isinstance(gram, Axes):
        return gram
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not math.isfinite(float(gram.sum())):
        raise ValueError(f"gram has shape {tuple(gram.shape)} or is not finite; give Φ'Φ, (d, d), of finite features")
    values, vectors = torch.linalg.eigh(gram.double())
    values, vectors = values.flip(0), vectors.flip(1)
    return Axes(torch.where(values > _FLAT * values[0].clamp_min(0.0), values, 0.0), vectors)


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """The noisy moment in the eigenbasis of the Gram matrix, and how much of it is signal.

    Args:
        axes: the eigenbasis.
        shares: estimated share π_k of each class, (K,).
        contrasts: S̃ − π ⊗ total in the eigenbasis, (K, d).
        signal: estimated variance v_j of the true contrasts, per class, (d,).
        noise: their error's variance u_j, (d,): that of the added noise, and λ_j/K of random labels given the features.
        exponent: a of the law v_j ∝ λ_j^a.
    """

    axes: Axes
    shares: Tensor
    contrasts: Tensor
    signal: Tensor
    noise: Tensor
    exponent: float

    @property
    def factors(self) -> Tensor:
        """v/(v + u): what is kept of each direction, (d,)."""
        return self.signal / (self.signal + self.noise).clamp_min(torch.finfo(self.signal.dtype).tiny)


def ridge(
    noisy: NoisyMoments,
    gram: Tensor | Axes,
    *,
    value: Tensor | None = None,
    noise_std: float | None = None,
    constant: int | None = None,
) -> Tensor:
    """Least squares on the noisy moment, each eigen-direction shrunk by its own signal-to-noise ratio; weights (K, d).

    W = π ⊗ G^{-1}t + Σ_j f_j·c_j ⊗ u_j/λ_j with the public total t, the contrasts c of S̃ − π ⊗ t in the eigenbasis
    (λ_j, u_j) of G, and f_j = v_j/(v_j + noise_j). The signal's variance follows a power law in the eigenvalue,
    v_j = c·λ_j^a, whose two numbers maximise the likelihood of the noisy moment (empirical Bayes; Efron and Morris
    1973): the noise is known, so what is more than noise is signal. Plain ridge has f_j = λ_j/(λ_j + ρ), whatever the
    noise.

    A row φ is given the class with the largest Wφ. Memory and time are those of one `eigenbasis`.

    Args:
        noisy: the moment.
        gram: Φ'Φ of the same features, (d, d), or its `eigenbasis`, on the device where the work is to be done.
        value, noise_std: a better estimate of the moment than `noisy.value`, and the noise left in it (see `hull`).
        constant: the column whose moment tells how many rows each class has; None takes the classes as equally large.

    >>> import numpy as np
    >>> sums = np.array([[4.0, 0.0], [0.0, 2.0]])
    >>> exact = NoisyMoments(sums, sums.sum(axis=0), 6, "none", noise_std=0.0, radius=1.0)
    >>> ridge(exact, torch.diag(torch.tensor([4.0, 2.0]))).argmax(dim=1)
    tensor([0, 1])
    """
    found = shrinkage(noisy, gram, value=value, noise_std=noise_std, constant=constant)
    inverse = found.axes.inverse()
    total = as_tensor(noisy.total, inverse) @ found.axes.vectors
    rotated = found.shares[:, None] * (total * inverse) + found.contrasts * (found.factors * inverse)
    return (rotated @ found.axes.vectors.T).float()


def shrinkage(
    noisy: NoisyMoments,
    gram: Tensor | Axes,
    *,
    value: Tensor | None = None,
    noise_std: float | None = None,
    constant: int | None = None,
) -> Shrinkage:
    """How much of the noisy moment is signal, by direction; see `ridge`."""
    std = noisy.noise_std if noise_std is None else noise_std
    axes = eigenbasis(gram)
    moment = as_tensor(noisy.value, axes.values) if value is None else value.to(axes.values)
    _check(noisy, axes, moment)
    total = as_tensor(noisy.total, axes.values)
    shares = class_shares(moment, total, std, constant)
    contrasts = (moment - shares[:, None] * total) @ axes.vectors
    spread = float((shares * (1 - shares)).sum()) / max(noisy.num_classes - 1, 1)
    noise = std**2 + spread * axes.values
    power = contrasts.square().sum(dim=0) / max(noisy.num_classes - 1, 1)
    signal, exponent = power_law(power, axes.values, noise)
    return Shrinkage(axes, shares, contrasts, signal, noise, exponent)


def class_shares(moment: Tensor, total: Tensor, noise_std: float, constant: int | None = None) -> Tensor:
    """Share of the rows in each class, (K,), from the moment of a constant feature; equal where there is none.

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
    """Signal variance v_j = c·λ_j^a that makes squares `power` with mean v_j + noise_j likeliest, (d,), and a.

    Gaussian likelihood: −Σ_j log(v_j + u_j) + power_j/(v_j + u_j), over 0 ≤ a ≤ 4 and all c, by a grid that is refined
    five times, for groups of directions with neighbouring λ_j where there are many. Zero where λ_j is zero.
    """
    used = values > 0
    scale = torch.where(used, values / values[0].clamp_min(1e-300), 1.0).log()
    counts, *sums = _grouped(torch.stack((used.to(scale), power * used, scale * used, noise * used)))
    level, exponent = _likeliest(counts, *(part / counts.clamp_min(1.0) for part in sums))
    return torch.exp(level + exponent * scale) * used, float(exponent)


def _likeliest(counts: Tensor, power: Tensor, scale: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """log c and a, from the means over groups of directions."""
    largest = (power * (counts > 0)).amax().clamp_min(1e-300).log()
    grid = torch.linspace(-1, 1, _GRID, dtype=scale.dtype, device=scale.device)
    # A signal of a millionth of the largest entry cannot be told from none.
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
    """Sums over groups of neighbouring columns, (m, d) → (m, groups): the first 32 each alone, then sixteen to a
    doubling."""
    width = columns.shape[1]
    edges = sorted({*range(min(width, 32) + 1), *(round(32 * 2 ** (k / 16)) for k in range(1, 480)), width})
    edges = torch.tensor([edge for edge in edges if edge <= width], device=columns.device)
    summed = torch.nn.functional.pad(columns.cumsum(dim=1), (1, 0))
    return summed[:, edges].diff(dim=1)


def as_tensor(array: object, like: Tensor) -> Tensor:
    """A copy in the type and on the device of another tensor."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def _check(noisy: NoisyMoments, axes: Axes, moment: Tensor) -> None:
    width = noisy.value.shape[1]
    if len(axes.values) != width:
        raise ValueError(f"gram has {len(axes.values)} rows; the moment has {width} features: give ({width}, {width})")
    if moment.shape != noisy.value.shape:
        raise ValueError(f"value has shape {tuple(moment.shape)}; the moment has {noisy.value.shape}")
