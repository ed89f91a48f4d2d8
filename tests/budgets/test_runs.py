"""How long a budget lasts, and what a run has cost so far."""

import pytest

from labeldp.budgets.calibrate import meter, most_queries
from labeldp.core.accountant import epsilon
from labeldp.core.events import Gaussian, PoissonGaussian, Query

EVENTS = [
    Gaussian(20.0, 2.0),
    PoissonGaussian(2.0, 1.0, 2.0, 0.02),
    PoissonGaussian(0.8, 1.0, 1.2, 0.01),
    PoissonGaussian(30.0, 1.0, 2.0, 0.3),
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("budget", [0.3, 1.0, 5.0])
def test_one_query_more_would_cost_too_much(event, budget):
    queries = most_queries(event, budget, 1e-5)
    assert epsilon([Query(event, queries)], 1e-5) <= budget
    assert epsilon([Query(event, queries + 1)], 1e-5) > budget


def test_a_query_too_dear_and_queries_without_end():
    assert most_queries(Gaussian(1.0, 2.0), 0.1, 1e-5) == 0
    assert most_queries(Gaussian(1.0, 2.0), 1.0, 0.0) == 0
    with pytest.raises(ValueError, match="more than 10000000 queries"):
        most_queries(Gaussian(1e6, 1.0), 1.0, 1e-5)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("queries", [1, 2, 7, 100])
def test_the_meter_is_never_too_low_and_right_at_the_end(event, queries):
    spent = meter(event, queries, 1e-5, marks=7)
    values = [spent(taken) for taken in range(queries + 1)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] == epsilon([Query(event, queries)], 1e-5)
    for taken in (1, 2, queries // 3, queries // 2, queries - 1):
        if taken <= queries:
            assert values[taken] >= epsilon([Query(event, taken)], 1e-5) * (1 - 1e-6)
    assert len(set(values)) <= 1 + (queries if isinstance(event, Gaussian) else 7)
