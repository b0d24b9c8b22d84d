"""Train light decoders on each subset of the four terms, and score them on new items.

An item is one or two spans of words with a label. Its form depends on the kind of the layer:
- tags, and spans as IOB2 tags: a word and its tag;
- trees: a dependent and its head, with the relation as label; the root is left out;
- brackets: the first and the last word of a span of two words or more; the label of a unary chain is the upper label;
- frames: a predicate and an argument, with the role as label; the vector of the argument is the mean over its words;
- one label for each sentence: the mean over all words. Numbers and sets of labels have no items.

Spans, heads and predicates are gold. A decoder predicts only labels and no structure, as in edge probing (Tenney et al.
2019).

Word senses (``wsd``): PropBank rolesets replace the senses of SemCor. A decoder chooses among the rolesets of the
predicate's lemma that occur in training. Lemmas with fewer than two such rolesets are left out. A test item whose
roleset does not occur in training counts as wrong for all decoders. The baseline of the network and of the nearest
neighbours is the most frequent sense of the lemma.

Letters for shapes: U items, k spans of an item, F features of an item, S = 16 subsets, C classes, W words of all
sentences, concatenated, H hidden size, X sentences, D seeds of decoders.

Source: Mickus, Paperno and Constant (2022), section 5. They score NER by macro F1 over tags, O included, and predict
senses with k = 5 neighbours (cosine) and with a two-layer network.
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

from mtlprune.analyses.probes.maths import unit_vectors
from mtlprune.analyses.vectors.dissection import NEAREST, SENSES, SUBSETS, TERMS
from mtlprune.analyses.vectors.dissection.comparison import Ints, agreement, f1, macro_f1
from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.layers import kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, declared
from mtlprune.statistics.standard_errors import Floats

_NEIGHBOURS = 5
_UNSEEN_LABEL = -1
"""Class of test items whose label does not occur in training."""


@dataclass(frozen=True, eq=False)
class TermItems:
    """The items of one task.

    Attributes:
        spans: (U, k, 2), first word of a span and the word after its last word, counted over all sentences.
        labels: (U,), strings.
        sentence: (U,), row of the sentence.
    """

    spans: Ints
    labels: NDArray[np.str_]
    sentence: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray) -> "TermItems":
        """Return the items of some rows."""
        return TermItems(self.spans[rows], self.labels[rows], self.sentence[rows])

    def features(self, terms: Tensor) -> Tensor:
        """Average the terms over the spans of each item: (4, W, H) → (4, U, k · H).

        The means of an item's k spans are concatenated. The features are linear in the terms, so the features of a sum
        of terms are the sum of their features.
        """
        first, end = torch.from_numpy(self.spans).flatten(0, 1).unbind(1)
        parts = [unit_vectors(part[:, None], first, end - first) for part in terms]
        return torch.stack(parts).view(4, len(self), -1)


def term_items(task: str, sentences: Sequence[Sentence]) -> TermItems:
    """Collect the items of a layer, or of SENSES, whose labels are rolesets such as ``come.03``.

    Sentences without the layer have no items.
    """
    layer = "srl" if task == SENSES else task
    kind = declared(sentences).get(layer, "tags")  # the kind does not matter if no sentence has the layer
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


_Item = tuple[tuple[tuple[int, int], ...], str]
"""The spans of an item within its sentence, each as (first word, word after the last), and its label."""


def _tags(tags: Any, words: int) -> Iterator[_Item]:
    for word, tag in enumerate(tags):
        yield ((word, word + 1),), tag


def _arcs(tree: Any, words: int) -> Iterator[_Item]:
    """Yield the dependent and the head of every arc; the root has no head and is left out."""
    for word, (head, relation) in enumerate(zip(*tree, strict=True)):
        if head:
            yield ((word, word + 1), (head - 1, head)), relation


def _brackets(brackets: Any, words: int) -> Iterator[_Item]:
    """Yield the first and the last word of every bracket of two words or more.

    Of several brackets with the same span, only the first is used, which is the upper one.
    """
    spans_seen = set()
    for start, end, label in brackets:
        if end - start > 1 and (start, end) not in spans_seen:
            spans_seen.add((start, end))
            yield ((start, start + 1), (end - 1, end)), label


def _arguments(frames: Any, words: int) -> Iterator[_Item]:
    """Yield the predicate and the span of every argument."""
    for predicate in frames:
        for start, end, label in predicate.arguments:
            if label not in NOT_ARGUMENTS:
                yield ((predicate.index, predicate.index + 1), (start, end)), label


def _senses(frames: Any, words: int) -> Iterator[_Item]:
    """Yield every predicate that has a roleset."""
    for predicate in frames:
        if predicate.roleset is not None:
            yield ((predicate.index, predicate.index + 1),), predicate.roleset


_ITEMS: dict[str, tuple[int, Callable[[Any, int], Iterator[_Item]]]] = {
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
"""Kind of a layer → k, and a function from the layer's value and the number of words to its items."""


