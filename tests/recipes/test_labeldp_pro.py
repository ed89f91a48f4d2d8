"""LabelDP-Pro: what it queries, what that costs, that it learns, and that a run which was cut goes on honestly."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.accountant import epsilon as epsilon_of
from labeldp.core.certificate import verify
from labeldp.core.events import Gaussian, PoissonGaussian, Query
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import adam, linear, rmsprop, sgd
from labeldp.learning.train import accuracy, fit, predict
from labeldp.mechanisms.gradients.sums import DiameterBound, NormBound
from labeldp.recipes import denoisers
from labeldp.recipes.budget import Goal
from labeldp.recipes.denoisers import (
    Named,
    Projector,
    Secret,
    alt_conv,
    alt_rows,
    batches_for,
    no_op,
    self_conv,
    self_span,
)
from labeldp.recipes.labeldp_pro import train
from tests.marks import mostly_slow
from tests.recipes.clouds import DELTA, K, network, problem, some, vault
from tests.trained import weights

SECRET = [no_op(), alt_conv(rows=20, tolerance=0.2), alt_rows(rows=20, tolerance=0.2)]
NAMED = [self_span(), self_conv(tolerance=0.2)]
NAMES = ["no_op", "alt_conv", "alt_rows", "self_span", "self_conv"]
every_denoiser = pytest.mark.parametrize("denoiser", SECRET + NAMED, ids=NAMES)
# One that does nothing, one of secret batches and one of named ones; what the others add is where they project.
some_denoisers = pytest.mark.parametrize(
    "denoiser",
    [
        pytest.param(one, id=name, marks=[pytest.mark.slow] * (name in ("alt_rows", "self_conv")))
        for name, one in zip(NAMES, SECRET + NAMED, strict=True)
    ],
)

# --- what it queries and what it costs ---


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *((name, NormBound(1.0)) for name in NAMES),
        *((name, DiameterBound(1.0, 1.2)) for name in ("no_op", "self_span")),
        *(pytest.param(name, DiameterBound(1.0, 1.2), marks=pytest.mark.slow) for name in NAMES if "_conv" in name),
    ],
)
def test_it_learns_and_costs_epsilon(name, bound, drawn):
    denoiser = dict(zip(NAMES, SECRET + NAMED, strict=True))[name]
    x, labels = problem()
    box = vault(Budget(4.0, DELTA))
    model = some(network(), x, box, epsilon=4.0, epochs=3, denoiser=denoiser, bound=bound)
    certificate = box.certificate()
    assert 4.0 * (1 - 1e-4) <= certificate.epsilon <= 4.0
    assert verify(certificate) == ()
    assert accuracy(model, x, labels) > 0.85
    assert not model.training
    (group,) = box.ledger.groups()
    (query,) = group.queries
    assert len(drawn) == 30
    assert {mechanism.event() for mechanism, _ in drawn} == {query.event}
    assert {response.expected_batch for _, response in drawn} == {60.0}
    assert {response.noise_std for _, response in drawn} == {query.event.noise_std / 60}
    # What rounding can add is in it, too.
    assert bound.diameter < query.event.diameter < bound.diameter * (1 + 1e-4)
    if isinstance(denoiser, Secret):
        assert (type(query.event), query.times) == (PoissonGaussian, 30)
        assert (query.event.rate, query.event.radius) == (0.1, pytest.approx(bound.radius, rel=1e-4))
    else:
        assert (type(query.event), query.times) == (Gaussian, 3)


@pytest.mark.parametrize("denoiser", NAMED, ids=NAMES[3:])
@pytest.mark.parametrize("batch_size", [1, 7, 60, 599, 600])
def test_named_batches_are_never_charged_as_secret_ones(denoiser, batch_size):
    x, _ = problem(60)
    box = vault(n=60)
    train(
        network(),
        x,
        box,
        noise_multiplier=9.0,
        delta=DELTA,
        epochs=2,
        batch_size=min(batch_size, 60),
        denoiser=denoiser,
    )
    assert {(type(query.event), query.times) for group in box.ledger.groups() for query in group.queries} == {
        (Gaussian, 2)
    }


def test_amplification_for_a_batch_that_is_shown_cannot_be_written():
    """The two kinds share no field that would join the batch's own rows to a secret batch."""
    with pytest.raises(TypeError):
        Named(self_span().projection, rows=10)
    with pytest.raises(TypeError):
        Named(self_span().projection, rate=0.1)
    x, _ = problem(60)
    for denoiser in (Secret(self_span().projection, 60), alt_conv(60)):
        assert batches_for(denoiser, x, 60, 6, 0).rows is None  # its projection sees rows that no query is of
    assert batches_for(self_conv(), x, 60, 6, 0).rate == 1.0


