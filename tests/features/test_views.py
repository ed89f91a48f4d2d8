import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.features import augment as views
from labeldp.features.augment import compose


def images(n=6, channels=3, height=9, width=11, seed=0):
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels(change, pictures, *factors):
    """One image after the other, one pixel after the other."""
    result = torch.empty_like(pictures)
    for n, image in enumerate(pictures):
        for i in range(image.shape[1]):
            for j in range(image.shape[2]):
                values = change(image[:, i, j].double().tolist(), image.double(), *(float(f[n]) for f in factors))
                result[n, :, i, j] = torch.tensor(values)
    return result


def clamp(value):
    return min(1.0, max(0.0, value))


def grey(rgb):
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


FACTORS = torch.tensor([0.0, 0.3, 0.9, 1.0, 1.4, 2.5])


def test_brightness():
    expected = pixels(lambda rgb, _, f: [clamp(f * x) for x in rgb], images(), FACTORS)
    assert torch.allclose(views.adjust_brightness(images(), FACTORS), expected, atol=1e-6)


def test_contrast():
    def change(rgb, image, f):
        mean = np.mean([grey(p) for p in image.flatten(1).T.tolist()])
        return [clamp(f * x + (1 - f) * mean) for x in rgb]

    expected = pixels(change, images(height=3, width=4), FACTORS)
    assert torch.allclose(views.adjust_contrast(images(height=3, width=4), FACTORS), expected, atol=1e-6)


def test_saturation():
    expected = pixels(lambda rgb, _, f: [clamp(f * x + (1 - f) * grey(rgb)) for x in rgb], images(), FACTORS)
    assert torch.allclose(views.adjust_saturation(images(), FACTORS), expected, atol=1e-6)


def test_hue_against_the_standard_library():
    def change(rgb, _, turn):
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)

    turns = torch.tensor([-0.5, -0.1, 0.0, 0.07, 0.25, 0.5])
    assert torch.allclose(views.adjust_hue(images(), turns), pixels(change, images(), turns), atol=1e-5)


@given(rgb=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3), turn=st.floats(-0.5, 0.5))
def test_hue_of_greys_pure_colours_and_ties(rgb, turn):
    h, s, v = colorsys.rgb_to_hsv(*rgb)
    expected = torch.tensor(colorsys.hsv_to_rgb((h + turn) % 1.0, s, v), dtype=torch.float64)
    found = views.adjust_hue(torch.tensor(rgb, dtype=torch.float64).view(1, 3, 1, 1), torch.tensor([turn]).double())
    assert torch.allclose(found.flatten(), expected, atol=1e-6)


def test_greyscale():
    expected = pixels(lambda rgb, _: [grey(rgb)] * 3, images())
    assert torch.allclose(views.random_greyscale(1.0)(images(), generator()), expected, atol=1e-6)


def test_resized_crop_by_the_definition():
    pictures = images(4, 2, 6, 7).double()
    boxes = [torch.tensor(v).double() for v in ([0, 1.5, 0.2, 3], [0, 2, 0.7, 1.25], [6, 3, 5.5, 1], [7, 4, 2.5, 5.75])]
    found = views.resized_crop(pictures, *boxes)
    for n in range(4):
        top, left, tall, wide = (box[n].item() for box in boxes)
        for i in range(6):
            for j in range(7):
                y = min(5.0, max(0.0, top + (i + 0.5) * tall / 6 - 0.5))
                x = min(6.0, max(0.0, left + (j + 0.5) * wide / 7 - 0.5))
                y0, x0 = math.floor(y), math.floor(x)
                y1, x1, dy, dx = min(y0 + 1, 5), min(x0 + 1, 6), y - y0, x - x0
                p = pictures[n]
                upper = (1 - dx) * p[:, y0, x0] + dx * p[:, y0, x1]
                lower = (1 - dx) * p[:, y1, x0] + dx * p[:, y1, x1]
                assert torch.allclose(found[n, :, i, j], (1 - dy) * upper + dy * lower, atol=1e-9)


def test_the_whole_box_changes_nothing():
    pictures = images()
    n, _, height, width = pictures.shape
    whole = (torch.zeros(n), torch.zeros(n), torch.full((n,), float(height)), torch.full((n,), float(width)))
    assert torch.allclose(views.resized_crop(pictures, *whole), pictures, atol=1e-5)
    crop = views.random_resized_crop((1.0, 1.0), (1.0, 1.0))
    square = images(height=9, width=9)
    assert torch.allclose(crop(square, generator()), square, atol=1e-5)


