import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from labeldp.features import contrastive
from labeldp.features.augment import (
    byol_views,
    colour_jitter,
    compose,
    random_flip,
    random_greyscale,
    random_resized_crop,
    simclr_view,
)
from labeldp.features.contrastive import agreement_loss, byol, nt_xent, simclr
from labeldp.features.encoders import Encoder
from labeldp.features.extract import Raw, extract
from labeldp.learning.optimisers import adam, constant, lars, sgd
from labeldp.learning.train import Batch, PausedError, minimise


def textures(n, seed, size=12):
    """Lying stripes, standing stripes, squares and grids, of random phase and colours: pixels say nothing alone."""
    rng = np.random.default_rng(seed)
    kinds, (i, j) = rng.integers(4, size=n), np.mgrid[:size, :size]
    images = np.empty((n, 3, size, size))
    for image, kind in zip(images, kinds, strict=True):
        a, b = rng.integers(0, 4, size=2)
        shapes = (
            (i + a) // 2 % 2,
            (j + a) // 2 % 2,
            ((i + a) // 2 + (j + b) // 2) % 2,
            ((i + a) % 4 < 1) | ((j + b) % 4 < 1),
        )
        ground, ink = rng.uniform(0, 1, (2, 3, 1, 1))
        drawn = shapes[kind] - shapes[kind].mean()
        image[:] = 0.5 * ground + 0.25 + (ink - 0.5) * drawn + 0.1 * rng.normal(size=(3, size, size))
    return torch.tensor(images.clip(0, 1), dtype=torch.float32), torch.tensor(kinds)


def body(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def probe(extractor, train, test):
    """Test accuracy of ridge regression on the features."""
    x, x_test = (
        torch.cat((rows, torch.ones(len(rows), 1)), dim=1).double() for rows in extract(extractor, train[0], test[0])
    )
    gram = x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1])
    weight = torch.linalg.solve(gram, x.T @ one_hot(train[1], 4).double())
    return ((x_test @ weight).argmax(dim=1) == test[1]).double().mean().item()


TRAIN, TEST = textures(1500, 0), textures(500, 1)
CROP = random_resized_crop((0.4, 1.0))
COLOURED = simclr_view(scale=(0.4, 1.0))
GREY = compose(CROP, random_flip(), colour_jitter(0.4, 0.4, 0.0, 0.0), random_greyscale(1.0))


@pytest.mark.slow
def test_simclr_features_beat_pixels_and_the_untrained_network():
    encoder = simclr(body(), TRAIN[0], epochs=10, view=COLOURED, batch_size=250, optimizer=adam(3e-3))
    trained = probe(encoder, TRAIN, TEST)
    assert probe(Raw(), TRAIN, TEST) < 0.35
    assert probe(Encoder(body()), TRAIN, TEST) < 0.75
    assert trained > 0.82


@pytest.mark.slow
def test_byol_features_beat_pixels_and_the_untrained_network():
    settings = {"view": GREY, "batch_size": 125, "optimizer": adam(3e-3), "hidden": 128, "outputs": 32, "decay": 0.9}
    encoder = byol(body(), TRAIN[0], epochs=10, **settings)
    assert probe(encoder, TRAIN, TEST) > 0.78
    # What two equal views would end in: all images alike.
    assert extract(Encoder(encoder.model, standardise=False), TEST[0])[0].std(dim=0).mean() > 0.05


def test_nt_xent_by_the_definition():
    z = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)).double()
    unit = z / z.norm(dim=1, keepdim=True)
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10
        others = sum(math.exp(unit[i] @ unit[k] / 0.3) for k in range(10) if k != i)
        total += -math.log(math.exp(unit[i] @ unit[partner] / 0.3) / others)
    assert nt_xent(z, 0.3).item() == pytest.approx(total / 10, rel=1e-5)


