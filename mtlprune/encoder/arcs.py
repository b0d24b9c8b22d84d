"""Syntactic attention: which heads attend along dependency arcs (Chen et al. 2024, after Clark et al. 2019).

    counts = uas_of(encoder, sentences)           # any encoder, as it is, between two steps of training too
    counts.single().value, counts.mean_best(counts.listed()).value      # UAS_single, UAS_best in percent

A head's guess for word i is the word that i attends to most (``dep->head``), or the word that attends to i most
(``head<-dep``). Attention between words: mean over the sub-words that attend, sum over those attended to; the diagonal
and the special tokens cannot be guessed, nothing is renormalised, of equal weights the first word counts.

Letters for shapes: B sentences, T words of the longest, n heads a layer has, H heads of all layers that are there,
K relations, U = B · T.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.encoder.arc_counts import DIRECTIONS, LEAST, OFFSETS, ArcCounts, Best
from mtlprune.encoder.gates import OPEN
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observation_batches, observe
from mtlprune.errors import MtlpruneError
from mtlprune.sentence import Sentence

__all__ = ["DIRECTIONS", "LEAST", "OFFSETS", "ArcCounter", "ArcCounts", "ArcError", "Best", "Trees", "uas_of"]


class ArcError(MtlpruneError):
    """Syntactic attention cannot be measured as asked; the message says why."""


@dataclass(frozen=True, eq=False)
class Trees:
    """Gold trees of a batch.

    Attributes:
        there: (B, T) bool, which words exist.
        heads: (B, T) int64, 1 for the first word, 0 for the root and where nothing is known.
        labels: (B, T) int64, which relation; −1 where nothing is known.
    """

    there: Tensor
    heads: Tensor
    labels: Tensor

    @classmethod
    def of(cls, sentences: Sequence[Sentence], relations: dict[str, int], device: torch.device | str) -> "Trees":
        """Lay them out; of a sentence without a tree nothing is known."""
        lengths = np.array([len(sentence) for sentence in sentences])
        side = int(lengths.max())
        heads = np.zeros((len(sentences), side), np.int64)
        labels = np.full((len(sentences), side), -1, np.int64)
        for row, sentence in enumerate(sentences):
            if sentence.dep is not None:
                heads[row, : len(sentence)] = sentence.dep.heads
                labels[row, : len(sentence)] = [relations[name] for name in sentence.dep.relations]
        there = np.arange(side) < lengths[:, None]
        return cls(*(torch.from_numpy(part).to(device) for part in (there, heads, labels)))


def guesses(attention: Tensor, there: Tensor) -> Tensor:
    """The word each word is thought to hang on, by every head and in both directions.

    Args:
        attention: (B, n, T, T) between words, rows attend.
        there: (B, T) bool, which words exist.

    Returns:
        (2, B, n, T) int64, 1 for the first word; 0 where no other word exists.
    """
    side = attention.shape[-1]
    other = ~torch.eye(side, dtype=torch.bool, device=attention.device)
    pair = (there[:, :, None] & there[:, None, :] & other)[:, None]  # (B, 1, T, T)
    shown = attention.masked_fill(~pair, -1.0)
    found = torch.stack([shown.argmax(-1), shown.argmax(-2)]) + 1
    return found * (there.sum(1) > 1)[:, None, None]


def arc_weights(attention: Tensor, heads: Tensor) -> Tensor:
    """Attention between each word and its head: from the word to it, from it to the word.

    Args:
        attention: (B, n, T, T) between words.
        heads: (B, T), 0 where there is none.

    Returns:
        (2, B, n, T); 0 where there is none.
    """
    at = (heads - 1).clamp(min=0)[:, None, :, None].expand(-1, attention.shape[1], -1, 1)  # (B, n, T, 1)
    both = torch.stack([attention.gather(-1, at), attention.transpose(-1, -2).gather(-1, at)])
    return both.squeeze(-1) * (heads > 0)[:, None]


def offset_guesses(there: Tensor) -> Tensor:
    """(O, B, T): word i is thought to hang on i + k, held within 0 (the root) and the sentence's last word."""
    place = torch.arange(1, there.shape[1] + 1, device=there.device)
    last = there.sum(1)
    return torch.stack([(place + k).clamp(min=0).minimum(last[:, None]) for k in OFFSETS])


