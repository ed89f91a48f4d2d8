"""LabelDP-Pro in a folder: a run that was cut goes on honestly, and a folder belongs to one question."""

import pytest
import torch
from torch import nn

from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import adam, linear, sgd
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.recipes.denoisers import alt_conv, alt_rows, no_op, self_conv, self_span
from tests.budgets.journalstore import JournalStore
from tests.recipes.clouds import DELTA, K, network, problem, some, vault
from tests.trained import StopHereError, stop_at, weights

DENOISERS = {
    "no_op": no_op(),
    "alt_conv": alt_conv(rows=20, tolerance=0.2),
    "alt_rows": alt_rows(rows=20, tolerance=0.2),
    "self_span": self_span(),
}
# One whose batches are secret and one whose batches are named, both with a projection; the others are the same code.
_LONG = ("alt_conv", "no_op")
every_denoiser = pytest.mark.parametrize(
    "denoiser",
    [pytest.param(one, id=name, marks=[pytest.mark.slow] * (name in _LONG)) for name, one in DENOISERS.items()],
)


@every_denoiser
def test_a_cut_run_goes_on_with_the_same_vault_as_if_it_were_not(denoiser, tmp_path, drawn):
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 3, "denoiser": denoiser, "every": 1, "average": 0.5}
    whole = weights(some(network(), x, vault(seed=3), **settings))
    assert len(drawn) == 30
    drawn.clear()
    box = vault(Budget(1.0, DELTA), seed=3)
    for start, step in enumerate((4, 16, 25)):
        with pytest.raises(StopHereError):
            some(network(start), x, box, **settings, folder=tmp_path, report=stop_at(step=step))
        assert len(drawn) == step
    resumed = some(network(2), x, box, **settings, folder=tmp_path)
    assert len(drawn) == 30
    assert torch.equal(weights(resumed), whole)
    assert box.certificate().epsilon == pytest.approx(1.0, rel=1e-4)
    again = some(network(), x, box, **settings, folder=tmp_path)
    assert torch.equal(weights(again), whole)
    assert len(drawn) == 30


@every_denoiser
def test_a_new_vault_pays_for_the_whole_run_and_draws_the_rest(denoiser, tmp_path, drawn):
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 2, "denoiser": denoiser, "every": 1, "folder": tmp_path / "run"}
    journal = Journal.open(tmp_path / "labels.journal", Budget(1.0, DELTA))
    epsilons = []
    for step in (3, 9, 15):
        box = vault(Budget(1.0, DELTA), store=JournalStore(journal))
        with pytest.raises(StopHereError):
            some(network(), x, box, **settings, report=stop_at(step=step))
        epsilons.append(box.certificate().epsilon)
    box = vault(Budget(1.0, DELTA), store=JournalStore(journal))
    some(network(), x, box, **settings)
    assert len(drawn) == 20
    assert {*epsilons, box.certificate().epsilon, journal.epsilon(DELTA)} == {box.certificate().epsilon}
    assert len(journal.notes()) == 1
    poor = vault(Budget(0.5, DELTA))
    with pytest.raises(BudgetExceededError):
        some(network(), x, poor, **settings)


def test_a_look_that_fails_is_lost_not_repeated(tmp_path, monkeypatch):
    x, _ = problem()
    sample, begun = GradientSum.sample, []

    def fails_once(self, labels, rng):
        begun.append(1)
        if len(begun) == 5:
            raise RuntimeError("out of memory")
        return sample(self, labels, rng)

    monkeypatch.setattr(GradientSum, "sample", fails_once)
    settings = {"epsilon": 1.0, "steps": 12, "denoiser": no_op(), "folder": tmp_path}
    with pytest.raises(RuntimeError, match="withheld"):
        some(network(), x, vault(), **settings)
    box = vault()
    some(network(), x, box, **settings)
    assert len(begun) == 12
    assert box.ledger.groups()[0].queries[0].times == 12


