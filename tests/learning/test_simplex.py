import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from labeldp.learning.evidence import project_to_simplex
from labeldp.learning.projections import LeastSquares, Quadratic, accelerated, interior_point


def by_quadratic_program(value, mass):
    """The projection by a general solver (SLSQP)."""
    found = minimize(
        lambda x: 0.5 * ((x - value) ** 2).sum(),
        np.full(len(value), mass / len(value)),
        jac=lambda x: x - value,
        bounds=[(0, None)] * len(value),
        constraints={"type": "eq", "fun": lambda x: x.sum() - mass, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0.01, 10))
@settings(max_examples=60)
def test_projection_to_the_simplex_is_that_of_a_quadratic_program(values, mass):
    value = np.array(values)
    found = project_to_simplex(torch.tensor(value), mass).numpy()
    assert found == pytest.approx(by_quadratic_program(value, mass), abs=1e-6)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6), min_size=1, max_size=5), st.floats(0.001, 100))
def test_projection_to_the_simplex_meets_the_optimality_conditions(rows, mass):
    """x = max(y − τ, 0): the same τ where x > 0, y at most τ where x = 0. Both are necessary and sufficient."""
    values = torch.tensor(rows, dtype=torch.float64)
    found = project_to_simplex(values, mass)
    assert (found >= 0).all()
    assert torch.allclose(found.sum(1), torch.full((len(values),), mass, dtype=torch.float64), rtol=1e-9)
    for value, point in zip(values, found, strict=True):
        tau = (value - point)[point > 0]
        assert tau.max() - tau.min() <= 1e-9 * (1 + value.abs().max())
        assert (value[point == 0] <= tau.max() + 1e-9 * (1 + value.abs().max())).all()


def test_projection_to_the_simplex_of_special_points():
    assert project_to_simplex(torch.tensor([7.0])).tolist() == [1.0]
    assert project_to_simplex(torch.zeros(2, 4)).tolist() == [[0.25] * 4] * 2
    inside = torch.tensor([0.1, 0.2, 0.7])
    assert torch.allclose(project_to_simplex(inside), inside)
    # Numbers so large that 1 is below their last digit.
    assert project_to_simplex(torch.tensor([1e9, 1e9, -1e9])).tolist() == [0.5, 0.5, 0.0]
    assert project_to_simplex(torch.full((10_000,), -3.0)).sum().item() == pytest.approx(1.0, abs=1e-5)


def random_program(seed, parts, width, rank):
    generator = torch.Generator().manual_seed(seed)
    many = parts * width
    factor = torch.randn(many, rank, generator=generator, dtype=torch.float64)
    linear = torch.randn(many, generator=generator, dtype=torch.float64)
    diagonal = torch.rand(many, generator=generator, dtype=torch.float64)
    return Quadratic(factor, linear, diagonal)


