"""The list of what an auditor reads is the one in docs/design.md, and it is complete."""

import importlib
import inspect
import re
from typing import get_args

import pytest

from labeldp.core import accountant, events
from labeldp.core.certificate import SECURE_NOISE, certify, verify
from labeldp.core.events import Gaussian, GridGaussian, PoissonGaussian, PureDP
from labeldp.core.ledger import Ledger
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


@pytest.mark.parametrize("name", sorted({*perimeter.BESIDE, *perimeter.SOME}))
def test_what_is_set_aside_exists(name):
    assert (perimeter.PACKAGE / "core" / name).is_file()


def test_the_core_can_be_read_in_an_hour():
    """At most about 1,500 lines for what every certificate rests on; a fence around what some rest on besides."""
    core = {path.name: perimeter.code_lines(path) for path in (perimeter.PACKAGE / "core").glob("*.py")}
    believed = sum(lines for name, lines in core.items() if name not in perimeter.BESIDE)
    assert believed - sum(core[name] for name in perimeter.SOME) <= 1458
    assert believed <= 1692


def test_only_some_certificates_rest_on_composed_distributions(monkeypatch):
    def refused(*_):
        raise AssertionError("composed")

    for name in ("pld_epsilon", "log_moment", "reach"):
        monkeypatch.setattr(accountant, name, refused)
    pure = Ledger(3).charge(PureDP(0.37), 2).charge(PureDP(0.11), rows=[1])
    gaussian = Ledger(3).charge(Gaussian(2.03, 1.0), 5).charge(GridGaussian(3.01, 1.0), rows=[0, 2])
    for ledger, delta in ((pure, 0.0), (pure, 1e-5), (gaussian, 1e-5)):
        assert verify(certify(ledger.groups(), delta, noise=SECURE_NOISE, seeded=False)) == ()
    with pytest.raises(AssertionError, match="composed"):
        Ledger(3).charge(PoissonGaussian(1.03, 1.0, 2.0, 0.01), 7).epsilon(1e-5)


def test_only_engines_and_their_readers_draw_noise_by_row():
    """Certificates of jobs on many machines say so; no other rests on it."""
    users = {
        path.relative_to(perimeter.PACKAGE).parts[0]
        for path in perimeter.PACKAGE.rglob("*.py")
        if re.search(
            r"^ *(from|import) labeldp\.core(\.| import )keyed", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert users == {"data", "engines"}


def test_a_page_without_markers_gets_them():
    page = perimeter.written("# A page\n")
    assert page.startswith("# A page\n\n## What an auditor reads\n")
    assert perimeter.written(page) == page
