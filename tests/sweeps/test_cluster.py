"""Cells as jobs: submitit's own processes, and a real Slurm of one node where it can be started."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from own_slurm import NoSlurm, found, running

from mtlprune.sweeps.cells import Cell, resolve
from mtlprune.sweeps.folder import state
from mtlprune.sweeps.scheduler import levels, parse_options, submit
from mtlprune.sweeps.specification import SweepError, read_specification
from mtlprune.sweeps.worker import CellJob, main

TWO = 'cells: {one: {}, two: {train: {start: "@one", freeze: decoders}, pruning: gates}}\n'
LONG = "cells: {long: {train: {epochs: 40, checkpoint_minutes: 0, threads: 1}}}\n"


def cells_of(path: Path) -> Mapping[str, Cell]:
    return resolve(read_specification(path), path.parent / "out").cells


def until(true: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def test_levels_are_cells_that_do_not_need_each_other(specification):
    text = 'cells: {c: {train: {start: "@b"}}, a: {}, b: {train: {start: "@a"}}, d: {train: {seed: 2}}}\n'
    cells = cells_of(specification(text))
    assert [[cell.name for cell in level] for level in levels(cells)] == [["a", "d"], ["b"], ["c"]]
    left = {name: cell for name, cell in cells.items() if name != "a"}  # it is done
    assert [[cell.name for cell in level] for level in levels(left)] == [["b", "d"], ["c"]]
    assert levels({}) == []


def test_options_are_read_as_yaml():
    assert parse_options(["timeout_min=30", "slurm_partition=gpu"]) == {"timeout_min": 30, "slurm_partition": "gpu"}
    with pytest.raises(SweepError, match="expected KEY=VALUE"):
        parse_options(["gpu"])


def test_a_job_that_has_to_go_ends_its_process_first(tmp_path):
    submitit = pytest.importorskip("submitit", reason="needs the extra slurm")
    job = CellJob(["sleep", "60"])
    job.process = subprocess.Popen(job.command)
    again = job.checkpoint()
    assert job.process.poll() is not None
    assert isinstance(again, submitit.helpers.DelayedSubmission) and again.function.command == job.command
    with pytest.raises(RuntimeError, match="the cell failed"):
        CellJob(["false"])()


@pytest.mark.slow
def test_cells_run_as_jobs_on_this_machine(specification):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    cells = cells_of(specification(TWO))
    root = cells["one"].place.root
    with pytest.raises(SweepError, match=r"--launcher local: .*timeout_mni"):
        submit(cells, root, "local", 1, {"timeout_mni": 3})
    assert submit(cells, root, "local", 1, {"timeout_min": 10}).keys() == cells.keys()
    assert [state(cell.place).kind for cell in cells.values()] == ["done", "done"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of our own; skipped where it cannot be started."""
    pytest.importorskip("submitit", reason="needs the extra slurm")
    try:
        with running(tmp_path / "slurm") as conf:
            monkeypatch.setenv("SLURM_CONF", str(conf))
            yield
    except NoSlurm as why:
        pytest.skip(f"Slurm cannot be started here: {why}")


@pytest.mark.slow
def test_slurm_does_what_is_needed_first_and_goes_on_after_preemption(slurm, specification):
    cells = cells_of(specification(TWO.replace("cells: {", LONG[:-2] + ", ")))
    assert list(cells) == ["long", "one", "two"]
    numbers = submit(cells, cells["one"].place.root, "slurm", 2, {"timeout_min": 20})
    assert numbers["long"].partition("_")[0] == numbers["one"].partition("_")[0] != numbers["two"].partition("_")[0]
    long = cells["long"].place
    until(long.run.checkpoint_path.exists)
    subprocess.run([str(found("scancel")), "--signal=USR2", numbers["long"]], check=True)
    until(lambda: long.lease() is None)
    assert long.run.checkpoint_path.exists() and not long.finished()
    until(lambda: all(state(cell.place).kind in ("done", "failed") for cell in cells.values()), 900)
    assert [state(cell.place).kind for cell in cells.values()] == ["done"] * 3
    until(lambda: not _queued(), 60)
    outputs = "".join(file.read_text() for file in (long.root / "cells" / "jobs").glob("*.err"))
    assert "going on after" in outputs
    preempted = long.run.metrics_path.read_bytes()
    shutil.rmtree(long.run.path)
    assert main([str(long.root), long.label]) == 0
    assert long.run.metrics_path.read_bytes() == preempted  # to the last bit, as never preempted


def _queued() -> str:
    return subprocess.run([str(found("squeue")), "-h"], capture_output=True, text=True, check=True).stdout
