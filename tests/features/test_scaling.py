import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.features.extract import fit_scaling, principal_components


def rows(n=300, d=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator) * torch.logspace(0, -2, d)
    return torch.randn(n, d, generator=generator) @ mixing + 3.0


@given(seed=st.integers(0, 20), scale=st.sampled_from([1e-6, 1.0, 1e5]))
def test_zero_mean_unit_variance_whatever_the_units(seed, scale):
    x = rows(seed=seed) * scale
    standard = fit_scaling(x, floor=0.0)(x)
    assert torch.allclose(standard.mean(0), torch.zeros(20), atol=1e-4)
    assert torch.allclose(standard.var(0, correction=0), torch.ones(20), rtol=1e-3)


def test_the_floor_holds_small_columns_down_and_constant_ones_become_zero():
    x = torch.stack((torch.tensor([-1.0, 1.0] * 50), torch.tensor([-1e-4, 1e-4] * 50), torch.full((100,), 0.1)), dim=1)
    standard = fit_scaling(x, floor=0.01)(x)
    assert standard[:, 0].abs().max() == pytest.approx(1, rel=1e-2)
    assert standard[:, 1].abs().max() < 0.01
    assert torch.equal(standard[:, 2], torch.zeros(100))


def test_components_are_those_of_a_singular_value_decomposition():
    x = rows() - 3.0
    basis = principal_components(x, 7)
    expected = torch.linalg.svd(x.double(), full_matrices=False).Vh[:7].T
    assert torch.allclose((basis.double().T @ expected).abs(), torch.eye(7, dtype=torch.float64), atol=1e-4)


def test_few_of_many_components_by_subspace_iteration():
    """2,500 columns, 20 wanted: the quick way keeps the same variance, and its columns are orthonormal."""
    generator = torch.Generator().manual_seed(1)
    low = torch.randn(400, 60, generator=generator) * torch.logspace(1, -1, 60)
    x = low @ torch.randn(60, 2500, generator=generator) + 0.05 * torch.randn(400, 2500, generator=generator)
    basis = principal_components(x, 20, seed=3)
    assert torch.equal(basis, principal_components(x, 20, seed=3))
    assert torch.allclose(basis.T @ basis, torch.eye(20), atol=1e-4)
    values = torch.linalg.svdvals(x)[:20].square()
    assert torch.allclose((x @ basis).square().sum(0), values, rtol=1e-3)


def test_more_components_than_coordinates_are_all_of_them():
    x = rows(d=5)
    assert fit_scaling(x, dims=9)(x).shape == (300, 5)
