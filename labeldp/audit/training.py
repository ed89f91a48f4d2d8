"""Auditing any training function by canaries: rows whose labels a coin decided.

One run is enough (Steinke, Nasr & Jagielski 2023): every canary is a guess of its own. The training is a function from
labels to scores, how much the result speaks for each class of each row (the model's logits, say), and it says what it
claims. Three attackers look at the scores.

- *The model's preference*: of the two candidates, the one with the higher score.
- *A repeated run*: the training is run again with all canaries at their first candidate, and at their second; guess the
  one whose run this one repeats. Noise from a seed that is used again cancels, and nothing is left but the labels.
- *Separate canaries* (only if the caller says that canaries do not touch each other): `labeldp.audit.separate`.

A canary run has made-up labels in it: audit a rehearsal, never the model you will use. For that there is
`labeldp.audit.observed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from labeldp.audit.result import Attack, AuditResult, Claim, Guesses, coins_of, judged
from labeldp.audit.separate import separate as separated
from labeldp.releases import FloatArray

Labels = npt.NDArray[np.int64]
# labels (n,) → scores (n, K), or several of them by name, and what the run claims to cost.
Training = Callable[[Labels], tuple[npt.ArrayLike | Mapping[str, FloatArray], Claim]]
_PREFERENCE = "the model's preference"
# Which part of the canaries is guessed, the surest first; fixed in advance, as δ > 0 needs it to be.
PARTS = (1.0, 0.5, 0.1)


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
    """A lower bound on ε of a training function, from one run on labels that are partly coins (and two replays).

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
    options = _pairs(len(rows), num_classes, chance)
    coins = chance.integers(2, size=len(rows))

    def run(chosen: Labels) -> tuple[dict[str, FloatArray], Claim]:
        asked = given.copy()
        asked[rows] = options[np.arange(len(rows)), chosen]
        scores, claim = train(asked)
        tables = scores if isinstance(scores, Mapping) else {_PREFERENCE: scores}
        shape = (len(given), num_classes)
        return {name: preference(table, rows, options, shape) for name, table in tables.items()}, claim

    found, claim = run(coins)
    attacks = [one for name, told in found.items() for one in _attacks(name, coins, told, claim, separate)]
    if replay:
        first, second = (run(np.full_like(coins, side))[0] for side in (0, 1))
        for name, told in found.items():
            nearer = np.abs(told - first[name]) - np.abs(told - second[name])
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
    """The same from many runs with one canary each: slower, and finds what a single row can tell.

    An early stop that looks at one label, for example, shows here and hardly in one run with many canaries.
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
    """How much more the scores speak for the second candidate than for the first, (m,)."""
    table = np.asarray(scores, dtype=np.float64)
    if table.shape != shape or not np.isfinite(table).all():
        raise ValueError(f"train returned scores of shape {table.shape}; give finite numbers of shape {shape}")
    return table[rows, options[:, 1]] - table[rows, options[:, 0]]


def guesses_of(name: str, coins: Labels, found: FloatArray, parts: Sequence[float] = PARTS) -> list[Guesses]:
    """Guess the coins from the signs, the surest part of them for every part."""
    right = (found > 0) == (coins == 1)
    order = np.argsort(-np.abs(found), kind="stable")
    counts = sorted({max(1, math.ceil(part * len(coins))) for part in parts}, reverse=True)
    return [
        Guesses(f"{name}, the surest {count:,}", int(np.count_nonzero(right[order[:count]])), count, len(coins))
        for count in counts
    ]


def _attacks(name: str, coins: Labels, found: FloatArray, claim: Claim, separate: bool) -> list[Attack]:
    attacks: list[Attack] = [*guesses_of(name, coins, found)]
    if separate and claim.delta > 0:
        attacks.append(separated(f"{name}, each canary by itself", 2.0 * coins - 1.0, found))
    return attacks


def _canaries(asked: int | npt.ArrayLike | None, num_rows: int, chance: np.random.Generator) -> npt.NDArray[np.intp]:
    if asked is None:
        return np.arange(num_rows)
    if isinstance(asked, int):
        if not 1 <= asked <= num_rows:
            raise ValueError(f"canaries={asked} of {num_rows} rows; give a number from 1 to that")
        return np.sort(chance.choice(num_rows, size=asked, replace=False))
    rows = np.asarray(asked, dtype=np.intp)
    if rows.ndim != 1 or not rows.size or len(np.unique(rows)) < rows.size or rows.min() < 0 or rows.max() >= num_rows:
        raise ValueError(f"canaries is a list of {rows.size} rows; name each of 0 … {num_rows - 1} at most once")
    return rows


def _pairs(count: int, num_classes: int, chance: np.random.Generator) -> Labels:
    """Two different classes for every canary."""
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes}: with fewer than two there is nothing to guess")
    first = chance.integers(num_classes, size=count)
    return np.stack([first, (first + chance.integers(1, num_classes, size=count)) % num_classes], axis=1)
