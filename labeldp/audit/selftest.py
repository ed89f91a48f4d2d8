"""Audit every recipe on made-up data: is what it claims on this machine, with this version, contradicted?

All rows are canaries of two classes. Where a recipe's model is linear, every row has a feature of its own, so that the
model can show all that was released about the row and nothing of another row's label: the worst data there can be. The
model of a descent on gradients hardly moves, so that gradients stay as large as they are clipped.

How a recipe is tested is part of its entry in the catalogue (`labeldp.recipes.catalogue.SelfTest`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from labeldp.audit.bounds import AuditResult, Claim
from labeldp.audit.training import Labels, audit_training
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.recipes.catalogue import RECIPES, Lazy, Recipe, SelfTest, canonical, loaded
from labeldp.recipes.worth import Case
from labeldp.releases import FloatArray

_ROWS_OF_A_USER = 3


def self_test(
    recipe: str,
    epsilon: float,
    delta: float | None = None,
    *,
    rows: int | None = None,
    confidence: float = 0.999,
    seed: int | None = None,
    noise: Callable[[], SecureRandom] = SecureRandom,
) -> AuditResult:
    """Audit a recipe of this library on made-up labels.

    Args:
        recipe: one of `subjects()`.
        epsilon, delta: what it has to stay within. When None, δ is 0, or 1e-7 for Gaussian noise: the bound for
            one run needs it small, since a claim with δ allows a run in 1/δ to show everything.
        rows: how many canaries.
        seed: of the coins.
        noise: makes the noise of each run: for tests of the audit, which repeat it.

    >>> self_test("rr", epsilon=1.0, rows=500).contradicts
    False
    """
    known = subjects()
    name = canonical(recipe)
    if name not in known:
        raise ValueError(f"recipe={recipe!r} is not one of {', '.join(known)}")
    if find_spec("torch") is None:
        raise ValueError("recipes need PyTorch; install it with: pip install 'labeldp[torch]'")
    entry, test = known[name]
    delta = (0.0 if test.pure else 1e-7) if delta is None else delta

    def train(labels: Labels) -> tuple[FloatArray, Claim]:
        vault = _sealed(test, labels, noise())
        return _scores(entry, test, vault, epsilon, delta), Claim.of(vault.certificate(delta))

    from labeldp.features.extract import one_thread

    zeros = np.zeros(rows or test.rows, dtype=np.int64)
    with one_thread():
        return audit_training(train, zeros, 2, separate=test.separate, confidence=confidence, seed=seed)


def subjects() -> dict[str, tuple[Recipe, SelfTest]]:
    """Return what can be audited, by name: recipes by their keys, and variants of them."""
    return {name or recipe.key: (recipe, test) for recipe in RECIPES for name, test in recipe.self_tests.items()}


def exact_moments(features: Any, vault: LabelVault, *, epsilon: float, delta: float) -> FloatArray:
    """Return a moment of features that tell all rows apart: nothing but the mechanism is audited."""
    from labeldp.mechanisms.counts import GaussianNoise
    from labeldp.mechanisms.moments import Moments

    noise = GaussianNoise.for_budget(epsilon, delta)
    return vault.release(Moments(np.eye(len(features)), 2, noise, radius=1.0, exact=False)).value.T


def _sealed(test: SelfTest, labels: Labels, rng: SecureRandom) -> LabelVault:
    if test.labels == "numbers":
        # The two ends of a range.
        from labeldp.mechanisms.values import seal_values

        return seal_values(10.0 * labels, 0.0, 10.0, levels=11, rng=rng)
    if test.labels == "users":
        # Three rows of every user, all with the user's label: the coin decides them together.
        from labeldp.mechanisms.users import UserVault

        owners = np.repeat(np.arange(len(labels)), _ROWS_OF_A_USER)
        return UserVault(np.repeat(labels, _ROWS_OF_A_USER), owners, 2, rng=rng)
    return LabelVault(labels, 2, rng=rng)


def _scores(recipe: Recipe, test: SelfTest, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    """Run the recipe on the vault; return what the result says of each class of each canary, (n, 2)."""
    rows, many = len(vault), len(vault) // (_ROWS_OF_A_USER if test.labels == "users" else 1)
    function = loaded(test.function or (recipe.numbers if test.labels == "numbers" else recipe.classes))
    supplied = {**_supplies(test, rows), "vault": vault, "epsilon": epsilon, "delta": delta}
    settings: dict[str, Any] = {**recipe.settings(Case(rows, 2, None, "table", delta), epsilon), **test.settings}
    for setting, value in settings.items():
        # A rule for so many rows at this ε, what is to be loaded, or a plain value.
        if not isinstance(value, Lazy) and callable(value):
            value = value(many, epsilon)  # noqa: PLW2901
        supplied[setting] = value.load() if isinstance(value, Lazy) else value
    parameters = inspect.signature(function).parameters
    result = function(**{name: value for name, value in supplied.items() if name in parameters})
    scores = _scores_of(result, supplied, rows)
    return scores.reshape(many, -1, 2).sum(axis=1)


def _supplies(test: SelfTest, rows: int) -> Mapping[str, Any]:
    """Return model, data and loops: the vocabulary of `labeldp.recipes.job`, small and quick."""
    import torch
    from torch import nn

    from labeldp.learning.optimisers import sgd
    from labeldp.learning.teachers import ridge_teachers
    from labeldp.learning.train import fit
    from labeldp.models.zoo import with_head
    from labeldp.recipes import distil

    features = torch.randn(rows, 20, generator=torch.Generator().manual_seed(0))
    if test.network:
        model, inputs = with_head(nn.Sequential(nn.Linear(20, 16), nn.ReLU()), 16, 2), features
    else:
        model, inputs = nn.Linear(rows, 2, bias=False), test.scale * torch.eye(rows)
        nn.init.zeros_(model.weight)
    loop: Any = functools.partial(fit, epochs=2, batch_size=50, optimizer=sgd(5.0, 0.0, 0.0))
    return {
        "model": model, "inputs": inputs, "features": features, "fit": loop,
        "refine": lambda model, inputs, labels, **more: loop(model, inputs, labels.objective(), rows=labels.rows()),
        "teach": functools.partial(distil.train, fit=loop),
        "teachers": lambda rows: ridge_teachers(features, features[rows], 2),
    }  # fmt: skip


def _scores_of(result: Any, supplied: Mapping[str, Any], rows: int) -> FloatArray:
    """Return the scores of a model, a head, labels of some rows, private numbers, or a plain array."""
    from torch import nn

    from labeldp.learning.train import predict
    from labeldp.mechanisms.values import NoisyValues
    from labeldp.recipes.pate import TeacherLabels

    if isinstance(result, np.ndarray):
        return result
    if isinstance(result, NoisyValues):
        return np.stack([-result.values(), result.values()], axis=1)
    if isinstance(result, TeacherLabels):
        scores = np.zeros((rows, 2))
        scores[result.rows, result.classes] = 1.0
        return scores
    if hasattr(result, "probabilities") and callable(result.probabilities):
        shown: Any = getattr(result, "logits", result.probabilities)
        return shown(supplied["features"]).double().cpu().numpy()
    model = result if isinstance(result, nn.Module) else result.model
    return predict(model, supplied["inputs"]).double().cpu().numpy()
