"""Learn classes from responses by trees, kernels or any learner, and choose between them on held-out responses.

Once responses are drawn, whatever is done with them is post-processing. So learners and their settings are chosen for
nothing: each is fitted to the responses of some rows and judged by how likely it makes those of other rows,

    L = mean over held-out rows i of log Σ_c p(c | x_i) P(ỹ_i | c),

which is largest, on average, for the true class probabilities. Two families are built in.

*Trees* are scikit-learn's gradient boosting, fitted to responses as if they were labels: they estimate the
probabilities q of responses, and q = Σ_c p(c) P(· | c) is solved for p.

*Kernels* are ridge regression of unbiased estimates z of the one-hot label on D random cosines (Rahimi and Recht 2007),

    W = (Φ'Φ + ρI)⁻¹ Φ'Z,   φ(x) = (1, x/√p, √(2/D) cos(xT + u)),

and softmax(t·φ(x)W) is made honest by `scale_by_responses`. A Gaussian kernel sees all columns alike, so that idle ones
drown the others. Hence columns are weighed by what was learnt: each by the root mean square of the fit's derivative
along it, then all is fitted again, as long as held-out z come closer (the diagonal form of recursive feature machines,
Radhakrishnan et al. 2024). Width, ridge and rounds are chosen by the squared error of held-out z, which is that of the
true labels plus a constant.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from labeldp.learning.evidence import evidence, forward_loss, project_to_simplex, unbiased_labels
from labeldp.learning.heads import scale_by_responses
from labeldp.learning.trees import Forest
from labeldp.releases import Channel, NoisyLabels

# Of the rows, those held out, and the most of them; the most that a search sees, and a kernel's last fit.
_HELD_OUT, _MOST_HELD_OUT, _MOST_TRIED, _MOST_SOLVED = 0.2, 10_000, 16_000, 200_000
# Cosines while searching and at the end; widths of the kernel in median distances, and ridges, to begin with.
_FEW_COSINES, _COSINES, _WIDTHS = 768, 2000, (0.25, 0.4, 0.6, 1.0)
_RIDGES = tuple(10.0 ** (step / 2) for step in range(-2, 6))
_ROUNDS, _ROWS_OF_SLOPES, _AT_ONCE = 5, 4000, 8192
# Trees grow by so many iterations, to at most so many and so many trees, and stop when two growths gained too little.
_GROWTH, _MOST_GROWN, _MOST_TREES, _LEAST_GAIN = 20, 400, 1600, 3e-4
# Other settings of trees are tried for so many classes, where the first gained this share of what the kernel did.
_FEW_CLASSES, _NEAR = 8, 0.9
_BOOSTING: tuple[dict[str, Any], ...] = (
    {"learning_rate": 0.1, "max_leaf_nodes": 15, "min_samples_leaf": 100, "l2_regularization": 10.0},
    {"learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 20},
    {"learning_rate": 0.05, "max_leaf_nodes": 31, "min_samples_leaf": 200, "l2_regularization": 10.0},
)
# Columns beyond which trees take longer than they are worth: they are for tables, not for images' features.
_MOST_COLUMNS = 256
# A share of what was not corrected keeps the order of rows whose corrected probability is 0.
_UNCORRECTED = 0.01


class Learnt(Protocol):
    """What predicts classes from rows."""

    def logits(self, rows: Tensor) -> Tensor:
        """Return log P(class | row) up to a constant of the row, (n, K)."""
        ...


class Learner(Protocol):
    """A classifier as scikit-learn has them; `classes_` says what the columns of `predict_proba` are."""

    def fit(self, rows: Any, responses: Any, /) -> Any:
        """Learn from rows and one class number for each."""
        ...

    def predict_proba(self, rows: Any, /) -> Any:
        """Return probabilities, (n, classes)."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A learner that was judged on held-out responses.

    Args:
        name: with its settings, in words.
        likelihood: L, the mean log-likelihood of held-out responses.
        refit: fits it to all responses.
        again: searches the settings of its kind anew, for another task.
    """

    name: str
    likelihood: float
    refit: Callable[[], Learnt]
    again: Callable[[Task], Candidate]


@dataclass(frozen=True, eq=False)
class Task:
    """Rows with responses, some of them held out by a public seed.

    Args:
        rows: public, (n, p).
        private: their responses, one class number each.
        learning, held: numbers of the rows to learn from and to judge by.
    """

    rows: Tensor
    private: NoisyLabels
    learning: npt.NDArray[np.intp]
    held: npt.NDArray[np.intp]

    @classmethod
    def split(cls, rows: Tensor, private: NoisyLabels, seed: int) -> Task:
        """Hold out a fifth of the rows, at most 10,000."""
        order = np.random.default_rng(seed).permutation(len(rows))
        cut = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(rows))))
        return cls(rows, private, order[cut:], order[:cut])

    def chosen(self, numbers: npt.NDArray[np.intp]) -> tuple[Tensor, NoisyLabels]:
        """Return these rows and their responses."""
        return self.rows[torch.from_numpy(numbers).to(self.rows.device)], self.private.take(numbers)

    def judged(self, logits: Callable[[Tensor], Tensor]) -> float:
        """Return L of what was learnt without the held-out rows."""
        rows, private = self.chosen(self.held)
        found = logits(rows)
        return -float(forward_loss(found, evidence(private, found.device)).mean())


def choose(task: Task, seed: int) -> Iterator[Candidate]:
    """Fit the built-in learners one after the other and yield each, judged."""
    yield kernel(task, seed, 0)
    rival = kernel(task, seed, _COSINES)
    yield rival
    classes = task.private.num_classes
    if _for_trees(task):
        usual, *others = _BOOSTING
        yield (trees := boosting(task, seed, usual))
        # Trees take their time, above all with many classes; their settings matter where they come near the kernel.
        if trees.likelihood + math.log(classes) > _NEAR * (rival.likelihood + math.log(classes)):
            for settings in others if classes <= _FEW_CLASSES else ():
                yield boosting(task, seed, settings)


def adapting(task: Task, seed: int, folds: int = 3) -> tuple[float, float]:
    """Return what responses say of the table, by learners that do not and that do adapt to it, in nats.

    Log-likelihoods of all rows' responses, each judged by what the other folds taught, less those of a guess. The first
    is the better of ridge regression on the columns and on cosines of all of them alike, which is what a moment sees,
    too; the second the better of a kernel with weights of columns and trees.
    """
    order, least = np.random.default_rng(seed).permutation(len(task.rows)), math.log(task.private.num_classes)
    found = np.zeros(4)
    for fold in range(folds):
        held = np.arange(len(order)) % folds == fold
        part = Task(task.rows, task.private, order[~held], order[held])
        ways = [kernel(part, seed, 0), kernel(part, seed, _FEW_COSINES, rounds=0), kernel(part, seed, _FEW_COSINES)]
        if _for_trees(part):
            ways.append(boosting(part, seed, _BOOSTING[0]))
        judged = [held.sum() * (way.likelihood + least) for way in ways]
        found += [*judged, *[-math.inf] * (len(found) - len(judged))]
    return float(max(found[:2])), float(max(found[2:]))


def _for_trees(task: Task) -> bool:
    """Return whether trees are grown: from few columns, and where each class was answered, else they do not know it."""
    seen = np.unique(task.private.hard()[task.learning])
    return task.rows.shape[1] <= _MOST_COLUMNS and len(seen) == task.private.num_classes


# -- kernels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kernel:
    """Ridge regression on random cosines: logits are φ(x) W; without cosines it is linear.

    Args:
        turn: T, (p, D): random frequencies, times the weights of columns, over the width.
        phases: u, (D,).
        weight: W, (1 + p + D, K).
    """

    turn: Tensor
    phases: Tensor
    weight: Tensor

    def features(self, rows: Tensor) -> Tensor:
        """Return φ of the rows, (n, 1 + p + D)."""
        waves = torch.cos(torch.addmm(self.phases, rows, self.turn)) * math.sqrt(2 / max(1, len(self.phases)))
        return torch.cat([torch.ones_like(rows[:, :1]), rows / math.sqrt(rows.shape[1]), waves], dim=1)

    def logits(self, rows: Tensor) -> Tensor:
        """Return φ(x) W."""
        return torch.cat([self.features(part) @ self.weight for part in rows.to(self.turn).split(_AT_ONCE)])

    def sums(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return Φ'Φ and Φ'Z, in float64."""
        size = 1 + sum(self.turn.shape)
        gram, moment = rows.new_zeros(size, size), rows.new_zeros(size, targets.shape[1])
        for part, wanted in zip(rows.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            found = self.features(part)
            gram.addmm_(found.T, found)
            moment.addmm_(found.T, wanted)
        return gram.double(), moment.double()

    def slopes(self, rows: Tensor) -> Tensor:
        """Return the root mean square of the derivative along each column, over rows and classes, (p,)."""
        waves, count = torch.sin(torch.addmm(self.phases, rows, self.turn)), rows.shape[1]
        total = rows.new_zeros(count)
        for column in self.weight.T:
            steep = waves * (-math.sqrt(2 / len(self.phases)) * column[1 + count :])
            total += torch.addmm(column[1 : 1 + count] / math.sqrt(count), steep, self.turn.T).square().sum(dim=0)
        return (total / len(rows)).sqrt()


@dataclass(frozen=True)
class _Tried:
    """A kernel, its width and ridge, Φ'Φ and Φ'Z of the rows it was fitted to, and the squared error of held-out z."""

    error: float
    kernel: Kernel
    width: float
    ridge: float
    sums: tuple[Tensor, Tensor]


def kernel(task: Task, seed: int, cosines: int, rounds: int = _ROUNDS) -> Candidate:
    """Search width, ridge and, in so many rounds, weights of columns on some rows; judge the best with all cosines."""
    targets = unbiased_labels(task.private, task.rows.device)
    some = task.learning[:_MOST_TRIED]
    weights, few = torch.ones_like(task.rows[0]), min(_FEW_COSINES, cosines, 50 + len(some))
    best = _best(task, targets, some, weights, _WIDTHS if cosines else _WIDTHS[:1], _RIDGES, few, seed)
    last, kept = best, weights
    for _ in range(rounds if cosines else 0):
        numbers = torch.from_numpy(some[:_ROWS_OF_SLOPES]).to(task.rows.device)
        weights = last.kernel.slopes(task.rows[numbers])
        near = [last.width * step for step in (0.65, 1.0, 1.5)], [last.ridge * step for step in (0.32, 1.0, 3.2)]
        last = _best(task, targets, some, weights, *near, few, seed)
        if last.error > best.error:
            break
        best, kept = last, weights
    learning = task.learning[:_MOST_SOLVED]
    if cosines or len(learning) > len(some):
        many, ridges = min(cosines, 50 + len(learning)), [best.ridge * step for step in (0.32, 1.0, 3.2)]
        best = _best(task, targets, learning, kept, [best.width], ridges, many, seed)
    rows, private = task.chosen(task.held)
    # Scores are probabilities, and those of many classes small.
    scores = task.private.num_classes * best.kernel.logits(rows)
    scale = task.private.num_classes * scale_by_responses(scores, evidence(private, rows.device))

    def refit() -> Kernel:
        more = best.kernel.sums(rows, targets[torch.from_numpy(task.held).to(rows.device)])
        gram, moment = (known + new for known, new in zip(best.sums, more, strict=True))
        return replace(best.kernel, weight=scale * _solved(gram, moment, best.ridge))

    judged = task.judged(replace(best.kernel, weight=scale * best.kernel.weight).logits)
    shape = f"kernel of width {best.width:.2g}, " if cosines else "linear, "
    again = functools.partial(kernel, seed=seed, cosines=cosines, rounds=rounds)
    return Candidate(f"{shape}ridge {best.ridge:.2g}", judged, refit, again)


def _best(task: Task, targets: Tensor, numbers: npt.NDArray[np.intp], weights: Tensor, widths: Sequence[float],
          ridges: Sequence[float], cosines: int, seed: int) -> _Tried:  # fmt: skip
    """Return the width and ridge of least error on held-out rows, after a fit to these rows."""
    generator = torch.Generator().manual_seed(seed)
    learning, held = (torch.from_numpy(part).to(task.rows.device) for part in (numbers, task.held))
    rows = task.rows[learning]
    pairs = torch.randint(len(rows), (2, 1000), generator=generator).to(rows.device)
    distance = float(((rows[pairs[0]] - rows[pairs[1]]) * weights).norm(dim=1).median().clamp_min(1e-6))
    waves = torch.randn(rows.shape[1], cosines, generator=generator).to(rows)
    phases = 2 * math.pi * torch.rand(cosines, generator=generator).to(rows)
    found = []
    for width in widths:
        plain = Kernel(weights[:, None] * waves / (width * distance), phases, rows[:0])
        sums, seen = plain.sums(rows, targets[learning]), plain.features(task.rows[held])
        for ridge in ridges:
            weight = _solved(*sums, ridge)
            error = float((seen @ weight - targets[held]).square().mean())
            found.append(_Tried(error, replace(plain, weight=weight), width, ridge, sums))
    return min(found, key=lambda tried: tried.error)


def _solved(gram: Tensor, moment: Tensor, ridge: float) -> Tensor:
    lower = torch.linalg.cholesky(gram + ridge * torch.eye(len(gram)).to(gram))
    return torch.cholesky_solve(moment, lower).float()


# -- learners that are fitted to responses as if they were labels ----------------------------------------------------


def unmixing(channel: Channel) -> Tensor:
    """Return M, (K, K), with p = qM where q are the probabilities of the responses to labels of probabilities p."""
    return torch.from_numpy(channel.unbiased(np.arange(channel.num_classes)))


def corrected(likely: Tensor, unmix: Tensor) -> Tensor:
    """Return log-probabilities of classes, from those of responses, (n, K): the nearest point of the simplex to qM."""
    nearest = project_to_simplex(likely @ unmix.to(likely))
    return ((1 - _UNCORRECTED) * nearest + _UNCORRECTED * likely).clamp_min(1e-300).log()


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees that were fitted to responses, and the way back to classes.

    Args:
        forest: with one output for two classes, K for more: log-odds of responses.
        unmix: see `unmixing`.
    """

    forest: Forest
    unmix: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return log-probabilities of classes, on the rows' device."""
        return _classes(self.forest.scores(rows.cpu().numpy()), self.unmix).to(rows.device)


def _classes(scores: npt.NDArray[Any], unmix: Tensor) -> Tensor:
    odds = torch.from_numpy(scores).reshape(len(scores), -1)
    both = torch.cat([torch.zeros_like(odds), odds], dim=1) if odds.shape[1] == 1 else odds
    return corrected(both.softmax(dim=1), unmix)


def boosting(task: Task, seed: int, settings: dict[str, Any]) -> Candidate:
    """Grow trees as long as held-out responses become likelier; judge the number of iterations that was best."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, private = task.chosen(task.learning[: 5 * _MOST_TRIED])
    unmix, most = unmixing(private.channel), min(_MOST_GROWN, max(_GROWTH, _MOST_TREES // private.num_classes))
    fixed: dict[str, Any] = {**settings, "early_stopping": False, "random_state": seed, "categorical_features": None}
    # Leaves that suit large tables would leave a small one whole.
    fixed["min_samples_leaf"] = max(1, min(settings["min_samples_leaf"], len(rows) // 50))
    plain, responses = rows.cpu().numpy(), private.hard()
    grown, found = HistGradientBoostingClassifier(**fixed, warm_start=True), []
    for iterations in range(_GROWTH, most + 1, _GROWTH):
        grown.set_params(max_iter=iterations).fit(plain, responses)
        judged = task.judged(lambda held: _classes(grown.decision_function(held.cpu().numpy()), unmix))
        found.append((judged, iterations))
        if len(found) > 2 and max(found[-2:])[0] < max(found[:-2])[0] + _LEAST_GAIN:
            break
    likelihood, iterations = max(found)

    def refit() -> Trees:
        whole = HistGradientBoostingClassifier(**fixed, max_iter=iterations)
        return Trees(Forest.from_boosting(whole.fit(task.rows.cpu().numpy(), task.private.hard())), unmix)

    leaves, rate = settings["max_leaf_nodes"], settings["learning_rate"]
    name = f"{iterations} rounds of trees with {leaves} leaves at rate {rate:g}"
    return Candidate(name, likelihood, refit, lambda other: boosting(other, seed, settings))


@dataclass(frozen=True, eq=False)
class Own:
    """A learner of the user's, fitted to responses, and the way back to classes."""

    fitted: Any
    unmix: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return log-probabilities of classes, on the rows' device."""
        given = np.asarray(self.fitted.predict_proba(rows.cpu().numpy()), dtype=np.float64)
        known = np.asarray(getattr(self.fitted, "classes_", np.arange(given.shape[1]))).astype(np.intp)
        likely = np.zeros((len(given), len(self.unmix)))
        likely[:, known] = given
        return corrected(torch.from_numpy(likely), self.unmix).to(rows.device)


def own(task: Task, learner: Learner) -> Candidate:
    """Judge a copy of the user's learner; another copy is fitted to all rows."""
    judged = task.judged(taught(learner, *task.chosen(task.learning)).logits)
    refit = functools.partial(taught, learner, task.rows, task.private)
    return Candidate(repr(learner), judged, refit, lambda other: own(other, learner))


def taught(learner: Learner, rows: Tensor, private: NoisyLabels) -> Own:
    """Fit a copy of the user's learner, which itself stays as it is."""
    from sklearn.base import clone

    made: Any = clone(cast("Any", learner)) if hasattr(learner, "get_params") else copy.deepcopy(learner)
    made.fit(rows.cpu().numpy(), private.hard())
    return Own(made, unmixing(private.channel))
