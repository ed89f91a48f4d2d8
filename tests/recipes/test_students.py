"""Students: the weights and targets in numbers, a student that beats its teacher, resuming, and no way to a label."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, nn

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.optimisers import adam, one_cycle
from labeldp.learning.train import accuracy, fit, predict
from labeldp.learning.tuning import Plan, tune
from labeldp.models.zoo import with_head
from labeldp.recipes import distil, one_shot
from labeldp.recipes.distil import (
    by_confidence,
    corrected,
    matched,
    mixed,
    most_confident,
    on_probabilities,
    train,
    train_after,
    usual_fit,
)
from labeldp.releases import NoisyMoments
from tests.trained import StopHereError, weights

K, N, SIDE = 3, 1200, 12
TRAIN = functools.partial(fit, epochs=4, batch_size=32, optimizer=adam(1e-2), schedule=one_cycle())


@functools.cache
def strokes(seed=0):
    """One small stroke per image, at a random place: what it looks like is its class. Pixels alone say little."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, size=N)
    strokes = np.stack([np.eye(4), np.fliplr(np.eye(4)), np.tile([0, 1, 0, 1], (4, 1))])
    images = 0.2 * generator.normal(size=(N, 1, SIDE, SIDE))
    for image, label, (top, left) in zip(images, labels, generator.integers(0, SIDE - 3, size=(N, 2)), strict=True):
        image[0, top : top + 4, left : left + 4] += strokes[label]
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


@functools.cache
def noisy_teacher(right=0.6, seed=1):
    """Probabilities whose first choice is right this often, at random: surer where right, as calibrated ones are."""
    _, labels = strokes()
    generator = Generator().manual_seed(seed)
    wrong = (labels + torch.randint(1, K, (N,), generator=generator)) % K
    chosen = torch.where(torch.rand(N, generator=generator) < right, labels, wrong)
    return 0.1 + 0.7 * torch.nn.functional.one_hot(chosen, K).float()


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 16, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return with_head(body, 16, K)


def run(probabilities=None, **settings):
    teacher = noisy_teacher() if probabilities is None else probabilities
    return train(network(), strokes()[0], teacher, **{"fit": TRAIN, **settings})


# -- privacy -------------------------------------------------------------------------------------------------


def test_nothing_here_can_ask_a_vault():
    """By type: no argument of any function is a vault, and the module does not know what one is."""
    for function in (train, distil.train_after, distil.linear_after, distil.train_on_most_confident):
        assert "vault" not in {name.lower() for name in inspect.signature(function).parameters}
    with pytest.raises(ValueError, match="LabelVault"):
        run(LabelVault(strokes()[1].numpy(), K))


# -- weights and targets -------------------------------------------------------------------------------------


@given(st.integers(2, 8), st.floats(0, 1), st.floats(0.5, 4))
def test_confidence_in_numbers(classes, top, power):
    top = 1 / classes + top * (1 - 1 / classes)
    row = torch.full((1, classes), (1 - top) / (classes - 1), dtype=torch.float64)
    row[0, 0] = top
    expected = ((classes * top - 1) / (classes - 1)) ** power
    assert by_confidence(power)(row).item() == pytest.approx(max(expected, 0), abs=1e-7)


@given(st.integers(1, 60), st.integers(1, 5), st.floats(0.05, 1), st.integers(0, 10**6))
def test_the_surest_of_every_class(rows, classes, share, seed):
    p = torch.rand(rows, classes, generator=Generator().manual_seed(seed)).softmax(dim=1)
    kept = most_confident(share)(p)
    confidence, chosen = p.max(dim=1)
    for k in range(classes):
        inside = chosen == k
        wanted = int(np.ceil(np.float32(share) * np.float32(int(inside.sum()))))
        assert int(kept[inside].sum()) == wanted
        if 0 < wanted < int(inside.sum()):
            assert confidence[inside & (kept == 1)].min() >= confidence[inside & (kept == 0)].max()


def test_the_objective_is_the_weighted_cross_entropy():
    generator = Generator().manual_seed(0)
    logits, targets = torch.randn(5, K, generator=generator), torch.rand(9, K, generator=generator).softmax(1)
    weight, rows = torch.rand(9, generator=generator), torch.tensor([8, 0, 3, 3, 5])
    plain = torch.nn.functional.cross_entropy(logits, targets[rows], reduction="none")
    assert torch.allclose(on_probabilities(targets)(logits, rows), plain)
    assert torch.allclose(on_probabilities(targets, weight)(logits, rows), plain * weight[rows] / weight.mean())
    assert torch.isfinite(on_probabilities(targets, torch.zeros(9))(logits, rows)).all()


