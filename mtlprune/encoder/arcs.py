"""Syntactic attention: which heads attend along dependency arcs (Chen et al. 2024, after Clark et al. 2019).

    counts = uas_of(encoder, sentences)           # any encoder, as it is, between two steps of training too
    counts.best().value, counts.mean_best(counts.listed()).value      # UAS_single, UAS_best in percent

A head's guess for word i is the word that i attends to most (``dep->head``), or the word that attends to i most
(``head<-dep``). Attention between words: mean over the sub-words that attend, sum over those attended to; the diagonal
and the special tokens cannot be guessed, nothing is renormalised, of equal weights the first word counts.

Letters for shapes: B sentences, T words of the longest, n heads a layer has, H heads of all layers that are there,
K relations, U = B · T; of counts D directions, L layers, A heads a layer before any was removed, O offsets.

Of counts every choice of a head is made twice: on all tokens, as published (the same tokens choose and score, which
flatters the best of 2 · L · A predictors), and on one half of the sentences to be scored on the other, both ways round.
The halves are a first axis of 2. All scores are percent.
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

from mtlprune.encoder.gates import OPEN
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, evaluating, observations
from mtlprune.errors import MtlpruneError
from mtlprune.sentence import Sentence

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

DIRECTIONS = ("dep->head", "head<-dep")
"""The word that a dependent attends to most; the word that attends to it most."""
OFFSETS = (-3, -2, -1, 0, 1, 2)
"""Chen et al. (2024), released code: of word i the baseline guesses i + k, held within 0 and the last word."""
MIN_RELATION_COUNT = 100
"""Relations with fewer tokens are not listed (the same code)."""
_UNLISTED = ("root", "punct")


class Best(NamedTuple):
    """The best head, or the best offset, for some tokens.

    Attributes:
        value: chosen and scored on all of them; NaN where there is nothing to choose or to score.
        held_out: chosen on one half, scored on the other, both ways round; never more than ``value``. NaN where a half
            has no such token.
        layer, head, direction: of a head that is chosen on all, from 0; −1 where there is none.
        offset: of the best offset.
    """

    value: float
    held_out: float
    layer: int = -1
    head: int = -1
    direction: int = -1
    offset: int = 0


@dataclass(eq=False)
class ArcCounts:
    """The arcs that all heads of one encoder find, added up.

    Attributes:
        relations: names, K.
        tokens: (2, K), words with each relation.
        arcs: (2, K), those of them that hang on a word: all but roots.
        hits: (2, D, K, L, A), words whose head is found.
        mass: (2, D, K, L, A), attention weights between words and their heads, summed.
        offsets: (2, O, K), words whose head an offset finds.
        present: (L, A), heads that are neither removed nor closed; the others count nothing.
    """

    relations: tuple[str, ...]
    tokens: Counts
    arcs: Counts
    hits: Numbers
    mass: Numbers
    offsets: Counts
    present: NDArray[np.bool_]

    @classmethod
    def empty(cls, relations: Sequence[str], present: NDArray[np.bool_]) -> "ArcCounts":
        """Nothing counted yet."""
        size, shape = len(relations), (2, len(DIRECTIONS), len(relations), *present.shape)
        tokens, arcs = np.zeros((2, size), np.int64), np.zeros((2, size), np.int64)
        offsets = np.zeros((2, len(OFFSETS), size), np.int64)
        return cls(tuple(relations), tokens, arcs, np.zeros(shape), np.zeros(shape), offsets, present)

    def frequent_relations(self, minimum: int = MIN_RELATION_COUNT) -> list[str]:
        """Relations that have at least so many tokens, but ``root`` and ``punct``; most frequent first."""
        sizes = dict(zip(self.relations, self.tokens.sum(0).tolist(), strict=True))
        return sorted(
            (name for name in self.relations if name not in _UNLISTED and sizes[name] >= minimum),
            key=lambda name: (-sizes[name], name),
        )

    def size(self, relations: Sequence[str] | None = None) -> int:
        """The number of tokens that have one of these relations (any, where none are named)."""
        return int(self.tokens[:, self._rows(relations)].sum())

    def uas(self, relations: Sequence[str] | None = None) -> Numbers:
        """(D, L, A): the share of words whose head each head finds; NaN for heads that are not there."""
        rows = self._rows(relations)
        return self._shares(self.hits[:, :, rows].sum((0, 2)), self.tokens[:, rows].sum())

    def weight(self, relations: Sequence[str] | None = None) -> Numbers:
        """(D, L, A): mean attention weight on gold arcs; NaN for heads that are not there."""
        rows = self._rows(relations)
        return self._shares(self.mass[:, :, rows].sum((0, 2)), self.arcs[:, rows].sum())

    def best(self, relations: Sequence[str] | None = None, weight: bool = False) -> Best:
        """One head, in one direction, for all words with these relations (all words, where none are named).

        Args:
            weight: choose and score by the mean attention weight on gold arcs instead.
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
        """One offset for all words with these relations."""
        rows = self._rows(relations)
        sums = self.offsets[:, :, rows].sum(2).astype(float)
        place, value, held_out = _choose(sums, self.tokens[:, rows].sum(1))
        return Best(value, held_out, offset=OFFSETS[place])

    def mean_best(self, relations: Sequence[str], weight: bool = False) -> Best:
        """``UAS_best``: the best head of each relation, averaged with the relations' counts as weights.

        Args:
            relations: as from :meth:`listed`.
            weight: of attention weights instead.
        """
        return self._averaged(relations, [self.best([name], weight) for name in relations])

    def mean_best_offset(self, relations: Sequence[str]) -> Best:
        """The same of the best offset a relation."""
        return self._averaged(relations, [self.best_offset([name]) for name in relations])

    def by_head(self) -> Numbers:
        """(L, A): UAS of each head in its better direction."""
        return self.uas().max(0)

    def _averaged(self, relations: Sequence[str], best_of_relations: Sequence[Best]) -> Best:
        if not best_of_relations:
            return Best(float("nan"), float("nan"))
        shares = [[best.value, best.held_out] for best in best_of_relations]
        value, held_out = np.average(shares, axis=0, weights=[self.size([name]) for name in relations])
        return Best(float(value), float(held_out))

    def _rows(self, relations: Sequence[str] | None) -> list[int]:
        if relations is None:
            return list(range(len(self.relations)))
        return [self.relations.index(name) for name in relations]

    def _shares(self, sums: Numbers, size: int) -> Numbers:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.present, 100 * sums / size, np.nan)


