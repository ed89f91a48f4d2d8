"""Numbers and cells say the same as features."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.features.coded import Coder
from labeldp.features.tables import Table
from labeldp.learning.tuning import Plan, prepare, spectrum


def table(rows, seed, holes=True):
    rng = np.random.default_rng(seed)
    numbers = np.stack([rng.normal(size=rows), np.floor(3 * rng.random(rows)), np.exp(rng.normal(size=rows))], axis=1)
    if holes:
        numbers[rng.random((rows, 3)) < 0.2] = np.nan
    words = np.array([f"w{value}" for value in range(40)])
    return numbers, np.stack([words[rng.integers(4, size=rows)], words[rng.integers(40, size=rows)]], axis=1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000), bins=st.sampled_from([0, 2, 5, 32]), steps=st.sampled_from([0, 2, 8]),
    one_hot=st.sampled_from([0, 4, 64]), scale=st.sampled_from([0.5, 1.0]), clip=st.sampled_from([None, 1.5]),
    holes=st.booleans(),
)  # fmt: skip
def test_cells_give_the_features_of_the_map_also_for_new_rows(seed, bins, steps, one_hot, scale, clip, holes):
    known, new = table(60, seed, holes), table(50, seed + 1)
    found = Table(one_hot, buckets=16, bins=bins, steps=steps, scale=scale, clip=clip, seed=seed).fit(known)
    for rows in (known, new):
        assert torch.equal(Coder(found).coded([rows]).features(), found.features(rows))


def test_rows_in_parts_are_the_rows_and_some_of_them_are_those():
    whole = table(100, 3)
    found = Table(bins=8, steps=4).fit(whole)
    parts = [tuple(part[span] for part in whole) for span in (slice(0, 30), slice(30, 31), slice(31, 100))]
    coded, seen = Coder(found).coded(parts), found.features(whole)
    assert coded.shape == seen.shape
    assert torch.equal(coded.features(), seen)
    assert torch.equal(coded.take(torch.tensor([7, 2])).features(), seen[[7, 2]])


@pytest.mark.parametrize("quantile", [0.0, 0.9])
@pytest.mark.parametrize("constant", [0.0, 0.3])
def test_a_basis_takes_turned_rows(quantile, constant):
    rows = table(300, 4)
    found = Table(bins=8, steps=4).fit(rows)
    seen, coded = found.features(rows), Coder(found).coded([rows])
    basis = prepare(Plan(5, quantile=quantile, constant=constant), spectrum(seen), seen)
    turned = torch.cat([basis.from_turned(part) for _, part in coded.mapped(basis.matrix)])
    assert torch.allclose(turned, basis(seen), atol=1e-5)


def test_rotated_features_have_no_cells():
    rows = table(60, 0)
    with pytest.raises(ValueError, match="dims"):
        Coder(Table(dims=3).fit(rows))


def test_text_where_whole_numbers_were_is_refused():
    numbers = np.zeros((4, 0))
    found = Table().fit((numbers, np.arange(4)[:, None]))
    with pytest.raises(ValueError, match="categorical column 0"):
        Coder(found).coded([(numbers, np.array([["a"], ["b"], ["c"], ["d"]]))])
