"""What a fit leaves behind: something with scores for public rows, made from what a recipe returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labeldp.features.tables import Coded
from labeldp.learning.train import predict
from labeldp.recipes.distil import LinearStudent
from labeldp.recipes.one_shot import OneShot


class Predictor(Protocol):
    """Scores of public rows."""

    def logits(self, rows: Tensor) -> Tensor:
        """Return the scores, (n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class HeadPredictor:
    """The head of a moment, φ = basis(x): softmax(t·Wφ) are honest probabilities."""

    basis: Any
    weight: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return t·Wφ."""
        return torch.cat([self.basis(part) @ self.weight.T for part in rows.to(self.weight.device).split(8192)])

    def logits_of_coded(self, rows: Coded) -> Tensor:
        """Return the same, sooner and without all features at once."""
        return torch.cat([self.basis.from_turned(part) @ self.weight.T for _, part in rows.mapped(self.basis.matrix)])


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


@dataclass(frozen=True, eq=False)
class NetPredictor:
    """A trained network; `own` says that the user brought it."""

    net: nn.Module
    own: bool

    def logits(self, rows: Tensor) -> Tensor:
        """Return the network's outputs."""
        return predict(self.net, rows)


def predictor_of(found: Any, own: bool) -> Predictor:
    """Return what predicts, from a recipe's result: a head, a head and its student, or a network."""
    if isinstance(found, OneShot):
        return HeadPredictor(found.tuning.basis, found.weight)
    if isinstance(found, LinearStudent):
        head = HeadPredictor(found.shot.tuning.basis, found.shot.weight)
        return StudentPredictor(head, found.layer.weight, found.layer.bias, found.share)
    return NetPredictor(found if isinstance(found, nn.Module) else found.model, own)