def _choose(sums: Numbers, sizes: Counts) -> tuple[int, float, float]:
    """The best place, its share and the held-out share in percent, of (2, P) sums in both halves with (2,) items.

    Of equally good ones the first.
    """
    place = int(sums.sum(0).argmax())
    first, second = (int(half_sums.argmax()) for half_sums in sums)
    total = int(sizes.sum())
    value = 100 * float(sums[:, place].sum()) / total if total else float("nan")
    crossed = 100 * float(sums[1, first] + sums[0, second]) / total if sizes.all() else float("nan")
    return place, value, crossed


class ArcError(MtlpruneError):
    """Syntactic attention cannot be measured as asked; the message says why."""


def _gold_trees(sentences: Sequence[Sentence], relations: dict[str, int], device: torch.device | str) -> list[Tensor]:
    """Gold trees of a batch, (B, T) each: which words exist (bool); heads, 1 for the first word, 0 for the root and
    where nothing is known; relations, −1 where nothing is known (int64)."""
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
    """The head guessed for each word, by every head and in both directions.

    Args:
        attention: (B, n, T, T) between words, rows attend.
        is_word: (B, T) bool, which words exist.

    Returns:
        (2, B, n, T) int64, 1 for the first word; 0 where no other word exists.
    """
    side = attention.shape[-1]
    off_diagonal = ~torch.eye(side, dtype=torch.bool, device=attention.device)
    pair = (is_word[:, :, None] & is_word[:, None, :] & off_diagonal)[:, None]  # (B, 1, T, T)
    word_attention = attention.masked_fill(~pair, -1.0)
    best = torch.stack([word_attention.argmax(-1), word_attention.argmax(-2)]) + 1
    return best * (is_word.sum(1) > 1)[:, None, None]


def arc_weights(attention: Tensor, heads: Tensor) -> Tensor:
    """Attention between each word and its head: from the word to it, from it to the word.

    Args:
        attention: (B, n, T, T) between words.
        heads: (B, T), 0 where there is none.

    Returns:
        (2, B, n, T); 0 where there is none.
    """
    at = (heads - 1).clamp(min=0)[:, None, :, None].expand(-1, attention.shape[1], -1, 1)  # (B, n, T, 1)
    directions = torch.stack([attention.gather(-1, at), attention.transpose(-1, -2).gather(-1, at)])
    return directions.squeeze(-1) * (heads > 0)[:, None]


def _offset_guesses(is_word: Tensor) -> Tensor:
    """(O, B, T): the head guessed for word i is i + k, held within 0 (the root) and the sentence's last word."""
    place = torch.arange(1, is_word.shape[1] + 1, device=is_word.device)
    last = is_word.sum(1)
    return torch.stack([(place + k).clamp(min=0).minimum(last[:, None]) for k in OFFSETS])


