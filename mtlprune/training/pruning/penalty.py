"""Penalties that close gates, and schedules of gates that feel none, behind one interface.

The state is a few numbers a set, `state()`; everything else follows from the number of the update.
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
"""The share of the past that running means of gradients keep after an update."""
TOLERANCE = 0.05
"""Share of K by which the open heads may miss K (and by one in any case) in weights that count as the run's best."""
RATE, DAMPING, LIMIT = 0.003, 2.0, 4.0
"""The rate of the multiplier's ascent, per head and update; the direct penalty per head, and its limit."""
SETTLE = 0.7
"""Share of the updates after which exact gates are fixed."""
_LEAST_SCALE = 1e-6
"""The penalty a head where the tasks do not care for any gate at all; far above the epsilon of Adam, 1e-8."""


class Penalty(ABC):
    """A penalty of which weights always count as the best, and that remembers nothing."""

    @abstractmethod
    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        """The penalty at update ``step`` (from 0), a differentiable float32 scalar.

        Args:
            sets: the gates that took part in this update, at least one. Their gradient must be the tasks' alone: call
                this after the backward passes of the mini-batches.
        """

    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:  # noqa: B027 (most have nothing to do)
        """Called after the optimizers stepped, with all sets."""

    def has_settled(self, step: int) -> bool:
        """True where weights after ``step`` updates may count as the run's best."""
        return True

    def off_target(self, sets: Mapping[str, Gates]) -> dict[str, int]:
        """Open heads of the sets that are not where they are steered to; weights of which there are any are not the
        best."""
        return {}

    def state(self) -> dict[str, dict[str, float]]:
        """Everything that a checkpoint must hold, as JSON can hold it without loss."""
        return {}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:  # noqa: B027
        """Restore what ``state()`` returned."""


class LambdaPenalty(Penalty):
    """λ · mean over layers of the expected number of open heads (He and Choi 2021), summed over sets.

    Args:
        weight: λ, constant but for the warm-up.
        warmup: over the first so large share of the updates λ rises linearly; 0 is the paper's.
    """

    def __init__(self, weight: float, total: int, warmup: float = 0.0) -> None:
        self.weight, self.total, self.warmup = weight, total, warmup

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        # The paper sums the expected number over the layers and divides by their number, so λ has the same meaning
        # for encoders of any depth. Sets are added and not averaged, because each task's set is penalised on its own
        # there.
        weight = self.weight * _fraction_done(self.warmup * self.total, step)
        return weight * torch.stack([gates.expected_open() / len(gates.logits) for gates in sets.values()]).sum()


@dataclass
class _Multiplier:
    """The memory of one set."""

    value: float = 0.0
    """Lagrange multiplier, in units of the scale."""
    pull: float = 0.0
    """Running mean of Σ |∂ task loss / ∂ logit|."""
    give: float = 0.0
    """Running mean of Σ ∂ expected open / ∂ logit."""

    def scale(self) -> float:
        """The unit of penalty: the rough change of the tasks' loss per expected open head."""
        return max(self.pull / self.give if self.give else 0.0, _LEAST_SCALE)


