"""Who works on a cell, and what becomes of it: leases, workers, schedulers on one folder, kills, clusters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mtlprune.sweeps import folder as sweep_folder
from mtlprune.sweeps import scheduler
from mtlprune.sweeps.cells import Cell, Sweep, resolve
from mtlprune.sweeps.folder import DEAD_AFTER, Heartbeat, Lease, State, is_alive, read_lease, state, take
from mtlprune.sweeps.scheduler import Scheduler, levels, parse_options, submit, worker_command, write_config
from mtlprune.sweeps.specification import SweepError, read_specification
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED, CellJob, main

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


def leave(path: Path, lease: Lease, age: float = 0.0) -> None:
    path.write_text(json.dumps(asdict(lease)))
    os.utime(path, (time.time() - age,) * 2)


def test_one_process_owns_and_gives_back(tmp_path):
    path = tmp_path / "cell.owner"
    mine = take(path)
    assert mine is not None and mine.pid == os.getpid() and read_lease(path) == mine
    assert is_alive(path, mine) and take(path) is None
    with Heartbeat(path, mine):
        assert take(path) is None
    assert read_lease(path) is None and not list(tmp_path.iterdir())


def test_of_many_takers_one_wins_whether_the_cell_is_free_or_its_owner_dead(tmp_path):
    dead = replace(Lease.this_process(), started="0", token="dead")
    with ThreadPoolExecutor(8) as pool:
        for place in range(60):
            path = tmp_path / f"{place}.owner"
            if place % 2:
                leave(path, dead)
            won = [lease for lease in pool.map(lambda _, path=path: take(path), range(8)) if lease]
            assert len(won) <= 1  # of those who met in the act, all may leave it to each other
            winner = won[0] if won else take(path)
            assert winner is not None and read_lease(path) == winner
    assert {file.suffix for file in tmp_path.iterdir()} == {".owner"}  # no marker is left


@pytest.mark.parametrize(("age", "taken"), [(0.0, False), (DEAD_AFTER / 2, False), (DEAD_AFTER + 60, True)])
def test_an_owner_elsewhere_lives_by_its_heartbeat(tmp_path, age, taken):
    path = tmp_path / "cell.owner"
    leave(path, replace(Lease.this_process(), machine="elsewhere", pid=1, token="other"), age)
    assert (take(path) is not None) == taken


def test_who_owns_a_cell_whose_owner_died_in_the_act(tmp_path):
    path = tmp_path / "cell.owner"
    leave(path, replace(Lease.this_process(), started="1", token="before"))
    assert take(path) is not None
    dead = replace(Lease.this_process(), started="0", token="dead")
    leave(path, dead)
    leave(tmp_path / ".cell.owner.after-dead", replace(dead, token="heir"))
    assert take(path) is None and take(path) is not None


def test_an_owner_whose_cell_was_taken_over_learns_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_folder, "HEARTBEAT", 0.01)
    path = tmp_path / "cell.owner"
    mine = take(path)
    assert mine is not None
    with Heartbeat(path, mine) as heartbeat:
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0)
        assert not heartbeat.lost
        other = replace(mine, token="other")
        leave(tmp_path / "beside", other)
        (tmp_path / "beside").replace(path)
        until(lambda: heartbeat.lost)
    assert read_lease(path) == other  # theirs is left alone


def work(cell: Cell, *more: str) -> int:
    """The cell in this process."""
    return main([str(cell.place.root), cell.place.label, "--threads", "1", *more])


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
    assert not cell.place.beside("owner").exists()


def test_a_cell_that_fails_leaves_its_reason_and_may_be_mended(cells):
    wrong, after = cells["wrong"], cells["after"]
    assert work(wrong) == FAILED
    found = state(wrong.place)
    assert found.kind == "failed" and "but there is no such folder" in found.note
    assert found.failure is not None and found.failure["pid"] == os.getpid()
    assert work(after) == FAILED and "expected the folder of a finished run" in state(after.place).note
    assert work(cells["one"]) == 0 and work(after) == 0
    assert state(after.place) == State("done") and not after.place.beside("failed").exists()
    assert after.place.run.read_config()["train"]["start"] == str(cells["one"].place.run.path)


def test_a_cell_in_use_is_left_alone(cells):
    place = cells["one"].place
    lease = take(place.beside("owner"))
    assert work(cells["one"]) == BUSY
    assert state(place) == State("running", f"{lease} since {lease.since}, beginning") if lease else False
    place.beside("owner").unlink()
    with place.run.locked():  # by `mtlprune train`
        assert state(place).kind == "running"
        assert work(cells["one"]) == BUSY
    assert not place.beside("owner").exists() and not place.beside("failed").exists()


def kill(number: int, pid: Callable[[], int], when: Callable[[], object]) -> threading.Thread:
    """Send a signal to a process as soon as something is so."""
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


def scheduled(
    cells: Mapping[str, Cell], stop: Callable[[], bool] = lambda: False, fork: bool = True
) -> tuple[list[tuple[str, str]], dict[str, State]]:
    """What a scheduler of one process said, and what became of each cell."""
    said: list[tuple[str, str]] = []
    return said, Scheduler(cells, 1, lambda event, cell, _: said.append((event, cell.name)), stop, fork).run()


@pytest.mark.slow
def test_two_schedulers_share_a_folder_and_do_no_cell_twice(specification):
    cells = sweep_of(specification("grid: {seed: [1, 2, 3, 4]}\n")).cells
    with ThreadPoolExecutor(2) as pool:
        for said, outcome in pool.map(scheduled, [cells] * 2):
            assert sum(event == "done" for event, _ in said) == 4
            assert all(found.kind == "done" for found in outcome.values())
    for cell in cells.values():  # a second training would have said so in the log
        log = cell.place.beside("log").read_text()
        assert log.count("epoch 1: ") == 1 and "finished" not in log


@pytest.mark.slow
def test_a_scheduler_takes_over_from_a_killed_owner(specification):
    cells = sweep_of(specification(LONG + "grid: {seed: [5]}\n")).cells
    place = cells["long"].place
    owner = subprocess.Popen(worker_command(cells["long"], 1), start_new_session=True)
    kill(signal.SIGKILL, lambda: owner.pid, place.run.checkpoint_path.exists)
    until(lambda: state(place).kind == "running")
    _, outcome = scheduled(cells)
    assert owner.wait() == -signal.SIGKILL
    assert {name: found.kind for name, found in outcome.items()} == {"long": "done", "5": "done"}
    assert "going on after" in place.beside("log").read_text()


@pytest.mark.slow
def test_a_scheduler_stops_its_processes_and_goes_on_with_a_killed_one(long):
    said, outcome = scheduled({"long": long}, long.place.run.checkpoint_path.exists, fork=False)
    assert outcome["long"].kind == "left" and long.place.run.checkpoint_path.exists()
    assert said == [("started", "long"), ("stopped", "long")]
    kill(signal.SIGKILL, lambda: long.place.lease().pid, long.place.lease)
    said, outcome = scheduled({"long": long}, fork=False)
    assert [event for event, _ in said] == ["started", "killed", "started", "done"]
    assert outcome["long"].kind == "done" and "going on after" in long.place.beside("log").read_text()


def test_a_cell_whose_process_is_killed_twice_has_failed(cells, monkeypatch):
    """As by a system that is short of memory."""
    monkeypatch.setattr(scheduler, "worker_command", lambda *_: ["sh", "-c", "kill -9 $$"])
    said, outcome = scheduled({"one": cells["one"]}, fork=False)
    assert [event for event, _ in said] == ["started", "killed", "started", "failed"]
    assert "a second time" in outcome["one"].note


def test_a_cell_has_its_own_number_of_threads_or_its_share(specification):
    cells = sweep_of(specification("cells: {own: {train: {threads: 3}}, shared: {train: {seed: 2}}}\n")).cells
    both = Scheduler(cells, 2, lambda *_: None, lambda: True)
    assert [both.threads_of(cell) for cell in cells.values()] == [3, both.threads]


def test_levels_and_options(specification):
    text = 'cells: {c: {train: {start: "@b"}}, a: {}, b: {train: {start: "@a"}}, d: {train: {seed: 2}}}\n'
    cells = sweep_of(specification(text)).cells
    assert [[cell.name for cell in level] for level in levels(cells)] == [["a", "d"], ["b"], ["c"]]
    left = {name: cell for name, cell in cells.items() if name != "a"}  # it is done
    assert [[cell.name for cell in level] for level in levels(left)] == [["b", "d"], ["c"]]
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
def test_cells_run_as_jobs_on_this_machine(cells):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    cells, root = {name: cells[name] for name in ("one", "after")}, cells["one"].place.root
    with pytest.raises(SweepError, match=r"--launcher local: .*timeout_mni"):
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
    until(lambda: place.lease() is None)
    assert place.run.checkpoint_path.exists() and not place.finished()
    until(lambda: all(state(cell.place).kind in ("done", "failed") for cell in cells.values()), 900)
    assert [state(cell.place).kind for cell in cells.values()] == ["done"] * 3
    until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)
    assert any("going on after" in file.read_text() for file in (place.root / "cells/jobs").glob("*.err"))
    preempted = place.run.metrics_path.read_bytes()
    shutil.rmtree(place.run.path)
    assert main([str(place.root), place.label]) == 0
    assert place.run.metrics_path.read_bytes() == preempted  # to the last bit, as never preempted
