"""Counting, and projectivity against its definition."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from random_sentences import trees

from mtlprune.corpora.tables import Counts, count, is_projective
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span


@given(st.integers(1, 8).flatmap(trees))
def test_projective_means_that_no_two_arcs_cross(tree: Dependencies) -> None:
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(tree.heads, 1)]
    crossing = any(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(arcs, 2))
    assert is_projective(tree.heads) == (not crossing)


def test_counts() -> None:
    first = Sentence(
        "a",
        ("a", "b", "c", "d"),
        pos=("X", "X", "Y", "Z"),
        ner=(Span(0, 1, "PER"), Span(1, 2, "LOC"), Span(2, 3, "PER")),
        dep=Dependencies((3, 4, 0, 3), ("r", "r", "root", "q")),
        con=(Span(0, 4, "S"), Span(0, 4, "S")),
        srl=(Predicate(0, None, (Span(0, 1, "V"), Span(1, 2, "C-V"), Span(2, 3, "A"))), Predicate(1)),
    )
    assert count([first, Sentence("b", ("a",), ner=())]) == Counts(
        sentences=2,
        words=5,
        longest=4,
        known={"pos": 1, "ner": 2, "dep": 1, "con": 1, "srl": 1},
        all_layers=1,
        tags=3,
        entities={"LOC": 1, "PER": 2},
        relations=3,
        non_projective=1,
        constituents=2,
        constituent_labels=1,
        predicates=2,
        arguments=1,
        roles=1,
    )
