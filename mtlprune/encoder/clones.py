"""Clones of attention heads: for a cloned head h, each task t uses the weights W_h + Δ_h^t instead of W_h.

Δ starts at 0, so every task starts with the shared heads. With a rank, Δ is a product of two low-rank matrices, of
which one starts at 0 (low-rank adaptation, Hu et al. 2022, separately for each task), and biases are not cloned. All
tasks share the forward pass up to the lowest layer with clones. From this layer on, the batch is repeated once for each
task, and one pass computes the copies of all tasks together. ``treatment.clone`` uses this module.

Letters for shapes: R rows of the batch, S slots in a row, T tasks that are served.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from mtlprune.encoder.families import PROJECTIONS, by_layer, matrix
from mtlprune.encoder.heads import HeadHooks, head_mask
from mtlprune.encoder.pieces import EncoderError


class Clones(nn.Module):
    """The clones of heads in one encoder, whose layers and heads must not share weights.

    The attention projections multiply by the weights of each task. A forward pass of the transformer outside `serving`
    raises EncoderError, because it would belong to no task.

    Args:
        transformer: the model whose heads are cloned. Its forward pass changes in place, but its weights and its state
            dict stay the same.
        head_hooks: the hooks at its heads.
        heads: the names of the heads that are cloned, such as 3-7 (layer 3, head 7, counted from 1).
        tasks: the tasks, each of which gets a copy of every cloned head.
        rank: the rank of Δ of each projection, None for full rank.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        head_hooks: HeadHooks,
        heads: Sequence[str],
        tasks: Sequence[str],
        rank: int | None = None,
    ) -> None:
        super().__init__()
        self.head_hooks, self.tasks, self.rank = head_hooks, list(tasks), rank
        self.deltas = nn.ParameterDict()
        self._served_tasks: list[int] = []
        self._rows = 0
        # This is a plain dict instead of a ModuleDict, because the encoder already registers these modules, and they
        # must not appear twice in the state dict.
        self._cloned: dict[str, tuple[Any, bool]] = {}
        self._hooks: list[RemovableHandle] = []
        mask, family = head_mask(heads, head_hooks.layers, head_hooks.heads), head_hooks.family
        blocks = by_layer(transformer, family.blocks)
        modules = zip(by_layer(transformer, family.attention), by_layer(transformer, family.output), strict=True)
        self.first = int(mask.any(1).nonzero()[0])
        for layer, (attention, output) in enumerate(modules):
            if layer >= self.first:
                tile = partial(self._tile, layer == self.first)
                self._hooks.append(blocks[layer].register_forward_pre_hook(tile, with_kwargs=True))
            cloned_heads = mask[layer].nonzero().flatten().tolist()
            if not cloned_heads:
                continue
            for name, rows in family.keep(cloned_heads, head_hooks.heads, head_hooks.width).items():
                module = getattr(attention, name, None)
                if isinstance(module, PROJECTIONS):
                    self._add(f"{layer}-{name}", module, rows, None)
            self._add(f"{layer}-output", output, None, family.columns(cloned_heads, head_hooks.width))

    def _add(self, key: str, module: Any, rows: Tensor | None, columns: Tensor | None) -> None:
        """Add Δ for some rows or columns of a projection, and let the projection multiply by W + Δ of each task."""
        outputs, inputs = matrix(module).shape
        inputs = inputs if columns is None else len(columns)
        outputs = outputs if rows is None else len(rows)
        self.deltas[key] = nn.Parameter(torch.zeros(len(self.tasks), outputs, self.rank or inputs))
        if self.rank is not None:
            # Initial values are drawn in a fork of the generator, so that adding clones does not change later random
            # numbers of the run.
            with torch.random.fork_rng(devices=[]):
                down = (2 * torch.rand(len(self.tasks), self.rank, inputs) - 1) / math.sqrt(inputs)
            self.deltas[f"{key}-down"] = nn.Parameter(down)
        elif rows is not None and module.bias is not None:
            self.deltas[f"{key}-bias"] = nn.Parameter(torch.zeros(len(self.tasks), outputs))
        index = rows if rows is not None else columns
        self.register_buffer(f"index-{key}", index, persistent=False)
        module.forward = partial(self._projected, key, rows is not None, module)  # type: ignore[method-assign]
        self._cloned[key] = module, rows is not None

    def delta(self, key: str, tasks: Sequence[int]) -> Tensor:
        """Return Δ of one projection for some tasks: (T, out, in)."""
        task_deltas = self.deltas[key][tasks]
        if self.rank is None:
            return task_deltas
        # The product is added to a weight, and autocast leaves weights in fp32, so it must not be computed in bf16.
        with torch.autocast(task_deltas.device.type, enabled=False):
            return task_deltas @ self.deltas[f"{key}-down"][tasks]

    @torch.no_grad()
    def fold(self, task: str) -> None:
        """Write the weights of one task into the transformer, and remove the clones from it.

        This object must not be used afterwards.
        """
        task_index = [self.tasks.index(task)]
        for handle in self._hooks:
            handle.remove()
        for key, (module, of_rows) in self._cloned.items():
            index: Tensor = getattr(self, f"index-{key}")
            matrix(module).index_add_(0 if of_rows else 1, index, self.delta(key, task_index)[0])
            if f"{key}-bias" in self.deltas:
                module.bias.index_add_(0, index, self.deltas[f"{key}-bias"][task_index][0])
            del module.forward

    @contextmanager
    def serving(self, names: Sequence[str]) -> Iterator[None]:
        """Enter a context in which a forward pass of the transformer serves these tasks.

        Its output has T · R rows, first the R rows of the first task, then those of the second, and so on.
        """
        self._served_tasks, self._rows = [self.tasks.index(name) for name in names], 0
        try:
            yield
        finally:
            self._served_tasks = []

    def _tile(self, first: bool, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Repeat the inputs of the lowest layer with clones, and of every later layer, once for each task.

        This is a forward pre-hook. Only inputs with R rows are repeated, so hidden states that an earlier layer already
        repeated stay the same.

        Raises:
            EncoderError: no tasks are served, or head outputs are cached.
        """
        if not self._served_tasks or self.head_hooks.is_caching:
            raise EncoderError(
                f"this encoder has clones of heads for each of {', '.join(self.tasks)}, and this command reads only "
                "one encoder, without clones; name a run without treatment.clone"
            )
        if first:
            hidden = args[0] if args else kwargs["hidden_states"]
            self._rows = hidden.shape[0]
        return self._tiled(args), {key: self._tiled(value) for key, value in kwargs.items()}

    def _tiled(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._tiled(part) for part in value)
        if (
            isinstance(value, Tensor)
            and value.dim() > 2
            and value.shape[0] == self._rows
            and len(self._served_tasks) > 1
        ):
            return value.repeat(len(self._served_tasks), *[1] * (value.dim() - 1))
        return value

    def _projected(self, key: str, of_rows: bool, module: Any, states: Tensor) -> Tensor:
        """Apply a projection with the weights of each task: (T · R, S, in) → (T · R, S, out)."""
        tasks, index = self._served_tasks, getattr(self, f"index-{key}")
        weight = matrix(module).expand(len(tasks), -1, -1)
        weight = weight.index_add(1 if of_rows else 2, index, self.delta(key, tasks))
        bias: Any = [None] * len(tasks)
        if module.bias is not None:
            bias = module.bias.expand(len(tasks), -1)
            if f"{key}-bias" in self.deltas:
                bias = bias.index_add(1, index, self.deltas[f"{key}-bias"][tasks])
        # The tasks are computed one after another, because a batched product is 10 % slower on a CPU.
        return torch.cat(
            [
                linear(states_of_task, *affine)
                for states_of_task, *affine in zip(states.chunk(len(tasks)), weight, bias, strict=True)
            ]
        )
