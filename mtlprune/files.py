"""Files that are whole or not there, and logs of one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message says why and what to do."""


@contextlib.contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; it takes the place of ``path`` only when it is complete.

    Args:
        shared: whether other processes and threads may write ``path`` at the same moment; each then has a name of its
            own, and the last one to end wins. What a killed process leaves of a name of its own nobody writes over.

    Raises:
        RunError: the disk refused; ``path`` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    whose = f".{platform.node()}-{os.getpid()}-{threading.get_ident()}" if shared else ""
    beside = path.with_name(f".{path.name}{whose}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # as this user's other files; safetensors would leave it to the owner only
        yield beside
        beside.chmod(mode)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except OSError as error:
        raise RunError(
            f"{path} could not be written ({error.strerror or error}); what was there before is untouched"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def make_room(folder: Path) -> None:
    """Make sure that results can be written into a folder, before they are computed; leaves nothing behind.

    Raises:
        RunError: it is a file, or cannot be made or written.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".room-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        what = "is a file" if folder.is_file() else f"cannot be written ({error.strerror})"
        raise RunError(f"--out: {folder} {what}; name a folder that can be made or written") from None
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def share(folder: Path) -> None:
    """Give files the rights of this user's other files; safetensors gives its own to the owner alone."""
    probe = folder / ".rights"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON object to a log. Raises RunError when the disk refuses."""
    try:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")
    except OSError as error:
        raise RunError(f"{path} could not be written ({error.strerror})") from error


def log_size(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def truncate_log(path: Path, size: int) -> None:
    """Forget what was logged after a checkpoint that remembers ``size`` bytes."""
    if path.exists():
        os.truncate(path, min(size, path.stat().st_size))


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of each line; a last line without its end is one that a process is writing, or was killed over.

    Only line feeds end a line here: words may hold other separators, such as U+2028, which str.splitlines heeds.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise RunError(f"{path}, line {number}: not readable as JSON ({error.msg})") from None
