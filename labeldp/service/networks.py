"""Put a network into plain values, and make it again: a name of the zoo, or a checked list of layers; never code.

    {"zoo": "mnist_cnn", "arguments": {"num_classes": 10, "channels": 1}, "group_norm": null}
    [{"layer": "linear", "inputs": 20, "outputs": 16, "bias": true}, {"layer": "relu"}, ...]

Every layer and every network declares what it takes, each size within bounds; whatever else is said is refused. What
comes out is first made without memory (torch's meta device), so that its parameters are counted before they exist.
Weights travel apart, as tensors in the order of the network's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.models import zoo
from labeldp.service.wire import Check, Settings, WireError, choice, fields, flag, integer, listed, number, optional

MOST_LAYERS, MOST_DEPTH, MOST_SIZE = 256, 8, 1 << 16
_SIZE, _KERNEL = integer(1, MOST_SIZE), integer(1, 64)
_COUNTS = listed(4096, integer(1, 1 << 24))
_HIDDEN, _SHARE = listed(16, _SIZE), number(0.0, 0.999)
_CLASSES, _CHANNELS = integer(1, MOST_SIZE), integer(1, 1024)


def _pair(check: Check) -> Check:
    """Return a check for one number, or for one of each of height and width."""

    def checked(name: str, value: Any) -> Any:
        if not isinstance(value, list):
            return check(name, value)
        if len(value) != 2:
            raise WireError(f"{name} has {len(value)} entries; give one number, or height and width")
        return tuple(check(name, each) for each in value)

    return checked


class _Layer:
    """One kind of layer: what it takes, how it is made, and how to read it off a module of exactly this type."""

    def __init__(self, kind: type[nn.Module], declared: Mapping[str, Check], names: Mapping[str, str] | None = None):
        # As plain values have it → as torch's arguments, and in most cases attributes, are called.
        self.kind, self.declared = kind, {"layer": choice(_word(kind)), **declared}
        self.names = {name: (names or {}).get(name, name) for name in declared}

    def make(self, given: Settings) -> nn.Module:
        return self.kind(**{self.names[name]: value for name, value in given.items() if name != "layer"})

    def read(self, module: nn.Module) -> Settings:
        found = {name: getattr(module, known) for name, known in self.names.items()}
        if "bias" in found:
            found["bias"] = module.bias is not None
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        return {"layer": _word(self.kind), **plain}


def _word(kind: type[nn.Module]) -> str:
    return kind.__name__.lower()


_NORM = {"eps": number(1e-12, 1.0)}
_POOL = {"kernel_size": _pair(_KERNEL), "stride": _pair(_KERNEL), "padding": _pair(integer(0, 32))}
_KINDS = (
    _Layer(nn.Linear, {"inputs": _SIZE, "outputs": _SIZE, "bias": flag},
           {"inputs": "in_features", "outputs": "out_features"}),
    _Layer(nn.Conv2d, {"inputs": _SIZE, "outputs": _SIZE, "kernel_size": _pair(_KERNEL), "stride": _pair(_KERNEL),
                       "padding": _pair(integer(0, 64)), "dilation": _pair(_KERNEL), "groups": _SIZE, "bias": flag},
           {"inputs": "in_channels", "outputs": "out_channels"}),
    _Layer(nn.GroupNorm, {"groups": _SIZE, "channels": _SIZE, **_NORM, "affine": flag},
           {"groups": "num_groups", "channels": "num_channels"}),
    _Layer(nn.LayerNorm, {"shape": listed(4, _SIZE), **_NORM}, {"shape": "normalized_shape"}),
    _Layer(nn.MaxPool2d, _POOL), _Layer(nn.AvgPool2d, _POOL),
    _Layer(nn.AdaptiveAvgPool2d, {"output_size": _pair(_KERNEL)}),
    _Layer(nn.Dropout, {"p": _SHARE}),
    _Layer(nn.LeakyReLU, {"negative_slope": number(0.0, 1.0)}),
    *(_Layer(kind, {}) for kind in (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Softplus, nn.Identity)),
)  # fmt: skip
LAYERS: Mapping[str, _Layer] = {_word(each.kind): each for each in _KINDS}
_SEQUENCE, _FLATTEN = "sequential", "flatten"
# Arguments of the networks in the zoo; those of a linear layer and of the network for features are theirs, too.
ZOO: Mapping[str, tuple[Callable[..., nn.Module], Mapping[str, Check]]] = {
    "linear_head": (zoo.linear_head, {"dim": _SIZE, "num_classes": _CLASSES, "bias": flag}),
    "FeatureNet": (zoo.FeatureNet, {"inputs": _SIZE, "outputs": _CLASSES, "hidden": _SIZE}),
    "mnist_cnn": (zoo.mnist_cnn, {"num_classes": _CLASSES, "channels": _CHANNELS}),
    "cifar_cnn": (zoo.cifar_cnn, {"num_classes": _CLASSES, "dropout": _SHARE}),
    "resnet18_v2": (zoo.resnet18_v2, {"num_classes": _CLASSES, "channels": _CHANNELS, "width": _CHANNELS}),
    "wide_resnet": (zoo.wide_resnet, {"num_classes": _CLASSES, "depth": integer(10, 100), "widen": integer(1, 16),
                                      "channels": _CHANNELS, "dropout": _SHARE}),
    "vgg16": (zoo.vgg16, {"num_classes": _CLASSES, "channels": _CHANNELS}),
    "small_inception": (zoo.small_inception, {"num_classes": _CLASSES, "channels": _CHANNELS}),
    "attribution_network": (zoo.attribution_network, {
        "num_numeric": integer(0, MOST_SIZE), "cardinalities": _COUNTS, "num_classes": _CLASSES, "buckets": _SIZE,
        "dim": integer(1, 1024), "hidden": _HIDDEN}),
    "collaborative_filter": (zoo.collaborative_filter, {
        "num_users": integer(1, 1 << 24), "num_items": integer(1, 1 << 24), "num_outputs": _CLASSES,
        "dim": integer(1, 1024), "hidden": _HIDDEN}),
}  # fmt: skip


def checked_network(name: str, value: Any) -> Any:
    """Check the plain values of a network, each size within its bounds; WireError otherwise. Makes nothing."""
    if isinstance(value, dict) and "zoo" in value:
        called = choice(*ZOO)(f"{name}.zoo", value["zoo"])
        declared = {
            "zoo": choice(called), "arguments": fields(ZOO[called][1]), "group_norm": optional(integer(1, 1024)),
        }  # fmt: skip
        return fields(declared)(name, value)
    return _checked_layer(name, value, [MOST_LAYERS], MOST_DEPTH)


def _checked_layer(name: str, value: Any, left: list[int], depth: int) -> Any:
    """Check one layer, or a list of layers; `left` counts down how many a network may have."""
    if isinstance(value, list):
        if not value or depth == 0:
            raise WireError(f"{name} is empty, or nested more than {MOST_DEPTH} deep; give layers")
        return [_checked_layer(f"{name}[{place}]", each, left, depth - 1) for place, each in enumerate(value)]
    left[0] -= 1
    if left[0] < 0:
        raise WireError(f"the network has more than {MOST_LAYERS} layers; give fewer")
    if not isinstance(value, dict):
        raise WireError(f"{name} is neither a layer nor a list of layers; give one")
    word = choice(*LAYERS, _FLATTEN)(f"{name}.layer", value.get("layer"))
    if word == _FLATTEN:
        return fields({"layer": choice(_FLATTEN)})(name, value)
    return fields(LAYERS[word].declared)(name, value)


def make(plain: Any, most_parameters: int) -> nn.Module:
    """Return the network of checked plain values; WireError where it has more parameters, or cannot be made."""
    try:
        with torch.device("meta"):
            bare = _made(plain)
        parameters = sum(each.numel() for each in bare.parameters())
        if parameters > most_parameters:
            raise WireError(f"the network has {parameters} parameters; at most {most_parameters} are allowed here")
        return _made(plain)
    except WireError:
        raise
    except (ValueError, TypeError, RuntimeError, ArithmeticError, IndexError) as error:
        raise WireError(f"the network cannot be made: {str(error)[:300]}") from None


def _made(plain: Any) -> nn.Module:
    if isinstance(plain, list):
        return nn.Sequential(*(_made(each) for each in plain))
    if "zoo" in plain:
        made = ZOO[plain["zoo"]][0](**plain["arguments"])
        return made if plain["group_norm"] is None else zoo.group_norm(made, plain["group_norm"])
    return nn.Flatten() if plain["layer"] == _FLATTEN else LAYERS[plain["layer"]].make(plain)


def describe(model: nn.Module) -> Any:
    """Return a network in plain values; ValueError for one that holds other things than the zoo and these layers do."""
    known = vars(model).get("zoo")
    if type(model) is zoo.FeatureNet:
        known = {"zoo": "FeatureNet", "arguments": model.sizes, "group_norm": None}
    if known is not None:
        plain = {**known, "arguments": {name: list(value) if isinstance(value, Sequence) else value
                                        for name, value in known["arguments"].items()}}  # fmt: skip
        with torch.device("meta"):
            twin = _made(checked_network("model", plain))
        # What was changed after it was made, another head say, is not what its name says.
        if repr(twin) == repr(model) and shapes_of(twin) == shapes_of(model):
            return plain
    return _described(model)


def _described(module: nn.Module) -> Any:
    if type(module) is nn.Sequential:
        return [_described(each) for each in module]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return {"layer": _FLATTEN}
    layer = LAYERS.get(_word(type(module)))
    plain: Settings = {}
    if layer is not None and type(module) is layer.kind:
        plain = layer.read(module)
        try:
            with torch.device("meta"):
                twin = layer.make(layer_settings := fields(layer.declared)("layer", plain))
            if repr(twin) == repr(module) and shapes_of(twin) == shapes_of(module):
                return {**plain, "layer": layer_settings["layer"]}
        except ValueError:
            pass
    raise ValueError(
        f"a {type(module).__name__} cannot be sent to a service, which takes no code: build the network of "
        f"nn.Sequential, {', '.join(each.kind.__name__ for each in LAYERS.values())} and Flatten as they are, or take "
        "one of labeldp.models.zoo"
    )


def shapes_of(model: nn.Module) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of every tensor of a network in its order."""
    return [(tuple(each.shape), each.dtype) for each in model.state_dict().values()]


