"""The arguments of recipes, all checked before labels are paid for: a typo must not cost ε.

`checked` is put on every recipe. Arguments of recipes are named from one vocabulary (`labeldp.recipes.job`), so one
place can check them all, whoever calls: settings against the signature, names and types, and those that were bound to a
training loop against the loop's; the loop itself by a trial on a few rows and made-up targets; the folder by writing to
it. No check sees a label.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, Union

import numpy as np
import torch
from torch import Tensor, nn

from labeldp.atomic import check_room
from labeldp.core.vault import LabelVault
from labeldp.learning.dividemix import co_refine
from labeldp.learning.evidence import Objective, from_classes
from labeldp.learning.train import Inputs, predict
from labeldp.mechanisms.values import ValueVault
from labeldp.ranks import working

Given = ParamSpec("Given")
Result = TypeVar("Result")
# Rows of a trial. What a trial leaves out: a report is for the user's eyes, compiling takes a minute.
_FEW = 8
_TRIAL = {"report": None, "compiled": False, "checkpoint": None}


class Fit(Protocol):
    """`labeldp.learning.train.fit` with epochs, optimiser and so on already bound."""

    def __call__(self, model: nn.Module, inputs: Inputs, objective: Objective, /, **settings: Any) -> nn.Module:
        """Train and return the model."""
        ...


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def take_rows(inputs: Inputs, rows: np.ndarray) -> Inputs:
    """Return these rows of every input, in this order."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    index = torch.from_numpy(np.ascontiguousarray(rows)).to(tensors[0].device)
    chosen: tuple[Tensor, ...] = tuple(tensor[index] for tensor in tensors)
    return chosen if isinstance(inputs, tuple) else chosen[0]


def checked(recipe: Callable[Given, Result]) -> Callable[Given, Result]:
    """Make a recipe check its arguments before its first statement."""
    signature = inspect.signature(recipe)

    @functools.wraps(recipe)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        own = {name for name, parameter in signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
        check_settings(recipe, {name: value for name, value in given.items() if name in own})
        model, inputs, vault = (given.get(name) for name in ("model", "inputs", "vault"))
        if given.get("folder") is not None:
            check_folder(given["folder"], model, 0 if vault is None else len(vault) * (vault.num_classes + 2))
        if model is not None and inputs is not None and vault is not None:
            outputs = 1 if isinstance(vault, ValueVault) else vault.num_classes
            check_rows(model, inputs, vault, outputs)
            for name in {"fit", "refine", "teach"} & given.keys():
                loops = given[name]
                for loop in loops if isinstance(loops, list | tuple) else (loops,):
                    try_loop(name, loop, model, inputs, outputs)
        return recipe(*args, **kwargs)

    run.checks_its_arguments = True  # type: ignore[attr-defined]
    return run


# --- settings ---------------------------------------------------------------------------------------------------


def check_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that the function does not know, or whose value is of another type.

    Values that are themselves functions with settings bound, such as training loops, are checked likewise.

    >>> from labeldp.learning.train import fit
    >>> check_settings(fit, {"epoch": 5})
    Traceback (most recent call last):
    ValueError: fit does not know epoch=5; did you mean epochs?
    >>> check_settings(fit, {"epochs": "3"})
    Traceback (most recent call last):
    ValueError: epochs='3' is not a whole number, which fit takes
    """
    while isinstance(function, functools.partial):
        function = function.func
    (known, others), called = settings_of(function), getattr(function, "__name__", type(function).__name__)
    for name, value in given.items():
        if name not in known and not others:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(known))}"
            raise ValueError(f"{called} does not know {name}={value!r}; {hint}")
        hint = known.get(name, Any)
        if not is_a(value, hint):
            raise ValueError(f"{name}={value!r} is not {as_noun(hint)}, which {called} takes")
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, functools.partial):
                check_settings(part, part.keywords)


def settings_of(function: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return names and types of what a function takes, and whether it takes others, which nothing lists."""
    known: dict[str, Any] = {}
    try:
        parameters, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
    except (NameError, TypeError, ValueError):
        return known, True
    others = False
    for name, parameter in parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is not parameter.VAR_KEYWORD:
            known[name] = hint
        elif typing.get_origin(hint) is typing.Unpack:
            known |= typing.get_type_hints(typing.get_args(hint)[0])
        else:
            others = True
    return known, others


def is_a(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; whole numbers are also floats, and any unknown type is right.

    >>> is_a(3, float), is_a(True, int), is_a((0.6, 0.4), Sequence[float]), is_a("3", int | None), is_a("3", Any)
    (True, False, True, False, True)
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    protocol = getattr(hint, "_is_protocol", False)
    if origin in (Union, types.UnionType):
        return any(is_a(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is Callable or (protocol and "__call__" in vars(hint)):
        return callable(value)
    if origin in (Sequence, list, tuple):
        inner = parts[0] if parts else Any
        return isinstance(value, origin) and not isinstance(value, str) and all(is_a(part, inner) for part in value)
    plain = {int: Integral, float: Real, None: types.NoneType}.get(hint, hint)
    if protocol or plain is Any or not isinstance(plain, type):
        return True
    return isinstance(value, plain) and not (isinstance(value, bool) and plain in (Integral, Real))


def as_noun(hint: Any) -> str:
    """Return a type in words.

    >>> as_noun(float | None), as_noun(Literal["squared", "absolute"]), as_noun(Sequence[float])
    ('a number or None', "'squared' or 'absolute'", 'a Sequence')
    """
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(as_noun, parts)))
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, parts))
    known = {int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}
    kind = typing.get_origin(hint) or hint
    return "a function" if kind is Callable else known.get(kind, f"a {getattr(kind, '__name__', kind)}")


