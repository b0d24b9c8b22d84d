"""The table of families: where the heads of a model type lie, what a head owns, and which words it sees.

The *place* of a head is the input of its layer's attention output projection, where the heads lie side by side.
Whatever is done to a head (gating, reading its output, removing it) is done there, so no attention class is copied.

Letters for shapes: n heads a layer has now, d values a head has at its place, g heads that share a key and a value.
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

Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = ("query", "key", "value")
Attention = Literal["causal", "full"]
PROJECTIONS = (nn.Linear, Conv1D)


@dataclass(frozen=True)
class Family:
    """One row of the table.

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
        norms: normalisations over all heads of the queries and of the keys: their projections stay whole, because every
            head takes part in what a norm divides by, and a layer with fewer heads picks its columns behind the norm.
        mixers: layers that mix heads with each other; where a model has one, a head can be gated but not cut out.
        bias: where a layer has a bias of the attention scores (1, A, T, T) from, of which it has to pick its part with
            fewer heads: all layers the same, ``given`` as third argument (MPNet) or ``passed`` on from layer to layer
            (T5), or each its ``own`` (umT5); else empty.
        count: attribute that states n, to be edited when heads are cut out; empty where there is none.
        total: attribute that states n·d, likewise.
        width: attribute that states d, never to be edited; what stands in for the attention of a layer without heads
            has to carry it too.
        grouping: attribute that states g (grouped-query attention).
        results: how many things the attention module gives, the attention maps last.
        after: dropout within the attention module that the output projection's result goes through.
        norm: normalisation within the attention module, of its input and that result.
        pretrained: the attention the model type was pretrained with; ``causal`` means decoder-only.
        switch: attribute of the config that says whether attention is full, beside ``is_causal``.
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
        """The path of whole layers."""
        return self.attention.partition(".*.")[0] + ".*."

    def sharing(self, attention: nn.Module) -> int:
        """g of one attention module: 1 except with grouped-query attention."""
        return getattr(attention, self.grouping) if self.grouping else 1

    def rows(self, part: Part, heads: Sequence[int], head_count: int, width: int, group: int = 1) -> Tensor:
        """Output rows, in the projection named by the column ``part``, that make the queries, keys or values of heads.

        Args:
            heads: numbers of heads in the layer as it is now, in the wanted order.
            head_count: n, how many heads the layer has now.
            width: d.
            group: g; with more than 1 the rows of a key or a value are not the head's alone.

        Returns:
            (len(heads) · d,) int64.
        """
        blocks = torch.tensor(list(heads), dtype=torch.int64)
        if part != "query":
            blocks = blocks // group
        if self.layout == "by_part":
            blocks = PARTS.index(part) * head_count + blocks
        elif self.layout == "by_head":
            blocks = 3 * blocks + PARTS.index(part)
        return _block_rows(blocks, width)

    def keep(
        self, heads: Sequence[int], head_count: int, width: int, group: int = 1, left: int = 1
    ) -> dict[str, Tensor]:
        """The rows (or entries) of each attribute of the attention module that stay with these heads, in order.

        Args:
            left: how many heads share a key and a value afterwards. With 1 each gets a copy of what it shared, so that
                any of them can go. The others as for :meth:`rows`.
        """
        parts = [self.rows("query", heads, head_count, width)]
        parts += [self.rows(part, heads[::left], head_count, width, group) for part in PARTS[1:]]
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
        """Input columns of the output projection that belong to heads: (len(heads) · d,) int64."""
        return _block_rows(torch.tensor(list(heads), dtype=torch.int64), width)


def _block_rows(blocks: Tensor, width: int) -> Tensor:
    return (blocks[:, None] * width + torch.arange(width)).flatten()


def still_shared(heads: Sequence[int], group: int) -> int:
    """The number of heads that can share a key and a value in a layer that keeps these of its heads, in its present
    numbering: as many as each group keeps where all groups that are left keep equally many, else 1."""
    sizes = set(Counter(head // group for head in heads).values())
    return sizes.pop() if len(sizes) == 1 else 1


_SEPARATE_PROJECTIONS = Family(  # one module a layer, whose projections lie side by side
    attention="layers.*.self_attn",
    output="layers.*.self_attn.o_proj",
    qkv=("q_proj", "k_proj", "v_proj"),
    count="",
    total="",
    width="head_dim",
)
GROUPED = replace(_SEPARATE_PROJECTIONS, grouping="num_key_value_groups")
DECODER = replace(GROUPED, pretrained="causal")
_GEMMA = replace(DECODER, switch="use_bidirectional_attention")
T5 = Family(
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
"""Model types of which the encoder alone is loaded."""
LIKE_BERT = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer", "ernie", "data2vec-text"),
    *("xlm-roberta-xl", "bert-generation", "roberta-prelayernorm", "roc_bert", "megatron-bert", "rembert", "splinter"),
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(LIKE_BERT, Family()),
    "luke": Family(results=3),  # it gives states of entities too; there are none
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
    **dict.fromkeys(("eurobert", "ultrabert"), GROUPED),
    **dict.fromkeys(("t5", "mt5"), T5),
    "umt5": replace(T5, bias="own", results=2),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"), DECODER),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("olmo2", "olmo3"), replace(DECODER, norms=("q_norm", "k_norm"))),
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
    """The row of a model.

    Raises:
        EncoderError: the table has none.
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
    """The module a table's path means for each layer, in the order of the forward pass; ALBERT's come again and again.

    Raises:
        EncoderError: the model has no such modules.
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
    """The weights of a projection, (outputs, inputs): a view where it stores them transposed (GPT-2)."""
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


def axis(projection: Any, inputs: bool = False) -> int:
    """The dimension of a projection's weights that counts its outputs, or its inputs."""
    return int(inputs != isinstance(projection, Conv1D))


def cut(projection: Any, places: Tensor, inputs: bool = False) -> None:
    """Leave only these outputs of a projection, or only these inputs, in place; its parameters are new objects."""
    projection.weight = selected_parameter(projection.weight, places, axis(projection, inputs))
    names = ("nf", "nx") if isinstance(projection, Conv1D) else ("out_features", "in_features")
    setattr(projection, names[inputs], len(places))
    if projection.bias is not None and not inputs:
        projection.bias = selected_parameter(projection.bias, places, 0)
    if isinstance(projection, Conv1D) and inputs and not len(places):
        projection.__class__ = NarrowConv1D


class NarrowConv1D(Conv1D):
    """A projection of GPT-2 whose inputs may have width 0, which its own arithmetic cannot reshape."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.T, self.bias)


def selected_parameter(weight: Any, places: Tensor, dim: int) -> nn.Parameter:
    """A new parameter of some places of another along a dimension."""
    return nn.Parameter(weight.index_select(dim, places.to(weight.device)), weight.requires_grad)


# Which words a word sees.


def attention_of(config: PreTrainedConfig) -> Attention:
    """The words that a word sees in a model with this config: those to its left (causal), or all (full)."""
    family = FAMILIES.get(config.model_type)
    if family is None or family.pretrained == "full":
        return "full"
    is_full = getattr(config, "is_causal", True) is False or bool(family.switch and getattr(config, family.switch))
    return "full" if is_full else "causal"


def set_attention(config: PreTrainedConfig, attention: Attention | None) -> None:
    """Write into a config, in place, which words a word sees; None leaves it as the model was saved.

    Raises:
        EncoderError: an encoder that was pretrained to see all words cannot be made causal.
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
    # Caching keys and values of earlier words serves generation only; here it would only hold memory.
    config.use_cache = False
