"""The mechanism on real vaults: events, sums, charges, refusals, and what it leaves behind."""

import math
from threading import Event, Thread

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from labeldp.core.certificate import parse
from labeldp.core.events import Gaussian, PoissonGaussian
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault, MechanismError
from labeldp.mechanisms.gradients import per_example
from labeldp.mechanisms.gradients.layers import cross_entropy, own_generator
from labeldp.mechanisms.gradients.per_example import clipped_sum, load_parameter_vector, parameter_vector
from labeldp.mechanisms.gradients.sums import DiameterBound, GradientSum, NormBound, poisson_batch
from labeldp.mechanisms.gradients.terms import summation_error
from labeldp.models.zoo import attribution_network, cifar_cnn, mnist_cnn, wide_resnet

ROWS, CLASSES = 40, 3


def question(**settings):
    torch.manual_seed(0)
    given = {"model": nn.Linear(4, CLASSES), "inputs": torch.randn(ROWS, 4), "bound": NormBound(0.5), "noise_std": 1.0}
    return GradientSum(**{**given, **settings})


def labels():
    return np.arange(ROWS, dtype=np.uint8) % CLASSES


def truth():
    return torch.from_numpy(labels().astype(int))


# -- events and sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "diameter"), [(NormBound(0.5), 1.0), (DiameterBound(0.5, 0.6), 0.6)])
def test_events(bound, diameter):
    """Radius and diameter of the bound, and what float64 sums of the rows and rounding to the grid can add."""
    ask = question(bound=bound)
    more = 2 * summation_error(0.5, ROWS) + ask.step * math.sqrt(15)
    assert 0 < more < 1e-4 * diameter
    assert ask.event() == Gaussian(1.0, diameter + more)
    assert question(bound=bound, rate=0.1).event() == PoissonGaussian(1.0, 0.5 + more, diameter + more, 0.1)


def test_a_full_sum_is_the_clipped_sum_plus_noise_over_the_rows():
    ask = question(noise_std=1e-9)
    release = LabelVault(labels(), CLASSES).release(ask)
    exact = clipped_sum(ask.model, cross_entropy, ask.inputs, truth(), clip=0.5)
    torch.testing.assert_close(release.value, exact.float() / ROWS, atol=1e-7, rtol=0)
    assert (release.noise_std, release.expected_batch) == (1e-9 / ROWS, ROWS)


def test_a_secret_batch_is_divided_by_its_expected_size():
    release = question(rate=0.25).sample(labels(), SecureRandom(seed=1))
    assert release.value.shape == (15,)
    assert (release.expected_batch, release.noise_std) == (10.0, 0.1)


def test_a_secret_batch_has_the_rows_the_vault_drew():
    ask = question(noise_std=1e-9, rate=0.25)
    rows = torch.from_numpy(poisson_batch(ROWS, 0.25, SecureRandom(seed=5)))
    assert 0 < len(rows) < ROWS
    exact = clipped_sum(ask.model, cross_entropy, ask.inputs[rows], truth()[rows], clip=0.5)
    torch.testing.assert_close(ask.sample(labels(), SecureRandom(seed=5)).value, exact.float() / 10, atol=1e-7, rtol=0)


def test_the_current_weights_are_read_at_every_draw():
    ask = question(noise_std=1e-9)
    draw = LabelVault(labels(), CLASSES).lease(ask, 2)
    before = draw().value
    load_parameter_vector(ask.model, parameter_vector(ask.model) * -2)
    assert (draw().value - before).abs().max() > 1e-3


def test_named_batches_are_charged_plainly_and_by_row():
    vault = LabelVault(labels(), CLASSES)
    batch = np.array([3, 17, 4])
    ask = question(inputs=question().inputs[batch], noise_std=1e-9)
    release = vault.release(ask, rows=batch)
    exact = clipped_sum(ask.model, cross_entropy, ask.inputs, truth()[batch], clip=0.5)
    torch.testing.assert_close(release.value, exact.float() / 3, atol=1e-7, rtol=0)
    assert sorted(group.rows for group in vault.ledger.groups()) == [3, 37]


def test_batches_of_two_sizes_cost_the_same_where_both_say_the_larger_one():
    vault, inputs = LabelVault(labels(), CLASSES), question().inputs
    batches = [np.arange(20), np.arange(20, 33)]
    asks = [question(inputs=inputs[batch], most_rows=20) for batch in batches]
    assert asks[0].event() == asks[1].event() == question(inputs=inputs[:20]).event()
    assert [draw().expected_batch for draw in vault.lease_batches(asks, 1, batches)] == [20, 13]
    with pytest.raises(ValueError, match="most_rows is 7, the data have 20"):
        vault.release(question(inputs=inputs[:20], most_rows=7), rows=batches[0])


