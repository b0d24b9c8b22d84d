"""How losses become updates: weights of the tasks' losses, CosReg on label weights, AdamW, the schedule of its rates.

    L = Σ w_t · losses + γ · Σ over the tasks of the batch of R(label rows)

R is the mean cosine of all pairs of rows; its gradient turns rows and leaves their lengths alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
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
