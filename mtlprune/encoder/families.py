"""The table of encoder families: where a model type has its heads, which weights belong to a head, and its attention.

Heads are gated, read and removed at the input of their layer's attention output projection, which is the concatenation
of the outputs of all heads. Therefore this package copies no attention class. Hooks and the removal of heads use this
table.

Letters for shapes: n heads in a layer now, d values in the output of a head, g heads that share a key and a value.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.pytorch_utils import Conv1D

from mtlprune.encoder.pieces import EncoderError

_Part = Literal["query", "key", "value"]
_PARTS: tuple[_Part, ...] = ("query", "key", "value")
Attention = Literal["causal", "full"]
PROJECTIONS = (nn.Linear, Conv1D)


@dataclass(frozen=True)
class Family:
    """One row of the table, which describes the attention modules of a model type.

    Paths start at the base model (``AutoModel``), and ``*`` is the number of a layer. Names without a path are
    attributes of the attention module. A name that a particular model lacks, because of an option of its config, is
    skipped.

    Attributes:
        attention: the path of the module that computes a layer's heads.
        output: the path of the attention output projection. Its input columns h·d to (h + 1)·d belong to head h.
        qkv: the projections whose output rows are queries, keys and values. A merged projection is named three times.
        layout: the order of these rows: ``apart`` (h, d) in three projections, merged ``by_part`` (part, h, d), or
            merged ``by_head`` (h, part, d). The parts are query, key and value.
        positions: further projections with output rows (h, d), for relative positions.
        query_bias, value_bias: parameters (n·d,) with entries (h, d) that are added to the projected queries and
            values.
        norms: the normalisations of queries and of keys over all heads of a layer. Every head contributes to the mean
            square of such a norm, so these projections stay whole when heads are removed, and the layer selects the
            columns of its remaining heads after the norm.
        mixers: layers that mix the heads with each other. If a model has such a layer, its heads can be gated but not
            removed.
        bias: the source of the bias (1, A, T, T) of the attention scores, of which a layer with removed heads must
            select its part. The bias is the same for all layers and ``given`` as the third argument (MPNet) or
            ``passed`` on from layer to layer (T5), or each layer has its ``own`` bias (umT5). Empty without a bias.
        count: the attribute that holds n, which removal of heads updates. Empty if there is none.
        total: the attribute that holds n·d, which removal of heads updates. Empty if there is none.
        width: the attribute that holds d, which never changes. A module that replaces the attention of a layer without
            heads must also have this attribute.
        grouping: the attribute that holds g (grouped-query attention).
        results: the number of values that the attention module returns, the attention weights last.
        after: the dropout in the attention module that follows the output projection.
        norm: the normalisation in the attention module of the sum of its input and its result.
        pretrained: the attention with which the model type was pretrained. ``causal`` means decoder-only.
        switch: the attribute of the config that, besides ``is_causal``, selects full attention.
    """

    attention: str = "encoder.layer.*.attention.self"
    output: str = "encoder.layer.*.attention.output.dense"
    qkv: tuple[str, str, str] = ("query", "key", "value")
    layout: Literal["apart", "by_part", "by_head"] = "apart"
    positions: tuple[str, ...] = ()
    query_bias: str = ""
    value_bias: str = ""
    norms: tuple[str, str] = ("", "")
    mixers: tuple[str, ...] = ()
    bias: Literal["", "given", "passed", "own"] = ""
    count: str = "num_attention_heads"
    total: str = "all_head_size"
    width: str = "attention_head_size"
    grouping: str = ""
    results: int = 2
    after: str = ""
    norm: str = ""
    pretrained: Attention = "full"
    switch: str = ""

    @property
    def blocks(self) -> str:
        """The path of the layers, ending in ``.*.``."""
        return self.attention.partition(".*.")[0] + ".*."

    def sharing(self, attention: nn.Module) -> int:
        """Return g, the number of heads that share a key and a value, which is 1 without grouped-query attention."""
        return getattr(attention, self.grouping) if self.grouping else 1

    def rows(self, part: _Part, heads: Sequence[int], head_count: int, width: int, group: int = 1) -> Tensor:
        """Return the output rows of a projection that compute the queries, keys or values of some heads.

        Args:
            part: the part, which determines the projection (see ``qkv``).
            heads: the positions of the heads in the current layer, in the order of the result.
            head_count: n, the number of heads in the current layer.
            width: d.
            group: g. If it is larger than 1, several heads share the rows of a key or a value.

        Returns:
            (len(heads) · d,) int64.
        """
        blocks = torch.tensor(list(heads), dtype=torch.int64)
        if part != "query":
            blocks = blocks // group
        if self.layout == "by_part":
            blocks = _PARTS.index(part) * head_count + blocks
        elif self.layout == "by_head":
            blocks = 3 * blocks + _PARTS.index(part)
        return _block_rows(blocks, width)

    def keep(
        self, heads: Sequence[int], head_count: int, width: int, group: int = 1, new_group: int = 1
    ) -> dict[str, Tensor]:
        """Return the rows (or entries) to keep of each attribute of the attention module, as {attribute: rows}.

        Args:
            heads, head_count, width, group: the heads to keep, and the current layer, as for :meth:`rows`.
            new_group: the number of heads that share a key and a value afterwards. With 1, each head gets a copy of the
                key and the value that it shared, so that any head can be removed.
        """
        parts = [self.rows("query", heads, head_count, width)]
        parts += [self.rows(part, heads[::new_group], head_count, width, group) for part in _PARTS[1:]]
        if self.layout == "apart":
            kept_rows = dict(zip(self.qkv, parts, strict=True))
        elif self.layout == "by_part":
            kept_rows = {self.qkv[0]: torch.cat(parts)}
        else:
            kept_rows = {
                self.qkv[0]: torch.stack([rows.view(-1, width) for rows in parts], 1).flatten()
            }  # (heads, 3, d)
        plain = self.columns(heads, width)
        return kept_rows | {name: plain for name in (*self.positions, self.query_bias, self.value_bias) if name}

    @staticmethod
    def columns(heads: Sequence[int], width: int) -> Tensor:
        """Return the input columns of the output projection that belong to some heads: (len(heads) · d,) int64."""
        return _block_rows(torch.tensor(list(heads), dtype=torch.int64), width)


def _block_rows(blocks: Tensor, width: int) -> Tensor:
    return (blocks[:, None] * width + torch.arange(width)).flatten()


def still_shared(heads: Sequence[int], group: int) -> int:
    """Return how many heads can share a key and a value after a layer with grouped-query attention loses heads.

    Heads can go on sharing only if all groups with remaining heads keep the same number of heads, which is then
    returned. Otherwise the result is 1.

    Args:
        heads: the positions of the remaining heads in the current layer.
        group: g, the number of heads that share a key and a value now.
    """
    sizes = set(Counter(head // group for head in heads).values())
    return sizes.pop() if len(sizes) == 1 else 1


_SEPARATE_PROJECTIONS = Family(  # an attention module with four projections as its attributes
    attention="layers.*.self_attn",
    output="layers.*.self_attn.o_proj",
    qkv=("q_proj", "k_proj", "v_proj"),
    count="",
    total="",
    width="head_dim",
)
_GROUPED = replace(_SEPARATE_PROJECTIONS, grouping="num_key_value_groups")
_DECODER = replace(_GROUPED, pretrained="causal")
_GEMMA = replace(_DECODER, switch="use_bidirectional_attention")
_T5 = Family(
    results=3,
    attention="encoder.block.*.layer.0.SelfAttention",
    output="encoder.block.*.layer.0.SelfAttention.o",
    qkv=("q", "k", "v"),
    bias="passed",
    count="n_heads",
    total="inner_dim",
    width="key_value_proj_dim",
)
ENCODER_DECODERS = ("t5", "mt5", "umt5")
"""Encoder-decoder model types, of which only the encoder is loaded."""
_LIKE_BERT = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer", "ernie", "data2vec-text"),
    *("xlm-roberta-xl", "bert-generation", "roberta-prelayernorm", "roc_bert", "megatron-bert", "rembert", "splinter"),
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_LIKE_BERT, Family()),
    "luke": Family(results=3),  # its attention also returns states of entities, which our inputs do not contain
    "distilbert": Family(
        attention="transformer.layer.*.attention",
        output="transformer.layer.*.attention.out_lin",
        qkv=("q_lin", "k_lin", "v_lin"),
        count="n_heads",
        total="",  # ``dim`` is the hidden size there
    ),
    "albert": Family(  # the paths name groups of layers, and a group is one module that is called for several layers
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
        bias="given",
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
    **dict.fromkeys(("nomic_bert", "gte", "jina_embeddings_v3"), _SEPARATE_PROJECTIONS),
    **dict.fromkeys(("eurobert", "ultrabert"), _GROUPED),
    **dict.fromkeys(("t5", "mt5"), _T5),
    "umt5": replace(_T5, bias="own", results=2),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"), _DECODER),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("olmo2", "olmo3"), replace(_DECODER, norms=("q_norm", "k_norm"))),
    "modernbert-decoder": Family(
        attention="layers.*.attn",
        output="layers.*.attn.Wo",
        qkv=("q_proj", "k_proj", "v_proj"),
        count="num_heads",
        width="head_dim",
        after="out_drop",
        pretrained="causal",
    ),
    "gpt_neox": Family(
        attention="layers.*.attention",
        output="layers.*.attention.dense",
        qkv=("query_key_value", "query_key_value", "query_key_value"),
        layout="by_head",
        count="",
        total="",
        width="head_size",
        pretrained="causal",
    ),
    "opt": Family(
        attention="decoder.layers.*.self_attn",
        output="decoder.layers.*.self_attn.out_proj",
        qkv=("q_proj", "k_proj", "v_proj"),
        count="num_heads",
        total="",
        width="head_dim",
        pretrained="causal",
    ),
    "gpt2": Family(
        attention="h.*.attn",
        output="h.*.attn.c_proj",
        qkv=("c_attn", "c_attn", "c_attn"),
        layout="by_part",
        count="num_heads",
        total="split_size",
        width="head_dim",
        after="resid_dropout",
        pretrained="causal",
    ),
}


def family_of(transformer: PreTrainedModel) -> Family:
    """Return the table's row for a model.

    Raises:
        EncoderError: the table does not contain the model type.
    """
    kind = transformer.config.model_type
    if kind not in FAMILIES:
        raise EncoderError(
            f"the position of attention heads is not known for the model type {kind!r}; expected one of "
            f"{', '.join(sorted(FAMILIES))}; to add it, write a row Family(...) for {kind!r} in FAMILIES of "
            "mtlprune/encoder/families.py and a tiny model in tests/tiny.py, and run tests/encoder/test_families.py"
        )
    return FAMILIES[kind]


def by_layer(transformer: PreTrainedModel, path: str) -> list[Any]:
    """Return the module at a path of the table for each layer, in the order of the forward pass.

    If layers share a module (ALBERT), the list contains it several times.

    Raises:
        EncoderError: the model has no module at this path.
    """
    base, config = transformer.base_model, transformer.config
    stack, _, below_block = path.partition(".*.")
    try:
        modules = [block.get_submodule(below_block) for block in cast(nn.ModuleList, base.get_submodule(stack))]
    except AttributeError as error:
        raise EncoderError(
            f"expected a {config.model_type!r} model to have {path}, found none in {type(transformer).__name__}: "
            f"{error}; transformers {transformers_version} may arrange its modules differently; see FAMILIES in "
            "mtlprune/encoder/families.py"
        ) from error
    layers = config.num_hidden_layers
    return [
        modules[int(layer / (layers / len(modules)))] for layer in range(layers)
    ]  # as AlbertTransformer picks groups


def matrix(projection: Any) -> Tensor:
    """Return the weights of a projection as (outputs, inputs), a view if they are stored transposed (GPT-2)."""
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


def axis(projection: Any, inputs: bool = False) -> int:
    """Return the dimension of a projection's weights along which its outputs, or its inputs, are stored."""
    return int(inputs != isinstance(projection, Conv1D))


