"""What a job of a cluster runs. Knows nothing of torch, so that a job begins at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any

from mtlprune.sweeps.owners import DEAD_AFTER, began
from mtlprune.sweeps.worker import BUSY, FAILED, STOPPED

GRACE = 60.0
"""Seconds that a job whose worker was stopped waits for its own end."""


class CellJob:
    """What a job runs: a cell's process.

    Args:
        command: of that process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> str:
        """Do the cell. Raises RuntimeError where it fails; the reason stands in the sweep's folder."""
        until = time.monotonic() + 2 * DEAD_AFTER
        while (code := self._code()) == BUSY and time.monotonic() < until:
            time.sleep(DEAD_AFTER / 8)  # an owner that was killed on another machine is not known to be dead at once
        if code == STOPPED:
            time.sleep(GRACE)  # the cluster stopped all processes of the job; this one goes with the job
        if code == BUSY:
            return "another process does this cell"
        if code:
            how = "failed" if code == FAILED else f"ended with code {code}"
            raise RuntimeError(f"the cell {how}; `mtlprune status` tells why")
        return "done"

    def _code(self) -> int:
        self.process = subprocess.Popen(self.command)
        while (code := self.process.poll()) is None:
            time.sleep(0.2)
        return code

    def checkpoint(self) -> Any:
        """Called by submitit before the job has to go: the cell's process writes a checkpoint and ends."""
        import submitit

        if self.process is not None:
            self.process.terminate()
            while began(self.process.pid):  # not wait(), which may be under way in the code that this interrupts
                time.sleep(0.1)
        return submitit.helpers.DelayedSubmission(CellJob(self.command))