def best_vertex_set(program, parts, width, mass):
    """The optimum by trying every set of positive weights: no iteration, no tolerance."""
    hessian = program.factor @ program.factor.T + torch.diag(program.diagonal)
    best, least = None, np.inf
    choices = [[c for r in range(1, width + 1) for c in itertools.combinations(range(width), r)]] * parts
    for choice in itertools.product(*choices):
        free = [p * width + k for p, kept in enumerate(choice) for k in kept]
        rows = torch.zeros(parts, len(free), dtype=torch.float64)
        for column, number in enumerate(free):
            rows[number // width, column] = 1
        corner = torch.zeros(parts, parts, dtype=torch.float64)
        matrix = torch.cat((torch.cat((hessian[free][:, free], rows.T), 1), torch.cat((rows, corner), 1)))
        right = torch.cat((-program.linear[free], torch.full((parts,), mass, dtype=torch.float64)))
        weights = torch.linalg.solve(matrix, right)[: len(free)]
        if (weights >= -1e-12).all():
            alpha = torch.zeros(parts * width, dtype=torch.float64)
            alpha[free] = weights
            value = 0.5 * alpha @ hessian @ alpha + program.linear @ alpha
            if value < least:
                best, least = alpha, value
    return best.view(parts, width)


@pytest.mark.parametrize(("parts", "width"), [(1, 1), (1, 5), (2, 3), (3, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_interior_point_finds_the_optimum(seed, parts, width):
    program = random_program(seed, parts, width, rank=2)
    start = torch.full((parts, width), 1 / (parts * width), dtype=torch.float64)
    found = interior_point(program, start, enough=1e-12)
    assert torch.allclose(found, best_vertex_set(program, parts, width, 1 / parts), atol=1e-5)
    assert torch.allclose(found.sum(1), torch.full((parts,), 1 / parts, dtype=torch.float64))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 8))
@settings(max_examples=40)
def test_interior_point_reaches_the_gap_it_is_asked_for(seed, parts, width, rank):
    program = random_program(seed, parts, width, rank)
    start = torch.rand(parts, width, generator=torch.Generator().manual_seed(seed)).double() + 0.01
    found = interior_point(program, start, enough=1e-8)
    slope = program.slope(found.flatten()).view(parts, width)
    assert (found > 0).all()
    assert torch.allclose(found.sum(1), start.sum(1))
    assert (found * slope).sum() - (start.sum(1) * slope.amin(1)).sum() <= 1e-8


def test_interior_point_with_equal_columns_and_no_curvature():
    """Only the slope counts, and nothing distinguishes the first two."""
    flat = Quadratic(torch.zeros(3, 1).double(), torch.tensor([-1.0, -1.0, 0.0]).double(), torch.zeros(3).double())
    found = interior_point(flat, torch.full((1, 3), 1 / 3, dtype=torch.float64), enough=1e-9)
    assert found[0].tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-8)


def random_problem(seed, shape, groups, dim):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(shape[0] * shape[1], dim, generator=generator, dtype=torch.float64)
    noisy = torch.randn(dim, generator=generator, dtype=torch.float64)
    problem = LeastSquares(lambda a: a.flatten() @ matrix, lambda v: (matrix @ v).view(shape), noisy, groups)
    return problem, torch.full(shape, 1 / (shape[0] * shape[1]), dtype=torch.float64)


@given(st.integers(0, 10**6), st.sampled_from([1, 4]))
@settings(max_examples=20)
def test_the_gap_bounds_objective_and_distance(seed, groups):
    problem, start = random_problem(seed, (4, 3), groups, dim=5)
    steep = problem.steepness(start)
    best, _, _ = accelerated(problem, start, steep, tolerance=1e-9, steps=20_000)
    for steps in (0, 1, 3, 10):
        point, _, taken = accelerated(problem, start, steep, tolerance=1e-12, steps=steps)
        assert taken <= steps
        assert point.gap >= point.objective - best.objective
        assert point.gap >= (point.image - best.image).square().sum() - 1e-8


@pytest.mark.parametrize("groups", [1, 4])
def test_the_accelerated_method_needs_no_step_size(groups):
    """The same steps, whatever the units of the candidates."""
    taken = []
    for scale in (1e-4, 1.0, 1e4):
        problem, start = random_problem(0, (4, 3), groups, dim=5)
        scaled = LeastSquares(
            lambda a, p=problem, s=scale: s * p.combine(a),
            lambda v, p=problem, s=scale: s * p.correlate(v),
            scale * problem.noisy,
            groups,
        )
        point, steep, steps = accelerated(scaled, start, scaled.steepness(start), tolerance=1e-6, steps=5000)
        assert scaled.is_near(point, steep, 1e-6)
        taken.append(steps)
    assert taken[0] == taken[1] == taken[2] < 1000


def test_a_curvature_guessed_too_small_is_corrected():
    problem, start = random_problem(1, (4, 3), 1, dim=5)
    point, steep, _ = accelerated(problem, start, problem.steepness(start) * 1e-3, tolerance=1e-6, steps=5000)
    assert problem.is_near(point, steep, 1e-6)
    assert steep >= 0.2 * problem.steepness(start)
