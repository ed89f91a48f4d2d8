"""Strong views: each change against an image library or plain arithmetic, the draws against their stated chances."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageEnhance, ImageOps

from labeldp.features import augment
from labeldp.features.augment import KINDS, NUMBER, affine, changed, moves

Image = pytest.importorskip("PIL.Image")


def bytes_of(n=4, height=12, width=15, seed=0, channels=3):
    generator = np.random.default_rng(seed)
    # Of few values each, so that histograms are not flat already.
    return (
        generator.integers(0, 40, size=(n, channels, height, width)) * generator.integers(2, 7, size=(n, 1, 1, 1))
    ).astype(np.uint8)


def floats(pixels):
    return torch.from_numpy(pixels).float() / 255


def by_library(change, pixels):
    """One picture after the other through the image library."""
    pictures = [Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))) for picture in pixels]
    return np.stack([np.asarray(change(picture)).transpose(2, 0, 1) for picture in pictures]).astype(int)


def ours(kind, amount, pixels):
    images = floats(pixels)
    made = changed(images, torch.full((len(images),), NUMBER[kind]), torch.full((len(images),), float(amount)))
    return (made * 255).numpy()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("kind", "amount", "change", "within"),
    [
        ("brightness", 0.4, lambda p: ImageEnhance.Brightness(p).enhance(0.4), 1),
        ("brightness", 1.7, lambda p: ImageEnhance.Brightness(p).enhance(1.7), 1),
        ("colour", 0.3, lambda p: ImageEnhance.Color(p).enhance(0.3), 1.5),
        ("contrast", 0.3, lambda p: ImageEnhance.Contrast(p).enhance(0.3), 1.5),
        ("contrast", 1.6, lambda p: ImageEnhance.Contrast(p).enhance(1.6), 1.5),
        ("sharpness", 0.1, lambda p: ImageEnhance.Sharpness(p).enhance(0.1), 1.5),
        ("sharpness", 1.8, lambda p: ImageEnhance.Sharpness(p).enhance(1.8), 1.5),
        ("posterise", 4, lambda p: ImageOps.posterize(p, 4), 1e-3),
        ("posterise", 6.9, lambda p: ImageOps.posterize(p, 6), 1e-3),
        ("solarise", 100 / 255, lambda p: ImageOps.solarize(p, 100), 1e-3),
        ("autocontrast", 0, ImageOps.autocontrast, 1.01),
        ("equalise", 0, ImageOps.equalize, 1e-3),
        ("invert", 0, ImageOps.invert, 1e-3),
        ("nothing", 7, lambda p: p, 1e-3),
    ],
)
@pytest.mark.parametrize("size", [(12, 15), (32, 32)])
def test_changes_are_those_of_an_image_library(kind, amount, change, within, size):
    """Up to the library's rounding to bytes, which some of its changes do twice."""
    pixels = bytes_of(height=size[0], width=size[1])
    assert np.abs(ours(kind, amount, pixels) - by_library(change, pixels)).max() <= within


def test_equalise_leaves_a_channel_of_one_value():
    flat = torch.full((1, 3, 20, 20), 0.2)
    assert torch.equal(augment.equalise(flat), flat)
    assert torch.equal(augment.autocontrast(flat), flat)


def test_a_quarter_turn_and_whole_shifts_move_pixels_exactly():
    images = floats(bytes_of(height=12, width=12))
    kinds = torch.tensor([NUMBER["rotate"], NUMBER["translate_x"], NUMBER["translate_y"], NUMBER["nothing"]])
    made = changed(images, kinds, torch.tensor([90.0, 0.25, -0.25, 5.0]), fill=0.5)
    # The place (x, y) of the result shows (−y, x), with y pointing down.
    assert torch.allclose(made[0], images[0].rot90(1, (1, 2)), atol=1e-5)
    assert torch.allclose(made[1, :, :, :9], images[1, :, :, 3:], atol=1e-5)
    assert torch.allclose(made[1, :, :, 9:], torch.tensor(0.5), atol=1e-5)
    assert torch.allclose(made[2, :, 3:], images[2, :, :9], atol=1e-5)
    assert torch.allclose(made[2, :, :3], torch.tensor(0.5), atol=1e-5)
    assert torch.equal(made[3], images[3])


def slow_affine(image, matrix, fill):
    """Pixel by pixel: bilinear between four neighbours, those outside being `fill`."""
    _, height, width = image.shape
    result = np.empty_like(image)

    def at(i, j):
        return image[:, i, j] if 0 <= i < height and 0 <= j < width else np.full(len(image), fill)

    for i in range(height):
        for j in range(width):
            place = np.array([j - (width - 1) / 2, i - (height - 1) / 2, 1.0])
            x, y = matrix @ place + np.array([(width - 1) / 2, (height - 1) / 2])
            left, top = int(np.floor(x)), int(np.floor(y))
            a, b = x - left, y - top
            result[:, i, j] = (
                (1 - a) * (1 - b) * at(top, left) + a * (1 - b) * at(top, left + 1)
                + (1 - a) * b * at(top + 1, left) + a * b * at(top + 1, left + 1)
            )  # fmt: skip
    return result


@pytest.mark.parametrize(
    ("kind", "amount"), [("rotate", 23.0), ("shear_x", 0.3), ("shear_y", -0.2), ("translate_x", 0.11)]
)
def test_moves_on_images_that_are_not_square(kind, amount):
    images = floats(bytes_of(n=2, height=9, width=14))
    matrices = moves(torch.full((2,), NUMBER[kind]), torch.tensor([amount, -amount]), 9, 14)
    made = affine(images, matrices, fill=0.3)
    expected = [
        slow_affine(image.double().numpy(), m.double().numpy(), 0.3) for image, m in zip(images, matrices, strict=True)
    ]
    assert np.abs(made.numpy() - np.stack(expected)).max() < 1e-4


