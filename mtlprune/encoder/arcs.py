"""Syntactic attention: which heads attend along dependency arcs (Chen et al. 2024, after Clark et al. 2019).

    counts = uas_of(encoder, sentences)           # any encoder, also between two steps of its training
    counts.best().value, counts.mean_best(counts.frequent_relations()).value      # UAS_single, UAS_best in percent

The unlabelled attachment score (UAS) of an attention head is the percentage of words whose syntactic head the attention
head guesses correctly. Its guess for word i is the word to which i attends most (``dep->head``), or the word that
attends most to i (``head<-dep``). Attention between words is the mean over the attending sub-words of the sum over the
attended sub-words. A word itself and special tokens are never guessed. The remaining weights are not renormalised, and
of equal weights the first word wins. In this file, a *head* of a word is its syntactic head.

Every head is chosen in two ways. The published way chooses and scores on all tokens, which overestimates the best of
2 · L · A predictors. The held-out way chooses on one half of the sentences and scores on the other half, for both
assignments of the halves. Therefore the first axis of most counts has size 2, one entry for each half. All scores are
percentages.

Letters for shapes: B sentences, T words of the longest sentence, n heads in a layer, H heads in all layers together
that still exist, N words of the batch that have a relation, K relations, D directions, L layers, A heads in a layer
before any was removed, O offsets.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, evaluating, observations
from mtlprune.errors import MtlpruneError
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.sentence import Sentence

_Counts = NDArray[np.int64]
_Numbers = NDArray[np.float64]

DIRECTIONS = ("dep->head", "head<-dep")
"""The two ways in which a head guesses: the word to which a dependent attends most, or the word that attends most to
the dependent."""
OFFSETS = (-3, -2, -1, 0, 1, 2)
"""The offsets k of the positional baseline, which guesses word i + k for word i, clipped to 0 (the root) and the last
word (Chen et al. 2024, released code)."""
MIN_RELATION_COUNT = 100
"""The smallest number of tokens of a relation that is reported (Chen et al. 2024, released code)."""
_UNLISTED = ("root", "punct")


class Best(NamedTuple):
    """The best head or the best offset for some tokens, with its scores in percent.

    Attributes:
        value: the score of the head or offset that is chosen and scored on all tokens. NaN without heads or tokens.
        held_out: the score if the head or offset is chosen on one half of the sentences and scored on the other half,
            for both assignments of the halves together. It never exceeds ``value``. NaN if a half has none of the
            tokens.
        layer, head, direction: indices from 0 of the head chosen on all tokens, or −1 if no head was chosen.
        offset: the best offset.
    """

    value: float
    held_out: float
    layer: int = -1
    head: int = -1
    direction: int = -1
    offset: int = 0


@dataclass(eq=False)
class ArcCounts:
    """Counts of the dependency arcs that each attention head of one encoder guesses correctly, summed over sentences.

    Attributes:
        relations: the names of the K relations.
        tokens: (2, K), the number of words with each relation.
        arcs: (2, K), the number of these words whose head is a word, so roots are left out.
        hits: (2, D, K, L, A), the number of words whose head is guessed correctly.
        mass: (2, D, K, L, A), the sum of the attention weights between words and their heads.
        offsets: (2, O, K), the number of words whose head an offset guesses correctly.
        present: (L, A), True for heads that are neither removed nor closed. All other heads have counts of 0.
    """

    relations: tuple[str, ...]
    tokens: _Counts
    arcs: _Counts
    hits: _Numbers
    mass: _Numbers
    offsets: _Counts
    present: NDArray[np.bool_]

    @classmethod
    def empty(cls, relations: Sequence[str], present: NDArray[np.bool_]) -> "ArcCounts":
        """Return counts of 0 for these relations and heads."""
        size, shape = len(relations), (2, len(DIRECTIONS), len(relations), *present.shape)
        tokens, arcs = np.zeros((2, size), np.int64), np.zeros((2, size), np.int64)
        offsets = np.zeros((2, len(OFFSETS), size), np.int64)
        return cls(tuple(relations), tokens, arcs, np.zeros(shape), np.zeros(shape), offsets, present)

    def frequent_relations(self, minimum: int = MIN_RELATION_COUNT) -> list[str]:
        """Return the relations with at least ``minimum`` tokens except ``root`` and ``punct``, most frequent first."""
        sizes = dict(zip(self.relations, self.tokens.sum(0).tolist(), strict=True))
        return sorted(
            (name for name in self.relations if name not in _UNLISTED and sizes[name] >= minimum),
            key=lambda name: (-sizes[name], name),
        )

    def size(self, relations: Sequence[str] | None = None) -> int:
        """Return the number of tokens with one of these relations, or with any relation by default."""
        return int(self.tokens[:, self._rows(relations)].sum())

    def uas(self, relations: Sequence[str] | None = None) -> _Numbers:
        """Return the UAS of each attention head in both directions: (D, L, A) in percent, NaN for absent heads."""
        rows = self._rows(relations)
        return self._shares(self.hits[:, :, rows].sum((0, 2)), self.tokens[:, rows].sum())

    def weight(self, relations: Sequence[str] | None = None) -> _Numbers:
        """Return the mean attention weight on gold arcs in percent: (D, L, A), NaN for absent heads."""
        rows = self._rows(relations)
        return self._shares(self.mass[:, :, rows].sum((0, 2)), self.arcs[:, rows].sum())

    def best(self, relations: Sequence[str] | None = None, weight: bool = False) -> Best:
        """Return the best single head, in one direction, for all words with these relations (by default, all words).

        Args:
            relations: the relations, all by default.
            weight: whether heads are chosen and scored by their mean attention weight on gold arcs instead of UAS.
        """
        rows = self._rows(relations)
        values, sizes = (self.mass, self.arcs) if weight else (self.hits, self.tokens)
        sums = np.where(self.present, values[:, :, rows].sum(2), -1.0)  # (2, D, L, A)
        if not self.present.any():
            return Best(float("nan"), float("nan"))
        place, value, held_out = _choose(sums.reshape(2, -1), sizes[:, rows].sum(1))
        direction, layer, head = np.unravel_index(place, sums.shape[1:])
        return Best(value, held_out, int(layer), int(head), int(direction))

    def best_offset(self, relations: Sequence[str] | None = None) -> Best:
        """Return the best single offset for all words with these relations (by default, all words)."""
        rows = self._rows(relations)
        sums = self.offsets[:, :, rows].sum(2).astype(float)
        place, value, held_out = _choose(sums, self.tokens[:, rows].sum(1))
        return Best(value, held_out, offset=OFFSETS[place])

    def mean_best(self, relations: Sequence[str], weight: bool = False) -> Best:
        """Return ``UAS_best``, the average score of the best head of each relation, weighted by the relations' tokens.

        Args:
            relations: the relations, for example from :meth:`frequent_relations`.
            weight: whether heads are chosen and scored by their mean attention weight on gold arcs instead of UAS.
        """
        return self._averaged(relations, [self.best([name], weight) for name in relations])

    def mean_best_offset(self, relations: Sequence[str]) -> Best:
        """Return the average score of the best offset of each relation, weighted by the relations' tokens."""
        return self._averaged(relations, [self.best_offset([name]) for name in relations])

    def by_head(self) -> _Numbers:
        """Return the UAS of each head in its better direction: (L, A) in percent, NaN for absent heads."""
        return self.uas().max(0)

    def _averaged(self, relations: Sequence[str], best_of_relations: Sequence[Best]) -> Best:
        """Average the scores of several relations with the numbers of their tokens as weights."""
        if not best_of_relations:
            return Best(float("nan"), float("nan"))
        shares = [[best.value, best.held_out] for best in best_of_relations]
        value, held_out = np.average(shares, axis=0, weights=[self.size([name]) for name in relations])
        return Best(float(value), float(held_out))

    def _rows(self, relations: Sequence[str] | None) -> list[int]:
        """Return the indices of relations, all by default."""
        if relations is None:
            return list(range(len(self.relations)))
        return [self.relations.index(name) for name in relations]

    def _shares(self, sums: _Numbers, size: int) -> _Numbers:
        """Return sums in percent of ``size``, and NaN for absent heads."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.present, 100 * sums / size, np.nan)


def _choose(sums: _Numbers, sizes: _Counts) -> tuple[int, float, float]:
    """Choose the best of P candidates, the first of equally good ones.

    Args:
        sums: (2, P), the hits or the attention weights of each candidate, summed over the tokens of each half.
        sizes: (2,), the number of tokens in each half.

    Returns:
        The index of the best candidate, its score in percent on all tokens, and the held-out score in percent (chosen
        on one half, scored on the other half, for both assignments of the halves). Scores are NaN as in `Best`.
    """
    place = int(sums.sum(0).argmax())
    first, second = (int(half_sums.argmax()) for half_sums in sums)
    total = int(sizes.sum())
    value = 100 * float(sums[:, place].sum()) / total if total else float("nan")
    crossed = 100 * float(sums[1, first] + sums[0, second]) / total if sizes.all() else float("nan")
    return place, value, crossed


class ArcError(MtlpruneError):
    """The error for encoders or sentences on which syntactic attention cannot be measured."""


def _gold_trees(sentences: Sequence[Sentence], relations: dict[str, int], device: torch.device | str) -> list[Tensor]:
    """Return the gold trees of a batch as three (B, T) tensors: is_word, heads and relations.

    ``is_word`` (bool) is False for padding. ``heads`` (int64) counts words from 1, and 0 is the root or an unknown
    head. ``relations`` (int64) holds the numbers of the relations, and −1 for unknown ones.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    heads = np.zeros((len(sentences), lengths.max()), np.int64)
    labels = np.full_like(heads, -1)
    for row, sentence in enumerate(sentences):
        if sentence.dep is not None:
            heads[row, : len(sentence)] = sentence.dep.heads
            labels[row, : len(sentence)] = [relations[name] for name in sentence.dep.relations]
    is_word = np.arange(heads.shape[1]) < lengths[:, None]
    return [torch.from_numpy(part).to(device) for part in (is_word, heads, labels)]


