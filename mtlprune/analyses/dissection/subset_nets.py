"""Light decoders on partial sums, one for each subset of the four terms, all trained at once.

Sixteen two-layer nets (ReLU, dropout) read Σ_{v in S} v for their subset S. They begin with the same weights, see the
same batches with the same dropped units, and share nothing else: their layers are one batched product. Features are
z-scored with the mean and the variance of each subset on the training items, so that a small term (c) is not at a
disadvantage against a large one; the variance of a sum follows from the covariances of the terms.

Letters for shapes: U items, D features an item has, b items of a batch, S = 16 subsets, C classes, K hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mtlprune.analyses.dissection.maths import subset_masks

CLOSED = -1e9
"""Added to the logits of classes that an item may not get."""


@dataclass(frozen=True)
class NetSettings:
    """How the nets are trained.

    Attributes:
        hidden: K.
        epochs: passes over the training items; the rate falls linearly to 0.
        batch: items a step.
        rate: of Adam.
        dropout: of hidden units.
        seed: of weights, order and dropout.
    """

    hidden: int = 64
    epochs: int = 8
    batch: int = 256
    rate: float = 3e-3
    dropout: float = 0.1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and 1/std of every subset's features, (S, D) each; 0 where a feature is constant."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, parts: Tensor) -> Scaling:
        """From the terms of training items, (4, U, D)."""
        masks = subset_masks(parts)
        means = parts.mean(1)  # (4, D)
        centred = parts - means[:, None]
        covariance = torch.einsum("uid,vid->uvd", centred, centred) / parts.shape[1]  # (4, 4, D)
        variance = torch.einsum("su,sv,uvd->sd", masks, masks, covariance)
        scale = torch.einsum("sv,vd->sd", masks, covariance.diagonal().T.clamp(min=0))  # what rounding is relative to
        moving = variance > 1e-6 * scale.clamp(min=1e-12)
        return cls(masks @ means, torch.where(moving, variance.clamp(min=1e-30).rsqrt(), 0.0))

    def __call__(self, parts: Tensor) -> Tensor:
        """(4, b, D) to (S, b, D)."""
        sums = torch.einsum("sv,vid->sid", subset_masks(parts), parts)
        return (sums - self.mean[:, None]) * self.factor[:, None]


class SubsetNets(nn.Module):
    """One net a subset: D → K → C, without a bias of its output where ``output_bias`` is False.

    Args:
        features: D.
        classes: C.
    """

    def __init__(self, features: int, classes: int, settings: NetSettings, output_bias: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(settings.seed)
        subsets = 16

        def begun(rows: int, columns: int) -> nn.Parameter:
            bound = rows**-0.5
            one = torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
            return nn.Parameter(one.expand(subsets, rows, columns).contiguous())

        self.settings = settings
        self.inner = begun(features, settings.hidden)
        self.inner_bias = nn.Parameter(torch.zeros(subsets, 1, settings.hidden))
        if not output_bias:  # else a net that reads nothing could say nothing: relu(0) = 0
            nn.init.constant_(self.inner_bias, 0.1)
        self.outer = begun(settings.hidden, classes)
        self.outer_bias = nn.Parameter(torch.zeros(subsets, 1, classes)) if output_bias else None

    def forward(self, features: Tensor, kept: Tensor | None = None) -> Tensor:
        """(S, b, D) to logits (S, b, C); ``kept`` (b, K): factors of hidden units while training."""
        hidden = functional.relu(torch.baddbmm(self.inner_bias, features, self.inner))
        if kept is not None:
            hidden = hidden * kept
        return hidden @ self.outer if self.outer_bias is None else torch.baddbmm(self.outer_bias, hidden, self.outer)


def train_nets(
    parts: Tensor,
    labels: Tensor,
    classes: int,
    settings: NetSettings,
    allowed: Tensor | None = None,
    output_bias: bool = True,
) -> tuple[SubsetNets, Scaling]:
    """Train all sixteen nets.

    Args:
        parts: (4, U, D), the terms of the items.
        labels: (U,) int64.
        allowed: (U, C) bool, classes that an item may get; all, if not given.

    Returns:
        The nets, and the scaling of their features.
    """
    scaling, generator = Scaling.of(parts), torch.Generator().manual_seed(settings.seed + 1)
    nets = SubsetNets(parts.shape[2], classes, settings, output_bias).to(parts.device)
    steps = settings.epochs * -(-len(labels) // settings.batch)
    optimizer = torch.optim.Adam(nets.parameters(), settings.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / max(1, steps)))
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(settings.batch):
            drawn = torch.rand(len(chosen), settings.hidden, generator=generator) >= settings.dropout
            kept = (drawn / (1 - settings.dropout)).to(parts)
            at = chosen.to(parts.device)
            logits = nets(scaling(parts[:, at]), kept)
            if allowed is not None:
                logits = logits.masked_fill(~allowed[at], CLOSED)
            wanted = labels[at].expand(len(logits), -1)
            loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()) * len(logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return nets, scaling


@torch.no_grad()
def predict(
    nets: SubsetNets, scaling: Scaling, parts: Tensor, allowed: Tensor | None = None, batch: int = 2048
) -> Tensor:
    """(4, U, D) to the class of every item by every subset, (S, U) int64."""
    found = []
    for start in range(0, parts.shape[1], batch):
        logits = nets(scaling(parts[:, start : start + batch]))
        if allowed is not None:
            logits = logits.masked_fill(~allowed[start : start + batch], CLOSED)
        found.append(logits.argmax(-1))
    return torch.cat(found, 1) if found else torch.zeros(16, 0, dtype=torch.int64)