# --- inputs, model and loop -------------------------------------------------------------------------------------


def check_rows(model: nn.Module, inputs: Inputs, vault: LabelVault, outputs: int) -> None:
    """Raise ValueError unless there is one input per label and the model maps each to `outputs` numbers."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"inputs[{number}] is a {type(tensor).__name__}; give a torch tensor")
        if len(tensor) != len(vault):
            raise ValueError(f"inputs[{number}] has {len(tensor)} rows and the vault {len(vault)}; give one per label")
    if len(vault):
        one = tuple(x[:1] for x in tensors)
        try:
            shape = tuple(predict(model, one).shape)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            shapes = ", ".join(str(tuple(x.shape)) for x in one)
            raise ValueError(f"the model cannot be run on one row of shape {shapes}: {error}") from error
        if shape != (1, outputs):
            raise ValueError(f"the model maps one row to shape {shape}; it must be (1, {outputs}) for this vault")


def check_inputs(inputs: Inputs, vault: LabelVault) -> None:
    """Raise ValueError for features that are not finite, no rows, or a single class."""
    if len(vault) == 0 or vault.num_classes < 2:
        raise ValueError(f"{vault!r} has nothing to learn; give at least one label of at least two classes")
    for number, tensor in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(dim=1).sum())
            raise ValueError(f"inputs[{number}] has {bad} rows that are not finite; fill in or drop missing features")


def try_loop(name: str, loop: Any, model: nn.Module, inputs: Inputs, outputs: int) -> None:
    """Train a copy of the model for an epoch on a few rows and a made-up target, or raise what goes wrong.

    Only loops of this library, with settings bound: what a caller's own function does when it is called is not known.
    Model and random state stay as they were.
    """
    while isinstance(loop, functools.partial) and "fit" in loop.keywords:
        name, loop = "fit", loop.keywords["fit"]
    inner = loop
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inner is loop or not str(getattr(inner, "__module__", "")).startswith("labeldp.learning."):
        return
    tensors = tuple(x[:_FEW] for x in (inputs if isinstance(inputs, tuple) else (inputs,)))
    rows: Inputs = tensors if isinstance(inputs, tuple) else tensors[0]
    count = len(tensors[0])
    if count < 2:
        return
    settings = {name: value for name, value in _TRIAL.items() if name in inspect.signature(inner).parameters}
    # What two networks learn from are labels, what one does is a loss; these know nothing.
    classes = torch.arange(count, device=tensors[0].device) % outputs
    target: Any = from_classes(classes, outputs) if inner is co_refine else lambda logits, _: logits.square().mean(-1)
    settings |= {"warmup": 1} if inner is co_refine else {}
    # As given, which is where a length of 0 is refused; and no more than the trial needs.
    length = loop.keywords.get("epochs")
    settings |= {"epochs": min(length, 2)} if isinstance(length, int) else {}
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), working(None):
        try:
            loop(copy.deepcopy(model), rows, target, **settings)
        except Exception as error:
            error.add_note(f"{name} was tried on {count} rows and made-up targets; nothing was spent")
            raise


def check_folder(folder: Path, model: nn.Module | None, numbers: int) -> None:
    """Raise ValueError unless the folder can be written to and has room for releases and two checkpoints."""
    weights = 0 if model is None else sum(value.numel() * value.element_size() for value in model.state_dict().values())
    # Weights, their average and two moments of an optimiser; the old checkpoint stays until the new one is whole.
    check_room(folder, 9 * numbers + 8 * weights + (1 << 20))
