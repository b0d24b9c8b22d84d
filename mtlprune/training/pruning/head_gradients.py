"""What training wants of every head: how much a task's loss hangs on it, and whether tasks pull its weights one way.

Letters for shapes: S sentences, L layers, A heads a layer before any was removed, n heads a layer has now, d values a
head has, T tasks, R rows of a batch (long sentences have several).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.heads import HeadPlaces, by_layer
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.tasks.base import Target

Floats = NDArray[np.float64]
Targets = Mapping[str, Sequence[Target | None]]
"""Task → targets of each sentence, None where its layer is unknown."""


def derivatives(
    model: MultiTaskModel, pieces: Sequence[Pieces], targets: Targets, precision: torch.dtype = torch.float32
) -> Tensor:
    """∂L(x) / ∂ξ of each sentence x, with ξ_h a factor of a head's output (Michel, Levy and Neubig 2019, equation 5).

    L(x) is the loss of the sentence alone, added over the tasks, times its words, so that as in training long sentences
    count more. Sentences do not meet in the encoder, so one backward pass serves them all: ∂L / ∂ξ_h = Σ O · ∂L / ∂O
    over the values O of head h in the sentence's rows. In the decoders each stands alone, because means over a batch
    have other denominators.

    Args:
        model: in evaluation mode.
        targets: of the tasks whose losses are added.

    Returns:
        (S, L, A) float32, on the CPU.
    """
    batch = model.encoder.collate(list(pieces)).to(model.device)
    owner = row_owners(batch)
    places = model.encoder.places
    total = torch.zeros(len(pieces), places.layers, places.heads, device=model.device)
    with places.watched() as outputs, autocast(model.device, precision):
        for encoded, names in model.encodings(batch, list(targets)):
            losses = [
                alone(model.tasks[name], encoded.select([place]), target)
                for name in names
                for place, target in enumerate(targets[name])
                if target is not None
            ]
            if not losses:
                continue
            slopes = torch.autograd.grad(torch.stack(losses).sum(), outputs)  # one (R, T, n, d) a layer
            for layer, (output, slope) in enumerate(zip(outputs, slopes, strict=True)):
                each = (output.detach().float() * slope.float()).sum((1, 3))  # (R, n)
                kept = list(places.kept[layer])
                total[:, layer, kept] += each.new_zeros(len(pieces), len(kept)).index_add(0, owner, each)
    return total.cpu()


def alone(task: Any, encoded: Encoded, target: Target) -> Tensor:
    """The loss of one sentence, times its words."""
    joined = task.collate([target], encoded.sizes)
    return task.loss(encoded, {key: value.to(encoded.words.device) for key, value in joined.items()}) * encoded.sizes[0]


def row_owners(batch: EncoderBatch) -> Tensor:
    """Which sentence each row of a batch belongs to: long sentences have several. (R,)"""
    rows, length = batch.input_ids.shape
    word = torch.zeros(rows, dtype=torch.int64, device=batch.input_ids.device)
    word[batch.piece_slot // length] = batch.piece_word  # every row has a piece that is read there
    sentence = torch.repeat_interleave(batch.lengths)  # (N,)
    return sentence[word]


@dataclass(frozen=True, eq=False)
class Agreement:
    """How tasks' gradients on the weights of each head lie to each other.

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


def agreement(
    model: MultiTaskModel,
    pieces: Sequence[Pieces],
    targets: Targets,
    size: int = 32,
    precision: torch.dtype = torch.float32,
) -> Agreement:
    """One joint batch, one backward pass a task; in mini-batches of ``size`` whose losses weigh by their words.

    A head's weights are its rows of queries, keys and values and its columns of the output projection (biases left out;
    with grouped queries the shared key and value rows too). Layers that share weights (ALBERT) have one gradient.

    Args:
        model: in evaluation mode, so that no dropout blurs the directions.
    """
    slices = head_weights(model)
    parameters = list(dict.fromkeys(weight for heads in slices for parts in heads.values() for weight, _, _ in parts))
    tasks = tuple(targets)
    sums = {(task, half): [torch.zeros_like(p) for p in parameters] for task in tasks for half in (0, 1)}
    for number, start in enumerate(range(0, len(pieces), size)):
        rows = range(start, min(start + size, len(pieces)))
        batch = model.collate([pieces[row] for row in rows], {t: [targets[t][row] for row in rows] for t in tasks})
        with autocast(model.device, precision):
            losses = model.losses(batch)
        for place, (task, loss) in enumerate(losses.items()):
            more = place + 1 < len(losses)
            found = torch.autograd.grad(loss * batch.words, parameters, retain_graph=more, allow_unused=True)
            for total, gradient in zip(sums[task, number % 2], found, strict=True):
                if gradient is not None:
                    total += gradient
    return _cosines(model.encoder.places, slices, parameters, sums, tasks)


Slices = list[dict[int, list[tuple[nn.Parameter, Tensor, int]]]]
"""For each layer: head in original numbering → weights, which of their rows (0) or columns (1), and that dimension."""


def head_weights(model: MultiTaskModel) -> Slices:
    """What weights every head owns."""
    places, transformer = model.encoder.places, cast(PreTrainedModel, model.encoder.transformer)
    family = places.family
    modules = zip(by_layer(transformer, family.attention), by_layer(transformer, family.output), strict=True)
    found: Slices = []
    for (attention, output), kept in zip(modules, places.kept, strict=True):
        heads: dict[int, list[tuple[nn.Parameter, Tensor, int]]] = {}
        for place, head in enumerate(kept):
            owned = family.keep([place], len(kept), places.width, places.group)
            parts = [(getattr(attention, name, None), rows) for name, rows in owned.items() if name in family.qkv]
            heads[head] = [(part.weight, rows.to(part.weight.device), 0) for part, rows in parts if part is not None]
            heads[head].append((output.weight, family.columns([place], places.width).to(output.weight.device), 1))
        found.append(heads)
    return found


def _cosines(
    places: HeadPlaces,
    slices: Slices,
    parameters: Sequence[nn.Parameter],
    sums: Mapping[tuple[str, int], Sequence[Tensor]],
    tasks: tuple[str, ...],
) -> Agreement:
    index = {parameter: place for place, parameter in enumerate(parameters)}
    cosines = np.full((len(tasks), len(tasks), places.layers, places.heads), np.nan)
    halves = np.full((len(tasks), places.layers, places.heads), np.nan)
    for layer, heads in enumerate(slices):
        for head, parts in heads.items():
            both = torch.stack(
                [torch.stack([_flat(sums[task, half], index, parts) for task in tasks]) for half in (0, 1)]
            )  # (2, T, weights)
            whole = both.sum(0)
            cosines[:, :, layer, head] = _cosine(whole[:, None], whole[None]).cpu().numpy()
            halves[:, layer, head] = _cosine(both[0], both[1]).cpu().numpy()
    return Agreement(tasks, cosines, halves)


def _flat(
    gradients: Sequence[Tensor], index: Mapping[nn.Parameter, int], parts: Sequence[tuple[nn.Parameter, Tensor, int]]
) -> Tensor:
    return torch.cat(
        [gradients[index[weight]].index_select(dim, rows).flatten() for weight, rows, dim in parts]
    ).double()


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    size = first.norm(dim=-1) * second.norm(dim=-1)
    return (first * second).sum(-1) / torch.where(size > 0, size, torch.nan)
