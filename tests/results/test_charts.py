import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.results.charts import HEIGHT, SIZE, WIDTH, Axis, Band, Series, bars, chart, dot_grid, legend, text_width
from labeldp.results.markup import DARK, LIGHT, stylesheet


def boxes(image):
    """Where each text lies, by the estimate the charts use."""
    for text in ElementTree.fromstring(image).iter("text"):
        width, x, y = text_width(text.text, SIZE), float(text.get("x")), float(text.get("y"))
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor")]
        yield left, left + width, y - 0.75 * SIZE, y + 0.2 * SIZE


def overlapping(found):
    found = list(found)
    return [
        (a, b) for place, a in enumerate(found) for b in found[place + 1 :]
        if a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
    ]  # fmt: skip


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(-1e5, 1e5)), min_size=2, max_size=20), st.booleans())
def test_texts_do_not_overlap_and_everything_is_inside(points, log):
    points = sorted(points)
    values = [value for _, value in points]
    if points[0][0] >= points[-1][0] * 0.999:
        return
    x, y = Axis("epoch", points[0][0], points[-1][0], log=log), Axis("loss", min(values) - 1, max(values) + 1)
    image = chart("Loss", "It moves.", x, y, [Series("loss", points, dots=True)])
    assert overlapping(boxes(image)) == []
    assert all(left >= -1 and right <= WIDTH + 1 and bottom <= HEIGHT for left, right, _, bottom in boxes(image))
    for line in re.findall(r'class="line t1" d="M([^"]+)"', image):
        places = [tuple(map(float, pair.split(","))) for pair in line.split("L")]
        assert all(0 <= px <= WIDTH and 0 <= py <= HEIGHT for px, py in places)


def test_pictures_are_xml_with_words_for_those_who_do_not_see_them():
    image = chart('a < "b"', "told & told", Axis("x", 0, 1), Axis("y", 0, 1), [Band("b", [0, 1], [0, 0], [1, 1])])
    root = ElementTree.fromstring(image)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a < "b". told & told'
    assert root.find("title").text == 'a < "b"'


@pytest.mark.parametrize("filled", [0, 1, 73, 100])
def test_dots_are_counted(filled):
    image = dot_grid("Right", "So many.", filled)
    assert image.count('class="dot t1"') == filled
    assert image.count('class="hollow"') == 100 - filled


def test_bars_are_as_long_as_their_values():
    image = bars("Worth", "In labels.", [("a", 10.0, "10", True), ("b", 5.0, "5", False), ("c", 0.0, "0", False)])
    widths = [float(width) for width in re.findall(r'width="([\d.]+)"', image)]
    assert widths == [WIDTH, WIDTH / 2, 1.5]
    assert overlapping(boxes(image)) == []


def test_a_legend_tells_lines_apart_without_colour():
    told = legend(
        [Series("one", [(0, 0), (1, 1)]), Series("two", [(0, 0), (1, 1)], tone=2, dashed=True), Series("", [])]
    )
    assert told.count("<li>") == 2
    assert "dashed" in told


# --- colours --------------------------------------------------------------------------------------------------------


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_black_and_white_is_known():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_lines_stand_out(colours):
    for text in ("text", "soft", "good", "bad"):
        for ground in ("page", "card", "code"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("t1", "t2", "t3", "t4", "t5", "hollow"):
        assert contrast(colours[mark], colours["card"]) >= 3.0, mark


def test_both_schemes_name_the_same_colours_and_all_are_used():
    assert LIGHT.keys() == DARK.keys()
    rules = stylesheet()
    assert all(f"var(--{name})" in rules for name in LIGHT)
    assert "prefers-color-scheme: dark" in rules
