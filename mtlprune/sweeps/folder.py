"""The folder of a sweep: its cells' run folders, and beside them who works on which, and why some failed.

sweep.json                 cell → run folder
CELL-DIGEST/               a run folder, or a link to one that was adopted
cells/CELL-DIGEST.yaml     its configuration
cells/CELL-DIGEST.owner    who works on it
cells/CELL-DIGEST.log      what its last process said
cells/CELL-DIGEST.failed   why it failed, as JSON

Knows nothing of torch.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mtlprune.errors import MtlpruneError
from mtlprune.io.files import is_process, read_json, reading, write_json
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import FILE as STUDY
from mtlprune.runs.study import matches, open_study
from mtlprune.sweeps.specification import SweepError, is_specification, nearest, read_specification

HEARTBEAT = 15.0
"""Seconds between two signs of life."""
DEAD_AFTER = 120.0
"""Seconds without one after which a lease on another machine counts as dead."""


@dataclass(frozen=True)
class Lease:
    """A process that works on a cell: a file that names it, taken by one process only, whose age is a heartbeat.

    Taking is a hard link, which exactly one of several processes succeeds in making, over a network file system too.
    """

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


log = logging.getLogger(__name__)

INDEX = "sweep.json"
ASIDE = "cells"
RUNS = Path("runs")

Kind = Literal["done", "running", "failed", "blocked", "left"]


@dataclass(frozen=True)
class Place:
    """Where a cell lives.

    Args:
        root: the sweep's folder.
        label: the run folder's name, CELL-DIGEST.
    """

    root: Path
    label: str

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.root / self.label)

    def beside(self, kind: str) -> Path:
        """The file of a kind: yaml, owner (the lease), log or failed."""
        return self.root / ASIDE / f"{self.label}.{kind}"

    def finished(self) -> bool:
        """Trained to the end, in a run folder that can be read; ``run.check_whole`` tells what is wrong."""
        try:
            self.run.check_whole()
            return self.run.is_finished()
        except MtlpruneError:
            return False

    def unscored(self, splits: Iterable[str]) -> list[str]:
        """The splits among these, and dev where its results are damaged, that a finished cell has no results of."""
        dev = [split for split in self.run.splits() if split == self.run.read_config()["data"].get("dev", "dev")]
        return [split for split in dict.fromkeys([*dev, *splits]) if self.run.why_damaged(split)]

    def why_unusable(self) -> str | None:
        """Why tables and figures have to do without the cell: what is damaged, "" if it is not finished; else None."""
        mark: tuple[Any, ...] = ()
        with contextlib.suppress(OSError):  # no folder, or a file that goes at this moment
            mark = (self, *self.mark(()))
        if mark in _WHOLE:
            return None
        try:
            self.run.check_whole()
            if not self.finished():
                return ""
            if self.run.gates_path.is_file():
                from mtlprune.runs.claims import load_claims  # needs numpy, which other runs do without

                load_claims([self.run.path])
        except MtlpruneError as error:
            return str(error)
        wrong = next((wrong for split in self.run.splits() if (wrong := self.run.why_damaged(split))), None)
        if mark and wrong is None:
            _WHOLE.add(mark)
        return wrong

    def mark(self, splits: Iterable[str]) -> list[Any]:
        """Changes with every file of the run and the splits asked for: names, sizes and times, and nothing is read."""
        files = sorted(_sizes(self.root / self.label, ""))
        return [hashlib.sha256(repr(files).encode()).hexdigest(), *splits]

    # -- failures ----------------------------------------------------------------------------------------------------

    def write_failure(self, reason: str, attempt: Mapping[str, Any]) -> None:
        """Keep why the cell failed. ``attempt`` says more: who tried."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
        record = {"reason": reason, "at": at, "log": str(self.beside("log")), **attempt}
        write_json(self.beside("failed"), record)

    def read_failure(self) -> dict[str, Any] | None:
        """Why the last attempt failed; None where none did."""
        if not self.beside("failed").is_file():
            return None
        found = read_json(self.beside("failed"), SweepError, "remove it")
        return found if isinstance(found, dict) else {"reason": f"not known: {self.beside('failed')} is damaged"}

    def lease(self) -> Lease | None:
        """The living lease of the cell, if it has one."""
        path = self.beside("owner")
        lease = read_lease(path)
        return lease if lease is not None and is_alive(path, lease) else None


@dataclass(frozen=True)
class State:
    """Where a cell stands."""

    kind: Kind
    note: str = ""
    """By whom, why, or after what."""
    failure: dict[str, Any] | None = None
    trained: bool = field(default=False, compare=False)
    """To the end, scored or not."""
    seconds: float | None = field(default=None, compare=False)
    """How long that took; None where the run does not tell."""


