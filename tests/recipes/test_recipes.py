"""Every recipe learns, costs what it says, and leaves a certificate; LP-MST's own rules have their own tests."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import linear, sgd
from labeldp.learning.train import accuracy, fit, predict
from labeldp.recipes import lp_mst, per_row
from labeldp.recipes.lp_mst import Prior, plausible, sharpened, split, stage_prior
from tests.trained import StopHereError, stop_at, weights

K = 4
TRAIN = functools.partial(fit, epochs=8, batch_size=64, optimizer=sgd(0.05), schedule=linear())
# Where it does not matter how well the model learns.
BRIEFLY = functools.partial(TRAIN, batch_size=512)


@functools.cache
def problem(n=3000, seed=0):
    """Four Gaussian clouds that a linear model separates nearly perfectly."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=n)
    centres = 3 * np.eye(K, 6)
    x = torch.from_numpy(centres[labels] + generator.normal(size=(n, 6))).float()
    return x, labels


def vault(budget=None, seed=None, n=3000):
    return LabelVault(problem(n)[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(6, K)


# One line for each method that queries every row once: (name, train).
RECIPES = [
    ("rr", per_row.rr),
    ("debiased", per_row.debiased),
    ("forward", per_row.forward),
    ("alibi", per_row.alibi),
    ("lp_mst", lp_mst.train),
    ("lp_mst, three stages", functools.partial(lp_mst.train, shares=(0.5, 0.3, 0.2))),
]
every_recipe = pytest.mark.parametrize("train", [r for _, r in RECIPES], ids=[name for name, _ in RECIPES])


@every_recipe
def test_it_learns_and_costs_epsilon(train):
    x, labels = problem()
    box = vault(Budget(2.0))
    model = train(network(), x, box, epsilon=2.0, fit=TRAIN)
    certificate = box.certificate()
    assert certificate.epsilon == 2.0
    assert verify(certificate) == ()
    assert accuracy(model, x, labels) > 0.85
    assert not model.training


@every_recipe
def test_past_the_budget_it_stops_before_anything_is_drawn(train):
    x, _ = problem()
    box = vault(Budget(1.0))
    with pytest.raises(BudgetExceededError):
        train(network(), x, box, epsilon=2.0, fit=BRIEFLY)
    assert box.certificate().epsilon == 0.0


@every_recipe
def test_the_same_seeds_give_the_same_model(train):
    x, _ = problem()
    first, second = (weights(train(network(), x, vault(seed=3), epsilon=1.0, fit=BRIEFLY)) for _ in range(2))
    assert torch.equal(first, second)


@every_recipe
def test_no_privacy_is_ordinary_training(train):
    x, labels = problem()
    box = vault()
    model = train(network(), x, box, epsilon=math.inf, fit=TRAIN)
    assert accuracy(model, x, labels) > 0.95
    assert box.certificate().epsilon == math.inf


@every_recipe
def test_epsilon_zero_learns_nothing_and_costs_nothing(train):
    x, _ = problem()
    box = vault()
    model = train(network(), x, box, epsilon=0.0, fit=BRIEFLY)
    assert torch.isfinite(weights(model)).all()
    assert box.certificate().epsilon == 0.0


@every_recipe
def test_one_class_is_learnt_without_a_look_that_matters(train):
    x = torch.randn(50, 6)
    model = train(nn.Linear(6, 1), x, LabelVault([0] * 50, 1), epsilon=1.0, fit=BRIEFLY)
    assert predict(model, x).shape == (50, 1)


@every_recipe
def test_rows_that_do_not_match_are_refused_unpaid(train):
    box = vault()
    with pytest.raises(ValueError, match="10 rows"):
        train(network(), torch.zeros(10, 6), box, epsilon=1.0, fit=BRIEFLY)
    assert box.certificate().epsilon == 0.0


@every_recipe
def test_a_killed_run_resumes_without_asking_again(train, tmp_path):
    x, _ = problem()
    whole = weights(train(network(), x, vault(seed=3), epsilon=1.0, fit=BRIEFLY))
    box = vault(Budget(1.0), seed=3)

    stop = stop_at(epoch=3)

    with pytest.raises(StopHereError):
        train(network(), x, box, epsilon=1.0, fit=functools.partial(BRIEFLY, report=stop), folder=tmp_path)
    resumed = train(network(), x, box, epsilon=1.0, fit=BRIEFLY, folder=tmp_path)
    assert box.certificate().epsilon == 1.0
    assert torch.equal(weights(resumed), whole)


@every_recipe
def test_a_run_continued_with_a_new_vault_is_paid_for_there_too(train, tmp_path):
    """A new process has a new vault: its certificate must cover the kept responses, and its budget must allow them."""
    x, _ = problem()
    first = train(network(), x, vault(seed=3), epsilon=1.0, fit=BRIEFLY, folder=tmp_path)
    later = vault(Budget(1.0), seed=99)
    again = train(network(), x, later, epsilon=1.0, fit=BRIEFLY, folder=tmp_path)
    assert torch.equal(weights(first), weights(again))
    assert later.certificate().epsilon == 1.0
    poor = vault(Budget(0.5))
    with pytest.raises(BudgetExceededError):
        train(network(), x, poor, epsilon=1.0, fit=BRIEFLY, folder=tmp_path)


@every_recipe
def test_responses_to_another_question_are_not_taken_for_this_one(train, tmp_path):
    x, _ = problem()
    train(network(), x, vault(), epsilon=4.0, fit=BRIEFLY, folder=tmp_path)
    box = vault(Budget(1.0))
    with pytest.raises(ValueError, match="another query"):
        train(network(), x, box, epsilon=1.0, fit=BRIEFLY, folder=tmp_path)
    assert box.certificate().epsilon == 0.0
    smaller = LabelVault([0, 1, 2, 3] * 10, K)
    with pytest.raises(ValueError, match="another query"):
        train(network(), x[:40], smaller, epsilon=4.0, fit=BRIEFLY, folder=tmp_path)


def test_a_model_of_other_responses_is_not_resumed(tmp_path):
    """The checkpoint of a clear-text run must not come back as the model of a private one."""
    x, _ = problem()
    clear = per_row.rr(network(), x, vault(), epsilon=math.inf, fit=BRIEFLY, folder=tmp_path)
    (tmp_path / "responses.npz").unlink()
    (tmp_path / "responses.counter").unlink()
    model = per_row.rr(network(), x, vault(seed=1), epsilon=0.0, fit=BRIEFLY, folder=tmp_path)
    elsewhere = per_row.rr(network(), x, vault(seed=1), epsilon=0.0, fit=BRIEFLY)
    assert torch.equal(weights(model), weights(elsewhere))
    assert not torch.equal(weights(model), weights(clear))


def test_another_split_does_not_reuse_a_stages_responses(tmp_path):
    x, _ = problem()
    lp_mst.train(network(), x, vault(), epsilon=1.0, fit=BRIEFLY, folder=tmp_path, seed=0)
    with pytest.raises(ValueError, match="rows queried"):
        lp_mst.train(network(), x, vault(), epsilon=1.0, fit=BRIEFLY, folder=tmp_path, seed=1)


@every_recipe
@pytest.mark.parametrize(
    ("model", "features", "what"),
    [
        (nn.Linear(6, 2), torch.zeros(3000, 6), r"\(1, 2\)"),
        (nn.Linear(6, K), np.zeros((3000, 6)), "ndarray"),
    ],
)
def test_a_model_or_features_that_do_not_fit_cost_nothing(train, model, features, what):
    box = vault()
    with pytest.raises(ValueError, match=what):
        train(model, features, box, epsilon=1.0, fit=BRIEFLY)
    assert box.certificate().epsilon == 0.0


def test_one_row():
    box = LabelVault([2], K)
    per_row.rr(network(), torch.zeros(1, 6), box, epsilon=1.0, fit=BRIEFLY)
    lp_mst.train(network(), torch.zeros(1, 6), box, epsilon=1.0, fit=BRIEFLY, shares=(1.0,))


# --- LP-MST ---


def test_one_stage_with_a_uniform_prior_is_lp_1st_to_the_bit():
    x, _ = problem()
    plain = per_row.rr(network(), x, vault(seed=3), epsilon=1.0, fit=functools.partial(BRIEFLY, mixup=4.0))
    staged = lp_mst.train(
        network(), x, vault(seed=3), epsilon=1.0, fit=functools.partial(BRIEFLY, mixup=4.0), shares=(1.0,)
    )
    assert torch.equal(weights(plain), weights(staged))


def test_the_ledger_sees_one_look_per_row_whatever_the_stages():
    x, _ = problem()
    box = vault()
    lp_mst.train(network(), x, box, epsilon=1.5, fit=BRIEFLY, shares=(0.25,) * 4)
    (group,) = box.ledger.groups()
    assert group.rows == 3000
    assert [query.times for query in group.queries] == [1]


def test_the_split_is_a_partition_that_depends_on_the_seed_only():
    stages = split(1000, (0.6, 0.3, 0.1), seed=7)
    assert [len(s) for s in stages] == [600, 300, 100]
    assert sorted(np.concatenate(stages)) == list(range(1000))
    assert all((np.diff(s) > 0).all() for s in stages)
    assert all(np.array_equal(a, b) for a, b in zip(stages, split(1000, (0.6, 0.3, 0.1), seed=7), strict=True))
    assert not np.array_equal(stages[0], split(1000, (0.6, 0.3, 0.1), seed=8)[0])


@pytest.mark.parametrize("shares", [(), (0.5, 0.6), (1.2, -0.2), (0.0, 1.0)])
def test_shares_that_do_not_split_are_refused(shares):
    with pytest.raises(ValueError, match="shares"):
        split(100, shares, 0)


def test_more_stages_than_rows_is_refused_unpaid():
    box = LabelVault([0, 1], K)
    with pytest.raises(ValueError, match="without rows"):
        lp_mst.train(network(), torch.zeros(2, 6), box, epsilon=1.0, fit=BRIEFLY, shares=(0.2,) * 5)
    assert box.certificate().epsilon == 0.0


def test_temperatures():
    scores = torch.tensor([[1.0, 2.0, 2.0], [0.0, 5.0, 1.0]])
    assert sharpened(scores, 0.0).tolist() == [[0, 0.5, 0.5], [0, 1, 0]]
    assert np.allclose(sharpened(scores, 1e-4), [[0, 0.5, 0.5], [0, 1, 0]])
    assert np.allclose(sharpened(scores, 1e6), 1 / 3, atol=1e-5)
    assert np.allclose(sharpened(scores, 1.0), torch.softmax(scores, dim=1))
    with pytest.raises(ValueError, match="temperature"):
        sharpened(scores, -1.0)


def test_the_first_stage_prior_is_uniform_and_a_public_prior_is_mixed_in():
    rows = np.array([1, 3])
    assert stage_prior(None, rows, 4, 1.0, None).tolist() == [0.25] * 4
    guess = np.eye(4)
    assert np.allclose(stage_prior(None, rows, 4, 1.0, Prior(guess, 1.0)), guess[rows])
    scores = torch.log(torch.full((4, 4), 0.25))
    mixed = stage_prior(scores, rows, 4, 1.0, Prior(guess, 0.4))
    assert np.allclose(mixed, 0.4 * guess[rows] + 0.6 * 0.25)
    with pytest.raises(ValueError, match="weight"):
        stage_prior(scores, rows, 4, 1.0, Prior(guess, 1.4))


def test_a_certain_public_prior_makes_every_answer_the_guess():
    x, labels = problem()
    model = lp_mst.train(
        network(), x, vault(), epsilon=0.1, fit=TRAIN, prior=Prior(np.eye(K)[labels], 1.0)
    )  # a made-up prior that happens to know the labels: the responses are then public knowledge
    assert accuracy(model, x, labels) > 0.95


def test_plausible_rows_are_the_top_k_of_the_model():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    responses = torch.tensor([0, 1, 2, -1])
    assert plausible(scores, responses, 1).tolist() == [True, False, False, False]
    assert plausible(scores, responses, 2).tolist() == [True, True, False, False]
    assert plausible(scores, responses, 3).tolist() == [True, True, True, False]


def test_the_filter_size_is_the_mean_set_size_rounded_not_cut_off():
    class Released:
        class channel:
            @staticmethod
            def set_sizes():
                return np.array([1, 2, 2, 2, 2, 2, 2])  # mean 1.86

    assert lp_mst.mean_set_size(Released) == 2


def test_later_stages_train_on_the_union_of_plausible_rows():
    x, _ = problem()
    sizes = []

    def spy(model, inputs, objective, **settings):
        sizes.append(settings["rows"])
        return BRIEFLY(model, inputs, objective, **settings)

    lp_mst.train(network(), x, vault(seed=1), epsilon=2.0, fit=spy, shares=(0.5, 0.5))
    first, second = (set(rows.tolist()) for rows in sizes)
    stages = split(3000, (0.5, 0.5), 0)
    assert first == set(stages[0].tolist())
    assert second >= set(stages[1].tolist())
    assert 0.3 * 1500 < len(second - set(stages[1].tolist())) < 1500  # some, not all, early responses are plausible
    sizes.clear()
    lp_mst.train(network(), x, vault(seed=1), epsilon=2.0, fit=spy, shares=(0.5, 0.5), keep_plausible=False)
    assert len(sizes[1]) == 3000


def test_each_stage_may_have_its_own_training():
    x, _ = problem()
    used = []

    def named(name):
        def run(model, inputs, objective, **settings):
            used.append(name)
            return BRIEFLY(model, inputs, objective, **settings)

        return run

    lp_mst.train(network(), x, vault(), epsilon=1.0, fit=[named("first"), named("second")])
    assert used == ["first", "second"]
    with pytest.raises(ValueError, match="fit has 3"):
        lp_mst.train(network(), x, vault(), epsilon=1.0, fit=[BRIEFLY] * 3)


# --- LP-RR-SGD ---


def test_lp_rr_sgd_learns_in_one_pass_and_stays_in_its_ball():
    x, labels = problem()
    model = nn.Linear(6, K)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    box = vault(seed=4)
    per_row.lp_rr_sgd(model, x, box, epsilon=1.0, diameter=20.0, lipschitz=1.0, batch_size=4)
    assert accuracy(model, x, labels) > 0.8
    assert weights(model).norm() <= 10.0 + 1e-4
    assert box.certificate().epsilon == 1.0


def test_priors_restrict_debiased_and_forward_responses():
    x, labels = problem()
    likely = np.where(np.eye(K)[labels] > 0, 0.5, 0.5 / (K - 1))
    for train in (per_row.debiased, per_row.forward):
        box = vault()
        train(network(), x, box, epsilon=3.0, fit=BRIEFLY, prior=likely)
        assert box.certificate().epsilon == 3.0