class TargetPenalty(Penalty):
    """Brings every set to ``keep`` open heads, and holds it there.

    An augmented Lagrangian as in Wang, Wohlwend and Lei (2020) and CoFi (Xia, Zhong and Chen 2022). In the end it
    steers the number of heads whose *evaluated* gate exceeds 1e-3, through the expected number, which has a derivative:
    a proxy constraint (Cotter, Jiang and Sridharan 2019). In the beginning it steers the expected number, because the
    other one does not move before the first head has come all the way. It is measured in units of the gates' task
    gradient (running mean), whatever the loss's scale. Its direct part is limited: a large one closes all heads in
    step, whatever they are worth, and stays in Adam's second moment for a thousand updates.

    With f = min(1, update / updates of the warm-up)³ and

        excess = f · open + (1 − f) · expected open − target

    the penalty is scale · (multiplier + clip(damping · excess, ±limit)) · expected open, and then
    multiplier += rate · excess. The wanted number falls linearly from all heads to ``keep`` over the warm-up.

    Args:
        keep: K, heads of every set, at most ``heads``, which is L · A.
        warmup: share of the updates over which the wanted number falls.
        settle: share of the updates after which weights count; ConfigError where the warm-up ends later.
    """

    remembered: type = _Multiplier

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
        """The share of the warm-up that is done after update ``step`` (from 0), 0 to 1."""
        return _fraction_done(self.warmup * self.total, step)

    def target_count(self, step: int) -> float:
        """The number of heads that should be open after update ``step`` (from 0)."""
        # A straight line from all heads down to `keep`. Without it the whole excess would be there at once, and the
        # first gradient would close heads before the tasks had any say in which.
        return self.heads + (self.keep - self.heads) * self.warmup_progress(step)

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        """The penalty; moves the multipliers."""
        return torch.stack([self._term(name, gates, step) for name, gates in sets.items()]).sum()

    def _term(self, name: str, gates: Gates, step: int) -> Tensor:
        if gates.is_fixed():
            return gates.logits.new_zeros(())
        # Only the tasks' gradient may be in `logits.grad` here: its size is the unit in which the penalty is
        # measured, and the penalty's own gradient would be counted in its own scale.
        assert gates.logits.grad is not None  # the mini-batches' backward passes come first
        expected = gates.expected_open()
        # The slope of the expected number says how much a logit gives for its way. The graph is kept, because the
        # caller calls backward on the very same `expected` afterwards.
        (slope,) = torch.autograd.grad(expected, gates.logits, retain_graph=True)
        multiplier = self.multipliers.setdefault(name, self.remembered())
        numbers = gates.logits.grad.abs().sum(), slope.sum(), gates.open_mask().sum(), expected.detach()
        # All four numbers are stacked before they are read, so that the host waits for the device once an update and
        # not four times.
        pull, give, count, likely = torch.stack(numbers).tolist()
        multiplier.pull = _MEMORY * multiplier.pull + (1 - _MEMORY) * pull
        multiplier.give = _MEMORY * multiplier.give + (1 - _MEMORY) * give
        # The number of heads that are open in evaluation is what has to be right in the end, but it is a step
        # function and does not move at all in the beginning. The cube keeps the smooth expected number in charge for
        # most of the warm-up.
        share = self.warmup_progress(step) ** 3
        excess = share * count + (1 - share) * likely - self.target_count(step)
        # The direct part answers at once and fades at the goal; the multiplier integrates and holds the gates there.
        # The direct part is limited: a large one would close all heads in step and stay in Adam's second moment long
        # after.
        direct = max(-LIMIT, min(LIMIT, DAMPING * excess))
        penalty = multiplier.scale() * (multiplier.value + direct)
        # The ascent of the multiplier comes after the penalty is computed, as in the method of multipliers: this
        # update uses the value that the earlier ones left.
        multiplier.value += RATE * excess
        return penalty * expected

    def has_settled(self, step: int) -> bool:
        """True once the gates had time to come to K; else the best epoch would be an early one with most heads open."""
        return step >= math.ceil(self.settle * self.total)

    def off_target(self, sets: Mapping[str, Gates]) -> dict[str, int]:
        """Near is |open − K| ≤ max(1, 0.05 K)."""
        counts = {name: sets[name].open_count() for name in self.multipliers}
        return {name: count for name, count in counts.items() if abs(count - self.keep) > max(1, TOLERANCE * self.keep)}

    def state(self) -> dict[str, dict[str, float]]:
        return {name: asdict(multiplier) for name, multiplier in self.multipliers.items()}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self.multipliers = {name: self.remembered(**values) for name, values in state.items()}


