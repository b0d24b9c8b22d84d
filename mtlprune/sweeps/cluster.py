"""Cells as jobs of a cluster, through submitit (extra ``slurm``): an array for all cells that need nothing more, then
one for those that need these, and so on.

A job that Slurm stops, because its time is up or others go first, writes a checkpoint, is queued again, and goes on
from there: it is the same cell once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.crew import worker_command, write_config
from mtlprune.sweeps.folder import ASIDE
from mtlprune.sweeps.sheet import SweepError
from mtlprune.sweeps.worker import CellJob

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
        before = sorted(
            {numbers[other].partition("_")[0] for cell in level for other in cell.needs if other in numbers}
        )
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
    import yaml

    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SweepError(f"--submit: expected KEY=VALUE such as slurm_partition=gpu, found {pair!r}")
        found[key] = yaml.safe_load(value)
    return found
