"""The penalty on attention along dependency arcs (Chen et al. 2024), and the UAS of heads during training.

The training loop and pretraining add the penalty to their loss through `SyntaxPenalty`, which does this:

    with attention_seen(transformer) as maps:
        ... one forward pass ...
    penalty = arc_penalty(maps, batch_arcs(batch, trees), variant="max", norm=1.0, scale="mean")

For each dependency arc and both directions, γ combines the attention of the heads from one of its words to the other.
The attention between two words is summed over the sub-words of the attended word and averaged over the sub-words of the
attending word. UAS of heads uses the same rule, whereas the code released by Chen et al. takes a single sub-word of
each word. The arc to the root costs nothing, because the root is no word.

Letters for shapes: B rows of a batch, L sub-word positions of a row, n heads of a layer, H counted heads of all layers
together, M directed arcs (two for each arc), P pairs of sub-words of all directed arcs.
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
from mtlprune.encoder.batch import EncoderBatch, ranks
from mtlprune.encoder.families import by_layer, family_of
from mtlprune.encoder.pieces import EncoderError
from mtlprune.io.files import plain
from mtlprune.model import Batch, MultiTaskModel
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.run import NewRun, gate_sets

_Masks = list[tuple[int, ...]]
"""The counted heads of each layer, as indices into the heads that the layer still has."""


@dataclass(frozen=True, eq=False)
class DirectedArcs:
    """The dependency arcs of a batch in both directions, as pairs of sub-words.

    Attributes:
        row: (P,) int64, the row of the pair in the batch.
        source, target: (P,) int64, the positions of the attending and of the attended sub-word in that row.
        arc: (P,) int64, the directed arc, from 0 to M − 1, to which the pair belongs. The two directions of an arc have
            consecutive numbers.
        share: (P,) float32, 1 / the number of sub-words of the attending word.
        number: M, the number of directed arcs.
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
    """Find the sub-words of all dependency arcs in the rows of a batch.

    A sentence without a tree contributes no arcs. Arcs between words in different windows of a long sentence are left
    out, because no head attends from one window to another.

    Args:
        trees: the tree of each sentence of the batch; None for a sentence without a tree.
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
            # Both directions of an arc are stored one after the other, since an attention head may attend from the
            # dependent to its syntactic head or back.
            ends.append(np.stack([up, up[:, ::-1]], 1).reshape(-1, 2))
    pairs = np.concatenate(ends) if ends else np.zeros((0, 2), np.int64)
    sources, targets = counts[pairs[:, 0]], counts[pairs[:, 1]]
    # Each directed arc becomes sources × targets pairs of sub-words. The rank of a pair within its arc, divided by the
    # number of targets, gives the source (quotient) and the target (remainder).
    arc = np.repeat(np.arange(len(pairs)), sources * targets)
    rank = ranks(sources * targets)
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


def _arc_weights(attention: Sequence[Tensor], arcs: DirectedArcs, heads: _Masks | None = None) -> Tensor:
    """Return the attention of every head along every directed arc, (M, H) in float32.

    Args:
        attention: attention maps of each layer, (B, n, L, L).
        heads: the counted heads; None counts all heads.
    """
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
    heads: _Masks | None = None,
) -> Tensor:
    """Return the penalty of a batch, the sum or mean of γ over all directed arcs, as a float32 scalar without λ.

    The penalty is 0 if the batch has no arc.

    Args:
        attention: attention maps of each layer, (B, n, L, L).
        variant: how γ of an arc combines the counted heads: their largest weight (``max``) or their p-norm (``norm``).
        norm: p of the p-norm.
        scale: ``sum`` over the batch, as published, or ``mean`` over the M directed arcs.
        heads: the counted heads; None counts all heads.
    """
    with torch.autocast(attention[0].device.type, enabled=False):
        weights = _arc_weights(attention, arcs, heads)
        if not weights.numel():
            return weights.sum()
        per_arc = weights.max(1).values if variant == "max" else _norms(weights, norm)
        return per_arc.mean() if scale == "mean" else per_arc.sum()


def _norms(weights: Tensor, norm: float) -> Tensor:
    """Return the p-norm of each row, (M, H) → (M,); rows are first divided by their maximum, against underflow."""
    largest = weights.detach().amax(1).clamp(min=torch.finfo(weights.dtype).tiny)
    return largest * torch.linalg.vector_norm(weights / largest[:, None], norm, dim=1)


class SyntaxPenalty(Callback):
    """Callback that adds λ times `arc_penalty` to the loss of every mini-batch, until the update ``syntax.release``.

    Args:
        settings: the block ``syntax`` of the configuration.
        transformer: the encoder; it is switched to eager attention, the only implementation that returns its maps.
        kept_heads: the heads that each layer still has, in their original numbering from 0.
        trees: the dependency tree of each training sentence; None for a sentence without a tree.

    Raises:
        ConfigError: ``syntax.heads`` names a head that the encoder does not have.
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
    """The penalty of the last forward pass, without λ; None after the release."""

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


