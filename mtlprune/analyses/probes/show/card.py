"""One head in words: what it knows best, which tasks claim it, what it attends to.

Letters: S places of a sentence: [CLS], its words, [SEP].
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.runs.claims import Claim, ClaimError

SHOWN = 10
"""Labels that a card names."""
Known = Mapping[str, Any]
"""A row of ``known`` in reading.py: one label that a head tells."""


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence and what one head does in it."""

    places: tuple[str, ...]
    """S: the words between the names of the special tokens."""
    weights: NDArray[np.float64]
    """(S, S): rows attend, columns are attended to; rows sum to 1."""
    sought: frozenset[tuple[int, int]] = frozenset()
    """Pairs of places that the task connects, in either direction."""
    caption: str = ""

    def strongest(self) -> list[tuple[int, int, float]]:
        """For each word the word it attends to most, and how much."""
        pairs = []
        for place in range(1, len(self.places) - 1):
            target = 1 + int(np.argmax(self.weights[place, 1:-1]))
            pairs.append((place, target, float(self.weights[place, target])))
        return pairs

    def seeks(self, place: int, target: int) -> bool:
        """True where the task connects the two."""
        return (place, target) in self.sought or (target, place) in self.sought


@dataclass(frozen=True)
class Claimed:
    """How one label's runs use the head."""

    label: str
    open: int
    seeds: int
    mean: float


@dataclass(frozen=True, eq=False)
class HeadCard:
    """Everything shown of a head."""

    subject: str
    layer: int
    head: int
    known: Sequence[Known]
    claimed: Sequence[Claimed]
    examples: Sequence[Example]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return f"Layer {self.layer}, head {self.head} of {self.subject}"


def claimed(claims: Iterable[Claim], layer: int, head: int) -> list[Claimed]:
    """By label of the runs: mean gate, and in how many seeds the head is open.

    Raises:
        ClaimError: the runs' encoder has no such head.
    """
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        layers, heads = claim.gates.shape
        if layer > layers or head > heads:
            raise ClaimError(
                f"{claim.run} has {layers} layers of {heads} heads, so there is no head {head} in layer {layer}"
            )
        groups.setdefault(claim.label, []).append(claim)
    return [
        Claimed(
            label,
            sum(bool(claim.open[layer - 1, head - 1]) for claim in group),
            len(group),
            float(np.mean([claim.gates[layer - 1, head - 1] for claim in group])),
        )
        for label, group in groups.items()
    ]


def _claims(rows: Sequence[Claimed]) -> str:
    users = [f"{row.label} ({row.open} of {row.seeds} seeds, mean gate {row.mean:.2f})" for row in rows if row.open]
    return ", ".join(users) or f"none of {', '.join(row.label for row in rows)}"


def text(card: HeadCard) -> str:
    """The card for a terminal."""
    parts = [card.title, *card.notes]
    if card.known:
        parts += ["", "knows best (accuracy on test; gain over the best control; rank among heads):"]
        width = max(len(row["label"]) for row in card.known[:SHOWN])
        parts += [
            f"  {row['task'].upper()}  {row['label']:{width}}  {row['test']:5.1f} %  {_gain(row):>6}  "
            f"rank {row['rank']} of {row['there']}, {row['items']} items{_marks(row)}"
            for row in card.known[:SHOWN]
        ]
    if card.claimed:
        parts += ["", f"claimed by: {_claims(card.claimed)}"]
    for example in card.examples:
        parts += ["", example.caption or " ".join(example.places[1:-1])]
        width = max(map(len, example.places[1:-1]))
        for place, target, weight in example.strongest():
            rest = example.weights[place, 0] + example.weights[place, -1]
            ends = f"{example.places[place]:>{width}} → {example.places[target]:{width}}"
            mark = "*" if example.seeks(place, target) else " "
            bar = f"{'█' * round(10 * weight):10}"
            parts.append(f"  {ends} {mark} {weight:.2f} {bar}  special tokens {rest:.2f}")
    if any(example.sought for example in card.examples):
        parts += ["", "* a pair that the label connects"]
    return "\n".join(parts) + "\n"


def _gain(row: Known) -> str:
    return "–" if math.isnan(row["gain"]) else f"{row['gain']:+.1f}"


def _marks(row: Known) -> str:
    """What a reader must know of the row. Root is no arc: it counts where attention rests, at [CLS]."""
    rests = ", attention resting at [CLS]" if row["apart"] else ""
    return rests + (", chosen" if row["best"] else "") + (", few items" if row["few"] else "")
