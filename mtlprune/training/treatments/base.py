"""The base of treatments: refusals before a run begins, and a callback of the training loop; and gradients by the
weights of heads, weighed task by task, without a gradient of the whole encoder for each task."""

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

Settings = TypeVar("Settings", bound=Block)


@dataclass(frozen=True)
class TreatmentContext(Generic[Settings]):
    """A run as its treatments see it."""

    options: Settings
    """The treatment's settings."""
    run: Run
    folder: RunFolder
    total: int
    """Updates."""
    heads: Sets
    """That are treated: (L, A) of bool for each task, or for all of them as "shared"; nothing without heads."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.run.config.tasks


class Treatment(Callback, Generic[Settings]):
    """One treatment of one run: what it does before the first update, and as a `Callback` in each.

    Letters: L layers, A heads a layer, T tasks of the batch.
    """

    Options: ClassVar[type[Block]]
    """Its settings; heads among them are called ``heads``."""
    one_set: ClassVar[bool] = True
    """True where all tasks share the set of heads."""

    def __init__(self, run: TreatmentContext[Settings]) -> None:
        self.options, self.tasks = run.options, run.tasks

    @classmethod
    def heads_of(cls, options: Settings) -> HeadsConfig | None:
        """The settings of heads; None where none are treated."""
        return getattr(options, "heads", None)

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        """Refuse models whose heads cannot be treated; asked where heads are. Raises EncoderError."""
        check_own_weights(model.encoder)

    @classmethod
    def check(cls, run: NewRun, options: Settings) -> None:
        """Refuse what cannot be done. Raises ConfigError or RunError."""

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: Settings) -> None:
        """Add parameters to a new model; what random numbers others draw must not change by it."""

    @classmethod
    def begin(cls, options: Settings, run: Run, folder: RunFolder, precision: torch.dtype) -> None:
        """Change the weights that the run begins with."""

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        """Numbers that the gradients of tasks by each head's weights are multiplied with before they are added.
        ``gram``: gives (L, A, T, T) float64, scalar products of the tasks' gradients by the weights of each head; it
        costs a backward pass a task, down to the lowest of the layers that it is given (all, if none). Returns (T, L,
        A); None for 1 everywhere."""
        return None


class HeadGradients(Callback):
    """Puts Σ_t c_t(h) · ∂L_t / ∂W_h in the place of Σ_t ∂L_t / ∂W_h for the weights of heads h. ``treatments``: that
    have factors.

    Hooks on the parameters do so within the one backward pass of all losses, before gradients are added to those of
    earlier mini-batches. Tasks with the same factors everywhere share a backward pass; where all do, there is no
    further one. Otherwise each costs a pass down to the lowest layer with a factor that is not 1, and of weight
    gradients only those of heads.
    """

    def __init__(self, model: MultiTaskModel, treatments: Sequence[Treatment[Any]] = ()) -> None:
        self.treatments = treatments
        self.parts = head_parameters(model.encoder)
        self.size = model.encoder.head_hooks.layers, model.encoder.head_hooks.heads
        self.factor: dict[int, Tensor] = {}  # of the only gradient there is
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
        places = [n for n, part in enumerate(self.parts) if tasks and bool((factor_grid[:, part.layer] != 1).any())]
        tasks_by_factors: dict[bytes, list[int]] = {}
        for row, task_factors in enumerate(factor_grid):
            tasks_by_factors.setdefault(task_factors.numpy().tobytes(), []).append(row)
        groups = list(tasks_by_factors.values())
        if len(groups) == 1:
            self.factor = {n: self.parts[n].broadcast_to_rows(factor_grid[0, self.parts[n].layer]) for n in places}
        elif places:
            if gradients_by_part.keys() >= set(places):
                groups = [[row] for row in range(len(tasks))]
                gradients = [[gradients_by_part[n][row] for n in places] for row in range(len(tasks))]
            else:
                joined = [torch.stack([losses[tasks[row]] for row in group]).sum() for group in groups]
                gradients = self.of_tasks(dict(enumerate(joined)), [self.parts[n] for n in places])
            for place, n in enumerate(places):
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
        """The gradients of each loss by the parts, as they are."""
        parameters = [part.parameter for part in parts]
        gradients = []
        for loss in losses.values():
            task_gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            gradients.append(
                [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, task_gradients, strict=True)]
            )
        return gradients

    def gram(self, gradients: Mapping[int, Sequence[Tensor]], tasks: int) -> Tensor:
        """(L, A, T, T) float64: scalar products of the tasks' gradients by each head's weights, of these parts."""
        return products(((self.parts[n], part_gradients) for n, part_gradients in gradients.items()), *self.size, tasks)
