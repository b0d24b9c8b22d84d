"""Scores of each subset of the four terms: fresh light decoders on items they never saw.

An item is one or two spans of words and a label. Tags, spans (as IOB2 tags): a word. Trees: the relation of a dependent
and its head, root left out. Brackets: the label of a span of at least two words (of a unary chain the upper label) by
its first and last word. Frames: the role of a predicate's argument by the predicate and the mean over the argument.
Spans, heads and predicates are gold: a label is asked for, no structure, as in edge probing (Tenney et al. 2019).

Senses (``wsd``): PropBank rolesets stand in for SemCor's. Answers are restricted to the predicate's lemma. Senses are
those of the training items, and lemmas with one sense there are dropped; a test item whose sense was never seen counts
as wrong for everybody. Beside the learned net and the nearest neighbours stands the most frequent sense of the lemma.

Letters for shapes: U items, k spans an item, D features an item has, S = 16 subsets, C classes, W words of all
sentences one after another, H hidden size, X sentences, D seeds.

Source: Mickus, Paperno and Constant (2022), section 5: macro F1 over tags, O included, is their score of NER; senses by
k = 5 neighbours (cosine), and by a two-layer net.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.vectors.dissection import NEAREST, SENSES, SUBSETS, TERMS
from mtlprune.analyses.vectors.dissection.comparison import Floats, Ints, agreement, f1, macro_f1
from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.layers import kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, declared

_NEIGHBOURS = 5
_UNSEEN_LABEL = -1


@dataclass(frozen=True, eq=False)
class TermItems:
    """Items of one task. ``spans``: (U, k, 2), first word and the one after the last, counted over all sentences;
    ``labels``: (U,) strings; ``sentence``: (U,), the row of the sentence."""

    spans: Ints
    labels: NDArray[np.str_]
    sentence: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray) -> "TermItems":
        """Some of them."""
        return TermItems(self.spans[rows], self.labels[rows], self.sentence[rows])

    def features(self, terms: Tensor) -> Tensor:
        """(4, W, H) to (4, U, k · H): means over the spans of each item, side by side; linear in the terms."""
        begin, sizes = self.spans[..., 0].ravel(), (self.spans[..., 1] - self.spans[..., 0]).ravel()
        offsets = np.cumsum(sizes) - sizes
        words = torch.from_numpy(np.arange(sizes.sum()) + np.repeat(begin - offsets, sizes))
        first = torch.from_numpy(offsets)
        parts = [functional.embedding_bag(words, part, first, mode="mean") for part in terms]
        return torch.stack(parts).view(4, len(self), -1)


def term_items(task: str, sentences: Sequence[Sentence]) -> TermItems:
    """The items of a layer, or of SENSES (label: roleset, such as ``come.03``); sentences that lack it have none."""
    layer = "srl" if task == SENSES else task
    kind = declared(sentences).get(layer, "tags")  # of a layer that no sentence has there are no items of any kind
    width, make = _ITEMS[SENSES if task == SENSES else kind_of(kind)]
    spans, labels, rows = [], [], []
    start = 0
    for row, sentence in enumerate(sentences):
        if (value := sentence.get(layer)) is not None:
            for ends, label in make(value, len(sentence)):
                spans.append([(start + a, start + b) for a, b in ends])
                labels.append(label)
                rows.append(row)
        start += len(sentence)
    shape = (len(spans), width, 2)
    return TermItems(np.array(spans, np.int64).reshape(shape), np.array(labels, np.str_), np.array(rows, np.int64))


Item = tuple[tuple[tuple[int, int], ...], str]


def _tags(tags: Any, words: int) -> Iterator[Item]:
    for word, tag in enumerate(tags):
        yield ((word, word + 1),), tag


def _arcs(tree: Any, words: int) -> Iterator[Item]:
    for word, (head, relation) in enumerate(zip(*tree, strict=True)):
        if head:
            yield ((word, word + 1), (head - 1, head)), relation


def _brackets(brackets: Any, words: int) -> Iterator[Item]:
    spans_seen = set()
    for start, end, label in brackets:
        if end - start > 1 and (start, end) not in spans_seen:
            spans_seen.add((start, end))
            yield ((start, start + 1), (end - 1, end)), label


def _arguments(frames: Any, words: int) -> Iterator[Item]:
    for predicate in frames:
        for start, end, label in predicate.arguments:
            if label not in NOT_ARGUMENTS:
                yield ((predicate.index, predicate.index + 1), (start, end)), label


def _senses(frames: Any, words: int) -> Iterator[Item]:
    for predicate in frames:
        if predicate.roleset is not None:
            yield ((predicate.index, predicate.index + 1),), predicate.roleset


_ITEMS: dict[str, tuple[int, Callable[[Any, int], Iterator[Item]]]] = {
    "tags": (1, _tags),
    "spans": (1, lambda spans, words: _tags(iob2_from_spans(spans, words), words)),
    "tree": (2, _arcs),
    "brackets": (2, _brackets),
    "frames": (2, _arguments),
    "label": (1, lambda label, words: iter([(((0, words),), label)])),
    "number": (1, lambda number, words: iter(())),
    "labels": (1, lambda labels, words: iter(())),
    SENSES: (1, _senses),
}
"""By kind: k, and spans of words and a label for each item of a value."""


@dataclass(frozen=True)
class NetSettings:
    """Settings of a net and its training: ``hidden`` units; ``epochs`` passes over the training items; ``batch`` items
    a step of Adam at a learning ``rate``; ``seed`` of weights and order, the first of so many ``seeds``."""

    hidden: int = 64
    epochs: int = 8
    batch: int = 256
    rate: float = 3e-3
    seed: int = 0
    seeds: int = 1


def net_answers(
    train_vectors: Floats, learned: Ints, test_vectors: Floats, allowed: NDArray[np.bool_] | None, settings: NetSettings
) -> Ints:
    """The class of every item by a two-layer net on z-scored features, (U', D) → (U',).

    Args:
        train_vectors: (U, D), features of the training items.
        learned: (U,), their classes, 0 to C − 1, each of which occurs.
        test_vectors: (U', D).
        allowed: (U', C), classes that an item may get; all, if not given.
    """
    net = MLPClassifier(
        settings.hidden,
        batch_size=min(settings.batch, len(train_vectors)),
        learning_rate_init=settings.rate,
        max_iter=settings.epochs,
        n_iter_no_change=settings.epochs,
        random_state=settings.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # passes are counted, not waited for
        model = make_pipeline(StandardScaler(), net).fit(train_vectors, learned)
    shares = model.predict_proba(test_vectors)
    return (shares if allowed is None else np.where(allowed, shares, -1.0)).argmax(1)


def _lemmas_of(rolesets: NDArray[np.str_]) -> NDArray[np.str_]:
    """The part of each roleset before the number of its sense."""
    return np.array([roleset.rpartition(".")[0] or roleset for roleset in rolesets.tolist()], np.str_)


def nearest(
    train_vectors: Floats,
    known_labels: NDArray[np.str_],
    learned: Ints,
    test_vectors: Floats,
    asked_labels: NDArray[np.str_],
) -> Ints:
    """The sense that most of the nearest training items of the same lemma have (cosine); of senses with equally many
    neighbours the one whose neighbours are nearer in sum. Fewer neighbours where the lemma has fewer items.
    ``known_labels``, ``asked_labels``: rolesets, whose lemma decides who may be a neighbour."""
    pools, lemmas = _lemmas_of(known_labels), _lemmas_of(asked_labels)
    answers = np.zeros(len(test_vectors), np.int64)
    for lemma in np.unique(lemmas):
        pool, rows = pools == lemma, lemmas == lemma
        number = min(_NEIGHBOURS, int(pool.sum()))
        neighbours = KNeighborsClassifier(number, metric="cosine", weights=_votes)
        answers[rows] = neighbours.fit(train_vectors[pool], learned[pool]).predict(test_vectors[rows])
    return answers


def _votes(distances: Floats) -> Floats:
    """Votes first, then nearness: k ≤ 5 cosines never make up for a vote."""
    return 1 + 1e-3 * (1 - distances)


class Material(NamedTuple):
    """Terms of the last layer, (4, W, H), and their sentences: what decoders are trained or scored on."""

    sentences: Sequence[Sentence]
    terms: Tensor


def score(task: str, train: Material, test: Material, settings: NetSettings) -> list[dict[str, Any]]:
    """Train a decoder of a task for each subset of terms and score it; nothing where either side has no items.

    Args:
        task: the name of a layer, or SENSES, which is also scored by nearest neighbours; nothing where no lemma has two
            senses.

    Returns:
        Entries as ``entry`` makes them; ``baseline`` is the F1 of the majority label, or of each lemma's most frequent
        sense, and ``unseen`` counts test items whose label training lacks, which no decoder can predict.
    """
    train_items, test_items = term_items(task, train.sentences), term_items(task, test.sentences)
    names, times = np.unique(train_items.labels, return_counts=True)
    senses = task == SENSES
    if senses:
        lemmas = _lemmas_of(names)
        has_senses = np.array([(lemmas == lemma).sum() > 1 for lemma in lemmas], bool)
        names, times, lemmas = names[has_senses], times[has_senses], lemmas[has_senses]
        train_items, test_items = (
            items.take(np.isin(_lemmas_of(items.labels), lemmas)) for items in (train_items, test_items)
        )
    if not len(train_items) or not len(test_items):
        return []
    number = {name: place for place, name in enumerate(names.tolist())}
    learned, gold = (
        np.array([number.get(label, _UNSEEN_LABEL) for label in items.labels.tolist()], np.int64)
        for items in (train_items, test_items)
    )
    allowed = _lemmas_of(test_items.labels)[:, None] == lemmas if senses else None
    frequent = np.full(len(test_items), times.argmax()) if allowed is None else (allowed * times).argmax(1)
    terms = [np.asarray(items.features(part.terms)) for items, part in ((train_items, train), (test_items, test))]
    nets = [replace(settings, seed=seed) for seed in range(settings.seed, settings.seed + settings.seeds)]
    answers = {task: [[frequent] for _ in nets]} | ({NEAREST: [[frequent]]} if senses else {})
    for subset in SUBSETS[1:]:  # the empty one has nothing to go by
        train_terms, test_terms = (part[[TERMS.index(term) for term in subset]].sum(0) for part in terms)
        has_one_label = len(names) == 1
        for net, of_seed in zip(nets, answers[task], strict=True):
            of_seed.append(frequent if has_one_label else net_answers(train_terms, learned, test_terms, allowed, net))
        if senses:
            answers[NEAREST][0].append(nearest(train_terms, train_items.labels, learned, test_terms, test_items.labels))
    spans = not senses and kind_of(declared(train.sentences)[task]) == "spans"

    def count_row(row: Ints) -> Ints:
        if spans:
            return _entity_counts(names[row], test_items, len(test.sentences))
        items = np.bincount(test_items.sentence, minlength=len(test.sentences))
        right = np.bincount(test_items.sentence, row == gold, minlength=len(test.sentences)).astype(np.int64)
        return np.stack([right, items, items], axis=1)

    about: dict[str, Any] = {
        "train": len(train_items),
        "test": len(test_items),
        "unseen": int((gold == _UNSEEN_LABEL).sum()),
    }
    about["baseline"] = float(f1(count_row(frequent).sum(0)))
    return [entry(name, about, np.array(rows), gold, count_row) for name, rows in answers.items()]


def entry(
    task: str, about: Mapping[str, Any], answers: Ints, gold: Ints, count_row: Callable[[Ints], Ints]
) -> dict[str, Any]:
    """Measures of answers (D, S, U) to the items of a task, means over seeds.

    Args:
        about: ``train`` and ``test``, numbers of items, ``unseen`` and ``baseline``.
        count_row: from answers (U,) to correct, predicted, gold of each sentence, (X, 3): entities of spans, else
            items.

    Returns:
        ``task``, ``answers`` and all of ``about``; ``counts`` (D, S, X, 3), and ``score`` (S,), their F1: accuracy
        where each item gets a label; ``macro_f1`` (S,) over labels of items (tags of spans); ``micro_agreement``,
        ``macro_agreement`` (S, S): F1 of one subset's answers against another's; of several seeds also ``score_sd`` and
        ``macro_f1_sd`` (S,), standard deviations.
    """
    counts = np.stack([[count_row(row) for row in of_seed] for of_seed in answers])
    by_seed = {
        "score": f1(counts.sum(2)),
        "macro_f1": np.array([[macro_f1(row, gold) for row in of_seed] for of_seed in answers]),
    }
    deviations = {f"{name}_sd": values.std(0, ddof=1) for name, values in by_seed.items() if len(values) > 1}
    means = {name: values.mean(0) for name, values in by_seed.items()}
    measures = {"counts": counts, **means, **deviations, **agreement(answers, answers)}
    return {"task": task, **about, "answers": answers, **measures}


def _entity_counts(tags: NDArray[np.str_], items: TermItems, sentences: int) -> Ints:
    """Strict spans: of (X, 3)."""
    bounds = np.searchsorted(items.sentence, np.arange(sentences + 1))
    counts = np.zeros((sentences, 3), np.int64)
    for row in range(sentences):
        slots_of_sentence = slice(bounds[row], bounds[row + 1])
        predicted, gold = (
            set(spans_from_tags(tag_list[slots_of_sentence].tolist(), repair=True)) for tag_list in (tags, items.labels)
        )
        counts[row] = len(predicted & gold), len(predicted), len(gold)
    return counts
