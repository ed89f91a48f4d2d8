"""One query: what it costs, that nothing else sees a label, that a killed run pays once, how good and honest it is."""

from __future__ import annotations

import functools
import inspect
import math
import os
import time

import numpy as np
import pytest
import torch
from torch import Generator, nn

from labeldp.core.certificate import verify
from labeldp.core.events import GridGaussian, PureDP
from labeldp.core.gaussian import gaussian_epsilon
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.features.extract import Raw
from labeldp.learning.heads import ridge_head, softmax_head
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import accuracy, fit
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.users import UserVault
from labeldp.recipes import one_shot, per_row
from labeldp.recipes.one_shot import noise_by_width, noise_for, train, train_on_inputs
from tests.marks import mostly_slow
from tests.trained import StopHereError, stop_at

K, N, WIDTH, DELTA = 5, 6000, 24, 1e-5
quick = functools.partial(tune, plans=[Plan(8), Plan(20)], clusterings=2, draws=1)
one_head = functools.partial(train, tune=quick, heads=[ridge_head], delta=DELTA)


def clouds(rows, seed, spread=0.8):
    """Overlapping clouds about K centres that do not change with the seed; features and labels."""
    generator = Generator().manual_seed(seed)
    centres = torch.randn(K, WIDTH, generator=Generator().manual_seed(123))
    labels = torch.randint(K, (rows,), generator=generator)
    features = centres[labels] + spread * 2 * torch.randn(rows, WIDTH, generator=generator)
    return features, labels


@functools.cache
def problem():
    return clouds(N, 0)


def vault(budget=None, seed=None):
    return LabelVault(problem()[1], K, budget, rng=None if seed is None else SecureRandom(seed))


def right(shot, features, labels):
    return float((shot.predict(features) == labels).double().mean())


# -- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_the_ledger_holds_one_gaussian_look_and_no_more(epsilon):
    """Closed form: μ = √2/σ with the σ of the budget, whose ε at δ is what was given."""
    box = vault(Budget(epsilon, DELTA))
    shot = one_head(problem()[0], box, epsilon=epsilon)
    std = GaussianNoise.for_budget(epsilon, DELTA).std
    (group,) = box.ledger.groups()
    assert [(query.event, query.times) for query in group.queries] == [(GridGaussian(std, math.sqrt(2)), 1)]
    assert group.rows == N
    claim = box.certificate(DELTA)
    assert verify(claim) == ()
    assert claim.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2) / std, DELTA), rel=1e-6)
    assert epsilon * 0.998 < claim.epsilon <= epsilon * (1 + 1e-9)
    # Noise as large as the longest row needs, and no row was cut.
    assert shot.noisy.noise_std >= std * float(shot.tuning.basis(problem()[0]).norm(dim=1).max())
    assert shot.noisy.scaled_rows == shot.noisy.dropped_rows == 0


def test_without_delta_the_noise_is_laplace_and_the_promise_pure():
    box = vault(Budget(1.0))
    shot = one_head(problem()[0], box, epsilon=1.0, delta=0.0)
    assert shot.noisy.noise == "discrete Laplace"
    assert box.ledger.histories[0][0][0].event == PureDP(1.0)
    assert box.certificate().epsilon == 1.0
    assert right(shot, *problem()) > 0.5


def test_the_tuning_expects_the_noise_that_comes():
    for noise in (noise_for(0.7, DELTA), noise_for(0.7, 0.0)):
        rows = np.full((4, 9), 1 / 3)
        moment = Moments(rows, 2, noise, radius=1.0 if noise.name == "discrete Gaussian" else 3.0)
        assert noise_by_width(noise)(9) == pytest.approx(moment.noise_std, rel=1e-3)


# -- nothing else sees a label ---------------------------------------------------------------------------------------


def test_only_the_moment_is_asked(monkeypatch):
    """Every draw from the vault is one `Moments`, of rows that were fixed before it."""
    queried, release = [], LabelVault.release

    def watched(self, mechanism, rows=None):
        queried.append(mechanism)
        return release(self, mechanism, rows)

    monkeypatch.setattr(LabelVault, "release", watched)
    monkeypatch.setattr(LabelVault, "reveal", lambda *_: pytest.fail("labels revealed"))
    one_head(problem()[0], vault(), epsilon=0.5)
    assert [type(mechanism) for mechanism in queried] == [Moments]


