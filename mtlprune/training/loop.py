"""The training of a run: beginning or resuming it, its evaluations, and its files; updates.py makes the updates."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from mtlprune.config.config import Config
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.embedding_rows import train_used_rows
from mtlprune.io.files import one_writer, remove, remove_temporary_paths
from mtlprune.model import evaluation_batches
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.forms import GateLine
from mtlprune.training import hardware, mixing
from mtlprune.training.activations import LargestBatches
from mtlprune.training.arcs import SyntaxPenalty, uas_line
from mtlprune.training.balance import Balance
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.checkpoint import (
    Progress,
    epoch_generator,
    finished,
    load_checkpoint,
    record_finish,
    save_weights,
)
from mtlprune.training.cosreg import CosReg
from mtlprune.training.evaluation import Evaluation, evaluate
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.pruning import fix_heads, record
from mtlprune.training.pruning.gate_penalty import GatePenalty
from mtlprune.training.run import Run
from mtlprune.training.setup import check_same, check_whole, prepare
from mtlprune.training.tracking import TensorBoard
from mtlprune.training.treatments import begin_treatments, treatment_callbacks
from mtlprune.training.updates import BaseTrainer
from mtlprune.training.updates import Event as Event
from mtlprune.training.updates import TrainingError as TrainingError

log = logging.getLogger(__name__)


def train(
    config: Config,
    folder: RunFolder,
    *,
    watch: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Train the run in ``folder`` from its beginning, or resume it, and return its progress at the end.

    The progress of a run that is already finished is returned without training.

    Args:
        watch: function called after every update and every evaluation.
        stop: function called after every update and every evaluation; if it returns True, the training returns early,
            and a checkpoint allows resuming it.

    Raises:
        RunError: the folder is in use, or holds another run, or a file cannot be written.
        CorpusError, ConfigError, EncoderError: the data, the settings or the encoder cannot be used.
        TrainingError: a loss or a gradient is not finite.
    """
    folder.refuse_packed("weights")
    path = Path(config.data.path)
    if folder.has("config.yaml") and not path.exists():
        # The run is resumed on another machine or from another working directory than the ones it began in.
        path = folder.corpus_path()
    # The corpus is loaded before any file is written, so that a wrong path leaves no folder behind.
    corpus = load_corpus(path)
    # The lock is held for the whole training, so that a second process on the same folder is refused before it can
    # change files.
    with folder.locked():
        trainer = _begin(config, folder, corpus)
        if isinstance(trainer, Progress):
            return trainer
        trainer.watch, trainer.stop = watch, stop
        try:
            return trainer.run()
        finally:
            if trainer.board is not None:
                trainer.board.close()


def _begin(config: Config, folder: RunFolder, corpus: Corpus) -> "Trainer | Progress":
    """Return the trainer of a new or resumed run, or the progress of a finished run."""
    config = hardware.resolve_auto(config, folder)
    if folder.has("config.yaml"):
        check_same(config, folder, corpus.fingerprint)
    if finished_progress := finished(folder):
        folder.verify()
        for key, best in finished_progress.best.items() if folder.keeps_weights() else ():
            folder.verify_weights(key, best)
        # A process may have been killed after it recorded the finish and before it deleted obsolete files.
        _delete_obsolete_files(folder, finished_progress)
        return finished_progress
    if folder.has("config.yaml"):
        check_whole(config, folder)
    run = prepare(config, folder, corpus)
    continues = folder.checkpoint_path.exists()
    # Changes of the model before the first update (heads that are given or selected, weights that are merged) are made
    # once, because a checkpoint holds their result.
    if not continues:
        precision = hardware.dtype(config.train.precision)
        begin_treatments(run, folder, precision)
        fix_heads(run, folder, precision)
    # This comes before the optimizer, because it replaces the embedding table by a parameter with the used rows.
    rows = train_used_rows(run.model.encoder, run.pieces) if config.train.embedding_rows == "used" else None
    optimizer = make_optimizer(run.model, config)
    if rows is not None:
        rows.decay(optimizer)
    progress = Progress()
    if continues:
        progress = load_checkpoint(folder.checkpoint_path, run.model, optimizer)
        log.info("continuing after epoch %d, update %d", progress.epoch, progress.update)
    _restore_folder(folder, progress)
    return Trainer(run, folder, optimizer, progress)


