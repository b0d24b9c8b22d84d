"""Penalties that close gates during training, and schedules that change gates without a penalty.

All of them implement `Penalty`. Their state is a few numbers for each gate set (`Penalty.state`); everything else
follows from the number of the update.
"""

import logging
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlprune.config.config import ConfigError
from mtlprune.encoder.gates import OPEN_LOGIT, Gates, TopKGates, logits_of, top_mask
from mtlprune.runs.claims import Claim
from mtlprune.training.balance import adam

log = logging.getLogger(__name__)

_MEMORY = 0.9
"""The decay of the running means of gradients: the weight of the previous mean in an update."""
TOLERANCE = 0.05
"""The largest deviation of the number of open heads from K in weights that may count as the best, as a share of K.

A deviation of a single head is always allowed."""
_RATE, _DAMPING, _LIMIT = 0.003, 2.0, 4.0
"""Constants of `TargetPenalty`, in units of its scale: the rate at which the multiplier rises for each excess head and
update, the direct penalty for each excess head, and the limit of the direct penalty."""
SETTLE = 0.7
"""The share of the updates after which `ExactPenalty` fixes the gates."""
_LEAST_SCALE = 1e-6
"""The smallest scale of `TargetPenalty`, used if the loss does not depend on any gate; far above Adam's epsilon, 1e-8.
"""


class Penalty(ABC):
    """Base class of penalties on gates; by default a penalty has no state, and all weights may count as the best."""

    @abstractmethod
    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        """Return the penalty at update ``step`` (from 0), a differentiable float32 scalar.

        Args:
            sets: the gate sets of the update's mini-batches, at least one. `TargetPenalty` reads the gradient of the
                tasks from them, so it must be called after the backward passes of the mini-batches.
        """

    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:  # noqa: B027 (most have nothing to do)
        """Change the gates or the penalty after the optimizer has stepped. ``sets``: all gate sets."""

    def has_settled(self, step: int) -> bool:
        """Return whether the weights after ``step`` updates may count as the best of the run."""
        return True

    def off_target(self, sets: Mapping[str, Gates]) -> dict[str, int]:
        """Return the number of open heads of each gate set that has not reached its target.

        Weights with such a gate set cannot count as the best.
        """
        return {}

    def state(self) -> dict[str, dict[str, float]]:
        """Return the state that a checkpoint must hold, as numbers that JSON stores without loss."""
        return {}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:  # noqa: B027
        """Restore what ``state()`` returned."""


class LambdaPenalty(Penalty):
    """λ times the mean over layers of the expected number of open heads, summed over gate sets (He and Choi 2021).

    Args:
        weight: λ, which is constant after the warm-up.
        total: the number of updates of the run.
        warmup: the share of the updates over which λ rises linearly from 0; the paper has no warm-up.
    """

    def __init__(self, weight: float, total: int, warmup: float = 0.0) -> None:
        self.weight, self.total, self.warmup = weight, total, warmup

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        # As in the paper, the expected number is divided by the number of layers, so that λ does not depend on the
        # depth of the encoder. Gate sets are summed, because the paper penalises the gates of each task separately.
        weight = self.weight * _fraction_done(self.warmup * self.total, step)
        return weight * torch.stack([gates.expected_open() / len(gates.logits) for gates in sets.values()]).sum()


@dataclass
class _Multiplier:
    """The state of `TargetPenalty` for a gate set."""

    value: float = 0.0
    """The Lagrange multiplier, in units of the scale."""
    pull: float = 0.0
    """The running mean of Σ |∂ loss of the tasks / ∂ logit| over the heads."""
    give: float = 0.0
    """The running mean of Σ ∂ (expected number of open heads) / ∂ logit over the heads."""

    def scale(self) -> float:
        """Return the unit of the penalty, roughly the change of the tasks' loss for each expected open head."""
        return max(self.pull / self.give if self.give else 0.0, _LEAST_SCALE)


