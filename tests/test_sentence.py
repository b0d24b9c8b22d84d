"""What a sentence may not be, one row a contradiction; what it may, by properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import Markup
from random_sentences import sentences, spans

from mtlprune.layers import find_cycle
from mtlprune.sentence import LAYERS, Dependencies, Predicate, Sentence, SentenceError, Span, check_unique

W = ("a", "b", "c", "d")


def dep(*heads: Any, relations: Any = None) -> Dependencies:
    return Dependencies(heads, ("x",) * len(heads) if relations is None else relations)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "a sentence needs an id that is a non-empty string, found ''"),
    ({"words": ()}, "words: expected at least one word, found none"),
    ({"words": ("a", "")}, "words: word 1 is ''; expected a non-empty string"),
    ({"words": ("a", "b\tc")}, "word 1 is 'b\\tc'; expected a word without a tab or a line break"),
    *(({"split": split}, "second text of the pair begins at word") for split in (0, 4, 5)),
    ({"pos": ("A", "B")}, "pos: expected one tag per word, found 2 for 4 words"),
    ({"pos": ("A", "B", "", "D")}, "pos: the label of word 2 is ''; expected a non-empty string without blanks"),
    ({"pos": ("A", "_", "C", "D")}, "pos: the label of word 1 is '_', which means unknown"),
    ({"ner": (Span(0, 1, "_"),)}, "ner: the label of the span 0–1 is '_'"),
    ({"dep": dep(0, 1, 1, 1, relations=("x", "_", "x", "x"))}, "dep: the label of word 2 is '_'"),
    ({"ner": (Span(0, 5, "P"),)}, "ner: the span 0–5 (P) does not lie within the 4 words"),
    ({"ner": (Span(0, 1, ""),)}, "ner: the label of the span 0–1 is ''"),
    ({"ner": spans((0, 2, "P"), (1, 3, "L"))}, "ner: L 1–3 overlaps or precedes P 0–2; entities are flat and in order"),
    ({"dep": dep(0, 1, 1)}, "dep: expected 4 heads and 4 relations, found 3 and 3"),
    ({"dep": dep(0, 1, 5, 1)}, "dep: the head of word 3 is 5; expected a number from 0 to 4"),
    ({"dep": dep(0, 1, 1, 1, relations=("x", "y z", "x", "x"))}, "dep: the label of word 2 is 'y z'"),
    ({"dep": dep(2, 1, 1, 1)}, "dep: no word has head 0; give one word the head 0"),
    ({"dep": dep(0, 3, 4, 2)}, "dep: the heads form a circle: 2 → 3 → 4 → 2"),
    ({"con": (Span(0, 2, "A"), Span(1, 3, "B"))}, "con: brackets cross: A 0–2 and B 1–3"),
    ({"con": (Span(0, 2, "A"), Span(0, 4, "B"))}, "con: B 0–4 comes after A 0–2; brackets must be in pre-order"),
    ({"con": (Span(0, 2, "A+B"),)}, "con: A+B 0–2 has a label with + or |<>"),
    ({"con": (Span(0, 9, "A"),)}, "con: the span 0–9 (A) does not lie within the 4 words"),
    ({"srl": (Predicate(4),)}, "srl: there is a predicate at word 4, but the sentence has 4 words"),
    ({"srl": (Predicate(2), Predicate(2))}, "srl: the predicate at word 2 follows the one at word 2"),
    ({"srl": (Predicate(1, None, (Span(3, 5, "A0"),)),)}, "srl: the span 3–5 (A0) does not lie within the 4 words"),
    ({"srl": (Predicate(1, None, (Span(0, 1, "A 0"),)),)}, "srl: the label of the span 0–1 is 'A 0'"),
]


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS, ids=[m[:50] for _, m in CONTRADICTIONS])
def test_contradictions_are_told_in_words(change, message):
    with pytest.raises(SentenceError) as error:
        Sentence(**{"id": "s1", "words": W, **change}).validate()
    assert message in str(error.value)
    assert "id" in change or str(error.value).startswith("sentence 's1', ")


def test_two_roots_and_unbreakable_blanks_are_allowed():
    sentence = Sentence("s1", ("\u00a0x", *W[1:]), dep=dep(0, 0, 1, 2))  # some treebanks have them
    assert sentence.validate() is sentence


@given(sentences())
def test_layers_and_bare(sentence):
    assert sentence.validate() is sentence
    layers = {name: getattr(sentence, name) for name in LAYERS}
    assert sentence.layers() == tuple(name for name, value in layers.items() if value is not None)
    bare = sentence.bare()
    assert (bare.id, bare.words, bare.layers()) == (sentence.id, sentence.words, ())
    assert bare.with_layers(**layers) == sentence and hash(sentence) == hash(bare.with_layers(**layers))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8).map(lambda heads: [min(h, len(heads)) for h in heads]))
def test_cycles_against_walking_up(heads):
    def reaches_root(word: int) -> bool:
        for _ in range(len(heads) + 1):
            if word == 0:
                return True
            word = heads[word - 1]
        return False

    cycle = find_cycle(heads)
    assert bool(cycle) != all(reaches_root(word) for word in range(1, len(heads) + 1))
    for word, following in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        assert heads[word - 1] == following


def test_a_long_chain_is_no_matter():
    n = 100_000
    assert find_cycle(list(range(n))) == []
    assert len(find_cycle([n, *range(1, n)])) == n


def test_ids_must_differ():
    one, two = Sentence("1", W), Sentence("2", W)
    assert list(check_unique([one, two])) == [one, two]
    with pytest.raises(SentenceError, match="the id '1' occurs twice; ids must be unique within a corpus"):
        list(check_unique([one, two, one]))


@given(sentences())
def test_a_notebook_shows_every_word_and_layer(sentence):
    rows = Markup(sentence._repr_html_()).rows
    assert [row[0] for row in rows[1:]] == list(sentence.words)
    assert rows[0][1:] == list(sentence.layers()) and {len(row) for row in rows} == {1 + len(sentence.layers())}
