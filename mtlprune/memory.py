"""How much main memory this process took."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """The most main memory this process has held so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux ru_maxrss begins with what the parent held when it started this process
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
