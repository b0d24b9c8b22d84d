"""Moving layers between two tokenisations of the same text: by characters, or by listed groups of tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.sentence import Predicate, Sentence, SentenceError, Span


def move_entities(annotated: Sequence[Sentence], target: Sequence[Sentence]) -> list[tuple[Span, ...]]:
    """Give the entities of ``annotated`` to the sentences of ``target``, which hold the same characters.

    Both are whole documents: sentence boundaries may differ as well as word boundaries. Blanks do not count. An entity
    takes every word that it touches.

    Raises:
        CorpusError: the characters differ, an entity lies across two sentences, or two entities meet in one word.
    """
    _check_same_text(annotated, target)
    offsets = [0, *accumulate(len(_squeeze(word)) for sentence in annotated for word in sentence.words)]
    ends = list(accumulate(len(_squeeze(word)) for sentence in target for word in sentence.words))
    first_words = [0, *accumulate(len(sentence) for sentence in target)]
    moved: list[list[Span]] = [[] for _ in target]
    before = 0
    for sentence in annotated:
        for start, end, label in sentence.ner or ():
            # words are numbered through the document; word w covers the characters ends[w - 1] to ends[w]
            first = bisect_right(ends, offsets[before + start])
            last = bisect_left(ends, offsets[before + end])
            home = bisect_right(first_words, first) - 1
            if last >= first_words[home + 1]:
                where = f"{label} {start}–{end} of sentence {sentence.id!r}"
                raise CorpusError(f"{where}: expected an entity within one sentence of the target, found it across two")
            moved[home].append(Span(first - first_words[home], last + 1 - first_words[home], label))
        before += len(sentence)
    for spans, sentence in zip(moved, target, strict=True):
        try:
            Sentence(sentence.id, sentence.words, ner=tuple(spans)).validate()
        except SentenceError as error:
            raise CorpusError(f"entities moved to other word boundaries collide: {error}") from error
    return [tuple(spans) for spans in moved]


def _squeeze(word: str) -> str:
    return "".join(word.split())


def _check_same_text(annotated: Sequence[Sentence], target: Sequence[Sentence]) -> None:
    source_text = "".join(_squeeze(word) for sentence in annotated for word in sentence.words)
    target_text = "".join(_squeeze(word) for sentence in target for word in sentence.words)
    if source_text == target_text:
        return
    place = next(
        (k for k, (a, b) in enumerate(zip(source_text, target_text, strict=False)) if a != b),
        min(len(source_text), len(target_text)),
    )
    raise CorpusError(
        f"the document that begins with sentence {target[0].id!r}: expected the same characters in both sources, found "
        f"{source_text[place : place + 20]!r} against {target_text[place : place + 20]!r} at character {place}; take "
        "the versions that belong together"
    )


class Group(NamedTuple):
    """Tokens of one tokenisation that are, together, some words of another; places count from 0."""

    tokens: tuple[int, ...]
    words: tuple[int, ...]


class Regrouping:
    """Trees and roles over ``n_tokens`` tokens, moved onto ``n_words`` words.

    Tokens and words outside the groups pair one to one in order. Where no word is left over, the tokens left over
    belong to another sentence: trees are restricted, predicates among those tokens go.

    Raises:
        CorpusError: the tokens and words left over are not equally many, or a group lies outside the sentence.
    """

    def __init__(self, n_tokens: int, n_words: int, groups: Sequence[Group] = ()) -> None:
        in_groups = {token for group in groups for token in group.tokens}
        words_in_groups = {word for group in groups for word in group.words}
        if not (in_groups <= set(range(n_tokens)) and words_in_groups <= set(range(n_words))):
            raise CorpusError(f"a group of tokens lies outside the {n_tokens} tokens and {n_words} words")
        tokens = [token for token in range(n_tokens) if token not in in_groups]
        words = [word for word in range(n_words) if word not in words_in_groups]
        if words and len(tokens) != len(words):
            raise CorpusError(
                f"expected as many tokens as words outside the groups, found {len(tokens)} and {len(words)}"
            )
        # For trees, the words that stand in a token's place; for roles, the words that a token is part of.
        self._leaves: list[tuple[int, ...]] = [()] * n_tokens
        self._covers: list[tuple[int, ...]] = [()] * n_tokens
        for token, word in zip(tokens, words, strict=False):
            self._leaves[token] = self._covers[token] = (word,)
        for group in groups:
            self._leaves[group.tokens[0]] = group.words  # the first leaf stays, the others go
            for token in group.tokens:
                self._covers[token] = group.words

    def constituents(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Brackets over words; those left without a word go."""
        moved = (_move(span, self._leaves) for span in spans)
        return tuple(span for span in moved if span is not None)

    def predicates(self, predicates: Sequence[Predicate]) -> tuple[Predicate, ...]:
        """Predicates at words (the first, where a token is several), argument spans grown to whole words."""
        found = []
        for predicate in predicates:
            words = self._covers[predicate.index]
            if words:
                moved = (_move(span, self._covers) for span in predicate.arguments)
                arguments = tuple(span for span in moved if span is not None)
                found.append(predicate._replace(index=words[0], arguments=arguments))
        return tuple(found)


def _move(span: Span, onto: Sequence[tuple[int, ...]]) -> Span | None:
    words = [word for token in range(span.start, span.end) for word in onto[token]]
    return Span(min(words), max(words) + 1, span.label) if words else None
