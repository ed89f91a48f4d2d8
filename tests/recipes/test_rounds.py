"""Several queries: one budget split exactly, students in between, and a killed run that never queries twice."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.certificate import verify
from labeldp.core.events import Gaussian, Query
from labeldp.core.gaussian import gaussian_epsilon
from labeldp.core.inverse import gaussian_mu
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import adam
from labeldp.learning.train import accuracy, fit
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.models.zoo import with_head
from labeldp.recipes import distil, kept, one_shot
from labeldp.recipes.budget import split_budget
from labeldp.recipes.rounds import joined, train
from tests.trained import StopHereError, weights

K, N, SIDE, DELTA = 3, 1500, 10, 1e-5
FIT: Any = functools.partial(fit, epochs=4, batch_size=32, optimizer=adam(1e-2))
TEACH = functools.partial(distil.train, fit=FIT)
# Where it does not matter how well the student learns.
BRIEF_FIT = functools.partial(FIT, epochs=3, batch_size=256)
BRIEFLY = functools.partial(distil.train, fit=BRIEF_FIT)
QUICK = functools.partial(tune, plans=[Plan(6), Plan(12)], clusterings=2, draws=1)
LOOK = functools.partial(one_shot.train, tune=QUICK)


@functools.cache
def strokes(seed=0):
    """A stroke per image, near the middle: pixels tell the classes apart roughly, the shape of it exactly."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=N)
    strokes = np.stack([np.eye(4), np.fliplr(np.eye(4)), np.tile([0, 1, 0, 1], (4, 1))])
    images = 0.3 * generator.normal(size=(N, 1, SIDE, SIDE))
    for image, label, (top, left) in zip(images, labels, generator.integers(2, 5, size=(N, 2)), strict=True):
        image[0, top : top + 4, left : left + 4] += strokes[label]
    return torch.from_numpy(images).float(), labels


def vault(budget=None, seed=None):
    return LabelVault(strokes()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 16, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return with_head(body, 16, K)


def run(box, epsilon=2.0, delta=DELTA, **settings):
    images, _ = strokes()
    settings = {"query": LOOK, "teach": BRIEFLY, **settings}
    return train(network(), images, images.flatten(1), box, epsilon=epsilon, delta=delta, **settings)


@pytest.fixture
def drawn(monkeypatch):
    """Every moment that is really drawn."""
    queries, sample = [], Moments.sample

    def watched(self, labels, rng):
        queries.append(self)
        return sample(self, labels, rng)

    monkeypatch.setattr(Moments, "sample", watched)
    return queries


# -- the budget ----------------------------------------------------------------------------------------------


@given(
    st.floats(0.02, 8),
    st.sampled_from([1e-9, 1e-6, 1e-5, 1e-4]),
    st.lists(st.floats(0.05, 1), min_size=1, max_size=5),
)
def test_the_queries_together_cost_epsilon_and_hardly_less(epsilon, delta, raw):
    shares = [share / sum(raw) for share in raw]
    parts = split_budget(epsilon, delta, shares)
    noises = [GaussianNoise.for_budget(part, delta).std for part in parts]
    spent = epsilon_of([Query(Gaussian(std, math.sqrt(2.0))) for std in noises], delta)
    assert spent <= epsilon
    # Not all: `for_budget` rounds up until the discrete noise, too, meets the budget; far up where noise is little.
    if min(noises) > 4:
        assert spent >= epsilon * 0.99
        squares = np.array(noises) ** -2.0
        assert squares / squares.sum() == pytest.approx(shares, rel=0.02)
    assert all(part <= epsilon * (1 + 1e-9) for part in parts)


def test_one_share_is_one_look():
    assert split_budget(0.7, DELTA, [1.0])[0] == pytest.approx(0.7, rel=1e-7)


def test_a_planted_split_of_epsilon_instead_of_squares_is_told_apart():
    """Half of ε for each of two queries would waste a quarter of it, all of it for each would overspend."""
    together = gaussian_epsilon(math.sqrt(2.0) * gaussian_mu(0.5, DELTA), DELTA)
    assert together < 0.8
    assert gaussian_epsilon(math.sqrt(2.0) * gaussian_mu(1.0, DELTA), DELTA) > 1.4
    part = split_budget(1.0, DELTA, (0.5, 0.5))[0]
    assert gaussian_epsilon(math.sqrt(2.0) * gaussian_mu(part, DELTA), DELTA) == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.25, 0.75), (0.3, 0.3, 0.4)])
