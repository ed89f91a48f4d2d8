"""Prose and sparse rows behind the estimator: all that `auto` can take learns from them, and rows are set aside."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.learning import learners
from tests.estimator.helpers import CLASSES
from tests.estimator.test_serialise import travelled

METHODS = ("one_shot", "one_shot+kernel", "rr+learner", "pilot")
ROWS = 1000


def films(rows=ROWS, seed=0):
    """Prose with one word of a class's own, a number and a category that say nothing."""
    rng = np.random.default_rng(seed)
    codes, words = rng.integers(0, 2, rows), np.array([["dull", "awful", "poor"], ["fine", "great", "lovely"]])
    own, plain = words[codes, rng.integers(0, 3, rows)], rng.integers(0, 30, (rows, 3))
    review = [f"it is {word} as w{a} w{b} w{c}" for word, (a, b, c) in zip(own, plain, strict=True)]
    frame = {"review": review, "length": rng.normal(size=rows), "kind": rng.choice(["a", "b"], rows)}
    return pd.DataFrame(frame), np.array(CLASSES)[codes]


def bags(rows=ROWS, seed=0):
    """Sparse rows of 600 places, three of them of a class's own."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, rows)
    places = np.column_stack([3 * codes + rng.integers(0, 3, rows), rng.integers(6, 600, (rows, 2))])
    at = np.repeat(np.arange(rows), 3)
    # Rows of this kind of sparse matrix cannot be indexed.
    return sparse.coo_matrix((np.ones(3 * rows), (at, places.ravel())), shape=(rows, 600)), np.array(CLASSES)[codes]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without trees, which take a minute on hundreds of columns."""
    monkeypatch.setattr(learners, "_COSINES", 100)
    monkeypatch.setattr(learners, "_MOST_COLUMNS", 0)


def fitted(method, x, y):
    return LabelDPClassifier(4.0, method=method, classes=CLASSES, random_state=0, holdout=0.2).fit(x, y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made", [films, pytest.param(bags, marks=pytest.mark.slow)])
def test_it_is_learnt_measured_and_kept(method, made):
    model, (x, y) = fitted(method, *made()), made(seed=1)
    assert (model.predict(x) == y).mean() > 0.8
    assert model.evaluation_.rows == ROWS // 5
    assert model.evaluation_.measures["accuracy"].value > 0.8
    assert model.certificate_.epsilon <= 4.0
    again = travelled(model, certificate=model.certificate_)
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), rtol=0, atol=1e-5)


def test_learners_see_all_of_the_prose_and_no_bins():
    x, y = films()
    model = fitted("rr+learner", x, y)
    table, text = model._map.table, model._map.text
    # A number, a category of two values, and then every direction of the prose.
    assert model._map.plain.tolist() == [*table.plain, *range(table.dim, table.dim + text.dim)]
    assert len(model._map.plain) == 3 + text.dim
    assert model._predictor.found.columns.tolist() == model._map.plain.tolist()


@pytest.mark.parametrize("held_by", [pl.from_pandas, lambda frame: pl.from_pandas(frame).to_arrow()])
def test_frames_with_prose_are_measured_whichever_library_holds_them(held_by):
    x, y = films()
    assert fitted("one_shot", held_by(x), y).evaluation_.measures["accuracy"].value > 0.8
