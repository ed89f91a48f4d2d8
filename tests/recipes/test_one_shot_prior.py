"""A head as prior of the responses: two queries that cost (ε, δ) together, a split without labels, training on both."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.certificate import verify
from labeldp.core.events import GridGaussian, PureDP, Query
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import linear, sgd
from labeldp.learning.train import accuracy, fit, predict
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.responses import TopKResponse, likely_sets
from labeldp.recipes import budget, distil, lp_mst, one_shot_prior, per_row
from labeldp.recipes.one_shot import event_of, noise_for
from labeldp.recipes.one_shot_prior import Split, informative_sets, train, tune_split
from tests.recipes.test_one_shot import modes
from tests.trained import StopHereError, stop_at, weights

K, N, WIDTH, DELTA = 5, 3000, 48, 1e-5
TRAIN = functools.partial(fit, epochs=6, batch_size=64, optimizer=sgd(0.05), schedule=linear())
# Where it does not matter how well the model learns.
BRIEFLY = functools.partial(TRAIN, epochs=4, batch_size=256)
quick = functools.partial(tune, plans=[Plan(8), Plan(32)], clusterings=2, draws=1)


def split_budget(epsilon, delta, share):
    """(ε₁, ε₂) of a moment and responses."""
    return budget.split_budget(epsilon, delta, (share, 1 - share), last_pure=True)


HALF = Split(*split_budget(1.0, DELTA, 0.5), expected=0.0)


@functools.cache
def problem():
    features, labels = modes(N + 4000, spread=0.5)
    return features[:N], labels[:N], features[N:], labels[N:]


def vault(budget=None, seed=None):
    return LabelVault(problem()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, K))


def run(box, epsilon=1.0, fit=BRIEFLY, split=HALF, **more):
    x = problem()[0]
    return train(network(), x, x, box, epsilon=epsilon, delta=DELTA, fit=fit, split=split, tune=quick, **more)


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "share"), [(0.5, 0.5), (1.0, 0.3), (2.0, 0.1)])
def test_the_ledger_composes_both_queries_to_epsilon(epsilon, share):
    box = vault(Budget(epsilon, DELTA))
    first, second = split_budget(epsilon, DELTA, share)
    found = run(box, epsilon, split=Split(first, second, 0.0))
    std = noise_for(first, DELTA).std
    (group,) = box.ledger.groups()
    events = {query.event: query.times for query in group.queries}
    assert events == {GridGaussian(std, math.sqrt(2)): 1, PureDP(second): 1}
    claim = box.certificate(DELTA)
    assert verify(claim) == ()
    assert claim.epsilon <= epsilon * (1 + 1e-9)
    assert claim.epsilon == pytest.approx(epsilon_of([Query(event) for event in events], DELTA), rel=1e-6)
    assert claim.epsilon > 0.998 * epsilon
    # Better than adding up, which any composition may.
    assert first > epsilon - second
    assert sum(map(len, found.responses)) == N


@given(st.floats(0.05, 6), st.floats(0.05, 0.95))
@settings(max_examples=25)
def test_any_split_fits_into_the_budget(epsilon, share):
    first, second = split_budget(epsilon, DELTA, share)
    queries = (Query(event_of(noise_for(first, DELTA))), Query(PureDP(second)))
    assert second == (1 - share) * epsilon
    assert epsilon_of(queries, DELTA) <= epsilon * (1 + 1e-9)


def test_all_on_the_head_asks_nothing_else():
    box = vault(Budget(0.5, DELTA))
    found = run(box, 0.5, TRAIN, Split(*split_budget(0.5, DELTA, 1.0), expected=0.0))
    assert found.responses == ()
    assert [query.times for query in box.ledger.groups()[0].queries] == [1]
    assert accuracy(found.model, *problem()[2:]) > 0.6


def test_a_split_that_costs_more_is_refused_unpaid():
    box = vault()
    with pytest.raises(ValueError, match="more than epsilon=1"):
        run(box, 1.0, split=Split(0.5, 0.6, 0.0))
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="shares="):
            split_budget(1.0, DELTA, share)
    with pytest.raises(ValueError, match="delta=0"):
        split_budget(1.0, 0.0, 0.5)
    with pytest.raises(ValueError, match="learn is empty"):
        run(box, learn=())
    with pytest.raises(ValueError, match="shares="):
        run(box, shares=(0.5, 0.4))
    with pytest.raises(ValueError, match="rows"):
        train(network(), problem()[0], problem()[0][:7], box, epsilon=1.0, delta=DELTA, fit=TRAIN)
    assert box.certificate(DELTA).epsilon == 0.0


def test_rows_outside_of_the_moment_respond_with_all_of_epsilon():
    box = vault(Budget(1.0, DELTA))
    parts = Split(*split_budget(1.0, DELTA, 0.7), expected=0.0, part=0.25)
    found = run(box, split=parts, shares=(0.5, 0.5))
    costs = {frozenset(query.event for query in group.queries): group.rows for group in box.ledger.groups()}
    moment = event_of(noise_for(parts.first, DELTA))
    assert costs == {frozenset({moment, PureDP(parts.second)}): N // 4, frozenset({PureDP(1.0)}): 3 * N // 4}
    assert found.shot.noisy.num_rows == N // 4
    assert [(response.channel.epsilon, len(response) > N // 12) for response in found.responses] == [
        (parts.second, True), (1.0, True), (parts.second, True), (1.0, True),
    ]  # fmt: skip
    assert sum(map(len, found.responses)) == N
    claim = box.certificate(DELTA)
    assert verify(claim) == ()
    assert claim.epsilon == pytest.approx(1.0, rel=1e-4)


def test_rows_of_the_moment_need_not_respond():
    box = vault(Budget(1.0, DELTA))
    found = run(box, split=Split(1.0, 0.0, 0.0, part=0.25), shares=(1.0,))
    assert [len(response) for response in found.responses] == [3 * N // 4]
    assert box.certificate(DELTA).epsilon <= 1.0
    inside, outside = found.split.rows(N, seed=0)
    assert len(np.intersect1d(inside, outside)) == 0
    assert len(inside) + len(outside) == N


@pytest.mark.parametrize("part", [0.0, -0.5, 1.5, math.nan])
def test_a_part_that_is_none_is_refused_unpaid(part):
    box = vault()
    with pytest.raises(ValueError, match=r"split\.part="):
        run(box, split=Split(0.5, 0.4, 0.0, part=part))
    assert box.certificate(DELTA).epsilon == 0.0


def test_a_killed_run_with_rows_outside_resumes_without_asking_again(tmp_path):
    parts = Split(0.5, 0.4, 0.0, part=0.5)
    whole = weights(run(vault(seed=3), split=parts).model)
    box = vault(Budget(1.0, DELTA), seed=3)

    stop = stop_at(epoch=3)

    with pytest.raises(StopHereError):
        run(box, fit=functools.partial(BRIEFLY, report=stop), split=parts, folder=tmp_path)
    paid = box.certificate(DELTA).epsilon
    assert torch.equal(weights(run(box, split=parts, folder=tmp_path).model), whole)
    assert box.certificate(DELTA).epsilon == paid
    later = vault(Budget(1.0, DELTA))
    assert torch.equal(weights(run(later, split=parts, folder=tmp_path).model), whole)
    assert later.certificate(DELTA).epsilon == pytest.approx(paid, rel=1e-9)


def test_a_better_prior_of_the_last_stage_is_what_is_learnt_from():
    seen, given = [], []

    def better(model, inputs, known, **settings):
        given.append(known)
        return known.scores + 1.0

    def spy(known):
        seen.extend([known] * (len(known.responses) > 3))
        return lp_mst.posterior_of_model(known)

    run(vault(seed=2), learn=[spy], shares=(0.6, 0.4), judge=better)
    assert len(given) == 1
    assert torch.equal(seen[-1].scores, given[0].scores + 1.0)
    assert int((given[0].evidence != 0).any(dim=1).sum()) == N


def test_both_queries_or_none():
    box = vault(Budget(0.9, DELTA))
    with pytest.raises(BudgetExceededError):
        run(box)
    assert box.certificate(DELTA).epsilon == 0.0


# -- the split ---------------------------------------------------------------------------------------------------------


def test_the_split_is_tuned_without_labels():
    """Small ε goes to the head, large ε to the responses."""
    x = problem()[0]
    small, large = (tune_split(x, K, epsilon, DELTA, shares=(0.1, 0.5, 1.0)) for epsilon in (0.1, 5.0))
    assert small.second == 0.0
    assert large.second == pytest.approx(4.5)
    assert 0 < small.expected < large.expected <= 1


def test_the_expected_share_is_that_of_real_responses():
    """Responses to pseudo-labels under the prior are right as often as the tuning says: real labels of that kind."""
    x, labels, _, _ = problem()
    split = tune_split(x, K, 2.0, DELTA, shares=(0.2,))
    found = run(vault(seed=1), 2.0, split=split, sets=likely_sets, shares=(1.0,))
    assert (found.responses[0].responses == labels.numpy()).mean() == pytest.approx(split.expected, abs=0.12)


def test_it_is_split_when_nothing_is_said(monkeypatch):
    def some(features, classes, epsilon, delta):
        return Split(*split_budget(epsilon, delta, 0.3), expected=0.5)

    monkeypatch.setattr(one_shot_prior, "tune_split", some)
    assert run(vault(), 2.0, split=None).split.second == pytest.approx(1.4)


# -- responses and prior together ------------------------------------------------------------------------------------


def test_responses_come_from_the_classes_that_are_likely():
    found = run(vault(seed=2), shares=(0.7, 0.3))
    assert [len(part) for part in found.responses] == [7 * N // 10, 3 * N // 10]
    for part in found.responses:
        channel = part.channel
        assert channel.epsilon == HALF.second
        assert 2 <= channel.set_sizes().min() < K
        assert channel.members()[np.arange(len(part)), part.responses].all()


def mutual_information(prior, members, epsilon):
    """From the channel itself: Σ p_y P(ỹ|y) log P(ỹ|y)/P(ỹ)."""
    channel = TopKResponse(epsilon, members)
    chances = np.stack([channel.probabilities(y)[0] for y in range(len(prior))])
    marginal = prior @ chances
    ratio = np.where(chances > 0, chances / np.where(marginal > 0, marginal, 1.0), 1.0)
    return float((prior[:, None] * chances * np.log(ratio)).sum())


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=5), st.floats(0.05, 6.0))
@settings(max_examples=60)
def test_informative_sets_tell_most(weights, epsilon):
    """No top-k set has more mutual information, by the stated channel of the responses."""
    prior = np.array(weights) / sum(weights)
    chosen = informative_sets(prior[None], epsilon)[0]
    order = np.argsort(-prior, kind="stable")
    others = [np.isin(np.arange(len(prior)), order[:k]) for k in range(1, len(prior) + 1)]
    best = max(mutual_information(prior, members, epsilon) for members in others)
    assert mutual_information(prior, chosen, epsilon) == pytest.approx(best, abs=1e-9)


def test_a_sure_prior_still_asks_something():
    assert informative_sets([[0.999, 0.0006, 0.0004]], 2.0).sum() >= 2
    assert likely_sets(np.array([[0.999, 0.0006, 0.0004]]), 2.0).sum() == 1


@pytest.mark.slow
def test_better_than_responses_alone():
    x, _, fresh, truth = problem()
    plain = per_row.forward(network(), x, vault(seed=3), epsilon=1.0, fit=TRAIN)
    assert accuracy(run(vault(seed=3), fit=TRAIN).model, fresh, truth) > accuracy(plain, fresh, truth) + 0.05


def test_the_learners_take_turns():
    seen = []

    def spy(known):
        # Before any row responds, it is tried on three that are made up.
        seen.extend([known] * (len(known.responses) > 3))
        return lp_mst.likelihood(known)

    found = run(vault(seed=2), learn=[spy, spy], shares=(0.6, 0.4))
    assert len(seen) == 3, "two in the first stage, one in the second"
    head, own, last = seen
    torch.testing.assert_close(head.scores, found.shot.logits(problem()[0]))
    assert not torch.equal(own.scores, head.scores)
    assert int((last.evidence != 0).any(dim=1).sum()) == N


# -- killed runs -------------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_without_asking_again(tmp_path, monkeypatch):
    whole = weights(run(vault(seed=3)).model)
    box = vault(Budget(1.0, DELTA), seed=3)
    with monkeypatch.context() as patched:
        patched.setattr(one_shot_prior, "release_labels", lambda *_, **__: (_ for _ in ()).throw(StopHereError))
        with pytest.raises(StopHereError):
            run(box, folder=tmp_path)
    # Moment and responses are one plan, paid for with the first draw.
    between = box.certificate(DELTA).epsilon
    assert 0.99 < between <= 1.0

    stop = stop_at(epoch=3)

    with pytest.raises(StopHereError):
        run(box, fit=functools.partial(BRIEFLY, report=stop), folder=tmp_path)
    paid = box.certificate(DELTA).epsilon
    assert torch.equal(weights(run(box, folder=tmp_path).model), whole)
    assert box.certificate(DELTA).epsilon == paid == between
    later = vault(Budget(1.0, DELTA))
    assert torch.equal(weights(run(later, folder=tmp_path).model), whole)
    assert later.certificate(DELTA).epsilon == pytest.approx(paid, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        run(vault(Budget(0.9, DELTA)), folder=tmp_path)


def test_noise_is_not_that_of_learning():
    """Learning randomness is not privacy randomness: two vaults, one learning seed, other responses."""
    first, second = (run(vault()) for _ in range(2))
    assert not np.array_equal(first.responses[0].responses, second.responses[0].responses)


def test_the_model_can_begin_as_the_head():
    """The body is the features' own, so what the first training begins with is the head."""
    x, seen = problem()[0], []

    def look_at(model, inputs, objective, **settings):
        seen.append(predict(model, inputs))
        return model

    model = nn.Sequential(OrderedDict(body=nn.Identity(), head=nn.Linear(WIDTH, K)))
    found = train(model, x, x, vault(), epsilon=1.0, delta=DELTA, fit=look_at, split=HALF, tune=quick, begin=True)
    both = torch.stack((seen[0].flatten(), found.shot.logits(x).flatten()))
    assert torch.corrcoef(both)[0, 1] > 0.99


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, scores):
        return self.factor * scores