def test_what_is_asked_does_not_depend_on_the_labels():
    """Other labels: the same plan, the same rows, the same noise; only the moment differs."""
    x, labels = problem()
    shots = [
        one_head(x, LabelVault(y, K, rng=SecureRandom(1)), epsilon=0.5) for y in (labels, (labels + 1) % K, labels * 0)
    ]
    for other in shots[1:]:
        assert other.tuning.plan == shots[0].tuning.plan
        assert other.tuning.tried == shots[0].tuning.tried
        assert torch.equal(other.tuning.basis(x), shots[0].tuning.basis(x))
        assert np.array_equal(other.noisy.total, shots[0].noisy.total)
        assert not np.array_equal(other.noisy.value, shots[0].noisy.value)


def test_all_that_follows_the_look_is_a_function_of_it(tmp_path):
    """Two vaults with other labels and one kept moment: the same head, bit by bit."""
    x, labels = problem()
    first = one_head(x, vault(seed=1), epsilon=0.5, folder=tmp_path)
    second = one_head(x, LabelVault(labels * 0, K), epsilon=0.5, folder=tmp_path)
    assert torch.equal(first.weight, second.weight)
    assert (first.scale, first.confidence) == (second.scale, second.confidence)


def test_reports_name_the_phases_and_hold_public_numbers():
    heard = []
    train_on_inputs(Raw(), problem()[0], vault(), epsilon=0.5, delta=DELTA, tune=quick, report=heard.append)
    phases = [report.phase for report in heard]
    assert list(dict.fromkeys(phases)) == ["features", "tuning", "moment", "query", "head"]
    assert phases.count("tuning") == 2
    assert all(report.seconds >= 0 for report in heard)


# -- refused before anything is spent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": 0.0}, "epsilon=0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 1.0}, "delta=1"),
        ({"features": torch.zeros(3, 4)}, "3 rows"),
        ({"features": torch.zeros(N, 4, dtype=torch.long)}, "int64"),
        ({"features": np.zeros((N, 4))}, "ndarray"),
        ({"features": torch.full((N, 4), math.nan)}, "not finite"),
        ({"features": torch.ones(N, 4)}, "do not vary"),
        ({"heads": []}, "heads"),
    ],
)
def test_what_cannot_work_costs_nothing(change, match):
    box = vault()
    settings = {"features": problem()[0], "epsilon": 1.0, "heads": [ridge_head], **change}
    with pytest.raises(ValueError, match=match):
        one_head(settings.pop("features"), box, **settings)
    assert box.certificate(DELTA).epsilon == 0.0


