"""What each subset of the four terms is worth: fresh light decoders scored on items they never saw.

Letters for shapes: U items, D features an item has, H hidden size, S = 16 subsets, X sentences.

Source: Mickus, Paperno and Constant (2022), section 5; macro F1 over tags, O included, is their score of NER.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.dissection.senses import UNSEEN, inventory, nearest
from mtlprune.analyses.dissection.subset_nets import NetSettings, predict, train_nets
from mtlprune.analyses.dissection.term_items import TermItems, entities, numbered, sense_items, term_items
from mtlprune.layers import kind_of
from mtlprune.sentence import Sentence, declared

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SENSES, NEAREST = "wsd", "wsd-knn"


@dataclass(frozen=True, eq=False)
class SubsetScores:
    """One task on one encoder.

    Attributes:
        train, test: numbers of items.
        counts: (S, X, 3), correct, predicted, gold of each sentence; entities in NER, items elsewhere.
        macro: (S,), macro F1 over labels of items (tags in NER).
        micro_agreement, macro_agreement: (S, S), F1 of the answers of one subset against those of another.
        baseline: (X, 3), counts of the majority label, or of each lemma's most frequent sense.
        unseen: test items whose label training lacks; nobody can have them right.
    """

    task: str
    train: int
    test: int
    counts: Ints
    macro: Floats
    micro_agreement: Floats
    macro_agreement: Floats
    baseline: Ints
    unseen: int

    def scores(self) -> Floats:
        """(S,): F1 over all sentences, in [0, 1]; accuracy where each item gets a label."""
        return f1(self.counts.sum(1))


def f1(counts: NDArray) -> Floats:
    """2 · correct / (predicted + gold) of (..., 3); 0 where there is neither."""
    counts = np.asarray(counts, np.float64)
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


@dataclass(frozen=True, eq=False)
class Material:
    """Terms of the last layer and their sentences: what decoders are trained or scored on.

    Attributes:
        terms: (4, W, H), the words of all sentences one after another.
    """

    sentences: Sequence[Sentence]
    terms: Tensor

    def features(self, items: TermItems) -> Tensor:
        """(4, U, k · H): means over the spans of each item, side by side; linear in the terms."""
        begin, sizes = items.spans[..., 0].ravel(), (items.spans[..., 1] - items.spans[..., 0]).ravel()
        offsets = np.cumsum(sizes) - sizes
        words = torch.from_numpy(np.arange(sizes.sum()) + np.repeat(begin - offsets, sizes))
        first = torch.from_numpy(offsets)
        parts = [functional.embedding_bag(words, part, first, mode="mean") for part in self.terms]
        return torch.stack(parts).view(4, len(items), -1)


def score_task(task: str, train: Material, test: Material, settings: NetSettings) -> SubsetScores | None:
    """Train sixteen decoders of one task and score them; None where either side has no items.

    Args:
        task: the name of a layer.
    """
    known, asked = term_items(task, train.sentences), term_items(task, test.sentences)
    if not len(known) or not len(asked):
        return None
    names, number = numbered(known.labels)
    labels = torch.tensor([number[label] for label in known.labels.tolist()])
    nets, scaling = train_nets(train.features(known), labels, len(names), settings)
    answers = predict(nets, scaling, test.features(asked)).numpy()
    gold = np.array([number.get(label, UNSEEN) for label in asked.labels.tolist()], np.int64)
    majority = np.full(len(asked), int(labels.bincount().argmax()))
    told = np.array(names)
    if kind_of(declared(train.sentences)[task]) == "spans":
        both = [_entity_counts(told[row], asked, len(test.sentences)) for row in (*answers, majority)]
    else:
        both = [_item_counts(row == gold, asked.sentence, len(test.sentences)) for row in (*answers, majority)]
    return _scored(task, len(known), answers, gold, both)


def score_senses(train: Material, test: Material, settings: NetSettings) -> list[SubsetScores]:
    """Sense disambiguation by the learned net and by nearest neighbours; nothing where no lemma has two senses."""
    known, asked = _few(sense_items(train.sentences)), sense_items(test.sentences)
    if known is None:
        return []
    senses = inventory(known.labels)
    here, there = senses.kept(known), senses.kept(asked)
    if not len(here) or not len(there):
        return []
    train_x, test_x = train.features(known)[:, here], test.features(asked)[:, there]
    train_labels, test_labels, rows = known.labels[here], asked.labels[there], asked.sentence[there]
    train_gold, gold = senses.gold(train_labels), senses.gold(test_labels)
    may, might = senses.allowed(train_labels), senses.allowed(test_labels)
    nets, scaling = train_nets(train_x, torch.from_numpy(train_gold), len(senses.names), settings, may, False)
    base = senses.most_frequent(test_labels)
    found = []
    for task, answers in (
        (SENSES, predict(nets, scaling, test_x, might)),
        (NEAREST, nearest(train_x, train_labels, train_gold, test_x, test_labels)),
    ):
        counts = [_item_counts(row == gold, rows, len(test.sentences)) for row in (*answers.numpy(), base)]
        found.append(_scored(task, len(here), answers.numpy(), gold, counts))
    return found


def _few(items: TermItems) -> TermItems | None:
    return items if len(items) else None


def _scored(task: str, train: int, answers: Ints, gold: Ints, both: list[Ints]) -> SubsetScores:
    micro, macro = agreement(answers)
    return SubsetScores(
        task,
        train,
        len(gold),
        np.stack(both[:-1]),
        np.array([macro_f1(row, gold) for row in answers]),
        micro,
        macro,
        both[-1],
        int((gold == UNSEEN).sum()),
    )


def _item_counts(right: NDArray[np.bool_], rows: Ints, sentences: int) -> Ints:
    items = np.bincount(rows, minlength=sentences)
    return np.stack([np.bincount(rows, right, minlength=sentences).astype(np.int64), items, items], axis=1)


def _entity_counts(tags: NDArray[np.str_], items: TermItems, sentences: int) -> Ints:
    """Strict spans: of (X, 3)."""
    bounds = np.searchsorted(items.sentence, np.arange(sentences + 1))
    found = np.zeros((sentences, 3), np.int64)
    for row in range(sentences):
        mine = slice(bounds[row], bounds[row + 1])
        told, gold = entities(tags[mine].tolist()), entities(items.labels[mine].tolist())
        found[row] = len(told & gold), len(told), len(gold)
    return found


def macro_f1(answers: Ints, gold: Ints) -> float:
    """Mean F1 over the labels that occur on either side."""
    size = int(max(answers.max(initial=0), gold.max(initial=0))) + 2
    told, there = np.bincount(answers + 1, minlength=size), np.bincount(gold + 1, minlength=size)
    right = np.bincount(gold[answers == gold] + 1, minlength=size)
    used = (told + there) > 0
    return float((2 * right[used] / (told + there)[used]).mean()) if used.any() else 0.0


def agreement(answers: Ints) -> tuple[Floats, Floats]:
    """F1 of every subset's answers (S, U) against every other's: micro (the share that is equal), and macro."""
    size = len(answers)
    micro, macro = np.eye(size), np.eye(size)
    for one in range(size):
        for other in range(one):
            micro[one, other] = micro[other, one] = float((answers[one] == answers[other]).mean())
            macro[one, other] = macro[other, one] = macro_f1(answers[one], answers[other])
    return micro, macro
