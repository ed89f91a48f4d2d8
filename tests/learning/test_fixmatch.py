"""FixMatch: the loss, mask and average against plain arithmetic; unlabelled rows help; killed runs go on."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from labeldp.learning import fixmatch as module
from labeldp.learning.evidence import on_classes
from labeldp.learning.fixmatch import (
    FreeThreshold,
    SoftThreshold,
    consistency,
    fixmatch,
    settle_norms,
    three_views,
)
from labeldp.learning.optimisers import adam, constant, seven_sixteenths, sgd, weights_sgd
from labeldp.learning.train import Averaged, PausedError, accuracy, fit
from tests.learning.semihelp import STRONG, WEAK, K, loss_of, network, pictures, probed
from tests.trained import weights

SETTINGS = {"weak": WEAK, "strong": STRONG, "optimizer": adam(5e-3), "schedule": constant(), "average": 0.9}


def run(epochs=2, objective=None, model=None, **settings):
    images, labels = pictures(120)
    given = {**SETTINGS, "batch_size": 8, "ratio": 3, "rows": torch.arange(30), **settings}
    return fixmatch(model or network(), images, objective or on_classes(labels), epochs=epochs, **given)


def test_the_mask_and_the_mean_are_over_all_rows():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    beliefs = torch.softmax(4 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    expected = [
        -math.log(torch.softmax(row, 0)[belief.argmax()]) if belief.max() >= 0.9 else 0.0
        for row, belief in zip(logits, beliefs, strict=True)
    ]
    assert 0 < sum(value > 0 for value in expected) < 6
    assert consistency(logits, beliefs, 0.9).item() == pytest.approx(sum(expected) / 6, rel=1e-5)
    assert consistency(logits, beliefs, 1.1).item() == 0


def test_one_step_is_the_published_loss(monkeypatch):
    """The loss that the loop is given, against the formula on the same views."""
    seen = {}
    monkeypatch.setattr(module, "minimise", lambda net, loss, count, **settings: seen.update(loss=loss, **settings))
    images, labels = pictures(120)
    model = network(norm=False)
    run(model=model, threshold=0.4, temperature=0.5, strength=2.0)
    batch = torch.arange(50, 74)
    value = loss_of(seen, batch)
    generator = torch.Generator().manual_seed(5)
    chosen = torch.randint(30, (8,), generator=generator)
    logits = model(torch.cat(three_views(images, chosen, batch, WEAK, STRONG, generator)))
    guess = torch.softmax(logits[8:32] / 0.5, dim=1)
    mask = (guess.max(dim=1).values >= 0.4).float()
    unlabelled = (mask * -log_softmax(logits[32:], dim=1)[torch.arange(24), guess.argmax(dim=1)]).mean()
    expected = cross_entropy(logits[:8], labels[chosen]) + 2.0 * unlabelled
    assert 0 < mask.mean() < 1
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert seen["batch_size"] == 24


@pytest.mark.parametrize("apart", [False, True])
def test_guesses_apart_are_the_same_loss_without_norms(monkeypatch, apart):
    seen = {}
    monkeypatch.setattr(module, "minimise", lambda net, loss, count, **settings: seen.update(loss=loss, **settings))
    run(model=network(norm=False), threshold=0.4, apart=apart)
    value = loss_of(seen, torch.arange(50, 74))
    run(model=network(norm=False), threshold=0.4)
    assert value.item() == pytest.approx(loss_of(seen, torch.arange(50, 74)).item())


def test_guesses_apart_have_norms_of_their_own(monkeypatch):
    """The weak views' pass sees them alone: a batch norm then has seen two batches, not one."""
    seen = {}
    monkeypatch.setattr(module, "minimise", lambda net, loss, count, **settings: seen.update(loss=loss, **settings))
    for apart, batches in ((False, 1), (True, 2)):
        model = network()
        run(model=model, apart=apart)
        model.train()
        loss_of(seen, torch.arange(50, 74))
        assert model[1].num_batches_tracked.item() == batches


