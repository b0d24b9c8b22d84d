"""What a corpus holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def count(sentences: Iterable[Sentence], layers: Mapping[str, str] = LAYERS) -> Counts:
    """Count one split; tags, relations, constituent_labels and roles are numbers of distinct labels.

    Args:
        layers: those of the corpus, and their kinds.
    """
    counts, known = Counts(), Counter[str]()
    labels = {name: Counter[str | None]() for name in layers}
    for sentence in sentences:
        names = sentence.layers()
        counts.sentences += 1
        counts.words += len(sentence)
        counts.longest = max(counts.longest, len(sentence))
        counts.all_layers += LAYERS.keys() <= set(names)
        known.update(names)
        for name in names:
            labels[name].update(_LABELS[kind_of(layers[name])](sentence.get(name)))
    counts.known = {name: known[name] for name in layers}
    for name, kind in layers.items():
        found = _NUMBERS[kind_of(kind)](labels[name])
        if name in LAYERS:
            for key, number in found.items():
                setattr(counts, key, number)
        else:
            counts.further[name] = found
    return counts


def _of_tree(tree: Any) -> list[str | None]:
    return [*tree.relations, *([] if is_projective(tree.heads) else [None])]


def _of_frames(frames: Any) -> list[str | None]:
    return [*(span.label for predicate in frames for span in predicate.arguments), *[None] * len(frames)]


def _of_spans(spans: Any) -> list[str | None]:
    return [span.label for span in spans]


_LABELS: dict[str, Callable[[Any], Iterable[str | None]]] = {
    "tags": tuple, "spans": _of_spans, "tree": _of_tree, "brackets": _of_spans, "frames": _of_frames
}  # fmt: skip
"""The labels of a value, by kind; None, which is no label, for each tree that is not projective and each predicate."""


def _frames(found: Counter[str | None]) -> dict[str, Any]:
    roles = {label: number for label, number in found.items() if label is not None and label not in NOT_ARGUMENTS}
    return {"predicates": found[None], "arguments": sum(roles.values()), "roles": len(roles)}


_NUMBERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tags": lambda found: {"tags": len(found)},
    "spans": lambda found: {"entities": dict(sorted(found.items()))},
    "tree": lambda found: {"relations": len(found.keys() - {None}), "non_projective": found[None]},
    "brackets": lambda found: {"constituents": found.total(), "constituent_labels": len(found)},
    "frames": _frames,
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
