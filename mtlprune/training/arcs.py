"""A penalty on attention along dependency arcs (Chen et al. 2024), for any training of an encoder.

    with attention_seen(transformer) as maps:
        ... one forward pass ...
    penalty = arc_penalty(maps, batch_arcs(batch, trees), variant="max", norm=1.0, scale="mean")

For each arc and both directions, γ is the attention from one word to the other: summed over the sub-words attended to,
averaged over those that attend, as UAS reads it (the released code takes one sub-word a word). An arc to the root has
no word at its other end and costs nothing.

Letters for shapes: B rows, n heads a layer, L slots, M directed arcs (two an arc), P pairs of sub-words over all of
them, H heads over all layers that count.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.config.blocks import SyntaxConfig
from mtlprune.config.config import ConfigError
from mtlprune.encoder.arcs import DIRECTIONS, uas_of
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.families import by_layer, family_of
from mtlprune.encoder.pieces import EncoderError
from mtlprune.io.files import plain
from mtlprune.model import Batch, MultiTaskModel
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.run import NewRun, gate_sets

Masks = list[tuple[int, ...]]
"""For each layer the places of the heads that count."""


@dataclass(frozen=True, eq=False)
class DirectedArcs:
    """The arcs of a batch, each once in either direction.

    Attributes:
        row, source, target: (P,) int64, row and slots of a sub-word that attends and one attended to.
        arc: (P,) int64, which of the M directed arcs the pair belongs to; the two directions of an arc come together.
        share: (P,) float32, one over the number of sub-words that attend.
        number: M.
    """

    row: Tensor
    source: Tensor
    target: Tensor
    arc: Tensor
    share: Tensor
    number: int


def batch_arcs(
    batch: EncoderBatch, trees: Sequence[Dependencies | None], device: torch.device | str = "cpu"
) -> DirectedArcs:
    """Find the arcs of a batch's sentences in its rows. ``trees``: one a sentence; None where it is not known, which
    costs nothing.

    Arcs between words that stand in different windows of a long sentence are left out: nothing attends across.
    """
    width = batch.input_ids.shape[1]
    slots = batch.piece_slot.cpu().numpy()
    first = batch.first_piece.cpu().numpy()
    counts = batch.piece_counts.cpu().numpy().astype(np.int64)
    words = np.cumsum([0, *batch.sizes])
    ends: list[NDArray[np.int64]] = []
    for start, tree in zip(words[:-1], trees, strict=True):
        if tree is not None:
            heads = np.asarray(tree.heads, np.int64)
            below = np.flatnonzero(heads > 0)
            up = np.stack([below, heads[below] - 1], 1) + start
            # Both directions of an arc stand next to each other, since a head may attend from the dependent to its
            # head or back.
            ends.append(np.stack([up, up[:, ::-1]], 1).reshape(-1, 2))
    pairs = np.concatenate(ends) if ends else np.zeros((0, 2), np.int64)
    sources, targets = counts[pairs[:, 0]], counts[pairs[:, 1]]
    arc = np.repeat(np.arange(len(pairs)), sources * targets)
    rank = np.arange(len(arc)) - np.repeat(np.cumsum(sources * targets) - sources * targets, sources * targets)
    source = slots[first[pairs[arc, 0]] + rank // targets[arc]]
    target = slots[first[pairs[arc, 1]] + rank % targets[arc]]
    same_window = source // width == target // width
    is_complete = np.bincount(arc, minlength=len(pairs)) == np.bincount(arc[same_window], minlength=len(pairs))
    kept_pairs = is_complete[arc]
    number = np.cumsum(is_complete) - 1
    parts = (source // width, source % width, target % width, number[arc])
    row, source, target, arc_of = (torch.from_numpy(part[kept_pairs]).to(device) for part in parts)
    share = torch.from_numpy((1.0 / sources[arc[kept_pairs]]).astype(np.float32)).to(device)
    return DirectedArcs(row, source, target, arc_of, share, int(is_complete.sum()))


def arc_weights(attention: Sequence[Tensor], arcs: DirectedArcs, heads: Masks | None = None) -> Tensor:
    """The attention that every head puts on every directed arc, in float32. (M, H). ``attention``: (B, n, L, L) a
    layer; ``heads``: heads that count; all, if not given."""
    layers = []
    for layer, maps in enumerate(attention):
        counted_maps = maps if heads is None else maps[:, list(heads[layer])]
        weights = counted_maps[arcs.row, :, arcs.source, arcs.target].float() * arcs.share[:, None]  # (P, n)
        layers.append(weights.new_zeros(arcs.number, counted_maps.shape[1]).index_add(0, arcs.arc, weights))
    return torch.cat(layers, 1)


def arc_penalty(
    attention: Sequence[Tensor],
    arcs: DirectedArcs,
    *,
    variant: str = "max",
    norm: float = 1.0,
    scale: str = "sum",
    heads: Masks | None = None,
) -> Tensor:
    """Σ γ over arcs in both directions, or its mean; without λ. 0 where there is no arc. (), float32.

    Args:
        attention: (B, n, L, L) a layer.
        variant: ``max``: γ is the largest weight over all heads that count; ``norm``: their p-norm.
        scale: ``sum`` over the batch as published, or ``mean`` over the M directed arcs.
    """
    with torch.autocast(attention[0].device.type, enabled=False):
        weights = arc_weights(attention, arcs, heads)
        if not weights.numel():
            return weights.sum()
        per_arc = weights.max(1).values if variant == "max" else _norms(weights, norm)
        return per_arc.mean() if scale == "mean" else per_arc.sum()


def _norms(weights: Tensor, norm: float) -> Tensor:
    """(M, H) to (M,): p-norms, of weights over their largest, whose powers would underflow otherwise."""
    largest = weights.detach().amax(1).clamp(min=torch.finfo(weights.dtype).tiny)
    return largest * torch.linalg.vector_norm(weights / largest[:, None], norm, dim=1)


class SyntaxPenalty(Callback):
    """λ · Σ γ of every mini-batch, until its release.

    Args:
        transformer: gets eager attention, the only kind that shows its maps.
        kept_heads: of each layer the heads that are there, in original numbering.

    Raises:
        ConfigError: a named head is not there.
        EncoderError: the family's heads are not known.
    """

    def __init__(
        self,
        settings: SyntaxConfig,
        transformer: PreTrainedModel,
        kept_heads: Sequence[Sequence[int]],
        trees: Sequence[Dependencies | None],
    ) -> None:
        self.settings, self.transformer, self.trees = settings, transformer, trees
        self.counted_heads = None if settings.heads is None else named_heads(settings.heads, kept_heads)
        self.active, self.penalty = True, None
        transformer.set_attn_implementation("eager")

    penalty: Tensor | None
    """The penalty of the last forward pass."""

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.active = self.settings.release is None or step < self.settings.release

    @contextmanager
    def forward(self, batch: Batch, rows: Sequence[int]) -> Iterator[None]:
        self.penalty = None
        if not self.active:
            yield
            return
        with attention_seen(self.transformer) as maps:
            yield
        arcs = batch_arcs(batch.pieces, [self.trees[row] for row in rows], maps[0].device)
        settings = self.settings
        self.penalty = arc_penalty(
            maps, arcs, variant=settings.variant, norm=settings.norm, scale=settings.scale, heads=self.counted_heads
        )

    def terms(self, losses: Losses) -> None:
        if self.penalty is not None:
            losses.logged["syntax"] = self.penalty.detach()
            losses.penalties["syntax"] = self.settings.strength * self.penalty


def named_heads(names: Sequence[str], kept_heads: Sequence[Sequence[int]]) -> Masks:
    """Names such as 3-7 to places in each layer as it is now. Raises ConfigError for one that is not there."""
    places: list[list[int]] = [[] for _ in kept_heads]
    for name in names:
        layer, head = (int(part) - 1 for part in name.split("-"))
        heads_of_layer = kept_heads[layer] if layer < len(kept_heads) else ()
        if head not in heads_of_layer:
            heads = (
                f", and layer {layer + 1} has {', '.join(str(number + 1) for number in heads_of_layer)}"
                if heads_of_layer
                else ""
            )
            raise ConfigError(
                f"syntax.heads: expected heads of the encoder, found no head {name}; it has {len(kept_heads)} "
                f"layers{heads}"
            )
        places[layer].append(list(kept_heads[layer]).index(head))
    return [tuple(sorted(layer)) for layer in places]


@contextmanager
def attention_seen(transformer: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Keep the attention maps of forward passes, on their way to the loss. Yields a list, empty until a forward pass,
    then one (B, n, L, L) a layer. Raises EncoderError: the family is not in the table of heads, or does not show its
    maps.

    They are what the layer multiplies values by: with dropout of attention, after it.
    """
    layer_maps: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        extra_outputs = output[1:] if isinstance(output, tuple) else ()
        maps = [part for part in extra_outputs if isinstance(part, Tensor) and part.ndim == 4]
        if len(maps) != 1:
            raise EncoderError(
                f"attention of {transformer.config.model_type!r} computed as "
                f"{transformer.config._attn_implementation!r} does not show its maps, which syntax.strength needs"
            )
        layer_maps.append(maps[0])

    with ExitStack() as hooks:
        for module in dict.fromkeys(by_layer(transformer, family_of(transformer).attention)):
            hooks.enter_context(module.register_forward_hook(keep))
        yield layer_maps


