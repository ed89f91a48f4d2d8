"""The owner's page: what was spent by whom, who may ask, the log; looked at in a browser where there is one."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")
pytest.importorskip("matplotlib", reason="the owner's page has charts")

from labeldp.budgets.tables import sa
from labeldp.core.ledger import Budget
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.service import logbook
from labeldp.service.owner import page, write_page
from labeldp.service.tables import REQUESTS
from tests.results.browser import measured, needed, photographed
from tests.service.servicehelp import NAME, labels, names, service

ROWS = 60
ODD = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def found():
    """Two analysts who have asked, one who has not, and tokens of every kind."""
    with service(labels(ROWS)[0], total=Budget(6.0, 1e-5), grant=Budget(2.0, 1e-5)) as served:
        for name in ("bob", "carol"):
            served.access.add(name, "analyst")
            served.access.grant(NAME, name, Budget(1.5, 1e-5))
        served.tokens = [served.token, served.access.issue("bob", 2), served.access.issue("carol", 9)]
        served.access.revoke(served.tokens[2].split(".")[1])
        served.access.add("an-owner-with-a-rather-long-name-that-has-to-be-broken-somewhere", "owner")
        ann, bob = served.remote(), served.remote(token=served.tokens[1])
        ann.release(RandomizedResponse(0.5, 3))
        ann.release(GroupCounts(np.arange(ROWS) % 4, 4, 3, LaplaceNoise(0.25)))
        # Some of the rows only: they cost all together no more than ann's own.
        bob.release(RandomizedResponse(0.125, 3), rows=np.arange(10))
        logbook.note(served.database, served.signer, kind="opened", dataset=ODD)
        yield served


def cells(html, first):
    """The other cells of the row with this first cell."""
    row = next(row for row in re.findall(r"<tr role=\"row\">(.*?)</tr>", html, re.S) if f">{first}</th>" in row)
    return re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)


def test_it_says_what_each_has_spent_of_what(found):
    html = page(found.database)
    entry = {line.number: line.hash for line in logbook.read(found.database)}
    for name, may, has, releases in (("ann", "2", 0.75, "2"), ("bob", "1.5", 0.125, "1")):
        granted, spent, count, *_ = cells(html, name)
        assert (granted, count) == (f"ε = {may}, δ = 1e-05", releases)
        # A little less than the plain sum, at the δ of the budget.
        assert float(spent.removeprefix("ε ≤ ")) == pytest.approx(has, rel=1e-3)
    assert cells(html, "carol") == ["ε = 1.5, δ = 1e-05", "nothing", "0", "never", "none"]
    number, short = re.fullmatch(r"(\d+): (\w{16})…", cells(html, "ann")[4]).groups()
    assert entry[int(number)].startswith(short)
    # All together: what the rows that both asked about have met.
    assert float(re.search(r"<dt>spent by all together</dt><dd>ε ≤ ([\d.]+)</dd>", html)[1]) == pytest.approx(
        0.875, rel=1e-3
    )
    assert "<b>The log holds.</b>" in html
    assert found.signer.public in html


def test_it_is_the_claim_of_the_service(found):
    stated = found.remote().service_certificate(1e-5)
    spent = cells(page(found.database), "ann")[1]
    assert float(spent.removeprefix("ε ≤ ")) == pytest.approx(stated.epsilon, rel=1e-5)


def test_it_holds_no_token_and_no_release_and_runs_nothing(found):
    html = page(found.database)
    assert not any(token.split(".")[2] in html for token in found.tokens)
    assert found.tokens[0].split(".")[1] in html
    with found.database.reading() as connection:
        releases = connection.execute(sa.select(REQUESTS.c.release)).scalars().all()
    assert not any(bytes(each).hex() in html for each in releases)
    assert not any(name in html for name in names(ROWS))
    assert "default-src 'none'" in html
    # What somebody called a thing stays text.
    assert "<img" not in html
    assert "&lt;img" in html
    assert not re.search(r"<(script|link|iframe|object|form)\b|<[^>]*\s(on\w+|src|href)\s*=\s*[\"'](?!#)", html)


def test_a_store_that_does_not_fit_its_log_is_said_first(tmp_path):
    with service(labels(ROWS)[0]) as found:
        found.remote().release(RandomizedResponse(0.5, 3))
        with found.database.writing() as connection:
            connection.execute(sa.delete(REQUESTS))
        html = page(found.database)
        assert "do not fit together" in html
        assert "the release of entry 1 is missing" in html


def test_a_store_that_nobody_has_asked_has_a_page(tmp_path):
    with service(labels(ROWS)[0]) as found:
        write_page(found.database, tmp_path / "owner.html")
        assert "Nobody has asked anything yet" in (tmp_path / "owner.html").read_text(encoding="utf-8")
        assert (tmp_path / "owner.html").stat().st_mode & 0o077 == 0


def test_the_line_of_an_analyst_ends_at_what_was_spent(found):
    """The chart's summary, for those who hear the page, has the figures of its lines."""
    html = page(found.database)
    assert re.search(r"2 who spend; all together have spent 0\.87\d+ of 6\.", html)


@needed
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_every_screen(found, width, tmp_path):
    seen = measured(page(found.database), width, tmp_path)
    assert seen["scroll"] <= seen["width"]
    assert seen["wide"] == seen["spilt"] == seen["over"] == []
    assert all(text["inside"] for texts in seen["texts"] for text in texts)
    assert json.dumps(seen["background"]) == '"rgb(246, 247, 249)"'


@needed
@pytest.mark.slow
def test_it_is_dark_where_screens_are(found, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="looking at screenshots needs Pillow")
    shots = [photographed(page(found.database), 768, 900, tmp_path / f"{dark}.png", dark) for dark in (False, True)]
    light, dark = (np.asarray(image.open(shot).convert("L"))[5, 5] for shot in shots)
    assert light > 200 > 60 > dark
