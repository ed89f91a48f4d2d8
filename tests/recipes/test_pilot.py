"""A pilot decides: every row pays once, what was drawn is kept, and the better of the two ways is taken."""

import json
import math

import numpy as np
import pytest
import torch

from labeldp.core.certificate import verify
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.recipes import one_shot, pilot
from labeldp.recipes.learner import Taught
from labeldp.recipes.one_shot_kernel import Lifted

DELTA = 1e-6
X = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0))
CROSSED = (X[:, 0] * X[:, 1] > 0).long()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few cosines and rows, and no trees: what is tested is who pays and who decides."""
    monkeypatch.setattr("labeldp.learning.learners._COSINES", 150)
    monkeypatch.setattr("labeldp.learning.learners._MOST_COLUMNS", 0)
    monkeypatch.setattr(pilot, "COSINES", 100)
    monkeypatch.setattr(pilot, "_PLAYED", 1500)


def settled(monkeypatch, moment, responses):
    """Let the play end like this."""
    # Of features alone it is worse, so that cosines are taken.
    monkeypatch.setattr(pilot, "_moment_played", lambda *given: moment * (given[-1].shape[1] > 3))
    monkeypatch.setattr(pilot, "_responses_played", lambda *given: responses)


def right(found):
    return float((found.logits(X).argmax(dim=1) == CROSSED).double().mean())


def paid(vault):
    """How many rows were asked what: {events: rows}."""
    found = {}
    for group in vault.ledger.groups():
        events = tuple(type(query.event).__name__ for query in group.queries for _ in range(query.times))
        found[events] = found.get(events, 0) + group.rows
    return found


@pytest.mark.parametrize("moment", [False, True])
def test_every_row_pays_once_and_the_claim_is_epsilon(monkeypatch, moment):
    settled(monkeypatch, float(moment), 0.5)
    vault = LabelVault(CROSSED, 2, Budget(2.0, DELTA))
    found = pilot.train(X, vault, epsilon=2.0, delta=DELTA, share=0.2)
    assert found.pilot == 600
    assert isinstance(found.found, Lifted if moment else Taught)
    assert paid(vault) == ({("PureDP",): 600, ("GridGaussian",): 2400} if moment else {("PureDP",): 3000})
    certificate = vault.certificate(DELTA)
    assert certificate.epsilon <= 2.0
    assert verify(certificate) == ()
    assert ("for one noisy moment." in found.reason) == moment
    assert right(found) > 0.75


def test_responses_of_the_pilot_are_not_lost(monkeypatch):
    """All rows are taught, each by its own response: at a large ε responses are the labels themselves."""
    settled(monkeypatch, 0.0, 1.0)
    seen = []
    monkeypatch.setattr(pilot, "teach", lambda *given: seen.append(given) or teach(*given))
    found = pilot.train(X, LabelVault(CROSSED, 2), epsilon=20.0, delta=DELTA, share=0.3)
    assert [len(given[1]) for given in seen] == [900, 3000]
    # A planted mistake, the rest's responses before the pilot's, puts half of them on other rows' features.
    assert (seen[1][1].responses == CROSSED.numpy()).mean() > 0.999
    assert isinstance(found.found, Taught)


teach = pilot.teach


@pytest.mark.parametrize("moment", [False, True])
def test_a_stopped_run_goes_on_and_draws_nothing_twice(monkeypatch, tmp_path, moment):
    settled(monkeypatch, float(moment), 0.5)
    where = "labeldp.recipes.one_shot.fitted" if moment else "labeldp.recipes.pilot.NoisyLabels"
    with monkeypatch.context() as patch:
        patch.setattr(where, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pilot.train(X, LabelVault(CROSSED, 2), epsilon=2.0, delta=DELTA, share=0.2, folder=tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")}
    assert set(kept) == {"pilot.npz", "moment.npz" if moment else "responses.npz", *(["plan.npz"] if moment else [])}
    # The decision stands, even where it would be another one now.
    settled(monkeypatch, float(not moment), 0.5)
    vault = LabelVault(CROSSED, 2, Budget(2.0, DELTA))
    found = pilot.train(X, vault, epsilon=2.0, delta=DELTA, share=0.2, folder=tmp_path)
    assert isinstance(found.found, Lifted if moment else Taught)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")} == kept
    assert json.loads((tmp_path / "decision.json").read_text()) == [0.0, float(moment), 0.5]
    assert sum(paid(vault).values()) == 3000
    assert all(len(events) == 1 for events in paid(vault))


def test_what_cannot_be_afforded_is_refused_before_the_pilot_pays():
    for budget in (Budget(1.0, DELTA), Budget(2.0, 0.0)):
        vault = LabelVault(CROSSED, 2, budget)
        with pytest.raises(BudgetExceededError):
            pilot.train(X, vault, epsilon=2.0, delta=DELTA)
        assert not any(group.queries for group in vault.ledger.groups())


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan])
def test_a_share_that_is_none_is_refused(share):
    vault = LabelVault(CROSSED, 2)
    with pytest.raises(ValueError, match=f"share={share}"):
        pilot.train(X, vault, epsilon=2.0, delta=DELTA, share=share)
    assert not any(group.queries for group in vault.ledger.groups())


def test_what_is_played_tells_which_way_is_better():
    """By what is known and public seeds: responses that say little lose, and so does a moment of the wrong features."""
    known, view = Taught(torch.arange(3), torch.ones(3), ByTruth(), "truth", ()), pilot.seen_by_learners(X, None)
    responses = LabelVault(CROSSED, 2).release(pilot.RandomizedResponse(20.0, 2))
    _, how = teach(X, responses, view, (), 0, None)
    likely, seen = known.probabilities(X).double(), pilot.random_cosines(X, 100)(X)
    little, much = (pilot._responses_played(X, known, how, view, 3000, epsilon, 0) for epsilon in (0.15, 4.0))
    noise = one_shot.noise_by_width(one_shot.noise_for(0.15, DELTA))
    assert little < pilot._moment_played(likely, noise, 0, seen)
    # Of the columns alone a moment sees nothing of this label, however little noise there is.
    assert pilot._moment_played(likely, lambda _: 0.1, 0, X) < 0.6 < 0.9 < much


def test_the_moment_played_has_the_noise_of_the_real_one(monkeypatch):
    """A planted mistake, less noise where it is played, would praise the moment."""
    responses = LabelVault(CROSSED, 2).release(pilot.RandomizedResponse(6.0, 2))
    known, _ = teach(X, responses, pilot.seen_by_learners(X, None), (), 0, None)
    likely, seen = known.probabilities(X).double(), pilot.random_cosines(X, 100)(X)
    ways = [pilot._moment_played(likely, lambda _, std=std: std, 0, seen) for std in (0.1, 20.0, 1000.0)]
    assert ways[0] > ways[1] > ways[2]
    assert ways[0] > 0.85
    assert ways[2] < 0.75
    noise = one_shot.noise_by_width(one_shot.noise_for(0.05, DELTA))(100)
    played = []
    monkeypatch.setattr(pilot, "_moment_played", lambda *given: played.append(given[1](100)) or 0.0)
    monkeypatch.setattr(pilot, "_responses_played", lambda *given: 1.0)
    pilot.train(X, LabelVault(CROSSED, 2), epsilon=0.05, delta=DELTA)
    assert played == [noise, noise]


def test_fewer_rows_are_played_with_responses_that_say_as_much():
    """As many clean labels are in the responses played as in those of all rows: within five deviations, 6e-7."""
    seen = []

    class Stub:
        def again(self, task):
            seen.append(task)
            raise ZeroDivisionError

    known = Taught(torch.arange(3), torch.ones(3), ByTruth(), "truth", ())
    view = pilot.seen_by_learners(X, None)
    for rows, epsilon in ((3000, 1.0), (6000, 0.5)):
        with pytest.raises(ZeroDivisionError):
            pilot._responses_played(X, known, Stub(), view, rows, epsilon, 0)
        task, keeps = seen[-1], math.tanh(epsilon / 2)
        truth = (task.rows[:, 0] * task.rows[:, 1] > 0).long().numpy()
        signal = 2 * (task.private.hard() == truth).mean() - 1
        count = len(truth)
        assert signal**2 * count == pytest.approx(keeps**2 * rows, abs=5 * 2 * signal * math.sqrt(count))
        # The channel says what was done.
        assert task.private.channel.event() == PureDP(task.private.channel.epsilon)
        assert math.tanh(task.private.channel.epsilon / 2) == pytest.approx(keeps * math.sqrt(rows / count), rel=1e-6)


class ByTruth:
    """A model that knows the label."""

    def logits(self, rows):
        return torch.stack([torch.zeros(len(rows)), torch.where(rows[:, 0] * rows[:, 1] > 0, 50.0, -50.0)], dim=1)


def test_rows_of_the_pilot_do_not_depend_on_labels():
    chosen = []
    for labels in (CROSSED, 1 - CROSSED):
        vault = LabelVault(labels, 2)
        release = vault.release
        vault.release = lambda mechanism, rows=None, release=release: chosen.append(rows) or release(mechanism, rows)
        pilot.train(X, vault, epsilon=3.0, delta=DELTA, seed=5)
    assert np.array_equal(chosen[0], chosen[len(chosen) // 2])
