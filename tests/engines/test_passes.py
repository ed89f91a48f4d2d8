"""Features by a pass over all rows: those that one machine fits, however the rows are cut into parts."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from labeldp.data.columns import Layout, read_frame
from labeldp.data.door import columns_of
from labeldp.engines.passes import Look, look, unite, united
from labeldp.estimator.reading import TABLE
from labeldp.features.tables import Table

ROWS, SOME = 20_000, 1000


@pytest.fixture(scope="module")
def rows():
    """What 1,000 rows do not show: a missing number, a rare value, a column of few values that has many after all."""
    chance = np.random.default_rng(0)
    x, tail = chance.normal(3, 2, ROWS), np.exp(2 * chance.normal(size=ROWS))
    x[-1] = np.nan
    few = np.array(["a", "b"], dtype=object)[chance.integers(0, 2, ROWS)]
    few[-2] = "rare"
    grown = np.array(
        [f"v{i}" for i in np.where(np.arange(ROWS) < SOME, chance.integers(0, 9, ROWS), np.arange(ROWS) % 99)]
    )
    many = np.array([f"w{i}" for i in chance.integers(0, 90, ROWS)])
    return pa.table({"x": x, "tail": tail, "few": few, "grown": grown, "many": many})


def fitted(rows, parts):
    public = columns_of(rows.slice(0, SOME), {}, ROWS)
    read = read_frame(public.features)
    layout = Layout.of(read)
    table = Table(**TABLE, seed=0)
    found = table.fit(layout.split(read))
    task = Look.like(public.columns, layout, table, found)
    lines = [line for part in parts for line in look(task, part.to_batches(max_chunksize=700))]
    twice = [line for half in (lines[::2], lines[1::2]) for line in unite(task, half)]
    assert united(task, lines) == united(task, twice)
    return found, task.fitted(found, united(task, twice), table)


def test_all_rows_say_what_some_cannot(rows):
    some, found = fitted(rows, [rows])
    whole = Table(**TABLE, seed=0).fit(
        (
            np.stack([rows.column(name).to_numpy() for name in ("x", "tail")], axis=1),
            np.stack([np.array(rows.column(name).to_pylist()) for name in ("few", "grown", "many")], axis=1),
        )
    )
    assert not some.missing.any()
    assert found.missing.tolist() == whole.missing.tolist() == [True, False]
    assert np.allclose(found.mean, whole.mean, rtol=1e-3)
    assert np.allclose(found.spread, whole.spread, rtol=1e-3)
    assert not np.allclose(some.spread, whole.spread, rtol=1e-3)
    assert [None if kept is None else kept.tolist() for kept in found.values] == [["a", "b", "rare"], None, None]
    assert [kept is None for kept in some.values] == [False, False, True]
    assert [kept is None for kept in whole.values] == [False, True, True]
    assert found.buckets == whole.buckets > 0


@pytest.mark.parametrize("cuts", [[], [0, 1, 1, 13_000], [5000, 5000]])
def test_features_do_not_depend_on_parts_or_their_order(rows, cuts):
    _, expected = fitted(rows, [rows])
    ends = [0, *cuts, ROWS]
    parts = [rows.slice(a, b - a) for a, b in itertools.pairwise(ends)][::-1]
    _, found = fitted(rows, parts)
    assert found.mean.tobytes() == expected.mean.tobytes()
    assert found.spread.tobytes() == expected.spread.tobytes()
    assert found.missing.tolist() == expected.missing.tolist()
    assert [kept is None or kept.tolist() for kept in found.values] == [
        kept is None or kept.tolist() for kept in expected.values
    ]
