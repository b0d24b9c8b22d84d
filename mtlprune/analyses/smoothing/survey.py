"""Over-smoothing of encoders and runs, read off the sentences of a corpus batch by batch.

    found = survey(reading, Settings())

Two passes over the sentences (the first for the corpus mean), one over a sample in which each head is closed in turn.
Tokens are sub-words with special tokens ([CLS], [SEP]) unless a name says otherwise: attention rests on special tokens,
so the bound would not hold without them. Words (label split) are means of their sub-words, without special tokens.

Letters for shapes: S sentences, B of a batch, T places, H hidden size, L layers, A heads a layer, n heads it has now.
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

from mtlprune.analyses.reading import Reading, batches
from mtlprune.analyses.smoothing import maths as smoothing
from mtlprune.analyses.smoothing.fusion_weights import FusionWeights
from mtlprune.analyses.smoothing.head_closing import closings
from mtlprune.analyses.smoothing.label_split import LabelSplit, word_grams
from mtlprune.analyses.smoothing.post_norm import head_norms, norm_names, read_layers, refusal
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.observe import Observation, observe
from mtlprune.sentence import declared

log = logging.getLogger(__name__)

OUTLIERS = 3
"""Dimensions left out for ``cosine_without_outliers``: those that give most to the expected cosine."""
STATES = ("cosine", "cosine_centred", "cosine_without_outliers", "cosine_pieces", "distance", "relative_distance")
"""Of hidden states: L + 1 a sentence, the embeddings first."""
STEPS = ("ratio", "mixing")
"""Of layers: L a sentence."""
BOUNDS = ("sigma1", "sigma2", "published", "bound", "bound_norm", "bound_attention")
"""The same, of post-LN layers only."""
EFFECTS = ("effect", "effect_last", "cosine_effect", "cosine_effect_last")


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        closing: sentences in which each head is closed; 0 leaves that out.
        permutations: of labels, a task.
        seed: of samples and permutations.
        device: where encoders run.
    """

    closing: int = 64
    permutations: int = 199
    seed: int = 0
    device: str = "cpu"


@dataclass(eq=False)
class Smoothing:
    """What was found of one encoder (with its gates).

    Attributes:
        label, run, seed, kind: as in ``Subject`` and ``Source``.
        sentences: STATES (S, L + 1), STEPS and BOUNDS (S, L), and ``tokens`` (S,).
        heads: ``gate``, ``mixing``, ``norm``, ``amplification``, and EFFECTS with their standard errors; each (L, A),
            NaN where there is no such head. Effects are open minus closed: d_M as a difference of logarithms, so below
            0 the head smooths.
        constants: of each layer what does not depend on sentences: norms, gains, s; None where the encoder is not
            post-LN.
        outliers: of each hidden state the OUTLIERS dimensions and their shares of the expected cosine.
        labels: from ``LabelSplit.records``.
        closed_on: sentences that effects are means over.
        notes: what is left out and why, in sentences.
        fusion: kind and weights of layers, where the encoder joins them.
    """

    label: str
    run: str
    seed: int
    kind: str
    sentences: dict[str, NDArray[np.float64]]
    heads: dict[str, NDArray[np.float64]]
    constants: list[dict[str, float]] | None
    outliers: list[list[tuple[int, float]]]
    labels: list[dict[str, Any]]
    closed_on: int
    notes: list[str] = field(default_factory=list)
    fusion: dict[str, Any] | None = None