def test_labels_of_users_are_not_one_label():
    box = UserVault(problem()[1], users=np.arange(N) // 2, num_classes=K)
    with pytest.raises(ValueError, match="labels of a user"):
        one_head(problem()[0], box, epsilon=1.0)
    assert box.certificate(DELTA).epsilon == 0.0


def test_a_budget_too_small_is_found_before_the_slow_part():
    def never(*_, **__):
        pytest.fail("tuned although the query cannot be paid")

    box = vault(Budget(0.4, DELTA))
    with pytest.raises(BudgetExceededError):
        train(problem()[0], box, epsilon=0.5, delta=DELTA, tune=never)
    with pytest.raises(BudgetExceededError):
        train_on_inputs(Raw(), problem()[0], box, epsilon=0.5, delta=DELTA, tune=never)
    with pytest.raises(ValueError, match="inputs has 7 rows"):
        train_on_inputs(Raw(), torch.zeros(7, 3), vault(), epsilon=0.5, delta=DELTA, tune=never)
    assert box.certificate(DELTA).epsilon == 0.0


# -- killed runs -----------------------------------------------------------------------------------------------------


def test_a_run_killed_after_its_look_does_not_pay_again(tmp_path):
    x, _ = problem()
    box = vault(Budget(0.5, DELTA), seed=3)
    with pytest.raises(StopHereError):
        one_head(x, box, epsilon=0.5, folder=tmp_path, report=stop_at(phase="query"))
    paid = box.certificate(DELTA).epsilon
    assert 0.499 < paid <= 0.5
    heard = []
    shot = one_head(x, box, epsilon=0.5, folder=tmp_path, report=heard.append)
    assert box.certificate(DELTA).epsilon == paid
    assert "kept" in heard[0].detail
    assert right(shot, *problem()) > 0.6
    # Another process has another vault, which pays for what it uses.
    later = vault(Budget(0.5, DELTA))
    again = one_head(x, later, epsilon=0.5, folder=tmp_path)
    assert torch.equal(again.weight, shot.weight)
    assert later.certificate(DELTA).epsilon == paid
    with pytest.raises(BudgetExceededError):
        one_head(x, vault(Budget(0.4, DELTA)), epsilon=0.5, folder=tmp_path)


def test_a_run_killed_before_its_look_has_paid_nothing(tmp_path):
    box = vault()
    with pytest.raises(StopHereError):
        one_head(problem()[0], box, epsilon=0.5, folder=tmp_path, report=stop_at(phase="tuning"))
    assert box.certificate(DELTA).epsilon == 0.0


def test_what_is_kept_is_bound_to_its_question(tmp_path):
    x, _ = problem()
    one_head(x, vault(), epsilon=0.5, folder=tmp_path)
    box = vault()
    for features, epsilon in ((x, 0.6), (x[:, :-1], 0.5), (x.roll(1, dims=1) * 3 + 1, 0.5)):
        with pytest.raises(ValueError, match="new folder"):
            one_head(features, box, epsilon=epsilon, folder=tmp_path)
    with pytest.raises(ValueError, match="heads differ"):
        train(x, box, epsilon=0.5, delta=DELTA, heads=[softmax_head], tune=quick, folder=tmp_path)
    assert box.certificate(DELTA).epsilon <= 0.5


def test_the_moment_of_some_rows_is_not_that_of_all(tmp_path):
    """One row left out: the totals nearly agree, and without the plan only the note says whose labels are in it."""
    x, _ = problem()
    one_head(x[1:], vault(), epsilon=0.5, folder=tmp_path, rows=np.arange(1, N))
    (tmp_path / "plan.npz").unlink()
    box = vault()
    with pytest.raises(ValueError, match="rows queried differ"):
        one_head(x, box, epsilon=0.5, folder=tmp_path)
    assert box.certificate(DELTA).epsilon == 0.0


# -- how good, how honest ----------------------------------------------------------------------------------------------


def test_far_better_than_randomized_response_at_small_epsilon():
    x, _ = problem()
    fresh, truth = clouds(4000, 1)
    shot = train(x, vault(seed=5), epsilon=0.3, delta=DELTA, tune=quick)
    bayes = 1 - _bayes_error()
    assert right(shot, fresh, truth) > bayes - 0.08
    torch.manual_seed(0)
    loop = functools.partial(fit, epochs=5, batch_size=64, optimizer=sgd(0.05))
    responses = per_row.rr(nn.Linear(WIDTH, K), x, vault(seed=5), epsilon=0.3, fit=loop)
    assert right(shot, fresh, truth) > accuracy(responses, fresh, truth) + 0.15


@functools.cache
def _bayes_error():
    """Of the clouds, by their known centres."""
    fresh, truth = clouds(4000, 1)
    centres = torch.randn(K, WIDTH, generator=Generator().manual_seed(123))
    return float((torch.cdist(fresh, centres).argmin(dim=1) != truth).double().mean())


@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 5.0]))
def test_probabilities_are_honest_on_new_rows(epsilon):
    """Mean confidence within six points of the accuracy: one cloud to a class, of which clusters know nothing."""
    fresh, truth = clouds(20_000, 2)
    shot = train(problem()[0], vault(seed=6), epsilon=epsilon, delta=DELTA)
    probabilities = shot.probabilities(fresh)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(len(fresh)))
    sure, chosen = probabilities.max(dim=1)
    hit = (chosen == truth).double()
    assert abs(float(sure.mean()) - float(hit.mean())) < 0.06
    assert abs(shot.confidence - float(hit.mean())) < 0.06