class TargetPenalty(Penalty):
    """Penalty that steers every gate set to ``keep`` open heads and holds it there.

    It is an augmented Lagrangian as in Wang, Wohlwend and Lei (2020) and CoFi (Xia, Zhong and Chen 2022). With
    f = min(1, update / updates of the warm-up)³ and

        excess = f · open + (1 − f) · expected open − target,

    the penalty is scale · (multiplier + clip(damping · excess, ±limit)) · expected open. Afterwards rate · excess is
    added to the multiplier. The target falls linearly from all heads to ``keep`` over the warm-up.

    "open" is the number of heads whose evaluated gate exceeds 1e-3. It is the number that matters in the end, but it
    has no derivative, so the penalty acts on the expected number, which is a proxy constraint (Cotter, Jiang and
    Sridharan 2019). In the beginning the excess uses the expected number, because "open" does not change before a gate
    has closed completely. The scale follows from running means of the tasks' gradient with respect to the gates, so
    that the penalty adapts to the scale of the loss. The direct part, damping · excess, is limited, because a large
    direct part would close all heads at the same rate, however much a task needs them, and would remain in Adam's
    second moment for a thousand updates.

    Args:
        keep: K, the number of open heads in every gate set, at most ``heads``.
        heads: L · A, the number of heads.
        total: the number of updates of the run.
        warmup: the share of the updates over which the target falls.
        settle: the share of the updates after which weights may count as the best.

    Raises:
        ConfigError: the warm-up is longer than the share ``settle``.
    """

    state_class: type = _Multiplier
    """The class of the state of a gate set."""

    def __init__(self, keep: int, heads: int, total: int, warmup: float = 0.4, settle: float = 0.6) -> None:
        if not warmup <= settle:
            raise ConfigError(
                f"the settling share of the updates: expected at least the share of the warm-up ({warmup}), found "
                f"{settle}"
            )
        self.keep, self.heads, self.total = keep, heads, total
        self.warmup, self.settle = warmup, settle
        self.multipliers: dict[str, Any] = {}

    def warmup_progress(self, step: int) -> float:
        """Return the share of the warm-up that is done after update ``step`` (from 0), from 0 to 1."""
        return _fraction_done(self.warmup * self.total, step)

    def target_count(self, step: int) -> float:
        """Return the target number of open heads after update ``step`` (from 0)."""
        # The target falls linearly from all heads to `keep`. A constant target would give a large excess at the first
        # update, which would close heads before the gradient of the tasks can tell which heads they need.
        return self.heads + (self.keep - self.heads) * self.warmup_progress(step)

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        """Return the penalty, and update the multipliers."""
        return torch.stack([self._term(name, gates, step) for name, gates in sets.items()]).sum()

    def _term(self, name: str, gates: Gates, step: int) -> Tensor:
        if gates.is_fixed():
            return gates.logits.new_zeros(())
        # `logits.grad` must hold the gradient of the tasks alone, because its size sets the scale of the penalty. So
        # the backward passes of the mini-batches come before this call, and the backward pass of the penalty after it.
        assert gates.logits.grad is not None
        expected = gates.expected_open()
        # The graph is kept, because the caller calls backward on the returned product with `expected`.
        (slope,) = torch.autograd.grad(expected, gates.logits, retain_graph=True)
        multiplier = self.multipliers.setdefault(name, self.state_class())
        numbers = gates.logits.grad.abs().sum(), slope.sum(), gates.open_mask().sum(), expected.detach()
        # All four numbers are read together, so that the host waits for the device only once in an update.
        pull, give, count, expected_count = torch.stack(numbers).tolist()
        multiplier.pull = _MEMORY * multiplier.pull + (1 - _MEMORY) * pull
        multiplier.give = _MEMORY * multiplier.give + (1 - _MEMORY) * give
        # The number of open heads in evaluation has to be right in the end, but it is a step function and does not
        # change in the beginning. The cube gives most weight to the smooth expected number for most of the warm-up.
        share = self.warmup_progress(step) ** 3
        excess = share * count + (1 - share) * expected_count - self.target_count(step)
        # The direct part responds at once to the excess and vanishes at the target. The multiplier integrates the
        # excess, and holds the gates at the target.
        direct = max(-_LIMIT, min(_LIMIT, _DAMPING * excess))
        penalty = multiplier.scale() * (multiplier.value + direct)
        # As in the method of multipliers, the multiplier changes only after the penalty is computed with its old value.
        multiplier.value += _RATE * excess
        return penalty * expected

    def has_settled(self, step: int) -> bool:
        """Return True if the gates have had time to reach K, so that the weights may count as the best.

        Without this condition, the best weights could be from an early epoch, in which most heads are still open.
        """
        return step >= math.ceil(self.settle * self.total)

    def off_target(self, sets: Mapping[str, Gates]) -> dict[str, int]:
        """Return the number of open heads of each gate set with |open − K| > max(1, 0.05 K)."""
        counts = {name: sets[name].open_count() for name in self.multipliers}
        return {name: count for name, count in counts.items() if abs(count - self.keep) > max(1, TOLERANCE * self.keep)}

    def state(self) -> dict[str, dict[str, float]]:
        return {name: asdict(multiplier) for name, multiplier in self.multipliers.items()}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self.multipliers = {name: self.state_class(**values) for name, values in state.items()}


