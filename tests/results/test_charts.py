import re
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text

from labeldp.results import charts
from labeldp.results.charts import DARK, LIGHT, Axis, Band, Series, bars, chart, dot_grid, heat_table

LINE = [Series("up", [(0, 0), (1, 1)])]
SQUARE = (Axis("x", 0, 1), Axis("y", 0, 1))


def parsed(image):
    return ElementTree.fromstring(image.replace("<svg ", '<svg xmlns:xlink="links" ', 1))


def boxes(draw):
    """Return the size of a chart, and where each of its texts lies: outlines, the same on every machine."""
    found, original = {}, Text.draw

    def record(text, renderer):
        # Drawn twice: the layout measures first. The last place counts.
        if text.get_visible() and text.get_text():
            found[id(text)] = text.get_text(), text.get_window_extent(renderer).extents
        original(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        width, height = re.match(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"', draw()).groups()
    return (float(width), float(height)), list(found.values())


def overlapping(found):
    return [
        (one, other) for place, (one, a) in enumerate(found) for other, b in found[place + 1 :]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]  # fmt: skip


def beyond(size, found):
    width, height = size
    return [text for text, box in found if min(box) < -1 or box[2] > width + 1 or box[3] > height + 1]


RANGES = [
    (1e-3, 1e3), (0.5, 1.0), (1.0, 4.0), (0.0104, 0.0233), (999.5, 1000.5), (12_345.0, 2_345_678.0), (1e-3, 1.2e-3),
    (3.1, 730.0), (9.9, 10_000.0), (0.2, 60_000.0),
]  # fmt: skip


@pytest.mark.parametrize("log", [False, True], ids=["straight", "log"])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_texts_do_not_overlap_and_everything_is_inside(low, high, log):
    x, y = Axis("epoch", low, high, log=log), Axis("loss", -high, high / 3)
    points = [(low, -high), (high, high / 3)]
    size, found = boxes(lambda: chart("Loss", "It moves.", x, y, [Series("the loss", points, dots=True)]))
    assert overlapping(found) == []
    assert beyond(size, found) == []
    texts = {text for text, _ in found}
    assert {"epoch", "loss", "the loss"} <= texts
    assert len(texts) >= 5


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.1, 0.11), (0.995, 1.0), (0.3751, 0.4009), (0.12345, 0.12365)])
def test_labels_in_percent_do_not_touch(low, high):
    x, y = (Axis(name, low, high, percent=True) for name in ("before", "after"))
    size, found = boxes(lambda: chart("Beliefs", "They move.", x, y, [Series("", [(low, low)])]))
    assert overlapping(found) == []
    assert beyond(size, found) == []


def test_the_measure_notices_texts_that_overlap(monkeypatch):
    monkeypatch.setattr(charts.ticker, "MaxNLocator", lambda *_, **__: charts.ticker.MultipleLocator(0.05))
    _, found = boxes(lambda: chart("Line", "It rises.", *SQUARE, LINE))
    assert overlapping(found) != []


def test_ticks_of_whole_numbers_are_whole():
    x, y = Axis("epoch", 1, 4, whole=True), Axis("loss", 0, 1)
    _, found = boxes(lambda: chart("Loss", "It falls.", x, y, LINE))
    assert {"1", "2", "3", "4"} <= {text for text, _ in found}
    assert "1.5" not in {text for text, _ in found}


def test_charts_are_xml_with_words_for_those_who_do_not_see_them():
    image = chart('a < "b"', "this & that", *SQUARE, [Band("$band$ <1>", [0, 1], [0, 0], [1, 1])])
    root = parsed(image)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a < "b". this & that Axes: x; y. Shown: $band$ <1>.'
    assert root.find("title").text == 'a < "b"'


def test_charts_hold_no_text_no_style_and_no_link_but_to_themselves():
    image = chart("A line", "It rises.", *SQUARE, LINE)
    tags = {element.tag for element in parsed(image).iter()}
    assert not tags & {"text", "style", "metadata", "image", "script"}
    assert "://" not in image
    assert "url(" not in image
    ids = re.findall(r'\bid="([^"]+)"', image)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', image)) <= set(ids)


