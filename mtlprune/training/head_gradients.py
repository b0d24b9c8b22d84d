"""Gradients of the losses of tasks with respect to attention heads.

`derivatives` differentiates with respect to a factor of the output of each head, for importance and Fisher information.
`head_parameters` and `agreement` are about gradients with respect to the weights of each head.

Letters for shapes: S sentences, L layers, A heads of a layer before any removal, n remaining heads of a layer, d size
of a head's output, T tasks (in `derivatives`: sub-words of a row), R rows of a batch (long sentences have several).
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

_Floats = NDArray[np.float64]
_Targets = Mapping[str, Sequence[Target | None]]
"""Task → the target of each sentence; None for a sentence without the layer of the task."""
Substitute = Callable[[EncoderBatch], Substitutes | None]
"""A function that returns the outputs of closed heads for a batch; None means that closed heads have no output."""


def derivatives(
    model: MultiTaskModel,
    pieces: Sequence[Pieces],
    targets: _Targets,
    precision: torch.dtype = torch.float32,
    substitute: Substitute | None = None,
) -> Tensor:
    """Compute ∂L(x) / ∂ξ_h of each sentence x (Michel, Levy and Neubig 2019, equation 5).

    ξ_h is a factor of the output of head h. L(x) is the loss of the sentence, summed over tasks and multiplied by its
    number of words, so that long sentences count more, as in training.

    Sentences do not interact in the encoder, so a single backward pass serves all of them: ∂L / ∂ξ_h = Σ O · ∂L / ∂O
    over the output values O of head h in the rows of the sentence. Decoders compute the loss of each sentence
    separately, because a loss of a whole batch is a mean with another denominator.

    Args:
        model: the model in evaluation mode.
        targets: targets of the tasks whose losses are summed.
        substitute: function that returns the output of each head at ξ = 0 (by default 0). In the formula, O minus this
            output replaces O.

    Returns:
        The derivatives, (S, L, A) float32 on the CPU, with 0 for removed heads.
    """
    batch = model.encoder.collate(list(pieces)).to(model.device)
    owner = _row_owners(batch)
    hooks, substitutes = model.encoder.head_hooks, None if substitute is None else substitute(batch)
    total = torch.zeros(len(pieces), hooks.layers, hooks.heads, device=model.device)
    with hooks.cache_outputs() as outputs, autocast(model.device, precision):
        for encoded, names in model.encodings(batch, list(targets)):
            losses = [
                sentence_loss(model.tasks[name], encoded.select([place]), target)
                for name in names
                for place, target in enumerate(targets[name])
                if target is not None
            ]
            if not losses:
                continue
            slopes = torch.autograd.grad(torch.stack(losses).sum(), outputs)  # (R, T, n, d) for each layer
            for layer, (output, slope) in enumerate(zip(outputs, slopes, strict=True)):
                kept_heads = list(hooks.kept_heads[layer])
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
    """Return the loss of a single sentence, multiplied by its number of words."""
    joined = task.collate([target], encoded.sizes)
    return task.loss(encoded, {key: value.to(encoded.words.device) for key, value in joined.items()}) * encoded.sizes[0]


def _row_owners(batch: EncoderBatch) -> Tensor:
    """Return the index of the sentence to which each row of a batch belongs, (R,) int64."""
    rows, length = batch.input_ids.shape
    word = torch.zeros(rows, dtype=torch.int64, device=batch.input_ids.device)
    # Every row contains a sub-word whose vector is used, so each row gets a word, which determines the sentence.
    word[batch.piece_slot // length] = batch.piece_word
    sentence = torch.repeat_interleave(batch.lengths)  # (N,)
    return sentence[word]


class HeadParameter:
    """A parameter whose rows or columns belong to the heads of a layer.

    Attributes:
        parameter: the parameter.
        layer: the index of the layer.
        name: the name of the projection and of its tensor, such as "query.weight".
        dim: 0 if rows belong to heads, 1 if columns do.
        owners: (A, number of rows or columns) bool, whether a head owns a row or column. Heads that share keys and
            values own the same rows.
    """

    def __init__(self, parameter: nn.Parameter, layer: int, name: str, dim: int, heads: int) -> None:
        self.parameter, self.layer, self.name, self.dim = parameter, layer, name, dim
        self.owners = torch.zeros(heads, parameter.shape[dim], dtype=torch.bool, device=parameter.device)

    def broadcast_to_rows(self, values: Tensor) -> Tensor:
        """Expand a value for each head, (A,), to a tensor that can be multiplied with the parameter.

        Rows or columns that no head owns get the value 1. No row or column may have two owners.
        """
        factors = self.parameter.new_ones(self.owners.shape[1])
        head, row = self.owners.nonzero(as_tuple=True)
        factors[row] = values.to(factors)[head]
        shape = [1] * self.parameter.dim()
        shape[self.dim] = len(factors)
        return factors.view(shape)

    def is_owned(self) -> Tensor:
        """Return whether a head owns each row or column, in a shape that broadcasts with the parameter."""
        return self.broadcast_to_rows(torch.zeros(len(self.owners))) == 0


def head_parameters(encoder: Encoder, weights_only: bool = False) -> list[HeadParameter]:
    """List the parameters whose rows or columns belong to heads, layer by layer.

    Heads own rows of the query, key and value projections and columns of the attention output projection.

    Args:
        weights_only: whether to leave out biases and projections of relative positions.
    """
    hooks, transformer = encoder.head_hooks, cast(PreTrainedModel, encoder.transformer)
    family, width = hooks.family, hooks.width
    modules = zip(by_layer(transformer, family.attention), by_layer(transformer, family.output), strict=True)
    all_parts: list[HeadParameter] = []
    for layer, (attention, output) in enumerate(modules):
        parts = {("output", "weight"): HeadParameter(output.weight, layer, "output", axis(output, True), hooks.heads)}
        kept_heads = hooks.kept_heads[layer]
        for place, head in enumerate(kept_heads):
            parts["output", "weight"].owners[head, family.columns([place], width)] = True
            for name, rows in family.keep([place], len(kept_heads), width, hooks.groups[layer]).items():
                part = getattr(attention, name, None)
                if part is None or (weights_only and name not in family.qkv):
                    continue
                tensors = {"": part} if isinstance(part, nn.Parameter) else dict(part.named_parameters())
                for tensor_name, parameter in tensors.items():
                    if tensor_name == "weight" or not weights_only:
                        dim = axis(part) if tensor_name == "weight" else 0
                        entry = HeadParameter(parameter, layer, f"{name}.{tensor_name}", dim, hooks.heads)
                        parts.setdefault((name, tensor_name), entry).owners[head, rows] = True
        all_parts += parts.values()
    return all_parts


def products(
    gradients: Iterable[tuple[HeadParameter, Sequence[Tensor]]], layers: int, heads: int, number: int
) -> Tensor:
    """Compute the scalar products between several gradients, restricted to the weights of each head.

    Args:
        gradients: pairs of a parameter and ``number`` gradients with respect to it.
        layers, heads: L and A.
        number: how many gradients there are, for example one for each task.

    Returns:
        (L, A, number, number) float64 on the CPU; 0 for a head that owns no part of the parameters.
    """
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
    """The cosines between the gradients of tasks with respect to the weights of each head.

    Attributes:
        tasks: the names of the T tasks.
        cosines: (T, T, L, A); NaN for a removed head or a gradient of 0.
        halves: (T, L, A), the cosine between the gradients of a task on two halves of the batch. It would be 1 without
            noise from the choice of sentences.
    """

    tasks: tuple[str, ...]
    cosines: _Floats
    halves: _Floats

    def mean(self) -> _Floats:
        """Return the mean cosine over the pairs of tasks, (L, A)."""
        first, second = np.triu_indices(len(self.tasks), 1)
        return self.cosines[first, second].mean(0)

    def opposed(self) -> _Floats:
        """Return the share of pairs of tasks with a negative cosine, (L, A); NaN for heads without a cosine."""
        first, second = np.triu_indices(len(self.tasks), 1)
        pairs = self.cosines[first, second]
        return np.where(np.isnan(pairs).any(0), np.nan, (pairs < 0).mean(0))


def agreement(model: MultiTaskModel, pieces: Sequence[Pieces], targets: _Targets, size: int = 32) -> Agreement:
    """Compute the cosines between the gradients of tasks, with respect to the weights of each head.

    All sentences form a single joint batch. It is processed in mini-batches of ``size`` sentences, whose losses are
    weighted by their number of words, with one backward pass for each task. Even and odd mini-batches form the two
    halves of the batch.

    The weights of a head are its rows of the query, key and value projections and its columns of the attention output
    projection, without biases. With grouped queries, the shared rows of keys and values count for each of their heads.
    Layers that share their weights (ALBERT) have the same gradient.

    Args:
        model: the model in evaluation mode, because dropout would add noise to the gradients.
        targets: task → the target of each sentence.
    """
    hooks, parts = model.encoder.head_hooks, head_parameters(model.encoder, weights_only=True)
    parameters = list(dict.fromkeys(part.parameter for part in parts))
    tasks = tuple(targets)
    sums = [[torch.zeros_like(p) for p in parameters] for _ in range(2 * len(tasks))]  # tasks of half 0, then of half 1
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
    gram = products(by_part, hooks.layers, hooks.heads, len(sums)).permute(2, 3, 0, 1).numpy()
    (first_half, between_halves), (transposed, second_half) = (
        [rows[:, : len(tasks)], rows[:, len(tasks) :]] for rows in np.split(gram, 2)
    )
    total_gram = first_half + between_halves + transposed + second_half
    lengths, halves = (
        np.sqrt(_diagonal(total_gram).clip(min=0)),
        np.sqrt(_diagonal(first_half) * _diagonal(second_half)),
    )
    return Agreement(tasks, _over(total_gram, lengths[:, None] * lengths), _over(_diagonal(between_halves), halves))


def _diagonal(gram: _Floats) -> _Floats:
    """Return the diagonal over the first two dimensions, (T, T, L, A) → (T, L, A)."""
    return np.moveaxis(np.diagonal(gram), -1, 0)


def _over(scalar: _Floats, sizes: _Floats) -> _Floats:
    return np.divide(scalar, sizes, out=np.full_like(scalar, np.nan), where=sizes > 0)
