"""The items of every task that heads could know, as flat arrays that batches take their part of; and how many are had
without an encoder: fixed offsets and chance.

Letters for shapes: U items (of a task and split), K labels (of a task), n words of a sentence, D distances.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes import ATTENTION
from mtlprune.layers import LAYERS, OF_SENTENCES, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, Span, declared

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHUFFLE = 7
"""Keeps the generator of shuffled labels apart from others of the same seed."""

# By kind, what an item is beside its label.
COLUMNS = {
    "tags": ("start", "end"),
    "spans": ("start", "end"),
    "tree": ("head", "dependent"),  # places: 0 is [CLS], word i (from 0) is i + 1
    "brackets": ("start", "end"),
    "frames": ("start", "end", "predicate"),
    **dict.fromkeys(OF_SENTENCES, ("start", "end")),
}


@dataclass(frozen=True, eq=False)
class Items:
    """The items of one task in one split, sentence after sentence.

    Attributes:
        task: the name of the layer.
        kind: of the layer.
        labels: names, K of them.
        offsets: (sentences + 1,), where each sentence's items begin.
        columns: (U, 2 or 3), as ``COLUMNS`` names them; words count from 0 within their sentence, spans are half-open.
        label: (U,), numbers of labels.
        shuffled: (U,), the same labels in random order: the control.
        lengths: (U,), words of the sentence an item is in.
    """

    task: str
    kind: str
    labels: tuple[str, ...]
    offsets: Ints
    columns: Ints
    label: Ints
    shuffled: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.label)

    def counts(self) -> Ints:
        """(K,): items of each label."""
        return np.bincount(self.label, minlength=len(self.labels))

    def column(self, name: str) -> Ints:
        """(U,): one of ``COLUMNS``."""
        return self.columns[:, COLUMNS[self.kind].index(name)]

    def of(self, sentences: Sequence[int]) -> tuple[Ints, Ints]:
        """The items of these sentences, in their order, and for each the place of its sentence among them. (I,)"""
        sentence_numbers = np.asarray(sentences, np.int64)
        sizes = self.offsets[sentence_numbers + 1] - self.offsets[sentence_numbers]
        return ranges(self.offsets[sentence_numbers], sizes), np.repeat(np.arange(len(sentence_numbers)), sizes)


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """start, start + 1, ..., start + size − 1 of every pair, one after another. (Σ sizes,)"""
    return np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)


def read_items(splits: Mapping[str, Sequence[Sentence]], seed: int) -> dict[str, list[Items]]:
    """The items of all tasks: split → one entry a task that any sentence of any split has a layer for.

    Labels are those of all splits, the most frequent first; the seed is that of the shuffled labels.
    """
    by_split: dict[str, list[Items]] = {split: [] for split in splits}
    for task, kind in declared(sentence for content in splits.values() for sentence in content).items():
        items = _BY_KIND[kind_of(kind)]
        raw = {
            split: [[] if (value := s.get(task)) is None else list(items(value, len(s))) for s in content]
            for split, content in splits.items()
        }
        tally = Counter(item[-1] for sentences in raw.values() for items in sentences for item in items)
        labels = tuple(label for label, _ in sorted(tally.items(), key=lambda pair: (-pair[1], pair[0])))
        numbers = {label: place for place, label in enumerate(labels)}
        columns = COLUMNS[kind_of(kind)]
        for place, split in enumerate(splits if labels else ()):
            sizes = np.array([len(items) for items in raw[split]], np.int64)
            rows = [(*item[:-1], numbers[item[-1]]) for items in raw[split] for item in items]
            table = np.array(rows, np.int64).reshape(len(rows), len(columns) + 1)
            generator = np.random.default_rng([seed, _SHUFFLE, _number(task), place])
            by_split[split].append(
                Items(
                    task,
                    kind_of(kind),
                    labels,
                    offsets=np.concatenate([[0], np.cumsum(sizes)]),
                    columns=table[:, :-1],
                    label=table[:, -1],
                    shuffled=generator.permutation(table[:, -1]),
                    lengths=np.repeat([len(sentence) for sentence in splits[split]], sizes),
                )
            )
    return by_split


def _number(task: str) -> int:
    """A number that keeps the shuffles of tasks apart: 0 to 4 for the five layers, else a digest of the name."""
    return [*LAYERS].index(task) if task in LAYERS else len(LAYERS) + zlib.crc32(task.encode())


def _arguments(frames: Any) -> Iterator[tuple]:
    for predicate in frames:
        for start, end, role in predicate.arguments:
            if role not in NOT_ARGUMENTS:
                yield start, end, predicate.index, role


def lowest(brackets: Sequence[Span]) -> Iterator[Span]:
    """Brackets, given in pre-order, that hold nothing but words (He and Choi 2021)."""
    for span, following in pairwise([*brackets, Span(10**9, 10**9, "")]):
        if following.start >= span.end:
            yield span


_BY_KIND: dict[str, Callable[[Any, int], Iterable[tuple]]] = {
    "tags": lambda tags, _: ((i, i + 1, tag) for i, tag in enumerate(tags)),
    "spans": lambda spans, _: spans,
    "tree": lambda tree, _: ((head, i, relation) for i, (head, relation) in enumerate(zip(*tree, strict=True), 1)),
    "brackets": lambda brackets, _: lowest(brackets),
    "frames": lambda frames, _: _arguments(frames),
    "label": lambda label, words: [(0, words, label)],  # a head is read by its mean output over all words
    "number": lambda number, _: (),  # has no classes, so there is no centroid
    "labels": lambda labels, _: (),  # is no single class
}
"""By kind: the items of a value, given the number of words; numbers and sets of labels have none and are not probed."""


# -- controls without an encoder ---------------------------------------------------------------------------------------


def offset_hits(items: Items, furthest: int) -> Floats:
    """Count the items of each label that are found by always choosing the word o words on, o from 1 to ``furthest``.
    Returns (K, furthest); column o − 1 is the offset o.

    Because an arc counts in either direction, o words on and o words back find the same. The root stands
    before the first word, as [CLS] does.
    """
    if items.kind == "tree":
        near = far = np.abs(items.column("head") - items.column("dependent"))
    else:
        first = items.column("start") - items.column("predicate")
        last = items.column("end") - 1 - items.column("predicate")
        inside = (first <= 0) & (last >= 0)
        near = np.where(inside, 0, np.minimum(np.abs(first), np.abs(last)))
        far = np.maximum(np.abs(first), np.abs(last))
    # an item is found by all offsets from near to far: +1 where they begin, −1 where they have ended
    change = np.zeros((len(items.labels), furthest + 2))
    np.add.at(change, (items.label, np.minimum(near, furthest + 1)), 1)
    np.add.at(change, (items.label, np.minimum(far + 1, furthest + 1)), -1)
    return change.cumsum(1)[:, 1:-1]


def chance(items: Items) -> Floats:
    """The expected share found, in each label, by guessing: (K,), NaN for labels without items.

    Attention probes: every word chooses evenly and independently among its candidates (DEP: the words and [CLS]; SRL:
    the words). Centroid probes: every label is as likely as any other.
    """
    if items.kind not in ATTENTION:
        return np.where(items.counts() > 0, 1 / max(1, len(items.labels)), np.nan)
    if items.kind == "tree":
        miss_probability = (1 - 1 / (items.lengths + 1)) ** 2  # both the dependent and the head choose another
    else:
        start, end, predicate = (items.column(name) for name in ("start", "end", "predicate"))
        size = end - start
        # a predicate within its own argument chooses once only
        other_words = size - ((predicate >= start) & (predicate < end))
        miss_probability = (1 - 1 / items.lengths) ** other_words * (1 - size / items.lengths)
    with np.errstate(invalid="ignore"):
        return np.bincount(items.label, 1 - miss_probability, len(items.labels)) / items.counts()
