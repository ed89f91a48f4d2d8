import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labeldp.learning.projections import Projected, hull, row_simplex, span
from labeldp.mechanisms.gradients.public import PublicGradients
from labeldp.mechanisms.gradients.sums import DiameterBound, NormBound
from tests.learning.projectionhelp import (
    candidates,
    duality_gap,
    nearest_in_hull,
    nearest_in_row_simplex,
    network,
    rows,
)

SETS = {"hull": (hull, False), "row_hull": (row_simplex, True)}


def problem(seed, many=5, classes=3, scale=0.3, **settings):
    """A random network, public rows, their candidates by hand, and a noisy vector."""
    model, inputs = network(seed, classes=classes), rows(seed, many)
    matrix = candidates(model, inputs, classes)
    noisy = scale * torch.randn(matrix.shape[2], generator=torch.Generator().manual_seed(seed)).double()
    return PublicGradients(model, inputs, **settings), matrix, noisy


@pytest.mark.parametrize("seed", range(8))
def test_hull_is_the_independent_solution(seed):
    public, matrix, noisy = problem(seed)
    found = hull(noisy, public, tolerance=1e-13)
    assert (found.gradient - nearest_in_hull(matrix, noisy)).norm() <= 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_row_hull_is_the_independent_solution(seed):
    public, matrix, noisy = problem(seed)
    found = row_simplex(noisy, public, tolerance=1e-13)
    assert (found.gradient - nearest_in_row_simplex(matrix, noisy)).norm() <= 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_span_is_the_least_squares_solution(seed):
    public, matrix, noisy = problem(seed, many=3)
    flat = matrix.flatten(0, 1).T
    expected = flat @ torch.linalg.lstsq(flat, noisy, driver="gelsd").solution
    found = span(noisy, public, tolerance=1e-12)
    assert (found.gradient - expected).norm() <= 1e-6
    assert found.gap <= 1e-12
    assert found.objective == pytest.approx(0.5 * (expected - noisy).square().sum().item(), rel=1e-6)


