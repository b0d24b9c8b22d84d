"""One head's attention in sentences: those that have most of what a label connects, else those where it is decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.subjects import Subject, find_sources
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.observe import observe
from mtlprune.runs import RunError, RunFolder
from mtlprune.sentence import Sentence

SHORTEST, LONGEST = 8, 14
"""Words of the sentences that are looked at: short enough to be drawn, long enough to show something."""
CANDIDATES = 500
BATCH = 32
Seen = tuple[Sentence, NDArray[np.float64], set[tuple[int, int]]]
"""A sentence, the head's attention (S, S) over start token, words and end token, and the pairs that were sought."""


def open_subject(name: str, gates_of: str | None) -> Subject:
    """What is named; of a run with a gate set a task, with the gates of one. Raises RunError where unclear."""
    found = {subject.label.rpartition(":")[2].lower(): subject for subject in find_sources([name])[0].open()}
    alone = len(found) == 1
    if gates_of is None and alone:
        return next(iter(found.values()))
    if alone:
        raise RunError(f"--gates-of {gates_of}: {name} has no gate set of its own for each task; leave it out")
    if gates_of not in found:
        wrong = f"found {gates_of!r}" if gates_of is not None else "found none"
        raise RunError(f"{name} has a gate set for each task; expected --gates-of {' or '.join(found)}, {wrong}")
    return found[gates_of]


def number_in_layer(subject: Subject, layer: int, head: int) -> int:
    """Where the head lies among those its layer still has. Raises RunError for one that is not there."""
    places = subject.encoder.places
    if layer > places.layers or head > places.heads:
        raise RunError(
            f"{subject.name} has {places.layers} layers of {places.heads} heads, so there is no head {head} in layer "
            f"{layer}"
        )
    kept = places.kept[layer - 1]
    if head - 1 not in kept:
        left = ", ".join(str(number + 1) for number in kept) or "none"
        raise RunError(f"head {head} of layer {layer} was removed from {subject.name}; left in this layer: {left}")
    return kept.index(head - 1)


def candidates(encoder: str, corpus: Path | None, text: str | None, split: str) -> tuple[list[Sentence], str]:
    """Sentences to choose from, and where they come from in words: the text, the corpus, or that of a run."""
    if text is not None:
        words = tuple(text.split())
        if not words:
            raise RunError("--text: expected words apart by blanks, found none")
        return [Sentence("text", words).validate()], ""
    place = corpus
    if place is None and (Path(encoder) / "config.yaml").is_file():
        place = Path(RunFolder.with_weights(encoder).read_config().get("data", {}).get("path", ""))
    if place is None:
        return [], "No sentences: name a corpus (--corpus) or give one (--text)."
    fit = (sentence for sentence in load_corpus(place)[split] if SHORTEST <= len(sentence) <= LONGEST)
    different = {sentence.words: sentence for sentence, _ in zip(fit, range(CANDIDATES), strict=False)}
    where = f"{place.name}, {split}, {SHORTEST} to {LONGEST} words"
    known = f"(of {len(different)} sentences: {where})."
    return list(different.values()), known if different else f"No sentence: {where}."


def chosen(
    subject: Subject,
    layer: int,
    head: int,
    sentences: Sequence[Sentence],
    label: tuple[str, str] | None,
    wanted: int,
    every: bool,
) -> tuple[list[Seen], str]:
    """Sentences with the head's attention, and how they were chosen.

    Args:
        layer, head: from 1.
        label: task and label of arcs whose pairs are sought; by what is in the sentence, never by whether the head
            finds it.
        wanted: how many.
        every: take all of them.
    """
    pairs = [_sought(sentence, *label) if label else set() for sentence in sentences]
    order, how = list(range(len(sentences))), ""
    if any(pairs) and not every and label:
        order.sort(key=lambda k: (-len(pairs[k]) / len(sentences[k]), k))
        order = [k for k in order[:wanted] if pairs[k]]
        how = f"Sentences: those with most {label[0].upper()} {label[1]} by length, found or not"
    number = number_in_layer(subject, layer, head)
    weights = dict(zip(order, _attention(subject, layer, number, [sentences[k] for k in order]), strict=True))
    if not how and not every and sentences:
        decided = {k: float(np.mean(weight[1:-1, 1:-1].max(-1))) for k, weight in weights.items()}
        order = sorted(order, key=lambda k: (-decided[k], k))[:wanted]
        how = "Sentences: those where the head is most decided"
    return [(sentences[k], weights[k], pairs[k]) for k in order], how


def _sought(sentence: Sentence, task: str, label: str) -> set[tuple[int, int]]:
    """Pairs of places that the label connects; word i has place i + 1."""
    if task == "dep" and sentence.dep is not None:
        pairs = enumerate(zip(*sentence.dep, strict=True), 1)
        return {(dependent, head) for dependent, (head, relation) in pairs if relation == label}
    return {
        (word + 1, predicate.index + 1)
        for predicate in (sentence.srl or ())
        if task == "srl"
        for span in predicate.arguments
        if span.label == label
        for word in range(span.start, span.end)
    }


def _attention(
    subject: Subject, layer: int, number: int, sentences: Sequence[Sentence]
) -> Iterator[NDArray[np.float64]]:
    """(S, S) of each sentence, in order: start token, words, end token."""
    encoder = subject.encoder
    pieces = encoder.tokenize_all([sentence.words for sentence in sentences])
    for start in range(0, len(pieces), BATCH):
        batch = encoder.collate(pieces[start : start + BATCH])
        seen = observe(encoder, batch, subject.gates, {"attention"})
        for row, words in zip(seen.word_attention(layer - 1)[:, number], batch.sizes, strict=True):
            yield row[: words + 2, : words + 2].double().numpy()
