"""Sentence: the only currency. Words and five optional layers, for gold and predictions alike.

A layer that is ``None`` is *unknown*; an empty layer means *nothing there*. Word indices count from 0; spans are
half-open, ``[start, end)``. This file imports nothing of ours but the base of all errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mtlprune.errors import MtlpruneError

LAYERS = ("pos", "ner", "dep", "con", "srl")

NOT_ARGUMENTS = frozenset({"V", "C-V"})
"""Labels that mark the predicate itself; no task predicts them and no score counts them."""


class SentenceError(MtlpruneError):
    """A sentence contradicts itself; the message names the sentence, the layer and what is wrong."""


class Span(NamedTuple):
    """Words ``start`` to ``end - 1`` carry ``label``."""

    start: int
    end: int
    label: str


class Dependencies(NamedTuple):
    """``heads[i]`` is the head of word ``i``, counted from 1 as in CoNLL-U; 0 is the root."""

    heads: tuple[int, ...]
    relations: tuple[str, ...]


class Predicate(NamedTuple):
    """A predicate at word ``index``. ``arguments`` may hold V and C-V as in the corpus; no task predicts those."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a predicate
    roleset: str | None = None
    arguments: tuple[Span, ...] = ()
    lemma: str | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and what is known about them.

    Args:
        id: unique within a corpus.
        words: at least one, none empty, none with a tab or a line break.
        pos: one tag a word.
        ner: flat typed spans, in order of their start.
        dep: heads and relations, a tree.
        con: labelled brackets in pre-order (outermost first; of a unary chain the upper label first), without the TOP
            node and without part-of-speech tags.
        srl: predicates in order of their index, each index once.
    """

    id: str
    words: tuple[str, ...]
    pos: tuple[str, ...] | None = None
    ner: tuple[Span, ...] | None = None
    dep: Dependencies | None = None
    con: tuple[Span, ...] | None = None
    srl: tuple[Predicate, ...] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def layers(self) -> tuple[str, ...]:
        """The names of the layers that are known."""
        return tuple(name for name in LAYERS if getattr(self, name) is not None)

    def bare(self) -> Sentence:
        """The same words with every layer unknown."""
        return Sentence(self.id, self.words)

    def with_layers(self, **layers: Any) -> Sentence:
        """A copy with some layers replaced."""
        return replace(self, **layers)

    def validate(self) -> Sentence:
        """Return the sentence itself, or raise SentenceError in words."""
        _check_words(self)
        _check_tags(self, "pos")
        _check_ner(self)
        _check_dep(self)
        _check_con(self)
        _check_srl(self)
        return self


def _wrong(sentence: Sentence, layer: str, what: str) -> SentenceError:
    return SentenceError(f"sentence {sentence.id!r}, {layer}: {what}")


def _check_words(sentence: Sentence) -> None:
    if not isinstance(sentence.id, str) or not sentence.id:
        raise SentenceError(f"a sentence needs an id that is a non-empty string, found {sentence.id!r}")
    if not sentence.words:
        raise _wrong(sentence, "words", "there are none; a sentence needs at least one word")
    for place, word in enumerate(sentence.words):
        if not isinstance(word, str) or not word.strip():
            raise _wrong(sentence, "words", f"word {place} is {word!r}; expected a non-empty string")
        if any(mark in word for mark in "\t\n\r"):
            raise _wrong(sentence, "words", f"word {place} is {word!r}; a word may not hold a tab or a line break")


def _check_label(sentence: Sentence, layer: str, label: object, where: str) -> None:
    if not isinstance(label, str) or not label or any(c.isspace() for c in label):
        raise _wrong(sentence, layer, f"the label of {where} is {label!r}; expected a non-empty string without blanks")


def _check_span(sentence: Sentence, layer: str, span: Span) -> None:
    if not 0 <= span.start < span.end <= len(sentence):
        raise _wrong(
            sentence,
            layer,
            f"the span {span.start}–{span.end} ({span.label}) does not lie within the {len(sentence)} words "
            "(expected 0 ≤ start < end ≤ number of words)",
        )
    _check_label(sentence, layer, span.label, f"the span {span.start}–{span.end}")


def _check_tags(sentence: Sentence, layer: str) -> None:
    """A layer of one label a word."""
    tags = getattr(sentence, layer)
    if tags is None:
        return
    if len(tags) != len(sentence):
        raise _wrong(sentence, layer, f"expected one tag a word, found {len(tags)} for {len(sentence)} words")
    for place, tag in enumerate(tags):
        _check_label(sentence, layer, tag, f"word {place}")


def _check_ner(sentence: Sentence) -> None:
    if sentence.ner is None:
        return
    before = None
    for span in sentence.ner:
        _check_span(sentence, "ner", span)
        if before is not None and span.start < before.end:
            raise _wrong(
                sentence,
                "ner",
                f"{span.label} {span.start}–{span.end} overlaps or precedes {before.label} {before.start}–{before.end}"
                "; entities are flat and in order",
            )
        before = span


def _check_dep(sentence: Sentence) -> None:
    if sentence.dep is None:
        return
    heads, relations = sentence.dep
    n = len(sentence)
    if len(heads) != n or len(relations) != n:
        raise _wrong(
            sentence, "dep", f"expected {n} heads and {n} relations, found {len(heads)} and {len(relations)}"
        )
    for place, (head, relation) in enumerate(zip(heads, relations, strict=True), 1):
        if not isinstance(head, int) or not 0 <= head <= n:
            raise _wrong(sentence, "dep", f"the head of word {place} is {head!r}; expected a number from 0 to {n}")
        _check_label(sentence, "dep", relation, f"word {place}")
    if 0 not in heads:
        raise _wrong(sentence, "dep", "no word has head 0; a tree needs a root")
    cycle = find_cycle(heads)
    if cycle:
        raise _wrong(sentence, "dep", "the heads run in a circle: " + " → ".join(map(str, [*cycle, cycle[0]])))


def find_cycle(heads: Sequence[int]) -> list[int]:
    """The words (from 1) of one cycle in ``heads``, or an empty list where every word leads to the root."""
    state = [0] * (len(heads) + 1)  # 0 not seen, 1 on the present path, 2 known to reach the root
    state[0] = 2
    for start in range(1, len(heads) + 1):
        path = []
        word = start
        while state[word] == 0:
            state[word] = 1
            path.append(word)
            word = heads[word - 1]
        if state[word] == 1:
            return path[path.index(word) :]
        for seen in path:
            state[seen] = 2
    return []


def _check_con(sentence: Sentence) -> None:
    if sentence.con is None:
        return
    for span in sentence.con:
        _check_span(sentence, "con", span)
    open_spans: list[Span] = []
    before: Span | None = None
    for span in sentence.con:
        if before is not None and (span.start, -span.end) < (before.start, -before.end):
            raise _wrong(
                sentence,
                "con",
                f"{span.label} {span.start}–{span.end} stands after {before.label} {before.start}–{before.end}; "
                "brackets must be in pre-order (by start, longer ones first)",
            )
        before = span
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        if open_spans and span.end > open_spans[-1].end:
            outer = open_spans[-1]
            raise _wrong(
                sentence,
                "con",
                f"brackets cross: {outer.label} {outer.start}–{outer.end} and {span.label} {span.start}–{span.end}",
            )
        open_spans.append(span)


def _check_srl(sentence: Sentence) -> None:
    if sentence.srl is None:
        return
    before = -1
    for predicate in sentence.srl:
        if not 0 <= predicate.index < len(sentence):
            raise _wrong(
                sentence, "srl", f"a predicate stands at word {predicate.index}, but there are {len(sentence)} words"
            )
        if predicate.index <= before:
            raise _wrong(
                sentence,
                "srl",
                f"the predicate at word {predicate.index} follows the one at word {before}; "
                "predicates must be in order and each word can be one predicate only",
            )
        before = predicate.index
        for span in predicate.arguments:
            _check_span(sentence, "srl", span)


def check_unique(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Pass sentences through, raising SentenceError at the second one with the same id."""
    seen: set[str] = set()
    for sentence in sentences:
        if sentence.id in seen:
            raise SentenceError(f"the id {sentence.id!r} occurs twice; ids must be unique within a corpus")
        seen.add(sentence.id)
        yield sentence
