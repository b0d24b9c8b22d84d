"""Star columns and one-line trees, there and back."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import nested_spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree, spans_from_stars, stars_from_spans
from mtlprune.sentence import Sentence, Span


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), nested_spans(n))))
def test_spans_to_stars_and_back(case: tuple[int, tuple[Span, ...]]) -> None:
    n, spans = case
    assert spans_from_stars(stars_from_spans(spans, n)) == spans


def test_spans_need_not_be_sorted() -> None:
    assert stars_from_spans([Span(1, 2, "B"), Span(0, 2, "A"), Span(2, 3, "C")], 4) == ["(A*", "(B*))", "(C*)", "*"]


def test_crossing_spans_cannot_be_said() -> None:
    with pytest.raises(CorpusError, match="A 0–2 and B 1–3 cross"):
        stars_from_spans([Span(0, 2, "A"), Span(1, 3, "B")], 3)
    with pytest.raises(CorpusError, match="holds a bracket or star"):
        stars_from_spans([Span(0, 2, "A*")], 3)


@pytest.mark.parametrize(
    ("column", "place", "message"),
    [
        (["(A*", "*"], 0, "never closed"),
        (["*", "*)"], 1, "never opened"),
        (["(A*)", "A"], 1, "expected brackets around one star"),
        (["(*)"], 0, "expected brackets around one star"),
    ],
)
def test_mistakes_know_their_word(column: Sequence[str], place: int, message: str) -> None:
    with pytest.raises(match=message) as caught:
        spans_from_stars(column)
    assert caught.value.place == place


def test_trees_keep_backslashes_and_escape_brackets() -> None:
    sentence = Sentence(
        "a", ("\\", "(", "10 000", ")"), pos=("NFP", "-LRB-", "CD", "-RRB-"), con=(Span(0, 4, "X"), Span(2, 3, "NP"))
    )
    assert format_tree(sentence) == r"(TOP (X (NFP \) (-LRB- -LRB-) (NP (CD 10_000)) (-RRB- -RRB-)))"
    assert format_tree(Sentence("a", ("a", "b"), con=())) == "(TOP (X a) (X b))"
    with pytest.raises(CorpusError, match="has no constituents"):
        format_tree(sentence.bare())
    with pytest.raises(CorpusError, match="holds a bracket"):
        format_tree(Sentence("a", ("a",), con=(Span(0, 1, "N(P"),)))
