"""Take features from a network: one trained here without labels, or one from a local file.

A file of weights is data. One in TorchScript is a program, of sums and products and little else: what reads or writes
files is refused, or an encoder of a stranger's could make features of the labels.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from labeldp.features.cache import content_key, read_metadata, read_tensors, write_tensors
from labeldp.features.extract import Scaling, as_float, checked_rows, fit_scaling, sample_rows
from labeldp.features.published import MEAN, SPREAD, rebuilt
from labeldp.learning.evidence import Objective
from labeldp.learning.optimisers import adam, linear
from labeldp.learning.progress import tell
from labeldp.learning.train import fit
from labeldp.models.zoo import checked_count

_SAMPLE = 20_000
# Images passed through the network at once.
_CPU_CHUNK, _GPU_CHUNK = 256, 4096
# Of the median spread: coordinates that hardly vary would get huge weights and break in training.
_FLOOR, _RIDGE = 0.3, 1e-3
_Norm = nn.BatchNorm1d | nn.BatchNorm2d


@dataclass(frozen=True, eq=False)
class Encoder:
    """A network as an extractor: inputs, scaled as it was trained on, ↦ its outputs, standardised.

    Args:
        model: (n, …) → (n, d), such as `model.body` of a network of the zoo, or what `load_encoder` gives.
        mean, spread: per channel, subtracted from and divided into images in [0, 1] first; None leaves them.
        unit: scale each output to length 1 before anything else.
        standardise: to zero mean and unit variance by the fitted inputs' outputs.
        dims: principal components kept; None keeps all coordinates.
        bf16: compute in bfloat16; on when None and on a GPU.
        seed: of the rows that are standardised by.
    """

    model: nn.Module
    mean: tuple[float, ...] | None = None
    spread: tuple[float, ...] | None = None
    unit: bool = False
    standardise: bool = True
    dims: int | None = None
    bf16: bool | None = None
    seed: int = 0

    def fit(self, inputs: Any, device: torch.device | str | None = None) -> EncoderMap:
        """Copy the network to the device, and find mean, spread and components of its outputs on ≤ 20,000 rows."""
        rows = checked_rows(inputs)
        place = torch.device(device) if device is not None else rows.device
        plain = self.bare(place)
        if not self.standardise and self.dims is None:
            return replace(plain, dim=plain.features(rows[:1]).shape[1])
        sample = plain.features(rows[sample_rows(len(rows), _SAMPLE, self.seed).to(rows.device)])
        scaling = fit_scaling(sample, dims=self.dims, seed=self.seed)
        return replace(plain, scaling=scaling, dim=scaling.dim)

    def bare(self, device: torch.device) -> EncoderMap:
        """Copy the network to the device, and leave its outputs as they are."""
        return EncoderMap(replace(self, model=_evaluating(self.model, device)), device, None, 0)

    def fingerprint(self) -> str:
        """Return a hash of the network, its weights and the settings. Changed code of the same name is not noticed."""
        settings = (self.mean, self.spread, self.unit, self.standardise, self.dims, self.bf16, self.seed)
        layers = [
            f"{name} {type(layer).__qualname__} {layer.extra_repr()}" for name, layer in self.model.named_modules()
        ]
        weights = [part for name, value in sorted(self.model.state_dict().items()) for part in (name, value)]
        return content_key("encoder", str(settings), getattr(self.model, "origin", ""), layers, weights)


@dataclass(frozen=True, eq=False)
class EncoderMap:
    """A network ready for use."""

    encoder: Encoder
    device: torch.device
    scaling: Scaling | None
    dim: int

    def features(self, inputs: Any) -> Tensor:
        """Return (n, dim), chunk by chunk."""
        rows = checked_rows(inputs)
        chunk = _GPU_CHUNK if self.device.type == "cuda" else _CPU_CHUNK
        bf16 = self.encoder.bf16 if self.encoder.bf16 is not None else self.device.type == "cuda"
        parts: list[Tensor] = []
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            for start in range(0, len(rows), chunk):
                parts.append(self._outputs(rows[start : start + chunk]))
                tell("features", f"{len(rows):,} rows through the encoder", min(1.0, (start + chunk) / len(rows)))
        return torch.cat(parts) if parts else torch.empty(0, self.dim, device=self.device)

    def probes(self, shape: Sequence[int]) -> Tensor:
        """Return the outputs, not standardised, for two fixed inputs of this shape, by which a network is known again.

        They are all grey and a ramp from black to white.
        """
        ramp = torch.linspace(0, 1, math.prod(shape)).reshape(1, *shape)
        plain = replace(self, encoder=replace(self.encoder, bf16=False), scaling=None)
        return plain.features(torch.cat((torch.full_like(ramp, 0.5), ramp)))

    def _outputs(self, rows: Tensor) -> Tensor:
        outputs = self.encoder.model(self._prepared(rows.to(self.device))).float()
        if outputs.ndim != 2:
            raise ValueError(f"the encoder's outputs have shape {tuple(outputs.shape)}; give one that ends in (n, d)")
        if self.encoder.unit:
            outputs = outputs / outputs.norm(dim=1, keepdim=True).clamp_(min=1e-12)
        with torch.autocast(self.device.type, enabled=False):
            return outputs if self.scaling is None else self.scaling(outputs)

    def _prepared(self, rows: Tensor) -> Tensor:
        rows, shape = as_float(rows), (1, -1, *[1] * (rows.ndim - 2))
        if rows.ndim == 4 and rows.shape[1] == 1 and self.encoder.mean is not None:
            # Grey images for a network of colour ones.
            rows = rows.expand(-1, len(self.encoder.mean), -1, -1)
        if self.encoder.mean is not None:
            rows = rows - torch.tensor(self.encoder.mean, device=rows.device).view(shape)
        if self.encoder.spread is not None:
            rows = rows / torch.tensor(self.encoder.spread, device=rows.device).view(shape)
        return rows.contiguous(memory_format=torch.channels_last) if rows.ndim == 4 else rows


def save_encoder(
    path: Path | str, encoder: Encoder, *, half: bool = True, notes: Mapping[str, str] | None = None
) -> None:
    """Write weights and the scaling of inputs as safetensors, with notes; in half precision by default."""
    state = encoder.model.state_dict()
    tensors = {name: value.half() if half and value.dtype == torch.float32 else value for name, value in state.items()}
    scaling = {"mean": json.dumps(encoder.mean), "spread": json.dumps(encoder.spread)}
    write_tensors(path, tensors, {**(notes or {}), **scaling})


def load_encoder(path: Path | str, body: nn.Module | None = None) -> Encoder:
    """Load a network from a local file, on the CPU. No file can run Python code here.

    Files of `torch.save` are the only ones in this library that are unpickled, by PyTorch's reader for weights alone
    (`weights_only=True`), which makes tensors and plain containers and nothing else.

    The scaling of inputs comes along when `save_encoder` wrote the file; for others set it, and whatever else, by
    `dataclasses.replace(encoder, mean=…, spread=…)`.

    Args:
        path: with `body`, its weights: safetensors, or a state dict written by `torch.save` (of the body, or of a
            whole network whose names begin with "body."). Without, weights of a ResNet as torchvision and timm name
            them, of a vision transformer as timm and DINO do, or of a `resnet18_v2` that was trained here; their images
            are scaled as ImageNet's where the file says nothing else (`labeldp.features.published`). Or a TorchScript
            file, which brings its own network: CLIP or any other is saved once by
            `torch.jit.trace(network, example).save(path)`. It is a program: take it from whom you trust.
        body: filled in place.

    Files of `torch.export` are refused: reading one can run any Python function it names.
    """
    path = Path(path)
    if body is None and not _holds_weights(path):
        return Encoder(_Script(path))
    saved = _weights(path)
    if body is None:
        return _scaled_as(path, rebuilt(saved, path.name), MEAN, SPREAD)
    own = body.state_dict()
    if all(f"body.{name}" in saved for name in own):
        saved = {name: saved[f"body.{name}"] for name in own}
    wrong = [name for name, value in own.items() if name not in saved or saved[name].shape != value.shape]
    if wrong:
        raise ValueError(f"{path.name} lacks {len(wrong)} of {len(own)} tensors by name and shape, such as {wrong[0]}")
    body.load_state_dict({name: saved[name] for name in own})
    return _scaled_as(path, body)


def _scaled_as(
    path: Path, body: nn.Module, mean: tuple[float, ...] | None = None, spread: tuple[float, ...] | None = None
) -> Encoder:
    """Return an encoder whose images are scaled as the file says, or else like this."""
    notes = read_metadata(path) if path.suffix == ".safetensors" else {}
    mean = _channels(notes["mean"]) if "mean" in notes else mean
    spread = _channels(notes["spread"]) if "spread" in notes else spread
    return Encoder(body.eval(), mean, spread)


def _holds_weights(path: Path) -> bool:
    """Say whether it is a file of tensors, and none of a network: what `torch.save` writes keeps them in data.pkl."""
    if path.suffix == ".safetensors":
        return True
    with path.open("rb") as file:
        names = zipfile.ZipFile(file).namelist() if zipfile.is_zipfile(file) else []
    parts = [name.split("/", 1)[-1] for name in names]
    return "data.pkl" in parts and not any(part.startswith("code/") for part in parts)


def _channels(note: str) -> tuple[float, ...] | None:
    values = json.loads(note)
    return tuple(float(value) for value in values) if isinstance(values, list) else None


# What TorchScript has for files (torch 2.13), as words of its code, and where an archive has tensors, or the lines of
# Python that it was made from, which nobody runs.
_FILES = ("from_file", "save")
_WORDS = re.compile(rb"\b(?:%s)\b" % "|".join(_FILES).encode())
_TENSOR = re.compile(r"(?:/(?:data|constants)/\d+|\.debug_pkl)$")


class _Script(nn.Module):
    """A TorchScript file: it stays in eval mode, and its bytes identify the network."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        content = path.read_bytes()
        _refuse_other_than_script(path, content)
        with warnings.catch_warnings():
            # Deprecated in favour of torch.export, whose reader is not safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.script = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
        found = [kind for kind in _FILES if self.script.inlined_graph.findAllNodes(f"aten::{kind}", recurse=True)]
        if found:
            raise ValueError(_of_files(path))
        self.origin = hashlib.sha256(content).hexdigest()

    def train(self, mode: bool = True) -> nn.Module:
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        return self.script(inputs)


