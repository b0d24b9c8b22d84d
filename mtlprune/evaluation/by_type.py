"""Precision, recall and F1 of flat spans by type, as seqeval computes them: strict, IOB2. Free of torch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.sentence import Sentence

ALL = "all"


class TypeScore(NamedTuple):
    """The scores of a type, in percent, and the number of its gold spans; ``ALL`` for all types together."""

    label: str
    precision: float
    recall: float
    f1: float
    gold: int


def scores_by_type(layer: str, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> list[TypeScore]:
    """A row for each type in gold or predictions, in order, and one for all; none where neither has a span.

    ``layer`` is of the kind ``spans``, which is flat: IOB2 tags hold one type a word. Sentences whose gold layer is
    unknown count for nothing.
    """
    annotated_pairs = [pair for pair in zip(gold, predicted, strict=True) if pair[0].get(layer) is not None]
    labels = sorted({span.label for pair in annotated_pairs for sentence in pair for span in sentence.get(layer)})
    if not labels:
        return []

    from seqeval.metrics.v1 import precision_recall_fscore_support  # loads scikit-learn, which takes a second
    from seqeval.scheme import IOB2

    # Types go in as numbers of one width, because seqeval strips hyphens off labels and sorts them as text.
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
