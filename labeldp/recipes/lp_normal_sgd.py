"""LP-Normal-SGD: one pass of SGD with Gaussian noise in the few directions a label can move (Ghazi et al. 2021).

    w ← Π_W(w − η_t (∇ℓ(w; x_t, y_t) + b_t)),   b_t = Π_span{∇ℓ(w; x_t, k) : k}(N(0, s²I)),   η_t = D / √((L² + K s²) t)

Algorithm 6 there. Only the span of the K candidate gradients needs noise, so its norm is about s√K whatever the number
of parameters. (For cross-entropy the span is that of the gradients' differences: K − 1 dimensions.)

Why it is private. The gradient lies in that public span, so noise in the span is isotropic noise on the gradient,
projected: post-processing of a Gaussian look with diameter 2L, or less with a bound on the public diameter. Each row is
looked at once. Here s is the analytic Gaussian's (Balle and Wang 2018), exact where the paper has an unnamed constant.
"""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from labeldp.core.events import Gaussian
from labeldp.core.vault import LabelVault
from labeldp.learning.train import Inputs, sgd
from labeldp.mechanisms.gradients.layers import Loss, cross_entropy
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.recipes import labeldp_pro
from labeldp.recipes.denoisers import self_span
from labeldp.recipes.labeldp_pro import Bound, Report
from labeldp.recipes.prepaid import least_noise


def train(
    model: nn.Module,
    inputs: Inputs,
    vault: LabelVault,
    *,
    epsilon: float,
    delta: float,
    diameter: float,
    bound: Bound | None = None,
    batch_size: int = 1,
    loss: Loss = cross_entropy,
    seed: int = 0,
    folder: Path | None = None,
    every: int | None = None,
    report: Report | None = None,
) -> nn.Module:
    """Look at every row once, in an order that no label decides, and return the last weights.

    With b rows to a step the mean of their gradients is released: |noise|² is then K s²/b on average, and the step is
    η_t = D / √((L² + K s²/b) t).

    Args:
        diameter: D of the ball around the first weights that the weights are kept in.
        bound: its radius is L; `NormBound(1.0)` when None. Gradients of a loss that is L-Lipschitz are never clipped.
        batch_size: rows to a step; 1 is as published.
        seed: of the order.
        folder, every, report: as in `labeldp.recipes.labeldp_pro.train`.

    >>> import torch
    >>> from labeldp import LabelVault
    >>> x = torch.randn(200, 5)
    >>> vault = LabelVault((x[:, 0] > 0).long(), num_classes=2)
    >>> model = train(nn.Linear(5, 2), x, vault, epsilon=1.0, delta=1e-5, diameter=10.0, batch_size=20)
    >>> round(vault.certificate(delta=1e-5).epsilon, 6)
    1.0
    """
    if not 0 < diameter < math.inf:
        raise ValueError(f"diameter={diameter} is not the size of a ball; give a finite number greater than 0")
    bound = bound or NormBound(1.0)
    noise = least_noise(lambda s: Gaussian(s, bound.diameter), 1, epsilon, delta, bound.diameter)
    many = math.ceil(len(vault) / max(1, batch_size))
    peak = diameter / math.sqrt(bound.radius**2 + vault.num_classes * noise**2 / max(1, batch_size))
    return labeldp_pro.train(
        model,
        inputs,
        vault,
        delta=delta,
        noise_multiplier=noise / bound.radius,
        epochs=1,
        batch_size=batch_size,
        bound=bound,
        denoiser=self_span(),
        loss=loss,
        optimizer=sgd(peak, momentum=0.0, weight_decay=0.0),
        schedule=lambda done: 1 / math.sqrt(round(done * many) + 1),
        radius=diameter / 2,
        seed=seed,
        folder=folder,
        every=every,
        report=report,
    )