OTHER = {
    "model": {"model": nn.Linear(5, K, bias=False)},
    "inputs": {"inputs": problem()[0] + 1},
    "labels": {"inputs": problem(300)[0], "n": 300},
    "epsilon": {"epsilon": 1.5},
    "delta": {"delta": 1e-6},
    "length": {"epochs": 3},
    "batch_size": {"batch_size": 50},
    "bound": {"bound": NormBound(2.0)},
    "denoiser": {"denoiser": alt_conv(rows=10)},
    "smoothing": {"denoiser": alt_conv(rows=20, tolerance=0.2, smoothing=0.5)},
    "kind": {"denoiser": self_conv()},
    "loss": {"loss": nn.functional.cross_entropy},
    "optimizer": {"optimizer": adam(0.1)},
    "learning rate": {"optimizer": sgd(0.5, 0.0, 0.0)},
    "schedule": {"schedule": linear()},
    "average": {"average": 0.5},
    "seed": {"seed": 1},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_a_folder_of_another_question_is_refused_unpaid(change, tmp_path):
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 1, "denoiser": alt_conv(rows=20, tolerance=0.2), "folder": tmp_path}
    some(network(), x, vault(), **settings)
    settings.update(change)
    box = vault(n=settings.pop("n", 600))
    model, inputs = settings.pop("model", network()), settings.pop("inputs", x)
    with pytest.raises(ValueError, match="another question"):
        some(model, inputs, box, **settings)
    assert box.certificate(DELTA).epsilon == 0.0


def test_two_runs_do_not_share_a_folder_at_once(tmp_path):
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 1, "denoiser": no_op(), "folder": tmp_path}
    refused = []

    def report(_):
        with pytest.raises(ValueError, match="in use") as caught:
            some(network(), x, vault(), **settings)
        refused.append(caught)

    some(network(), x, vault(), **settings, report=report)
    assert refused


def test_a_lost_checkpoint_is_noticed(tmp_path):
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 1, "denoiser": no_op(), "folder": tmp_path}
    some(network(), x, vault(), **settings)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match="lost its checkpoint"):
        some(network(), x, vault(), **settings)


def test_another_runs_checkpoint_is_not_taken(tmp_path):
    """Settings alike, queries not: weights that were paid for elsewhere must not come back under this certificate."""
    x, _ = problem()
    settings = {"epsilon": 1.0, "epochs": 1, "denoiser": no_op()}
    some(network(), x, vault(), **settings, folder=tmp_path / "a")
    some(network(), x, vault(), **settings, folder=tmp_path / "b")
    (tmp_path / "a" / "checkpoint.safetensors").replace(tmp_path / "b" / "checkpoint.safetensors")
    box = vault()
    with pytest.raises(ValueError, match="another run"):
        some(network(), x, box, **settings, folder=tmp_path / "b")
    assert box.certificate(DELTA).epsilon == 0.0


def test_no_label_is_written_to_the_folder(tmp_path):
    """Other labels, same noise: the count on disk is the same, and only releases are kept besides it."""
    x, labels = problem()
    for name, truth in (("a", labels), ("b", (labels + 1) % K)):
        box = LabelVault(truth, K, rng=SecureRandom(1))
        some(network(), x, box, epsilon=1.0, epochs=1, denoiser=no_op(), folder=tmp_path / name)
    counters = [(tmp_path / name / "gradients.counter").read_text().splitlines() for name in "ab"]
    assert counters[0][1:] == counters[1][1:]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "checkpoint.safetensors",
        "gradients.counter",
        "gradients.log",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_denoiser
def test_on_a_gpu(denoiser, tmp_path, drawn):
    x, _ = problem()
    box = vault(Budget(1.0, DELTA), seed=3)
    settings = {"epsilon": 1.0, "epochs": 3, "denoiser": denoiser, "every": 1, "average": 0.5, "folder": tmp_path}
    with pytest.raises(StopHereError):
        some(network().cuda(), x.cuda(), box, **settings, report=stop_at(step=23))
    model = some(network(1).cuda(), x.cuda(), box, **settings)
    assert len(drawn) == 30
    assert weights(model).is_cuda
    assert torch.isfinite(weights(model)).all()
    assert box.certificate().epsilon == pytest.approx(1.0, rel=1e-4)
