"""One pass over one encoder: arcs that its heads find, and vectors of sentences for their dimension.

Letters for shapes: P sentences of which vectors are kept, L layers, A heads a layer, H heads that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.probes.maths import head_vectors
from mtlprune.analyses.reading import Reading, batches
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.arcs import ArcCounter, ArcCounts, halves, relations_of
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observe
from mtlprune.sentence import Sentence
from mtlprune.statistics.twonn import Dimension, DimensionError, twonn

CLOUD = 1000
"""Sentences at most whose vectors' dimension is estimated: it grows with their number, so all encoders get as many."""


@dataclass(frozen=True, eq=False)
class SyntaxFindings:
    """What one encoder (with its gates) was found to do.

    Attributes:
        label, run, seed: as in ``Subject``.
        counts: arcs found.
        gates: (L, A); None where there are none.
        cls, mean: dimension of the last layer's [CLS] and mean word vectors, one a sentence; a sentence where there is
            none.
        heads: (L, A), dimension (maximum likelihood) of each head's mean output a sentence; NaN where there is none.
        cloud: P, how many sentences, all of different pieces.
    """

    label: str
    run: str
    seed: int
    counts: ArcCounts
    gates: NDArray[np.float64] | None
    cls: Dimension | str
    mean: Dimension | str
    heads: NDArray[np.float64]
    cloud: int


def survey(
    subject: Subject, reading: Reading, device: str = "cpu", tick: Callable[[], None] = lambda: None
) -> SyntaxFindings:
    """Read all sentences once.

    Args:
        tick: called after every batch.
    """
    encoder, gates, places = subject.encoder, subject.gates, subject.encoder.places
    counter = ArcCounter(relations_of(reading.sentences), places.kept, places.heads, gates)
    half = halves(len(reading.sentences), reading.seed)
    cloud = _Cloud(_distinct(encoder, reading.sentences, reading.seed))
    for rows, batch in batches(encoder, reading.sentences, device):
        seen = observe(encoder, batch, gates, {"attention", "heads"})
        counter.add(seen, [reading.sentences[row] for row in rows], half[rows].tolist())
        cloud.add(seen, rows)
        tick()
    there = counter.counts.there
    return SyntaxFindings(
        subject.label,
        subject.name,
        subject.seed,
        counter.counts,
        None if gates is None else gates.detach().cpu().double().numpy(),
        _dimension(cloud.stacked("cls")),
        _dimension(cloud.stacked("mean")),
        _by_head(cloud.stacked("heads"), places.kept, there),
        len(cloud.wanted),
    )


class _Cloud:
    """Vectors of chosen sentences, one each, kept in float32."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted = wanted
        self._kept: dict[str, list[tuple[int, NDArray[np.float32]]]] = {"cls": [], "mean": [], "heads": []}

    def add(self, seen: Observation, rows: Sequence[int]) -> None:
        """Keep what is wanted of a batch."""
        batch = seen.batch
        vectors = {
            "cls": seen.last.flatten(0, 1)[batch.cls_slot],
            "mean": _means(seen.word_vectors(seen.last), batch.sizes),
            "heads": _means(head_vectors(seen).flatten(1), batch.sizes).unflatten(1, (-1, seen.heads[0].shape[-1])),
        }
        for name, values in vectors.items():
            of = values.float().cpu().numpy()
            self._kept[name] += [(row, of[place]) for place, row in enumerate(rows) if row in self.wanted]

    def stacked(self, name: str) -> NDArray[np.float32]:
        """(P, ...), by sentence."""
        return np.stack([vector for _, vector in sorted(self._kept[name], key=lambda entry: entry[0])])


def _means(words: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, F) to (B, F)."""
    starts = torch.tensor([0, *np.cumsum(sizes)[:-1].tolist()], device=words.device)
    return functional.embedding_bag(torch.arange(len(words), device=words.device), words, starts, mode="mean")


def _distinct(encoder: Encoder, sentences: Sequence[Sentence], seed: int) -> set[int]:
    """Rows of sentences of different pieces, at most :data:`CLOUD`, drawn by ``seed``.

    Copies would lie apart by rounding alone, which no comparison of vectors tells from a small distance.
    """
    first: dict[bytes, int] = {}
    for row, pieces in enumerate(encoder.tokenize_all([sentence.words for sentence in sentences])):
        first.setdefault(pieces.ids.tobytes(), row)
    rows = np.array(sorted(first.values()))
    return set(np.random.default_rng([seed, 25]).permutation(rows)[:CLOUD].tolist())


def _dimension(points: NDArray[np.float32]) -> Dimension | str:
    try:
        return twonn(points)
    except DimensionError as error:
        return str(error)


def _by_head(
    points: NDArray[np.float32], kept: Sequence[Sequence[int]], there: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(P, H, d) to (L, A)."""
    found = np.full(there.shape, np.nan)
    places = [(layer, head) for layer, heads in enumerate(kept) for head in heads]
    for column, place in enumerate(places):
        dimension = _dimension(points[:, column]) if there[place] else ""
        if isinstance(dimension, Dimension):
            found[place] = dimension.likelihood
    return found
