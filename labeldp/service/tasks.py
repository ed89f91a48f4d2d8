"""Put work beside the labels into plain values, and do it from these: noisy descents of a network, votes of teachers.

A job travels as the catalogue's key of its recipe, settings that are declared below, a few small tensors (first
weights, or the queries of teachers) and the features, one or more columns of numbers. Whatever the analyst computed for
itself stays there: a schedule comes as its value at every step, an optimiser as its name and numbers.

    descent    `labeldp_pro.train`: noise, steps and batches as the analyst has calibrated them; one pass of
               `lp_normal_sgd` is one of these
    teachers   `TeacherVotes` by linear teachers; the student learns from the winners where the analyst is
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning import projections, teachers
from labeldp.learning.optimisers import Lars, MakeOptimizer, constant
from labeldp.learning.progress import Report
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.sums import DiameterBound, NormBound
from labeldp.mechanisms.teachers import TeacherVotes
from labeldp.recipes import labeldp_pro, pate
from labeldp.recipes.catalogue import BY_KEY, RECIPES
from labeldp.recipes.denoisers import Denoiser, Named, Secret
from labeldp.recipes.worth import Case
from labeldp.service.limits import Limits
from labeldp.service.networks import (
    checked_network,
    describe,
    freeze,
    frozen_in,
    load_weights,
    make,
    weights_of,
)
from labeldp.service.wire import Check, Settings, WireError, choice, fields, flag, integer, listed, number, optional

Tensors = Mapping[str, Tensor]
NO_COLUMNS = pa.schema([])
MOST_STEPS, MOST_SEED = 1 << 24, 2**63 - 1
_STEPS, _SEED = integer(1, MOST_STEPS), integer(0, MOST_SEED)
_DELTA, _EPSILON = number(1e-300, 0.999), number(1e-12, 1e4)
_POSITIVE, _ANY = number(1e-300, 1e300), number(-1e300, 1e300)


@dataclass(frozen=True, eq=False)
class Task:
    """Work beside the labels, in plain values.

    Args:
        recipe: the catalogue's key.
        settings: as JSON has them.
        tensors: the small ones, which are named by the settings.
        inputs: one entry per row.
    """

    recipe: str
    settings: Settings
    tensors: Tensors = field(repr=False)
    inputs: tuple[Tensor, ...] = field(repr=False)


# -- settings and what they stand for ----------------------------------------------------------------------------------


def _bound(name: str, value: Any) -> NormBound | DiameterBound:
    given = fields({"clip": _POSITIVE, "diameter": optional(_POSITIVE)})(name, value)
    clip, diameter = given["clip"], given["diameter"]
    return _made(NormBound, clip) if diameter is None else _made(DiameterBound, clip, diameter)


def _plain_bound(bound: NormBound | DiameterBound) -> Settings:
    return {"clip": bound.clip, "diameter": bound.diameter if isinstance(bound, DiameterBound) else None}


_ITERATED = dict(  # noqa: C408 (one of these names is a recipe's key, too)
    smoothing=number(0.0, 1.0), tolerance=number(1e-9, 1.0), steps=integer(1, 1000), rounds=integer(1, 1000)
)
_PROJECTIONS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Check]]] = {
    "span": (projections.span, {"tolerance": number(1e-9, 1.0), "steps": integer(1, 10_000)}),
    "hull": (projections.hull, _ITERATED),
    "row_simplex": (projections.row_simplex, _ITERATED),
}


def _projection(name: str, value: Any) -> Any:
    kind = choice(*_PROJECTIONS)(f"{name}.kind", value.get("kind") if isinstance(value, dict) else None)
    function, declared = _PROJECTIONS[kind]
    given = fields({"kind": choice(kind), **{known: optional(check) for known, check in declared.items()}})(name, value)
    return functools.partial(function, **{
        known: setting for known, setting in given.items() if known != "kind" and setting is not None
    })  # fmt: skip


def _denoiser(name: str, value: Any) -> Denoiser:
    declared = {
        "batches": choice("secret", "named"), "projection": optional(_projection), "rows": optional(_STEPS),
        "clipped": flag,
    }  # fmt: skip
    given = fields(declared)(name, value)
    if given["batches"] == "secret":
        return _made(Secret, given["projection"], given["rows"], given["clipped"])
    if given["projection"] is None or given["rows"] is not None:
        raise WireError(f"{name} names its batches and has no projection, or other rows; give a projection only")
    return Named(given["projection"], given["clipped"])


def _plain_denoiser(denoiser: Denoiser) -> Settings:
    found = denoiser.projection
    plain: Settings | None = None
    if found is not None:
        function, bound = found, {}
        if isinstance(found, functools.partial):
            function, bound = found.func, found.keywords
        kind = next((kind for kind, (known, _) in _PROJECTIONS.items() if known is function), None)
        if kind is None:
            raise ValueError(f"denoiser projects by {found!r}, which a service does not know; it takes no code")
        plain = {"kind": kind, **bound}
    secret = isinstance(denoiser, Secret)
    return {
        "batches": "secret" if secret else "named", "projection": plain, "rows": denoiser.rows if secret else None,
        "clipped": denoiser.clipped,
    }  # fmt: skip


# Kind of optimiser → its class and the settings that it may have; all others of its settings are as torch has them.
_RATE, _DECAY, _SHARE = number(0.0, 1e6), number(0.0, 1e6), number(0.0, 0.999_999_999)
_OPTIMISERS: Mapping[str, tuple[Callable[..., torch.optim.Optimizer], Mapping[str, Check]]] = {
    "SGD": (torch.optim.SGD, {"lr": _RATE, "momentum": _SHARE, "dampening": number(0.0, 1.0), "weight_decay": _DECAY,
                              "nesterov": flag}),
    "AdamW": (torch.optim.AdamW, {"lr": _RATE, "betas": listed(2, _SHARE), "eps": number(1e-30, 1.0),
                                  "weight_decay": _DECAY, "amsgrad": flag}),
    "RMSprop": (torch.optim.RMSprop, {"lr": _RATE, "alpha": _SHARE, "eps": number(1e-30, 1.0), "weight_decay": _DECAY,
                                      "momentum": _SHARE, "centered": flag}),
    "Lars": (Lars, {"lr": _RATE, "momentum": _SHARE, "weight_decay": _DECAY, "trust": _POSITIVE}),
}  # fmt: skip


def _optimizer(name: str, value: Any) -> MakeOptimizer:
    """Check an optimiser; `thin` is the weight decay of parameters of one dimension, where it is another."""
    kind = choice(*_OPTIMISERS)(f"{name}.kind", value.get("kind") if isinstance(value, dict) else None)
    function, declared = _OPTIMISERS[kind]
    given = fields({"kind": choice(kind), "thin": optional(_DECAY), **declared})(name, value)
    thin, settings = given["thin"], {known: given[known] for known in declared}
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])

    def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        if thin is None:
            return function(every, **settings)
        parts = [([each for each in every if (each.ndim > 1) == wide], decay)
                 for wide, decay in ((True, settings["weight_decay"]), (False, thin))]  # fmt: skip
        return function([{"params": part, "weight_decay": decay} for part, decay in parts if part], **settings)

    # Tried here, so that what torch refuses is refused with the settings.
    _made(made, [nn.Parameter(torch.zeros(1, 1)), nn.Parameter(torch.zeros(1))])
    return made


def _plain_optimizer(optimizer: MakeOptimizer) -> Settings:
    wide, thin = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    made = optimizer([wide, thin])
    groups, kind = made.param_groups, type(made).__name__
    held = {id(each): group for group in groups for each in group["params"]}
    odd = ""
    if kind not in _OPTIMISERS or type(made) is not _OPTIMISERS[kind][0]:
        odd = f"is a {kind}"
    elif set(held) != {id(wide), id(thin)}:
        odd = "does not have all parameters, each once"
    else:
        function, declared = _OPTIMISERS[kind]
        usual = function([nn.Parameter(torch.zeros(1))], lr=0.1).param_groups[0]
        first, second = held[id(wide)], held[id(thin)]
        others = first.keys() - declared.keys() - {"params"}
        apart = [known for known in declared if known != "weight_decay" and first[known] != second[known]]
        changed = [known for known in sorted(others) if not first[known] == second[known] == usual.get(known)]
        odd = f"sets {', '.join([*apart, *changed])}" if apart or changed else ""
    if odd:
        raise ValueError(
            f"optimizer {odd}, which a service does not take; give one of labeldp.learning.optimisers: sgd, adam, "
            "rmsprop, lars, weights_sgd"
        )
    first, second = held[id(wide)], held[id(thin)]
    plain = {known: list(first[known]) if known == "betas" else first[known] for known in _OPTIMISERS[kind][1]}
    decay = second["weight_decay"]
    return {"kind": kind, "thin": None if decay == first["weight_decay"] else decay, **plain}


_NETWORK = {"network": checked_network, "frozen": listed(10_000, integer(0, 10_000)), "training": flag}
_AVERAGE = optional(_SHARE)
_PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DESCENT: Mapping[str, Check] = {
    "delta": _DELTA, "noise_multiplier": _POSITIVE, "steps": _STEPS, "batch_size": _STEPS, "bound": _bound,
    "denoiser": _denoiser, "optimizer": _optimizer,
    "cap": optional(_STEPS),
    "schedule": optional(listed(MOST_STEPS, number(-1e6, 1e6))), "average": _AVERAGE, "radius": optional(_POSITIVE),
    "seed": _SEED, "precision": optional(choice(*_PRECISIONS)), **_NETWORK,
}  # fmt: skip
_TEACHERS: Mapping[str, Check] = {
    "kind": choice("ridge", "shared"), "ridge": _POSITIVE, "num_classes": integer(2, 1 << 16), "teachers": _STEPS,
    "queries": _STEPS, "responses": _STEPS, "noise_std": _POSITIVE, "threshold": optional(_ANY),
    "threshold_std": optional(_POSITIVE), "seed": _SEED, "at_once": integer(1, 1000),
}  # fmt: skip
# By the function of the catalogue's entry.
SETTINGS: Mapping[str, Mapping[str, Check]] = {
    "labeldp_pro.train": _DESCENT, "pate.train": _TEACHERS,
}  # fmt: skip
JOBS = tuple(recipe.key for recipe in RECIPES if recipe.beside and recipe.classes in SETTINGS)


def checked(key: str, settings: Any, num_rows: int, limits: Limits) -> Settings:
    """Return the settings of a recipe, each checked and within the owner's limits; WireError otherwise.

    Nothing that is large is made of them: a network is counted without memory.
    """
    recipe = BY_KEY[key]
    given = fields(SETTINGS[recipe.classes])("settings", settings)
    if num_rows > limits.rows:
        raise WireError(f"{num_rows} rows are asked; at most {limits.rows} are allowed here")
    if (steps := steps_of(given)) > limits.steps:
        raise WireError(f"the job has {steps} steps; at most {limits.steps} are allowed here")
    if given.get("schedule") is not None and len(given["schedule"]) != given["steps"]:
        raise WireError(f"schedule has {len(given['schedule'])} values for {given['steps']} steps; give one for each")
    if "network" in given:
        with torch.device("meta"):
            make(given["network"], limits.parameters)
    return given


def steps_of(settings: Settings) -> int:
    """Return how long a job is: steps of a descent, or teachers."""
    return int(settings["steps" if "steps" in settings else "teachers"])


# -- from a call to plain values ---------------------------------------------------------------------------------------


def of_descent(given: Mapping[str, Any], noise: float, steps: int) -> Task:
    """Return a call of `labeldp_pro.train` in plain values; ValueError where it holds what a service does not take.

    Args:
        given: its arguments.
        noise: the multiplier that its ε, or its length, came to.
        steps: how many it came to.
    """
    if given["loss"] is not cross_entropy:
        raise ValueError("a loss of your own cannot be sent to a service, which takes no code; leave it out")
    model, inputs = given["model"], given["inputs"]
    modes = {each.training for each in model.modules()}
    if len(modes) > 1:
        raise ValueError("some layers of the model train and others do not, which a service cannot be told; set one")
    denoiser, schedule = given["denoiser"] or labeldp_pro.no_op(), given["schedule"]
    optimizer = given["optimizer"] or labeldp_pro.sgd(0.1, momentum=0.0, weight_decay=0.0)
    factors = None if schedule is None else [float(schedule(step / steps)) for step in range(steps)]
    precision = next((name for name, kind in _PRECISIONS.items() if kind == given["precision"]), None)
    plain = {
        "delta": given["delta"], "noise_multiplier": noise, "steps": steps, "batch_size": given["batch_size"],
        "cap": given["cap"],
        "bound": _plain_bound(given["bound"] or NormBound(1.0)), "denoiser": _plain_denoiser(denoiser),
        "optimizer": _plain_optimizer(optimizer),
        "schedule": None if factors is None or set(factors) == {1.0} else factors,
        "average": given["average"], "radius": given["radius"], "seed": given["seed"], "precision": precision,
        "network": describe(model), "frozen": frozen_in(model), "training": modes.pop(),
    }  # fmt: skip
    key = _key("labeldp_pro.train", denoiser.projection is None)
    return Task(key, plain, weights_of(model), inputs if isinstance(inputs, tuple) else (inputs,))


def of_votes(mechanism: TeacherVotes) -> Task:
    """Return the votes of linear teachers in plain values; ValueError for other teachers, which are code."""
    teach = mechanism.teach
    if not isinstance(teach, teachers.LinearTeachers):
        raise ValueError(
            "teachers of your own cannot be sent to a service, which takes no code; take one_shot_teachers or "
            "ridge_teachers of labeldp.learning.teachers"
        )
    names = ("num_classes", "teachers", "queries", "responses", "noise_std", "threshold", "threshold_std", "seed")
    plain = {name: getattr(mechanism, name) for name in names}
    plain |= {"kind": teach.kind, "ridge": teach.ridge, "at_once": min(mechanism.at_once, 1000)}
    tensors = {"queries": teach.queries.detach().cpu().contiguous()}
    return Task(_key("pate.train"), plain, tensors, (teach.features,))


def _key(function: str, bare: bool | None = None) -> str:
    """Return the catalogue's key of a function; of those that share one, the entry that projects, or that does not."""
    found = [recipe for recipe in RECIPES if recipe.beside and recipe.classes == function]
    for recipe in found if bare is not None else ():
        usual = recipe.settings(Case(1000, 2, 10, "table", 1e-5), 1.0)["denoiser"].load()
        if (usual.projection is None) == bare:
            return recipe.key
    return found[0].key


