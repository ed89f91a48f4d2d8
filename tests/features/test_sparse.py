"""Sparse rows: narrow ones are numbers, wide ones are projected, in fit and predict alike."""

import numpy as np
import pytest
from scipy import sparse

from labeldp.estimator import LabelDPClassifier
from labeldp.features.sparse import Projected
from labeldp.results.measure import auc

ROWS = 3000


def wide(rows, seed, columns=3000):
    """Ten ones in random places of a row, and one of a class's twenty places."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    places = np.concatenate(
        [rng.integers(40, columns, (rows, 10)), (20 * labels + rng.integers(0, 20, rows))[:, None]], 1
    )
    data, at = np.ones(places.size), np.repeat(np.arange(rows), places.shape[1])
    return sparse.csr_matrix((data, (at, places.ravel())), shape=(rows, columns)), labels


def test_wide_rows_are_learnt_and_a_model_of_them_is_kept():
    train, labels = wide(ROWS, 0)
    test, known = wide(1000, 1)
    model = LabelDPClassifier(2.0, classes=[0, 1], method="one_shot", random_state=0).fit(train, labels)
    scores = model.predict_proba(test)[:, 1]
    assert model._map.dim == 512
    assert auc(scores, known) > 0.75
    config, arrays = model.to_parts()
    again = LabelDPClassifier.from_parts(config, arrays)
    assert np.allclose(again.predict_proba(sparse.csc_array(test))[:, 1], scores, atol=1e-6)
    assert np.allclose(again.predict_proba(test[:20].toarray())[:, 1], scores[:20], atol=1e-6)
    with pytest.raises(ValueError, match="3000 features"):
        model.predict(test[:, :2000])


def test_narrow_rows_are_numbers_like_any():
    train, labels = wide(400, 2, columns=60)
    models = [
        LabelDPClassifier(5.0, classes=[0, 1], method="one_shot", random_state=0).fit(rows, labels[half])
        for half, rows in ((slice(0, 400), train), (slice(0, 399), train[:399].toarray()))
    ]
    assert models[0]._layout == models[1]._layout
    assert models[0].predict(train[:5]).shape == models[0].predict(train[:5].toarray()).shape


def test_directions_are_those_of_most_weight():
    rows = sparse.csr_array(np.repeat(np.diag([3.0, 2.0, 0.1]), 20, axis=0))
    found = Projected(dims=2).fit(rows)
    features = found.features(rows).numpy()
    assert features.shape == (60, 2)
    assert np.sqrt((features**2).sum(1).mean()) == pytest.approx(2.0, abs=1e-4)
    assert np.allclose(features.mean(0), 0, atol=1e-5)
    # The weak direction is left out: its rows lie together with the mean of nothing.
    assert np.allclose(features[40:], features[40], atol=0.1)
    with pytest.raises(ValueError, match="2 columns"):
        found.features(rows[:, :2])


def test_rows_of_zeros_give_zeros():
    nothing = sparse.csr_array((4, 700))
    assert not Projected().fit(nothing).features(nothing).any()
