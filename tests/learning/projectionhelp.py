"""Small problems with their candidates by hand, and independent solutions."""

import numpy as np
import torch
from scipy.optimize import minimize, nnls
from torch import nn
from torch.nn.functional import cross_entropy


def network(seed, inputs=3, classes=3, hidden=4, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes)).to(dtype)


def rows(seed, many, inputs=3, dtype=torch.float64):
    return torch.randn(many, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)


def candidates(model, inputs, classes, clip=None):
    """G (n, K, P) in float64, one backward pass at a time."""
    values, found = list(model.parameters()), []
    for row in inputs:
        for k in range(classes):
            loss = cross_entropy(model(row[None]), torch.tensor([k]))
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, values)]).double()
            found.append(gradient if clip is None else gradient * min(1.0, clip / gradient.norm().item()))
    return torch.stack(found).view(len(inputs), classes, -1)


def nearest_in_hull(candidate, noisy):
    """Exact: the point nearest to zero of a hull is a rescaled non-negative least squares (Lawson and Hanson 1974).

    min_{α ≥ 0} |Aα|² + (Σα − 1)² has its minimum where α/Σα is the nearest point: for a given direction the best
    length leaves d²/(1 + d²), which grows with the distance d.
    """
    shifted = (candidate.flatten(0, 1) - noisy).numpy()
    system = np.vstack((shifted.T, np.ones(len(shifted))))
    right = np.zeros(len(system))
    right[-1] = 1
    weights, _ = nnls(system, right, maxiter=100 * len(shifted))
    return candidate.flatten(0, 1).T @ torch.from_numpy(weights / weights.sum())


def nearest_in_row_simplex(candidate, noisy):
    """By a general solver (SLSQP), from the best of its own starts."""
    many, classes, _ = candidate.shape
    matrix, target = candidate.flatten(0, 1).numpy() / many, noisy.numpy()
    sums = np.kron(np.eye(many), np.ones(classes))
    found = minimize(
        lambda a: 0.5 * ((a @ matrix - target) ** 2).sum(),
        np.full(many * classes, 1 / classes),
        jac=lambda a: matrix @ (a @ matrix - target),
        bounds=[(0, 1)] * (many * classes),
        constraints={"type": "eq", "fun": lambda a: sums @ a - 1, "jac": lambda a: sums},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 2000},
    )
    return torch.from_numpy(found.x @ matrix)


def duality_gap(candidate, noisy, gradient, per_row):
    """max over the set of ⟨g̃ − ĝ, s − ĝ⟩: zero for the projection, and for no other point of the set."""
    residual = noisy.double() - gradient.double()
    values = candidate @ residual
    furthest = values.amax(1).mean() if per_row else values.amax()
    return (furthest - residual @ gradient.double()).item()