def test_nt_xent_has_a_finite_gradient_and_likes_agreement():
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    nt_xent(z, 0.2).backward()
    assert torch.isfinite(z.grad).all()
    same = torch.eye(4).repeat(2, 1)
    assert nt_xent(same, 0.2) < nt_xent(same.roll(1, dims=0)[torch.arange(8) // 2], 0.2)


def test_agreement_loss_by_the_definition():
    a, b = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0)).double()
    each = [2 - 2 * float(x @ y / x.norm() / y.norm()) for x, y in zip(a, b, strict=True)]
    assert agreement_loss(a, b).item() == pytest.approx(2 * np.mean(each))
    assert agreement_loss(a, 3 * a).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_the_target_is_the_moving_average(monkeypatch, decay):
    """Online weights are recorded after every step; the target's must follow t ← t + (1 − decay_k)(w − t)."""
    network, trace = [], []

    def spied(parts, loss, count, *, after, **settings):
        network.extend(parts)

        def recorded(share):
            after(share)
            trace.append((share, parts[0][0][0].weight.detach().clone(), parts[2][0][0].weight.detach().clone()))

        minimise(parts, loss, count, after=recorded, **settings)

    monkeypatch.setattr(contrastive, "minimise", spied)
    start = body()[0].weight.detach().clone()
    byol(body(), TRAIN[0][:100], epochs=3, decay=decay, batch_size=25, hidden=16, outputs=8, optimizer=sgd(0.05))
    expected = start
    for step, (share, online, target) in enumerate(trace):
        assert share == step / 12
        expected = expected + (1 - decay) * (1 + math.cos(math.pi * step / 12)) / 2 * (online - expected)
        assert torch.allclose(target, expected, atol=1e-6)
    assert not torch.allclose(trace[-1][1], trace[-1][2])
    assert all(parameter.grad is None for parameter in network[2].parameters())


@pytest.mark.parametrize("method", [simclr, byol])
def test_the_same_seed_gives_the_same_encoder_and_another_seed_another(method):
    images = TRAIN[0][:200]
    torch.manual_seed(9)
    state = torch.random.get_rng_state()
    before = body()
    first, second, third = (
        extract(method(body(), images, epochs=2, batch_size=50, seed=s), images)[0] for s in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    torch.manual_seed(9)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(extract(Encoder(before), images)[0], first)


@pytest.mark.parametrize("method", [simclr, byol])
def test_pausing_and_resuming_gives_the_same_as_going_through(tmp_path, method):
    images = TRAIN[0][:200]
    settings = {"epochs": 4, "batch_size": 50}
    whole = extract(method(body(), images, **settings), images)[0]
    file = tmp_path / "run.pt"
    for done in (1, 2, 3):
        with pytest.raises(PausedError, match=f"epoch {done} of 4"):
            method(body(), images, **settings, checkpoint=file, seconds=0.0)
    resumed = method(body(5), images, **settings, checkpoint=file, seconds=0.0)
    assert torch.equal(extract(resumed, images)[0], whole)
    assert list(tmp_path.iterdir()) == [file]


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    images, file = TRAIN[0][:100], tmp_path / "run.pt"
    simclr(body(), images, epochs=1, batch_size=50, checkpoint=file)
    for other in ({"seed": 1}, {"epochs": 2}, {"temperature": 0.5}):
        with pytest.raises(ValueError, match="another file"):
            simclr(body(), images, **{"epochs": 1, "batch_size": 50, "checkpoint": file} | other)
    with pytest.raises(ValueError, match="another file"):
        simclr(body(), images + 0.1, epochs=1, batch_size=50, checkpoint=file)


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "trace",)

    torch.save({"run": Evil()}, tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"run\.pt is damaged"):
        simclr(body(), TRAIN[0][:100], epochs=1, checkpoint=tmp_path / "run.pt")
    assert not (tmp_path / "trace").exists()


def test_bytes_progress_and_where_checkpoints_are_written(tmp_path):
    images, seen, written = (255 * TRAIN[0][:100]).to(torch.uint8), [], []

    def report(progress):
        seen.append(progress)
        written.append((tmp_path / "run.pt").exists())

    encoder = simclr(body(), images, epochs=3, batch_size=50, report=report, checkpoint=tmp_path / "run.pt", every=2)
    assert [(p.epoch, p.epochs) for p in seen] == [(1, 3), (2, 3), (3, 3)]
    assert written == [False, True, True]
    assert encoder.mean == pytest.approx((images.double() / 255).mean(dim=(0, 2, 3)).tolist(), rel=1e-5)
    assert not encoder.model.training


