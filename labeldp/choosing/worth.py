"""What a look is worth, in clean labels: the one scale on which answers per row and one noisy moment can be compared.

A look with noise lets a linear statistic of the labels be estimated as well as m rows with clean labels would. Closed
forms, from public numbers only:

    answers per row   m = n (e^ε − 1)² / ((e^ε + K − 2)² + K − 1)    n over 1 + the variance of a debiased one-hot label
    one moment        1/m = 1/n + 2 K r / (n μ)²                     r directions, one Gaussian look at distance μ

Their quotient, where both are far below n, is n v μ² / 2r with v = (n/m − 1)/K the variance per class: independent of
the data, and of ε where ε is small. Answers win from the crossing on, the moment below it. Heuristic where the model is
not linear: that is what `labeldp.choosing.measured` is for.
"""

from __future__ import annotations

import math
from functools import lru_cache

from labeldp.core.gaussian import gaussian_mu

# Directions of the features that pay, per unit of nμ/K: what rehearsals chose, 16 at ε = 0.01 to 512 at ε = 0.5 on
# Fashion-MNIST, 64 at 0.05 to 1,500 at 1 on CIFAR-10.
_DIRECTIONS = 0.7
_LARGEST = 40.0
_LEAST_EPSILON, _MOST_EPSILON = 1e-4, 30.0


@lru_cache(maxsize=1024)
def distance(epsilon: float, delta: float) -> float:
    """μ of one Gaussian look at (ε, δ); infinite for ε = ∞."""
    return math.inf if math.isinf(epsilon) else gaussian_mu(epsilon, delta)


def response_labels(num_rows: float, num_classes: float, epsilon: float) -> float:
    """Clean labels that one randomized response per row is worth (Ghazi et al. 2021 for the law; variance debiased).

    >>> round(response_labels(60_000, 10, 1.0)), round(response_labels(60_000, 10, 0.1))
    (1430, 7)
    """
    gain = math.expm1(min(epsilon, _LARGEST))
    return num_rows * gain**2 / ((gain + num_classes - 1) ** 2 + num_classes - 1)


def directions(num_rows: float, num_classes: float, mu: float, width: float) -> float:
    """How many directions of `width` public features the noise leaves worth asking about: 0.7 nμ/K at most."""
    return min(width, max(1.0, _DIRECTIONS * num_rows * mu / num_classes))


def moment_labels(num_rows: float, num_classes: float, mu: float, width: float) -> float:
    """Clean labels that the moment Σ onehot(y) ⊗ φ, released once at distance μ, is worth to a linear head.

    >>> round(moment_labels(60_000, 10, distance(0.1, 1e-5), width=4096), -1)
    1360.0
    """
    if mu <= 0 or math.isinf(mu):
        return 0.0 if mu <= 0 else float(num_rows)
    rank = directions(num_rows, num_classes, mu, width)
    return 1.0 / (1.0 / num_rows + 2.0 * num_classes * rank / (num_rows * mu) ** 2)


def pure_distance(num_rows: float, num_classes: float, epsilon: float, width: float) -> float:
    """μ of the Gaussian noise as large as the Laplace noise of a moment with δ = 0: ε/(2√r).

    Laplace noise of scale 2√r/ε has deviation 2√2·√r/ε where Gaussian noise has √2/μ; r follows from μ as above.

    >>> round(pure_distance(60_000, 10, 1.0, 4096), 3), round(distance(1.0, 1e-5), 3)
    (0.039, 0.268)
    """
    rank = (_DIRECTIONS * num_rows * epsilon / (2 * num_classes)) ** (2 / 3)
    return epsilon / (2 * math.sqrt(min(width, max(1.0, rank))))


@lru_cache(maxsize=1024)
def crossing(num_rows: int, num_classes: int, delta: float, width: float) -> float | None:
    """ε* from which answers per row are worth more than one moment; None where the moment never is, or always.

    Where all `width` directions are asked about this is the crossing of the variances of d isotropic features, at
    n v μ² = 2d; where noise leaves fewer it is a little higher, and the same for every n.

    >>> round(crossing(60_000, 10, 1e-5, width=784) or 0, 1), round(crossing(60_000, 2, 1e-5, width=784) or 0, 1)
    (4.3, 3.2)
    """

    def lead(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        moment = moment_labels(num_rows, num_classes, distance(epsilon, delta), width)
        return math.log(moment) - math.log(response_labels(num_rows, num_classes, epsilon))

    low, high = math.log(_LEAST_EPSILON), math.log(_MOST_EPSILON)
    if lead(low) <= 0 or lead(high) >= 0:
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if lead(middle) > 0 else (low, middle)
    return math.exp(high)


def vote_labels(num_rows: float, num_classes: int, epsilon: float, clusters: int) -> float:
    """Clean labels that one noisy majority class per cluster is worth: one per cluster whose vote is right.

    Right beyond chance, that is. A class that leads by g rows wins by permute-and-flip (McKenna & Sheldon 2020) with
    probability at least 1/(1 + (K − 1) e^{−ε g/2}); half of a mean cluster is taken for g.

    >>> [round(vote_labels(50_000, 10, epsilon, 100)) for epsilon in (0.01, 0.02, 0.05)]
    [20, 53, 98]
    """
    lead = 0.5 * num_rows / clusters
    right = 1.0 / (1.0 + (num_classes - 1) * math.exp(-min(epsilon * lead / 2, 700.0)))
    return clusters * (right - 1 / num_classes) / (1 - 1 / num_classes)
