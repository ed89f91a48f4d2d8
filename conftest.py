"""Shared by all tests: the same noise and the same examples on every run, unless `--fresh` is given.

Most tests make vaults as users do, keyed by the operating system. A test that holds for all but one noise in a
thousand would then fail somebody's work at random, some day. So keys are made from the name of the test that asks
for them: a failure is then repeatable and somebody's doing. `make test-fresh` takes real keys and new random
examples; what fails there fails by its own noise, at the rate it states, or has found something.
"""

import gc
import hashlib
import itertools
import os
import random
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import settings

from labeldp.core import random as randomness

# Examples are counted, not timed: the machine that runs the tests may be busy.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
_HAS_TORCH = find_spec("torch") is not None


def pytest_addoption(parser):
    """`--fresh`."""
    parser.addoption("--fresh", action="store_true", help="real keys for noise and new random examples")


def pytest_configure(config):
    """Random examples are the same on every run, too."""
    settings.load_profile("fresh" if config.getoption("fresh") else "steady")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what is imported: it stays, and the search was a third of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """What a test draws is named after it, and nothing has been fitted to in this process."""
    spending = sys.modules.get("labeldp.estimator.spending")
    if spending is not None:
        spending.MEMORY.forget()
    with pytest.MonkeyPatch.context() as patch:
        if not item.config.getoption("fresh"):
            _name_the_keys(patch, item.nodeid)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """What many tests share is named after itself, not after the test that happens to need it first."""
    with pytest.MonkeyPatch.context() as patch:
        if request.scope != "function" and not request.config.getoption("fresh"):
            _name_the_keys(patch, f"{fixturedef.baseid}::{fixturedef.argname}")
        return (yield)


def _name_the_keys(patch, name):
    """Let the keys of secure noise, and the seeds of what has no key, follow from a name."""
    process, counter = os.getpid(), itertools.count()

    def key():
        # A forked child must never repeat its parent's noise, not even here.
        forked = "" if os.getpid() == process else f", process {os.getpid()}"
        return hashlib.sha256(f"{name}, key {next(counter)}{forked}".encode()).digest()

    patch.setattr(randomness, "system_key", key)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (scikit-learn's own default)
    if _HAS_TORCH:
        import torch

        torch.manual_seed(seed)


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    """Two test workers on two cores: torch must not start threads of its own."""
    if _HAS_TORCH:
        import torch

        torch.set_num_threads(1)
