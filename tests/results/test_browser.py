"""The page in a real browser: light, dark and on a phone."""

import pytest

from labeldp.results import report as page
from labeldp.results.facts import gather
from tests.results.browser import measured, needed, photographed
from tests.results.reporthelp import CURVES, audited, result, saved

pytestmark = needed
Image = pytest.importorskip("PIL.Image", reason="looking at screenshots needs Pillow")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everything a page can show, with long names."""
    folder = tmp_path_factory.mktemp("browser")
    classes = tuple(f"class-number-{number}" for number in range(10))
    shown = result(classes=classes, method="lp_mst", images=True, test=0.85, curves=CURVES, rows=60_000)
    other = result(epsilon=4.0, classes=classes, method="one_shot", images=True, test=0.91)
    model, beside = saved(folder / "a-model-with-a-rather-long-name", shown), saved(folder / "other", other)
    return page(gather(model, audit=audited(folder), beside=[beside], non_private=0.94))


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen_and_no_text_overlaps(made, width, tmp_path):
    found = measured(made, width, tmp_path)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    for texts in found["texts"]:
        for place, one in enumerate(texts):
            assert one["inside"], one
            assert one["size"] >= 9, one
            for other in texts[place + 1 :]:
                apart = one["right"] <= other["left"] + 0.5 or other["right"] <= one["left"] + 0.5
                assert apart or one["bottom"] <= other["top"] + 4 or other["bottom"] <= one["top"] + 4, (one, other)


def test_the_measure_notices_what_is_too_wide(made, tmp_path):
    broken = made.replace("<header>", '<div style="width:700px">too wide</div><header>')
    found = measured(broken, 360, tmp_path)
    assert found["scroll"] > 360
    assert found["wide"] != []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False)], ids=["light", "dark", "phone"])
def test_screenshots(made, width, dark, tmp_path):
    path = photographed(made, width, 3000, tmp_path / "page.png", dark=dark)
    assert path.stat().st_size > 50_000
    with Image.open(path) as image:
        assert image.size == (width, 3000)
        colours = image.convert("RGB").getcolors(1 << 24)
        page_colour = max(colours)[1]
    # A drawn page has many shades; an empty or failed one has a few.
    assert len(colours) > 100
    assert (sum(page_colour) < 200) == dark
