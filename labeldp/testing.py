"""Check that a mechanism keeps its contract: for ours, and for anyone's own.

`check_randomizer` is for per-row randomizers, which state their channel: it compares the channel with the declared
epsilon exactly, and the sampler with the channel statistically. `check_mechanism` is for everything else: it looks
only at releases on two neighbouring label vectors and searches for a violation of the declared event.

Both raise `ContractError` with a sentence, and both use a seeded stream, so a failure can be repeated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from labeldp.core.events import Event, PureDP
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelArray, Mechanism
from labeldp.releases import Channel, FloatArray, IntArray, NoisyCounts, NoisyGradient, NoisyLabels, NoisyMoments

_ROUNDING = 1e-9
_MOST_CLASSES = 24
_MOST_CELLS = 32
# How far apart the rows of a pair are that are tested for independence.
_LAGS = (1, 2, 3, 17)
# The share of the second class in each of the data sets that are drawn for that.
_BALANCES = (0.05, 0.5, 0.95, 0.5) * 16


class ContractError(AssertionError):
    """Say that a mechanism does not keep its promise."""


class Randomizer(Mechanism[NoisyLabels], Channel, Protocol):
    """Describe a per-row mechanism together with its stated channel."""


def check_randomizer(
    randomizer: Randomizer, *, draws: int = 1_000_000, false_alarm: float = 1e-6, seed: int = 0
) -> None:
    """Raise ContractError unless a per-row randomizer keeps its promise.

    1. Exact: under its stated channel, no response is more than e^epsilon times likelier under one label than under
       another; the channel sums to one; `log_likelihood` agrees with it.
    2. Statistical, `draws` draws per class looked at: responses follow the stated channel.
    3. Statistical: given its own label, a row's response is independent of the other rows' labels and responses.

    An honest randomizer fails by chance with probability at most `false_alarm` (Bonferroni over all tests).
    Row 0's parameters are used for every row when the randomizer has parameters per row.
    """
    some = np.linspace(0, randomizer.num_classes - 1, _MOST_CLASSES).astype(int)
    tables = {c: np.asarray(randomizer.probabilities(c)) for c in sorted(set(some.tolist()))}
    _check_stated(randomizer, tables)
    rng = SecureRandom(seed)
    p_values = [
        *_marginal_p_values(randomizer, tables, draws, rng),
        *_independence_p_values(randomizer, tables, draws, rng),
    ]
    worst = min(p_values, default=1.0)
    if worst * len(p_values) < false_alarm:
        raise ContractError(
            f"the sampler does not follow the stated channel row by row: p = {worst:.2g} in one of {len(p_values)} "
            f"tests (false alarms at most {false_alarm:g})"
        )


def check_mechanism(
    mechanism: Mechanism[Any],
    labels: npt.ArrayLike,
    neighbour: npt.ArrayLike,
    num_classes: int,
    *,
    statistic: Callable[[Any], float] | None = None,
    draws: int = 20_000,
    false_alarm: float = 1e-6,
    seed: int = 0,
) -> None:
    """Raise ContractError when responses on two neighbouring label vectors contradict the declared event.

    Half the draws choose where to look (a direction in the responses, thresholds); the other half tests
    P(S) ≤ e^ε′ Q(S) + δ(ε′) on the sets S so chosen, for a range of ε′, both ways round. An honest mechanism
    fails by chance with probability at most `false_alarm`. A pass proves nothing: it found no violation.
    """
    ours, theirs = (np.asarray(x).astype(_label_type(num_classes)) for x in (labels, neighbour))
    if ours.shape != theirs.shape or int((ours != theirs).sum()) != 1:
        raise ValueError("labels and neighbour must have the same length and differ in exactly one place")
    mechanism.fits(len(ours), num_classes)
    read = (lambda out: np.atleast_1d(statistic(out))) if statistic else _flat
    rng, first, samples = SecureRandom(seed), draws // 2, list[FloatArray]()
    for vector in (ours, theirs):
        vector.setflags(write=False)
        samples.append(np.stack([read(mechanism.sample(vector, rng)) for _ in range(draws)]).astype(np.float64))
    # Along the direction in which the first halves differ most.
    along = np.ones(1) if statistic else samples[0][:first].mean(axis=0) - samples[1][:first].mean(axis=0)
    _search_violation(samples[0] @ along, samples[1] @ along, first, mechanism.event(), false_alarm)


# -- the stated channel --------------------------------------------------------------------------------------


def _check_stated(randomizer: Randomizer, tables: dict[int, FloatArray]) -> None:
    """Check that the channel is one, that it keeps the declared epsilon, and that `fits` refuses other classes."""
    for label, table in tables.items():
        if (table < 0).any() or not np.allclose(table.sum(axis=1), 1, atol=_ROUNDING):
            raise ContractError(
                f"the stated channel under class {label} is not a probability: it sums to {table.sum(1)}"
            )
    event, worst = randomizer.event(), 0.0
    if not isinstance(event, PureDP):
        raise ContractError(f"a per-row randomizer must declare PureDP, not {type(event).__name__}")
    for p, q in itertools.permutations(tables.values(), 2):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(p > 0, np.log(p) - np.log(q), -np.inf)
        # Coordinates are independent, so the worst ones add up.
        worst = max(worst, float(ratios.max(axis=1).sum()))
    if worst > event.epsilon * (1 + _ROUNDING) + _ROUNDING:
        raise ContractError(f"declared epsilon={event.epsilon:.9g}, but the stated channel allows {worst:.9g}")
    try:
        randomizer.fits(1, randomizer.num_classes + 1)
    except ValueError:
        return
    raise ContractError("fits() accepts a vault with another number of classes; it must raise ValueError")


# -- the sampler against the channel -------------------------------------------------------------------------


def _label_type(num_classes: int) -> np.dtype[Any]:
    return np.min_scalar_type(num_classes - 1)


def _draw(randomizer: Randomizer, labels: LabelArray, rng: SecureRandom) -> IntArray:
    """Draw responses to these labels, all with row 0's parameters, (n, coordinates)."""
    repeated = randomizer.take(np.zeros(len(labels), dtype=np.intp))
    labels.setflags(write=False)
    released = repeated.sample(labels, rng)  # type: ignore[attr-defined]
    if len(released.responses) != len(labels):
        raise ContractError(f"{len(labels)} labels gave {len(released.responses)} responses")
    return released.responses.reshape(len(labels), -1)


