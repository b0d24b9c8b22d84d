"""For TensorBoard (extra ``tensorboard``): losses, dev scores, and the gates as numbers and as a live map.

loss/TASK            each update, before weighing
dev/TASK, dev/joint  each evaluation, *the* score in percent
gates/open/SET, gates/expected/SET
gates/map/SET        a picture: a row a layer, layer 1 at the top, a column a head; white 0, black 1
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.config.config import ConfigError
from mtlprune.files import make_folder, sync_tree

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning

FOLDER = "tensorboard"
CELL = 16
"""Pixels of a head's square."""


def check_tensorboard(run: Beginning) -> None:
    """Refuse what could not be written. Raises ConfigError."""
    if run.config.train.tensorboard:
        require_tensorboard()


def require_tensorboard() -> None:
    """Raises ConfigError where the package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard: the package tensorboard is not installed; in a clone of mtlprune, run: "
            'pip install -e ".[tensorboard]"; or train with train.tensorboard=false'
        )


def _wait_for_a_new_second(folder: Path) -> None:
    """Files are read in the order of their names, which hold the second they were begun in, then process and count as
    text: two of one second may be read the wrong way round, and the later one taken for old."""
    while any(f".tfevents.{int(time.time()):010d}." in path.name for path in folder.glob("*")):
        time.sleep(0.05)


class Board:
    """Writes into a run's folder ``tensorboard``.

    Args:
        run: the run folder; None: nothing is written.
        step: updates done so far; what an earlier process wrote of later ones is marked to be forgotten.
    """

    def __init__(self, run: Path | None, step: int) -> None:
        self.writer: Any = None
        if run is not None:
            require_tensorboard()
            from torch.utils.tensorboard import SummaryWriter

            make_folder(run / FOLDER)
            _wait_for_a_new_second(run / FOLDER)
            self.writer = SummaryWriter(str(run / FOLDER), purge_step=step + 1)

    def losses(self, step: int, losses: Mapping[str, float]) -> None:
        """The losses of one update."""
        if self.writer is None:
            return
        for task, loss in losses.items():
            self.writer.add_scalar(f"loss/{task}", loss, step)

    def evaluation(self, step: int, scores: Mapping[str, float], gates: Mapping[str, Any] | None) -> None:
        """The scores of an evaluation and, in a run with gates, its line of gates.jsonl."""
        if self.writer is None:
            return
        for name, score in scores.items():
            self.writer.add_scalar(f"dev/{name}", score, step)
        if gates is not None:
            for name, values in gates["gates"].items():
                self.writer.add_scalar(f"gates/open/{name}", gates["open"][name], step)
                self.writer.add_scalar(f"gates/expected/{name}", gates["expected"][name], step)
                self.writer.add_image(f"gates/map/{name}", picture(np.array(values)), step, dataformats="HW")
        self.flush()

    def flush(self) -> None:
        """Put on the disk what was told so far."""
        if self.writer is not None:
            self.writer.flush()
            sync_tree(Path(self.writer.log_dir))

    def close(self) -> None:
        """To be called at the end; ends the writer's thread."""
        if self.writer is not None:
            self.writer.close()


def picture(gates: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Grey levels, a square of CELL pixels a head. (L, A) → (L · CELL, A · CELL)"""
    grey = np.rint(255 * (1 - gates)).astype(np.uint8)
    return grey.repeat(CELL, axis=0).repeat(CELL, axis=1)