def sent(task: Task) -> bytes:
    """Return tensors and features as one safetensors file, which holds numbers and nothing else."""
    columns = {f"input.{place}": each.detach().cpu().contiguous() for place, each in enumerate(task.inputs)}
    return safetensors.torch.save({**{f"tensor.{name}": each for name, each in task.tensors.items()}, **columns})


def received(file: Path, num_rows: int) -> tuple[Tensors, tuple[Tensor, ...]]:
    """Return the tensors and features of a file that was sent; WireError where it is another one."""
    try:
        found = safetensors.torch.load_file(file)
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OSError):
        raise WireError("what was sent is not a safetensors file; use RemoteVault") from None
    tensors = {name.removeprefix("tensor."): each for name, each in found.items() if name.startswith("tensor.")}
    inputs = {name: each for name, each in found.items() if name not in {f"tensor.{known}" for known in tensors}}
    if not inputs or sorted(inputs) != sorted(f"input.{place}" for place in range(len(inputs))):
        raise WireError("features are not input.0, input.1, …; send one or more")
    for name, each in inputs.items():
        if each.ndim == 0 or len(each) != num_rows:
            raise WireError(f"{name} has shape {tuple(each.shape)} for {num_rows} rows; send one entry for each")
        if each.is_complex() or (each.is_floating_point() and not bool(torch.isfinite(each).all())):
            raise WireError(f"{name} has entries that are not finite numbers; send such")
    return tensors, tuple(inputs[f"input.{place}"] for place in range(len(inputs)))


