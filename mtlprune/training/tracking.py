"""Curves of a run while it trains, for TensorBoard (``train.tensorboard``).

loss/TASK            each update, before weighing
dev/TASK, dev/joint  each evaluation, *the* score in percent
gates/open/SET, gates/expected/SET
gates/map/SET        a picture: a row a layer, layer 1 at the top, a column a head; white 0, black 1
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.io.files import make_folder, sync_tree
from mtlprune.runs.forms import GateLine

CELL = 16
"""Pixels of a head's square."""


class TensorBoard:
    """Event files in a run folder; those of updates after ``step`` are marked to be forgotten."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run / "tensorboard"
        make_folder(folder)
        # files are read in the order of their names, which hold the second they were begun in, then process and count
        # as text: of two of one second the later one may be taken for old
        while any(f".tfevents.{int(time.time()):010d}." in path.name for path in folder.glob("*")):
            time.sleep(0.05)
        self.writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Numbers by name, after ``step`` updates."""
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)

    def log_gates(self, step: int, line: GateLine) -> None:
        """Counts and pictures of a line of gates.jsonl."""
        for kind in ("open", "expected"):
            self.log(step, f"gates/{kind}", line[kind])
        for name, gates in line["gates"].items():
            self.writer.add_image(f"gates/map/{name}", picture(np.array(gates)), step, dataformats="HW")

    def flush(self) -> None:
        """Write before a checkpoint, so that nothing is missing in a run that resumes from it."""
        self.writer.flush()
        sync_tree(Path(self.writer.log_dir))

    def close(self) -> None:
        self.writer.close()


def picture(gates: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Grey levels, a square of CELL pixels a head. (L, A) → (L · CELL, A · CELL)"""
    grey = np.rint(255 * (1 - gates)).astype(np.uint8)
    return grey.repeat(CELL, axis=0).repeat(CELL, axis=1)