def test_two_charts_share_no_id_and_the_same_chart_is_the_same_text():
    one, again, other = (chart(title, "It rises.", *SQUARE, LINE) for title in ("one", "one", "other"))
    assert one == again
    assert not set(re.findall(r'\bid="([^"]+)"', one)) & set(re.findall(r'\bid="([^"]+)"', other))


def test_settings_of_the_user_change_nothing():
    before = chart("A line", "It rises.", *SQUARE, LINE)
    with charts.mpl.rc_context({"font.size": 30.0, "axes.grid": False, "lines.linewidth": 9.0, "svg.fonttype": "none"}):
        assert chart("A line", "It rises.", *SQUARE, LINE) == before
        assert charts.mpl.rcParams["font.size"] == 30.0


def test_names_in_any_script_are_described():
    assert "学習" in chart("Loss", "It falls.", Axis("x", 0, 1), Axis("y", 0, 1), [Series("学習", [(0, 0), (1, 1)])])


@pytest.mark.parametrize("filled", [0, 1, 73, 100])
def test_dots_are_counted(filled):
    image = dot_grid("Right", "So many.", filled, ("true", "drawn"))
    # Every dot is a copy of one of two shapes; the legend has one of each.
    full = len(re.findall(r"<use [^>]*fill: var\(--t1\)", image))
    assert full - 1 == filled
    assert len(re.findall(r"<use [^>]*stroke: var\(--hollow\)", image)) - 1 == 100 - filled


def test_bars_are_as_long_as_their_values():
    image = bars("Worth", "In labels.", [("a", 10.0, "10", True), ("b", 5.0, "5", False), ("c", 0.0, "0", False)])
    drawn = re.findall(r'<path d="M ([\d.]+) [\d.]+ L ([\d.]+) [^"]*"[^>]*style="fill: var\(--t[15]\)', image)
    lengths = [float(right) - float(left) for left, right in drawn]
    assert [length / lengths[0] for length in lengths] == pytest.approx([1, 0.5, 0.005], abs=1e-3)
    assert parsed(image).get("aria-label") == "Worth. In labels. Shown: a: 10; b: 5; c: 0."
    size, found = boxes(lambda: bars("Worth", "In labels.", [("a", 10.0, "10", True), ("b", 5.0, "5", False)]))
    assert overlapping(found) == []
    assert beyond(size, found) == []


def test_lines_are_told_apart_without_colour():
    dashed = Series("two", [(0, 1), (1, 0)], tone=2, dashed=True)
    assert "stroke-dasharray" not in chart("One", "It rises.", *SQUARE, LINE)
    assert "stroke-dasharray" in chart("Two", "One rises.", *SQUARE, [*LINE, dashed])
    shapes = {
        re.search(r'<path id="[^"]*-m\w+" d="([^"]*)"[^>]*--card', chart("Dot", "One.", *SQUARE, [one]))[1]
        for one in (Series("", [(0.5, 0.5)], tone=tone) for tone in (1, 2, 3))
    }
    assert len(shapes) == 3


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


def test_both_schemes_name_the_same_colours_and_each_colour_has_one_name():
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_charts_have_no_colour_but_the_pages():
    drawn = chart("A line", "It rises.", *SQUARE, [Band("b", [0, 1], [0, 0], [1, 1]), *LINE])
    drawn += dot_grid("Right", "So many.", 7, ("true", "drawn")) + bars("Worth", "In labels.", [("a", 1.0, "1", True)])
    assert not re.search(r": #[0-9a-f]{3,6}\b|rgb\(", drawn)
    assert set(re.findall(r"var\(--(\w+)\)", drawn)) <= LIGHT.keys()


@pytest.mark.parametrize("names", [("no", "yes"), ("a rather long name", "b", "c", "d"), tuple(map(str, range(10)))])
def test_a_heat_table_fits(names):
    rows = [[1 / len(names)] * len(names) for _ in names]
    size, found = boxes(lambda: heat_table("Confusion", "All alike.", names, rows, "predicted as"))
    assert overlapping(found) == []
    assert beyond(size, found) == []
    image = heat_table("Confusion", "All alike.", names, rows, "predicted as")
    assert "#" not in re.sub(r'(xlink:href="#|url\(#)', "", image)
    assert f"{names[0]}: " in parsed(image).get("aria-label")