@pytest.mark.parametrize("name", SETS)
@given(seed=st.integers(0, 10**6), many=st.integers(1, 12), classes=st.integers(2, 4), scale=st.floats(0.01, 3))
@settings(max_examples=25)
def test_optimality_conditions_hold(name, seed, many, classes, scale):
    """Against candidates by hand: no point of the set lies further along the residual than the one found."""
    project, per_row = SETS[name]
    public, matrix, noisy = problem(seed, many, classes, scale)
    found = project(noisy, public, tolerance=1e-9)
    gap = duality_gap(matrix, noisy, found.gradient, per_row)
    unit = max(min(found.objective, found.gradient.square().sum().item()), 0.5e-4 * noisy.square().sum().item())
    assert found.gap <= 1e-9
    assert gap <= 2e-9 * unit + 1e-12
    assert found.objective == pytest.approx(0.5 * (found.gradient - noisy).square().sum().item(), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("name", SETS)
def test_the_check_rejects_a_solution_that_is_two_percent_off(name):
    project, per_row = SETS[name]
    public, matrix, noisy = problem(3, scale=1.0)
    found = project(noisy, public, tolerance=1e-9)
    assert duality_gap(matrix, noisy, found.gradient, per_row) <= 1e-9
    assert duality_gap(matrix, noisy, 0.98 * found.gradient, per_row) > 1e-4


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("clip", [0.3, pytest.param(None, marks=pytest.mark.slow)])
def test_many_candidates_take_rounds_and_still_converge(name, clip):
    """1,500 candidates: more than fit into one restricted program, and than span the sketch."""
    project, per_row = SETS[name]
    model, inputs = network(0, inputs=8, classes=5, hidden=30), 2 * rows(0, 300, inputs=8)
    matrix = candidates(model, inputs, 5, clip)
    noisy = 0.3 * torch.randn(matrix.shape[2], generator=torch.Generator().manual_seed(0)).double()
    found = project(noisy, PublicGradients(model, inputs, clip=clip), tolerance=1e-4, steps=8)
    unit = min(found.objective, found.gradient.square().sum().item())
    assert found.iterations > 8
    assert duality_gap(matrix, noisy, found.gradient, per_row) <= 1e-4 * unit
    # Clipping aims a millionth too low, so that rounding cannot lift a candidate above the norm.
    measured = duality_gap(matrix, noisy, found.gradient, per_row) / unit
    assert found.gap == pytest.approx(measured, rel=0.05, abs=1e-7 if clip is None else 3e-5)


@pytest.mark.parametrize("name", SETS)
def test_stopping_early_is_admitted(name):
    project, per_row = SETS[name]
    public, matrix, noisy = problem(2, many=40, scale=1.0)
    rough, fine = project(noisy, public, steps=1, rounds=0), project(noisy, public, tolerance=1e-6)
    unit = min(rough.objective, rough.gradient.square().sum().item())
    assert rough.gap > 0.01 > 1e-6 >= fine.gap
    assert rough.gap == pytest.approx(duality_gap(matrix, noisy, rough.gradient, per_row) / unit, rel=1e-3)
    assert rough.objective > fine.objective


@pytest.mark.parametrize("project", [span, hull, row_simplex])
@pytest.mark.parametrize("clip", [0.5, pytest.param(None, marks=pytest.mark.slow)])
def test_with_and_without_the_matrix(project, clip):
    dense, _, noisy = problem(1, many=200, clip=clip)
    free, _, _ = problem(1, many=200, clip=clip, memory=0)
    assert dense.matrix is not None
    assert free.matrix is None
    one, other = project(noisy, dense, tolerance=1e-8), project(noisy, free, tolerance=1e-8)
    assert (one.gradient - other.gradient).norm() <= 1e-4 * one.gradient.norm()


@pytest.mark.parametrize("project", [span, hull, row_simplex])
def test_float32_networks(project):
    double, _, noisy = problem(4, many=50, scale=1.0)
    model, inputs = network(4, dtype=torch.float32), rows(4, 50, dtype=torch.float32)
    found = project(noisy.float(), PublicGradients(model, inputs), tolerance=1e-3)
    expected = project(noisy, double, tolerance=1e-3)
    assert found.gradient.dtype == torch.float32
    assert found.gap <= 1e-3
    assert (found.gradient - expected.gradient).norm() <= 0.1 * expected.gradient.norm()


def test_the_sets_contain_each_other():
    """row hull ⊂ hull ⊂ span: a larger set has a nearer point."""
    public, _, noisy = problem(5, scale=1.0)
    distances = [project(noisy, public, tolerance=1e-8).objective for project in (span, hull, row_simplex)]
    assert distances == sorted(distances)


def test_the_true_mean_gradient_stays_where_it_is():
    """It is in every set, so without noise nothing may move it."""
    public, matrix, _ = problem(6, many=10)
    labels = torch.arange(10) % 3
    truth = matrix[torch.arange(10), labels].mean(0)
    for project in (span, hull, row_simplex):
        found = project(truth, public, tolerance=1e-6)
        assert (found.gradient - truth).norm() <= 0.01 * truth.norm()


def test_projection_takes_noise_away():
    public, matrix, _ = problem(7, many=60)
    labels = torch.arange(60) % 3
    truth = matrix[torch.arange(60), labels].mean(0)
    noisy = truth + torch.randn(len(truth), generator=torch.Generator().manual_seed(0)).double()
    errors = [(project(noisy, public).gradient - truth).norm() for project in (hull, row_simplex)]
    assert errors[1] < errors[0] < 0.5 * (noisy - truth).norm()


# -- scaling and smoothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, 0])
def test_candidates_are_clipped_as_the_mechanism_does(memory):
    model, inputs = network(0), 5 * rows(0, 6)
    matrix, clip = candidates(model, inputs, 3), 2.0
    assert (matrix.norm(dim=2) > clip).any()
    assert (matrix.norm(dim=2) < clip).any()
    expected = candidates(model, inputs, 3, clip)
    for scaling in ({"clip": clip}, {"factors": NormBound(clip).factors}):
        public = PublicGradients(model, inputs, memory=memory, **scaling)
        every = torch.arange(18)
        assert torch.allclose(public.columns(every), expected.flatten(0, 1), rtol=1e-5)
        v, alpha = torch.randn(31).double(), torch.rand(6, 3).double()
        assert torch.allclose(public.correlate(v), expected @ v, rtol=1e-4, atol=1e-6)
        assert torch.allclose(public.combine(alpha), torch.einsum("ik,ikp->p", alpha, expected), rtol=1e-4, atol=1e-6)
        assert torch.allclose(public.squared_norms(), expected.square().sum(2).flatten(), rtol=1e-5)
        basis = torch.randn(4, 31).double()
        assert torch.allclose(public.coordinates(basis), expected.flatten(0, 1) @ basis.T, rtol=1e-4, atol=1e-6)


def test_candidates_are_scaled_to_a_diameter():
    model, inputs = network(0), 5 * rows(0, 6)
    public = PublicGradients(model, inputs, factors=DiameterBound(clip=0.8, diameter=0.9).factors)
    found = public.matrix.view(6, 3, -1)
    apart = (found[:, :, None] - found[:, None]).norm(dim=-1)
    assert found.norm(dim=2).max() <= 0.8
    assert apart.max() <= 0.9
    assert apart.max() > 0.89


@pytest.mark.parametrize("name", SETS)
def test_smoothing_mixes_in_the_mean_of_all_candidates(name):
    project, _ = SETS[name]
    public, matrix, noisy = problem(8, scale=1.0)
    plain, mean = project(noisy, public), matrix.mean((0, 1))
    for weight in (0.0, 0.75, 1.0):
        smooth = project(noisy, public, smoothing=weight)
        assert torch.allclose(smooth.gradient, weight * plain.gradient + (1 - weight) * mean, atol=1e-9)
        assert (smooth.gap, smooth.objective) == (plain.gap, plain.objective)


# -- degenerate problems -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("project", [span, hull, row_simplex])
def test_candidates_that_are_all_zero(project):
    public = PublicGradients(nn.Linear(2, 3, bias=False), torch.zeros(4, 2))
    found = project(torch.randn(6), public)
    assert found.gradient.tolist() == [0.0] * 6
    assert found.gap == 0.0


@pytest.mark.parametrize("name", SETS)
def test_candidates_that_are_all_equal(name):
    """A loss that does not look at the class: every row, every class the same gradient."""
    project, _ = SETS[name]
    public = PublicGradients(nn.Linear(2, 3, bias=False), torch.ones(4, 2), loss=lambda logits, labels: logits.sum(1))
    found = project(3 * torch.randn(6), public)
    assert torch.allclose(found.gradient, torch.ones(6), atol=1e-5)
    assert found.gap <= 0.01


@pytest.mark.parametrize("name", SETS)
def test_one_row(name):
    """One row: both sets are its own hull."""
    project, _ = SETS[name]
    public, matrix, noisy = problem(9, many=1, scale=1.0)
    assert (project(noisy, public, tolerance=1e-12).gradient - nearest_in_hull(matrix, noisy)).norm() <= 1e-6


@pytest.mark.parametrize("name", SETS)
def test_one_class(name):
    """Nothing to choose within a row."""
    project, per_row = SETS[name]
    public = PublicGradients(
        nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), loss=lambda logits, _: logits[:, 0]
    )
    found = project(torch.tensor([5.0, 0.0]), public, tolerance=1e-6)
    assert found.gradient.tolist() == pytest.approx([0.5, 0.5] if per_row else [1.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("project", [span, hull, row_simplex])
def test_a_zero_noisy_gradient(project):
    """Zero is in the hull of every row for the cross-entropy: the model's prediction has no gradient."""
    for dtype in (torch.float32, torch.float64):
        public = PublicGradients(network(0, dtype=dtype), rows(0, 300, dtype=dtype))
        found = project(torch.zeros(31, dtype=dtype), public)
        assert found.gradient.norm() <= 1e-5
        assert found.gap <= 0.01
        assert found.iterations <= 8


@pytest.mark.parametrize("project", [span, hull, row_simplex])
def test_rows_given_twice(project):
    model, inputs = network(1), rows(1, 5)
    noisy = torch.randn(31, generator=torch.Generator().manual_seed(1)).double()
    once = project(noisy, PublicGradients(model, inputs), tolerance=1e-10)
    twice = project(noisy, PublicGradients(model, torch.cat((inputs, inputs))), tolerance=1e-10)
    assert (once.gradient - twice.gradient).norm() <= 1e-4


@pytest.mark.parametrize("name", SETS)
def test_a_noisy_gradient_inside_the_set(name):
    project, _ = SETS[name]
    public, matrix, _ = problem(2, many=30)
    inside = torch.einsum("ik,ikp->p", torch.softmax(rows(0, 30), 1) / 30, matrix)
    found = project(inside, public, tolerance=0.01)
    assert (found.gradient - inside).norm() <= 0.01 * inside.norm()
    assert found.gap <= 0.01


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("project", [span, hull, row_simplex])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_noise_that_is_not_a_number_is_refused(project, value):
    public, _, noisy = problem(0)
    noisy[3] = value
    with pytest.raises(ValueError, match="noisy has entries that are not finite"):
        project(noisy, public)


@pytest.mark.parametrize("project", [hull, row_simplex])
def test_candidates_that_are_not_numbers_are_refused(project):
    inputs = rows(0, 5)
    inputs[2, 1] = torch.inf
    with pytest.raises(ValueError, match="candidate gradients are not finite"):
        project(torch.ones(31).double(), PublicGradients(network(0), inputs))


def test_settings_out_of_range_are_refused():
    public, _, noisy = problem(0)
    for project in (span, hull, row_simplex):
        with pytest.raises(ValueError, match=r"noisy has shape \(30,\); the model has 31"):
            project(noisy[:30], public)
        with pytest.raises(ValueError, match="tolerance=0"):
            project(noisy, public, tolerance=0.0)
    for project in (hull, row_simplex):
        with pytest.raises(ValueError, match="smoothing=1"):
            project(noisy, public, smoothing=1.5)
    with pytest.raises(ValueError, match="clip=0"):
        PublicGradients(network(0), rows(0, 2), clip=0.0)
    with pytest.raises(ValueError, match="two ways to scale"):
        PublicGradients(network(0), rows(0, 2), clip=1.0, factors=NormBound(1.0).factors)


def test_dropout_needs_the_matrix():
    """Drawn once with it; without it, each product would see another network."""
    model = nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    noisy = torch.ones(sum(p.numel() for p in model.parameters()))
    found = hull(noisy, PublicGradients(model, rows(0, 30, dtype=torch.float32)))
    assert isinstance(found, Projected)
    assert found.gap <= 0.01
    with pytest.raises(ValueError, match="drops units at random"):
        hull(noisy, PublicGradients(model, rows(0, 30, dtype=torch.float32), memory=0))
