"""A module that writes to itself in `forward`: what it would give away, and that it is refused unpaid."""

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.per_example import clipped_sum, gradients, parameter_vector
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound, poisson_batch
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import UserVault

ROWS = 400
LABELS = np.arange(ROWS, dtype=np.uint8) % 2


def renormalising(trainable=True):
    """Every row looks up an entry of its own, which is then scaled down to norm 1 in the weights themselves."""
    torch.manual_seed(0)
    table = nn.Embedding(ROWS, 4, max_norm=1.0)
    nn.init.constant_(table.weight, 2.0)
    table.weight.requires_grad_(trainable)
    return nn.Sequential(table, nn.Flatten(), nn.Linear(4, 2))


class Noting(nn.Module):
    """Keeps something of what goes through it, in one of the ways that people write."""

    def __init__(self, how, width=4):
        super().__init__()
        self.how, self.last, self.seen, self.count = how, None, [], 0
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, rows):
        match self.how:
            case "buffer":
                self.mean.mul_(0.9).add_(0.1 * rows.detach().mean(0))
            case "new buffer":
                self.mean = 0.9 * self.mean + 0.1 * rows.detach().mean(0)
            case "attribute":
                self.last = rows.detach()
            case "list":
                self.seen.append(rows.detach())
            case "counter":
                self.count += len(rows)
        return rows


WAYS = ["buffer", "new buffer", "attribute", "list", "counter"]


def noting(how):
    torch.manual_seed(0)
    return nn.Sequential(Noting(how), nn.Linear(4, 2))


@pytest.mark.parametrize("trainable", [True, False])
def test_no_row_of_a_secret_batch_can_be_read_off_the_weights(trainable):
    """On the code before this test, 47 of 47 rows of a batch were."""
    model = renormalising(trainable)
    ask = GradientSum(model, torch.arange(ROWS)[:, None], NormBound(1.0), noise_std=8.0, rate=0.12)
    batch = poisson_batch(ROWS, 0.12, SecureRandom(seed=3))
    assert len(batch) > 30
    before = model[0].weight.detach().clone()
    # Past the refusal, which is tested below: what is drawn must not write either.
    ask.sample(LABELS, SecureRandom(seed=3))
    moved = np.flatnonzero((model[0].weight.detach() != before).any(1).numpy())
    assert moved.tolist() == []


@pytest.mark.parametrize("trainable", [True, False])
def test_embeddings_that_are_renormalised_are_refused_unpaid(trainable):
    vault = LabelVault(LABELS, 2)
    ask = GradientSum(renormalising(trainable), torch.arange(ROWS)[:, None], NormBound(1.0), noise_std=8.0, rate=0.12)
    with pytest.raises(ValueError, match=r"0 has max_norm=1.0.*read off the weights.*Leave max_norm out"):
        vault.lease(ask, 10)
    assert vault.certificate().epsilon == 0


@pytest.mark.parametrize("how", WAYS)
def test_any_state_is_refused_unpaid_for_rows_and_users(how):
    torch.manual_seed(0)
    inputs, owners = torch.randn(ROWS, 4), np.arange(ROWS) // 2
    vault, users = LabelVault(LABELS, 2), UserVault(LABELS, owners, 2)
    with pytest.raises(ValueError, match=r"changed its own state in a forward pass: 0\.\w+.*\.eval\(\)"):
        vault.lease(GradientSum(noting(how), inputs, NormBound(1.0), 8.0, rate=0.12), 10)
    with pytest.raises(ValueError, match="changed its own state"):
        users.lease(UserGradientSum(noting(how), inputs, users.users, NormBound(1.0), 8.0, rate=0.12), 10)
    assert vault.certificate().epsilon == users.certificate().epsilon == 0


@pytest.mark.parametrize("how", ["buffer", "new buffer"])
def test_sums_run_on_copies_of_buffers(how):
    model = noting(how)
    before = model[0].mean.clone()
    clipped_sum(model, cross_entropy, torch.randn(9, 4) + 5, torch.zeros(9, dtype=torch.long), clip=1.0)
    gradients(model, cross_entropy, torch.randn(9, 4) + 5, torch.zeros(9, dtype=torch.long))
    assert torch.equal(model[0].mean, before)


class RemembersLabels(nn.Module):
    """A loss that keeps what it was called with."""

    def forward(self, logits, labels):
        self.last = labels
        return nn.functional.cross_entropy(logits, labels, reduction="none")


def test_a_loss_that_keeps_labels_is_refused_unpaid():
    vault = LabelVault(LABELS, 2)
    with pytest.raises(ValueError, match="RemembersLabels changed its own state in a forward pass: last"):
        vault.release(GradientSum(nn.Linear(4, 2), torch.randn(ROWS, 4), NormBound(1.0), 8.0, loss=RemembersLabels()))
    assert vault.certificate().epsilon == 0


class Cached(nn.Module):
    """A table of positions that is made at the first call: no state, whatever the rows."""

    def __init__(self):
        super().__init__()
        self.linear, self.positions = nn.Linear(4, 2), None

    def forward(self, rows):
        if self.positions is None:
            self.positions = torch.arange(4.0)
        return self.linear(rows + self.positions)


def test_what_is_set_up_once_is_no_state():
    model = Cached()
    weights = parameter_vector(model)
    vault = LabelVault(LABELS, 2)
    assert vault.release(GradientSum(model, torch.randn(ROWS, 4), NormBound(1.0), 8.0)).value.shape == weights.shape
    assert torch.equal(parameter_vector(model), weights)
