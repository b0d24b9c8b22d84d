"""Whose gradient moves which heads: some are kept from tasks, each task moves its own, or has a clone of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.blocks import CloneConfig, DispatchConfig, ProtectConfig
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.pieces import EncoderError
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.training.treatments.base import Treated, Treatment
from mtlprune.training.treatments.heads import Sets


class Protect(Treatment):
    """Keep some heads from tasks: their gradient from these is 0 from the first update on."""

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


class Dispatch(Treatment):
    """Allocate heads: in the last updates each task's gradient moves its own heads only.

    Important-attention training (Li et al. 2023, arXiv 2310.10318): the gradient of head h from task t is multiplied by
    1[h ∈ S_t]. Heads in no task's set then stay as they are but for what the optimiser remembers. All heads for all
    tasks are joint training, bit for bit.
    """

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


class Clone(Treatment):
    """Each task has W_h + Δ_h^t in the place of W_h (encoder/clones.py), Δ beginning at 0: before the first update it
    is joint training. Δ learns at the encoder's rate, and so do the shared heads."""

    Options = CloneConfig

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        super().check_model(model)
        if model.encoder.places.family.positions:
            kind = model.encoder.config.model_type
            raise EncoderError(
                f"treatment.clone: heads of this encoder ({kind}) cannot be treated one by one, because their weights "
                "read positions too"
            )

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: CloneConfig) -> None:
        encoder, names = model.encoder, model.treated["clone"]["heads"][SHARED]
        transformer = cast(PreTrainedModel, encoder.transformer)
        encoder.clones = Clones(transformer, encoder.places, names, list(model.tasks), options.rank)
