"""Markup of the page: whatever words go into a part come out as words, drawings in the page's ink."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from mtlprune.reports.page.plots import DOZEN, Forest, Interval

from mtlprune.reports.drawing import Box, Drawing, Line, Text
from mtlprune.reports.grid import Strong
from mtlprune.reports.page.figures import inked, is_map
from mtlprune.reports.page.render import Part, rendered
from mtlprune.reports.sections import Figure, Paragraph, Rows


class Reader(HTMLParser):
    """Tags and words of a piece of markup."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(str(text))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")))


def analysis(*blocks: Paragraph | Rows | Figure) -> Part:
    return Part("x", "x", {"blocks": blocks}, template="analysis")


@given(PRINTABLE, PRINTABLE)
def test_words_stay_words(words: str, other: str) -> None:
    drawing = Figure(Drawing(9, 9, "t", (Line(0, 0, 9, 9, 1.0, (28, 28, 30)),)), other)
    read = Reader(analysis(Paragraph(words), drawing).body)
    assert read.words.strip() == words
    assert [attributes["aria-label"] for tag, attributes in read.tags if tag == "svg"] == [other]


@given(st.text())
def test_no_text_can_open_a_tag_or_break_the_file(words: str) -> None:
    made = analysis(Rows(["a", words], [[words, "1"], [Strong(words), "2"]], words)).body
    expected = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "strong", "span", "small"}
    assert {tag for tag, _ in Reader(made).tags} <= expected
    made.encode("utf-8")


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | PRINTABLE | st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_data_comes_back_and_cannot_end_its_element(tree: object) -> None:
    part = Part("x", "x", {"blocks": []}, data={"tree": tree, "undefined": math.nan}, template="analysis")
    made = rendered("t", [part], [Path("run")])
    inner = made.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(inner)
    assert json.loads(inner) == {"x": {"tree": tree, "undefined": None}}


def test_a_cell_has_its_mean_its_spread_and_its_difference() -> None:
    made = Reader(analysis(Rows(["a", "b\nF1"], [["x", Strong("9.0 ± 0.1\n+1.0")]], "", ["b\nF1"])).body)
    assert "9.0 ± 0.1 +1.0" in " ".join(made.words.split())
    tags = [tag for tag, _ in made.tags]
    assert tags.count("strong") == tags.count("small") == 1


def test_drawings_take_the_inks_of_the_page_but_maps_keep_their_ground() -> None:
    plot = Drawing(10, 10, "t", (Text(1, 2, "<script>", 12, (28, 28, 30)),))
    made = inked(plot, 'an "alt" \\1 <b>')
    assert 'fill="var(--ink)"' in made and "&lt;script&gt;" in made and not is_map(plot)
    assert Reader(made).tags[0][1]["aria-label"] == 'an "alt" \\1 <b>'
    shaded = Drawing(10, 10, "t", (Box(0, 0, 5, 5, (120, 120, 120), "layer 1, head 1: 0.53"),))
    made = analysis(Figure(shaded, "a map")).body
    assert any("light" in (attributes.get("class") or "") for _, attributes in Reader(made).tags) and "0.53" in made


def test_a_forest_names_every_row_and_shows_a_dozen() -> None:
    rows = [Interval(f"row {k}", k, k - 1, k + 1, True, f"{k} told") for k in range(30)]
    rows[1] = Interval("row 1", 1, math.nan, math.nan, False, "1 told")
    made = Forest("Differences", rows)
    assert [row.name for row in made.rows] == [f"row {k}" for k in range(DOZEN)] and "11 told" in made.alt
    places = [made.at(row.value) for row in made.rows]
    assert places == sorted(places) and all(0 < at < 100 for at in places)
    assert {words: at for at, words in made.ticks}["0"] == places[0]
    assert [row.known for row in made.rows] == [k != 1 for k in range(DOZEN)]
    wide = Forest("One is much wider than the others", [*rows[:3], Interval("wide", 1, -1000, 1000, False, "")])
    assert (wide.at(-1000), wide.at(1000)) == (0, 100) and wide.at(2) - wide.at(0) > 20
    assert Forest("Nothing differs", [Interval("row", 0, 0, 0, False, "")]).at(0) == 50
