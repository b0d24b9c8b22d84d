"""From losses to updates: AdamW, the schedule of its rates, and CosReg on label weights.

    L = Σ w_t · losses + γ · Σ over the tasks of the batch of R(label rows)

R is the mean cosine of all pairs of rows; its gradient turns rows and leaves their lengths alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from mtlprune.config.config import Config
from mtlprune.model import MultiTaskModel
from mtlprune.training.callbacks import Callback, Losses


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


class CosReg(Callback):
    """γ · Σ R over the matrices of label rows of a mini-batch.

    Args:
        rows: gives the matrices of the tasks of a mini-batch.
        leads: whether this process adds the penalty: gradients of all processes are summed, so one of them does.
    """

    def __init__(self, strength: float, rows: Callable[[Iterable[str]], Sequence[Tensor]], leads: bool = True) -> None:
        self.strength, self.rows, self.leads = strength, rows, leads

    def terms(self, losses: Losses) -> None:
        cosines = torch.stack([mean_cosine(rows) for rows in self.rows(losses.mini_batch.tasks)]).sum()
        losses.logged["cosreg"] = cosines.detach()
        if self.leads:
            losses.penalties["cosreg"] = self.strength * cosines


def label_rows(model: MultiTaskModel, tasks: Iterable[str]) -> list[Tensor]:
    """The label weights of these tasks, a matrix each."""
    return [model.tasks[task].label_rows().rows for task in tasks]  # type: ignore[operator]


def adam(state: Iterable[float], slope: float, rate: float) -> list[float]:
    """One step of Adam for one number: value, both moments, steps made."""
    value, first, second, steps = state
    first, second, steps = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2, steps + 1
    change = first / (1 - 0.9**steps) / (math.sqrt(second / (1 - 0.999**steps)) + 1e-8)
    return [value - rate * change, first, second, steps]


def make_optimizer(model: MultiTaskModel, config: Config) -> torch.optim.AdamW:
    """AdamW with one rate for the encoder, one for the decoders (and a fusion of layers, which is as new as they are),
    and a constant one for gates and for what closed heads contribute, which do not decay; the fused kernel where there
    is one. What is frozen is left out.
    """
    settings = config.train
    gates = model.gates if config.pruning.learns else nn.ModuleDict()
    fusion = list(model.encoder.fusion.parameters()) if model.encoder.fusion is not None else []
    constants = [model.encoder.head_constants] if isinstance(model.encoder.head_constants, nn.Parameter) else []
    new = {id(parameter) for parameter in (*fusion, *constants)}
    groups = [
        {"params": [p for p in parameters if p.requires_grad], "lr": rate, "peak": rate, "gates": last}
        for parameters, rate, last in (
            ([p for p in model.encoder.parameters() if id(p) not in new], settings.encoder_rate, False),
            ([*model.tasks.parameters(), *fusion], settings.decoder_rate, False),
            ([*gates.parameters(), *constants], config.pruning.rate, True),
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
