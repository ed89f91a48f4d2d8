"""How columns are read: by their cells, overruled by name, and said; nothing of the label is in what is said."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.data.columns import conformed
from labeldp.data.door import read, read_columns
from labeldp.data.kinds import Column, readings_of
from labeldp.data.request import TableError

ROWS = 240
SECRET = "qzSECRETzq"


def reading(values, name="x", wanted=None):
    table = pa.table({name: values, "other": pa.array(np.arange(len(values)) % 7)})
    return readings_of(table, {name: wanted} if wanted else None)[0]


def numbers(values, **declared):
    """The numbers that a column becomes."""
    found = reading(values, **declared)
    return conformed(pa.table({"x": values}), [found.column], strays=True)["x"].to_numpy()


@pytest.mark.parametrize("token", ["?", "NA", "-", "n/a", "N/A", " ? ", "unknown", "n.k."])
def test_a_stray_word_among_numbers_is_missing_and_named(token):
    cells = [token if i % 30 == 0 else f"{i / 4}" for i in range(ROWS)]
    found = reading(cells)
    assert (found.read_as, found.distinct) == ("number", ROWS - 8)
    assert found.missing == pytest.approx(8 / ROWS)
    assert found.note == f"read as missing: {token.strip()!r} (8)"
    values = numbers(cells)
    assert np.isnan(values[::30]).all()
    assert values[1] == 0.25


def test_usual_words_for_nothing_may_be_many_and_others_may_not():
    half = [str(i) if i % 2 else "?" for i in range(ROWS)]
    assert reading(half).read_as == "number"
    assert reading([str(i) if i % 2 else "abc"[i % 3] for i in range(ROWS)]).read_as == "category"


@pytest.mark.parametrize(
    ("cells", "values", "note"),
    [
        (["3,14", "-2,5", "10"], [3.14, -2.5, 10], "decimal commas"),
        (["1.234,5", "0,5", "7,25"], [1234.5, 0.5, 7.25], "decimal commas"),
        (["1,234", "12,000.5", "7"], [1234, 12000.5, 7], "commas between thousands"),
        (["+1.5", ".5", "2e3", "5."], [1.5, 0.5, 2000, 5], ""),
    ],
)
def test_numbers_are_read_as_they_are_written(cells, values, note):
    assert reading(cells).note == note
    assert numbers(cells).tolist() == values


def test_codes_with_leading_zeros_stay_codes():
    found = reading(["01234", "99999", "12345"])
    assert (found.read_as, found.note) == ("category", "codes with leading zeros")
    assert reading(["01234", "99999", "12345"], wanted="number").read_as == "number"


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        (["2020-01-31", "2020-02-01", "2020-03-01"], "as YYYY-MM-DD"),
        (["31.01.2020", "01.02.2020", "01.03.2020"], "as DD.MM.YYYY"),
        (["31/01/2020", "01/02/2020", "01/03/2020"], "as DD/MM/YYYY"),
        (["01/31/2020", "02/01/2020", "03/01/2020"], "as MM/DD/YYYY"),
        (["31-01-2020", "01-02-2020", "01-03-2020"], "as DD-MM-YYYY"),
        (["2020-01-31T00:00:00Z", "2020-02-01 00:00", "2020-03-01"], "as YYYY-MM-DD"),
    ],
)
def test_text_that_is_dates_is_dates(cells, note):
    found = reading(cells)
    assert (found.read_as, found.note) == ("date", note)
    days = numbers(cells) / 86_400
    assert days.tolist() == [18292, 18293, 18322]


def test_dates_that_can_be_read_two_ways_are_said_to_be():
    assert reading(["01/03/2020", "01/04/2020"]).note == "as DD/MM/YYYY, though the month may as well come first"


def test_ids_are_set_aside_unless_they_are_wanted():
    names = [f"u{i:05d}" for i in range(ROWS)]
    for name, values in (
        ("who", names), ("nr", list(range(ROWS))), ("nr", list(range(ROWS))[::-1]),
        ("customer_id", [7 * i * i for i in range(ROWS)]), ("customerId", [7 * i * i for i in range(ROWS)]),
    ):  # fmt: skip
        assert reading(values, name).read_as == "id"
    assert reading(names, wanted="category").column == Column("x", "category")
    # Measures, and tables too small to tell.
    assert reading([7 * i * i for i in range(ROWS)]).read_as == "number"
    assert reading([i / 3 for i in range(ROWS)], "id").read_as == "number"
    assert reading(names[:60]).read_as == "category"
    assert reading([i % 50 for i in range(ROWS)], "plan_id").read_as == "number"


def test_prose_is_text_and_short_lists_are_categories():
    prose = [f"the {i} cats sat on {i % 9} mats" for i in range(ROWS)]
    assert reading(prose).column == Column("x", "text")
    assert reading([f"the {i % 9} cats sat" for i in range(ROWS)]).read_as == "category"
    assert reading(prose, wanted="category").read_as == "category"


def test_a_category_keeps_its_own_words_for_nothing():
    found = reading(["?" if i % 3 else "red" for i in range(30)])
    assert (found.read_as, found.note, found.missing) == ("category", "kept as values: '?' (20)", 0.0)


def test_columns_of_image_files_are_refused_with_the_way_to_go():
    paths = [f"images/{i}.PNG" for i in range(ROWS)]
    with pytest.raises(TableError, match=r"'x' names image files; learn from these with --image x, or .*--drop"):
        reading(paths)
    assert reading(paths, wanted="category").read_as == "category"


def test_what_cannot_be_read_as_declared_is_refused():
    with pytest.raises(TableError, match="none of whose cells is a number"):
        reading(["a", "b"], wanted="number")
    with pytest.raises(TableError, match="none of whose cells is a date"):
        reading(["a", "b"], wanted="date")
    with pytest.raises(TableError, match="holds int64"):
        reading([1, 2], wanted="date")
    face = pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float32(), 2))
    with pytest.raises(TableError, match="lists of numbers"):
        reading(face, wanted="text")


def test_a_model_knows_the_words_it_met_and_refuses_others():
    column = reading(["n.k." if i % 40 == 0 else str(i) for i in range(ROWS)]).column
    assert column.absent == ("n.k.",)
    assert Column.from_json(column.to_json()) == column
    later = conformed(pa.table({"x": ["5", "n.k.", "NA", ""]}), [column])["x"].to_numpy()
    assert np.isnan(later[1:]).all()
    with pytest.raises(TableError, match=r"holds 'old'.*leave cells empty"):
        conformed(pa.table({"x": ["5", "old"]}), [column])
    assert Column("x", "number").to_json() == {"name": "x", "kind": "number", "size": 1}


# -- files -----------------------------------------------------------------------------------------------------------


def lines(delimiter=","):
    rows = [["id", "size", "when", "zip", "y"]]
    for i in range(ROWS):
        rows.append([f"u{i}", "?" if i == 3 else f"{i / 2}", f"{i % 28 + 1}.02.2020", f"0{i % 9}1", "ny"[i % 2]])
    return "\n".join(delimiter.join(row) for row in rows) + "\n"


KINDS = {"id": "id", "size": "number", "when": "date", "zip": "number"}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "t.csv").write_text(lines())
    (tmp_path / "semi.csv").write_text(lines(";"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(lines().encode()))
    (tmp_path / "t.csv.zst").write_bytes(pa.compress(lines(";").encode(), codec="zstd", asbytes=True))
    return tmp_path


@pytest.mark.parametrize("name", ["t.csv", "semi.csv", "t.csv.gz", "t.csv.zst"])
def test_compressed_and_semicolon_files_are_read_alike(place, name):
    found = read(place / name, "y", ["n", "y"])
    assert {one.name: one.read_as for one in found.readings} == KINDS
    assert found.vault.reveal("a test").tolist() == [i % 2 for i in range(ROWS)]
    assert found.features.to_pandas().equals(read(place / "t.csv", "y", ["n", "y"]).features.to_pandas())
    said = f"{name} was read with ';' as delimiter."
    assert found.note == ("" if name.startswith("t.csv") and "zst" not in name else said)
    assert {path.name for path in place.iterdir()} == {"t.csv", "semi.csv", "t.csv.gz", "t.csv.zst"}


def test_columns_are_overruled_by_name(place):
    found = read_columns(place / "t.csv", "y", category=["id", "zip"], text=["when"], drop=["size"], users=None)
    assert {one.name: one.read_as for one in found.readings} == {
        "id": "category", "when": "text", "zip": "category", "size": "left out",
    }  # fmt: skip
    assert found.features["zip"][1].as_py() == "011"


def test_the_label_is_not_in_the_report(place):
    (place / "t.csv").write_text(lines().replace(",n\n", f",{SECRET}\n"))
    first = read_columns(place / "t.csv", "y")
    (place / "t.csv").write_text(lines().replace(",n\n", ",\n"))
    second = read_columns(place / "t.csv", "y")
    assert first.readings == second.readings
    assert SECRET not in repr(first)
    assert "y" not in [one.name for one in first.readings]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"drop": ["sizes"]}, "drop names 'sizes', which is no column of t.csv; did you mean 'size'"),
        ({"number": ["y"]}, "number names 'y', which is the label"),
        ({"number": ["size"], "category": ["size"]}, "number and category both name 'size'"),
    ],
)
def test_names_that_do_not_fit_are_refused(place, how, what):
    with pytest.raises(TableError, match=what):
        read(place / "t.csv", "y", ["n", "y"], **how)


def test_doubled_columns_unclosed_quotes_and_damage_are_named(place):
    (place / "t.csv").write_text("a,b,a,y\n1,2,3,n\n")
    with pytest.raises(TableError, match=r"t.csv has several columns named 'a'; rename"):
        read(place / "t.csv", "y", ["n", "y"])
    (place / "t.csv").write_text("a,b,y,y\n1,2,n,n\n")
    with pytest.raises(TableError, match=r"no single column 'y' in t.csv; 2 of its"):
        read(place / "t.csv", "y", ["n", "y"])
    (place / "t.csv").write_text('a,b,y\n1,2,n\n2,"3,y\n3,4,n\n')
    with pytest.raises(TableError, match=r"t.csv: data row 2 or a later one has a quote that is never closed"):
        read(place / "t.csv", "y", ["n", "y"])
    (place / "t.csv.gz").write_text(lines())
    with pytest.raises(TableError, match="not compressed as its name says"):
        read(place / "t.csv.gz", "y", ["n", "y"])
    with pytest.raises(TableError, match=r"is a folder without Parquet.*images for each class, leave out --label"):
        read(place, "y", ["n", "y"])


def test_errors_say_which_of_two_tables_they_are_about(place):
    (place / "open.csv").write_text("id,size,when,zip,z\nu1,1,1.02.2020,011,n\n")
    with pytest.raises(TableError, match=r"^test='.*open.csv'"):
        read(place / "t.csv", "y", ["n", "y"], test=place / "open.csv")
    with pytest.raises(TableError, match=r"^t.csv: label|^of the|^t.csv"):
        read(place / "t.csv", "y", ["a", "b"], test=place / "open.csv")


def test_dates_as_text_in_parquet_are_dates(tmp_path):
    days = [f"2020-01-{i % 28 + 1:02d}" for i in range(60)]
    pq.write_table(pa.table({"when": days, "y": ["n", "y"] * 30}), tmp_path / "t.parquet")
    assert read_columns(tmp_path / "t.parquet", "y").columns == (Column("when", "date", format="%Y-%m-%d"),)
