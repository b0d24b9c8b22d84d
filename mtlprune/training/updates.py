"""The updates of a training, alike for tasks and for masked-language modelling; callbacks.py has their order.

The order of batches follows from (seed, epoch), dropout and noise from (seed, step, tasks).
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mtlprune.errors import MtlpruneError
from mtlprune.model import Batch, Decode, MultiTaskModel, autocast
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.forms import GateLine
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.checkpoint import Progress, save_checkpoint, seed_step
from mtlprune.training.evaluation import Evaluation
from mtlprune.training.hardware import dtype
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.optimisation import schedule
from mtlprune.training.run import gate_sets


class TrainingError(MtlpruneError):
    """Training cannot go on; the message says where it stopped and what is kept."""

    exit_code = 3


@dataclass
class Event:
    """News for a watcher, after each update and each evaluation."""

    progress: Progress
    total: int
    """Updates of all epochs."""
    losses: dict[str, float]
    """Means of the update; at an evaluation, those since the last one as the log has them."""
    evaluation: Evaluation | None = None
    gates: GateLine | None = None
    """At an evaluation of a run with gates: the line of gates.jsonl."""
    line: dict[str, Any] | None = None
    """At an evaluation of a pretraining: the line of curves.jsonl."""


class BaseTrainer(ABC):
    """The loop over updates, which the trainings of tasks and of masked-language models share."""

    watch: Callable[[Event], None] = staticmethod(lambda event: None)
    stop: Callable[[], bool] = staticmethod(lambda: False)
    callbacks: Sequence[Callback] = ()
    total: int
    """Updates of all epochs."""
    advice: str
    """Settings that help where a loss is not finite."""

    def __init__(
        self,
        model: MultiTaskModel,
        tasks: tuple[str, ...],
        batch: Callable[[MiniBatch], Batch],
        settings: Any,
        folder: RunFolder,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
    ) -> None:
        self.model, self.tasks, self.batch, self.settings = model, tasks, batch, settings
        self.folder, self.optimizer, self.progress = folder, optimizer, progress
        self.precision = dtype(settings.precision)
        # Everything that an optimizer step can change. `clipped` may leave the gates out: their gradient holds a
        # penalty that grows with training, and in a common norm it would shrink the tasks' gradient.
        self.moving = [p for group in optimizer.param_groups for p in group["params"]]
        self.clipped = self.moving
        self.sets = gate_sets(model)
        self.prefetched: tuple[MiniBatch | None, Batch | None] = None, None
        self.started_at = self.saved_at = time.monotonic()
        # Times add up over stops: what earlier processes took was read from the checkpoint.
        self.seconds_before = progress.seconds
        self.cpu_before = progress.cpu_seconds - time.process_time()

    @abstractmethod
    def plan(self, epoch: int) -> list[list[MiniBatch]]:
        """The mini-batches of an epoch, grouped into updates."""

    @abstractmethod
    def is_due(self) -> bool:
        """True where it is time for an evaluation that has not been."""

    @abstractmethod
    def evaluation(self) -> None:
        """Evaluate, and write a checkpoint or the end."""

    def run(self) -> Progress:
        """Train to the end, or until somebody wants to stop."""
        progress = self.progress
        # The state is an epoch, an update within it, and a step over all epochs. Everything random is derived from
        # these numbers, so a run that is stopped anywhere and taken up again goes through the same states, bit for
        # bit.
        while not progress.finished:
            updates = self.plan(progress.epoch)
            self.model.train()
            # The plan of an epoch is a function of the seed and the epoch, so that after a stop it is made again, and
            # the updates that were done are skipped.
            for place, update in enumerate(updates[progress.update :], progress.update + 1):
                if self.is_due():  # after the update before, or after the one that was the last before a stop
                    self.evaluation()
                    if progress.finished or self.stop():
                        return progress
                    self.model.train()
                # `place` is the number of updates of this epoch with this one, so it is also the index of the one
                # that follows.
                losses = self.update(update, updates[place][:1] if place < len(updates) else [])
                progress.update += 1
                progress.step += 1
                self.watch(Event(progress, self.total, losses))
                if self.stop():
                    self.checkpoint()
                    return progress
                if time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes:
                    self.checkpoint()
            # Between the last update of an epoch and the first of the next, the state reads (epoch + 1, 0): an end of
            # an epoch is recognised by update 0.
            progress.epoch, progress.update = progress.epoch + 1, 0
            if self.is_due():
                self.evaluation()
                if self.stop():
                    break
        return progress

    def update(self, mini_batches: list[MiniBatch], following: Sequence[MiniBatch] = ()) -> dict[str, float]:
        """One step of the optimizer; the unweighed losses by name. ``following``: what comes next is made while a GPU
        still works on this."""
        self.begin_update()
        # 1. Backward through each mini-batch; gradients add up in the parameters.
        logged = [self.backward(mini_batch, len(mini_batches)) for mini_batch in mini_batches]
        # 2. While a GPU still works on these, the host prepares the tensors of the next mini-batch.
        if following:
            self.prefetched = following[0], self.batch(following[0])
        # 3. Clip what the tasks and in-loss penalties gave. Only now does the host wait for the device, to read
        # losses and norm together.
        losses = self.clip(logged)
        for callback in self.callbacks:
            callback.before_step(losses)
        # 4. Penalties of callbacks (`before_step`) were added after clipping: a penalty that steers the number of
        # open heads must not be weakened because the tasks' gradient happens to be large.
        self.optimizer.step()
        # Gradients become None instead of 0, because an optimizer skips parameters without gradient: a decoder that
        # had no batch neither steps by its momentum nor decays.
        self.optimizer.zero_grad(set_to_none=True)
        for callback in reversed(self.callbacks):
            callback.after_step()
        return losses

    def begin_update(self) -> None:
        """Seed what is random, and set the rates."""
        progress, settings = self.progress, self.settings
        # Dropout and the noise of gates come from torch's global generator, which is seeded anew for every update by
        # the seed, the step and the tasks. So a resumed run needs no saved generator state.
        seed_step(settings.seed, progress.step, self.tasks)
        rate = schedule(progress.step, self.total, settings.warmup, settings.schedule)
        for group in self.optimizer.param_groups:
            # Gates do not follow the schedule: they have to be able to close when the rate of all else falls to 0.
            group["lr"] = group["peak"] * (1.0 if group.get("gates") else rate)
        for callback in self.callbacks:
            callback.before_update(progress.step, progress.epoch)

    def backward(self, mini_batch: MiniBatch, number: int) -> dict[str, Tensor]:
        """Add the gradient of one of an update's ``number`` mini-batches; its unweighed losses by name. Reading
        them here would force a host–device sync."""
        losses = self.losses(mini_batch)
        for callback in self.callbacks:
            callback.terms(losses)
        # The mean over the mini-batches of an update, so that accumulating does not change the size of the gradient.
        if number > 1:
            losses.tasks, losses.penalties = (
                {name: loss / number for name, loss in terms.items()} for terms in (losses.tasks, losses.penalties)
            )
        # One scalar and one backward pass for all tasks, because they share the encoding. Callbacks that need
        # gradients by task (projection, allocation) take them in their `backward` context.
        loss = torch.stack([*losses.tasks.values(), *losses.penalties.values()]).sum()
        with ExitStack() as contexts:
            for callback in self.callbacks:
                contexts.enter_context(callback.backward(losses.tasks))
            if loss.requires_grad:  # nothing does where encoder and decoders are frozen and the gates fixed by now
                loss.backward()
        return losses.logged

    def losses(self, mini_batch: MiniBatch) -> Losses:
        """The losses of a mini-batch, as its decoders have them."""
        # Compared by identity: the prefetched tensors are only used for the very mini-batch they were made for, as
        # after an evaluation another one may come.
        made_for, batch = self.prefetched
        if made_for is not mini_batch or batch is None:
            batch = self.batch(mini_batch)
        decode: Decode = self.model.decoder_loss
        with ExitStack() as contexts:
            for callback in self.callbacks:
                contexts.enter_context(callback.forward(batch, mini_batch.rows))
                # Each callback may wrap the function that turns an encoding into a loss, so distillation or
                # projection changes what is computed without the loop knowing of it.
                decode = callback.decode(decode, mini_batch.rows)
            with autocast(self.model.device, self.precision):
                losses = self.model.losses(batch, decode)
        return Losses(mini_batch, losses, logged={task: loss.detach() for task, loss in losses.items()})

    def recompute_losses(self, mini_batch: MiniBatch) -> dict[str, Tensor]:
        """The losses of the present update's mini-batch with the weights as they are now, and the same noise."""
        seed_step(self.settings.seed, self.progress.step, self.tasks)
        with torch.no_grad():
            return self.losses(mini_batch).tasks

    def clip(self, logged: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        """Clip the gradient, and read all that the host waits for; mean losses by name. Raises TrainingError: a loss or
        a gradient is not finite."""
        tensors = [loss for losses in logged for loss in losses.values()]
        norm = nn.utils.clip_grad_norm_(self.clipped, self.settings.clip)
        # One transfer for all numbers. Checking each loss where it arises would make the host wait after every mini-
        # batch.
        *values, norm = torch.stack([*tensors, norm]).tolist()
        by_name: dict[str, list[float]] = {}
        for name, value in zip((name for losses in logged for name in losses), values, strict=True):
            if not math.isfinite(value):
                raise self.divergence_error(f"the loss is {value}", [name])
            by_name.setdefault(name, []).append(value)
        if not math.isfinite(norm):
            raise self.divergence_error(f"the gradient is {norm}", list(by_name))
        for name, task_losses in by_name.items():
            self.progress.add_losses(name, *task_losses)
        return {name: sum(task_losses) / len(task_losses) for name, task_losses in by_name.items()}

    def divergence_error(self, problem: str, names: list[str]) -> TrainingError:
        exists = self.folder.checkpoint_path.exists()
        checkpoint_state = "the last checkpoint is kept" if exists else "no checkpoint has been written yet"
        return TrainingError(
            f"{self.folder.path}: at step {self.progress.step} (epoch {self.progress.epoch + 1}), "
            f"task {', '.join(names)}: {problem}; {checkpoint_state}. {self.advice}"
        )

    def note(self) -> None:
        """Bring the record of where training stands up to date."""
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        self.progress.cpu_seconds = self.cpu_before + time.process_time()

    def checkpoint(self) -> None:
        """Write everything that is needed to go on from here."""
        self.note()
        save_checkpoint(self.folder.checkpoint_path, self.model, self.optimizer, self.progress)
        self.saved_at = time.monotonic()
