"""Treatments that change which tasks train which heads: protect, dispatch, clone and project.

`Project` is PCGrad (Yu et al. 2020), at the output of the encoder or at the weights of each head:

    g_i ← g_i − (g_i · g_j / ‖g_j‖²) g_j if g_i · g_j < 0, for all j ≠ i in random order; the result is Σ_i g_i

The result is a weighted sum of the original gradients, and its weights follow from their scalar products. So only the
scalar products are computed before the sum.
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
    """Treatment that shields heads from tasks: in all updates, their gradient for the weights of these heads is 0."""

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
    """Treatment that allocates heads to tasks: in the last updates, task t trains only the heads in its set S_t.

    In this important-attention training (Li et al. 2023, arXiv 2310.10318), the gradient of task t with respect to head
    h is multiplied by 1 if h ∈ S_t, else by 0. Heads in no set change only by the optimizer's moments and weight decay.
    If S_t contains all heads for all tasks, this is joint training, bit for bit.
    """

    Options = DispatchConfig
    one_set = False

    def __init__(self, run: TreatmentContext[DispatchConfig]) -> None:
        super().__init__(run)
        # `first` is the first update with allocation, counted from 0. With `last` = 1 it is update 0.
        self.heads, self.first = run.heads, run.total - math.ceil(self.options.last * run.total)
        self.active = False

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.active = step >= self.first

    def factors(self, tasks: Sequence[str], gram: Callable[..., Tensor]) -> Tensor | None:
        return torch.stack([self.heads[task].float() for task in tasks]) if self.active and tasks else None


class Clone(Treatment[CloneConfig]):
    """Treatment that gives each task copies of heads, with weights W_h + Δ_h^t instead of W_h (encoder/clones.py).

    Δ starts at 0, so that the model begins like that of joint training. Δ and the shared W_h are trained at the rate of
    the encoder.
    """

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


_PARTS = ("words", "cls", "sep")
"""The attributes of `Encoded` at which ``at: features`` projects gradients: word vectors and special tokens."""


def _pcgrad(gram: Tensor, generator: torch.Generator) -> Tensor:
    """Return the weight of each original gradient in the sum of the projected gradients (Yu et al. 2020).

    Args:
        gram: the scalar products g_i · g_j, (T, T) float64.
        generator: random generator for the order of projections.

    Returns:
        The weights, (T,); all are 1 if no two gradients conflict.
    """
    tasks = len(gram)
    total = gram.new_zeros(tasks)
    for task in range(tasks):
        # A projected gradient is a linear combination of the tasks' gradients, so T numbers describe it. All scalar
        # products follow from the Gram matrix, so no tensor of the size of the parameters is needed.
        weights = gram.new_zeros(tasks)
        weights[task] = 1
        # The order is random as in the paper, because a projection may restore a conflict that an earlier projection
        # has removed.
        for opponent in torch.randperm(tasks, generator=generator).tolist():
            product = gram[opponent] @ weights
            # Only conflicting pairs (negative product) are projected. The norm of the opponent is then above 0, so the
            # division is safe.
            if opponent != task and product < 0:
                weights[opponent] -= product / gram[opponent, opponent]
        total += weights
    return total


class Project(Treatment[ProjectConfig]):
    """Treatment that removes conflicts between gradients of tasks (PCGrad); without conflicts it is joint training."""

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
            weights[:, layer, head] = _pcgrad(products[layer, head], self.generator).float()
        return weights

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        """Give every task a detached copy of the encoder's output, so that `backward` can read its gradient there."""
        if self.at != "features":
            return decode
        self.source, self.copies = None, {}

        def cut(name: str, encoded: Encoded, annotated_rows: list[int] | None, target: dict[str, Tensor]) -> Any:
            leaves = {part: getattr(encoded, part).detach().requires_grad_() for part in _PARTS}
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
        weights = _pcgrad((wide @ wide.T).cpu(), self.generator)
        sources = [getattr(self.source, part) for part in _PARTS]
        parts = (weights.to(task_gradients) @ task_gradients).split([part.numel() for part in sources])
        torch.autograd.backward(sources, [g.view_as(s) for g, s in zip(parts, sources, strict=True)])
        self.source, self.copies = None, {}

    @staticmethod
    def _gradient(copy: Encoded) -> Tensor:
        leaves = [getattr(copy, part) for part in _PARTS]
        return torch.cat([(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).flatten() for leaf in leaves])
