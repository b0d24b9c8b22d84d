"""Trackers that follow a run while it trains: TensorBoard (``train.tensorboard``), Weights & Biases (``train.wandb``).

loss/TASK            each update, before weighing
dev/TASK, dev/joint  each evaluation, *the* score in percent
gates/open/SET, gates/expected/SET
gates/map/SET        a picture: a row a layer, layer 1 at the top, a column a head; white 0, black 1
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.config.config import Config, ConfigError
from mtlprune.io.files import make_folder, sync_tree, write_text

CELL = 16
"""Pixels of a head's square."""


class Tracker(ABC):
    """Follows one run, and writes into the folder of its own name there."""

    @abstractmethod
    def log(self, step: int, scalars: Mapping[str, float], images: Mapping[str, NDArray[np.uint8]]) -> None:
        """Numbers and grey pictures by name, after ``step`` updates."""

    @abstractmethod
    def close(self) -> None:
        """End it, also where the run fails."""

    def flush(self) -> None:  # noqa: B027 (not all need it)
        """Write before a checkpoint, so that nothing is missing in a run that resumes from it."""

    def evaluation(self, step: int, scores: Mapping[str, float], gates: Mapping[str, Any] | None) -> None:
        """Log the scores of an evaluation and, in a run with gates, its line of gates.jsonl."""
        scalars, images, line = {f"dev/{name}": score for name, score in scores.items()}, {}, gates or {"gates": {}}
        for name, values in line["gates"].items():
            scalars |= {f"gates/{kind}/{name}": line[kind][name] for kind in ("open", "expected")}
            images[f"gates/map/{name}"] = picture(np.array(values))
        self.log(step, scalars, images)
        self.flush()


class TensorBoard(Tracker):
    """Event files; those of updates after ``step`` are marked to be forgotten."""

    def __init__(self, config: Config, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run / "tensorboard"
        make_folder(folder)
        # files are read in the order of their names, which hold the second they were begun in, then process and count
        # as text: of two of one second the later one may be taken for old
        while any(f".tfevents.{int(time.time()):010d}." in path.name for path in folder.glob("*")):
            time.sleep(0.05)
        self.writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def log(self, step: int, scalars: Mapping[str, float], images: Mapping[str, NDArray[np.uint8]]) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)
        for name, grey in images.items():
            self.writer.add_image(name, grey, step, dataformats="HW")

    def flush(self) -> None:
        self.writer.flush()
        sync_tree(Path(self.writer.log_dir))

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases under one id, which a run that resumes finds in its folder; its settings of account,
    project and mode (``WANDB_MODE=offline``) are environment variables.

    A process of its own writes whatever becomes of this one, and drops numbers of updates that it knows: no ``step``.
    """

    def __init__(self, config: Config, run: Path, step: int) -> None:
        import wandb

        self.picture = wandb.Image
        identity = run / "wandb" / "id"
        if not identity.exists():
            make_folder(identity.parent)
            write_text(identity, uuid.uuid4().hex[:8])
        try:
            self.run: Any = wandb.init(
                id=identity.read_text(encoding="utf-8"),
                name=run.name,
                dir=run,
                config=config.model_dump(mode="json"),
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"train.wandb: Weights & Biases refuses the run: {error} Or keep it in the run's folder with "
                "WANDB_MODE=offline, or train with train.wandb=false"
            ) from error

    def log(self, step: int, scalars: Mapping[str, float], images: Mapping[str, NDArray[np.uint8]]) -> None:
        self.run.log({**scalars, **{name: self.picture(grey) for name, grey in images.items()}}, step=step)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Config, Path, int], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Setting of ``train``, also the package and the extra that it needs → what begins it: of a configuration, a run folder
and the updates done so far; what an earlier process logged of later ones does not count."""


def picture(gates: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Grey levels, a square of CELL pixels a head. (L, A) → (L · CELL, A · CELL)"""
    grey = np.rint(255 * (1 - gates)).astype(np.uint8)
    return grey.repeat(CELL, axis=0).repeat(CELL, axis=1)
