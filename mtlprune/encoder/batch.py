"""Padded batches of tokenised sentences, with the indices that map sub-words back to words.

A sentence longer than the encoder's limit becomes several overlapping windows. The encoder, training and analyses use
these batches.

A *slot* is a position in the (rows, columns) grid of a batch, numbered row · L + column. Letters for shapes: B
sentences, R rows of the batch (B plus the further windows of long sentences), L slots in a row, P sub-words in the
batch, N words in the batch.
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

_WIDTH = 4
"""The width of a row is rounded up to a multiple of this number, so that few different shapes occur."""
FEW_ROWS = 8
"""The number of rows below which splitting a batch costs more than the padding that it saves."""
HOST = torch.device("cpu")


def move_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return the tensors on another device, moved in a single copy.

    Copies from the host do not block. Tensors that are already on the device are returned unchanged. All tensors must
    be on the same device and must not require gradients.
    """
    if not tensors or tensors[0].device == device:
        return list(tensors)
    # Tensors are packed into one tensor of bytes. Those with the widest elements come first, so that all are aligned.
    order = sorted(range(len(tensors)), key=lambda index: -tensors[index].element_size())
    # The clone is necessary: a column of a matrix with a single row counts as contiguous whatever its stride, but
    # cannot be viewed as bytes.
    contiguous = [tensors[index].clone(memory_format=torch.contiguous_format) for index in order]
    flat = [tensor.view(-1).view(torch.uint8) for tensor in contiguous]
    packed = torch.cat(flat)
    if device.type == "cuda" and packed.device == HOST:
        # A copy is asynchronous only from pinned memory. From pageable memory the host would wait for it.
        packed = packed.pin_memory()
    packed = packed.cpu() if device == HOST else packed.to(device, non_blocking=True)
    parts = dict(zip(order, packed.split([len(part) for part in flat]), strict=True))
    return [parts[index].view(tensor.dtype).view(tensor.shape) for index, tensor in enumerate(tensors)]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a NumPy array to a device without blocking."""
    return move_together([torch.from_numpy(array)], device)[0]


@dataclass(eq=False)
class EncoderBatch:
    """A batch of padded rows for the encoder, with the indices that map its output back to words.

    Row ``b < B`` is the first, usually the only, window of sentence ``b``. All further windows follow from row B on.
    A piece is a sub-word.

    Attributes:
        input_ids: (R, L) int64, the ids with special tokens and padding.
        attention_mask: (R, L) int64, 1 for special tokens and pieces, 0 for padding.
        source: (R, L) int64, the piece (0 to P − 1) in each slot, −1 for special tokens and padding.
        piece_slot: (P,) int64, the slot (row · L + column) from which the vector of the piece is read. A piece that
            several windows contain is read from one of them.
        piece_word: (P,) int64, the word (0 to N − 1) to which the piece belongs.
        first_piece: (N,) int64, the first piece of each word.
        piece_counts: (N,) float32, the number of pieces of each word.
        cls_slot, sep_slot: (B,) int64, the slots of the first and the last special token of each sentence.
        lengths: (B,) int64, the number of words of each sentence.
        sizes: ``lengths`` as a list, so that the host can read it without waiting for the device.
        full: True if the batch contains no padding.
        second: (R,) int64, the column where the second text of a pair begins in each row, L in rows without a second
            text. None in a batch without pairs.
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
        """Return all fields that are tensors, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> "EncoderBatch":
        """Return the batch on another device."""
        tensors = self.tensors()
        copies = move_together(list(tensors.values()), torch.device(device))
        return EncoderBatch(**dict(zip(tensors, copies, strict=True)), sizes=self.sizes, full=self.full)


def by_length(
    lengths: Sequence[int], rows_that_fit: Callable[[int], int], min_filled: float = 0.0
) -> Iterator[list[int]]:
    """Yield batches of rows of similar length, longest rows first. Rows of equal length keep their order.

    Args:
        lengths: the length of each row.
        rows_that_fit: a function from the length of a batch's longest row to the number of rows that fit into a batch.
        min_filled: the smallest share of a batch that is not padding. Batches of at most `FEW_ROWS` rows may contain
            more padding.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        rows = order[start : start + max(1, rows_that_fit(longest))]
        if min_filled:
            # The mean lengths of the first 1, 2, … rows never rise, so counting them finds the last one that suffices.
            means = np.cumsum([lengths[row] for row in rows]) / np.arange(1, len(rows) + 1)
            rows = rows[: max(FEW_ROWS, int((means >= min_filled * longest).sum()))]
        yield rows
        start += len(rows)


