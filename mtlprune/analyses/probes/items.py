"""The items that are probed, and the two controls that need no encoder (fixed offsets and chance).

An item is one labelled unit of a corpus layer, such as a word with its tag, an entity, an arc, a constituent or an
argument. The items of a task and split are flat arrays, so that a batch can slice the items of its sentences.

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
from mtlprune.encoder.batch import ranks
from mtlprune.layers import LAYERS, OF_SENTENCES, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, Span, declared

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHUFFLE = 7
"""Part of the seed of the generator that shuffles labels, so that its draws differ from those of other generators."""

# Kind of layer → the numbers that describe an item, apart from its label.
COLUMNS = {
    "tags": ("start", "end"),
    "spans": ("start", "end"),
    "tree": ("head", "dependent"),  # positions: 0 is [CLS], and word i (counted from 0) is i + 1
    "brackets": ("start", "end"),
    "frames": ("start", "end", "predicate"),
    **dict.fromkeys(OF_SENTENCES, ("start", "end")),
}


@dataclass(frozen=True, eq=False)
class Items:
    """The items of one task in one split, in the order of the sentences.

    Attributes:
        task: name of the corpus layer.
        kind: kind of the corpus layer.
        labels: names of the K labels.
        offsets: (sentences + 1,), the index of the first item of each sentence, and the number of all items.
        columns: (U, 2 or 3), the numbers that ``COLUMNS`` names. Words are counted from 0 within their sentence, and
            spans are half-open. Trees have positions instead of words.
        label: (U,), the index of each item's label in ``labels``.
        shuffled: (U,), the same indices in random order, for the control with shuffled labels.
        lengths: (U,), the number of words of the sentence that contains the item.
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
        """Count the items of each label: (K,)."""
        return np.bincount(self.label, minlength=len(self.labels))

    def column(self, name: str) -> Ints:
        """Return one of the columns that ``COLUMNS`` names: (U,)."""
        return self.columns[:, COLUMNS[self.kind].index(name)]

    def of(self, sentences: Sequence[int]) -> tuple[Ints, Ints]:
        """Return the indices of the items of some sentences, and of each item the position of its sentence in
        ``sentences``. Both arrays are (items of these sentences,), in the order of ``sentences``."""
        sentence_numbers = np.asarray(sentences, np.int64)
        sizes = self.offsets[sentence_numbers + 1] - self.offsets[sentence_numbers]
        places = np.repeat(np.arange(len(sentence_numbers)), sizes)
        return self.offsets[sentence_numbers][places] + ranks(sizes), places


def read_items(splits: Mapping[str, Sequence[Sentence]], seed: int) -> dict[str, list[Items]]:
    """Read the items of all tasks from the annotated sentences of all splits.

    Args:
        splits: split → its sentences.
        seed: seed of the shuffled labels.

    Returns:
        split → the items of each task whose layer occurs in any sentence of any split and has items. The labels of a
        task are the same in all splits, with the most frequent label first.
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
    """Return a number by which tasks get different shuffles: 0 to 4 for the five built-in layers, otherwise 5 plus a
    checksum of the name."""
    return [*LAYERS].index(task) if task in LAYERS else len(LAYERS) + zlib.crc32(task.encode())


def _arguments(frames: Any) -> Iterator[tuple]:
    """Yield (start, end, predicate, role) of each argument; parts of the predicate itself are no arguments."""
    for predicate in frames:
        for start, end, role in predicate.arguments:
            if role not in NOT_ARGUMENTS:
                yield start, end, predicate.index, role


def lowest(brackets: Sequence[Span]) -> Iterator[Span]:
    """Yield the brackets that contain no other bracket, from brackets in pre-order (He and Choi 2021)."""
    for span, following in pairwise([*brackets, Span(10**9, 10**9, "")]):
        if following.start >= span.end:
            yield span


_BY_KIND: dict[str, Callable[[Any, int], Iterable[tuple]]] = {
    "tags": lambda tags, _: ((i, i + 1, tag) for i, tag in enumerate(tags)),
    "spans": lambda spans, _: spans,
    "tree": lambda tree, _: ((head, i, relation) for i, (head, relation) in enumerate(zip(*tree, strict=True), 1)),
    "brackets": lambda brackets, _: lowest(brackets),
    "frames": lambda frames, _: _arguments(frames),
    "label": lambda label, words: [(0, words, label)],  # the unit is the whole sentence
    "number": lambda number, _: (),  # a number has no classes, so there is no centroid
    "labels": lambda labels, _: (),  # a set of labels is not a single class
}
"""Kind of layer → function of a sentence's annotation and its number of words that returns items as tuples of
``COLUMNS`` and the label. Numbers and sets of labels have no items, so their tasks are not probed."""


# -- controls without an encoder ---------------------------------------------------------------------------------------


def offset_hits(items: Items, furthest: int) -> Floats:
    """Count the items of each label that a head would find if every word attended to the word at a fixed offset, for
    offsets from 1 to ``furthest``.

    An arc counts as found if either of its words attends to the other, and an argument if the predicate attends to one
    of its words or the reverse, so the offsets o and −o find the same items. The root counts as the position before the
    first word, which is the position of [CLS].

    Returns:
        (K, furthest), with the counts for offset o in column o − 1.
    """
    if items.kind == "tree":
        near = far = np.abs(items.column("head") - items.column("dependent"))
    else:
        first = items.column("start") - items.column("predicate")
        last = items.column("end") - 1 - items.column("predicate")
        inside = (first <= 0) & (last >= 0)
        near = np.where(inside, 0, np.minimum(np.abs(first), np.abs(last)))
        far = np.maximum(np.abs(first), np.abs(last))
    # All offsets from near to far find the item. A difference array counts them without a loop over offsets: it adds 1
    # at near and subtracts 1 after far, and a cumulative sum turns these changes into counts.
    change = np.zeros((len(items.labels), furthest + 2))
    np.add.at(change, (items.label, np.minimum(near, furthest + 1)), 1)
    np.add.at(change, (items.label, np.minimum(far + 1, furthest + 1)), -1)
    return change.cumsum(1)[:, 1:-1]


def chance(items: Items) -> Floats:
    """Return the expected share of each label's items that guessing finds. (K,), NaN for labels without items.

    In the attention probes, every word guesses uniformly and independently among its candidates, which are the words
    and [CLS] for trees (DEP), and the words for frames (SRL). In the centroid probes, all labels are equally likely.
    """
    if items.kind not in ATTENTION:
        return np.where(items.counts() > 0, 1 / max(1, len(items.labels)), np.nan)
    if items.kind == "tree":
        # An arc is missed if neither the dependent nor the head chooses the other.
        miss_probability = (1 - 1 / (items.lengths + 1)) ** 2
    else:
        start, end, predicate = (items.column(name) for name in ("start", "end", "predicate"))
        size = end - start
        # An argument is missed if none of its words chooses the predicate, and the predicate chooses none of its words.
        # A predicate inside its own argument chooses only once, so it is not counted among the argument's words.
        other_words = size - ((predicate >= start) & (predicate < end))
        miss_probability = (1 - 1 / items.lengths) ** other_words * (1 - size / items.lengths)
    with np.errstate(invalid="ignore"):
        return np.bincount(items.label, 1 - miss_probability, len(items.labels)) / items.counts()
