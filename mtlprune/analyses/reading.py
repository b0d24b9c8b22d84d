"""What an analysis reads: the sentences of a split, and encoders and runs one after another, batch by batch.

    reading = read(["minilm", "runs/pos"], Path("data/ewt5"), sentences=1000)
    for subject in reading.subjects():
        for rows, batch in reading.batches(subject):
            seen = observe(subject.encoder, batch, subject.gates, want={"hidden"})

All encoders see the same sentences: what is too long for one of them is left out for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.subjects import ProbeError, Source, Subject, find_sources
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observation_batches
from mtlprune.encoder.pieces import EncoderError
from mtlprune.results import CLOSED_GATE, Grid, Part, Result, joined
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Reading:
    """Sentences and who reads them.

    Attributes:
        corpus, fingerprint, split: where the sentences come from.
        sentences: in the order of the corpus.
        left_out: how many were too long for one of the encoders.
        sources: encoders and runs, yet to be loaded.
        seed: by which the sentences were drawn.
    """

    corpus: str
    fingerprint: str
    split: str
    sentences: list[Sentence]
    left_out: int
    sources: list[Source]
    seed: int

    def subjects(self, device: str = "cpu") -> Iterator[Subject]:
        """Load one after another, as eager and evaluating encoders; several where a run has a gate set a task."""
        for source in self.sources:
            yield from source.open(device)

    def batches(self, subject: Subject, device: str = "cpu") -> Iterator[tuple[list[int], EncoderBatch]]:
        """Rows of ``sentences`` and their batch, of similar length, longest first."""
        yield from batches(subject.encoder, self.sentences, device)

    def head(self) -> dict[str, Any]:
        """What every result says of its origin."""
        return {
            "corpus": self.corpus,
            "fingerprint": self.fingerprint,
            "split": self.split,
            "sentences": len(self.sentences),
            "too_long": self.left_out,
            "seed": self.seed,
        }


def batches(
    encoder: Encoder, sentences: Sequence[Sentence], device: str = "cpu"
) -> Iterator[tuple[list[int], EncoderBatch]]:
    """Rows of ``sentences`` and their batch, of similar length, longest first."""
    pieces = encoder.tokenize_all([sentence.words for sentence in sentences])
    for rows in observation_batches([len(p.ids) for p in pieces]):
        yield rows, encoder.collate([pieces[row] for row in rows]).to(device)


def read(
    names: Sequence[str], corpus: Path, split: str = "dev", sentences: int | None = None, seed: int = 0
) -> Reading:
    """Find sources and sentences.

    Args:
        names: run folders, encoder names or folders.
        sentences: how many of the split, drawn at random by ``seed``; None for all.

    Raises:
        ProbeError: nothing to read, or names that cannot be told apart.
        EncoderError, RunError, CorpusError: what cannot be loaded.
    """
    sources = find_sources(names)
    stored = load_corpus(corpus)
    if split not in stored.splits:
        raise ProbeError(f"{stored.path}: expected a split of {', '.join(stored.splits)}, found {split!r}")
    found = list(stored[split])
    out = too_long(sources, found)
    kept = np.flatnonzero(~out)
    if sentences is not None and sentences < len(kept):
        kept = np.sort(np.random.default_rng([seed, 6]).permutation(kept)[:sentences])
    if not len(kept):
        raise ProbeError(f"{stored.path}: no sentence of {split} is short enough for the encoder to see it at once")
    chosen = [found[row] for row in kept]
    return Reading(stored.info["name"], stored.fingerprint, split, chosen, int(out.sum()), sources, seed)


def too_long(sources: Sequence[Source], sentences: Sequence[Sentence]) -> NDArray[np.bool_]:
    """Which sentences any of the encoders cannot see at once: they are left out for all, so that items are the same."""
    out = np.zeros(len(sentences), bool)
    for source in {source.kind: source for source in sources}.values():
        encoder = next(source.open()).encoder
        if encoder.frame.capacity is not None:
            pieces = encoder.tokenize_all([sentence.words for sentence in sentences])
            out |= np.array([len(p.ids) > encoder.frame.capacity for p in pieces], bool)
    return out


# -- one Result from all of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What an analysis found of one encoder.

    Attributes:
        frames: as in a Result, without the keys encoder, run and seed.
        about: more for its entry in ``about["encoders"]``.
        notes: what is left out and why, in sentences.
    """

    frames: Mapping[str, DataFrame]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def read_request(request: Request) -> Reading:
    """Who reads what, as ``read`` has it."""
    return read(request.names, request.corpus, request.split, request.sentences, request.seed)


def survey(analysis: str, reading: Reading, request: Request, one: Callable[[Subject], Found | str]) -> Result:
    """Call ``one`` for every encoder and gate set, and join what it finds; a string is why the encoder is left out.

    Raises:
        EncoderError, RunError: a subject cannot be loaded, or all are left out.
    """
    kinds = {source.name: source.kind for source in reading.sources}
    encoders: list[dict[str, Any]] = []
    notes: list[str] = []
    refused: list[str] = []
    parts: list[Part] = []
    for subject in reading.subjects(request.device):
        request.on_status(f"{subject.label}, seed {subject.seed}")
        found = one(subject)
        if isinstance(found, str):
            refused.append(f"{subject.name}: {found}")
            continue
        keys = {"encoder": subject.label, "run": subject.name, "seed": subject.seed}
        encoders.append({**entry(subject, kinds[subject.name]), **found.about})
        notes += found.notes
        parts.append((keys, found.frames))
    if not encoders:
        raise EncoderError("; ".join(refused))
    notes = [*(f"Left out: {line}." for line in refused), *notes]
    settings = {**request.options.model_dump(mode="json"), "seed": request.seed, "device": request.device}
    about = {**reading.head(), "settings": settings, "encoders": encoders, "notes": notes}
    return Result(analysis, about, joined(parts))


def entry(subject: Subject, kind: str) -> dict[str, Any]:
    """What ``about["encoders"]`` says of an encoder that began with ``kind``."""
    places = subject.encoder.places
    shape = {"layers": places.layers, "heads": places.heads, "open": int((gate_grid(subject) > CLOSED_GATE).sum())}
    return {"encoder": subject.label, "run": subject.name, "seed": subject.seed, "kind": kind, **shape}


def gate_grid(subject: Subject) -> Grid:
    """(L, A): the gate of each head, 1 where the run has none, 0 where the head was removed."""
    places = subject.encoder.places
    found = np.zeros((places.layers, places.heads))
    for layer, kept in enumerate(map(list, places.kept)):
        found[layer, kept] = 1.0 if subject.gates is None else subject.gates[layer, kept].cpu().numpy()
    return found
