"""Small things the networks share: checks of their settings, first weights, and the head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from torch import nn


def checked_count(name: str, value: Any, low: int = 1) -> int:
    """A whole number of at least `low`, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise ValueError(f"{name} is {value!r}; give a whole number of at least {low}")
    return int(value)


def checked_counts(name: str, values: Any) -> tuple[int, ...]:
    """Whole numbers of at least 1, possibly none, or ValueError."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {values!r}; give a sequence of whole numbers")
    return tuple(checked_count(f"{name}[{index}]", value) for index, value in enumerate(values))


def checked_dropout(dropout: Any) -> float:
    """A share of units to drop, 0 ≤ dropout < 1, or ValueError."""
    if isinstance(dropout, bool) or not isinstance(dropout, Real) or not 0 <= float(dropout) < 1:
        raise ValueError(f"dropout is {dropout!r}; give a number from 0 up to, but not including, 1")
    return float(dropout)


def he_weights(module: nn.Module) -> None:
    """Var(w) = 2 / fan-in for what feeds a ReLU (He et al. 2015), biases zero. For `Module.apply`."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def head_layer(features: int, num_classes: int) -> nn.Linear:
    """The last layer: weights uniform in ±1/√features (torch's own), biases zero, so first guesses are near uniform."""
    head = nn.Linear(features, checked_count("num_classes", num_classes))
    nn.init.zeros_(head.bias)
    return head


def with_head(body: nn.Module, features: int, num_classes: int) -> nn.Sequential:
    """`body`, He-initialised, then `head`: (n, …) → (n, features) → (n, num_classes)."""
    return nn.Sequential(OrderedDict(body=body.apply(he_weights), head=head_layer(features, num_classes)))


def hidden_layers(features: int, hidden: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Linear, ReLU and, if asked for, dropout, once per hidden width; He-initialised."""
    layers: list[nn.Module] = []
    for before, after in zip((features, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers).apply(he_weights)
