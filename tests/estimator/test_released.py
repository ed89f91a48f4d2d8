"""Fits to responses that were released before: nothing is spent, nothing is charged, nothing is warned of."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from labeldp import Budget, LabelDPClassifier, LabelVault, RandomizedResponse
from labeldp.core.certificate import verify
from labeldp.data import OpenLabels
from labeldp.mechanisms.responses import PriorResponse
from labeldp.mechanisms.user_responses import UserResponse
from labeldp.mechanisms.users import UserVault
from labeldp.recipes.catalogue import BY_KEY


def problem(rows=3000, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


def test_a_fit_to_responses_spends_nothing_and_may_be_repeated():
    x, y = problem()
    vault = LabelVault(y, num_classes=2, budget=Budget(1.0))
    noisy = vault.release(RandomizedResponse(1.0, 2))
    spent = vault.ledger
    # Warnings are errors here: that labels are fitted to again would be one.
    for method in ("auto", "debiased"):
        settings = None if method == "auto" else {"epochs": 8}
        model = LabelDPClassifier(1.0, method=method, classes=["no", "yes"], settings=settings).fit(x, noisy)
        assert BY_KEY[model.method_].released
        others, truth = problem(1000, seed=1)
        assert model.score(others, OpenLabels(np.where(truth == 1, "yes", "no"))) > 0.85
        assert model.certificate_.epsilon == 1.0
    assert vault.ledger is spent
    # Only whoever drew the responses can vouch for their noise.
    assert any("noise source" in problem for problem in verify(model.certificate_))


def test_epsilon_has_to_allow_what_was_released():
    x, y = problem(200)
    noisy = LabelVault(y, num_classes=2).release(RandomizedResponse(1.0, 2))
    with pytest.raises(ValueError, match=r"epsilon=0\.5 is less than the 1 at which the responses were released"):
        LabelDPClassifier(0.5).fit(x, noisy)
    with pytest.raises(ValueError, match="X has 199 rows and y 200"):
        LabelDPClassifier(1.0).fit(x[1:], noisy)
    with pytest.raises(ValueError, match=r"method='one_shot' queries labels.*choose one of rr, forward"):
        LabelDPClassifier(1.0, method="one_shot").fit(x, noisy)


@pytest.mark.parametrize("channel", ["prior", "users"])
def test_responses_are_learnt_from_by_their_own_channel(channel):
    x, y = problem()
    if channel == "prior":
        noisy = LabelVault(y, num_classes=2).release(PriorResponse(1.0, np.tile([0.4, 0.6], (len(y), 1))))
    else:
        vault = UserVault(y, np.arange(len(y)) // 2, num_classes=2)
        noisy = vault.release(UserResponse(3.0, 2, vault.users))
    model = LabelDPClassifier(3.0, classes=[0, 1], settings={"epochs": 8}).fit(x, noisy)
    others, truth = problem(1000, seed=1)
    assert model.score(others, OpenLabels(truth)) > 0.85