def _marginal_p_values(
    randomizer: Randomizer, tables: dict[int, FloatArray], draws: int, rng: SecureRandom
) -> Iterator[float]:
    """Yield chi-square p-values of the first, the middle and the last class."""
    for label in sorted({min(tables), max(tables), sorted(tables)[len(tables) // 2]}):
        responses = _draw(randomizer, np.full(draws, label, dtype=_label_type(randomizer.num_classes)), rng)
        _check_likelihood(randomizer, tables, responses[:1000])
        # Coordinates with the same channel are taken together.
        channels, group = np.unique(tables[label], axis=0, return_inverse=True)
        for g, channel in enumerate(channels):
            counts = np.bincount(responses[:, group.ravel() == g].ravel(), minlength=len(channel))
            if (counts[channel == 0] > 0).any() or len(counts) > len(channel):
                yield 0.0
            else:
                yield _chi_square(counts.astype(float), channel * counts.sum())


def _check_likelihood(randomizer: Randomizer, tables: dict[int, FloatArray], responses: IntArray) -> None:
    channel = randomizer.take(np.zeros(len(responses), dtype=np.intp))
    width = next(iter(tables.values())).shape[0]
    stated = channel.log_likelihood(responses[:, 0] if width == 1 else responses)
    for label, table in tables.items():
        with np.errstate(divide="ignore"):
            expected = np.log(table[np.arange(width), responses]).sum(axis=1)
        if not np.allclose(stated[:, label], expected, rtol=1e-7, atol=1e-7):
            raise ContractError(f"log_likelihood disagrees with the stated channel under class {label}")


def _chi_square(observed: FloatArray, expected: FloatArray) -> float:
    """Return the p-value over neighbouring cells pooled until each expects a 32nd of the draws, or 25 of them."""
    least, starts, held = max(25.0, expected.sum() / _MOST_CELLS), [0], 0.0
    for i, value in enumerate(expected[:-1]):
        held += value
        if held >= least and expected[i + 1 :].sum() >= least:
            starts.append(i + 1)
            held = 0.0
    if len(starts) < 2:
        return 1.0
    seen, wanted = (np.add.reduceat(x, starts) for x in (observed, expected))
    return float(stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1))


# -- rows that know of each other ----------------------------------------------------------------------------


def _independence_p_values(
    randomizer: Randomizer, tables: dict[int, FloatArray], draws: int, rng: SecureRandom
) -> Iterator[float]:
    """Yield p-values from many data sets of two classes: of pairs of rows, and of each row given the whole set."""
    pair = (min(tables), max(tables))
    if pair[0] == pair[1]:
        return
    chance, channel = np.random.default_rng(0), np.zeros((2, 0))
    sets: list[tuple[IntArray, IntArray]] = []
    for balance in _BALANCES:
        own = (chance.random(draws // len(_BALANCES)) < balance).astype(np.intp)
        responses = _draw(randomizer, np.asarray(pair, dtype=_label_type(randomizer.num_classes))[own], rng)
        kind, channel = _kinds(responses, [tables[c] for c in pair], pair)
        sets.append((own, kind))
    kinds = channel.shape[1]
    # Given both labels, two rows' responses have the product of their channels.
    for lag in _LAGS:
        counts = np.zeros((2, 2, kinds, kinds))
        for own, kind in sets:
            np.add.at(counts, (own[:-lag], own[lag:], kind[:-lag], kind[lag:]), 1)
        expected = counts.sum(axis=(2, 3), keepdims=True) * channel[:, None, :, None] * channel[None, :, None, :]
        yield _cells_p_value(counts, expected, lost=4)
    # Given the own label, a response depends neither on the data set's balance nor on its first row.
    for of in (lambda own: int(own.mean() * 2.999), lambda own: int(own[0]) if len(own) else 0):
        counts = np.zeros((3, 2, kinds))
        for own, kind in sets:
            np.add.at(counts[of(own)], (own[1:], kind[1:]), 1)
        yield _cells_p_value(counts, counts.sum(axis=2, keepdims=True) * channel[None], lost=6)


def _kinds(responses: IntArray, tables: list[FloatArray], pair: tuple[int, int]) -> tuple[IntArray, FloatArray]:
    """Sort responses into at most three kinds; return them and their channel under the two classes, (2, kinds)."""
    if tables[0].shape[0] == 1:
        kind = np.where(responses[:, 0] == pair[0], 0, np.where(responses[:, 0] == pair[1], 1, 2))
        channel = np.stack([[t[0, pair[0]], t[0, pair[1]], 1 - t[0, pair[0]] - t[0, pair[1]]] for t in tables])
        return kind, np.clip(channel, 0, 1)
    coordinate, middle = pair[0], tables[0].shape[1] // 2
    kind = (responses[:, coordinate] >= middle).astype(np.intp)
    upper = np.asarray([t[coordinate, middle:].sum() for t in tables])
    return kind, np.stack([1 - upper, upper], axis=1)


def _cells_p_value(observed: FloatArray, expected: FloatArray, lost: int) -> float:
    """Return chi-square's p-value over the cells that expect enough; a draw where none is expected is a failure."""
    if (observed[expected == 0] > 0).any():
        return 0.0
    used = expected >= 25
    freedom = max(int(used.sum()) - lost, 1)
    return float(stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), freedom))


# -- any mechanism, from the outside -------------------------------------------------------------------------


def _flat(response: Any) -> FloatArray:
    """Return the numbers of a release."""
    if isinstance(response, NoisyLabels):
        response = response.responses
    elif isinstance(response, NoisyCounts):
        response = response.counts
    elif isinstance(response, NoisyGradient):
        response = response.value.cpu()
    elif isinstance(response, NoisyMoments):
        response = response.value
    return np.asarray(response, dtype=np.float64).ravel()


def _search_violation(here: FloatArray, there: FloatArray, first: int, event: Event, false_alarm: float) -> None:
    """Choose thresholds on the first numbers, and test the promise on the others, on both sides of each."""
    declared = event.epsilon if isinstance(event, PureDP) and math.isfinite(event.epsilon) else 1.0
    epsilons = np.unique(np.concatenate([[0.0, declared], np.geomspace(0.05, 10, 8)]))
    thresholds = np.unique(np.quantile(np.concatenate([here[:first], there[:first]]), np.linspace(0.02, 0.98, 25)))
    level = false_alarm / (4 * len(epsilons) * max(len(thresholds), 1))
    allowed = event.profile(epsilons)
    upper, lower = [(here, there), (there, here)], [(-here, -there), (-there, -here)]
    for pairs, cuts in ((upper, thresholds), (lower, -thresholds)):
        for (p, q), t in itertools.product(pairs, cuts):
            low = _lower(int((p[first:] > t).sum()), len(p) - first, level / 2)
            high = 1 - _lower(int((q[first:] <= t).sum()), len(q) - first, level / 2)
            excess = low - np.exp(epsilons) * high - allowed
            if (excess > 0).any():
                raise ContractError(
                    f"declared {event}, but an event of probability at least {low:.3g} on one label vector has "
                    f"probability at most {high:.3g} on its neighbour"
                )


def _lower(successes: int, trials: int, level: float) -> float:
    """Return Clopper and Pearson's lower confidence bound of a probability."""
    return float(stats.beta.ppf(level, successes, trials - successes + 1)) if successes else 0.0