def test_the_certificate_names_what_the_claim_rests_on():
    vault = LabelVault(labels(), CLASSES)
    vault.lease(question(rate=0.5), 3)
    (sentence,) = parse(vault.certificate(1e-5).dumps()).assumptions
    assert "does not depend on which other rows were in its batch" in sentence


@pytest.mark.parametrize("bound", [NormBound(0.5), DiameterBound(0.5, 0.6)])
def test_an_empty_batch_is_noise(bound):
    release = question(rate=1e-9, bound=bound).sample(labels(), SecureRandom(seed=1))
    assert torch.isfinite(release.value).all()
    assert release.value.abs().max() > 0


@pytest.mark.parametrize("bound", [NormBound(0.5), DiameterBound(0.5, 0.6)])
def test_speed_settings_change_nothing(bound):
    responses = [
        question(bound=bound, rate=0.5, chunk=chunk).sample(labels(), SecureRandom(seed=3)).value
        for chunk in (None, 1, 7, 1000)
    ]
    for response in responses[1:]:
        torch.testing.assert_close(response, responses[0], atol=1e-6, rtol=0)


def test_two_inputs_and_another_loss():
    """One logit, two classes, and a table of two columns."""
    torch.manual_seed(0)
    inputs = (torch.randn(ROWS, 2), torch.randint(4, (ROWS, 1)))

    def logistic(logits, responses):
        return binary_cross_entropy_with_logits(logits[:, 0], responses.float(), reduction="none")

    for bound in (NormBound(0.5), DiameterBound(0.5, 0.6)):
        ask = GradientSum(attribution_network(2, (4,), 1), inputs, bound, 1.0, rate=0.5, loss=logistic, num_classes=2)
        release = LabelVault(labels() % 2, 2).release(ask)
        assert release.value.shape == parameter_vector(ask.model).shape


# -- what is left behind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [NormBound(0.5), DiameterBound(0.5, 0.6)])
@pytest.mark.parametrize("network", ["chain", "rows"])
def test_nothing_outside_tells_the_size_of_the_batch(network, bound):
    """Dropout draws as many numbers as there are rows; torch's generator must not show how many."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)]
    model = nn.Sequential(*layers[:1], *([] if network == "chain" else [nn.LayerNorm(8)]), *layers[1:])
    ask = question(model=model, rate=0.5, bound=bound)
    before, weights = torch.get_rng_state(), parameter_vector(model)
    hooks = [len(layer._forward_hooks) for layer in model.modules()]
    LabelVault(labels(), CLASSES).release(ask)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(parameter_vector(model), weights)
    assert all(value.grad is None for value in model.parameters())
    assert [len(layer._forward_hooks) for layer in model.modules()] == hooks


def test_two_threads_leave_torchs_generator_as_it_was():
    """Overlapping, each used to put back what it found: the seed that the other's vault had drawn."""
    before, entered, left = torch.get_rng_state(), [Event(), Event()], Event()

    def first():
        with own_generator(111, torch.device("cpu")):
            entered[0].set()
            entered[1].wait(0.3)
        left.set()

    def second():
        entered[0].wait()
        with own_generator(222, torch.device("cpu")):
            entered[1].set()
            left.wait(5)
            torch.rand(3)

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), before)