class Survey:
    """The passes over one subject.

    Args:
        reading: its sentences.
        subject: encoder and gates.
        kind: of its source.
        settings: how much.
        tick: called after every batch.
    """

    def __init__(
        self, reading: Reading, subject: Subject, kind: str, settings: Settings, tick: Callable[[], None] = lambda: None
    ) -> None:
        self.reading, self.subject, self.kind, self.settings, self.tick = reading, subject, kind, settings, tick
        places = subject.encoder.places
        self.layers, self.heads, self.kept = places.layers, places.heads, places.kept
        self.refused = refusal(subject.encoder)
        self.norms = head_norms(subject.encoder, subject.gates)
        self.post_norm = None if self.refused else read_layers(subject.encoder, subject.gates)
        self.fused = None if subject.encoder.fusion is None else FusionWeights(subject.encoder.fusion)

    def run(self) -> Smoothing:
        """All passes."""
        self.mean, unit = self._corpus_mean()
        shares = smoothing.shares_of_dimensions(unit)  # (L + 1, H)
        top = shares.topk(min(OUTLIERS, shares.shape[1]))
        self.inside = torch.ones_like(shares, dtype=torch.bool).scatter(1, top.indices, False)
        found = self._all_sentences()
        effects, closed_on = self._effects()
        subject = self.subject
        return Smoothing(
            subject.label,
            subject.name,
            subject.seed,
            self.kind,
            found,
            {**self._of_heads(), **effects},
            self._constants(),
            [list(zip(i.tolist(), v.tolist(), strict=True)) for i, v in zip(top.indices, top.values, strict=True)],
            [record for split in self.splits for record in split.records()],
            closed_on,
            [f"{subject.label}: {self.refused}."] if self.refused else [],
            None if self.fused is None else self.fused.record(),
        )

    def _corpus_mean(self) -> tuple[Tensor, Tensor]:
        """(L + 1, H) each: the mean over all tokens of their vectors, and of these at length 1."""
        sums = units = torch.zeros(())
        tokens = 0
        for _, batch in self.reading.batches(self.subject, self.settings.device):
            seen = observe(self.subject.encoder, batch, self.subject.gates, {"hidden"})
            here = torch.stack(seen.hidden)[:, batch.attention_mask.bool()].double()  # (L + 1, tokens, H)
            sums = here.sum(1) + sums
            units = torch.nn.functional.normalize(here, dim=-1).sum(1) + units
            tokens += here.shape[1]
            self.tick()
        return sums / tokens, units / tokens

    def _all_sentences(self) -> dict[str, NDArray[np.float64]]:
        count, seed = len(self.reading.sentences), self.settings.seed
        found: dict[str, NDArray[np.float64]] = {name: np.full((count, self.layers + 1), np.nan) for name in STATES}
        found |= {name: np.full((count, self.layers), np.nan) for name in STEPS + (() if self.refused else BOUNDS)}
        found["tokens"] = np.zeros(count)
        self.sums = np.zeros((self.layers, self.heads))  # of λ
        self.splits = [
            LabelSplit(task, self.layers + 1, self.settings.permutations, seed)
            for task in declared(self.reading.sentences)
        ]
        want = {"hidden", "attention"} | (set() if self.refused else {"norms"})
        for rows, batch in self.reading.batches(self.subject, self.settings.device):
            seen = observe(self.subject.encoder, batch, self.subject.gates, want)
            for name, values in {**self._states(seen), **self._steps(seen)}.items():
                found[name][rows] = values.cpu().numpy().T
            found["tokens"][rows] = batch.attention_mask.sum(1).cpu().numpy()
            found["ratio"][rows] = found["distance"][rows, 1:] / found["distance"][rows, :-1]
            grams = word_grams(seen)
            if self.fused is not None:
                self.fused.add(seen)
            for split in self.splits:
                split.add([self.reading.sentences[row] for row in rows], grams)
            self.tick()
        return found

    def _states(self, seen: Observation) -> dict[str, Tensor]:
        """STATES, (L + 1, B) each."""
        mask, pieces = seen.batch.attention_mask.bool(), seen.batch.source >= 0
        columns: dict[str, list[Tensor]] = {name: [] for name in STATES}
        for layer, hidden in enumerate(seen.hidden):
            vectors = hidden.double()
            for name, value in (
                ("cosine", smoothing.cosine(vectors, mask)),
                ("cosine_centred", smoothing.cosine(vectors - self.mean[layer], mask)),
                ("cosine_without_outliers", smoothing.cosine(vectors * self.inside[layer], mask)),
                ("cosine_pieces", smoothing.cosine(vectors, pieces)),
                ("distance", smoothing.distance(vectors, mask)),
                ("relative_distance", smoothing.relative_distance(vectors, mask)),
            ):
                columns[name].append(value)
        return {name: torch.stack(values) for name, values in columns.items()}

    def _steps(self, seen: Observation) -> dict[str, Tensor]:
        """``mixing`` and BOUNDS, (L, B) each; λ of heads is summed on the way."""
        mask = seen.batch.attention_mask.bool()
        found: dict[str, list[Tensor]] = {"mixing": []}
        inputs = {(entry.layer, entry.name): entry.values for entry in seen.norms}
        for layer in range(self.layers):
            mixings = smoothing.mixing(seen.attention[layer].double(), mask)  # (B, n)
            self.sums[layer, list(self.kept[layer])] += mixings.sum(0).cpu().numpy()
            strongest = mixings.masked_fill(self.norms[layer].to(mixings) == 0, 0.0)
            found["mixing"].append(strongest.amax(1) if strongest.shape[1] else strongest.new_zeros(len(mask)))
            if self.post_norm is None:
                continue
            part = self.post_norm[layer]
            read = [inputs[layer, name].double() for name in norm_names(self.subject.encoder)]
            plain = [smoothing.least_deviation(values, mask) for values in read]
            held = [smoothing.least_deviation(v, mask, e) for v, e in zip(read, part.epsilons, strict=True)]
            bound = smoothing.rigorous_bound(part, held[0], held[1], mixings)
            for name, value in (
                ("sigma1", plain[0]),
                ("sigma2", plain[1]),
                ("published", smoothing.published_factor(part, plain[0], plain[1], mixings)),
                ("bound", bound.value),
                ("bound_norm", bound.norm),
                ("bound_attention", bound.attention),
            ):
                found.setdefault(name, []).append(value)
        return {name: torch.stack(values) for name, values in found.items()}

    def _of_heads(self) -> dict[str, NDArray[np.float64]]:
        shape = self.layers, self.heads
        gate, norm, mixings = np.zeros(shape), np.full(shape, np.nan), np.full(shape, np.nan)
        for layer, kept in enumerate(map(list, self.kept)):
            gate[layer, kept] = 1.0 if self.subject.gates is None else self.subject.gates[layer, kept].cpu().numpy()
            norm[layer, kept] = self.norms[layer].numpy()
            mixings[layer, kept] = self.sums[layer, kept] / len(self.reading.sentences)
        return {"gate": gate, "mixing": mixings, "norm": norm, "amplification": np.sqrt(mixings) * norm}

    def _constants(self) -> list[dict[str, float]] | None:
        if self.post_norm is None:
            return None
        return [
            {
                "gain1": part.gains[0],
                "gain2": part.gains[1],
                "inner": part.feed_forward[0],
                "outer": part.feed_forward[1],
                "s": part.largest,
                "open": part.open,
                "bound_feed_forward": 1 + part.lipschitz * part.feed_forward[0] * part.feed_forward[1],
            }
            for part in self.post_norm
        ]

    def _effects(self) -> tuple[dict[str, NDArray[np.float64]], int]:
        """EFFECTS of closing each head, and their standard errors, over a sample of sentences."""
        number = min(self.settings.closing, len(self.reading.sentences))
        drawn = np.random.default_rng([self.settings.seed, 61]).permutation(len(self.reading.sentences))[:number]
        sample = [self.reading.sentences[row] for row in sorted(drawn)]
        values: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
        for _, batch in batches(self.subject.encoder, sample, self.settings.device):
            hidden = observe(self.subject.encoder, batch, self.subject.gates, {"hidden"}).hidden
            mask = batch.attention_mask.bool()
            before = [_smoothness(state, mask) for state in hidden]
            for closed in closings(self.subject.encoder, batch, self.subject.gates):
                after = before[closed.layer + 1] - _smoothness(closed.after, mask)
                last = before[-1] - _smoothness(closed.last, mask)
                values.setdefault((closed.layer, closed.head), []).append(
                    torch.stack([after[0], last[0], after[1], last[1]]).cpu().numpy()
                )
            self.tick()
        found = {
            name: np.full((self.layers, self.heads), np.nan) for name in (*EFFECTS, *(f"{name}_se" for name in EFFECTS))
        }
        for place, parts in values.items():
            rows = np.concatenate(parts, axis=1)  # (4, sentences)
            for name, row in zip(EFFECTS, rows, strict=True):
                found[name][place] = row.mean()
                found[f"{name}_se"][place] = row.std(ddof=1) / np.sqrt(len(row)) if len(row) > 1 else np.nan
        return found, number


def _smoothness(hidden: Tensor, mask: Tensor) -> Tensor:
    """(2, B): log d_M and CosSim."""
    vectors = hidden.double()
    return torch.stack([smoothing.distance(vectors, mask).log(), smoothing.cosine(vectors, mask)])


def survey(
    reading: Reading, settings: Settings, say: Callable[[str], None] = log.info, tick: Callable[[], None] = lambda: None
) -> list[Smoothing]:
    """All subjects, one after another.

    Raises:
        EncoderError, RunError: a subject cannot be loaded, or its heads are not known.
    """
    found = []
    kinds = {source.name: source.kind for source in reading.sources}
    for subject in reading.subjects(settings.device):
        say(f"{subject.label}, seed {subject.seed}")
        found.append(Survey(reading, subject, kinds[subject.name], settings, tick).run())
    return found
