"""Take a fitted estimator apart into plain settings and arrays, and back: no pickle, nothing that was not paid for.

Settings are dictionaries, lists, text, numbers and truth values, so that they fit TOML and JSON; arrays have names, so
that they fit safetensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.estimator.predictors import HeadPredictor, NetPredictor, Predictor, StudentPredictor
from labeldp.features.extract import FeatureMap, RawMap, Scaling
from labeldp.features.patches import PatchMap
from labeldp.features.tables import TableMap
from labeldp.learning.tuning import Basis
from labeldp.models.zoo import FeatureNet

FORMAT = "labeldp-estimator/1"
Config = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]


class PartsError(ValueError):
    """An estimator that cannot be taken apart, or parts that do not make one."""


def plain(value: Any) -> Any:
    """Return NumPy scalars and arrays as Python's own values."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


# -- the map from inputs to features ---------------------------------------------------------------------------------


def map_parts(found: FeatureMap) -> tuple[Config, Arrays]:
    """Return settings and arrays of a table's, a patch dictionary's or a plain map."""
    match found:
        case TableMap():
            config, arrays = _table_parts(found)
        case PatchMap():
            names = ("floor", "size", "stride", "pool", "threshold")
            config = {"kind": "patches", **{name: getattr(found, name) for name in names}}
            arrays = {"map.weight": _numpy(found.weight), "map.bias": _numpy(found.bias)}
        case RawMap():
            config, arrays = {"kind": "raw", "unit": found.unit}, {}
        case _:
            raise PartsError(
                f"a {type(found).__name__} cannot be taken apart; tables, patches and plain features can: "
                "encode the inputs first and fit to the result"
            )
    return {**config, "scaled": found.scaling is not None}, {**arrays, **_scaling_arrays(found.scaling)}


def map_from_parts(config: Config, arrays: Arrays, device: torch.device) -> FeatureMap:
    """Return the map again, on this device."""
    scaling = _scaling(arrays, device) if config["scaled"] else None
    match config["kind"]:
        case "table":
            return _table(config, arrays, scaling, device)
        case "patches":
            names = ("floor", "size", "stride", "pool", "threshold")
            weight, bias = (_tensor(arrays, f"map.{name}", device) for name in ("weight", "bias"))
            return PatchMap(weight, bias, **{name: config[name] for name in names}, scaling=scaling)
        case "raw" if scaling is not None:
            return RawMap(scaling, config["unit"])
    raise PartsError(f"features of kind {config['kind']!r} are not known; use the version that wrote them")


def _table_parts(found: TableMap) -> tuple[Config, Arrays]:
    # A hashed column has no list of values; TOML has no null.
    values = [{"hashed": kept is None, "values": [] if kept is None else plain(kept)} for kept in found.values]
    config: Config = {"kind": "table", "columns": values, "buckets": found.buckets, "seed": found.seed}
    config["clip"] = 0.0 if math.isinf(found.clip) else found.clip
    config |= {"scale": found.scale, "bins": list(map(len, found.edges)), "steps": list(map(len, found.steps))}
    arrays = {"map.mean": found.mean, "map.spread": found.spread, "map.missing": found.missing.astype(np.uint8)}
    edges = {
        name: np.concatenate([*parts, np.empty(0)]) for name, parts in (("bins", found.edges), ("steps", found.steps))
    }
    return config, {**arrays, **{f"map.{name}": array for name, array in edges.items()}}


def _table(config: Config, arrays: Arrays, scaling: Scaling | None, device: torch.device) -> TableMap:
    values = tuple(None if one["hashed"] else np.asarray(one["values"]) for one in config["columns"])
    edges, steps = (_ragged(arrays[f"map.{name}"], config[name]) for name in ("bins", "steps"))
    return TableMap(
        arrays["map.mean"], arrays["map.spread"], arrays["map.missing"].astype(bool), values, config["buckets"],
        config["seed"], device, edges, steps, config["clip"] or math.inf, config["scale"], scaling,
    )  # fmt: skip


