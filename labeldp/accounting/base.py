"""What every event shares: the interface, its symmetry, and the checks of its numbers."""

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class BaseEvent(ABC):
    """What all events share: symmetry, so that only ε ≥ 0 has to be written down."""

    __slots__ = ()

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether the answer does not depend on the label at all."""

    @property
    def lattice(self) -> float:
        """Spacing of which every loss is a multiple; 0 when the losses are continuous."""
        return 0.0

    @abstractmethod
    def tail(self, eps: Array) -> tuple[Array, Array]:
        """(P(L > ε), Q(L > ε)) for ε ≥ 0, accurate in relative terms."""

    @abstractmethod
    def _profile(self, eps: Array) -> Array:
        """δ(ε) for ε ≥ 0."""

    def profile(self, eps: Array | float) -> Array:
        """δ(ε) of one look; below zero through H_a = 1 − a + a H_{1/a}, the symmetry of replacement."""
        values = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        positive = self._profile(np.abs(values))
        mirrored = -np.expm1(np.minimum(values, 0.0)) + np.exp(np.minimum(values, 0.0)) * positive
        return np.where(values >= 0, positive, mirrored)


class _HasNoise(Protocol):
    @property
    def noise_std(self) -> float: ...


class _HasGeometry(Protocol):
    @property
    def radius(self) -> float: ...
    @property
    def diameter(self) -> float: ...


def set_real(event: object, name: str, *, low: float = 0.0, high: float = math.inf, finite: bool = True) -> None:
    """Store the field as a float, or say what is wrong with it."""
    value: Any = getattr(event, name)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    number = float(cast("float", value))
    if not 0 <= number <= high or (finite and math.isinf(number)):
        bound = f"between 0 and {high:g}" if math.isfinite(high) else "at least 0"
        finite_word = "finite and " if finite else ""
        raise ValueError(f"{name} must be {finite_word}{bound}, got {value!r}.")
    object.__setattr__(event, name, number)


def set_noise(event: _HasNoise) -> None:
    """Validate ``noise_std``."""
    set_real(event, "noise_std")
    if event.noise_std <= 0:
        raise ValueError("noise_std must be greater than 0, got 0. A noiseless answer is a NonPrivate event.")


def set_geometry(event: _HasGeometry) -> None:
    """Validate ``radius`` and ``diameter`` together."""
    set_real(event, "radius")
    set_real(event, "diameter")
    if event.diameter > 2 * event.radius * (1 + 1e-12):
        raise ValueError(
            f"diameter must be at most twice the radius, got diameter {event.diameter!r} and radius "
            f"{event.radius!r}. With norm clipping alone it is exactly twice the clipping norm."
        )


def check_ratio(noise_std: float, diameter: float) -> None:
    """Refuse noise so large or small beside the diameter that their ratio leaves the range of floats when squared."""
    ratio = diameter / noise_std
    if diameter > 0 and not 1e-100 <= ratio <= 1e100:
        raise ValueError(
            f"noise_std {noise_std!r} and diameter {diameter!r} are too far apart to account for. Without noise to "
            "speak of it is a NonPrivate event."
        )
