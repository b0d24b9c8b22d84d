"""Who works on a cell: a file that names its holder, taken by one process only, whose age is a heartbeat.

Taking is a hard link, which exactly one of several processes succeeds in making, over a network file system too.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from mtlprune.files import is_process

HEARTBEAT = 15.0
"""Seconds between two signs of life."""
DEAD_AFTER = 120.0
"""Seconds without one after which a lease on another machine counts as dead."""


@dataclass(frozen=True)
class Lease:
    """A process that works on a cell."""

    host: str
    machine: str
    """Where process numbers mean the same: this boot of a machine, this container on it."""
    pid: int
    started: str
    """When the process began, in the kernel's count: numbers of processes are used again."""
    since: str
    """When it took the cell, in UTC."""
    token: str
    """No two takings share it."""

    @classmethod
    def this_process(cls) -> Lease:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return cls(platform.node(), _machine(), os.getpid(), began(os.getpid()), now, uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def read_lease(path: Path) -> Lease | None:
    """Who holds it; None where nobody does."""
    try:
        return Lease(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # no process of ours wrote this: it lives only as long as its heartbeat
        return Lease("unknown", "", 0, "", "", path.name)


def is_alive(path: Path, lease: Lease, now: float | None = None) -> bool:
    """Whether its holder still works.

    On this machine by its process, elsewhere by the age of its last heartbeat.

    Args:
        now: the time on the file's own clock, where it is known better than this machine's.
    """
    if lease.machine == _machine():
        return lease.started == began(lease.pid) != ""
    try:
        return (time.time() if now is None else now) - path.stat().st_mtime < DEAD_AFTER
    except FileNotFoundError:
        return False


def take(path: Path) -> Lease | None:
    """Take the lease, of nobody's cell or of a dead holder's; None where another process is, or was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = Lease.this_process()
    beside = path.with_name(f".{path.name}.{mine.token}")
    beside.write_text(json.dumps(asdict(mine)), encoding="utf-8")
    try:
        if _linked(beside, path):
            return mine
        there = read_lease(path)
        if there is None or is_alive(path, there, now=beside.stat().st_mtime):
            return None
        return mine if _take_over(path, there, beside) else None
    finally:
        beside.unlink(missing_ok=True)


def _take_over(path: Path, dead: Lease, beside: Path) -> bool:
    """Put our file in the place of a dead owner's.

    Only the one process that holds the marker of that lease may, and only while its file is still there.
    """
    marker = path.with_name(f".{path.name}.after-{dead.token}")
    if not _linked(beside, marker):
        heir = read_lease(marker)
        if heir is not None and not is_alive(marker, heir):
            marker.unlink(missing_ok=True)  # it died in the act; the next one to come may try
        return False
    try:
        there = read_lease(path)
        if there is None or there.token != dead.token:
            return False
        beside.replace(path)
        return True
    finally:
        marker.unlink(missing_ok=True)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


class Heartbeat:
    """Keeps a cell while it is worked on, and gives it back at the end.

    Args:
        path: the file of its lease.
        mine: what ``take`` returned.
    """

    def __init__(self, path: Path, mine: Lease) -> None:
        self.path, self.mine = path, mine
        self.lost = False
        """Another process took the cell over: this one was out of sight for too long."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._still_ours():
            self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            self.lost = not self._still_ours()
            if self.lost:
                return
            with contextlib.suppress(OSError):  # a file system that is away for a moment; the next beat tells
                os.utime(self.path)

    def _still_ours(self) -> bool:
        try:
            there = read_lease(self.path)
        except OSError:
            return not self.lost
        return there is not None and there.token == self.mine.token


def _machine() -> str:
    """This boot of this machine, and the container on it; the host's name where the kernel does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{platform.node()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def began(pid: int) -> str:
    """When a process began, in the kernel's count; "" where there is none (any more)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "there" if not Path("/proc/self/stat").exists() and is_process(pid) else ""
    return "" if state == "Z" else fields[18]
