import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.data.benchmarks import fashion_mnist
from labeldp.data.files import MissingDataError
from labeldp.features import patches
from labeldp.features.extract import Raw, Scaling
from labeldp.features.patches import Patches, PatchMap, default_filters, patch_features


def images(n=200, channels=1, height=12, width=12, seed=0):
    """Smooth random pictures: neighbouring pixels are alike, as in photographs."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 4, 4, generator=generator)
    noise = 0.1 * torch.rand(n, channels, height, width, generator=generator)
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") + noise


def random_map(channels=1, size=3, filters=5, stride=1, pool=2, threshold=0.25, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(filters, channels * size * size, generator=generator)
    weight = (weight - weight.mean(dim=1, keepdim=True)).T.contiguous()
    return PatchMap(weight, torch.randn(filters, generator=generator), 0.01, size, stride, pool, threshold, None)


def one_by_one(map_, pictures):
    """The definition: every patch of every image on its own, in double precision."""
    result = []
    for image in pictures.double():
        height, width = ((side - map_.size) // map_.stride + 1 for side in image.shape[1:])
        cells = {}
        for i in range(height):
            for j in range(width):
                top, left = i * map_.stride, j * map_.stride
                p = image[:, top : top + map_.size, left : left + map_.size].flatten()
                p = (p - p.mean()) / (p.var(correction=0) + map_.floor).sqrt()
                z = map_.weight.double().T @ p + map_.bias.double()
                both = torch.cat(((z - map_.threshold).clamp(min=0), (-z - map_.threshold).clamp(min=0)))
                cell = next(
                    (a, b)
                    for a in range(map_.pool)
                    for b in range(map_.pool)
                    if height * a // map_.pool <= i < height * (a + 1) // map_.pool
                    and width * b // map_.pool <= j < width * (b + 1) // map_.pool
                )
                cells.setdefault(cell, []).append(both)
        result.append(torch.cat([torch.stack(cells[key]).mean(0) for key in sorted(cells)]))
    return torch.stack(result)


@settings(max_examples=25)
@given(
    channels=st.sampled_from([1, 3]),
    size=st.integers(1, 5),
    stride=st.integers(1, 3),
    pool=st.integers(1, 3),
    height=st.integers(11, 14),
    width=st.integers(11, 14),
)
def test_the_matrix_product_is_the_definition(channels, size, stride, pool, height, width):
    map_, pictures = random_map(channels, size, 4, stride, pool), images(3, channels, height, width)
    expected = one_by_one(map_, pictures)
    assert map_.dim == expected.shape[1]
    assert torch.allclose(map_.features(pictures).double(), expected, atol=1e-4)


def test_chunks_of_any_size_give_the_same(monkeypatch):
    map_, pictures = patch_features(images(), filters=8, size=4), images(50, seed=1)
    whole = map_.features(pictures)
    monkeypatch.setattr(patches, "_CPU_BLOCK", 1)
    monkeypatch.setattr(patches, "_ROWS", 7)
    assert torch.allclose(map_.features(pictures), whole, atol=1e-5)


def test_the_folded_weight_is_normalise_whiten_compare():
    """z from the folded weight equals the three steps of the module's formula, taken one after the other."""
    sample = images(400, channels=3)
    chosen = Patches(filters=10, size=4)
    drawn = patches._random_patches(sample, 4, 3000, torch.Generator().manual_seed(0))
    weight, bias, floor = patches._dictionary(chosen, drawn, 10)
    centred = (drawn - drawn.mean(1, keepdim=True)).double()
    variance = centred.square().mean(1, keepdim=True)
    assert floor == pytest.approx(0.01 * variance.mean().item(), rel=1e-5)
    normal = centred / (variance + floor).sqrt()
    kept = normal[variance.squeeze(1) > floor]
    values, vectors = torch.linalg.eigh(torch.cov(kept.T, correction=0))
    whitener = vectors @ torch.diag((values + 0.1) ** -0.5) @ vectors.T
    white = ((kept - kept.mean(0)) @ whitener).float()
    atoms = patches.kmeans(white, 10, iterations=30, tolerance=1e-3, spherical=True).centers
    three_steps = ((normal - kept.mean(0)) @ whitener).float() @ atoms.T
    folded = (drawn / (variance + floor).sqrt()).float() @ weight + bias
    assert torch.allclose(folded, three_steps, atol=2e-3)


