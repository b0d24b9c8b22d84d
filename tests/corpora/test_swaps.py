"""Pairs of a sentence and the same with one span swapped: one label changes, and nothing else that gold says."""

from dataclasses import replace

import pytest

from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.swaps import SWAPPED, swapped_pairs
from mtlprune.layers import LAYERS
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return list(build_grammar(400, 1, 1, seed=4)["train"])


@pytest.mark.parametrize("layer", SWAPPED)
def test_one_label_and_the_words_of_its_span_change(sentences: list[Sentence], layer: str) -> None:
    pairs = swapped_pairs(sentences, layer)
    assert len(pairs) > 20 and pairs == swapped_pairs(sentences, layer)
    of = {sentence.id: sentence for sentence in sentences}
    for changed, first, second in pairs:
        assert changed == (layer,) and first == of[first.id] and len(first) == len(second.validate())
        assert [name for name in LAYERS if first.get(name) != second.get(name)] == [layer]
        spans, others = (_spans(one, layer) for one in (first, second))
        [before], [after] = spans - others, others - spans
        assert before[:2] == after[:2]
        different = {place for place, (a, b) in enumerate(zip(first.words, second.words, strict=True)) if a != b}
        assert different and different <= set(range(*before[:2]))
        words = " ".join(second.words[slice(*before[:2])])  # are words of the corpus with this label
        assert any(
            words == " ".join(one.words[span.start : span.end]) and span.label == after.label
            for one in sentences
            for span in _spans(one, layer)
        )


def _spans(sentence: Sentence, layer: str) -> set[Span]:
    spans = sentence.ner if layer == "ner" else [span for one in sentence.srl or () for span in one.arguments]
    return set(spans or ())


ANN = Sentence(
    "ann",
    ("Ann", "sleeps", "now"),
    ("NNP", "VBZ", "RB"),
    (Span(0, 1, "PER"),),
    Dependencies((2, 0, 2), ("nsubj", "root", "advmod")),
    (Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "ADVP")),
    (Predicate(1, None, (Span(0, 1, "ARG0"), Span(1, 2, "V"), Span(2, 3, "ARGM-TMP"))),),
)
SHELL = replace(
    ANN,
    id="shell",
    words=("Shell", "drills", "here"),
    ner=(Span(0, 1, "ORG"),),
    srl=(Predicate(1, None, (Span(0, 1, "ARG0"), Span(1, 2, "V"), Span(2, 3, "ARGM-LOC"))),),
)


def test_names_and_modifiers_of_two_sentences() -> None:
    names = {pair.second.words for pair in swapped_pairs([ANN, SHELL], "ner")}
    assert names == {("Shell", "sleeps", "now"), ("Ann", "drills", "here")}
    modifiers = {pair.second.words for pair in swapped_pairs([ANN, SHELL], "srl")}
    assert modifiers == {("Ann", "sleeps", "here"), ("Shell", "drills", "now")}


@pytest.mark.parametrize(
    "other",
    [
        replace(SHELL, pos=("NN", "VBZ", "NN")),
        replace(SHELL, dep=Dependencies((2, 0, 2), ("obj", "root", "obl"))),
        replace(SHELL, con=(Span(0, 3, "S"),)),
        replace(SHELL, con=None),
        replace(SHELL, con=(Span(0, 2, "S"), Span(1, 3, "S"))),
        replace(SHELL, srl=(Predicate(0, None, (Span(0, 1, "V"),)), Predicate(2, None, (Span(2, 3, "V"),)))),
        replace(SHELL, ner=(Span(0, 1, "PER"), Span(2, 3, "LOC")), srl=ANN.srl),
    ],
    ids=["tags", "relations", "brackets", "unknown brackets", "other brackets", "predicates", "the same labels"],
)
@pytest.mark.parametrize("layer", SWAPPED)
def test_spans_that_differ_otherwise_are_not_swapped(other: Sentence, layer: str) -> None:
    assert swapped_pairs([ANN, other], layer) == []


def test_spans_of_one_sentence_and_capitals_are_no_swap() -> None:
    both = Sentence("both", ("Ann", "sees", "Shell"), ner=(Span(0, 1, "PER"), Span(2, 3, "ORG")))
    again = Sentence("again", ("ANN", "sees", "him"), ner=(Span(0, 1, "ORG"),))
    assert swapped_pairs([both], "ner") == []
    assert swapped_pairs([both, again], "ner") == []
    assert swapped_pairs([both, replace(again, words=("Ford", "sees", "him"))], "ner")


def test_negation_stays_and_what_is_referred_to() -> None:
    referred = replace(SHELL, srl=(Predicate(1, None, (Span(0, 1, "R-ARGM-LOC"), Span(2, 3, "ARGM-LOC"))),))
    assert swapped_pairs([ANN, referred], "srl") == []
    negated = replace(SHELL, srl=(Predicate(1, None, (Span(2, 3, "ARGM-NEG"),)),))
    assert swapped_pairs([ANN, negated], "srl") == []
