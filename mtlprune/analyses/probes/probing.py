"""Probe a list of encoders and runs on a corpus: what ``mtlprune probe`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtlprune.analyses.probes.items import Heights
from mtlprune.analyses.probes.results import Probed, Results
from mtlprune.analyses.probes.survey import AS_RELEASED, MODES, SOUND, Data, Findings, ProbeSurvey
from mtlprune.analyses.subjects import ProbeError, Source, Subject, find_sources
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import use_eager
from mtlprune.sentence import Sentence

PHRASES = {"lowest": "phrases of words only", "all": "phrases of every height", "each": "a label for each height"}
Telling = Callable[[str], None]


@dataclass(frozen=True)
class ProbeRequest:
    """What to probe and how.

    Attributes:
        names: run folders and encoders.
        corpus: folder of a corpus with the splits train, dev, test (as-released: test).
        modes: of sound, as-released.
        train_sentences: how many of train make the centroids, drawn at random; None for all.
        few: labels with fewer test items are marked.
        heights: which phrases of CON, see :func:`mtlprune.analyses.probes.items.read_items`.
        untrained: also probe each encoder with random weights.
        seed: of shuffled labels, random weights and the draw from train.
        device: cpu, cuda, ...
    """

    names: tuple[str, ...]
    corpus: Path
    modes: tuple[str, ...] = (SOUND,)
    train_sentences: int | None = None
    few: int = 20
    heights: Heights = "lowest"
    untrained: bool = True
    seed: int = 0
    device: str = "cpu"


def probe(
    request: ProbeRequest, tell: Telling = lambda words: None, tick: Callable[[], None] = lambda: None
) -> Results:
    """Probe everything asked for.

    Args:
        tell: told what begins, in words.
        tick: called after every batch.

    Raises:
        ProbeError: names that cannot be probed together, or a corpus without what is asked.
        EncoderError, RunError, CorpusError: what cannot be loaded.
    """
    if not request.modes or set(request.modes) - set(MODES):
        raise ProbeError(f"expected modes among {', '.join(MODES)}, found {', '.join(request.modes) or 'none'}")
    sources = find_sources(request.names)
    corpus = load_corpus(request.corpus)
    sentences = _read(corpus, request)
    tell("looking for sentences that do not fit")
    left_out = _too_long(sources, sentences)
    data = Data.read(
        {
            split: [s for s, out in zip(content, left_out[split], strict=True) if not out]
            for split, content in sentences.items()
        },
        request.seed,
        request.heights,
    )
    if not data.items["test"]:
        raise ProbeError(
            f"{corpus.path}: no sentence of {', '.join(sentences)} has any layer, so nothing can be probed"
        )
    longest = max(len(s) for content in data.sentences.values() for s in content)
    head = _head(corpus, request, data, {split: int(out.sum()) for split, out in left_out.items()})
    results = Results(data.items, request.modes, request.few, longest, head)
    controls: dict[Any, Findings] = {}
    first: tuple[Source, tuple] | None = None
    for source in sources:
        tell(f"probing {source.name}")
        for subject in source.open(request.device):
            first = first or (source, subject.size())
            _refuse_other_size(first, source, subject.size())
            found = ProbeSurvey(subject.encoder, subject.gates, tick).run(data, request.modes)
            untrained = _untrained(subject, source, request, data, controls, tell, tick)
            results.probed.append(Probed(subject.label, subject.name, subject.seed, found, untrained))
            head["encoders"].append({"label": subject.label, "run": subject.name, "seed": subject.seed})
    return results


def _read(corpus: Corpus, request: ProbeRequest) -> dict[str, list[Sentence]]:
    wanted = ("train", "dev", "test") if SOUND in request.modes else ("test",)
    missing = [split for split in wanted if split not in corpus.splits]
    if missing:
        raise ProbeError(
            f"{corpus.path}: expected the splits {', '.join(wanted)}, found {', '.join(corpus.splits)}; centroids come "
            f"from train, heads are chosen on dev; with test alone there is --mode {AS_RELEASED}"
        )
    found = {split: list(corpus[split]) for split in wanted}
    if request.train_sentences is not None and "train" in found and request.train_sentences < len(found["train"]):
        generator = np.random.default_rng([request.seed, 5])
        rows = np.sort(generator.permutation(len(found["train"]))[: request.train_sentences])
        found["train"] = [found["train"][row] for row in rows]
    return found


def _too_long(sources: Sequence[Source], sentences: dict[str, list[Sentence]]) -> dict[str, np.ndarray]:
    """Which sentences any of the encoders cannot see at once: they are left out for all, so that items are the same."""
    out = {split: np.zeros(len(content), bool) for split, content in sentences.items()}
    for source in {source.kind: source for source in sources}.values():
        encoder = next(source.open()).encoder
        capacity = encoder.frame.capacity
        if capacity is not None:
            for split, content in sentences.items():
                pieces = encoder.tokenize_all([s.words for s in content])
                out[split] |= np.array([len(p.ids) > capacity for p in pieces], bool)
    for split, gone in out.items():
        if gone.all():
            raise ProbeError(f"no sentence of {split} is short enough for the encoder to see it at once")
    return out


def _head(corpus: Corpus, request: ProbeRequest, data: Data, left_out: dict[str, int]) -> dict[str, Any]:
    return {
        "corpus": corpus.info["name"],
        "fingerprint": corpus.fingerprint,
        "splits": {
            split: {"sentences": len(content), "too_long": left_out[split]} for split, content in data.sentences.items()
        },
        "modes": {
            mode: {"centroids": "train", "choice": "dev", "report": "test"}
            if mode == SOUND
            else {"centroids": "test", "choice": "test", "report": "test"}
            for mode in request.modes
        },
        "con": PHRASES[request.heights],
        "seed": request.seed,
        "encoders": [],
    }


def _untrained(
    subject: Subject,
    source: Source,
    request: ProbeRequest,
    data: Data,
    controls: dict[Any, Findings],
    tell: Telling,
    tick: Callable[[], None],
) -> Findings | None:
    """The same architecture, heads and gates with random weights; encoders that agree in these share the result."""
    if not request.untrained:
        return None
    gates = None if subject.gates is None else subject.gates.cpu().numpy().tobytes()
    key = source.kind, tuple(subject.encoder.places.kept), gates
    if key not in controls:
        tell(f"probing {source.name} with random weights")
        encoder: Encoder = use_eager(subject.untrained(request.seed)).to(request.device)
        controls[key] = ProbeSurvey(encoder, subject.gates, tick).run(data, request.modes)
    return controls[key]


def _refuse_other_size(first: tuple[Source, tuple], source: Source, size: tuple) -> None:
    if size != first[1]:
        (kind, layers, heads, hidden), (k, lay, h, hid) = first[1], size
        raise ProbeError(
            f"{first[0].name} is a {kind} of {layers} × {heads} heads (hidden size {hidden}) and {source.name} a {k} "
            f"of {lay} × {h} ({hid}); heads of different encoders do not correspond, so probe them into folders of "
            "their own"
        )
