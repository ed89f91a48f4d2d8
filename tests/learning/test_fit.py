import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.features.augment import compose, cutout, random_crop, random_flip
from labeldp.learning import optimisers as schedules
from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import adam, sgd
from labeldp.learning.train import accuracy, fit, predict
from tests.trained import StopHereError, stop_at


def problem(n=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    y = (x @ torch.randn(8, 3, generator=generator)).argmax(dim=1)
    return x, y


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def state(model):
    return torch.cat([value.flatten().float() for value in model.state_dict().values()])


TRAIN = functools.partial(fit, epochs=3, batch_size=32, optimizer=sgd(0.1))


def test_it_learns():
    x, y = problem(2000)
    settings = {"epochs": 15, "batch_size": 64, "optimizer": adam(1e-2), "schedule": schedules.linear()}
    model = fit(network(), x, on_classes(y), **settings)
    assert accuracy(model, x, y) > 0.9
    assert not model.training


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    x, y = problem()
    first, second, third = (TRAIN(network(), x, on_classes(y), seed=s, mixup=2.0) for s in (1, 1, 2))
    assert torch.equal(state(first), state(second))
    assert not torch.equal(state(first), state(third))


def test_global_random_state_is_left_alone():
    x, y = problem()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    TRAIN(network(), x, on_classes(y), mixup=1.0)
    torch.manual_seed(5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_only_the_rows_given_are_trained_on():
    x, y = problem()
    seen = []

    def spy(logits, rows):
        seen.append(rows)
        return on_classes(y)(logits, rows)

    rows = torch.arange(0, 400, 4)
    TRAIN(network(), x, spy, rows=rows, batch_size=10)
    for epoch in np.split(torch.cat(seen).numpy(), 3):
        assert sorted(epoch) == rows.tolist()


def test_all_rows_by_number_is_the_same_as_all_rows():
    x, y = problem()
    named = TRAIN(network(), x, on_classes(y), rows=torch.arange(400))
    assert torch.equal(state(named), state(TRAIN(network(), x, on_classes(y))))


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_resuming_gives_the_same_model_as_going_through(tmp_path, average):
    x, y = problem()
    settings = {"mixup": 1.0, "average": average, "schedule": schedules.piecewise()}
    whole = TRAIN(network(), x, on_classes(y), **settings)

    stop = stop_at(epoch=2)

    with pytest.raises(StopHereError):
        TRAIN(network(), x, on_classes(y), **settings, report=stop, checkpoint=tmp_path / "m.pt")
    resumed = TRAIN(network(1), x, on_classes(y), **settings, checkpoint=tmp_path / "m.pt")
    assert torch.equal(state(whole), state(resumed))


def test_progress_is_reported_after_every_epoch():
    x, y = problem()
    seen = []
    TRAIN(network(), x, on_classes(y), report=seen.append)
    assert [p.epoch for p in seen] == [1, 2, 3]
    assert all(p.epochs == 3 and p.seconds > 0 for p in seen)
    assert seen[-1].loss < seen[0].loss


def test_mixup_mixes_inputs_and_losses_alike():
    """With a linear model and a linear objective, mixup changes nothing in expectation; here, exactly."""
    x = torch.arange(4.0)[:, None]
    model = nn.Linear(1, 1, bias=False)
    calls = []

    def spy(logits, rows):
        calls.append((logits.detach().clone(), rows.clone()))
        return logits.squeeze(1) * 0.0

    fit(model, x, spy, epochs=1, batch_size=4, mixup=1.0, optimizer=sgd(0.0))
    (logits, rows), (again, reverse) = calls
    assert torch.equal(logits, again)
    assert torch.equal(reverse, rows.flip(0))
    weight = np.random.default_rng(0).beta(1.0, 1.0, size=1)[0]
    mixed = weight * x[rows] + (1 - weight) * x[reverse]
    assert torch.allclose(logits, model(mixed), atol=1e-6)


def test_averaged_weights_lag_behind():
    x, y = problem()
    steps = []
    model = network()

    def spy(logits, rows):
        steps.append(model[0].weight.detach().clone())
        return on_classes(y)(logits, rows)

    fit(model, x, spy, epochs=1, batch_size=100, average=0.5, optimizer=sgd(0.1))
    mean, before = steps[0], [*steps[1:]]
    for weights in before:
        mean = 0.5 * mean + 0.5 * weights
    assert not torch.allclose(model[0].weight, steps[-1])
    # The last update is not in `steps`; the average lies halfway between `mean` and it.
    last = 2 * model[0].weight - mean
    assert (last - steps[-1]).norm() < 0.5


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rows": torch.empty(0, dtype=torch.long)}, "no rows"),
    ],
)
def test_senseless_settings_are_refused(more, what):
    x, y = problem()
    with pytest.raises(ValueError, match=what):
        TRAIN(network(), x, on_classes(y), **more)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_missing_features_are_refused_with_a_count(bad):
    x, y = problem()
    x[3, 1] = x[9, 2] = bad
    with pytest.raises(ValueError, match="2 rows"):
        TRAIN(network(), x, on_classes(y))


