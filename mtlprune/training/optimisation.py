"""How losses become updates: weights of the tasks' losses, CosReg on label weights, AdamW, the schedule of its rates.

    L = Σ w_t · losses + γ · Σ over the tasks of the batch of R(label rows)

R is the mean cosine of all pairs of rows; its gradient turns rows and leaves their lengths alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mtlprune.config.config import Config, ConfigError
from mtlprune.model import MultiTaskModel

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning


# -- How the tasks' losses are weighed against each other --


class Balance:
    """Factors for losses.

    none: 1. fixed: given factors. running_mean: w_t = (Σ_k a_k) / a_t with a_t the mean of the task's last ``window``
    losses, the present one included, summed over the tasks seen so far; not differentiated (He and Choi 2021).
    uw, imtl-l, dwa, famo: `learnt_factors`, `dwa_factors`, `famo_factors`; docs/training.md has their sources.

    Args:
        mode: of train.balance.
        weights: factors for fixed; 1 where not given.
        window: losses remembered.
        rate: of what uw and imtl-l learn (Adam).
    """

    def __init__(self, mode: str, weights: Mapping[str, float], window: int, rate: float = 1e-3) -> None:
        self.mode, self.rate = mode, rate
        self.weights = dict(weights)
        self.history: dict[str, deque[float]] = {}
        self.window = None if mode in WAYS else window
        self.before: dict[str, float] = {}
        """famo: the losses before the step."""

    def __call__(self, losses: Mapping[str, Tensor], values: Mapping[str, float], epoch: int = 0) -> dict[str, Tensor]:
        """Weighed losses, with the same keys.

        Args:
            losses: one process's parts.
            values: the losses of all processes together, to weigh by; none and fixed need none.
            epoch: from 0; for dwa.
        """
        if self.mode == "none":
            return dict(losses)
        if self.mode == "fixed":
            return {task: loss * self.weights.get(task, 1.0) for task, loss in losses.items()}
        if self.mode in WAYS:
            self.before = dict(values)
            factors = WAYS[self.mode](self.history, values, epoch if self.mode == "dwa" else self.rate)
            return {task: loss * factors[task] for task, loss in losses.items()}
        for task, value in values.items():
            self.history.setdefault(task, deque(maxlen=self.window)).append(value)
        means = {task: sum(past) / len(past) or 1.0 for task, past in self.history.items()}
        total = sum(means.values())
        return {task: loss * (total / means[task]) for task, loss in losses.items()}

    def after(self, values: Mapping[str, float]) -> None:
        """famo: the losses of the same mini-batch after the step; δ_t = log ℓ_t before − log ℓ_t after moves ξ by Adam.

        Source: Liu et al. (2023), algorithm 1; rate 0.025 and decay 0.001 as there.
        """
        share = shares(self.history)
        gains = {task: math.log(max(self.before[task], TINY) / max(values[task], TINY)) for task in values}
        mean = sum(share[task] * gain for task, gain in gains.items())
        for task, gain in gains.items():
            slope = share[task] * (gain - mean) + 1e-3 * self.history[task][0]
            self.history[task] = deque(adam(self.history[task], slope, 0.025))

    def state(self) -> dict[str, list[float]]:
        """What a checkpoint must remember."""
        return {task: list(past) for task, past in self.history.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        self.history = {task: deque(past, maxlen=self.window) for task, past in state.items()}


TINY = 1e-8


def adam(state: Iterable[float], slope: float, rate: float) -> list[float]:
    """One step of Adam for one number: value, both moments, steps made."""
    value, first, second, steps = state
    first, second, steps = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2, steps + 1
    change = first / (1 - 0.9**steps) / (math.sqrt(second / (1 - 0.999**steps)) + 1e-8)
    return [value - rate * change, first, second, steps]


def learnt_factors(
    history: dict[str, deque[float]], values: Mapping[str, float], rate: float, half: bool
) -> dict[str, float]:
    """The factors of losses that are learnt together with the weights, from the present losses; then they learn.

    uw (half): ½ e^(−s) ℓ + ½ s is minimised, the factor is ½ e^(−s). imtl-l: e^s ℓ − s, the factor is e^s.

    Args:
        history: task → s, moments and steps of Adam; changed.
    """
    found = {}
    for task, value in values.items():
        state = history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
        found[task] = 0.5 * math.exp(-state[0]) if half else math.exp(state[0])
        slope = 0.5 - found[task] * value if half else found[task] * value - 1
        history[task] = deque(adam(state, slope, rate))
    return found


def dwa_factors(history: dict[str, deque[float]], values: Mapping[str, float], epoch: float) -> dict[str, float]:
    """w_t = T · softmax over tasks of half of ℓ_t in the last epoch / ℓ_t in the one before; 1 in the first two epochs.

    Args:
        history: task → epoch, sum and number of its losses, their means in the last epoch and in the one before, 0
            where there was none; changed.
    """
    for task, value in values.items():
        state = history.setdefault(task, deque([epoch, 0.0, 0.0, 0.0, 0.0]))
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


def famo_factors(history: dict[str, deque[float]], values: Mapping[str, float]) -> dict[str, float]:
    """c z_t / ℓ_t with z the softmax of ξ and c = 1 / Σ (z_t / ℓ_t): the gradient is that of c Σ z_t log ℓ_t."""
    for task in values:
        history.setdefault(task, deque([0.0, 0.0, 0.0, 0.0]))
    share = shares(history)
    parts = {task: share[task] / max(value, TINY) for task, value in values.items()}
    return {task: part / sum(parts.values()) for task, part in parts.items()}


WAYS: dict[str, Callable[[dict[str, deque[float]], Mapping[str, float], float], dict[str, float]]] = {
    "uw": partial(learnt_factors, half=True),
    "imtl-l": partial(learnt_factors, half=False),
    "dwa": dwa_factors,
    "famo": lambda history, values, _: famo_factors(history, values),
}


# -- CosReg on label weights: a penalty on the cosines between the rows of a decoder's last layer (Gao et al. 2019) --


def unit_rows(rows: Tensor) -> Tensor:
    """(..., N, D): every row at length 1; a row of zeros has no direction and stays, without a gradient."""
    squares = rows.square().sum(-1, keepdim=True)
    return rows * torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)


def mean_cosine(rows: Tensor) -> Tensor:
    """R = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N², from −1/N to (N − 1)/N. In float32 at least; differentiable.

    The token similarity CosSim of the same rows is R · N / (N − 1).

    Args:
        rows: (..., N, D).

    Returns:
        (...).

    Source: Gao et al. (2019), the regulariser of MLE-CosReg.
    """
    number = rows.shape[-2]
    with torch.autocast(rows.device.type, enabled=False):
        total = unit_rows(rows if rows.dtype == torch.float64 else rows.float()).sum(-2)
        return (total.square().sum(-1) - number) / number**2


def cosreg(config: Config, model: MultiTaskModel, tasks: Iterable[str], leads: bool = True) -> list[Tensor]:
    """γ · R for each task of a batch; nothing where γ is 0.

    Args:
        leads: whether this process adds it: gradients of all processes of a run are summed, so it comes from one.
    """
    strength = config.train.cosreg
    if not strength or not leads:
        return []
    found = [model.tasks[task].label_rows() for task in tasks]  # type: ignore[operator]
    return [strength * mean_cosine(labels.rows) for labels in found]


def check_cosreg(run: Beginning) -> None:
    """Raises ConfigError where train.cosreg is given and a task has no label rows to turn."""
    for task in run.config.tasks if run.config.train.cosreg else ():
        if run.model.tasks[task].label_rows() is None:  # type: ignore[operator]
            raise ConfigError(
                f"train.cosreg: the decoder of {task} has no matrix of label weights; leave it out, or that task"
            )


# -- AdamW for encoder, decoders and gates, and the schedule of the rates --


def make_optimizer(model: MultiTaskModel, config: Config) -> torch.optim.AdamW:
    """AdamW with one rate for the encoder, one for the decoders (and a fusion of layers, which is as new as they are),
    and a constant one for gates, which do not decay; the fused kernel where there is one. What is frozen is left out.
    """
    settings = config.train
    gates = model.gates if config.pruning.learns else nn.ModuleDict()
    fusion = list(model.encoder.fusion.parameters()) if model.encoder.fusion is not None else []
    new = {id(parameter) for parameter in fusion}
    groups = [
        {"params": [p for p in parameters if p.requires_grad], "lr": rate, "peak": rate, "gates": last}
        for parameters, rate, last in (
            ([p for p in model.encoder.parameters() if id(p) not in new], settings.encoder_rate, False),
            ([*model.tasks.parameters(), *fusion], settings.decoder_rate, False),
            (list(gates.parameters()), config.pruning.rate, True),
        )
    ]
    groups[2]["weight_decay"] = 0.0
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=model.device.type in ("cpu", "cuda"))


def schedule(step: int, total: int, warmup: float, shape: str = "linear") -> float:
    """The rates' share of their peak: a linear rise over the first ``warmup`` share of ``total`` updates, then a fall
    to 0 after the last, linear or along half a cosine (Loshchilov and Hutter 2017, one period), or none (constant)."""
    rise = math.ceil(total * warmup)
    if step < rise:
        return (step + 1) / rise
    left = (total - step) / max(1, total - rise)
    return {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[shape]
