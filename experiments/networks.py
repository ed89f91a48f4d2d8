"""Fresh networks by their names in settings files, and what is kept of trained ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from experiments import public_features
from experiments.settings import named
from labeldp.features.cache import write_tensors
from labeldp.learning.train import Inputs, predict
from labeldp.models import zoo

_OF_TABLES: dict[str, Callable[[int, Any], nn.Module]] = {
    "collaborative_filter": lambda num_classes, shape: zoo.collaborative_filter(shape[0], shape[1], num_classes),
    "attribution_network": lambda num_classes, shape: zoo.attribution_network(shape[0], shape[1], num_classes),
}
# By the number of classes and what `experiments.run.shape_of` says of the inputs.
MODELS: dict[str, Callable[[int, Any], nn.Module]] = {
    "small_inception": zoo.small_inception,
    "mnist_cnn": zoo.mnist_cnn,
    "cifar_cnn": lambda num_classes, _channels: zoo.cifar_cnn(num_classes),
    "resnet18_v2": zoo.resnet18_v2,
    "resnet18_v2_128": lambda num_classes, channels: zoo.resnet18_v2(num_classes, channels, width=128),
    "wide_resnet": lambda num_classes, channels: zoo.wide_resnet(num_classes, channels=channels),
    "wide_resnet_10_2": lambda num_classes, channels: zoo.wide_resnet(num_classes, 10, 2, channels),
    "vgg16": zoo.vgg16,
    **_OF_TABLES,
    # A linear head on features; the recipe makes it.
    "head": lambda _num_classes, _channels: nn.Identity(),
}


def model(settings: Mapping[str, Any], images: Any, num_classes: int, seed: int, shape: Any = None) -> nn.Module:
    """A fresh model for these images, or for the rows of a table."""
    of_table = isinstance(images, tuple)
    make = named("model", settings["model"], MODELS)
    if of_table != (settings["model"] in _OF_TABLES):
        kind = "no set of images" if of_table else "a set of images"
        raise ValueError(f"model={settings['model']!r} does not fit dataset={settings['dataset']!r}, which is {kind}")
    torch.manual_seed(seed)
    made = make(num_classes, images.shape[1] if shape is None else shape)
    if of_table:
        return made.to(images[0].device)
    made = made.to(images.device, memory_format=torch.channels_last)
    if "start" in settings:
        public_features.fill(made, settings["start"], images)
    return made


class OverShifts(nn.Module):
    """The mean of a model's scores of an image and of the same image shifted by some pixels, half of the weight each.

    The shifts go along one diagonal, there and back; what comes in at the border is what lies inside of it, mirrored.
    """

    def __init__(self, model: nn.Module, pixels: int) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean scores, (n, K)."""
        by, (height, width) = self.pixels, images.shape[2:]
        wide = pad(images, (by, by, by, by), mode="reflect")
        there, back = (self.model(wide[:, :, at : at + height, at : at + width]) for at in (0, 2 * by))
        return self.model(images) / 2 + (there + back) / 4


def keep(folder: Path, name: str, network: nn.Module, rows: Mapping[str, Inputs]) -> None:
    """Write NAME.weights and NAME.logits, both safetensors in half precision: its scores of these sets of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = {key: predict(network, inputs) for key, inputs in rows.items()}
    for kind, tensors in (("weights", network.state_dict()), ("logits", scores)):
        half = {key: value.half() if value.is_floating_point() else value for key, value in tensors.items()}
        write_tensors(folder / f"{name}.{kind}.safetensors", half)
