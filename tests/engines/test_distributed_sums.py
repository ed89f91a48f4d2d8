"""Gradient sums over ranks: the release of one process, sampled, summed and noised by several."""

import threading

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from labeldp import LabelVault, SecureRandom, UserVault
from labeldp.mechanisms.gradients.ranks import NOISE_IN_PARTS, TRUSTED, RankedSum, over_ranks
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.mechanisms.gradients.users import UserGradientSum
from labeldp.ranks import Message, RankError
from labeldp.recipes import labeldp_pro
from tests.engines.teams import Lockstep, results, together


def table(rows, columns=5):
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(rows, columns))).float()
    return inputs, (inputs[:, 0] > 0).long()


def linear(columns, seed=0):
    """The same on every rank; torch's own generator belongs to all threads."""
    model, rng = nn.Linear(columns, 2), np.random.default_rng(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.from_numpy(rng.normal(size=tuple(value.shape)) / 4))
    return model


# -- the same release, and the same price ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("denoiser", ["no_op", "self_span", "alt_rows"])
def test_ranks_train_the_model_that_one_process_trains(size, denoiser):
    """With the noise and the batches of a seed: apart by the rounding of sums to the grid, and by nothing else."""
    inputs, labels = table(61)

    def job(ranks):
        vault = LabelVault(labels, 2, rng=SecureRandom(seed=7))
        settings = {"epsilon": 3.0, "delta": 1e-5, "epochs": 2, "batch_size": 13}
        model = labeldp_pro.train(linear(5), inputs, vault, denoiser=getattr(labeldp_pro, denoiser)(), **settings)
        return torch.cat([value.flatten() for value in model.parameters()]).detach(), vault.certificate(1e-5)

    alone, claim = job(None)
    for weights, found in results(job, size):
        assert torch.allclose(weights, alone, atol=1e-5)
        assert found.epsilon == claim.epsilon
        assert found.groups == claim.groups
        assert [*found.assumptions] == [*claim.assumptions, TRUSTED]


def test_users_are_shared_with_all_their_rows():
    inputs, labels = table(40)
    owners = np.arange(40) // 3

    def job(ranks):
        vault = UserVault(labels, users=owners, num_classes=2, rng=SecureRandom(seed=1))
        ask = UserGradientSum(linear(5), inputs, vault.users, NormBound(1.0), noise_std=2.0, rate=0.5)
        return vault.release(ask if ranks is None else over_ranks(ask, ranks)), vault.certificate(1e-5).epsilon

    def follower(ranks):
        if not ranks.first:
            ranks.hear(Message.DRAW)
        return job(ranks)

    (alone, claim), ((shared, found), (nothing, _)) = job(None), results(follower)
    # Every user's vector is rounded on its own, so integers are the same however they are cut.
    assert torch.equal(shared.value, alone.value)
    assert nothing is None
    assert found == claim


# -- the distribution of releases --------------------------------------------------------------------------------------

# 300 releases of 2,002 numbers each: 600,600 draws on each side.
RELEASES, WIDE, NOISE = 300, 1000, 5.0


def released(mechanism, noise="once", vary=lambda ranks, ask: ask, times=RELEASES, rate=0.5, rows=8):
    """What the first of two ranks releases, (times, numbers); `mechanism` is None for one process."""
    inputs, labels = table(rows, WIDE)

    def job(ranks):
        vault, model = LabelVault(labels[: len(inputs)], 2), linear(WIDE)
        ask = GradientSum(model, inputs, NormBound(1.0), noise_std=NOISE, rate=rate)
        if ranks is None:
            lease = vault.lease(ask, times)
            return torch.stack([lease().value for _ in range(times)])
        lease = vault.lease(vary(ranks, mechanism(ask, ranks)), times)
        if not ranks.first:
            for _ in range(times):
                ranks.hear(Message.DRAW)
                lease()
            return None
        return torch.stack([lease().value for _ in range(times)])

    return job(None) if mechanism is None else results(job, 2, noise)[0]


def alarm(one, other):
    """Whether two samples differ at a false-alarm rate of 1e-6: in variance, or anywhere (Kolmogorov-Smirnov)."""
    one, other = ((x - x.mean(0)).flatten().double().numpy() for x in (one, other))
    # Noise is Gaussian and the batch adds 8 rows of length 1: the ratio of variances is F-distributed, nearly.
    ratio, count = one.var() / other.var(), one.size
    spread = np.sqrt(4 / count)
    return abs(np.log(ratio)) > 5.1 * spread or stats.ks_2samp(one, other).pvalue < 5e-7


