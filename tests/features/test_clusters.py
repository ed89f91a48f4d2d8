import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.vq import kmeans2

from labeldp.features import clusters
from labeldp.features.clusters import Clusters, kmeans, nearest_neighbours


def blobs(k=5, each=60, dim=8, apart=6.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(k, dim, generator=generator) * apart
    truth = torch.arange(k).repeat_interleave(each)
    return centers[truth] + torch.randn(k * each, dim, generator=generator), truth


def brute_inertia(points, centers):
    return torch.cdist(points.double(), centers.double()).square().min(dim=1).values.sum().item()


def same_partition(first, second):
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def rows(max_rows=12, dim=2):
    values = st.integers(-5, 5).map(float)
    return st.lists(st.tuples(*[values] * dim), min_size=1, max_size=max_rows).map(torch.tensor)


def test_separated_blobs_are_found():
    points, truth = blobs()
    found = kmeans(points, 5, restarts=3)
    assert same_partition(found.members, truth)
    assert found.sizes.tolist() == [60] * 5
    assert torch.equal(found.assign(points), found.members)


def test_small_problems_are_solved_to_the_optimum():
    """All partitions of 8 points into 3 parts are tried; enough restarts reach the best of them."""
    points = torch.tensor(np.random.default_rng(3).normal(size=(8, 2)), dtype=torch.float32)
    best = min(
        sum((points[np.array(p) == c] - points[np.array(p) == c].mean(0)).square().sum().item() for c in set(p))
        for p in itertools.product(range(3), repeat=8)
    )
    assert kmeans(points, 3, restarts=40, tolerance=0).inertia == pytest.approx(best, rel=1e-5)


def test_as_good_as_scipy():
    points, _ = blobs(k=12, each=40, apart=1.5, seed=4)
    ours = kmeans(points, 12, restarts=10, tolerance=0).inertia
    theirs = []
    for seed in range(10):
        centers, _ = kmeans2(points.numpy(), 12, iter=100, minit="++", rng=np.random.default_rng(seed))
        theirs.append(brute_inertia(points, torch.tensor(centers)))
    assert ours <= 1.02 * min(theirs)


def test_steps_are_lloyds(monkeypatch):
    """From the same seeds, each step equals the textbook's: nearest centre, then mean."""
    points, _ = blobs(k=6, apart=1.0)
    start = points[:6]
    monkeypatch.setattr(clusters, "_seeds", lambda search, k, generator: search.shifted(start))
    centers = start.double()
    for moves in range(1, 5):
        members = torch.cdist(points.double(), centers).argmin(dim=1)
        centers = torch.stack([points.double()[members == c].mean(0) for c in range(6)])
        found = kmeans(points, 6, iterations=moves, tolerance=0)
        assert found.iterations == moves
        assert torch.allclose(found.centers.double(), centers, atol=1e-4)
        assert found.inertia == pytest.approx(brute_inertia(points, centers), rel=1e-5)


@given(points=rows(), k=st.integers(1, 6), seed=st.integers(0, 3))
def test_what_is_returned_fits_together(points, k, seed):
    k = min(k, len(points))
    found = kmeans(points, k, seed=seed, tolerance=0)
    assert found.centers.shape == (k, 2)
    assert found.inertia == pytest.approx(brute_inertia(points, found.centers), rel=1e-4, abs=1e-4)
    distances = torch.cdist(points, found.centers)
    own = distances.gather(1, found.members[:, None]).squeeze(1)
    assert torch.allclose(own, distances.min(dim=1).values, atol=1e-3)


@given(points=rows(max_rows=20), seed=st.integers(0, 3))
def test_no_cluster_is_empty_while_there_are_enough_distinct_rows(points, seed):
    k = len(torch.unique(points, dim=0))
    found = kmeans(points, k, seed=seed, tolerance=0)
    assert (found.sizes > 0).all()
    assert found.inertia == pytest.approx(0, abs=1e-4)


def test_empty_clusters_move_to_the_furthest_rows(monkeypatch):
    """All seeds in one place, and three lone rows far off: only the repair can find them."""
    blob, _ = blobs(k=1, apart=0.0)
    lone = 100.0 * torch.eye(8)[:3]
    points = torch.cat((blob, lone))
    monkeypatch.setattr(clusters, "_seeds", lambda search, k, generator: search.shifted(points[:1].repeat(k, 1)))
    found = kmeans(points, 4, tolerance=0)
    assert sorted(found.sizes.tolist()) == [1, 1, 1, 60]
    assert torch.allclose(found.centers[found.members[-3:]], lone, atol=1e-4)


def test_inertia_never_rises(monkeypatch):
    points, _ = blobs(k=3, each=40, apart=0.5, seed=7)
    monkeypatch.setattr(clusters, "_seeds", lambda search, k, generator: search.shifted(points[:1].repeat(k, 1)))
    path = [kmeans(points, 9, iterations=moves, tolerance=0).inertia for moves in range(1, 12)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(path))


def test_fewer_distinct_rows_than_clusters():
    found = kmeans(torch.ones(5, 3), 4)
    assert found.inertia == 0
    assert torch.isfinite(found.centers).all()


def test_the_same_seed_gives_the_same_clusters_in_chunks_of_any_size(monkeypatch):
    points, _ = blobs(apart=2.0)
    first, second = kmeans(points, 7, seed=1), kmeans(points, 7, seed=1)
    assert torch.equal(first.centers, second.centers)
    monkeypatch.setattr(clusters, "_CPU_BLOCK", 64)
    small = kmeans(points, 7, seed=1)
    assert torch.equal(small.members, first.members)
    assert torch.allclose(small.centers, first.centers, atol=1e-5)
    assert not torch.equal(kmeans(points, 7, seed=2).centers, first.centers)


def test_restarts_help_and_the_global_state_is_left_alone():
    points, _ = blobs(k=20, each=20, apart=2.0)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert kmeans(points, 20, restarts=8).inertia <= kmeans(points, 20, restarts=1).inertia
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_common_offset_costs_no_digits():
    points, truth = blobs()
    assert same_partition(kmeans(points + 1e4, 5, restarts=3).members, truth)


def test_seeds_are_drawn_in_proportion_to_squared_distance():
    """Rows at 0, 1 and 3; after a first seed at 0 the second is 3 with chance 9/10: 4,000 draws, five σ."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    search = clusters._Search(points, False)
    generator = torch.Generator().manual_seed(0)
    drawn = [(clusters._seeds(search, 2, generator) + search.shift).flatten().round().tolist() for _ in range(4000)]
    second = [b for a, b in drawn if a == 0]
    assert len(second) > 1000
    assert abs(second.count(3.0) / len(second) - 0.9) < 5 * (0.09 / len(second)) ** 0.5


def test_spherical_looks_at_directions_only():
    generator = torch.Generator().manual_seed(0)
    directions = torch.eye(4)[torch.arange(200) % 4] + 0.1 * torch.randn(200, 4, generator=generator)
    points = directions * torch.rand(200, 1, generator=generator).mul(9).add(0.1)
    found = kmeans(points, 4, spherical=True, restarts=3)
    assert same_partition(found.members, torch.arange(200) % 4)
    assert torch.allclose(found.centers.norm(dim=1), torch.ones(4), atol=1e-5)
    assert torch.equal(found.assign(7 * points), found.members)
    unit = points / points.norm(dim=1, keepdim=True)
    assert found.inertia == pytest.approx(brute_inertia(unit, found.centers), rel=1e-4)


def test_numpy_arrays_are_taken():
    points, truth = blobs()
    found = kmeans(points.double().numpy(), 5, restarts=3)
    assert isinstance(found, Clusters)
    assert same_partition(found.assign(points.numpy()), truth)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("tile", [7, 1 << 14])
def test_neighbours_against_brute_force(monkeypatch, cosine, tile):
    monkeypatch.setattr(clusters, "_TILE", tile)
    monkeypatch.setattr(clusters, "_CPU_BLOCK", 50)
    generator = torch.Generator().manual_seed(0)
    points, queries = torch.randn(60, 5, generator=generator) + 3, torch.randn(11, 5, generator=generator)
    scale = (lambda x: x / x.norm(dim=1, keepdim=True)) if cosine else (lambda x: x)
    among = torch.cdist(scale(points), scale(points)).fill_diagonal_(torch.inf).argsort(dim=1)[:, :9]
    assert torch.equal(nearest_neighbours(points, 9, cosine=cosine), among)
    other = torch.cdist(scale(queries), scale(points)).argsort(dim=1)[:, :9]
    assert torch.equal(nearest_neighbours(points, 9, queries=queries, cosine=cosine), other)


@given(points=rows(), k=st.integers(1, 5))
def test_a_row_is_not_its_own_neighbour(points, k):
    if len(points) > 1:
        found = nearest_neighbours(points, min(k, len(points) - 1))
        assert (found != torch.arange(len(points))[:, None]).all()
        assert all(len(set(row)) == len(row) for row in found.tolist())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kmeans(torch.zeros(3, 2), 4), "k=4"),
        (lambda: kmeans(torch.zeros(3, 2), 0), "k is 0"),
        (lambda: kmeans(torch.zeros(3), 1), "shape"),
        (lambda: kmeans(torch.full((3, 2), torch.nan), 1), "not finite"),
        (lambda: kmeans(torch.zeros(3, 2), 1, tolerance=-1.0), "tolerance=-1.0"),
        (lambda: kmeans(torch.zeros(3, 2), 1, iterations=0), "iterations is 0"),
        (lambda: nearest_neighbours(torch.zeros(3, 2), 3), "k=3"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_number_of_threads_does_not_matter(monkeypatch):
    monkeypatch.setattr(clusters, "_CPU_BLOCK", 256)
    points, _ = blobs(apart=1.0)
    one, neighbours = kmeans(points, 8, seed=1), nearest_neighbours(points, 5)
    torch.set_num_threads(2)
    try:
        two = kmeans(points, 8, seed=1)
        assert torch.equal(two.centers, one.centers)
        assert two.inertia == one.inertia
        assert torch.equal(nearest_neighbours(points, 5), neighbours)
    finally:
        torch.set_num_threads(1)
