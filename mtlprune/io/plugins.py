"""Extensions that installed packages register as entry points: decoders (group ``mtlprune.tasks``) and analyses (group
``mtlprune.analyses``).

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
    """An extension of an installed package cannot be used; the message names the package."""


class Registry(Mapping[str, T]):
    """A mapping from names to built-in entries, followed by the extensions of installed packages in alphabetical order.

    Installed packages are searched only when a name is not built in, or when the mapping is iterated or counted, and an
    extension is imported only when it is looked up. Installed packages therefore cannot change or break built-in
    entries.

    Args:
        built_in: name → built-in entry.
        group: group of the entry points.
        read: function that returns the entry of an entry point, and raises an exception if the entry point is unusable.
    """

    def __init__(self, built_in: Mapping[str, T], group: str, read: Callable[[EntryPoint], T]) -> None:
        self.built_in, self.group, self.read = dict(built_in), group, read
        self._read: dict[str, T] = {}

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        """Name → entry point of each extension. An entry point with the name of a built-in entry or of an earlier entry
        point is left out with a warning."""
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
            # Importing an extension runs its code, which may raise any exception, even SystemExit.
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
    """Describe an entry point and its package in words."""
    return f"{point.name} = {point.value} ({point.group}) of the package {point.dist.name if point.dist else '?'}"