def _ragged(flat: npt.NDArray[Any], sizes: list[int]) -> tuple[npt.NDArray[Any], ...]:
    return tuple(np.split(flat, np.cumsum(sizes).astype(int))[: len(sizes)])


def _scaling_arrays(scaling: Scaling | None) -> Arrays:
    if scaling is None:
        return {}
    arrays = {"scaling.mean": _numpy(scaling.mean), "scaling.inverse": _numpy(scaling.inverse)}
    return arrays if scaling.basis is None else {**arrays, "scaling.basis": _numpy(scaling.basis)}


def _scaling(arrays: Arrays, device: torch.device) -> Scaling:
    basis = _tensor(arrays, "scaling.basis", device) if "scaling.basis" in arrays else None
    return Scaling(_tensor(arrays, "scaling.mean", device), _tensor(arrays, "scaling.inverse", device), basis)


# -- what predicts ---------------------------------------------------------------------------------------------------


def predictor_parts(found: Predictor) -> tuple[Config, Arrays]:
    """Return settings and arrays of a head or of a network's weights."""
    if isinstance(found, HeadPredictor):
        return _head_parts(found)
    if isinstance(found, StudentPredictor):
        config, arrays = _head_parts(found.head)
        student = {"student.weight": _numpy(found.weight), "student.bias": _numpy(found.bias)}
        return {**config, "kind": "head and student", "share": found.share}, {**arrays, **student}
    if isinstance(found, NetPredictor):
        arrays = {f"net.{name}": _numpy(tensor) for name, tensor in found.net.state_dict().items()}
        if found.own or not isinstance(found.net, FeatureNet):
            return {"kind": "own net", "class": type(found.net).__qualname__}, arrays
        return {"kind": "net", **found.net.sizes}, arrays
    raise PartsError(f"a {type(found).__name__} cannot be taken apart")


def _head_parts(found: HeadPredictor) -> tuple[Config, Arrays]:
    basis: Basis = found.basis
    config = {"kind": "head", "constant": basis.constant, "bound": basis.bound}
    tensors = {"head.mean": basis.mean, "head.matrix": basis.matrix, "head.weight": found.weight}
    return config, {name: _numpy(tensor) for name, tensor in tensors.items()}


def _head(config: Config, arrays: Arrays, device: torch.device) -> HeadPredictor:
    mean, matrix, weight = (_tensor(arrays, f"head.{name}", device) for name in ("mean", "matrix", "weight"))
    return HeadPredictor(Basis(mean, matrix, config["constant"], config["bound"]), weight)


def predictor_from_parts(config: Config, arrays: Arrays, model: nn.Module | None, device: torch.device) -> Predictor:
    """Return the predictor again; a network of the user's needs one of the same kind, whose weights are replaced."""
    if config["kind"] == "head":
        return _head(config, arrays, device)
    if config["kind"] == "head and student":
        weight, bias = (_tensor(arrays, f"student.{name}", device) for name in ("weight", "bias"))
        return StudentPredictor(_head(config, arrays, device), weight, bias, config["share"])
    if config["kind"] == "net":
        model = FeatureNet(config["inputs"], config["outputs"], config["hidden"])
    elif config["kind"] != "own net":
        raise PartsError(f"a predictor of kind {config['kind']!r} is not known; use the version that wrote it")
    if model is None:
        raise PartsError(f"the network, a {config['class']}, is not kept, only its weights; give one like it: model=")
    state = {
        name.removeprefix("net."): torch.from_numpy(array.copy())
        for name, array in arrays.items()
        if name.startswith("net.")
    }
    model.load_state_dict(state)
    return NetPredictor(model.to(device).eval(), own=config["kind"] == "own net")


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    kept = tensor.detach().cpu()
    # NumPy has no bfloat16; loading turns it back.
    return (kept.float() if kept.dtype == torch.bfloat16 else kept).contiguous().numpy().copy()


def _tensor(arrays: Arrays, name: str, device: torch.device) -> Tensor:
    if name not in arrays:
        raise PartsError(f"the array {name!r} is missing; the parts are not complete")
    return torch.from_numpy(np.array(arrays[name])).to(device)
