"""What a power cut may leave: a recorder of a folder's states and syncs, and the images of the disk that follow.

Nothing is on the disk before it is synced: a file's content with the file, its name with the folder that holds it. What
was not may be there nonetheless, wholly or in part; the changes of one folder arrive in their order.

Writes of native code are seen too: the folder is read whenever Python syncs, renames, makes or removes something.
"""

import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Entries = dict[str, int]
PASSING = (".lock", ".writing")  # content without meaning


class State(NamedTuple):
    """A moment: inode of folder → names; inode of file → content; and what of both is on the disk for sure."""

    folders: dict[int, Entries]
    files: dict[int, bytes]
    synced: dict[int, int]
    """Folder → the last state whose names are on the disk."""
    safe: dict[int, bytes]


class Recorder:
    """Record a folder while entered.

    Args:
        root: an existing folder; what lies in it at the beginning is on the disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.states: list[State] = []
        self._held: dict[int, int] = {}  # open, so that no inode is used a second time
        self._seen: dict[int, tuple[tuple[int, ...], bytes]] = {}
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Recorder":
        folders, files = self._look()
        self.states = [State(folders, files, dict.fromkeys(folders, 0), dict(files))]
        for name in ("rename", "replace", "unlink", "remove", "rmdir", "mkdir"):
            self._patch.setattr(os, name, self._around(getattr(os, name)))
        self._patch.setattr(os, "fsync", self._fsync)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._note()
        for descriptor in self._held.values():
            os.close(descriptor)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._note()
            result = original(*args, **named)
            self._note()
            return result

        return call

    def _fsync(self, descriptor: int) -> None:
        self._note()
        self._note(os.fstat(descriptor).st_ino)

    def _note(self, inode: int | None = None) -> None:
        folders, files = self._look()
        last = self.states[-1]
        synced, safe = dict(last.synced), dict(last.safe)
        if inode in folders:
            synced[inode] = len(self.states)
        elif inode in files:
            safe[inode] = files[inode]
        if (folders, files, synced, safe) != tuple(last):
            self.states.append(State(folders, files, synced, safe))

    def _look(self) -> tuple[dict[int, Entries], dict[int, bytes]]:
        folders: dict[int, Entries] = {}
        files: dict[int, bytes] = {}
        waiting = [self.root]
        while waiting:
            path = waiting.pop()
            names: Entries = {}
            for entry in os.scandir(path):
                found = entry.stat(follow_symlinks=False)
                names[entry.name] = found.st_ino
                if found.st_ino not in self._held:
                    self._held[found.st_ino] = os.open(entry.path, os.O_RDONLY)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(Path(entry.path))
                    continue
                mark = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if self._seen.get(found.st_ino, (None,))[0] != mark:
                    content = b"" if entry.name in PASSING else Path(entry.path).read_bytes()
                    self._seen[found.st_ino] = mark, content
                files[found.st_ino] = self._seen[found.st_ino][1]
            folders[path.stat().st_ino] = names
        return folders, files


Image = dict[str, bytes | None]
"""Path → content; None: a folder."""


def images(recorded: Recorder, samples: int, seed: int = 0, deaf: bool = False) -> Iterator[Image]:
    """After every event: all that was not synced is lost; names are kept, content is not; ``samples`` between these.

    Args:
        deaf: as if no sync had had an effect, for a control.
    """
    generator = random.Random(seed)
    root = recorded.root.stat().st_ino
    for place, state in enumerate(recorded.states):
        if deaf:
            state = state._replace(synced=recorded.states[0].synced, safe=recorded.states[0].safe)
        for sample in range(samples + 2):
            yield _image(recorded.states, place, state, root, sample, generator)


def _image(states: list[State], place: int, state: State, root: int, sample: int, generator: random.Random) -> Image:
    found: Image = {}

    def names(inode: int) -> Entries:
        first = state.synced.get(inode, -1)
        chosen = {0: first, 1: place}.get(sample, generator.randint(first, place))
        there = (states[earlier].folders for earlier in range(chosen, -1, -1))
        return next((folders[inode] for folders in there if inode in folders), {})  # gone by now: as it was last

    def content(inode: int) -> bytes:
        safe = state.safe.get(inode, b"")
        now = next(states[e].files[inode] for e in range(place, -1, -1) if inode in states[e].files)
        if sample < 2 or now == safe:
            return safe
        cut = generator.choice((0, generator.randint(0, len(now)), len(now)))
        return now[: max(cut, len(safe))] if now.startswith(safe) else generator.choice((safe, now[:cut]))

    def walk(inode: int, path: str) -> None:
        for name, child in sorted(names(inode).items()):
            inner = f"{path}{name}"
            if any(child in earlier.folders for earlier in states[: place + 1]):
                found[inner] = None
                walk(child, inner + "/")
            else:
                found[inner] = content(child)

    walk(root, "")
    return found


def distinct(many: Iterator[Image]) -> list[Image]:
    """Each image once; what halves of files hold does not count."""
    known: dict[int, Image] = {}
    for image in many:
        known.setdefault(hash(tuple((path, ".part" in path or held) for path, held in sorted(image.items()))), image)
    return list(known.values())


def lay_out(image: Image, root: Path) -> None:
    """Write an image into a new folder."""
    root.mkdir(parents=True)
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