# -- from plain values to what was asked for ---------------------------------------------------------------------------


def run(
    key: str,
    settings: Settings,
    tensors: Tensors,
    inputs: tuple[Tensor, ...],
    vault: LabelVault,
    limits: Limits,
    folder: Path | None,
    report: Report | None = None,
) -> dict[str, Tensor]:
    """Do the work of checked settings on the labels of a vault; return what it releases, as named tensors.

    What it pays for is kept in the folder: a process that is killed goes on there, and draws nothing twice.
    """
    columns: Any = inputs if len(inputs) != 1 else inputs[0]
    if "network" not in settings:
        winners = _votes(settings, tensors, inputs, vault, folder)
        return {"winners": torch.from_numpy(np.array(winners))}
    model = make(settings["network"], limits.parameters)
    load_weights(model, tensors)
    freeze(model, settings["frozen"])
    model.train(settings["training"])
    names = SETTINGS[BY_KEY[key].classes].keys() - _NETWORK.keys()
    given = {name: settings[name] for name in names}
    given["every"] = max(1, steps_of(settings) // 100)
    if "schedule" in given:
        # Values of the schedule, one for each step; the peak throughout where there are none.
        values = given["schedule"]
        given["schedule"] = (
            constant() if values is None else lambda done: values[min(len(values) - 1, round(done * len(values)))]
        )
        given["precision"] = None if given["precision"] is None else _PRECISIONS[given["precision"]]
    function = BY_KEY[key].function()
    return weights_of(function(model, columns, vault, folder=folder, report=report, **given))


def _votes(
    settings: Settings, tensors: Tensors, inputs: Sequence[Tensor], vault: LabelVault, folder: Path | None
) -> Any:
    if set(tensors) != {"queries"} or len(inputs) != 1:
        raise WireError("teachers vote on one tensor of queries, by one column of features; send these")
    classes = settings["num_classes"]
    teaching = teachers.ridge_teachers if settings["kind"] == "ridge" else teachers.one_shot_teachers
    teach = _made(teaching, inputs[0], tensors["queries"], classes, ridge=settings["ridge"])
    names = ("teachers", "queries", "responses", "noise_std", "threshold", "threshold_std", "seed", "at_once")
    mechanism = _made(TeacherVotes, teach, classes, **{name: settings[name] for name in names})
    if len(tensors["queries"]) != mechanism.queries:
        raise WireError(
            f"{len(tensors['queries'])} queries were sent and {mechanism.queries} are stated; make it equal"
        )
    return pate.winners(mechanism, vault, folder)


def put_back(model: nn.Module, tensors: Tensors) -> nn.Module:
    """Put the weights that a job released into the analyst's own network; return it, ready to predict."""
    device = next(model.parameters()).device
    load_weights(model, {name: each.to(device) for name, each in tensors.items()})
    return model.eval()


def _made(kind: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """Return a value, or raise WireError with what is wrong about its settings."""
    try:
        return kind(*given, **more)
    except (ValueError, TypeError, OverflowError, ArithmeticError, RuntimeError) as error:
        raise WireError(str(error)[:300]) from None
