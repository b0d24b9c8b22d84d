"""Weights of the tasks' losses: L = Σ w_t · loss_t."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from mtlprune.training.callbacks import Callback, Losses


class Balance(Callback):
    """Factors for losses.

    none: 1. fixed: given factors. running_mean: w_t = (Σ_k a_k) / a_t with a_t the mean of the task's last ``window``
    losses, the present one included, summed over the tasks seen so far; not differentiated (He and Choi 2021).

    Args:
        mode: of train.balance.
        weights: factors for fixed; 1 where not given.
        window: losses remembered.
    """

    def __init__(self, mode: str, weights: Mapping[str, float], window: int) -> None:
        self.mode, self.weights, self.window = mode, dict(weights), window
        self.history: dict[str, deque[float]] = {}

    def terms(self, losses: Losses) -> None:
        losses.tasks = self.weigh(losses.tasks)

    def weigh(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses times their factors; with running_mean the host reads them first."""
        if self.mode == "none":
            return losses
        if self.mode == "fixed":
            return {task: loss * self.weights.get(task, 1.0) for task, loss in losses.items()}
        values = torch.stack([loss.detach() for loss in losses.values()]).tolist()
        for task, value in zip(losses, values, strict=True):
            self.history.setdefault(task, deque(maxlen=self.window)).append(value)
        means = {task: sum(past) / len(past) or 1.0 for task, past in self.history.items()}
        total = sum(means.values())
        return {task: loss * (total / means[task]) for task, loss in losses.items()}

    def state(self) -> dict[str, list[float]]:
        """Everything that a checkpoint must hold."""
        return {task: list(past) for task, past in self.history.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        self.history = {task: deque(past, maxlen=self.window) for task, past in state.items()}
