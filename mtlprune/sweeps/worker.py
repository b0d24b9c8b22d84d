"""One cell in a process of its own, or several that follow each other: train it, score it.

python -m mtlprune.sweeps.worker SWEEP_FOLDER CELL-DIGEST ... [--threads N] [--evaluate SPLIT,...] [--parent PID]

Ends with 0 (done), FAILED (the reason is kept beside the run folder), BUSY (another process works on the cell) or
STOPPED (asked to; it can go on).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mtlprune.errors import MtlpruneError
from mtlprune.sweeps.folder import Place

if TYPE_CHECKING:
    from mtlprune.config.config import Config
    from mtlprune.training.loop import Event

FAILED, BUSY, STOPPED = 1, 75, 130

log = logging.getLogger("mtlprune.sweeps.worker")


class Stop:
    """True once this process should come to an end: it was asked to, or the process that started it is gone."""

    def __init__(self, parent: int | None) -> None:
        self.parent = parent
        self.is_requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._answer)

    def __call__(self) -> bool:
        return self.is_requested or (self.parent is not None and os.getppid() != self.parent)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


def work(place: Place, evaluate: Sequence[str], threads: int | None, parent: int | None) -> int:
    """Run a cell; returns the exit code of the process."""
    if place.run.in_use():
        return BUSY
    stop = Stop(parent)
    try:
        if not _train(place, evaluate, threads, stop):
            return STOPPED
    except KeyboardInterrupt:
        return STOPPED
    # Whatever happens in a cell is kept in its folder and reported, and the other cells go on.
    except Exception as error:
        log.exception("the cell failed")
        text = " ".join(str(error).split())
        place.write_failure(text if isinstance(error, MtlpruneError) else f"{type(error).__name__}: {text}")
        return FAILED
    place.path_of("failed").unlink(missing_ok=True)
    return 0


def _train(place: Place, evaluate: Sequence[str], threads: int | None, stop: Stop) -> bool:
    """Train and score; False where it was stopped before."""
    from mtlprune.training.evaluation import evaluate_run
    from mtlprune.training.loop import train

    place.run.check_whole()
    if not place.finished() and not train(_config(place, threads), place.run, watch=_log, stop=stop).finished:
        return False
    with place.run.locked():
        for split in place.unscored(evaluate):
            if stop():
                return False
            evaluate_run(place.run, split)
            log.info("scored on %s", split)
    return True


def _config(place: Place, threads: int | None) -> Config:
    """The cell's configuration, with the threads and the device that a run which continues began with."""
    from mtlprune.config.config import load_config

    config = load_config(place.path_of("yaml"))
    settings = config.train
    if place.run.config_path.is_file():
        begun_train = place.run.config.train
        fixed = {"threads": begun_train.threads, "device": begun_train.device}
    else:
        fixed = {"threads": settings.threads or threads, "device": settings.device}
    return config.model_copy(update={"train": settings.model_copy(update=fixed)})


def _log(event: Event) -> None:
    if event.evaluation is not None:
        dev = "  ".join(f"{task} {score:.2f}" for task, score in event.evaluation.main().items())
        log.info("epoch %d: dev %s", event.progress.epoch, dev)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, and do the cells, until one of them does not end well."""
    parser = argparse.ArgumentParser(prog="mtlprune.sweeps.worker")
    parser.add_argument("root", type=Path)
    parser.add_argument("labels", nargs="+")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--evaluate", default="")
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("mtlprune").setLevel(logging.INFO)
    splits = [split for split in options.evaluate.split(",") if split]
    for label in options.labels:
        if code := work(Place(options.root, label), splits, options.threads, options.parent):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
