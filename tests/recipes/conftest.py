import pytest

from labeldp.private.gradients import GradientSum


@pytest.fixture
def drawn(monkeypatch):
    """Every look that is really drawn: (mechanism, answer)."""
    looks, sample = [], GradientSum.sample

    def watched(self, labels, rng):
        answer = sample(self, labels, rng)
        looks.append((self, answer))
        return answer

    monkeypatch.setattr(GradientSum, "sample", watched)
    return looks
