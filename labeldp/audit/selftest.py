"""Every recipe on made-up data, under audit: is what it claims on this machine, with this version, contradicted?

All rows are canaries of two classes. Where a recipe's model is linear, every row has a feature of its own, so that the
model can show all that was released about the row and nothing of another row's label: the worst data there can be. The
model hardly moves, so that gradients stay as large as they are clipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from labeldp.audit.result import AuditResult, Claim
from labeldp.audit.training import Labels, audit_training
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.releases import FloatArray

_ROWS_OF_A_USER = 3
_BY_ROW = ("rr", "debiased", "forward", "alibi", "lp-mst", "ldp-ssl")

# (labels, vault, ε, δ) → scores (n, 2)
Scores = Callable[[Labels, LabelVault, float, float], FloatArray]


@dataclass(frozen=True)
class Subject:
    """A recipe and how it is audited.

    Args:
        rows: how many canaries it gets when nobody says.
        separate: whether its canaries leave each other alone; see `audit_training`.
        pure: whether it needs no δ.
        scores: asks the vault and trains; what the result says of each class.
        seal: puts the labels into a vault.
    """

    rows: int
    separate: bool
    pure: bool
    scores: Scores
    seal: Callable[[Labels, SecureRandom], LabelVault] = lambda labels, rng: LabelVault(labels, 2, rng=rng)


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
        epsilon, delta: what it is asked to stay within. When None, δ is 0, or 1e-7 for Gaussian noise: the bound for
            one run needs it small, since a claim with δ allows a run in 1/δ to tell everything.
        rows: how many canaries.
        seed: of the coins.
        noise: makes the noise of each run: for tests of the audit, which repeat it.

    >>> self_test("rr", epsilon=1.0, rows=500).contradicts
    False
    """
    known = subjects()
    if recipe not in known:
        raise ValueError(f"recipe={recipe!r} is not one of {', '.join(known)}")
    if find_spec("torch") is None:
        raise ValueError("recipes need PyTorch; install it with: pip install 'labeldp[torch]'")
    subject = known[recipe]
    delta = (0.0 if subject.pure else 1e-7) if delta is None else delta

    def train(labels: Labels) -> tuple[FloatArray, Claim]:
        vault = subject.seal(labels, noise())
        scores = subject.scores(labels, vault, epsilon, delta)
        return scores, Claim.of(vault.certificate(delta))

    from labeldp.features.extract import one_thread

    zeros = np.zeros(rows or subject.rows, dtype=np.int64)
    with one_thread():
        return audit_training(train, zeros, 2, separate=subject.separate, confidence=confidence, seed=seed)


def subjects() -> dict[str, Subject]:
    """The recipes that can be audited, by name."""
    by_row = {name: Subject(2000, False, True, functools.partial(_by_name, name)) for name in _BY_ROW}
    return {
        **by_row,
        "ssl-prior": Subject(2000, False, True, _ssl_prior),
        "denoise-ssl": Subject(2000, False, True, functools.partial(_by_cluster, "denoise_ssl")),
        "cluster-votes": Subject(2000, False, True, functools.partial(_by_cluster, "cluster_votes")),
        "pate-fm": Subject(1000, False, False, _pate_fm),
        "moments": Subject(4000, True, False, _moments),
        "one-shot": Subject(1000, False, False, _one_shot),
        "one-shot-prior": Subject(1000, False, False, _one_shot_prior),
        "rounds": Subject(500, False, False, _rounds),
        "dp-sgd": Subject(2500, True, False, functools.partial(_descent, "no_op")),
        "labeldp-pro": Subject(200, False, False, functools.partial(_descent, "alt_conv")),
        "alt-rows": Subject(200, False, False, functools.partial(_descent, "alt_rows")),
        "self-span": Subject(1000, False, False, functools.partial(_descent, "self_span")),
        "self-conv": Subject(200, False, False, functools.partial(_descent, "self_conv")),
        "lp-normal-sgd": Subject(2500, True, False, _lp_normal_sgd),
        "binned-regression": Subject(2000, False, True, _binned, _sealed_values),
        "user-answers": Subject(1000, False, True, _user_responses, _sealed_users),
        "user-gradients": Subject(1000, True, False, _user_gradients, _sealed_users),
    }


