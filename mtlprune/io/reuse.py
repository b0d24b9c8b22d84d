"""A cache of objects that are costly to make and never change, from one cell of a sweep to the next in one process.

Outside `objects_kept` nothing is cached, so that a process that trains a single run needs no more memory than this run.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Product = TypeVar("_Product")

_KEPT_OF_A_KIND = 2
"""Number of objects of each kind that are kept. Two are needed, because training a run and scoring it alternate, and
scoring uses another tokenizer, which it reads from the run's folder."""
_objects: dict[str, dict[Hashable, Any]] | None = None
"""Kind of object → key → object, with the most recently used object last; None outside `objects_kept`."""


@contextmanager
def objects_kept() -> Iterator[None]:
    """Let `reuse_or_make` keep the most recently used objects of each kind while the context is open."""
    global _objects
    outer_objects, _objects = _objects, {}
    try:
        yield
    finally:
        _objects = outer_objects


def reuse_or_make(kind: str, key: Hashable, make: Callable[[], _Product]) -> _Product:
    """Return the cached object of a kind and key, or make it.

    Args:
        kind: kind of the object, such as ``tokenizer``.
        key: everything on which the object depends. Files are represented by their content or their times.
        make: function that makes the object.
    """
    if _objects is None:
        return make()
    objects_of_kind = _objects.setdefault(kind, {})
    result: _Product = objects_of_kind.pop(key) if key in objects_of_kind else make()
    objects_of_kind[key] = result
    while len(objects_of_kind) > _KEPT_OF_A_KIND:
        del objects_of_kind[next(iter(objects_of_kind))]
    return result


def reuse_copy_or_make(kind: str, key: Hashable, make: Callable[[], _Product]) -> _Product:
    """Return an object that the caller may change: a deep copy of the cached object of a kind and key, or a new one
    outside `objects_kept`."""
    return make() if _objects is None else copy.deepcopy(reuse_or_make(kind, key, make))
