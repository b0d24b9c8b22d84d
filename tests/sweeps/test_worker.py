"""Workers of cells and pools of them: what becomes of a cell, stops, kills, clusters."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mtlprune.sweeps import pool
from mtlprune.sweeps.cells import Cell, Sweep, resolve
from mtlprune.sweeps.cluster import CellJob, levels, parse_options, submit
from mtlprune.sweeps.folder import State, state
from mtlprune.sweeps.pool import Pool, worker_command, write_config
from mtlprune.sweeps.specification import SweepError, read_specification
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED, main

pytestmark = pytest.mark.usefixtures("signals")
CELLS = """
cells:
  one: {}
  wrong: {encoder: {name: ./nowhere}}
  after: {train: {start: "@one", freeze: decoders}, pruning: gates}
"""
LONG = "cells: {long: {train: {epochs: 30, checkpoint_minutes: 0}}}\n"


def until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def sweep_of(path: Path) -> Sweep:
    sweep = resolve(read_specification(path), path.parent / "out")
    for cell in sweep.cells.values():
        write_config(cell)
    return sweep


@pytest.fixture
def cells(specification: Callable[[str], Path]) -> Mapping[str, Cell]:
    return sweep_of(specification(CELLS)).cells


@pytest.fixture
def long(specification: Callable[[str], Path]) -> Cell:
    """A cell of many epochs, with a checkpoint after every update."""
    return sweep_of(specification(LONG)).cells["long"]


def work(cell: Cell, *more: str) -> int:
    """The cell in this process, by the words after ``python -m mtlprune.sweeps.worker`` of its command."""
    return main([*worker_command(cell, 1)[3:], *more])


def test_a_cell_is_trained_and_scored_once(cells):
    cell = cells["one"]
    assert state(cell.place) == State("left")
    assert work(cell) == 0 and state(cell.place).kind == "done"
    assert state(cell.place, ["test"]) == State("left", "trained; to be scored on test")
    weights = sorted(cell.place.run.path.glob("weights/*"))
    before = [file.stat().st_mtime_ns for file in weights]
    assert work(cell, "--evaluate", "test") == 0 and state(cell.place, ["test"]).kind == "done"
    assert [file.stat().st_mtime_ns for file in weights] == before  # nothing was trained again
    assert cell.place.run.read_config()["train"]["threads"] == 1


def test_a_checkpoint_that_a_killed_process_left_in_a_finished_cell_goes(cells):
    cell = cells["one"]
    assert work(cell) == 0
    checkpoint = cell.place.run.checkpoint_path
    checkpoint.write_bytes(b"")  # as if the process had been killed after it had noted its end
    Pool({"one": cell}, 1, lambda *_: None, lambda: True)
    assert not checkpoint.exists() and state(cell.place).kind == "done"


def test_a_cell_that_fails_leaves_its_reason_and_may_be_mended(cells):
    wrong, after = cells["wrong"], cells["after"]
    assert work(wrong) == FAILED
    failed = state(wrong.place)
    assert failed.kind == "failed" and "but there is no such folder" in failed.note
    assert work(after) == FAILED and "expected the folder of a finished run" in state(after.place).note
    assert work(cells["one"]) == 0 and work(after) == 0
    assert state(after.place) == State("done") and not after.place.path_of("failed").exists()
    assert after.place.run.read_config()["train"]["start"] == str(cells["one"].place.run.path)


def test_a_cell_in_use_is_left_alone(cells):
    place = cells["one"].place
    with place.run.locked():  # by `mtlprune train`, or by the worker of another sweep
        assert state(place) == State("running", "beginning")
        assert work(cells["one"]) == BUSY
    assert not place.path_of("failed").exists() and state(place) == State("left")


def kill(number: int, pid: Callable[[], int], when: Callable[[], object]) -> threading.Thread:
    killer = threading.Thread(target=lambda: (until(when), os.kill(pid(), number)), daemon=True)
    killer.start()
    return killer


def test_a_stopped_cell_goes_on_and_ends_as_if_never_stopped(specification):
    cell = sweep_of(specification(LONG.replace("30", "8"))).cells["long"]
    killer = kill(signal.SIGTERM, os.getpid, cell.place.run.checkpoint_path.exists)
    assert work(cell) == STOPPED
    killer.join()
    assert cell.place.run.checkpoint_path.exists() and "of 8 epochs done" in state(cell.place).note
    assert work(cell, "--threads", "2") == 0  # it keeps the threads it began with
    stopped = cell.place.run.metrics_path.read_bytes()
    shutil.rmtree(cell.place.run.path)
    assert work(cell) == 0
    assert cell.place.run.metrics_path.read_bytes() == stopped


def test_an_orphan_stops_with_a_checkpoint(long):
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert work(long, "--parent", str(gone.pid)) == STOPPED
    assert long.place.run.checkpoint_path.exists() and not long.place.run.read_metrics()


def pooled(
    cells: Mapping[str, Cell], stop: Callable[[], bool] = lambda: False
) -> tuple[list[tuple[str, str]], dict[str, State]]:
    """The events of a pool of one process, and what became of each cell."""
    events: list[tuple[str, str]] = []
    return events, Pool(cells, 1, lambda event, cell, _: events.append((event, cell.name)), stop).run()


@pytest.mark.slow
def test_a_pool_waits_for_a_process_of_another_and_goes_on_after_its_kill(specification, monkeypatch):
    monkeypatch.setattr(pool, "RETRY_SECONDS", 0.5)
    cells = sweep_of(specification(LONG)).cells
    place = cells["long"].place
    other = subprocess.Popen(worker_command(cells["long"], 1), start_new_session=True)
    until(lambda: state(place).kind == "running")
    kill(signal.SIGKILL, lambda: other.pid, place.run.checkpoint_path.exists)
    events, outcome = pooled(cells)
    assert other.wait() == -signal.SIGKILL
    assert [event for event, _ in events] == ["waiting", "started", "done"] and outcome["long"].kind == "done"
    assert "continuing after" in place.path_of("log").read_text()


@pytest.mark.slow
def test_a_pool_stops_its_processes_and_another_goes_on_with_a_killed_one(long):
    events, outcome = pooled({"long": long}, long.place.run.checkpoint_path.exists)
    assert outcome["long"].kind == "left" and long.place.run.checkpoint_path.exists()
    assert events == [("started", "long"), ("stopped", "long")]
    lock = long.place.run.path / ".lock"
    before = lock.read_text() if lock.exists() else ""
    kill(signal.SIGKILL, lambda: int(lock.read_text()), lambda: lock.exists() and lock.read_text() not in ("", before))
    events, outcome = pooled({"long": long})
    assert [event for event, _ in events] == ["started", "failed"] and "perhaps memory ran out" in outcome["long"].note
    events, outcome = pooled({"long": long})
    assert outcome["long"].kind == "done" and "continuing after" in long.place.path_of("log").read_text()


def test_a_process_that_is_stopped_while_it_loads_has_not_failed(cells, monkeypatch):
    """It is killed by the signal that asks it to stop, since it could not answer yet."""
    monkeypatch.setattr(pool, "worker_command", lambda *_: ["sleep", "60"])
    looks = iter([False])
    events, outcome = pooled({"one": cells["one"]}, lambda: next(looks, True))
    assert [event for event, _ in events] == ["started", "stopped"] and outcome["one"].kind == "left"
    assert cells["one"].place.read_failure() is None


def test_a_cell_whose_process_is_killed_has_failed_and_blocks_others(cells, monkeypatch):
    """As by a system that is short of memory."""
    monkeypatch.setattr(pool, "worker_command", lambda *_: ["sh", "-c", "kill -9 $$"])
    events, outcome = pooled({name: cells[name] for name in ("one", "after")})
    assert [event for event, _ in events] == ["started", "failed", "blocked"]
    assert "killed by SIGKILL" in outcome["one"].note and outcome["after"].note == "it needs one, which failed"
    assert state(cells["one"].place) == outcome["one"]


MIXED = """
cells:
  fused: {encoder: {fusion: gate}, train: {threads: 1, precision: bf16}}
  gated: {pruning: gates, train: {threads: 1}}
  last: {train: {threads: 1, seed: 3}}
  wrong: {encoder: {name: ./nowhere}, train: {threads: 1}}
  next: {train: {threads: 1, seed: 4}}