def guesses(attention: Tensor, is_word: Tensor) -> Tensor:
    """Return the syntactic head that each attention head guesses for every word, in both directions.

    Args:
        attention: (B, n, T, T) attention weights between words, in which rows attend to columns.
        is_word: (B, T) bool, False for padding.

    Returns:
        (2, B, n, T) int64, the guessed words counted from 1, and 0 in sentences of a single word. Values at padding are
        meaningless.
    """
    side = attention.shape[-1]
    off_diagonal = ~torch.eye(side, dtype=torch.bool, device=attention.device)
    pair = (is_word[:, :, None] & is_word[:, None, :] & off_diagonal)[:, None]  # (B, 1, T, T)
    word_attention = attention.masked_fill(~pair, -1.0)
    best = torch.stack([word_attention.argmax(-1), word_attention.argmax(-2)]) + 1
    return best * (is_word.sum(1) > 1)[:, None, None]


def _arc_weights(attention: Tensor, heads: Tensor) -> Tensor:
    """Return the attention weights from each word to its syntactic head and from the head to the word.

    Args:
        attention: (B, n, T, T) attention weights between words.
        heads: (B, T), the head of each word counted from 1, and 0 for words without a head.

    Returns:
        (2, B, n, T), 0 for words without a head.
    """
    at = (heads - 1).clamp(min=0)[:, None, :, None].expand(-1, attention.shape[1], -1, 1)  # (B, n, T, 1)
    directions = torch.stack([attention.gather(-1, at), attention.transpose(-1, -2).gather(-1, at)])
    return directions.squeeze(-1) * (heads > 0)[:, None]


