"""A list that lies in a temporary file: of sentences, or of arrays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from mtlprune.corpora import CorpusError
from mtlprune.layers import KINDS, Layer, kind_of
from mtlprune.sentence import Sentence

T = TypeVar("T")
FEW = 20_000


class Spool(Sequence[T]):
    """A list whose items lie in a file that goes with it; in memory are their places.

    Args:
        encode, decode: an item to bytes and back.

    Raises:
        CorpusError: from appending and reading too, when the disk refuses.
    """

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode, self._decode, self._ends = encode, decode, array("q", [0])
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed, and gone, with its owner)

    def append(self, item: T) -> None:
        with _told():
            self._ends.append(self._ends[-1] + self._file.write(self._encode(item)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> T:  # type: ignore[override]  # nobody asks for slices
        place = range(len(self))[place]
        start, end = self._ends[place : place + 2]
        with _told():
            self._file.flush()
            return self._decode(os.pread(self._file.fileno(), end - start, start))


def spooled(sentences: Iterable[Sentence]) -> Sequence[Sentence]:
    """Sentences in a temporary file; those of a few are as quickly kept in memory."""
    left = iter(sentences)
    few = list(islice(left, FEW + 1))
    found: Any = few if len(few) <= FEW else Spool(_sentence_to_bytes, _sentence_from_bytes)
    for sentence in chain(few, left) if found is not few else ():
        found.append(sentence)
    return found


def _sentence_to_bytes(sentence: Sentence) -> bytes:
    kinds = sentence.kinds().items()
    layers = [[name, kind, KINDS[kind_of(kind)].to_json(sentence.get(name))] for name, kind in kinds]
    return json.dumps([sentence.id, sentence.words, layers]).encode()


def _sentence_from_bytes(data: bytes) -> Sentence:
    name, words, written = json.loads(data)
    layers = {layer: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for layer, kind, value in written}
    return Sentence(name, tuple(words)).with_layers(**layers)


def arrays_to_bytes(row: Mapping[str, Any] | None) -> bytes:
    """Arrays by name, after a line that says what they are; None as None."""
    names = None if row is None else {name: [part.dtype.str, part.shape] for name, part in row.items()}
    return json.dumps(names).encode() + b"\n" + b"".join(part.tobytes() for part in (row or {}).values())


def arrays_from_bytes(data: bytes) -> dict[str, Any] | None:
    """The reverse; the arrays cannot be written to."""
    import numpy as np

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
        what = f"{tempfile.gettempdir()}: expected room for a temporary file, found: {error.strerror}"
        raise CorpusError(f"{what}; make some, or name another folder in the environment variable TMPDIR") from error
