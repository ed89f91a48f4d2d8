"""Rows that were trained on are in no measure, however the test table is put together."""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.data.door import read
from labeldp.data.open_rows import others
from labeldp.data.request import TableError

CLASSES = ["no", "yes"]


def people(count, seed=0, first=0):
    """A table of people nobody is the twin of."""
    rng = np.random.default_rng(seed)
    columns = {
        "id": np.arange(first, first + count),
        "age": rng.normal(50, 10, count),
        "town": rng.choice(["Ulm", "Bonn", "Köln"], count),
        "y": rng.choice(CLASSES, count),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


@pytest.fixture
def place(tmp_path):
    pacsv.write_csv(people(200), tmp_path / "t.csv")
    return tmp_path


def kept(place, test, **how):
    test_path = place / "test.csv"
    pacsv.write_csv(test, test_path)
    return read(place / "t.csv", "y", CLASSES, test=test_path, drop=() if "ids" in how else ("id",), **how).test


def test_a_training_table_in_other_clothes_is_refused(place):
    """Seen to pass at c29f87a, which compared files byte by byte."""
    whole = people(200)
    shuffled = whole.take(np.random.default_rng(1).permutation(200))
    single = whole.set_column(1, "age", whole["age"].cast(pa.float32()))
    renumbered = whole.set_column(0, "id", pa.array(np.arange(1000, 1200)))
    for test in (shuffled, single, renumbered, whole.slice(20, 50), whole.select(["y", "town", "age", "id"])):
        with pytest.raises(TableError, match="rows that are trained on, whose labels are secret"):
            kept(place, test)
    with pytest.raises(TableError, match="200 of 200 rows are in every feature like"):
        kept(place, renumbered, ids="id")
    pq.write_table(whole, place / "same.parquet")
    with pytest.raises(TableError, match="200 of 200 rows"):
        read(place / "t.csv", "y", CLASSES, test=place / "same.parquet", drop=["id"])


def test_matching_rows_are_left_out_and_counted(place):
    mixed = pa.concat_tables([people(60, seed=5, first=900), people(200).slice(0, 40)])
    found = kept(place, mixed)
    assert (len(found), len(found.labels), found.left_out) == (60, 60, 40)
    assert found.labels.values.tolist() == [CLASSES.index(name) for name in people(60, seed=5)["y"].to_pylist()]
    assert kept(place, mixed, ids="id").left_out == 40
    assert kept(place, people(60, seed=5, first=900)).left_out == 0


def test_ids_tell_people_apart_who_are_alike(tmp_path):
    """Two towns: everybody has a twin. Without ids nobody is left; with them all but the one who is in both."""
    towns = np.array(["Ulm", "Bonn"])
    both = [pa.table({"id": np.arange(a, a + 40).astype(str), "town": towns[np.arange(40) % 2],
                      "y": np.array(CLASSES)[np.arange(40) // 2 % 2]}) for a in (0, 39)]  # fmt: skip
    for name, table in zip(("t.csv", "u.csv"), both, strict=True):
        pacsv.write_csv(table, tmp_path / name)
    with pytest.raises(TableError, match=r"40 of 40 rows are in every feature like .* by --id"):
        read(tmp_path / "t.csv", "y", CLASSES, drop=["id"], test=tmp_path / "u.csv")
    found = read(tmp_path / "t.csv", "y", CLASSES, ids="id", test=tmp_path / "u.csv")
    assert (len(found.test), found.test.left_out) == (39, 1)
    assert found.ids[:2] == ("0", "1")
    assert found.features.column_names == ["town"]
    pacsv.write_csv(both[0].set_column(1, "town", pa.array(towns[[0] * 40])), tmp_path / "same ids.csv")
    with pytest.raises(TableError, match="40 of 40 rows have the id of"):
        read(tmp_path / "t.csv", "y", CLASSES, ids="id", test=tmp_path / "same ids.csv")


def test_other_people_of_few_kinds_are_measured_on(tmp_path):
    """Half the training rows have twins, so half of the others match by chance: those are left out, not the table."""
    rng = np.random.default_rng(0)
    for name, count in (("t.csv", 300), ("u.csv", 200)):
        table = {"a": rng.integers(0, 25, count), "b": rng.integers(0, 25, count), "y": rng.choice(CLASSES, count)}
        pacsv.write_csv(pa.table(table), tmp_path / name)
    found = read(tmp_path / "t.csv", "y", CLASSES, test=tmp_path / "u.csv").test
    assert 20 < found.left_out < 180
    assert len(found) + found.left_out == 200


def test_every_row_needs_an_id_and_repeated_ones_are_kept(tmp_path):
    table = pa.table({"twice": ["a", "a", "b"], "gaps": ["a", "", "b"], "x": [1, 2, 3], "y": ["no", "yes", "no"]})
    pacsv.write_csv(table, tmp_path / "t.csv")
    assert read(tmp_path / "t.csv", "y", CLASSES, ids="twice").ids == ("a", "a", "b")
    for column, words in (
        ("gaps", "empty in 1 of 3 rows"),
        ("none", "no single column"),
        ("y", "name a public column"),
    ):
        with pytest.raises(TableError, match=words):
            read(tmp_path / "t.csv", "y", CLASSES, ids=column)


def test_what_is_equal_and_what_is_not():
    rows = pa.table({"x": [0.0, -0.0, np.nan, 1.0, 2.0, 3.0, 4.0], "t": ["", "a", "a", "b", "c", "c", "c"]})
    test = pa.table({"t": ["a", "a", "a", "b", "strange"], "x": [0.0, np.nan, 1.0, 1.0 + 2**-20, 1.0]})
    assert others(test, rows).tolist() == [False, False, True, True, True]
    # One sign bit, one low bit, and the same values in other columns are differences.
    pairs = pa.table({"x": [1.0, 2.0], "z": [2.0, 1.0]})
    assert others(pa.table({"x": [-1.0, 1.0, 2.0], "z": [2.0, 1.0, 2.0]}), pairs).tolist() == [True] * 3


def test_images_are_compared_byte_by_byte():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 1, 9, 9), dtype=np.uint8)
    test = rng.integers(0, 256, (20, 1, 9, 9), dtype=np.uint8)
    test[3] = images[7]
    test[4] = images[8]
    test[4, 0, 8, 8] ^= 1
    assert np.flatnonzero(~others(test, images)).tolist() == [3]


def test_two_hundred_thousand_rows_take_no_time():
    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=200_000) for i in range(10)}
    columns |= {f"c{i}": rng.integers(0, 500, 200_000).astype(str) for i in range(3)}
    table = pa.table(columns)
    begun = time.process_time()
    assert others(table.slice(0, 1000), table.slice(500)).sum() == 500
    assert time.process_time() - begun < 2


def test_the_command_refuses_before_anything_is_spent_and_says_what_it_left_out(place, capsys):
    pytest.importorskip("torch")
    from tests.cli.clihelp import labeldp

    pacsv.write_csv(people(200).take(np.arange(200)[::-1]), place / "turned.csv")
    mixed = pa.concat_tables([people(60, seed=5, first=900), people(200).slice(0, 40)])
    pacsv.write_csv(mixed, place / "mixed.csv")
    given = ("--label", "y", "--classes", "no,yes", "--epsilon", "2", "--method", "one_shot", "--drop", "id")
    run = ("train", place / "t.csv", *given, "--out", place / "model", "--test")
    assert labeldp(*run, place / "turned.csv") == 2
    assert "rows that are trained on" in capsys.readouterr().err
    assert not (place / "model").exists()
    assert labeldp(*run, place / "mixed.csv") == 0
    assert "This leaves out 40 rows that are training rows, or look like one." in capsys.readouterr().out
    measured = json.loads((place / "model" / "metrics.json").read_text())["test"]
    assert (measured["rows"], measured["training_rows_left_out"]) == (60, 40)
    assert (
        "40 more rows are left out: they are training rows, or look like one."
        in (place / "model" / "model_card.md").read_text()
    )