def test_what_was_distilled_is_the_prior_and_its_confidence_is_corrected():
    """A student of the head whose scores are twenty times too large."""
    seen, studied = [], []

    def too_sure(model, inputs, shot):
        student = distil.train_after(shot, problem()[0], model, inputs, fit=TRAIN, generations=1)
        model = nn.Sequential(student, Times(20.0))
        studied.append(predict(model, inputs))
        return model

    def spy(known):
        # Before any row responds, it is tried on three that are made up.
        seen.extend([known] * (len(known.responses) > 3))
        return lp_mst.posterior_of_model(known)

    box = vault(seed=5)
    parts = Split(*split_budget(3.0, DELTA, 0.2), expected=0.0)
    run(box, 3.0, split=parts, distil=too_sure, learn=[spy], shares=(1.0,))
    (known,) = seen
    right = problem()[1]
    prior = known.scores.softmax(dim=1)
    hit = float((prior.argmax(dim=1).numpy() == np.asarray(right)).mean())
    # Honest: as sure as it is right, and no row's answer had a part in it.
    assert float(prior.amax(dim=1).mean()) == pytest.approx(hit, abs=0.03)
    assert torch.equal(prior.argmax(dim=1), studied[0].argmax(dim=1))
    assert float(studied[0].softmax(dim=1).amax(dim=1).mean()) > hit + 0.05
    assert box.certificate(DELTA).epsilon <= 3.0


