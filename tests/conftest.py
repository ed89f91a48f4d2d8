"""Shared by all tests."""

import pytest
from hypothesis import settings

# Examples are counted, not timed: the machine that runs the tests may be busy.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    """Two test workers on two cores: torch must not start threads of its own."""
    torch = pytest.importorskip("torch", reason="the tests of learning need PyTorch") if _has_torch() else None
    if torch is not None:
        torch.set_num_threads(1)


def _has_torch():
    from importlib.util import find_spec

    return find_spec("torch") is not None
