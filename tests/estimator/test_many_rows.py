"""Tables whose features would not fit in memory, made small: limits are lowered instead."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from labeldp.data.columns import comes_in_parts
from labeldp.estimator import reading
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.recipes import one_shot
from tests.estimator.helpers import CLASSES
from tests.estimator.helpers import columns as made

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(reading, "_FEW_ROWS", 1000)
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 700)
    monkeypatch.setattr(one_shot, "HELD_CELLS", 100_000)
    monkeypatch.setattr(reading, "MOST_CELLS", 100_000)


def fitted(x, y, method="one_shot", **settings):
    return LabelDPClassifier(3.0, 1e-6, method, classes=CLASSES, random_state=0, **settings).fit(x, y)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_table_of_many_rows_is_learnt_in_parts(small, kind):
    data, y = made(4000)
    # Text of pandas' own type: a column of objects could hold anything.
    x = FRAMES[kind](data) if kind != "pandas" else pd.DataFrame(data).astype({"kind": "string"})
    reports = []
    model = fitted(x, y, report=reports.append)
    assert any("made as they are needed" in one.detail for one in reports)
    assert (model.predict(x) == y).mean() > 0.88
    assert model.certificate_.epsilon <= 3.0
    assert model.n_features_in_ == 4
    assert len(model.predict_proba(x)) == 4000


def test_parts_are_predicted_as_the_whole_is(small, monkeypatch):
    data, y = made(3000)
    model = fitted(pa.table(data), y)
    parts = model.predict_proba(pa.table(data))
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 10_000)
    assert parts == pytest.approx(model.predict_proba(pa.table(data)), abs=1e-5)


def test_numbers_in_an_array_come_in_parts_too(small):
    x = np.random.default_rng(0).normal(size=(5000, 6))
    y = np.where(x[:, 0] > 0, "yes", "no")
    assert (fitted(x, y).predict(x) == y).mean() > 0.9


@pytest.mark.parametrize("method", ["forward", "auto"])
def test_other_methods_still_have_all_features(small, method):
    data, y = made(3000)
    model = fitted(pa.table(data), y, method)
    assert (model.predict(pa.table(data)) == y).mean() > 0.85


def test_what_fits_is_not_sampled(small, monkeypatch):
    monkeypatch.setattr(reading, "MOST_CELLS", 1 << 28)
    data, y = made(3000)
    reports = []
    fitted(pa.table(data), y, report=reports.append)
    assert not any("made as they are needed" in one.detail for one in reports)


def test_only_columns_whose_type_does_not_hang_on_their_values_come_in_parts():
    assert comes_in_parts(pa.table({"a": [1, 2]}))
    assert comes_in_parts(np.zeros((2, 2)))
    assert not comes_in_parts(np.array([["a", 1]], dtype=object))
    assert not comes_in_parts(pd.DataFrame({"a": np.array(["a", 1], dtype=object)}))
    assert not comes_in_parts([[1.0]])
