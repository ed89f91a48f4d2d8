"""Weights of rows: public, drawn before any label is used, and paid for by the rows that are kept only."""

import numpy as np
import pytest

from labeldp import LabelVault
from labeldp.core.certificate import verify
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.estimator.weights import PUBLIC, rows_kept
from tests.estimator.helpers import CLASSES, numbers

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
DRAWS = 20_000


def too_often(kept, weights, draws):
    """By how many deviations some row is kept too often or too seldom."""
    share = weights / weights.max()
    counts = np.zeros(len(weights))
    for seed in range(draws):
        counts[kept(weights, seed)] += 1
    spread = np.sqrt(share * (1 - share) / draws)
    return float(np.max(np.abs(counts / draws - share) - 5 * spread))


def test_rows_are_kept_in_proportion_to_their_weights():
    """50 rows, 5 deviations: a false alarm once in 30,000 runs."""
    weights = np.random.default_rng(0).choice([0.0, 0.1, 0.5, 1.0, 2.0], 50)
    assert too_often(lambda w, seed: rows_kept(w, 50, seed), weights, DRAWS) <= 1e-12
    # By weights as they are instead of weights over the largest one.
    wrong = lambda w, seed: np.flatnonzero(np.random.default_rng(seed).random(50) < w)  # noqa: E731
    assert too_often(wrong, weights, 2_000) > 0.1


def test_how_many_are_kept_is_fixed_up_to_rounding():
    weights = np.linspace(0.1, 1.0, 100)
    assert {len(rows_kept(weights, 100, seed)) for seed in range(200)} <= {55, 56}


def test_rows_that_are_not_kept_are_never_asked():
    x, y = numbers(400)
    weights = np.where(np.arange(400) < 100, 1.0, 0.0)
    vault = LabelVault((y == "yes").astype(int), 2)
    model = LabelDPClassifier(1.0, method="one_shot", classes=CLASSES, holdout=0).fit(x, vault, sample_weight=weights)
    asked = vault.ledger.history_of_row
    assert len(set(asked[:100])) == 1
    assert len(set(asked[100:])) == 1
    assert sorted((group.rows, len(group.queries)) for group in model.certificate_.groups) == [(100, 1), (300, 0)]
    assert verify(model.certificate_) == ()
    assert model.certificate_.epsilon <= 1.0
    assert PUBLIC in model.certificate_.assumptions


def test_a_fit_follows_the_rows_that_weigh_more():
    """Two thirds of the rows say the opposite of the others."""
    x, y = numbers(3000)
    turned = np.arange(3000) % 3 > 0
    labels = np.where(turned, np.where(y == "yes", "no", "yes"), y)
    how = {"method": "one_shot", "classes": CLASSES, "random_state": 0}
    plain = LabelDPClassifier(4.0, **how).fit(x, labels)
    weighed = LabelDPClassifier(4.0, **how).fit(x, labels, sample_weight=np.where(turned, 0.1, 1.0))
    assert (plain.predict(x) == y).mean() < 0.2
    assert (weighed.predict(x) == y).mean() > 0.8
    # Measured on rows that were kept, most of which say yes where y does.
    assert weighed.evaluation_ is None or weighed.evaluation_.measures["accuracy"].value > 0.6


def test_equal_weights_change_nothing():
    assert rows_kept(np.full(5, 3.0), 5, seed=1) is None
    assert rows_kept(7.0, 5, seed=1) is None
    assert rows_kept(None, 5, seed=1) is None


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (np.ones(3), r"sample_weight.shape == \(3,\), expected \(60,\)"),
        (-np.ones(60), "none below zero"),
        (np.zeros(60), "not all of them zero"),
        (np.full(60, np.nan), "finite numbers"),
        (np.array(["a"] * 60), "give numbers"),
        (np.eye(1, 60)[0], "leaves 1 rows to learn from"),
    ],
)
def test_what_is_no_weight_is_refused_before_anything_is_spent(weights, why):
    x, y = numbers(60)
    vault = LabelVault((y == "yes").astype(int), 2)
    with pytest.raises(ValueError, match=why):
        LabelDPClassifier(1.0, method="one_shot", classes=CLASSES).fit(x, vault, sample_weight=weights)
    assert vault.ledger.groups()[0].queries == ()


def test_a_few_large_weights_are_warned_of():
    x, y = numbers(300)
    weights = np.where(np.arange(300) < 5, 100.0, 1.0)
    with pytest.warns(UserWarning, match=r"keeps \d of 300 rows"):
        LabelDPClassifier(1.0, method="one_shot", classes=CLASSES).fit(x, y, sample_weight=weights)


def test_users_and_responses_cannot_be_weighed():
    from labeldp import RandomizedResponse

    x, y = numbers(60)
    weights = np.arange(60) + 1.0
    with pytest.raises(ValueError, match="users pay for all of their rows together"):
        LabelDPClassifier(1.0, method="rr", classes=CLASSES).fit(x, y, users=np.arange(60) // 2, sample_weight=weights)
    noisy = LabelVault((y == "yes").astype(int), 2).release(RandomizedResponse(1.0, 2))
    with pytest.raises(ValueError, match="responses that were released before"):
        LabelDPClassifier(1.0, method="rr", classes=CLASSES).fit(x, noisy, sample_weight=weights)


def test_numbers_are_weighed_alike():
    x, _ = numbers(900)
    y = np.where(np.arange(900) % 2, 3.0, -3.0)
    model = LabelDPRegressor(4.0, (-4, 4), method="one_shot").fit(x, y, sample_weight=np.where(y > 0, 1.0, 0.05))
    assert model.predict(x).mean() > 1.0


@pytest.mark.parametrize("method", ["auto", "boosting", "dp_sgd", "cluster_votes", "one_shot_prior", "pate_fm"])
def test_every_method_asks_the_rows_that_were_kept_and_no_others(method):
    x, y = numbers(400)
    settings = {"epochs": 1} if method == "dp_sgd" else None
    weights = np.where(np.arange(400) % 4 == 0, 1.0, 0.5)
    vault = LabelVault((y == "yes").astype(int), 2)
    model = LabelDPClassifier(1.0, 1e-6, method, classes=CLASSES, settings=settings, random_state=3)
    model.fit(x, vault, sample_weight=weights)
    assert verify(model.certificate_) == ()
    unasked = [number for number, plans in enumerate(vault.ledger.histories) if not plans]
    asked = np.flatnonzero(~np.isin(vault.ledger.history_of_row, unasked))
    seed = np.random.RandomState(3).randint(2**31 - 1)
    assert set(asked) <= set(rows_kept(weights, 400, seed))
    assert set(range(0, 400, 4)) & set(asked)


def test_a_fit_that_was_stopped_does_not_go_on_with_other_weights(tmp_path):
    x, y = numbers(300)
    model = LabelDPClassifier(
        1.0, 1e-6, "one_shot", classes=CLASSES, random_state=0, settings={"folder": tmp_path / "kept"}
    )
    weights = np.where(np.arange(300) < 100, 1.0, 0.5)
    first = model.fit(x, y, sample_weight=weights).predict_proba(x)
    assert np.array_equal(model.fit(x, y, sample_weight=weights).predict_proba(x), first)
    with pytest.raises(ValueError, match="use a new folder"):
        model.fit(x, y, sample_weight=weights[::-1].copy())
