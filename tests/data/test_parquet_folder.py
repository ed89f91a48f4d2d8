"""Folders of Parquet files: one table, its rows in a fixed order."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from labeldp.core.random import SecureRandom
from labeldp.data.columns import open_table
from labeldp.data.door import read, seal_column
from labeldp.data.request import TableError
from labeldp.data.tables import certificate_path, privatize, read_private, verify_file

HOW = {"label": "y", "classes": ["a", "b"], "epsilon": 1.0}


def rows(count, start=0):
    numbers = np.arange(start, start + count)
    return pa.table({"x": numbers.astype(float), "y": [("a", "b")[n % 2] for n in numbers]})


@pytest.fixture
def folder(tmp_path):
    for name, start in (("b/part-0", 40), ("a/part-1", 20), ("a/part-0", 0), ("z", 60)):
        path = tmp_path / "t" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Columns in any order; several row groups.
        table = rows(20, start)
        pq.write_table(table.select(["y", "x"]) if start == 20 else table, path, row_group_size=7)
    (tmp_path / "t" / "_SUCCESS").write_text("")
    (tmp_path / "t" / ".part.crc").write_text("")
    return tmp_path / "t"


def test_rows_come_in_the_order_of_paths_and_then_of_the_file(folder):
    table = open_table(folder)
    assert (table.names, table.num_rows, table.count_rows()) == (["x", "y"], 80, 80)
    assert table.read(["x"])["x"].to_pylist() == list(range(80))
    assert np.concatenate([codes for codes, _ in table.codes("y", ("a", "b"))]).tolist() == [0, 1] * 40
    assert [len(batch) for batch in table.batches(["x", "y"])] == [20] * 4


def test_a_folder_is_privatized_into_one_file_as_its_rows_would_be(folder, tmp_path):
    whole = tmp_path / "whole.parquet"
    pq.write_table(rows(80), whole)
    for source, target in ((folder, "one.parquet"), (whole, "two.parquet")):
        privatize(source, tmp_path / target, **HOW, rng=SecureRandom(seed=3))
    one, two = (read_private(tmp_path / name) for name in ("one.parquet", "two.parquet"))
    assert one.features.equals(two.features)
    assert one.labels.responses.tolist() == two.labels.responses.tolist()
    assert one.certificate.groups == two.certificate.groups
    privatize(folder, tmp_path / "real.parquet", **HOW)
    assert verify_file(tmp_path / "real.parquet") == ()


def test_features_and_labels_of_a_folder_stay_together(folder):
    data = read(folder, "y", ["a", "b"])
    assert (len(data), data.described) == (80, ("x",))
    assert data.features["x"].to_pylist() == list(range(80))
    assert len(seal_column(folder, "y", ["a", "b"])) == 80


def test_folders_named_by_a_value_are_columns(tmp_path):
    table = rows(40).append_column("year", pa.array([2023, 2024] * 20))
    ds.write_dataset(table, tmp_path / "t", format="parquet", partitioning=["year"], partitioning_flavor="hive")
    found = open_table(tmp_path / "t")
    assert found.names == ["x", "y", "year"]
    assert found.read(["year", "x"]).to_pydict() == {
        "year": ["2023"] * 20 + ["2024"] * 20, "x": [*range(0, 40, 2), *range(1, 40, 2)]
    }  # fmt: skip
    data = read(tmp_path / "t", "y", ["a", "b"])
    assert {one.name: one.read_as for one in data.readings} == {"x": "number", "year": "number"}


@pytest.mark.parametrize("how", [privatize, None])
def test_a_label_that_the_order_of_rows_would_tell_is_refused(tmp_path, how):
    ds.write_dataset(rows(40), tmp_path / "t", format="parquet", partitioning=["y"], partitioning_flavor="hive")
    with pytest.raises(TableError, match="the order of the rows tells it"):
        read(tmp_path / "t", "y", ["a", "b"]) if how is None else how(tmp_path / "t", tmp_path / "o.parquet", **HOW)
    assert not list(tmp_path.glob("o.*"))


@pytest.mark.parametrize("kind", [{"classes": ["0", "1"]}, {"bounds": (0, 1)}], ids=["classes", "numbers"])
def test_so_it_is_however_labels_are_sealed(tmp_path, kind):
    """For a service, a store, or beside images, no feature is read that would find it out."""
    table = pa.table({"x": list(range(40)), "y": [row % 2 for row in range(40)]})
    ds.write_dataset(table, tmp_path / "t", format="parquet", partitioning=["y"], partitioning_flavor="hive")
    for seal in (seal_column, read):
        with pytest.raises(TableError, match="the order of the rows tells it"):
            seal(tmp_path / "t", "y", kind.get("classes", ()), bounds=kind.get("bounds"))


def test_bad_labels_are_counted_and_nothing_is_written(folder, tmp_path):
    strange = rows(20, 80).set_column(1, "y", pa.array(["a", None, "a", "secret"] * 5))
    pq.write_table(strange, folder / "zz.parquet")
    with pytest.raises(TableError, match=r"5 of 100 labels .* and 5 are missing") as refused:
        privatize(folder, tmp_path / "o.parquet", **HOW)
    assert "secret" not in str(refused.value)
    with pytest.raises(TableError, match="5 of 100 labels") as refused:
        read(folder, "y", ["a", "b"])
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "o.parquet").exists()
    assert not certificate_path(tmp_path / "o.parquet").exists()


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"x": [1.0]}, r"differ in the columns 'y'"),
        ({"x": [1], "y": ["a"]}, r"has int64 in the column 'x' and the first file double"),
        ({"x": [1.0], "y": ["a"], "z": [1]}, r"differ in the columns 'z'"),
    ],
)
def test_files_that_do_not_agree_are_refused(folder, odd, says):
    pq.write_table(pa.table(odd), folder / "odd.parquet")
    with pytest.raises(TableError, match=says):
        open_table(folder)


def test_other_files_beside_them_and_folders_without_any_are_refused(folder, tmp_path):
    (folder / "notes.csv").write_text("x,y\n")
    with pytest.raises(TableError, match=r"4 Parquet files and others \('notes.csv'\)"):
        open_table(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="is a folder without Parquet files"):
        open_table(tmp_path / "empty")


def test_a_damaged_file_is_named(folder):
    path = folder / "a" / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TableError, match=r"part-1\.parquet"):
        open_table(folder)


def test_metadata_of_the_files_does_not_travel(folder, tmp_path):
    described = rows(20, 80).replace_schema_metadata({"note": json.dumps({"labels": "a b a b"})})
    pq.write_table(described, folder / "zz.parquet")
    privatize(folder, tmp_path / "o.parquet", **HOW)
    assert b"note" not in (pq.read_schema(tmp_path / "o.parquet").metadata or {})
