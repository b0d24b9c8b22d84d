"""Allocate heads: in the last updates each task's gradient moves its own heads only.

Important-attention training (Li et al. 2023, arXiv 2310.10318): the gradient of head h from task t is multiplied by
1[h ∈ S_t]. Heads in no task's set then stay as they are but for what the optimiser remembers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtlprune.blocks import DispatchConfig
from mtlprune.training.treatments.base import Treated, Treatment


class Dispatch(Treatment):
    """All heads for all tasks are joint training, bit for bit."""

    Options = DispatchConfig
    one_set = False

    def __init__(self, run: Treated) -> None:
        super().__init__(run)
        self.heads, self.first = run.heads, run.total - math.ceil(self.options.last * run.total)
        self.active = False

    def update(self, step: int) -> None:
        self.active = step >= self.first

    def factors(self, tasks: Sequence[str], gram: Callable[[], Tensor]) -> Tensor | None:
        return torch.stack([self.heads[task].float() for task in tasks]) if self.active and tasks else None
