"""Clones of attention heads: each task has W_h + Δ_h^t in the place of W_h for the heads that are cloned.

Δ begins at 0, so that every task begins with the shared heads. With a rank it is a product U V of projections, U 0 at
first (low-rank adaptation, Hu et al. 2022, one for each task), without biases. All tasks share one pass up to the
lowest layer with clones; from there on the rows of the batch stand there once for each task that is served, in one
pass.

Letters for shapes: R rows of the batch, S slots a row, T tasks served, H the hidden size, k cloned heads of a layer, d
values a head has.
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
    """The clones of one encoder, whose heads have weights of their own (no sharing between layers or heads).

    Projections of attention multiply by each task's weights. A pass of the transformer outside `serving` is refused: it
    would be that of no task.

    Args:
        transformer: whose heads are cloned; it is changed in place; its weights and state dict stay.
        places: of its heads.
        heads: that are cloned, such as 3-7, counted from 1.
        tasks: each gets a copy of each.
        rank: of Δ of each projection; None for any.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        places: HeadHooks,
        heads: Sequence[str],
        tasks: Sequence[str],
        rank: int | None = None,
    ) -> None:
        super().__init__()
        self.places, self.tasks, self.rank = places, list(tasks), rank
        self.deltas = nn.ParameterDict()
        self._served_tasks: list[int] = []
        self._rows = 0
        # A plain dict and no ModuleDict: the modules are registered in the encoder already and must not appear twice
        # in the state dict.
        self._cloned: dict[str, tuple[Any, bool]] = {}
        self._hooks: list[RemovableHandle] = []
        mask, family = head_mask(heads, places.layers, places.heads), places.family
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
            for name, rows in family.keep(cloned_heads, places.heads, places.width).items():
                module = getattr(attention, name, None)
                if isinstance(module, PROJECTIONS):
                    self._add(f"{layer}-{name}", module, rows, None)
            self._add(f"{layer}-output", output, None, family.columns(cloned_heads, places.width))

    def _add(self, key: str, module: Any, rows: Tensor | None, columns: Tensor | None) -> None:
        """Δ of some rows of a projection, or of some columns, for each task; it multiplies by W + Δ from now on."""
        outputs, inputs = matrix(module).shape
        inputs = inputs if columns is None else len(columns)
        outputs = outputs if rows is None else len(rows)
        self.deltas[key] = nn.Parameter(torch.zeros(len(self.tasks), outputs, self.rank or inputs))
        if self.rank is not None:
            # Initial values are drawn in a fork of the generator, so that adding clones does not change what others
            # draw afterwards.
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
        """(T, out, in), Δ of one projection for some tasks."""
        task_deltas = self.deltas[key][tasks]
        if self.rank is None:
            return task_deltas
        # The product is added to a weight, and autocast leaves weights in fp32, so it must not be computed in bf16.
        with torch.autocast(task_deltas.device.type, enabled=False):
            return task_deltas @ self.deltas[f"{key}-down"][tasks]

    @torch.no_grad()
    def fold(self, task: str) -> None:
        """Give the transformer the weights of one task, and take the clones out of it; these are of no more use."""
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
        """Within it a pass of the transformer is one for these tasks, whose rows come one after another."""
        self._served_tasks, self._rows = [self.tasks.index(name) for name in names], 0
        try:
            yield
        finally:
            self._served_tasks = []

    def _tile(self, first: bool, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a layer: what has a row for each row of the batch gets one for each row and task."""
        if not self._served_tasks or self.places.is_caching:
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
        """A projection with the weights of each task: (T · R, S, in) → (T · R, S, out)."""
        tasks, index = self._served_tasks, getattr(self, f"index-{key}")
        weight = matrix(module).expand(len(tasks), -1, -1)
        weight = weight.index_add(1 if of_rows else 2, index, self.delta(key, tasks))
        bias: Any = [None] * len(tasks)
        if module.bias is not None:
            bias = module.bias.expand(len(tasks), -1)
            if f"{key}-bias" in self.deltas:
                bias = bias.index_add(1, index, self.deltas[f"{key}-bias"][tasks])
        # one by one: a batched product is a tenth slower on a CPU
        return torch.cat(
            [
                linear(states_of_task, *affine)
                for states_of_task, *affine in zip(states.chunk(len(tasks)), weight, bias, strict=True)
            ]
        )
