"""Running a recipe: its arguments are named from one vocabulary, and each is supplied by that name.

A recipe is a function whose arguments are called

    model, inputs     the network to train and what it sees, public, on the model's device, in the vault's order
    features          what heads and clusters see, public, (n, p)
    vault             the labels
    epsilon, delta    all that may be spent
    fit, refine       the training loop with its settings bound: plain training or FixMatch, or two networks
    teach             training a network on probabilities
    tune              label-free tuning of a head
    clusters          of the features, found without labels
    learner, columns  a classifier of the user's, or several, and which of the features it sees
    seen              other features for a moment, where noise leaves few directions
    teachers          of PATE
    weighted          whether classes will be weighed by their probabilities
    seed, report      of everything public; gets progress

plus settings of its own with defaults. So one function, `run`, runs them all: `Job` holds what there is, the
catalogue's entry the default settings, and whoever calls may override settings by name. Settings that the recipe does
not know go to its training loop.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.data.released import ReleasedLabels
from labeldp.features.augment import learned_view, strong_view, weak_view
from labeldp.features.clusters import kmeans
from labeldp.features.coded import Coded
from labeldp.features.extract import Raw, one_thread
from labeldp.features.graph import Neighbours
from labeldp.learning.dividemix import co_refine
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import adam, one_cycle
from labeldp.learning.progress import Report, tell
from labeldp.learning.teachers import one_shot_teachers
from labeldp.learning.train import fit as fit_model
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.users import UserVault
from labeldp.models.zoo import FeatureNet, linear_head
from labeldp.ranks import leave
from labeldp.recipes import distil
from labeldp.recipes.arguments import Fit
from labeldp.recipes.catalogue import RECIPES, Lazy, Recipe, Task
from labeldp.recipes.worth import Case, directions, moment_distance

# Rows that pass the network in all, and the fewest and most passes over the data.
_PASSED, _LEAST_EPOCHS, _MOST_EPOCHS = 600_000, 6, 40
# Images of which a graph is made, features and eigenvectors it takes, and how many directions per class a moment may
# have room for: below about this the graph led on Fashion-MNIST and on CIFAR-10's features, by test accuracies.
_GRAPH_ROWS, _GRAPH_BASE, _GRAPH_DIMS, _FEW_DIRECTIONS = (500, 100_000), 256, 64, 3.0
# How labels respond, which was settled where responses were released before.
_OF_THE_DRAW = frozenset({"prior", "randomizer", "cap", "alike"})
# What is spent and on what is the caller's business.
_NOT_SETTINGS = frozenset(
    {"model", "inputs", "features", "vault", "epsilon", "delta", "probabilities", "noise_multiplier"}
)


@dataclass(frozen=True)
class Job:
    """All that a recipe may be given.

    Args:
        features: public, (n, p), what heads see.
        inputs: public, what networks see; the features for tables.
        vault: the labels; or responses that were released before, for recipes that can learn from them.
        epsilon, delta: all that may be spent.
        model: the user's network, copied; None for `FeatureNet`, or for a linear layer where the recipe wants one.
        settings: for the recipe and, those it does not know, for the training loop.
        seed: of everything public.
        report: gets progress.
        learner: the user's classifier, or several to choose from; None for those built in.
        columns: numbers of the features that say everything once; None for all.
        weighted: whether classes will be weighed by their probabilities, so that those of rare ones matter.
    """

    features: Tensor | Coded
    inputs: Tensor | Coded
    vault: LabelVault | ReleasedLabels
    epsilon: float
    delta: float
    model: nn.Module | None
    settings: Mapping[str, Any]
    seed: int
    report: Report | None = None
    learner: Any = None
    columns: Any = None
    weighted: bool = False


def run(recipe: Recipe, job: Job, task: Task = "classes") -> Any:
    """Run the recipe with its defaults, less what the job's settings override; return what its function returns."""
    function = recipe.function(task)
    parameters = inspect.signature(function).parameters
    work = _Work(recipe, job, task, {name: value for name, value in job.settings.items() if name not in parameters})
    _check(recipe, job, work, function)
    defaults = recipe.settings(work.case, job.epsilon)
    given = {name: value.load() if isinstance(value, Lazy) else value for name, value in defaults.items()}
    given |= {name: value for name, value in job.settings.items() if name in parameters}
    if isinstance(given.get("clusters"), int):
        given["clusters"] = kmeans(work.features, min(given["clusters"], len(work.features)), seed=job.seed)
    if not recipe.shards:
        # A solve, or trees: there is nothing to share, and the first of several ranks goes on alone.
        leave()
    supplied = {name: SUPPLIES[name](work) for name in parameters if name in SUPPLIES and name not in given}
    found = function(**supplied, **given)
    # What comes after a recipe is the first rank's: predictions, measures, files.
    leave()
    return found


