"""What a light decoder is asked of partial sums: items of a layer, each one or two spans of words and a label.

Tags, spans (as BIO tags): a word. Trees: the relation of a dependent and its head, root left out. Brackets: the label
of a span of at least two words (of a unary chain the upper label) by its first and last word. Frames: the role of a
predicate's argument by the predicate and the mean over the argument. Spans, heads and predicates are gold: a label is
asked for, no structure, as in edge probing (Tenney et al. 2019).

Letters for shapes: U items, k spans an item, N words of all sentences one after another, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.layers import kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Dependencies, Predicate, Sentence, Span, declared

Ints = NDArray[np.int64]
SPANS = {"tags": 1, "spans": 1, "tree": 2, "brackets": 2, "frames": 2}
"""k by kind of layer."""
OUTSIDE = "O"


@dataclass(frozen=True, eq=False)
class TermItems:
    """Items of one task.

    Attributes:
        spans: (U, k, 2), first word and the one after the last, counted over all sentences.
        labels: (U,) strings.
        sentence: (U,), the row of the sentence.
    """

    task: str
    spans: Ints
    labels: NDArray[np.str_]
    sentence: Ints

    def __len__(self) -> int:
        return len(self.labels)


def term_items(task: str, sentences: Sequence[Sentence]) -> TermItems:
    """The items of a task; sentences that lack its layer have none."""
    spans, labels, rows = [], [], []
    start, kind = 0, kind_of(declared(sentences)[task])
    for row, sentence in enumerate(sentences):
        if (value := sentence.get(task)) is not None:
            for ends, label in _ITEMS[kind](value, len(sentence)):
                spans.append([(start + a, start + b) for a, b in ends])
                labels.append(label)
                rows.append(row)
        start += len(sentence)
    shape = (len(spans), SPANS[kind], 2)
    return TermItems(
        task, np.array(spans, np.int64).reshape(shape), np.array(labels, np.str_), np.array(rows, np.int64)
    )


Item = tuple[tuple[tuple[int, int], ...], str]


def _tags(tags: Sequence[str], words: int) -> Iterator[Item]:
    for word, tag in enumerate(tags):
        yield ((word, word + 1),), tag


def bio(spans: Sequence[Span], words: int) -> list[str]:
    """A tag a word: B- at the first word of an entity, I- at its others, else O."""
    tags = [OUTSIDE] * words
    for start, end, label in spans:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tags


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Spans that BIO tags mean; an I- that continues nothing of its type begins one, as conlleval has it."""
    found, begin, kind = set(), 0, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, label = tag.partition("-")
        if kind and (prefix != "I" or label != kind):
            found.add((begin, place, kind))
            kind = ""
        if prefix != OUTSIDE and not kind:
            begin, kind = place, label
    return found


def _arcs(tree: Dependencies, words: int) -> Iterator[Item]:
    for word, (head, relation) in enumerate(zip(*tree, strict=True)):
        if head:
            yield ((word, word + 1), (head - 1, head)), relation


def _brackets(brackets: Sequence[Span], words: int) -> Iterator[Item]:
    seen = set()
    for start, end, label in brackets:
        if end - start > 1 and (start, end) not in seen:
            seen.add((start, end))
            yield ((start, start + 1), (end - 1, end)), label


def _arguments(frames: Sequence[Predicate], words: int) -> Iterator[Item]:
    for predicate in frames:
        for start, end, label in predicate.arguments:
            if label not in NOT_ARGUMENTS:
                yield ((predicate.index, predicate.index + 1), (start, end)), label


_ITEMS: dict[str, Callable[[Any, int], Iterator[Item]]] = {
    "tags": _tags,
    "spans": lambda spans, words: _tags(bio(spans, words), words),
    "tree": _arcs,
    "brackets": _brackets,
    "frames": _arguments,
}
"""By kind: spans of words and a label for each item of a value."""


def sense_items(sentences: Sequence[Sentence]) -> TermItems:
    """Predicates whose roleset is known, label = roleset (``come.03``); sentences without SRL have none."""
    spans, labels, rows = [], [], []
    start = 0
    for row, sentence in enumerate(sentences):
        for predicate in sentence.srl or ():
            if predicate.roleset is not None:
                spans.append([(start + predicate.index, start + predicate.index + 1)])
                labels.append(predicate.roleset)
                rows.append(row)
        start += len(sentence)
    shape = (len(spans), 1, 2)
    return TermItems(
        "wsd", np.array(spans, np.int64).reshape(shape), np.array(labels, np.str_), np.array(rows, np.int64)
    )


def lemma_of(roleset: str) -> str:
    """What stands before the number of a sense."""
    return roleset.rpartition(".")[0] or roleset


def numbered(labels: NDArray[np.str_]) -> tuple[list[str], Mapping[str, int]]:
    """The labels there are, in order, and their numbers."""
    names = sorted(set(labels.tolist()))
    return names, {name: number for number, name in enumerate(names)}
