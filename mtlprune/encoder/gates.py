"""Hard Concrete gates: a number in [0, 1] for each attention head, which training can set exactly to 0 (closed).

The gates follow Louizos, Welling and Kingma (2018), "Learning Sparse Neural Networks through L0 Regularization",
section 2.2. Constants and evaluation follow the code of He and Choi (2021). With the logit a, a uniform number u in
(0, 1), the temperature T, and the limits l < 0 and r > 1 of the stretched interval:

    sample          z = clip(sigmoid((logit(u) + a) / T) · (r − l) + l, 0, 1)
    evaluation      z = clip(sigmoid(a) · (r − l) + l, 0, 1)                       no noise, no temperature
    P(z ≠ 0)        q = sigmoid(a − T · ln(−l / r))

All computations are in float32, whatever the dtype of the encoder. A model has one set of gates, or one for each task.

Letters for shapes: L layers, A heads in a layer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mtlprune.encoder.pieces import EncoderError
from mtlprune.evaluation.head_masks import OPEN_ABOVE

OPEN_LOGIT = 2.5
"""The initial logit of gates that start ``open``.

The evaluated gate is 1 for logits from 2.398 on. Just above this value, a sample is 1 with probability 0.85 and 0 with
probability 0.04, and one sample in nine has a gradient. At a logit of 5, it would be one sample in 93, and closing the
head would take 25 more updates at a learning rate of 0.1."""

_Init = Literal["paper", "open"]


LOW, HIGH, _EPSILON = -0.1, 1.1, 1e-6
"""The limits of the stretched interval, and the distance of noise and probabilities from 0 and 1, as in the code of He
and Choi (2021)."""
TEMPERATURE = 0.33
"""The temperature T in the code of He and Choi (2021). At a lower temperature, more samples are exactly 0 or 1."""


def sample(logits: Tensor, noise: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Draw the gates of a training step from the Hard Concrete distribution.

    Args:
        logits: the logits of the gates, of any shape.
        noise: numbers uniform in [0, 1], of the same shape.
        temperature: T.

    Returns:
        The gates in [0, 1], float32. Gates strictly between 0 and 1 have a gradient with respect to the logits.
    """
    # Logistic noise, which is the logit of a uniform number, is added to the logit. The sigmoid with temperature T maps
    # the sum into (0, 1). Stretching then extends this interval beyond both ends, so that clamping gives exact zeros
    # and ones with positive probability.
    logits, noise = logits.float(), noise.float()
    return _stretch(torch.sigmoid((torch.logit(noise, eps=_EPSILON) + logits) / temperature))


def deterministic(logits: Tensor) -> Tensor:
    """Return the gates as evaluation uses them, without noise and temperature: float32, same shape as the logits."""
    # The temperature is left out, because the original code evaluates gates without it.
    return _stretch(torch.sigmoid(logits.float()))


def logits_of(values: Tensor) -> Tensor:
    """Return logits for which `deterministic` gives these gates, in float32.

    Many logits give 0 or 1. Of these, the logit closest to the range of the other gates is returned.
    """
    return torch.logit((values.float() - LOW) / (HIGH - LOW))


