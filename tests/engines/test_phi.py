"""φ of a row, computed by its cells: what the basis makes of the features, and the same in any company."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from labeldp.data.columns import Layout, read_frame
from labeldp.data.door import columns_of
from labeldp.engines.spark_model import Chosen, Phi
from labeldp.estimator.reading import TABLE
from labeldp.features.tables import Table
from labeldp.learning.tuning import Plan, prepare, spectrum

ROWS = 2000


@pytest.fixture(scope="module", params=[0.0, 0.9])
def made(request):
    chance = np.random.default_rng(0)
    numbers = np.where(chance.random(ROWS) < 0.1, np.nan, chance.normal(size=ROWS))
    few, many = (
        np.array([f"{letter}{i}" for i in chance.integers(0, n, ROWS)]) for letter, n in (("a", 4), ("b", 300))
    )
    table = pa.table({"x": numbers, "z": chance.normal(size=ROWS), "few": few, "many": many})
    public = columns_of(table, {})
    read = read_frame(public.features)
    layout = Layout.of(read)
    numeric, categorical = layout.split(read)
    found = Table(**TABLE, seed=0).fit((numeric, categorical))
    features = found.features((numeric, categorical))
    basis = prepare(Plan(rank=20, quantile=request.param), spectrum(features), features)
    return table, basis(features), Phi.of(public.columns, layout, found, basis)


def test_phi_is_what_the_basis_makes_of_the_features(made):
    table, expected, phi = made
    assert torch.allclose(torch.from_numpy(phi(table)), expected, atol=2e-5)


def test_a_row_is_the_same_in_any_company_bit_for_bit(made):
    table, _, phi = made
    whole, order = phi(table), np.random.default_rng(1).permutation(ROWS)
    for part in np.array_split(order, [1, 3, 40, 1000]):
        assert (phi(table.take(pa.array(part))) == whole[part]).all()
    assert phi(table.slice(0, 0)).shape == (0, phi.width)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_rows_are_chosen_by_their_ids_alone(share):
    ids, chosen = np.random.default_rng(0).permutation(50_000), Chosen(3, "some", share)
    found = chosen(ids)
    assert abs(found.mean() - share) < 0.01
    assert (chosen(ids[::-1]) == found[::-1]).all()
    assert share in (0, 1) or (Chosen(3, "aside", share)(ids) != found).any()
