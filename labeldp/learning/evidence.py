"""Turn private responses into training targets: posterior, forward-corrected and debiased losses, weighted labels.

All are written once for every randomizer, from the evidence log P(response | class), (n, K), and from the
linear estimate of the one-hot label that the randomizer states. Move both to the training device once and
index them there.

Which one? `forward_loss` is the likelihood of what was really seen: bounded, handles every randomizer, and is the
default. `debiased_loss` has the right expectation but is unbounded below. `posterior` gives soft labels for any
other loss, given a prior.

An objective is a function from logits and row numbers to one loss per row: built once from a release, it keeps its
tensors on the device, and is called with the rows of a batch. `Labels` are for methods that learn from labels which
only some rows have, or which are only sometimes right (`fixmatch`, `co_refine`). All is made of releases and holds no
true label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from labeldp.models.zoo import checked_count
from labeldp.releases import NoisyLabels

Device = torch.device | str
# Logits (b, K) of the rows numbered (b,) → losses (b,).
Objective = Callable[[Tensor, Tensor], Tensor]


def evidence(noisy: NoisyLabels, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Return log P(response | class) of every row, (n, K). Impossible classes become the lowest finite number."""
    matrix = torch.from_numpy(noisy.log_likelihood()).to(device=device, dtype=dtype)
    # A finite floor instead of −∞: 0 · (−∞) is not a number, and a gradient of it is not either.
    return matrix.clamp_min(torch.finfo(dtype).min / 4)


