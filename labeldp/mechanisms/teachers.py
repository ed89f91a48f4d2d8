"""Let teachers on disjoint label shards vote inside the vault, and release noisy responses only (Confident-GNMax)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from labeldp.core.events import TeacherVoting
from labeldp.core.random import LARGEST_STD, SecureRandom
from labeldp.core.vault import LabelArray
from labeldp.mechanisms.common import checked_classes, checked_integer, grid_std, pieces, same_classes

Rows = npt.NDArray[np.int64]
Responses = npt.NDArray[np.int64]
# (numbers of t teachers, their rows (t, m), the labels of those rows (t, m)) → their votes (t, queries).
Teach = Callable[[Rows, Rows, LabelArray], npt.NDArray[Any]]
# (number of one teacher, its rows (m,), their labels (m,)) → its votes (queries,).
TeachOne = Callable[[int, Rows, LabelArray], npt.ArrayLike]

NO_RESPONSE = -1
# Votes are counted in steps of 2^-10: noise is exact on this grid, and ties are too rare to favour a class.
_STEPS = 1 << 10
# The proof needs fewer than 10^8 noisy counts that a teacher moves.
_MOST_QUERIES = 1 << 25
_LEAST_MU, _MOST_MU = 1e-7, 10.0


@dataclass(frozen=True, eq=False)
class TeacherVotes:
    """Label public queries by the votes of teachers, each trained on labels of its own: one query of the vault.

        n_qc = teachers that vote for class c on query q.   If max_c n_qc + N(0, s₁²) ≥ threshold, the response is
        argmax_c (n_qc + N(0, s²)), fresh noise on every class; else "no response". After `responses` responses:
        silence.

    Confident-GNMax (Papernot et al. 2018), with labels as the only secret (Malek et al. 2021; Tang et al. 2022,
    Algorithms 4 and 5): every teacher may use all features, so that it can be trained semi-supervised.

    Proof of μ-Gaussian privacy, μ² = Q/s₁² + 2A/s² for Q queries and at most A responses (`TeacherVoting`).
    1. Shards are disjoint and drawn from a public seed. So a replaced label changes at most the labels of one shard and
       the votes of one teacher: on each query one count falls by 1 and another rises by 1, or one of the two
       (a vote outside 0 … K − 1 is none), or nothing moves. The largest count moves by ≤ 1, all counts by ≤ √2.
    2. Suppose even that the noisy counts were published. A comparison is then a Gaussian response that moves by 1/s₁
       deviations, a response one that moves by √2/s, and what was published before decides which comes next. Let
       G(x, v) = E(1 − e^{ε−x−Z})₊, Z ~ N(v/2, v): the δ(ε) of a run whose loss so far is x and that has μ² = v left. A
       step of m deviations adds N(m²/2, m²) to the loss, and E G(x + N(m²/2, m²), v − m²) = G(x, v), for Gaussians add
       up; and G grows with v. By induction from the last step back, δ(ε) ≤ G(0, μ²) for every run that never spends
       more than μ², and none makes more than Q comparisons and A responses. Which is why both are fixed in advance, why
       comparisons are paid for on unanswered queries too, and why every class has noise.
    3. Noise is discrete on a grid of step 2^-10, of deviation s′ ≥ √((2^10·s)²·(1 + 2^-39) + 4) steps. As proved for
       `Moments` it tells no more than Gaussian noise of deviation s, up to factors 1 ± 10^-33 on each count that moves,
       fewer than 10^8; for 10^-7 ≤ μ ≤ 10 the factor 1 + 2^-39 outweighs them. Ties go to the lower class.

    What must hold of `teach`, which is called while labels are at hand: the votes of a teacher depend on labels of its
    own shard only (no statistic, no random state, no early stop is shared between teachers); it keeps, prints and
    writes nothing; it fails for no labels. With `at_once` = 1, or `one_by_one`, no call sees two shards; for teachers
    trained together there is `check_separate`, on made-up labels. Teachers are forgotten when it returns.

    An ε that depends on the votes (Papernot et al. 2018, Theorem 6) is a function of the labels too. It is neither
    computed nor published here.

    Args:
        teach: (teacher numbers (t,), rows (t, m), labels (t, m)) → votes (t, queries), whole numbers. It has the public
            features of all rows and of the queries from elsewhere.
        num_classes: K.
        teachers: how many shards of m = n // teachers labels; n mod teachers labels are in none.
        queries: Q, how many there are. They must not depend on the labels.
        responses: A, the most that are answered.
        noise_std: s, on every count of a response.
        threshold: None answers every query (GNMax); then A = Q.
        threshold_std: s₁; None without a threshold.
        seed: of the shards; public.
        at_once: how many teachers are trained together.

    >>> def same_as_most(numbers, rows, labels):
    ...     return np.stack([np.full(3, np.bincount(own).argmax()) for own in labels])
    >>> ask = TeacherVotes(same_as_most, 4, 50, queries=3, responses=2, noise_std=4.0, threshold=30, threshold_std=4.0)
    >>> ask.sample(np.full(500, 2, dtype=np.uint8), SecureRandom(seed=1))
    array([ 2,  2, -1])
    """

    teach: Teach = field(repr=False)
    num_classes: int
    teachers: int
    queries: int
    responses: int
    noise_std: float
    threshold: float | None = None
    threshold_std: float | None = None
    seed: int = 0
    at_once: int = 100

    def __post_init__(self) -> None:
        if not callable(cast("Any", self.teach)):
            raise ValueError(f"teach is {self.teach!r}; give a function (numbers, rows, labels) → votes")
        object.__setattr__(self, "num_classes", checked_classes(self.num_classes))
        for name, most in (("teachers", 1 << 31), ("queries", _MOST_QUERIES), ("responses", _MOST_QUERIES)):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 1, most))
        object.__setattr__(self, "seed", checked_integer("seed", self.seed, 0, 1 << 63))
        object.__setattr__(self, "at_once", checked_integer("at_once", self.at_once, 1, 1 << 31))
        if (self.threshold is None) != (self.threshold_std is None):
            raise ValueError(
                f"threshold is {self.threshold!r} and threshold_std {self.threshold_std!r}; give both, or neither"
            )
        if self.threshold is not None and not abs(self.threshold) <= 1e9:
            raise ValueError(f"threshold is {self.threshold!r}; give a number of votes, say {self.teachers / 2:g}")
        mu = self.event().shift
        if not _LEAST_MU <= mu <= _MOST_MU:
            raise ValueError(
                f"noise_std is {self.noise_std!r}: mu = {mu:.3g}, give noise for {_LEAST_MU:g} … {_MOST_MU:g}"
            )
        if max(self.noise_std, self.threshold_std or 0.0) * _STEPS > LARGEST_STD / 2:
            raise ValueError(
                f"noise_std is {self.noise_std!r}, threshold_std {self.threshold_std!r}; give at most 2^29"
            )
        for name in ("noise_std", "threshold", "threshold_std"):
            given: Any = getattr(self, name)
            object.__setattr__(self, name, None if given is None else float(given))

    # -- mechanism ------------------------------------------------------------------------------------------

    def fits(self, num_rows: int, num_classes: int) -> None:
        """Raise ValueError unless there is a label for every teacher and the classes are those of the data."""
        same_classes(self.num_classes, num_classes)
        if self.teachers > num_rows:
            raise ValueError(f"teachers is {self.teachers} and the data have {num_rows} rows; give each at least one")

    def event(self) -> TeacherVoting:
        """Return the price of all comparisons and all responses there can be, whether or not they are made."""
        return TeacherVoting(self.noise_std, self.responses, self.threshold_std, self.queries)

    def sample(self, labels: LabelArray, rng: SecureRandom, /) -> Responses:
        """Train the teachers and draw the class answered on each query, −1 for none, (queries,)."""
        return self.answered(self._counts(labels), rng)

    def describe(self) -> Mapping[str, Any]:
        """Return the public parameters as plain JSON values."""
        names = ("num_classes", "teachers", "queries", "noise_std", "threshold", "threshold_std", "seed")
        described = {"mechanism": "teacher votes", **{name: getattr(self, name) for name in names}}
        # Kept releases of earlier versions have this key.
        return {**described, "answers": self.responses}

    def shards(self, num_rows: int) -> Rows:
        """Return the rows of each teacher, (teachers, m): a public shuffle of all rows in equal parts."""
        size = num_rows // self.teachers
        order = np.random.default_rng(self.seed).permutation(num_rows)
        return order[: size * self.teachers].reshape(self.teachers, size).astype(np.int64)

    def _counts(self, labels: LabelArray) -> Rows:
        """Return how many teachers vote for each class, (queries, K): a secret."""
        shards = self.shards(len(labels))
        counts = np.zeros(self.queries * self.num_classes, dtype=np.int64)
        for part in pieces(self.teachers, self.at_once):
            numbers = np.arange(self.teachers)[part]
            votes = checked_votes(self.teach(numbers, shards[part], labels[shards[part]]), len(numbers), self.queries)
            # A vote for no class counts for none: an error would say something about a label.
            valid = (votes >= 0) & (votes < self.num_classes)
            cells = (np.arange(self.queries) * self.num_classes + votes)[valid]
            counts += np.bincount(cells, minlength=len(counts))
        return counts.reshape(self.queries, self.num_classes)

    # -- the aggregator -------------------------------------------------------------------------------------

    def answered(self, counts: Rows, rng: SecureRandom) -> Responses:
        """Draw Confident-GNMax's responses for a table of counts, (queries, K); alone, for tables that are no secret.

        All comparisons are drawn at once; those after the last response are thrown away unseen.
        """
        result = np.full(self.queries, NO_RESPONSE, dtype=np.int64)
        confident = np.ones(self.queries, dtype=bool)
        if self.threshold is not None and self.threshold_std is not None:
            noise = rng.discrete_gaussian(grid_std(self.threshold_std, _STEPS), self.queries)
            confident = counts.max(axis=1) * _STEPS + noise >= math.ceil(Fraction(self.threshold) * _STEPS)
        chosen = np.flatnonzero(confident)[: self.responses]
        noise = rng.discrete_gaussian(grid_std(self.noise_std, _STEPS), len(chosen) * self.num_classes)
        result[chosen] = (counts[chosen] * _STEPS + noise.reshape(len(chosen), self.num_classes)).argmax(axis=1)
        result.setflags(write=False)
        return result


def checked_votes(votes: npt.ArrayLike, teachers: int, queries: int) -> Rows:
    """Return votes as whole numbers, (teachers, queries), or raise ValueError; their values are not looked at."""
    given: npt.NDArray[Any] = np.asarray(votes)
    if given.shape != (teachers, queries) or given.dtype.kind not in "iu":
        raise ValueError(
            f"votes have shape {given.shape} and type {given.dtype}; give a whole number for each of {teachers} "
            f"teachers and {queries} queries"
        )
    return given.astype(np.int64)


def one_by_one(train: TeachOne) -> Teach:
    """Train teachers one after the other by (number, rows, labels) → votes: no call ever sees two shards."""

    def teach(numbers: Rows, rows: Rows, labels: LabelArray) -> npt.NDArray[Any]:
        lessons = zip(numbers.tolist(), rows, labels, strict=True)
        return np.stack([np.asarray(train(number, own, responses)) for number, own, responses in lessons])

    return teach


def check_separate(ask: TeacherVotes, num_rows: int, *, teachers: int = 3, seed: int = 0) -> None:
    """Raise ValueError if, on made-up labels, the labels of one teacher change the votes of another. Needs no vault.

    It trains `teachers` teachers together, and again for each of them with new labels for that one. Also finds votes of
    a wrong shape, and a network that `teach` holds and trains further in every call, before anything is paid for; one
    teacher alone is tried for that. (Where sums are not repeatable, a vote may change by itself.)
    """
    rng = np.random.default_rng(seed)
    held = list(networks_in(ask.teach))
    weights = [_weights(network) for network in held]
    shards = ask.shards(num_rows)[:teachers]
    labels = rng.integers(0, ask.num_classes, size=shards.shape).astype(np.uint32)
    before = checked_votes(ask.teach(np.arange(len(shards)), shards, labels.copy()), len(shards), ask.queries)
    for number in range(len(shards) if len(shards) > 1 else 0):
        other = labels.copy()
        other[number] = (labels[number] + rng.integers(1, max(ask.num_classes, 2), labels.shape[1])) % ask.num_classes
        after = checked_votes(ask.teach(np.arange(len(shards)), shards, other), len(shards), ask.queries)
        moved = np.flatnonzero((before != after).any(axis=1))
        if not set(moved.tolist()) <= {number}:
            raise ValueError(
                f"new labels for teacher {number} changed the votes of teachers {moved.tolist()}; keep them apart"
            )
    for network, values in zip(held, weights, strict=True):
        after = _weights(network)
        if after.keys() != values.keys() or not all(np.array_equal(values[name], after[name]) for name in after):
            raise ValueError(
                f"teach holds a {type(network).__name__} and changed it: it would carry the labels of one shard to the "
                "next teacher, and out of the vault. Make the network anew in every call, or copy it first"
            )


def networks_in(function: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the networks (what has a `state_dict`) that a function holds: names around it, partials, bound objects."""
    if hasattr(function, "state_dict") and not isinstance(function, type):
        yield function
    elif depth:
        held: list[Any] = [getattr(function, name, None) for name in ("__self__", "func")]
        if isinstance(function, partial):
            held += [*function.args, *function.keywords.values()]
        if isfunction(cast("Any", function)):
            names = getclosurevars(cast("Any", function))
            held += [*names.nonlocals.values(), *names.globals.values()]
        for inner in held:
            yield from networks_in(inner, depth - 1)


def _weights(network: Any) -> dict[str, npt.NDArray[Any]]:
    return {name: value.detach().cpu().double().numpy().copy() for name, value in network.state_dict().items()}
