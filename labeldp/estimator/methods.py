"""A method's name → its recipe, run on public features and a vault, with settings that suit tables.

Every function here has the same arguments and returns something that predicts; what it asks of the vault is the
recipe's business, and the vault's budget is ε and δ whatever the recipe does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labeldp.choosing.choice import Choice
from labeldp.choosing.recipes import BY_NAME, Case, moment_distance
from labeldp.choosing.worth import directions
from labeldp.core.vault import LabelVault
from labeldp.estimator.progress import Tell
from labeldp.features.clusters import kmeans
from labeldp.features.tables import Coded
from labeldp.learning import train
from labeldp.learning.train import adam, predict
from labeldp.learning.train import fit as fit_model
from labeldp.learning.tuning import Plan, tune
from labeldp.models.zoo import checked_count, linear_head
from labeldp.recipes import (
    alibi,
    cluster_votes,
    debiased,
    forward,
    labeldp_pro,
    linear_student,
    lp_mst,
    one_shot,
    one_shot_coded,
    one_shot_prior,
    rounds,
    rr,
    ssl_prior,
    students,
)
from labeldp.recipes.common import Fit
from labeldp.recipes.one_shot import OneShot

# --- nets --------------------
#
# The network that recipes train where the user brings none, and how it is trained.


# Rows that pass the network in all, and the fewest and most passes over the data.
_PASSED, _LEAST_EPOCHS, _MOST_EPOCHS = 600_000, 6, 40


class FeatureNet(nn.Module):
    """One hidden layer beside a linear one, on features (n, p): starts as the zero function.

    `body` holds all but the last layer, as `labeldp.recipes.rounds` wants it.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 64) -> None:
        super().__init__()
        self.sizes = {"inputs": inputs, "outputs": outputs, "hidden": hidden}
        self.body = _Beside(checked_count("inputs", inputs), checked_count("hidden", hidden))
        self.head = linear_head(inputs + hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, p) → (n, outputs)."""
        return self.head(self.body(rows))


class _Beside(nn.Module):
    """x ↦ (x, relu(Wx + b))."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat((rows, torch.relu(self.hidden(rows))), dim=1)


def usual_fit(rows: int, settings: Mapping[str, Any], seed: int, report: Tell | None = None) -> Fit:
    """`labeldp.learning.train.fit` with settings for tables; those given go first."""
    epochs = max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_PASSED / max(rows, 1))))
    usual: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": min(512, max(16, rows // 40)),
        "optimizer": adam(3e-3, weight_decay=0.05),
        "schedule": train.one_cycle(),
        "average": 0.99,
        "seed": seed,
        "report": report,
    }
    return functools.partial(fit_model, **{**usual, **settings})


class Predictor(Protocol):
    """What a method leaves behind: scores of public rows."""

    def logits(self, rows: Tensor) -> Tensor:
        """(n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class HeadPredictor:
    """The head of one look, φ = basis(x): softmax(t·Wφ) are honest probabilities."""

    basis: Any
    weight: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """t·Wφ."""
        return torch.cat([self.basis(part) @ self.weight.T for part in rows.to(self.weight.device).split(8192)])

    def logits_of_coded(self, rows: Coded) -> Tensor:
        """The same, sooner and without all features at once."""
        return torch.cat([self.basis.from_turned(part) @ self.weight.T for _, part in rows.mapped(self.basis.matrix)])


@dataclass(frozen=True, eq=False)
class StudentPredictor:
    """A head and its linear student on the same features, of which the head counts by its share."""

    head: HeadPredictor
    weight: Tensor
    bias: Tensor
    share: float

    def logits(self, rows: Tensor) -> Tensor:
        """Logarithms of the mean of their probabilities."""
        student = torch.cat([part @ self.weight.T + self.bias for part in rows.to(self.weight).split(8192)])
        if self.share == 0:
            return student
        both = torch.lerp(student.softmax(dim=1), self.head.logits(rows).softmax(dim=1), self.share)
        return both.clamp_min(torch.finfo(both.dtype).tiny).log()


@dataclass(frozen=True, eq=False)
class NetPredictor:
    """A trained network; `own` says that the user brought it."""

    net: nn.Module
    own: bool

    def logits(self, rows: Tensor) -> Tensor:
        """The network's outputs."""
        return predict(self.net, rows)


