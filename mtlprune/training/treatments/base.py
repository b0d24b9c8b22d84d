"""The base class of treatments, and the callback that weights the gradients of heads for each task separately."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from mtlprune.config.blocks import HeadsConfig
from mtlprune.io.block import Block
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.callbacks import Callback
from mtlprune.training.head_gradients import HeadParameter, head_parameters, products
from mtlprune.training.heads import Sets, check_own_weights
from mtlprune.training.run import NewRun, Run

_Settings = TypeVar("_Settings", bound=Block)


@dataclass(frozen=True)
class TreatmentContext(Generic[_Settings]):
    """The arguments with which a treatment is created."""

    options: _Settings
    """The settings of the treatment."""
    run: Run
    folder: RunFolder
    total: int
    """The number of updates of the run."""
    heads: Sets
    """The treated heads, task (or "shared") → mask (L, A); empty if the treatment is not about heads."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the run."""
        return self.run.config.tasks


class Treatment(Callback, Generic[_Settings]):
    """Base class of treatments: class methods act before the first update, and the `Callback` acts in each update.

    Letters for shapes: L layers, A heads of a layer, T tasks of the mini-batch.
    """

    Options: ClassVar[type[Block]]
    """The class of the settings; a setting that chooses heads is called ``heads``."""
    one_set: ClassVar[bool] = True
    """Whether all tasks share a set of heads."""

    def __init__(self, run: TreatmentContext[_Settings]) -> None:
        self.options, self.tasks = run.options, run.tasks

    @classmethod
    def heads_of(cls, options: _Settings) -> HeadsConfig | None:
        """Return the settings that choose the treated heads; None for a treatment that is not about heads."""
        return getattr(options, "heads", None)

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        """Raise EncoderError if the heads of a model cannot be treated; called only for treatments of heads."""
        check_own_weights(model.encoder)

    @classmethod
    def check(cls, run: NewRun, options: _Settings) -> None:
        """Raise ConfigError or RunError if the settings of the treatment do not fit the run."""

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: _Settings) -> None:
        """Add parameters to a new model, without changing the random numbers that other code draws."""

    @classmethod
    def begin(cls, options: _Settings, run: Run, folder: RunFolder, precision: torch.dtype) -> None:
        """Change the weights of the model before the first update."""

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        """Return factors for the gradients of tasks with respect to the weights of each head, before they are summed.

        Args:
            tasks: the T tasks of the mini-batch.
            gram: function that returns the scalar products of the tasks' gradients with respect to the weights of each
                head, (L, A, T, T) float64. Its argument lists the layers that are needed (by default all). It costs a
                backward pass for each task, down to the lowest of these layers.

        Returns:
            The factors, (T, L, A); None if all factors are 1.
        """
        return None


class HeadGradients(Callback):
    """Callback that replaces Σ_t ∂L_t / ∂W_h by Σ_t c_t(h) · ∂L_t / ∂W_h for the weights W_h of each head h.

    The factors c_t(h) are the product of the factors of all treatments. Hooks on the parameters replace the gradient
    during the backward pass of the summed loss, before it is added to the gradients of earlier mini-batches.

    If all tasks have the same factors, no further backward pass is needed. Otherwise, each group of tasks with the same
    factors costs a backward pass down to the lowest layer with a factor other than 1. It computes weight gradients only
    for the parameters of heads.

    Args:
        treatments: the treatments that define `Treatment.factors`.
    """

    def __init__(self, model: MultiTaskModel, treatments: Sequence[Treatment[Any]] = ()) -> None:
        self.treatments = treatments
        self.parts = head_parameters(model.encoder)
        self.size = model.encoder.head_hooks.layers, model.encoder.head_hooks.heads
        # Index of a parameter → the factor of its gradient, if all tasks have the same factors.
        self.factor: dict[int, Tensor] = {}
        # Index of a parameter → the sum that replaces its gradient, if tasks have different factors.
        self.sums: dict[int, Tensor] = {}
        for place, part in enumerate(self.parts):
            part.parameter.register_hook(partial(self._replace_gradient, place))

    def _replace_gradient(self, place: int, gradient: Tensor) -> Tensor | None:
        if place in self.sums:
            return self.sums[place]
        return gradient * self.factor[place] if place in self.factor else None

    @contextmanager
    def backward(self, losses: Mapping[str, Tensor]) -> Iterator[None]:
        tasks, gradients_by_part = list(losses), dict[int, list[Tensor]]()

        def gram(layers: Collection[int] | None = None) -> Tensor:
            part_numbers = [n for n, part in enumerate(self.parts) if layers is None or part.layer in layers]
            if missing_parts := [n for n in part_numbers if n not in gradients_by_part]:
                gradients = self.of_tasks(losses, [self.parts[n] for n in missing_parts])
                gradients_by_part.update(zip(missing_parts, map(list, zip(*gradients, strict=True)), strict=True))
            return self.gram({n: gradients_by_part[n] for n in part_numbers}, len(tasks))

        factor_grid = torch.ones(len(tasks), *self.size)
        for treatment in self.treatments:
            if (factors := treatment.factors(tasks, gram)) is not None:
                factor_grid = factor_grid * factors.to(factor_grid)
        indices = [n for n, part in enumerate(self.parts) if tasks and bool((factor_grid[:, part.layer] != 1).any())]
        tasks_by_factors: dict[bytes, list[int]] = {}
        for row, task_factors in enumerate(factor_grid):
            tasks_by_factors.setdefault(task_factors.numpy().tobytes(), []).append(row)
        groups = list(tasks_by_factors.values())
        if len(groups) == 1:
            self.factor = {n: self.parts[n].broadcast_to_rows(factor_grid[0, self.parts[n].layer]) for n in indices}
        elif indices:
            if gradients_by_part.keys() >= set(indices):
                groups = [[row] for row in range(len(tasks))]
                gradients = [[gradients_by_part[n][row] for n in indices] for row in range(len(tasks))]
            else:
                joined = [torch.stack([losses[tasks[row]] for row in group]).sum() for group in groups]
                gradients = self.of_tasks(dict(enumerate(joined)), [self.parts[n] for n in indices])
            for place, n in enumerate(indices):
                part = self.parts[n]
                pairs = zip(groups, gradients, strict=True)
                terms = [
                    gradients[place] * part.broadcast_to_rows(factor_grid[group[0], part.layer])
                    for group, gradients in pairs
                ]
                self.sums[n] = torch.stack(terms).sum(0)
        try:
            yield
        finally:
            self.factor, self.sums = {}, {}

    @staticmethod
    def of_tasks(losses: Mapping[Any, Tensor], parts: Sequence[HeadParameter]) -> list[list[Tensor]]:
        """Compute the gradients of each loss with respect to the parameters of ``parts``."""
        parameters = [part.parameter for part in parts]
        gradients = []
        for loss in losses.values():
            task_gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            gradients.append(
                [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, task_gradients, strict=True)]
            )
        return gradients

    def gram(self, gradients: Mapping[int, Sequence[Tensor]], tasks: int) -> Tensor:
        """Compute scalar products of the tasks' gradients with respect to each head's weights, (L, A, T, T) float64.

        Args:
            gradients: index of a parameter → its gradient for each task.
        """
        return products(((self.parts[n], part_gradients) for n, part_gradients in gradients.items()), *self.size, tasks)