def test_rows_without_weight_are_not_learnt_from():
    """Half the rows have the classes turned round and no weight: the student does not notice them."""
    _, labels = strokes()
    onehot = torch.nn.functional.one_hot(labels, K).float()
    turned = torch.arange(N) % 2 == 0
    lies = torch.where(turned[:, None], onehot.roll(1, dims=1), onehot)
    honest = run(lies, weigh=lambda _: (~turned).float())
    assert accuracy(honest, *strokes(5)) > 0.9
    assert accuracy(run(lies), *strokes(5)) < 0.8


def test_generations_learn_from_the_mix_and_start_again():
    seen = []

    def watched(teacher, student):
        seen.append((teacher, student))
        return mixed(0.25)(teacher, student)

    model = run(generations=3, relabel=watched)
    first, teacher = run(), noisy_teacher()
    assert len(seen) == 2
    assert torch.equal(seen[0][0], teacher)
    assert torch.equal(seen[1][0], teacher)
    student = predict(first, strokes()[0]).softmax(dim=1)
    assert torch.equal(seen[0][1], student)
    second = run(0.75 * teacher + 0.25 * student)
    assert torch.allclose(predict(second, strokes()[0]).softmax(dim=1), seen[1][1], atol=1e-4)
    third = run(0.75 * teacher + 0.25 * seen[1][1])
    assert torch.allclose(weights(model), weights(third), atol=1e-3)


# -- what a moment says about a guess ------------------------------------------------------------------------


@functools.cache
def linear_world(noise_std, seed=0, n=4000, d=12):
    """Labels that follow a linear law of features, their moment with noise, and how likely each class truly is."""
    generator = Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator)
    rows = rows / rows.norm(dim=1, keepdim=True)
    channel = (rows @ torch.randn(d, K, generator=generator) * 3).softmax(dim=1)
    labels = torch.multinomial(channel, 1, generator=generator).squeeze(1)
    sums = (torch.nn.functional.one_hot(labels, K).T.double() @ rows.double()).numpy()
    drawn = np.random.default_rng(seed).normal(size=(K, d))
    value = sums + noise_std * (drawn - drawn.mean(axis=0))
    return rows, channel, NoisyMoments(value, sums.sum(axis=0), n, "Gaussian", noise_std, 1.0)


def error(guess, channel):
    return float((guess - channel).square().sum(dim=1).mean())


def test_what_a_guess_gets_wrong_is_taken_back():
    """A guess that misjudges one feature: the less noise there is, the more of its error goes."""
    left = []
    for noise_std in (5.0, 20.0, 80.0):
        rows, channel, noisy = linear_world(noise_std)
        blind = (channel.log() - 4 * rows[:, :1] * torch.tensor([1.0, 0.0, -1.0])).softmax(dim=1)
        after = corrected(blind, noisy, rows)
        assert torch.allclose(after.sum(dim=1), torch.ones(len(rows)), atol=1e-5)
        assert after.min() >= 0
        left.append(error(after, channel) / error(blind, channel))
    assert left == sorted(left)
    assert left[0] < 0.65  # the rest is not linear in the features
    assert left[-1] <= 1.0 + 1e-6


def test_a_guess_without_error_stays_as_it_is():
    """Nothing but noise is left of the moment; planted: without the shrinkage it would be added to the guess."""
    rows, channel, noisy = linear_world(40.0)
    assert error(corrected(channel, noisy, rows), channel) < 2e-3
    gram = rows.double().T @ rows.double()
    residual = torch.tensor(noisy.value) - channel.T.double() @ rows.double()
    unshrunk = channel + rows @ torch.linalg.solve(gram, residual.T).float()
    assert error(unshrunk, channel) > 4e-3


def test_matched_generations_are_the_mix_corrected():
    rows, channel, noisy = linear_world(5.0)
    other = channel.roll(1, dims=0)
    mix = 0.7 * channel + 0.3 * other
    assert torch.allclose(matched(noisy, rows, 0.3)(channel, other), corrected(mix, noisy, rows), atol=1e-5)


# -- learning ------------------------------------------------------------------------------------------------


def test_the_student_beats_its_teacher():
    """The teacher is right on 60% of the rows; its errors are at random, so what holds for many rows is right."""
    images, labels = strokes()
    assert (noisy_teacher().argmax(dim=1) == labels).float().mean() < 0.65
    student = run()
    assert not student.training
    assert accuracy(student, images, labels) > 0.85
    assert accuracy(student, *strokes(5)) > 0.85
    assert accuracy(run(generations=2), *strokes(5)) > 0.85


def test_after_one_look_in_one_line():
    """A moment of pixels, a head that is often wrong, and its student; the certificate says what the moment cost."""
    images, labels = strokes()
    features = torch.nn.functional.avg_pool2d(images, 2).flatten(1)
    box = LabelVault(labels.numpy(), K, rng=SecureRandom(5))
    quick = functools.partial(tune, plans=[Plan(16)], clusterings=1, draws=1)
    shot = one_shot.train(features, box, epsilon=4.0, delta=1e-5, tune=quick)
    paid = box.certificate(1e-5).epsilon
    student = train_after(shot, features, network(), images, fit=TRAIN, generations=2)
    single = train_after(shot, features, network(), images, fit=TRAIN, generations=1)
    assert box.certificate(1e-5).epsilon == paid
    assert torch.equal(weights(single), weights(run(shot.probabilities(features))))
    rows, first = shot.tuning.basis(features), predict(single, images).softmax(dim=1)
    second = corrected(0.5 * (shot.probabilities(features) + first), shot.noisy, rows)
    assert torch.allclose(weights(student), weights(run(second)), atol=1e-3)


