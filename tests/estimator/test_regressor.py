"""LabelDPRegressor: numbers in bounds, both methods, what is charged, what is refused."""

import numpy as np
import pytest
from torch import nn

from labeldp.budgets.store import BudgetStore
from labeldp.core.certificate import verify
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.data import seal_numbers
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.values import seal_values
from labeldp.recipes.regression import TwoSided, folded

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


def prices(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    return x, np.clip(50 + 15 * x[:, 0] - 10 * x[:, 1] + 3 * rng.normal(size=rows), 0, 100)


def r2(model, x, y):
    return 1 - np.mean((model.predict(x) - y) ** 2) / np.var(y)


@pytest.mark.parametrize(
    ("method", "epsilon", "least"), [("one_shot", 1.0, 0.6), ("one_shot", 8.0, 0.8), ("binned_regression", 8.0, 0.7)]
)
def test_methods_learn_within_their_budget(method, epsilon, least):
    model = LabelDPRegressor(epsilon, (0, 100), 1e-6, method, random_state=0).fit(*prices())
    assert r2(model, *prices(seed=1)) > least
    assert model.certificate_.epsilon <= epsilon
    assert model.certificate_.delta == (1e-6 if method == "one_shot" else 0.0)
    assert verify(model.certificate_) == ()


def test_auto_takes_the_look_that_is_worth_more():
    x, y = prices(1000)
    assert LabelDPRegressor(0.5, (0, 100)).fit(x, y).method_ == "one_shot"
    model = LabelDPRegressor(25.0, (0, 100), settings={"epochs": 2}).fit(x, y)
    assert model.method_ == model.choice_.recipe == "binned_regression"
    assert "worth about" in model.choice_.reason


def test_predictions_stay_within_the_bounds():
    x, y = prices(500)
    predicted = LabelDPRegressor(1.0, (40, 60), 1e-6).fit(x, y).predict(100 * x)
    assert (predicted >= 40).all()
    assert (predicted <= 60).all()


def test_a_network_of_ones_own():
    x, y = prices(400)
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(1))
    with pytest.raises(ValueError, match="trains no network"):
        LabelDPRegressor(1.0, (0, 100), method="one_shot", model=net).fit(x, y)
    model = LabelDPRegressor(20.0, (0, 100), model=net, settings={"epochs": 10}).fit(x, y)
    assert model.method_ == "binned_regression"


def test_a_store_is_charged(tmp_path):
    x, y = prices(300)
    store = BudgetStore.open(tmp_path / "budgets.db")
    store.create("prices", seal_numbers(y, (0, 100)), Budget(1.5, 1e-5))
    model = LabelDPRegressor(1.2, (0, 100), 1e-6, "one_shot", store=store).fit(x, y)
    assert len(store.history("prices")) == 1
    with pytest.raises(BudgetExceededError):
        model.fit(x, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": (1, 0)}, "low < high"),
        ({"bounds": 3}, "not a range"),
        ({"bounds": (0, float("inf"))}, "finite"),
        ({"method": "rr"}, "one of one_shot, binned_regression"),
        ({"epsilon": -1}, "epsilon=-1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    x, y = prices(100)
    with pytest.raises(ValueError, match=message):
        LabelDPRegressor(**{"epsilon": 1.0, "bounds": (0, 100), **settings}).fit(x, y)


def test_text_is_refused_without_quoting_it():
    x, _ = prices(100)
    with pytest.raises(ValueError, match="something else than numbers") as refusal:
        LabelDPRegressor(1.0, (0, 100)).fit(x, ["secret-price"] * 100)
    assert "secret" not in str(refusal.value)


# -- the moment ------------------------------------------------------------------------------------------------


def test_two_sides_have_the_moment_of_the_numbers_and_the_noise_of_two_classes():
    """Mean over releases: Σ v·φ to five deviations of what rounding and noise leave."""
    rng = np.random.default_rng(0)
    values, rows = rng.uniform(-1, 1, 400), rng.normal(size=(400, 2))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    noise = GaussianNoise(0.5)
    queries = []
    for _ in range(300):
        noisy = TwoSided(seal_values(values, -1, 1)).release(Moments(rows, 2, noise, 1.0))
        queries.append(noisy.value[1] - noisy.value[0])
    truth = values @ rows
    spread = np.sqrt(2 * 0.5**2 + 400 * 0.25 / 2)
    assert np.abs(np.mean(queries, axis=0) - truth).max() < 5 * spread / np.sqrt(300)
    # Two classes have noise of √2·s on the difference; three folded into two, as much.
    assert noisy.noise_std == pytest.approx(Moments(rows, 2, noise, 1.0).noise_std)


def test_rounding_leaves_less_error_than_two_classes_would():
    rng = np.random.default_rng(0)
    values, rows = rng.uniform(-1, 1, 400), np.ones((400, 1))
    ask = Moments(rows, 2, GaussianNoise(0.1), 1.0)
    queries = [TwoSided(seal_values(values, -1, 1)).release(ask).value for _ in range(300)]
    seen = np.var([value[1, 0] - value[0, 0] for value in queries])
    # Two classes: Σ (1 − v²) = 267; three: Σ |v|(1 − |v|) = 67.
    assert seen < 120


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="moments only"):
        TwoSided(seal_values([0.0, 1.0], 0, 1)).release(RandomizedResponse(1.0, 2))


def test_what_is_folded_adds_up():
    noisy = Moments(np.eye(3), 3, GaussianNoise(1.0), 1.0).sample(np.array([0, 1, 2], np.uint8), _rng())
    two = folded(noisy)
    assert two.value.sum(axis=0) == pytest.approx(noisy.total)
    assert two.value[1] - two.value[0] == pytest.approx(noisy.value[2] - noisy.value[0])


def _rng():
    from labeldp.core.random import SecureRandom

    return SecureRandom(seed=1)


def test_a_second_fit_goes_on_from_the_folder_and_both_certificates_hold(tmp_path):
    """The moment that was paid for is used again, and its cost is in the second ledger too."""
    x, y = prices(300)
    model = LabelDPRegressor(2.0, (0, 100), 1e-6, "one_shot", settings={"folder": tmp_path}, random_state=0)
    first = model.fit(x, y).predict(x)
    spent = model.certificate_
    assert np.allclose(model.fit(x, y).predict(x), first)
    assert model.certificate_.epsilon == spent.epsilon > 1.9
    assert verify(model.certificate_) == ()