def frozen_in(model: nn.Module) -> list[int]:
    """Return which parameters are not trained, by their place among all."""
    return [place for place, each in enumerate(model.parameters()) if not each.requires_grad]


def freeze(model: nn.Module, places: Sequence[int]) -> None:
    """Let these parameters stay as they are."""
    parameters = list(model.parameters())
    for place in places:
        if place >= len(parameters):
            raise WireError(f"frozen has {place} and the network {len(parameters)} parameters; name one of them")
        parameters[place].requires_grad_(False)


# -- weights -----------------------------------------------------------------------------------------------------------


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network, named by their place in its order."""
    return {
        f"{place:05d}": each.detach().cpu().contiguous()
        for place, each in enumerate(model.state_dict().values())
    }  # fmt: skip


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors into a network; WireError unless they are as many, of the same shapes and types, and finite."""
    own = model.state_dict()
    if sorted(tensors) != [f"{place:05d}" for place in range(len(own))]:
        raise WireError(f"the weights are {len(tensors)} tensors and the network has {len(own)}; send one for each")
    for place, (name, held) in enumerate(own.items()):
        given = tensors[f"{place:05d}"]
        if given.shape != held.shape or given.dtype != held.dtype:
            raise WireError(
                f"tensor {place} of the weights is {given.dtype} of shape {tuple(given.shape)} and the network's is "
                f"{held.dtype} of shape {tuple(held.shape)}; send these"
            )
        if given.is_floating_point() and not bool(torch.isfinite(given).all()):
            raise WireError(f"tensor {place} of the weights is not finite; send numbers")
        own[name] = given
    model.load_state_dict(own)
