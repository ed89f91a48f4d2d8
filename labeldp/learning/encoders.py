"""Features from a network: one trained here without labels, or any other from a local file. No file is unpickled."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.learning.cache import content_key
from labeldp.learning.features import checked_rows, sample_rows
from labeldp.learning.patches import as_float
from labeldp.learning.scaling import Scaling, fit_scaling
from labeldp.learning.tensorfile import read_metadata, read_tensors, write_tensors

_SAMPLE = 20_000
# Images passed through the network at once.
_CPU_CHUNK, _GPU_CHUNK = 256, 4096


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
        """A copy of the network on the device, and mean, spread and components of its outputs on ≤ 20,000 rows."""
        rows = checked_rows(inputs)
        place = torch.device(device) if device is not None else rows.device
        plain = EncoderMap(replace(self, model=_evaluating(self.model, place)), place, None, 0)
        if not self.standardise and self.dims is None:
            return replace(plain, dim=plain.features(rows[:1]).shape[1])
        sample = plain.features(rows[sample_rows(len(rows), _SAMPLE, self.seed).to(rows.device)])
        scaling = fit_scaling(sample, dims=self.dims, seed=self.seed)
        return replace(plain, scaling=scaling, dim=scaling.dim)

    def fingerprint(self) -> str:
        """A hash of the network, its weights and the settings. Changed code of the same name is not noticed."""
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
        """(n, dim), chunk by chunk."""
        rows = checked_rows(inputs)
        chunk = _GPU_CHUNK if self.device.type == "cuda" else _CPU_CHUNK
        bf16 = self.encoder.bf16 if self.encoder.bf16 is not None else self.device.type == "cuda"
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            parts = [self._outputs(rows[start : start + chunk]) for start in range(0, len(rows), chunk)]
        return torch.cat(parts) if parts else torch.empty(0, self.dim, device=self.device)

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
        if self.encoder.mean is not None:
            rows = rows - torch.tensor(self.encoder.mean, device=rows.device).view(shape)
        if self.encoder.spread is not None:
            rows = rows / torch.tensor(self.encoder.spread, device=rows.device).view(shape)
        return rows.contiguous(memory_format=torch.channels_last) if rows.ndim == 4 else rows


def save_encoder(
    path: Path | str, encoder: Encoder, *, half: bool = True, notes: Mapping[str, str] | None = None
) -> None:
    """Weights and the scaling of inputs as safetensors, with notes on how they were made; half precision by default."""
    state = encoder.model.state_dict()
    tensors = {name: value.half() if half and value.dtype == torch.float32 else value for name, value in state.items()}
    scaling = {"mean": json.dumps(encoder.mean), "spread": json.dumps(encoder.spread)}
    write_tensors(path, tensors, {**(notes or {}), **scaling})


def load_encoder(path: Path | str, body: nn.Module | None = None) -> Encoder:
    """A network from a local file, on the CPU. Nothing is unpickled, so no file can run Python code.

    The scaling of inputs comes along when `save_encoder` wrote the file; for others set it, and whatever else, by
    `dataclasses.replace(encoder, mean=…, spread=…)`.

    Args:
        path: with `body`, its weights: safetensors, or a state dict written by `torch.save` (of the body, or of a
            whole network whose names begin with "body."). Without, a TorchScript file, which brings its own network:
            DINO, CLIP or any other is saved once by `torch.jit.trace(network, example).save(path)`.
        body: filled in place.

    Files of `torch.export` are refused: reading one can run any Python function it names.
    """
    path = Path(path)
    if body is None:
        return Encoder(_Script(path))
    saved, own = _weights(path), body.state_dict()
    if all(f"body.{name}" in saved for name in own):
        saved = {name: saved[f"body.{name}"] for name in own}
    wrong = [name for name, value in own.items() if name not in saved or saved[name].shape != value.shape]
    if wrong:
        raise ValueError(f"{path.name} lacks {len(wrong)} of {len(own)} tensors by name and shape, such as {wrong[0]}")
    body.load_state_dict({name: saved[name] for name in own})
    notes = read_metadata(path) if path.suffix == ".safetensors" else {}
    mean, spread = (_channels(notes.get(name)) for name in ("mean", "spread"))
    return Encoder(body.eval(), mean, spread)


def _channels(note: str | None) -> tuple[float, ...] | None:
    values = json.loads(note) if note else None
    return tuple(float(value) for value in values) if isinstance(values, list) else None


class _Script(nn.Module):
    """A TorchScript file: it stays in eval mode, and its bytes say which network it is."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        content = path.read_bytes()
        _refuse_other_than_script(path, content)
        with warnings.catch_warnings():
            # Deprecated in favour of torch.export, whose reader is not safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.script = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
        self.origin = hashlib.sha256(content).hexdigest()

    def train(self, mode: bool = True) -> nn.Module:
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        return self.script(inputs)


def _refuse_other_than_script(path: Path, content: bytes) -> None:
    names = zipfile.ZipFile(io.BytesIO(content)).namelist() if zipfile.is_zipfile(io.BytesIO(content)) else []
    parts = [name.split("/", 1)[-1] for name in names]
    if not any(part.startswith("code/") for part in parts):
        if "archive_format" in parts or "serialized_exported_program.json" in names:
            raise ValueError(f"{path.name} is a file of torch.export, which can run code; save TorchScript or weights")
        raise ValueError(f"{path.name} holds no network; if it holds weights, give the network to fill as body")


def _weights(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_tensors(path)
    # weights_only: a file of weights is data, it cannot run code.
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(saved, dict) or not all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(f"{path.name} is not a state dict; write it by torch.save(network.state_dict(), path)")
    return saved


def _evaluating(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy that later training of the model does not reach."""
    with torch.no_grad():
        model = copy.deepcopy(model).to(device)
    try:
        return model.eval()
    except NotImplementedError:  # exported programs are in one mode for good
        return model
