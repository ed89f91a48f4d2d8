"""Mean teacher: targets are Bayes' rule, the step is the formula, the teacher helps, killed runs go on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning import mean_teacher as module
from labeldp.learning.evidence import Labels, evidence, forward_corrected, on_classes, posterior
from labeldp.learning.mean_teacher import corrected, mean_teacher
from labeldp.learning.optimisers import adam, constant
from labeldp.learning.train import PausedError, accuracy
from labeldp.mechanisms.responses import RandomizedResponse
from tests.learning.semihelp import STRONG, WEAK, K, loss_of, network, pictures, probed
from tests.trained import weights

SETTINGS = {"weak": WEAK, "strong": STRONG, "optimizer": adam(5e-3), "schedule": constant(), "average": 0.9}


def run(epochs=2, objective=None, model=None, **more):
    images, labels = pictures(120)
    given = {**SETTINGS, "batch_size": 24, "rows": torch.arange(30), **more}
    return mean_teacher(model or network(), images, objective or on_classes(labels), epochs=epochs, **given)


def some_beliefs(n=7):
    return torch.softmax(2 * torch.randn(n, K, generator=torch.Generator().manual_seed(3)), dim=1)


# -- targets -----------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 6.0), st.integers(0, 1000))
@settings(max_examples=40)
def test_of_an_answer_it_is_the_posterior(epsilon, seed):
    """Against Bayes' rule, written out in `targets.posterior`."""
    labels = torch.arange(7) % K
    noisy = LabelVault(labels.numpy(), K, rng=SecureRandom(seed)).release(RandomizedResponse(epsilon, K))
    beliefs, rows = some_beliefs(), torch.arange(7)
    expected = posterior(evidence(noisy), beliefs.log())
    assert torch.allclose(corrected(beliefs, forward_corrected(noisy), rows), expected, atol=1e-5)


def test_of_a_label_it_is_the_label():
    classes, beliefs, rows = torch.arange(7) % K, some_beliefs(), torch.arange(7)
    assert torch.allclose(corrected(beliefs, on_classes(classes), rows), one_hot(classes, K).float(), atol=1e-6)
    targets = some_beliefs(7).flip(0)
    assert torch.allclose(corrected(beliefs, Labels(targets, torch.ones(7)).objective(), rows), targets, atol=1e-5)


def test_heavy_rows_stay_probabilities():
    heavy = Labels(one_hot(torch.arange(7) % K, K).float(), torch.tensor([0.1] * 6 + [5.0])).objective()
    moved = corrected(some_beliefs(), heavy, torch.arange(7))
    assert (moved >= 0).all()
    assert torch.allclose(moved.sum(dim=1), torch.ones(7))


# -- training ----------------------------------------------------------------------------------------------------------


def captured(monkeypatch, **more):
    seen = {}
    monkeypatch.setattr(module, "minimise", lambda net, loss, count, **rest: seen.update(net=net, loss=loss, **rest))
    run(**more)
    seen["net"].train()  # as the loop would have it
    return seen


@pytest.mark.parametrize(
    ("step", "ramp", "weight"), [(0, 0.4, math.exp(-5)), (3, 0.4, math.exp(-1.25)), (10, 0.4, 1), (0, 0, 1)]
)
def test_one_step_is_the_formula(monkeypatch, step, ramp, weight):
    """Rows 20 … 29 have a label, 30 … 43 have none; the teacher is at rest and another network than the model."""
    images, labels = pictures(120)
    seen = captured(monkeypatch, model=network(), temperature=0.5, strength=0.8, ramp=ramp)
    seen["net"].slow.load_state_dict(network(4).state_dict())
    batch = torch.arange(20, 44)
    value = loss_of(seen, batch, step=step, steps=10)  # step 3 of 10 comes when 0.2 is done
    generator = torch.Generator().manual_seed(5)
    easy, difficult = WEAK(images[batch], generator), STRONG(images[batch], generator)
    beliefs = torch.softmax(network(4).eval()(easy), dim=1)
    beliefs[:10] = one_hot(labels[20:30], K).float()
    targets = beliefs**2 / (beliefs**2).sum(dim=1, keepdim=True)
    logits = network().train()(difficult)
    taught = -(targets * log_softmax(logits, dim=1)).sum(dim=1).mean()
    share = 0.8 * weight
    expected = (1 - share) * cross_entropy(logits[:10], labels[20:30]) + share * taught
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)


def test_rows_without_a_label_are_never_asked_about(monkeypatch):
    asked = []

    def objective(logits, rows):
        asked.append(rows)
        return 0 * logits.sum(dim=1)

    seen = captured(monkeypatch, objective=objective, rows=torch.arange(7, 30))
    loss_of(seen, torch.arange(20, 44))
    assert len(asked) == 2
    assert all(((rows >= 7) & (rows < 30)).all() for rows in asked)


def test_no_gradient_reaches_the_teacher(monkeypatch):
    seen = captured(monkeypatch)
    loss_of(seen, torch.arange(24)).backward()
    assert all(p.grad is None for p in seen["net"].slow.parameters())
    assert all(p.grad is not None for p in seen["net"].model.parameters())


def on_noisy_answers(epsilon, strength):
    images, labels = pictures(1000, noise=0.25)
    noisy = LabelVault(labels.numpy(), K, rng=SecureRandom(1)).release(RandomizedResponse(epsilon, K))
    settings = {**SETTINGS, "epochs": 15, "batch_size": 50, "prior": torch.full((K,), 1 / K), "strength": strength}
    model = mean_teacher(network(), images, forward_corrected(noisy), **settings)
    return (noisy.hard() == labels.numpy()).mean(), accuracy(model, *pictures(2000, 1, 0.25))


@pytest.mark.slow
def test_the_teacher_helps_where_most_answers_are_wrong():
    """ε = 0.5 among three classes: 45% of the answers are right. As many steps of their likelihood alone learn less."""
    (right, alone), (_, taught) = on_noisy_answers(0.5, 0.0), on_noisy_answers(0.5, 1.0)
    assert right < 0.5
    assert taught > 0.95
    assert taught > alone + 0.05


def test_a_paused_run_goes_on_as_if_it_had_not(tmp_path):
    whole = run(epochs=4)
    with pytest.raises(PausedError):
        run(epochs=4, checkpoint=tmp_path / "c.pt", seconds=0.0)
    rest = run(epochs=4, checkpoint=tmp_path / "c.pt", model=network(8))
    assert torch.equal(weights(whole), weights(rest))
    with pytest.raises(ValueError, match="other data or settings"):
        run(epochs=4, checkpoint=tmp_path / "c.pt", rows=torch.arange(31))


def test_mixed_precision_is_for_gpus_unless_told():
    for bf16, expected in ((True, {True}), (None, {False})):
        model, seen = probed(network())
        run(epochs=1, model=model, bf16=bf16)
        assert set(seen) >= expected


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": 0.0}, "temperature"), ({"average": 1.0}, "average"), ({"average": 0.0}, "average"),
        ({"rows": torch.arange(0)}, "rows"), ({"ramp": 1.5}, "ramp"), ({"strength": -1.0}, "strength"),
        ({"strength": 1.5}, "strength"),
    ],
)  # fmt: skip
def test_refuses_wrong_settings(settings, named):
    with pytest.raises(ValueError, match=named):
        run(**settings)


def test_refuses_several_inputs():
    images, labels = pictures(120)
    with pytest.raises(ValueError, match="tuple"):
        mean_teacher(network(), (images, images), on_classes(labels), epochs=1)
