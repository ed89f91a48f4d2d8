"""Mistakes that people make first, one test each, with the words that they are told; most cost them nothing.

A table of patients as a stranger has it: numbers with gaps, dates, names with spaces and accents, an id, free text.
`test_cli_errors.py` has more of the kind, and checks that nothing is lost; here it is what is said that counts.
"""

import datetime
import errno
import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.clihelp import fresh_memory
from tests.commands import labeldp

__all__ = ["fresh_memory"]
pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROWS = 1200
WORDS = (
    "patient",
    "reports",
    "mild",
    "pain",
    "after",
    "a",
    "long",
    "walk",
    "and",
    "sleeps",
    "badly",
    "since",
    "travel",
)


def patients(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    age, mass = rng.normal(50, 15, rows).round(1), rng.normal(25, 4, rows).round(2)
    town = rng.choice(["Ulm", "Bonn", "Köln"], rows)
    score = (age - 50) / 15 + (mass - 25) / 8 + 0.7 * (town == "Ulm") + rng.normal(0, 0.5, rows)
    first = datetime.date(2020, 1, 1)
    return {
        "patient": [f"P{number:05d}" for number in range(rows)],
        "age": ["" if number % 40 == 3 else str(value) for number, value in enumerate(age)],
        "blood pressure": [str(value) for value in rng.integers(90, 180, rows)],
        "Größe": [str(value) for value in mass],
        "town": list(town),
        "smoker": list(rng.choice(["true", "false"], rows)),
        "seen": [(first + datetime.timedelta(int(days))).isoformat() for days in rng.integers(0, 900, rows)],
        "note": [" ".join(rng.choice(WORDS, 8)) for _ in range(rows)],
        "rent": [str(value) for value in (600 + 200 * score).round(2)],
        "diagnosis": list(np.where(score > 1, "severe", np.where(score > 0, "mild", "none"))),
    }


def csv_text(columns, names=None, delimiter=","):
    lines = [delimiter.join(names or columns), *map(delimiter.join, zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def arrow(columns, **other):
    numbers = {"age", "blood pressure", "Größe", "rent"}
    found = {
        name: pa.array([float(value) if value else None for value in values]) if name in numbers else pa.array(values)
        for name, values in columns.items()
    }
    return pa.table({**found, **other})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A model of the table, trained once."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "t.csv").write_text(csv_text(patients()), encoding="utf-8")
    train(folder / "t.csv", folder / "model", check=0)
    return folder / "model"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(csv_text(patients()), encoding="utf-8")
    return tmp_path


def train(table, out="out", *more, check=None, **options):
    given = {"label": "diagnosis", "classes": "none,mild,severe", "epsilon": "1", "method": "one_shot"}
    given |= {"drop": "patient,note,rent"} | options
    words = [part for name, value in given.items() if value is not None for part in (f"--{name}", value)]
    return labeldp("train", table, *words, "--out", out, *more, check=check)


def refused(run, *words):
    """One sentence with these words and our prefix, on stderr only."""
    assert run.returncode == 2, run.stdout
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert run.stderr.startswith("labeldp: ")
    for part in words:
        assert part in run.stderr
    return run.stderr


def told(run, *words):
    """It works, and says this."""
    assert run.returncode == 0, run.stderr
    for part in words:
        assert part in run.stdout
    return run.stdout


def test_01_a_misspelt_label(here):
    refused(train("t.csv", label="diagnosys"), "did you mean 'diagnosis'?")


def test_02_a_class_is_missing_or_wrong(here):
    words = refused(train("t.csv", classes="none,mild"), "not among the declared classes 'none', 'mild'")
    assert "severe" not in words
    assert "declare every class exactly as the table has it" in words


def test_03_rows_without_a_label(here):
    columns = patients()
    columns["diagnosis"][5] = columns["diagnosis"][9] = ""
    (here / "t.csv").write_text(csv_text(columns), encoding="utf-8")
    refused(train("t.csv"), "2 of 1200 labels read so far are missing", "leave out rows without a label")


def test_04_epsilon_is_text(here):
    refused(train("t.csv", epsilon="0,5"), "epsilon='0,5' is not a number", "give one above 0")


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "inf"])
def test_05_epsilon_is_no_privacy(here, epsilon):
    refused(train("t.csv", epsilon=epsilon), f"epsilon={epsilon} cannot be used; give one above 0")


def test_06_an_epsilon_of_100(here):
    told(train("t.csv", epsilon="100"), "That protects hardly anything; below 5 is usual.")


@pytest.mark.parametrize("delta", ["0.01", "0.5"])
def test_07_a_delta_of_one_over_the_rows_or_more(here, delta):
    words = f"delta={delta} is one over the 1,200 rows or more", "give less, say 1e-05"
    refused(train("t.csv", "out", "--delta", delta), *words)
    budget = ("--name", "t", "--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 1)
    refused(labeldp("budget", "create", "t.csv", *budget, "--delta", delta), *words)


def test_08_the_output_exists(here, kept):
    refused(train("t.csv", kept), "choose another --out")


def test_09_no_permission_to_write(here, kept, monkeypatch):
    """Root may write everywhere but in /proc; for the others the folder is asked first."""
    refused(train("t.csv", "/proc/out"), "choose an --out where you may write")
    words = "'/proc/p.csv' cannot be written (No such file or directory); choose an --out where you may write"
    assert ".part" not in refused(labeldp("predict", kept, "t.csv", "--out", "/proc/p.csv"), words)
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)
    words = "'p.csv' cannot be written (Permission denied); choose an --out where you may write"
    refused(labeldp("predict", kept, "t.csv", "--out", "p.csv"), words)


def test_10_a_ragged_row_or_an_unclosed_quote(here):
    lines = csv_text(patients()).splitlines()
    (here / "ragged.csv").write_text("\n".join([*lines[:301], lines[301] + ",more", *lines[302:]]) + "\n")
    (here / "quote.csv").write_text("\n".join([*lines[:301], '"' + lines[301], *lines[302:]]) + "\n")
    private = ("--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 1, "--out", "private.csv")
    for run in (train("ragged.csv"), labeldp("privatize", "ragged.csv", *private)):
        refused(run, "data row 301 has 11 fields where the header has 10; mend the row")
    for run in (train("quote.csv"), labeldp("privatize", "quote.csv", *private)):
        refused(run, "data row 301 or a later one has a quote that is never closed; close it or double it")


def test_11_a_truncated_parquet_file_or_csv_in_its_place(here):
    pq.write_table(arrow(patients()), "t.parquet")
    whole = (here / "t.parquet").read_bytes()
    for content in (whole[: len(whole) // 2], (here / "t.csv").read_bytes()):
        (here / "t.parquet").write_bytes(content)
        refused(train("t.parquet"), "it is damaged, encrypted or not Parquet; restore it")


def test_12_text_that_is_not_utf8(here):
    for encoding, words in (("latin-1", "save the file as UTF-8"), ("utf-16", "convert it to UTF-8")):
        (here / "t.csv").write_text(csv_text(patients()), encoding=encoding)
        refused(train("t.csv"), words)


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_13_semicolons(here, delimiter):
    (here / "t.csv").write_text(csv_text(patients(), delimiter=delimiter), encoding="utf-8")
    told(train("t.csv", "out", "--dry-run"), f"t.csv was read with {delimiter!r} as delimiter.")
    # What is not noticed is asked for.
    (here / "t.csv").write_text(csv_text(patients(), delimiter="~"), encoding="utf-8")
    refused(train("t.csv"), "--delimiter")


def test_14_compressed_csv(here):
    (here / "t.csv.gz").write_bytes(gzip.compress((here / "t.csv").read_bytes()))
    told(train("t.csv.gz", "out", "--dry-run"), "1,200 labels can be trained on")
    private = ("--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 1, "--out", "private.csv")
    refused(labeldp("privatize", "t.csv.gz", *private), "decompress it first")


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "lz4"])
def test_15_parquet_of_any_codec(here, codec):
    pq.write_table(arrow(patients()), "t.parquet", compression=codec)
    told(train("t.parquet", "out", "--dry-run"), "1,200 labels can be trained on")


def test_16_an_empty_file_or_a_header_alone(here):
    private = ("--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 1, "--out", "private.csv")
    for content, words in ((",".join(patients()) + "\n", "t.csv has no rows"), ("", "its first line must name the")):
        (here / "t.csv").write_text(content, encoding="utf-8")
        refused(train("t.csv"), words)
        refused(labeldp("privatize", "t.csv", *private), words)
        assert [path.name for path in here.iterdir()] == ["t.csv"]


def test_17_one_class_only(here):
    """Which classes occur is private; the rows set aside have paid for it."""
    columns = patients(3000) | {"diagnosis": ["none"] * 3000}
    (here / "t.csv").write_text(csv_text(columns), encoding="utf-8")
    said = told(train("t.csv", epsilon="4"), "Always predicting 'none' would be right on")
    assert "Nearly all labels are of this class: check the label column" in said


@pytest.mark.parametrize("classes", ["0,1,2", "0.0,1.0,2.0"])
def test_18_a_label_that_is_a_float(here, classes):
    codes = [{"none": 0.0, "mild": 1.0, "severe": 2.0}[name] for name in patients()["diagnosis"]]
    pq.write_table(arrow(patients(), diagnosis=pa.array(codes)), "t.parquet")
    (here / "t.csv").write_text(csv_text(patients() | {"diagnosis": list(map(str, codes))}), encoding="utf-8")
    for table in ("t.csv", "t.parquet"):
        told(train(table, "out", "--dry-run", classes=classes), "1,200 labels can be trained on")


def test_19_a_label_that_is_a_date(here):
    days = [{"none": 1, "mild": 2, "severe": 3}[name] for name in patients()["diagnosis"]]
    dates = [datetime.date(2020, 1, day) for day in days]
    classes = "2020-01-01,2020-01-02,2020-01-03"
    (here / "t.csv").write_text(csv_text(patients() | {"diagnosis": list(map(str, dates))}), encoding="utf-8")
    told(train("t.csv", "out", "--dry-run", classes=classes), "1,200 labels")
    pq.write_table(arrow(patients(), diagnosis=pa.array(dates)), "t.parquet")
    refused(train("t.parquet", classes=classes), "type date32[day]; labels must be text, whole numbers, floats")


def test_20_the_label_column_is_there_twice(here):
    columns = patients()
    names = [*columns, "diagnosis"]
    (here / "t.csv").write_text(csv_text(columns | {"again": columns["diagnosis"]}, names), encoding="utf-8")
    words = "no single column 'diagnosis' in t.csv; 2 of its 11 columns have that name: rename all but one"
    refused(train("t.csv"), words)


def test_21_a_feature_is_there_twice(here, kept):
    columns = patients()
    (here / "t.csv").write_text(csv_text(columns | {"again": columns["age"]}, [*columns, "age"]), encoding="utf-8")
    refused(train("t.csv"), "t.csv has several columns named 'age'; rename all but one of each")
    refused(labeldp("predict", kept, "t.csv"), "the table has several columns named 'age'; rename all but one")


def test_22_a_question_mark_or_decimal_commas_among_numbers(here):
    columns = patients()
    columns["age"][5] = "?"
    columns["Größe"] = [f'"{value.replace(".", ",")}"' for value in columns["Größe"]]
    (here / "t.csv").write_text(csv_text(columns), encoding="utf-8")
    said = told(train("t.csv", "out", "--dry-run"), "read as missing: '?' (1)", "decimal commas")
    assert [line.split()[1] for line in said.splitlines() if line.startswith(("age", "Größe"))] == ["number"] * 2


def test_23_free_text_and_names_of_images(here):
    told(train("t.csv", "out", "--dry-run", drop="patient,rent"), "note            text")
    columns = patients()
    images = {"image": [f"images/{number}.png" for number in range(ROWS)], "diagnosis": columns["diagnosis"]}
    (here / "t.csv").write_text(csv_text(images), encoding="utf-8")
    refused(train("t.csv", drop=None), "names image files", "with --image image, or leave the column out")


@pytest.mark.parametrize("name", ["years", "Age"])
def test_24_predict_lacks_a_column(here, kept, name):
    (here / "new.csv").write_text((here / "t.csv").read_text("utf-8").replace("age,", f"{name},", 1), "utf-8")
    refused(labeldp("predict", kept, "new.csv"), "the table lacks 'age'", "named alike (case matters)")


def test_25_predict_meets_more_columns_gaps_and_new_categories(here, kept):
    columns = patients(50) | {"more": ["x"] * 50}
    columns["town"][3], columns["age"][4] = "Graz", ""
    (here / "new.csv").write_text(csv_text(columns), encoding="utf-8")
    told(labeldp("predict", kept, "new.csv", "--out", "p.csv"), "p.csv: 50 rows predicted")
    (here / "one.csv").write_text(csv_text(patients(1)), encoding="utf-8")
    told(labeldp("predict", kept, "one.csv", "--out", "q.csv"), "q.csv: 1 row predicted")


def test_26_predict_reads_dates_and_booleans_that_are_text_in_parquet(here, kept):
    pq.write_table(arrow(patients(50)), "new.parquet")
    (here / "new.csv").write_text(csv_text(patients(50)), encoding="utf-8")
    for table in ("new.parquet", "new.csv"):
        told(labeldp("predict", kept, table, "--out", f"{table}.csv"), "50 rows predicted")
    assert (here / "new.parquet.csv").read_text() == (here / "new.csv.csv").read_text()


def test_27_which_of_two_tables_it_is(here):
    columns = patients(100)
    unlabelled = {name: values for name, values in columns.items() if name != "age"}
    (here / "open.csv").write_text(csv_text(unlabelled), encoding="utf-8")
    refused(train("t.csv", "out", "--test", "open.csv"), "test='open.csv': the table lacks 'age'")
    (here / "open.csv").write_text(csv_text(columns | {"diagnosis": ["maybe"] * 100}), encoding="utf-8")
    refused(train("t.csv", "out", "--test", "open.csv"), "test='open.csv': 100 of 100 labels")
    refused(train("t.csv", "out", "--test", "nothing.csv"), "test='nothing.csv' is not a file")


def test_28_an_interruption(here, monkeypatch):
    """Signals themselves are sent in test_cli_errors.py."""
    monkeypatch.setattr("labeldp.recipes.one_shot.fitted", _raise(KeyboardInterrupt()))
    run = train("t.csv")
    assert run.returncode == 2
    words = "labeldp: interrupted; nothing was written (a charge already made stays in its journal or store)"
    assert words in run.stderr
    assert not (here / "out").exists()


def test_29_a_full_disk_costs_nothing(here, monkeypatch):
    budget = ("--name", "t", "--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 5)
    assert labeldp("budget", "create", "t.csv", *budget).returncode == 0
    monkeypatch.setattr("os.posix_fallocate", _raise(OSError(errno.ENOSPC, "No space left on device")))
    run = train("t.csv")
    assert run.returncode == 2
    assert "labeldp: no room for 'out' (No space left on device); free some and try again" in run.stderr
    assert "in 0 charges" in labeldp("budget", "show", check=0).stdout


def test_30_the_same_labels_twice(here):
    told(train("t.csv"), "No budget was charged. Other releases of these labels add to the cost")
    budget = ("--name", "t", "--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", 1)
    assert labeldp("budget", "create", "t.csv", *budget).returncode == 0
    assert "No budget was charged" not in told(train("t.csv", "first"))
    run = train("t.csv", "second")
    assert run.returncode == 2
    assert "Ask for less than is left" in run.stderr


def test_31_a_range_that_is_far_off(here):
    numbers = {"label": "rent", "classes": None, "task": "regression", "drop": "patient,note,diagnosis"}
    said = told(train("t.csv", "out", "--range", 0, 10, **numbers), "of the labels lie at a bound of --range 0 10")
    assert "choose a wider range, from what you know about the quantity" in said
    assert "bound of --range" not in told(train("t.csv", "fits", "--range", -2000, 3000, **numbers))


def test_32_a_misspelt_setting_in_python():
    from labeldp import LabelDPClassifier

    x = np.random.default_rng(0).normal(size=(300, 3))
    reports = []
    model = LabelDPClassifier(1.0, method="one_shot", classes=[0, 1], settings={"headz": 1}, report=reports.append)
    with pytest.raises((TypeError, ValueError), match="headz"):
        model.fit(x, (x[:, 0] > 0).astype(int))
    assert not any(one.epsilon for one in reports)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t.xlsx", "'t.xlsx' is a spreadsheet; save it as CSV (UTF-8), and give that file"),
        ("t.zip", "'t.zip' is an archive; unpack it, and give the file inside"),
        ("t.json", "'t.json' is a format that is not read here; convert it to Parquet or CSV"),
        ("workbook.csv", "workbook.csv: the file is an Excel workbook or a ZIP archive, whatever its name says"),
        ("t.csc", "'t.csc' has no known format; give a file whose name ends in .parquet"),
        ("https://example.org/t.csv", "is an address; download the file first, and give its path"),
        ("s3://bucket/t.parquet", "is an address; download the file first, and give its path"),
        ("folder", "'folder' is a folder without Parquet files; give one with them, or one Parquet or CSV file"),
    ],
)
def test_33_something_that_is_no_table(here, name, words):
    (here / "folder").mkdir()
    for made in ("t.xlsx", "t.zip", "t.json", "workbook.csv", "t.csc"):
        (here / made).write_bytes(b"PK\x03\x04\x14\0")
    refused(train(name), words)


def test_34_names_with_spaces_and_accents(here):
    names = [{"diagnosis": "Diagnóstico final"}.get(name, name) for name in patients()]
    (here / "t.csv").write_text(csv_text(patients(), names), encoding="utf-8")
    refused(train("t.csv", label="diagnostico final"), "did you mean 'Diagnóstico final'?")
    assert train("t.csv", "out", "--dry-run", label="Diagnóstico final", drop="Größe,blood pressure").returncode == 0


@pytest.mark.parametrize("change", [lambda label: f"{label} ", str.title], ids=["a space behind", "capital letters"])
def test_35_classes_that_are_nearly_right(here, change):
    columns = patients() | {"diagnosis": [change(label) for label in patients()["diagnosis"]]}
    (here / "t.csv").write_text(csv_text(columns), encoding="utf-8")
    words = refused(train("t.csv"), "not among the declared classes 'none', 'mild', 'severe'")
    assert "exactly as the table has it, spaces and capital letters included" in words
    # What the labels are is not told.
    assert not any(repr(change(label)) in words for label in ("none", "mild", "severe"))


@pytest.mark.parametrize("command", ["train", "privatize", "plan", "budget create"])
def test_36_a_decimal_comma_in_epsilon(here, command):
    more = {"train": ["--out", "out"], "privatize": ["--out", "out.csv"], "plan": [], "budget create": ["--name", "t"]}
    options = ["--label", "diagnosis", "--classes", "none,mild,severe", "--epsilon", "1,0", *more[command]]
    run = labeldp(*command.split(), "t.csv", *options)
    refused(run, "epsilon='1,0' is not a number (decimals have a point, as in 0.5)")


def test_37_files_from_windows(here):
    windows = csv_text(patients()).replace("\n", "\r\n")
    (here / "t.csv").write_bytes(windows.encode("utf-8-sig"))
    assert train("t.csv", "out", "--dry-run").returncode == 0
    (here / "t.csv").write_bytes(windows.encode("utf-16"))
    refused(train("t.csv"), "t.csv: the file is not UTF-8 text but UTF-16; convert it to UTF-8")


@pytest.mark.parametrize("classes", ["0-2", "0..2", "3", "none;mild;severe", "none mild severe"])
def test_38_classes_given_in_another_way(here, classes):
    refused(train("t.csv", classes=classes), f"--classes names only {classes!r}; list every class, separated by commas")


def test_39_classes_given_as_a_list(here):
    refused(train("t.csv", classes='["none", "mild"]'), "is a list in brackets; give the names separated by commas")


def test_40_a_table_of_five_rows(here):
    (here / "t.csv").write_text(csv_text(patients(5)), encoding="utf-8")
    told(train("t.csv"), "trained on 5 secret labels", "The model was not measured: no rows were set aside")


def test_41_a_column_without_a_value(here):
    (here / "t.csv").write_text(csv_text(patients() | {"town": [""] * ROWS}), encoding="utf-8")
    run = train("t.csv", "out", "--dry-run")
    assert "town            constant" in " ".join(run.stdout.splitlines())
    (here / "t.csv").write_text(csv_text(patients() | {"diagnosis": [""] * ROWS}), encoding="utf-8")
    refused(train("t.csv"), f"{ROWS} of {ROWS} labels read so far are missing; leave out rows without a label")


def test_42_a_folder_that_does_not_exist(here):
    refused(train("t.csv", "no/such/out"), "the folder 'no/such' does not exist; create it first")


def test_43_something_that_was_never_written(here):
    refused(labeldp("audit", "nothing"), "there is no file or folder 'nothing'; give a folder of labeldp train")
    run = labeldp("verify", "t.csv")
    assert run.returncode == 1
    assert "there is no certificate 't.csv.certificate.json' beside 't.csv'; give a file that labeldp" in run.stderr


def test_44_the_same_command_again(here):
    told(train("t.csv"), "trained on")
    refused(train("t.csv"), "'out' exists already and is never overwritten")


def _raise(error):
    def burst(*_, **__):
        raise error

    return burst
