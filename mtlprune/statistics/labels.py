"""Comparison of joint with single-task training for each label, from counts of correct, gold and predicted items.

The items of a label are counted by the rules of the main score of the layer, so that the counts of all labels add up to
the counts of the score. Items are POS tags, entities, arcs by relation (correct if head and relation are correct),
brackets as in EVALB, and arguments without V.

Letters in shapes: L labels, N sentences, S runs (seeds), K counts of each label.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.evaluation.scores import SCORES, argument_places, brackets, fenceposts
from mtlprune.layers import kind_of
from mtlprune.sentence import Sentence
from mtlprune.statistics.permutation import benjamini_hochberg
from mtlprune.statistics.resamples import System
from mtlprune.statistics.significance import Difference, differences

_COUNTS = ("correct", "gold", "predicted")
FEW_ITEMS = 20
"""Labels with fewer gold items are marked as rare, because few items give no reliable score."""
_CountsByLabel = dict[str, tuple[int, int, int]]
"""The numbers of correct, gold and predicted items of each label."""


@dataclass(frozen=True)
class LabelDifference:
    """The difference between joint and single-task training for one label."""

    label: str
    items: int
    """Number of gold items."""
    joint: float
    """Mean F1 of the joint runs over seeds, in percent."""
    single: float
    """Mean F1 of the single-task runs over seeds, in percent."""
    difference: Difference
    """F1 of joint minus F1 of single-task training, with its tests."""
    q: float
    """``difference.p`` after the correction of Benjamini and Hochberg over the task's labels that are not rare; NaN for
    rare labels."""

    @property
    def is_rare(self) -> bool:
        """Whether the label has fewer than ``FEW_ITEMS`` gold items."""
        return self.items < FEW_ITEMS


def count_labels(layer: str, gold: Sentence, predicted: Sentence) -> _CountsByLabel | None:
    """Count the correct, gold and predicted items of each label in a sentence.

    Returns:
        The counts by label, or None if the gold sentence is not annotated with the layer.
    """
    if (kind := gold.kind(layer)) is None:
        return None
    items = _ITEMS[kind_of(kind)]
    gold_items, predicted_items = (
        Counter(items(side.get(layer), fenceposts(gold, kind))) for side in (gold, predicted)
    )
    table: dict[str, list[int]] = {}
    for column, counter in enumerate((gold_items & predicted_items, gold_items, predicted_items)):
        for item, number in counter.items():
            table.setdefault(item[-1], [0, 0, 0])[column] += number
    return {label: (row[0], row[1], row[2]) for label, row in table.items()}


_ITEMS: dict[str, Callable[[Any, list[int]], Any]] = {
    "tags": lambda tags, _: enumerate(tags),
    "spans": lambda spans, _: set(map(tuple, spans)),
    "tree": lambda tree, _: zip(range(len(tree.heads)), *tree, strict=True),
    "brackets": brackets,
    "frames": lambda frames, _: argument_places(frames),
    "label": lambda label, _: [(label,)],
    "number": lambda number, _: (),
    "labels": lambda labels, _: [(label,) for label in labels],
}
"""For each kind of layer, a function that lists the items of a layer's value, as tuples with the label at the end.

The second argument holds the fenceposts of brackets, and is used for brackets only."""


def compare_counted(
    joint: Sequence[Sequence[Mapping[str, tuple[int, int, int]] | None]],
    single: Sequence[Sequence[Mapping[str, tuple[int, int, int]] | None]],
    resamples: int,
    seed: int = 0,
) -> list[LabelDifference]:
    """Compare joint with single-task runs for each label, by the same test over sentences as in tables of scores.

    Args:
        joint: for each joint run, the counts that ``count_labels`` returns for each sentence.
        single: the same for each single-task run, on the same sentences.
        resamples: number of resamples of the test.
        seed: seed of the resamples.

    Returns:
        The differences of all labels that occur in gold, with the most frequent label first.
    """
    annotated_rows = [row for row, counts in enumerate(single[0]) if counts is not None]
    counts_of_sides = [[[run[row] or {} for row in annotated_rows] for run in side] for side in (joint, single)]
    totals: Counter[str] = Counter()
    for counts_by_label in counts_of_sides[1][0]:
        totals.update({label: numbers[1] for label, numbers in counts_by_label.items()})
    labels = sorted((label for label in totals if totals[label]), key=lambda label: (-totals[label], label))
    f1 = SCORES["spans"]["f1"]  # 2 · correct / (gold + predicted), whatever the layer
    sides = [_by_label(side, labels) for side in counts_of_sides]
    systems = [System(side[k], _COUNTS, f1) for k in range(len(labels)) for side in sides]
    tested = differences(systems, [(2 * k, 2 * k + 1) for k in range(len(labels))], resamples, seed)
    q = benjamini_hochberg(
        [d.p if totals[label] >= FEW_ITEMS else float("nan") for label, d in zip(labels, tested, strict=True)]
    )
    means = [float(np.mean(system.scores(system.totals))) for system in systems]
    return [
        LabelDifference(label, totals[label], means[2 * k], means[2 * k + 1], tested[k], float(q[k]))
        for k, label in enumerate(labels)
    ]


def _by_label(
    runs: Sequence[Sequence[Mapping[str, tuple[int, int, int]]]], labels: Sequence[str]
) -> NDArray[np.integer]:
    """Arrange the counts of runs by sentence and label in an array: (L, S, N, K)."""
    index = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(runs), len(runs[0]), len(_COUNTS)), np.int32)
    for run_counts, run in zip(counts.swapaxes(0, 1), runs, strict=True):  # (L, N, K)
        items = [(index[label], n, *row[label]) for n, row in enumerate(run) for label in row.keys() & index.keys()]
        table = np.array(items, np.int32).reshape(-1, 2 + len(_COUNTS))
        run_counts[table[:, 0], table[:, 1]] = table[:, 2:]
    return counts
