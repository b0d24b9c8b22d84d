"""The training loop.

for each epoch:                       order of batches from (seed, epoch)
    for each update:                  dropout and noise from (seed, step, tasks)
        for each mini-batch:          one encoding; the losses of its tasks; balance; backward
        clip; the gates' penalty; step, schedule
    predict dev, count, score; keep the best weights, joint and by task
    checkpoint
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlprune.config import Config
from mtlprune.corpora.store import load_corpus
from mtlprune.files import append_line, log_size, truncate_log
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.runs import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.training import hardware, mixing
from mtlprune.training.balance import Balance
from mtlprune.training.checkpoint import (
    Progress,
    epoch_generator,
    load_checkpoint,
    save_checkpoint,
    save_weights,
    seed_step,
)
from mtlprune.training.evaluation import Evaluation, evaluate
from mtlprune.training.optimizer import make_optimizer, schedule
from mtlprune.training.pruning import Pressure, fix_heads, record
from mtlprune.training.setup import check_same, decide, prepare
from mtlprune.training.tensorboard import Board

log = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped and what is kept."""


@dataclass
class Event:
    """What a watcher is told after each update and each evaluation."""

    progress: Progress
    updates: int
    """Updates of the present epoch."""
    total: int
    """Updates of all epochs."""
    losses: dict[str, float]
    sentences: int
    evaluation: Evaluation | None = None
    gates: dict[str, Any] | None = None
    """At an evaluation of a run with gates: the line of gates.jsonl."""


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
        TrainingError: a loss or a gradient is no number.
    """
    corpus = load_corpus(Path(config.data.path))  # before anything is made, so that a wrong path leaves no folder
    with folder.locked():
        config = decide(config, folder)
        if folder.config_path.exists():
            check_same(config, folder, corpus)
        else:
            folder.check_ours()
        if done := finished(folder):
            tidy(folder, done)  # in case the end was cut short just here
            return done
        run = prepare(config, folder, corpus)
        optimizer = make_optimizer(run.model, config)
        progress = Progress()
        if folder.checkpoint_path.exists():
            progress = load_checkpoint(folder.checkpoint_path, run.model, optimizer)
            log.info("going on after epoch %d, update %d", progress.epoch, progress.update)
            folder.write_json("best.json", progress.best)  # a kill may have left it ahead of the checkpoint
            tidy(folder, progress)
        else:
            fix_heads(run, hardware.dtype(config.train.precision))
        truncate_log(folder.metrics_path, progress.log_size)
        truncate_log(folder.gates_path, progress.gates_size)
        trainer = _Trainer(run, folder, optimizer, progress, watch, stop)
        with contextlib.closing(trainer.board):
            return trainer.run()


def finished(folder: RunFolder) -> Progress | None:
    """Where a finished run stands; None where it is still to be begun or to go on."""
    if not folder.config_path.exists():
        return None
    record = folder.read_manifest().get("finished")
    return Progress(**record) if record else None


class _Trainer:
    """One process's share of a run."""

    def __init__(self, run: Any, folder: RunFolder, optimizer: Any, progress: Progress, watch: Any, stop: Any) -> None:
        self.config: Config = run.config
        self.model: MultiTaskModel = run.model
        self.data = run
        self.dev: Sequence[Sentence] = run.dev
        self.folder, self.optimizer, self.progress = folder, optimizer, progress
        self.watch, self.stop = watch, stop
        self.balance = Balance(self.config.train.balance, self.config.train.weights, self.config.train.balance_window)
        self.balance.restore(progress.balance)
        self.precision = hardware.dtype(self.config.train.precision)
        self.parameters = [p for group in optimizer.param_groups if not group["gates"] for p in group["params"]]
        self.total = sum(len(self.plan(epoch)) for epoch in range(self.config.train.epochs))
        gated = self.config.pruning.method == "gates"
        self.pressure = Pressure(self.config, self.model, self.total) if gated else None
        if self.pressure is not None:
            self.pressure.penalty.restore(progress.penalty)
        self.board = Board(folder.path if self.config.train.tensorboard else None, progress.step)
        self.saved_at = self.started_at = time.monotonic()
        self.seconds_before = progress.seconds

    def plan(self, epoch: int) -> list[list[mixing.MiniBatch]]:
        """The mini-batches of an epoch, grouped into updates."""
        settings = self.config.train
        return mixing.plan(settings, self.data.lengths, self.data.known, epoch_generator(settings.seed, epoch))

    def run(self) -> Progress:
        while not self.progress.finished:
            updates = self.plan(self.progress.epoch)
            self.model.train()
            for update in updates[self.progress.update :]:
                losses, sentences = self.update(update)
                self.progress.update += 1
                self.progress.step += 1
                self.board.losses(self.progress.step, losses)
                self.watch(Event(self.progress, len(updates), self.total, losses, sentences))
                if self.stop():
                    self.checkpoint()
                    return self.progress
                if time.monotonic() - self.saved_at > 60 * self.config.train.checkpoint_minutes:
                    self.checkpoint()
            self.end_epoch(len(updates))
            if self.stop():
                break  # a checkpoint was written just now
        return self.progress

    def update(self, mini_batches: list[mixing.MiniBatch]) -> tuple[dict[str, float], int]:
        """One step of the optimizer; returns the unweighed losses and the number of sentences."""
        settings = self.config.train
        seed_step(settings.seed, self.progress.step, self.config.tasks)
        rate = schedule(self.progress.step, self.total, settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * (1.0 if group["gates"] else rate)
        sums: dict[str, list[float]] = {}
        for mini_batch in mini_batches:
            batch = self.data.batch(mini_batch)
            with autocast(self.model.device, self.precision):
                losses = self.model.losses(batch)
            self.check(losses)
            total = torch.stack(list(self.balance(losses).values())).sum() / len(mini_batches)
            if total.requires_grad:  # nothing does where encoder and decoders are frozen and the gates fixed by now
                total.backward()
            for task, loss in losses.items():
                sums.setdefault(task, []).append(float(loss.detach()))
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        if not math.isfinite(norm):
            raise self.broken(f"the gradient is {float(norm)}", list(sums))
        if self.pressure is not None:
            self.pressure.press(set(sums), self.progress.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # idle decoders neither step nor decay
        if self.pressure is not None:
            self.pressure.end_update(self.progress.step)
        for task, values in sums.items():
            past, number = self.progress.losses.get(task, (0.0, 0))
            self.progress.losses[task] = [past + sum(values), number + len(values)]
        means = {task: sum(values) / len(values) for task, values in sums.items()}
        return means, sum(len(mini_batch.rows) for mini_batch in mini_batches)

    def check(self, losses: dict[str, Tensor]) -> None:
        for task, loss in losses.items():
            if not torch.isfinite(loss):
                raise self.broken(f"the loss is {float(loss.detach())}", [task])

    def broken(self, what: str, tasks: list[str]) -> TrainingError:
        kept = (
            "the last checkpoint is kept" if self.folder.checkpoint_path.exists() else "no checkpoint was written yet"
        )
        return TrainingError(
            f"{self.folder.path}: at step {self.progress.step} (epoch {self.progress.epoch + 1}), "
            f"task {', '.join(tasks)}: {what}; {kept}. "
            f"Lower rates (train.encoder_rate, train.decoder_rate) or train.precision=fp32 often help"
        )

    def end_epoch(self, updates: int) -> None:
        """Score dev, keep what is best, write a checkpoint."""
        progress, settings = self.progress, self.config.train
        progress.epoch += 1
        progress.update = 0
        evaluation = evaluate(self.model, self.dev, self.precision)
        current = {"joint": evaluation.joint(), **evaluation.main()}
        better = [key for key, value in current.items() if value > progress.best.get(key, {}).get("score", -1.0)]
        if not self.settled() and progress.epoch < settings.epochs:
            better = []
        if better:
            save_weights(self.folder.weights_path(progress.epoch), self.model)
            progress.best.update({key: {"epoch": progress.epoch, "score": current[key]} for key in better})
        train_losses = {task: past / number for task, (past, number) in progress.losses.items()}
        progress.losses = {}
        line = {"epoch": progress.epoch, "step": progress.step, "loss": train_losses, "dev": evaluation.scores}
        append_line(self.folder.metrics_path, {**line, "joint": current["joint"]})
        gates = record(self.model, progress.epoch, progress.step) if self.model.gates else None
        if gates is not None:
            append_line(self.folder.gates_path, gates)
        self.board.evaluation(progress.step, {**evaluation.main(), "joint": current["joint"]}, gates)
        since = progress.epoch - int(progress.best["joint"]["epoch"]) if progress.best else 0
        out_of_patience = settings.patience is not None and since >= settings.patience
        progress.finished = progress.epoch >= settings.epochs or out_of_patience
        self.folder.forget_results(better)  # whoever evaluated meanwhile did so with weights that are now surpassed
        if "joint" in better:
            split = self.config.data.dev
            ids = [sentence.id for sentence in self.dev]
            self.folder.write_results(split, evaluation.scores, ids, evaluation.counts, evaluation.predictions)
        self.folder.write_json("best.json", progress.best)
        if progress.finished:
            self.finish()
        else:
            self.checkpoint()
        tidy(self.folder, progress)
        self.watch(Event(progress, updates, self.total, {}, 0, evaluation, gates))

    def settled(self) -> bool:
        """Whether the present weights may count as the best: gates that are steered need time to reach their number."""
        return self.pressure is None or self.pressure.penalty.settled(self.progress.step)

    def finish(self) -> None:
        """Note the end in the manifest."""
        self.note()
        ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        record = {"ended": ended, "peak_memory": hardware.peak_memory(), "finished": asdict(self.progress)}
        self.folder.write_json("manifest.json", {**self.folder.read_manifest(), **record})

    def note(self) -> None:
        """Bring the record of where training stands up to date."""
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        self.progress.balance = self.balance.state()
        if self.pressure is not None:
            self.progress.penalty = self.pressure.penalty.state()
        self.progress.log_size = log_size(self.folder.metrics_path)
        self.progress.gates_size = log_size(self.folder.gates_path)

    def checkpoint(self) -> None:
        self.note()
        self.board.flush()  # before the checkpoint, so that nothing of it is missing in a run that goes on
        save_checkpoint(self.folder.checkpoint_path, self.model, self.optimizer, self.progress)
        self.saved_at = time.monotonic()


def tidy(folder: RunFolder, progress: Progress) -> None:
    """Remove large files nobody needs: weights that are no one's best any more, halves that a killed process left, and
    the checkpoint of a finished run."""
    kept = {folder.weights_path(int(best["epoch"])) for best in progress.best.values()}
    weights = folder.path / "weights"
    halves = [folder.path / ".checkpoint.safetensors.part", *weights.glob(".epoch-*.safetensors.part")]
    halves += [*folder.path.glob(".tmp??????"), *weights.glob(".tmp??????")]  # safetensors' own halves of these
    for path in [*halves, *(path for path in weights.glob("epoch-*.safetensors") if path not in kept)]:
        path.unlink(missing_ok=True)
    if progress.finished:
        folder.checkpoint_path.unlink(missing_ok=True)
