"""The dry run of `mtlprune train`, which collects facts about a run and raises the errors of its settings and data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtlprune.config.config import Config
from mtlprune.corpora.store import Corpus
from mtlprune.encoder.batch import further_windows
from mtlprune.encoder.pieces import Pieces
from mtlprune.evaluation.head_masks import head_names
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import NOT_ARGUMENTS, Sentence
from mtlprune.tasks import decoder_class
from mtlprune.training import hardware, mixing
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.data import read_splits
from mtlprune.training.pruning import drawn_heads
from mtlprune.training.pruning.gate_penalty import make_penalty
from mtlprune.training.setup import build_model


@dataclass
class Inspection:
    """Facts about a run that has not begun."""

    config: Config
    """The configuration with the device, precision and threads that this machine offers (see `resolve_auto`)."""
    sentences: dict[str, int]
    """Split → number of sentences."""
    words: dict[str, int]
    """Split → number of words."""
    annotated_counts: dict[str, dict[str, int]]
    """Split → task → number of sentences with the layer of the task."""
    longest: dict[str, int]
    """Split → number of words in its longest sentence."""
    unknown_words: dict[str, int]
    """Split → number of words that contain an unknown token for the encoder."""
    windowed: dict[str, int]
    """Split → number of sentences that need more than one window of the encoder."""
    windows: dict[str, int]
    """Split → the largest number of windows that a sentence needs."""
    labels_unseen: dict[str, list[str]]
    """Task → labels that occur in dev but not in train."""
    wide_arguments: dict[str, int]
    """Task of frames → number of training arguments with more words than ``max_width``, which cannot be learnt."""
    updates: list[int]
    """Number of updates in each epoch."""
    parameters: dict[str, int]
    """Part of the model ("encoder" or a task) → number of parameters."""
    heads: tuple[int, int] | None
    """Number of layers and of heads in a layer, if the heads are gated or chosen; else None."""
    settles_at: int
    """Number of updates after which weights may count as the best."""
    remarks: str
    """Remarks on the direction of attention, heads that share keys, and random heads that stay open; "" for none."""


def inspect(config: Config, corpus: Corpus) -> Inspection:
    """Build the model of a run, tokenise its data, and collect facts about it, without writing anything."""
    config = hardware.resolve_auto(config)
    train, dev = read_splits(config, corpus)
    splits: dict[str, Sequence[Sentence]] = {config.data.train: train, config.data.dev: dev}
    model, vocabularies = build_model(config, train, dev)
    pieces = {name: model.encoder.tokenize_sentences(content) for name, content in splits.items()}
    windows = {name: _count_windows(rows, model.encoder.frame.capacity) for name, rows in pieces.items()}
    unknown = model.encoder.word_pieces.unknown
    is_annotated = {task: [model.tasks[task].is_annotated(s) for s in train] for task in config.tasks}  # type: ignore[operator]
    lengths = [len(row.ids) + model.encoder.frame.size for row in pieces[config.data.train]]
    updates = [
        len(mixing.plan(config.train, lengths, is_annotated, epoch_generator(config.train.seed, epoch)))
        for epoch in range(config.train.epochs)
    ]
    return Inspection(
        config=config,
        sentences={name: len(content) for name, content in splits.items()},
        words={name: sum(map(len, content)) for name, content in splits.items()},
        annotated_counts={
            name: {task: sum(s.get(task) is not None for s in content) for task in config.tasks}
            for name, content in splits.items()
        },
        longest={name: max(map(len, content)) for name, content in splits.items()},
        unknown_words={name: _count_unknown(rows, unknown) for name, rows in pieces.items()},
        windowed={name: int((counts > 1).sum()) for name, counts in windows.items()},
        windows={name: int(counts.max()) for name, counts in windows.items()},
        labels_unseen=_unseen_labels(config, vocabularies, dev),
        wide_arguments={
            task: _count_wide(train, task, getattr(config.decoders, task).max_width)
            for task in config.tasks
            if config.decoder(task) == "srl"
        },
        updates=updates,
        parameters=model.sizes(),
        heads=(model.encoder.head_hooks.layers, model.encoder.head_hooks.heads) if model.gates else None,
        settles_at=_first_settled(config, model, sum(updates)),
        remarks="; ".join(filter(None, [model.encoder.remarks(), _random_heads_named(config, model)])),
    )


def _random_heads_named(config: Config, model: MultiTaskModel) -> str:
    """Name the heads that ``pruning.method: random`` leaves open, and their seed; "" for other methods."""
    if config.pruning.method != "random":
        return ""
    draw = config.pruning.draw
    origin = f"train.seed {config.train.seed} and these tasks" if draw is None else f"pruning.draw {draw}"
    return f"random heads of {origin}: {', '.join(head_names(drawn_heads(config, model)))}"


def _first_settled(config: Config, model: MultiTaskModel, total: int) -> int:
    """Return the number of updates, out of ``total``, after which the gates count as settled."""
    if not config.pruning.moves:
        return 0
    penalty = make_penalty(config, model, total)
    return next(step for step in range(total + 1) if penalty.has_settled(step))


def _count_windows(rows: Sequence[Pieces], capacity: int | None) -> np.ndarray:
    """Return the number of windows of ``capacity`` sub-words that each sentence needs, (number of sentences,)."""
    sizes = np.array([len(row.ids) for row in rows])
    if capacity is None:
        return np.ones_like(sizes)
    return 1 + further_windows(sizes, capacity)


def _count_unknown(rows: Sequence[Pieces], unknown: int) -> int:
    """Count the words with at least one unknown sub-word."""
    total = 0
    for row in rows:
        word = np.repeat(np.arange(len(row.counts)), row.counts)
        total += len(np.unique(word[row.ids == unknown]))
    return total


def _unseen_labels(
    config: Config, vocabularies: Mapping[str, Mapping[str, Sequence[str]]], dev: Sequence[Sentence]
) -> dict[str, list[str]]:
    """Return each task's labels that occur in dev but not in the vocabulary, so that they are never predicted."""
    unseen_by_task: dict[str, list[str]] = {}
    for task in config.tasks:
        kinds: dict[str, Any] = decoder_class(config.decoder(task)).collect(dev, task)
        labels = sorted({label for kind in kinds for label in set(kinds[kind]) - set(vocabularies[task][kind])})
        if labels:
            unseen_by_task[task] = labels
    return unseen_by_task


def _count_wide(sentences: Sequence[Sentence], layer: str, width: int) -> int:
    """Count the arguments of a layer of frames that have more than ``width`` words."""
    return sum(
        span.end - span.start > width and span.label not in NOT_ARGUMENTS
        for sentence in sentences
        for predicate in sentence.get(layer) or ()
        for span in predicate.arguments
    )
