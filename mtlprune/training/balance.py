"""The callback `Balance`, which sets the weights w_t of the tasks' losses: L = Σ w_t · loss_t."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.mixing import MiniBatch

_TINY = 1e-8


class Balance(Callback):
    """Callback that multiplies the loss of each task by a weight.

    The weights depend on ``mode``:

    - ``none``: 1.
    - ``fixed``: the given ``weights``.
    - ``running_mean``: w_t = (Σ_k a_k) / a_t (He and Choi 2021). a_t is the mean of the last ``window`` losses of the
      task, including the current loss; the sum runs over the tasks seen so far. The weights are not differentiated.
    - ``uw``, ``imtl-l``, ``dwa`` and ``famo``: see `_learnt_factors`, `_dwa_factors` and `_famo_factors`.
      docs/guides/training.md names their sources.

    Args:
        mode: the setting ``train.balance``.
        weights: task → its weight in mode ``fixed``; tasks that are missing have the weight 1.
        window: number of losses of a task in its running mean.
        rate: learning rate of Adam for the parameters of ``uw`` and ``imtl-l``.
        recompute_losses: function that returns the losses of a mini-batch with the current model weights, for ``famo``.
    """

    def __init__(
        self,
        mode: str,
        weights: Mapping[str, float],
        window: int,
        rate: float = 1e-3,
        recompute_losses: Callable[[MiniBatch], dict[str, Tensor]] = lambda mini_batch: {},
    ) -> None:
        self.mode, self.weights, self.rate, self.recompute_losses = mode, dict(weights), rate, recompute_losses
        self.window = None if mode in _FACTORS else window
        self.history: dict[str, deque[float]] = {}
        self.epoch, self.previous_losses = 0, dict[str, float]()
        self.mini_batch = MiniBatch((), [])

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.epoch = epoch

    def terms(self, losses: Losses) -> None:
        self.mini_batch = losses.mini_batch
        losses.tasks = self.weigh(losses.tasks, self.epoch)

    def after_step(self) -> None:
        if self.mode == "famo":
            self.update_logits(_numbers(self.recompute_losses(self.mini_batch)))

    def weigh(self, losses: dict[str, Tensor], epoch: int = 0) -> dict[str, Tensor]:
        """Return the loss of each task times its weight, and update the history of losses that some modes need.

        All modes but ``none`` and ``fixed`` read the values of the losses, so the host waits for the device.
        """
        if self.mode == "none":
            return losses
        if self.mode == "fixed":
            return {task: loss * self.weights.get(task, 1.0) for task, loss in losses.items()}
        # From here on the factors are plain numbers, so that no gradient flows through them.
        self.previous_losses = values = _numbers(losses)
        if self.mode in _FACTORS:
            factors = _FACTORS[self.mode](self.history, values, epoch if self.mode == "dwa" else self.rate)
            return {task: loss * factors[task] for task, loss in losses.items()}
        for task, value in values.items():
            self.history.setdefault(task, deque(maxlen=self.window)).append(value)
        # Each loss is divided by its running mean and multiplied by the sum of all means, so that all weighted losses
        # have about the same size.
        means = {task: sum(losses) / len(losses) or 1.0 for task, losses in self.history.items()}
        total = sum(means.values())
        return {task: loss * (total / means[task]) for task, loss in losses.items()}

    def update_logits(self, values: Mapping[str, float]) -> None:
        """Update the logits ξ of ``famo`` by one step of Adam, given the losses after the optimizer step.

        The gradient of ξ follows from δ_t = log ℓ_t before the step − log ℓ_t after the step. Source: Liu et al.
        (2023), algorithm 1, including the learning rate 0.025 and the weight decay 0.001.

        Args:
            values: task → its loss on the mini-batch of the update, recomputed with the new weights.
        """
        share = _shares(self.history)
        # A gain is the decrease of the logarithm of a task's loss, on the same mini-batch and with the same dropout.
        # The slope compares the gain with the weighted mean gain, so that tasks that improve less get more weight.
        gains = {task: math.log(max(self.previous_losses[task], _TINY) / max(values[task], _TINY)) for task in values}
        mean = sum(share[task] * gain for task, gain in gains.items())
        for task, gain in gains.items():
            # This is the derivative of the mean gain with respect to ξ_t through the softmax, plus weight decay of ξ_t.
            slope = share[task] * (gain - mean) + 1e-3 * self.history[task][0]
            self.history[task] = adam(self.history[task], slope, 0.025)

    def state(self) -> dict[str, list[float]]:
        """Return the state that a checkpoint must hold: numbers for each task, whose meaning depends on the mode."""
        return {task: list(losses) for task, losses in self.history.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Restore the state that `state` returned."""
        self.history = {task: deque(losses, maxlen=self.window) for task, losses in state.items()}