@pytest.fixture(scope="module")
def alone():
    return released(None)


@pytest.mark.parametrize("noise", ["once", "each"])
def test_two_ranks_release_by_the_distribution_of_one_process(alone, noise):
    """600,600 numbers each; false-alarm rate about 1e-6."""
    assert not alarm(released(RankedSum, noise), alone)


class Twice(RankedSum):
    """Planted: a rank that adds noise of its own, where the first adds all of it."""

    def _total(self, labels, rows):
        more = SecureRandom().rounded_gaussian(self._std(), self.whole.size)
        return super()._total(labels, rows) + self.whole.step * torch.from_numpy(more.astype(np.float64))


def test_a_rank_that_adds_noise_twice_is_noticed(alone):
    found = released(lambda ask, ranks: ask, vary=lambda ranks, ask: (RankedSum if ranks.first else Twice)(ask, ranks))
    assert alarm(found, alone)


class Half(RankedSum):
    """Planted: each rank believes that the other adds the noise that is missing."""

    def _std(self):
        return super()._std() / np.sqrt(2)


def test_noise_that_nobody_adds_is_noticed(alone):
    assert alarm(released(Half), alone)


def test_every_rank_samples_its_own_rows_and_none_other():
    """Each of 40 rows in 300 releases with probability 0.3, on its own; false alarms below 5e-5.

    Ranks that shared a stream of bits would draw sizes of batches of twice the variance.
    """
    rows, times, rate = 40, 300, 0.3
    inputs, labels = torch.eye(rows), torch.zeros(rows, dtype=torch.long)

    def job(ranks):
        vault, model = LabelVault(labels, 2), linear(rows)
        # Next to no noise: a release shows its batch, entry by entry.
        lease = vault.lease(over_ranks(GradientSum(model, inputs, NormBound(1.0), 1e-3, rate), ranks), times)
        found = []
        for _ in range(times):
            if not ranks.first:
                ranks.hear(Message.DRAW)
            found.append(lease())
        return np.stack([one.value[:rows].numpy() for one in found]) if ranks.first else None

    batches = np.abs(results(job)[0]) > 0.01
    assert np.abs(batches.mean(0) - rate).max() < 5 * np.sqrt(rate * (1 - rate) / times)
    spread = batches.sum(1).var(ddof=1) * (times - 1) / (rows * rate * (1 - rate))
    assert stats.chi2.ppf(1e-6, times - 1) < spread < stats.chi2.isf(1e-6, times - 1)


# -- equal numbers of steps --------------------------------------------------------------------------------------------


def rare(vary=lambda ranks, ask: ask):
    """Forty steps of which most have no row on one rank or the other."""
    inputs, labels = table(6)

    def job(ranks):
        vault, drawn = LabelVault(labels, 2), 0
        ask = vary(ranks, over_ranks(GradientSum(linear(5), inputs, NormBound(1.0), 1.0, rate=0.05), ranks))
        lease = vault.lease(ask, 40)
        for _ in range(40):
            if not ranks.first:
                ranks.hear(Message.DRAW)
            lease()
            drawn += 1
        return drawn

    return together(job, group=Lockstep(2, 30))


def test_a_rank_without_a_row_in_the_batch_takes_the_step_too():
    assert rare() == [40, 40]


class Skips(RankedSum):
    """Planted: a rank that has nothing to add and does not take part."""

    def sample(self, labels, rng, /):
        if self.ranks.first or len(rows := self._rows(len(labels), rng)):
            return super().sample(labels, rng)
        assert len(rows) == 0
        return None


def test_a_rank_that_skips_an_empty_batch_is_noticed():
    """It comes to no release: the first rank is at a sum, the other at the next message."""
    found = rare(lambda ranks, ask: Skips(ask.whole, ranks))
    assert all(isinstance(one, Exception) for one in found)


# -- paying ------------------------------------------------------------------------------------------------------------


def test_no_rank_draws_before_the_first_has_paid():
    inputs, labels = table(30)
    events, lock = [], threading.Lock()

    def note(what):
        with lock:
            events.append(what)

    def job(ranks):
        vault = LabelVault(labels, 2, store=(lambda ledger: note("charged")) if ranks.first else None)
        original = vault._rng.words

        def words(count):
            note("drawn")
            return original(count)

        vault._rng.words = words
        settings = {"epsilon": 1.0, "delta": 1e-5, "steps": 3, "batch_size": 5, "denoiser": labeldp_pro.no_op()}
        labeldp_pro.train(linear(5), inputs, vault, **settings)

    results(job)
    assert events[0] == "charged"
    assert events.count("charged") == 1
    assert events.count("drawn") >= 6