def test_rows_keep_the_prior_they_were_asked_under():
    """In the second stage the model has learnt the first stage's responses by heart; their prior does not know them."""
    seen = []

    def spy(known):
        # Before any row responds, it is tried on three that are made up.
        seen.extend([known] * (len(known.responses) > 3))
        return lp_mst.posterior_of_model(known)

    run(vault(seed=5), distil=lambda model, inputs, shot: model, learn=[spy], shares=(0.6, 0.4), seed=1)
    first, second = seen
    early, late = lp_mst.split(N, (0.6, 0.4), 1)
    assert torch.equal(second.scores[early], first.scores[early])
    assert not torch.allclose(second.scores[late], first.scores[late])


def test_what_the_model_is_held_to_believe_is_the_prior():
    """Of the study, and of every stage after it."""
    seen, asked = [], []

    def believe(model, inputs):
        asked.append(-predict(model, inputs))
        return asked[-1]

    def spy(known):
        seen.extend([known.scores] * (len(known.responses) > 3))
        return lp_mst.posterior_of_model(known)

    settings = {"learn": [spy], "shares": (0.6, 0.4), "seed": 1, "believe": believe}
    run(vault(seed=5), distil=lambda model, inputs, shot: model, **settings)
    late = lp_mst.split(N, (0.6, 0.4), 1)[1]
    for scores, belief in zip(seen, asked, strict=False):
        assert torch.equal(scores[late].argmax(dim=1), belief[late].argmax(dim=1))
    assert len(asked) == 3


def test_distillation_alone_where_nothing_is_left_for_responses():
    box, seen = vault(seed=5), []

    def study(model, inputs, shot):
        seen.append(shot)
        return model

    def never(*_, **__):
        raise AssertionError

    whole = Split(1.0, 0.0, 0.0)
    found = run(box, split=whole, distil=study, fit=never)
    assert seen == [found.shot]
    assert found.responses == ()


@pytest.mark.parametrize("inputs", ["tuple", "tensor"])
def test_a_model_that_cannot_begin_is_refused_unpaid(inputs):
    box, x = vault(), problem()[0]
    given = (x,) if inputs == "tuple" else x
    with pytest.raises(ValueError, match=r"begin|body"):
        train(network(), given, x, box, epsilon=1.0, delta=DELTA, fit=TRAIN, split=HALF, tune=quick, begin=True)
    assert box.certificate(DELTA).epsilon == 0