class ExactPenalty(TargetPenalty):
    """A `TargetPenalty` after whose settling share every set is fixed to its ``keep`` heads of the largest logits.
    ``generator``: makes the one that draws among equal gates, the same whenever it is asked.

    The rest of the run trains with gates of exactly 0 and 1. Whether a set is fixed is saved with the gates themselves.
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
        # `step` counts from 0, and gates are fixed after the update, so step + 1 updates are done by now.
        if not self.has_settled(step + 1):
            return
        generator = self.generator()
        for name, gates in sets.items():
            if not gates.is_fixed():
                log.info("gates %s: %d heads open, fixed to the %d largest", name, gates.open_count(), self.keep)
                # Heads are ranked by their logits, which still differ where evaluated gates are all clamped to 1; the
                # evaluated ones only decide whether a warning is due, because there such heads are alike.
                logits, evaluated = gates.logits.detach(), gates.evaluated().detach()
                gates.fix(largest(logits, self.keep, generator, f"gates {name} have", evaluated))


@dataclass
class DualMultipliers:
    """Two multipliers and the moments of their Adam."""

    first: float = 0.0
    second: float = 0.0
    first_mean: float = 0.0
    second_mean: float = 0.0
    first_square: float = 0.0
    second_square: float = 0.0
    count: int = 0

    def rise(self, slopes: dict[str, float], rate: float) -> None:
        """One step of Adam upwards."""
        for name, slope in slopes.items():
            fields = name, f"{name}_mean", f"{name}_square"
            new_values = adam([*(getattr(self, field) for field in fields), self.count], slope, -rate)
            # The step count that Adam returns is dropped here (`strict=False`), because both multipliers take their
            # steps together and the count must rise once, below.
            for field, value in zip(fields, new_values, strict=False):
                setattr(self, field, value)
        self.count += 1


class LagrangianPenalty(ExactPenalty):
    """An `ExactPenalty` with the multipliers of Wang, Wohlwend and Lei (2020), CoFi (Xia, Zhong and Chen 2022) and
    The Heuristic Core (Bhaskar, Friedman and Chen 2024): λ₁ · d + λ₂ · d², d = (expected − wanted) / heads.

    Both multipliers begin at 0 and rise by Adam of rate ``multiplier_rate`` while d is above 0; λ₁ falls where it is
    below.
    """

    remembered = DualMultipliers

    def __init__(self, keep: int, heads: int, total: int, multiplier_rate: float = 1.0, **options: Any) -> None:
        super().__init__(keep, heads, total, **options)
        self.multiplier_rate = multiplier_rate

    def _term(self, name: str, gates: Gates, step: int) -> Tensor:
        if gates.is_fixed():
            return gates.logits.new_zeros(())
        # Divided by all heads, as in CoFi, so that the multipliers' rate does not depend on the size of the encoder.
        excess = (gates.expected_open() - self.target_count(step)) / self.heads
        ascent = self.multipliers.setdefault(name, DualMultipliers())
        penalty = ascent.first * excess + ascent.second * excess**2
        value = float(excess.detach())
        # The gradient of the penalty by λ₁ is d, and by λ₂ it is d². Both are ascended: the model minimises the same
        # sum that the multipliers maximise. As d² is never negative, λ₂ only rises.
        ascent.rise({"first": value, "second": value**2}, self.multiplier_rate)
        return penalty


class ClosingSchedule(ExactPenalty):
    """No penalty: gates whose mask is given close as trained ones do, and are fixed to it after the settling share.
    ``claim``: the gates of that run, which has as many heads of each layer as the mask.

    Logits of the mask's heads stay where open gates start, a; those of the others fall linearly from a to −a over the
    warm-up. With the gates of a run every head has those of a head of its layer there, of the kept ones if the mask
    keeps it: logits are linear between its records, from a on, and stay at the last before its gates were fixed.
    """

    def __init__(self, heads: int, total: int, claim: Claim | None = None, **shares: Any) -> None:
        super().__init__(0, heads, total, **(shares if claim is None else {"warmup": 0.0, **shares}))
        self.claim = claim
        if claim is None:
            return
        # Records with only 0 and 1 were taken after the gates had been fixed; no logit belongs to them, because both
        # ends of the stretch are clamped.
        noisy_epochs = [(step, gates) for step, gates in claim.history if not np.isin(gates, (0, 1)).all()]
        # The other run may have had another number of updates, so its records are placed at the same share of this
        # run.
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
        """Logits (L, A) after update ``step`` (from 0) of gates that will be fixed to the mask."""
        if self.claim is None:
            return OPEN_LOGIT * (1 - 2 * self.warmup_progress(step) * (1 - mask))
        # Linear interpolation between the two records around this update; behind the last record its logits stay.
        after = min(bisect_right(self.steps, step + 1), len(self.steps) - 1)
        begin, end = self.steps[after - 1], self.steps[after]
        logits = torch.lerp(self.logits[after - 1], self.logits[after], min(1.0, (step + 1 - begin) / (end - begin)))
        # Within each layer a stable sort puts closed heads first and kept ones last, in both masks. Pairing the two
        # orders gives every head the logits of one head of its layer that met the same fate, whichever heads the mask
        # keeps.
        claim_order, mask_order = (
            torch.argsort(is_kept.int(), stable=True) for is_kept in (torch.from_numpy(self.claim.open), mask)
        )
        return torch.zeros_like(logits).scatter_(1, mask_order, logits.gather(1, claim_order))


class Annealing(Penalty):
    """No penalty: the temperature of `TopKGates` falls geometrically from ``first`` to ``last`` over the warm-up."""

    def __init__(self, first: float, last: float, total: int, warmup: float = 0.68) -> None:
        self.first, self.last, self.total, self.warmup = first, last, total, warmup

    def __call__(self, sets: Mapping[str, Gates], step: int) -> Tensor:
        return torch.zeros(())

    def end_update(self, sets: Mapping[str, Gates], step: int) -> None:
        share = _fraction_done(self.warmup * self.total, step)
        for gates in sets.values():
            if isinstance(gates, TopKGates):
                # Geometric: the logarithm of the temperature falls in a straight line, so that every halving takes
                # equally many updates.
                gates.temperature.fill_(self.first ** (1 - share) * self.last**share)


def largest(
    values: Tensor,
    keep: int,
    generator: np.random.Generator,
    subject: str = "the selector has",
    deciding_values: Tensor | None = None,
) -> Tensor:
    """A mask of the ``keep`` largest values, (L, A) of 0 and 1 as `top_mask` gives it; equal ones are drawn at random,
    not by layer and head. A warning tells where heads on both sides of the border are alike.

    Args:
        subject: "the gates have", for the warning.
        deciding_values: (L, A), in which heads may be alike whose values still differ, as gates that are wide open;
            values, if not given.
    """
    flat, deciding_flat = values.flatten(), (values if deciding_values is None else deciding_values).flatten()
    # `top_mask` breaks ties by position, which would prefer early layers. Ranking a random permutation of the heads,
    # and undoing it by indexed assignment, breaks them at random instead.
    order = torch.from_numpy(generator.permutation(len(flat))).to(flat.device)
    mask = torch.zeros_like(flat, dtype=torch.float32)
    mask[order] = top_mask(flat[order][None], keep)[0]
    # The smallest value that stays. Where a closed head reaches it too, the ranking did not decide between them, and
    # the reader should know that chance did.
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
    """The share of so many updates that is done after update ``step`` (from 0)."""
    return min(1.0, (step + 1) / updates) if updates else 1.0
