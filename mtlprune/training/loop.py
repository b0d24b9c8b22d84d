"""The training loop.

for each epoch:                       order of batches from (seed, epoch)
    for each update:                  dropout and noise from (seed, step, tasks)
        for each mini-batch:          one encoding; the losses of its tasks; balance; backward
        sum the gradients             of all processes, where there are several (parallel.py)
        clip; the gates' penalty; step, schedule    (pruning.in_loss: the penalty is in the losses, and clipped)
    predict dev, count, score; keep the best weights, joint and by task    (train.evaluate_every: within epochs too)
    checkpoint

Of several processes only the first one writes.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlprune.config.config import Config
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.errors import MtlpruneError
from mtlprune.io.files import one_writer, reading, remove, remove_halves
from mtlprune.model import Batch, MultiTaskModel, autocast
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Term
from mtlprune.training import hardware, mixing
from mtlprune.training.arcs import SyntaxTerm, uas_line
from mtlprune.training.checkpoint import (
    AGAIN,
    Progress,
    epoch_generator,
    finished,
    load_checkpoint,
    note_end,
    save_checkpoint,
    save_weights,
    seed_step,
)
from mtlprune.training.evaluation import Evaluation, evaluate
from mtlprune.training.optimisation import Balance, cosreg, make_optimizer, schedule
from mtlprune.training.parallel import ALONE, ProcessGroup, joined, numbers, read
from mtlprune.training.pruning import GatePenalty, fix_heads, gate_sets, record
from mtlprune.training.setup import check_same, check_whole, decide, prepare
from mtlprune.training.tracking import TRACKERS
from mtlprune.training.treatments import Treatments, begin_treatments

log = logging.getLogger(__name__)


class TrainingError(MtlpruneError):
    """Training cannot go on; the message says where it stopped and what is kept."""

    exit_code = 3
    spoken_by = 1  # all processes of a run meet it together


@dataclass
class Event:
    """What a watcher is told after each update and each evaluation."""

    progress: Progress
    updates: int
    """Updates of the present epoch."""
    total: int
    """Updates of all epochs."""
    losses: dict[str, float]
    """Of the update; at an evaluation, means since the last one as metrics.jsonl has them."""
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
    with joined() as group, ExitStack() as held:
        with group.agreed():
            folder.refuse_packed("weights")
            corpus = load_corpus(Path(config.data.path))  # before anything is made: a wrong path leaves no folder
            if group.leads:
                held.enter_context(folder.locked())
            trainer = _begin(config, folder, corpus, group)
        if isinstance(trainer, Progress):
            return trainer
        group.send_state(trainer.model)
        trainer.stop = stop
        if group.leads:
            trainer.watch = watch
        with closing(trainer.writer):
            return trainer.run()


def _begin(config: Config, folder: RunFolder, corpus: Corpus, group: ProcessGroup) -> "Trainer | Progress":
    """Begin a run, or take it up again; where a finished one stands."""
    config = decide(config, folder)
    group.take(config.train.device)
    if folder.config_path.exists():
        check_same(config, folder, corpus.fingerprint)
    elif group.leads:
        folder.check_ours()
    if done := finished(folder):
        folder.verify()
        for key, best in done.best.items():
            folder.verify_weights(key, best)
        if group.leads:
            tidy(folder, done)  # in case the end was cut short just here
        return done
    if folder.config_path.exists():
        check_whole(config, folder)
    run = prepare(config, folder, corpus, group.leads, group.size)
    optimizer = make_optimizer(run.model, config)
    progress = Progress()
    if folder.checkpoint_path.exists():
        progress = load_checkpoint(folder.checkpoint_path, run.model, optimizer)
        log.info("going on after epoch %d, update %d", progress.epoch, progress.update)
    elif group.leads:
        precision = config.train.precision.replace("fp16", "fp32")  # nothing scales the derivatives by which it chooses
        begin_treatments(run, folder, hardware.dtype(precision))
        fix_heads(run, folder, hardware.dtype(precision))
    if group.leads:
        take_up(folder, progress)
    return Trainer(run, folder, optimizer, progress, group=group)


class Trainer:
    """One process's share of a run."""

    watch: Callable[[Event], None] = staticmethod(lambda event: None)
    stop: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self, run: Any, folder: RunFolder, optimizer: Any, progress: Progress, group: ProcessGroup = ALONE
    ) -> None:
        self.config: Config = run.config
        self.model: MultiTaskModel = run.model
        self.data = run
        self.dev: Sequence[Sentence] = run.dev
        self.folder, self.optimizer, self.progress = folder, optimizer, progress
        self.group = group
        how = self.config.train
        self.balance = Balance(how.balance, how.weights, how.balance_window, how.decoder_rate)
        self.precision = hardware.dtype(self.config.train.precision)
        self.scaler = torch.amp.GradScaler(self.model.device.type, enabled=self.precision == torch.float16)
        clipped = [group for group in optimizer.param_groups if self.config.pruning.in_loss or not group["gates"]]
        self.parameters = [p for group in clipped for p in group["params"]]
        self.moving = [p for group in optimizer.param_groups for p in group["params"]]
        self.sets = gate_sets(self.model)
        updates = [len(self.plan(epoch)) for epoch in range(self.config.train.epochs)]
        self.total = sum(updates)
        moving = self.config.pruning.moves
        self.penalty = GatePenalty(self.config, self.model, self.total) if moving else None
        with reading(folder.checkpoint_path, RunError, AGAIN):
            self.balance.restore(progress.balance)
            if progress.scale:
                self.scaler.load_state_dict(progress.scale)
            if self.penalty is not None:
                self.penalty.penalty.restore(progress.penalty)
            done = sum(updates[: progress.epoch]) + progress.update
            if progress.epoch >= len(updates) or progress.update > updates[progress.epoch] or progress.step != done:
                raise ValueError(
                    f"update {progress.update} of epoch {progress.epoch + 1} (update {progress.step} in all) where "
                    f"{len(updates)} epochs are {self.total} updates"
                )
        self.syntax = SyntaxTerm(run)
        self.treatments = Treatments(run, folder, self.total, group)
        # treatments may take several backward passes, which the overlapping sum knows nothing of
        self.overlapping = None if self.treatments.all else group.overlapping(self.model)
        self.writer = RunWriter(run, folder, optimizer, progress, group)
        self.ahead: tuple[mixing.MiniBatch | None, Batch | None] = None, None
        self.started_at = time.monotonic()
        self.seconds_before = progress.seconds
        self.cpu_before = progress.cpu_seconds - time.process_time()

    def plan(self, epoch: int) -> list[list[mixing.MiniBatch]]:
        """The mini-batches of an epoch, grouped into updates."""
        settings = self.config.train
        return mixing.plan(settings, self.data.lengths, self.data.known, epoch_generator(settings.seed, epoch))

    def run(self) -> Progress:
        while not self.progress.finished:
            updates = self.plan(self.progress.epoch)
            self.model.train()
            for place, update in enumerate(updates[self.progress.update :], self.progress.update + 1):
                if self.due():  # after the update before, or after the one that was the last before a stop
                    self.evaluation(len(updates))
                    if self.progress.finished or self.group.any(self.stop()):
                        return self.progress
                    self.model.train()
                losses, sentences = self.update(update, updates[place][:1] if place < len(updates) else [])
                self.progress.update += 1
                self.progress.step += 1
                self.writer.update(losses)
                self.watch(Event(self.progress, len(updates), self.total, losses, sentences))
                if self.group.any(self.stop()):
                    self.checkpoint()
                    return self.progress
                if self.writer.due():
                    self.checkpoint()
            if self.end_epoch(len(updates)) and self.group.any(self.stop()):
                break  # a checkpoint was written just now
        return self.progress

    def due(self) -> bool:
        """Whether train.evaluate_every asks for an evaluation that has not been: it ends what losses are added up."""
        every = self.config.train.evaluate_every
        return every is not None and self.progress.step % every == 0 and bool(self.progress.losses)

    def update(
        self, mini_batches: list[mixing.MiniBatch], following: Sequence[mixing.MiniBatch] = ()
    ) -> tuple[dict[str, float], int]:
        """One step of the optimizer; returns the unweighed losses and the number of sentences.

        Args:
            following: what comes next is made while a GPU still works on this.
        """
        settings = self.config.train
        seed_step(settings.seed, self.progress.step, self.config.tasks, self.group.rank)
        rate = schedule(self.progress.step, self.total, settings.warmup, settings.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * (1.0 if group["gates"] else rate)
        self.treatments.update(self.progress.step)
        found = [self.backward(mini_batch, place, len(mini_batches)) for place, mini_batch in enumerate(mini_batches)]
        if self.overlapping is None:
            self.group.sum_gradients(self.moving)
        gradients = [parameter.grad for parameter in self.moving if parameter.grad is not None]
        if following and (own := self.group.share(following[0])).rows:
            self.ahead = following[0], self.data.batch(own)
        scaled = self.scaler.is_enabled() and bool(gradients)
        if scaled:
            self.scaler.unscale_(self.optimizer)
        fits = not scaled or math.isfinite(nn.utils.get_total_norm(gradients))  # else this update is left out
        *values, norm = read(
            [
                *(loss for losses in found for loss in losses.values()),
                nn.utils.clip_grad_norm_(self.parameters, settings.clip),
            ]
        )
        sums: dict[str, list[float]] = {}
        for task, value in zip((task for losses in found for task in losses), values, strict=True):
            if not math.isfinite(value):
                raise self.broken(f"the loss is {value}", [task])
            sums.setdefault(task, []).append(value)
        if not math.isfinite(norm) and (fits or self.scaler.get_scale() < 1):
            raise self.broken(f"the gradient is {norm}", list(sums))
        if fits and self.penalty is not None:
            self.seed_gates(len(mini_batches))
            self.penalty.apply(set(sums), self.progress.step)
        if fits:
            self.optimizer.step()
        if scaled:
            self.scaler.update()
        if fits and settings.balance == "famo":
            seed_step(settings.seed, self.progress.step, self.config.tasks, self.group.rank)
            with torch.no_grad():
                self.balance.after(numbers(self.losses(mini_batches[0], 0)[1]))
        self.optimizer.zero_grad(set_to_none=True)  # idle decoders neither step nor decay
        if self.penalty is not None:
            self.penalty.end_update(self.progress.step)
        for task, seen in sums.items():
            self.progress.add_losses(task, *seen)
        means = {task: sum(seen) / len(seen) for task, seen in sums.items()}
        return means, sum(len(mini_batch.rows) for mini_batch in mini_batches)

    def losses(self, mini_batch: mixing.MiniBatch, place: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What to differentiate here of the ``place``-th mini-batch of an update, and its unweighed losses."""
        self.seed_gates(place)
        own = self.group.share(mini_batch)
        terms: dict[str, list[Term]] = {}
        if own.rows:
            made_for, batch = self.ahead
            if made_for is not mini_batch or batch is None:
                batch = self.data.batch(own)
            seen = self.syntax.seen(batch.pieces, own.rows, self.progress.step)
            with autocast(self.model.device, self.precision), seen:
                terms = self.model.terms(batch, self.treatments.decode(own.rows))
        return self.group.losses(terms, mini_batch.tasks)

    def backward(self, mini_batch: mixing.MiniBatch, place: int, number: int) -> dict[str, Tensor]:
        """Add the gradient of the ``place``-th of an update's ``number`` mini-batches; returns its unweighed losses,
        which are not read here: a GPU would have to come to them first."""
        values: dict[str, Tensor] = {}
        weighed: dict[str, Tensor] = {}

        def loss() -> Tensor | None:
            nonlocal values, weighed
            values, weighed, total = self.weighed(mini_batch, place, number)
            return total

        with nullcontext() if self.overlapping is None else self.overlapping.update(last=place + 1 == number):
            total = loss() if self.overlapping is None else self.overlapping.forward(loss)
            scaled = {task: self.scaler.scale(part / number) for task, part in weighed.items()}
            with self.treatments.backward(scaled), self.group.answering(others_only=False):
                # nothing has a gradient where encoder and decoders are frozen and the gates fixed by now
                if total is not None and total.requires_grad:
                    self.scaler.scale(total).backward()
        return values

    def weighed(
        self, mini_batch: mixing.MiniBatch, place: int, number: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None]:
        """Unweighed losses of a mini-batch; this process's part of each, weighed; and the sum of what is to be
        differentiated here, None where there are more processes than sentences."""
        losses, values = self.losses(mini_batch, place)
        penalties = cosreg(self.config, self.model, mini_batch.tasks, self.group.leads)
        paid = dict(values)
        if self.penalty is not None and self.config.pruning.in_loss:
            for task in values:
                penalty = self.penalty.of_task(task, self.progress.step)
                paid[task] = values[task].double() + penalty.detach().double()
                if self.group.leads:  # gradients of all processes are summed
                    losses[task] = losses[task] + penalty if task in losses else penalty
        balanced = {} if self.balance.mode in ("none", "fixed") else numbers(paid)  # the others need them now
        for task, value in balanced.items():
            if not math.isfinite(value):
                raise self.broken(f"the loss is {value}", [task])
        weighed = self.balance(losses, balanced, self.progress.epoch)
        if not (every := [*weighed.values(), *penalties]):
            return values, weighed, None
        total = self.syntax.added(torch.stack(every).sum(), self.progress)
        return values, weighed, total if number == 1 else total / number

    def seed_gates(self, place: int) -> None:
        """Before gates are drawn for the ``place``-th time in an update."""
        self.group.seed_gates(self.sets, self.config.train.seed, self.progress.step, self.config.tasks, place)

    def broken(self, what: str, tasks: list[str]) -> TrainingError:
        there = self.folder.checkpoint_path.exists()
        kept = "the last checkpoint is kept" if there else "no checkpoint was written yet"
        return TrainingError(
            f"{self.folder.path}: at step {self.progress.step} (epoch {self.progress.epoch + 1}), "
            f"task {', '.join(tasks)}: {what}; {kept}. "
            f"Lower rates (train.encoder_rate, train.decoder_rate) or train.precision=fp32 often help"
        )

    def end_epoch(self, updates: int) -> bool:
        """Evaluate where it is time; whether it was."""
        self.progress.epoch += 1
        self.progress.update = 0
        settings = self.config.train
        now = settings.evaluate_every is None or self.due() or self.progress.epoch == settings.epochs
        if now:
            self.evaluation(updates)
        return now

    def evaluation(self, updates: int) -> None:
        """Score dev, keep what is best, write a checkpoint."""
        progress, settings = self.progress, self.config.train
        number = settings.evaluations(progress.epoch, progress.step)
        self.group.check_same(self.model)
        evaluation = evaluate(self.model, self.dev, self.precision, self.group)
        current = {"joint": evaluation.joint(), **evaluation.main()}
        better = [key for key, value in current.items() if value > progress.best.get(key, {}).get("score", -1.0)]
        if not self.may_be_best(last=progress.epoch >= settings.epochs):
            better = []
        progress.best.update({key: {"epoch": number, "score": current[key]} for key in better})
        train_losses = progress.take_losses()
        since = number - int(progress.best["joint"]["epoch"]) if progress.best else 0
        out_of_patience = settings.patience is not None and since >= settings.patience
        progress.finished = progress.epoch >= settings.epochs or out_of_patience
        gates = self.writer.evaluated(number, evaluation, better, train_losses)
        if progress.finished:
            self.note()
            self.writer.finish()
        else:
            self.checkpoint()
        self.writer.tidy()
        self.watch(Event(progress, updates, self.total, train_losses, 0, evaluation, gates))

    def may_be_best(self, last: bool) -> bool:
        """Whether the present weights may count as the best: gates that are steered have to come to their number.

        Args:
            last: whether there is no further evaluation; where none came to it, the last is kept, with a warning.
        """
        if self.penalty is None:
            return True
        missed = self.penalty.penalty.missed(self.sets)
        if self.penalty.penalty.settled(self.progress.step) and not missed:
            return True
        if not last or self.progress.best:
            return False
        for name, count in missed.items() if self.group.leads else ():
            log.warning(
                "%d heads are open%s, not %s: the gates had not come to their number in any epoch that could be the "
                "best, so the last one is kept; train longer, raise pruning.rate, or take pruning.penalty=exact",
                count,
                "" if name == "shared" else f" for {name}",
                self.config.pruning.keep,
            )
        return True

    def note(self) -> None:
        """Bring the record of where training stands up to date."""
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        self.progress.cpu_seconds = self.cpu_before + time.process_time()
        self.progress.balance = self.balance.state()
        self.progress.scale = self.scaler.state_dict()
        if self.penalty is not None:
            self.progress.penalty = self.penalty.penalty.state()

    def checkpoint(self) -> None:
        self.note()
        self.writer.checkpoint()


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
    with one_writer(folder.path):  # who evaluates a finished run writes there, too; a killed writer's lock goes
        for place in (folder.path, weights):
            remove_halves(place)
    remove(*(path for path in weights.glob("epoch-*.safetensors") if path not in kept))
    if progress.finished:
        remove(folder.checkpoint_path)
