"""Layers moved between tokenisations: by characters and by groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import flat_spans, nested_spans, predicates, spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.ewt5 import Group, Regrouping, move_entities
from mtlprune.sentence import Predicate, Sentence, Span


def words(text: str, ner: tuple[Span, ...] | None = None, name: str = "s") -> Sentence:
    return Sentence(name, tuple(text.split()), ner=ner)


def test_entities_grow_to_whole_words_and_follow_sentences() -> None:
    source = [
        words("Al - Zaman is in Rome", (Span(0, 3, "ORG"), Span(5, 6, "LOC"))),
        words("Ann's", (Span(0, 1, "PER"),)),
    ]
    target = [words("Al-Zaman is"), words("in Rome"), words("Ann 's")]
    assert move_entities(source, target) == [(Span(0, 1, "ORG"),), (Span(1, 2, "LOC"),), (Span(0, 2, "PER"),)]
    part = [words("New York City", (Span(0, 2, "LOC"),))]
    assert move_entities(part, [words("New YorkCity")]) == [(Span(0, 2, "LOC"),)]


@given(st.data())
def test_entities_survive_any_retokenisation_that_keeps_their_boundaries(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    spans = data.draw(flat_spans(n))
    source = Sentence("s", ("ab",) * n, ner=spans)
    letters = Sentence("t", ("a", "b") * n)
    moved = move_entities([source], [letters])[0]
    assert moved == tuple(Span(2 * start, 2 * end, label) for start, end, label in spans)
    assert move_entities([letters.with_layers(ner=moved)], [source]) == [spans]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (words("ab c", ()), [words("a bd")], r"the same characters .*found 'c' against 'd' at character 2"),
        (words("a b", spans((0, 2, "X"))), [words("a"), words("b")], "one sentence of the target, found it across two"),
        (words("a b", spans((0, 1, "X"), (1, 2, "Y"))), [words("ab")], "collide"),
    ],
)
def test_entities_that_cannot_be_moved(source: Sentence, target: list[Sentence], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        move_entities([source], target)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), nested_spans(n), predicates(n))))
def test_without_groups_nothing_changes(case: tuple[int, tuple[Span, ...], tuple[Predicate, ...]]) -> None:
    n, con, srl = case
    same = Regrouping(n, n)
    assert same.constituents(con) == con
    assert same.predicates(srl) == srl


def test_several_tokens_to_one_word() -> None:
    """(S (NP a b) (VP c (ADVP d))) with b c d or c d joined: the word takes the place of its first leaf."""
    con = spans((0, 4, "S"), (0, 2, "NP"), (2, 4, "VP"), (3, 4, "ADVP"))
    joined = Regrouping(4, 2, [Group((1, 2, 3), (1,))])
    assert joined.constituents(con) == spans((0, 2, "S"), (0, 2, "NP"))
    srl = (Predicate(3, None, spans((0, 2, "A0"), (3, 4, "V"))),)
    assert joined.predicates(srl) == (Predicate(1, None, spans((0, 2, "A0"), (1, 2, "V"))),)
    last = Regrouping(4, 3, [Group((2, 3), (2,))])
    assert last.constituents(con) == spans((0, 3, "S"), (0, 2, "NP"), (2, 3, "VP"))


def test_one_token_to_several_words() -> None:
    split = Regrouping(3, 4, [Group((1,), (1, 2))])
    con = split.constituents(spans((0, 3, "S"), (1, 2, "NP"), (2, 3, "VP")))
    assert con == spans((0, 4, "S"), (1, 3, "NP"), (3, 4, "VP"))
    srl = split.predicates([Predicate(1, "r", spans((1, 2, "V"), (2, 3, "A")), "l")])
    assert srl == (Predicate(1, "r", spans((1, 3, "V"), (3, 4, "A")), "l"),)


def test_trees_restricted_to_some_words() -> None:
    """Three tokens, of which only the last two are this sentence."""
    part = Regrouping(3, 2, [Group((1,), (0,)), Group((2,), (1,))])
    assert part.constituents(spans((0, 3, "S"), (0, 1, "NP"), (1, 3, "VP"))) == spans((0, 2, "S"), (0, 2, "VP"))
    srl = part.predicates([Predicate(0, None, spans((1, 2, "A"))), Predicate(2, None, spans((0, 2, "A")))])
    assert srl == (Predicate(1, None, spans((0, 1, "A"))),)


@pytest.mark.parametrize(
    ("n_words", "groups", "message"),
    [
        (2, (), "as many tokens as words outside the groups, found 3 and 2"),
        (3, (Group((3,), (0,)),), "outside the 3 tokens and 3 words"),
        (3, (Group((0,), (3,)),), "outside the 3 tokens and 3 words"),
    ],
)
def test_groups_that_do_not_fit(n_words: int, groups: tuple[Group, ...], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        Regrouping(3, n_words, groups)