def test_the_certificate_says_epsilon(shares, drawn):
    box = vault(Budget(1.0, DELTA))
    found = run(box, 1.0, shares=shares)
    assert len(drawn) == len(found.shots) == len(shares)
    squares = np.array([query.noise.std for query in drawn]) ** -2.0
    assert squares / squares.sum() == pytest.approx(shares, rel=0.02)
    assert 0.99 <= box.certificate().epsilon <= 1.0
    assert verify(box.certificate()) == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shares": (0.5, 0.6)}, "shares"),
        ({"shares": ()}, "shares"),
        ({"shares": (1.0, 0.0)}, "shares"),
        ({"delta": 0.0}, "delta"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 1e-9}, "too small"),
    ],
)
def test_what_cannot_be_split_is_refused_unpaid(changed, words):
    box = vault()
    with pytest.raises(ValueError, match=words):
        run(box, **changed)
    assert box.certificate(DELTA).epsilon == 0.0


def test_all_queries_or_none(drawn):
    box = vault(Budget(0.99, DELTA))
    with pytest.raises(BudgetExceededError):
        run(box, 1.0)
    assert not drawn
    assert box.certificate().epsilon == 0.0


def test_rows_and_models_that_do_not_fit_are_refused_unpaid(drawn):
    images, _ = strokes()
    box = vault()
    settings = {"epsilon": 1.0, "delta": DELTA, "query": LOOK, "teach": TEACH}
    for model, inputs, features, words in (
        (network(), images[:10], images.flatten(1), "10 rows"),
        (network(), images, images[:10].flatten(1), "10 rows"),
        (nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, K)), images, images.flatten(1), "body"),
        (with_head(nn.Flatten(), SIDE**2, K + 1), images, images.flatten(1), "shape"),
    ):
        with pytest.raises(ValueError, match=words):
            train(model, inputs, features, box, **settings)
    assert not drawn
    assert box.certificate(DELTA).epsilon == 0.0


# -- learning ------------------------------------------------------------------------------------------------


def test_the_second_student_beats_the_first_head():
    images, labels = strokes()
    found = run(vault(seed=1), 1.0, teach=TEACH)
    head = found.shots[0].predict(images.flatten(1)).numpy()
    new, truth = strokes(7)
    assert (head == labels).mean() < 0.9
    assert accuracy(found.model, new, truth) > (head == labels).mean() + 0.03
    assert not found.model.training


def test_later_queries_see_the_students_features(drawn):
    """Public ones alone in the first round, then 16 of the student's beside them."""
    found = run(vault(seed=1))
    assert [shot.layer.in_features for shot in found.shots] == [SIDE**2, SIDE**2 + 16]
    assert found.probabilities.shape == (N, K)
    assert torch.allclose(found.probabilities.sum(dim=1), torch.ones(N), atol=1e-5)


def test_every_student_starts_from_the_first_weights():
    starts = []

    def watched(model, inputs, probabilities, /, *, folder):
        starts.append(weights(model).clone())
        return BRIEFLY(model, inputs, probabilities, folder=folder)

    run(vault(seed=1), teach=watched, shares=(0.3, 0.3, 0.4))
    assert len(starts) == 3
    assert all(torch.equal(start, weights(network())) for start in starts)


