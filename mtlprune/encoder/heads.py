"""Hooks at the places of attention heads: gates and interventions go in there, head outputs come out there.

The *place* of a head is the input of its layer's attention output projection, where the heads lie side by side.
Whatever is done to a head (gating, reading its output, removing it) is done there, so no attention class is copied;
the table of families below says where it is. Nothing here uses the ``head_mask`` of transformers, which version 5
accepts and ignores.

Letters for shapes: L layers, A heads a layer before any was removed, n heads a layer has now, d values a head has at
its place, B rows of the batch, T slots a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

from mtlprune.encoder.pieces import EncoderError

Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = ("query", "key", "value")


@dataclass(frozen=True)
class Family:
    """One row of the table: where the heads of a model type lie, and what a head owns.

    Paths start at the base model (``AutoModel``); ``*`` stands for the number of a layer. Names without a path are
    attributes of the attention module. What a row names but a model lacks (an option of its config) is passed over.

    Attributes:
        attention: path of the module that computes a layer's heads.
        output: path of the attention output projection; its input columns h·d to (h + 1)·d are head h.
        qkv: the projections whose output rows make queries, keys and values; one name three times where merged.
        layout: of those rows: ``apart`` (h, d) in three projections, merged ``by_part`` (part, h, d), merged
            ``by_head`` (h, part, d); the parts are query, key, value.
        positions: further projections with output rows (h, d), for relative positions.
        query_bias, value_bias: parameters (n·d,), entries (h, d), added to queries and values beside the projection.
        mixers: layers that mix heads with each other; where a model has one, a head can be gated but not cut out.
        table: path of an embedding shared by all layers with one column a head, added to the attention scores: a layer
            with fewer heads has to pick its columns.
        count: attribute that states n, to be edited when heads are cut out; empty where there is none.
        total: attribute that states n·d, likewise.
        width: attribute that states d, never to be edited; what stands in for the attention of a layer without heads
            has to carry it too.
        grouping: attribute that states how many heads share a key and a value (grouped-query attention).
        after: dropout within the attention module that the output projection's result goes through.
        norm: normalisation within the attention module, of its input and that result.
    """

    attention: str = "encoder.layer.*.attention.self"
    output: str = "encoder.layer.*.attention.output.dense"
    qkv: tuple[str, str, str] = ("query", "key", "value")
    layout: Literal["apart", "by_part", "by_head"] = "apart"
    positions: tuple[str, ...] = ()
    query_bias: str = ""
    value_bias: str = ""
    mixers: tuple[str, ...] = ()
    table: str = ""
    count: str = "num_attention_heads"
    total: str = "all_head_size"
    width: str = "attention_head_size"
    grouping: str = ""
    after: str = ""
    norm: str = ""

    @property
    def blocks(self) -> str:
        """The path of whole layers."""
        return self.attention.partition(".*.")[0] + ".*."

    def rows(self, part: Part, heads: Sequence[int], now: int, width: int, group: int = 1) -> Tensor:
        """Output rows, in the projection named by the column ``part``, that make the queries, keys or values of heads.

        Args:
            heads: numbers of heads in the layer as it is now, in the wanted order.
            now: n, how many heads the layer has now.
            width: d.
            group: how many heads share a key and a value; with more than 1 these rows are not the head's alone.

        Returns:
            (len(heads) · d,) int64.
        """
        blocks = torch.tensor(list(heads), dtype=torch.int64)
        if part != "query":
            blocks = blocks // group
        if self.layout == "by_part":
            blocks = PARTS.index(part) * now + blocks
        elif self.layout == "by_head":
            blocks = 3 * blocks + PARTS.index(part)
        return _spread(blocks, width)

    def keep(self, heads: Sequence[int], now: int, width: int, group: int = 1) -> dict[str, Tensor]:
        """The rows (or entries) of each attribute of the attention module that stay with these heads, in order.

        Grouped heads get their own copy of the key and the value they shared, so that any of them can go: the attribute
        ``grouping`` is then 1. Arguments as for :meth:`rows`.
        """
        parts = [self.rows(part, heads, now, width, group) for part in PARTS]
        if self.layout == "apart":
            kept = dict(zip(self.qkv, parts, strict=True))
        elif self.layout == "by_part":
            kept = {self.qkv[0]: torch.cat(parts)}
        else:
            kept = {self.qkv[0]: torch.stack([rows.view(-1, width) for rows in parts], 1).flatten()}  # (heads, 3, d)
        plain = self.columns(heads, width)
        return kept | {name: plain for name in (*self.positions, self.query_bias, self.value_bias) if name}

    @staticmethod
    def columns(heads: Sequence[int], width: int) -> Tensor:
        """Input columns of the output projection that belong to heads: (len(heads) · d,) int64."""
        return _spread(torch.tensor(list(heads), dtype=torch.int64), width)


def _spread(blocks: Tensor, width: int) -> Tensor:
    return (blocks[:, None] * width + torch.arange(width)).flatten()


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer"), Family()),
    "distilbert": Family(
        attention="transformer.layer.*.attention",
        output="transformer.layer.*.attention.out_lin",
        qkv=("q_lin", "k_lin", "v_lin"),
        count="n_heads",
        total="",  # ``dim`` is the hidden size there
    ),
    "albert": Family(  # the paths name groups of layers: one module, called once a layer
        attention="encoder.albert_layer_groups.*.albert_layers.0.attention",
        output="encoder.albert_layer_groups.*.albert_layers.0.attention.dense",
        after="output_dropout",
        norm="LayerNorm",
    ),
    "deberta": Family(
        qkv=("in_proj", "in_proj", "in_proj"),
        layout="by_head",
        positions=("pos_proj", "pos_q_proj"),
        query_bias="q_bias",
        value_bias="v_bias",
        mixers=("head_logits_proj", "head_weights_proj"),
    ),
    "deberta-v2": Family(qkv=("query_proj", "key_proj", "value_proj"), positions=("pos_key_proj", "pos_query_proj")),
    "mpnet": Family(
        attention="encoder.layer.*.attention.attn",
        output="encoder.layer.*.attention.attn.o",
        qkv=("q", "k", "v"),
        table="encoder.relative_attention_bias",
    ),
    "modernbert": Family(
        attention="layers.*.attn",
        output="layers.*.attn.Wo",
        qkv=("Wqkv", "Wqkv", "Wqkv"),
        layout="by_part",
        count="",
        total="",
        width="head_dim",
        after="out_drop",
    ),
    "eurobert": Family(
        attention="layers.*.self_attn",
        output="layers.*.self_attn.o_proj",
        qkv=("q_proj", "k_proj", "v_proj"),
        count="",
        total="",
        width="head_dim",
        grouping="num_key_value_groups",
    ),
}


def family_of(transformer: PreTrainedModel) -> Family:
    """The row of a model.

    Raises:
        EncoderError: the table has none.
    """
    kind = transformer.config.model_type
    if kind not in FAMILIES:
        raise EncoderError(
            f"where attention heads lie is not known for the model type {kind!r}; expected one of "
            f"{', '.join(sorted(FAMILIES))}; to add it, write a row Family(...) for {kind!r} in FAMILIES of "
            "mtlprune/encoder/heads.py and a tiny model in tests/tiny.py, and run tests/encoder/test_heads.py"
        )
    return FAMILIES[kind]


def by_layer(transformer: PreTrainedModel, path: str) -> list[Any]:
    """The module a table's path means for each layer, in the order of the forward pass; ALBERT's come again and again.

    Raises:
        EncoderError: the model has no such modules.
    """
    base, config = transformer.base_model, transformer.config
    stack, _, rest = path.partition(".*.")
    try:
        modules = [block.get_submodule(rest) for block in cast(nn.ModuleList, base.get_submodule(stack))]
    except AttributeError as error:
        raise EncoderError(
            f"expected a {config.model_type!r} model to have {path}, found none in {type(transformer).__name__}: "
            f"{error}; transformers {transformers_version} may lay it out differently: see FAMILIES in "
            "mtlprune/encoder/heads.py"
        ) from error
    layers = config.num_hidden_layers
    return [
        modules[int(layer / (layers / len(modules)))] for layer in range(layers)
    ]  # as AlbertTransformer picks groups


def head_mask(names: Sequence[str], layers: int, heads: int) -> Tensor:
    """(L, A) of bool, True at these heads; 3-7 is layer 3, head 7, counted from 1."""
    mask = torch.zeros(layers, heads, dtype=torch.bool)
    for layer, head in (map(int, name.split("-")) for name in names):
        mask[layer - 1, head - 1] = True
    return mask


def check_kept(kept: Sequence[Sequence[int]], heads: int, width: int, outputs: list[nn.Linear]) -> None:
    """Raise EncoderError unless these are the heads that the output projections of a model's layers have."""
    if len(kept) != len(outputs):
        raise EncoderError(f"the head map does not fit the model: expected {len(outputs)} layers, found {len(kept)}")
    for layer, (own, output) in enumerate(zip(kept, outputs, strict=True)):
        different = len({*own} & {*range(heads)}) == len(own)
        if not different or own != kept[outputs.index(output)] or output.in_features != len(own) * width:
            raise EncoderError(
                f"the head map does not fit the model: expected {output.in_features // width} different heads from 0 "
                f"to {heads - 1} in layer {layer} (the same ones in layers that share a module), found {list(own)}; "
                "give the head map the model was saved with, or of the earlier removal"
            )


