"""Tests of estimators tune with half of the draws."""

import pytest

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def _tuned_quickly(monkeypatch):
    """Half of the pseudo-labels and draws: tuning is most of a fit to few rows, and has tests of its own."""
    pytest.importorskip("torch")
    from labeldp.learning.tuning import tune

    for name, value in {"clusterings": 3, "draws": 2}.items():
        monkeypatch.setitem(tune.__kwdefaults__, name, value)
