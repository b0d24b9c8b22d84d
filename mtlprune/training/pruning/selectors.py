"""Heads chosen on a finished run: by importance, by Fisher information, and those on which halves of the data agree.

A selector is one function ``select(finished, rows, seed)`` → mask (L, A): on a finished run, from some training
sentences, with a seed for its noise where it has any. ``SELECTORS`` names them; ``stable`` calls one again and again.
What it ranks heads by stands first: how much a task's loss hangs on a head, and whether tasks pull its weights one way.

Letters for shapes: S sentences, L layers, A heads a layer before any was removed, n heads a layer has now, d values a
head has, T tasks, R rows of a batch (long sentences have several), H halves of the data.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.config.config import Config
from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.gates import Gates, top_mask
from mtlprune.encoder.heads import HeadHooks, by_layer
from mtlprune.encoder.interventions import measure_means
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import SHARED, MultiTaskModel, autocast, make_gates
from mtlprune.runs.folder import SELECTION, RunFolder
from mtlprune.tasks.base import Target
from mtlprune.training.mixing import MiniBatch, batches

if TYPE_CHECKING:
    from mtlprune.training.setup import Run

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Targets = Mapping[str, Sequence[Target | None]]
"""Task → targets of each sentence, None where its layer is unknown."""


def derivatives(
    model: MultiTaskModel,
    pieces: Sequence[Pieces],
    targets: Targets,
    precision: torch.dtype = torch.float32,
    means: Tensor | None = None,
) -> Tensor:
    """∂L(x) / ∂ξ of each sentence x, with ξ_h a factor of a head's output (Michel, Levy and Neubig 2019, equation 5).

    L(x) is the loss of the sentence alone, added over the tasks, times its words, so that as in training long sentences
    count more. Sentences do not meet in the encoder, so one backward pass serves them all: ∂L / ∂ξ_h = Σ O · ∂L / ∂O
    over the values O of head h in the sentence's rows. In the decoders each stands alone, because means over a batch
    have other denominators.

    Args:
        model: in evaluation mode.
        targets: of the tasks whose losses are added.
        means: (L, A, d), what heads contribute at ξ = 0 instead of nothing: then O − mean stands in the place of O.

    Returns:
        (S, L, A) float32, on the CPU.
    """
    batch = model.encoder.collate(list(pieces)).to(model.device)
    owner = row_owners(batch)
    places = model.encoder.places
    total = torch.zeros(len(pieces), places.layers, places.heads, device=model.device)
    with places.cache_outputs() as outputs, autocast(model.device, precision):
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
                kept = list(places.kept[layer])
                change = output.detach().float() - (0 if means is None else means[layer, kept])
                each = (change * slope.float()).sum((1, 3))  # (R, n)
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
    places: HeadHooks,
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


# -- a finished run ----------------------------------------------------------------------------------------------------


BATCH = 32
ROUNDING = 1e-12
"""Of the trace of a layer's Fisher matrix: smaller gains do not move a head, so that rearranging comes to an end."""


class Finished:
    """A finished run (pruning.importance_of) as selectors see it, on the training sentences of the run that asks.

    Args:
        run: the one that asks.
        precision: to compute in.

    Attributes:
        model: the finished one, in evaluation mode.
        means: of its heads, (L, A, d), with pruning.closed: mean; else None.
        keep: how many heads a selector has to choose.
        rows: the sentences to choose by, at most pruning.importance_sentences, drawn by the seed; each has a layer.

    Raises:
        RunError: a run that cannot be read.
    """

    def __init__(self, run: Run, precision: torch.dtype) -> None:
        settings = run.config.pruning
        self.run, self.precision, self.keep = run, precision, cast(int, settings.keep)
        self.model = MultiTaskModel.load(cast(str, settings.importance_of), device=str(run.model.device))
        self.means = measure_means(self.model.encoder, run.pieces) if settings.closed == "mean" else None
        known = [row for row in range(len(run.pieces)) if any(has[row] for has in run.known.values())]
        count = min(settings.importance_sentences, len(known))
        self._generator = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 5]))
        self.rows = [known[place] for place in self._generator.permutation(len(known))[:count].tolist()]

    @cached_property
    def _slopes(self) -> Tensor:
        """Of all ``rows`` in one pass, by the number of the sentence."""
        places = self.model.encoder.places
        found = torch.zeros(len(self.run.pieces), places.layers, places.heads)
        lengths = [self.run.lengths[row] for row in self.rows]
        for batch in batches(lengths, BATCH, 4096, self._generator, shuffle=False):
            some = [self.rows[place] for place in batch]
            found[some] = sentence_derivatives(self.run, self.model, some, self.precision, self.means)
        return found

    def derivatives(self, rows: Sequence[int]) -> Tensor:
        """∂L(x) / ∂ξ for some of ``rows`` (see `sentence_derivatives`): whoever asks first pays the only pass.

        Returns:
            (len(rows), L, A) float32, on the CPU.
        """
        return self._slopes[list(rows)]


