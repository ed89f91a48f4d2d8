"""Let responses make the prior of other rows better: every row is judged by a network that has not seen its response.

    for each round:
        t_i ∝ p_i(c) · P(response_i | c)                              the posterior under the prior so far
        for each fold F of the rows: a network learns t outside of F, from the weights it was given
                                     p_i ∝ first prior^a · its probabilities^b, for i in F

with the a and b for which the responses of F are likeliest.

A prior that is systematically wrong (a teacher's cats that are dogs) is wrong in every posterior, by as much as one
response cannot outweigh. Together the responses can: a network that learns from posteriors of many rows sees which way
they lean, and the next posterior leans with it. That is expectation maximisation with a network in the place of the
maximum (Dempster, Laird and Rubin 1977; Raykar et al. 2010 for labels). Without folds it would feed on itself: a
network remembers the responses of its own rows, and they would be counted again in every round. With them no network
judges a row that it has learnt from, so that posteriors stay honest (cross-fitting; Chernozhukov et al. 2018), and how
likely the responses of a fold are under its prior says, at no cost, whether a round was any good. After one round a
prior is a function of other rows' responses alone. From the second on a response has had a part, one of n, in priors of
other rows from which its judge has learnt; it cannot be remembered that way.

Only public rows and releases come in: post-processing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax, softplus

from labeldp.learning.evidence import forward_loss, on_targets, posterior
from labeldp.learning.heads import scale_by_responses
from labeldp.learning.train import Inputs, predict
from labeldp.models.zoo import checked_count


def crossfit(
    model: nn.Module,
    inputs: Inputs,
    scores: Tensor,
    evidence: Tensor,
    *,
    fit: Callable[..., nn.Module],
    folds: int = 2,
    times: int = 1,
    believe: Callable[[nn.Module, Inputs], Tensor] = predict,
    seed: int = 0,
    checkpoint: Path | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Tensor:
    """Return scores of all rows, (n, K), whose softmax is a prior that other rows' responses have made better.

    Args:
        model: what every network begins as; it is not changed.
        inputs: of all rows, on the model's device.
        scores: (n, K), whose softmax is the prior to begin with, made without any of these responses.
        evidence: log P(response | c), (n, K), zero for rows without a response (`learning.evidence.evidence`).
        fit: how a network is trained, such as `learning.train.fit` with its settings bound.
        folds: parts of the rows; a network learns from all but one.
        times: how often. Where the responses are less likely under a new prior than under the one before it, that
            one is returned.
        believe: the scores of a network, such as a mean over mirrors.
        seed: of the folds.
        checkpoint: files of this name are written by all trainings, and resumed from where they exist.
        report: gets the number of each round, 0 before the first, and the mean log-likelihood of a response.

    >>> from functools import partial
    >>> from labeldp.learning.train import fit
    >>> x = torch.linspace(-1, 1, 2000)[:, None]
    >>> truth = (x[:, 0] > 0).long()
    >>> drawn = torch.rand(2000, generator=Generator().manual_seed(0)) < 0.75
    >>> responses = torch.where(drawn, truth, 1 - truth)
    >>> evidence = nn.functional.one_hot(responses) * torch.tensor(3.0).log()  # right three times out of four
    >>> wrong = torch.stack((x[:, 0] * 0 + 1, 4 * x[:, 0]), dim=1)  # says 1 from x = 1/4 on
    >>> found = crossfit(nn.Linear(1, 2), x, wrong, evidence, fit=partial(fit, epochs=20, batch_size=50), times=3)
    >>> before, after = ((part.argmax(dim=1) == truth).float().mean() for part in (wrong, found))
    >>> bool(after > before)
    True
    """
    checked_count("times", times)
    if not 2 <= checked_count("folds", folds) <= len(scores):
        raise ValueError(f"folds={folds} of {len(scores)} rows; give at least 2, and no more than there are rows")
    if evidence.shape != scores.shape:
        shapes = tuple(evidence.shape), tuple(scores.shape)
        raise ValueError(f"evidence has shape {shapes[0]} and scores {shapes[1]}; give both (n, K)")
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    order = torch.randperm(len(scores), generator=Generator().manual_seed(seed)).to(scores.device)
    parts = [part.sort().values for part in order.tensor_split(folds)]
    first, likely = scores, _likelihood(scores, evidence)
    if report is not None:
        report(0, likely)
    for number in range(1, times + 1):
        targets, after = posterior(evidence, log_softmax(scores, dim=1)), torch.empty_like(scores)
        for fold, part in enumerate(parts):
            others = torch.cat([other for other in parts if other is not part])
            name = None if checkpoint is None else checkpoint.with_stem(f"{checkpoint.stem}-{number}-{fold}")
            file = {} if name is None else {"checkpoint": name}
            network = fit(copy.deepcopy(model), inputs, on_targets(targets), rows=others, **file)
            chosen = tuple(tensor[part] for tensor in tensors)
            found = believe(network, chosen if isinstance(inputs, tuple) else chosen[0])
            after[part] = mixed((first[part], found), evidence[part]).to(after)
        now = _likelihood(after, evidence)
        if report is not None:
            report(number, now)
        if now <= likely:
            break
        scores, likely = after, now
    return scores


def mixed(sources: tuple[Tensor, ...], evidence: Tensor) -> Tensor:
    """Return Σ_j w_j · s_j, (n, K), with the w ≥ 0 for which the responses are likeliest under its softmax.

    A few numbers from all responses. It is honest where no source has seen the responses of its rows.

    Args:
        sources: scores, (n, K) each.
        evidence: log P(response | c) of each row, (n, K), up to a constant of the row.

    >>> truth = torch.arange(3000) % 3
    >>> right, wrong = nn.functional.one_hot(truth, 3) * 3.0, nn.functional.one_hot(truth * 0, 3) * 3.0
    >>> found = mixed((right, wrong), nn.functional.one_hot(truth, 3) * 1.0)
    >>> bool((found.argmax(dim=1) == truth).all())
    True
    """
    # Each by its own scale first: logits of networks differ by orders of magnitude.
    scaled = torch.stack([scale_by_responses(scores, evidence) * scores.float() for scores in sources])
    free = torch.full((len(sources), 1, 1), -0.5, device=scaled.device, requires_grad=True)
    search = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        found = forward_loss((softplus(free) * scaled).sum(dim=0), evidence).mean()
        found.backward()
        return found

    with torch.enable_grad():
        search.step(loss)
    return (softplus(free.detach()) * scaled).sum(dim=0)


def _likelihood(scores: Tensor, evidence: Tensor) -> float:
    """Return the mean log-likelihood of the responses, of the rows that have one."""
    responded = (evidence != 0).any(dim=1)
    return -float(forward_loss(scores[responded].float(), evidence[responded]).mean()) if responded.any() else 0.0
