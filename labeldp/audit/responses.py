"""Audit one response per row, exactly: the labels are known to the auditor, or drawn by it.

The auditor needs labels that a fair draw decided. `audit_mechanism` draws them itself. `audit_responses` is given true
labels, which nobody drew, and makes trials of them: draw a class fairly, then take the next unused row that has this
label (and the same public channel). Rows of one label and one channel get responses alike and independently, so the
response in a trial is distributed exactly as if the row's label had been drawn. What follows is `labeldp.audit.bounds`.
`audit_table` does this for a file that `labeldp privatize` wrote, against the owner's original.

Three attackers guess. The first trusts the stated channel: which response speaks for which class, and how strongly. The
second has learnt from a fifth of the rows, labels included, what responses the rows of each class really got: it sees
noise that many rows share. The third draws the noise again from small seeds and sees which labels explain the
responses: ALIBI's published code had 255 possible seeds (Malek et al. 2021), and trying all of them recovers every
label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.audit.bounds import AuditResult, Claim, Guesses, coins_of, judged
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, Mechanism
from labeldp.data.door import seal_column
from labeldp.data.request import TableError
from labeldp.data.tables import read_private
from labeldp.releases import FloatArray, NoisyLabels

# More rows would make the bound tighter by less than anyone could use.
MOST_ROWS = 1_000_000
_LEARNT_FROM = 0.2
_MOST_CELLS = 5_000_000
# How many rows that follow the stated channel are imagined for every class before its responses are counted.
_IMAGINED = 20.0
# How many small seeds are tried.
SEEDS = 256
# Rows by which a seed is recognised, rows that are then explained, and numbers drawn in all during the search.
_FIRST, _EXPLAINED, _MOST_DRAWS = 500, 20_000, 3_000_000

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Trials:
    """Hold the rows that are guessed, (t,), the classes they could have, (t, c), and which of these they have, (t,)."""

    rows: Rows
    options: Rows
    truth: Rows


def audit_responses(
    private: NoisyLabels,
    labels: npt.ArrayLike,
    claim: Claim | None = None,
    *,
    candidates: int = 2,
    confidence: float = 0.999,
    seed: int | None = None,
) -> AuditResult:
    """Return a lower bound on ε of these responses, from the true labels of their rows.

    Args:
        private: the responses, with the channel they claim to follow.
        labels: the true labels, 0 … K − 1.
        claim: what was promised; the channel's own ε when None.
        candidates: 2, or K for guesses among all classes.
        confidence: an honest release is accused with probability at most one minus this.
        seed: of the trials; never of noise.

    >>> from labeldp import RandomizedResponse
    >>> labels = np.arange(20_000) % 3
    >>> responses = LabelVault(labels, 3).release(RandomizedResponse(1.0, 3))
    >>> result = audit_responses(responses, labels)
    >>> 0.5 < result.bound < 1.1
    True
    """
    truth, chance = np.asarray(labels), coins_of(seed)
    if truth.shape != (len(private),):
        raise ValueError(f"labels have shape {truth.shape} for {len(private)} responses; give the label of every row")
    outside = int(np.count_nonzero((truth < 0) | (truth >= private.num_classes)))
    if truth.dtype.kind not in "iub" or outside:
        raise ValueError(f"{outside} labels are not among 0 … {private.num_classes - 1}; give them as they were sealed")
    truth = truth.astype(np.intp)
    if len(truth) > MOST_ROWS:
        kept = np.sort(chance.choice(len(truth), MOST_ROWS, replace=False))
        private, truth = private.take(kept), truth[kept]
    claim = claim or Claim(private.channel.epsilon)
    channels = same_channel(private)
    learnt = chance.random(len(truth)) < _LEARNT_FROM
    trials = _trials(truth, channels, ~learnt, _checked_candidates(candidates, private.num_classes), chance)
    assumes = "rows with one label and one channel got responses alike"
    return judged(claim, _attacks(private, truth, channels, learnt, trials, claim), confidence, assumes)


def audit_mechanism(
    mechanism: Mechanism[NoisyLabels],
    num_rows: int,
    num_classes: int,
    *,
    candidates: int = 2,
    confidence: float = 0.999,
    seed: int | None = None,
) -> AuditResult:
    """Return a lower bound on ε of a randomizer, from labels drawn for the purpose; channels may differ by row.

    >>> from labeldp import BitFlip
    >>> audit_mechanism(BitFlip(2.0, 5), num_rows=20_000, num_classes=5).contradicts
    False
    """
    chance = coins_of(seed)
    labels = chance.integers(num_classes, size=num_rows)
    vault = LabelVault(labels, num_classes)
    private = vault.release(mechanism)
    learnt = chance.random(num_rows) < _LEARNT_FROM
    candidates = _checked_candidates(candidates, num_classes)
    trials = drawn_trials(labels, np.flatnonzero(~learnt), num_classes, candidates, chance)
    claim = Claim.of(vault.certificate())
    return judged(claim, _attacks(private, labels, same_channel(private), learnt, trials, claim), confidence)


def audit_table(
    private: Path,
    original: Path,
    *,
    candidates: int = 2,
    confidence: float = 0.999,
    seed: int | None = None,
    delimiter: str | None = None,
) -> AuditResult:
    """Return a lower bound on ε of a privatized table, from the file it was made of; exact, see `audit_responses`.

    Args:
        private: what `privatize` wrote, with its certificate beside it.
        original: the file it was made of: the same rows in the same order, its labels true.
        delimiter: of the original, if it is CSV; as in the private file when None.

    >>> import tempfile
    >>> from labeldp import privatize
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = "".join(f"{i},{'high' if i % 3 else 'low'}\\n" for i in range(3000))
    >>> _ = (folder / "in.csv").write_text("age,income\\n" + rows)
    >>> _ = privatize(folder / "in.csv", folder / "out.csv", label="income", classes=["low", "high"], epsilon=1.0)
    >>> audit_table(folder / "out.csv", folder / "in.csv").contradicts
    False
    """
    table = read_private(private)
    vault = seal_column(original, table.label, table.classes, delimiter=delimiter)
    if len(vault) != len(table.labels):
        raise TableError(
            f"{original.name} has {len(vault)} rows and {private.name} has {len(table.labels)}; give the file that "
            "the private one was made of"
        )
    claim = Claim(table.labels.channel.epsilon) if table.certificate is None else Claim.of(table.certificate)
    truth = vault.reveal("the owner compares a released table with its own labels")
    return audit_responses(table.labels, truth, claim, candidates=candidates, confidence=confidence, seed=seed)


def drawn_trials(labels: Rows, rows: Rows, num_classes: int, candidates: int, chance: np.random.Generator) -> Trials:
    """Return trials of labels drawn uniformly: every row with its label and random other ones, in random order."""
    order = np.argsort(chance.random((len(rows), num_classes)), axis=1)
    own = order == labels[rows][:, None]
    # The label goes first, then the whole row is shuffled again among as many as there are candidates.
    options = np.take_along_axis(order, np.argsort(~own, axis=1, kind="stable")[:, :candidates], axis=1)
    options = chance.permuted(options, axis=1)
    return Trials(rows, options, np.argmax(options == labels[rows][:, None], axis=1))


def same_channel(private: NoisyLabels) -> Rows:
    """Return a number for every row, equal where the public channel is."""
    channel: Any = private.channel
    if hasattr(channel, "epsilons"):
        return np.unique(channel.epsilons, return_inverse=True)[1].reshape(-1)
    sets = channel.members() if hasattr(channel, "members") else None
    if sets is None or sets.ndim == 1:
        return np.zeros(len(private), dtype=np.intp)
    return np.unique(np.packbits(sets, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _trials(truth: Rows, channels: Rows, usable: npt.NDArray[np.bool_], candidates: int, chance: Any) -> Trials:
    parts: list[Trials] = []
    for channel in np.unique(channels):
        rows = chance.permutation(np.flatnonzero((channels == channel) & usable))
        of_class = [rows[truth[rows] == label] for label in range(int(truth.max(initial=0)) + 1)]
        for classes in _together([len(part) for part in of_class], candidates):
            found = _of_classes(np.array(classes), [of_class[label] for label in classes], chance)
            parts += found
            # What was used is used up.
            used = found[0].rows if found else rows[:0]
            for label in classes:
                of_class[label] = of_class[label][np.count_nonzero(truth[used] == label) :]
    if not parts:
        raise ValueError(
            f"there are too few rows to audit: {len(truth)} labels hold no {candidates} classes with some forty rows "
            "of the same channel each"
        )
    return Trials(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "options", "truth")))


def _together(sizes: list[int], candidates: int) -> list[list[int]]:
    """Return which classes compete with each other: neighbours in size, so that few rows are left over."""
    order = sorted((label for label, size in enumerate(sizes) if size), key=lambda label: -sizes[label])
    found = [order[i : i + candidates] for i in range(0, len(order) - candidates + 1, candidates)]
    if candidates == 2 and len(order) % 2 and len(order) > 1:
        # The smallest class is alone: it competes with the one that has the most rows left over.
        found.append([max(found, key=lambda pair: sizes[pair[0]] - sizes[pair[1]])[0], order[-1]])
    return found


def _of_classes(classes: Rows, rows: list[Rows], chance: Any) -> list[Trials]:
    """Draw one of the classes fairly, many times, each with the next unused row of it."""
    fewest = min(map(len, rows))
    # So few that with fair draws the rows of no class run out, but with a chance below 1e-6; then drawn anew.
    count = len(classes) * int(fewest - 6 * np.sqrt(fewest))
    if count <= 0:
        return []
    drawn = chance.integers(len(classes), size=count)
    while np.bincount(drawn, minlength=len(classes)).max() > fewest:
        drawn = chance.integers(len(classes), size=count)
    chosen = np.empty(count, dtype=np.intp)
    for number, part in enumerate(rows):
        chosen[drawn == number] = part[: np.count_nonzero(drawn == number)]
    return [Trials(chosen, np.tile(classes, (count, 1)), drawn)]


def _attacks(
    private: NoisyLabels, truth: Rows, channels: Rows, learnt: npt.NDArray[np.bool_], trials: Trials, claim: Claim
) -> list[Guesses]:
    stated = private.log_likelihood()
    by_channel = _among(stated, trials)
    attacks = [guessed("by the stated channel", by_channel, trials, 0.0)]
    least = 0.95 * private.channel.epsilon
    attacks.append(guessed("by the stated channel, where it is most confident", by_channel, trials, least))
    shape = (int(channels.max(initial=0)) + 1, private.num_classes, private.num_classes)
    if private.responses.ndim == 1 and np.prod(shape) <= _MOST_CELLS:
        seen = _seen(private, truth, channels, learnt, shape, stated)
        attacks.append(guessed("by what other rows got", _among(seen, trials), trials, max(0.5 * claim.epsilon, 0.25)))
    again = replayed(private, truth, learnt)
    if again is not None:
        attacks.append(guessed("by noise drawn again from a small seed", _among(again, trials), trials, 0.5))
    return attacks


def _seen(
    private: NoisyLabels, truth: Rows, channels: Rows, learnt: npt.NDArray[np.bool_], shape: Any, stated: FloatArray
) -> FloatArray:
    """Return log P(response | class) by the rows learnt from and some imagined rows of the stated channel, (n, K)."""
    counts, responses = np.zeros(shape), private.responses.astype(np.intp)
    np.add.at(counts, (channels[learnt], truth[learnt], responses[learnt]), 1.0)
    got = counts[channels[:, None], np.arange(shape[1])[None, :], responses[:, None]]
    total = counts.sum(axis=2)[channels]
    with np.errstate(divide="ignore"):
        return np.log((got + _IMAGINED * np.exp(stated)) / (total + _IMAGINED))


def replayed(private: NoisyLabels, truth: npt.NDArray[np.intp], known: npt.NDArray[np.bool_]) -> FloatArray | None:
    """Return 1 where a class of a row would have got this response from the likeliest small seed, (n, K).

    Later rows than are explained have 0. Labels are used where `known` only. None where the channel cannot draw.
    """
    channel: Any = private.channel
    if not hasattr(channel, "sample") or not known[:_FIRST].any():
        return None
    rows = min(_EXPLAINED, len(private))
    # The noise of a vector depends on how many are drawn at once; that of a class comes row by row.
    tried = rows if private.responses.ndim == 2 else min(_FIRST, rows)
    cells = tried * (private.num_classes if private.responses.ndim == 2 else 1)
    # A row's noise does not depend on other rows' labels, so those that must not be used are filled in.
    filled = np.where(known, truth, 0)[:tried]
    seeds = range(min(SEEDS, max(16, _MOST_DRAWS // cells)))
    likeliest = int(np.argmax([_same(private, filled, seed)[known[:tried]].mean() for seed in seeds]))
    explained = np.zeros((len(private), private.num_classes))
    for label in range(private.num_classes):
        explained[:rows, label] = _same(private, np.full(rows, label), likeliest)
    return explained


def _same(private: NoisyLabels, labels: npt.NDArray[np.intp], seed: int) -> npt.NDArray[np.bool_]:
    """Return whether the responses are those that these labels, of the first rows, get from this seed."""
    channel: Any = private.channel.take(np.arange(len(labels)))
    kind = np.min_scalar_type(private.num_classes - 1)
    again = channel.sample(labels.astype(kind), SecureRandom(seed)).responses
    same = np.equal(again, private.responses[: len(labels)]).reshape(len(labels), -1)
    return np.asarray(same.all(axis=1))


def _among(scores: FloatArray, trials: Trials) -> FloatArray:
    return scores[trials.rows[:, None], trials.options]


def guessed(name: str, scores: FloatArray, trials: Trials, least: float) -> Guesses:
    """Guess the option with the highest score, (t, c), where it is ahead of the others by more than `least`."""
    top = np.sort(scores, axis=1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        sure = (top[:, 0] - top[:, 1] > least) & np.isfinite(top[:, 0])
    correct = np.argmax(scores, axis=1) == trials.truth
    return Guesses(
        name, int(np.count_nonzero(correct & sure)), int(np.count_nonzero(sure)), len(scores), scores.shape[1]
    )


def _checked_candidates(candidates: int, num_classes: int) -> int:
    if not 2 <= candidates <= num_classes:
        raise ValueError(f"candidates={candidates} of {num_classes} classes: give at least 2 and at most all of them")
    return candidates
