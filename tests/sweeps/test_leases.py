"""Who works on a cell: exactly one process, until it ends or dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mtlprune.sweeps import leases
from mtlprune.sweeps.leases import DEAD_AFTER, Heartbeat, Lease, is_alive, read_lease, take

SLEEPER = "import sys, time; from pathlib import Path; from mtlprune.sweeps.leases import take; "
SLEEPER += "print(take(Path(sys.argv[1])) is not None, flush=True); time.sleep(60)"


def leave(path: Path, lease: Lease, age: float = 0.0) -> None:
    path.write_text(json.dumps(asdict(lease)))
    os.utime(path, (time.time() - age,) * 2)


def test_one_process_owns_and_gives_back(tmp_path: Path) -> None:
    path = tmp_path / "cell.owner"
    mine = take(path)
    assert mine is not None and mine.pid == os.getpid() and read_lease(path) == mine
    assert is_alive(path, mine) and take(path) is None
    with Heartbeat(path, mine):
        assert take(path) is None
    assert read_lease(path) is None and not list(tmp_path.iterdir())


def test_of_many_takers_one_wins_whether_the_cell_is_free_or_its_owner_dead(tmp_path: Path) -> None:
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


def test_the_cell_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "cell.owner"
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "True\n"
    assert take(path) is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert take(path) is not None


@pytest.mark.parametrize(("age", "taken"), [(0.0, False), (DEAD_AFTER / 2, False), (DEAD_AFTER + 60, True)])
def test_an_owner_elsewhere_lives_by_its_heartbeat(tmp_path: Path, age: float, taken: bool) -> None:
    path = tmp_path / "cell.owner"
    leave(path, replace(Lease.this_process(), machine="elsewhere", pid=1, token="other"), age)
    assert (take(path) is not None) == taken


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / "cell.owner"
    leave(path, replace(Lease.this_process(), started="1", token="before"))
    assert take(path) is not None


def test_who_takes_over_may_die_in_the_act(tmp_path: Path) -> None:
    path = tmp_path / "cell.owner"
    dead = replace(Lease.this_process(), started="0", token="dead")
    leave(path, dead)
    leave(tmp_path / ".cell.owner.after-dead", replace(dead, token="heir"))
    assert take(path) is None and take(path) is not None


def test_an_owner_whose_cell_was_taken_over_learns_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT", 0.01)
    path = tmp_path / "cell.owner"
    mine = take(path)
    assert mine is not None
    with Heartbeat(path, mine) as heartbeat:
        os.utime(path, (0, 0))
        until = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0 and not heartbeat.lost
        other = replace(mine, token="other")
        leave(tmp_path / "beside", other)
        (tmp_path / "beside").replace(path)
        while not heartbeat.lost and time.monotonic() < until:
            time.sleep(0.01)
        assert heartbeat.lost
    assert read_lease(path) == other  # theirs is left alone
