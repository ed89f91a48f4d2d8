"""Hold all that crosses from `mechanisms` to `learning`: responses, and the public channel by which they were drawn.

A release holds no true label. It may be printed, pickled, sent and stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]


class Channel(Protocol):
    """Describe the public half of a per-row randomizer: how likely each response is under each label.

    A row's response is a tuple of integer coordinates, independent given the label (one coordinate for
    randomized response, one per class for vector responses). Responses are stored as (n,) or (n, coordinates).
    """

    @property
    def num_classes(self) -> int:
        """Return the number of classes K."""
        ...

    @property
    def epsilon(self) -> float:
        """Return the largest log-ratio of two probabilities of one response."""
        ...

    def probabilities(self, label: int, row: int = 0) -> FloatArray:
        """Return the chance of each value of each coordinate, (coordinates, values), were `label` the row's label."""
        ...

    def log_likelihood(self, responses: IntArray) -> FloatArray:
        """Return log P(response | class), (n, classes)."""
        ...

    def unbiased(self, responses: IntArray) -> FloatArray:
        """Return a linear estimate of the one-hot label, (n, classes); zero where `informative` is false."""
        ...

    def informative(self, num_rows: int) -> BoolArray:
        """Return which rows' responses say anything at all about the label, (n,)."""
        ...

    def take(self, rows: IntArray) -> Channel:
        """Return the channel of these rows, in this order."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters as plain JSON values."""
        ...


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Hold one private response per row, with the channel it was drawn from.

    Everything a learner may do with private labels is evidence × prior, and the evidence is
    `log_likelihood`: posterior ∝ prior · exp(log_likelihood). For an ε-private randomizer no row of it
    spans more than ε, which is the privacy guarantee read from the other side.
    """

    channel: Channel
    responses: IntArray

    def __post_init__(self) -> None:
        self.responses.setflags(write=False)

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def num_classes(self) -> int:
        """Return the number of classes K."""
        return self.channel.num_classes

    def take(self, rows: npt.ArrayLike) -> NoisyLabels:
        """Return the responses of these rows (indices or a mask), in this order."""
        chosen = np.asarray(rows)
        index = np.arange(len(self))[chosen if chosen.size else chosen.astype(np.intp)]
        return NoisyLabels(self.channel.take(index), self.responses[index])

    def log_likelihood(self) -> FloatArray:
        """Return log P(response | class) of every row, (n, K)."""
        return self.channel.log_likelihood(self.responses)

    def unbiased(self) -> FloatArray:
        """Return an estimate of each row's one-hot label, (n, K), zero on rows that carry no information."""
        return self.channel.unbiased(self.responses)

    def informative(self) -> BoolArray:
        """Return rows whose response depends on the label at all, (n,)."""
        return self.channel.informative(len(self))

    def hard(self) -> npt.NDArray[np.int64]:
        """Return the most likely class of each row under a uniform prior, (n,); ties go to the lower class."""
        if self.responses.ndim == 1:
            return self.responses.astype(np.int64)
        return self.log_likelihood().argmax(axis=1)

    def posterior(self, prior: npt.ArrayLike | None = None) -> FloatArray:
        """Return P(class | response), (n, K), for a prior of shape (K,) or (n, K); uniform when none is given.

        The prior must not depend on the row's own label except through earlier releases.
        """
        log_post = self.log_likelihood()
        if prior is not None:
            log_post = log_post + _log_prior(prior, len(self), self.num_classes)
        # Where response and prior exclude every class between them, the prior was wrong: go by the response alone.
        impossible = np.isneginf(log_post).all(axis=1)
        log_post[impossible] = self.log_likelihood()[impossible]
        weights = np.exp(log_post - log_post.max(axis=1, keepdims=True, initial=-np.inf))
        return weights / weights.sum(axis=1, keepdims=True)


def _log_prior(prior: npt.ArrayLike, num_rows: int, num_classes: int) -> FloatArray:
    weights = np.asarray(prior, dtype=np.float64)
    if weights.shape not in {(num_classes,), (num_rows, num_classes)}:
        raise ValueError(
            f"prior has shape {weights.shape}; give ({num_classes},) for one prior or "
            f"({num_rows}, {num_classes}) for one per row"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("prior has entries that are negative or not finite; give probabilities")
    # A prior that sums to nothing says nothing: it counts as uniform.
    weights = np.where(weights.sum(axis=-1, keepdims=True) > 0, weights, 1.0)
    with np.errstate(divide="ignore"):
        return np.log(weights)


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Hold class counts per public group plus independent integer noise on every cell.

    `counts` has shape (groups, classes) and may be negative. `noise_std` is the exact standard deviation of
    the noise, `noise` its name ("discrete Laplace" or "discrete Gaussian"). `group_sizes` is public.
    """

    counts: npt.NDArray[np.int64]
    group_sizes: npt.NDArray[np.int64]
    noise: str
    noise_std: float

    def winners(self) -> npt.NDArray[np.int64]:
        """Return the class with the largest noisy count in each group, (groups,); ties go to the lower class."""
        return self.counts.argmax(axis=1)

    def probabilities(self) -> FloatArray:
        """Return counts clipped at zero and normalised per group; a group with nothing left is uniform."""
        kept = np.clip(self.counts, 0, None).astype(np.float64)
        total = kept.sum(axis=1, keepdims=True)
        uniform = np.full_like(kept, 1.0 / kept.shape[1])
        return np.divide(kept, total, out=uniform, where=total > 0)


@dataclass(frozen=True, eq=False)
class NoisyScores:
    """Hold what was counted of predictions: labels by public group, and how many predictions are right.

    `right` has integer noise of its own, of deviation `right_std`; it may be negative.
    """

    cells: NoisyCounts
    right: int
    right_std: float


@dataclass(frozen=True, eq=False)
class NoisyErrors(NoisyCounts):
    """Hold what was counted of predicted numbers: errors by public group, and how many labels lie at a bound.

    `at_bounds` has integer noise of its own, of deviation `at_bounds_std`; it may be negative.
    """

    at_bounds: int
    at_bounds_std: float


@dataclass(frozen=True, eq=False)
class NoisyGradient:
    """Hold a sum of bounded per-row gradients plus Gaussian noise, divided by the expected batch size.

    `value` has one entry per trainable parameter, in the order of `model.parameters()`. `noise_std` is the standard
    deviation of the noise on each entry of `value`. The batch, its size included, stays secret.
    """

    value: Tensor
    noise_std: float
    expected_batch: float


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """Hold Σ_i onehot(y_i) ⊗ φ_i plus independent noise on every entry, consistent with the public sum over classes.

    Args:
        value: (K, d). Its sum over classes is `total`: what the noise added to that was taken off in equal parts.
        total: Σ_i φ_i, (d,), public; of the features as they were added, after scaling and rounding.
        num_rows: how many rows were added up.
        noise: its name ("discrete Gaussian", "discrete Laplace", "rounded Gaussian").
        noise_std: standard deviation of the noise on each entry as it was added, before the sum was made consistent.
        radius: no row (no user) adds more than this.
        scaled_rows, dropped_rows: how many rows were scaled down to the radius, or left out as not finite.
    """

    value: FloatArray
    total: FloatArray
    num_rows: int
    noise: str
    noise_std: float
    radius: float
    scaled_rows: int = 0
    dropped_rows: int = 0

    def __post_init__(self) -> None:
        self.value.setflags(write=False)
        self.total.setflags(write=False)

    @property
    def num_classes(self) -> int:
        """Return the number of classes K."""
        return len(self.value)
