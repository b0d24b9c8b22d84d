"""What a kill or a power cut may leave: a recorder of a folder's states and syncs, and the images that follow.

Nothing is on the disk before it is synced: a file's content with the file, its name with the folder that holds it. What
was not may be there nonetheless; the changes of one folder arrive in their order.

Writes of native code are seen too: the folder is read whenever Python syncs, renames, makes or removes something.
"""

import os
import stat
from collections.abc import Callable, Sequence
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


KEPT = ("synced", "names", "all")


def images(recorded: Recorder, deaf: bool = False, kept_of: Sequence[str] = KEPT) -> list[Image]:
    """After every event what was synced, that and all names, or, as after a kill, everything; each image once (what
    halves of files hold does not count).

    Args:
        deaf: as if no sync had had an effect, for a control.
        kept_of: "all" alone for work of several processes, of whose syncs nothing is known here.
    """
    root, begun = recorded.root.stat().st_ino, recorded.states[0]
    known: dict[int, Image] = {}
    for place, state in enumerate(recorded.states):
        if deaf:
            state = state._replace(synced=begun.synced, safe=begun.safe)
        for kept in kept_of:
            image = _image(recorded.states[: place + 1], state, root, kept)
            mark = tuple((path, ".part" in path or held) for path, held in sorted(image.items()))
            known.setdefault(hash(mark), image)
    return list(known.values())


def _image(states: list[State], state: State, root: int, kept: str) -> Image:
    found: Image = {}

    def last(kind: str, inode: int, until: int | None = None) -> Any:
        """As it last was: it may be gone by now."""
        there = (getattr(one, kind) for one in reversed(states[:until]))
        return next((one[inode] for one in there if inode in one), None)

    def walk(inode: int, path: str) -> None:
        names = last("folders", inode, state.synced.get(inode, -1) + 1 if kept == "synced" else None)
        for name, child in sorted((names or {}).items()):
            inner = f"{path}{name}"
            if last("folders", child) is not None:
                found[inner] = None
                walk(child, inner + "/")
            else:
                found[inner] = last("files", child) if kept == "all" else state.safe.get(child, b"")

    walk(root, "")
    return found


def lay_out(image: Image, root: Path) -> None:
    root.mkdir(parents=True)
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def contents(root: Path) -> dict[str, bytes]:
    """Files by path, without locks; halves of files count."""
    paths = (path for path in root.rglob("*") if path.is_file() and path.name not in PASSING)
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}
