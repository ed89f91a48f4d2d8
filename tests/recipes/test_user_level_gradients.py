"""Recipes on a vault of users: gradients, with and without projection."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labeldp.budgets.journal import Journal
from labeldp.core.certificate import verify
from labeldp.core.events import Gaussian, PoissonGaussian
from labeldp.core.ledger import ONE_USER, Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.learning.optimisers import sgd
from labeldp.learning.projections import Projected
from labeldp.learning.train import fit
from labeldp.mechanisms.gradients.sums import NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.mechanisms.users import UserVault, cap_rows
from labeldp.recipes.denoisers import Secret, alt_conv, alt_rows, no_op, self_conv
from labeldp.recipes.labeldp_pro import train as train_on_gradients
from labeldp.recipes.per_row import rr as train_on_responses
from tests.budgets.journalstore import JournalStore

USERS, ROWS, CAP = 120, 300, 2


def problem(seed=0):
    """Rows of users with between one and many rows each; the label is the sign of a feature."""
    chance = np.random.default_rng(seed)
    inputs = torch.from_numpy(chance.normal(size=(ROWS, 4)).astype(np.float32))
    owners = np.concatenate([np.arange(USERS), chance.integers(0, USERS, ROWS - USERS)])
    return inputs, owners, (inputs[:, 0] > 0).long().numpy()


def vault(**more):
    _, owners, labels = problem()
    return UserVault(labels, owners, 2, **more)


def network():
    torch.manual_seed(1)
    return nn.Linear(4, 2)


train = partial(train_on_gradients, delta=1e-5, cap=CAP)


@pytest.mark.parametrize("denoiser", [no_op(), alt_conv(rows=40, smoothing=1.0), alt_rows(rows=40)])
def test_gradients_teach_and_every_user_pays_the_same(denoiser):
    inputs, _, labels = problem()
    box = vault(budget=Budget(8.0, 1e-5))
    learn = sgd(2.0, momentum=0.0, weight_decay=0.0)
    model = train(
        network(), inputs, box, epsilon=8.0, steps=25, batch_size=30, bound=NormBound(0.5), denoiser=denoiser,
        optimizer=learn,
    )  # fmt: skip
    assert (model(inputs).argmax(dim=1).numpy() == labels).mean() > 0.85
    claim = box.certificate()
    assert 0.999 * 8 < claim.epsilon <= 8.0
    assert claim.unit.protects == "all labels of one user"
    assert verify(claim) == ()
    (group,) = claim.groups
    (query,) = group.queries
    assert (group.rows, query.times) == (USERS, 25)
    assert (type(query.event), query.event.rate) == (PoissonGaussian, 30 / USERS)
    assert (query.event.radius, query.event.diameter) == pytest.approx((0.5, 1.0), rel=1e-4)


def test_one_step_without_noise_goes_down_the_mean_of_the_users_resampled_rows():
    inputs, _, labels = problem()
    box, model, expected = vault(), network(), network()
    train(
        model, inputs, box, noise_multiplier=1e-12, steps=1, batch_size=USERS, bound=NormBound(1e3), denoiser=no_op(),
        optimizer=sgd(0.5, momentum=0.0, weight_decay=0.0), seed=3,
    )  # fmt: skip
    kept = cap_rows(box.users, CAP, seed=3)
    listed = torch.from_numpy(kept.rows[kept.listed()])
    loss = cross_entropy(expected(inputs[listed]), torch.from_numpy(labels)[listed])
    for parameter, slope in zip(
        expected.parameters(), torch.autograd.grad(loss, list(expected.parameters())), strict=True
    ):
        parameter.data -= 0.5 * slope
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    event = box.ledger.groups()[0].queries[0].event
    assert (type(event), event.noise_std, event.diameter) == (Gaussian, 1e-9, pytest.approx(2e3))


@pytest.mark.parametrize("rows", [None, 17])
def test_the_projection_sees_other_rows_in_which_every_user_counts_the_same(rows):
    seen = []

    def watch(noisy, public):
        seen.append(public.shape)
        return Projected(noisy)

    train(network(), problem()[0], vault(), noise_multiplier=1.0, steps=3, batch_size=25, denoiser=Secret(watch, rows))
    assert seen == [(rows or 25, 2)] * 3


def test_noise_and_length_follow_from_epsilon():
    inputs = problem()[0]
    box = vault()
    train(network(), inputs, box, epsilon=1.0, noise_multiplier=4.0, batch_size=12, denoiser=no_op())
    query = box.ledger.groups()[0].queries[0]
    assert box.certificate(1e-5).epsilon <= 1.0
    more = vault()
    more.lease(question(query.event.noise_std, 0.1, box), query.times + 1, cap_rows(box.users, CAP).rows)
    assert more.certificate(1e-5).epsilon > 1.0
    one_pass = vault()
    train(network(), inputs, one_pass, epsilon=1.0, epochs=1, batch_size=12, denoiser=no_op())
    assert one_pass.ledger.groups()[0].queries[0].times == 10


def question(noise_std, rate, box):
    kept = cap_rows(box.users, CAP)
    users = box.users.take(kept.rows)
    return UserGradientSum(network(), problem()[0][kept.rows], users, NormBound(1.0), noise_std, rate=rate)


def test_what_is_reported_ends_at_the_certificate():
    reports, box = [], vault()
    train(
        network(), problem()[0], box, epsilon=2.0, steps=10, batch_size=30, denoiser=no_op(), every=4,
        report=reports.append,
    )  # fmt: skip
    assert [progress.step for progress in reports] == [4, 8, 10]
    assert reports[-1].epsilon == box.certificate(1e-5).epsilon
    assert reports[-1].passes == 2.5


class Killed(Exception):
    """Stands for the end of a process."""


def test_a_killed_run_goes_on_without_drawing_a_look_twice(tmp_path, monkeypatch):
    drawn = []
    honest = UserGradientSum.sample
    monkeypatch.setattr(UserGradientSum, "sample", lambda *args: drawn.append(1) or honest(*args))
    journal = Journal.open(tmp_path / "users.journal", Budget(3.0, 1e-5), unit=ONE_USER)
    inputs, settings = problem()[0], {"epsilon": 3.0, "steps": 12, "batch_size": 30, "denoiser": no_op()}

    def kill(progress):
        if progress.step < 12:
            raise Killed

    for every in (5, 9):
        with pytest.raises(Killed):
            train(
                network(), inputs, vault(store=JournalStore(journal)), folder=tmp_path / "run", every=every,
                report=kill, **settings,
            )  # fmt: skip
    box = vault(store=JournalStore(journal))
    train(network(), inputs, box, folder=tmp_path / "run", **settings)
    assert len(drawn) == 12
    assert 0.999 * 3 < box.certificate(1e-5).epsilon <= 3.0
    assert journal.epsilon(1e-5) == box.certificate(1e-5).epsilon
    with pytest.raises(ValueError, match="another question"):
        train(network(), inputs, vault(), folder=tmp_path / "run", **{**settings, "cap": 3})


def test_mistakes_cost_nothing():
    inputs, box = problem()[0], vault()
    refused = [
        ({"denoiser": self_conv()}, "names its batches"),
        ({"batch_size": USERS + 1}, "does not fit 120 users"),
        ({"batch_size": 0}, "does not fit"),
        ({"epochs": 2}, "two lengths"),
        ({"steps": None, "epochs": -1}, "not a length"),
        ({"steps": 0}, "not a length"),
        ({"steps": None}, "the third follows"),
        ({"cap": 0}, "k is"),
    ]
    for change, what in refused:
        with pytest.raises(ValueError, match=what):
            train(network(), inputs, box, **{"epsilon": 1.0, "steps": 3, "batch_size": 30, **change})
    with pytest.raises(ValueError, match="BatchNorm"):
        train(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), inputs, box, epsilon=1.0, steps=3, batch_size=30)
    with pytest.raises(ValueError, match="not finite"):
        train(network(), inputs / 0, box, epsilon=1.0, steps=3, batch_size=30)
    assert box.certificate(1e-5).epsilon == 0.0


def test_past_the_budget_nothing_is_drawn():
    box = vault(budget=Budget(1.0, 1e-5), rng=SecureRandom(0))
    with pytest.raises(BudgetExceededError, match="worst user"):
        train(network(), problem()[0], box, epsilon=1.1, steps=3, batch_size=30, denoiser=no_op())
    assert box.certificate().epsilon == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_from_both_kinds_of_question():
    inputs, _, labels = problem()
    for denoiser in (no_op(), alt_rows(rows=40)):
        box = vault()
        model = train(
            network().cuda(), inputs.cuda(), box, epsilon=8.0, steps=25, batch_size=30, bound=NormBound(0.5),
            denoiser=denoiser, optimizer=sgd(2.0, momentum=0.0, weight_decay=0.0),
        )  # fmt: skip
        assert (model(inputs.cuda()).argmax(dim=1).cpu().numpy() == labels).mean() > 0.8
        assert box.certificate(1e-5).epsilon <= 8.0
    learn = partial(fit, epochs=3, batch_size=32)
    model = train_on_responses(network().cuda(), inputs.cuda(), vault(), epsilon=30.0, cap=2, fit=learn)
    assert (model(inputs.cuda()).argmax(dim=1).cpu().numpy() == labels).mean() > 0.7
