"""A second rehearsal, after the look: on labels drawn from the probabilities that the look gave.

Clusters overlap more than classes do, which is kind to heads that take noise badly. Once there are probabilities, there
are better pseudo-labels: drawn from them, they are mixed up just as much as the real ones seem to be, and by the same
features (parametric bootstrap; Efron 1979). All of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from labeldp.learning.heads import Head
from labeldp.learning.moments import eigenbasis
from labeldp.learning.plans import gram_of
from labeldp.learning.rehearsal import class_sums, rehearsed


def compare_heads(
    heads: Sequence[Head],
    noise_std: float,
    rows: Tensor,
    logits: Tensor,
    *,
    constant: int | None = None,
    most: int = 20_000,
    draws: int = 2,
    seed: int = 0,
) -> tuple[float, ...]:
    """For each head, the share of rows whose label it would recover, were labels drawn from softmax(logits).

    The head is fitted to the moment of drawn labels, with noise as large as the real one, and judged by labels of the
    same rows that are drawn anew.

    Args:
        heads: which to compare.
        noise_std: of the real moment, of all rows.
        rows: features of the moment, (n, d).
        logits: of their classes, (n, K).
        constant: as in `ridge`.
        most: rows it is run on; noise is scaled down with them.
        draws: of labels and noise.
        seed: of everything random here; public.
    """
    generator = Generator().manual_seed(seed)
    some = torch.randperm(len(rows), generator=generator)[:most].to(rows.device)
    part, noise = rows[some], noise_std * min(1.0, most / max(len(rows), 1))
    law, axes = torch.softmax(logits[some], dim=1).cpu(), eigenbasis(gram_of(part))
    hits = torch.zeros(len(heads), dtype=torch.float64)
    for draw in range(draws):
        taught, asked = (torch.multinomial(law, 1, generator=generator)[:, 0].to(rows.device) for _ in range(2))
        noisy = rehearsed(class_sums(part, taught, law.shape[1]), noise, len(part), seed + draw)
        for number, head in enumerate(heads):
            weight = head(noisy, part, axes, constant=constant).to(part)
            hits[number] += float(((part @ weight.T).argmax(dim=1) == asked).double().mean())
    return tuple(float(share) for share in hits / draws)
