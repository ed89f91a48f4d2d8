"""Keep what a fit leaves behind: what scores public rows, and its parts as plain settings and arrays, and back.

No pickle, and nothing that was not paid for. Settings are dictionaries, lists, text, numbers and truth values, so that
they fit TOML and JSON; arrays have names, so that they fit safetensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from labeldp.features.coded import Coded
from labeldp.features.encoders import Encoder, EncoderMap
from labeldp.features.extract import FeatureMap, RawMap, Scaling
from labeldp.features.kernels import Cosines, LiftedRows, Streamed
from labeldp.features.patches import PatchMap
from labeldp.features.sparse import ProjectedMap
from labeldp.features.tables import TableMap
from labeldp.features.text import Encode, EncodedMap, TableAndTextMap, TextMap
from labeldp.learning.learners import Kernel, Trees
from labeldp.learning.train import predict
from labeldp.learning.trees import Forest
from labeldp.learning.tuning import Basis
from labeldp.learning.weighed import Weighed
from labeldp.models.zoo import FeatureNet
from labeldp.recipes.boosting import Boosted
from labeldp.recipes.distil import LinearStudent
from labeldp.recipes.learner import Taught
from labeldp.recipes.one_shot import OneShot
from labeldp.recipes.one_shot_kernel import Lifted
from labeldp.recipes.pilot import Decided

FORMAT = "labeldp-estimator/1"
# Numbers of one image that a description may ask for.
_MOST_PIXELS = 1 << 28
Config = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]


class PartsError(ValueError):
    """An estimator that cannot be taken apart, or parts that do not make one."""


def plain(value: Any) -> Any:
    """Return NumPy scalars and arrays as Python's own values."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    kept = tensor.detach().cpu()
    # NumPy has no bfloat16; loading turns it back.
    return (kept.float() if kept.dtype == torch.bfloat16 else kept).contiguous().numpy().copy()


def _tensor(arrays: Arrays, name: str, device: torch.device) -> Tensor:
    if name not in arrays:
        raise PartsError(f"the array {name!r} is missing; the parts are not complete")
    return torch.from_numpy(np.array(arrays[name])).to(device)


def _forest(arrays: Arrays) -> Forest:
    named = {name.removeprefix("forest."): array for name, array in arrays.items() if name.startswith("forest.")}
    return Forest.from_arrays(named)


# -- what predicts ---------------------------------------------------------------------------------------------------


class Predictor(Protocol):
    """Scores of public rows, made from what a recipe returned."""

    def logits(self, rows: Tensor) -> Tensor:
        """Return the scores, (n, K)."""
        ...

    def parts(self) -> tuple[Config, Arrays]:
        """Return settings and arrays."""
        ...