def test_the_partition_is_label_free_and_holds_every_row_once():
    x, _ = problem()
    batches = batches_for(self_conv(), x, 600, 64, 3)
    assert sorted(np.concatenate(batches.rows)) == list(range(600))
    assert {len(rows) for rows in batches.rows} == {60}
    for rows, part in zip(batches.rows, batches.parts, strict=True):
        assert torch.equal(part, x[torch.from_numpy(rows)])
    for passed in range(3):
        assert sorted(batches.number(passed * 10 + place) for place in range(10)) == list(range(10))
    assert [batches.number(i) for i in range(10)] != [batches.number(i + 10) for i in range(10)]


@pytest.mark.parametrize(
    ("epochs", "epsilon", "multiplier"), [(5, 1.0, 2.1872), (2, 0.1, 11.402), (10, 2.0, 1.6624), (5, 0.01, 142.44)]
)
def test_the_noise_is_that_of_exact_accounting(epochs, epsilon, multiplier):
    """Norm clipping at C, 60,000 rows by 1,024: published values for one replaced label."""
    rate, times = 1024 / 60000, math.ceil(epochs * 60000 / 1024)
    for clip in (1.0, 5.0):
        bound = NormBound(clip)
        goal = Goal(DELTA, epsilon, None, times)
        noise, queries = goal.terms(
            lambda s, b=bound: PoissonGaussian(s, b.radius, b.diameter, rate), bound, rate, None
        )
        assert queries == times
        assert noise / clip == pytest.approx(multiplier, rel=1e-4)


def test_five_passes_over_a_partition_cost_what_they_should():
    bound = NormBound(2.0)
    noise, _ = Goal(DELTA, 1.0, None, 5).terms(lambda s: Gaussian(s, bound.diameter), bound, 1.0, None)
    assert noise / 2.0 == pytest.approx(16.68, abs=0.005)


def test_a_public_diameter_needs_less_noise():
    x, _ = problem()
    noises = {}
    for bound in (NormBound(1.0), DiameterBound(1.0, 1.2)):
        box = vault()
        some(network(), x, box, epsilon=0.5, epochs=2, denoiser=no_op(), bound=bound)
        noises[type(bound)] = box.ledger.groups()[0].queries[0].event.noise_std
    assert noises[DiameterBound] < 0.8 * noises[NormBound]


def silent(logits, labels):
    """A loss that says nothing: what is released is the noise alone."""
    return 0.0 * logits.sum(dim=1)


@pytest.mark.parametrize("denoiser", [no_op(), self_span()], ids=["secret", "named"])
def test_the_noise_that_is_released_is_the_noise_that_was_paid_for(denoiser, drawn):
    """10^6 coordinates of pure noise: Σ z²/σ² is χ² with that many degrees of freedom.

    Its standard deviation, relative to the mean, is √(2/10^6) = 0.14 %. Beyond 6.2 of them, 0.88 %, lies less than
    1e-9 of the chance. Noise 2 % too small shows as 4 %, far outside.
    """
    x = torch.randn(40, 2499, generator=torch.Generator().manual_seed(0))
    box = LabelVault([0, 1] * 20, 2)
    train(
        nn.Linear(2499, 2, bias=False), x, box, epsilon=1.0, delta=DELTA, epochs=20, batch_size=4, loss=silent,
        denoiser=Secret() if isinstance(denoiser, Secret) else Named(lambda noisy, public: Unprojected(noisy)),
    )  # fmt: skip
    std = box.ledger.groups()[0].queries[0].event.noise_std / 4
    values = torch.cat([response.value for _, response in drawn]).double()
    assert len(values) == 200 * 4998
    spread = float((values**2).mean() / std**2)
    edge = 6.2 * math.sqrt(2 / len(values))
    assert abs(spread - 1) < edge
    assert abs(float(values.mean())) < 6.2 * std / math.sqrt(len(values))
    assert abs(spread * 0.98**2 - 1) > edge  # the planted error is found


class Unprojected:
    gap = None

    def __init__(self, gradient):
        self.gradient = gradient