@dataclass(eq=False)
class ArcCounter:
    """Adds up what the heads of one encoder find, batch by batch; holds counts only.

    Args:
        relations: all that may occur.
        kept: of each layer the heads that are there, in original numbering (``encoder.places.kept``).
        heads: A, heads a layer had.
        gates: (L, A); heads at or below :data:`mtlprune.encoder.gates.OPEN` count as not there.
    """

    relations: Sequence[str]
    kept: Sequence[Collection[int]]
    heads: int
    gates: Tensor | None = None
    counts: ArcCounts = field(init=False)

    def __post_init__(self) -> None:
        there = np.zeros((len(self.kept), self.heads), bool)
        for layer, kept in enumerate(self.kept):
            there[layer, list(kept)] = True
        self._present = np.flatnonzero(there)
        if self.gates is not None:
            there &= self.gates.detach().cpu().numpy() > OPEN
        self._rows = {name: row for row, name in enumerate(self.relations)}
        self.counts = ArcCounts.empty(self.relations, there)

    def add(self, seen: Observation, sentences: Sequence[Sentence], half: Sequence[int]) -> None:
        """Count a batch.

        Args:
            seen: with attention.
            sentences: the same; those without a tree count nothing.
            half: 0 or 1 for each, on which side it chooses heads.
        """
        trees = Trees.of(sentences, self._rows, seen.last.device)
        known, gold = trees.labels >= 0, trees.heads
        size = len(self.relations)
        side = torch.as_tensor(half, device=known.device)
        group = (trees.labels + size * side[:, None])[known]  # (N,), half and relation of each word
        self.counts.tokens += _counted(group, size)
        self.counts.arcs += _counted(group[gold[known] > 0], size)
        offsets = (offset_guesses(trees.there) == gold)[:, known]  # (O, N)
        self.counts.offsets += _summed(offsets.T, group, size).transpose(0, 2, 1).astype(np.int64)
        hits, mass = [], []
        for layer in range(len(self.kept)):
            attention = seen.word_attention(layer, "dropped")
            if attention.shape[1]:
                hits.append((guesses(attention, trees.there) == gold[:, None]) & (gold > 0)[:, None])
                mass.append(arc_weights(attention, gold))
        if hits:
            self._spread(self.counts.hits, torch.cat(hits, 2), known, group)
            self._spread(self.counts.mass, torch.cat(mass, 2), known, group)

    def _spread(self, into: NDArray[np.float64], found: Tensor, known: Tensor, group: Tensor) -> None:
        """Add (2, B, H, T) to (2, D, K, L, A)."""
        flat = found.permute(1, 3, 0, 2)[known].flatten(1)  # (N, D · H)
        sums = _summed(flat, group, len(self.relations)).reshape(2, len(self.relations), len(DIRECTIONS), -1)
        into.reshape(*into.shape[:3], -1)[..., self._present] += sums.transpose(0, 2, 1, 3)


def _summed(values: Tensor, group: Tensor, size: int) -> NDArray[np.float64]:
    """Sum rows by group: (N, M) to (2, K, M), in float64."""
    sums = torch.zeros(2 * size, values.shape[1], dtype=torch.float64)
    sums.index_add_(0, group.cpu(), values.double().cpu())
    return sums.view(2, size, -1).numpy()


def _counted(group: Tensor, size: int) -> NDArray[np.int64]:
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
    found = [sentence for sentence in sentences if sentence.dep is not None]
    if not found:
        raise ArcError(
            f"UAS of heads needs dependency trees, and none of the {len(sentences)} sentences has one; give a corpus "
            "with the layer dep"
        )
    return found


@contextmanager
def _as_observed(encoder: Encoder) -> Iterator[None]:
    """Evaluation mode and eager attention for a while; afterwards as before."""
    transformer = cast(PreTrainedModel, encoder.transformer)
    before = transformer.config._attn_implementation
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    transformer.set_attn_implementation("eager")
    try:
        yield
    finally:
        transformer.set_attn_implementation(before)
        for module, mode in modes:
            module.training = mode


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
    places = encoder.places
    device = next(encoder.parameters()).device
    known = with_trees(sentences)
    pieces = encoder.tokenize_all([sentence.words for sentence in known])
    capacity = encoder.frame.capacity
    kept = [row for row, p in enumerate(pieces) if capacity is None or len(p.ids) <= capacity]
    if not kept:
        raise ArcError(f"none of the {len(known)} sentences fits into the {encoder.limit} tokens the encoder sees")
    known, pieces = [known[row] for row in kept], [pieces[row] for row in kept]
    counter = ArcCounter(relations_of(known), places.kept, places.heads, gates)
    half = halves(len(known))
    with _as_observed(encoder):
        for rows in observation_batches([len(p.ids) for p in pieces]):
            batch = encoder.collate([pieces[row] for row in rows]).to(device)
            seen = observe(encoder, batch, gates, {"attention"})
            counter.add(seen, [known[row] for row in rows], half[rows].tolist())
    return counter.counts