"""


def written(cell: Cell) -> dict[str, bytes]:
    run = cell.place.run
    return {path.name: path.read_bytes() for path in [*run.path.glob("weights/*"), run.metrics_path]}


def test_a_cell_after_others_in_the_same_process_is_as_one_alone_to_the_last_bit(specification):
    cells = sweep_of(specification(MIXED)).cells
    _, outcome = pooled(cells)
    assert [end.kind for end in outcome.values()] == ["done", "done", "done", "failed", "done"]
    processes = {name: (cell.place.run.path / ".lock") for name, cell in cells.items() if name != "wrong"}
    numbers = {name: lock.read_text() for name, lock in processes.items()}
    assert numbers["fused"] == numbers["gated"] == numbers["last"] != numbers["next"]
    for name, cell in cells.items():
        log = cell.place.path_of("log").read_text()
        assert ("no such folder" if name == "wrong" else "precision") in log
        assert all(other.place.label not in log for other in cells.values() if other is not cell)
    for name in ("gated", "last"):
        together = written(cells[name])
        shutil.rmtree(cells[name].place.run.path)
        assert work(cells[name]) == 0 and written(cells[name]) == together


@pytest.mark.slow
def test_memory_of_a_process_stays_the_same_over_thirty_cells(specification):
    cells = sweep_of(specification("grid: {seed: [" + ", ".join(map(str, range(30))) + "]}\n")).cells
    held: dict[str, list[int]] = {}

    def watch(event: str, cell: Cell, _: str) -> None:
        if event == "done":
            number = (cell.place.run.path / ".lock").read_text()
            pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
            held.setdefault(number, []).append(pages)

    assert all(end.kind == "done" for end in Pool(cells, 1, watch, lambda: False).run().values())
    [pages] = held.values()
    assert len(pages) == 30 and max(pages[3:]) <= 1.05 * pages[3]


def test_a_cell_has_its_own_number_of_threads_or_its_share(specification):
    cells = sweep_of(specification("cells: {own: {train: {threads: 3}}, shared: {train: {seed: 2}}}\n")).cells
    both = Pool(cells, 2, lambda *_: None, lambda: True)
    assert [both.threads_of(cell) for cell in cells.values()] == [3, both.threads]


def test_levels_and_options(specification):
    text = 'cells: {c: {train: {start: "@b"}}, a: {}, b: {train: {start: "@a"}}, d: {train: {seed: 2}}}\n'
    cells = sweep_of(specification(text)).cells
    assert [[cell.name for cell in level] for level in levels(cells)] == [["a", "d"], ["b"], ["c"]]
    left = {name: cell for name, cell in cells.items() if name != "a"}  # it is done
    assert [[cell.name for cell in level] for level in levels(left)] == [["d", "b"], ["c"]]
    expected = {"cluster": "slurm", "timeout_min": 30, "slurm_partition": "gpu"}
    assert parse_options(["timeout_min=30", "slurm_partition=gpu"]) == expected
    for option, words in (("gpu", "expected KEY=VALUE"), ("slurm_comment=[a", "--slurm slurm_comment")):
        with pytest.raises(SweepError, match=words):
            parse_options([option])


def test_a_job_that_has_to_go_ends_its_process_first():
    submitit = pytest.importorskip("submitit", reason="needs the extra slurm")
    job = CellJob(["sleep", "60"])
    job.process = subprocess.Popen(job.command)
    again = job.checkpoint()
    assert job.process.poll() is not None
    assert isinstance(again, submitit.helpers.DelayedSubmission) and again.function.command == job.command
    with pytest.raises(RuntimeError, match="the cell failed"):
        CellJob(["false"])()


@pytest.mark.slow
def test_cells_run_as_jobs_on_this_machine(cells):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    cells, root = {name: cells[name] for name in ("one", "after")}, cells["one"].place.root
    with pytest.raises(SweepError, match=r"--slurm: .*timeout_mni"):
        submit(cells, root, "local", 1, {"timeout_mni": 3})
    assert submit(cells, root, "local", 1, {"timeout_min": 10}).keys() == cells.keys()
    assert [state(cell.place).kind for cell in cells.values()] == ["done", "done"]


@pytest.mark.slow
def test_slurm_does_what_is_needed_first_and_goes_on_after_preemption(slurm, specification):
    long = "long: {train: {epochs: 40, checkpoint_minutes: 0, threads: 1}}"
    cells = sweep_of(specification(CELLS.replace("wrong: {encoder: {name: ./nowhere}}", long))).cells
    numbers = submit(cells, cells["one"].place.root, "slurm", 2, {"timeout_min": 20})
    arrays = {name: number.partition("_")[0] for name, number in numbers.items()}
    assert arrays["long"] == arrays["one"] != arrays["after"]
    place = cells["long"].place
    until(place.run.checkpoint_path.exists, 300)
    subprocess.run(["scancel", "--signal=USR2", numbers["long"]], check=True)
    until(lambda: not place.run.in_use())
    assert place.run.checkpoint_path.exists() and not place.finished()
    until(lambda: all(state(cell.place).kind in ("done", "failed") for cell in cells.values()), 900)
    assert [state(cell.place).kind for cell in cells.values()] == ["done"] * 3
    until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)
    assert any("continuing after" in file.read_text() for file in (place.root / "cells/jobs").glob("*.err"))
    preempted = place.run.metrics_path.read_bytes()
    shutil.rmtree(place.run.path)
    assert main([str(place.root), place.label]) == 0
    assert place.run.metrics_path.read_bytes() == preempted  # to the last bit, as never preempted