def test_one_row_and_a_batch_larger_than_the_data():
    model = nn.Linear(2, 3)
    fit(model, torch.zeros(1, 2), on_classes(torch.tensor([1])), epochs=2, batch_size=64)
    assert predict(model, torch.zeros(0, 2)).numel() == 0


def test_a_model_with_two_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, b):
            return self.layer(torch.cat([a, b], dim=1))

    a, b = torch.randn(50, 1), torch.randn(50, 2)
    model = fit(Two(), (a, b), on_classes((a[:, 0] > 0).long()), epochs=20, batch_size=10)
    assert accuracy(model, (a, b), (a[:, 0] > 0).long()) > 0.9


def test_predict_leaves_the_mode_alone_and_does_not_depend_on_batches():
    x, _ = problem()
    model = network().train()
    assert torch.allclose(predict(model, x, batch_size=7), predict(model, x, batch_size=400), atol=1e-6)
    assert model.training


# --- schedules -------------------------------------------------------------------------------------------------


def test_the_rate_at_every_step_is_the_schedule_at_its_share():
    x, y = problem(100)
    rates = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    fit(network(), x, on_classes(y), epochs=10, batch_size=10, schedule=schedules.piecewise(),
        optimizer=lambda p: Spy(p, lr=0.5))  # fmt: skip
    assert len(rates) == 100
    assert rates[0] == 0.0
    assert rates[15] == rates[29] == 0.5
    assert rates[30] == pytest.approx(0.05)
    assert rates[60] == pytest.approx(0.005)
    assert rates[90] == rates[99] == pytest.approx(0.0005)


@pytest.mark.parametrize(
    "schedule", [schedules.linear(), schedules.one_cycle(), schedules.cosine(0.1), schedules.piecewise()]
)
def test_schedules_stay_between_nothing_and_the_peak(schedule):
    values = [schedule(t / 1000) for t in range(1000)]
    assert max(values) == pytest.approx(1.0, abs=1e-2)
    assert min(values) >= 0
    assert values[-1] < 0.02


def test_a_warmup_of_everything_is_refused():
    for make in (schedules.piecewise, schedules.linear, schedules.one_cycle, schedules.cosine):
        with pytest.raises(ValueError, match="warmup=1"):
            make(warmup=1)


# --- augmentation ----------------------------------------------------------------------------------------------------


def images(n=64, size=12):
    return torch.arange(n * 3 * size * size, dtype=torch.float32).reshape(n, 3, size, size) + 1


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_one_of_the_possible_windows_and_all_windows_occur():
    x = images(500, 6)
    padded = torch.nn.functional.pad(x, [2] * 4)
    out = random_crop(2)(x, generator())
    seen = set()
    for i in range(len(x)):
        places = [
            (top, left)
            for top, left in itertools.product(range(5), range(5))
            if torch.equal(padded[i, :, top : top + 6, left : left + 6], out[i])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25


def test_a_flip_mirrors_about_half_of_the_images():
    x = images(1000, 4)
    out = random_flip()(x, generator())
    mirrored = torch.tensor([torch.equal(a.flip(-1), b) for a, b in zip(x, out, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(x, out, strict=True)])
    assert (mirrored ^ same).all()
    assert 400 < mirrored.sum() < 600


def test_cutout_blanks_one_square_in_its_own_place_per_image():
    x = images(200, 16)
    out = cutout(6)(x, generator())
    hidden = out == 0
    assert torch.equal(out[~hidden], x[~hidden])
    areas = hidden[:, 0].flatten(1).sum(dim=1)
    assert areas.max() == 36
    assert areas.min() >= 9
    assert len({tuple(h.nonzero()[0].tolist()) for h in hidden[:, 0]}) > 20
    assert torch.equal(hidden[:, 0], hidden[:, 2])


def test_augmentation_is_repeatable_and_keeps_the_shape():
    both = compose(random_crop(), random_flip(), cutout())
    x = images()
    assert both(x, generator(3)).shape == x.shape
    assert torch.equal(both(x, generator(3)), both(x, generator(3)))
    assert not torch.equal(both(x, generator(3)), both(x, generator(4)))