class ExactPenalty(TargetPenalty):
    """A `TargetPenalty` that fixes every gate set to its ``keep`` heads with the largest logits.

    Gates are fixed after the share ``settle`` of the updates. The rest of the run trains with gates of exactly 0 and 1.
    The gates store whether they are fixed, so this is not part of the state.

    Args:
        generator: function that returns the random generator for ties between gates, the same in every call.
    """

    def __init__(
        self,
        keep: int,
        heads: int,
        total: int,
        warmup: float = 0.4,
        settle: float = SETTLE,
        generator: Callable[[], np.random.Generator] = lambda: np.random.default_rng(0),
    ) -> None:
        super().__init__(keep, heads, total, warmup, settle)
        self.generator = generator

    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:
        # `step` counts from 0 and this update is done, so the number of finished updates is step + 1.
        if not self.has_settled(step + 1):
            return
        generator = self.generator()
        for name, gates in sets.items():
            if not gates.is_fixed():
                log.info("gates %s: %d heads open, fixed to the %d largest", name, gates.open_count(), self.keep)
                # Heads are ranked by their logits, which differ even if their evaluated gates are all 1. The evaluated
                # gates only decide about the warning that heads could not be distinguished.
                logits, evaluated = gates.logits.detach(), gates.evaluated().detach()
                gates.fix(largest(logits, self.keep, generator, f"gates {name} have", evaluated))


@dataclass
class _DualMultipliers:
    """The state of `LagrangianPenalty` for a gate set: the multipliers λ₁ and λ₂ with the moments of Adam."""

    first: float = 0.0
    second: float = 0.0
    first_mean: float = 0.0
    second_mean: float = 0.0
    first_square: float = 0.0
    second_square: float = 0.0
    count: int = 0

    def rise(self, slopes: dict[str, float], rate: float) -> None:
        """Make a step of Adam that raises the penalty. ``slopes``: "first" and "second" → derivative of the penalty."""
        for name, slope in slopes.items():
            fields = name, f"{name}_mean", f"{name}_square"
            new_values = adam([*(getattr(self, field) for field in fields), self.count], slope, -rate)
            # `strict=False` drops the step count that Adam returns, because both multipliers share a count, which rises
            # once, below.
            for field, value in zip(fields, new_values, strict=False):
                setattr(self, field, value)
        self.count += 1


class LagrangianPenalty(ExactPenalty):
    """An `ExactPenalty` of the form λ₁ · d + λ₂ · d² with d = (expected open − target) / heads.

    Both multipliers start at 0 and are updated by Adam with the rate ``multiplier_rate``, so as to maximise the
    penalty: λ₁ rises while d is above 0 and falls while d is below 0, and λ₂ never falls. Sources: Wang, Wohlwend and
    Lei (2020), CoFi (Xia, Zhong and Chen 2022) and The Heuristic Core (Bhaskar, Friedman and Chen 2024).
    """

    state_class = _DualMultipliers

    def __init__(self, keep: int, heads: int, total: int, multiplier_rate: float = 1.0, **options: Any) -> None:
        super().__init__(keep, heads, total, **options)
        self.multiplier_rate = multiplier_rate

    def _term(self, name: str, gates: Gates, step: int) -> Tensor:
        if gates.is_fixed():
            return gates.logits.new_zeros(())
        # As in CoFi, the excess is divided by the number of heads, so that the rate of the multipliers does not depend
        # on the size of the encoder.
        excess = (gates.expected_open() - self.target_count(step)) / self.heads
        ascent = self.multipliers.setdefault(name, _DualMultipliers())
        penalty = ascent.first * excess + ascent.second * excess**2
        value = float(excess.detach())
        # The derivative of the penalty is d with respect to λ₁ and d² with respect to λ₂. The multipliers maximise the
        # penalty that the gates minimise.
        ascent.rise({"first": value, "second": value**2}, self.multiplier_rate)
        return penalty