def test_boxes_have_the_stated_law():
    """20,000 boxes: inside the image, area and log ratio within range, and uniform where nothing is refused (5 σ)."""
    n = 20_000
    top, left, tall, wide = views._random_boxes(n, 32, 32, (0.08, 0.5), (3 / 4, 4 / 3), generator())
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= 32 + 1e-4).all()
    assert (left + wide <= 32 + 1e-4).all()
    share = tall * wide / 1024
    assert 0.08 <= share.min() < 0.081 < 0.499 < share.max() <= 0.5 + 1e-5
    assert abs(share.mean() - 0.29) < 5 * 0.42 / (12 * n) ** 0.5
    lean = (wide / tall).log()
    assert abs(lean.mean()) < 5 * 2 * math.log(4 / 3) / (12 * n) ** 0.5
    place = top / (32 - tall)
    assert abs(place.mean() - 0.5) < 5 / (12 * n) ** 0.5
    assert abs(np.corrcoef(top / (32 - tall), left / (32 - wide))[0, 1]) < 5 / n**0.5


def test_boxes_that_do_not_fit_are_drawn_again():
    """Whole-area boxes of a square fit only when square: ten draws all lean, so the first is cut down."""
    _, _, tall, wide = views._random_boxes(1000, 32, 32, (0.9, 1.0), (3 / 4, 4 / 3), generator())
    assert (tall <= 32).all()
    assert (wide <= 32).all()
    fitted = (tall * wide / 1024 >= 0.9 - 1e-5).float().mean()
    assert fitted > 0.8


def test_blur_by_the_definition():
    pictures, sigma = images(3), torch.tensor([0.2, 0.8, 1.9])
    found = views.blur(pictures, sigma, size=5)
    padded = np.pad(pictures.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    for n in range(3):
        line = np.exp(-0.5 * (np.arange(-2, 3) / sigma[n].item()) ** 2)
        kernel = np.outer(line, line) / np.outer(line, line).sum()
        for i in range(9):
            for j in range(11):
                expected = (padded[n, :, i : i + 5, j : j + 5] * kernel).sum(axis=(1, 2))
                assert np.allclose(found[n, :, i, j], expected, atol=1e-5)


def test_solarise():
    expected = pixels(lambda rgb, _: [1 - x if x >= 0.5 else x for x in rgb], images())
    assert torch.allclose(views.random_solarise(1.0)(images(), generator()), expected)


def test_normalise():
    found = views.normalise((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(images(), generator())
    assert torch.allclose(found[:, 2], (images()[:, 2] - 0.3) / 4)


def test_sometimes_is_decided_for_each_image():
    """10,000 images, chance 0.3, five σ."""
    pictures = torch.ones(10_000, 1, 1, 1)
    changed = views.sometimes(lambda x, generator: 0 * x, 0.3)(pictures, generator())
    assert abs((changed == 0).float().mean() - 0.3) < 5 * (0.21 / 10_000) ** 0.5


def test_jitter_factors_are_uniform_and_each_images_own():
    """Grey images tell the brightness factor: uniform in [0.6, 1.4]; 5,000 images, five σ."""
    pictures = torch.full((5000, 3, 2, 2), 0.5)
    found = views.colour_jitter(0.4, 0.0, 0.0, 0.0)(pictures, generator()).mean(dim=(1, 2, 3)) / 0.5
    assert 0.6 <= found.min() < 0.61 < 1.39 < found.max() <= 1.4 + 1e-6
    assert abs(found.mean() - 1) < 5 * 0.8 / (12 * 5000) ** 0.5


RANDOM = {
    "crop": views.random_resized_crop(),
    "jitter": views.colour_jitter(0.4, 0.4, 0.4, 0.1),
    "grey": views.random_greyscale(0.5),
    "blur": views.random_blur(),
    "solarise": views.random_solarise(0.5),
    "simclr": views.simclr_view(blur=0.5),
}


@pytest.mark.parametrize("view", RANDOM.values(), ids=RANDOM)
@pytest.mark.parametrize("channels", [1, 3])
def test_views_keep_shape_range_and_repeat(view, channels):
    pictures = images(40, channels)
    before = pictures.clone()
    state = torch.random.get_rng_state()
    first, second, third = view(pictures, generator(1)), view(pictures, generator(1)), view(pictures, generator(2))
    assert first.shape == pictures.shape
    assert first.min() >= -1e-5
    assert first.max() <= 1 + 1e-5
    assert torch.equal(first, second)
    assert torch.equal(pictures, before)
    assert torch.equal(state, torch.random.get_rng_state())
    if channels == 3 or view is not RANDOM["grey"]:
        assert not torch.equal(first, third)


def test_half_precision_differs_by_its_rounding_only():
    pictures = images(40)
    view = views.simclr_view(blur=0.5)
    low = view(pictures.bfloat16(), generator(1))
    assert low.dtype == torch.bfloat16
    assert (low.float() - view(pictures, generator(1))).abs().mean() < 0.01


def test_views_compose_with_the_other_augmentations():
    both = compose(views.simclr_view(), views.normalise((0.5,) * 3, (0.25,) * 3))
    assert both(images(), generator()).shape == images().shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: views.random_resized_crop((0.0, 1.0)), "scale"),
        (lambda: views.random_resized_crop((0.5, 1.5)), "scale"),
        (lambda: views.colour_jitter(0.1, 0.1, 0.1, 0.6), "hue=0.6"),
        (lambda: views.random_blur(size=4), "size=4"),
        (lambda: views.greyscale(images(channels=2)), "2 channels"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
