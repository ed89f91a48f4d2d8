"""Private answers as training targets: posterior, forward-corrected and debiased losses.

All three are written once for every randomizer, from the evidence log P(answer | class), (n, K), and from the
linear estimate of the one-hot label that the randomizer states. Move both to the training device once and
index them there.

Which one? `forward_loss` is the likelihood of what was really seen: bounded, handles every randomizer, and is the
default. `debiased_loss` has the right expectation but is unbounded below. `posterior` gives soft labels for any
other loss, given a prior.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from labeldp.releases import NoisyLabels


def evidence(noisy: NoisyLabels, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """log P(answer | class) of every row, (n, K). Impossible classes become the lowest finite number."""
    matrix = torch.from_numpy(noisy.log_likelihood()).to(device=device, dtype=dtype)
    # A finite floor instead of −∞: 0 · (−∞) is not a number, and a gradient of it is not either.
    return matrix.clamp_min(torch.finfo(dtype).min / 4)


def unbiased_labels(
    noisy: NoisyLabels, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """z with E[z | y] = onehot(y), (n, K), for `debiased_loss`. Zero on rows that carry no information.

    For answers restricted to a set of k < K classes no such z exists; there E[z | y] = onehot(y) for labels
    inside the set and the uniform vector on the set for labels outside it.
    """
    return torch.from_numpy(noisy.unbiased()).to(device=device, dtype=dtype)


def posterior(log_evidence: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """P(class | answer) ∝ prior(class) · P(answer | class), (n, K). Uniform prior when none is given.

    With the current model's log-probabilities as prior this is ALIBI's Bayesian step (Malek et al. 2021);
    rows without information return the prior.

    >>> posterior(torch.log(torch.tensor([[0.2, 0.8]])), torch.log(torch.tensor([[0.5, 0.5]])))
    tensor([[0.2000, 0.8000]])
    """
    return torch.softmax(log_evidence if log_prior is None else log_evidence + log_prior, dim=-1)


def forward_loss(logits: Tensor, log_evidence: Tensor) -> Tensor:
    """−log Σ_c softmax(logits)_c · P(answer | c), per row, (n,).

    The exact negative log-likelihood of the private answer under the model ("forward correction", Patrini et
    al. 2017, with a transition law that is known instead of estimated). Bounded below by −max_c log P(answer | c);
    constant, so without gradient, on rows that carry no information.

    >>> forward_loss(torch.zeros(1, 2), torch.log(torch.tensor([[0.25, 0.75]])))
    tensor([0.6931])
    """
    return -torch.logsumexp(log_softmax(logits, dim=-1) + log_evidence, dim=-1)


def debiased_loss(logits: Tensor, unbiased: Tensor) -> Tensor:
    """Σ_c z_c · ℓ(logits, c) with ℓ the cross-entropy and E[z] = onehot(y), per row, (n,).

    For randomized response this is (ℓ(ỹ) − p Σ_c ℓ(c)) / (1 − K p) with p = 1 / (e^ε + K − 1) (Ghazi et al. 2021,
    LP-RR-SGD); its expectation over the private answers is the loss on the true labels. Unbounded below, because
    some z are negative: regularise, or prefer `forward_loss`. Rows without information weigh nothing.
    """
    return -(unbiased * log_softmax(logits, dim=-1)).sum(dim=-1)