def _numbers(losses: Mapping[str, Tensor]) -> dict[str, float]:
    return dict(zip(losses, torch.stack([loss.detach() for loss in losses.values()]).tolist(), strict=True))


def adam(state: Iterable[float], slope: float, rate: float) -> deque[float]:
    """Make a step of Adam for a single number. The state is (value, first moment, second moment, number of steps)."""
    value, first, second, steps = state
    first, second, steps = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2, steps + 1
    change = first / (1 - 0.9**steps) / (math.sqrt(second / (1 - 0.999**steps)) + 1e-8)
    return deque([value - rate * change, first, second, steps])


def _learnt_factors(
    history: dict[str, deque[float]], values: Mapping[str, float], rate: float, halved: bool
) -> dict[str, float]:
    """Return the factors of ``uw`` (``halved``) or ``imtl-l``, then update the parameters s_t by one step of Adam.

    ``uw`` minimises ½ e^(−s) ℓ + ½ s, so its factor is ½ e^(−s). ``imtl-l`` minimises e^s ℓ − s, so its factor is e^s.

    Args:
        history: task → state of Adam for s_t, as in `adam`; changed in place.
    """
    factors = {}
    for task, value in values.items():
        state = history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
        factors[task] = 0.5 * math.exp(-state[0]) if halved else math.exp(state[0])
        # This is the derivative of the objective in the docstring with respect to s. It is 0 where factor · loss is ½
        # (uw) or 1 (imtl-l), so that all tasks tend to contribute equally.
        slope = 0.5 - factors[task] * value if halved else factors[task] * value - 1
        history[task] = adam(state, slope, rate)
    return factors


def _dwa_factors(history: dict[str, deque[float]], values: Mapping[str, float], epoch: float) -> dict[str, float]:
    """Return the factors of ``dwa``, w_t = T · softmax_t(r_t / 2), where T is the number of tasks.

    r_t is the mean loss of the task in the last finished epoch, divided by its mean loss in the epoch before. Factors
    are 1 in the first two epochs.

    Args:
        history: task → (current epoch, sum of its losses, their number, mean loss in the last finished epoch, mean loss
            in the epoch before), with 0 for epochs that do not exist; changed in place.
    """
    for task, value in values.items():
        state = history.setdefault(task, deque([epoch, 0.0, 0.0, 0.0, 0.0]))
        # At the first loss of a new epoch, the sum becomes the mean of the epoch that ended, and the mean that was the
        # last becomes the mean of the epoch before.
        if state[0] < epoch:
            history[task] = state = deque([epoch, 0.0, 0.0, state[1] / state[2], state[3]])
        state[1], state[2] = state[1] + value, state[2] + 1
    ratios = {task: math.exp(state[3] / state[4] / 2) for task, state in history.items() if state[4]}
    total = sum(ratios.values())
    return {task: len(ratios) * ratios[task] / total if task in ratios else 1.0 for task in values}


def _shares(history: Mapping[str, deque[float]]) -> dict[str, float]:
    """Return the share z_t of each task, the softmax over tasks of the first number in each task's state."""
    powers = {task: math.exp(state[0]) for task, state in history.items()}
    return {task: power / sum(powers.values()) for task, power in powers.items()}


def _famo_factors(history: dict[str, deque[float]], values: Mapping[str, float]) -> dict[str, float]:
    """Return the factors of ``famo``, c z_t / ℓ_t with z = softmax(ξ) and c = 1 / Σ (z_t / ℓ_t).

    The gradient of the weighted sum of losses equals the gradient of c Σ z_t log ℓ_t, where c is a constant.
    """
    for task in values:
        history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
    share = _shares(history)
    parts = {task: share[task] / max(value, _TINY) for task, value in values.items()}
    return {task: part / sum(parts.values()) for task, part in parts.items()}


_FACTORS: dict[str, Callable[[dict[str, deque[float]], Mapping[str, float], float], dict[str, float]]] = {
    "uw": partial(_learnt_factors, halved=True),
    "imtl-l": partial(_learnt_factors, halved=False),
    "dwa": _dwa_factors,
    "famo": lambda history, values, _: _famo_factors(history, values),
}
"""Mode → function that returns task → factor. Its arguments are the history, the current losses, and a number, which is
the epoch for ``dwa`` and the learning rate for ``uw`` and ``imtl-l``."""
