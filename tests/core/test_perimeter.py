"""The list of what an auditor reads is the one in docs/design.md, and it is complete."""

import importlib
import inspect
from typing import get_args

import pytest

from labeldp.core import events
from scripts import perimeter


def test_the_page_is_current():
    page = perimeter.PAGE.read_text(encoding="utf-8")
    assert perimeter.written(page) == page, "run: python scripts/perimeter.py --write"


def test_every_event_is_known_and_every_mechanism_listed():
    assert set(perimeter.events()) == {kind.__name__ for kind in get_args(events.Event)}
    listed = perimeter.table()
    for path in (perimeter.PACKAGE / "mechanisms").rglob("*.py"):
        name = ".".join(path.relative_to(perimeter.ROOT).with_suffix("").parts)
        for kind in vars(importlib.import_module(name)).values():
            own = inspect.isclass(kind) and kind.__module__ == name and not inspect.isabstract(kind)
            if own and not kind.__name__.startswith("_") and all(hasattr(kind, m) for m in ("fits", "event", "sample")):
                assert f"`{kind.__name__}`" in listed


@pytest.mark.parametrize("name", sorted(perimeter.BESIDE))
def test_what_is_set_aside_exists(name):
    assert (perimeter.PACKAGE / "core" / name).is_file()


def test_the_core_can_be_read_in_an_hour():
    """About 1,500 lines were aimed at, before plans and their filter, the rounded Gaussian, marks of seeds, counted
    draws and noise keyed by row, on all of which a certificate rests. The fence, not
    the aim.
    """
    core = (perimeter.PACKAGE / "core").glob("*.py")
    assert sum(perimeter.code_lines(path) for path in core if path.name not in perimeter.BESIDE) <= 1694


def test_a_page_without_markers_gets_them():
    page = perimeter.written("# A page\n")
    assert page.startswith("# A page\n\n## What an auditor reads\n")
    assert perimeter.written(page) == page
