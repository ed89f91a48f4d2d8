"""Public columns: every type has a kind, the same in files and in frames; what no model reads is named."""

import datetime
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.data.columns import Layout, conformed, read_array, read_frame, read_public, take_rows
from labeldp.data.kinds import Column, kept_columns, kind_of, readings_of
from labeldp.data.request import TableError

SECRET = "very-secret-class"


def columns_of(table):
    return kept_columns(readings_of(table))


def kinds(table):
    return {column.name: column.kind for column in columns_of(table)}


def test_every_usual_type_has_a_kind():
    table = pa.table({
        "whole": [1, 2], "real": [0.5, None], "yes": [True, False], "text": ["a", None],
        "coded": pa.array(["a", "b"]).dictionary_encode(),
        "day": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
        "hour": [datetime.time(1), datetime.time(2)], "when": [datetime.datetime(2020, 1, 1), None],
        "money": pa.array([1, 2], pa.decimal128(5, 2)), "big": pa.array(["a", "b"], pa.large_string()),
        "embedding": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    })  # fmt: skip
    numbers = ("whole", "real", "yes", "hour", "money")
    expected = (
        dict.fromkeys(numbers, "number")
        | dict.fromkeys(("day", "when"), "date")
        | dict.fromkeys(("text", "coded", "big"), "category")
    )
    assert kinds(table) == expected | {"embedding": "vector"}
    rows = conformed(table, columns_of(table))
    assert {str(field.type) for field in rows.schema} == {"double", "string"}
    assert rows["embedding[1]"].to_pylist() == [2.0, 4.0]
    assert rows["yes"].to_pylist() == [1.0, 0.0]
    assert np.diff(rows["day"].to_numpy())[0] == 86_400
    assert rows["hour"].to_pylist() == [3600.0, 7200.0]
    assert rows["text"].to_pylist() == ["a", ""]
    assert math.isnan(rows["real"].to_pylist()[1])
    assert math.isnan(rows["when"].to_pylist()[1])


ALIKE = {
    "whole": [1, 2, None], "real": [0.5, None, -1.0], "yes": [True, False, None],
    "text": ["a", "b", "c"], "coded": pa.array(["a", "b", "a"]).dictionary_encode(),
    "numbers": pa.array([3, 4, 3]).dictionary_encode(), "money": pa.array([1, 2, None], pa.decimal128(5, 2)),
    "day": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), None],
    "hour": [datetime.time(1), None, datetime.time(2)],
    "when": [datetime.datetime(2020, 1, 1, 12), None, datetime.datetime(1960, 1, 1)],
    "long": [datetime.timedelta(days=1), None, datetime.timedelta(seconds=90)],
}  # fmt: skip


@pytest.mark.parametrize("make", [lambda table: table, pl.from_arrow], ids=["arrow", "polars"])
def test_files_and_frames_read_a_column_alike(make):
    table = pa.table(ALIKE)
    rows = conformed(table, columns_of(table))
    frame = read_frame(make(table))
    for name, found in zip(table.column_names, frame, strict=True):
        given = rows[name].to_numpy() if kind_of(name, table[name].type) != "category" else rows[name].to_pylist()
        assert np.array_equal(found, given, equal_nan=found.dtype.kind == "f"), name
    assert rows["long"].to_pylist()[::2] == [86_400.0, 90.0]
    assert rows["numbers"].to_pylist() == [3.0, 4.0, 3.0]


def test_pandas_has_the_same_seconds():
    when = pd.DataFrame(
        {"when": pd.to_datetime(["2020-01-01 12:00:00.000000001", None]), "long": pd.to_timedelta([1, 2], "D")}
    )
    found = read_frame(when)
    assert found[0][0] == datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC).timestamp()
    assert math.isnan(found[0][1])
    assert found[1].tolist() == [86_400.0, 2 * 86_400.0]