@pytest.mark.parametrize("epsilon", mostly_slow([0.4, 0.1, 2.0]))
def test_probabilities_are_honest_at_every_level(epsilon):
    """Classes of several modes: the mean within four points, and in each fifth of the rows by confidence within ten."""
    features, labels = modes(rows=30_000, spread=0.6)
    shot = train(features[:20_000], LabelVault(labels[:20_000], K, rng=SecureRandom(4)), epsilon=epsilon, delta=DELTA)
    sure, chosen = shot.probabilities(features[20_000:]).max(dim=1)
    hit = (chosen == labels[20_000:]).double()
    assert abs(float(sure.mean()) - float(hit.mean())) < 0.04
    for part in sure.argsort().tensor_split(5):
        assert abs(float(sure[part].mean()) - float(hit[part].mean())) < 0.1
    assert 0.3 < float(hit.mean()) < 0.97, "there is something to be unsure of"


def modes(rows, spread, width=48, count=40, seed=0):
    """Many modes of falling spread; a class is some of them, at random. Features and labels."""
    generator = Generator().manual_seed(seed)
    size = torch.arange(1, width + 1).pow(-0.7)
    centres = torch.randn(count, width, generator=generator) * size
    which = torch.randint(count, (rows,), generator=generator)
    features = centres[which] + spread * torch.randn(rows, width, generator=generator) * size
    return features, (torch.arange(count) % K)[which]


def test_the_layer_decides_as_the_probabilities_do():
    x, _ = problem()
    shot = one_head(x, vault(seed=1), epsilon=1.0)
    assert (shot.layer(x).argmax(dim=1) == shot.predict(x)).double().mean() > 0.9999
    assert torch.equal(shot.probabilities(x).argmax(dim=1), shot.predict(x))


def test_a_head_that_takes_noise_badly_is_not_taken():
    def backwards(noisy, rows, gram, *, constant=None):
        return -ridge_head(noisy, rows, gram, constant=constant)

    x, _ = problem()
    for heads in ([ridge_head, backwards], [backwards, ridge_head]):
        shot = train(x, vault(seed=2), epsilon=1.0, delta=DELTA, tune=quick, heads=heads)
        if heads[0] is ridge_head:
            assert shot.head is ridge_head
    assert right(train(x, vault(seed=2), epsilon=1.0, delta=DELTA, tune=quick), *problem()) > 0.6


def test_from_inputs_in_one_call():
    x, _ = problem()
    fresh, truth = clouds(4000, 1)
    found = train_on_inputs(Raw(dims=12), x.numpy(), vault(seed=1), epsilon=1.0, delta=DELTA, tune=quick)
    assert found.map.dim == 12
    assert float((found.predict(fresh) == truth).double().mean()) > 0.6
    assert found.probabilities(fresh).shape == (4000, K)


@pytest.mark.parametrize(("rows", "classes"), [(40, 1), (60, 2), (500, 60)])
def test_few_rows_and_any_number_of_classes(rows, classes):
    x = torch.randn(rows, 6, generator=Generator().manual_seed(1))
    shot = train(x, LabelVault(np.arange(rows) % classes, classes), epsilon=1.0, delta=DELTA)
    assert shot.probabilities(x).shape == (rows, classes)
    assert torch.isfinite(shot.probabilities(x)).all()


def test_no_argument_could_hold_a_label():
    for function in (one_shot.tuned, one_shot.fitted, one_shot._solved):
        assert not {"vault", "labels", "y"} & set(inspect.signature(function).parameters)


@pytest.mark.slow
@pytest.mark.skipif("LABELDP_DATA" not in os.environ, reason="needs $LABELDP_DATA with fashion_mnist")
def test_fashion_mnist_end_to_end_in_ninety_seconds_of_two_cores():
    """Features, tuning, query and head at ε = 0.1. Time is of the processor: the machine may be shared."""
    from labeldp.data.benchmarks import load
    from labeldp.data.files import MissingDataError
    from labeldp.features.patches import Patches

    try:
        data = load("fashion_mnist", budget=Budget(0.1, DELTA))
    except MissingDataError:
        pytest.skip("no fashion_mnist in $LABELDP_DATA")
    begun = time.process_time()
    found = train_on_inputs(Patches(filters=200), torch.tensor(data.train), data.vault, epsilon=0.1, delta=DELTA)
    share = float((found.predict(torch.tensor(data.test)).numpy() == data.test_labels.values).mean())
    spent = time.process_time() - begun
    assert share >= 0.80
    assert spent < 120, "processor seconds; two cores have 180 in 90 seconds"
    assert data.vault.certificate().epsilon <= 0.1