@dataclass(frozen=True, eq=False)
class HeadPredictor:
    """The head of a moment, φ = basis(x): softmax(t·Wφ) are honest probabilities."""

    basis: Basis
    weight: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return t·Wφ."""
        return torch.cat([self.basis(part) @ self.weight.T for part in rows.to(self.weight.device).split(8192)])

    def logits_of_coded(self, rows: Streamed) -> Tensor:
        """Return the same, sooner and without all features at once."""
        # Into one array: small results between large temporary ones would leave a gigabyte of holes in memory.
        found = self.weight.new_empty(len(rows), len(self.weight))
        for span, part in rows.mapped(self.basis.matrix):
            torch.matmul(self.basis.from_turned(part), self.weight.T, out=found[span])
        return found

    def parts(self) -> tuple[Config, Arrays]:
        """Return the basis and the weights."""
        config = {"kind": "head", "constant": self.basis.constant, "bound": self.basis.bound}
        tensors = {"head.mean": self.basis.mean, "head.matrix": self.basis.matrix, "head.weight": self.weight}
        return config, {name: _numpy(tensor) for name, tensor in tensors.items()}

    @classmethod
    def of(cls, config: Config, arrays: Arrays, device: torch.device) -> HeadPredictor:
        """Return the head of these parts."""
        mean, matrix, weight = (_tensor(arrays, f"head.{name}", device) for name in ("mean", "matrix", "weight"))
        return cls(Basis(mean, matrix, config["constant"], config["bound"]), weight)


@dataclass(frozen=True, eq=False)
class LiftedPredictor:
    """The head of a moment of features and their cosines, or what its columns say once they are weighed."""

    lift: Cosines
    head: HeadPredictor
    weighed: Weighed | None = None

    def logits(self, rows: Tensor) -> Tensor:
        """Return t·Wφ, or the scores of the kernel."""
        return torch.cat([self._of_part(part) for part in rows.to(self.lift.turn).split(8192)])

    def _of_part(self, rows: Tensor) -> Tensor:
        lifted = self.lift(rows)
        return self.head.logits(lifted) if self.weighed is None else self.weighed.logits(rows, self.head.basis(lifted))

    def logits_of_coded(self, rows: Coded) -> Tensor:
        """Return the same without all features at once; of a head alone, sooner, too."""
        if self.weighed is None:
            return self.head.logits_of_coded(LiftedRows(rows, self.lift))
        numbers = torch.arange(len(rows)).split(8192)
        return torch.cat([self._of_part(rows.take(some).features()) for some in numbers])

    def parts(self) -> tuple[Config, Arrays]:
        """Return those of the head, the cosines' and the kernel's."""
        config, arrays = self.head.parts()
        arrays |= {"cosines.turn": _numpy(self.lift.turn), "cosines.phases": _numpy(self.lift.phases)}
        kind = "lifted"
        if self.weighed is not None:
            kind, arrays = "weighed", arrays | {f"weighed.{k}": _numpy(v) for k, v in vars(self.weighed).items()}
        return {**config, "kind": kind, "plain": self.lift.plain, "waves": self.lift.waves}, arrays

    @classmethod
    def of(cls, config: Config, arrays: Arrays, device: torch.device) -> LiftedPredictor:
        """Return the head of these parts."""
        turn, phases = (_tensor(arrays, f"cosines.{name}", device) for name in ("turn", "phases"))
        lift, names = Cosines(turn, phases, config["plain"], config["waves"]), [one.name for one in fields(Weighed)]
        kernel = {name: _tensor(arrays, f"weighed.{name}", device) for name in names if config["kind"] == "weighed"}
        return cls(lift, HeadPredictor.of(config, arrays, device), Weighed(**kernel) if kernel else None)


@dataclass(frozen=True, eq=False)
class StudentPredictor:
    """A head and its linear student on the same features, of which the head counts by its share."""

    head: HeadPredictor
    weight: Tensor
    bias: Tensor
    share: float

    def logits(self, rows: Tensor) -> Tensor:
        """Return logarithms of the mean of their probabilities."""
        student = torch.cat([part @ self.weight.T + self.bias for part in rows.to(self.weight).split(8192)])
        if self.share == 0:
            return student
        both = torch.lerp(student.softmax(dim=1), self.head.logits(rows).softmax(dim=1), self.share)
        return both.clamp_min(torch.finfo(both.dtype).tiny).log()

    def parts(self) -> tuple[Config, Arrays]:
        """Return those of the head and the student's."""
        config, arrays = self.head.parts()
        student = {"student.weight": _numpy(self.weight), "student.bias": _numpy(self.bias)}
        return {**config, "kind": "head and student", "share": self.share}, {**arrays, **student}


@dataclass(frozen=True, eq=False)
class NetPredictor:
    """A trained network; `own` says that the user brought it."""

    net: nn.Module
    own: bool

    def logits(self, rows: Tensor) -> Tensor:
        """Return the network's outputs."""
        return predict(self.net, rows)

    def parts(self) -> tuple[Config, Arrays]:
        """Return the weights, and the sizes of a network that can be made again from them."""
        arrays = {f"net.{name}": _numpy(tensor) for name, tensor in self.net.state_dict().items()}
        if self.own or not isinstance(self.net, FeatureNet):
            return {"kind": "own net", "class": type(self.net).__qualname__}, arrays
        return {"kind": "net", **self.net.sizes}, arrays


