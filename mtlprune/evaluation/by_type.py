"""Precision, recall and F1 of flat spans by type, computed by seqeval (strict mode, IOB2), for `mtlprune evaluate`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.sentence import Sentence

ALL = "all"


class TypeScore(NamedTuple):
    """The scores of a type of span in percent, and the number of its gold spans. The label ``ALL`` is for all types."""

    label: str
    precision: float
    recall: float
    f1: float
    gold: int


def scores_by_type(layer: str, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> list[TypeScore]:
    """Return the scores of each type in gold or predictions, sorted by type, and last those of all types together.

    The list is empty if neither side has a span. Sentences whose gold layer is unknown are left out. The layer must be
    of the kind ``spans``, whose spans do not overlap, because IOB2 tags hold only one type per word.
    """
    annotated_pairs = [pair for pair in zip(gold, predicted, strict=True) if pair[0].get(layer) is not None]
    labels = sorted({span.label for pair in annotated_pairs for sentence in pair for span in sentence.get(layer)})
    if not labels:
        return []

    from seqeval.metrics.v1 import precision_recall_fscore_support  # loads scikit-learn, which takes a second
    from seqeval.scheme import IOB2

    # We pass types as numbers of equal width, because seqeval strips hyphens from labels and sorts labels as text.
    numbers = {label: f"{number:06d}" for number, label in enumerate(labels)}
    sides = [
        [
            iob2_from_spans([span._replace(label=numbers[span.label]) for span in sentence.get(layer)], len(sentence))
            for sentence in side
        ]
        for side in zip(*annotated_pairs, strict=True)
    ]
    settings: Any = {"scheme": IOB2, "zero_division": 0}
    columns: Any = precision_recall_fscore_support(*sides, average=None, **settings)  # four arrays, by type
    overall: Any = precision_recall_fscore_support(*sides, average="micro", **settings)
    rows = [*zip(*columns, strict=True), overall]
    return [
        TypeScore(label, 100 * float(precision), 100 * float(recall), 100 * float(f1), int(number))
        for label, (precision, recall, f1, number) in zip([*labels, ALL], rows, strict=True)
    ]
