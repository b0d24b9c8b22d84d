"""Training of a run: begun or taken up again, evaluated, and written into its folder; updates.py has the updates."""

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
from mtlprune.io.files import one_writer, remove, remove_halves
from mtlprune.model import evaluation_batches
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.forms import GateLine
from mtlprune.training import hardware, mixing
from mtlprune.training.arcs import SyntaxPenalty, uas_line
from mtlprune.training.balance import Balance
from mtlprune.training.callbacks import Callback
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
    """Train, or go on training, the run in ``folder``; returns where it stands in the end.

    Args:
        watch: called after every update and evaluation.
        stop: asked after every update; True writes a checkpoint and returns early.

    Raises:
        RunError: the folder is in use, holds another run, or the disk is full.
        CorpusError, ConfigError, EncoderError: the data or the encoder cannot be used.
        TrainingError: a loss or a gradient is not finite.
    """
    folder.refuse_packed("weights")
    path = Path(config.data.path)
    if folder.has("config.yaml") and not path.exists():
        # The run goes on on another machine or from another folder than it was begun in.
        path = folder.corpus_path()
    # The corpus is loaded before anything is made, so that a wrong path leaves no folder behind.
    corpus = load_corpus(path)
    # The lock is held for the whole training, so that a second process on the same folder is refused instead of
    # mixing its files in.
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
    """Begin a run, or take it up again; where a finished one stands."""
    config = hardware.resolve_auto(config, folder)
    if folder.has("config.yaml"):
        check_same(config, folder, corpus.fingerprint)
    if finished_progress := finished(folder):
        folder.verify()
        for key, best in finished_progress.best.items() if folder.keeps_weights() else ():
            folder.verify_weights(key, best)
        # A process may have been killed after it wrote the end and before it deleted what is no longer needed.
        _delete_obsolete_files(folder, finished_progress)
        return finished_progress
    if folder.has("config.yaml"):
        check_whole(config, folder)
    run = prepare(config, folder, corpus)
    continues = folder.checkpoint_path.exists()
    # What changes the model before the first update (heads that are given or selected, weights that are merged)
    # happens once; a checkpoint holds its result.
    if not continues:
        precision = hardware.dtype(config.train.precision)
        begin_treatments(run, folder, precision)
        fix_heads(run, folder, precision)
    # Before the optimizer is made, because it replaces the embedding table by a parameter with the used rows.
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
    """The updates of a run, and what is measured and written between them."""

    advice = "Lower rates (train.encoder_rate, train.decoder_rate) or train.precision=fp32 often help"

    def __init__(self, run: Run, folder: RunFolder, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        config = run.config
        super().__init__(run.model, config.tasks, run.batch, config.train, folder, optimizer, progress)
        self.config, self.data, self.dev = config, run, run.dev
        # Gates are clipped together with the rest only where their penalty is part of the loss.
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
        self.board = TensorBoard(folder.path, progress.step) if config.train.tensorboard else None

    def make_callbacks(self) -> list[Callback]:
        """All that takes part: losses are weighed with the penalty in them, further penalties are added as they are."""
        config, encoder = self.config, self.model.encoder
        # The order matters: the penalty comes before the balance, so that an in-loss penalty is weighed with the
        # losses; syntax and cosine regularisation come after it and are added as they are.
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
        # With everything frozen and heads fixed, one update does what all would: nothing. It is still made, so that
        # the run is evaluated and written as any other.
        return updates if learns else updates[:1]

    def is_due(self) -> bool:
        """True at the end of an epoch, or where train.evaluate_every says so, unless it has been (no losses since)."""
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
        # Strictly greater, so that of equal scores the earliest evaluation stays the best. A correlation may be
        # negative, and so may a joint score: the first evaluation always is the best so far.
        better = [key for key, value in current.items() if value > progress.best.get(key, {}).get("score", -math.inf)]
        if not self.may_be_best(last=progress.epoch >= settings.epochs):
            better = []
        progress.best.update({key: {"epoch": number, "score": current[key]} for key in better})
        train_losses = progress.take_losses()
        # Patience counts evaluations since the best joint score, whatever single tasks gained meanwhile.
        since = number - int(progress.best["joint"]["epoch"]) if progress.best else 0
        out_of_patience = settings.patience is not None and since >= settings.patience
        progress.finished = progress.epoch >= settings.epochs or out_of_patience
        gates = self.write(number, evaluation, better, train_losses)
        if progress.finished:
            self.note()
            record_finish(self.folder, progress)
        else:
            self.checkpoint()
        # Only after the checkpoint (or the end) is written: until then the earlier checkpoint needs the earlier
        # files.
        _delete_obsolete_files(self.folder, progress)
        self.watch(Event(progress, self.total, train_losses, evaluation, gates))

    def write(
        self, number: int, evaluation: Evaluation, better: list[str], losses: Mapping[str, float]
    ) -> GateLine | None:
        """Weights, logs and results of an evaluation; before the checkpoint that knows of them.

        Args:
            number: of the evaluation, from 1; called epoch in all files, because mostly there is one an epoch.
            better: joint and the tasks of which this is the best so far.

        Returns:
            In a run with gates, their line in gates.jsonl.
        """
        progress, folder, model, config = self.progress, self.folder, self.model, self.config
        if better:
            # Weights before the record that names them. A kill in between leaves a file that nobody refers to, and
            # that goes when the run goes on; the other order would leave a record without its file.
            sha256 = save_weights(folder.weights_path(number), model)
            progress.best |= {key: {**progress.best[key], "sha256": sha256} for key in better}
        joint = evaluation.joint()
        line: dict[str, Any] = {"epoch": number, "step": progress.step, "loss": losses, "dev": evaluation.scores}
        if config.train.log_train_loss:
            line["train_loss"] = mean_losses(self.data, config.train.log_train_loss)
        progress.log(folder.metrics_path, {**line, "joint": joint})
        gates = record(model, number, progress.step) if model.gates else None
        if gates is not None:
            progress.log(folder.gates_path, gates)
        if config.train.log_uas:
            progress.log(folder.uas_path, uas_line(model, self.dev, number, progress.step))
        if self.board is not None:
            self.board.log(progress.step, "dev", {**evaluation.main(), "joint": joint})
            self.board.log_gates(progress.step, gates) if gates else None
        folder.write_json("best.json", progress.best)  # first, so that results of others come before what follows
        folder.forget_results(better)  # whoever evaluated meanwhile did so with weights that are now surpassed
        if "joint" in better:
            ids = [sentence.id for sentence in self.dev]
            split = config.data.dev
            folder.write_results(split, evaluation.scores, ids, evaluation.counts, evaluation.predictions)
        return gates

    def may_be_best(self, last: bool) -> bool:
        """True where the present weights may count as the best: gates that are steered have to come to their number.
        ``last``: whether there is no further evaluation; where none came to it, the last is kept, with a warning."""
        if self.penalty is None:
            return True
        off_target = self.penalty.penalty.off_target(self.sets)
        # With gates that are steered to a number, an early epoch has more open heads and therefore scores better. It
        # must not win, since it is not the model that was asked for.
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
def mean_losses(run: Run, sentences: int) -> dict[str, float]:
    """Task → the loss of its decoder on the first training sentences, without dropout and in fp32.

    The losses of a training log are means over an epoch in which the weights moved, with dropout. A comparison of runs
    at equal training loss needs the loss of the weights as they are, on the same sentences for both (Mueller, Dredze
    and Andrews 2024). Batches count by their sentences.
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
    """Bring a folder to the state of its checkpoint: what was written after it is forgotten. Raises RunError: something
    that the checkpoint relies on is missing, or was changed or damaged."""
    for key, best in progress.best.items():
        folder.verify_weights(key, best)
    progress.restore_logs(folder.metrics_path, folder.gates_path, folder.uas_path)
    if progress.step:
        # A kill between two writes may have left the file ahead of the checkpoint.
        folder.write_json("best.json", progress.best)
        _delete_obsolete_files(folder, progress)


def _delete_obsolete_files(folder: RunFolder, progress: Progress) -> None:
    """Remove large files no longer needed: weights that are the best of no task, halves that a killed process left, and
    the checkpoint of a finished run."""
    best_weights = {folder.weights_path(int(best["epoch"])) for best in progress.best.values()}
    weights = folder.path / "weights"
    # Whoever evaluates a finished run writes there too, so the lock is taken; that of a killed writer is free again.
    with one_writer(folder.path):
        for place in (folder.path, weights):
            remove_halves(place)
    remove(*(path for path in weights.glob("epoch-*.safetensors") if path not in best_weights))
    if progress.finished:
        remove(folder.checkpoint_path)
