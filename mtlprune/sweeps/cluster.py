"""Cells as jobs of a cluster, through submitit (extra ``slurm``). Knows nothing of torch, so that a job begins at once.

An array for all cells that need nothing more, then one for those that need these, and so on. A job that Slurm stops,
because its time is up or others go first, writes a checkpoint, is queued again, and continues from there: it is the
same cell once more.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.folder import CELL_LOGS
from mtlprune.sweeps.pool import worker_command, write_config
from mtlprune.sweeps.specification import SweepError
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED

CLUSTERS = ("slurm", "local")
_MINUTES = 24 * 60
"""A job's time where none is given."""
_GRACE = 60.0
"""Seconds that a job whose worker was stopped waits for its own end."""


def submit(
    cells: Mapping[str, Cell], root: Path, cluster: str, jobs: int | None, options: Mapping[str, Any]
) -> dict[str, str]:
    """Submit cells, each after those it needs; returns the job of each.

    Args:
        root: the sweep's folder, seen by all machines under the same name.
        cluster: slurm, or local: submitit's own processes on this machine, to try things out.
        options: of submitit's executor, such as ``timeout_min`` and ``slurm_partition``.

    Raises:
        SweepError: submitit is not installed, an option is unknown, or there is no such cluster here.
    """
    try:
        import submitit
    except ImportError:
        raise SweepError('--slurm needs submitit; in a clone of mtlprune: pip install -e ".[slurm]"') from None
    numbers: dict[str, str] = {}
    for level in levels(cells):
        settings = {"timeout_min": _MINUTES, "name": root.name, **options}
        if jobs is not None and cluster == "slurm":
            settings["slurm_array_parallelism"] = jobs
        before = sorted({numbers[needed].partition("_")[0] for c in level for needed in c.needs if needed in numbers})
        if before and cluster == "slurm":
            parameters = {
                **settings.get("slurm_additional_parameters", {}),
                "dependency": f"afterany:{':'.join(before)}",
            }
            settings["slurm_additional_parameters"] = parameters
        try:
            executor = submitit.AutoExecutor(folder=root / CELL_LOGS / "jobs", cluster=cluster)
            executor.update_parameters(**settings)
            numbers |= _submit_level(executor, level, options.get("cpus_per_task"), cluster, jobs)
        except (NameError, TypeError, ValueError, RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise SweepError(f"--slurm: {' '.join(str(error).split())}") from None
    return numbers


def _submit_level(
    executor: Any, level: Sequence[Cell], threads: int | None, cluster: str, jobs: int | None
) -> dict[str, str]:
    """Submit cells that do not need each other."""
    for cell in level:
        write_config(cell)
        cell.place.path_of("failed").unlink(missing_ok=True)
    tasks = {cell.name: CellJob(worker_command(cell, threads)) for cell in level}
    if cluster == "slurm":
        with executor.batch():  # one array
            submitted = {name: executor.submit(task) for name, task in tasks.items()}
        return {name: job.job_id for name, job in submitted.items()}
    numbers = {}
    names = list(tasks)
    # submitit's own local processes know neither arrays nor dependencies between jobs, so they are submitted in
    # slices.
    for start in range(0, len(names), jobs or 1):
        jobs_by_name = {name: executor.submit(tasks[name]) for name in names[start : start + (jobs or 1)]}
        for name, job in jobs_by_name.items():
            job.wait()
            numbers[name] = job.job_id
    return numbers


def levels(cells: Mapping[str, Cell]) -> list[list[Cell]]:
    """Cells that need none of the others, those that need only these, and so on."""
    depth: dict[str, int] = {}
    for name, cell in cells.items():  # each comes after those it needs
        depth[name] = 1 + max((depth[needed] for needed in cell.needs if needed in depth), default=-1)
    grouped: list[list[Cell]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, cell in cells.items():
        grouped[depth[name]].append(cell)
    return grouped


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE of a command line, values as YAML reads them. Raises SweepError."""
    options = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SweepError(f"--slurm: expected KEY=VALUE such as slurm_partition=gpu, found {pair!r}")
        options[key] = yaml.safe_load(value)
    return options


class CellJob:
    """The work of a job: a cell's process. ``command``: of that process."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> str:
        """Run the cell. Raises RuntimeError where it fails; the reason is in the sweep's folder."""
        self.process = subprocess.Popen(self.command)
        while (code := self.process.poll()) is None:
            time.sleep(0.2)
        if code == STOPPED:
            # The cluster signals every process of a job that is over its time. This one waits to be ended with the
            # job instead of reporting a failure.
            time.sleep(_GRACE)
        if code == BUSY:
            return "another process works on this cell"
        if code:
            outcome = "failed" if code == FAILED else f"ended with code {code}"
            raise RuntimeError(f"the cell {outcome}; `mtlprune sweep --dry-run` prints the reason")
        return "done"

    def checkpoint(self) -> Any:
        """Called by submitit before the job has to go: the cell's process writes a checkpoint and ends."""
        import submitit

        if self.process is not None:
            self.process.terminate()
            # Its end may be collected by `poll`, which this call may interrupt.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(CellJob(self.command))