@pytest.mark.parametrize("apart", [False, True])
def test_no_gradient_goes_through_the_guess(monkeypatch, apart):
    seen = {}
    monkeypatch.setattr(module, "minimise", lambda net, loss, count, **settings: seen.update(loss=loss, **settings))
    model = network(norm=False)
    run(model=model, threshold=0.0, objective=lambda logits, rows: 0 * logits.sum(dim=1), apart=apart)
    loss_of(seen, torch.arange(50, 74)).backward()
    got = model[-1].bias.grad.clone()
    images, _ = pictures(120)
    generator = torch.Generator().manual_seed(5)
    chosen = torch.randint(30, (8,), generator=generator)
    logits = model(torch.cat(three_views(images, chosen, torch.arange(50, 74), WEAK, STRONG, generator)))
    pull = torch.softmax(logits[32:], dim=1) - torch.eye(K)[logits[8:32].argmax(dim=1)]
    assert torch.allclose(got, pull.mean(dim=0), atol=1e-5)


def test_the_average_follows_every_step():
    """Against a plain average kept beside the same training without one."""
    model, steps = network(), []
    plain = run(model=model, average=0.0, epochs=2)
    averaged = run(model=network(), average=0.8, epochs=2)

    class Spy(torch.optim.AdamW):
        def step(self, closure=None):
            super().step(closure)
            steps.append([p.detach().clone() for group in self.param_groups for p in group["params"]])

    slow = [p.detach().clone() for p in network().parameters()]
    again = run(average=0.0, epochs=2, optimizer=lambda ps: Spy(ps, 5e-3, weight_decay=0.0))
    for fast in steps:
        slow = [0.8 * s + 0.2 * f for s, f in zip(slow, fast, strict=True)]
    assert torch.equal(weights(plain), weights(again))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(averaged.parameters(), slow, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(averaged.buffers(), plain.buffers(), strict=True))


def test_unlabelled_rows_help():
    """Two labels of each class: with 600 unlabelled pictures beside them, far more are right than without."""
    images, labels = pictures(600, noise=0.25)
    rows = torch.cat([torch.where(labels == c)[0][:2] for c in range(K)])
    settings = {"epochs": 150, "batch_size": 12, "optimizer": adam(5e-3), "augment": WEAK}
    alone = fit(network(), images, on_classes(labels), rows=rows, **settings)
    settings = {**SETTINGS, "epochs": 25, "batch_size": 8, "ratio": 6, "threshold": 0.8}
    both = fixmatch(network(), images, on_classes(labels), rows=rows, **settings)
    few, many = (accuracy(model, *pictures(600, 1, 0.25)) for model in (alone, both))
    assert many > 0.93
    assert many > few + 0.05


def test_guesses_are_held_to_the_prior():
    network_ = Averaged(nn.Linear(1, 2), 0.9, torch.tensor([0.5, 0.5]))
    skewed = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    for _ in range(2000):
        held = network_.aligned(skewed)
    # The running mean has become the batch's, so the mean odds are even again.
    odds = skewed * torch.tensor([0.5 / 0.85, 0.5 / 0.15])
    assert torch.allclose(held, odds / odds.sum(dim=1, keepdim=True), atol=1e-3)
    assert "mean" in network_.state_dict()


def test_a_paused_run_goes_on_as_if_it_had_not(tmp_path):
    prior = torch.full((K,), 1 / K)
    whole = run(epochs=4, prior=prior)
    with pytest.raises(PausedError):
        run(epochs=4, prior=prior, checkpoint=tmp_path / "c.pt", seconds=0.0)
    with pytest.raises(PausedError):
        run(epochs=4, prior=prior, checkpoint=tmp_path / "c.pt", seconds=0.0, model=network(7))
    rest = run(epochs=4, prior=prior, checkpoint=tmp_path / "c.pt", model=network(8))
    assert torch.equal(weights(whole), weights(rest))


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run(checkpoint=tmp_path / "c.pt")
    with pytest.raises(ValueError, match="other data or settings"):
        run(checkpoint=tmp_path / "c.pt", threshold=0.5)
    with pytest.raises(ValueError, match="other data or settings"):
        run(checkpoint=tmp_path / "c.pt", rows=torch.arange(31))


def test_reports_every_epoch_and_repeats():
    told = []
    first = run(epochs=3, report=told.append)
    assert [progress.epoch for progress in told] == [1, 2, 3]
    assert all(math.isfinite(progress.loss) for progress in told)
    assert torch.equal(weights(first), weights(run(epochs=3)))
    assert not first.training


def test_mixed_precision_is_for_gpus_unless_told():
    for bf16, expected in ((True, {True}), (False, {False}), (None, {False})):
        model, seen = probed(network())
        run(epochs=1, model=model, bf16=bf16)
        assert set(seen) == expected


