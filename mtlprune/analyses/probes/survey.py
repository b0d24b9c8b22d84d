"""All heads, labels and tasks of one encoder in one pass a split; nothing larger than a batch's vectors is held.

Sound: centroids from train, the head of a label chosen on dev, accuracies on test. As released (He and Choi 2021):
centroids, choice and accuracies all on the same test items.

Letters for shapes: U items, K labels, L layers, A heads a layer before any was removed, H heads that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.probes.attention import AttendedPlaces, arcs_found, arguments_found, by_label, choose
from mtlprune.analyses.probes.centroids import Centroids, head_vectors, nearest_found, unit_vectors
from mtlprune.analyses.probes.items import ATTENTION, CENTROID, Heights, Items, read_items
from mtlprune.encoder.gates import OPEN
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observation_batches, observe
from mtlprune.encoder.pieces import Pieces
from mtlprune.sentence import Sentence

Grid = NDArray[np.float64]  # (K, L, A)
Learnt = dict[tuple[str, str], Centroids]  # task, labelling

SOUND, AS_RELEASED = "sound", "as-released"
MODES = (SOUND, AS_RELEASED)
TRUE, SHUFFLED = "none", "shuffled_labels"  # whose labels: also the names of the control in results


@dataclass(frozen=True, eq=False)
class Split:
    """A split as one encoder's tokenizer cuts it.

    Attributes:
        pieces: of each sentence.
        items: of each task.
        batches: the sentences to be looked at together, of similar length, longest first.
    """

    pieces: list[Pieces]
    items: list[Items]
    batches: list[list[int]]


@dataclass(frozen=True, eq=False)
class Data:
    """Sentences of all splits that every encoder can see at once, and their items."""

    sentences: dict[str, list[Sentence]]
    items: dict[str, list[Items]]

    @classmethod
    def read(cls, sentences: dict[str, list[Sentence]], seed: int = 0, heights: Heights = "lowest") -> Data:
        """Arguments as for :func:`mtlprune.analyses.probes.items.read_items`."""
        return cls(sentences, read_items(sentences, seed, heights))

    def cut(self, encoder: Encoder, split: str) -> Split:
        """Tokenise a split."""
        pieces = encoder.tokenize_all([s.words for s in self.sentences[split]])
        return Split(pieces, self.items[split], list(observation_batches([len(p.ids) for p in pieces])))


@dataclass(eq=False)
class Findings:
    """What one encoder's heads found.

    Attributes:
        dev, test: by mode, labelling (``none``, ``shuffled_labels``) and task the accuracies in percent (K, L, A): on
            the items that choose the head, on those reported. NaN for labels without items and for heads that are
            closed or gone.
        bits: by mode and task, for each test item the hits of all places, packed along L · A: (U, bytes).
    """

    dev: dict[tuple[str, str, str], Grid] = field(default_factory=dict)
    test: dict[tuple[str, str, str], Grid] = field(default_factory=dict)
    bits: dict[tuple[str, str], NDArray[np.uint8]] = field(default_factory=dict)

    def hits(self, mode: str, task: str, layer: int, head: int) -> NDArray[np.bool_]:
        """(U,): which test items one head (from 0) finds."""
        heads = self.test[mode, TRUE, task].shape[2]
        byte, bit = divmod(layer * heads + head, 8)
        return (self.bits[mode, task][:, byte] >> (7 - bit) & 1).astype(bool)


@dataclass(eq=False)
class Probed:
    """One encoder (with its gates) and what was found.

    Attributes:
        label, run, seed: as in ``Subject``.
        found: of the encoder itself.
        untrained: of the same encoder with random weights; None where that was not wanted.
    """

    label: str
    run: str
    seed: int
    found: Findings
    untrained: Findings | None


def chosen(dev: Grid) -> NDArray[np.int64]:
    """The best head of each label, the lowest of equal ones: (K,) places in L · A, −1 where there is nothing to choose
    by."""
    flat = dev.reshape(len(dev), -1)
    return np.where(np.isnan(flat).all(1), -1, np.where(np.isnan(flat), -1, flat).argmax(1))


class ProbeSurvey:
    """The passes over one encoder.

    Args:
        encoder: in evaluation mode, with eager attention.
        gates: (L, A) applied to its heads; None for none.
        tick: called after every batch.
    """

    def __init__(self, encoder: Encoder, gates: Tensor | None = None, tick: Callable[[], None] = lambda: None) -> None:
        self.encoder, self.gates, self.tick = encoder, gates, tick
        places = encoder.places
        self.shape = places.layers, places.heads
        self.width, self.count = places.width, sum(map(len, places.kept))
        there = np.array([layer * places.heads + h for layer, kept in enumerate(places.kept) for h in kept], np.int64)
        self.there = there  # (H,): places in L · A
        self.open = np.ones(self.count, bool) if gates is None else gates.cpu().numpy().reshape(-1)[there] > OPEN

    def run(self, data: Data, modes: Sequence[str] = MODES) -> Findings:
        """Probe all tasks in some modes; sound needs the splits train, dev and test, as-released test only."""
        test = data.cut(self.encoder, "test")
        learnt = {}
        if SOUND in modes:
            learnt[SOUND] = self.learn(data.cut(self.encoder, "train"))
        if AS_RELEASED in modes:
            learnt[AS_RELEASED] = self.learn(test)
        found = Findings()
        found.test, found.bits = self.score(test, learnt)
        if SOUND in modes:
            found.dev, _ = self.score(data.cut(self.encoder, "dev"), {SOUND: learnt[SOUND]}, keep=False)
        found.dev |= {key: grid for key, grid in found.test.items() if key[0] == AS_RELEASED}
        return found

    def learn(self, split: Split) -> Learnt:
        """Centroids of all tasks, of the labels as they are and of shuffled ones, in one pass."""
        made = {
            (items.task, labelling): Centroids(len(items.labels), self.count, self.width, self._device)
            for items in split.items
            if items.kind in CENTROID
            for labelling in (TRUE, SHUFFLED)
        }
        for rows, seen in self.observations(split, ("heads",)):
            words = head_vectors(seen)
            for items in split.items:
                if items.kind in CENTROID:
                    which, units = self._units(words, seen, items, rows)
                    for labelling in (TRUE, SHUFFLED):
                        made[items.task, labelling].add(units, self._labels(items, labelling, which))
        return made

    def score(
        self, split: Split, learnt: dict[str, Learnt], keep: bool = True
    ) -> tuple[dict[tuple[str, str, str], Grid], dict[tuple[str, str], NDArray[np.uint8]]]:
        """Accuracies of all heads, in one pass; attention probes are the same in all modes.

        Args:
            learnt: mode → centroids.
            keep: also return every item's hits.
        """
        counts: dict[tuple[str, str, str], Tensor] = {}
        bits: dict[tuple[str, str], NDArray[np.uint8]] = {}
        ready = {
            (mode, *key): (centroids.directions(), centroids.known)
            for mode, by_key in learnt.items()
            for key, centroids in by_key.items()
        }
        for rows, seen in self.observations(split, ("attention", "heads")):
            choices, words = choose(seen), head_vectors(seen)
            for items in split.items:
                if items.kind in ATTENTION:
                    which, found = self._attended(choices, items, rows)
                    hits = {(mode, labelling): found for mode in learnt for labelling in (TRUE, SHUFFLED)}
                else:
                    which, units = self._units(words, seen, items, rows)
                    hits = {
                        (mode, labelling): nearest_found(
                            units, self._labels(items, labelling, which), *ready[mode, items.task, labelling]
                        )
                        for mode in learnt
                        for labelling in (TRUE, SHUFFLED)
                    }
                for (mode, labelling), found in hits.items():
                    key = mode, labelling, items.task
                    part = by_label(found, self._labels(items, labelling, which), len(items.labels))
                    counts[key] = counts[key] + part if key in counts else part
                    if keep and labelling == TRUE:
                        room = bits.setdefault((mode, items.task), self._room(len(items)))
                        room[which] = self._packed(found)
        tasks = {items.task: items for items in split.items}
        return {key: self._grid(part, tasks[key[2]].counts()) for key, part in counts.items()}, bits

    def observations(self, split: Split, want: Sequence[str]) -> Iterator[tuple[list[int], Observation]]:
        """Batch by batch: the sentences and what the encoder does with them."""
        for rows in split.batches:
            batch = self.encoder.collate([split.pieces[row] for row in rows]).to(self._device)
            yield rows, observe(self.encoder, batch, self.gates, want)
            self.tick()

    # -- small parts -------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _labels(self, items: Items, labelling: str, which: NDArray[np.int64]) -> Tensor:
        return self._tensor((items.label if labelling == TRUE else items.shuffled)[which])

    def _attended(self, choices: AttendedPlaces, items: Items, rows: Sequence[int]) -> tuple[NDArray[np.int64], Tensor]:
        which, row = items.of(rows)
        columns = (self._tensor(column) for column in items.columns[which].T)
        found = arcs_found if items.kind == "tree" else arguments_found
        return which, found(choices, self._tensor(row), *columns)

    def _units(
        self, words: Tensor, seen: Observation, items: Items, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], Tensor]:
        which, row = items.of(rows)
        start, end = items.columns[which].T
        first = np.cumsum(seen.batch.sizes) - seen.batch.sizes
        return which, unit_vectors(words, self._tensor(first[row] + start), self._tensor(end - start))

    def _room(self, items: int) -> NDArray[np.uint8]:
        return np.zeros((items, -(-self.shape[0] * self.shape[1] // 8)), np.uint8)

    def _packed(self, found: Tensor) -> NDArray[np.uint8]:
        everywhere = np.zeros((len(found), self.shape[0] * self.shape[1]), bool)
        everywhere[:, self.there] = found.cpu().numpy()
        return np.packbits(everywhere, axis=1)

    def _grid(self, counts: Tensor, items: NDArray[np.int64]) -> Grid:
        """(K, H) hits to (K, L, A) percent."""
        grid = np.full((len(items), self.shape[0] * self.shape[1]), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = 100 * counts.cpu().numpy() / items[:, None]
        grid[:, self.there[self.open]] = shares[:, self.open]
        return grid.reshape(len(items), *self.shape)