@dataclass(frozen=True)
class Job:
    """All that a recipe is given.

    Args:
        features: public, (n, p), what heads see.
        inputs: public, what networks see; the features for tables.
        vault: the labels.
        epsilon, delta: all that may be spent.
        model: the user's network, copied; None for `FeatureNet`.
        settings: for the recipe and, those it does not know, for the training loop.
        seed: of everything public.
        report: told of progress.
    """

    features: Tensor
    inputs: Tensor
    vault: LabelVault
    epsilon: float
    delta: float
    model: nn.Module | None
    settings: Mapping[str, Any]
    seed: int
    report: Tell | None = None

    def net(self) -> nn.Module:
        """The network to train, on the device of its inputs."""
        if self.model is not None:
            return self.model.to(self.inputs.device)
        if self.inputs.ndim != 2:
            raise ValueError(f"X has shape {tuple(self.inputs.shape)}; networks for it are not built in: give model=")
        return FeatureNet(self.inputs.shape[1], self.vault.num_classes).to(self.inputs.device)

    def done(self, net: nn.Module) -> NetPredictor:
        """What is left of a trained network."""
        return NetPredictor(net, self.model is not None)


Method = Callable[[Job], Predictor]


def _one_shot(job: Job) -> HeadPredictor:
    shot = _query(job, split_settings(one_shot.train, job)[0])
    return HeadPredictor(shot.tuning.basis, shot.weight)


def _linear(job: Job) -> StudentPredictor:
    known = {name: value for name, value in job.settings.items() if name in ("generations", "ridge")}
    rest = {name: value for name, value in job.settings.items() if name not in known}
    linear_student.check_settings(**known)
    shot = _query(job, split_settings(one_shot.train, replace(job, settings=rest))[0])
    found = linear_student.train_after(shot, job.features, report=job.report, **known)
    head = HeadPredictor(shot.tuning.basis, shot.weight)
    return StudentPredictor(head, found.layer.weight, found.layer.bias, found.share)


def _query(job: Job, settings: Mapping[str, Any]) -> OneShot:
    # Fewer rows and clusterings than usual: a table's plans differ little, and this is most of the time.
    tuning = functools.partial(tune, rows=10_000, clusterings=4, draws=2, seed=job.seed)
    usual = {"rehearse": tuning if job.inputs.ndim == 2 else tune, "report": job.report}
    return one_shot.train(job.features, job.vault, epsilon=job.epsilon, delta=job.delta, **{**usual, **settings})


def query_coded(
    rows: Coded, vault: LabelVault, epsilon: float, delta: float, settings: Mapping[str, Any], seed: int, report: Tell
) -> HeadPredictor:
    """`one_shot` for a table whose features do not fit in memory."""
    tuning = functools.partial(tune, rows=10_000, clusterings=4, draws=2, seed=seed, num_rows=len(rows))
    usual: dict[str, Any] = {"rehearse": tuning, "seed": seed, "report": report}
    case = Case(len(rows), vault.num_classes, rows.shape[1], "table", delta)
    if directions(len(rows), vault.num_classes, moment_distance(case, epsilon), math.inf) > 2 * rows.shape[1]:
        # Noise spares them all; clusters of few rows would not show what the least of them are good for.
        usual["rehearse"] = functools.partial(tuning, plans=[Plan(rows.shape[1])])
    shot = one_shot_coded.train(rows, vault, epsilon=epsilon, delta=delta, **{**usual, **settings})
    return HeadPredictor(shot.tuning.basis, shot.weight)


def _student(job: Job) -> NetPredictor:
    known, for_fit = split_settings(students.train, job, "fit")
    net = job.net()
    shot = _query(job, {})
    fit = usual_fit(len(job.inputs), for_fit, job.seed, job.report) if job.inputs.ndim == 2 else None
    return job.done(students.train(net, job.inputs, shot.probabilities(job.features), **{"fit": fit, **known}))


def _rounds(job: Job) -> NetPredictor:
    known, for_fit = split_settings(rounds.train, job, "teach")
    teach = functools.partial(students.train, fit=usual_fit(len(job.inputs), for_fit, job.seed, job.report))
    settings: dict[str, Any] = {"teach": teach, **known}
    budget = {"epsilon": job.epsilon, "delta": job.delta}
    return job.done(rounds.train(job.net(), job.inputs, job.features, job.vault, **budget, **settings).model)


def _one_shot_prior(job: Job) -> NetPredictor:
    known, for_fit = split_settings(one_shot_prior.train, job, "fit")
    settings: dict[str, Any] = {
        "fit": usual_fit(len(job.inputs), for_fit, job.seed, job.report),
        "report": job.report,
        **known,
    }
    budget = {"epsilon": job.epsilon, "delta": job.delta}
    return job.done(one_shot_prior.train(job.net(), job.inputs, job.features, job.vault, **budget, **settings).model)


