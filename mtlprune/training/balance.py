"""How the tasks' losses are weighed against each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor


class Balance:
    """Factors for losses.

    none: 1. fixed: given factors. running_mean: w_t = (Σ_k a_k) / a_t with a_t the mean of the task's last ``window``
    losses, the present one included, summed over the tasks seen so far; not differentiated (He and Choi 2021).

    Args:
        mode: none, fixed or running_mean.
        weights: factors for fixed; 1 where not given.
        window: losses remembered.
    """

    def __init__(self, mode: str, weights: Mapping[str, float], window: int) -> None:
        self.mode = mode
        self.weights = dict(weights)
        self.history: dict[str, deque[float]] = {}
        self.window = window

    def __call__(self, losses: Mapping[str, Tensor], values: Mapping[str, float] | None = None) -> dict[str, Tensor]:
        """Weighed losses, with the same keys.

        Args:
            values: what to weigh by where ``losses`` are one process's parts: the losses of all processes together.
        """
        if self.mode == "none":
            return dict(losses)
        if self.mode == "fixed":
            return {task: loss * self.weights.get(task, 1.0) for task, loss in losses.items()}
        if values is None:
            values = {task: float(loss.detach()) for task, loss in losses.items()}
        for task, value in values.items():
            self.history.setdefault(task, deque(maxlen=self.window)).append(value)
        means = {task: sum(past) / len(past) or 1.0 for task, past in self.history.items()}
        total = sum(means.values())
        return {task: loss * (total / means[task]) for task, loss in losses.items()}

    def state(self) -> dict[str, list[float]]:
        """What a checkpoint must remember."""
        return {task: list(past) for task, past in self.history.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        self.history = {task: deque(past, maxlen=self.window) for task, past in state.items()}