@contextlib.contextmanager
def public_seed(seed: int) -> Iterator[None]:
    """Start torch's own generator from this public seed, and put it back afterwards. No noise comes from it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def usual_fit(rows: int, settings: Mapping[str, Any], seed: int, report: Report | None = None) -> Fit:
    """Bind settings for tables to `labeldp.learning.train.fit`; those given go first."""
    usual: dict[str, Any] = {
        "epochs": _epochs(rows),
        "batch_size": min(512, max(16, rows // 40)),
        "optimizer": adam(3e-3, weight_decay=0.05),
        "schedule": one_cycle(),
        "average": 0.99,
        "seed": seed,
        "report": report,
    }
    return functools.partial(fit_model, **{**usual, **settings})


def _epochs(rows: int) -> int:
    return max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_PASSED / max(rows, 1))))


def _check(recipe: Recipe, job: Job, work: _Work, function: Callable[..., Any]) -> None:
    """Refuse what the recipe cannot do before anything is spent."""
    if recipe.needs_images and not work.on_images:
        raise ValueError(
            f"method={recipe.key!r} learns from changed copies of images, and X is a table of shape "
            f"{tuple(job.inputs.shape)}; give images (n, C, H, W), or choose another method"
        )
    if isinstance(job.vault, UserVault) and not recipe.users:
        raise ValueError(
            f"method={recipe.key!r} protects one label at a time, and the vault all labels of a user; choose a method "
            "for users (labeldp.recipes.catalogue says which)"
        )
    if isinstance(job.vault, ReleasedLabels):
        if not recipe.released:
            raise ValueError(
                f"method={recipe.key!r} queries labels, and all there is are responses that were released before; "
                f"choose one of {', '.join(one.key for one in RECIPES if one.released)}"
            )
        settled = sorted(_OF_THE_DRAW & set(job.settings))
        if settled:
            raise ValueError(f"settings has {settled}, but the responses were drawn before; leave them out")
    refused = sorted(_NOT_SETTINGS & set(job.settings))
    if refused:
        raise ValueError(f"settings has {refused}, which the estimator sets; leave them out")
    takes_loop = {"fit", "refine", "teach"} & set(inspect.signature(function).parameters)
    if work.for_loop and not takes_loop:
        raise ValueError(f"settings has {sorted(work.for_loop)}, which {recipe.call(work.task)} does not know")


@dataclass(frozen=True)
class _Work:
    """A job in the hands of one recipe."""

    recipe: Recipe
    job: Job
    task: Task
    for_loop: Mapping[str, Any]

    @property
    def case(self) -> Case:
        vault = self.job.vault
        rows = len(vault.users) if isinstance(vault, UserVault) else len(vault)
        kind = "images" if self.on_images else "table"
        return Case(max(rows, 1), max(2, vault.num_classes), self.job.features.shape[1], kind, self.job.delta)

    @property
    def on_images(self) -> bool:
        return not isinstance(self.job.inputs, Coded) and self.job.inputs.ndim == 4

    @property
    def features(self) -> Tensor:
        return self.job.features.features() if isinstance(self.job.features, Coded) else self.job.features

    @property
    def inputs(self) -> Tensor:
        return self.job.inputs.features() if isinstance(self.job.inputs, Coded) else self.job.inputs

    def model(self) -> nn.Module:
        """Return the network to train, on the device of its inputs."""
        inputs, outputs = self.inputs, 1 if self.task == "numbers" else self.job.vault.num_classes
        if self.job.model is not None:
            return self.job.model.to(inputs.device)
        if inputs.ndim != 2:
            raise ValueError(f"X has shape {tuple(inputs.shape)}; networks for it are not built in: give model=")
        make = linear_head if self.recipe.network == "linear" else FeatureNet
        return make(inputs.shape[1], outputs).to(inputs.device)

    def tune(self) -> Any:
        """Bind fewer rows and clusterings than usual on tables: their plans differ little, and it is most of the time.

        Where noise spares all directions there is nothing to choose: clusters of few rows would not show what the
        least of them are good for.
        """
        job, rows = self.job, self.job.features
        if self.on_images:
            return tune
        bound = functools.partial(tune, rows=10_000, clusterings=4, draws=2, seed=job.seed)
        if not isinstance(rows, Coded):
            return bound
        bound, width, classes = functools.partial(bound, num_rows=len(rows)), rows.shape[1], job.vault.num_classes
        case = Case(len(rows), classes, width, "table", job.delta)
        if directions(len(rows), classes, moment_distance(case, job.epsilon), math.inf) > 2 * width:
            return functools.partial(bound, plans=[Plan(width)])
        return bound

    def seen(self) -> Tensor | None:
        """Return what a moment of few directions is better taken of, for images: the graph of nearest ones.

        Its eigenvectors hold in a few numbers what plain features need many directions for. None where there is room.
        """
        job, rows, classes = self.job, len(self.job.features), self.job.vault.num_classes
        if not self.on_images or not _GRAPH_ROWS[0] <= rows <= _GRAPH_ROWS[1]:
            return None
        room = directions(rows, classes, moment_distance(self.case, job.epsilon), math.inf)
        if room > _FEW_DIRECTIONS * classes:
            return None
        tell("features", "a graph of nearest images")
        graph = Neighbours(Raw(dims=_GRAPH_BASE, seed=job.seed), dims=_GRAPH_DIMS, seed=job.seed)
        # On one thread it is the same to the last bit on any number of cores, as a run that goes on needs it.
        with one_thread():
            return graph.fit(self.features).features(self.features)

    def fit(self) -> Any:
        """Bind the recipe's training loop."""
        job, inputs = self.job, self.inputs
        if self.on_images and self.recipe.loop.startswith("fixmatch"):
            weak, strong = self._views(strong_view)
            usual = {"epochs": _epochs(len(inputs)), "weak": weak, "strong": strong, "seed": job.seed}
            return functools.partial(fixmatch, **{**usual, "report": job.report, **self.for_loop})
        if self.on_images and self.recipe.loop == "student":
            return distil.usual_fit(inputs, **self.for_loop)
        return usual_fit(len(inputs), self.for_loop, job.seed, job.report)

    def refine(self) -> Any:
        """Bind co-refinement: a tenth of the epochs is for warming up."""
        epochs = int(self.for_loop.get("epochs", _epochs(len(self.inputs))))
        weak, strong = self._views(learned_view)
        usual: dict[str, Any] = {"epochs": epochs, "warmup": max(1, epochs // 10), "weak": weak, "strong": strong}
        usual |= {"seed": self.job.seed, "report": self.job.report}
        return functools.partial(co_refine, **{**usual, **self.for_loop})

    def _views(self, strong: Callable[..., Any]) -> tuple[Any, Any]:
        """Return weak and strong views; only colour images are mirrored: digits are not to be."""
        colour, side = self.inputs.shape[1] > 1, min(self.inputs.shape[2:])
        how: dict[str, Any] = {"padding": max(1, side // 8), "flip": colour}
        return weak_view(**how), strong(**how)

    def teachers(self) -> Any:
        """Return how linear teachers on the features vote on the queried rows."""
        features, classes = self.features, self.job.vault.num_classes
        return lambda rows: one_shot_teachers(features, features[rows], classes)


SUPPLIES: dict[str, Callable[[_Work], Any]] = {
    "model": _Work.model,
    "inputs": lambda work: work.inputs,
    "features": lambda work: work.job.features if work.recipe.coded else work.features,
    "vault": lambda work: work.job.vault,
    "epsilon": lambda work: work.job.epsilon,
    "delta": lambda work: 0.0 if work.recipe.pure else work.job.delta,
    "fit": _Work.fit,
    "refine": _Work.refine,
    "teach": lambda work: functools.partial(distil.train, fit=work.fit()),
    "tune": _Work.tune,
    "seen": _Work.seen,
    "teachers": _Work.teachers,
    "seed": lambda work: work.job.seed,
    "weighted": lambda work: work.job.weighted,
    "report": lambda work: work.job.report,
    "learner": lambda work: work.job.learner,
    "columns": lambda work: work.job.columns,
}
