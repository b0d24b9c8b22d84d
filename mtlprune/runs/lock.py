"""One process trains in a run folder at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mtlprune.io.files import RunError, make_folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own a folder; a second process is refused. The lock ends with its process.

    A folder in which nothing was written meanwhile is removed again: a mistake leaves no trace.

    Raises:
        RunError: the folder is in use, or cannot be made or written.
    """
    from filelock import FileLock, Timeout

    lock = folder / ".lock"
    try:
        make_folder(folder)
        owned = FileLock(lock, blocking=False).acquire()
        lock.write_text(str(os.getpid()), encoding="utf-8")
    except Timeout:
        owner = lock.read_text(encoding="utf-8").strip() or "unknown"
        raise RunError(
            f"{folder} is in use by another process (number {owner}); wait for it, or choose another --out"
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder}: expected a run folder or a place to make one, found what cannot be written "
            f"({error.strerror}); choose another --out"
        ) from None
    with owned:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if list(folder.iterdir()) == [lock]:
                    lock.unlink()
                    folder.rmdir()


def in_use(folder: Path) -> bool:
    """True while a process owns the folder."""
    from filelock import FileLock, Timeout

    try:
        if (lock := folder / ".lock").is_file():
            FileLock(lock, blocking=False).acquire().lock.release()
    except Timeout:
        return True
    return False