def cut(projection: Any, indices: Tensor, inputs: bool = False) -> None:
    """Keep only some outputs, or some inputs, of a projection, in place. Its parameters become new objects."""
    projection.weight = selected_parameter(projection.weight, indices, axis(projection, inputs))
    names = ("nf", "nx") if isinstance(projection, Conv1D) else ("out_features", "in_features")
    setattr(projection, names[inputs], len(indices))
    if projection.bias is not None and not inputs:
        projection.bias = selected_parameter(projection.bias, indices, 0)
    if isinstance(projection, Conv1D) and inputs and not len(indices):
        projection.__class__ = _NarrowConv1D


class _NarrowConv1D(Conv1D):
    """A projection of GPT-2 that accepts inputs of width 0, which the forward pass of Conv1D cannot reshape."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.T, self.bias)


def selected_parameter(weight: Any, indices: Tensor, dim: int) -> nn.Parameter:
    """Return a new parameter with some entries of another parameter along a dimension."""
    return nn.Parameter(weight.index_select(dim, indices.to(weight.device)), weight.requires_grad)


def attention_of(config: PreTrainedConfig) -> Attention:
    """Return "causal" if a word attends only to itself and the words on its left, or "full" if to all words."""
    family = FAMILIES.get(config.model_type)
    if family is None or family.pretrained == "full":
        return "full"
    is_full = getattr(config, "is_causal", True) is False or bool(family.switch and getattr(config, family.switch))
    return "full" if is_full else "causal"


def set_attention(config: PreTrainedConfig, attention: Attention | None) -> None:
    """Select causal or full attention in a config, in place. None keeps the attention with which the model was saved.

    Raises:
        EncoderError: causal attention is requested for an encoder that was pretrained with full attention.
    """
    family = FAMILIES.get(config.model_type, Family())
    if family.pretrained == "full":
        if attention == "causal":
            raise EncoderError(
                f"encoder.attention: causal is for decoder-only models, and {config.model_type!r} is an encoder, whose "
                "words see all others; leave it out"
            )
        return
    attention = attention or attention_of(config)
    config.is_causal = attention == "causal"
    if family.switch:
        setattr(config, family.switch, attention == "full")
    # Caching the keys and values of earlier words helps only generation. Here it would waste memory.
    config.use_cache = False
