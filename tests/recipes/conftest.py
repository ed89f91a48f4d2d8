import pytest

from labeldp.mechanisms.gradients.sums import GradientSum


@pytest.fixture
def drawn(monkeypatch):
    """Every query that is really drawn: (mechanism, release)."""
    queries, sample = [], GradientSum.sample

    def watched(self, labels, rng):
        response = sample(self, labels, rng)
        queries.append((self, response))
        return response

    monkeypatch.setattr(GradientSum, "sample", watched)
    return queries
