"""Assign gradients to heads: some heads are kept from tasks, each task moves its own, or has a clone of its own; or
conflicts are taken out, at the encoder's output or at the weights of each head: PCGrad (Yu et al. 2020).

    g_i ← g_i − (g_i · g_j / ‖g_j‖²) g_j where g_i · g_j < 0, for all j ≠ i in random order; then Σ_i g_i

All of it follows from the products of the original gradients, so only these are computed, and the result is a weighed
sum of the gradients. At the output (features) each gradient is of all word vectors and special tokens of the batch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.config.blocks import CloneConfig, DispatchConfig, HeadsConfig, ProjectConfig, ProtectConfig
from mtlprune.encoder.batch import Encoded
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.pieces import EncoderError
from mtlprune.model import SHARED, Decode, MultiTaskModel
from mtlprune.training.checkpoint import step_seed
from mtlprune.training.heads import Sets
from mtlprune.training.treatments.base import Treatment, TreatmentContext


class Protect(Treatment[ProtectConfig]):
    """Keep some heads from tasks: their gradient from these is 0 from the first update on."""

    Options = ProtectConfig

    def __init__(self, run: TreatmentContext[ProtectConfig]) -> None:
        super().__init__(run)
        self.open = (~run.heads[SHARED]).float()
        self.kept_from = set(self.options.tasks or run.tasks)

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        if not self.kept_from & set(tasks):
            return None
        all_open = torch.ones_like(self.open)
        return torch.stack([self.open if task in self.kept_from else all_open for task in tasks])


class Dispatch(Treatment[DispatchConfig]):
    """Allocate heads: in the last updates each task's gradient moves its own heads only.

    Important-attention training (Li et al. 2023, arXiv 2310.10318): the gradient of head h from task t is multiplied by
    1[h ∈ S_t]. Heads in no task's set then stay as they are but for what the optimiser remembers. All heads for all
    tasks are joint training, bit for bit.
    """

    Options = DispatchConfig
    one_set = False

    def __init__(self, run: TreatmentContext[DispatchConfig]) -> None:
        super().__init__(run)
        # The first update in which allocation is on, counted from 0; with `last` = 1 it is update 0.
        self.heads, self.first = run.heads, run.total - math.ceil(self.options.last * run.total)
        self.active = False

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.active = step >= self.first

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        return torch.stack([self.heads[task].float() for task in tasks]) if self.active and tasks else None


class Clone(Treatment[CloneConfig]):
    """Each task has W_h + Δ_h^t in the place of W_h (encoder/clones.py), Δ beginning at 0: before the first update it
    is joint training. Δ learns at the encoder's rate, and so do the shared heads."""

    Options = CloneConfig

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        super().check_model(model)
        if model.encoder.head_hooks.family.positions:
            kind = model.encoder.config.model_type
            raise EncoderError(
                f"treatment.clone: heads of this encoder ({kind}) cannot be treated separately, because their weights "
                "read positions too"
            )

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: CloneConfig) -> None:
        encoder, names = model.encoder, model.treated["clone"]["heads"][SHARED]
        transformer = cast(PreTrainedModel, encoder.transformer)
        encoder.clones = Clones(transformer, encoder.head_hooks, names, list(model.tasks), options.rank)


PARTS = ("words", "cls", "sep")


def pcgrad(gram: Tensor, generator: torch.Generator) -> Tensor:
    """The factors of each gradient in the sum of the projected ones. ``gram``: (T, T), g_i · g_j, float64. Returns
    (T,); 1 where no two gradients conflict."""
    tasks = len(gram)
    total = gram.new_zeros(tasks)
    for task in range(tasks):
        # Projected gradients are linear combinations of the tasks' gradients, so T numbers describe each one, and all
        # scalar products follow from the Gram matrix: no parameter-sized tensor is touched until the sum is known.
        weights = gram.new_zeros(tasks)
        weights[task] = 1
        # The original projects in random order, because projecting on one plane may bring back a conflict with an
        # earlier one.
        for opponent in torch.randperm(tasks, generator=generator).tolist():
            product = gram[opponent] @ weights
            # Only conflicting pairs (negative product) are projected; then the opponent's own norm is above 0, so the
            # division is safe.
            if opponent != task and product < 0:
                weights[opponent] -= product / gram[opponent, opponent]
        total += weights
    return total


class Project(Treatment[ProjectConfig]):
    """Projected gradients; where none conflict it is joint training."""

    Options = ProjectConfig

    def __init__(self, run: TreatmentContext[ProjectConfig]) -> None:
        super().__init__(run)
        self.seed, self.at = run.run.config.train.seed, self.options.at
        self.mask = run.heads.get(SHARED)
        self.generator = torch.Generator()
        self.source: Encoded | None = None
        self.copies: dict[str, Encoded] = {}

    @classmethod
    def heads_of(cls, options: ProjectConfig) -> HeadsConfig | None:
        return options.heads if options.at == "heads" else None

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.generator.manual_seed(step_seed(self.seed, step, self.tasks, 7))

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        if self.at != "heads" or len(tasks) < 2 or self.mask is None:
            return None
        products = gram(self.mask.any(1).nonzero().flatten().tolist())
        weights = torch.ones(len(tasks), *self.mask.shape)
        for layer, head in self.mask.nonzero().tolist():
            weights[:, layer, head] = pcgrad(products[layer, head], self.generator).float()
        return weights

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        """Every task reads a copy of the encoder's output, at which its gradient stops."""
        if self.at != "features":
            return decode
        self.source, self.copies = None, {}

        def cut(name: str, encoded: Encoded, annotated_rows: list[int] | None, target: dict[str, Tensor]) -> Any:
            leaves = {part: getattr(encoded, part).detach().requires_grad_() for part in PARTS}
            self.source, self.copies[name] = encoded, replace(encoded, **leaves)
            return decode(name, self.copies[name], annotated_rows, target)

        return cut

    @contextmanager
    def backward(self, losses: Mapping[str, Tensor]) -> Iterator[None]:
        yield
        if self.at != "features":
            return
        assert self.source is not None  # `decode` came first
        gradients = {task: self._gradient(copy) for task, copy in self.copies.items()}
        zero_gradient = torch.zeros_like(next(iter(gradients.values())))
        task_gradients = torch.stack([gradients.get(task, zero_gradient) for task in self.tasks])
        wide = task_gradients.double()
        weights = pcgrad((wide @ wide.T).cpu(), self.generator)
        sources = [getattr(self.source, part) for part in PARTS]
        parts = (weights.to(task_gradients) @ task_gradients).split([part.numel() for part in sources])
        torch.autograd.backward(sources, [g.view_as(s) for g, s in zip(parts, sources, strict=True)])
        self.source, self.copies = None, {}

    @staticmethod
    def _gradient(copy: Encoded) -> Tensor:
        leaves = [getattr(copy, part) for part in PARTS]
        return torch.cat([(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).flatten() for leaf in leaves])
