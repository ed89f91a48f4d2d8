"""Cross-fitting: a prior that other rows' responses make better, and never a row's own."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax, one_hot

from labeldp.learning.crossfit import crossfit
from labeldp.learning.evidence import posterior
from labeldp.learning.optimisers import adam
from labeldp.learning.train import fit, predict

N, K = 4000, 3
FIT = functools.partial(fit, epochs=15, batch_size=200, optimizer=adam(0.05))


def problem(right=0.7, seed=0):
    """Rows, classes that are linear in them, responses that are right so often, a prior that mixes two classes up."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 2, generator=generator)
    turned = torch.stack((x[:, 0], x[:, 1], -x[:, 0] - x[:, 1]), dim=1)
    truth = turned.argmax(dim=1)
    other = torch.randint(1, K, (N,), generator=generator)
    kept = torch.rand(N, generator=generator) < right
    responses = torch.where(kept, truth, (truth + other) % K)
    evidence = torch.log(torch.where(one_hot(responses, K).bool(), right, (1 - right) / (K - 1)))
    # Of class 1 it believes that most are of class 0.
    prior = 3 * turned + torch.tensor([1.5, -1.5, 0.0])
    return x, truth, responses, evidence, prior


def right(scores, truth):
    return float((scores.argmax(dim=1) == truth).float().mean())


def test_systematic_errors_of_a_prior_are_corrected():
    x, truth, _, evidence, prior = problem()
    told = {}
    found = crossfit(nn.Linear(2, K), x, prior, evidence, fit=FIT, times=3, report=told.__setitem__)
    assert right(found, truth) > right(prior, truth) + 0.1
    assert told[1] > told[0]
    # Of the posterior, too, which is what is learnt from.
    before, after = (posterior(evidence, log_softmax(scores, dim=1)) for scores in (prior, found))
    assert right(after, truth) > right(before, truth) + 0.03


def test_no_network_judges_rows_it_has_learnt_from():
    x, _, _, evidence, prior = problem()
    learnt, judged = [], []

    def spy(model, inputs, objective, *, rows):
        learnt.append(set(rows.tolist()))
        return model

    def believe(model, inputs):
        judged.append({int(np.flatnonzero((x == row).all(dim=1))[0]) for row in inputs[:50]})
        return predict(model, inputs)

    crossfit(nn.Linear(2, K), x, prior, evidence, fit=spy, folds=3, believe=believe)
    assert len(learnt) == len(judged) == 3
    for rows, seen in zip(learnt, judged, strict=True):
        assert not rows & seen
        assert len(rows) == pytest.approx(2 * N / 3, abs=1)


def by_heart(model, inputs, objective, *, rows):
    """A network that remembers the label of every row it has learnt from, and guesses elsewhere."""
    scores = torch.zeros(len(inputs), K)
    even = torch.zeros(len(rows), K, requires_grad=True)
    (slope,) = torch.autograd.grad(objective(even, rows).sum(), even)
    scores[rows] = -9.0 * slope
    known = {tuple(row.tolist()): score for row, score in zip(inputs, scores, strict=True)}

    class Table(nn.Module):
        def forward(self, chosen):
            return torch.stack([known[tuple(row.tolist())] for row in chosen])

    table = Table()
    table.weight = nn.Parameter(torch.zeros(1))
    return table


def test_what_is_learnt_by_heart_does_not_come_back():
    """The planted bug is a network that remembers responses: judged by others, its memory is worth nothing."""
    x, _, responses, evidence, _ = problem(right=0.4)
    even = torch.zeros(N, K)
    found = crossfit(nn.Linear(2, K), x, even, evidence, fit=by_heart, times=2)
    assert torch.equal(found, even), "no better than a guess, so the prior stays"
    own = by_heart(None, x, lambda z, rows: -(posterior(evidence)[rows] * log_softmax(z, dim=1)).sum(dim=1),
                   rows=torch.arange(N))(x)  # fmt: skip
    assert right(own, responses) > 0.99, "without folds every response would come back as its own prior"


def test_the_model_is_left_as_it_was_and_rows_without_response_count_for_nothing():
    x, truth, _, evidence, prior = problem()
    model = nn.Linear(2, K)
    before = model.weight.clone()
    evidence[::2] = 0.0
    found = crossfit(model, x, prior, evidence, fit=FIT)
    assert torch.equal(model.weight, before)
    assert right(found, truth) > right(prior, truth)
    nothing = crossfit(model, x, prior, torch.zeros_like(evidence), fit=FIT)
    assert torch.equal(nothing, prior), "without responses there is nothing to choose by"


def test_a_stopped_run_goes_on(tmp_path):
    x, _, _, evidence, prior = problem()
    file = tmp_path / "model.safetensors"
    whole = crossfit(nn.Linear(2, K).requires_grad_(True), x, prior, evidence, fit=FIT, checkpoint=file)
    assert len(list(tmp_path.glob("model-1-*.safetensors"))) == 2

    def fails(*_, **__):
        raise AssertionError("trained again")

    again = crossfit(nn.Linear(2, K), x, prior, evidence, fit=functools.partial(FIT, report=fails), checkpoint=file)
    assert torch.equal(whole, again)


@pytest.mark.parametrize(("change", "match"), [({"folds": 1}, "folds=1"), ({"times": 0}, "times")])
def test_bad_settings_are_refused(change, match):
    x, _, _, evidence, prior = problem()
    with pytest.raises(ValueError, match=match):
        crossfit(nn.Linear(2, K), x, prior, evidence, fit=FIT, **change)
    with pytest.raises(ValueError, match="evidence has shape"):
        crossfit(nn.Linear(2, K), x, prior, evidence[:5], fit=FIT)
