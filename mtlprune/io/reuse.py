"""Objects that are costly to make and never change, kept from one cell of a sweep to the next in the same process.

Nothing is kept outside `objects_kept`, so that a process that trains one run needs no more memory than that run.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Product = TypeVar("_Product")

_KEPT_OF_A_KIND = 2
"""A run and its scoring, which reads the tokenizer from the run's folder, alternate between two."""
_objects: dict[str, dict[Hashable, Any]] | None = None
"""Kind of object → key → object, the one used last at the end; None outside `objects_kept`."""


@contextmanager
def objects_kept() -> Iterator[None]:
    """Within it `reuse_or_make` keeps the objects of each kind that were used last."""
    global _objects
    outer_objects, _objects = _objects, {}
    try:
        yield
    finally:
        _objects = outer_objects


def reuse_or_make(kind: str, key: Hashable, make: Callable[[], _Product]) -> _Product:
    """The object of this kind and key where it is kept, else a new one.

    Args:
        key: everything on which the object depends, files by their content or their times.
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
    """The same of an object that will be changed: a deep copy of what is kept."""
    return make() if _objects is None else copy.deepcopy(reuse_or_make(kind, key, make))
