"""A pilot decides: every row pays once, what was drawn is kept, and the better of the two ways is taken."""

import json
import math

import numpy as np
import pytest
import torch

from labeldp.core.certificate import verify
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


def settled(monkeypatch, moment):
    """Let the pilot decide like this."""
    monkeypatch.setattr(pilot, "adapting", lambda *given: (100.0, 100.0 if moment else 200.0))
    # Of features alone a moment is worse, so that cosines are taken.
    monkeypatch.setattr(pilot, "_played", lambda *given: 0.5 + 0.1 * (given[-1].shape[1] > 3))


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
    settled(monkeypatch, moment)
    vault = LabelVault(CROSSED, 2, Budget(2.0, DELTA))
    found = pilot.train(X, vault, epsilon=2.0, delta=DELTA, share=0.2)
    assert found.pilot == 600
    assert isinstance(found.found, Lifted if moment else Taught)
    assert paid(vault) == ({("PureDP",): 600, ("GridGaussian",): 2400} if moment else {("PureDP",): 3000})
    certificate = vault.certificate(DELTA)
    assert certificate.epsilon <= 2.0
    assert verify(certificate) == ()
    assert ("for one noisy sum over all of them." in found.reason) == moment
    assert right(found) > 0.75


def test_responses_of_the_pilot_are_not_lost(monkeypatch):
    """All rows are taught, each by its own response: at a large ε responses are the labels themselves."""
    settled(monkeypatch, moment=False)
    seen = []
    monkeypatch.setattr(pilot, "teach", lambda *given: seen.append(given) or teach(*given))
    found = pilot.train(X, LabelVault(CROSSED, 2), epsilon=20.0, delta=DELTA, share=0.3)
    assert [len(given[1]) for given in seen] == [3000]
    # A planted mistake, the rest's responses before the pilot's, puts half of them on other rows' features.
    assert (seen[0][1].responses == CROSSED.numpy()).mean() > 0.999
    assert isinstance(found.found, Taught)


teach = pilot.teach


@pytest.mark.parametrize("moment", [False, True])
def test_a_stopped_run_goes_on_and_draws_nothing_twice(monkeypatch, tmp_path, moment):
    settled(monkeypatch, moment)
    where = "labeldp.recipes.one_shot.fitted" if moment else "labeldp.recipes.pilot.NoisyLabels"
    with monkeypatch.context() as patch:
        patch.setattr(where, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pilot.train(X, LabelVault(CROSSED, 2), epsilon=2.0, delta=DELTA, share=0.2, folder=tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")}
    assert set(kept) == {"pilot.npz", "moment.npz" if moment else "responses.npz", *(["plan.npz"] if moment else [])}
    # The decision stands, even where it would be another one now.
    settled(monkeypatch, not moment)
    vault = LabelVault(CROSSED, 2, Budget(2.0, DELTA))
    found = pilot.train(X, vault, epsilon=2.0, delta=DELTA, share=0.2, folder=tmp_path)
    assert isinstance(found.found, Lifted if moment else Taught)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")} == kept
    kept = json.loads((tmp_path / "decision.json").read_text())
    assert kept == pytest.approx([100, 100, 0.1] if moment else [100, 200, 0])
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


@pytest.mark.slow
def test_adapting_pays_where_two_of_many_columns_matter():
    """By public seeds and responses of a large ε: crossed columns among idle ones, and a sum of all of them."""
    wide = torch.randn(1500, 8, generator=torch.Generator().manual_seed(1))
    gains = []
    for labels in (wide[:, 0] * wide[:, 1] > 0, wide.sum(dim=1) > 0):
        responses = LabelVault(labels.long(), 2).release(pilot.RandomizedResponse(6.0, 2))
        fixed, adapts = pilot.adapting(pilot.Task.split(wide, responses, 0), 0)
        assert max(fixed, adapts) > pilot._LEARNT
        gains.append(adapts - fixed)
        assert pilot._respond(fixed, adapts, 1500, 2, 6.0) == (len(gains) == 1)
    assert gains[0] > 100 > 30 > gains[1]


def test_learners_are_judged_by_responses_that_did_not_teach_them():
    """Responses that are coins: what was learnt from them by heart would predict them, and gain."""
    coins = LabelVault(torch.zeros(600).long(), 2).release(pilot.RandomizedResponse(1e-6, 2))
    found = pilot.adapting(pilot.Task.split(X[:600], coins, 0), 0)
    assert max(found) < pilot._LEARNT
    # Then a formula decides, by public numbers.
    assert pilot._respond(*found, 9000, 2, 1.0)
    assert not pilot._respond(*found, 9000, 2, 0.5)


@pytest.mark.parametrize(
    ("fixed", "adapts", "respond"),
    [(25, 27, False), (25, 29, True), (100, 109, False), (100, 111, True), (100, 40, False)],
)
def test_a_gain_has_to_be_more_than_luck_and_more_than_less_noise_makes_up_for(fixed, adapts, respond):
    assert pilot._respond(fixed, adapts, 9000, 2, 0.5) == respond


def test_the_moment_played_has_the_noise_of_the_real_one(monkeypatch):
    """A planted mistake, less noise where it is played, would praise the moment of more directions."""
    responses = LabelVault(CROSSED, 2).release(pilot.RandomizedResponse(6.0, 2))
    known = teach(X, responses, pilot.seen_by_learners(X, None), (), 0, None)
    likely, seen = known.probabilities(X).double(), pilot.random_cosines(X, 100)(X)
    ways = [pilot._played(likely, lambda _, std=std: std, 0, seen) for std in (0.1, 20.0, 1000.0)]
    assert ways[0] > ways[1] > ways[2]
    assert ways[0] > 0.85
    assert ways[2] < 0.75
    # Of the columns alone a moment sees nothing of this label, however little noise there is.
    assert pilot._played(likely, lambda _: 0.1, 0, X) < 0.6
    noise = one_shot.noise_by_width(one_shot.noise_for(0.05, DELTA))(100)
    played = []
    monkeypatch.setattr(pilot, "_played", lambda *given: played.append(given[1](100)) or 0.0)
    monkeypatch.setattr(pilot, "adapting", lambda *given: (100.0, 100.0))
    pilot.train(X, LabelVault(CROSSED, 2), epsilon=0.05, delta=DELTA)
    assert played == [noise, noise]


def test_rows_of_the_pilot_do_not_depend_on_labels():
    chosen = []
    for labels in (CROSSED, 1 - CROSSED):
        vault = LabelVault(labels, 2)
        release = vault.release
        vault.release = lambda mechanism, rows=None, release=release: chosen.append(rows) or release(mechanism, rows)
        pilot.train(X, vault, epsilon=3.0, delta=DELTA, seed=5)
    assert np.array_equal(chosen[0], chosen[len(chosen) // 2])
