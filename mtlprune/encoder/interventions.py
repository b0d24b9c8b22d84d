"""Ablations of attention heads: the vectors that an ablated or closed head contributes instead of its output.

    with ablated(encoder, heads, "mean", constants=measure_means(encoder, pieces)):
        encoder(batch)

A head contributes z · output + (1 − z) · substitute, where z is its gate, or 0 if the head is ablated. The kinds of
ablation differ in the substitute:

    zero        a vector of zeros
    mean        the mean output of the head (`measure_means`; Bhaskar, Friedman and Chen 2024)
    optimal     the constant vector with the smallest loss (`fit_constants`; Li and Janson 2024)
    resample    the output of the head for another sentence of the batch (`batch.donors`)
    exchange    the output of the head for a given batch (`head_outputs`)
    scale       the output of the head times a factor, which amplifies the head if the factor exceeds 1

The context `ablated` restores the encoder on exit. `set_substitute` permanently chooses one of the first four kinds,
for a run that is trained with gates. The mean of a head is one vector, computed with all heads open over all slots of
the windows of the training sentences, including special tokens but not padding. Outputs for other sentences are
computed without gates.

Letters for shapes: L layers, A heads in a layer before any was removed, n heads in a layer now, d values in the output
of a head, B rows of the batch, T slots in a row, H the hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.batch import EncoderBatch, by_length
from mtlprune.encoder.families import by_layer, matrix
from mtlprune.encoder.heads import Ablation
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.evaluation.ablations import AblationKind, Closed

CONSTANT: tuple[Closed, ...] = ("mean", "optimal")
_RECORDED = 500_000_000
"""The largest number of values that `LowerLayers` records."""
_SLOTS = 8192
"""The largest number of slots in a batch, including padding."""
NEEDS: dict[AblationKind, list[str]] = {
    "zero": [],
    "mean": ["constants"],
    "optimal": ["constants"],
    "resample": ["seed"],
    "exchange": ["outputs"],
    "scale": ["factor"],
}
"""The keyword argument of `ablated` that each kind of ablation needs."""


@contextmanager
def ablated(
    encoder: Encoder,
    heads: Tensor,
    kind: AblationKind = "zero",
    *,
    constants: Tensor | None = None,
    outputs: Sequence[Tensor] | None = None,
    factor: float | None = None,
    seed: int | None = None,
) -> Iterator[None]:
    """Enter a context in which some heads of an encoder are ablated. The encoder is restored on exit.

    Args:
        encoder: the encoder.
        heads: (L, A) bool, True for the heads to ablate, in the original numbering.
        kind: the kind of ablation.
        constants: (L, A, d) substitutes, for the kinds mean and optimal.
        outputs: the head outputs to insert, for exchange, from `head_outputs` for a batch whose words have the same
            numbers of sub-words as those of the batch that is encoded.
        factor: the factor of the heads' outputs, for scale.
        seed: the random seed for the choice of other sentences, for resample.

    Raises:
        ValueError: an argument that the kind needs is missing, or an argument is given that the kind does not need.
        EncoderError: another `ablated` context is active.
    """
    options = {"constants": constants, "outputs": outputs, "factor": factor, "seed": seed}
    if (names := [name for name, value in options.items() if value is not None]) != NEEDS[kind]:
        raise ValueError(f"{kind}: expected {NEEDS[kind]}, found {names}")
    if encoder.ablation is not None:
        raise EncoderError(
            "expected one ablated() at a time, found another one that is active; join their masks instead"
        )
    factors = torch.ones(heads.shape, device=next(encoder.parameters()).device)
    factors[heads] = 0.0 if factor is None else factor
    encoder.ablation = Ablation(factors, constants if outputs is None else outputs, seed)
    try:
        yield
    finally:
        encoder.ablation = None


class LowerLayers:
    """The outputs of all layers with no head ablated, so that later passes need not compute the layers below a head.

        lower = LowerLayers(encoder)
        with lower.recorded():
            ...  # encode some batches
        with lower.skipped(4), ablated(encoder, heads):
            ...  # encode the same batches in the same order; layers 1 to 4 are not computed

    Results are those of whole passes, bit for bit. The outputs need memory for a vector of each slot and layer. All
    layers are computed if layers share a module (ALBERT) or pass on more than hidden states (T5), if they are fused, or
    if the outputs would need more than 2 GB in float32.
    """

    def __init__(self, encoder: Encoder) -> None:
        transformer = cast(PreTrainedModel, encoder.transformer)
        self._layers: list[nn.Module] = by_layer(transformer, encoder.head_hooks.family.blocks)
        self._usable = len(set(self._layers)) == len(self._layers) and encoder.fusion is None
        self._outputs: list[list[Any]] = [[] for _ in self._layers]
        self._values = 0

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Enter a context in which the outputs of all layers are recorded, a list of batches for each layer."""
        with ExitStack() as handles:
            if self._usable:
                for layer, outputs in zip(self._layers[:-1], self._outputs, strict=False):
                    hook = layer.register_forward_hook(partial(self._record, outputs))
                    handles.callback(hook.remove)
            yield

    def _record(self, outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        self._values += hidden.numel()
        self._usable &= self._values <= _RECORDED and (hidden is output or all(item is None for item in output[1:]))
        if self._usable:
            outputs.append(output)
        else:
            for recorded in self._outputs:
                recorded.clear()

    @contextmanager
    def skipped(self, number: int) -> Iterator[None]:
        """Enter a context in which the first ``number`` layers are not computed, but contribute their recorded output.

        Args:
            number: number of layers below the lowest layer with an ablated head.
        """
        if not number or not self._usable:
            yield
            return
        skipped_layers: list[Any] = self._layers[:number]
        try:
            for layer, outputs in zip(skipped_layers, map(iter, self._outputs), strict=False):
                layer.forward = partial(_next, outputs)
            yield
        finally:
            for layer in skipped_layers:
                del layer.forward


def _next(outputs: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
    return next(outputs)


@torch.no_grad()
def head_outputs(encoder: Encoder, batch: EncoderBatch) -> list[Tensor]:
    """Return the outputs of all heads for a batch before gates are applied: (B, T, n, d) for each layer."""
    with encoder.head_hooks.cache_outputs() as outputs:
        encoder(batch)
    return outputs


@torch.no_grad()
def measure_means(encoder: Encoder, pieces: Sequence[Pieces]) -> Tensor:
    """Return the mean output of every head over some sentences, in evaluation mode: (L, A, d) float32.

    Args:
        encoder: an encoder from which no head was removed.
        pieces: the tokenised sentences.
    """
    hooks, training = encoder.head_hooks, encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    sums, slots = torch.zeros(hooks.layers, hooks.heads, hooks.width, dtype=torch.float64, device=device), 0
    for rows in by_length([len(p.ids) for p in pieces], lambda longest: _SLOTS // max(1, longest)):
        batch = encoder.collate([pieces[row] for row in rows]).to(device)
        # Special tokens count, because heads have outputs there as at any other position. Padding does not count.
        is_piece = batch.attention_mask.bool()  # (B, T)
        sums += torch.stack([heads[is_piece].sum(0, dtype=torch.float64) for heads in head_outputs(encoder, batch)])
        slots += int(is_piece.sum())
    encoder.train(training)
    return (sums / slots).float()


def fit_constants(losses: Sequence[Callable[[Tensor], Tensor]], means: Tensor, steps: int = 20) -> Tensor:
    """Learn constants for ablated heads that minimise the sum of some losses (optimal ablation).

    Adam starts from the mean outputs or from zeros, whichever has the lower loss, and the best constants of all steps
    are returned. Therefore the loss never exceeds that of mean ablation and of zero ablation.

    Args:
        losses: functions that encode sentences with some heads ablated to the given constants and return the loss. Each
            function is called once in every step, and twice for the choice of the start.
        means: (L, A, d), from ``measure_means``.
        steps: the number of steps of Adam.

    Returns:
        (L, A, d) float32. Heads that no loss ablates keep the initial values.
    """
    constants = torch.zeros_like(means, requires_grad=True)
    # The learning rate is a tenth of the mean absolute value of the means.
    optimizer = torch.optim.Adam([constants], 0.1 * float(means.abs().mean().clamp(min=1e-6)))
    best, lowest = means, float("inf")
    with torch.no_grad():
        at_zero = sum(float(loss(constants)) for loss in losses)
        constants.copy_(means)
        if at_zero < sum(float(loss(constants)) for loss in losses):
            constants.zero_()
    for _ in range(steps + 1):
        # Losses are differentiated one after another, so that only one encoding is in memory at a time.
        constants.grad, total = torch.zeros_like(constants), 0.0
        for loss in losses:
            value = loss(constants)
            constants.grad += torch.autograd.grad(value, constants)[0]
            total += float(value.detach())
        if total < lowest:
            best, lowest = constants.detach().clone(), total
        optimizer.step()
    return best


def set_substitute(encoder: Encoder, kind: Closed, constants: Tensor | None = None, seed: int = 0) -> None:
    """Choose permanently what closed heads of an encoder contribute.

    Args:
        encoder: the encoder, which is changed in place.
        kind: the kind of ablation.
        constants: (L, A, d), for the kinds mean and optimal. A parameter is trained with the encoder.
        seed: the random seed for the choice of other sentences, for resample.

    Raises:
        ValueError: constants are missing for mean or optimal, or are given for another kind.
    """
    if (constants is None) == (kind in CONSTANT):
        raise ValueError(f"{kind}: constants go with {' and '.join(CONSTANT)}, and with nothing else")
    del encoder.head_constants  # a parameter where constants are learnt, else a buffer
    if isinstance(constants, nn.Parameter):
        encoder.register_parameter("head_constants", constants)
    else:
        encoder.register_buffer("head_constants", constants)
    encoder.resample = seed if kind == "resample" else None


@torch.no_grad()
def fold_means(encoder: Encoder, gates: Tensor) -> None:
    """Fold the constants that closed heads contribute into the biases of the attention output projections, in place.

    This must happen before gates are folded into the weights and before heads are removed. An encoder without constants
    does not change.

    Args:
        encoder: the encoder.
        gates: (L, A), in the original numbering.

    Raises:
        EncoderError: a projection has no bias, layers that share a projection (ALBERT) would need different biases, or
            closed heads contribute outputs for other sentences (resample). The encoder is unchanged.
    """
    if encoder.resample is not None:
        encoder.gated(gates)  # raises EncoderError, because there is no batch
    if encoder.head_constants is None:
        return
    hooks = encoder.head_hooks
    outputs: list[Any] = by_layer(cast(PreTrainedModel, encoder.transformer), hooks.family.output)
    added: dict[Any, Tensor] = {}
    for layer, (output, shift) in enumerate(zip(outputs, hooks.shifts(gates, encoder.head_constants), strict=True)):
        # In float64, because layers that share a projection are compared for equality below.
        bias = matrix(output).double() @ shift.flatten().to(output.weight).double()  # (H,)
        if output.bias is None and bool(bias.any()):
            reason = "its attention output projection has no bias"
        elif not torch.equal(added.setdefault(output, bias), bias):
            reason = (
                f"layers {outputs.index(output) + 1} and {layer + 1} share their weights and would need different ones"
            )
        else:
            continue
        raise EncoderError(
            f"the means of closed heads cannot be folded into the biases of this {encoder.config.model_type}: "
            f"{reason}; expected an encoder whose layers have biases of their own, or a run with pruning.closed: zero"
        )
    # Weights change only after all layers were checked.
    for output, bias in added.items():
        if output.bias is not None:
            output.bias.add_(bias.to(output.bias))
    encoder.head_constants = None
