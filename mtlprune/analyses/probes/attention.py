"""Attention probes: does a head look from dependent to head, or from predicate to argument? All heads at once.

A word's choice is the word it attends to most, itself included. He and Choi (2021), section 5 and released code.

Letters for shapes: B sentences, L slots a row, T words of the longest sentence, S = T + 1 places ([CLS] and words), H
heads of all layers that are there, U items, P pairs of an item and one of its words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mtlprune.encoder.observe import Observation


@dataclass(eq=False)
class AttendedPlaces:
    """What each place attends to most, in every head.

    Attributes:
        anywhere: (B · S, H) int64, of [CLS] and the words (place 0 and 1 on): candidates of DEP, where [CLS] is the
            root.
        words: (B · S, H) int64, of the words alone, as places too: candidates of SRL.
        side: S.
    """

    anywhere: Tensor
    words: Tensor
    side: int


def choose(seen: Observation) -> AttendedPlaces:
    """The choices of all places in all heads; [SEP] is never chosen.

    Of equal ones the first counts. Rows are averaged over the sub-words that attend, columns summed over those attended
    to. Columns that a sentence does not have get −1 (minus the row's sum), so that nothing chooses them.
    """
    side = max(seen.batch.sizes) + 1
    place = torch.arange(side, device=seen.last.device)
    own = seen.places[..., None] == place  # (B, L, S); a sentence's [SEP] lies at its length + 1
    own = own & (place <= seen.batch.lengths[:, None])[:, None]
    counts = own.sum(1)  # (B, S), sub-words
    columns = own.to(seen.last) - (counts == 0)[:, None].to(seen.last)
    rows = (own / counts.clamp(min=1)[:, None]).to(seen.last).transpose(1, 2)  # (B, S, L)
    anywhere, words = [], []
    for attention in seen.attention:
        found = rows[:, None] @ (attention.flatten(1, 2) @ columns).unflatten(1, attention.shape[1:3])  # (B, n, S, S)
        word = found[..., 1:].argmax(-1, keepdim=True)  # (B, n, S, 1)
        highest = found[..., 1:].gather(-1, word)
        word = word + 1
        words.append(word.squeeze(-1))
        anywhere.append(torch.where(found[..., :1] >= highest, 0, word).squeeze(-1))
    lay = [torch.cat(part, 1).transpose(1, 2).flatten(0, 1).contiguous() for part in (anywhere, words)]
    return AttendedPlaces(lay[0], lay[1], side)


def arcs_found(choices: AttendedPlaces, row: Tensor, head: Tensor, dependent: Tensor) -> Tensor:
    """Which arcs each head finds: its dependent chooses its head or the other way round.

    Args:
        row: (U,), sentence of the batch.
        head: (U,), place of the head; 0 is the root, which [CLS] stands for.
        dependent: (U,), place of the dependent.

    Returns:
        (U, H) bool.
    """
    base = row * choices.side
    down, up = choices.anywhere[base + dependent], choices.anywhere[base + head]
    return (down == head[:, None]) | (up == dependent[:, None])


def arguments_found(choices: AttendedPlaces, row: Tensor, start: Tensor, end: Tensor, predicate: Tensor) -> Tensor:
    """Which arguments each head finds: any of its words chooses the predicate, or the predicate any of its words.

    Args:
        row: (U,), sentence of the batch.
        start, end: (U,), words of the argument, from 0, half-open.
        predicate: (U,), word of the predicate, from 0.

    Returns:
        (U, H) bool.
    """
    base = row * choices.side + 1  # of word 0
    chosen = choices.words[base + predicate] - 1  # (U, H), as words
    found = (chosen >= start[:, None]) & (chosen < end[:, None])
    sizes = end - start
    item = torch.repeat_interleave(sizes)  # (P,)
    word = torch.arange(len(item), device=row.device) - (sizes.cumsum(0) - sizes)[item] + start[item]
    back = choices.words[base[item] + word] - 1 == predicate[item, None]  # (P, H)
    any_of_span = back.new_zeros(found.shape, dtype=torch.int32).index_add_(0, item, back.int()) > 0
    return found | any_of_span


def by_label(found: Tensor, label: Tensor, labels: int) -> Tensor:
    """Count hits: (U, H) bool to (K, H) float64."""
    if not len(label):
        return found.new_zeros(labels, found.shape[1], dtype=torch.float64)
    one_hot = functional.one_hot(label, labels).float()  # (U, K); sums up to 2²⁴ are exact
    return (one_hot.T @ found.float()).double()
