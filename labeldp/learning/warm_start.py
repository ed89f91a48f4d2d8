"""A network that begins with an encoder's weights, or as a head on its features: nothing here sees a label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.learning.encoders import Encoder
from labeldp.learning.fit import adam, fit
from labeldp.learning.objectives import Objective
from labeldp.learning.schedules import linear

# Of the median spread: coordinates that hardly vary would get huge weights and break in training.
_FLOOR, _RIDGE = 0.3, 1e-3
_Norm = nn.BatchNorm1d | nn.BatchNorm2d


def unit_outputs(body: nn.Module, inputs: Tensor) -> nn.Module:
    """Scale the body's last batch norm so that its outputs' median spread over these inputs is 1; changes it in place.

    Encoders trained for angles leave outputs of any size. Where they are small, as after SimCLR (0.016), a last layer
    needs weights as much larger, and the last norm's own weights, small as they are, get gradients as much larger: by
    the square of it, a step changes them more. What the network can say stays the same.

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
    """Set the last layer so that the model's outputs are near these scores; returns the model, changed in place.

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
    """Train the last layer alone, on the body's outputs as they are; returns the model, changed in place.

    Linear probing before fine-tuning (Kumar et al. 2022). The body goes over the inputs once, so this takes seconds; a
    linear layer cannot learn answers by heart, and what it makes of them is where training then begins.

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
    """A training algorithm that begins with a `probe`: for every recipe with a `fit` argument.

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
    """`model.body` and the linear layer after it; ValueError if the model is not made so."""
    body = getattr(model, "body", None)
    last = next((layer for layer in reversed(list(model.modules())) if isinstance(layer, nn.Linear)), None)
    if not isinstance(body, nn.Module) or last is None or last.bias is None or last in list(body.modules()):
        kind = type(model).__name__
        raise ValueError(f"the model, a {kind}, is no body with a linear layer after it; put all but the last in body")
    return body, last


def _outputs(body: nn.Module, inputs: Tensor) -> Tensor:
    return Encoder(body, standardise=False).fit(inputs).features(inputs)


def _spread(outputs: Tensor) -> Tensor:
    """Of every coordinate, not below a share of the median."""
    spread = outputs.std(dim=0)
    return spread.clamp_min(_FLOOR * spread.median().clamp_min(1e-12))
