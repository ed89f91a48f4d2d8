"""The descent loop: the optimiser's own steps on the given gradients; a run cut anywhere goes on as if it were not."""

import os

import pytest
import torch
from torch import nn

from labeldp.learning.descend import Kept, descend
from labeldp.learning.optimisers import adam, cosine, linear, rmsprop, sgd
from tests.trained import StopHereError


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model


def size(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def noise(step, many):
    return torch.randn(many, generator=torch.Generator().manual_seed(step))


OPTIMIZERS = [sgd(0.1, 0.9, 1e-3), sgd(0.1, 0.0, 0.0), adam(0.01, 0.1), rmsprop(0.01), rmsprop(0.01, 0.9, 0.5)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_steps_are_the_optimisers_own(optimizer):
    """A flat gradient on all parameters equals the same optimiser on one flat parameter."""
    model = network()
    vector = nn.Parameter(flat(model))
    reference = optimizer([vector])
    peak = reference.param_groups[0]["lr"]
    for step in range(30):
        reference.param_groups[0]["lr"] = peak * linear()(step / 30)
        vector.grad = noise(step, len(vector))
        reference.step()
    frozen = model[0].bias.clone()
    descend(model, lambda step: noise(step, size(model)), steps=30, optimizer=optimizer, schedule=linear())
    torch.testing.assert_close(flat(model), vector.detach())
    assert torch.equal(model[0].bias, frozen)
    assert not model.training


def test_the_average_is_the_moving_average_of_the_weights():
    model = network()
    mean = start = flat(model)
    weights = start
    for step in range(25):
        weights = weights - 0.1 * noise(step, size(model))
        mean = 0.9 * mean + 0.1 * weights
    descend(model, lambda step: noise(step, size(model)), steps=25, average=0.9)
    torch.testing.assert_close(flat(model), mean)


def test_the_weights_stay_in_their_ball():
    model = network()
    start = flat(model)
    weights = start
    for step in range(25):
        weights = weights - 0.1 * noise(step, size(model))
        weights = start + (weights - start) * min(1.0, 0.7 / float((weights - start).norm()))
    descend(model, lambda step: noise(step, size(model)), steps=25, radius=0.7)
    torch.testing.assert_close(flat(model), weights)
    assert abs(float((flat(model) - start).norm()) - 0.7) < 0.1


def test_a_lost_gradient_is_a_step_not_taken():
    models = [network() for _ in range(2)]
    kept = [step for step in range(20) if step % 3]
    descend(models[0], lambda step: noise(step, size(models[0])) if step % 3 else None, steps=20)
    descend(models[1], lambda step: noise(kept[step], size(models[1])), steps=len(kept))
    assert torch.equal(flat(models[0]), flat(models[1]))


def test_reports_and_the_mode_of_the_model():
    seen, modes = [], []
    model = network().train(False)

    def gradient(step):
        modes.append(model.training)
        return noise(step, size(model))

    descend(model, gradient, steps=10, every=4, report=seen.append)
    assert seen == [4, 8, 10]
    assert not any(modes)
    seen.clear()
    descend(model, gradient, steps=8, every=4, report=seen.append)
    descend(model, gradient, steps=3, report=seen.append)
    descend(model, gradient, steps=0, report=seen.append)
    assert seen == [4, 8, 3, 0]


def test_slow_steps_are_reported_one_by_one(monkeypatch):
    """A pass may take minutes: whoever watches must not see a line that stands still."""
    seen, clock, model = [], [0.0], network()
    monkeypatch.setattr("labeldp.learning.descend.time.monotonic", lambda: clock[0])

    def gradient(step):
        clock[0] += 3.0 if step < 3 else 0.5
        return noise(step, size(model))

    descend(model, gradient, steps=12, every=5, report=seen.append)
    # Steps of three seconds; then those of half a second: at the end of an epoch, and once two seconds have passed.
    assert seen == [1, 2, 3, 5, 10, 12]
    seen.clear()
    descend(model, gradient, steps=6, report=seen.append)
    assert seen == [6]


def test_nothing_is_left_in_the_gradients():
    model = network()
    descend(model, lambda step: noise(step, size(model)), steps=2)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("shape", [(3,), (1, 22), ()])
def test_a_gradient_of_another_size_is_refused(shape):
    with pytest.raises(ValueError, match="must be"):
        descend(network(), lambda step: torch.zeros(shape), steps=1)
    with pytest.raises(ValueError, match="steps=-1"):
        descend(network(), lambda step: torch.zeros(shape), steps=-1)


@pytest.mark.parametrize("cut", [0, 1, 19, 20, 21, 39, 40, 47, 49])
@pytest.mark.parametrize("when", ["before", "drawn", "kept"])
def test_a_run_cut_anywhere_goes_on_as_if_it_were_not(tmp_path, cut, when):
    """Cut before the look, after it was drawn but not kept (then it is lost), and after it was kept."""
    settings = {"steps": 50, "optimizer": sgd(0.1), "schedule": cosine(), "average": 0.8, "radius": 1.5}
    asked = []

    def run(model, stop=None):
        with Kept(tmp_path, "a") as kept:

            def gradient(step):
                found = kept.gradient(step)
                if found is not None:
                    return found
                if step in asked:
                    return None
                if step == stop and when == "before":
                    raise StopHereError
                asked.append(step)
                if step == stop and when == "drawn":
                    raise StopHereError
                kept.add(step, noise(step, size(model)))
                if step == stop:
                    raise StopHereError
                return noise(step, size(model))

            return descend(model, gradient, kept=kept, **settings)

    with pytest.raises(StopHereError):
        run(network(), cut)
    with torch.no_grad():
        other = network()
        other[0].weight.add_(1.0)  # a new process may start from other weights
    resumed = run(other)
    lost = cut if when == "drawn" else None
    whole = descend((model := network()), lambda step: None if step == lost else noise(step, size(model)), **settings)
    assert torch.equal(flat(resumed), flat(whole))
    assert asked == list(range(50))
    again = run(network())  # a finished run has nothing left to ask
    assert torch.equal(flat(again), flat(whole))
    assert len(asked) == 50


def test_gradients_cut_short_anywhere_are_dropped(tmp_path):
    with Kept(tmp_path, "a") as kept:
        for step in range(3):
            kept.add(step, noise(step, 5))
    log = tmp_path / "gradients.log"
    whole = log.read_bytes()
    record = len(whole) // 3
    for cut in range(len(whole) + 1):
        log.write_bytes(whole[:cut])
        with Kept(tmp_path, "a") as kept:
            for step in range(3):
                found = kept.gradient(step)
                assert (found is not None) == (cut >= (step + 1) * record)
                assert found is None or torch.equal(found, noise(step, 5))
        assert log.stat().st_size == cut // record * record


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_come_back_to_the_bit(tmp_path, dtype):
    with Kept(tmp_path, "a") as kept:
        kept.add(3, noise(0, 5).to(dtype) / 3)
    with Kept(tmp_path, "a") as kept:
        assert torch.equal(kept.gradient(3), noise(0, 5).to(dtype) / 3)
        assert kept.gradient(3).dtype == dtype


def test_a_damaged_gradient_is_not_used(tmp_path):
    with Kept(tmp_path, "a") as kept:
        kept.add(0, noise(0, 5))
    log = tmp_path / "gradients.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    with Kept(tmp_path, "a") as kept:
        assert kept.gradient(0) is None


def test_another_runs_checkpoint_is_refused(tmp_path):
    with Kept(tmp_path, "a") as kept:
        descend(network(), lambda step: None, steps=1, kept=kept)
    with Kept(tmp_path, "b") as kept, pytest.raises(ValueError, match="another run"):
        descend(network(), lambda step: None, steps=1, kept=kept)


def test_the_checkpoint_is_replaced_in_one_step(tmp_path, monkeypatch):
    """When writing the new one fails, the old one and the gradients since are still there."""
    with Kept(tmp_path, "a") as kept:
        kept.save(0, {"x": torch.zeros(2)})
        kept.add(0, noise(0, 5))

        def fail(*_):
            raise OSError("no space left")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            kept.save(1, {"x": torch.ones(2)})
    with Kept(tmp_path, "a") as kept:
        step, state = kept.load()
        assert (step, state["x"].tolist()) == (0, [0, 0])
        assert kept.gradient(0) is not None
