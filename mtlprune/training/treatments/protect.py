"""Keep some heads from the gradient of one task, of several, or of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtlprune.blocks import ProtectConfig
from mtlprune.model import SHARED
from mtlprune.training.treatments.base import Treated, Treatment


class Protect(Treatment):
    """Their gradient from these tasks is 0 from the first update on."""

    Options = ProtectConfig

    def __init__(self, run: Treated) -> None:
        super().__init__(run)
        self.open = (~run.heads[SHARED]).float()
        self.kept_from = set(self.options.tasks or run.tasks)

    def factors(self, tasks: Sequence[str], gram: Callable[[], Tensor]) -> Tensor | None:
        if not self.kept_from & set(tasks):
            return None
        rest = torch.ones_like(self.open)
        return torch.stack([self.open if task in self.kept_from else rest for task in tasks])
