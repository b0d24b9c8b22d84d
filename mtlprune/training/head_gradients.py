"""Gradients at heads: of tasks' losses by a factor of each head's output, and by the weights that each head owns.

Letters for shapes: S sentences, L layers, A heads a layer before any was removed, n heads a layer has now, d values a
head has, T tasks, R rows of a batch (long sentences have several).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.families import axis, by_layer
from mtlprune.encoder.heads import Substitutes
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.tasks.base import Target

Floats = NDArray[np.float64]
_Targets = Mapping[str, Sequence[Target | None]]
"""Task → targets of each sentence, None where its layer is unknown."""
Substitute = Callable[[EncoderBatch], Substitutes | None]


def derivatives(
    model: MultiTaskModel,
    pieces: Sequence[Pieces],
    targets: _Targets,
    precision: torch.dtype = torch.float32,
    substitute: Substitute | None = None,
) -> Tensor:
    """∂L(x) / ∂ξ of each sentence x, with ξ_h a factor of a head's output (Michel, Levy and Neubig 2019, equation 5).

    L(x) is the loss of the sentence alone, added over the tasks, times its words, so that as in training long sentences
    count more. Sentences do not meet in the encoder, so one backward pass serves them all: ∂L / ∂ξ_h = Σ O · ∂L / ∂O
    over the values O of head h in the sentence's rows. In the decoders each stands alone, because means over a batch
    have other denominators.

    Args:
        model: in evaluation mode.
        targets: of the tasks whose losses are added.
        substitute: what heads contribute to a batch at ξ = 0 instead of nothing: O − substitute takes the place of O.

    Returns:
        (S, L, A) float32, on the CPU.
    """
    batch = model.encoder.collate(list(pieces)).to(model.device)
    owner = _row_owners(batch)
    places, substitutes = model.encoder.head_hooks, None if substitute is None else substitute(batch)
    total = torch.zeros(len(pieces), places.layers, places.heads, device=model.device)
    with places.cache_outputs() as outputs, autocast(model.device, precision):
        for encoded, names in model.encodings(batch, list(targets)):
            losses = [
                sentence_loss(model.tasks[name], encoded.select([place]), target)
                for name in names
                for place, target in enumerate(targets[name])
                if target is not None
            ]
            if not losses:
                continue
            slopes = torch.autograd.grad(torch.stack(losses).sum(), outputs)  # one (R, T, n, d) a layer
            for layer, (output, slope) in enumerate(zip(outputs, slopes, strict=True)):
                kept_heads = list(places.kept_heads[layer])
                change = output.detach().float()
                if substitutes is not None:
                    substitutes_of_layer = (
                        substitutes[layer, kept_heads] if isinstance(substitutes, Tensor) else substitutes[layer]
                    )
                    change = change - substitutes_of_layer
                products_by_row = (change * slope.float()).sum((1, 3))  # (R, n)
                total[:, layer, kept_heads] += products_by_row.new_zeros(len(pieces), len(kept_heads)).index_add(
                    0, owner, products_by_row
                )
    return total.cpu()


def sentence_loss(task: Any, encoded: Encoded, target: Target) -> Tensor:
    """The loss of one sentence, times its words."""
    joined = task.collate([target], encoded.sizes)
    return task.loss(encoded, {key: value.to(encoded.words.device) for key, value in joined.items()}) * encoded.sizes[0]


def _row_owners(batch: EncoderBatch) -> Tensor:
    """The sentence that each row of a batch belongs to; long sentences have several rows. (R,) int64"""
    rows, length = batch.input_ids.shape
    word = torch.zeros(rows, dtype=torch.int64, device=batch.input_ids.device)
    # Every row contains a piece that is read there, so each row finds a word, and through it its sentence.
    word[batch.piece_slot // length] = batch.piece_word
    sentence = torch.repeat_interleave(batch.lengths)  # (N,)
    return sentence[word]


class HeadParameter:
    """A parameter of which rows (dimension 0) or columns (1) belong to heads of one layer. ``owners``: (A, rows) of
    bool, which head owns which row or column; several do where they share keys and values."""

    def __init__(self, parameter: nn.Parameter, layer: int, name: str, dim: int, heads: int) -> None:
        self.parameter, self.layer, self.name, self.dim = parameter, layer, name, dim
        self.owners = torch.zeros(heads, parameter.shape[dim], dtype=torch.bool, device=parameter.device)

    def broadcast_to_rows(self, values: Tensor) -> Tensor:
        """(A,), a number for each head, to a shape that multiplies the parameter; 1 where no head owns a row.

        No row may have two owners.
        """
        factors = self.parameter.new_ones(self.owners.shape[1])
        head, row = self.owners.nonzero(as_tuple=True)
        factors[row] = values.to(factors)[head]
        shape = [1] * self.parameter.dim()
        shape[self.dim] = len(factors)
        return factors.view(shape)

    def is_owned(self) -> Tensor:
        """True where a head owns the row, of a shape that goes with the parameter."""
        return self.broadcast_to_rows(torch.zeros(len(self.owners))) == 0


def head_parameters(encoder: Encoder, weights_only: bool = False) -> list[HeadParameter]:
    """List what heads own: rows of queries, keys and values, columns of the output projection, layer by layer.
    ``weights_only``: leave out biases and projections of positions."""
    places, transformer = encoder.head_hooks, cast(PreTrainedModel, encoder.transformer)
    family, width = places.family, places.width
    modules = zip(by_layer(transformer, family.attention), by_layer(transformer, family.output), strict=True)
    all_parts: list[HeadParameter] = []
    for layer, (attention, output) in enumerate(modules):
        parts = {("output", "weight"): HeadParameter(output.weight, layer, "output", axis(output, True), places.heads)}
        kept_heads = places.kept_heads[layer]
        for place, head in enumerate(kept_heads):
            parts["output", "weight"].owners[head, family.columns([place], width)] = True
            for name, rows in family.keep([place], len(kept_heads), width, places.groups[layer]).items():
                part = getattr(attention, name, None)
                if part is None or (weights_only and name not in family.qkv):
                    continue
                tensors = {"": part} if isinstance(part, nn.Parameter) else dict(part.named_parameters())
                for tensor_name, parameter in tensors.items():
                    if tensor_name == "weight" or not weights_only:
                        dim = axis(part) if tensor_name == "weight" else 0
                        entry = HeadParameter(parameter, layer, f"{name}.{tensor_name}", dim, places.heads)
                        parts.setdefault((name, tensor_name), entry).owners[head, rows] = True
        all_parts += parts.values()
    return all_parts


def products(
    gradients: Iterable[tuple[HeadParameter, Sequence[Tensor]]], layers: int, heads: int, number: int
) -> Tensor:
    """Scalar products of gradients by the weights of each head. ``gradients``: of each part, ``number`` gradients by
    its parameter. Returns (L, A, number, number) float64, on the CPU; 0 where a head owns none of the parts."""
    total = torch.zeros(layers, heads, number, number, dtype=torch.float64)
    for part, part_gradients in gradients:
        rows = torch.stack(
            [gradient.movedim(part.dim, 0).reshape(part.owners.shape[1], -1) for gradient in part_gradients], 1
        ).double()
        head, row = part.owners.cpu().nonzero(as_tuple=True)
        total[part.layer].index_add_(0, head, (rows @ rows.mT).cpu()[row])
    return total


@dataclass(frozen=True, eq=False)
class Agreement:
    """The cosines between tasks' gradients on the weights of each head.

    Attributes:
        tasks: T.
        cosines: (T, T, L, A); NaN where a head is gone or a gradient is 0.
        halves: (T, L, A), of a task's own gradients in two halves of the batch: what noise leaves of 1.
    """

    tasks: tuple[str, ...]
    cosines: Floats
    halves: Floats

    def mean(self) -> Floats:
        """(L, A): mean cosine over the pairs of tasks."""
        first, second = np.triu_indices(len(self.tasks), 1)
        return self.cosines[first, second].mean(0)

    def opposed(self) -> Floats:
        """(L, A): share of the pairs of tasks that pull against each other; NaN where there is no cosine."""
        first, second = np.triu_indices(len(self.tasks), 1)
        pairs = self.cosines[first, second]
        return np.where(np.isnan(pairs).any(0), np.nan, (pairs < 0).mean(0))


def agreement(model: MultiTaskModel, pieces: Sequence[Pieces], targets: _Targets, size: int = 32) -> Agreement:
    """One joint batch, one backward pass a task; in mini-batches of ``size`` whose losses weigh by their words.
    ``model``: in evaluation mode, so that no dropout blurs the directions.

    A head's weights are its rows of queries, keys and values and its columns of the output projection (biases left out;
    with grouped queries the shared key and value rows too). Layers that share weights (ALBERT) have one gradient.
    """
    places, parts = model.encoder.head_hooks, head_parameters(model.encoder, weights_only=True)
    parameters = list(dict.fromkeys(part.parameter for part in parts))
    tasks = tuple(targets)
    sums = [[torch.zeros_like(p) for p in parameters] for _ in range(2 * len(tasks))]  # half by half
    for number, start in enumerate(range(0, len(pieces), size)):
        rows = range(start, min(start + size, len(pieces)))
        batch = model.collate([pieces[row] for row in rows], {t: [targets[t][row] for row in rows] for t in tasks})
        with autocast(model.device, torch.float32):
            losses = model.losses(batch)
        for place, (task, loss) in enumerate(losses.items()):
            more_losses = place + 1 < len(losses)
            gradients = torch.autograd.grad(loss * batch.words, parameters, retain_graph=more_losses, allow_unused=True)
            task_sums = sums[number % 2 * len(tasks) + tasks.index(task)]
            for total, gradient in zip(task_sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient
    of_parameter = dict(zip(parameters, zip(*sums, strict=True), strict=True))
    by_part = ((part, of_parameter[part.parameter]) for part in parts)
    gram = products(by_part, places.layers, places.heads, len(sums)).permute(2, 3, 0, 1).numpy()
    (first_half, between_halves), (transposed, second_half) = (
        [rows[:, : len(tasks)], rows[:, len(tasks) :]] for rows in np.split(gram, 2)
    )
    total_gram = first_half + between_halves + transposed + second_half
    lengths, halves = (
        np.sqrt(_diagonal(total_gram).clip(min=0)),
        np.sqrt(_diagonal(first_half) * _diagonal(second_half)),
    )
    return Agreement(tasks, _over(total_gram, lengths[:, None] * lengths), _over(_diagonal(between_halves), halves))


def _diagonal(gram: Floats) -> Floats:
    """(T, T, L, A) → (T, L, A)."""
    return np.moveaxis(np.diagonal(gram), -1, 0)


def _over(scalar: Floats, sizes: Floats) -> Floats:
    return np.divide(scalar, sizes, out=np.full_like(scalar, np.nan), where=sizes > 0)
