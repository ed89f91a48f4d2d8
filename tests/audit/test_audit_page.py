"""Figures on the page on audits (tests/docs runs its Python)."""

import numpy as np
import pytest

from labeldp.audit.bounds import Claim, Guesses, judged, separate
from labeldp.audit.training import guesses_of
from labeldp.core import accountant, inverse
from labeldp.core.events import Gaussian, Query


def test_the_figures_about_gaussian_noise_are_right():
    """5,000 canaries at ε = 1, median outcomes: known to be separate, and not."""
    std = inverse.analytic_gaussian_std(1.0, 1e-5, 2.0)
    queries = (Query(Gaussian(std, 2.0)),)
    claim, rng = Claim(accountant.epsilon(queries, 1e-5), 1e-5, queries), np.random.default_rng(0)
    for noise, apart, together in ((std, 0.4, 0.05), (std / 2, 1.5, 0.3)):
        found = []
        for _ in range(15):
            coins = rng.integers(2, size=5000)
            shown = 2 * coins - 1 + noise * rng.normal(size=5000)
            each = separate("shift", 2 * coins - 1, shown).bound(claim, 0.999)
            found.append((each, judged(claim, guesses_of("shift", coins, shown), 0.999).bound))
        assert np.median(found, axis=0) == pytest.approx([apart, together], abs=0.15)


def test_the_limit_of_one_run_with_delta_is_right():
    """Every guess right, and yet nothing proved: δ = 1e-5 and ε = 4 at 99.9%, with as many attacks as there are."""
    level = 1 - 1e-3 / 6
    for many in (500, 5000):
        assert Guesses("all", many, many, many).bound(Claim(4.0, 1e-5), level) < 4.0
        assert Guesses("all", many, many, many).bound(Claim(4.0, 1e-7), level) > 4.0
