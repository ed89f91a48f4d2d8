"""Marks that several tests share."""

import pytest


def mostly_slow(cases, quick=1):
    """Return parameters of which only the first run in `make test`; the others run in `make test-slow`."""
    cases = list(cases)
    return [*cases[:quick], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[quick:])]