@dataclass(frozen=True, eq=False)
class TaughtPredictor:
    """What a learner learnt from responses: a kernel, trees, or a classifier of the user's."""

    found: Taught

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logarithms of its probabilities."""
        return self.found.logits(rows)

    def parts(self) -> tuple[Config, Arrays]:
        """Return its arrays; a classifier of the user's has none that could be written without a pickle."""
        learnt, tensors = self.found.learnt, {"columns": self.found.columns, "scale": self.found.scale}
        match learnt:
            case Kernel():
                kind, trees = "kernel", {}
                tensors |= {"turn": learnt.turn, "phases": learnt.phases, "weight": learnt.weight}
            case Trees():
                kind, trees = "trees", {f"forest.{name}": array for name, array in learnt.forest.arrays().items()}
                tensors["unmix"] = learnt.unmix
            case _:
                raise PartsError(
                    f"learner is {self.found.name}, a classifier of yours, which only a pickle could keep; keep the "
                    "responses by settings={'folder': ...} and fit again, or leave learner out: built-in ones are kept"
                )
        arrays = {f"learner.{name}": _numpy(tensor) for name, tensor in tensors.items()}
        return {"kind": kind, "name": self.found.name}, {**arrays, **trees}

    @classmethod
    def of(cls, config: Config, arrays: Arrays, device: torch.device) -> TaughtPredictor:
        """Return the learner of these parts."""
        names = ("turn", "phases", "weight") if config["kind"] == "kernel" else ("unmix",)
        columns, scale, *rest = (_tensor(arrays, f"learner.{name}", device) for name in ("columns", "scale", *names))
        learnt = Kernel(*rest) if config["kind"] == "kernel" else Trees(_forest(arrays), rest[0].cpu())
        return cls(Taught(columns, scale, learnt, config["name"], ()))


@dataclass(frozen=True, eq=False)
class ForestPredictor:
    """Trees on the features."""

    forest: Forest

    def logits(self, rows: Tensor) -> Tensor:
        """Return the trees' scores."""
        return torch.from_numpy(self.forest.scores(rows.detach().cpu().numpy()))

    def parts(self) -> tuple[Config, Arrays]:
        """Return the trees as arrays."""
        return {"kind": "forest"}, {f"forest.{name}": array for name, array in self.forest.arrays().items()}


def predictor_of(found: Any, own: bool) -> Predictor:
    """Return what predicts, from a recipe's result: a head, a head and its student, a learner, trees, or a network."""
    if isinstance(found, Decided):
        found = found.found
    if isinstance(found, Lifted):
        return LiftedPredictor(found.lift, HeadPredictor(found.shot.tuning.basis, found.shot.weight), found.weighed)
    if isinstance(found, Taught):
        return TaughtPredictor(found)
    if isinstance(found, Boosted):
        return ForestPredictor(found.forest)
    if isinstance(found, OneShot):
        return HeadPredictor(found.tuning.basis, found.weight)
    if isinstance(found, LinearStudent):
        head = HeadPredictor(found.shot.tuning.basis, found.shot.weight)
        return StudentPredictor(head, found.layer.weight, found.layer.bias, found.share)
    return NetPredictor(found if isinstance(found, nn.Module) else found.model, own)


