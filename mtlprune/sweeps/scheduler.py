"""Cells by several processes at once, here or as jobs of a cluster: start, wait, stop, and say what became of each."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from mtlprune.io.files import write_text
from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.folder import ASIDE, Done, Lease, State, state, touched
from mtlprune.sweeps.specification import SweepError
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED, CellJob, work_here

POLL = 0.5
LATER = 10.0
"""Seconds until a cell that somebody else was faster to take is looked at again."""
PATIENCE = 20.0
"""Seconds for processes to end at once when they are told a second time."""

FORKS = multiprocessing.get_context("forkserver")
"""Of a process that has loaded once what takes a cell's process several seconds."""
LOADED = ("mtlprune.training.loop", "mtlprune.training.evaluation", "transformers.models.bert.modeling_bert")

Tell = Callable[[str, Cell, str], None]
"""Is told what happened (started, done, failed, blocked, stopped, waiting), to which cell, and more about it."""


@dataclass
class Worker:
    """A process that works on a cell."""

    cell: Cell
    process: subprocess.Popen[bytes] | ForkedWorker
    slot: int
    begun: float


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def write_config(cell: Cell) -> None:
    """Leave a cell's configuration where its process looks for it."""
    tree = cell.config.model_dump(mode="json")
    write_text(cell.place.beside("yaml"), yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def worker_command(cell: Cell, threads: int | None, parent: int | None = None) -> list[str]:
    """The command line of a cell's process."""
    command = [sys.executable, "-m", "mtlprune.sweeps.worker", str(cell.place.root), cell.place.label]
    command += ["--evaluate", ",".join(cell.evaluate)] if cell.evaluate else []
    command += ["--threads", str(threads)] if threads else []
    return command + (["--parent", str(parent)] if parent else [])


def states(cells: Iterable[Cell]) -> dict[str, State]:
    """Where each of some cells of a sweep stands."""
    several = list(cells)
    roots = {cell.place.root for cell in several}
    there, done = {root: touched(root) for root in roots}, {root: Done(root) for root in roots}
    found = {
        cell.name: done[root].state(cell.place, cell.evaluate) if cell.place.label in there[root] else State("left")
        for cell in several
        for root in (cell.place.root,)
    }
    for kept in done.values():
        kept.write()
    return found


class Scheduler:
    """Does cells, ``jobs`` at a time, together with other schedulers on the same folder.

    Args:
        cells: those to be done, each after those it needs.
        jobs: processes at once; cores are shared out among them, and GPUs where there are several.
        tell: hears of everything that happens.
        stop: asked again and again; True has every process write a checkpoint and end.
        fork: the processes from one that has loaded everything: for many short cells.
    """

    def __init__(
        self, cells: Mapping[str, Cell], jobs: int, tell: Tell, stop: Callable[[], bool], fork: bool = False
    ) -> None:
        self.cells, self.jobs, self.tell, self.stop = cells, jobs, tell, stop
        self.begin = ForkedWorker if fork else _started
        leases = [lease for cell in cells.values() if (lease := cell.place.lease())]
        here = Lease.this_process().machine
        self.threads = max(1, cores() // (jobs + sum(lease.machine == here for lease in leases)))
        """Cores are left to workers of other schedulers on this machine."""
        self.gpus = visible_gpus()
        self.workers: list[Worker] = []
        standing = states(cells.values())
        self.final = {name: found for name, found in standing.items() if found.kind == "done"}
        """Cells about which nothing will change any more."""
        self.seconds: dict[str, float] = {}
        """Of cells that a process of ours did."""
        self.before = {name: found.failure.get("at") for name, found in standing.items() if found.failure}
        """Failures of earlier sweeps, which are tried again."""
        self.later: dict[str, float] = {}
        self.waiting: set[str] = set()
        self.killed: set[str] = set()
        """Cells one process of which was killed: the system may have been short of memory. They are tried once more."""

    def run(self) -> dict[str, State]:
        """Until every cell is done, has failed, or is blocked by one that has; what became of each."""
        look = True
        try:
            while not self.stop():
                if self._reap() or look:
                    standing = self.standing()
                    if len(self.final) == len(self.cells):
                        return self.final
                    self._start(standing)
                    self._wait(standing)
                    look = len(self.workers) < self.jobs  # else nothing can be started before a process has ended
                time.sleep(POLL)
        finally:
            self._end()
        return self.standing()

    def standing(self) -> dict[str, State]:
        """Where every cell stands."""
        found: dict[str, State] = {}
        open_ = states(cell for name, cell in self.cells.items() if name not in self.final)
        for name, cell in self.cells.items():
            if name in self.final:
                found[name] = self.final[name]
                continue
            found[name] = now = self._now(cell, open_[name], found)
            if now.kind in ("done", "failed", "blocked"):
                self.final[name] = now
                took = self.seconds.get(name)
                self.tell(now.kind, cell, now.note if took is None else f"in {took:.0f} s")
        return found

    def _now(self, cell: Cell, found: State, others: Mapping[str, State]) -> State:
        if any(worker.cell is cell for worker in self.workers):
            return State("running")  # until its process has ended, whatever is written already
        if found.failure and cell.name in self.before and found.failure.get("at") == self.before[cell.name]:
            found = State("left")
        if found.kind == "left":
            bad = [other for other in cell.needs if others[other].kind in ("failed", "blocked")]
            if any(not self.cells[other].place.finished() for other in bad):
                return State("blocked", f"it needs {', '.join(bad)}, which failed")
        return found

    def _start(self, standing: Mapping[str, State]) -> None:
        """Fill free places with cells that are left and have what they need."""
        busy = {worker.cell.name for worker in self.workers}
        free = [slot for slot in range(self.jobs) if slot not in {worker.slot for worker in self.workers}]
        for name, cell in self.cells.items():
            if not free:
                return
            if (
                standing[name].kind == "left"
                and name not in busy
                and self.later.get(name, 0) < time.monotonic()
                and all(self._trained(other) for other in cell.needs)
            ):
                self._start_one(cell, free.pop(0))

    def _trained(self, name: str) -> bool:
        """Whether a cell can be made use of, scored or not."""
        found = self.final.get(name)
        return (found is not None and found.trained) or self.cells[name].place.finished()

    def threads_of(self, cell: Cell) -> int:
        """Its own setting, or its share of the cores."""
        return cell.config.train.threads or self.threads

    def _start_one(self, cell: Cell, slot: int) -> None:
        write_config(cell)
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads_of(cell))}
        if len(self.gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        with cell.place.beside("log").open("ab") as log:
            process = self.begin(worker_command(cell, self.threads, os.getpid()), environment, log)
        self.workers.append(Worker(cell, process, slot, time.monotonic()))
        self.tell("started", cell, "")

    def _reap(self) -> bool:
        """Take note of processes that have ended; whether any has."""
        ended = [worker for worker in self.workers if worker.process.poll() is not None]
        for worker in ended:
            self.workers.remove(worker)
            self._ended(worker)
        return bool(ended)

    def _ended(self, worker: Worker) -> None:
        cell, code = worker.cell, worker.process.returncode
        if code == BUSY:
            self.later[cell.name] = time.monotonic() + LATER
        elif code == STOPPED and self.stop():
            self.tell("stopped", cell, "")
        elif code == 0 and state(cell.place, cell.evaluate).kind == "done":
            self.seconds[cell.name] = time.monotonic() - worker.begun
        elif code == -signal.SIGKILL and cell.name not in self.killed:
            self.killed.add(cell.name)
            self.tell("killed", cell, "its process was killed by SIGKILL (is there enough memory?); it is tried again")
        elif code != FAILED:
            again = " a second time" if cell.name in self.killed else ""
            how = f"was killed by {signal.Signals(-code).name}{again}" if code < 0 else f"ended with exit code {code}"
            how = "was stopped by a signal from elsewhere; it can go on" if code == STOPPED else how
            hint = "; is there enough memory?" if -code == signal.SIGKILL else ""
            reason = f"its process {how}{hint}"
            cell.place.write_failure(reason, {"host": platform.node(), "pid": worker.process.pid})

    def _wait(self, standing: Mapping[str, State]) -> None:
        """Say whom we wait for, where there is nothing else to do."""
        if self.workers:
            return
        for name, found in standing.items():
            if found.kind == "running" and name not in self.waiting:
                self.waiting.add(name)
                self.tell("waiting", self.cells[name], found.note)

    def _end(self) -> None:
        """Have all processes write a checkpoint and end; at once where we are told a second time."""
        for worker in self.workers:
            worker.process.terminate()
        try:
            for worker in self.workers:
                worker.process.wait()
        except KeyboardInterrupt:
            self._end_at_once()
            raise
        self._reap()

    def _end_at_once(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        until = time.monotonic() + PATIENCE
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()


def _started(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process of its own group, which Ctrl-C on the terminal does not reach: it is told once, by us."""
    return subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


def load_ahead() -> None:
    """Begin to load what forked workers need, beside whatever this process does, in one that Ctrl-C does not reach."""
    FORKS.set_forkserver_preload(list(LOADED))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.forkserver.ensure_running()
    signal.signal(signal.SIGINT, before)


class ForkedWorker:
    """A worker that need not load torch again; started and used as ``_started`` and its process are."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        FORKS.set_forkserver_preload(list(LOADED))  # a process that runs already is taken as it is
        self.process = FORKS.Process(target=work_here, args=(list(command), dict(environment), log.name))
        self.process.start()
        self.pid = self.process.pid
        self.terminate, self.kill = self.process.terminate, self.process.kill

    @property
    def returncode(self) -> int | Any:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self.process.exitcode


# -- jobs of a cluster, through submitit (extra ``slurm``) --
# An array for all cells that need nothing more, then one for those that need these, and so on. A job that Slurm stops,
# because its time is up or others go first, writes a checkpoint, is queued again, and continues from there: it is the
# same cell once more.


CLUSTERS = ("slurm", "local")
MINUTES = 24 * 60
"""A job's time, if not told otherwise."""


def submit(
    cells: Mapping[str, Cell], root: Path, cluster: str, jobs: int | None, options: Mapping[str, Any]
) -> dict[str, str]:
    """Submit cells, each after those it needs; returns the job of each.

    Args:
        cells: what is left to be done.
        root: the sweep's folder, seen by all machines under the same name.
        cluster: slurm, or local: submitit's own processes on this machine, to try things out.
        jobs: how many run at once at most.
        options: of submitit's executor, such as ``timeout_min`` and ``slurm_partition``.

    Raises:
        SweepError: submitit is not installed, an option is unknown, or there is no such cluster here.
    """
    try:
        import submitit
    except ImportError:
        raise SweepError('--launcher needs submitit; in a clone of mtlprune: pip install -e ".[slurm]"') from None
    numbers: dict[str, str] = {}
    for level in levels(cells):
        settings = {"timeout_min": MINUTES, "name": root.name, **options}
        if jobs is not None and cluster == "slurm":
            settings["slurm_array_parallelism"] = jobs
        others = {other for cell in level for other in cell.needs if other in numbers}
        before = sorted({numbers[other].partition("_")[0] for other in others})
        if before and cluster == "slurm":
            more = {**settings.get("slurm_additional_parameters", {}), "dependency": f"afterany:{':'.join(before)}"}
            settings["slurm_additional_parameters"] = more
        try:
            executor = submitit.AutoExecutor(folder=root / ASIDE / "jobs", cluster=cluster)
            executor.update_parameters(**settings)
            numbers |= _submit_level(executor, level, options.get("cpus_per_task"), cluster, jobs)
        except (NameError, TypeError, ValueError, RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise SweepError(f"--launcher {cluster}: {' '.join(str(error).split())}") from None
    return numbers


def _submit_level(
    executor: Any, level: Sequence[Cell], threads: int | None, cluster: str, jobs: int | None
) -> dict[str, str]:
    """Submit cells that do not need each other."""
    for cell in level:
        write_config(cell)
    tasks = {cell.name: CellJob(worker_command(cell, threads)) for cell in level}
    if cluster == "slurm":
        with executor.batch():  # one array
            submitted = {name: executor.submit(task) for name, task in tasks.items()}
        return {name: job.job_id for name, job in submitted.items()}
    found = {}
    names = list(tasks)
    for start in range(0, len(names), jobs or 1):  # submitit's own processes know neither arrays nor dependencies
        some = {name: executor.submit(tasks[name]) for name in names[start : start + (jobs or 1)]}
        for name, job in some.items():
            job.wait()
            found[name] = job.job_id
    return found


def levels(cells: Mapping[str, Cell]) -> list[list[Cell]]:
    """Cells that need none of the others, those that need only these, and so on."""
    depth: dict[str, int] = {}
    for name, cell in cells.items():  # each comes after those it needs
        depth[name] = 1 + max((depth[other] for other in cell.needs if other in depth), default=-1)
    found: list[list[Cell]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, cell in cells.items():
        found[depth[name]].append(cell)
    return found


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE of a command line, values as YAML reads them. Raises SweepError."""
    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SweepError(f"--submit: expected KEY=VALUE such as slurm_partition=gpu, found {pair!r}")
        found[key] = yaml.safe_load(value)
    return found