def _linear(rows: int, scale: float = 1.0) -> tuple[Any, Any]:
    """A linear model without a bias that knows nothing yet, and one feature for every row."""
    import torch

    model = torch.nn.Linear(rows, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model, scale * torch.eye(rows)


def _logits(model: Any, inputs: Any) -> FloatArray:
    from labeldp.learning.train import predict

    return predict(model, inputs).double().cpu().numpy()


def _fit() -> Any:
    from labeldp.learning.train import fit, sgd

    return functools.partial(fit, epochs=2, batch_size=50, optimizer=sgd(5.0, 0.0, 0.0))


def _by_name(name: str, labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    recipe = import_module(f"labeldp.recipes.{name.replace('-', '_')}")
    return _on_responses(recipe.train, labels, vault, epsilon, delta)


def _on_responses(train: Any, labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    model, inputs = _linear(len(labels))
    return _logits(train(model, inputs, vault, epsilon=epsilon, fit=_fit()), inputs)


def _ssl_prior(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.recipes import ssl_prior

    train = functools.partial(ssl_prior.train, clusters=np.arange(len(labels)), prior_epsilon=epsilon / 2)
    return _on_responses(train, labels, vault, epsilon, delta)


def _by_cluster(name: str, labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    """Every row is a cluster of its own."""
    recipe = import_module(f"labeldp.recipes.{name}")
    train = functools.partial(recipe.train, clusters=np.arange(len(labels)))
    return _on_responses(train, labels, vault, epsilon, delta)


def _pate_fm(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.learning.teachers import ridge_teachers
    from labeldp.recipes.pate_fm import Ballot, label

    features, ballot = _features(len(labels)), Ballot(teachers=len(labels) // 4, queries=80, responses=40)
    found = label(
        lambda rows: ridge_teachers(features, features[rows], 2), vault, epsilon=epsilon, delta=delta, ballot=ballot
    )
    scores = np.zeros((len(labels), 2))
    scores[found.rows, found.classes] = 1.0
    return scores


def _moments(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.mechanisms.counts import GaussianNoise
    from labeldp.mechanisms.moments import Moments

    ask = Moments(np.eye(len(labels)), 2, GaussianNoise.for_budget(epsilon, delta), radius=1.0, exact=False)
    return vault.release(ask).value.T


def _features(rows: int) -> Any:
    import torch

    return torch.randn(rows, 20, generator=torch.Generator().manual_seed(0))


def _one_shot(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.recipes import one_shot

    features = _features(len(labels))
    return one_shot.train(features, vault, epsilon=epsilon, delta=delta).logits(features).double().cpu().numpy()


def _one_shot_prior(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.recipes import one_shot_prior

    model, inputs = _linear(len(labels))
    how = {"epsilon": epsilon, "delta": delta, "fit": _fit()}
    return _logits(one_shot_prior.train(model, inputs, _features(len(labels)), vault, **how).model, inputs)


def _rounds(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from torch import nn

    from labeldp.models.zoo import with_head
    from labeldp.recipes import rounds, students

    features = _features(len(labels))
    model = with_head(nn.Sequential(nn.Linear(20, 16), nn.ReLU()), 16, 2)
    teach = functools.partial(students.train, fit=_fit())
    return _logits(
        rounds.train(model, features, features, vault, epsilon=epsilon, delta=delta, teach=teach).model, features
    )


def _descent(denoiser: str, labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.recipes import labeldp_pro

    model, inputs = _linear(len(labels), scale=10.0)
    trained = labeldp_pro.train(
        model, inputs, vault, epsilon=epsilon, delta=delta, denoiser=getattr(labeldp_pro, denoiser)(),
        optimizer=_slow(), epochs=2, batch_size=max(1, len(labels) // 2),
    )  # fmt: skip
    return _logits(trained, inputs)


def _slow() -> Any:
    """Steps so small that the gradients stay what they were."""
    from labeldp.learning.train import sgd

    return sgd(1e-4, 0.0, 0.0)


def _lp_normal_sgd(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.recipes import lp_normal_sgd

    model, inputs = _linear(len(labels), scale=10.0)
    trained = lp_normal_sgd.train(
        model, inputs, vault, epsilon=epsilon, delta=delta, diameter=1e-3, batch_size=max(1, len(labels) // 10)
    )
    return _logits(trained, inputs)


def _sealed_values(labels: Labels, rng: SecureRandom) -> LabelVault:
    """The two ends of a range of numbers."""
    from labeldp.mechanisms.values import seal_values

    return seal_values(10.0 * labels, 0.0, 10.0, levels=11, rng=rng)


def _binned(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.mechanisms.values import ValueVault
    from labeldp.recipes.binned_regression import privatize_values

    assert isinstance(vault, ValueVault)
    values = privatize_values(vault, epsilon=epsilon).values()
    return np.stack([-values, values], axis=1)


def _sealed_users(labels: Labels, rng: SecureRandom) -> LabelVault:
    """Three rows of every user, all with the user's label: the coin decides them together."""
    from labeldp.mechanisms.users import UserVault

    return UserVault(np.repeat(labels, _ROWS_OF_A_USER), np.repeat(np.arange(len(labels)), _ROWS_OF_A_USER), 2, rng=rng)


def _user_responses(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.mechanisms.users import UserVault
    from labeldp.recipes import user_level

    assert isinstance(vault, UserVault)
    model, inputs = _linear(len(vault))
    trained = user_level.train_on_responses(model, inputs, vault, epsilon=epsilon, fit=_fit(), cap=_ROWS_OF_A_USER)
    return _by_user(_logits(trained, inputs))


def _user_gradients(labels: Labels, vault: LabelVault, epsilon: float, delta: float) -> FloatArray:
    from labeldp.mechanisms.users import UserVault
    from labeldp.recipes import labeldp_pro, user_level

    assert isinstance(vault, UserVault)
    model, inputs = _linear(len(vault), scale=10.0)
    trained = user_level.train_on_gradients(
        model, inputs, vault, epsilon=epsilon, delta=delta, cap=_ROWS_OF_A_USER, denoiser=labeldp_pro.no_op(),
        optimizer=_slow(), epochs=2, batch_users=max(1, len(labels) // 2),
    )  # fmt: skip
    return _by_user(_logits(trained, inputs))


def _by_user(scores: FloatArray) -> FloatArray:
    return scores.reshape(-1, _ROWS_OF_A_USER, 2).sum(axis=1)
