"""The dry run of `mtlprune train`, which collects facts about a run and raises the errors of its settings and data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from mtlprune.config.config import Config
from mtlprune.corpora.store import Corpus
from mtlprune.encoder.batch import further_windows
from mtlprune.encoder.pieces import Pieces
from mtlprune.evaluation.head_masks import head_names
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import NOT_ARGUMENTS, Sentence
from mtlprune.tasks import decoder_class
from mtlprune.tasks.base import Task
from mtlprune.training import hardware, mixing
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.data import portions, read_splits
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
    counts = {name: _count_split(config, model, content) for name, content in splits.items()}
    of_train = counts[config.data.train]
    updates = [
        len(
            mixing.plan(
                config.train, of_train.lengths, of_train.is_annotated, epoch_generator(config.train.seed, epoch)
            )
        )
        for epoch in range(config.train.epochs)
    ]
    return Inspection(
        config=config,
        sentences={name: len(content) for name, content in splits.items()},
        words={name: sum(of_split.words) for name, of_split in counts.items()},
        annotated_counts={
            name: {task: sum(rows) for task, rows in of_split.is_annotated.items()} for name, of_split in counts.items()
        },
        longest={name: max(of_split.words) for name, of_split in counts.items()},
        unknown_words={name: of_split.unknown_words for name, of_split in counts.items()},
        windowed={name: sum(number > 1 for number in of_split.windows) for name, of_split in counts.items()},
        windows={name: max(of_split.windows) for name, of_split in counts.items()},
        labels_unseen=_unseen_labels(config, vocabularies, dev),
        wide_arguments=dict(of_train.wide_arguments),
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


@dataclass
class _SplitCounts:
    """What is counted in a split, by sentence if not stated otherwise."""

    words: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Numbers of sub-words, including special tokens."""
    windows: list[int] = field(default_factory=list)
    """Numbers of windows of the encoder."""
    is_annotated: dict[str, list[bool]] = field(default_factory=dict)
    """Task → whether each sentence has the layer of the task."""
    unknown_words: int = 0
    wide_arguments: Counter[str] = field(default_factory=Counter)
    """Task of frames → number of arguments with more words than ``max_width``."""


def _count_split(config: Config, model: MultiTaskModel, sentences_of_split: Sequence[Sentence]) -> _SplitCounts:
    """Count in one pass, because a large split is decoded anew in each pass."""
    encoder, unknown = model.encoder, model.encoder.word_pieces.unknown
    tasks = {name: cast(Task, model.tasks[name]) for name in config.tasks}
    widths = {task: getattr(config.decoders, task).max_width for task in tasks if config.decoder(task) == "srl"}
    counts = _SplitCounts(is_annotated={task: [] for task in tasks}, wide_arguments=Counter(dict.fromkeys(widths, 0)))
    for sentences in portions(sentences_of_split):
        pieces = encoder.tokenize_sentences(sentences)
        sizes = np.array([len(row.ids) for row in pieces])
        capacity = encoder.frame.capacity
        counts.windows += (np.ones_like(sizes) if capacity is None else 1 + further_windows(sizes, capacity)).tolist()
        counts.lengths += (sizes + encoder.frame.size).tolist()
        counts.words += map(len, sentences)
        counts.unknown_words += _count_unknown(pieces, unknown)
        for name, task in tasks.items():
            counts.is_annotated[name] += map(task.is_annotated, sentences)
        for name, width in widths.items():
            counts.wide_arguments[name] += _count_wide(sentences, name, width)
    return counts


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
        decoder = decoder_class(config.decoder(task))
        if decoder.kind == "number":  # whose vocabulary is the scale of the training numbers
            continue
        kinds: dict[str, Any] = decoder.collect(dev, task)
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
