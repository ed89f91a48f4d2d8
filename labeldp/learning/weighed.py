"""Learn from a noisy moment which columns matter: a kernel whose columns are weighed by the evidence.

A moment S̃ = Σ onehot(y) ⊗ φ + noise says what labels have to do with each of d directions φ. A head that is linear in
φ takes direction by direction. But a function of few columns leaves a pattern over all directions, and who looks for
that pattern finds it in more noise. So class probabilities, less the classes' shares, are taken as Gaussian processes,

    f ~ GP(0, τ·k_w + α·v + γ·zz'),    k_w(x, x') = exp(−|w ∘ (x − x')|²/2),

where v is the power law of `heads.shrinkage` on φ, and z are all features as they would enter a moment of their own:
where effects add up φ spends directions on cosines that say nothing, and the pattern is that of a function linear in z.
The contrasts c of the moment are d linear measurements of f, with noise of known variance u. So they are likely by a
closed form, and where f is, given them, is one, too:

    c ~ N(0, C + diag u),   C = τ·Φ'K_wΦ + α·diag v + γ·Φ'ZZ'Φ,
    E[f | c] = (τ·K_wΦ + α·ΦΛ⁻¹diag v + γ·ZZ'Φ)(C + diag u)⁻¹c.

Width, τ, α and γ are the likeliest (empirical Bayes). Weights of columns begin alike; each is then the root mean square
of the fit's derivative along it, as for responses in `learning.learners`, and all is fitted again while that is
likelier. Many columns can be weighed so as to fit noise: a nat of likelihood for every weight is the price (Akaike
1974). Where nothing is likelier than the power law alone, the linear head is as good, and stays.

K_w is that of random cosines (Rahimi and Recht 2007): few while searching, many in the end. All of it is
post-processing of the release; nothing here has seen a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from labeldp.learning.heads import Axes, Scale, Shrinkage, as_tensor, honest_scale, shrinkage
from labeldp.learning.tuning import Spectrum, spectrum
from labeldp.releases import NoisyMoments

# Cosines and rows while searching, and at the end; rows on which slopes are measured, and at once.
_FEW_COSINES, _COSINES, _FEW_ROWS, _MOST_ROWS, _SLOPE_ROWS = 512, 2000, 2000, 20_000, 1500
# Widths to begin with, in median distances, and their steps afterwards; shares of the power law; rounds.
_WIDTHS, _STEPS, _SHARES, _ROUNDS = (0.3, 0.6, 1.0, 2.0), (0.65, 1.0, 1.5), (0.0, 0.1, 0.5), 4
# Components of the features that z are, at most, and how far they are whitened, as in the plan of a moment.
_COMPONENTS, _POWER = 512, 0.5
# Components whose share of the largest variance is rounding.
_FLAT = 1e-6
# Nats by which it has to be likelier than the power law alone, to be more than luck.
_GAINED = 3.0
# Factors on a kernel, by the noise over its largest eigenvalue.
_LEVELS = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-4, 4, 49, dtype=torch.float64)])


@dataclass(frozen=True, eq=False)
class Weighed:
    """A kernel on weighed columns, and parts linear in the moment's directions and in all features. Holds no label.

    Args:
        columns: numbers of the features in the kernel, (c,).
        turn: frequencies of its cosines, with the weights of columns in them, (c, D).
        phases: (D,).
        weight: of the cosines, (K, D).
        offset: (K,).
        linear: weights of the directions φ, (K, d).
        plain: weights of all features, (K, p).
    """

    columns: Tensor
    turn: Tensor
    phases: Tensor
    weight: Tensor
    offset: Tensor
    linear: Tensor
    plain: Tensor

    def logits(self, rows: Tensor, turned: Tensor) -> Tensor:
        """Return scores whose softmax are honest probabilities, (n, K), of features and their directions φ."""
        waves = torch.cos(rows[:, self.columns] @ self.turn + self.phases)
        return self.offset + waves @ self.weight.T + turned @ self.linear.T + rows @ self.plain.T


def weighed(
    noisy: NoisyMoments, turned: Tensor, features: Tensor, seen: Tensor, columns: Tensor, scale: Tensor, axes: Axes,
    tuned: Scale, *, constant: int | None, seed: int,
) -> Weighed | None:  # fmt: skip
    """Return what weighing columns finds in a moment; None where the power law alone is as likely.

    Args:
        noisy: the moment.
        turned: φ of all rows, (n, d).
        features: all features, (n, p).
        seen: the columns of the kernel, scaled alike, (n, c).
        columns, scale: which features they are, and by which factor, (c,).
        axes: the eigenbasis of Φ'Φ.
        tuned: the scale of the linear ridge head, from label-free tuning.
        constant: as in `heads.ridge`.
        seed: of rows and cosines; public.
    """
    found = spectrum(features, most=_COMPONENTS, seed=seed)
    given = noisy, turned, features, seen, axes, found, constant, seed
    search = _Search(*given, _FEW_COSINES, _FEW_ROWS)
    below = [search.below(share) for share in _SHARES]
    additive = max((search.additive(share) for share in (*_SHARES[1:], 1.0)), key=lambda one: one.likelihood)
    fits = (one for given in (below[:1], below, [additive]) for one in search.rounds(given))
    best = max(fits, key=lambda one: one.worth)
    if best.worth < search.likelihood_of_power_law + _GAINED:
        return None
    whole = _Search(*given, _COSINES, _MOST_ROWS)
    share, effects = best.below.share, best.below.level > 0
    best = whole.fitted(best.weights, best.width, [whole.additive(share) if effects else whole.below(share)])

    def head(noisy: NoisyMoments, features: Tensor, gram: Tensor | Axes, *, constant: int | None = None) -> Tensor:
        return whole.projected(best, shrinkage(noisy, gram, constant=constant))

    honest = honest_scale(head, noisy, turned, axes, tuned, constant=constant)
    weight, linear, plain = whole.weights(best)
    offset = whole.found.shares.to(weight) - weight @ best.mean - plain @ found.mean
    turn = whole.turn(best) * scale[:, None]
    return Weighed(columns, turn, whole.phases, honest * weight, honest * offset, honest * linear, honest * plain)


@dataclass(frozen=True, eq=False)
class _Below:
    """What is beneath the kernel: noise, a share α of the power law, and γ of effects that add up; how likely it is.

    `root` is the Cholesky factor of the contrasts' variance by it, (d, d).
    """

    share: float
    level: float
    root: Tensor
    likelihood: float


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A kernel's settings, with log-likelihood, less the price of its weights, and what follows from them.

    `measured` is Φ'Ψ, what the directions see of each cosine, in the eigenbasis, (d, D).
    """

    likelihood: float
    price: float
    weights: Tensor
    width: float
    level: float
    below: _Below
    mean: Tensor
    measured: Tensor

    @property
    def worth(self) -> float:
        return self.likelihood - self.price


