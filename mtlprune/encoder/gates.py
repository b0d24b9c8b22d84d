"""Hard Concrete gates: one number in [0, 1] a head, that training can close exactly.

Louizos, Welling and Kingma (2018), "Learning Sparse Neural Networks through L0 Regularization", section 2.2; values and
evaluation as in the code of He and Choi (2021). With a the logit, u uniform in (0, 1), T the temperature, l and r the
limits of the stretch:

    sample          z = clip(sigmoid((logit(u) + a) / T) · (r − l) + l, 0, 1)
    evaluation      z = clip(sigmoid(a) · (r − l) + l, 0, 1)                       no noise, no temperature
    P(z ≠ 0)        q = sigmoid(a − T · ln(−l / r))

Everything is float32, whatever the encoder computes in.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mtlprune.encoder.pieces import EncoderError
from mtlprune.evaluation.head_masks import OPEN_ABOVE

OPEN = OPEN_ABOVE

OPEN_LOGIT = 2.5
"""The logit at which `open` gates start. The evaluated gate is 1 from 2.398 on. Just above that, a sample is 1 with
probability 0.85 and 0 with 0.04, and every ninth draw carries a gradient; at 5 it would be one draw in 93, and a rate
of 0.1 would need 25 more updates to close the head."""

Init = Literal["paper", "open"]


LOW, HIGH, EPSILON = -0.1, 1.1, 1e-6
"""The limits of the stretch, and how far noise and probabilities keep from 0 and 1; as in the code of He and Choi."""
TEMPERATURE = 0.33
"""T of the same code; the lower, the more samples are exactly 0 or 1."""


def sample(logits: Tensor, noise: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Gates as drawn in training.

    Args:
        logits: any shape.
        noise: same shape, uniform in [0, 1].

    Returns:
        Values in [0, 1], float32, differentiable by the logits where strictly between.
    """
    # The Hard Concrete distribution (Louizos et al. 2018): logistic noise, which is the logit of a uniform number, is
    # added to the logit; the sigmoid with temperature T brings the sum into (0, 1), and the stretch below beyond both
    # ends, so that clamping yields exact zeros and ones with positive probability.
    logits, noise = logits.float(), noise.float()
    return _stretch(torch.sigmoid((torch.logit(noise, eps=EPSILON) + logits) / temperature))


def deterministic(logits: Tensor) -> Tensor:
    """Gates as evaluated: no noise, no temperature; float32, same shape."""
    # No temperature here: the original evaluates σ(logit) stretched and clamped, and a run is to be evaluated as its
    # paper's was.
    return _stretch(torch.sigmoid(logits.float()))


def logits_of(values: Tensor) -> Tensor:
    """Logits of which `deterministic` makes these values, of 0 and 1 the nearest to those between; float32."""
    return torch.logit((values.float() - LOW) / (HIGH - LOW))


