"""Weights of the tasks' losses: L = Σ w_t · loss_t."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.mixing import MiniBatch

TINY = 1e-8


class Balance(Callback):
    """Factors for losses.

    none: 1. fixed: given factors. running_mean: w_t = (Σ_k a_k) / a_t with a_t the mean of the task's last ``window``
    losses, the present one included, summed over the tasks seen so far; not differentiated (He and Choi 2021).
    uw, imtl-l, dwa, famo: `_learnt_factors`, `_dwa_factors`, `_famo_factors`; their sources: docs/guides/training.md.

    Args:
        weights: factors for fixed; 1 where not given.
        rate: of what uw and imtl-l learn (Adam).
        losses_again: for famo, gives the losses of an update's mini-batch with the weights as they are now.
    """

    def __init__(
        self,
        mode: str,
        weights: Mapping[str, float],
        window: int,
        rate: float = 1e-3,
        losses_again: Callable[[MiniBatch], dict[str, Tensor]] = lambda mini_batch: {},
    ) -> None:
        self.mode, self.weights, self.rate, self.recompute_losses = mode, dict(weights), rate, losses_again
        self.window = None if mode in WAYS else window
        self.history: dict[str, deque[float]] = {}
        self.epoch, self.before = 0, dict[str, float]()
        self.mini_batch = MiniBatch((), [])

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.epoch = epoch

    def terms(self, losses: Losses) -> None:
        self.mini_batch = losses.mini_batch
        losses.tasks = self.weigh(losses.tasks, self.epoch)

    def after_step(self) -> None:
        if self.mode == "famo":
            self.after(_numbers(self.recompute_losses(self.mini_batch)))

    def weigh(self, losses: dict[str, Tensor], epoch: int = 0) -> dict[str, Tensor]:
        """The losses times their factors; but for none and fixed the host reads them first."""
        if self.mode == "none":
            return losses
        if self.mode == "fixed":
            return {task: loss * self.weights.get(task, 1.0) for task, loss in losses.items()}
        # From here on the factors are plain numbers, so no gradient flows through them: they scale the losses and are
        # not part of what is minimised.
        self.before = values = _numbers(losses)
        if self.mode in WAYS:
            factors = WAYS[self.mode](self.history, values, epoch if self.mode == "dwa" else self.rate)
            return {task: loss * factors[task] for task, loss in losses.items()}
        for task, value in values.items():
            self.history.setdefault(task, deque(maxlen=self.window)).append(value)
        # Each loss is divided by its running mean and multiplied by the sum of all means, so that the tasks' losses
        # have the same size and their sum keeps its own.
        means = {task: sum(losses) / len(losses) or 1.0 for task, losses in self.history.items()}
        total = sum(means.values())
        return {task: loss * (total / means[task]) for task, loss in losses.items()}

    def after(self, values: Mapping[str, float]) -> None:
        """famo: the losses of the same mini-batch after the step; δ_t = log ℓ_t before − log ℓ_t after moves ξ by Adam.

        Source: Liu et al. (2023), algorithm 1; rate 0.025 and decay 0.001 as there.
        """
        share = shares(self.history)
        # How much the step lowered the logarithm of each task's loss, on the same mini-batch and with the same
        # dropout. The slope compares each task's gain with the mean, so that tasks which lag behind get more weight.
        gains = {task: math.log(max(self.before[task], TINY) / max(values[task], TINY)) for task in values}
        mean = sum(share[task] * gain for task, gain in gains.items())
        for task, gain in gains.items():
            # The derivative of the softmax, weighted by gains, plus weight decay of ξ.
            slope = share[task] * (gain - mean) + 1e-3 * self.history[task][0]
            self.history[task] = adam(self.history[task], slope, 0.025)

    def state(self) -> dict[str, list[float]]:
        """Everything that a checkpoint must hold."""
        return {task: list(losses) for task, losses in self.history.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        self.history = {task: deque(losses, maxlen=self.window) for task, losses in state.items()}


def _numbers(losses: Mapping[str, Tensor]) -> dict[str, float]:
    return dict(zip(losses, torch.stack([loss.detach() for loss in losses.values()]).tolist(), strict=True))


def adam(state: Iterable[float], slope: float, rate: float) -> deque[float]:
    """One step of Adam for one number: value, both moments, steps made."""
    value, first, second, steps = state
    first, second, steps = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2, steps + 1
    change = first / (1 - 0.9**steps) / (math.sqrt(second / (1 - 0.999**steps)) + 1e-8)
    return deque([value - rate * change, first, second, steps])


def _learnt_factors(
    history: dict[str, deque[float]], values: Mapping[str, float], rate: float, halved: bool
) -> dict[str, float]:
    """The factors of losses that are learnt together with the weights, from the present losses; then they learn.
    ``history``: task → s, moments and steps of Adam; changed.

    uw (half): ½ e^(−s) ℓ + ½ s is minimised, the factor is ½ e^(−s). imtl-l: e^s ℓ − s, the factor is e^s.
    """
    factors = {}
    for task, value in values.items():
        state = history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
        factors[task] = 0.5 * math.exp(-state[0]) if halved else math.exp(state[0])
        # The derivative of the objective in the docstring by s. It is 0 where factor · loss is constant, that is,
        # where all tasks contribute equally.
        slope = 0.5 - factors[task] * value if halved else factors[task] * value - 1
        history[task] = adam(state, slope, rate)
    return factors


def _dwa_factors(history: dict[str, deque[float]], values: Mapping[str, float], epoch: float) -> dict[str, float]:
    """w_t = T · softmax over tasks of half of ℓ_t in the last epoch / ℓ_t in the one before; 1 in the first two epochs.
    ``history``: task → epoch, sum and number of its losses, their means in the last epoch and in the one before, 0
    where there was none; changed."""
    for task, value in values.items():
        state = history.setdefault(task, deque([epoch, 0.0, 0.0, 0.0, 0.0]))
        # A new epoch begins: the sums become the mean of the epoch that ended, and that epoch's mean becomes the one
        # before.
        if state[0] < epoch:
            history[task] = state = deque([epoch, 0.0, 0.0, state[1] / state[2], state[3]])
        state[1], state[2] = state[1] + value, state[2] + 1
    ratios = {task: math.exp(state[3] / state[4] / 2) for task, state in history.items() if state[4]}
    total = sum(ratios.values())
    return {task: len(ratios) * ratios[task] / total if task in ratios else 1.0 for task in values}


def shares(history: Mapping[str, deque[float]]) -> dict[str, float]:
    """softmax of the first numbers."""
    powers = {task: math.exp(state[0]) for task, state in history.items()}
    return {task: power / sum(powers.values()) for task, power in powers.items()}


def _famo_factors(history: dict[str, deque[float]], values: Mapping[str, float]) -> dict[str, float]:
    """c z_t / ℓ_t with z the softmax of ξ and c = 1 / Σ (z_t / ℓ_t): the gradient is that of c Σ z_t log ℓ_t."""
    for task in values:
        history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
    share = shares(history)
    parts = {task: share[task] / max(value, TINY) for task, value in values.items()}
    return {task: part / sum(parts.values()) for task, part in parts.items()}


WAYS: dict[str, Callable[[dict[str, deque[float]], Mapping[str, float], float], dict[str, float]]] = {
    "uw": partial(_learnt_factors, halved=True),
    "imtl-l": partial(_learnt_factors, halved=False),
    "dwa": _dwa_factors,
    "famo": lambda history, values, _: _famo_factors(history, values),
}