def _stretch(soft: Tensor) -> Tensor:
    # (0, 1) becomes (−0.1, 1.1). A clamped value has no gradient, so only the penalty, or a sample whose noise makes it
    # fall between 0 and 1, can change a gate that is wide open or closed.
    return (soft * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def probability_open(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return P(sample ≠ 0), clamped to [1e-6, 1 − 1e-6]: float32, same shape as the logits.

    Source: Louizos et al. (2018), section 2.2.
    """
    # A sample is 0 exactly if σ((logit(u) + a) / T) ≤ −LOW / (HIGH − LOW). The probability of the opposite is a sigmoid
    # of a − T · log(−LOW / HIGH). Therefore the expected number of open heads has a derivative in closed form, although
    # the number itself has none.
    shifted = logits.float() - temperature * math.log(-LOW / HIGH)
    return torch.sigmoid(shifted).clamp(_EPSILON, 1 - _EPSILON)


def overlap(gate_sets: Sequence[Tensor]) -> Tensor:
    """Return the overlap of several gate sets: the sum of z_s · z_t over all heads and all unordered pairs of tasks.

    He and Choi (2021) penalise this overlap for gates of each task. Its gradient with respect to the gates of one task
    is the sum of the gates of the other tasks, as in their code, which visits one task in each batch.

    Args:
        gate_sets: the (L, A) gates of each of one or more tasks.

    Returns:
        A scalar.
    """
    stacked = torch.stack([gates.float() for gates in gate_sets])  # (tasks, L, A)
    # (Σ z)² contains every ordered pair and all squares. Without the squares, each unordered pair is left twice. This
    # form needs one pass over the tasks, where a loop over pairs would need many small operations.
    return (stacked.sum(0).square().sum() - stacked.square().sum()) / 2


def top_mask(values: Tensor, keep: int) -> Tensor:
    """Return a mask of the ``keep`` largest values. Of equal values, those of lower layers, then lower heads, win.

    Args:
        values: (L, A).
        keep: the number of ones, at most L · A.

    Returns:
        (L, A) of 0 and 1, float32, on the device of ``values``.
    """
    # The CPU sorts, because the order of equal values on a GPU may differ between devices, and the same run must choose
    # the same heads on every machine.
    order = values.detach().flatten().cpu().sort(descending=True, stable=True).indices
    mask = torch.zeros(values.numel())
    mask[order[:keep]] = 1.0
    return mask.reshape(values.shape).to(values.device)


def first_logits(layers: int, heads: int, init: _Init = "paper", seed: int = 0) -> Tensor:
    """Return the initial logits of a gate set: (L, A) float32.

    Args:
        layers, heads: L and A.
        init: ``paper`` draws logits uniformly in ±sqrt(6 / (A + 1)), which is Xavier initialisation of the shape
            (1, A, 1, 1). Evaluated gates are then around 0.5 (0.30 to 0.70 for 12 heads), so all heads start damped.
            ``open`` sets all logits to `OPEN_LOGIT`. Evaluated gates are then 1, so the encoder starts as pretrained.
        seed: the random seed of ``paper``.
    """
    if init == "open":
        return torch.full((layers, heads), OPEN_LOGIT)
    # Xavier's bound is sqrt(6 / (fan in + fan out)). For the shape (1, A, 1, 1) of the original code, the fans are A
    # and 1.
    bound = math.sqrt(6 / (heads + 1))
    return (torch.rand((layers, heads), generator=torch.Generator().manual_seed(seed)) * 2 - 1) * bound


class Gates(nn.Module):
    """A set of Hard Concrete gates, with a logit for every head of every layer.

    The logits stay float32 when the module is cast (``.to(torch.bfloat16)``, ``.half()``), and gates are computed
    outside autocast. Noise comes from the generator ``noise`` if it is set, otherwise from torch's global generator.

    Args:
        layers, heads: L and A.
        init: the initialisation of the logits, see `first_logits`.
        seed: the random seed of the initial logits.
        smoothness: T, the temperature of samples, above 0.
    """

    logits: nn.Parameter
    mask: Tensor
    fixed: Tensor
    noise: torch.Generator | None = None

    def __init__(
        self, layers: int, heads: int, init: _Init = "paper", seed: int = 0, smoothness: float = TEMPERATURE
    ) -> None:
        super().__init__()
        self.smoothness = smoothness
        self.logits = nn.Parameter(first_logits(layers, heads, init, seed))
        # The mask and the flag are buffers instead of plain attributes, so that checkpoints and saved models record
        # whether the gates were fixed, and to which mask.
        self.register_buffer("mask", torch.ones(layers, heads))
        self.register_buffer("fixed", torch.tensor(False))

    def forward(self) -> Tensor:
        """Return the gates, (L, A) float32: a sample in training mode, otherwise `evaluated`, or a fixed mask."""
        if not self.training or self.is_fixed():
            return self.evaluated()
        with torch.autocast(self.logits.device.type, enabled=False):
            uniform = torch.rand(self.logits.shape, generator=self.noise, device=self.logits.device)
            return sample(self.logits, uniform, self.smoothness)

    def evaluated(self) -> Tensor:
        """Return the gates as evaluation uses them, whatever the mode of the module: (L, A) float32."""
        if self.is_fixed():
            return self.mask.clone()
        with torch.autocast(self.logits.device.type, enabled=False):
            return deterministic(self.logits)

    @torch.no_grad()
    def open_mask(self) -> Tensor:
        """Return a mask of the open heads, whose evaluated gate is above `OPEN_ABOVE`: (L, A) bool."""
        return self.evaluated() > OPEN_ABOVE

    def open_count(self) -> int:
        """Return the number of open heads."""
        return int(self.open_mask().sum())

    def expected_open(self) -> Tensor:
        """Return the expected number of nonzero gates in a sample, a scalar with a gradient unless a mask is fixed."""
        if self.is_fixed():
            return self.mask.sum()
        with torch.autocast(self.logits.device.type, enabled=False):
            return probability_open(self.logits, self.smoothness).sum()

    def is_fixed(self) -> bool:
        """Return True if the gates are fixed to a mask."""
        # The flag stays on the CPU even if the gates are on a GPU (see `_apply`), because reading it from the GPU in
        # every forward pass would make the host wait.
        return bool(self.fixed)

    @torch.no_grad()
    def fix(self, mask: Tensor) -> None:
        """Fix the gates to a mask, also in training mode. The mask is saved with the module, and the logits stay.

        Args:
            mask: (L, A) of 0 and 1, or bool.

        Raises:
            EncoderError: the mask has another shape than the gates.
        """
        if mask.shape != self.logits.shape:
            expected, actual = tuple(self.logits.shape), tuple(mask.shape)
            raise EncoderError(f"a mask of heads: expected the shape (layers, heads) {expected}, found {actual}")
        self.mask.copy_(mask)
        self.fixed.fill_(True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Gates":
        """Move the tensors to another device without changing their dtype. ``.to``, ``.half`` and others call this."""

        # `.to(torch.bfloat16)` of a whole model must not round the logits, because the eight significant bits of bf16
        # would often lose a step of Adam.
        def apply_and_refresh(tensor: Tensor) -> Tensor:
            if tensor is self.fixed:
                return tensor
            copy = fn(tensor)
            return copy if copy.dtype == tensor.dtype else tensor.to(copy.device)

        return super()._apply(apply_and_refresh, recurse)


def relaxed_subset(scores: Tensor, keep: int, temperature: Tensor | float) -> Tensor:
    """Return a differentiable relaxation of the ``keep`` largest scores (Xie and Ermon 2019).

    It applies ``keep`` softmaxes, each of which avoids the items that the earlier ones selected:

        p_1 = softmax(s / T),   s ← s + log(1 − p_j),   p_j+1 = softmax(s / T)

    Args:
        scores: (N,) float64. For logits with Gumbel noise, the limit T → 0 is a draw of items without replacement.
        keep: the number of items to select.
        temperature: T.

    Returns:
        Σ p_j, (N,) with values of at least 0 that sum to ``keep``.
    """
    total = torch.zeros_like(scores)
    for _ in range(keep):
        # Each round selects one head softly. Adding log(1 − p) lowers the score of the selected head, so that it is
        # hardly selected again. In the limit T → 0 this is exactly a draw of `keep` heads without replacement.
        weights = torch.softmax(scores / temperature, 0)
        total = total + weights
        scores = scores + torch.log((1 - weights).clamp(min=1e-100))
    return total


class TopKGates(Gates):
    """A set of gates of which exactly ``keep`` are 1 and all others 0 at every step (Li, Cotterell and Sachan 2021).

    In training, the heads with the ``keep`` largest logits after Gumbel noise are open. This is a random draw without
    replacement with probabilities softmax(logits). The gradient is that of `relaxed_subset` for the same noisy logits
    (a straight-through estimator). In evaluation, the heads with the ``keep`` largest logits are open.

    Args:
        layers, heads, init, seed: as for `Gates`.
        keep: the number of open heads, at most layers · heads.
        temperature: the temperature T of the gradients, above 0. It is saved with the module, and training may lower
            it step by step.
    """

    temperature: Tensor

    def __init__(
        self, layers: int, heads: int, keep: int, init: _Init = "paper", seed: int = 0, temperature: float = 1.0
    ) -> None:
        super().__init__(layers, heads, init, seed)
        self.keep = keep
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self) -> Tensor:
        if not self.training or self.is_fixed():
            return self.evaluated()
        with torch.autocast(self.logits.device.type, enabled=False):
            uniform = torch.rand(self.logits.shape, generator=self.noise, device=self.logits.device).double()
            # −log(−log u) is Gumbel noise. The heads with the `keep` largest logits after Gumbel noise are a draw
            # without replacement with probabilities proportional to exp(logit). The noise is float64, because the sums
            # in `relaxed_subset` cancel.
            scores = self.logits - torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))
            soft = relaxed_subset(scores.flatten(), self.keep, self.temperature).view_as(scores).float()
            # Straight-through estimator: the value is the hard mask, because soft − soft.detach() is 0, and the
            # gradient is that of the relaxed selection.
            return top_mask(scores, self.keep) + (soft - soft.detach())

    def evaluated(self) -> Tensor:
        return super().evaluated() if self.is_fixed() else top_mask(self.logits, self.keep)

    def expected_open(self) -> Tensor:
        return self.evaluated().sum()