def check_syntax(run: NewRun) -> None:
    """Refuse a penalty where there are no trees, or on heads that are not there. Raises ConfigError."""
    config = run.config
    if not config.syntax.strength:
        return
    if all(sentence.dep is None for sentence in run.train):
        raise ConfigError(
            f"syntax.strength: the penalty needs dependency trees, and no training sentence of {config.data.path} has "
            "one; name a corpus with the layer dep, or leave syntax out"
        )
    if config.syntax.heads is not None:
        named_heads(config.syntax.heads, run.model.encoder.head_hooks.kept_heads)


_UNGATED = "none"
"""The place of a gate set's name in a run without gates."""


def check_uas(run: NewRun) -> None:
    """Refuse at the beginning what could not be measured: dev without trees, an encoder whose heads are unknown."""
    if not run.config.train.log_uas:
        return
    if all(sentence.dep is None for sentence in run.dev):
        raise ConfigError(
            "train.log_uas: UAS of heads needs dependency trees, and no sentence of the split "
            f"{run.config.data.dev} has one; leave it out, or name a corpus with the layer dep"
        )
    _ = run.model.encoder.head_hooks  # raises EncoderError


def uas_line(model: MultiTaskModel, dev: Sequence[Sentence], epoch: int, step: int) -> dict[str, Any]:
    """One line of uas.jsonl. ``dev``: sentences, some with trees; words, punctuation and roots count as in
    `ArcCounts.uas`. Returns epoch, step, and uas: gate set (``none`` where there are no gates) → direction → (L, A) in
    percent; None for heads that are closed or removed."""
    values: dict[str, Tensor | None] = {name: gates.evaluated().detach() for name, gates in gate_sets(model).items()}
    uas = {}
    for name, gates in (values or {_UNGATED: None}).items():
        shares = uas_of(model.encoder, dev, gates).uas().tolist()  # (D, L, A)
        rounded = [[[round(share, 4) for share in layer] for layer in table] for table in shares]
        uas[name] = plain(dict(zip(DIRECTIONS, rounded, strict=True)))
    return {"epoch": epoch, "step": step, "uas": uas}
