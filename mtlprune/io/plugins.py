"""Additions of installed packages under an entry point of theirs: decoders (``mtlprune.tasks``), analyses
(``mtlprune.analyses``).

    [options.entry_points]
    mtlprune.tasks =
        deep = their_package.deep:Deep
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from mtlprune.errors import MtlpruneError

log = logging.getLogger(__name__)

T = TypeVar("T")


class PluginError(MtlpruneError):
    """An addition of a package cannot be used; the message names the package."""


class Registry(Mapping[str, T]):
    """Ours by name, then those of installed packages, in alphabetical order. Theirs are looked for when somebody asks
    for what is not ours, and imported when they are asked for: what is installed changes nothing of ours. ``read``:
    what an entry point stands for; raises where it is none."""

    def __init__(self, built_in: Mapping[str, T], group: str, read: Callable[[EntryPoint], T]) -> None:
        self.built_in, self.group, self.read = dict(built_in), group, read
        self._read: dict[str, T] = {}

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        """Name → entry point of what packages add; of two with one name the first, and none in the place of ours."""
        points: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)):
            if point.name in self.built_in or point.name in points:
                log.warning("%s is left out, because %s already exists in %s", described(point), point.name, self.group)
            else:
                points[point.name] = point
        return points

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._read:
            point = self.added[name]
            try:
                self._read[name] = self.read(point)
            except KeyboardInterrupt:
                raise
            # Code of others runs here on import, and it may raise anything, even SystemExit.
            except BaseException as error:
                raise PluginError(
                    f"{described(point)} cannot be used ({type(error).__name__}: {error}); repair or uninstall it"
                ) from error
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.added

    def __len__(self) -> int:
        return len(self.built_in) + len(self.added)

    def __contains__(self, name: Any) -> bool:
        return name in self.built_in or name in self.added


def described(point: EntryPoint) -> str:
    """An entry point and its package in words."""
    return f"{point.name} = {point.value} ({point.group}) of the package {point.dist.name if point.dist else '?'}"
