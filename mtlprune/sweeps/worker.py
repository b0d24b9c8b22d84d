"""One cell in a process of its own: take it, train it, score it, give it back.

python -m mtlprune.sweeps.worker SWEEP_FOLDER CELL-DIGEST [--threads N] [--evaluate SPLIT,...] [--parent PID]

Ends with 0 (done), FAILED (the reason is kept beside the run folder), BUSY (somebody else has the cell) or STOPPED
(asked to; it can go on).
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mtlprune.errors import MtlpruneError
from mtlprune.sweeps.folder import DEAD_AFTER, Heartbeat, Place, began, take

if TYPE_CHECKING:
    from mtlprune.config.config import Config
    from mtlprune.training.loop import Event


FAILED, BUSY, STOPPED = 1, 75, 130

log = logging.getLogger("mtlprune.sweeps.worker")


class Stop:
    """Whether this process should come to an end: it was told so, lost its cell, or lost the sweep that started it."""

    def __init__(self, heartbeat: Heartbeat, parent: int | None) -> None:
        self.heartbeat, self.parent = heartbeat, parent
        self.parent_began = began(parent) or "never" if parent is not None else ""
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._answer)

    def __call__(self) -> bool:
        orphaned = self.parent is not None and began(self.parent) != self.parent_began
        return self.asked or self.heartbeat.lost or orphaned

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def work(place: Place, evaluate: Sequence[str], threads: int | None, parent: int | None) -> int:
    """Do a cell; returns what the process ends with."""
    mine = take(place.beside("owner"))
    if mine is None or place.run.in_use():
        if mine is not None:
            place.beside("owner").unlink(missing_ok=True)
        return BUSY
    with Heartbeat(place.beside("owner"), mine) as heartbeat:
        stop = Stop(heartbeat, parent)
        try:
            if not _train(place, evaluate, threads, stop):
                return BUSY if heartbeat.lost else STOPPED
        except KeyboardInterrupt:
            return STOPPED
        except Exception as error:  # whatever it is, it is kept and reported, and other cells go on
            log.exception("the cell failed")
            place.write_failure(_reason(error), {"host": platform.node(), "pid": os.getpid()})
            return FAILED
        place.beside("failed").unlink(missing_ok=True)
        return 0


def _train(place: Place, evaluate: Sequence[str], threads: int | None, stop: Stop) -> bool:
    """Train and score; False where it was stopped before."""
    from mtlprune.training.evaluation import evaluate_run
    from mtlprune.training.loop import train

    place.run.check_whole()
    # A finished run is only scored: one that was adopted names other runs by the paths that they had then.
    if not place.finished() and not train(_config(place, threads), place.run, watch=_tell, stop=stop).finished:
        return False
    for split in place.unscored(evaluate):
        if stop():
            return False
        evaluate_run(place.run, split)
        log.info("scored on %s", split)
    return True


def _config(place: Place, threads: int | None) -> Config:
    """The cell's configuration, with the threads and the device that a run which continues began with."""
    from mtlprune.config.config import load_config

    config = load_config(place.beside("yaml"))
    settings = config.train
    if place.run.config_path.is_file():
        begun = place.run.read_config()["train"]
        fixed = {"threads": begun["threads"], "device": begun["device"]}
    else:
        fixed = {"threads": settings.threads or threads, "device": settings.device}
    return config.model_copy(update={"train": settings.model_copy(update=fixed)})


def _tell(event: Event) -> None:
    if event.evaluation is not None:
        dev = "  ".join(f"{task} {score:.2f}" for task, score in event.evaluation.main().items())
        log.info("epoch %d: dev %s", event.progress.epoch, dev)


def _reason(error: Exception) -> str:
    """One sentence, where the error is somebody's mistake; else its kind too."""
    text = " ".join(str(error).split())
    return text if isinstance(error, MtlpruneError) else f"{type(error).__name__}: {text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, and do the cell."""
    parser = argparse.ArgumentParser(prog="mtlprune.sweeps.worker")
    parser.add_argument("root", type=Path)
    parser.add_argument("label")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--evaluate", default="")
    parser.add_argument("--parent", type=int)
    asked = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("mtlprune").setLevel(logging.INFO)
    splits = [split for split in asked.evaluate.split(",") if split]
    return work(Place(asked.root, asked.label), splits, asked.threads, asked.parent)


def work_here(command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Do what a worker's command line says, in this process, away from the terminal it came from."""
    os.setsid()
    os.environ.update(environment)
    with open(log, "ab") as file:  # noqa: PTH123 (the descriptors go on)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = list(command[2:])
    sys.exit(main(command[3:]))


if __name__ == "__main__":
    sys.exit(main())


# -- What a job of a cluster runs. Knows nothing of torch, so that a job begins at once --


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
            time.sleep(DEAD_AFTER / 8)  # a lease that was killed on another machine is not known to be dead at once
        if code == STOPPED:
            time.sleep(GRACE)  # the cluster stopped all processes of the job; this one goes with the job
        if code == BUSY:
            return "another process does this cell"
        if code:
            how = "failed" if code == FAILED else f"ended with code {code}"
            raise RuntimeError(f"the cell {how}; `mtlprune sweep --status` tells why")
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
