"""What probing costs beside the eager forward pass that shows attention, over the same batches.

The two are interleaved batch by batch, round after round; of the rounds the fastest time of each batch counts. Time is
that of the processor, all threads added up, so that other programs on the machine disturb little.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from mtlprune.analyses.probes import SOUND
from mtlprune.analyses.probes.measure import Data, Learnt, ProbeSurvey, Split
from mtlprune.analyses.reading import ProbeError, find_sources, too_long
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.training.hardware import in_fresh_process, peak_memory

FORWARD, LEARN, SCORE = "forward pass with attention", "centroids of all tasks", "scoring all tasks"


@dataclass
class Cost:
    """Processor seconds over dev, by kind; each kind's includes the forward pass it needs.

    Attributes:
        sentences, heads: how many of each.
        seconds: kind → seconds over all sentences.
        half: kind → seconds over every other sentence, which says whether time grows with their number.
        memory: peak resident bytes of a fresh process that scores dev, the model and the corpus among them.
    """

    sentences: int
    heads: int
    seconds: dict[str, float] = field(default_factory=dict)
    half: dict[str, float] = field(default_factory=dict)
    memory: int = 0

    def ratios(self) -> dict[str, float]:
        """Each kind over the forward pass."""
        return {kind: seconds / self.seconds[FORWARD] for kind, seconds in self.seconds.items()}

    def growth(self) -> dict[str, float]:
        """Time over all sentences over twice that over half of them: 1 where it grows linearly."""
        return {kind: seconds / (2 * self.half[kind]) for kind, seconds in self.seconds.items()}


def measure(
    name: str, corpus: Path, rounds: int, threads: int = 1, on_batch: Callable[[], None] = lambda: None
) -> Cost:
    """Measure probing of dev, on the CPU.

    Args:
        name: a run folder or an encoder.
        corpus: folder of a corpus with the split dev.
        rounds: repetitions; the fastest of each batch counts.
        threads: of torch.
        on_batch: called after all sentences, and after half of them.

    Raises:
        EncoderError, RunError, CorpusError, ProbeError: what cannot be loaded or does not fit.
    """
    survey, whole, half = _prepare(name, corpus, threads)
    cost = Cost(len(whole.sentences["dev"]), survey.count)
    for data, kept in ((whole, cost.seconds), (half, cost.half)):
        split = data.cut(survey.encoder, "dev")
        learnt = survey.learn(split)
        fastest: dict[str, list[float]] = {}
        for _ in range(rounds):
            for kind, times in _round(survey, split, learnt).items():
                fastest[kind] = list(map(min, fastest.get(kind, times), times))
        on_batch()
        kept.update({kind: sum(times) for kind, times in fastest.items()})
    cost.memory = in_fresh_process(_alone, name, corpus, threads)
    return cost


def _prepare(name: str, corpus: Path, threads: int) -> tuple[ProbeSurvey, Data, Data]:
    """What probes; dev, as far as the encoder sees each sentence at once; and every other sentence of it."""
    torch.set_num_threads(threads)
    [source] = find_sources([name])
    subject = next(source.open())
    sentences = list(load_corpus(corpus)["dev"])
    fit = [s for s, long in zip(sentences, too_long([source], sentences), strict=True) if not long]
    if len(fit) < 2:
        raise ProbeError(f"{corpus}: expected two sentences in dev that the encoder sees at once, found {len(fit)}")
    return ProbeSurvey(subject.encoder, subject.gates), Data.read({"dev": fit}), Data.read({"dev": fit[::2]})


def _round(survey: ProbeSurvey, split: Split, learnt: Learnt) -> dict[str, list[float]]:
    """Seconds of each kind for each batch, once."""
    kinds: dict[str, Callable[[Split], Any]] = {
        FORWARD: lambda part: _forward(survey.encoder, part),
        LEARN: survey.learn,
        SCORE: lambda part: survey.score(part, {SOUND: learnt}),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for rows in split.batches:
        part = replace(split, batches=[rows])
        for kind, work in kinds.items():
            begun = time.process_time()
            work(part)
            found[kind].append(time.process_time() - begun)
    return found


@torch.no_grad()
def _forward(encoder: Encoder, split: Split) -> None:
    for rows in split.batches:
        batch = encoder.collate([split.pieces[row] for row in rows])
        encoder.transformer(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_attentions=True)


def _alone(name: str, corpus: Path, threads: int) -> int:
    survey, whole, _ = _prepare(name, corpus, threads)
    split = whole.cut(survey.encoder, "dev")
    survey.score(split, {SOUND: survey.learn(split)})
    return peak_memory()