Substitutes = Tensor | Sequence[Tensor]
"""Substitutes for closed heads: (L, A, d), the same at every slot, or (B, T, n, d) for each layer."""


class HeadHooks:
    """Hooks at the places of all heads of one model: gates go in and head outputs come out there.

    Hooks are registered once, here, and do nothing outside the contexts. The state dict stays as it is. A deep copy of
    the model, or of what holds model and places, has hooks of its own, with no context on. Gradient checkpointing runs
    the layers again in ``backward``, which has to be called inside the context too, or inside :meth:`rerunning`.

    Args:
        transformer: a model of a family in ``FAMILIES``.
        kept: for each layer the original numbers of the heads it still has, in the order in which they lie there; all
            if not given.

    Attributes:
        layers: L.
        heads: A, before any head was removed.
        width: d.
        group: how many heads share a key and a value: 1 except with grouped-query attention.
        kept: as given, one tuple a layer.

    Raises:
        EncoderError: the family is unknown, or ``kept`` does not fit the model.
    """

    def __init__(self, transformer: PreTrainedModel, kept: Sequence[Sequence[int]] | None = None) -> None:
        self.family = family_of(transformer)
        attentions = by_layer(transformer, self.family.attention)
        outputs = by_layer(transformer, self.family.output)
        self.layers = len(outputs)
        self.heads: int = transformer.config.num_attention_heads
        self.width: int = getattr(attentions[0], self.family.width)
        self.group: int = getattr(attentions[0], self.family.grouping) if self.family.grouping else 1
        everything = tuple(range(self.heads))
        self.kept = [everything] * self.layers if kept is None else [tuple(heads) for heads in kept]
        check_kept(self.kept, self.heads, self.width, outputs)
        self._gates: list[tuple[Tensor, Tensor | None]] | None = None  # and what is added to gated heads
        self._cache: list[Tensor] | None = None
        self._calls = 0
        shared = len(set(outputs)) < self.layers
        for layer, output in enumerate(outputs):
            if output not in outputs[:layer]:
                output.register_forward_pre_hook(partial(self._at, None if shared else layer))
        if shared:
            transformer.base_model.register_forward_pre_hook(self._restart)

    @contextmanager
    def gated(self, values: Tensor, instead: Substitutes | None = None) -> Iterator[None]:
        """Multiply every head by its gate at its place, in the dtype that is at its place: all gates 1 changes no bit.

        Args:
            values: (L, A) in original numbering, float32; gradients flow back to the gates of heads that are there.
            instead: what closed heads contribute instead of nothing: see `shifts`.

        Raises:
            EncoderError: wrong shape, or gates are on already.
        """
        if tuple(values.shape) != (self.layers, self.heads):
            raise EncoderError(
                f"expected gate values of shape (layers, heads) = {(self.layers, self.heads)}, found "
                f"{tuple(values.shape)}"
            )
        if self._gates is not None:
            raise EncoderError("gates are on already; expected one gated() at a time: multiply the values instead")
        shifts = [None] * self.layers if instead is None else self.shifts(values, instead)
        self._gates = [
            (row if heads == tuple(range(self.heads)) else row[list(heads)], shift)
            for row, heads, shift in zip(values.unbind(), self.kept, shifts, strict=True)
        ]
        try:
            yield
        finally:
            self._gates = None

    def rerunning(self) -> AbstractContextManager[None]:
        """A context to run a layer in once more, whatever is on by then: with the gates of now, and no cache."""
        return self._rerunning(self._gates)

    @contextmanager
    def _rerunning(self, gates: list[tuple[Tensor, Tensor | None]] | None) -> Iterator[None]:
        outside = self._gates, self._cache
        self._gates, self._cache = gates, None
        try:
            yield
        finally:
            self._gates, self._cache = outside

    def shifts(self, values: Tensor, instead: Substitutes) -> list[Tensor]:
        """(1 − gate) · substitute for each layer: what is added to its n gated heads, so that a closed one contributes
        its substitute whatever it reads.

        Args:
            values: (L, A) in original numbering.
            instead: (L, A, d) in original numbering, the same at every slot; or of each layer (B, T, n, d).

        Returns:
            (n, d) or (B, T, n, d) for each layer.
        """
        if isinstance(instead, Tensor):
            rows = ((1 - values)[..., None] * instead.to(values)).unbind()
            return [row[list(heads)] for row, heads in zip(rows, self.kept, strict=True)]
        return [
            (1 - row[list(heads)]).to(own)[:, None] * own
            for row, heads, own in zip(values, self.kept, instead, strict=True)
        ]

    @contextmanager
    def cache_outputs(self) -> Iterator[list[Tensor]]:
        """Cache what the heads give, before any gate: multiply by the gates to get what the projection reads.

        Yields:
            A list, empty until a forward pass, then one (B, T, n, d) tensor a layer of the latest pass, in the dtype
            found at the place: references on the way to the loss (``torch.autograd.grad(loss, cache)`` works).

        Raises:
            EncoderError: outputs are cached already.
        """
        if self._cache is not None:
            raise EncoderError(
                "outputs of heads are cached already; expected one cache_outputs() at a time: share its list"
            )
        cache: list[Tensor] = []
        self._cache = cache
        try:
            yield cache
        finally:
            self._cache = None

    @property
    def is_caching(self) -> bool:
        """True within ``cache_outputs``."""
        return self._cache is not None

    def _restart(self, module: nn.Module, args: Any) -> None:
        self._calls = 0  # also after a pass that broke off

    def _at(self, layer: int | None, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The hook; layer None is a module that all layers share: its calls tell them apart."""
        if self._gates is None and self._cache is None:
            return None
        if layer is None:
            layer = self._calls % self.layers
            self._calls += 1
        heads = args[0].unflatten(-1, (len(self.kept[layer]), self.width))  # (B, T, n, d)
        if self._cache is not None:
            if layer < len(self._cache):
                self._cache[layer] = heads
            else:
                self._cache.append(heads)
        if self._gates is not None:
            gates, shift = self._gates[layer]
            heads = heads * gates.to(heads).unsqueeze(-1)
            heads = heads if shift is None else heads + shift.to(heads)
        return (heads.flatten(-2), *args[1:])

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a context that is on belongs to the original (and non-leaf tensors cannot be copied)."""
        return self.__dict__ | {"_gates": None, "_cache": None, "_calls": 0}
