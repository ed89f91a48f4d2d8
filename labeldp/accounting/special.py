"""The few functions used from scipy, with types: scipy ships none.

`scipy.optimize` and `scipy.fft` take a third of a second to load, so only what calls for them waits for that: many
commands compose nothing and solve nothing.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

_special: Any = scipy.special


def ndtr(x: Array) -> Array:
    """Φ, the standard normal law."""
    return _special.ndtr(x)


def log_ndtr(x: Array) -> Array:
    """log Φ."""
    return _special.log_ndtr(x)


def mills(x: Array) -> Array:
    """Φ(−x)/φ(x)."""
    return math.sqrt(math.pi / 2) * _special.erfcx(x / math.sqrt(2))


def expit(x: float) -> float:
    """1/(1 + e^{−x})."""
    return float(_special.expit(x))


def log_binomial(n: int, k: Array) -> Array:
    """log of n over k."""
    return _special.gammaln(n + 1.0) - _special.gammaln(k + 1.0) - _special.gammaln(n - k + 1.0)


def root(function: Callable[[float], float], low: float, high: float, *, rtol: float = 1e-15) -> float:
    """A zero of a function with a change of sign on [low, high] (Brent 1973)."""
    import scipy.optimize

    optimize: Any = scipy.optimize
    return low if low == high else float(optimize.brentq(function, low, high, xtol=1e-300, rtol=rtol, maxiter=500))


def fast_length(n: int) -> int:
    """The next length the real transform is quick at."""
    return int(_fourier().next_fast_len(n, real=True))


def rfft(values: Array) -> Complex:
    """Discrete Fourier transform of a real signal."""
    return _fourier().rfft(values)


def irfft(values: Complex, n: int) -> Array:
    """Inverse of :func:`rfft`."""
    return _fourier().irfft(values, n)


def _fourier() -> Any:
    import scipy.fft

    return scipy.fft
