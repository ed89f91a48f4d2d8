"""Big tables, made small: the limits are lowered instead."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.data import csv, stored
from labeldp.data.columns import open_table
from labeldp.data.door import read, read_columns
from labeldp.data.request import TableError
from labeldp.data.stored import StoredTable, drawn, read_like

ROWS, KINDS = 4000, ["red", "green", "blue, or so"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(stored, "SAMPLE_ROWS", 500)
    monkeypatch.setattr(stored, "MANY_CELLS", 4000)
    monkeypatch.setattr("labeldp.data.door.MANY_CELLS", 4000)
    monkeypatch.setattr(csv, "_ARROW_BYTES", 9000)
    monkeypatch.setattr("labeldp.data.parquet._BATCH_ROWS", 700)


def table(rows=ROWS):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=rows).round(3)
    return pa.table({
        "x": numbers, "whole": rng.integers(100, size=rows), "kind": [KINDS[i] for i in rng.integers(3, size=rows)],
        "flag": rng.random(rows) < 0.5, "row": np.arange(rows) + 7, "y": np.where(numbers > 0, "b", "a"),
    })  # fmt: skip


@pytest.fixture(params=["csv", "parquet", "csv.gz", "folder"])
def path(request, tmp_path):
    place, made = tmp_path / f"t.{request.param}", table()
    if request.param == "folder":
        place.mkdir()
        for part in range(4):
            pq.write_table(made.slice(1000 * part, 1000), place / f"{part}.parquet")
    elif request.param == "parquet":
        pq.write_table(made, place, row_group_size=900)
    else:
        pacsv.write_csv(made, tmp_path / "t.csv")
        if request.param == "csv.gz":
            place.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    return place


def test_a_big_table_stays_where_it_is_and_says_the_same(path, monkeypatch):
    data = read(path, "y", ["a", "b"])
    assert isinstance(data.features, StoredTable)
    assert (len(data.features), data.features.shape, len(data.features.sample)) == (ROWS, (ROWS, 4), 500)
    assert "500 of 4,000 rows, drawn at random" in data.note
    found = {one.name: one.read_as for one in data.readings}
    assert found == {"x": "number", "whole": "number", "kind": "category", "flag": "number", "row": "id"}
    monkeypatch.setattr(stored, "MANY_CELLS", 1 << 40)
    whole = read(path, "y", ["a", "b"])
    assert isinstance(whole.features, pa.Table)
    assert {one.name: one.read_as for one in whole.readings} == found
    assert data.features.read().equals(whole.features)
    assert len(list(data.features.parts())) > 1


def test_the_sample_does_not_depend_on_how_rows_are_cut(path, tmp_path):
    pq.write_table(table(), tmp_path / "other.parquet")
    one, other = (read_columns(place, "y").features.sample for place in (path, tmp_path / "other.parquet"))
    assert one.equals(other)
    pieces = [table().slice(start, 37) for start in range(0, ROWS, 37)]
    assert drawn(iter(pieces), 300)[0].equals(drawn(iter([table()]), 300)[0])


def test_a_sample_is_a_fair_one():
    """Each row is drawn with the same chance: 200 samples of 100 among 1,000, by counts per row within 5 deviations."""
    counts = np.zeros(1000)
    numbered = pa.table({"row": np.arange(1000)})
    for seed in range(200):
        counts[drawn(iter([numbered.slice(0, 600), numbered.slice(600)]), 100, seed)[0]["row"].to_numpy()] += 1
    assert counts.sum() == 20_000
    assert np.abs(counts - 20).max() < 5 * np.sqrt(200 * 0.1 * 0.9)


def rewritten(tmp_path, column, value, row=ROWS - 3):
    """Return a CSV file in which one cell is another, far from where types are found."""
    made = table()
    texts = [str(cell) for cell in made[column].to_pylist()]
    texts[row] = value
    place = made.column_names.index(column)
    path = tmp_path / "odd.csv"
    pacsv.write_csv(made.set_column(place, column, pa.array(texts)), path)
    return path


@pytest.mark.parametrize(
    ("column", "value", "read_as"),
    [("x", "?", np.nan), ("x", "1e3", 1000.0), ("x", "", np.nan), ("whole", "2.5", 2.5), ("whole", "NA", np.nan),
     ("flag", "maybe", np.nan), ("flag", "", np.nan)],
)  # fmt: skip
def test_a_cell_that_is_none_is_missing_and_all_others_stay(tmp_path, column, value, read_as):
    data = read(rewritten(tmp_path, column, value), "y", ["a", "b"])
    found = data.features.read()[column].to_numpy()
    assert found[ROWS - 3] == pytest.approx(read_as, nan_ok=True)
    right = table()[column].cast(pa.float64() if column != "flag" else pa.int8()).to_numpy().astype(float)
    assert np.delete(found, ROWS - 3).tolist() == np.delete(right, ROWS - 3).tolist()


def test_dates_beside_something_else_are_read_as_arrow_reads_them(tmp_path):
    days = [f"2024-0{1 + row % 9}-1{row % 10}" for row in range(ROWS)]
    days[-2] = "soon"
    pacsv.write_csv(table().append_column("when", pa.array(days)), tmp_path / "t.csv")
    found = read(tmp_path / "t.csv", "y", ["a", "b"]).features.read()["when"].to_numpy()
    assert np.isnan(found).sum() == 1
    assert found[-1] == np.datetime64(days[-1]).astype("datetime64[s]").astype(float)


def test_lines_that_are_none_are_refused_with_their_number(tmp_path):
    pacsv.write_csv(table(), tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().split("\n")
    lines[3000] = "1,2"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(TableError, match="data row 3000 has 2 fields where the header has 6"):
        read(tmp_path / "t.csv", "y", ["a", "b"])


def test_lines_are_counted_also_inside_quotes(tmp_path):
    (tmp_path / "t.csv").write_text('x,y\n1,"a\nb"\n2,c')
    assert open_table(tmp_path / "t.csv").lines() == 2
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,c")
    assert open_table(tmp_path / "t.csv").lines() == 2
    assert open_table(tmp_path / "t.csv").lines(fewest=1000) == 0


def test_records_with_line_feeds_are_not_cut(tmp_path):
    made = table().set_column(2, "kind", pa.array([f"k{row % 3}\n{row % 2}" for row in range(ROWS)]))
    pacsv.write_csv(made, tmp_path / "t.csv")
    data = read(tmp_path / "t.csv", "y", ["a", "b"])
    assert data.features.read()["kind"].to_pylist() == made["kind"].to_pylist()


def test_a_test_table_of_training_rows_is_refused_and_others_are_not(path, tmp_path):
    pq.write_table(table().slice(100, 300), tmp_path / "test.parquet")
    with pytest.raises(TableError, match="300 of 300 rows"):
        read(path, "y", ["a", "b"], test=tmp_path / "test.parquet")
    other = table(300).set_column(0, "x", pa.array(np.random.default_rng(5).normal(size=300)))
    pq.write_table(other, tmp_path / "other.parquet")
    assert len(read(path, "y", ["a", "b"], test=tmp_path / "other.parquet").test) == 300


def test_columns_of_a_model_are_read_from_a_big_table(path):
    columns = read(path, "y", ["a", "b"]).columns
    found, kept = read_like(path, columns, keep=["row"])
    assert isinstance(found, StoredTable)
    assert [int(value) for value in kept["row"].to_pylist()] == list(range(7, ROWS + 7))
    assert found.read()["x"].to_pylist() == table()["x"].to_pylist()
    with pytest.raises(TableError, match="--keep"):
        read_like(path, columns, keep=["nothing"])


def test_a_stray_cell_of_a_big_table_to_predict_is_refused(tmp_path, monkeypatch):
    columns = read(rewritten(tmp_path, "x", "1.0"), "y", ["a", "b"]).columns
    monkeypatch.setattr(stored, "_FEW_ROWS", 10)
    found, _ = read_like(rewritten(tmp_path, "x", "odd"), columns)
    with pytest.raises(TableError, match="'odd'"):
        found.read()
