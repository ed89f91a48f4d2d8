"""The page in a real browser: light, dark and on a phone, whatever fonts there are."""

from functools import cache

import numpy as np
import pytest

from labeldp.results.charts import SIZE
from labeldp.results.facts import gather
from labeldp.results.report import page
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


# A page has to hold with fonts that are wider and narrower than the ones that happen to be installed here.
FONTS = {
    "as installed": "",
    "wide": "body * { font-family: monospace !important; letter-spacing: .08em }",
    "narrow": "body * { font-family: serif !important; letter-spacing: -.04em }",
}


def overlapping(texts):
    return [
        (one["id"], other["id"]) for place, one in enumerate(texts) for other in texts[place + 1 :]
        if one["left"] < other["right"] and other["left"] < one["right"]
        and one["top"] < other["bottom"] and other["top"] < one["bottom"]
    ]  # fmt: skip


@pytest.fixture(scope="module")
def found(made, tmp_path_factory):
    @cache
    def at(width, fonts):
        return measured(made.replace("</style>", f"{FONTS[fonts]}</style>", 1), width, tmp_path_factory.mktemp("page"))

    return at


@pytest.mark.parametrize("fonts", FONTS)
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen_and_no_text_overlaps(found, width, fonts):
    page = found(width, fonts)
    assert page["width"] == width
    assert page["scroll"] <= width
    assert page["wide"] == []
    assert sum(map(len, page["texts"])) > 40
    for texts in page["texts"]:
        assert overlapping(texts) == []
        for one in texts:
            assert one["inside"], one
            assert one["scale"] * SIZE >= 9, one


def test_charts_are_the_same_whatever_fonts_there_are(found):
    texts = [[text for chart in found(768, fonts)["texts"] for text in chart] for fonts in FONTS]
    places = [[(text["left"], text["right"], text["bottom"] - text["top"]) for text in one] for one in texts]
    for other in places[1:]:
        np.testing.assert_allclose(other, places[0], atol=0.1)


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