def _responses(train: Callable[..., nn.Module], **usual: Any) -> Method:
    """Recipes of the form train(model, inputs, vault, epsilon=, fit=, …)."""

    def run(job: Job) -> NetPredictor:
        known, for_fit = split_settings(train, job, "fit")
        settings = {"fit": usual_fit(len(job.inputs), for_fit, job.seed, job.report), **usual, **known}
        return job.done(train(job.net(), job.inputs, job.vault, epsilon=job.epsilon, **settings))

    return run


def _clustered(train: Callable[..., nn.Module], **usual: Any) -> Method:
    """The same with clusters of the features, found without a label."""

    def run(job: Job) -> Predictor:
        count = max(job.vault.num_classes, min(100, len(job.features) // 50))
        clusters = kmeans(job.features, min(count, len(job.features)), seed=job.seed)
        return _responses(train, clusters=clusters, **usual)(job)

    return run


def _gradients(denoiser: Callable[[], Any]) -> Method:
    def run(job: Job) -> NetPredictor:
        known, odd = split_settings(labeldp_pro.train, job)
        if odd:
            raise ValueError(f"settings has {sorted(odd)}, which labeldp_pro.train does not know")
        usual: dict[str, Any] = {
            "epochs": 5, "batch_size": max(1, min(1024, len(job.vault) // 10)), "denoiser": denoiser(),
            "seed": job.seed, "report": job.report,
        }  # fmt: skip
        budget = {"epsilon": job.epsilon, "delta": job.delta}
        return job.done(labeldp_pro.train(job.net(), job.inputs, job.vault, **budget, **{**usual, **known}))

    return run


METHODS: dict[str, Method] = {
    "one_shot": _one_shot,
    "one_shot+linear": _linear,
    "one_shot+student": _student,
    "rounds": _rounds,
    "one_shot_prior": _one_shot_prior,
    "cluster_votes": _clustered(cluster_votes.train),
    "rr": _responses(rr.train),
    "forward": _responses(forward.train),
    "debiased": _responses(debiased.train),
    "lp_mst": _responses(lp_mst.train, learn=lp_mst.likelihood),
    "ssl_prior": _clustered(ssl_prior.train, learn=lp_mst.posterior_of_model),
    "alibi": _responses(alibi.train),
    "labeldp_pro": _gradients(labeldp_pro.alt_rows),
    "dp_sgd": _gradients(labeldp_pro.no_op),
}
# Those that end in layers on the features, whatever the inputs are.
_HEADS = ("one_shot", "one_shot+linear")
# Those that spend no δ, whatever δ is allowed; not in the ranking: rr and debiased.
_PURE_TOO = frozenset({"rr", "debiased"})


def is_pure(method: str) -> bool:
    """Whether the method spends no δ."""
    return method in _PURE_TOO or BY_NAME[method].pure


def trains_net(method: str) -> bool:
    """Whether the method trains a network, so that the user's own can be used."""
    return method not in _HEADS


def checked_method(method: object, model: nn.Module | None) -> str:
    """The name, or ValueError."""
    if not isinstance(method, str) or method not in (*METHODS, "auto"):
        raise ValueError(f"method={method!r} is not known; give 'auto' or one of {', '.join(METHODS)}")
    if model is not None and not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; give a torch.nn.Module, or None")
    if model is not None and method in _HEADS:
        raise ValueError(f"method={method!r} trains no network, but model is given; try method='one_shot+student'")
    return method


def best_for(choice: Choice, model: nn.Module | None) -> str:
    """The winner of the ranking; with a network of the user's, the best recipe that trains one."""
    free = [one.recipe for one in choice.ranking if not one.obstacle and one.recipe in METHODS]
    fitting = [name for name in free if model is None or trains_net(name)]
    if not fitting:
        raise ValueError(
            "no recipe can be used here: " + "; ".join(f"{r.recipe}: {r.obstacle}" for r in choice.ranking)
        )
    return fitting[0]


def split_settings(train: Callable[..., Any], job: Job, *made_here: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that the recipe knows, and the rest."""
    # What is spent and on what is the estimator's business.
    taken = {"model", "inputs", "features", "vault", "epsilon", "delta", "probabilities", "noise_multiplier"}
    names = set(inspect.signature(train).parameters) - taken
    refused = sorted(taken & set(job.settings))
    if refused:
        raise ValueError(f"settings has {refused}, which the estimator sets; leave them out")
    known = {name: value for name, value in job.settings.items() if name in names}
    rest = {name: value for name, value in job.settings.items() if name not in names}
    if rest and not made_here:
        raise ValueError(f"settings has {sorted(rest)}, which {train.__module__}.train does not know")
    return known, rest


@contextlib.contextmanager
def public_seed(seed: int) -> Iterator[None]:
    """Torch's own generator starts from this public seed, and is put back afterwards. No noise comes from it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
