"""Degeneration of encoders and runs, read off the sentences of a corpus batch by batch.

    found = survey(reading, DegenerationSettings())

A first pass gathers moments of hidden states and head outputs over all words, and keeps the vectors of a sample, the
same words for every encoder. A second one takes the mean vector apart (:mod:`.degeneration_cone`).

Words are means of their sub-words, [CLS] and [SEP] left out. Letters for shapes: W words of all sentences, M of the
sample, L layers, A heads a layer, n heads it has now, d values a head has, H hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.degeneration import maths as degeneration
from mtlprune.analyses.degeneration.cloud import cloud, dimension, draw, margin
from mtlprune.analyses.degeneration.cone import Cone, take_apart
from mtlprune.analyses.degeneration.maths import Moments
from mtlprune.analyses.reading import Reading
from mtlprune.analyses.subjects import Subject
from mtlprune.claimed_heads import OPEN_ABOVE
from mtlprune.encoder.model import input_embeddings
from mtlprune.encoder.observe import observe

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
HEAD_MEASURES = ("cosine", "isoscore", "rank_share", "top1", "angle", "dimension", "margin")
POINTS = 250
"""Rows whose projection is kept, for the figure."""


@dataclass(frozen=True)
class DegenerationSettings:
    """How much is measured.

    Attributes:
        rows: of a cloud whose angles, partitions and projections are looked at; the same for all encoders.
        permutations: of labels, and of heads within layers.
        seed: of samples and permutations.
        device: where encoders run.
    """

    rows: int = 2000
    permutations: int = 10_000
    seed: int = 0
    device: str = "cpu"


@dataclass(eq=False)
class Degeneration:
    """What was found of one encoder (with its gates).

    Attributes:
        label, run, seed, kind: as in ``Subject`` and ``Source``.
        embeddings: measures of the matrix of token embeddings.
        hidden: of the hidden states, L + 1 times, the embeddings' output first; none without layers.
        heads: ``gate`` and HEAD_MEASURES, (L, A) each; NaN where there is no such head, or it is shut.
        spectra: singular values by the largest, of ``embeddings`` and of the ``last`` layer.
        points: (POINTS, 2), rows of the same on their two top directions.
        cone: where the mean vector comes from; None where the encoder cannot be taken apart.
        notes: what is left out and why, in sentences.
    """

    label: str
    run: str
    seed: int
    kind: str
    embeddings: dict[str, float]
    hidden: list[dict[str, float]] = field(default_factory=list)
    heads: dict[str, Floats] = field(default_factory=dict)
    spectra: dict[str, Floats] = field(default_factory=dict)
    points: dict[str, Floats] = field(default_factory=dict)
    cone: Cone | None = None
    notes: list[str] = field(default_factory=list)


class DegenerationSurvey:
    """The passes over one subject.

    Args:
        reading: its sentences.
        subject: encoder and gates.
        kind: of its source.
        settings: how much.
        tick: called after every batch.
    """

    def __init__(
        self,
        reading: Reading,
        subject: Subject,
        kind: str,
        settings: DegenerationSettings,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.reading, self.subject, self.kind, self.settings, self.tick = reading, subject, kind, settings, tick
        self.sample = draw([len(sentence) for sentence in reading.sentences], settings.rows, settings.seed)

    def run(self) -> Degeneration:
        """All passes."""
        subject, encoder = self.subject, self.subject.encoder
        table = input_embeddings(encoder.transformer).weight.detach().double().cpu()
        moments = Moments(table.shape[1])
        moments.add(table)
        drawn = np.random.default_rng([self.settings.seed, 72]).permutation(len(table))[: self.settings.rows]
        rows = table[np.sort(drawn)]
        found = Degeneration(subject.label, subject.name, subject.seed, self.kind, cloud(moments, rows))
        self._keep(found, "embeddings", moments, rows)
        if not encoder.context:
            found.notes.append(
                f"{subject.label} ({subject.name}) has no layers; only its token embeddings are measured."
            )
            return found
        self._observe()
        found.hidden = [
            cloud(moments, kept[self.sample.rows], kept[self.sample.lone])
            for moments, kept in zip(self.hidden, self.states, strict=True)
        ]
        self._keep(found, "last", self.hidden[-1], self.states[-1][self.sample.rows].double())
        found.heads = self._heads()
        cone = take_apart(subject, self.reading, self.hidden[-1].mean(), self.settings.device, self.tick)
        if isinstance(cone, str):
            found.notes.append(f"{subject.label} ({subject.name}): {cone}.")
        else:
            found.cone = cone
        return found

    def _keep(self, found: Degeneration, name: str, moments: Moments, rows: Tensor) -> None:
        """What the figures show of a cloud."""
        singular = moments.spectrum()
        found.spectra[name] = (singular / singular[0]).numpy()
        found.points[name] = degeneration.projection(rows[:POINTS], moments.second).numpy()

    def _observe(self) -> None:
        """Moments and kept vectors of hidden states and heads."""
        encoder, places = self.subject.encoder, self.subject.encoder.places
        size, kept = encoder.hidden_size, len(self.sample.kept)
        self.hidden = [Moments(size) for _ in range(places.layers + 1)]
        self.states = torch.zeros(places.layers + 1, kept, size)
        self.head_moments: list[Moments] = []
        self.outputs: list[Tensor] = []
        for rows, batch in self.reading.batches(self.subject, self.settings.device):
            seen = observe(encoder, batch, self.subject.gates, {"hidden", "heads"})
            here, there = self.sample.of(rows)
            for layer, states in enumerate(seen.hidden):
                words = seen.word_vectors(states)
                self.hidden[layer].add(words)
                self.states[layer, there] = words[here].float().cpu()
            if not self.outputs:
                self.head_moments = [Moments(*heads.shape[2:]) for heads in seen.heads]
                self.outputs = [torch.zeros(kept, *heads.shape[2:]) for heads in seen.heads]
            for moments, outputs, heads in zip(self.head_moments, self.outputs, seen.heads, strict=True):
                if heads.shape[2]:
                    words = seen.word_vectors(heads)  # (words, n, d)
                    moments.add(words)
                    outputs[there] = words[here].float().cpu()
            self.tick()

    def _heads(self) -> dict[str, Floats]:
        """``gate`` and HEAD_MEASURES."""
        places, gates = self.subject.encoder.places, self.subject.gates
        shape = places.layers, places.heads
        found = {name: np.full(shape, np.nan) for name in HEAD_MEASURES} | {"gate": np.zeros(shape)}
        for layer, kept in enumerate(map(list, places.kept)):
            if not kept:
                continue
            gate = np.ones(len(kept)) if gates is None else gates[layer, kept].cpu().numpy()
            found["gate"][layer, kept] = gate
            moments = self.head_moments[layer]
            columns: dict[str, Any] = {
                "cosine": moments.cosine(),
                "isoscore": moments.isoscore(),
                "rank_share": moments.effective_rank_share(),
                "top1": degeneration.top_share(moments.spectrum(), 1),
            }
            for name, values in columns.items():
                found[name][layer, kept] = values.numpy()
            for place, head in enumerate(kept):
                if gate[place] > OPEN_ABOVE:
                    for name, value in self._head(self.outputs[layer][:, place]).items():
                        found[name][layer, head] = value
        shut = found["gate"] <= OPEN_ABOVE
        for name in HEAD_MEASURES:
            found[name][shut] = np.nan
        return found

    def _head(self, outputs: Tensor) -> dict[str, float]:
        """What needs the rows (kept, d) of one head."""
        rows = outputs[self.sample.rows].double()
        angles = degeneration.angles_to_mean(rows)
        return {
            "angle": float(angles.median()),
            "dimension": dimension(outputs[self.sample.lone]),
            "margin": margin(rows),
        }


def survey(
    reading: Reading,
    settings: DegenerationSettings,
    say: Callable[[str], None] = log.info,
    tick: Callable[[], None] = lambda: None,
) -> list[Degeneration]:
    """All subjects, one after another.

    Raises:
        EncoderError, RunError: a subject cannot be loaded, or its heads are not known.
    """
    found = []
    kinds = {source.name: source.kind for source in reading.sources}
    for subject in reading.subjects(settings.device):
        say(f"{subject.label}, seed {subject.seed}")
        found.append(DegenerationSurvey(reading, subject, kinds[subject.name], settings, tick).run())
    return found