def predictor_from_parts(config: Config, arrays: Arrays, model: nn.Module | None, device: torch.device) -> Predictor:
    """Return the predictor again; a network of the user's needs one of the same kind, whose weights are replaced."""
    match config["kind"]:
        case "head":
            return HeadPredictor.of(config, arrays, device)
        case "lifted" | "weighed":
            return LiftedPredictor.of(config, arrays, device)
        case "head and student":
            weight, bias = (_tensor(arrays, f"student.{name}", device) for name in ("weight", "bias"))
            return StudentPredictor(HeadPredictor.of(config, arrays, device), weight, bias, config["share"])
        case "kernel" | "trees":
            return TaughtPredictor.of(config, arrays, device)
        case "forest":
            return ForestPredictor(_forest(arrays))
        case "net":
            model = FeatureNet(config["inputs"], config["outputs"], config["hidden"])
        case "own net" if model is None:
            raise PartsError(
                f"the network, a {config['class']}, is not kept, only its weights; give one like it, in Python: "
                "labeldp.load(folder, model=...)"
            )
        case "own net":
            pass
        case kind:
            raise PartsError(f"a predictor of kind {kind!r} is not known; use the version that wrote it")
    assert model is not None
    weights = {name: array for name, array in arrays.items() if name.startswith("net.")}
    try:
        model.load_state_dict({name.removeprefix("net."): torch.from_numpy(a.copy()) for name, a in weights.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise PartsError(f"model is no network like the one that was fitted: {reason[:300]}") from None
    return NetPredictor(model.to(device).eval(), own=config["kind"] == "own net")


# -- the map from inputs to features ---------------------------------------------------------------------------------

_PATCHES = ("floor", "size", "stride", "pool", "threshold")


def map_parts(found: FeatureMap, shape: Sequence[int] = ()) -> tuple[Config, Arrays]:
    """Return settings and arrays of a table's (with its prose), a projection's, a patch dictionary's or a plain map.

    `shape` is that of one image. Of an encoder the weights are not kept, only what it gives for two images.
    """
    match found:
        case TableMap():
            config, arrays = _table_parts(found)
        case PatchMap():
            config = {"kind": "patches", **{name: getattr(found, name) for name in _PATCHES}}
            arrays = {"map.weight": _numpy(found.weight), "map.bias": _numpy(found.bias)}
        case RawMap():
            config, arrays = {"kind": "raw", "unit": found.unit}, {}
        case ProjectedMap():
            config, arrays = _projected_parts(found, "map")
        case EncoderMap() if shape:
            config = {"kind": "encoder", "shape": list(shape), "dim": found.dim}
            arrays = {"encoder.probes": _numpy(found.probes(shape))}
        case TableAndTextMap(text=EncodedMap() as text):
            config, arrays = _table_parts(found.table)
            config |= {"kind": "table and encoder", "factors": list(text.factors)}
            arrays |= {"encoder.probes": text.probes} | {f"encoder.{i}.mean": mean for i, mean in enumerate(text.means)}
        case TableAndTextMap(text=TextMap() as prose):
            config, arrays = _table_parts(found.table)
            columns = [_projected_parts(one, f"text.{i}") for i, one in enumerate(prose.maps)]
            config |= {"kind": "table and text", "text": [part for part, _ in columns]}
            arrays |= {name: array for _, part in columns for name, array in part.items()}
            arrays |= {f"text.{i}.idf": idf for i, idf in enumerate(prose.idf)}
        case _:
            raise PartsError(
                f"a {type(found).__name__} cannot be taken apart; tables, patches and plain features can: "
                "encode the inputs first and fit to the result"
            )
    for name in () if found.scaling is None else ("mean", "inverse", "basis"):
        tensor = getattr(found.scaling, name)
        if tensor is not None:
            arrays[f"scaling.{name}"] = _numpy(tensor)
    return {**config, "scaled": found.scaling is not None}, arrays


def map_from_parts(  # noqa: PLR0911 - one for each kind
    config: Config, arrays: Arrays, device: torch.device, encoder: Any = None
) -> FeatureMap:
    """Return the map again, on this device; an encoder of the user's, which is not in the parts, has to be given again.

    It is a function of texts, or an `Encoder` of images.
    """
    scaling = None
    if config["scaled"]:
        basis = _tensor(arrays, "scaling.basis", device) if "scaling.basis" in arrays else None
        scaling = Scaling(_tensor(arrays, "scaling.mean", device), _tensor(arrays, "scaling.inverse", device), basis)
    match config["kind"]:
        case "table":
            return _table_of(config, arrays, scaling, device)
        case "patches":
            weight, bias = (_tensor(arrays, f"map.{name}", device) for name in ("weight", "bias"))
            return PatchMap(weight, bias, **{name: config[name] for name in _PATCHES}, scaling=scaling)
        case "raw" if scaling is not None:
            return RawMap(scaling, config["unit"])
        case "encoder":
            return _seen_by(encoder, config, arrays, device, scaling)
        case "projected":
            return _projected_of(config, arrays, "map", device)
        case "table and text":
            maps = tuple(_projected_of(one, arrays, f"text.{i}", device) for i, one in enumerate(config["text"]))
            idf = tuple(arrays[f"text.{i}.idf"] for i in range(len(maps)))
            return TableAndTextMap(_table_of(config, arrays, None, device), TextMap(idf, maps))
        case "table and encoder":
            return TableAndTextMap(
                _table_of(config, arrays, None, device), _encoded_of(config, arrays, device, encoder)
            )
    raise PartsError(f"features of kind {config['kind']!r} are not known; use the version that wrote them")


def _encoded_of(config: Config, arrays: Arrays, device: torch.device, encoder: Encode | None) -> EncodedMap:
    if encoder is None:
        raise PartsError(
            "the model reads text by a sentence encoder of yours, which is not kept; give it again, in Python: "
            "labeldp.load(folder, encoder=...)"
        )
    means = tuple(arrays[f"encoder.{place}.mean"] for place in range(len(config["factors"])))
    found = EncodedMap(means, tuple(config["factors"]), arrays["encoder.probes"], encoder, device)
    if not found.knows(encoder):
        raise PartsError(
            "encoder gives other numbers for a sentence than the one that the model was fitted with; give the same "
            "encoder, with the same weights"
        )
    return found


def _seen_by(encoder: Any, config: Config, arrays: Arrays, device: torch.device, scaling: Scaling | None) -> EncoderMap:
    if not isinstance(encoder, Encoder):
        raise PartsError(
            "the model reads images by an encoder of yours, which is not kept; give it again, as --encoder FILE or, in "
            "Python, labeldp.load(folder, encoder=load_encoder(FILE))"
        )
    if math.prod(config["shape"]) > _MOST_PIXELS:
        raise PartsError(f"images of shape {config['shape']} are none that a model was fitted with")
    found = replace(encoder.bare(device), scaling=scaling, dim=config["dim"])
    given, known = found.probes(config["shape"]), _tensor(arrays, "encoder.probes", device)
    if given.shape != known.shape or not torch.allclose(given, known, rtol=1e-2, atol=1e-2 * float(known.abs().mean())):
        raise PartsError("encoder is not the one that the model was fitted with; give the same file")
    return found


def _projected_parts(found: ProjectedMap, name: str) -> tuple[Config, Arrays]:
    config = {"kind": "projected", "factor": found.factor}
    return config, {f"{name}.directions": found.directions, f"{name}.mean": found.mean}


def _projected_of(config: Config, arrays: Arrays, name: str, device: torch.device) -> ProjectedMap:
    return ProjectedMap(arrays[f"{name}.directions"], arrays[f"{name}.mean"], config["factor"], device)


def _table_parts(found: TableMap) -> tuple[Config, Arrays]:
    # A hashed column has no list of values; TOML has no null.
    values = [{"hashed": kept is None, "values": [] if kept is None else plain(kept)} for kept in found.values]
    config: Config = {"kind": "table", "columns": values, "buckets": found.buckets, "seed": found.seed}
    config["clip"] = 0.0 if math.isinf(found.clip) else found.clip
    config |= {"scale": found.scale, "bins": list(map(len, found.edges)), "steps": list(map(len, found.steps))}
    arrays = {"map.mean": found.mean, "map.spread": found.spread, "map.missing": found.missing.astype(np.uint8)}
    for name, ragged in (("bins", found.edges), ("steps", found.steps)):
        arrays[f"map.{name}"] = np.concatenate([*ragged, np.empty(0)])
    return config, arrays


def _table_of(config: Config, arrays: Arrays, scaling: Scaling | None, device: torch.device) -> TableMap:
    values = tuple(None if one["hashed"] else np.asarray(one["values"]) for one in config["columns"])
    edges, steps = (
        tuple(np.split(arrays[f"map.{name}"], np.cumsum(config[name]).astype(int))[: len(config[name])])
        for name in ("bins", "steps")
    )
    return TableMap(
        arrays["map.mean"], arrays["map.spread"], arrays["map.missing"].astype(bool), values, config["buckets"],
        config["seed"], device, edges, steps, config["clip"] or math.inf, config["scale"], scaling,
    )  # fmt: skip