@dataclass(eq=False)
class ArcCounter:
    """Adds up what the heads of one encoder find, batch by batch; holds counts only.

    Args:
        relations: all that may occur.
        kept_heads: of each layer the heads that are there, in original numbering (``encoder.head_hooks.kept``).
        heads: A, heads a layer had.
        gates: (L, A); heads at or below :data:`mtlprune.encoder.gates.OPEN` count as not there.
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
            present &= self.gates.detach().cpu().numpy() > OPEN
        self._rows = {name: row for row, name in enumerate(self.relations)}
        self.counts = ArcCounts.empty(self.relations, present)

    def add(self, observation: Observation, sentences: Sequence[Sentence], half_numbers: Sequence[int]) -> None:
        """Count a batch.

        Args:
            observation: with attention.
            sentences: the same; those without a tree count nothing.
            half_numbers: 0 or 1 for each, on which side it chooses heads.
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
                mass.append(arc_weights(attention, gold))
        if hits:
            self._add_by_group(self.counts.hits, torch.cat(hits, 2), has_label, group)
            self._add_by_group(self.counts.mass, torch.cat(mass, 2), has_label, group)

    def _add_by_group(self, into: NDArray[np.float64], values: Tensor, has_label: Tensor, group: Tensor) -> None:
        """Add (2, B, H, T) to (2, D, K, L, A)."""
        flat = values.permute(1, 3, 0, 2)[has_label].flatten(1)  # (N, D · H)
        sums = _summed(flat, group, len(self.relations)).reshape(2, len(self.relations), len(DIRECTIONS), -1)
        into.reshape(*into.shape[:3], -1)[..., self._computed] += sums.transpose(0, 2, 1, 3)


def _summed(values: Tensor, group: Tensor, size: int) -> NDArray[np.float64]:
    """Sum rows by group: (N, M) to (2, K, M), in float64."""
    sums = torch.zeros(2 * size, values.shape[1], dtype=torch.float64)
    sums.index_add_(0, group.cpu(), values.double().cpu())
    return sums.view(2, size, -1).numpy()


def _group_sizes(group: Tensor, size: int) -> NDArray[np.int64]:
    """(2, K)."""
    return torch.bincount(group, minlength=2 * size).cpu().numpy().reshape(2, size)


def relations_of(sentences: Sequence[Sentence]) -> list[str]:
    """Names of relations, sorted."""
    return sorted({name for sentence in sentences if sentence.dep for name in sentence.dep.relations})


def halves(number: int, seed: int = 0) -> NDArray[np.int64]:
    """(number,) of 0 and 1, equally many (but for one), drawn by ``seed``."""
    return np.random.default_rng([seed, 24]).permutation(number) % 2


def with_trees(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Those that have one. Raises ArcError where none has."""
    parsed = [sentence for sentence in sentences if sentence.dep is not None]
    if not parsed:
        raise ArcError(
            f"UAS of heads needs dependency trees, and none of the {len(sentences)} sentences has one; give a corpus "
            "with the layer dep"
        )
    return parsed


@contextmanager
def _as_observed(encoder: Encoder) -> Iterator[None]:
    """Evaluation mode and eager attention for a while; afterwards as before."""
    transformer = cast(PreTrainedModel, encoder.transformer)
    before = transformer.config._attn_implementation
    transformer.set_attn_implementation("eager")
    try:
        with evaluating(encoder):
            yield
    finally:
        transformer.set_attn_implementation(before)


def uas_of(encoder: Encoder, sentences: Sequence[Sentence], gates: Tensor | None = None) -> ArcCounts:
    """UAS of every head of an encoder on sentences with trees; usable at every evaluation of a training.

    The encoder's mode, attention kernel and the random generators are as before afterwards. Sentences without a tree
    and those longer than what the encoder sees at once are left out.

    Args:
        gates: (L, A) applied to its heads.

    Raises:
        ArcError: no sentence is left.
        EncoderError: a family whose heads are unknown, or an encoder without context.
    """
    places = encoder.head_hooks
    parsed = with_trees(sentences)
    pieces = encoder.tokenize_sentences(parsed)
    capacity = encoder.frame.capacity
    short_rows = [row for row, p in enumerate(pieces) if capacity is None or len(p.ids) <= capacity]
    if not short_rows:
        raise ArcError(f"none of the {len(parsed)} sentences fits into the {encoder.limit} tokens the encoder sees")
    parsed, pieces = [parsed[row] for row in short_rows], [pieces[row] for row in short_rows]
    counter = ArcCounter(relations_of(parsed), places.kept_heads, places.heads, gates)
    half_numbers = halves(len(parsed))
    with _as_observed(encoder):
        for rows, observation in observations(encoder, pieces, gates, {"attention"}):
            counter.add(observation, [parsed[row] for row in rows], half_numbers[rows].tolist())
    return counter.counts