def pairs(view, count=500):
    rows = torch.arange(count)
    make = contrastive._Images(body(), TRAIN[0]).pairs(count, view)
    return make(Batch(rows, rows, 0, 0, 1, torch.Generator().manual_seed(0))).chunk(2)


def test_views_come_in_pairs_scaled_to_zero_mean():
    first, second = pairs(lambda images, generator: images)
    assert torch.equal(first, second)
    assert first.mean(dim=(0, 2, 3)).abs().max() < 0.1
    assert (first.std(dim=(0, 2, 3)) - 1).abs().max() < 0.1
    assert not torch.allclose(*pairs(CROP))


def test_either_side_of_a_pair_can_have_its_own_view():
    plain, negative = pairs((lambda images, generator: images, lambda images, generator: 1 - images))
    whole, _ = pairs(lambda images, generator: images)
    assert torch.equal(plain, whole)
    mean, spread = (torch.tensor(each)[:, None, None] for each in moments())
    assert torch.allclose(negative * spread + mean, 1 - TRAIN[0][:500], atol=1e-5)


def moments():
    data = contrastive._Images(body(), TRAIN[0])
    return data.mean, data.spread


def test_the_sides_of_byol_differ_in_solarisation_alone():
    """From the same random numbers the second side is the first, with bright pixels of a fifth of the images turned."""
    images = TRAIN[0][:600]
    first, second = (side(images, torch.Generator().manual_seed(3)) for side in byol_views())
    negative = torch.where(first >= 0.5, 1 - first, first)
    turned = torch.tensor([not torch.equal(a, b) for a, b in zip(first, second, strict=True)])
    assert torch.equal(second[turned], negative[turned])
    assert 0.14 < turned.double().mean() < 0.26
    assert torch.equal(*(side(images, torch.Generator().manual_seed(3)) for side in byol_views(solarise=0.0)))


def test_byol_with_two_views_and_lars_goes_on_as_if_it_had_not_stopped(tmp_path):
    images = TRAIN[0][:100]
    settings = {"view": byol_views(), "optimizer": lars(0.5), "predictor_hidden": 24, "hidden": 16, "outputs": 8}
    settings |= {"epochs": 2, "batch_size": 50}
    whole = byol(body(), images, **settings)
    with pytest.raises(PausedError):
        byol(body(), images, **settings, checkpoint=tmp_path / "c", seconds=0.0)
    rest = byol(body(4), images, **settings, checkpoint=tmp_path / "c")
    assert torch.equal(extract(whole, images)[0], extract(rest, images)[0])
    with pytest.raises(ValueError, match="another run"):
        byol(body(), images, **settings | {"view": COLOURED}, checkpoint=tmp_path / "c")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="bfloat16 is for GPUs; some CPUs have no instructions for it")
def test_a_gpu_trains_in_bfloat16_and_a_seed_decides():
    images, losses = TRAIN[0][:400].cuda(), []
    settings = {"epochs": 3, "batch_size": 100, "optimizer": adam(3e-3), "schedule": constant()}
    encoders = [
        simclr(body(), images, **settings, report=lambda progress: losses.append(progress.loss)) for _ in range(2)
    ]
    assert losses[2] < losses[0]
    first, second = (extract(encoder, images)[0] for encoder in encoders)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simclr(body(), TRAIN[0], epochs=0), "epochs is 0"),
        (lambda: simclr(body(), TRAIN[0], epochs=1, temperature=0.0), "temperature=0.0"),
        (lambda: simclr(body(), TRAIN[0][:, 0], epochs=1), "shape"),
        (lambda: simclr(body(), TRAIN[0][:1], epochs=1), "too few"),
        (lambda: simclr(nn.Conv2d(3, 4, 3), TRAIN[0], epochs=1), "outputs have shape"),
        (lambda: simclr(body(), TRAIN[0], epochs=1, seconds=3.0), "seconds=3.0"),
        (lambda: byol(body(), TRAIN[0], epochs=1, decay=1.0), "decay=1.0"),
        (lambda: byol(body(), TRAIN[0], epochs=1, hidden=0), "hidden is 0"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
