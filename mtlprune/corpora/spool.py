"""A list that lies in a temporary file: of sentences, or of arrays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np

from mtlprune.corpora import CorpusError
from mtlprune.layers import KINDS, Layer, kind_of
from mtlprune.sentence import Sentence

T = TypeVar("T")


class Spool(Sequence[T]):
    """A list whose items lie in a file that goes with it; in memory are their places and the block last begun.

    Args:
        encode, decode: a block of items to bytes and back.
        block: items that are written and read together.

    Raises:
        CorpusError: from appending and reading, when the disk refuses.
    """

    def __init__(self, encode: Callable[[list[T]], bytes], decode: Callable[[bytes], list[T]], block: int) -> None:
        self._encode, self._decode, self._block = encode, decode, block
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed, and gone, with its owner)
        self._ends, self._last = array("q", [0]), list[T]()

    def append(self, item: T) -> None:
        self._last.append(item)
        if len(self._last) == self._block:
            with _told():
                self._ends.append(self._ends[-1] + self._file.write(self._encode(self._last)))
            self._last = []

    def __len__(self) -> int:
        return (len(self._ends) - 1) * self._block + len(self._last)

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        block, inside = divmod(range(len(self))[place], self._block)
        return self._read(block)[inside]

    def __iter__(self) -> Iterator[T]:
        for block in range(len(self._ends)):
            yield from self._read(block)

    def _read(self, block: int) -> list[T]:
        if block == len(self._ends) - 1:
            return self._last
        start, end = self._ends[block : block + 2]
        with _told():
            self._file.flush()
            return self._decode(os.pread(self._file.fileno(), end - start, start))


def spooled(sentences: Iterable[Sentence], block: int = 1024) -> Spool[Sentence]:
    """Sentences, to be gone through in order."""
    found = Spool(_sentences_to_bytes, _sentences_from_bytes, block)
    for sentence in sentences:
        found.append(sentence)
    return found


def _sentences_to_bytes(sentences: list[Sentence]) -> bytes:
    rows = []
    for sentence in sentences:
        kinds = sentence.kinds().items()
        layers = [[name, kind, KINDS[kind_of(kind)].to_json(sentence.get(name))] for name, kind in kinds]
        rows.append([sentence.id, sentence.words, layers])
    return json.dumps(rows).encode()


def _sentences_from_bytes(data: bytes) -> list[Sentence]:
    found = []
    for name, words, written in json.loads(data):
        layers = {layer: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for layer, kind, value in written}
        found.append(Sentence(name, tuple(words)).with_layers(**layers))
    return found


def arrays_to_bytes(row: Mapping[str, Any] | None) -> bytes:
    """Arrays by name, after a line that says what they are; None as None."""
    names = None if row is None else {name: [part.dtype.str, part.shape] for name, part in row.items()}
    return json.dumps(names).encode() + b"\n" + b"".join(part.tobytes() for part in (row or {}).values())


def arrays_from_bytes(data: bytes) -> dict[str, Any] | None:
    """The reverse; the arrays cannot be written to."""
    start = data.index(b"\n") + 1
    names, found = json.loads(data[:start]), {}
    for name, (kind, shape) in (names or {}).items():
        found[name] = np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
        start += found[name].nbytes
    return None if names is None else found


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items, the last one of what is left."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorpusError(
            f"{tempfile.gettempdir()}: expected room for what does not fit into memory, found: {error.strerror}; make "
            "room there, or name another folder in the environment variable TMPDIR"
        ) from error