def test_the_second_look_corrects_the_guess():
    """The targets of round two are right more often than the mix of head and student they started from."""
    labels, taught = strokes()[1], []

    def watched(model, inputs, probabilities, /, *, folder):
        taught.append(probabilities.argmax(dim=1).numpy())
        return TEACH(model, inputs, probabilities, folder=folder)

    run(vault(seed=1), 1.0, teach=watched)
    first, second = ((guess == labels).mean() for guess in taught)
    assert second > first + 0.02


def test_blocks_weigh_alike():
    generator = torch.Generator().manual_seed(0)
    both = joined(100 * torch.randn(500, 3, generator=generator) + 7, torch.randn(500, 5, generator=generator))
    assert both.mean(dim=0).abs().max() < 1e-5
    assert both[:, :3].square().sum(dim=1).mean() == pytest.approx(1.0, rel=1e-4)
    assert both[:, 3:].square().sum(dim=1).mean() == pytest.approx(1.0, rel=1e-4)
    assert torch.isfinite(joined(torch.ones(4, 2), torch.ones(4, 2))).all()  # a dead layer


# -- resuming ------------------------------------------------------------------------------------------------


def stopping(at_round, at_epoch):
    """A `teach` that is killed in this epoch of this round's student."""
    begun = 0

    def teach(model, inputs, probabilities, /, *, folder):
        nonlocal begun
        begun += 1

        def stop(progress):
            if begun == at_round and progress.epoch == at_epoch:
                raise StopHereError

        bound = functools.partial(distil.train, fit=functools.partial(BRIEF_FIT, report=stop))
        return bound(model, inputs, probabilities, folder=folder)

    return teach


@pytest.mark.parametrize(("at_round", "paid"), [(2, 2), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_without_asking_again(tmp_path, drawn, at_round, paid):
    whole = weights(run(vault(seed=3)).model)
    drawn.clear()
    box = vault(Budget(2.0, DELTA), seed=3)
    with pytest.raises(StopHereError):
        run(box, folder=tmp_path, teach=stopping(at_round, 2))
    assert len(drawn) == paid
    assert torch.equal(weights(run(box, folder=tmp_path).model), whole)
    assert len(drawn) == 2
    assert 1.98 <= box.certificate().epsilon <= 2.0
    later = vault(Budget(2.0, DELTA), seed=99)
    assert torch.equal(weights(run(later, folder=tmp_path).model), whole)
    assert len(drawn) == 2
    assert later.certificate().epsilon == box.certificate().epsilon
    poor = vault(Budget(1.9, DELTA))
    with pytest.raises(BudgetExceededError):
        run(poor, folder=tmp_path)
    assert poor.certificate().epsilon == 0.0


def test_a_run_killed_between_charge_and_file_pays_for_the_lost_look(tmp_path, monkeypatch):
    """Charged, drawn, not yet kept: the query is lost, and querying again costs again; never less than was seen."""
    box = vault(seed=3)

    def killed(*_):
        raise StopHereError

    with monkeypatch.context() as patched:
        patched.setattr(kept, "save", killed)
        with pytest.raises(StopHereError):
            run(box, folder=tmp_path)
    # Both rounds are one plan, paid for with the first draw; the lost query takes the plan with it.
    assert box.certificate(DELTA).epsilon == pytest.approx(2.0, rel=0.01)
    run(box, folder=tmp_path)
    mu = gaussian_mu(2.0, DELTA)
    assert box.certificate(DELTA).epsilon == pytest.approx(gaussian_epsilon(mu * math.sqrt(2.0), DELTA), rel=0.02)


def test_a_folder_is_bound_to_its_question(tmp_path, drawn):
    run(vault(), folder=tmp_path)
    box = vault()
    others: list[dict[str, Any]] = [{"epsilon": 1.0}, {"shares": (0.4, 0.6)}]
    for other in others:
        with pytest.raises(ValueError, match="folder"):
            run(box, folder=tmp_path, **other)
    assert box.certificate(DELTA).epsilon == 0.0
    assert len(drawn) == 2
