"""Processes in which analyses measure runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.processes import processes

PARENT = """
import os, time
from mtlprune.analyses.harness.processes import processes

if __name__ == "__main__":
    with processes(1, 1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_processes_end_if_their_parent_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(child)


def is_running(process):
    status = Path(f"/proc/{process}/stat")
    return status.exists() and ") Z " not in status.read_text()  # Z: it has ended, and nobody has asked for its result


def report_progress(request):
    request.on_status("each head closed alone", 3)
    request.on_batch()
    return os.getpid()


def test_progress_of_a_process_reaches_its_parent():
    seen = []

    def callback(*arguments, process):
        seen.append((process, *arguments))

    with processes(1, 1, on_status=callback, on_batch=callback) as pool:
        process = pool.submit(report_progress, Request([], Path(), None)).result()
    deadline = time.monotonic() + 30
    while len(seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [(process, "each head closed alone", 3), (process,)]
