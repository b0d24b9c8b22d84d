"""Curves of a run for TensorBoard, if ``train.tensorboard`` is set.

loss/TASK            the unweighted loss of each update
dev/TASK, dev/joint  the main score of each evaluation, in percent
gates/open/SET       the number of open heads at each evaluation
gates/expected/SET   the expected number of open heads at each evaluation
gates/map/SET        an image of the gates with a row for each layer (layer 1 at the top) and a column for each head,
                     from white (gate 0) to black (gate 1)
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.io.files import make_folder, sync_tree
from mtlprune.runs.forms import GateLine

_CELL = 16
"""The side of a head's square in the image, in pixels."""


class TensorBoard:
    """Writer of TensorBoard event files in a run folder; events of updates after ``step`` are marked as obsolete."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run / "tensorboard"
        make_folder(folder)
        # TensorBoard reads event files in the order of their names, which contain the second of their creation. Two
        # files of the same second are ambiguous, because the newer may come first, so this waits for the next second.
        while any(f".tfevents.{int(time.time()):010d}." in path.name for path in folder.glob("*")):
            time.sleep(0.05)
        self.writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write the values of curves after ``step`` updates, by name."""
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)

    def log_gates(self, step: int, line: GateLine) -> None:
        """Write the numbers of open heads and the images of the gates, from a line of gates.jsonl."""
        for kind in ("open", "expected"):
            self.log(step, f"gates/{kind}", line[kind])
        for name, gates in line["gates"].items():
            self.writer.add_image(f"gates/map/{name}", _picture(np.array(gates)), step, dataformats="HW")

    def flush(self) -> None:
        """Write all events to disk, which a checkpoint needs so that a resumed run has complete curves."""
        self.writer.flush()
        sync_tree(Path(self.writer.log_dir))

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()


def _picture(gates: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Draw gates as grey levels in squares of s × s pixels (s = `_CELL`), (L, A) → (L · s, A · s)."""
    grey = np.rint(255 * (1 - gates)).astype(np.uint8)
    return grey.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
