"""Tokenised sentences to a padded batch, with the indices that lead back to words; long sentences become windows.

Letters for shapes: B sentences, R rows of the batch (B plus the further windows of long sentences), L slots a row,
P sub-words, N words, all over the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.encoder.pieces import Pieces

WIDTH = 4
FEW_ROWS = 8
"""Rows of a batch below which a further batch costs more than the padding that it spares."""
HOST = torch.device("cpu")


def move_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on another device by one copy, without waiting where they come from the host; as they are where
    they are there already. They lie on one device, and have no gradient."""
    if not tensors or tensors[0].device == device:
        return list(tensors)
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())  # keeps each aligned
    # cloned, as the column of a matrix with one row counts as contiguous with any stride, and has no view as bytes then
    contiguous = [tensors[place].clone(memory_format=torch.contiguous_format) for place in order]
    flat = [tensor.view(-1).view(torch.uint8) for tensor in contiguous]
    packed = torch.cat(flat)
    if device.type == "cuda" and packed.device == HOST:
        # Only from pinned memory is the copy asynchronous; from pageable memory the host would wait for it.
        packed = packed.pin_memory()
    packed = packed.cpu() if device == HOST else packed.to(device, non_blocking=True)
    parts = dict(zip(order, packed.split([len(part) for part in flat]), strict=True))
    return [parts[place].view(tensor.dtype).view(tensor.shape) for place, tensor in enumerate(tensors)]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array of the host on a device, without waiting for it."""
    return move_together([torch.from_numpy(array)], device)[0]


@dataclass(eq=False)
class EncoderBatch:
    """A batch ready for the encoder.

    Row ``b < B`` is the first (mostly the only) window of sentence ``b``; further windows follow as rows from B on.

    Attributes:
        input_ids: (R, L) int64, with special tokens and padding.
        attention_mask: (R, L) int64, 1 at special tokens and pieces.
        source: (R, L) int64, which of the P pieces stands in a slot, −1 for special tokens and padding.
        piece_slot: (P,) int64, the slot (row · L + column) whose vector stands for the piece.
        piece_word: (P,) int64, the word (0 to N − 1) the piece belongs to.
        first_piece: (N,) int64, the first piece of each word.
        piece_counts: (N,) float32, how many pieces each word has.
        cls_slot, sep_slot: (B,) int64, slots of the first and the last special token of each sentence.
        lengths: (B,) int64, words per sentence.
        sizes: the same as a list, so that nobody has to ask the device.
        full: whether there is no padding.
        second: (R,) int64, of each row the column where the second text of a pair begins, L where there is none; None
            in a batch without pairs.
    """

    input_ids: Tensor
    attention_mask: Tensor
    source: Tensor
    piece_slot: Tensor
    piece_word: Tensor
    first_piece: Tensor
    piece_counts: Tensor
    cls_slot: Tensor
    sep_slot: Tensor
    lengths: Tensor
    sizes: list[int]
    full: bool = False
    second: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The fields that lie on a device, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> "EncoderBatch":
        """The same batch on another device."""
        tensors = self.tensors()
        copies = move_together(list(tensors.values()), torch.device(device))
        return EncoderBatch(**dict(zip(tensors, copies, strict=True)), sizes=self.sizes, full=self.full)


def by_length(lengths: Sequence[int], rows_that_fit: Callable[[int], int], filled: float = 0.0) -> Iterator[list[int]]:
    """Rows of similar length, longest first, equal ones in their order.

    Args:
        rows_that_fit: longest of a batch → rows in it.
        filled: share of a batch that is no padding, at least; batches of `FEW_ROWS` may have more padding.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        rows = order[start : start + max(1, rows_that_fit(longest))]
        if filled:
            means = np.cumsum([lengths[row] for row in rows]) / np.arange(1, len(rows) + 1)  # they never rise
            rows = rows[: max(FEW_ROWS, int((means >= filled * longest).sum()))]
        yield rows
        start += len(rows)


def slots(sizes: Sequence[int], width: int) -> Tensor:
    """The place of each of Σ sizes rows in a (B · width) table that has one line a sentence. int64, on the CPU"""
    lengths = np.array(sizes, np.int64)
    # Row r of sentence b lies at b · width + r − (rows before b), so adding a shift by sentence to the running number
    # gives all places at once.
    shift = np.arange(len(lengths)) * width - (np.cumsum(lengths) - lengths)
    return torch.from_numpy(np.arange(lengths.sum()) + np.repeat(shift, lengths))