def slots(sizes: Sequence[int], width: int) -> Tensor:
    """Return the position of each item (such as a word) in a flattened (B, width) table with a line for each sentence.

    Args:
        sizes: the number of items of each of B sentences.
        width: the number of columns, at least the largest of ``sizes``.

    Returns:
        (M,) int64 on the CPU, for the M items of all sentences one after another.
    """
    lengths = np.array(sizes, np.int64)
    # Item r of the batch, in sentence b, is at b · width + r − (items before b). Adding a shift for each sentence to
    # the running number r gives all positions at once.
    shift = np.arange(len(lengths)) * width - (np.cumsum(lengths) - lengths)
    return torch.from_numpy(np.arange(lengths.sum()) + np.repeat(shift, lengths))


def table(flat: Tensor, sizes: Sequence[int], side: int, table_slots: Tensor | None = None) -> Tensor:
    """Arrange vectors in a table with a line for each sentence: (M, ...) → (B, side, ...), padded with zeros.

    Args:
        flat: the vectors of the items (such as words) of all sentences, one after another.
        sizes: the number of items of each sentence.
        side: the number of columns.
        table_slots: the positions of the rows of ``flat`` in the flattened table, on the device, by default
            ``slots(sizes, side)``.
    """
    table_slots = move_together([slots(sizes, side)], flat.device)[0] if table_slots is None else table_slots
    # The table starts as zeros, not as uninitialised memory, because matrix products also read the padding, and a NaN
    # in it would spread.
    empty = flat.new_zeros((len(sizes) * side, *flat.shape[1:]))
    return empty.index_copy(0, table_slots, flat).view(len(sizes), side, *flat.shape[1:])


