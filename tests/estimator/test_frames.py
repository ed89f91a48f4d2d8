"""Tests of frames in memory: their columns are read as a file's are, and what was found is kept with the model."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import labeldp
from labeldp import LabelDPClassifier
from labeldp.data.door import read_columns

ROWS = 400


@pytest.fixture(scope="module")
def untidy():
    """A table with whatever people have in theirs, and its labels."""
    chance = np.random.default_rng(0)
    age = chance.integers(18, 80, ROWS)
    said = [
        " ".join(words)
        for words in chance.choice(["good", "bad", "slow", "late", "fast", "blue", "red", "new", "old"], (ROWS, 6))
    ]
    table = pd.DataFrame({
        "age": [("?" if place % 50 == 0 else str(one)) for place, one in enumerate(age)],
        "income": [f"{one:.2f}".replace(".", ",") for one in chance.gamma(3, 1000, ROWS)],
        "visit": [f"{one % 28 + 1:02d}.0{one % 9 + 1}.2021" for one in chance.integers(0, 999, ROWS)],
        "city": chance.choice(["Bern", "Oslo", "Rome"], ROWS), "client": [f"C{one:05d}" for one in range(ROWS)],
        "row": np.arange(ROWS), "said": said, "currency": "EUR",
    })  # fmt: skip
    return table, np.where(age > 50, "yes", "no")


def fitted(table, labels, **settings):
    settings = {"method": "one_shot", "classes": ["no", "yes"], "random_state": 0, **settings}
    model = LabelDPClassifier(8.0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(table, labels)


def of_pandas(table):
    return table


def of_polars(table):
    return pl.from_pandas(table)


def of_arrow(table):
    return pa.Table.from_pandas(table, preserve_index=False)


@pytest.mark.parametrize("kind", [of_pandas, of_polars, of_arrow])
def test_a_frame_is_read_as_its_file_is(kind, untidy, tmp_path):
    table, labels = untidy
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    of_file = read_columns(tmp_path / "t.csv", None).readings
    model = fitted(kind(table), labels)
    assert [(one.name, one.read_as, one.note) for one in model.columns_] == [
        (one.name, one.read_as, one.note) for one in of_file
    ]
    assert {one.name: one.read_as for one in model.columns_} == {
        "age": "number", "income": "number", "visit": "date", "city": "category", "client": "id", "row": "id",
        "said": "text", "currency": "constant",
    }  # fmt: skip
    assert (model.predict(kind(table)) == labels).mean() > 0.85
    # All columns are asked for, as scikit-learn has it, and those that were set aside are not looked at.
    changed = table.assign(client="someone", row=7.5)
    assert (model.predict_proba(kind(changed)) == model.predict_proba(kind(table))).all()
    with pytest.raises(ValueError, match=r"missing: .'row'."):
        model.predict(kind(table.drop(columns="row")))


def test_what_may_surprise_is_warned_of_where_fit_is_called(untidy):
    table, labels = untidy
    with pytest.warns(UserWarning, match=r"'age' is a number .read as missing: '.'.*'client' is set aside") as said:
        LabelDPClassifier(8.0, method="one_shot", classes=["no", "yes"], holdout=0).fit(table, labels)
    assert [one.filename for one in said if "client" in str(one.message)] == [__file__]


def test_the_type_of_a_column_goes_before_what_its_values_look_like(untidy):
    table, labels = untidy
    table = table.assign(
        row=table["row"].astype(float), client=table["client"].astype("category"), code=np.arange(ROWS) % 3
    )
    model = fitted(table.astype({"code": "category"}), labels)
    found = {one.name: one.read_as for one in model.columns_}
    assert (found["row"], found["client"], found["code"]) == ("number", "category", "category")
    assert model.predict(table).shape == (ROWS,)


def test_an_unknown_word_among_numbers_is_refused_later(untidy):
    table, labels = untidy
    model = fitted(table, labels)
    with pytest.raises(ValueError, match=r"column 'age' .* holds 'forty'"):
        model.predict(table.assign(age="forty"))


def test_a_saved_model_reads_frames_and_files_alike(untidy, tmp_path):
    table, labels = untidy
    model = fitted(table, labels)
    model.save(tmp_path / "model", data="t", label="y")
    again = labeldp.load(tmp_path / "model")
    assert (again.predict_proba(table) == model.predict_proba(table)).all()
    settings, arrays = model.to_parts()
    made = LabelDPClassifier.from_parts(settings, arrays)
    assert (made.predict_proba(table) == model.predict_proba(table)).all()


def test_a_network_of_the_users_sees_columns_as_they_are(untidy):
    labels = untidy[1]
    numbers = pd.DataFrame({"row": np.arange(ROWS), "x": np.random.default_rng(1).normal(size=ROWS)})
    model = LabelDPClassifier(
        8.0, method="forward", classes=["no", "yes"], model=torch.nn.Linear(2, 2), settings={"epochs": 1}
    )
    assert model.fit(numbers, labels).columns_ == ()
