"""What each subset of the four terms is worth: fresh light decoders scored on items they never saw.

An item is one or two spans of words and a label. Tags, spans (as IOB2 tags): a word. Trees: the relation of a dependent
and its head, root left out. Brackets: the label of a span of at least two words (of a unary chain the upper label) by
its first and last word. Frames: the role of a predicate's argument by the predicate and the mean over the argument.
Spans, heads and predicates are gold: a label is asked for, no structure, as in edge probing (Tenney et al. 2019).

Senses (``wsd``): PropBank rolesets stand in for SemCor's. Answers are restricted to the predicate's lemma. Senses are
those of the training items, and lemmas with one sense there are dropped; a test item whose sense was never seen counts
as wrong for everybody. Beside the learned net and the nearest neighbours stands the most frequent sense of the lemma.

Letters for shapes: U items, k spans an item, D features an item has, b items of a batch, S = 16 subsets, C classes, K
hidden units, W words of all sentences one after another, H hidden size, X sentences.

Source: Mickus, Paperno and Constant (2022), section 5: macro F1 over tags, O included, is their score of NER; senses by
k = 5 neighbours (cosine), and by a two-layer net without a bias of its output.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mtlprune.analyses.dissection import NEAREST, SENSES
from mtlprune.analyses.dissection.comparison import f1
from mtlprune.analyses.dissection.maths import subset_masks
from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.layers import kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, declared

Ints = NDArray[np.int64]
CLOSED = -1e9
"""Added to the logits of classes that an item may not get."""
NEIGHBOURS = 5
UNSEEN = -1

# -- items -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TermItems:
    """Items of one task.

    Attributes:
        spans: (U, k, 2), first word and the one after the last, counted over all sentences.
        labels: (U,) strings.
        sentence: (U,), the row of the sentence.
    """

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
    seen = set()
    for start, end, label in brackets:
        if end - start > 1 and (start, end) not in seen:
            seen.add((start, end))
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
    SENSES: (1, _senses),
}
"""By kind: k, and spans of words and a label for each item of a value."""


# -- nets --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetSettings:
    """How nets are trained: ``hidden`` is K; ``epochs`` passes over the training items, in which the rate of Adam falls
    linearly to 0; ``batch`` items a step; ``dropout`` of hidden units; ``seed`` of weights, order and dropout."""

    hidden: int = 64
    epochs: int = 8
    batch: int = 256
    rate: float = 3e-3
    dropout: float = 0.1
    seed: int = 0


class SubsetNets(nn.Module):
    """Sixteen two-layer nets (ReLU, dropout), each reading Σ_{v in S} v for its subset S: D → K → C.

    They begin with the same weights, see the same batches with the same dropped units, and share nothing else: their
    layers are one batched product. Features are z-scored with the mean and the variance of each subset on the training
    items, so that a small term (c) is not at a disadvantage against a large one; the variance of a sum follows from the
    covariances of the terms.

    Args:
        parts: (4, U, D), terms of the training items.
        classes: C.
        output_bias: whether the output has a bias.
    """

    def __init__(self, parts: Tensor, classes: int, settings: NetSettings, output_bias: bool = True) -> None:
        super().__init__()
        self.masks = subset_masks(parts)
        means = parts.mean(1)  # (4, D)
        centred = parts - means[:, None]
        covariance = torch.einsum("uid,vid->uvd", centred, centred) / parts.shape[1]  # (4, 4, D)
        variance = torch.einsum("su,sv,uvd->sd", self.masks, self.masks, covariance)
        scale = torch.einsum(
            "sv,vd->sd", self.masks, covariance.diagonal().T.clamp(min=0)
        )  # rounding is relative to it
        moving = variance > 1e-6 * scale.clamp(min=1e-12)
        self.mean, self.factor = self.masks @ means, torch.where(moving, variance.clamp(min=1e-30).rsqrt(), 0.0)
        generator = torch.Generator().manual_seed(settings.seed)

        def begun(rows: int, columns: int) -> nn.Parameter:
            bound = rows**-0.5
            one = torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
            return nn.Parameter(one.expand(len(self.masks), rows, columns).contiguous())

        self.inner = begun(parts.shape[2], settings.hidden)
        # without a bias of the output a net that reads nothing could say nothing: relu(0) = 0
        self.inner_bias = nn.Parameter(torch.full((len(self.masks), 1, settings.hidden), 0.0 if output_bias else 0.1))
        self.outer = begun(settings.hidden, classes)
        self.outer_bias = nn.Parameter(torch.zeros(len(self.masks), 1, classes)) if output_bias else None
        self.to(parts.device)

    def scaled(self, parts: Tensor) -> Tensor:
        """(4, b, D) to features (S, b, D); 0 where one is constant in training."""
        sums = torch.einsum("sv,vid->sid", self.masks, parts)
        return (sums - self.mean[:, None]) * self.factor[:, None]

    def forward(self, parts: Tensor, allowed: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
        """(4, b, D) to logits (S, b, C); ``allowed`` (b, C) classes; ``kept`` (b, K) factors of hidden units."""
        hidden = functional.relu(torch.baddbmm(self.inner_bias, self.scaled(parts), self.inner))
        if kept is not None:
            hidden = hidden * kept
        bias = self.outer_bias
        logits = hidden @ self.outer if bias is None else torch.baddbmm(bias, hidden, self.outer)
        return logits if allowed is None else logits.masked_fill(~allowed, CLOSED)


def train_nets(
    parts: Tensor,
    labels: Tensor,
    classes: int,
    settings: NetSettings,
    allowed: Tensor | None = None,
    output_bias: bool = True,
) -> SubsetNets:
    """Train all sixteen nets.

    Args:
        parts: (4, U, D), the terms of the items.
        labels: (U,) int64.
        allowed: (U, C) bool, classes that an item may get; all, if not given.
    """
    nets = SubsetNets(parts, classes, settings, output_bias)
    generator = torch.Generator().manual_seed(settings.seed + 1)
    steps = settings.epochs * -(-len(labels) // settings.batch)
    optimizer = torch.optim.Adam(nets.parameters(), settings.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / max(1, steps)))
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(settings.batch):
            drawn = torch.rand(len(chosen), settings.hidden, generator=generator) >= settings.dropout
            at = chosen.to(parts.device)
            kept = (drawn / (1 - settings.dropout)).to(parts)
            logits = nets(parts[:, at], None if allowed is None else allowed[at], kept)
            wanted = labels[at].expand(len(logits), -1)
            loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()) * len(logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return nets


@torch.no_grad()
def predict(nets: SubsetNets, parts: Tensor, allowed: Tensor | None = None) -> Tensor:
    """(4, U, D), U > 0, to the class of every item by every subset, (S, U) int64."""
    cuts = [slice(start, start + 2048) for start in range(0, parts.shape[1], 2048)]
    return torch.cat([nets(parts[:, cut], None if allowed is None else allowed[cut]).argmax(-1) for cut in cuts], 1)


# -- neighbours --------------------------------------------------------------------------------------------------------


def lemmas_of(rolesets: NDArray[np.str_]) -> NDArray[np.str_]:
    """What stands before the number of each sense."""
    return np.array([roleset.rpartition(".")[0] or roleset for roleset in rolesets.tolist()], np.str_)


@torch.no_grad()
def nearest(
    train: Tensor, train_labels: NDArray[np.str_], train_gold: Ints, test: Tensor, test_labels: NDArray[np.str_]
) -> Tensor:
    """The sense that most of the nearest training items of the same lemma have, for every subset of terms.

    Of senses with equally many neighbours the one whose neighbours are nearer in sum; fewer neighbours where the lemma
    has fewer items. A vector of zeros (the empty subset) is as near to all, so that all items vote.

    Args:
        train, test: terms, (4, U, D) and (4, U', D).
        train_labels, test_labels: rolesets, whose lemma decides who may be a neighbour.
        train_gold: (U,), numbers of senses.

    Returns:
        (S, U') int64.
    """
    masks, found = subset_masks(train), torch.zeros(16, len(test_labels), dtype=torch.int64)
    pools, asked = lemmas_of(train_labels), lemmas_of(test_labels)
    for lemma in np.unique(asked):
        pool, rows = np.flatnonzero(pools == lemma), np.flatnonzero(asked == lemma)
        known = functional.normalize(torch.einsum("sv,vid->sid", masks, train[:, pool]), dim=-1)
        query = functional.normalize(torch.einsum("sv,vid->sid", masks, test[:, rows]), dim=-1)
        found[:, rows] = _votes(query @ known.transpose(1, 2), torch.from_numpy(train_gold[pool]))
    return found


def _votes(cosine: Tensor, gold: Tensor) -> Tensor:
    """(S, q, p) likeness to p items with their senses (p,) → (S, q)."""
    near, which = cosine.topk(min(NEIGHBOURS, cosine.shape[2]), dim=-1)
    senses, place = gold.unique(return_inverse=True)
    chosen = place[which]  # (S, q, k)
    weight = 1 + 1e-3 * near.float()  # votes first, then nearness: k ≤ 5 cosines never make up for a vote
    votes = torch.zeros(*chosen.shape[:2], len(senses)).scatter_add_(2, chosen, weight)
    blind = cosine.abs().amax(-1) == 0  # (S, q): nothing to go by
    every = torch.bincount(place, minlength=len(senses)).to(votes)
    return senses[torch.where(blind[..., None], every, votes).argmax(-1)]


# -- scores ------------------------------------------------------------------------------------------------------------


class Material(NamedTuple):
    """Terms of the last layer, (4, W, H), and their sentences: what decoders are trained or scored on."""

    sentences: Sequence[Sentence]
    terms: Tensor


def score(task: str, train: Material, test: Material, settings: NetSettings) -> list[dict[str, Any]]:
    """Train sixteen decoders of a task and score them; nothing where either side has no items.

    Args:
        task: the name of a layer, or SENSES, which is also scored by nearest neighbours; nothing where no lemma has two
            senses.

    Returns:
        Entries with ``task``; ``train`` and ``test``, numbers of items; ``unseen`` test items whose label training
        lacks, which nobody can have right; ``baseline``: F1 of the majority label, or of each lemma's most frequent
        sense; ``counts`` (S, X, 3): correct, predicted, gold of each sentence (entities of spans, items elsewhere) and
        ``score`` (S,), their F1: accuracy where each item gets a label; ``macro_f1`` (S,) over labels of items (tags of
        spans); ``micro_agreement``, ``macro_agreement`` (S, S): F1 of one subset's answers against another's.
    """
    known, asked = term_items(task, train.sentences), term_items(task, test.sentences)
    names, times = np.unique(known.labels, return_counts=True)
    senses = task == SENSES
    if senses:
        lemmas = lemmas_of(names)
        several = np.array([(lemmas == lemma).sum() > 1 for lemma in lemmas], bool)
        names, times, lemmas = names[several], times[several], lemmas[several]
        known, asked = (items.take(np.isin(lemmas_of(items.labels), lemmas)) for items in (known, asked))
    if not len(known) or not len(asked):
        return []
    number = {name: place for place, name in enumerate(names.tolist())}
    learned, gold = (
        np.array([number.get(label, UNSEEN) for label in items.labels.tolist()], np.int64) for items in (known, asked)
    )
    may = might = None
    frequent = np.full(len(asked), times.argmax())
    if senses:
        may, might = (torch.from_numpy(lemmas_of(items.labels)[:, None] == lemmas) for items in (known, asked))
        frequent = (might.numpy() * times).argmax(1)
    parts, others = known.features(train.terms), asked.features(test.terms)
    nets = train_nets(parts, torch.from_numpy(learned), len(names), settings, may, not senses)
    answers = {task: predict(nets, others, might).numpy()}
    if senses:
        answers[NEAREST] = nearest(parts, known.labels, learned, others, asked.labels).numpy()
    spans = not senses and kind_of(declared(train.sentences)[task]) == "spans"

    def counted(row: Ints) -> Ints:
        if spans:
            return _entity_counts(names[row], asked, len(test.sentences))
        items = np.bincount(asked.sentence, minlength=len(test.sentences))
        right = np.bincount(asked.sentence, row == gold, minlength=len(test.sentences)).astype(np.int64)
        return np.stack([right, items, items], axis=1)

    about: dict[str, Any] = {"train": len(known), "test": len(asked), "unseen": int((gold == UNSEEN).sum())}
    about["baseline"] = float(f1(counted(frequent).sum(0)))
    found = []
    for name, told in answers.items():
        counts = np.stack([counted(row) for row in told])
        each = {"counts": counts, "score": f1(counts.sum(1)), "macro_f1": [macro_f1(row, gold) for row in told]}
        alike = {
            "micro_agreement": (told[:, None] == told[None]).mean(-1),
            "macro_agreement": [[macro_f1(one, other) for other in told] for one in told],
        }
        found.append({"task": name, **about, **each, **alike})
    return found


def _entity_counts(tags: NDArray[np.str_], items: TermItems, sentences: int) -> Ints:
    """Strict spans: of (X, 3)."""
    bounds = np.searchsorted(items.sentence, np.arange(sentences + 1))
    found = np.zeros((sentences, 3), np.int64)
    for row in range(sentences):
        mine = slice(bounds[row], bounds[row + 1])
        told, gold = (set(spans_from_tags(some[mine].tolist(), repair=True)) for some in (tags, items.labels))
        found[row] = len(told & gold), len(told), len(gold)
    return found


def macro_f1(answers: Ints, gold: Ints) -> float:
    """Mean F1 over the labels that occur on either side."""
    size = int(max(answers.max(initial=0), gold.max(initial=0))) + 2
    told, there = np.bincount(answers + 1, minlength=size), np.bincount(gold + 1, minlength=size)
    right = np.bincount(gold[answers == gold] + 1, minlength=size)
    used = (told + there) > 0
    return float((2 * right[used] / (told + there)[used]).mean()) if used.any() else 0.0