@dataclass(frozen=True)
class NetSettings:
    """Settings of light decoders and of their training.

    Attributes:
        hidden: number of hidden units.
        epochs: number of passes over the training items.
        batch: number of items in a step of Adam.
        rate: learning rate.
        seed: seed of weights and order; further decoders use the following seeds.
        seeds: number of seeds.
    """

    hidden: int = 64
    epochs: int = 8
    batch: int = 256
    rate: float = 3e-3
    seed: int = 0
    seeds: int = 1


def net_answers(
    train_vectors: Floats, learned: Ints, test_vectors: Floats, allowed: NDArray[np.bool_] | None, settings: NetSettings
) -> Ints:
    """Train a two-layer network on z-scored features and return its class for every test item, (U',).

    Args:
        train_vectors: (U, F), features of the training items.
        learned: (U,), classes of the training items, 0 to C − 1, each of which occurs.
        test_vectors: (U', F), features of the test items.
        allowed: (U', C), classes that each item may get; all classes, if not given.
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
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of passes is fixed in advance
        model = make_pipeline(StandardScaler(), net).fit(train_vectors, learned)
    shares = model.predict_proba(test_vectors)
    return (shares if allowed is None else np.where(allowed, shares, -1.0)).argmax(1)


def _lemmas_of(rolesets: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the lemma of each roleset: the part before the number of the sense."""
    return np.array([roleset.rpartition(".")[0] or roleset for roleset in rolesets.tolist()], np.str_)


def nearest(
    train_vectors: Floats,
    known_labels: NDArray[np.str_],
    learned: Ints,
    test_vectors: Floats,
    asked_labels: NDArray[np.str_],
) -> Ints:
    """Return the class of the most frequent sense among the nearest training items of the same lemma, (U',).

    The neighbours are up to 5 items by cosine. If senses tie, the sense whose neighbours are nearer in total wins.
    ``known_labels`` and ``asked_labels`` are the rolesets of training and test items. Their lemma decides which
    training items may be neighbours.
    """
    pools, lemmas = _lemmas_of(known_labels), _lemmas_of(asked_labels)
    answers = np.zeros(len(test_vectors), np.int64)
    for lemma in np.unique(lemmas):
        pool, rows = pools == lemma, lemmas == lemma
        number = min(_NEIGHBOURS, int(pool.sum()))
        neighbours = KNeighborsClassifier(number, metric="cosine", weights=_votes)
        answers[rows] = neighbours.fit(train_vectors[pool], learned[pool]).predict(test_vectors[rows])
    return answers


def _votes(distances: Floats) -> Floats:
    """Weight neighbours by 1 plus a small term for nearness, which only breaks ties.

    The terms of k ≤ 5 neighbours never sum to a vote.
    """
    return 1 + 1e-3 * (1 - distances)


class Material(NamedTuple):
    """Sentences and the terms of their words in the last layer, (4, W, H), on which decoders are trained or scored."""

    sentences: Sequence[Sentence]
    terms: Tensor


def score(task: str, train: Material, test: Material, settings: NetSettings) -> list[dict[str, Any]]:
    """Train a decoder of a task on each subset of terms and score it.

    Args:
        task: the name of a layer, or SENSES, which is also predicted by nearest neighbours.

    Returns:
        Entries made by ``entry``. ``baseline`` is the F1 of the majority label, or of each lemma's most frequent sense.
        ``unseen`` counts test items whose label does not occur in training, which no decoder can predict. The list is
        empty if training or test sentences have no items, and for SENSES also if no lemma has two senses.
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
    for subset in SUBSETS[1:]:  # the empty subset has no features, so its answer is the baseline
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
    """Compute scores of the answers (D, S, U) to the items of a task, as means over D seeds.

    Args:
        about: numbers of items ``train``, ``test`` and ``unseen``, and the score ``baseline``.
        count_row: function from answers (U,) to the numbers of correct, predicted and gold entities (for spans) or
            items (otherwise) in each sentence, (X, 3).

    Returns:
        A dictionary with ``task``, ``answers`` and all of ``about``, and these measures.
        - ``counts`` (D, S, X, 3).
        - ``score`` (S,): F1 of the counts, which is accuracy where each item gets a label.
        - ``macro_f1`` (S,): macro F1 over labels of items (for spans, over tags).
        - ``micro_agreement``, ``macro_agreement`` (S, S): F1 of the answers of one subset with those of another as
          gold.
        - ``score_sd``, ``macro_f1_sd`` (S,), with two seeds or more: standard deviations over seeds.
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
    """Count correct, predicted and gold entities in each sentence, (X, 3); span and type of correct entities match."""
    bounds = np.searchsorted(items.sentence, np.arange(sentences + 1))
    counts = np.zeros((sentences, 3), np.int64)
    for row in range(sentences):
        slots_of_sentence = slice(bounds[row], bounds[row + 1])
        predicted, gold = (
            set(spans_from_tags(tag_list[slots_of_sentence].tolist(), repair=True)) for tag_list in (tags, items.labels)
        )
        counts[row] = len(predicted & gold), len(predicted), len(gold)
    return counts
