"""What a corpus holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mtlprune.sentence import LAYERS, NOT_ARGUMENTS, Sentence

# The predicate's own span and its second piece: given by the corpus, predicted by no task.


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


def count(sentences: Iterable[Sentence]) -> Counts:
    """Count one split in one pass; tags, relations, constituent_labels and roles are numbers of distinct labels."""
    counts = Counts()
    tags: set[str] = set()
    relations: set[str] = set()
    brackets: set[str] = set()
    roles: set[str] = set()
    entities: Counter[str] = Counter()
    for sentence in sentences:
        known = sentence.layers()
        counts.sentences += 1
        counts.words += len(sentence)
        counts.longest = max(counts.longest, len(sentence))
        counts.all_layers += len(known) == len(LAYERS)
        for layer in known:
            counts.known[layer] += 1
        tags.update(sentence.pos or ())
        entities.update(span.label for span in sentence.ner or ())
        if sentence.dep is not None:
            relations.update(sentence.dep.relations)
            counts.non_projective += not is_projective(sentence.dep.heads)
        brackets.update(span.label for span in sentence.con or ())
        counts.constituents += len(sentence.con or ())
        counts.predicates += len(sentence.srl or ())
        labels = [span.label for predicate in sentence.srl or () for span in predicate.arguments]
        labels = [label for label in labels if label not in NOT_ARGUMENTS]
        counts.arguments += len(labels)
        roles.update(labels)
    counts.entities = dict(sorted(entities.items()))
    counts.tags, counts.relations = len(tags), len(relations)
    counts.constituent_labels, counts.roles = len(brackets), len(roles)
    return counts


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
