"""Runs the cells of a sweep as jobs of a Slurm cluster, with submitit (extra ``slurm``).

Cells without needs form a first job array, cells that need these form a second array, and so on. A job that Slurm stops
(timeout or preemption) writes a checkpoint, is queued again, and continues from the checkpoint. This module does not
import torch, so that a job starts quickly.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune.io.files import reading
from mtlprune.io.strict import parse_yaml
from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.folder import CELL_LOGS
from mtlprune.sweeps.pool import worker_command, write_config
from mtlprune.sweeps.specification import SweepError, nearest
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED

CLUSTERS = ("slurm", "local")
_MINUTES = 24 * 60
"""Time limit of a job in minutes, unless the user sets ``timeout_min``."""
_GRACE = 60.0
"""Seconds that a job whose worker was stopped waits for Slurm to end it."""


def submit(
    cells: Mapping[str, Cell], root: Path, cluster: str, jobs: int | None, options: Mapping[str, Any]
) -> dict[str, str]:
    """Submit cells so that each job starts after the jobs of the cells that it needs.

    Args:
        root: folder of the sweep, which must have the same path on all machines.
        cluster: "slurm", or "local" for processes of submitit on this machine, which serves for tests.
        jobs: the largest number of jobs that run at the same time; None for no limit ("local": one).
        options: options of submitit's executor, such as ``timeout_min`` and ``slurm_partition``.

    Returns:
        Name of a cell → id of its job.

    Raises:
        SweepError: submitit is not installed, an option is unknown, or the cluster is not available.
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
    """Submit cells that do not need each other, and return the job id of each by its name."""
    for cell in level:
        write_config(cell)
        cell.place.path_of("failed").unlink(missing_ok=True)
    tasks = {cell.name: CellJob(worker_command(cell, threads)) for cell in level}
    if cluster == "slurm":
        with executor.batch():  # submits the jobs as one array
            submitted = {name: executor.submit(task) for name, task in tasks.items()}
        return {name: job.job_id for name, job in submitted.items()}
    numbers = {}
    names = list(tasks)
    # Local processes of submitit support neither arrays nor dependencies between jobs, so we submit ``jobs`` of them
    # and wait until they have finished.
    for start in range(0, len(names), jobs or 1):
        jobs_by_name = {name: executor.submit(tasks[name]) for name in names[start : start + (jobs or 1)]}
        for name, job in jobs_by_name.items():
            job.wait()
            numbers[name] = job.job_id
    return numbers


def levels(cells: Mapping[str, Cell]) -> list[list[Cell]]:
    """Return lists of cells in which every cell needs only cells of earlier lists."""
    depth: dict[str, int] = {}
    for name, cell in cells.items():  # in an order in which a cell comes after those that it needs
        depth[name] = 1 + max((depth[needed] for needed in cell.needs if needed in depth), default=-1)
    grouped: list[list[Cell]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, cell in cells.items():
        grouped[depth[name]].append(cell)
    return grouped


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE of --slurm, with values as in YAML. Raises SweepError for another form or an unknown cluster."""
    options: dict[str, Any] = {"cluster": CLUSTERS[0]}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SweepError(f"--slurm: expected KEY=VALUE such as slurm_partition=gpu, found {pair!r}")
        with reading(f"--slurm {key}", SweepError):
            options[key] = parse_yaml(value)
    if (launcher := options["cluster"]) not in CLUSTERS:
        problem = f"expected {' or '.join(CLUSTERS)}, found {launcher!r}{nearest(str(launcher), CLUSTERS)}"
        raise SweepError(f"--slurm cluster: {problem}")
    return options


class CellJob:
    """The callable that submitit runs as a job: it starts the worker process of a cell and waits for it.

    Args:
        command: command line of the worker process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> str:
        """Run the cell. Raises RuntimeError if it fails; the worker has written the reason into the sweep's folder."""
        self.process = subprocess.Popen(self.command)
        while (code := self.process.poll()) is None:
            time.sleep(0.2)
        if code == STOPPED:
            # Slurm signals every process of a job whose time is up, so the worker may stop before this process gets
            # the signal. This process waits to be ended with the job instead of reporting a failure.
            time.sleep(_GRACE)
        if code == BUSY:
            return "another process works on this cell"
        if code:
            outcome = "failed" if code == FAILED else f"ended with code {code}"
            raise RuntimeError(f"the cell {outcome}; `mtlprune sweep --dry-run` prints the reason")
        return "done"

    def checkpoint(self) -> Any:
        """Stop the worker, which writes a checkpoint, and return the job that continues it.

        submitit calls this method before Slurm ends the job.
        """
        import submitit

        if self.process is not None:
            self.process.terminate()
            # This call may interrupt `poll`, which may already have collected the exit status of the process.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(CellJob(self.command))