class ClosingSchedule(ExactPenalty):
    """A schedule without penalty: gates close gradually to a given mask, like trained gates, and are then fixed to it.

    The gates are fixed after the share ``settle`` of the updates. Without ``claim``, the logits of heads in the mask
    remain at a, the initial logit of open gates, and the logits of other heads fall linearly from a to −a over the
    warm-up.

    With ``claim``, every head follows the logits of a head of the same layer in another run: a head that the other run
    keeps, if the mask keeps the head, and a closed head otherwise. Logits start at the smallest logit of an evaluated
    gate of 1, are interpolated linearly between the evaluations of the other run, and remain constant after its last
    evaluation before its gates were fixed.

    Args:
        claim: the gates of the other run, with as many open heads in each layer as the mask.
    """

    def __init__(self, heads: int, total: int, claim: Claim | None = None, **shares: Any) -> None:
        super().__init__(0, heads, total, **(shares if claim is None else {"warmup": 0.0, **shares}))
        self.claim = claim
        if claim is None:
            return
        # Evaluations with only 0 and 1 took place after the gates had been fixed. They have no logits, because both
        # ends of the stretched sigmoid are clamped.
        noisy_epochs = [(step, gates) for step, gates in claim.history if not np.isin(gates, (0, 1)).all()]
        # The other run may have another number of updates, so its evaluations are mapped to the same share of this run.
        self.steps = [0.0, *(step / claim.history[-1][0] * total for step, _ in noisy_epochs)]
        first = np.ones(claim.gates.shape)
        self.logits = logits_of(torch.from_numpy(np.stack([first, *(gates for _, gates in noisy_epochs)])))  # (E, L, A)

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        return torch.zeros(())

    @torch.no_grad()
    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:
        for gates in sets.values():
            gates.logits.copy_(self.at(gates.mask.cpu(), step))
            if self.has_settled(step + 1):
                gates.fix(gates.mask.clone())

    def at(self, mask: Tensor, step: int) -> Tensor:
        """Return the logits (L, A), after update ``step`` (from 0), of gates that will be fixed to ``mask``."""
        if self.claim is None:
            return OPEN_LOGIT * (1 - 2 * self.warmup_progress(step) * (1 - mask))
        # Logits are interpolated between the two evaluations around this update, and are constant after the last one.
        after = min(bisect_right(self.steps, step + 1), len(self.steps) - 1)
        begin, end = self.steps[after - 1], self.steps[after]
        logits = torch.lerp(self.logits[after - 1], self.logits[after], min(1.0, (step + 1 - begin) / (end - begin)))
        # In both masks, a stable sort within each layer puts closed heads first and open heads last. Pairing the two
        # orders gives every closed head the logits of a closed head of its layer, and every open head the logits of an
        # open head.
        claim_order, mask_order = (
            torch.argsort(is_kept.int(), stable=True) for is_kept in (torch.from_numpy(self.claim.open), mask)
        )
        return torch.zeros_like(logits).scatter_(1, mask_order, logits.gather(1, claim_order))


class Annealing(Penalty):
    """A schedule without penalty: the temperature of `TopKGates` falls geometrically over the warm-up.

    Args:
        first: the temperature at the beginning.
        last: the temperature from the end of the warm-up on.
        total: the number of updates of the run.
        warmup: the share of the updates over which the temperature falls.
    """

    def __init__(self, first: float, last: float, total: int, warmup: float = 0.68) -> None:
        self.first, self.last, self.total, self.warmup = first, last, total, warmup

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        return torch.zeros(())

    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:
        share = _fraction_done(self.warmup * self.total, step)
        for gates in sets.values():
            if isinstance(gates, TopKGates):
                # The temperature falls geometrically, so that every halving takes the same number of updates.
                gates.temperature.fill_(self.first ** (1 - share) * self.last**share)


def largest(
    values: Tensor,
    keep: int,
    generator: np.random.Generator,
    subject: str = "the selector has",
    deciding_values: Tensor | None = None,
) -> Tensor:
    """Return a mask of the ``keep`` largest values, (L, A) of 0 and 1; ties are broken at random.

    A warning is logged if a selected and an unselected head have the same value.

    Args:
        values: (L, A), a value for each head.
        subject: the beginning of the warning, such as "the gates have".
        deciding_values: (L, A), the values by which the warning decides whether heads are equal, for example evaluated
            gates, which can be equal although their logits (``values``) differ. By default, ``values``.
    """
    flat, deciding_flat = values.flatten(), (values if deciding_values is None else deciding_values).flatten()
    # `top_mask` breaks ties by position, which would prefer low layers. So a random permutation of the heads is ranked,
    # and the indexed assignment undoes the permutation.
    order = torch.from_numpy(generator.permutation(len(flat))).to(flat.device)
    mask = torch.zeros_like(flat, dtype=torch.float32)
    mask[order] = top_mask(flat[order][None], keep)[0]
    # The border is the smallest value of a selected head. If an unselected head has the same value, chance decided.
    border = deciding_flat[mask == 1].min() if keep else deciding_flat.new_tensor(torch.inf)
    if int((deciding_flat[mask == 0] >= border).sum()):
        tie_count = int((deciding_flat == border).sum())
        log.warning(
            "%s not distinguished heads, because %d are equal at the boundary of the %d that stay open; chance decides "
            "between them",
            *(subject, tie_count, keep),
        )
    return mask.view_as(values)


def _fraction_done(updates: float, step: int) -> float:
    """Return the share of the first ``updates`` updates that is done after update ``step`` (from 0)."""
    return min(1.0, (step + 1) / updates) if updates else 1.0