def _of_files(path: Path) -> str:
    return (
        f"{path.name} reads or writes files, or may, which no encoder needs and by which one could see labels; give a "
        "file of weights, or trace the network again"
    )


def _refuse_other_than_script(path: Path, content: bytes) -> None:
    archive = zipfile.ZipFile(io.BytesIO(content)) if zipfile.is_zipfile(io.BytesIO(content)) else None
    names = [] if archive is None else archive.namelist()
    parts = [name.split("/", 1)[-1] for name in names]
    if not any(part.startswith("code/") for part in parts):
        if "archive_format" in parts or "serialized_exported_program.json" in names:
            raise ValueError(f"{path.name} is a file of torch.export, which can run code; save TorchScript or weights")
        raise ValueError(f"{path.name} holds no network; if it holds weights, give the network to fill as body")
    # Before it is read, because reading may run some of it; and whatever another reader would take for its code.
    texts = [name for name in names if not _TENSOR.search(name)]
    twice = len({name.casefold() for name in names}) < len(names) or "model.json" in parts
    if twice or (archive is not None and any(_WORDS.search(archive.read(name)) for name in texts)):
        raise ValueError(_of_files(path))


def _weights(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_tensors(path)
    # weights_only: a file of weights is data, it cannot run code.
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(saved, dict) or not all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(f"{path.name} is not a state dict; write it by torch.save(network.state_dict(), path)")
    return saved


def _evaluating(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy that later training of the model does not reach."""
    with torch.no_grad():
        model = copy.deepcopy(model).to(device)
    try:
        return model.eval()
    except NotImplementedError:  # exported programs are in one mode for good
        return model


# -- a network that begins with an encoder's weights, or as a head on its features -------------------------------------


def unit_outputs(body: nn.Module, inputs: Tensor) -> nn.Module:
    """Scale the body's last batch norm so that its outputs' median spread over these inputs is 1, in place.

    Encoders trained for angles leave outputs of any size. Where they are small, as after SimCLR (0.016), a last layer
    needs weights as much larger, and the last norm's own weights, small as they are, get gradients as much larger: by
    the square of it, a step changes them more. What the network can express stays the same.

    Args:
        body: ends in a batch norm, then only layers that scale with their input: ReLU, means, flattening.
        inputs: a few thousand rows, scaled as the body wants them.
    """
    norm = next((layer for layer in reversed(list(body.modules())) if isinstance(layer, _Norm)), None)
    if norm is None or norm.weight is None:
        raise ValueError("body has no batch norm with weights; scale its outputs by a layer of your own")
    before = _outputs(body, inputs)
    factor = 1 / before.std(dim=0).median().clamp_min(1e-12)
    with torch.no_grad():
        norm.weight.mul_(factor)
        norm.bias.mul_(factor)
    after = _outputs(body, inputs)
    if not torch.allclose(after, before * factor, rtol=0.05, atol=0.05):
        raise ValueError("body's outputs do not scale with its last batch norm; scale them by a layer of your own")
    return body


def begin_as(model: nn.Module, inputs: Tensor, scores: Tensor) -> nn.Module:
    """Set the last layer so that the model's outputs are near these scores; return the model, changed in place.

    With f the outputs of `model.body`, the last layer's (W, b) minimise Σ_i |W f_i + b − s_i|² + λ|W D|², where D holds
    the coordinates' spreads, not below a floor. For scores of a head on those features, or on a linear map of them, the
    model begins as that head (linear probing, then fine-tuning: Kumar et al. 2022): training has then less to undo.

    Args:
        model: all but its last, linear layer in `model.body`, as those of the zoo have it.
        inputs: scaled as the model wants them, (n, …).
        scores: of a released head, (n, K); public.
    """
    body, last = body_and_last(model)
    outputs = _outputs(body, inputs).double()
    mean, spread = outputs.mean(dim=0), _spread(outputs)
    rows, centre = (outputs - mean) / spread, scores.double().mean(dim=0)
    gram = rows.T @ rows
    gram.diagonal().add_(_RIDGE * len(rows))
    weight = torch.linalg.solve(gram, rows.T @ (scores.to(rows) - centre)).T / spread
    with torch.no_grad():
        last.weight.copy_(weight)
        last.bias.copy_(centre - weight @ mean)
    return model


def probe(
    model: nn.Module,
    inputs: Tensor,
    objective: Objective,
    *,
    rows: Tensor | None = None,
    epochs: int = 10,
    batch_size: int = 1024,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> nn.Module:
    """Train the last layer alone, on the body's outputs as they are; return the model, changed in place.

    Linear probing before fine-tuning (Kumar et al. 2022). The body goes over the inputs once, so this takes seconds; a
    linear layer cannot memorise responses, and what it makes of them is where training then begins.

    Args:
        model: as for `begin_as`.
        objective: (logits, row numbers) → loss per row: of private labels, like that of any `fit`.
        rows: the labelled rows; all when None.
    """
    body, last = body_and_last(model)
    outputs = _outputs(body, inputs)
    mean, spread = outputs.mean(dim=0), _spread(outputs)
    layer = nn.Linear(outputs.shape[1], last.out_features, device=outputs.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    size = min(batch_size, len(outputs) if rows is None else len(rows))
    optimizer, schedule = adam(learning_rate, weight_decay=0.0), linear(warmup=0.05)
    fit(
        layer, (outputs - mean) / spread, objective, rows=rows, epochs=epochs, batch_size=size, optimizer=optimizer,
        schedule=schedule, bf16=False, seed=seed,
    )  # fmt: skip
    with torch.no_grad():
        weight = layer.weight / spread
        last.weight.copy_(weight)
        last.bias.copy_(layer.bias - weight @ mean)
    return model


def probed(train: Callable[..., nn.Module], **settings: Any) -> Callable[..., nn.Module]:
    """Return a training algorithm that begins with a `probe`: for every recipe with a `fit` argument.

    Args:
        train: `fit`, `fixmatch`, `mean_teacher`, their settings bound.
        settings: of `probe`.
    """

    def begun(model: nn.Module, inputs: Tensor, objective: Objective, /, **rest: Any) -> nn.Module:
        checkpoint = rest.get("checkpoint")
        # A run that goes on has its own weights, and would only overwrite these.
        if checkpoint is None or not checkpoint.exists():
            probe(model, inputs, objective, rows=rest.get("rows"), **settings)
        return train(model, inputs, objective, **rest)

    return begun


def body_and_last(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Return `model.body` and the linear layer after it; raise ValueError if the model is not made so."""
    body = getattr(model, "body", None)
    last = next((layer for layer in reversed(list(model.modules())) if isinstance(layer, nn.Linear)), None)
    if not isinstance(body, nn.Module) or last is None or last.bias is None or last in list(body.modules()):
        kind = type(model).__name__
        raise ValueError(f"the model, a {kind}, is no body with a linear layer after it; put all but the last in body")
    return body, last


def _outputs(body: nn.Module, inputs: Tensor) -> Tensor:
    return Encoder(body, standardise=False).fit(inputs).features(inputs)


def _spread(outputs: Tensor) -> Tensor:
    """Return the spread of every coordinate, not below a share of the median."""
    spread = outputs.std(dim=0)
    return spread.clamp_min(_FLOOR * spread.median().clamp_min(1e-12))


# -- outputs averaged over crops ---------------------------------------------------------------------------------------


class OverCrops(nn.Module):
    """The mean of a model's outputs over grid² crops and, with `flip`, their mirrors: 2·grid² passes, no training.

        f̄(x) = mean over boxes b and mirrors m of  f(stretch(m(x)[b]))

    Networks trained on random crops, as those of self-supervision are, know an image by its parts; the mean of their
    outputs on the parts is steadier than their output on the whole. The boxes are the same for all images and come from
    no label, so f̄ is as public as f.

    Args:
        model: images (n, C, H, W) → (n, d): an encoder's body, for its features, or a classifier, for its scores.
        side: of a crop as a share of the image's; 1 is the whole image.
        grid: crops in a row and in a column, evenly spread from border to border; 1 is the centre.
        flip: mirror each as well; whether that keeps the class is public knowledge of the data.

    >>> mirrored = OverCrops(nn.Flatten(), side=1.0, grid=1)
    >>> mirrored(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module, side: float = 0.75, grid: int = 3, flip: bool = True) -> None:
        super().__init__()
        if not 0 < side <= 1:
            raise ValueError(f"side={side} is not a share of the image's side; give a number above 0 and at most 1")
        self.model, self.side, self.grid, self.flip = model, side, checked_count("grid", grid), flip

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean output, (n, d)."""
        if images.ndim != 4:
            raise ValueError(f"inputs have shape {tuple(images.shape)}; crops are of images, (n, C, H, W)")
        size = images.shape[2:]
        parts = [self._part(images, top, left) for top in self._starts(size[0]) for left in self._starts(size[1])]
        every = [part for cut in parts for part in ((cut, cut.flip(-1)) if self.flip else (cut,))]
        outputs = [self.model(part).float() for part in every]
        return torch.stack(outputs).mean(dim=0)

    def _part(self, images: Tensor, top: int, left: int) -> Tensor:
        height, width = (self._length(size) for size in images.shape[2:])
        cut = images[:, :, top : top + height, left : left + width]
        if cut.shape == images.shape:
            return cut
        stretched = interpolate(cut, images.shape[2:], mode="bilinear", align_corners=False)
        return stretched.contiguous(memory_format=torch.channels_last)

    def _length(self, size: int) -> int:
        return max(1, round(self.side * size))

    def _starts(self, size: int) -> list[int]:
        room = size - self._length(size)
        if self.grid == 1 or room == 0:
            return [room // 2]
        return sorted({round(room * step / (self.grid - 1)) for step in range(self.grid)})

    def extra_repr(self) -> str:
        """Return what distinguishes two of them."""
        return f"side={self.side}, grid={self.grid}, flip={self.flip}"