def sentence_derivatives(
    run: Run, model: MultiTaskModel, rows: list[int], precision: torch.dtype, means: Tensor | None = None
) -> Tensor:
    """`derivatives` of some training sentences of a run, (len(rows), L, A), on the tasks of the run.

    Args:
        model: in evaluation mode, with the vocabularies of the run.
    """
    targets = {
        name: [run.targets[name][row] if run.known[name][row] else None for row in rows] for name in run.config.tasks
    }
    return derivatives(model, [run.pieces[row] for row in rows], targets, precision, means)


# -- selectors ---------------------------------------------------------------------------------------------------------


def importance(slopes: Tensor) -> Tensor:
    """How much each head matters to a finished run: E_x |∂L(x) / ∂ξ_h| (Michel, Levy and Neubig 2019, equation 5),
    normalised within each layer by the l2 norm as there. (S, L, A) → (L, A)"""
    sums = slopes.abs().sum(0)
    return sums / sums.norm(dim=1, keepdim=True).clamp(min=1e-30)


def largest(values: Tensor, keep: int) -> Tensor:
    """`top_mask`; a warning tells where heads that stay closed weigh as much as one that stays open."""
    mask = top_mask(values, keep)
    if tied := int((values[mask == 0] == values[mask == 1].min()).sum()) if keep else 0:
        log.warning(
            "heads tie at the last of %d that stay open: %d of the same value are closed, because those of lower "
            "layers, then those of lower numbers, come first",
            *(keep, tied),
        )
    return mask


def fisher_mask(slopes: Tensor, keep: int) -> Tensor:
    """The heads whose closing raises the loss least by its second-order expansion at ξ = 1, with the empirical Fisher
    matrix F = Σ_x ∂L(x) ∂L(x)ᵀ for its curvature (Kwon et al. 2022, sections 4.2 and 4.3): the ``keep`` heads with the
    largest F_hh stay open, then each layer exchanges heads by its whole block of F (`rearranged`).

    Args:
        slopes: (S, L, A), ∂L(x) / ∂ξ.

    Returns:
        (L, A) of 0 and 1, float32.
    """
    slopes = slopes.double()
    mask = largest(slopes.square().sum(0), keep)
    return torch.stack([rearranged(heads, g.T @ g) for heads, g in zip(mask, slopes.unbind(1), strict=True)])


def rearranged(mask: Tensor, information: Tensor) -> Tensor:
    """Exchange closed heads of a layer for open ones until no exchange of two lowers Σ_{g,h closed} F_gh any more.

    A round as in the code of Kwon et al. (2022): every open head, the least important first, is closed for a trial, and
    of the closed ones that head is opened which leaves the least. They do one round; here rounds follow until one
    changes nothing.

    Args:
        mask: (A,) of 0 and 1.
        information: F, (A, A), float64.

    Returns:
        (A,), as many open heads as before.
    """
    own = information.diagonal()
    closed, before = mask == 0, mask == -1
    while not torch.equal(closed, before):
        before = closed.clone()
        for head in own.argsort(stable=True).tolist():
            if closed[head]:
                continue
            closed[head] = True
            left = (own - 2 * information @ closed.double()).where(closed, torch.inf)  # change where one is opened
            best = int(left.argmin())
            closed[best if left[best] < left[head] - ROUNDING * own.sum() else head] = False
    return (~closed).to(mask)