def state(place: Place, splits: Iterable[str] = ()) -> State:
    """Where a cell stands, its dependencies aside.

    Args:
        splits: that it is to be scored on, beside dev.
    """
    try:
        with reading(place.run.path, SweepError):
            trained = place.finished()
            seconds = place.run.read_manifest()["finished"].get("seconds") if trained else None
            return replace(_state(place, list(splits), trained), trained=trained, seconds=seconds or None)
    except MtlpruneError as error:  # of this cell alone; the others go on
        return State("failed", str(error))


def _state(place: Place, splits: list[str], trained: bool) -> State:
    if trained and not place.unscored(splits):
        return State("done")
    lease = place.lease()
    if lease is not None:
        return State("running", f"{lease} since {lease.since}, {_progress(place)}")
    if place.run.in_use():
        return State("running", f"a process outside the sweep, {_progress(place)}")
    place.run.check_whole()
    failure = place.read_failure()
    if failure is not None:
        return State("failed", str(failure.get("reason")), failure)
    if trained:
        return State("left", f"trained; to be scored on {', '.join(place.unscored(splits))}")
    return State("left", f"begun, {_progress(place)}" if place.run.config_path.is_file() else "")


def _progress(place: Place) -> str:
    if not place.run.config_path.is_file():
        return "beginning"
    train = place.run.read_config().get("train", {})
    done = len(place.run.read_metrics())
    what = f"{done} evaluations" if train.get("evaluate_every") else f"{done} of {train.get('epochs', '?')} epochs"
    return "scoring" if place.finished() else f"{what} done"


_WHOLE: set[tuple[Any, ...]] = set()
"""Cells that can be used, with the marks that they had: a report asks twice."""


def _sizes(folder: str | Path, below: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sizes(entry.path, f"{below}/{entry.name}")
            else:
                found = entry.stat()
                yield f"{below}/{entry.name}", found.st_size, found.st_mtime_ns


class Done:
    """Cells that are done, kept in a file beside them: one whose files have the sizes and times that they had is done
    still, and ten thousand need not be read again.

    Args:
        root: the sweep's folder.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / ASIDE / "done.json"
        self.kept: dict[str, Any] = {}
        with contextlib.suppress(MtlpruneError):  # nothing is lost: cells are read anew
            found = read_json(self.path) if self.path.is_file() else {}
            self.kept = found if isinstance(found, dict) else {}
        self.before = dict(self.kept)

    def state(self, place: Place, splits: Sequence[str]) -> State:
        """As the function of that name."""
        try:
            mark = place.mark(splits)
        except OSError:  # a file that goes at this moment
            return state(place, splits)
        match self.kept.get(place.label):
            case {"mark": there, "seconds": None | float() | int() as seconds} if there == mark:
                return State("done", trained=True, seconds=seconds)
        found = state(place, splits)
        if found.kind == "done":
            self.kept[place.label] = {"mark": mark, "seconds": found.seconds}
        return found

    def write(self) -> None:
        """Keep what was found, where the folder can be written."""
        if self.kept != self.before:
            with contextlib.suppress(MtlpruneError, OSError):
                write_json(self.path, self.kept)


def labels(root: Path) -> dict[str, list[str]]:
    """Digest → what may be folders of cells with this digest, by one look at the sweep's folder."""
    found: dict[str, list[str]] = {}
    for name in sorted(path.name for path in root.iterdir()) if root.is_dir() else ():
        found.setdefault(name.rpartition("-")[2], []).append(name)
    return found


def find_label(root: Path, cell: str, digest: str, there: Mapping[str, Sequence[str]]) -> str:
    """The name of the folder of a cell: that of the same digest, whatever the cell was called when it was made.

    Args:
        there: what ``labels`` found.
    """
    wanted = f"{cell}-{digest}"
    names = there.get(digest, ())
    for name in (wanted, *names) if wanted in names else names:
        if (root / name / "config.yaml").is_file():
            return name
    return wanted


def touched(root: Path) -> set[str]:
    """The labels of cells of which anything is there; all others are left, and need not be looked at one by one."""
    aside = [path.name.rpartition(".")[0] for path in (root / ASIDE).iterdir()] if (root / ASIDE).is_dir() else []
    return {*aside, *(path.name for path in root.iterdir())} if root.is_dir() else set()


def write_index(root: Path, name: str, specification: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Write sweep.json, so that other commands find the runs of cells.

    Args:
        cells: name → folder, digest, needs.

    Raises:
        SweepError: a study is there; its cells are trained elsewhere.
    """
    if open_study(root) is not None:
        raise SweepError(f"{root} is a study, among whose runs no run can be trained; name another --out")
    index = {"format": "mtlprune sweep", "version": 1, "name": name, "file": str(specification), "cells": dict(cells)}
    write_json(root / INDEX, index)


def read_index(root: Path) -> dict[str, Any]:
    """What ``write_index`` wrote. Raises SweepError."""
    if not (root / INDEX).is_file():
        raise SweepError(f"{root} holds no sweep (no {INDEX} in it); `mtlprune sweep FILE --out {root}` makes one")
    index = read_json(root / INDEX, SweepError, "`mtlprune sweep FILE` writes it anew")
    cells = index.get("cells") if isinstance(index, dict) else None
    inner = cells.values() if isinstance(cells, dict) else [None]
    if not all(isinstance(c, dict) and isinstance(c.get("folder"), str) for c in inner):
        raise SweepError(f"{root / INDEX}: expected the folder of each cell; `mtlprune sweep FILE` writes it anew")
    return index


def default_folder(name: str) -> Path:
    """Where a sweep of that name lives unless it is told otherwise."""
    return RUNS / name


# -- sweeps in the place of runs -------------------------------------------------------------------------------------


def found_runs(path: str | Path, pattern: str = "*", left_out: list[str] | None = None) -> list[Path]:
    """Runs of the finished cells of a sweep, in the order of its file.

    Args:
        path: the sweep's folder or a study of it, or its file where the folder is the usual one.
        pattern: of the cells' names, such as ``gates-*``; several with commas.
        left_out: gets a sentence for those that are not finished, and for each damaged one.

    Raises:
        SweepError: no sweep there, no such cell, or none of them finished.
    """
    path = Path(path)
    root = default_folder(read_specification(path).name) if path.is_file() else path
    cells = read_cells(root)
    chosen = {name: run for name, run in cells.items() if matches(name, pattern)}
    if not chosen:
        raise SweepError(
            f"{path}: the sweep has no cell {pattern}{nearest(pattern, cells)}; it has {_some(list(cells))}"
        )
    missing, damaged = unusable(root, chosen)
    found = [root / str(run) for name, run in chosen.items() if name not in missing and name not in damaged]
    several = [] if left_out is None else left_out
    for name, reason in damaged.items():
        log.warning("%s: cell %s is left out: %s", path, name, reason)
        several.append(f"{path}: cell {name} is left out: {reason}")
    if not found:
        why = "of the cells asked for none is finished" + (", or can be read" if damaged else "")
        raise SweepError(f"{path}: {why} ({_some(list(chosen))}); run `mtlprune sweep`")
    if missing:
        many = f"{len(missing)} of {len(chosen)}"
        log.warning("%s: %s cells are not finished and left out: %s", path, many, _some(missing))
        several.append(f"{path}: {many} cells are not finished and left out: {', '.join(missing)}")
    return found


def holds_runs(root: Path) -> bool:
    """Whether a folder is that of a sweep, or a study."""
    return (root / INDEX).is_file() or (root / STUDY).is_file()


def read_cells(root: Path) -> dict[str, str | None]:
    """Cell of a sweep, or of a study → its folder; of a study, None where the cell was not finished."""
    if (study := open_study(root)) is not None:
        return dict(study.cells)
    return {name: cell["folder"] for name, cell in read_index(root)["cells"].items()}


def unusable(root: Path, folders: Mapping[str, str | None]) -> tuple[list[str], dict[str, str]]:
    """The cells that are not finished, and those that are damaged with their reasons; a study has none of these.

    Args:
        folders: cell → its folder in ``root``, as ``read_cells`` gives them.
    """
    if open_study(root) is not None:
        return [name for name, folder in folders.items() if folder is None], {}
    why = {name: Place(root, str(folder)).why_unusable() for name, folder in folders.items()}
    return [name for name in why if why[name] == ""], {name: reason for name, reason in why.items() if reason}


def expanded(runs: Iterable[str | Path], having: str = "", left_out: list[str] | None = None) -> list[Path]:
    """Runs, with those of finished cells in the place of each sweep or study, and of `train --seeds` those of seeds.

    A sweep is named by its folder or file, a study by its folder; with ``:PATTERN`` behind it, such as
    ``runs/mine:gates-*``, some of its cells are meant.

    Args:
        having: of a sweep's runs, only those with this file in them.
        left_out: as of ``found_runs``.
    """
    found: list[Path] = []
    for given in map(str, runs):
        whole, sign, pattern = given.rpartition(":")
        for place, cells in ((given, "*"), (whole, pattern)) if sign else ((given, "*"),):
            if holds_runs(Path(place)) or is_specification(Path(place)):
                runs_there = found_runs(place, cells, left_out)
                found += [run for run in runs_there if not having or RunFolder(run).file(having).is_file()]
                break
        else:
            seeds = Path(given).glob("seed-*/config.yaml") if not (Path(given) / "config.yaml").is_file() else ()
            found += sorted(path.parent for path in seeds) or [Path(given)]
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
