"""A list that lies in a temporary file."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast, overload

from mtlprune.corpora import CorpusError

T = TypeVar("T")


class Spool(Sequence[T]):
    """A list whose items lie in a file that goes with it; in memory are their places and the block last begun.

    Args:
        items: to begin with.
        block: items that are written and read together; 1 where they are asked for one by one.

    Raises:
        CorpusError: from appending and reading, when the disk refuses.
    """

    def __init__(self, items: Iterable[T] = (), block: int = 1024) -> None:
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed, and gone, with its owner)
        self._ends, self._last, self._block = array("q", [0]), list[T](), block
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        self._last.append(item)
        if len(self._last) == self._block:
            with _told():
                self._ends.append(self._ends[-1] + self._file.write(pickle.dumps(self._last, pickle.HIGHEST_PROTOCOL)))
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
            return cast(list[T], pickle.loads(os.pread(self._file.fileno(), end - start, start)))


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
