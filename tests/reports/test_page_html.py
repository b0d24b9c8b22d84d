"""Markup of the page: whatever words go in come out as words."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlprune.reports.drawing import Box, Drawing, Text
from mtlprune.reports.page.figures import figure
from mtlprune.reports.page.html import element, island, joined, plain, table
from mtlprune.reports.page.plots import ticks


class Reader(HTMLParser):
    """Tags and words of a piece of markup."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")))


@given(PRINTABLE, PRINTABLE)
def test_words_stay_words(words: str, other: str) -> None:
    read = Reader(element("p", words, title=other))
    assert read.tags == [("p", {"title": other})]
    assert read.words == words


@given(st.text())
def test_no_text_can_open_a_tag_or_break_the_file(words: str) -> None:
    made = table(["a", words], [[words, "1"]], words)
    assert {tag for tag, _ in Reader(made).tags} <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    made.encode("utf-8")


@settings(max_examples=30)
@given(st.recursive(st.none() | st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_data_comes_back_and_cannot_end_its_element(tree: object) -> None:
    made = island("data", tree)
    inner = made[made.index(">") + 1 : -len("</script>")]
    assert not set("<>&") & set(inner)
    assert json.loads(inner) == tree


def test_children_are_joined_in_order_and_attributes_named() -> None:
    made = element("p", "a", None, ["b", element("b", "c")], class_="x", aria_label="y", hidden=True, id=False)
    assert made == '<p class="x" aria-label="y" hidden>ab<b>c</b></p>'
    assert joined("<", element("br")) == "&lt;<br>"
    assert plain({"a": [float("nan"), 1.0]}) == {"a": [None, 1.0]}


def test_drawings_take_the_inks_of_the_page_but_maps_keep_their_ground() -> None:
    words = Text(1, 2, "<script>", 12, (28, 28, 30))
    plot = figure(Drawing(10, 10, "t", (words,)), 'an "alt" \\1 <b>')
    assert 'fill="var(--ink)"' in plot and "&lt;script&gt;" in plot and "plate" not in plot
    assert Reader(plot).tags[2][1]["aria-label"] == 'an "alt" \\1 <b>'
    shaded = figure(Drawing(10, 10, "t", (Box(0, 0, 5, 5, (120, 120, 120), "layer 1, head 1: 0.53"),)), "a map")
    assert 'class="scroll plate"' in shaded and "0.53" in shaded


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 10, [0, 2, 4, 6, 8, 10]), (-3, 3, [-3, -2, -1, 0, 1, 2, 3]), (5, 5, [5])]
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected
