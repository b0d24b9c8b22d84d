"""A pool of processes on this machine that trains the cells of a sweep in parallel and reports each outcome."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from subprocess import PIPE, Popen, run

import yaml

from mtlprune.io.files import remove, write_text
from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.folder import State, state
from mtlprune.sweeps.worker import STOPPED

_POLL = 0.2
"""Seconds between two checks of the processes."""
RETRY_SECONDS = 5.0
"""Seconds until the pool checks a cell again on which a process outside the pool works."""

Watch = Callable[[str, Cell, str], None]
"""Callback with an event (started, done, failed, blocked, stopped, waiting), the cell, and a note."""


@dataclass
class _Worker:
    """A process that works on one cell after another (mtlprune.sweeps.worker)."""

    process: Popen[bytes]
    threads: int
    cell: Cell | None = None
    """The cell on which the process works; None while the process waits for a cell."""
    started_at: float = 0.0
    """Time (``time.monotonic``) at which work on the cell began."""

    def assign(self, cell: Cell) -> None:
        """Let the process start a cell."""
        self.cell, self.started_at = cell, time.monotonic()
        line = json.dumps([cell.place.label, cell.evaluate]) + "\n"
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which `Pool._collect` will notice
            os.write(self.process.stdin.fileno(), line.encode())  # type: ignore[union-attr]

    def is_done(self) -> bool:
        """Return True if the process reports that its cell is done. The report is consumed by this call."""
        try:
            return bool(os.read(self.process.stdout.fileno(), 1))  # type: ignore[union-attr]
        except BlockingIOError:
            return False


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    # We call the tool of the driver instead of torch.cuda, because a sweep is resolved and listed without importing
    # torch.
    listing = run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout
    return [str(number) for number in range(listing.count("GPU ") if listing.startswith("GPU ") else 0)]


def write_config(cell: Cell) -> None:
    """Write the configuration of a cell to the file that the worker process reads."""
    tree = cell.config.model_dump(mode="json")
    write_text(cell.place.path_of("yaml"), yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def worker_command(cell: Cell, threads: int | None, parent: int | None = None) -> list[str]:
    """Return the command line of a worker process for one cell.

    Args:
        threads: number of threads for cells that do not set it.
        parent: process id of a pool. If given, the process takes cells from the pool, one after the other.
    """
    command = [sys.executable, "-m", "mtlprune.sweeps.worker", str(cell.place.root)]
    # The label has to follow the folder directly, because argparse accepts an optional positional argument only there.
    command += [] if parent else [cell.place.label]
    command += ["--threads", str(threads)] if threads else []
    if parent:
        return [*command, "--parent", str(parent)]
    return command + (["--evaluate", ",".join(cell.evaluate)] if cell.evaluate else [])


def states(cells: Iterable[Cell]) -> dict[str, State]:
    """Return the state of each cell by its name."""
    return {cell.name: state(cell.place, cell.evaluate) for cell in cells}


class Pool:
    """Runs cells, ``jobs`` at a time. Cells that failed in an earlier call are tried again.

    Args:
        cells: cells to be trained and scored, ordered so that a cell comes after the cells that it needs.
        jobs: number of parallel processes. The processes share the cores, and the GPUs if there are several.
        watch: callback for events.
        stop: function that is called repeatedly. If it returns True, all processes write a checkpoint and end.
    """

    def __init__(self, cells: Mapping[str, Cell], jobs: int, watch: Watch, stop: Callable[[], bool]) -> None:
        self.cells, self.jobs, self.watch, self.stop = cells, jobs, watch, stop
        self.threads = max(1, cores() // jobs)
        self.gpus = visible_gpus()
        self.workers: dict[int, _Worker] = {}
        """Slot (0 to jobs − 1) → its process."""
        self.ends = {
            name: cell_state for name, cell_state in states(cells.values()).items() if cell_state.kind == "done"
        }
        """Name → final state of the cells that are done, failed or blocked."""
        # A process that is killed after it recorded its end, but before it deleted its checkpoint, leaves the
        # checkpoint behind. The file is three times as large as the weights and is never read again.
        remove(*(cells[name].place.run.checkpoint_path for name in self.ends))
        self.retry_at: dict[str, float] = {}
        """Name of a cell on which another process works → time (``time.monotonic``) of the next check."""

    def run(self) -> dict[str, State]:
        """Work until every cell is done, has failed, or is blocked by a failed cell, or until ``stop`` returns True.

        Returns:
            Name → state of every cell, in the order of the cells.
        """
        try:
            while len(self.ends) < len(self.cells) and not self.stop():
                self._start_cells()
                time.sleep(_POLL)
                self._collect()
        finally:
            self._stop_workers()
        return {name: self.ends.get(name) or state(cell.place, cell.evaluate) for name, cell in self.cells.items()}

    def threads_of(self, cell: Cell) -> int:
        """Return the number of threads for a cell: its setting ``train.threads``, else its share of the cores."""
        return cell.config.train.threads or self.threads

    def _start_cells(self) -> None:
        """Start cells whose needs are met in free slots, and mark cells as blocked if a cell that they need failed."""
        running_cells = {slot: worker.cell.name for slot, worker in self.workers.items() if worker.cell is not None}
        free = sorted(set(range(self.jobs)) - set(running_cells))
        for name, cell in self.cells.items():
            if name in self.ends or name in running_cells.values() or time.monotonic() < self.retry_at.get(name, 0.0):
                continue
            bad = [needed for needed in cell.needs if needed in self.ends and not self.ends[needed].trained]
            if bad:
                self._end(cell, State("blocked", f"it needs {', '.join(bad)}, which failed"))
            elif free and all(needed in self.ends for needed in cell.needs):
                if cell.place.run.in_use():
                    self._wait_for_other(cell)
                else:
                    self._start(cell, free.pop(0))

    def _start(self, cell: Cell, slot: int) -> None:
        """Assign a cell to the process of a slot, or to a new process if it has ended or has another thread count."""
        write_config(cell)
        cell.place.path_of("failed").unlink(missing_ok=True)
        worker = self.workers.get(slot)
        if worker is not None and (worker.process.poll() is not None or worker.threads != self.threads_of(cell)):
            self._end_idle_worker(slot)
            worker = None
        if worker is None:
            worker = self.workers[slot] = self._new_worker(cell, slot)
        worker.assign(cell)
        self.watch("started", cell, "")

    def _new_worker(self, cell: Cell, slot: int) -> _Worker:
        """Start a worker in a new session, so that Ctrl-C does not reach it and the pool can stop it in order."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads_of(cell))}
        if len(self.gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        command = worker_command(cell, self.threads, os.getpid())
        # This log receives what the process writes before it opens the log of its current cell.
        with cell.place.path_of("log").open("ab") as log:
            process = Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True)
        os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
        return _Worker(process, self.threads_of(cell))

    def _end_idle_worker(self, slot: int) -> None:
        """End a process that waits for a cell, by closing its pipes."""
        worker = self.workers.pop(slot)
        for stream in (worker.process.stdin, worker.process.stdout):
            stream.close()  # type: ignore[union-attr]
        worker.process.wait()

    def _wait_for_other(self, cell: Cell) -> None:
        if cell.name not in self.retry_at:
            self.watch("waiting", cell, "another process works on it")
        self.retry_at[cell.name] = time.monotonic() + RETRY_SECONDS

    def _end(self, cell: Cell, cell_state: State) -> None:
        self.ends[cell.name] = cell_state
        self.watch(cell_state.kind, cell, cell_state.note)

    def _collect(self) -> None:
        """Record the outcome of cells whose processes are done with them or have ended."""
        for slot, worker in list(self.workers.items()):
            cell, code = worker.cell, worker.process.poll()
            if cell is not None and (worker.is_done() or code is not None):
                worker.cell = None
                self._collect_one(cell, worker, code or 0)
            if code is not None:
                self._end_idle_worker(slot)

    def _collect_one(self, cell: Cell, worker: _Worker, code: int) -> None:
        cell_state = state(cell.place, cell.evaluate)
        if cell_state.kind == "done":
            self.ends[cell.name] = cell_state
            self.watch("done", cell, f"in {time.monotonic() - worker.started_at:.0f} s")
        # The exit code is -SIGTERM if our signal reached the worker before it installed its signal handler. This counts
        # as stopped and not as failed.
        elif code in (STOPPED, -signal.SIGTERM) and self.stop():
            self.watch("stopped", cell, "")
        elif cell_state.kind == "running":
            self._wait_for_other(cell)
        else:
            reason = cell_state.note if cell_state.kind == "failed" else _why_ended(code)
            if cell.place.read_failure() is None:
                cell.place.write_failure(reason)
            self._end(cell, replace(cell_state, kind="failed", note=reason))

    def _stop_workers(self) -> None:
        """Let all processes write a checkpoint and end. Kill them on a second Ctrl-C."""
        for worker in self.workers.values():
            worker.process.stdin.close()  # type: ignore[union-attr]  # ends a process that waits for a cell
            if worker.cell is not None:
                worker.process.terminate()
        try:
            for worker in self.workers.values():
                worker.process.wait()
        except KeyboardInterrupt:
            for worker in self.workers.values():
                worker.process.kill()
            raise
        self._collect()


def _why_ended(code: int) -> str:
    if code == STOPPED:
        return "its process was stopped by a signal; repeat the command to continue"
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; perhaps memory ran out" if -code == signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{hint}"
