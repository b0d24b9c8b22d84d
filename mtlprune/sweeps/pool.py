"""Cells by several processes of this machine at once: start, wait, stop, and say what became of each."""

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
RETRY_SECONDS = 5.0
"""Seconds until a cell on which a process outside the pool works is checked again."""

Watch = Callable[[str, Cell, str], None]
"""Called with what happened (started, done, failed, blocked, stopped, waiting), to which cell, and a note."""


@dataclass
class Worker:
    """A process that works on one cell after another."""

    process: Popen[bytes]
    threads: int
    cell: Cell | None = None
    """The cell that it works on; None while it waits for one."""
    started_at: float = 0.0

    def assign(self, cell: Cell) -> None:
        """Let it begin a cell."""
        self.cell, self.started_at = cell, time.monotonic()
        line = json.dumps([cell.place.label, cell.evaluate]) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the pool is about to see
            os.write(self.process.stdin.fileno(), line.encode())  # type: ignore[union-attr]

    def is_done(self) -> bool:
        """True, once a cell, where the process says that it is done."""
        try:
            return bool(os.read(self.process.stdout.fileno(), 1))  # type: ignore[union-attr]
        except BlockingIOError:
            return False


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    # The driver's own tool and not torch.cuda, because a sweep is resolved and listed without importing torch.
    listing = run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout
    return [str(number) for number in range(listing.count("GPU ") if listing.startswith("GPU ") else 0)]


def write_config(cell: Cell) -> None:
    """Leave a cell's configuration where its process looks for it."""
    tree = cell.config.model_dump(mode="json")
    write_text(cell.place.path_of("yaml"), yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def worker_command(cell: Cell, threads: int | None, parent: int | None = None) -> list[str]:
    """The command line of a process for a cell; with the number of a parent, of one that takes cells from it."""
    command = [sys.executable, "-m", "mtlprune.sweeps.worker", str(cell.place.root)]
    # The label follows the folder directly, because argparse takes an optional argument nowhere else.
    command += [] if parent else [cell.place.label]
    command += ["--threads", str(threads)] if threads else []
    if parent:
        return [*command, "--parent", str(parent)]
    return command + (["--evaluate", ",".join(cell.evaluate)] if cell.evaluate else [])


def states(cells: Iterable[Cell]) -> dict[str, State]:
    """Name of a cell → how far it has come."""
    return {cell.name: state(cell.place, cell.evaluate) for cell in cells}


class Pool:
    """Runs cells, ``jobs`` at a time. What failed before is tried again.

    Args:
        cells: those to be done, each after those it needs.
        jobs: processes at once; cores are shared out among them, and GPUs where there are several.
        stop: asked again and again; True has every process write a checkpoint and end.
    """

    def __init__(self, cells: Mapping[str, Cell], jobs: int, watch: Watch, stop: Callable[[], bool]) -> None:
        self.cells, self.jobs, self.watch, self.stop = cells, jobs, watch, stop
        self.threads = max(1, cores() // jobs)
        self.gpus = visible_gpus()
        self.workers: dict[int, Worker] = {}
        """Slot, from 0 to jobs − 1 → its process."""
        self.ends = {
            name: cell_state for name, cell_state in states(cells.values()).items() if cell_state.kind == "done"
        }
        """Name → state of the cells about which nothing will change any more."""
        # A process that was killed between the note of its end and its last tidying leaves a checkpoint, which takes
        # three times the room of the weights and is never read again.
        remove(*(cells[name].place.run.checkpoint_path for name in self.ends))
        self.retry_at: dict[str, float] = {}
        """Name → when to look again at a cell on which another process works."""

    def run(self) -> dict[str, State]:
        """Work until every cell is done, has failed, or is blocked by one that has. Returns name → state of every cell,
        in their order."""
        try:
            while len(self.ends) < len(self.cells) and not self.stop():
                self._start_cells()
                time.sleep(_POLL)
                self._collect()
        finally:
            self._stop_workers()
        return {name: self.ends.get(name) or state(cell.place, cell.evaluate) for name, cell in self.cells.items()}

    def threads_of(self, cell: Cell) -> int:
        """Its own setting, or its share of the cores."""
        return cell.config.train.threads or self.threads

    def _start_cells(self) -> None:
        """Fill free slots with cells that have what they need; block those that will never have it."""
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
        """Give a cell to the slot's process; to a new one, where it has ended or began with other threads."""
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

    def _new_worker(self, cell: Cell, slot: int) -> Worker:
        """Start a process in a session of its own, which Ctrl-C on the terminal does not reach: we ask it to stop."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads_of(cell))}
        if len(self.gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        command = worker_command(cell, self.threads, os.getpid())
        with cell.place.path_of("log").open("ab") as log:  # what is said before the process opens the logs of its cells
            process = Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True)
        os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
        return Worker(process, self.threads_of(cell))

    def _end_idle_worker(self, slot: int) -> None:
        """Let a process that waits for a cell end."""
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
        """Note what became of the cells that processes worked on."""
        for slot, worker in list(self.workers.items()):
            cell, code = worker.cell, worker.process.poll()
            if cell is not None and (worker.is_done() or code is not None):
                worker.cell = None
                self._collect_one(cell, worker, code or 0)
            if code is not None:
                self._end_idle_worker(slot)

    def _collect_one(self, cell: Cell, worker: Worker, code: int) -> None:
        cell_state = state(cell.place, cell.evaluate)
        if cell_state.kind == "done":
            self.ends[cell.name] = cell_state
            self.watch("done", cell, f"in {time.monotonic() - worker.started_at:.0f} s")
        # The worker was ended by our own request before it could load its answer to the signal, so this counts as
        # stopped and not as failed.
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
        """Have all processes write a checkpoint and end; kill them where we are asked a second time."""
        for worker in self.workers.values():
            worker.process.stdin.close()  # type: ignore[union-attr]  # ends those that wait for a cell
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