def table(flat: Tensor, sizes: Sequence[int], side: int, table_slots: Tensor | None = None) -> Tensor:
    """Lay rows out by sentence: (M, ...) → (B, side, ...), zero elsewhere.

    Args:
        table_slots: ``slots(sizes, side)`` on the device, or other places in the table; made here, if not given.
    """
    table_slots = move_together([slots(sizes, side)], flat.device)[0] if table_slots is None else table_slots
    # Zeros and not arbitrary memory: products read the padding, and a NaN in it would spread.
    empty = flat.new_zeros((len(sizes) * side, *flat.shape[1:]))
    return empty.index_copy(0, table_slots, flat).view(len(sizes), side, *flat.shape[1:])


@dataclass(frozen=True)
class Frame:
    """The special tokens and padding around pieces in a row, and between the texts of a pair.

    Attributes:
        before, after: ids of the special tokens.
        padding: the id in unused slots.
        capacity: pieces that fit between the special tokens, None without a limit.
        between: ids of the special tokens between the texts of a pair.
    """

    before: Sequence[int]
    after: Sequence[int]
    padding: int
    capacity: int | None
    between: Sequence[int] = ()

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)


def collate(sentences: Sequence[Pieces], frame: Frame) -> EncoderBatch:
    """Lay tokenised sentences out as rows, at least one.

    Between the texts of a pair, which must fit into one row, stand the frame's tokens for pairs. A sentence of more
    pieces than fit becomes overlapping windows, as in ELIT: with C pieces to a window and stride
    S = C // 2, window w shows the pieces from w·S, and the S pieces from its ⌊S/2⌋-th on take their vectors from it
    (slot S // 2 + 1 on, counting one [CLS]); the first window also gives those before, the last those after.
    """
    sizes = np.fromiter((len(s.ids) for s in sentences), np.int64, len(sentences))  # pieces per sentence
    ids = np.concatenate([s.ids for s in sentences])
    counts = np.concatenate([s.counts for s in sentences])
    words = [len(s.counts) for s in sentences]
    offsets = np.cumsum(sizes) - sizes  # (B,) the first piece of each sentence
    first = _Windows(np.arange(len(sentences)), offsets, sizes, np.zeros_like(sizes), sizes.copy())
    windows = first if frame.capacity is None or sizes.max() <= frame.capacity else _split(first, frame.capacity)
    splits = np.fromiter((s.split for s in sentences), np.int64, len(sentences))
    return _lay_out(ids, counts, words, windows, splits, frame)


@dataclass
class _Windows:
    """One entry a row: its sentence, first piece (in the batch), pieces shown, and which of those it gives."""

    sentence: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    given_from: NDArray[np.int64]
    given_to: NDArray[np.int64]


