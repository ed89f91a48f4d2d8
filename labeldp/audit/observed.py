"""Auditing a model that exists, without touching its training (Kalemaj et al. 2025).

For each row draw a second label y′ from what is known of labels with these features (the *proxy*: a model trained on
other rows, a public rate). If true labels were drawn from the proxy too, then which of {y, y′} the model was trained on
is a fair coin, given the pair; and guessing it obeys the same bounds as a canary (`labeldp.audit.bounds`). Rows with
y = y′ tell nothing and are left out. Where the proxy's odds are wrong by a factor of e^τ at most, so are the coin's,
and the bound holds for ε + τ (shown for δ = 0).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from labeldp.audit.result import AuditResult, Claim, coins_of, judged
from labeldp.audit.training import guesses_of, preference
from labeldp.releases import FloatArray

# A proxy that excludes a class would be certain about what nobody knows.
_LEAST_CHANCE = 1e-4


def audit_observed(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    proxy: npt.ArrayLike,
    claim: Claim,
    *,
    proxy_error: float = 0.0,
    confidence: float = 0.999,
    seed: int | None = None,
) -> AuditResult:
    """A lower bound on ε of a model from its scores on the rows it was trained on, and their true labels.

    Args:
        scores: log-probabilities (or logits) of each class, (n, K).
        labels: the true labels, (n,).
        proxy: the chance of each class given the features, (n, K) or (K,), learnt without these labels.
        claim: what was promised.
        proxy_error: τ, how far off the proxy's log-odds may be; only for claims with δ = 0.
        seed: of the second labels; never of noise.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(2, size=4000)
    >>> memorised = np.eye(2)[labels]
    >>> audit_observed(memorised, labels, [0.5, 0.5], Claim(1.0), seed=0).contradicts
    True
    >>> audit_observed(rng.normal(size=(4000, 2)), labels, [0.5, 0.5], Claim(1.0), seed=0).contradicts
    False
    """
    table, rng = np.asarray(scores, dtype=np.float64), coins_of(seed)
    truth, chances = _checked(table, labels, proxy)
    if proxy_error < 0 or (proxy_error > 0 and claim.delta > 0):
        raise ValueError(f"proxy_error={proxy_error}: give a number ≥ 0, and 0 where the claim has a delta")
    # The last class takes what rounding leaves.
    second = (chances.cumsum(axis=1)[:, :-1] < rng.random((len(truth), 1))).sum(axis=1)
    rows = np.flatnonzero(second != truth)
    if not rows.size:
        raise ValueError("the proxy is certain of every label, so there is nothing to guess; give one that is not")
    coins = rng.integers(2, size=len(rows))
    both = np.stack([truth[rows], second[rows]], axis=1)
    # The coin says where the true label stands.
    options = np.where(coins[:, None] == 0, both, both[:, ::-1])
    told = preference(table, rows, options, table.shape)
    beyond = preference(table - np.log(chances), rows, options, table.shape)
    attacks = [
        *guesses_of("the model's preference", coins, told),
        *guesses_of("its preference beyond the proxy's", coins, beyond),
    ]
    # What a wrong proxy may give away is not held against the model.
    loose = judged(replace(claim, epsilon=claim.epsilon + proxy_error), attacks, confidence, _assumes(proxy_error))
    return replace(loose, epsilon=claim.epsilon, bound=max(0.0, loose.bound - proxy_error))


def _assumes(error: float) -> str:
    wrong = f", up to a factor of e^{error:g} in their odds" if error else ""
    return f"labels are drawn from the proxy{wrong}"


def _checked(
    table: FloatArray, labels: npt.ArrayLike, proxy: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    truth, chances = np.asarray(labels), np.asarray(proxy, dtype=np.float64)
    if table.ndim != 2 or truth.shape != table.shape[:1] or truth.dtype.kind not in "iub":
        raise ValueError(f"scores has shape {table.shape} and labels {truth.shape}; give (n, K) and n class numbers")
    if chances.shape not in (table.shape, table.shape[1:]) or not (chances >= 0).all() or not chances.sum(-1).all():
        raise ValueError(f"proxy has shape {chances.shape}; give chances ≥ 0 of shape {table.shape} or (K,)")
    outside = int(np.count_nonzero((truth < 0) | (truth >= table.shape[1])))
    if outside:
        raise ValueError(f"{outside} labels are not among 0 … {table.shape[1] - 1}; give them as they were sealed")
    # Clipped, then scaled to add up to one.
    chances = np.maximum(np.broadcast_to(chances / chances.sum(-1, keepdims=True), table.shape), _LEAST_CHANCE)
    return truth.astype(np.int64), chances / chances.sum(axis=1, keepdims=True)