def unbiased_labels(noisy: NoisyLabels, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Return z with E[z | y] = onehot(y), (n, K), for `debiased_loss`; zero on rows that carry no information.

    For responses restricted to a set of k < K classes no such z exists; there E[z | y] = onehot(y) for labels
    inside the set and the uniform vector on the set for labels outside it.
    """
    return torch.from_numpy(noisy.unbiased()).to(device=device, dtype=dtype)


def project_to_simplex(values: Tensor, mass: float = 1.0) -> Tensor:
    """The nearest point of {x ≥ 0, Σ_k x_k = mass} to each row, (..., K).

    x = max(y − τ, 0) with the one τ that gives the sum: sort, then take the longest prefix whose entries all stay
    above its τ (Held, Wolfe and Crowder 1974; Wang and Carreira-Perpiñán 2013).

    >>> project_to_simplex(torch.tensor([0.5, 1.1, -3.0]))
    tensor([0.2000, 0.8000, 0.0000])
    """
    # Moving a row does not move its nearest point, and numbers far from zero would swallow the mass.
    values = values - values.amax(dim=-1, keepdim=True)
    falling = values.sort(dim=-1, descending=True).values
    counts = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)
    thresholds = (falling.cumsum(dim=-1) - mass) / counts
    kept = (falling > thresholds).sum(dim=-1, keepdim=True).clamp_min(1)
    return (values - thresholds.gather(-1, kept - 1)).clamp_min(0)


def posterior(log_evidence: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Return P(class | response) ∝ prior(class) · P(response | class), (n, K). Uniform prior when none is given.

    With the current model's log-probabilities as prior this is ALIBI's Bayesian step (Malek et al. 2021);
    rows without information return the prior.

    >>> posterior(torch.log(torch.tensor([[0.2, 0.8]])), torch.log(torch.tensor([[0.5, 0.5]])))
    tensor([[0.2000, 0.8000]])
    """
    return torch.softmax(log_evidence if log_prior is None else log_evidence + log_prior, dim=-1)


def forward_loss(logits: Tensor, log_evidence: Tensor) -> Tensor:
    """Return −log Σ_c softmax(logits)_c · P(response | c), per row, (n,).

    The exact negative log-likelihood of the response under the model ("forward correction", Patrini et al. 2017, with
    a transition matrix that is known instead of estimated). Bounded below by −max_c log P(response | c);
    constant, so without gradient, on rows that carry no information.

    >>> forward_loss(torch.zeros(1, 2), torch.log(torch.tensor([[0.25, 0.75]])))
    tensor([0.6931])
    """
    return -torch.logsumexp(log_softmax(logits, dim=-1) + log_evidence, dim=-1)


def debiased_loss(logits: Tensor, unbiased: Tensor) -> Tensor:
    """Return Σ_c z_c · ℓ(logits, c) with ℓ the cross-entropy and E[z] = onehot(y), per row, (n,).

    For randomized response this is (ℓ(ỹ) − p Σ_c ℓ(c)) / (1 − K p) with p = 1 / (e^ε + K − 1) (Ghazi et al. 2021,
    LP-RR-SGD); its expectation over the responses is the loss on the true labels. Unbounded below, because
    some z are negative: regularise, or prefer `forward_loss`. Rows without information weigh nothing.
    """
    return -(unbiased * log_softmax(logits, dim=-1)).sum(dim=-1)


# -- objectives -------------------------------------------------------------------------------------------------------


def on_classes(classes: Tensor) -> Objective:
    """Return the cross-entropy with one class per row, (n,): private responses taken at their word."""
    return lambda logits, rows: cross_entropy(logits, classes[rows], reduction="none")


def on_targets(targets: Tensor) -> Objective:
    """Return the cross-entropy with class probabilities, (n, K): a posterior, or what a teacher believes."""
    return lambda logits, rows: -(targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1)


def on_responses(noisy: NoisyLabels, device: Device = "cpu") -> Objective:
    """Return the cross-entropy with responses taken at their word (mixup or few epochs help against the noise)."""
    return on_classes(torch.from_numpy(noisy.hard()).to(device))


def on_values(values: Tensor, loss: str = "squared") -> Objective:
    """Return the squared or absolute error of one number per row, (n,)."""
    if loss not in {"squared", "absolute"}:
        raise ValueError(f"loss={loss!r} is not known; give 'squared' or 'absolute'")
    power = 2 if loss == "squared" else 1
    return lambda outputs, rows: (outputs.squeeze(-1) - values[rows]).abs() ** power


def forward_corrected(noisy: NoisyLabels, device: Device = "cpu") -> Objective:
    """Return the negative log-likelihood of the responses; see `forward_loss`."""
    seen = evidence(noisy, device)
    return lambda logits, rows: forward_loss(logits, seen[rows])


def debiased(noisy: NoisyLabels, device: Device = "cpu") -> Objective:
    """Return an unbiased estimate of the loss on true labels; see `debiased_loss`."""
    weights = unbiased_labels(noisy, device)
    return lambda logits, rows: debiased_loss(logits, weights[rows])


def self_posterior(noisy: NoisyLabels, device: Device = "cpu") -> Objective:
    """Return the cross-entropy with the posterior of the responses under the model's own current prediction as prior.

    ALIBI's step (Malek et al. 2021): t = softmax(log P(response | ·) + log p_model), held fixed for the gradient.
    """
    seen = evidence(noisy, device)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        predicted = log_softmax(logits, dim=-1)
        targets = posterior(seen[rows], predicted.detach())
        return -(targets * predicted).sum(dim=-1)

    return loss


# -- labels of some rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Labels:
    """What is believed of each row's class, and how much it counts.

    Args:
        targets: (n, K) class probabilities; one-hot for a response taken at its word.
        weights: (n,) at least 0; 0 for a row without a label, whose targets are not used.
    """

    targets: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        if self.targets.ndim != 2 or self.weights.shape != self.targets.shape[:1]:
            shapes = tuple(self.targets.shape), tuple(self.weights.shape)
            raise ValueError(f"targets and weights have shapes {shapes[0]} and {shapes[1]}; give (n, K) and (n,)")

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return self.targets.shape[1]

    def rows(self) -> Tensor:
        """Return the rows that have a label; waits for the device, so not for inner loops."""
        return self.weights.nonzero().squeeze(1)

    def objective(self) -> Objective:
        """Return w_i · CE(target_i, softmax(logits)), the weights brought to mean 1 over the labelled rows."""
        known = (self.weights > 0).sum().clamp_min(1)
        scaled = self.weights * (known / self.weights.sum().clamp_min(1e-12))
        return lambda logits, rows: -scaled[rows] * (self.targets[rows] * log_softmax(logits, dim=-1)).sum(dim=-1)

    def only(self, kept: Tensor) -> Labels:
        """Return the same without the labels of rows where `kept`, (n,), is false."""
        return Labels(self.targets, torch.where(kept, self.weights, 0.0))


def from_responses(noisy: NoisyLabels, device: Device = "cpu") -> Labels:
    """Take responses at their word; rows whose response carries no information have no label."""
    classes = torch.from_numpy(noisy.hard()).to(device)
    weights = torch.from_numpy(noisy.informative()).to(device, torch.float32)
    return Labels(one_hot(classes, noisy.num_classes).float(), weights)


def from_classes(classes: npt.ArrayLike | Tensor, num_classes: int, device: Device = "cpu") -> Labels:
    """Take one released class per row, −1 where there is none: unanswered votes, clusters without a winner.

    >>> from_classes([1, -1, 0], 2).weights
    tensor([1., 0., 1.])
    """
    numbers = torch.as_tensor(classes if isinstance(classes, Tensor) else np.asarray(classes)).to(device).long()
    if numbers.ndim != 1 or int(((numbers < -1) | (numbers >= checked_count("num_classes", num_classes))).sum()):
        raise ValueError(f"classes must be numbers from −1 to {num_classes - 1}, one per row; −1 stands for no label")
    return Labels(one_hot(numbers.clamp_min(0), num_classes).float(), (numbers >= 0).float())


def on_rows(
    rows: npt.ArrayLike, classes: npt.ArrayLike, num_rows: int, num_classes: int, device: Device = "cpu"
) -> Labels:
    """Take released classes of these rows, such as the answered queries of a vote; the other rows have none.

    >>> on_rows([3, 0], [1, 0], num_rows=4, num_classes=2).weights
    tensor([1., 0., 0., 1.])
    """
    places, found = np.asarray(rows, dtype=np.int64), np.asarray(classes, dtype=np.int64)
    if (
        places.shape != found.shape
        or places.ndim != 1
        or (places.size and not 0 <= places.min() <= places.max() < num_rows)
    ):
        raise ValueError(f"rows and classes must be two lists of the same length, of rows 0 to {num_rows - 1}")
    every = np.full(num_rows, -1, dtype=np.int64)
    every[places] = found
    return from_classes(every, num_classes, device)


def most_confident(probabilities: Tensor, per_class: int) -> Labels:
    """Label the `per_class` most confident rows of every predicted class with it; every class counts alike.

    Class by class, or the easy classes would crowd out the rest. A teacher's confident labels are nearly always right,
    but they are of easy rows: what a student learns beyond them comes from the rows without a label.

    Args:
        probabilities: a private teacher's, (n, K), such as `OneShot.probabilities`; released or public.
        per_class: how many rows; fewer where a class is predicted less often.

    >>> most_confident(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), per_class=1).rows()
    tensor([0, 2])
    """
    confidence, chosen = probabilities.max(dim=1)
    hot = one_hot(chosen, probabilities.shape[1]).float()
    # Rows of other classes come after all of the class's own; a row's place in its own class's order is its rank.
    order = (confidence[:, None] * hot - (1 - hot)).argsort(dim=0, descending=True, stable=True)
    places = torch.arange(len(order), device=order.device)[:, None].expand_as(order)
    rank = torch.empty_like(order).scatter_(0, order, places).gather(1, chosen[:, None]).squeeze(1)
    kept = hot * (rank < checked_count("per_class", per_class))[:, None]
    return Labels(hot, (kept / kept.sum(dim=0).clamp_min(1)).sum(dim=1) * per_class)


def as_labels(private: NoisyLabels | Labels, rows: int, device: Device) -> Labels:
    """Return responses at their word, or labels as they are, on the device; refuse another number of rows."""
    if len(private) != rows:
        raise ValueError(f"there are {len(private)} private labels for {rows} inputs; give one for each")
    if isinstance(private, NoisyLabels):
        return from_responses(private, device)
    return Labels(private.targets.to(device), private.weights.to(device))
