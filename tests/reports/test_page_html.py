"""Markup of the page: whatever words go into a part come out as words, drawings in the page's ink."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mtlprune.reports.analyses import Figure
from mtlprune.reports.grid import Grid, Strong
from mtlprune.reports.page.render import Part, rendered


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


def analysis(*blocks: str | Grid | Figure) -> Part:
    return Part("x", "x", {"blocks": blocks}, template="analysis")


@given(PRINTABLE)
def test_words_stay_words(words: str) -> None:
    assert Reader(analysis(words).body).words.strip() == words


@given(st.text())
def test_no_text_can_open_a_tag_or_break_the_file(words: str) -> None:
    made = analysis(Grid(["a", words], [[words, "1"], [Strong(words), "2"]], title=words)).body
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
    assert json.loads(inner)["x"] == {"tree": tree, "undefined": None}


def test_a_cell_has_its_mean_its_spread_and_its_difference() -> None:
    made = Reader(analysis(Grid(["a", "b\nF1"], [["x", Strong("9.0 ± 0.1\n+1.0")]])).body)
    assert "9.0 ± 0.1 +1.0" in " ".join(made.words.split())
    tags = [tag for tag, _ in made.tags]
    assert tags.count("strong") == tags.count("small") == 1
