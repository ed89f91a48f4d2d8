"""Weights of classes: declared, put on what was learnt, and free."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from labeldp import LabelDPClassifier
from labeldp.recipes.catalogue import BY_KEY


def table(rows, seed, share=0.005):
    """One row in two hundred is of the rare class."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(int)
    x = rng.normal(size=(rows, 6))
    x[y == 1, :3] += (1.5, 1.0, 1.0)
    return x, y


def recall_and_balance(model, x, y):
    found = model.predict(x) == 1
    recall = found[y == 1].mean()
    return recall, (recall + (~found[y == 0]).mean()) / 2


@pytest.mark.slow
def test_a_rare_class_is_found_at_the_cost_that_was_agreed():
    (x, y), (others, truth) = table(20_000, 0), table(20_000, 1)
    how = {"method": "one_shot", "classes": [0, 1], "random_state": 0}
    plain = LabelDPClassifier(1.0, **how).fit(x, y)
    assert recall_and_balance(plain, others, truth)[0] < 0.1
    x, y = table(20_000, 2)
    weighted = LabelDPClassifier(1.0, class_weight={1: 199}, **how).fit(x, y)
    recall, balance = recall_and_balance(weighted, others, truth)
    assert recall > 0.7
    assert balance > 0.75
    assert weighted.certificate_.epsilon <= 1.0
    assert weighted.certificate_.groups == plain.certificate_.groups


@pytest.mark.parametrize("method", ["one_shot", "rr"])
def test_weights_multiply_probabilities_and_are_kept_with_the_model(method):
    x, y = table(400, 0, share=0.3)
    settings = None if not BY_KEY[method].network else {"epochs": 1}
    model = LabelDPClassifier(2.0, method=method, classes=["b", "a"], class_weight={"b": 3}, settings=settings)
    model.fit(x, np.where(y == 1, "a", "b"))
    assert model.classes_.tolist() == ["a", "b"]
    weighted = model.predict_proba(x)
    again = LabelDPClassifier.from_parts(*model.to_parts())
    assert np.allclose(again.predict_proba(x), weighted)
    model.class_weight = None
    bare = model.predict_proba(x)
    assert np.allclose(weighted, bare * [1, 3] / (bare * [1, 3]).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ("balanced", "'balanced' is, would be a query that nobody paid for"),
        ({2: 1.0}, r"class_weight names \[2\], which are not among the 2 classes"),
        ({1: 0}, "are no weights; give finite numbers above 0"),
        ({1: float("inf")}, "are no weights"),
    ],
)
def test_what_is_no_declared_weight_is_refused_before_anything_is_spent(weights, why):
    x, y = table(100, 0)
    with pytest.raises(ValueError, match=why):
        LabelDPClassifier(1.0, classes=[0, 1], class_weight=weights).fit(x, y)