class Trainer(BaseTrainer):
    """The training loop of a run: its updates, and the evaluations, logs and checkpoints between them."""

    advice = "Lower rates (train.encoder_rate, train.decoder_rate) or train.precision=fp32 often help"

    def __init__(self, run: Run, folder: RunFolder, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        config = run.config
        super().__init__(run.model, config.tasks, run.batch, config.train, folder, optimizer, progress)
        self.config, self.data, self.dev = config, run, run.dev
        # Gates are clipped together with other parameters only if their penalty is part of the loss.
        clipped = [group for group in optimizer.param_groups if config.pruning.in_loss or not group["gates"]]
        self.clipped = [parameter for group in clipped for parameter in group["params"]]
        self.total = sum(len(self.plan(epoch)) for epoch in range(config.train.epochs))
        settings = config.train
        rate = settings.rate("decoder_rate", config.tasks)
        self.balance = Balance(settings.balance, settings.weights, settings.balance_window, rate, self.recompute_losses)
        self.balance.restore(progress.balance)
        self.penalty = GatePenalty(config, run.model, self.total) if config.pruning.moves else None
        if self.penalty is not None:
            self.penalty.penalty.restore(progress.penalty)
        self.treatments = treatment_callbacks(run, folder, self.total)
        self.callbacks = self.make_callbacks()
        self.largest_batches = LargestBatches(run)
        self.board = TensorBoard(folder.path, progress.step) if config.train.tensorboard else None

    def make_callbacks(self) -> list[Callback]:
        """Return the callbacks of the run, in the order in which updates call them."""
        config, encoder = self.config, self.model.encoder
        # The gate penalty comes before the balance, so that a penalty within the loss is weighted like the loss. The
        # syntax penalty and CosReg come after the balance, so that they are added unweighted.
        callbacks: list[Callback] = [*([self.penalty] if self.penalty is not None else []), self.balance]
        if config.syntax.strength:
            transformer = cast(PreTrainedModel, encoder.transformer)
            callbacks.append(SyntaxPenalty(config.syntax, transformer, encoder.head_hooks.kept_heads, self.data.trees))
        if config.train.cosreg:
            tasks = self.model.tasks
            callbacks.append(CosReg(config.train.cosreg, lambda task: tasks[task].label_rows().rows))  # type: ignore[operator]
        return [*callbacks, *self.treatments]

    def plan(self, epoch: int) -> list[list[mixing.MiniBatch]]:
        settings = self.config.train
        updates = mixing.plan(
            settings, self.data.lengths, self.data.is_annotated, epoch_generator(settings.seed, epoch)
        )
        learns = self.moving or self.config.pruning.moves
        # If all weights are frozen and all heads are fixed, updates change nothing. One update is still made, so that
        # the run is evaluated and written like any other run.
        return updates if learns else updates[:1]

    def losses(self, mini_batch: mixing.MiniBatch) -> Losses:
        self.largest_batches.switch(mini_batch)
        return super().losses(mini_batch)

    def is_due(self) -> bool:
        """Return whether an evaluation is due, at the end of an epoch or every ``train.evaluate_every`` updates.

        Without losses since the last evaluation, the evaluation has already taken place.
        """
        progress, settings = self.progress, self.config.train
        if settings.evaluate_every is None:
            return progress.update == 0 and bool(progress.losses)
        last = progress.epoch == settings.epochs
        return (last or progress.step % settings.evaluate_every == 0) and bool(progress.losses)

    def update(
        self, mini_batches: list[mixing.MiniBatch], following: Sequence[mixing.MiniBatch] = ()
    ) -> dict[str, float]:
        losses = super().update(mini_batches, following)
        if self.board is not None:
            self.board.log(self.progress.step + 1, "loss", losses)
        return losses

    def evaluation(self) -> None:
        progress, settings = self.progress, self.config.train
        number = settings.evaluations(progress.epoch, progress.step)
        evaluation = evaluate(self.model, self.dev, self.precision)
        current = {"joint": evaluation.joint(), **evaluation.main()}
        # The comparison is strict, so that the earliest of several equal scores stays the best. The default is minus
        # infinity, because correlations and thus joint scores can be negative.
        better = [key for key, value in current.items() if value > progress.best.get(key, {}).get("score", -math.inf)]
        if not self.may_be_best(last=progress.epoch >= settings.epochs):
            better = []
        progress.best.update({key: {"epoch": number, "score": current[key]} for key in better})
        train_losses = progress.take_losses()
        # Patience counts evaluations since the best joint score, even if the scores of single tasks improved later.
        evaluations_since_best = number - int(progress.best["joint"]["epoch"]) if progress.best else 0
        out_of_patience = settings.patience is not None and evaluations_since_best >= settings.patience
        progress.finished = progress.epoch >= settings.epochs or out_of_patience
        gates = self.write(number, evaluation, better, train_losses)
        if progress.finished:
            self.note()
            record_finish(self.folder, progress)
        else:
            self.checkpoint()
        # Files are deleted only after the checkpoint (or the finish) is written, because the earlier checkpoint needs
        # them.
        _delete_obsolete_files(self.folder, progress)
        self.watch(Event(progress, self.total, train_losses, evaluation, gates))

    def write(
        self, number: int, evaluation: Evaluation, better: list[str], losses: Mapping[str, float]
    ) -> GateLine | None:
        """Write the weights, logs and results of an evaluation, before the checkpoint that refers to them.

        Args:
            number: the number of the evaluation, from 1. Files call it epoch, because most runs have one evaluation in
                each epoch.
            better: the tasks, and "joint", whose score is the best so far.
            losses: task → mean training loss since the last evaluation.

        Returns:
            The line for gates.jsonl, or None for a run without gates.
        """
        progress, folder, model, config = self.progress, self.folder, self.model, self.config
        if better:
            # Weights are written before the record that names them. If the process is killed in between, a file without
            # a record remains, which is deleted when the run is resumed. In the other order, a record without its file
            # would remain.
            sha256 = save_weights(folder.weights_path(number), model)
            progress.best |= {key: {**progress.best[key], "sha256": sha256} for key in better}
        joint = evaluation.joint()
        line: dict[str, Any] = {"epoch": number, "step": progress.step, "loss": losses, "dev": evaluation.scores}
        if config.train.log_train_loss:
            line["train_loss"] = _mean_losses(self.data, config.train.log_train_loss)
        progress.log(folder.metrics_path, {**line, "joint": joint})
        gates = record(model, number, progress.step) if model.gates else None
        if gates is not None:
            progress.log(folder.gates_path, gates)
        if config.train.log_uas:
            progress.log(folder.uas_path, uas_line(model, self.dev, number, progress.step))
        if self.board is not None:
            self.board.log(progress.step, "dev", {**evaluation.main(), "joint": joint})
            self.board.log_gates(progress.step, gates) if gates else None
        # best.json comes first. Another process that evaluates older weights then either compares them with the new
        # record, and writes nothing, or has already written its results, which are deleted here as out of date.
        folder.write_json("best.json", progress.best)
        folder.forget_results(better)
        if "joint" in better:
            ids = [sentence.id for sentence in self.dev]
            split = config.data.dev
            folder.write_results(split, evaluation.scores, ids, evaluation.counts, evaluation.predictions)
        return gates

    def may_be_best(self, last: bool) -> bool:
        """Return whether the current weights may count as the best.

        If a penalty steers the gates to a number of open heads, the gates must have had time to settle and have reached
        that number. If no evaluation meets this condition, the weights of the last one count as the best, with a
        warning.

        Args:
            last: whether this is the last evaluation.
        """
        if self.penalty is None:
            return True
        off_target = self.penalty.penalty.off_target(self.sets)
        # While gates are steered to a number, early epochs have more open heads and therefore score higher. Their
        # weights must not be the best, because they do not have the requested number of heads.
        if self.penalty.penalty.has_settled(self.progress.step) and not off_target:
            return True
        if not last or self.progress.best:
            return False
        for name, count in off_target.items():
            log.warning(
                "%d heads are open%s, not %s: the gates did not reach their number in any epoch that could be the "
                "best, so the last epoch is kept; train longer, raise pruning.rate, or give pruning.penalty=exact",
                count,
                "" if name == "shared" else f" for {name}",
                self.config.pruning.keep,
            )
        return True

    def note(self) -> None:
        super().note()
        if self.board is not None:
            self.board.flush()
        self.progress.balance = self.balance.state()
        if self.penalty is not None:
            self.progress.penalty = self.penalty.penalty.state()


@torch.no_grad()
def _mean_losses(run: Run, sentences: int) -> dict[str, float]:
    """Return each task's mean loss on the first ``sentences`` training sentences, in fp32 without dropout.

    The losses in a training log are means over an epoch with dropout, during which the weights change. A comparison of
    runs at equal training loss needs the loss of the current weights on the same sentences (Mueller, Dredze and Andrews
    2024). The mean over batches is weighted by the number of annotated sentences.
    """
    # Training sets the model to training mode again before its next update.
    run.model.eval()
    sums, counts = dict.fromkeys(run.config.tasks, 0.0), dict.fromkeys(run.config.tasks, 0)
    for rows in evaluation_batches(run.lengths[:sentences]):
        batch = run.batch(mixing.MiniBatch(run.config.tasks, rows))
        for task, loss in run.model.losses(batch).items():
            annotated_rows = batch.targets[task][0]
            count = len(rows) if annotated_rows is None else len(annotated_rows)
            sums[task] += loss.item() * count
            counts[task] += count
    return {task: sums[task] / counts[task] for task in sums if counts[task]}


def _restore_folder(folder: RunFolder, progress: Progress) -> None:
    """Restore the logs and files of a folder to the state at its checkpoint, and drop everything written later.

    Raises RunError if weights that the checkpoint names are missing or damaged, or if a file cannot be written.
    """
    for key, best in progress.best.items():
        folder.verify_weights(key, best)
    progress.restore_logs(folder.metrics_path, folder.gates_path, folder.uas_path)
    if progress.step:
        # The file is newer than the checkpoint if the process was killed between writing the two.
        folder.write_json("best.json", progress.best)
        _delete_obsolete_files(folder, progress)


def _delete_obsolete_files(folder: RunFolder, progress: Progress) -> None:
    """Delete the files that a run no longer needs.

    These are weights that are the best of no task, incomplete files of a killed process, and the checkpoint of a
    finished run.
    """
    best_weights = {folder.weights_path(int(best["epoch"])) for best in progress.best.values()}
    weights = folder.path / "weights"
    # Processes that evaluate a finished run also write there, so the lock is needed. The lock of a killed process is
    # free.
    with one_writer(folder.path):
        for place in (folder.path, weights):
            remove_temporary_paths(place)
    remove(*(path for path in weights.glob("epoch-*.safetensors") if path not in best_weights))
    if progress.finished:
        remove(folder.checkpoint_path)
