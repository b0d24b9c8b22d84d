"""From counts of arcs to UAS: of single heads, of the best head a relation, of offsets; torch-free.

Every choice of a head is made twice: on all tokens, as published (the same tokens choose and score, which flatters the
best of 2 · L · A predictors), and on one half of the sentences to be scored on the other, both ways round.

Letters for shapes: K relations, D directions, L layers, A heads a layer before any was removed, O offsets. The halves
of the sentences are a first axis of 2. All scores are percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

DIRECTIONS = ("dep->head", "head<-dep")
"""The word that a dependent attends to most; the word that attends to it most."""
OFFSETS = (-3, -2, -1, 0, 1, 2)
"""Chen et al. (2024), released code: of word i the baseline guesses i + k, held within 0 and the last word."""
LEAST = 100
"""Relations with fewer tokens are not listed (the same code)."""
UNLISTED = ("root", "punct")


@dataclass(frozen=True)
class Best:
    """The best head (or offset) for some tokens.

    Attributes:
        value: chosen and scored on all of them; NaN where there is nothing to choose or to score.
        held_out: chosen on one half, scored on the other, both ways round; never more than ``value``. NaN where a half
            has no such token.
        layer, head, direction: of the choice on all, from 0; −1 where there is none.
    """

    value: float
    held_out: float
    layer: int = -1
    head: int = -1
    direction: int = -1


@dataclass(frozen=True)
class BestOffset:
    """The best offset for some tokens; ``held_out`` as in :class:`Best`."""

    value: float
    held_out: float
    offset: int


@dataclass(eq=False)
class ArcCounts:
    """What all heads of one encoder find, added up.

    Attributes:
        relations: names, K.
        tokens: (2, K), words with each relation.
        arcs: (2, K), those of them that hang on a word: all but roots.
        hits: (2, D, K, L, A), words whose head is found.
        mass: (2, D, K, L, A), attention weights between words and their heads, summed.
        offsets: (2, O, K), words whose head an offset finds.
        there: (L, A), heads that are neither removed nor closed; the others count nothing.
    """

    relations: tuple[str, ...]
    tokens: Counts
    arcs: Counts
    hits: Numbers
    mass: Numbers
    offsets: Counts
    there: NDArray[np.bool_]

    @classmethod
    def empty(cls, relations: Sequence[str], there: NDArray[np.bool_]) -> "ArcCounts":
        """Nothing counted yet."""
        size, shape = len(relations), (2, len(DIRECTIONS), len(relations), *there.shape)
        tokens, arcs = np.zeros((2, size), np.int64), np.zeros((2, size), np.int64)
        offsets = np.zeros((2, len(OFFSETS), size), np.int64)
        return cls(tuple(relations), tokens, arcs, np.zeros(shape), np.zeros(shape), offsets, there)

    def listed(self, least: int = LEAST) -> list[str]:
        """Relations that have at least so many tokens, but ``root`` and ``punct``; most frequent first."""
        sizes = dict(zip(self.relations, self.tokens.sum(0).tolist(), strict=True))
        return sorted(
            (name for name in self.relations if name not in UNLISTED and sizes[name] >= least),
            key=lambda name: (-sizes[name], name),
        )

    def size(self, relations: Sequence[str] | None = None) -> int:
        """How many tokens have one of these relations (any, where none are named)."""
        return int(self.tokens[:, self._rows(relations)].sum())

    def uas(self, relations: Sequence[str] | None = None) -> Numbers:
        """(D, L, A): the share of words whose head each head finds; NaN for heads that are not there."""
        rows = self._rows(relations)
        return self._shares(self.hits[:, :, rows].sum((0, 2)), self.tokens[:, rows].sum())

    def weight(self, relations: Sequence[str] | None = None) -> Numbers:
        """(D, L, A): mean attention weight on gold arcs; NaN for heads that are not there."""
        rows = self._rows(relations)
        return self._shares(self.mass[:, :, rows].sum((0, 2)), self.arcs[:, rows].sum())

    def best(self, relations: Sequence[str] | None = None, weight: bool = False) -> Best:
        """One head, in one direction, for all words with these relations (all words, where none are named).

        Args:
            weight: choose and score by the mean attention weight on gold arcs instead.
        """
        rows = self._rows(relations)
        found, sizes = (self.mass, self.arcs) if weight else (self.hits, self.tokens)
        sums = np.where(self.there, found[:, :, rows].sum(2), -1.0)  # (2, D, L, A)
        if not self.there.any():
            return Best(float("nan"), float("nan"))
        place, value, held_out = _choose(sums.reshape(2, -1), sizes[:, rows].sum(1))
        direction, layer, head = np.unravel_index(place, sums.shape[1:])
        return Best(value, held_out, int(layer), int(head), int(direction))

    def best_offset(self, relations: Sequence[str] | None = None) -> BestOffset:
        """One offset for all words with these relations."""
        rows = self._rows(relations)
        sums = self.offsets[:, :, rows].sum(2).astype(float)
        place, value, held_out = _choose(sums, self.tokens[:, rows].sum(1))
        return BestOffset(value, held_out, OFFSETS[place])

    def single(self, relations: Sequence[str] | None = None) -> Best:
        """``UAS_single``: one head for every token, punctuation and roots counted (no head finds a root)."""
        return self.best(relations)

    def mean_best(self, relations: Sequence[str], weight: bool = False) -> Best:
        """``UAS_best``: the best head of each relation, averaged with the relations' counts as weights.

        Args:
            relations: as from :meth:`listed`.
            weight: of attention weights instead.
        """
        each = [self.best([name], weight) for name in relations]
        return Best(*self._averaged(relations, each))

    def mean_best_offset(self, relations: Sequence[str]) -> tuple[float, float]:
        """The same of the best offset a relation: on all, held out."""
        return self._averaged(relations, [self.best_offset([name]) for name in relations])

    def by_head(self) -> Numbers:
        """(L, A): UAS of each head in its better direction."""
        return self.uas().max(0)

    def _averaged(self, relations: Sequence[str], each: Sequence[Any]) -> tuple[float, float]:
        if not each:
            return float("nan"), float("nan")
        sizes = [self.size([name]) for name in relations]
        value = np.average([best.value for best in each], weights=sizes)
        return float(value), float(np.average([best.held_out for best in each], weights=sizes))

    def _rows(self, relations: Sequence[str] | None) -> list[int]:
        if relations is None:
            return list(range(len(self.relations)))
        return [self.relations.index(name) for name in relations]

    def _shares(self, sums: Numbers, size: int) -> Numbers:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.there, 100 * sums / size, np.nan)


def _choose(sums: Numbers, sizes: Counts) -> tuple[int, float, float]:
    """Of (2, P) sums in both halves with (2,) items: the best place, its share, the held-out share; in percent.

    Of equally good ones the first.
    """
    place = int(sums.sum(0).argmax())
    first, second = (int(half.argmax()) for half in sums)
    total = int(sizes.sum())
    value = 100 * float(sums[:, place].sum()) / total if total else float("nan")
    crossed = 100 * float(sums[1, first] + sums[0, second]) / total if sizes.all() else float("nan")
    return place, value, crossed
