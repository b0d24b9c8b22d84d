"""Interventions on heads: what an ablated or closed head contributes instead of its output.

    with ablated(encoder, heads, "mean", constants=measure_means(encoder, pieces)):
        encoder(batch)

A head contributes z · output + (1 − z) · substitute, with z its gate, or 0 where it is ablated. The kinds:

    zero        nothing
    mean        its mean output (`measure_means`; Bhaskar, Friedman and Chen 2024)
    optimal     the constant with which a loss is smallest (`fit_constants`; Li and Janson 2024)
    resample    its output for another sentence of the batch (`batch.donors`)
    exchange    its output for a given batch (`head_outputs`)
    scale       its output times a factor, above 1 to amplify it

`ablated` is a context and leaves the encoder as it was. `set_substitute` chooses one of the first four for good, for a
run that is trained with gates. A mean is one vector a head, over all slots of the windows of the training sentences,
special tokens included and padding left out, with all heads open. Outputs for other sentences are those without gates.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
SLOTS = 8192
"""The slots of a batch, padding counted."""
NEEDS: dict[AblationKind, list[str]] = {
    "zero": [],
    "mean": ["constants"],
    "optimal": ["constants"],
    "resample": ["seed"],
    "exchange": ["outputs"],
    "scale": ["factor"],
}
"""The setting of `ablated` that each kind needs."""


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
    """Within this context these heads contribute something else than their outputs; after it the encoder is as before.

    Args:
        heads: (L, A) of bool, in original numbering.
        constants: (L, A, d), for mean and optimal.
        outputs: of `head_outputs` for a batch with the same sub-words in each word, for exchange.
        factor: of the heads' outputs, for scale.
        seed: of the other sentences, for resample.

    Raises:
        ValueError: a setting that the kind needs is missing, or one is given that it does not need.
        EncoderError: heads are ablated already.
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


@torch.no_grad()
def head_outputs(encoder: Encoder, batch: EncoderBatch) -> list[Tensor]:
    """The outputs of all heads for a batch, (B, T, n, d) for each layer, before any gate."""
    with encoder.head_hooks.cache_outputs() as outputs:
        encoder(batch)
    return outputs


@torch.no_grad()
def measure_means(encoder: Encoder, pieces: Sequence[Pieces]) -> Tensor:
    """The mean output of every head, (L, A, d) float32, in evaluation mode and without autocast.

    Args:
        encoder: with all its heads.
        pieces: the sentences.
    """
    places, training = encoder.head_hooks, encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    sums, slots = torch.zeros(places.layers, places.heads, places.width, dtype=torch.float64, device=device), 0
    for rows in by_length([len(p.ids) for p in pieces], lambda longest: SLOTS // max(1, longest)):
        batch = encoder.collate([pieces[row] for row in rows]).to(device)
        # Padding is no position of a sentence; special tokens are, because heads attend from them as from others.
        is_piece = batch.attention_mask.bool()  # (R, T)
        sums += torch.stack([heads[is_piece].sum(0, dtype=torch.float64) for heads in head_outputs(encoder, batch)])
        slots += int(is_piece.sum())
    encoder.train(training)
    return (sums / slots).float()


def fit_constants(losses: Sequence[Callable[[Tensor], Tensor]], means: Tensor, steps: int = 20) -> Tensor:
    """Constants of ablated heads with which the sum of some losses is smallest, of all that Adam passes, from the means
    or from zero, whichever gives the lower loss: so the sum is never larger than with these.

    Args:
        losses: each encodes sentences with some heads ablated to the constants that it is given, and returns their
            loss; called once a step.
        means: (L, A, d), from ``measure_means``.

    Returns:
        (L, A, d) float32. Entries of heads that no loss ablates are what Adam began with.
    """
    constants = torch.zeros_like(means, requires_grad=True)
    # The learning rate is a tenth of the mean size of a mean's entries.
    optimizer = torch.optim.Adam([constants], 0.1 * float(means.abs().mean().clamp(min=1e-6)))
    # Adam begins where the loss is lower, at the means or at zero, and the best of all steps is returned. So learnt
    # constants are never worse than mean or zero ablation.
    best, lowest = means, float("inf")
    with torch.no_grad():
        at_zero = sum(float(loss(constants)) for loss in losses)
        constants.copy_(means)
        if at_zero < sum(float(loss(constants)) for loss in losses):
            constants.zero_()
    for _ in range(steps + 1):
        # Losses are differentiated one by one, so that only one encoding is in memory at a time.
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
    """Choose what closed heads of an encoder contribute for good.

    Args:
        constants: (L, A, d), for mean and optimal.
        seed: of the other sentences, for resample.
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
    """Add what mean ablation adds to gated heads to the biases of the attention output projections, in place; to be
    called before gates go into their weights or heads out of them. Nothing happens where there are no means.

    Args:
        gates: (L, A), in original numbering.

    Raises:
        EncoderError: a projection has no bias, or layers that share one (ALBERT) would need different ones. The encoder
            is untouched.
    """
    if encoder.resample is not None:
        encoder.gated(gates)  # refuses
    if encoder.head_constants is None:
        return
    places = encoder.head_hooks
    outputs: list[Any] = by_layer(cast(PreTrainedModel, encoder.transformer), places.family.output)
    added: dict[Any, Tensor] = {}
    for layer, (output, shift) in enumerate(zip(outputs, places.shifts(gates, encoder.head_constants), strict=True)):
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
    # Only now, after every layer was found to be possible, is anything changed.
    for output, bias in added.items():
        if output.bias is not None:
            output.bias.add_(bias.to(output.bias))
    encoder.head_constants = None