def test_vaults_in_two_threads_leave_torchs_generator_as_it_was():
    """The same by whole sums with dropout; how they overlap is left to chance."""
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, CLASSES))
    ask = question(model=model, inputs=torch.ones(ROWS, 4), rate=0.5)
    before = torch.get_rng_state()
    threads = [Thread(target=lambda: [ask.sample(labels(), SecureRandom()) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_masks_come_from_the_vaults_stream():
    model = cifar_cnn(dropout=0.5)
    ask = question(model=model, inputs=torch.randn(ROWS, 3, 32, 32), noise_std=1e-9)
    first, again, other = (ask.sample(labels(), SecureRandom(seed)).value for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-4


@pytest.mark.parametrize("bound", [NormBound(0.5), DiameterBound(0.5, 0.4)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -3e38, 1e37])
def test_gradients_that_are_not_finite_raise_nothing_and_add_nothing(bad, bound):
    inputs = question().inputs.clone()
    inputs[7] = bad
    ask = question(inputs=inputs, noise_std=1e-9, bound=bound)
    rest = np.delete(np.arange(ROWS), 7)
    expected = question(inputs=inputs[rest], noise_std=1e-9, bound=bound).sample(labels()[rest], SecureRandom(1)).value
    for label in range(CLASSES):
        responses = labels()
        responses[7] = label
        found = LabelVault(responses, CLASSES).release(ask).value
        torch.testing.assert_close(found * ROWS / (ROWS - 1), expected, atol=1e-5, rtol=0)


def test_a_sum_takes_the_same_steps_whatever_the_label_of_a_row_whose_gradient_overflows_for_one(monkeypatch):
    """All was done again where a row was not finite: an analyst who chose the weights read a label off the time."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    for layer, weights in zip(model, ([[1e30, 0.0]], [[1e38]], [[3.0], [-3.0]]), strict=True):
        layer.weight.data = torch.tensor(weights)
    inputs = torch.tensor([[1e-30, 0.0]] + [[0.0, 1.0]] * 3)
    done, pieces = [], per_example.pieces

    def counted(*given):
        done.append(1)
        return pieces(*given)

    monkeypatch.setattr(per_example, "pieces", counted)
    steps = []
    for label in (0, 1):
        slopes = per_example.gradients(model, cross_entropy, inputs[:1], torch.tensor([label]))
        assert bool(slopes.isfinite().all()) == (label == 0)
        done.clear()
        ask = GradientSum(model, inputs, NormBound(1.0), noise_std=1e-9)
        assert LabelVault([label, 0, 0, 0], 2).release(ask).value.isfinite().all()
        steps.append(len(done))
    assert steps[0] == steps[1]


def test_repr_shows_settings_and_no_data():
    assert repr(question(rate=0.1)) == (
        "GradientSum(bound=NormBound(clip=0.5), noise_std=1.0, rate=0.1, num_classes=None, chunk=None, precision=None, "
        "most_rows=None)"
    )


# -- refusals ------------------------------------------------------------------------------------------------


def refused(words, **settings):
    vault = LabelVault(labels(), CLASSES)
    with pytest.raises(ValueError, match=words):
        vault.release(question(**settings))
    assert vault.certificate().epsilon == 0, "a refusal must cost nothing"


def test_batch_norm_is_refused_before_anything_is_charged():
    images = torch.randn(ROWS, 3, 12, 12)
    model = wide_resnet(CLASSES, depth=10, widen=1)
    refused("BatchNorm2d in training mode.*group_norm", model=model, inputs=images)
    vault = LabelVault(labels(), CLASSES)
    draw = vault.lease(question(model=model.eval(), inputs=images, rate=0.1), 2)
    draw()
    model.train()
    with pytest.raises(MechanismError, match="ValueError"):
        draw()


def test_what_does_not_fit_is_refused_before_anything_is_charged():
    refused("rows, the data 40", inputs=torch.randn(39, 4))
    refused(r"\[39, 40\] rows", inputs=(torch.randn(ROWS, 4), torch.randn(39, 4)))
    refused("num_classes is 5 in the mechanism", model=nn.Linear(4, 5))
    refused("num_classes is 2 in the mechanism", num_classes=2)
    refused("no trainable parameters", model=nn.Linear(4, 3).requires_grad_(False))
    refused("must be .1, number of logits.", model=nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)))
    refused("one number per row", loss=lambda logits, responses: cross_entropy(logits, responses).mean())
    with pytest.raises(IndexError):
        question(loss=lambda logits, responses: logits[:, 0] * [0.0, 1.0][int(responses.max())]).fits(ROWS, CLASSES)


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        question(inputs=torch.randn(0, 4)).fits(0, CLASSES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": 1.5}, "rate is 1.5"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"rate": "0.1"}, "rate is '0.1'"),
        ({"noise_std": 0.0}, "noise_std"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"noise_std": float("inf")}, "noise_std"),
        ({"noise_std": True}, "noise_std is True"),
        ({"chunk": 0}, "chunk is 0"),
        ({"num_classes": 0}, "num_classes is 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        question(**settings)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf"), 1e-11, True, "1"])
def test_bad_clips(clip):
    with pytest.raises(ValueError, match="clip is"):
        NormBound(clip)
    with pytest.raises(ValueError, match="clip is"):
        DiameterBound(clip, 1.0)


@pytest.mark.parametrize(("diameter", "words"), [(0.0, "diameter is 0.0"), (2.01, "more than twice the clip")])
def test_bad_diameters(diameter, words):
    with pytest.raises(ValueError, match=words):
        DiameterBound(1.0, diameter)


def test_bounds_are_values():
    assert NormBound(2) == NormBound(2.0)
    assert (NormBound(2).radius, NormBound(2).diameter) == (2.0, 4.0)
    assert (DiameterBound(2, 3).radius, DiameterBound(2, 3).diameter) == (2.0, 3.0)


def test_a_real_network_through_a_vault_with_both_bounds():
    torch.manual_seed(0)
    vault = LabelVault(np.arange(60) % 10, 10)
    images = torch.randn(60, 1, 28, 28)
    for bound in (NormBound(1.0), DiameterBound(1.0, 1.1)):
        release = vault.release(GradientSum(mnist_cnn(), images, bound, 2.0, rate=0.5))
        assert release.value.shape == (9_066,)
        assert release.value.std().item() == pytest.approx(release.noise_std, rel=0.1)
