"""The loop over updates that the training of tasks and masked-language pretraining share.

`callbacks.Callback` documents the order of the steps within an update. The order of batches follows from (seed, epoch);
dropout and the noise of gates follow from (seed, step, tasks).
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
    """Training cannot continue; the message says at which update it stopped and whether a checkpoint exists."""

    exit_code = 3


@dataclass
class Event:
    """The argument of the function ``watch``, which the training calls after each update and each evaluation."""

    progress: Progress
    total: int
    """Number of updates in all epochs."""
    losses: dict[str, float]
    """Name → mean loss of the update, or at an evaluation, mean loss since the last evaluation."""
    evaluation: Evaluation | None = None
    """The evaluation; None after an update."""
    gates: GateLine | None = None
    """The line of gates.jsonl, at an evaluation of a run with gates."""
    line: dict[str, Any] | None = None
    """The line of curves.jsonl, at an evaluation of a pretraining."""


class BaseTrainer(ABC):
    """The loop over updates; subclasses define the mini-batches, the evaluation and when to evaluate."""

    watch: Callable[[Event], None] = staticmethod(lambda event: None)
    stop: Callable[[], bool] = staticmethod(lambda: False)
    callbacks: Sequence[Callback] = ()
    total: int
    """Number of updates in all epochs."""
    advice: str
    """Advice in the error message about a loss or gradient that is not finite."""

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
        # `moving` are all parameters that the optimizer can change. Subclasses may leave the gates out of `clipped`,
        # because their gradient includes a penalty that grows during training. A common norm of both would shrink the
        # gradient of the tasks.
        self.moving = [p for group in optimizer.param_groups for p in group["params"]]
        self.clipped = self.moving
        self.sets = gate_sets(model)
        self.prefetched: tuple[MiniBatch | None, Batch | None] = None, None
        self.started_at = self.saved_at = time.monotonic()
        # Times of all processes that trained the run add up; the checkpoint holds the times of earlier processes.
        self.seconds_before = progress.seconds
        self.cpu_before = progress.cpu_seconds - time.process_time()

    @abstractmethod
    def plan(self, epoch: int) -> list[list[MiniBatch]]:
        """Return the mini-batches of an epoch, grouped into updates."""

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether an evaluation is due that has not taken place yet."""

    @abstractmethod
    def evaluation(self) -> None:
        """Evaluate the model, and write a checkpoint or, at the end of the training, record the finish."""

    def run(self) -> Progress:
        """Train until the run is finished or ``stop()`` returns True, and return the progress."""
        progress = self.progress
        # The state is an epoch, an update within the epoch, and a step over all epochs. Everything random is derived
        # from these numbers, so that a run that is stopped anywhere and resumed passes through the same states, bit
        # for bit.
        while not progress.finished:
            updates = self.plan(progress.epoch)
            self.model.train()
            # The plan of an epoch is a function of the seed and the epoch. So a resumed run makes the same plan, and
            # skips the updates that are already done.
            for place, update in enumerate(updates[progress.update :], progress.update + 1):
                if self.is_due():  # for the previous update, which an earlier process may have made before it stopped
                    self.evaluation()
                    if progress.finished or self.stop():
                        return progress
                    self.model.train()
                # `place` counts this epoch's updates from 1, so it is also the index of the next update.
                losses = self.update(update, updates[place][:1] if place < len(updates) else [])
                progress.update += 1
                progress.step += 1
                self.watch(Event(progress, self.total, losses))
                if self.stop():
                    self.checkpoint()
                    return progress
                if time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes:
                    self.checkpoint()
            # Between the last update of an epoch and the first update of the next epoch, the state is (epoch + 1, 0).
            # So `update == 0` marks the end of an epoch.
            progress.epoch, progress.update = progress.epoch + 1, 0
            if self.is_due():
                self.evaluation()
                if self.stop():
                    break
        return progress

    def update(self, mini_batches: list[MiniBatch], following: Sequence[MiniBatch] = ()) -> dict[str, float]:
        """Make one step of the optimizer, and return the unweighted losses by name.

        Args:
            mini_batches: the mini-batches whose gradients are accumulated.
            following: the next mini-batch, if there is one; its tensors are made while a GPU works on this update.
        """
        self.begin_update()
        # 1. Backward through each mini-batch; gradients add up in the parameters.
        logged = [self.backward(mini_batch, len(mini_batches)) for mini_batch in mini_batches]
        # 2. While a GPU still works on these mini-batches, the host prepares the tensors of the next one.
        if following:
            self.prefetched = following[0], self.batch(following[0])
        # 3. Clip the gradients of the tasks and of the penalties within the loss. Only now does the host wait for the
        # device, to read losses and norm together.
        losses = self.clip(logged)
        for callback in self.callbacks:
            callback.before_step(losses)
        # 4. Callbacks have added further gradients after clipping (`before_step`), because a penalty that steers the
        # number of open heads must not become weaker when the gradient of the tasks is large.
        self.optimizer.step()
        # Gradients become None instead of 0, because an optimizer skips parameters without a gradient. So a decoder
        # without a batch in an update is changed neither by its momentum nor by weight decay.
        self.optimizer.zero_grad(set_to_none=True)
        for callback in reversed(self.callbacks):
            callback.after_step()
        return losses

    def begin_update(self) -> None:
        """Seed the random generators for the update, and set the learning rates."""
        progress, settings = self.progress, self.settings
        # Dropout and the noise of gates come from torch's global generator. It is seeded for every update with the
        # seed, the step and the tasks, so that a resumed run needs no saved generator state.
        seed_step(settings.seed, progress.step, self.tasks)
        rate = schedule(progress.step, self.total, settings.warmup, settings.schedule)
        for group in self.optimizer.param_groups:
            # Gates do not follow the schedule, because they must be able to close when the other rates approach 0.
            group["lr"] = group["peak"] * (1.0 if group.get("gates") else rate)
        for callback in self.callbacks:
            callback.before_update(progress.step, progress.epoch)

    def backward(self, mini_batch: MiniBatch, number: int) -> dict[str, Tensor]:
        """Add the gradient of a mini-batch to the parameters, and return its unweighted losses by name, as tensors.

        The losses stay on the device, because reading them here would make the host wait for it.

        Args:
            number: the number of mini-batches in the update.
        """
        losses = self.losses(mini_batch)
        for callback in self.callbacks:
            callback.terms(losses)
        # Losses are averaged over the mini-batches of an update, so that accumulation does not change the size of the
        # gradient.
        if number > 1:
            losses.tasks, losses.penalties = (
                {name: loss / number for name, loss in terms.items()} for terms in (losses.tasks, losses.penalties)
            )
        # All tasks need only one backward pass, because they share the encoding. Callbacks that need the gradients of
        # single tasks (projection, allocation) compute them in their `backward` context.
        loss = torch.stack([*losses.tasks.values(), *losses.penalties.values()]).sum()
        with ExitStack() as contexts:
            for callback in self.callbacks:
                contexts.enter_context(callback.backward(losses.tasks))
            if loss.requires_grad:  # False if encoder and decoders are frozen and the gates are fixed
                loss.backward()
        return losses.logged

    def losses(self, mini_batch: MiniBatch) -> Losses:
        """Run the forward pass of a mini-batch, and return the unweighted losses of its tasks."""
        # Prefetched tensors belong to a specific mini-batch object. They are not used if another mini-batch comes.
        made_for, batch = self.prefetched
        if made_for is not mini_batch or batch is None:
            batch = self.batch(mini_batch)
        decode: Decode = self.model.decoder_loss
        with ExitStack() as contexts:
            for callback in self.callbacks:
                contexts.enter_context(callback.forward(batch, mini_batch.rows))
                # Each callback may wrap the function that computes a loss from the encoding, so that the loop needs no
                # code for distillation or projection.
                decode = callback.decode(decode, mini_batch.rows)
            with autocast(self.model.device, self.precision):
                losses = self.model.losses(batch, decode)
        return Losses(mini_batch, losses, logged={task: loss.detach() for task, loss in losses.items()})

    def recompute_losses(self, mini_batch: MiniBatch) -> dict[str, Tensor]:
        """Compute the losses of a mini-batch of the current update with the current weights and the update's noise."""
        seed_step(self.settings.seed, self.progress.step, self.tasks)
        with torch.no_grad():
            return self.losses(mini_batch).tasks

    def clip(self, logged: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        """Clip the gradient, and return the mean losses of the update by name, as numbers.

        Raises TrainingError if a loss or the norm of the gradient is not finite.

        Args:
            logged: the losses of each mini-batch by name.
        """
        tensors = [loss for losses in logged for loss in losses.values()]
        norm = nn.utils.clip_grad_norm_(self.clipped, self.settings.clip)
        # All numbers are read in one transfer, because checking each loss at once would make the host wait after every
        # mini-batch.
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
        """Return the error about a loss or gradient that is not finite. ``names``: names of the losses concerned."""
        exists = self.folder.checkpoint_path.exists()
        checkpoint_state = "the last checkpoint is kept" if exists else "no checkpoint has been written yet"
        return TrainingError(
            f"{self.folder.path}: at step {self.progress.step} (epoch {self.progress.epoch + 1}), "
            f"task {', '.join(names)}: {problem}; {checkpoint_state}. {self.advice}"
        )

    def note(self) -> None:
        """Update the times in the progress, and in subclasses the state of callbacks."""
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        self.progress.cpu_seconds = self.cpu_before + time.process_time()

    def checkpoint(self) -> None:
        """Write a checkpoint from which the training can be resumed."""
        self.note()
        save_checkpoint(self.folder.checkpoint_path, self.model, self.optimizer, self.progress)
        self.saved_at = time.monotonic()
