"""The page in a real browser: light, dark and on a phone, whatever fonts there are."""

import dataclasses
import re
from functools import cache

import numpy as np
import pytest

from labeldp.results.charts import SIZE
from labeldp.results.evaluation import Evaluation, Measure
from labeldp.results.facts import gather
from labeldp.results.report import page
from tests.marks import mostly_slow
from tests.results.browser import measured, needed, photographed, printed
from tests.results.reporthelp import CURVES, audited, result, saved

pytestmark = needed
Image = pytest.importorskip("PIL.Image", reason="looking at screenshots needs Pillow")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everything a page can show, with long names."""
    folder = tmp_path_factory.mktemp("browser")
    classes = tuple(f"class-number-{number}" for number in range(10))
    shown = result(
        classes=classes, method="lp_mst", images=True, test=0.85, curves=CURVES, rows=60_000, evaluation=own(classes)
    )
    other = result(epsilon=4.0, classes=classes, method="one_shot", images=True, test=0.91)
    model, beside = saved(folder / "a-model-with-a-rather-long-name", shown), saved(folder / "other", other)
    return page(gather(model, audit=audited(folder), beside=[beside], non_private=0.94))


def own(classes):
    """What rows set aside would say of so many classes."""
    sides = [Measure(0.8765, 0.0432) for _ in classes]
    names = ("accuracy", "majority_baseline", "auc", "log_loss", "calibration_error")
    shares = tuple(tuple(50.0 if a == b else 3.0 for a in classes) for b in classes)
    roc = ((0.0, 0.0), (0.2, 0.7), (1.0, 1.0)) if len(classes) == 2 else ()
    return Evaluation(
        6000, 1.0, {name: Measure(0.8765, 0.0432) for name in names}, classes, shares, tuple(sides), tuple(sides), roc,
        ((0.1, 0.15, 0.05), (0.5, 0.45, 0.08), (0.9, 0.88, 0.04)),
    ).to_json()  # fmt: skip


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


@pytest.mark.parametrize(
    ("width", "fonts"),
    [
        # Every width and every font once; all pairs in the slow tests.
        pytest.param(width, font, marks=[pytest.mark.slow] * (place != number % len(FONTS)))
        for place, width in enumerate([360, 768, 1280])
        for number, font in enumerate(FONTS)
    ],
)
def test_nothing_is_wider_than_the_screen_and_no_text_overlaps(found, width, fonts):
    page = found(width, fonts)
    assert page["width"] == width
    assert page["scroll"] <= width
    assert page["wide"] == []
    assert page["spilt"] == []
    assert page["over"] == []
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
    assert found["spilt"] == []
    narrow = made.replace("<table ", '<table style="width:150%" ')
    assert measured(narrow, 768, tmp_path)["spilt"] != []
    over = made.replace("<section ", '<section style="margin-top:-40px" ')
    assert measured(over, 768, tmp_path)["over"] != []


@pytest.mark.parametrize("width", mostly_slow([360, 768, 1280]))
def test_26_classes_and_columns_of_an_array_hold_too(tmp_path, width):
    classes = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    made = result(classes=classes, method="rr+learner", test=None, rows=8000, evaluation=own(classes))
    columns = [
        {"name": f"x{place}", "read_as": "number", "missing": None, "distinct": None, "note": ""} for place in range(3)
    ]
    story = dataclasses.replace(made.story, columns=tuple(columns))
    shown = page(gather(saved(tmp_path / "letters", dataclasses.replace(made, story=story))))
    found = measured(shown, width, tmp_path)
    assert (found["scroll"], found["wide"], found["spilt"], found["over"]) == (width, [], [], [])
    for texts in found["texts"]:
        assert overlapping(texts) == []


def test_a_table_with_two_classes_and_its_curves_holds_too(tmp_path):
    shown = result(test=0.85, evaluation=own(("no", "yes")))
    found = measured(page(gather(saved(tmp_path / "table", shown))), 768, tmp_path)
    assert (found["scroll"], found["wide"], found["spilt"], found["over"]) == (768, [], [], [])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_prints_on_a_few_light_pages(made, dark, tmp_path):
    path = printed(made, tmp_path / "page.pdf", dark=dark)
    content = path.read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 12


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(1280, False, id="light", marks=pytest.mark.slow),
        pytest.param(1280, True, id="dark"),
        pytest.param(360, False, id="phone", marks=pytest.mark.slow),
    ],
)
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
