"""Events of a batch drawn at random: shown afterwards, or kept secret. Part of :mod:`labeldp.accounting.events`."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labeldp.accounting.base import BaseEvent, check_ratio, set_geometry, set_noise, set_real
from labeldp.accounting.gaussian import gaussian_profile
from labeldp.accounting.mixture import Mixture
from labeldp.accounting.special import ndtr

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PublicBatchGaussian(BaseEvent):
    """A batch drawn at random and then shown: with probability q a Gaussian look, else nothing.

    P and Q agree on the batch, so the loss is a Gaussian's with probability q and 0 otherwise.
    """

    noise_std: float
    diameter: float
    rate: float

    def __post_init__(self) -> None:
        set_noise(self)
        set_real(self, "diameter")
        check_ratio(self.noise_std, self.diameter)
        set_real(self, "rate", high=1.0)

    @property
    def free(self) -> bool:
        """True when nothing moves, or nobody is drawn."""
        return self.diameter / self.noise_std == 0 or self.rate == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """q times the Gaussian tails."""
        mu = self.diameter / self.noise_std
        z = mu / 2 - eps / mu
        return self.rate * ndtr(z), self.rate * ndtr(z - mu)

    def _profile(self, eps: Array) -> Array:
        return self.rate * gaussian_profile(self.diameter / self.noise_std, eps)


@dataclass(frozen=True, slots=True)
class _SampledGaussian(BaseEvent):
    """Shared face of the two secret samplings; a subclass says its mixture."""

    noise_std: float
    radius: float
    diameter: float
    rate: float

    def __post_init__(self) -> None:
        set_noise(self)
        set_geometry(self)
        check_ratio(self.noise_std, self.diameter)
        set_real(self, "rate", high=1.0)

    @property
    @abstractmethod
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""

    @property
    def free(self) -> bool:
        """True when nothing moves, or nobody is drawn."""
        return self.mixture.d == 0 or self.mixture.rate == 0

    def tail(self, eps: Array) -> tuple[Array, Array]:
        """Tails of the mixture."""
        return self.mixture.tail(eps)

    def _profile(self, eps: Array) -> Array:
        return np.zeros_like(eps) if self.free else self.mixture.profile(eps)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(_SampledGaussian):
    """A secret Poisson batch, each row drawn with probability q on its own: mixture of (r, d) = (R, D)/s.

    Given the other rows' draws, the sum is shifted by g(x, y) with probability q, by 0 otherwise. Divide it
    by the expected batch size only: the realised size would reveal whether a row was drawn.
    """

    @property
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""
        return Mixture(self.radius / self.noise_std, self.diameter / self.noise_std, self.rate)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(_SampledGaussian):
    """A secret batch of fixed size without replacement, q = batch / n: mixture of (r, d) = (2R, D)/s.

    A batch with the row and one without it differ by the row it displaces, so relative to that row the
    contribution has norm up to 2R. One profile bounds both directions. An upper bound; whether it is tight
    under composition is open.
    """

    @property
    def mixture(self) -> Mixture:
        """The two laws, in units of the noise."""
        return Mixture(2 * self.radius / self.noise_std, self.diameter / self.noise_std, self.rate)
