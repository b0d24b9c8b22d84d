"""The process that trains and scores a cell, or one cell after another. The pool and cluster jobs start it.

python -m mtlprune.sweeps.worker SWEEP_FOLDER CELL-DIGEST [--threads N] [--evaluate SPLIT,...] [--parent PID]
python -m mtlprune.sweeps.worker SWEEP_FOLDER [--threads N] [--parent PID]

The second form reads one line for each cell, ``["CELL-DIGEST", ["SPLIT", ...]]``, from standard input. It answers with
an empty line when the cell is done, and writes all other output to the log of the cell. Libraries are imported once,
and cells that share sentences, tokenizer or encoder load them once. If a cell fails or is stopped, the process ends,
because the memory and objects that a failure leaves behind are unknown. The pool then starts another process.

The exit code is 0 (done), FAILED (the reason is stored in the sweep's folder), BUSY (another process works on the cell)
or STOPPED (the process was asked to stop, and the cell can be continued).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mtlprune.errors import MtlpruneError, load_blas
from mtlprune.sweeps.folder import Place

if TYPE_CHECKING:
    from mtlprune.config.config import Config
    from mtlprune.training.loop import Event

FAILED, BUSY, STOPPED = 1, 75, 130

log = logging.getLogger("mtlprune.sweeps.worker")


class _Stop:
    """A callable that returns True once the process should stop: after SIGINT or SIGTERM, or when its parent has ended.

    A second signal raises KeyboardInterrupt.
    """

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


def _work(place: Place, evaluate: Sequence[str], threads: int | None, stop: _Stop) -> int:
    """Train and score a cell, and return the exit code for the process."""
    if place.run.in_use():
        return BUSY
    try:
        if not _train(place, evaluate, threads, stop):
            return STOPPED
    except KeyboardInterrupt:
        return STOPPED
    # Any error is stored and reported as the failure of this cell, so that the other cells can go on.
    except Exception as error:
        log.exception("the cell failed")
        text = " ".join(str(error).split())
        place.write_failure(text if isinstance(error, MtlpruneError) else f"{type(error).__name__}: {text}")
        return FAILED
    place.path_of("failed").unlink(missing_ok=True)
    return 0


def _train(place: Place, evaluate: Sequence[str], threads: int | None, stop: _Stop) -> bool:
    """Train and score a cell; return False if it was stopped before it was complete."""
    from mtlprune.training.evaluation import evaluate_run
    from mtlprune.training.hardware import like_new_process
    from mtlprune.training.loop import train

    with like_new_process():
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
    """Read the configuration of a cell. A run that is continued keeps the threads and the device of its start."""
    from mtlprune.config.config import load_config

    config = load_config(place.path_of("yaml"))
    settings = config.train
    if place.run.has("config.yaml"):
        begun_train = place.run.config.train
        fixed = {"threads": begun_train.threads, "device": begun_train.device}
    else:
        fixed = {"threads": settings.threads or threads, "device": settings.device}
    return config.model_copy(update={"train": settings.model_copy(update=fixed)})


def _log(event: Event) -> None:
    if event.evaluation is not None:
        dev = "  ".join(f"{task} {score:.2f}" for task, score in event.evaluation.main().items())
        log.info("epoch %d: dev %s", event.progress.epoch, dev)


def _work_on_many(root: Path, threads: int | None, stop: _Stop) -> int:
    """Run the cells that standard input names, until it ends or a cell fails or is stopped; return the exit code."""
    from mtlprune.io.reuse import objects_kept

    answers = os.dup(sys.stdout.fileno())
    with objects_kept():
        for line in sys.stdin:
            label, splits = json.loads(line)
            place = Place(root, label)
            with place.path_of("log").open("ab") as cell_log:
                for stream in (sys.stdout, sys.stderr):  # redirects the file descriptors, because C libraries use them
                    os.dup2(cell_log.fileno(), stream.fileno())
            if code := _work(place, splits, threads, stop):
                return code
            os.write(answers, b"\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the cell or cells, and return the exit code."""
    parser = argparse.ArgumentParser(prog="mtlprune.sweeps.worker")
    parser.add_argument("root", type=Path)
    parser.add_argument("label", nargs="?")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--evaluate", default="")
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    load_blas()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("mtlprune").setLevel(logging.INFO)
    stop = _Stop(options.parent)
    if options.label is None:
        return _work_on_many(options.root, options.threads, stop)
    splits = [split for split in options.evaluate.split(",") if split]
    return _work(Place(options.root, options.label), splits, options.threads, stop)


if __name__ == "__main__":
    sys.exit(main())