def test_shear_moves_rows_by_their_height():
    matrix = moves(torch.tensor([NUMBER["shear_x"]]), torch.tensor([0.3]), 8, 8)[0]
    assert torch.allclose(matrix, torch.tensor([[1.0, 0.3, 0.0], [0.0, 1.0, 0.0]]))


def test_every_image_gets_its_own_change():
    """A batch of all kinds, in any order, is the same as one image after the other."""
    images = floats(bytes_of(n=len(KINDS), height=20, width=20))
    kinds = torch.arange(len(KINDS))
    amounts = torch.tensor([0, 0.5, 0.5, 0.5, 0.5, 4, 0.1, 0, 0, 0, 20, 0.2, 0.2, 0.2, 0.2])
    together = changed(images, kinds, amounts)
    order = torch.randperm(len(KINDS), generator=generator())
    assert torch.allclose(together[order], changed(images[order], kinds[order], amounts[order]), atol=1e-6)
    alone = [changed(images[i : i + 1], kinds[i : i + 1], amounts[i : i + 1]) for i in range(len(KINDS))]
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)
    assert all(not torch.allclose(together[i], images[i], atol=1e-3) for i in range(1, len(KINDS)))


@given(st.integers(0, 10_000), st.sampled_from([1, 3]))
def test_views_keep_shape_and_range_and_repeat(seed, channels):
    images = floats(bytes_of(n=5, seed=seed, height=16, width=16, channels=channels))
    for view in (augment.strong_view(), augment.learned_view(), augment.weak_view(2)):
        made = view(images, generator(seed))
        assert made.shape == images.shape
        assert 0 <= float(made.min()) <= float(made.max()) <= 1 + 1e-6
        assert torch.equal(made, view(images, generator(seed)))


def test_random_changes_leave_a_stated_share_alone(monkeypatch):
    """One change of fourteen kinds at chance ½: nothing drawn with probability ½ + ½/14; 5 standard deviations."""
    drawn = []
    monkeypatch.setattr(augment, "changed", lambda images, kinds, *_: drawn.append(kinds) or images)
    n = 20_000
    augment.random_changes(changes=1)(torch.zeros(n, 1, 1, 1), generator())
    counts = torch.bincount(drawn[0], minlength=len(KINDS)).numpy()
    expected = np.array([0.5 + 0.5 / 14] + [0.5 / 14] * 14) * n
    expected[NUMBER["invert"]] = 0
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected.max())
    assert counts[NUMBER["invert"]] == 0


def test_amounts_of_random_changes_are_the_published_ones(monkeypatch):
    seen = {}

    def record(images, kinds, amounts, _fill):
        for kind, amount in zip(kinds.tolist(), amounts.tolist(), strict=True):
            seen.setdefault(KINDS[kind], []).append(amount)
        return images

    monkeypatch.setattr(augment, "changed", record)
    augment.random_changes(changes=1, chance=1.0)(torch.zeros(20_000, 1, 1, 1), generator())
    span = {kind: (round(min(values), 3), round(max(values), 3)) for kind, values in seen.items()}
    assert span["brightness"] == span["contrast"] == span["colour"] == span["sharpness"] == (0.14, 0.86)
    assert span["rotate"] == (-27.0, 27.0)
    assert span["shear_x"] == span["translate_y"] == (-0.27, 0.27)
    assert {int(amount) for amount in seen["posterise"]} == {4, 5, 6, 7}


def test_the_learnt_policy_has_25_pairs_and_keeps_its_chances(monkeypatch):
    table = augment._policy_table()
    assert table.shape == (25, 2, 3)
    drawn = []
    monkeypatch.setattr(augment, "changed", lambda images, kinds, *_: drawn.append(kinds) or images)
    n = 50_000
    augment.learned_changes()(torch.zeros(n, 1, 1, 1), generator())
    for half in (0, 1):
        expected = torch.zeros(len(KINDS)).scatter_add_(0, table[:, half, 0].long(), table[:, half, 1] / 25)
        expected[0] = 1 - expected.sum()
        shares = torch.bincount(drawn[half], minlength=len(KINDS)) / n
        assert float((shares - expected).abs().max()) < 5 * (0.25 / n) ** 0.5


def test_scaled_views_change_pixels():
    images = floats(bytes_of(n=3, height=8, width=8))
    mean, spread = (0.2, 0.3, 0.4), (0.5, 0.6, 0.7)
    m, s = (torch.tensor(part)[:, None, None] for part in (mean, spread))
    view = augment.scaled(augment.strong_view(cut=2), mean, spread)
    made = view((images - m) / s, generator(3)) * s + m
    expected = augment.strong_view(cut=2)(images, generator(3))
    # Unscaling rounds, and a rounded pixel may fall on the other side of a threshold.
    assert float(((made - expected).abs() < 1e-4).float().mean()) > 0.97


@pytest.mark.parametrize("settings", [{"changes": 0}, {"levels": 1}, {"levels": 12}, {"chance": 1.5}])
def test_refuses_wrong_settings(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        augment.random_changes(**settings)


@pytest.mark.parametrize(
    "view", [augment.weak_view(), augment.strong_view(cut=4), augment.learned_view()], ids=["weak", "strong", "learned"]
)
def test_views_lay_channels_last(view):
    """As convolutions on a GPU want them: a view that laid them first would be turned round in every step."""
    images = torch.rand(8, 3, 12, 12).contiguous(memory_format=torch.channels_last)
    assert view(images, torch.Generator().manual_seed(0)).is_contiguous(memory_format=torch.channels_last)
