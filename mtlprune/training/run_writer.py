"""What a run leaves in its folder while it trains; of several processes only the first one writes."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtlprune.files import remove, remove_halves
from mtlprune.runs import RunFolder
from mtlprune.training.arcs import uas_line
from mtlprune.training.checkpoint import Progress, note_end, save_checkpoint, save_weights
from mtlprune.training.evaluation import Evaluation
from mtlprune.training.parallel import ProcessGroup
from mtlprune.training.pruning import record
from mtlprune.training.tracking import TRACKERS


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
        wanted = [kind for name, kind in TRACKERS.items() if group.leads and getattr(run.config.train, name)]
        self.trackers = [kind(run.config, folder.path, progress.step) for kind in wanted]
        self.saved_at = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a checkpoint between evaluations."""
        return time.monotonic() - self.saved_at > 60 * self.run.config.train.checkpoint_minutes

    def update(self, losses: Mapping[str, float]) -> None:
        """What is seen of one update."""
        for tracker in self.trackers:
            tracker.scalars(self.progress.step, {f"loss/{task}": loss for task, loss in losses.items()})

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
        for tracker in self.trackers:
            tracker.evaluation(progress.step, {**evaluation.main(), "joint": joint}, gates)
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
            for tracker in self.trackers:
                tracker.flush()
            save_checkpoint(self.folder.checkpoint_path, self.run.model, self.optimizer, self.progress)
        self.saved_at = time.monotonic()

    def finish(self) -> None:
        """Note the end in the manifest."""
        if self.group.leads:
            for tracker in self.trackers:
                tracker.flush()
            note_end(self.folder, self.progress, **({"processes": self.group.size} if self.group.grouped else {}))

    def tidy(self) -> None:
        """Remove large files nobody needs any more."""
        if self.group.leads:
            tidy(self.folder, self.progress)

    def close(self) -> None:
        """To be called at the end; ends what trackers have begun."""
        for tracker in self.trackers:
            tracker.close()


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