def test_whitened_patches_have_unit_covariance():
    rows = torch.randn(5000, 6, generator=torch.Generator().manual_seed(0)) @ torch.randn(6, 6).double().float()
    centred = rows - rows.mean(0)
    white = centred @ patches._zca(centred, 0.0)
    assert torch.allclose(torch.cov(white.T, correction=0), torch.eye(6), atol=1e-3)


def test_features_of_the_fitted_images_are_standardised():
    pictures = images(300)
    features = patch_features(pictures, filters=12, size=4).features(pictures)
    assert features.dtype == torch.float32
    assert torch.allclose(features.mean(0), torch.zeros(features.shape[1]), atol=1e-4)
    assert features.std(dim=0).max() < 1.01
    assert features.std(dim=0).median() > 0.9


def test_principal_components_are_uncorrelated_and_hold_the_most_variance():
    pictures = images(300)
    whole = patch_features(pictures, filters=12, size=4).features(pictures)
    reduced = patch_features(pictures, filters=12, size=4, dims=10).features(pictures)
    assert reduced.shape == (300, 10)
    covariance = torch.cov(reduced.T, correction=0)
    assert torch.allclose(covariance, torch.diag(covariance.diagonal()), atol=1e-2)
    largest = torch.linalg.eigvalsh(torch.cov(whole.T, correction=0)).flip(0)[:10]
    assert torch.allclose(covariance.diagonal(), largest, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-2, 50.0])
def test_brightness_and_contrast_of_the_whole_set_do_not_matter(scale):
    pictures = images()
    plain = patch_features(pictures, filters=8, size=4).features(pictures)
    changed = scale * pictures + 3 * scale
    assert torch.allclose(patch_features(changed, filters=8, size=4).features(changed), plain, atol=2e-2)


def test_bytes_and_arrays_are_the_same_as_floats():
    raw = (images() * 200).to(torch.uint8)
    map_ = patch_features(raw, filters=8, size=4)
    floats = patch_features(raw.float() / 255, filters=8, size=4)
    assert torch.equal(map_.features(raw), floats.features(raw.float() / 255))
    assert torch.equal(map_.features(raw), map_.features(raw.numpy()))


def test_a_seed_decides():
    pictures = images()
    first, second = (patch_features(pictures, filters=8, size=4, seed=3) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, patch_features(pictures, filters=8, size=4, seed=4).weight)


def test_random_patches_instead_of_centres():
    pictures = images()
    map_ = patch_features(pictures, filters=8, size=4, clustered=False)
    assert not torch.allclose(map_.weight, patch_features(pictures, filters=8, size=4).weight)
    assert map_.features(pictures).shape == (200, 8 * 2 * 9)


def test_flat_images_are_refused_and_flat_patches_left_out():
    with pytest.raises(ValueError, match="not flat"):
        patch_features(torch.ones(50, 1, 12, 12), filters=8, size=4)
    mostly_blank = torch.zeros(100, 1, 12, 12)
    mostly_blank[:, :, :4, :4] = images(100, height=4, width=4)
    features = patch_features(mostly_blank, filters=8, size=4).features(mostly_blank)
    assert torch.isfinite(features).all()