def _offset_guesses(is_word: Tensor) -> Tensor:
    """Return the guess i + k of each offset for word i, clipped to 0 (the root) and the last word: (O, B, T)."""
    place = torch.arange(1, is_word.shape[1] + 1, device=is_word.device)
    last = is_word.sum(1)
    return torch.stack([(place + k).clamp(min=0).minimum(last[:, None]) for k in OFFSETS])


@dataclass(eq=False)
class ArcCounter:
    """A counter that adds up, batch by batch, the arcs that the attention heads of one encoder guess correctly.

    Args:
        relations: the names of all relations that may occur.
        kept_heads: for each layer the heads that were not removed, in the original numbering
            (``encoder.head_hooks.kept_heads``).
        heads: A, the number of heads in a layer before any was removed.
        gates: (L, A) gates. Heads whose gate is not above ``OPEN_ABOVE`` count as absent.

    Attributes:
        counts: the counts of all batches so far.
    """

    relations: Sequence[str]
    kept_heads: Sequence[Collection[int]]
    heads: int
    gates: Tensor | None = None
    counts: ArcCounts = field(init=False)

    def __post_init__(self) -> None:
        present = np.zeros((len(self.kept_heads), self.heads), bool)
        for layer, heads in enumerate(self.kept_heads):
            present[layer, list(heads)] = True
        self._computed = np.flatnonzero(present)
        if self.gates is not None:
            present &= self.gates.detach().cpu().numpy() > OPEN_ABOVE
        self._rows = {name: row for row, name in enumerate(self.relations)}
        self.counts = ArcCounts.empty(self.relations, present)

    def add(self, observation: Observation, sentences: Sequence[Sentence], half_numbers: Sequence[int]) -> None:
        """Add the counts of a batch.

        Args:
            observation: an observation of the batch that includes attention.
            sentences: the sentences of the batch. Sentences without a tree are skipped.
            half_numbers: for each sentence the half to which it belongs, 0 or 1.
        """
        is_word, gold, labels = _gold_trees(sentences, self._rows, observation.last.device)
        has_label, size = labels >= 0, len(self.relations)
        side = torch.as_tensor(half_numbers, device=has_label.device)
        group = (labels + size * side[:, None])[has_label]  # (N,), half and relation of each word
        self.counts.tokens += _group_sizes(group, size)
        self.counts.arcs += _group_sizes(group[gold[has_label] > 0], size)
        offsets = (_offset_guesses(is_word) == gold)[:, has_label]  # (O, N)
        self.counts.offsets += _summed(offsets.T, group, size).transpose(0, 2, 1).astype(np.int64)
        hits, mass = [], []
        for layer in range(len(self.kept_heads)):
            attention = observation.word_attention(layer, "dropped")
            if attention.shape[1]:
                hits.append((guesses(attention, is_word) == gold[:, None]) & (gold > 0)[:, None])
                mass.append(_arc_weights(attention, gold))
        if hits:
            self._add_by_group(self.counts.hits, torch.cat(hits, 2), has_label, group)
            self._add_by_group(self.counts.mass, torch.cat(mass, 2), has_label, group)

    def _add_by_group(self, into: NDArray[np.float64], values: Tensor, has_label: Tensor, group: Tensor) -> None:
        """Sum values (D, B, H, T) over the words of each half and relation, and add the sums to (2, D, K, L, A)."""
        flat = values.permute(1, 3, 0, 2)[has_label].flatten(1)  # (N, D · H)
        sums = _summed(flat, group, len(self.relations)).reshape(2, len(self.relations), len(DIRECTIONS), -1)
        into.reshape(*into.shape[:3], -1)[..., self._computed] += sums.transpose(0, 2, 1, 3)