def further_windows(sizes: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The number of windows that sentences of so many pieces need beyond the first. (sentences,)"""
    return np.maximum(0, -(-(sizes - capacity) // (capacity // 2)))


def _split(windows: _Windows, capacity: int) -> _Windows:
    stride = capacity // 2
    extra = further_windows(windows.size, capacity)  # (B,)
    last = extra == 0
    # The first window of every sentence, at row b; for long sentences it gives the pieces up to the middle of its
    # overlap with the second.
    head = _Windows(
        windows.sentence,
        windows.start,
        np.minimum(windows.size, capacity),
        np.zeros_like(windows.size),
        np.where(last, windows.size, stride // 2 + stride),
    )
    sentence = np.repeat(windows.sentence, extra)
    # The further windows, numbered from 1 within each sentence. Each gives the middle of what it shows, where both
    # contexts are long; the last one gives everything up to the end.
    rank = np.arange(len(sentence)) - np.repeat(np.cumsum(extra) - extra, extra) + 1
    size = np.minimum(windows.size[sentence] - rank * stride, capacity)
    tail = _Windows(
        sentence,
        windows.start[sentence] + rank * stride,
        size,
        np.full(len(sentence), stride // 2),
        np.where(rank == extra[sentence], size, stride // 2 + stride),
    )
    return _Windows(*(np.concatenate([getattr(head, f.name), getattr(tail, f.name)]) for f in fields(_Windows)))


def _row_width(pieces: int, frame: Frame) -> int:
    """Slots of a row for so many pieces: rounded up to a multiple of WIDTH, so that few shapes occur; a row never
    becomes longer than the model can see."""
    specials = frame.size
    width = -(-(pieces + specials) // WIDTH) * WIDTH
    return width if frame.capacity is None else min(width, frame.capacity + specials)


def _lay_out(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    words: list[int],
    windows: _Windows,
    splits: NDArray[np.int64],
    frame: Frame,
) -> EncoderBatch:
    front, suffix_length, split = len(frame.before), len(frame.after), splits[windows.sentence]
    gaps = len(frame.between) * (split > 0)  # tokens between the texts of a pair, which always is one window
    sizes = windows.size + gaps
    rows, width = len(sizes), _row_width(int(sizes.max()), frame)
    row = np.repeat(np.arange(rows), windows.size)
    # The rank of each piece within its window: its index minus the index of the window's first piece.
    rank = np.arange(len(row)) - np.repeat(np.cumsum(windows.size) - windows.size, windows.size)
    slot = row * width + front + rank + gaps[row] * (rank >= split[row])
    piece = windows.start[row] + rank
    source = np.full(rows * width, -1, np.int64)
    source[slot] = piece
    input_ids = np.full(rows * width, frame.padding, np.int64)
    input_ids[slot] = ids[piece]
    starts, ends = np.arange(rows) * width, np.arange(rows) * width + front + sizes
    for place, special in enumerate(frame.before):
        input_ids[starts + place] = special
    for place, special in enumerate(frame.after):
        input_ids[ends + place] = special
    for place, special in enumerate(frame.between):
        input_ids[(starts + front + split + place)[split > 0]] = special
    mask = np.arange(width)[None] < (sizes + front + suffix_length)[:, None]
    is_given = (rank >= windows.given_from[row]) & (rank < windows.given_to[row])
    piece_slot = np.empty(len(ids), np.int64)
    piece_slot[piece[is_given]] = slot[is_given]
    sep_slot = np.empty(len(words), np.int64)
    # Rows of a sentence stand in order, so that of several assignments to one sentence the last window's stays, which
    # holds its [SEP].
    sep_slot[windows.sentence] = ends + suffix_length - 1
    tensor = torch.from_numpy
    return EncoderBatch(
        input_ids=tensor(input_ids.reshape(rows, width)),
        attention_mask=tensor(mask.astype(np.int64)),
        source=tensor(source.reshape(rows, width)),
        piece_slot=tensor(piece_slot),
        piece_word=tensor(np.repeat(np.arange(len(counts)), counts)),
        first_piece=tensor(np.cumsum(counts, dtype=np.int64) - counts),
        piece_counts=tensor(counts.astype(np.float32)),
        cls_slot=tensor(starts[: len(words)].copy()),
        sep_slot=tensor(sep_slot),
        lengths=tensor(np.array(words, np.int64)),
        sizes=words,
        full=bool(mask.all()),
        second=tensor(np.where(split > 0, front + split + gaps, width)) if splits.any() else None,
    )


def donors(batch: EncoderBatch, seed: int) -> Tensor:
    """A slot of another row for each slot, by a seeded draw in which no row keeps its own: the slot with the same
    number, counted anew where the other row ends. A row that is alone in its batch takes slots of its own, half of it
    away. (R, L) int64, row · L + column"""
    rows, width = batch.input_ids.shape
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    donor_rows = torch.empty(rows, dtype=torch.int64)
    donor_rows[order] = order.roll(1)
    donor_rows = donor_rows.to(batch.input_ids.device)
    sizes = batch.attention_mask.sum(1)[donor_rows, None]  # (R, 1)
    column = torch.arange(width, device=donor_rows.device) + (sizes // 2 if rows == 1 else 0)
    return donor_rows[:, None] * width + column % sizes


# A vector a word. T: words of the longest sentence, H: the hidden size.


@dataclass(eq=False)
class Encoded:
    """Word vectors of a batch, in float32 whatever autocast does.

    Attributes:
        words: (N, H), the words of all sentences one after another, no padding.
        cls: (B, H), the first special token of each sentence.
        sep: (B, H), the last special token.
        lengths: (B,) int64, words per sentence.
        sizes: the same as a list.
    """

    words: Tensor
    cls: Tensor
    sep: Tensor
    lengths: Tensor
    sizes: list[int]

    @cached_property
    def starts(self) -> Tensor:
        """(B,) int64, where in ``words`` each sentence begins."""
        return to_device(np.cumsum(self.sizes) - self.sizes, self.words.device)

    @cached_property
    def owner(self) -> Tensor:
        """(N,) int64, the sentence of each word."""
        return to_device(np.repeat(np.arange(len(self.sizes)), self.sizes), self.words.device)

    def select(self, sentences: Sequence[int]) -> "Encoded":
        """Only these sentences, at least one, in this order."""
        selection = np.asarray(sentences, np.int64)
        if np.array_equal(selection, np.arange(len(self.sizes))):
            return self
        sizes = np.array(self.sizes, np.int64)
        starts, chosen_sizes = (np.cumsum(sizes) - sizes)[selection], sizes[selection]
        words = np.arange(chosen_sizes.sum()) + np.repeat(
            starts - (np.cumsum(chosen_sizes) - chosen_sizes), chosen_sizes
        )
        at, sentence_index = move_together([torch.from_numpy(words), torch.from_numpy(selection)], self.words.device)
        return Encoded(
            self.words.index_select(0, at),
            self.cls.index_select(0, sentence_index),
            self.sep.index_select(0, sentence_index),
            self.lengths.index_select(0, sentence_index),
            chosen_sizes.tolist(),
        )