def test_what_the_first_rank_cannot_pay_for_nobody_draws():
    inputs, labels = table(30)

    def refuse(ledger):
        raise ValueError("the store is closed")

    def job(ranks):
        vault = LabelVault(labels, 2, store=refuse if ranks.first else None)
        settings = {"epsilon": 1.0, "delta": 1e-5, "steps": 3, "batch_size": 5}
        labeldp_pro.train(linear(5), inputs, vault, **settings)

    first, other = together(job)
    assert str(first) == "the store is closed"
    assert isinstance(other, RankError)


class Killed(Exception):
    """In place of a kill."""


@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, sizes, monkeypatch):
    """None drawn twice; the certificate is that of the whole run, and says who was trusted at any time."""
    inputs, labels = table(30)
    drawn = []
    sample, shared = GradientSum.sample, RankedSum.sample

    def counted(self, labels, rng, /, how=sample):
        found = how(self, labels, rng)
        drawn.extend([found.value] if found is not None else [])
        return found

    monkeypatch.setattr(GradientSum, "sample", counted)
    monkeypatch.setattr(RankedSum, "sample", lambda self, labels, rng, /: counted(self, labels, rng, how=shared))

    def job(ranks, last):
        vault = LabelVault(labels, 2)

        def report(progress):
            if not last and progress.step % 4 == 0:
                raise Killed

        model = labeldp_pro.train(
            linear(5), inputs, vault, epsilon=2.0, delta=1e-5, steps=12, batch_size=6, every=1, report=report,
            denoiser=labeldp_pro.no_op(), folder=tmp_path / "run" if ranks is None or ranks.first else None,
        )  # fmt: skip
        return model.weight.detach().clone(), vault.certificate(1e-5)

    for number, size in enumerate(sizes):
        last = number == len(sizes) - 1
        if size == 1:
            try:
                found = [job(None, last)]
            except Killed:
                found = [Killed()]
        else:
            found = together(lambda ranks, last=last: job(ranks, last), size)
        assert isinstance(found[0], Killed) is not last
    assert len(drawn) == 12
    assert len({tuple(one.tolist()) for one in drawn}) == 12
    weights, claim = found[0]
    assert claim.groups[0].plans[0][0].times == 12
    assert TRUSTED in claim.assumptions
    assert all(torch.equal(one[0], weights) for one in found)


def test_noise_in_parts_is_said():
    inputs, labels = table(30)

    def job(ranks):
        vault = LabelVault(labels, 2)
        labeldp_pro.train(linear(5), inputs, vault, epsilon=1.0, delta=1e-5, steps=2, batch_size=5)
        return vault.certificate(1e-5)

    first, _ = results(job, 2, "each")
    assert NOISE_IN_PARTS in first.assumptions
    assert TRUSTED not in first.assumptions


# -- ranks that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "message"),
    [("inputs", "rank 1 has inputs, model or settings other than rank 0"), ("rows", "3 ranks for 2 rows"),
     ("settings", "rank 1 has inputs, model or settings other")],
)  # fmt: skip
def test_ranks_that_do_not_fit_are_refused_unpaid(odd, message):
    inputs, labels = table(2 if odd == "rows" else 30)

    def job(ranks):
        vault = LabelVault(labels, 2)
        own = inputs + 1 if odd == "inputs" and ranks.rank == 1 else inputs
        epsilon = 2.0 if odd == "settings" and ranks.rank == 1 else 1.0
        try:
            labeldp_pro.train(linear(5), own, vault, epsilon=epsilon, delta=1e-5, steps=2, batch_size=2)
        finally:
            assert vault.certificate(1e-5).epsilon == 0
            assert not vault.ledger.groups()[0].plans

    for found in together(job, 3 if odd == "rows" else 2):
        assert isinstance(found, RankError)
        assert message in str(found)


def test_a_rank_that_dies_is_one_sentence():
    inputs, labels = table(30)

    def job(ranks):
        vault = LabelVault(labels, 2)
        if not ranks.first:
            vault._rng.words = lambda count: 1 / 0
        settings = {"epsilon": 1.0, "delta": 1e-5, "steps": 5, "batch_size": 20, "denoiser": labeldp_pro.no_op()}
        labeldp_pro.train(linear(5), inputs, vault, **settings)

    first, _ = together(job)
    assert isinstance(first, RankError)
    assert str(first).startswith("another rank has stopped")