def _summed(values: Tensor, group: Tensor, size: int) -> NDArray[np.float64]:
    """Sum rows by group in float64: (N, M) → (2, K, M)."""
    sums = torch.zeros(2 * size, values.shape[1], dtype=torch.float64)
    sums.index_add_(0, group.cpu(), values.double().cpu())
    return sums.view(2, size, -1).numpy()


def _group_sizes(group: Tensor, size: int) -> NDArray[np.int64]:
    """Count the words of each half and relation: (N,) → (2, K)."""
    return torch.bincount(group, minlength=2 * size).cpu().numpy().reshape(2, size)


def relations_of(sentences: Sequence[Sentence]) -> list[str]:
    """Return the names of all relations in the sentences, sorted."""
    return sorted({name for sentence in sentences if sentence.dep for name in sentence.dep.relations})


def halves(number: int, seed: int = 0) -> NDArray[np.int64]:
    """Assign sentences to two random halves whose sizes differ by at most one: (number,) of 0 and 1."""
    return np.random.default_rng([seed, 24]).permutation(number) % 2


def with_trees(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Return the sentences that have a dependency tree, or raise ArcError if none has one."""
    parsed = [sentence for sentence in sentences if sentence.dep is not None]
    if not parsed:
        raise ArcError(
            f"UAS of heads needs dependency trees, and none of the {len(sentences)} sentences has one; give a corpus "
            "with the layer dep"
        )
    return parsed


@contextmanager
def _eager_evaluation(encoder: Encoder) -> Iterator[None]:
    """Put the encoder into evaluation mode with eager attention, and restore its state on exit."""
    transformer = cast(PreTrainedModel, encoder.transformer)
    before = transformer.config._attn_implementation
    transformer.set_attn_implementation("eager")
    try:
        with evaluating(encoder):
            yield
    finally:
        transformer.set_attn_implementation(before)


def uas_of(encoder: Encoder, sentences: Sequence[Sentence], gates: Tensor | None = None) -> ArcCounts:
    """Count the dependency arcs that every attention head of an encoder guesses correctly.

    The methods of the returned counts compute the UAS of heads.

    The function can also be called during training, because it restores the encoder's mode and attention kernel and
    leaves the random generators unchanged. Sentences without a tree, and sentences longer than the encoder's limit, are
    left out.

    Args:
        encoder: the encoder.
        sentences: the sentences.
        gates: (L, A) gates that are applied to the heads, none by default.

    Raises:
        ArcError: no sentence is left.
        EncoderError: the positions of the family's heads are unknown, or the encoder has no context.
    """
    hooks = encoder.head_hooks
    parsed = with_trees(sentences)
    pieces = encoder.tokenize_sentences(parsed)
    capacity = encoder.frame.capacity
    short_rows = [row for row, p in enumerate(pieces) if capacity is None or len(p.ids) <= capacity]
    if not short_rows:
        raise ArcError(f"none of the {len(parsed)} sentences fits into the {encoder.limit} tokens the encoder sees")
    parsed, pieces = [parsed[row] for row in short_rows], [pieces[row] for row in short_rows]
    counter = ArcCounter(relations_of(parsed), hooks.kept_heads, hooks.heads, gates)
    half_numbers = halves(len(parsed))
    with _eager_evaluation(encoder):
        for rows, observation in observations(encoder, pieces, gates, {"attention"}):
            counter.add(observation, [parsed[row] for row in rows], half_numbers[rows].tolist())
    return counter.counts
