"""The contract of a mechanism, runnable by anyone's own mechanism.

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
_LAGS = (1, 2, 3, 17)


class ContractError(AssertionError):
    """A mechanism does not keep its promise."""


class Randomizer(Mechanism[NoisyLabels], Channel, Protocol):
    """A per-row mechanism together with its stated channel."""


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
    classes = _some_classes(randomizer.num_classes)
    tables = {c: np.asarray(randomizer.probabilities(c)) for c in classes}
    _check_channel(tables)
    _check_ratio(tables, randomizer.event())
    _check_fits(randomizer)
    rng = SecureRandom(seed)
    p_values = [
        *_marginal_p_values(randomizer, tables, draws, rng),
        *_independence_p_values(randomizer, tables, draws, rng),
    ]
    _judge(p_values, false_alarm)


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
    ours, theirs = _neighbours(labels, neighbour, num_classes)
    mechanism.fits(len(ours), num_classes)
    rng = SecureRandom(seed)
    samples = [_responses(mechanism, vector, draws, rng, statistic) for vector in (ours, theirs)]
    here, there = _project(samples, draws // 2) if statistic is None else [s[:, 0] for s in samples]
    _search_violation(here, there, draws // 2, mechanism.event(), false_alarm)


# --- the stated channel ---------------------------------------------------------------------------------------


def _some_classes(num_classes: int) -> list[int]:
    return sorted(set(np.linspace(0, num_classes - 1, _MOST_CLASSES).astype(int).tolist()))


def _check_channel(tables: dict[int, FloatArray]) -> None:
    for label, table in tables.items():
        if (table < 0).any() or not np.allclose(table.sum(axis=1), 1, atol=_ROUNDING):
            raise ContractError(
                f"the stated channel under class {label} is not a probability: it sums to {table.sum(1)}"
            )


def _check_ratio(tables: dict[int, FloatArray], event: Event) -> None:
    if not isinstance(event, PureDP):
        raise ContractError(f"a per-row randomizer must declare PureDP, not {type(event).__name__}")
    worst = max((_log_ratio(p, q) for p in tables.values() for q in tables.values()), default=0.0)
    if worst > event.epsilon * (1 + _ROUNDING) + _ROUNDING:
        raise ContractError(f"declared epsilon={event.epsilon:.9g}, but the stated channel allows {worst:.9g}")


def _log_ratio(p: FloatArray, q: FloatArray) -> float:
    """Largest log-likelihood ratio of a response: coordinates are independent, so the worst ones add up."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(p > 0, np.log(p) - np.log(q), -np.inf)
    return float(ratios.max(axis=1).sum())


def _check_fits(randomizer: Randomizer) -> None:
    try:
        randomizer.fits(1, randomizer.num_classes + 1)
    except ValueError:
        return
    raise ContractError("fits() accepts a vault with another number of classes; it must raise ValueError")


# --- the sampler against the channel ----------------------------------------------------------------------------


def _draw(randomizer: Randomizer, labels: LabelArray, rng: SecureRandom) -> IntArray:
    repeated = randomizer.take(np.zeros(len(labels), dtype=np.intp))
    labels.setflags(write=False)
    released = repeated.sample(labels, rng)  # type: ignore[attr-defined]
    if len(released.responses) != len(labels):
        raise ContractError(f"{len(labels)} labels gave {len(released.responses)} responses")
    return released.responses.reshape(len(labels), -1)


def _label_type(num_classes: int) -> np.dtype[Any]:
    return np.min_scalar_type(num_classes - 1)