def test_decay_is_on_weights_alone():
    model = network()
    optimizer = weights_sgd(0.1, weight_decay=0.2)(model.parameters())
    decayed = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert all(decayed[id(p)] == (0.2 if p.ndim > 1 else 0.0) for p in model.parameters())
    assert len(decayed) == len(list(model.parameters()))
    assert all(group["nesterov"] for group in optimizer.param_groups)


def test_the_schedule():
    assert seven_sixteenths()(0.0) == 1
    assert seven_sixteenths()(0.5) == pytest.approx(math.cos(7 * math.pi / 32))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"threshold": 1.5}, "threshold"), ({"temperature": 0.0}, "temperature"), ({"strength": -1.0}, "strength"),
        ({"average": 1.0}, "average"), ({"rows": torch.arange(0)}, "rows"), ({"batch_size": 0}, "batch_size"),
        ({"ratio": 0}, "ratio"),
    ],
)  # fmt: skip
def test_refuses_wrong_settings(settings, named):
    with pytest.raises(ValueError, match=named):
        run(**settings)


@pytest.mark.parametrize("threshold", [0.4, SoftThreshold()])
def test_compiled_and_plain_steps_give_the_same_losses(monkeypatch, threshold):
    """Two epochs by either way: traced, differentiated ahead and run as one graph, without a compiler of kernels."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **how: compile_(model, backend="aot_eager", **how))
    losses = {False: [], True: []}
    for compiled, told in losses.items():
        run(apart=True, threshold=threshold, compiled=compiled, report=lambda p, told=told: told.append(p.loss))
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)


def test_soft_weights_are_a_gaussian_below_the_mean():
    """The first step is all that was seen; the second counts a half, and no step less than `follow`."""
    sure = SoftThreshold(follow=0.3)
    first, second = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.75, 0.25]]), torch.tensor([[0.95, 0.05], [0.55, 0.45]])
    weights_ = sure(first)
    variance = torch.tensor([0.9, 0.6, 0.75]).var().item()
    assert weights_.tolist() == pytest.approx([1, math.exp(-(0.15**2) / (variance / 2)), 1], abs=1e-5)
    sure(second)
    assert sure.mean.item() == pytest.approx(0.75)
    assert sure.variance.item() == pytest.approx((variance + torch.tensor([0.95, 0.55]).var().item()) / 2)
    for _ in range(3):
        sure(second)
    assert sure.share().item() == pytest.approx(0.3)


def test_free_thresholds_let_rare_classes_in_sooner():
    beliefs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2], [0.35, 0.65]])
    sure = FreeThreshold(2)
    # Mean confidence 0.7875, shares 0.7125 and 0.2875: thresholds 0.7875 and 0.318.
    assert sure(beliefs).tolist() == [1, 1, 1, 1]
    assert sure.mean.item() == pytest.approx(0.7875)
    assert FreeThreshold(2)(torch.tensor([[0.9, 0.1], [0.6, 0.4]])).tolist() == [1, 0]


@pytest.mark.parametrize("threshold", [SoftThreshold(), FreeThreshold(K)])
def test_thresholds_that_follow_go_on_after_a_pause(tmp_path, threshold):
    whole = run(epochs=3, threshold=threshold)
    with pytest.raises(PausedError):
        run(epochs=3, threshold=threshold, checkpoint=tmp_path / "c.pt", seconds=0.0)
    assert torch.equal(weights(whole), weights(run(epochs=3, threshold=threshold, checkpoint=tmp_path / "c.pt")))
    # What is given is not changed: the next training begins anew.
    assert threshold.steps.item() == 0


def test_settled_norms_are_those_of_all_views():
    """Without changes, and in one batch: the mean and spread of what goes into the norm."""
    images, _ = pictures(120)
    model = run(epochs=1)
    settle_norms(model, images, lambda some, generator: some, batch_size=120)
    before = model[0](images).detach()
    assert torch.allclose(model[1].running_mean, before.mean(dim=(0, 2, 3)), atol=1e-5)
    assert torch.allclose(model[1].running_var, before.var(dim=(0, 2, 3)), atol=1e-5)
    assert model[1].momentum == 0.1
    assert not model.training
    usual, settled = run(epochs=1), run(epochs=1, settled=True)
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), settled.parameters(), strict=True))
    assert not torch.equal(usual[1].running_mean, settled[1].running_mean)


def test_refuses_several_inputs():
    images, labels = pictures(120)
    with pytest.raises(ValueError, match="tuple"):
        fixmatch(network(), (images, images), on_classes(labels), epochs=1, optimizer=sgd(0.1))
