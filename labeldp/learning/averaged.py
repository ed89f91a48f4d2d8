"""A network beside its moving average, with the running mean of its guesses: what semi-supervised training keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from labeldp.learning.layout import channels_first, channels_last


class Averaged(nn.Module):
    """The model, its moving average `slow`, and the running mean of its guesses: what a checkpoint must hold.

    Args:
        model: trained in place.
        prior: class shares, (K,), to which guesses are held; None leaves them.
    """

    mean: Tensor

    def __init__(self, model: nn.Module, prior: Tensor | None) -> None:
        super().__init__()
        channels_last(model)
        self.model = model
        self.slow = copy.deepcopy(model).requires_grad_(False)
        self.prior = prior
        self.register_buffer("mean", None if prior is None else prior.clone())

    def aligned(self, beliefs: Tensor) -> Tensor:
        """Guesses (b, K) times prior over their running mean, made to sum to 1 (Berthelot et al. 2020)."""
        if self.prior is None:
            return beliefs
        self.mean.lerp_(beliefs.mean(dim=0), 0.01)
        shifted = beliefs * (self.prior / self.mean.clamp_min(1e-6))
        return shifted / shifted.sum(dim=1, keepdim=True)

    def follow(self, decay: float) -> Callable[[float], None] | None:
        """One step of the average after every step of training; running means of norms are copied."""
        if not decay:
            return None
        slow, fast = ([p.detach() for p in part.parameters()] for part in (self.slow, self.model))
        kept, new = (list(part.buffers()) for part in (self.slow, self.model))

        def after(share: float) -> None:
            torch._foreach_lerp_(slow, fast, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]
            if kept:
                torch._foreach_copy_(kept, new)  # pyright: ignore[reportPrivateImportUsage]

        return after

    def finish(self, decay: float) -> nn.Module:
        """The model in eval mode, with the averaged weights where there is an average."""
        if decay:
            self.model.load_state_dict(self.slow.state_dict())
        channels_first(self.model)
        return self.model.eval()
