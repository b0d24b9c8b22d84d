"""What a run leaves in its folder while it trains; of several processes only the first one writes.

For TensorBoard (extra ``tensorboard``):

loss/TASK            each update, before weighing
dev/TASK, dev/joint  each evaluation, *the* score in percent
gates/open/SET, gates/expected/SET
gates/map/SET        a picture: a row a layer, layer 1 at the top, a column a head; white 0, black 1
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.files import make_folder, remove, remove_halves, sync_tree
from mtlprune.runs import RunFolder
from mtlprune.training.arcs import uas_line
from mtlprune.training.checkpoint import Progress, note_end, save_checkpoint, save_weights
from mtlprune.training.evaluation import Evaluation
from mtlprune.training.parallel import ProcessGroup
from mtlprune.training.pruning import record


class RunWriter:
    """Writes metrics, gates, results, weights and checkpoints of a run.

    Args:
        run: the run's data and model.
        folder: of the run; this process owns it where it leads.
        optimizer: for checkpoints.
        progress: where training stands; what it holds of logs is brought up to date here.
    """

    def __init__(self, run: Any, folder: RunFolder, optimizer: Any, progress: Progress, group: ProcessGroup) -> None:
        self.run, self.folder, self.optimizer, self.progress = run, folder, optimizer, progress
        self.group = group
        self.board = Board(folder.path, progress.step) if run.config.train.tensorboard and group.leads else None
        self.saved_at = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a checkpoint between evaluations."""
        return time.monotonic() - self.saved_at > 60 * self.run.config.train.checkpoint_minutes

    def update(self, losses: Mapping[str, float]) -> None:
        """What is seen of one update."""
        if self.board:
            self.board.scalars(self.progress.step, {f"loss/{task}": loss for task, loss in losses.items()})

    def evaluated(
        self, number: int, evaluation: Evaluation, better: Iterable[str], losses: Mapping[str, float]
    ) -> dict[str, Any] | None:
        """Weights, logs and results of an evaluation; before the checkpoint that knows of them.

        Args:
            number: of the evaluation, from 1; called epoch in all files, because mostly there is one an epoch.
            better: joint and the tasks of which this is the best so far.
            losses: means since the last evaluation.

        Returns:
            In a run with gates, their line in gates.jsonl.
        """
        if not self.group.leads:
            return None
        progress, folder, model = self.progress, self.folder, self.run.model
        better = list(better)
        if better:
            sha256 = save_weights(folder.weights_path(number), model)
            progress.best |= {key: {**progress.best[key], "sha256": sha256} for key in better}
        joint = evaluation.joint()
        line = {"epoch": number, "step": progress.step, "loss": losses, "dev": evaluation.scores}
        progress.log(folder.metrics_path, {**line, "joint": joint})
        gates = record(model, number, progress.step) if model.gates else None
        if gates is not None:
            progress.log(folder.gates_path, gates)
        if self.run.config.train.log_uas:
            progress.log(folder.uas_path, uas_line(model, self.run.dev, number, progress.step))
        if self.board:
            self.board.evaluation(progress.step, {**evaluation.main(), "joint": joint}, gates)
        folder.write_json("best.json", progress.best)  # first, so that results of others come before what follows
        folder.forget_results(better)  # whoever evaluated meanwhile did so with weights that are now surpassed
        if "joint" in better:
            ids = [sentence.id for sentence in self.run.dev]
            split = self.run.config.data.dev
            folder.write_results(split, evaluation.scores, ids, evaluation.counts, evaluation.predictions)
        return gates

    def checkpoint(self) -> None:
        """Everything that is needed to go on from here."""
        if self.group.leads:
            if self.board:
                self.board.flush()  # before the checkpoint, so that nothing of it is missing in a run that continues
            save_checkpoint(self.folder.checkpoint_path, self.run.model, self.optimizer, self.progress)
        self.saved_at = time.monotonic()

    def finish(self) -> None:
        """Note the end in the manifest."""
        if self.group.leads:
            if self.board:
                self.board.flush()
            note_end(self.folder, self.progress, **({"processes": self.group.size} if self.group.grouped else {}))

    def tidy(self) -> None:
        """Remove large files nobody needs any more."""
        if self.group.leads:
            tidy(self.folder, self.progress)

    def close(self) -> None:
        """To be called at the end; ends the thread of TensorBoard's writer."""
        if self.board:
            self.board.writer.close()


def take_up(folder: RunFolder, progress: Progress) -> None:
    """Bring a folder to the state of its checkpoint: what was written after it is forgotten.

    Raises:
        RunError: something that the checkpoint relies on is missing, or was changed or damaged.
    """
    for key, best in progress.best.items():
        folder.verify_weights(key, best)
    progress.restore_logs(*logs(folder))
    if progress.step:
        folder.write_json("best.json", progress.best)  # a kill may have left it ahead of the checkpoint
        tidy(folder, progress)


def logs(folder: RunFolder) -> tuple[Path, Path, Path]:
    """The logs of a run, whether or not it keeps them."""
    return folder.metrics_path, folder.gates_path, folder.uas_path


def tidy(folder: RunFolder, progress: Progress) -> None:
    """Remove large files nobody needs: weights that are no one's best any more, halves that a killed process left, and
    the checkpoint of a finished run."""
    kept = {folder.weights_path(int(best["epoch"])) for best in progress.best.values()}
    weights = folder.path / "weights"
    for place in (folder.path, weights):
        remove_halves(place)
    remove(*(path for path in weights.glob("epoch-*.safetensors") if path not in kept))
    if progress.finished:
        remove(folder.checkpoint_path)


# -- For TensorBoard (extra ``tensorboard``): losses, dev scores, and the gates as numbers and as a live map --


FOLDER = "tensorboard"
CELL = 16
"""Pixels of a head's square."""


def _wait_for_a_new_second(folder: Path) -> None:
    """Files are read in the order of their names, which hold the second they were begun in, then process and count as
    text: two of one second may be read the wrong way round, and the later one taken for old."""
    while any(f".tfevents.{int(time.time()):010d}." in path.name for path in folder.glob("*")):
        time.sleep(0.05)


class Board:
    """Writes into a run's folder ``tensorboard``.

    Args:
        run: the run folder.
        step: updates done so far; what an earlier process wrote of later ones is marked to be forgotten.
    """

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make_folder(run / FOLDER)
        _wait_for_a_new_second(run / FOLDER)
        self.writer: Any = SummaryWriter(str(run / FOLDER), purge_step=step + 1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def evaluation(self, step: int, scores: Mapping[str, float], gates: Mapping[str, Any] | None) -> None:
        """The scores of an evaluation and, in a run with gates, its line of gates.jsonl."""
        self.scalars(step, {f"dev/{name}": score for name, score in scores.items()})
        if gates is not None:
            for name, values in gates["gates"].items():
                self.scalars(step, {f"gates/{kind}/{name}": gates[kind][name] for kind in ("open", "expected")})
                self.writer.add_image(f"gates/map/{name}", picture(np.array(values)), step, dataformats="HW")
        self.flush()

    def flush(self) -> None:
        """Put on the disk what was told so far."""
        self.writer.flush()
        sync_tree(Path(self.writer.log_dir))


def picture(gates: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Grey levels, a square of CELL pixels a head. (L, A) → (L · CELL, A · CELL)"""
    grey = np.rint(255 * (1 - gates)).astype(np.uint8)
    return grey.repeat(CELL, axis=0).repeat(CELL, axis=1)