def ranks(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the members of each of several groups from 0: (sum of sizes,), one group after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


@dataclass(frozen=True)
class Frame:
    """The special tokens and the padding in a row.

    Attributes:
        before, after: ids of the special tokens before and after the pieces.
        padding: the id in unused slots.
        capacity: the number of pieces that fit between the special tokens, None without a limit.
        between: ids of the special tokens between the two texts of a pair.
    """

    before: Sequence[int]
    after: Sequence[int]
    padding: int
    capacity: int | None
    between: Sequence[int] = ()

    @property
    def size(self) -> int:
        """The number of special tokens before and after the pieces."""
        return len(self.before) + len(self.after)


def collate(sentences: Sequence[Pieces], frame: Frame) -> EncoderBatch:
    """Make a padded batch of one or more tokenised sentences, on the CPU.

    A pair of texts must fit into one row, with the frame's special tokens between the texts. A sentence with more
    pieces than fit into a row becomes overlapping windows, as in ELIT. With C pieces in a window and a stride of
    S = C // 2, window w contains the C pieces from w · S on. It provides the vectors of the S pieces from its piece
    ⌊S / 2⌋ on, in the middle of the window. The first window also provides the pieces before them, and the last window
    the pieces after them.
    """
    sizes = np.fromiter((len(s.ids) for s in sentences), np.int64, len(sentences))  # pieces of each sentence
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
    """The windows of a batch, as arrays with an entry for each row.

    Attributes:
        sentence: the sentence of the window.
        start: its first piece, counted within the batch.
        size: the number of its pieces.
        given_from, given_to: the range of its pieces, counted from its start, whose vectors are read from this window.
    """

    sentence: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    given_from: NDArray[np.int64]
    given_to: NDArray[np.int64]


def further_windows(sizes: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Return how many windows beyond the first each sentence needs: (B,) numbers of pieces → (B,)."""
    return np.maximum(0, -(-(sizes - capacity) // (capacity // 2)))


def _split(windows: _Windows, capacity: int) -> _Windows:
    """Split sentences, given as one window each, into windows of at most ``capacity`` pieces."""
    stride = capacity // 2
    extra = further_windows(windows.size, capacity)  # (B,)
    last = extra == 0
    # The first window of sentence b is row b. In long sentences it provides the pieces up to the middle of its overlap
    # with the second window.
    head = _Windows(
        windows.sentence,
        windows.start,
        np.minimum(windows.size, capacity),
        np.zeros_like(windows.size),
        np.where(last, windows.size, stride // 2 + stride),
    )
    sentence = np.repeat(windows.sentence, extra)
    # The further windows are numbered from 1 within each sentence. Each provides the pieces in its middle, where the
    # context is long on both sides. The last one provides everything up to the end of the sentence.
    rank = ranks(extra) + 1
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
    """Return the width of rows for this many pieces, rounded up to a multiple of `_WIDTH` within the model's limit."""
    specials = frame.size
    width = -(-(pieces + specials) // _WIDTH) * _WIDTH
    return width if frame.capacity is None else min(width, frame.capacity + specials)


def _lay_out(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    words: list[int],
    windows: _Windows,
    splits: NDArray[np.int64],
    frame: Frame,
) -> EncoderBatch:
    """Write windows into rows of ids with special tokens and padding, and compute the indices of an `EncoderBatch`.

    Args:
        ids: (P,) the ids of all pieces.
        counts: (N,) the number of pieces of each word.
        words: the number of words of each sentence.
        windows: the rows.
        splits: the number of pieces of the first text of each sentence, 0 without a pair.
        frame: the special tokens and the padding.
    """
    front, suffix_length, split = len(frame.before), len(frame.after), splits[windows.sentence]
    gaps = len(frame.between) * (split > 0)  # tokens between the texts of a pair; a pair is always a single window
    sizes = windows.size + gaps
    rows, width = len(sizes), _row_width(int(sizes.max()), frame)
    row = np.repeat(np.arange(rows), windows.size)
    rank = ranks(windows.size)  # of each piece within its window
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
    # The rows of a sentence are in order. If several rows assign to the same sentence, the last one wins: the last
    # window, which contains the end of the sentence and its [SEP].
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
    """Choose for each slot of a batch a donor slot in another row.

    The donor rows are a random cyclic permutation, in which no row is its own donor. Within the donor row the column is
    the same, modulo the length of that row, so that padding is never chosen. A batch of a single row takes its donors
    from that row, shifted by half of its length.

    Returns:
        (R, L) int64, the donor slot (row · L + column) of each slot.
    """
    rows, width = batch.input_ids.shape
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    donor_rows = torch.empty(rows, dtype=torch.int64)
    donor_rows[order] = order.roll(1)
    donor_rows = donor_rows.to(batch.input_ids.device)
    sizes = batch.attention_mask.sum(1)[donor_rows, None]  # (R, 1)
    column = torch.arange(width, device=donor_rows.device) + (sizes // 2 if rows == 1 else 0)
    return donor_rows[:, None] * width + column % sizes


@dataclass(eq=False)
class Encoded:
    """The word vectors of a batch, the output of the encoder, in float32 even under autocast. H is the hidden size.

    Attributes:
        words: (N, H), the vectors of the words of all sentences, one after another and without padding.
        cls: (B, H), the vector of the first special token of each sentence.
        sep: (B, H), the vector of the last special token of each sentence.
        lengths: (B,) int64, the number of words of each sentence.
        sizes: ``lengths`` as a list on the host.
    """

    words: Tensor
    cls: Tensor
    sep: Tensor
    lengths: Tensor
    sizes: list[int]

    @cached_property
    def starts(self) -> Tensor:
        """The row of ``words`` at which each sentence begins, (B,) int64."""
        return to_device(np.cumsum(self.sizes) - self.sizes, self.words.device)

    @cached_property
    def owner(self) -> Tensor:
        """The sentence (0 to B − 1) of each word, (N,) int64."""
        return to_device(np.repeat(np.arange(len(self.sizes)), self.sizes), self.words.device)

    @classmethod
    def joined(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Return one encoding of the sentences of several batches, one batch after another."""
        words, first, last, lengths = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("words", "cls", "sep", "lengths")
        )
        return cls(words, first, last, lengths, [size for part in parts for size in part.sizes])

    def select(self, sentences: Sequence[int]) -> "Encoded":
        """Return an encoding of only these sentences (one or more), in this order."""
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
