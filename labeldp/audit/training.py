"""Audit any training function by canaries, rows whose labels a coin decided; or a model that exists already.

One run is enough (Steinke, Nasr & Jagielski 2023): every canary is a guess of its own. The training is a function from
labels to scores, how much the result speaks for each class of each row (the model's logits, say), and it says what it
claims. Three attackers use the scores.

- *The model's preference*: of the two candidates, the one with the higher score.
- *A repeated run*: the training is run again with all canaries at their first candidate, and at their second; guess the
  one whose run this one repeats. Noise from a seed that is used again cancels, and nothing is left but the labels.
- *Separate canaries* (only if the caller says that canaries do not touch each other): `labeldp.audit.bounds.Separate`.

A canary run has made-up labels in it: audit a trial run, never the model you will use. For a model that exists there is
`audit_observed`, which does not touch its training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from labeldp.audit.bounds import Attack, AuditResult, Claim, Guesses, coins_of, judged
from labeldp.audit.bounds import separate as separated
from labeldp.releases import FloatArray

Labels = npt.NDArray[np.int64]
# labels (n,) → scores (n, K), or several of them by name, and what the run claims to cost.
Training = Callable[[Labels], tuple[npt.ArrayLike | Mapping[str, FloatArray], Claim]]
_PREFERENCE = "the model's preference"
# Which part of the canaries is guessed, the most confident first; fixed in advance, as δ > 0 needs it to be.
PARTS = (1.0, 0.5, 0.1)
# A proxy that excludes a class would be certain about what nobody knows.
_LEAST_CHANCE = 1e-4


def audit_training(
    train: Training,
    labels: npt.ArrayLike,
    num_classes: int,
    *,
    canaries: int | npt.ArrayLike | None = None,
    replay: bool = True,
    separate: bool = False,
    confidence: float = 0.999,
    seed: int | None = None,
) -> AuditResult:
    """Return a lower bound on ε of a training function, from one run on labels that are partly coins (and two replays).

    Args:
        train: from labels to scores and claim. Called with made-up labels; must not remember earlier calls. Where
            there is more to be seen than a model, scores may be several, by the name of the attack.
        labels: made-up or public labels, (n,); those of canaries are replaced.
        num_classes: how many classes there are.
        canaries: how many rows, or which; all when None.
        replay: whether to run it twice more, to find noise that repeats itself.
        separate: whether no canary's label changes what another's scores tell (orthogonal features, a linear model
            that hardly moves). Then Gaussian noise is audited far more tightly.
        confidence: an honest training is accused with probability at most one minus this.
        seed: of the coins; never of noise.

    >>> from labeldp import LabelVault, RandomizedResponse
    >>> def train(labels):
    ...     vault = LabelVault(labels, 2)
    ...     private = vault.release(RandomizedResponse(1.0, 2))
    ...     return private.log_likelihood(), Claim.of(vault.certificate())
    >>> result = audit_training(train, np.zeros(5000, dtype=int), num_classes=2)
    >>> 0.5 < result.bound < 1.2
    True
    """
    given, chance = np.array(labels, dtype=np.int64), coins_of(seed)
    rows = _canaries(canaries, len(given), chance)
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes}: with fewer than two there is nothing to guess")
    # Two different classes for every canary, and which of them it has.
    first = chance.integers(num_classes, size=len(rows))
    options = np.stack([first, (first + chance.integers(1, num_classes, size=len(rows))) % num_classes], axis=1)
    coins = chance.integers(2, size=len(rows))

    def run(chosen: Labels) -> tuple[dict[str, FloatArray], Claim]:
        labelled = given.copy()
        labelled[rows] = options[np.arange(len(rows)), chosen]
        scores, claim = train(labelled)
        tables = scores if isinstance(scores, Mapping) else {_PREFERENCE: scores}
        shape = (len(given), num_classes)
        return {name: preference(table, rows, options, shape) for name, table in tables.items()}, claim

    found, claim = run(coins)
    attacks = [one for name, preferred in found.items() for one in _attacks(name, coins, preferred, claim, separate)]
    if replay:
        all_first, all_second = (run(np.full_like(coins, side))[0] for side in (0, 1))
        for name, preferred in found.items():
            nearer = np.abs(preferred - all_first[name]) - np.abs(preferred - all_second[name])
            again = "a repeated run" if name == _PREFERENCE else f"a repeated run, {name}"
            attacks += _attacks(again, coins, nearer, claim, separate)
    return judged(claim, attacks, confidence, "canaries do not touch each other" if separate else "")


def audit_runs(
    train: Training,
    labels: npt.ArrayLike,
    num_classes: int,
    row: int,
    *,
    candidates: tuple[int, int] = (0, 1),
    runs: int = 300,
    confidence: float = 0.999,
    seed: int | None = None,
) -> AuditResult:
    """Return the same bound from many runs with one canary each: slower, and finds what a single row reveals.

    An early stop that uses one label, for example, shows here and hardly in one run with many canaries.
    """
    given, chance = np.array(labels, dtype=np.int64), coins_of(seed)
    coins, found = chance.integers(2, size=runs), np.empty(runs)
    options, claim = np.array([candidates]), Claim(math.inf)
    for number, coin in enumerate(coins):
        given[row] = candidates[coin]
        scores, claim = train(given.copy())
        if isinstance(scores, Mapping):
            raise ValueError("train returned several tables of scores; return one here")
        found[number] = preference(scores, np.array([row]), options, (len(given), num_classes))[0]
    # A quarter of the runs says where the middle lies between the two.
    early = max(4, runs // 4)
    sides = [found[:early][coins[:early] == side] for side in (0, 1)]
    middle = sum(float(np.median(part)) for part in sides if len(part)) / max(1, sum(map(bool, map(len, sides))))
    signs = 2.0 * coins[early:] - 1.0
    return judged(claim, [separated("one canary in many runs", signs, found[early:] - middle)], confidence)


def preference(
    scores: npt.ArrayLike, rows: npt.NDArray[np.intp], options: Labels, shape: tuple[int, int]
) -> FloatArray:
    """Return how much more the scores speak for the second candidate than for the first, (m,)."""
    table = np.asarray(scores, dtype=np.float64)
    if table.shape != shape or not np.isfinite(table).all():
        raise ValueError(f"train returned scores of shape {table.shape}; give finite numbers of shape {shape}")
    return table[rows, options[:, 1]] - table[rows, options[:, 0]]


def guesses_of(name: str, coins: Labels, found: FloatArray, parts: Sequence[float] = PARTS) -> list[Guesses]:
    """Guess the coins from the signs, for every part the most confident ones."""
    right = (found > 0) == (coins == 1)
    order = np.argsort(-np.abs(found), kind="stable")
    counts = sorted({max(1, math.ceil(part * len(coins))) for part in parts}, reverse=True)
    return [
        Guesses(f"{name}, the most confident {count:,}", int(np.count_nonzero(right[order[:count]])), count, len(coins))
        for count in counts
    ]


def _attacks(name: str, coins: Labels, found: FloatArray, claim: Claim, separate: bool) -> list[Attack]:
    attacks: list[Attack] = [*guesses_of(name, coins, found)]
    if separate and claim.delta > 0:
        attacks.append(separated(f"{name}, each canary by itself", 2.0 * coins - 1.0, found))
    return attacks


def _canaries(canaries: int | npt.ArrayLike | None, num_rows: int, chance: np.random.Generator) -> npt.NDArray[np.intp]:
    if canaries is None:
        return np.arange(num_rows)
    if isinstance(canaries, int):
        if not 1 <= canaries <= num_rows:
            raise ValueError(f"canaries={canaries} of {num_rows} rows; give a number from 1 to that")
        return np.sort(chance.choice(num_rows, size=canaries, replace=False))
    rows = np.asarray(canaries, dtype=np.intp)
    if rows.ndim != 1 or not rows.size or len(np.unique(rows)) < rows.size or rows.min() < 0 or rows.max() >= num_rows:
        raise ValueError(f"canaries is a list of {rows.size} rows; name each of 0 … {num_rows - 1} at most once")
    return rows


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
    """Return a lower bound on ε of a model from its scores on the rows it was trained on, and their true labels.

    The training is not touched (Kalemaj et al. 2025). For each row draw a second label y′ from what is known of labels
    with these features (the *proxy*: a model trained on other rows, a public rate). If true labels were drawn from the
    proxy too, then which of {y, y′} the model was trained on is a fair coin, given the pair; and guessing it obeys the
    same bounds as a canary (`labeldp.audit.bounds`). Rows with y = y′ tell nothing and are left out. Where the proxy's
    odds are wrong by a factor of e^τ at most, so are the coin's, and the bound holds for ε + τ (shown for δ = 0).

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
    preferred = preference(table, rows, options, table.shape)
    beyond = preference(table - np.log(chances), rows, options, table.shape)
    attacks = [
        *guesses_of("the model's preference", coins, preferred),
        *guesses_of("its preference beyond the proxy's", coins, beyond),
    ]
    # What a wrong proxy may give away is not held against the model.
    wrong = f", up to a factor of e^{proxy_error:g} in their odds" if proxy_error else ""
    assumes = f"labels are drawn from the proxy{wrong}"
    loose = judged(replace(claim, epsilon=claim.epsilon + proxy_error), attacks, confidence, assumes)
    return replace(loose, epsilon=claim.epsilon, bound=max(0.0, loose.bound - proxy_error))


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