# --- two of three: ε, noise, length ---


@pytest.mark.parametrize("denoiser", [no_op(), self_span()], ids=["secret", "named"])
def test_until_epsilon_is_used_up(denoiser, drawn):
    x, _ = problem()
    box = vault(Budget(2.0, DELTA))
    some(
        network(), x, box, epsilon=2.0, noise_multiplier=2.5 if isinstance(denoiser, Secret) else 6.0, denoiser=denoiser
    )
    (query,) = box.ledger.groups()[0].queries
    assert box.certificate().epsilon <= 2.0
    assert epsilon_of([Query(query.event, query.times + 1)], DELTA) > 2.0
    assert len(drawn) == query.times * (1 if isinstance(denoiser, Secret) else 10)


def test_noise_and_length_cost_whatever_they_cost():
    x, _ = problem()
    box = vault()
    some(network(), x, box, noise_multiplier=1.5, steps=25, denoiser=no_op())
    exactly = epsilon_of([Query(PoissonGaussian(1.5, 1.0, 2.0, 0.1), 25)], DELTA)
    assert exactly < box.certificate(DELTA).epsilon < exactly * (1 + 1e-4)
    poor = vault(Budget(1.0, DELTA))
    with pytest.raises(BudgetExceededError):
        some(network(), x, poor, noise_multiplier=1.5, steps=25, denoiser=no_op())
    assert poor.certificate().epsilon == 0.0