def shifted_squares(n, seed):
    """Two classes with the same mean image: bars that lie or stand, at random places, of random sign."""
    rng = np.random.default_rng(seed)
    pictures = 0.05 * rng.normal(size=(n, 1, 14, 14))
    labels = rng.integers(2, size=n)
    for image, label in zip(pictures[:, 0], labels, strict=True):
        i, j, sign = *rng.integers(0, 9, size=2), rng.choice([-1, 1])
        bar = (slice(i, i + 2), slice(j, j + 6)) if label else (slice(i, i + 6), slice(j, j + 2))
        image[bar] += sign
    return torch.tensor(pictures, dtype=torch.float32), torch.tensor(labels)


def probe(train, train_labels, test, test_labels):
    """Accuracy of ridge regression."""
    train, test = (torch.cat((x, torch.ones(len(x), 1)), dim=1).double() for x in (train, test))
    gram = train.T @ train + 1e-2 * len(train) * torch.eye(train.shape[1])
    weight = torch.linalg.solve(gram, train.T @ (2.0 * train_labels.double() - 1))
    return ((test @ weight > 0).long() == test_labels).double().mean().item()


@pytest.mark.parametrize("clustered", [True, False])
def test_a_linear_head_sees_what_it_cannot_see_in_pixels(clustered):
    (x, y), (x_test, y_test) = shifted_squares(1500, 0), shifted_squares(500, 1)
    map_ = patch_features(x, filters=24, size=5, pool=2, clustered=clustered)
    assert probe(x.flatten(1), y, x_test.flatten(1), y_test) < 0.65
    assert probe(map_.features(x), y, map_.features(x_test), y_test) > 0.9


@pytest.mark.slow
def test_real_pictures():
    """Fashion-MNIST's open test images and labels: 4,000 to fit a head on, 1,000 to judge it by."""
    try:
        found = fashion_mnist()
    except MissingDataError:
        pytest.skip("Fashion-MNIST is not there; set LABELDP_DATA to the folder that holds it")
    x, labels = torch.from_numpy(found.test[:5000]), torch.from_numpy(found.test_labels.values[:5000])
    pixels, patched = Raw().fit(x[:4000]), patch_features(x[:4000], filters=50)
    scores = []
    for map_ in (pixels, patched):
        rows = torch.cat((map_.features(x), torch.ones(5000, 1)), dim=1).double()
        gram = rows[:4000].T @ rows[:4000] + 40 * torch.eye(rows.shape[1])
        weight = torch.linalg.solve(gram, rows[:4000].T @ torch.eye(10, dtype=torch.float64)[labels[:4000]])
        scores.append(((rows[4000:] @ weight).argmax(dim=1) == labels[4000:]).double().mean().item())
    assert scores[1] > scores[0] + 0.03
    assert scores[1] > 0.85


def test_defaults_grow_with_the_data():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert default_filters(torch.empty(60_000, 1, 28, 28, device="meta"), cpu) == 200
    assert default_filters(torch.empty(60_000, 1, 28, 28, device="meta"), gpu) == 800
    assert default_filters(torch.empty(50_000, 3, 32, 32, device="meta"), gpu) == 1600
    assert default_filters(torch.empty(1000, 1, 28, 28, device="meta"), gpu) == 62
    map_ = patch_features(images(300, channels=3, height=20, width=20))
    assert (map_.size, map_.pool, len(map_.bias)) == (6, 2, 18)
    assert patch_features(images(300, height=20, width=20)).size == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patch_features(torch.rand(5, 12, 12)), "shape"),
        (lambda: patch_features(images(), size=13), "size=13"),
        (lambda: patch_features(images(), size=10, pool=4), "pool=4"),
        (lambda: patch_features(images(), filters=-1), "filters is -1"),
        (lambda: patch_features(images(), filters=8, dims=0), "dims is 0"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_without_scaling_all_features_are_means_of_positive_parts():
    features = random_map().features(images(20))
    assert (features >= 0).all()
    assert math.isfinite(features.sum().item())
    assert isinstance(patch_features(images(), filters=8, size=4).scaling, Scaling)