def _stretch(soft: Tensor) -> Tensor:
    # (0, 1) becomes (−0.1, 1.1). What is clamped has no gradient, so a head that is wide open or closed is moved by
    # its penalty or by noise only.
    return (soft * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def probability_open(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """P(sample ≠ 0), in [epsilon, 1 − epsilon]; float32, same shape (Louizos et al. 2018, section 2.2)."""
    # A sample is 0 exactly where σ((logit(u) + α) / T) ≤ −LOW / (HIGH − LOW). Solved for u this is a sigmoid of α − T
    # · log(−LOW / HIGH), so the expected number of open heads has a derivative in closed form although the number
    # itself has none.
    shifted = logits.float() - temperature * math.log(-LOW / HIGH)
    return torch.sigmoid(shifted).clamp(EPSILON, 1 - EPSILON)


def overlap(gate_sets: Sequence[Tensor]) -> Tensor:
    """Sum over pairs of tasks and over heads of z_task · z_other, a scalar (He and Choi 2021, per-task gates).

    The gradient by one task's gates is the sum of the others' gates, as in the original, which visits one task a batch.

    Args:
        gate_sets: one (L, A) a task, at least one.
    """
    stacked = torch.stack([gates.float() for gates in gate_sets])  # (tasks, L, A)
    # (Σ z)² holds every ordered pair and the squares; without the squares each unordered pair is left twice. This
    # takes one pass over the tasks where a loop over pairs would take many small operations.
    return (stacked.sum(0).square().sum() - stacked.square().sum()) / 2


def top_mask(values: Tensor, keep: int) -> Tensor:
    """A mask of the ``keep`` largest values; of equal ones, those that come first in the order of layers, then heads.

    Args:
        values: (L, A).
        keep: at most L · A.

    Returns:
        (L, A) of 0 and 1, float32, on the same device.
    """
    # On the CPU, because sorts on a GPU are not stable by default and differ between devices, and the same run must
    # choose the same heads everywhere.
    order = values.detach().flatten().cpu().sort(descending=True, stable=True).indices
    mask = torch.zeros(values.numel())
    mask[order[:keep]] = 1.0
    return mask.reshape(values.shape).to(values.device)


def first_logits(layers: int, heads: int, init: Init = "paper", seed: int = 0) -> Tensor:
    """Logits to start from, (L, A) float32.

    ``paper``: uniform in ±sqrt(6 / (A + 1)), which is Xavier's on the shape (1, A, 1, 1); evaluated gates then lie
    around 0.5 (0.30 to 0.70 for 12 heads), so that the encoder starts damped. ``open``: all `OPEN_LOGIT`, evaluated
    gates 1, so that the encoder starts as it was pretrained; the seed changes nothing.
    """
    if init == "open":
        return torch.full((layers, heads), OPEN_LOGIT)
    # Xavier's bound is sqrt(6 / (fan in + fan out)); for the shape (1, A, 1, 1) of the original code, fans are A and
    # 1.
    bound = math.sqrt(6 / (heads + 1))
    return (torch.rand((layers, heads), generator=torch.Generator().manual_seed(seed)) * 2 - 1) * bound


class Gates(nn.Module):
    """One set of gates: a logit for every head of every layer.

    The logits stay float32 when the module is cast (``.to(torch.bfloat16)``, ``.half()``), and are computed with
    outside autocast. Noise comes from torch's global generator, or from ``noise`` where that is set.

    Args:
        layers, heads: L and A.
        init: see `first_logits`.
        seed: of the first logits.
        smoothness: T, the temperature of samples, above 0.
    """

    logits: nn.Parameter
    mask: Tensor
    fixed: Tensor
    noise: torch.Generator | None = None

    def __init__(
        self, layers: int, heads: int, init: Init = "paper", seed: int = 0, smoothness: float = TEMPERATURE
    ) -> None:
        super().__init__()
        self.smoothness = smoothness
        self.logits = nn.Parameter(first_logits(layers, heads, init, seed))
        # Mask and flag are buffers and not attributes, so that a checkpoint, and a model that is saved for
        # evaluation, know whether the gates were fixed and to what.
        self.register_buffer("mask", torch.ones(layers, heads))
        self.register_buffer("fixed", torch.tensor(False))

    def forward(self) -> Tensor:
        """Gate values (L, A), float32: a sample while training, `evaluated` otherwise; the mask where one is fixed."""
        if not self.training or self.is_fixed():
            return self.evaluated()
        with torch.autocast(self.logits.device.type, enabled=False):
            uniform = torch.rand(self.logits.shape, generator=self.noise, device=self.logits.device)
            return sample(self.logits, uniform, self.smoothness)

    def evaluated(self) -> Tensor:
        """Gate values (L, A) as evaluation uses them, in either mode."""
        if self.is_fixed():
            return self.mask.clone()
        with torch.autocast(self.logits.device.type, enabled=False):
            return deterministic(self.logits)

    @torch.no_grad()
    def open_mask(self) -> Tensor:
        """(L, A) of bool: which heads are open, that is, have an evaluated gate above `OPEN`."""
        return self.evaluated() > OPEN

    def open_count(self) -> int:
        """The number of open heads."""
        return int(self.open_mask().sum())

    def expected_open(self) -> Tensor:
        """Expected number of heads that a sample leaves open, a scalar; differentiable unless a mask is fixed."""
        if self.is_fixed():
            return self.mask.sum()
        with torch.autocast(self.logits.device.type, enabled=False):
            return probability_open(self.logits, self.smoothness).sum()

    def is_fixed(self) -> bool:
        """True where the gates are a mask now."""
        # The flag stays on the CPU wherever the gates are (see `_apply`), so that asking for it in every forward pass
        # never makes the host wait for a GPU.
        return bool(self.fixed)

    @torch.no_grad()
    def fix(self, mask: Tensor) -> None:
        """Fix the gates to this mask from now on, in training too. It is saved with the module; the logits stay.

        Args:
            mask: (L, A) of 0 and 1, or bool.

        Raises:
            EncoderError: another shape.
        """
        if mask.shape != self.logits.shape:
            expected, actual = tuple(self.logits.shape), tuple(mask.shape)
            raise EncoderError(f"a mask of heads: expected the shape (layers, heads) {expected}, found {actual}")
        self.mask.copy_(mask)
        self.fixed.fill_(True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Gates":
        """Move, but never round: ``.to``, ``.half`` and the like call this."""

        # `.to(torch.bfloat16)` of a whole model must not round the logits: with bf16's eight bits of mantissa a step
        # of Adam would often be lost. The tensor is moved to the new device but keeps its dtype.
        def apply_and_refresh(tensor: Tensor) -> Tensor:
            if tensor is self.fixed:
                return tensor
            copy = fn(tensor)
            return copy if copy.dtype == tensor.dtype else tensor.to(copy.device)

        return super()._apply(apply_and_refresh, recurse)


def relaxed_subset(scores: Tensor, keep: int, temperature: Tensor | float) -> Tensor:
    """``keep`` soft-maxes one after another, each over what the earlier ones left (Xie and Ermon 2019).

        p_1 = softmax(s / T),   s ← s + log(1 − p_j),   p_j+1 = softmax(s / T);   the result is Σ p_j

    Args:
        scores: (N,) float64; under Gumbel noise, T to 0 makes a draw without replacement of it.

    Returns:
        (N,), at least 0 and adding up to ``keep``.
    """
    total = torch.zeros_like(scores)
    for _ in range(keep):
        # Each round draws one head softly; adding log(1 − p) lowers the scores of what was drawn, so that it is
        # hardly drawn again. In the limit T → 0 this is exactly drawing `keep` heads without replacement.
        weights = torch.softmax(scores / temperature, 0)
        total = total + weights
        scores = scores + torch.log((1 - weights).clamp(min=1e-100))
    return total


class TopKGates(Gates):
    """Gates of which exactly ``keep`` are 1 and the others 0 at every step (Li, Cotterell and Sachan 2021).

    In training the ``keep`` largest logits after Gumbel noise are open, so a head is drawn as often as in sequential
    draws without replacement by softmax(logits); gradients are those of `relaxed_subset` of the same noisy logits
    (straight through). In evaluation the ``keep`` largest logits are open.

    Args:
        layers, heads, init, seed: as for `Gates`.
        keep: K, at most layers · heads.
        temperature: T of the gradients, above 0; it is saved with the module, and whoever trains may lower it.
    """

    temperature: Tensor

    def __init__(
        self, layers: int, heads: int, keep: int, init: Init = "paper", seed: int = 0, temperature: float = 1.0
    ) -> None:
        super().__init__(layers, heads, init, seed)
        self.keep = keep
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self) -> Tensor:
        if not self.training or self.is_fixed():
            return self.evaluated()
        with torch.autocast(self.logits.device.type, enabled=False):
            uniform = torch.rand(self.logits.shape, generator=self.noise, device=self.logits.device).double()
            # Gumbel noise: −log(−log u). The K largest of logits plus Gumbel noise are a draw of K heads without
            # replacement with probabilities ∝ exp(logit). In float64, because the sums of `relaxed_subset` cancel.
            scores = self.logits - torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))
            soft = relaxed_subset(scores.flatten(), self.keep, self.temperature).view_as(scores).float()
            # Straight through: the value is the hard mask, as soft − soft.detach() is 0, and the gradient is that of
            # the soft one.
            return top_mask(scores, self.keep) + (soft - soft.detach())

    def evaluated(self) -> Tensor:
        return super().evaluated() if self.is_fixed() else top_mask(self.logits, self.keep)

    def expected_open(self) -> Tensor:
        return self.evaluated().sum()