class _Search:
    """The moment's contrasts, and some rows and cosines to explain them with."""

    def __init__(
        self, noisy: NoisyMoments, turned: Tensor, features: Tensor, seen: Tensor, axes: Axes, plain: Spectrum,
        constant: int | None, seed: int, cosines: int, rows: int,
    ) -> None:  # fmt: skip
        self.used = axes.values > 0
        self.vectors = axes.vectors[:, self.used].to(turned)
        self.values = axes.values[self.used]
        self.total = as_tensor(noisy.total, axes.vectors) @ axes.vectors[:, self.used]
        self.found = shrinkage(noisy, axes, constant=constant)
        self.contrasts, self.signal, self.noise = self._parts(self.found)
        generator = Generator().manual_seed(seed)
        some = torch.randperm(len(turned), generator=generator)[:rows].to(turned.device)
        self.rows, self.directions = seen[some], turned[some] @ self.vectors * (len(turned) / len(some))
        self.waves = torch.randn(seen.shape[1], cosines, generator=generator).to(turned)
        self.phases = (2 * math.pi * torch.rand(cosines, generator=generator)).to(turned)
        pairs = torch.randint(len(some), (2, 1000), generator=generator).to(turned.device)
        self.apart = self.rows[pairs[0]] - self.rows[pairs[1]]
        # Contrasts add up to zero over the classes.
        self.free = max(noisy.num_classes - 1, 1)
        self.likelihood_of_power_law = self.below(1.0).likelihood
        varied = plain.variances > _FLAT * plain.variances[0]
        self.of_features = (plain.components * plain.variances.clamp_min(1e-30).pow(-_POWER / 2))[:, varied]
        # Of more rows than cosines: in the largest directions, where noise is least, an error would count for much.
        many = torch.randperm(len(turned), generator=generator)[:_MOST_ROWS].to(turned.device)
        effects = (features[many] - plain.mean) @ self.of_features
        seen_of_them = turned[many].T @ (effects - effects.mean(dim=0)) * (len(turned) / len(many))
        self.effects = (self.vectors.T @ seen_of_them).double()

    def _parts(self, found: Shrinkage) -> tuple[Tensor, Tensor, Tensor]:
        return found.contrasts[:, self.used], found.signal[self.used], found.noise[self.used]

    def below(self, share: float, level: float = 0.0) -> _Below:
        """Return noise, a share of the power law, and effects that add up, with their log-likelihood."""
        variance = torch.diag(self.noise + share * self.signal)
        root = torch.linalg.cholesky(variance + level * (self.effects @ self.effects.T) if level else variance)
        white = torch.linalg.solve_triangular(root, self.contrasts.T, upper=False)
        more = (self.contrasts.square() / self.noise).sum() - white.square().sum()
        spread = 2 * root.diagonal().log().sum() - self.noise.log().sum()
        # Less that of nothing but noise.
        return _Below(share, level, root, 0.5 * float(more - self.free * spread))

    def additive(self, share: float) -> _Below:
        """Return the likeliest level of effects that add up, above this share of the power law."""
        level, _ = self._likeliest(self.below(share), self.effects)
        return self.below(share, level)

    def _likeliest(self, below: _Below, measured: Tensor) -> tuple[float, float]:
        """Return the likeliest factor on a kernel, of which φ see `measured`, and the log-likelihood it adds."""
        white = torch.linalg.solve_triangular(below.root, measured.double(), upper=False)
        # The smaller of the two has the same eigenvalues.
        tall = white.shape[0] > white.shape[1]
        values, vectors = torch.linalg.eigh(white.T @ white if tall else white @ white.T)
        values = values.clamp_min(1e-12 * values[-1].clamp_min(1e-300))
        if tall:
            vectors = white @ vectors / values.sqrt()
        contrasts = torch.linalg.solve_triangular(below.root, self.contrasts.T, upper=False)
        squares = (contrasts.T @ vectors).square().sum(dim=0)
        ratios = _LEVELS[:, None].to(values) * values / values[-1]
        gains = -0.5 * (self.free * ratios.log1p() - squares * ratios / (1 + ratios)).sum(dim=1)
        best = int(gains.argmax())
        return float(_LEVELS[best] / values[-1]), float(gains[best])

    def turn(self, one: _Fitted) -> Tensor:
        """Return the frequencies of a fit's cosines on columns that are scaled alike."""
        return self._turn(one.weights, one.width)

    def _turn(self, weights: Tensor, width: float) -> Tensor:
        median = float((self.apart * weights).norm(dim=1).median().clamp_min(1e-6))
        return weights[:, None] * self.waves / (width * median)

    def rounds(self, below: Sequence[_Below]) -> list[_Fitted]:
        """Return fits to columns that are all alike, and to weighed ones, while those are likelier."""
        alike = torch.ones_like(self.rows[0])
        last = max((self.fitted(alike, width, below) for width in _WIDTHS), key=lambda one: one.worth)
        found = [last]
        for _ in range(_ROUNDS):
            if last.level == 0:
                break
            slopes = self._slopes(last)
            near = [self.fitted(slopes, last.width * step, below) for step in _STEPS]
            last = max(near, key=lambda one: one.likelihood)
            if last.likelihood <= found[-1].likelihood:
                break
            found.append(replace(last, price=float(len(slopes))))
        return found

    def fitted(self, weights: Tensor, width: float, below: Sequence[_Below]) -> _Fitted:
        """Return the likeliest level of the kernel and of what is beneath it."""
        seen = torch.cos(self.rows @ self._turn(weights, width) + self.phases)
        mean = seen.mean(dim=0)
        measured, found = self.directions.T @ (seen - mean), []
        for under in below:
            level, gain = self._likeliest(under, measured)
            found.append(_Fitted(under.likelihood + gain, 0.0, weights, width, level, under, mean, measured))
        return max(found, key=lambda one: one.likelihood)

    def _posterior(self, one: _Fitted, found: Shrinkage) -> tuple[Tensor, Tensor]:
        """Return C, (d, d), and (C + diag u)⁻¹c of every class, (K, d)."""
        contrasts, _, noise = self._parts(found)
        measured = one.measured.double()
        signal = one.level * (measured @ measured.T) + torch.diag(one.below.share * self.signal)
        signal += one.below.level * (self.effects @ self.effects.T)
        return signal, torch.linalg.solve(signal + torch.diag(noise), contrasts.T).T

    def weights(self, one: _Fitted) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of cosines, (K, D), of directions φ, (K, d), and of features, (K, p)."""
        _, known = self._posterior(one, self.found)
        linear = (known * (one.below.share * self.signal / self.values)) @ self.vectors.T.double()
        plain = one.below.level * (known @ self.effects) @ self.of_features.T.double()
        return (one.level * known).float() @ one.measured, linear.float(), plain.float()

    def projected(self, one: _Fitted, found: Shrinkage) -> Tensor:
        """Return the weights of the directions φ that come nearest to what a moment teaches, (K, d)."""
        signal, known = self._posterior(one, found)
        of_shares = found.shares[:, None] * (self.total / self.values)
        return ((known @ signal / self.values + of_shares) @ self.vectors.T.double()).float()

    def _slopes(self, one: _Fitted) -> Tensor:
        """Return the root mean square of the derivative along each column, over rows and classes, scaled to mean 1."""
        turn, weight = self.turn(one), self.weights(one)[0]
        steep, total = torch.sin(self.rows[:_SLOPE_ROWS] @ turn + self.phases), torch.zeros_like(self.rows[0])
        for row in weight:
            total += ((steep * row) @ turn.T).square().sum(dim=0)
        slopes = total.sqrt()
        return slopes / slopes.square().mean().sqrt().clamp_min(1e-30)