def test_a_column_stays_what_it_was_when_the_model_was_fitted():
    layout = Layout.of(read_frame(pa.table({"code": ["a", "b"], "size": [1.0, 2.0]})))
    floats, words = layout.split(read_frame(pa.table({"code": [7.0, 7.5], "size": pa.nulls(2)})))
    assert np.isnan(floats).all()
    assert words[:, 0].tolist() == ["7", "7.5"]
    with pytest.raises(TableError, match="column 1 holds text"):
        layout.split(read_frame(pa.table({"code": ["a"], "size": ["large"]})))
    with pytest.raises(TableError, match="columns of their own"):
        read_frame(pa.table({"face": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))


def test_objects_are_numbers_where_all_of_them_are():
    numbers, texts = read_array(np.array([[1, "a"], [None, None], [True, "b"]], dtype=object))
    assert np.array_equal(numbers, [1.0, math.nan, 1.0], equal_nan=True)
    assert texts.tolist() == ["a", "(missing)", "b"]
    with pytest.raises(TableError, match="column 0 mixes text with int"):
        read_array(np.array([[1], ["a"]], dtype=object))


@pytest.mark.parametrize(
    "make", [pa.table, pd.DataFrame, pl.DataFrame, lambda data: np.array(data["a"]), lambda data: data["a"]]
)
def test_rows_are_taken_by_number_from_whatever_holds_them(make):
    taken = take_rows(make({"a": [10, 20, 30]}), np.array([2, 0]))
    assert np.asarray(taken["a"] if hasattr(taken, "columns") else taken).tolist() == [30, 10]


def test_columns_with_one_value_are_left_out_and_named():
    table = pa.table({"x": [1, 2], "same": [7, 7], "empty": pa.nulls(2), "text": ["a", "a"]})
    assert columns_of(table) == (Column("x", "number"),)
    aside = {one.name: one.note for one in readings_of(table) if one.column is None}
    assert aside == {"same": "one value", "empty": "empty", "text": "one value"}
    with pytest.raises(TableError, match="at least one feature that varies"):
        columns_of(table.drop_columns(["x"]))


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.array([[1], [2, 3]]), "no model reads"),
        (pa.array([{"a": 1}, {"a": 2}]), "no model reads"),
        (pa.array([b"\xff", b"a"]), "not UTF-8"),
    ],
)
def test_types_no_model_reads_are_named(column, what):
    with pytest.raises(TableError, match=f"'odd'.*{what}"):
        columns_of(pa.table({"odd": column}))


def test_columns_are_found_by_name_among_others():
    columns = (Column("b", "category"), Column("a", "number"))
    rows = conformed(pa.table({"c": [1], "a": [2], "b": [3]}), columns)
    assert rows.to_pylist() == [{"b": "3", "a": 2.0}]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"A": [1]}, "lacks 'a'.*case matters"),
        ({"a": ["one"]}, "column 'a' has type string"),
        ({"a": [math.inf]}, "infinite"),
    ],
)
def test_what_does_not_fit_the_model_is_named(table, what):
    with pytest.raises(TableError, match=what):
        conformed(pa.table(table), (Column("a", "number"),))


def test_lists_of_another_size_are_refused():
    two = pa.table({"e": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))})
    with pytest.raises(TableError, match="lists of 3 numbers"):
        conformed(two, (Column("e", "vector", 3),))


def test_the_label_column_is_not_read(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,b\n")
    assert read_public(tmp_path / "t.csv", without=("y",)).column_names == ["x"]
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "t.parquet")
    assert read_public(tmp_path / "t.parquet", without=("y",)).column_names == ["x"]


def test_codes_stay_as_they_are_written_where_they_are_categories(tmp_path):
    (tmp_path / "t.csv").write_text("code\n01\n02\n")
    assert read_public(tmp_path / "t.csv", as_text=("code",))["code"].to_pylist() == ["01", "02"]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("t.xlsx", b"", "is a spreadsheet; save it as CSV"),
        ("t.table", b"", "name ends in .parquet"),
        ("t.csv", b"x,y\n", "no rows"),
        ("t.csv", f"x,y\n1,{SECRET},3\n".encode(), "t.csv: data row 1 has 3 fields where the header has 2"),
        ("t.csv", b"\xe9t\xe9,y\n1,2\n", "not UTF-8"),
        ("t.parquet", b"nothing", "cannot be read as Parquet"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, what):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=what) as caught:
        read_public(tmp_path / name)
    assert SECRET not in str(caught.value)


def test_missing_files_and_idle_delimiters(tmp_path):
    with pytest.raises(TableError, match="not a file"):
        read_public(tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(TableError, match="leave it out"):
        read_public(tmp_path / "t.parquet", delimiter=";")


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "t.csv").write_bytes("name,x\nJosé,1\nAna,2\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"'name' is not UTF-8"):
        columns_of(read_public(tmp_path / "t.csv"))