def named_heads(names: Sequence[str], kept_heads: Sequence[Sequence[int]]) -> _Masks:
    """Convert names of heads, such as 3-7 for head 7 of layer 3, into indices among the remaining heads of each layer.

    Args:
        kept_heads: the heads that each layer still has, in their original numbering from 0.

    Raises:
        ConfigError: the encoder does not have a named head.
    """
    indices: list[list[int]] = [[] for _ in kept_heads]
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
        indices[layer].append(list(kept_heads[layer]).index(head))
    return [tuple(sorted(layer)) for layer in indices]


@contextmanager
def attention_seen(transformer: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Record the attention maps of forward passes within the context, without detaching them from the graph.

    The maps are the weights with which the layer multiplies its values, after attention dropout.

    Yields:
        A list to which every forward pass appends the maps of each layer, (B, n, L, L).

    Raises:
        EncoderError: the encoder family is not in the table of families, or the attention does not return its maps.
    """
    layer_maps: list[Tensor] = []

    def record_maps(module: nn.Module, args: Any, output: Any) -> None:
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
            hooks.enter_context(module.register_forward_hook(record_maps))
        yield layer_maps


def check_syntax(run: NewRun) -> None:
    """Raise ConfigError if the syntax penalty is on, but no training sentence has a tree or a named head is missing."""
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
"""The name under which uas.jsonl lists the values of a run without gates."""


def check_uas(run: NewRun) -> None:
    """Raise an error if ``train.log_uas`` is set but UAS of heads cannot be measured.

    Raises:
        ConfigError: no sentence of the dev split has a dependency tree.
        EncoderError: the encoder family is not in the table of families.
    """
    if not run.config.train.log_uas:
        return
    if all(sentence.dep is None for sentence in run.dev):
        raise ConfigError(
            "train.log_uas: UAS of heads needs dependency trees, and no sentence of the split "
            f"{run.config.data.dev} has one; leave it out, or name a corpus with the layer dep"
        )
    _ = run.model.encoder.head_hooks  # raises EncoderError


def uas_line(model: MultiTaskModel, dev: Sequence[Sentence], epoch: int, step: int) -> dict[str, Any]:
    """Measure the UAS of every head on dev and return the line for uas.jsonl.

    Args:
        dev: sentences, of which some have trees. Words, punctuation and roots count as in `ArcCounts.uas`.

    Returns:
        The epoch, the step, and ``uas``: gate set (``none`` in a run without gates) → direction → table of layers and
        heads in percent, with None for closed and removed heads.
    """
    values: dict[str, Tensor | None] = {name: gates.evaluated().detach() for name, gates in gate_sets(model).items()}
    uas = {}
    for name, gates in (values or {_UNGATED: None}).items():
        shares = uas_of(model.encoder, dev, gates).uas().tolist()  # (directions, layers, heads)
        rounded = [[[round(share, 4) for share in layer] for layer in table] for table in shares]
        uas[name] = plain(dict(zip(DIRECTIONS, rounded, strict=True)))
    return {"epoch": epoch, "step": step, "uas": uas}