def _marginal_p_values(
    randomizer: Randomizer, tables: dict[int, FloatArray], draws: int, rng: SecureRandom
) -> Iterator[float]:
    looked_at = sorted({min(tables), max(tables), sorted(tables)[len(tables) // 2]})
    for label in looked_at:
        labels = np.full(draws, label, dtype=_label_type(randomizer.num_classes))
        responses = _draw(randomizer, labels, rng)
        _check_likelihood(randomizer, tables, responses[:1000])
        yield from _goodness_of_fit(responses, tables[label])


def _check_likelihood(randomizer: Randomizer, tables: dict[int, FloatArray], responses: IntArray) -> None:
    channel = randomizer.take(np.zeros(len(responses), dtype=np.intp))
    width = next(iter(tables.values())).shape[0]
    stated = channel.log_likelihood(responses[:, 0] if width == 1 else responses)
    for label, table in tables.items():
        with np.errstate(divide="ignore"):
            expected = np.log(table[np.arange(width), responses]).sum(axis=1)
        if not np.allclose(stated[:, label], expected, rtol=1e-7, atol=1e-7):
            raise ContractError(f"log_likelihood disagrees with the stated channel under class {label}")


def _goodness_of_fit(responses: IntArray, table: FloatArray) -> Iterator[float]:
    """Chi-square p-values, coordinates with the same channel taken together, and every end of the scale apart."""
    channels, group = np.unique(table, axis=0, return_inverse=True)
    for g, channel in enumerate(channels):
        counts = np.bincount(responses[:, group.ravel() == g].ravel(), minlength=len(channel))
        if (counts[channel == 0] > 0).any() or len(counts) > len(channel):
            yield 0.0
        else:
            yield _chi_square(counts.astype(float), channel * counts.sum())


def _chi_square(observed: FloatArray, expected: FloatArray) -> float:
    cells = _pooled(expected)
    seen, wanted = (np.add.reduceat(x, cells) for x in (observed, expected))
    if len(seen) < 2:
        return 1.0
    return float(stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1))


def _pooled(expected: FloatArray) -> npt.NDArray[np.intp]:
    """Where to start new cells so that each expects at least a 32nd of the draws, or 25 of them."""
    least = max(25.0, expected.sum() / _MOST_CELLS)
    starts, held = [0], 0.0
    for i, value in enumerate(expected[:-1]):
        held += value
        if held >= least and expected[i + 1 :].sum() >= least:
            starts.append(i + 1)
            held = 0.0
    return np.asarray(starts, dtype=np.intp)


# --- rows that know of each other ------------------------------------------------------------------------------


def _independence_p_values(
    randomizer: Randomizer, tables: dict[int, FloatArray], draws: int, rng: SecureRandom
) -> Iterator[float]:
    """Two classes in random order, many data sets of changing balance; tests on pairs of rows and on the balance."""
    pair = (min(tables), max(tables))
    if pair[0] == pair[1]:
        return
    chance = np.random.default_rng(0)
    sets = [_mixed_set(randomizer, tables, pair, draws // 64, balance, chance, rng) for balance in _balances()]
    for lag in _LAGS:
        yield _pair_p_value([(_pairs(own, lag), _pairs(cat, lag)) for own, cat, _ in sets], sets[0][2])
    yield from _balance_p_values([(own, cat) for own, cat, _ in sets], sets[0][2])


def _balances() -> list[float]:
    return [0.05, 0.5, 0.95, 0.5] * 16


def _mixed_set(
    randomizer: Randomizer,
    tables: dict[int, FloatArray],
    pair: tuple[int, int],
    rows: int,
    balance: float,
    chance: np.random.Generator,
    rng: SecureRandom,
) -> tuple[IntArray, IntArray, FloatArray]:
    own = (chance.random(rows) < balance).astype(np.intp)
    labels = np.asarray(pair, dtype=_label_type(randomizer.num_classes))[own]
    responses = _draw(randomizer, labels, rng)
    categories, channel = _categories(responses, [tables[c] for c in pair], pair)
    return own, categories, channel


def _categories(responses: IntArray, tables: list[FloatArray], pair: tuple[int, int]) -> tuple[IntArray, FloatArray]:
    """At most three kinds of response, and their channel under each of the two classes, (2, kinds)."""
    if tables[0].shape[0] == 1:
        kind = np.where(responses[:, 0] == pair[0], 0, np.where(responses[:, 0] == pair[1], 1, 2))
        channel = np.stack([[t[0, pair[0]], t[0, pair[1]], 1 - t[0, pair[0]] - t[0, pair[1]]] for t in tables])
        return kind, np.clip(channel, 0, 1)
    coordinate, middle = pair[0], tables[0].shape[1] // 2
    kind = (responses[:, coordinate] >= middle).astype(np.intp)
    upper = np.asarray([t[coordinate, middle:].sum() for t in tables])
    return kind, np.stack([1 - upper, upper], axis=1)


def _pairs(values: IntArray, lag: int) -> tuple[IntArray, IntArray]:
    return values[:-lag], values[lag:]


def _pair_p_value(sets: list[tuple[Any, Any]], channel: FloatArray) -> float:
    """Chi-square of (kind, kind of the other row) against the product of the channels, given both labels."""
    kinds = channel.shape[1]
    counts = np.zeros((2, 2, kinds, kinds))
    for (y, other_y), (a, other_a) in sets:
        np.add.at(counts, (y, other_y, a, other_a), 1)
    expected = counts.sum(axis=(2, 3), keepdims=True) * channel[:, None, :, None] * channel[None, :, None, :]
    return _cells_p_value(counts, expected, lost=4)


def _balance_p_values(sets: list[tuple[IntArray, IntArray]], channel: FloatArray) -> Iterator[float]:
    """Responses given the own label must not depend on the data set's balance nor on its first row."""
    kinds = channel.shape[1]
    for of in (lambda own: int(own.mean() * 2.999), lambda own: int(own[0]) if len(own) else 0):
        counts = np.zeros((3, 2, kinds))
        for own, kind in sets:
            np.add.at(counts[of(own)], (own[1:], kind[1:]), 1)
        yield _cells_p_value(counts, counts.sum(axis=2, keepdims=True) * channel[None], lost=6)


def _cells_p_value(observed: FloatArray, expected: FloatArray, lost: int) -> float:
    """Chi-square over the cells that expect enough; a draw in a cell that expects nothing is a certain failure."""
    if (observed[expected == 0] > 0).any():
        return 0.0
    used = expected >= 25
    freedom = max(int(used.sum()) - lost, 1)
    return float(stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), freedom))


def _judge(p_values: list[float], false_alarm: float) -> None:
    worst = min(p_values, default=1.0)
    if worst * len(p_values) < false_alarm:
        raise ContractError(
            f"the sampler does not follow the stated channel row by row: p = {worst:.2g} in one of {len(p_values)} "
            f"tests (false alarms at most {false_alarm:g})"
        )


# --- any mechanism, from the outside ----------------------------------------------------------------------------


def _neighbours(labels: npt.ArrayLike, neighbour: npt.ArrayLike, num_classes: int) -> tuple[LabelArray, LabelArray]:
    ours, theirs = (np.asarray(x).astype(_label_type(num_classes)) for x in (labels, neighbour))
    if ours.shape != theirs.shape or int((ours != theirs).sum()) != 1:
        raise ValueError("labels and neighbour must have the same length and differ in exactly one place")
    for vector in (ours, theirs):
        vector.setflags(write=False)
    return ours, theirs


def _responses(
    mechanism: Mechanism[Any],
    labels: LabelArray,
    draws: int,
    rng: SecureRandom,
    statistic: Callable[[Any], float] | None,
) -> FloatArray:
    read = (lambda out: np.atleast_1d(statistic(out))) if statistic else _flat
    return np.stack([read(mechanism.sample(labels, rng)) for _ in range(draws)]).astype(np.float64)


def _flat(response: Any) -> FloatArray:
    if isinstance(response, NoisyLabels):
        response = response.responses
    elif isinstance(response, NoisyCounts):
        response = response.counts
    elif isinstance(response, NoisyGradient):
        response = response.value.cpu()
    elif isinstance(response, NoisyMoments):
        response = response.value
    return np.asarray(response, dtype=np.float64).ravel()


def _project(samples: list[FloatArray], first: int) -> list[FloatArray]:
    """Responses along the direction in which the first halves differ most."""
    direction = samples[0][:first].mean(axis=0) - samples[1][:first].mean(axis=0)
    return [sample @ direction for sample in samples]


def _search_violation(here: FloatArray, there: FloatArray, first: int, event: Event, false_alarm: float) -> None:
    epsilons = _epsilons(event)
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


def _epsilons(event: Event) -> FloatArray:
    declared = event.epsilon if isinstance(event, PureDP) and math.isfinite(event.epsilon) else 1.0
    return np.unique(np.concatenate([[0.0, declared], np.geomspace(0.05, 10, 8)]))


def _lower(successes: int, trials: int, level: float) -> float:
    """Clopper-Pearson lower confidence bound of a probability."""
    return float(stats.beta.ppf(level, successes, trials - successes + 1)) if successes else 0.0