def train_gates(finished: Finished, rows: Sequence[int], seed: int) -> Tensor:
    """The heads that gates leave open which are trained alone, for pruning.selector_updates: Hard Concrete gates with
    penalty: exact, or top-K gates, as pruning.selector says.

    Encoder and decoders neither move nor drop out, so the seed's noise is that of gates and the order of sentences.
    Gates of the finished run play no part. From then on its weights take no gradients.
    """
    from mtlprune.training.pruning import GatePenalty  # which imports this module

    settings, config = finished.run.config.pruning, gates_config(finished.run.config, seed)
    encoder, device = finished.model.requires_grad_(False).encoder, finished.model.device
    encoder.head_means = finished.means  # not those of the finished run
    decoders = dict(finished.model.tasks.items())
    model = MultiTaskModel(encoder, decoders, make_gates(config, encoder)).to(device)  # type: ignore[arg-type]
    gates = cast(Gates, model.eval().gates[SHARED].train())
    gates.noise = torch.Generator(device).manual_seed(seed)
    penalty = GatePenalty(config, model, settings.selector_updates)
    optimizer = torch.optim.Adam([gates.logits], settings.rate)
    generator, cut = np.random.default_rng(seed), list[list[int]]()
    lengths = [finished.run.lengths[row] for row in rows]
    while len(cut) < settings.selector_updates:
        cut += batches(lengths, settings.selector_sentences, config.train.batch_tokens, generator)
    for step, places in enumerate(cut[: settings.selector_updates]):
        batch = finished.run.batch(MiniBatch(config.tasks, [rows[place] for place in places]))
        with autocast(device, finished.precision):
            losses = model.losses(batch)
        torch.stack(list(losses.values())).sum().backward()
        penalty.apply(set(losses), step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        penalty.end_update(step)
        if gates.is_fixed():
            break
    return gates.evaluated().detach().cpu()


def gates_config(config: Config, seed: int) -> Config:
    """Of gates that are trained on one half."""
    trained = {"method": config.pruning.selector, "penalty": "exact", "noise": False}
    pruning = config.pruning.model_copy(update=trained)
    return config.model_copy(update={"pruning": pruning, "train": config.train.model_copy(update={"seed": seed})})


Selector = Callable[[Finished, Sequence[int], int], Tensor]
"""A finished run, rows of training sentences, a seed → mask (L, A) of 0 and 1."""

SELECTORS: dict[str, Selector] = {  # the first two have no noise, so the seed changes nothing
    "importance": lambda finished, rows, seed: largest(importance(finished.derivatives(rows)), finished.keep),
    "fisher": lambda finished, rows, seed: fisher_mask(finished.derivatives(rows), finished.keep),
    "gates": train_gates,
    "topk": train_gates,
}


def choose(run: Run, folder: RunFolder, precision: torch.dtype) -> Tensor:
    """The heads (L, A) that pruning.method (importance, fisher or stable) picks on a finished run; for stable,
    selection.json is written.

    Raises:
        RunError: a run that cannot be read; the disk is full.
    """
    settings, seed = run.config.pruning, run.config.train.seed
    finished = Finished(run, precision)
    if settings.method != "stable":
        return SELECTORS[settings.method](finished, finished.rows, seed)
    generator = seeded(run.config, 6)
    masks = selections(SELECTORS[settings.selector], finished, finished.rows, settings.halves, generator)
    frequencies = masks.double().mean(0)
    folder.write_json(
        SELECTION,
        {
            "sentences": len(finished.rows) // 2,
            "expected_false": expected_false(finished.keep, settings.threshold, frequencies.numel()),
            "frequencies": frequencies.tolist(),
            "selected": [mask.flatten().nonzero().flatten().tolist() for mask in masks],
        },
    )
    claimed = frequencies >= settings.threshold
    if not claimed.any():
        log.warning("no head was selected in %g of the halves: all heads are closed", settings.threshold)
    return claimed.float()


# -- stability selection -----------------------------------------------------------------------------------------------


def selections(
    select: Selector, finished: Finished, rows: Sequence[int], number: int, generator: np.random.Generator
) -> Tensor:
    """What a selector chooses on each half of the sentences, with a seed of its own for each: (H, L, A)."""
    parts = list(halves(rows, number, generator))
    seeds = generator.integers(2**31, size=number).tolist()
    return torch.stack([select(finished, part, seed) for part, seed in zip(parts, seeds, strict=True)])


def halves(rows: Sequence[int], number: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """So many halves, an even number: random ones, each followed by the other half (Shah and Samworth 2013). Of an odd
    number of sentences each pair leaves one out."""
    size = len(rows) // 2
    for _ in range(number // 2):
        order = generator.permutation(rows).tolist()
        yield from (order[:size], order[size : 2 * size])


def expected_false(keep: int, threshold: float, heads: int) -> float:
    """At most so many false claims are expected: q² / ((2π − 1) p) (Meinshausen and Bühlmann 2010, theorem 1).

    It holds where false heads are exchangeable, and a selector is no worse than drawing heads at random.

    Args:
        keep: q, heads selected on each half.
        threshold: π, above one half.
        heads: p.
    """
    return keep**2 / ((2 * threshold - 1) * heads)


def seeded(config: Config, purpose: int) -> np.random.Generator:
    """Chance must not give two tasks the same heads: of the seed, the tasks, and what it is for."""
    salt = zlib.crc32(",".join(config.tasks).encode())
    return np.random.default_rng(np.random.SeedSequence([config.train.seed, salt, purpose]))
