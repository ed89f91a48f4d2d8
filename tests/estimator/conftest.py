"""Every test begins as if nothing had been fitted in this process."""

import pytest

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def _forgotten():
    from labeldp.estimator.spending import MEMORY

    MEMORY.forget()
    yield
    MEMORY.forget()
