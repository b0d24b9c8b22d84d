"""What a corpus holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtlprune.layers import LAYERS, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence


@dataclass
class Counts:
    """Counts over the sentences of one split; arguments leave V and C-V out."""

    sentences: int = 0
    words: int = 0
    longest: int = 0
    known: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LAYERS, 0))
    all_layers: int = 0
    tags: int = 0
    entities: dict[str, int] = field(default_factory=dict)
    relations: int = 0
    non_projective: int = 0
    constituents: int = 0
    constituent_labels: int = 0
    predicates: int = 0
    arguments: int = 0
    roles: int = 0
    further: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the other layers hold, by name: the counts of their kinds."""

    def to_json(self) -> dict[str, Any]:
        """What corpus.json holds of a split; of the five layers alone what it held before there were others."""
        return {key: value for key, value in asdict(self).items() if key != "further" or value}


def count(sentences: Collection[Sentence], layers: Mapping[str, str] = LAYERS) -> Counts:
    """Count one split; tags, relations, constituent_labels and roles are numbers of distinct labels.

    Args:
        sentences: they are gone through once, and once more for each layer that is known of any.
        layers: those of the corpus, and their kinds.
    """
    counts, known = Counts(len(sentences)), Counter[str]()
    for sentence in sentences:
        names = sentence.layers()
        counts.words += len(sentence)
        counts.longest = max(counts.longest, len(sentence))
        counts.all_layers += LAYERS.keys() <= set(names)
        known.update(names)
    counts.known = {name: known[name] for name in layers}
    for name, kind in layers.items():
        values = (value for s in sentences if (value := s.get(name)) is not None) if known[name] else iter(())
        found = _BY_KIND[kind_of(kind)](values)
        if name in LAYERS:
            for key, number in found.items():
                setattr(counts, key, number)
        else:
            counts.further[name] = found
    return counts


def _count_tags(values: Iterable[Any]) -> dict[str, Any]:
    return {"tags": len({tag for tags in values for tag in tags})}


def _count_spans(values: Iterable[Any]) -> dict[str, Any]:
    return {"entities": dict(sorted(Counter(span.label for spans in values for span in spans).items()))}


def _count_trees(values: Iterable[Any]) -> dict[str, Any]:
    relations, crossing = set[str](), 0
    for tree in values:
        relations.update(tree.relations)
        crossing += not is_projective(tree.heads)
    return {"relations": len(relations), "non_projective": crossing}


def _count_brackets(values: Iterable[Any]) -> dict[str, Any]:
    labels = Counter(span.label for brackets in values for span in brackets)
    return {"constituents": labels.total(), "constituent_labels": len(labels)}


def _count_frames(values: Iterable[Any]) -> dict[str, Any]:
    predicates, labels = 0, Counter[str]()
    for frames in values:
        predicates += len(frames)
        labels.update(span.label for predicate in frames for span in predicate.arguments)
    arguments = sum(number for label, number in labels.items() if label not in NOT_ARGUMENTS)
    return {"predicates": predicates, "arguments": arguments, "roles": len(labels.keys() - NOT_ARGUMENTS)}


_BY_KIND: dict[str, Callable[[Iterable[Any]], dict[str, Any]]] = {
    "tags": _count_tags,
    "spans": _count_spans,
    "tree": _count_trees,
    "brackets": _count_brackets,
    "frames": _count_frames,
}


def is_projective(heads: Sequence[int]) -> bool:
    """Whether no two arcs cross, the arc from the root (0, left of the first word) included.

    Arcs are intervals; sorted by their left end and longer ones first, they nest exactly if none ends beyond the
    innermost one that is still open.
    """
    arcs = sorted((min(head, word), -max(head, word)) for word, head in enumerate(heads, 1))
    still_open: list[int] = []
    for left, minus_right in arcs:
        while still_open and still_open[-1] <= left:
            still_open.pop()
        if still_open and -minus_right > still_open[-1]:
            return False
        still_open.append(-minus_right)
    return True