def test_one_line_for_images_and_for_rows():
    """The usual settings, cut to a few epochs: images are changed, rows mixed."""
    images, labels = strokes()
    model = train(network(), images, noisy_teacher(), fit=usual_fit(images, epochs=15))
    assert accuracy(model, images, labels) > 0.7
    noise = torch.randn(N, K, generator=Generator().manual_seed(0))
    rows = torch.nn.functional.one_hot(labels, K) + 0.1 * noise
    torch.manual_seed(0)
    model = train(nn.Linear(K, K), rows, noisy_teacher(), fit=usual_fit(rows, epochs=20))
    assert accuracy(model, rows, labels) > 0.95


def test_the_usual_settings_follow_the_inputs():
    grey, colour, rows = torch.zeros(60_000, 1, 2, 2), torch.zeros(64, 3, 32, 32), torch.zeros(100_000, 2)
    settings = usual_fit(grey).keywords  # type: ignore[attr-defined]
    assert (settings["epochs"], settings["batch_size"]) == (15, 512)
    assert "mixup" not in settings
    assert usual_fit(colour).keywords["batch_size"] == 32  # type: ignore[attr-defined]
    assert "augment" not in usual_fit(rows).keywords  # type: ignore[attr-defined]
    assert usual_fit((rows, rows)).keywords["mixup"] > 0  # type: ignore[attr-defined]
    assert usual_fit(rows, mixup=0.0, epochs=3).keywords["mixup"] == 0.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("flip", [True, False, None])
@pytest.mark.parametrize("channels", [1, 3])
def test_mirrors_only_where_they_keep_the_class(channels, flip):
    """A dark left and a bright right half: a mirrored image has them the other way round."""
    images = torch.ones(200, channels, 28, 28)
    images[..., :14] = -1
    changed = distil.image_changes(images, flip)(images, Generator().manual_seed(0))
    turned = changed[..., :10].mean(dim=(1, 2, 3)) > changed[..., 18:].mean(dim=(1, 2, 3))
    assert changed.shape == images.shape
    assert bool(turned.any()) == (flip if flip is not None else channels == 3)


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probabilities", "words"),
    [
        (torch.full((N - 1, K), 1 / K), "1200 inputs"),
        (torch.full((N, K + 1), 1 / (K + 1)), r"\(1, 4\)"),
        (torch.zeros(N, K), "1200 rows"),
        (torch.full((N, K), float("nan")), "1200 rows"),
        (torch.tensor([[1.5, -0.5, 0.0]]).repeat(N, 1), "1200 rows"),
        (torch.zeros(N), "shape"),
    ],
)
def test_probabilities_that_are_none_are_refused(probabilities, words):
    with pytest.raises(ValueError, match=words):
        run(probabilities)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="generations is 0"):
        run(generations=0)
    for wrong in (
        lambda: by_confidence(-1),
        lambda: most_confident(0),
        lambda: most_confident(1.1),
        lambda: mixed(-0.1),
    ):
        with pytest.raises(ValueError, match="="):
            wrong()


def test_arrays_are_taken_too():
    assert torch.equal(weights(run(noisy_teacher().numpy())), weights(run()))


# -- resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_student_goes_on(tmp_path, generation):
    whole = weights(run(generations=2))
    begun = 0

    def stop(progress):
        nonlocal begun
        begun += progress.epoch == 1
        if begun == generation and progress.epoch == 2:
            raise StopHereError

    with pytest.raises(StopHereError):
        run(generations=2, folder=tmp_path, fit=functools.partial(TRAIN, report=stop))
    epochs = []
    again = run(generations=2, folder=tmp_path, fit=functools.partial(TRAIN, report=lambda p: epochs.append(p.epoch)))
    assert torch.equal(weights(again), whole)
    # The epoch in which it was killed was on disk already.
    assert epochs == ([3, 4, 1, 2, 3, 4] if generation == 1 else [3, 4])


def test_other_targets_or_weights_do_not_resume(tmp_path):
    """A checkpoint belongs to what it was trained on: with other targets or weights a student starts again."""
    run(folder=tmp_path)
    half = most_confident(0.5)
    assert torch.equal(weights(run(folder=tmp_path, weigh=half)), weights(run(weigh=half)))
    other = noisy_teacher(0.9)
    assert torch.equal(weights(run(other, folder=tmp_path)), weights(run(other)))