@pytest.mark.parametrize("denoiser", [no_op(), self_conv(tolerance=0.2)], ids=["secret", "named"])
def test_the_report_tells_what_was_spent_so_far(denoiser):
    x, _ = problem()
    box, seen = vault(), []
    some(network(), x, box, epsilon=1.0, epochs=4, denoiser=denoiser, report=seen.append)
    assert [(p.step, p.steps, p.passes) for p in seen] == [(10 * i, 40, pytest.approx(i)) for i in range(1, 5)]
    spent = [p.epsilon for p in seen]
    assert spent == sorted(spent)
    assert spent[-1] == box.certificate(DELTA).epsilon
    (query,) = box.ledger.groups()[0].queries
    for p in seen:
        truth = epsilon_of([Query(query.event, p.step if isinstance(denoiser, Secret) else p.step // 10)], DELTA)
        assert truth <= p.epsilon <= 1.1 * truth
    assert all((p.gap is None) == (denoiser == no_op()) for p in seen)


# --- learning ---


def test_without_noise_to_speak_of_it_is_plain_sgd():
    x, labels = problem()
    private = train(
        network(), x, vault(), epsilon=1e4, delta=DELTA, epochs=8, batch_size=60, bound=NormBound(50.0),
        denoiser=no_op(), optimizer=sgd(0.1, 0.0, 0.0),
    )  # fmt: skip
    plain = fit(
        network(), x, on_classes(torch.from_numpy(labels)), epochs=8, batch_size=60, optimizer=sgd(0.1, 0.0, 0.0)
    )
    assert accuracy(private, x, labels) >= accuracy(plain, x, labels) - 0.01


def test_all_rows_and_no_noise_to_speak_of_is_gradient_descent():
    x, labels = problem()
    private = train(
        network(), x, vault(), epsilon=1e9, delta=DELTA, steps=30, batch_size=600, bound=NormBound(100.0),
        denoiser=no_op(), optimizer=sgd(0.1, 0.9, 1e-3), schedule=linear(), average=0.0,
    )  # fmt: skip
    model = network()
    optimizer = sgd(0.1, 0.9, 1e-3)(model.parameters())
    for step in range(30):
        optimizer.param_groups[0]["lr"] = 0.1 * linear()(step / 30)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.from_numpy(labels)).backward()
        optimizer.step()
    torch.testing.assert_close(weights(private), weights(model), atol=1e-2, rtol=1e-2)


OPTIMISERS = {"momentum": sgd(0.3, 0.9), "adam": adam(0.1), "rmsprop": rmsprop(0.05)}


@pytest.mark.parametrize(
    "kind", mostly_slow(["momentum 0.9", "adam 0", "rmsprop 0", "momentum 0", "adam 0.9", "rmsprop 0.9"], quick=3)
)
def test_optimisers_and_averages(kind):
    name, average = kind.split()
    x, labels = problem()
    model = train(
        network(), x, vault(), epsilon=5.0, delta=DELTA, epochs=6, batch_size=60,
        denoiser=alt_rows(rows=20, tolerance=0.2),
        optimizer=OPTIMISERS[name], schedule=linear(), average=float(average),
    )  # fmt: skip
    assert accuracy(model, x, labels) > 0.85


def test_weights_are_averaged_by_the_number_of_steps_unless_asked_not_to():
    """20 steps: a decay of 0.8. Noise alone, on a flat loss: the average is nearer to where the weights began."""
    x, _ = problem()

    def trained(average, schedule=None):
        settings = {"noise_multiplier": 5.0, "epochs": 2, "denoiser": no_op(), "average": average, "schedule": schedule}
        return weights(some(network(), x, vault(seed=3), **settings))

    assert torch.equal(trained(None), trained(0.8))
    assert torch.equal(trained(None, linear()), trained(0.0, linear()))
    start, last, mean = weights(network()), trained(0.0), trained(None)
    assert (mean - start).norm() < 0.9 * (last - start).norm()


@pytest.mark.parametrize("average", [-0.1, 1.0, math.nan])
def test_an_average_that_is_none_costs_nothing(average):
    x, _ = problem()
    box = vault()
    with pytest.raises(ValueError, match="average="):
        some(network(), x, box, epsilon=1.0, epochs=1, average=average)
    assert box.certificate(DELTA).epsilon == 0


@some_denoisers
def test_the_same_seeds_give_the_same_model(denoiser):
    x, _ = problem()
    first, second, other = (
        weights(some(network(), x, vault(seed=3), epsilon=1.0, epochs=1, denoiser=denoiser, seed=seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, second)
    assert denoiser == no_op() or not torch.equal(first, other)


def test_empty_batches_are_queries_like_any_other(drawn):
    x, _ = problem(20)
    box = LabelVault(problem(20)[1], K)
    model = train(
        network(), x, box, epsilon=1.0, delta=DELTA, steps=60, batch_size=1, denoiser=alt_conv(rows=5, tolerance=0.2)
    )
    assert len(drawn) == 60  # each batch is empty with probability 0.36
    assert torch.isfinite(weights(model)).all()


def test_one_row():
    for denoiser in (no_op(), alt_rows(), self_span()):
        box = LabelVault([1], K)
        model = train(
            network(), torch.ones(1, 5), box, epsilon=1.0, delta=DELTA, epochs=2, batch_size=1, denoiser=denoiser
        )
        assert torch.isfinite(weights(model)).all()
        assert box.certificate(DELTA).epsilon == pytest.approx(1.0, rel=1e-4)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(8, K)

    def forward(self, numbers, codes):
        return self.head(torch.cat([numbers, self.embed(codes)], dim=1))


@some_denoisers
def test_several_inputs(denoiser):
    x, labels = problem()
    torch.manual_seed(0)
    codes = torch.arange(600) % 4
    model = some(TwoInputs(), (x, codes), vault(), epsilon=8.0, epochs=3, denoiser=denoiser)
    assert accuracy(model, (x, codes), labels) > 0.8


def test_numbers_of_other_libraries_are_numbers():
    box = vault()
    some(network(), problem()[0], box, epsilon=np.float32(1.0), epochs=np.int64(1), denoiser=no_op())
    assert box.certificate(DELTA).epsilon == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("make", [alt_conv, alt_rows, self_conv], ids=["alt_conv", "alt_rows", "self_conv"])
def test_candidates_are_clipped_only_when_asked(make, monkeypatch):
    seen, real = set(), denoisers.PublicGradients
    monkeypatch.setattr(
        denoisers, "PublicGradients", lambda *args, clip, **more: (seen.add(clip), real(*args, clip=clip, **more))[1]
    )
    for clipped, clip in ((False, None), (True, 0.5)):
        denoiser = make(tolerance=0.2, clipped=clipped)
        some(network(), problem()[0], vault(), epsilon=1.0, epochs=1, denoiser=denoiser, bound=NormBound(0.5))
        assert seen == {clip}
        seen.clear()


def test_the_other_rows_are_drawn_anew_without_repeats_and_again_the_same():
    x = torch.arange(50.0)[:, None]
    batches = batches_for(alt_conv(rows=20), x, 50, 5, seed=4)
    draw = Projector(nn.Linear(1, 2), batches, alt_conv(rows=20), 5, silent, 1.0)._public
    first, second = draw(0).flatten().tolist(), draw(1).flatten().tolist()
    assert len(set(first)) == len(set(second)) == 20
    assert first != second
    assert draw(0).flatten().tolist() == first
    assert len(Projector(nn.Linear(1, 2), batches, alt_conv(), 5, silent, 1.0)._public(0)) == 5
    assert len(Projector(nn.Linear(1, 2), batches, alt_conv(rows=99), 5, silent, 1.0)._public(0)) == 50


def test_frozen_weights_stay():
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, K))
    model[0].requires_grad_(False)
    before = weights(model[0]).clone()
    some(model, problem()[0], vault(), epsilon=1.0, epochs=1, denoiser=alt_rows())
    assert torch.equal(weights(model[0]), before)


# --- what is refused, before anything is spent ---


def with_nan():
    x = problem()[0].clone()
    x[3, 1] = x[5, 0] = math.nan
    return x


@every_denoiser
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"epsilon": "1"}, "epsilon='1' is not a number"),
        ({"epsilon": True}, "epsilon=True is not a number"),
        ({"delta": None}, "delta=None"),
        ({"delta": 0.0}, "delta=0"),
        ({"delta": 1.0}, "delta=1"),
        ({"delta": 1e-14}, "delta"),
        ({"epsilon": None}, "two of epsilon"),
        ({"epochs": None}, "two of epsilon"),
        ({"noise_multiplier": 1.0}, "two of epsilon"),
        ({"noise_multiplier": 0.0, "epochs": None}, "noise_multiplier=0.0"),
        ({"noise_multiplier": 1e-3, "epochs": None}, "more noise"),
        ({"noise_multiplier": 1e9, "epochs": None}, "less noise"),
        ({"steps": 10}, "two lengths"),
        ({"epochs": 0}, "not a length"),
        ({"epochs": -1}, "not a length"),
        ({"epochs": math.nan}, "not a length"),
        ({"epochs": None, "steps": 0}, "not a length"),
        ({"epochs": None, "steps": 1.5}, "steps=1.5 is not a whole number"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 601}, "batch_size=601 does not fit 600"),
        ({"batch_size": 0.5}, "batch_size=0.5"),
        ({"model": nn.Linear(5, 2)}, r"\(1, 2\)"),
        ({"model": nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, K))}, "BatchNorm1d"),
        ({"inputs": with_nan()}, "2 rows that are not finite"),
        ({"inputs": torch.zeros(10, 5)}, "10 rows"),
        ({"inputs": np.zeros((600, 5))}, "ndarray"),
        ({"vault": LabelVault([0] * 600, 1), "model": nn.Linear(5, 1)}, "nothing to learn"),
    ],
)
def test_what_cannot_be_done_is_refused_unpaid(denoiser, change, what, drawn):
    x, _ = problem()
    box = change.get("vault") or vault()
    settings = {"epsilon": 1.0, "epochs": 2, "denoiser": denoiser, **change}
    model, inputs = settings.pop("model", network()), settings.pop("inputs", x)
    settings.pop("vault", None)
    with pytest.raises(ValueError, match=what):
        some(model, inputs, box, **settings)
    assert box.certificate(DELTA).epsilon == 0.0
    assert not drawn


def test_a_part_of_a_pass_is_refused_for_named_batches():
    box = vault()
    for length in ({"epochs": 1.5}, {"steps": 15}):
        with pytest.raises(ValueError, match="whole passes"):
            some(network(), problem()[0], box, epsilon=1.0, denoiser=self_span(), **length)
    some(network(), problem()[0], box, epsilon=1.0, denoiser=self_span(), steps=20)
    assert box.ledger.groups()[0].queries[0].times == 2


def test_no_rows_to_project_on_is_refused():
    for rows in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="rows="):
            alt_conv(rows=rows)


def test_past_the_budget_it_stops_before_anything_is_drawn(drawn):
    for denoiser in SECRET + NAMED:
        box = vault(Budget(0.9, DELTA))
        with pytest.raises(BudgetExceededError):
            some(network(), problem()[0], box, epsilon=1.0, epochs=2, denoiser=denoiser)
        assert box.certificate().epsilon == 0.0
    assert not drawn


def test_predictions_after_training_are_those_of_the_returned_model():
    x, _ = problem()
    model = network()
    assert some(model, x, vault(), epsilon=1.0, epochs=1) is model
    assert predict(model, x).shape == (600, K)
