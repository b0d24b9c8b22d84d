"""Charts: the committed Result of smoothing drawn for page and paper; bytes repeat, NaN is marked, widths are kept."""

import re

import numpy as np
import pandas as pd
import pytest

from mtlprune.reports.charts import (
    DOZEN,
    PALE,
    POINT,
    ChartError,
    Interval,
    Style,
    cells,
    figure,
    forest,
    head_map,
    lines,
    panels,
    render,
    svg,
)
from mtlprune.results import head_rows

NAMES = ["first", "second <b>"]


def frame(**grids: np.ndarray) -> pd.DataFrame:
    parts = [head_rows({"value": grid}).assign(name=name) for name, grid in zip(NAMES, grids.values(), strict=True)]
    held = pd.concat(parts, ignore_index=True)
    return held.assign(name=pd.Categorical(held["name"], NAMES))


MAPS = frame(one=np.array([[0.0, 1.0, np.nan], [-1.0, 0.5, 1e9]]), two=np.zeros((2, 3)))


def rectangles(text: str) -> list[str]:
    """Colours of 15 × 15 cells, in the order of drawing."""
    return re.findall(r'<path d="M[-\d.]+,[-\d.]+h15v15h-15Z" fill="([^"]*)"', text)


def test_a_map_has_a_cell_for_each_head_and_says_its_number():
    text = svg(figure(head_map(MAPS, "value", limit=1.0, diverging=True), "A map"))
    found = rectangles(text)
    assert len(found) == 12
    assert found[1] == found[4] == "rgb(178, 24, 43)" and found[2] == "rgb(33, 102, 172)"  # clamped; below 0
    assert found[0] == "rgb(255, 255, 255)" and found[5] == "#ffffff"  # 0, and what is not known
    assert "<title>layer 1, head 2: 1</title>" in text and "<title>layer 1, head 3: –</title>" in text
    assert "second &lt;b&gt;" in text and "<b>" not in text
    rows = pd.DataFrame({"x": ["a", "b"] * 2, "y": ["if", "if", "c", "c"], "value": [1.0, -2.0, np.nan, 0.0]})
    rows["words"] = ["one", "two", "", "none"]
    text = svg(figure(cells(rows, "x", "y", (-2, 2), size=(15, 15)), "title"))
    assert len(rectangles(text)) == 4 and rectangles(text).count(PALE) == 1 and ">one<" in text


def curves(rows: int = 7) -> pd.DataFrame:
    parts = [pd.DataFrame({"name": name, "layer": range(rows), "value": np.arange(rows) * 0.1}) for name in NAMES]
    held = pd.concat(parts, ignore_index=True)
    return held.assign(name=pd.Categorical(held["name"], NAMES))


@pytest.mark.parametrize("width", [8.0, 16.0])
def test_a_paper_gets_its_width_and_its_size_of_words(width):
    spec = figure(panels([lines(curves(), "layer", "value", title=str(k)) for k in range(3)], 3), "Three", ["Words."])
    text = svg(spec, Style(width, 8, title=False))
    found = re.search(r'<svg [^>]*width="([\d.]+)"[^>]*viewBox="0 0 ([\d.]+)', text)
    assert float(found[1]) == pytest.approx(width * POINT, abs=0.1)
    assert float(found[1]) / float(found[2]) == pytest.approx(1, abs=0.08)  # so words have 8 points, as asked
    assert "Three" not in text and "Three" in svg(spec) and render(spec, "pdf", Style(width, 8)).startswith(b"%PDF")


def test_what_is_too_narrow_is_refused():
    spec = figure(panels([lines(curves(), "layer", "value") for _ in range(3)], 3), "Three")
    with pytest.raises(ChartError, match=r"at least [0-9.]+ cm wide"):
        render(spec, "pdf", Style(1.5))


def test_there_is_no_limit_of_rows():
    text = svg(figure(lines(curves(3000), "layer", "value"), "Many"))
    assert text.count("<circle") >= 6000


def test_a_forest_names_every_row_and_shows_a_dozen():
    rows = [Interval(f"row {k}", k, k - 1, k + 1, True, f"{k} told") for k in range(30)]
    rows[1] = Interval("row 1", 1, np.nan, np.nan, False, "1 told")
    text = svg(figure(forest(rows, x_title="points")))
    assert re.findall(r">(row \d+)<", text) == [f"row {k}" for k in range(DOZEN)] and text.count("<circle") == DOZEN
    svg(figure(forest([Interval("row", 0, 0, 0, False, "")])))
