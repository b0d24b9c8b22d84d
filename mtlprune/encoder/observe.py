"""One forward pass laid open, at word level: attention, head outputs, hidden states, LayerNorm inputs.

    use_eager(encoder)
    seen = observe(encoder, encoder.collate(encoder.tokenize_all(sentences)), want={"attention", "heads"})
    seen.word_attention(0)  # (B, n, S, S): rows sum to 1
    seen.word_vectors(seen.heads[0])  # (N, n, d)

One batch is held and nothing is changed: what the encoder returns is bit for bit what it returns unobserved.

Letters for shapes: B sentences, L slots a row (sub-words, special tokens, padding), N words over the batch, T words of
the longest sentence, S places of the longest sentence (words, and the special tokens where they are kept), n heads a
layer has now, d values a head has, H the hidden size.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from mtlprune.encoder.batch import EncoderBatch, by_length
from mtlprune.encoder.families import by_layer, family_of
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces

SENTENCES, SLOTS, SQUARES = 64, 2048, 2**19
"""The limits of an observed batch: rows, rows · width, rows · width² (attention maps grow with the width squared)."""

_NORMS = ("LayerNorm", "RMSNorm")


Norms = dict[tuple[int, str], Tensor]
"""Layer, from 0, and path within it, such as ``attention.output.LayerNorm`` → input of that norm, (B, L, H)."""


@dataclass(eq=False)
class Observation:
    """States of one batch, as far as asked for, by slot (sub-words as the model has them), and their way to words.

    Attributes:
        batch: what was observed.
        front: special tokens before a sentence.
        attention: for each layer (B, n, L, L), after the softmax; rows are the attending.
        heads: for each layer (B, L, n, d), what flows into the attention output projection: gates are applied.
        hidden: (B, L, H) of the embeddings and of each layer: layers + 1 tensors.
        norms: inputs of all normalisations within layers.
        last: (B, L, H), what the encoder returns.
    """

    batch: EncoderBatch
    front: int
    last: Tensor
    attention: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    norms: Norms = field(default_factory=dict)

    @cached_property
    def places(self) -> Tensor:
        """(B, L) int64: the place of each slot in its sentence, −1 for padding.

        Place 0 are the special tokens before the words ([CLS]), word i (from 0) has i + 1, those after the words
        ([SEP]) come last.
        """
        batch = self.batch
        lengths = batch.lengths[:, None]
        first = (batch.lengths.cumsum(0) - batch.lengths)[:, None]  # (B, 1): a sentence's first word in the batch
        words = batch.piece_word[batch.source.clamp(min=0)] - first + 1
        column = torch.arange(batch.source.shape[1], device=words.device)
        places = torch.where(column < self.front, 0, lengths + 1).where(batch.source < 0, words)
        return places.masked_fill(batch.attention_mask == 0, -1)

    def word_attention(self, layer: int, specials: Literal["kept", "dropped"] = "kept") -> Tensor:
        """Attention between words: mean over the sub-words that attend, sum over those attended to.

        Args:
            layer: from 0.
            specials: ``kept``: places as in :attr:`places`, rows sum to 1. ``dropped``: words only, rows sum to what
                words get.

        Returns:
            (B, n, S, S), zero in rows and columns that a sentence does not have.

        Source: He and Choi (2021), released code; Clark et al. (2019), section 4.1.
        """
        side = max(self.batch.sizes) + 2
        columns = functional.one_hot(self.places + 1, side + 1)[..., 1:].to(self.last)  # (B, L, S)
        rows = columns.transpose(1, 2) / columns.sum(1).clamp(min=1)[..., None]  # (B, S, L)
        word_pairs = (rows[:, None] @ self.attention[layer]) @ columns[:, None]
        if specials == "kept":
            return word_pairs
        word_pairs = word_pairs[
            :, :, 1:-1, 1:-1
        ]  # (B, n, T, T); the [SEP] of shorter sentences is among their padding now
        is_word = torch.arange(side - 2, device=word_pairs.device) < self.batch.lengths[:, None]  # (B, T)
        pair = (is_word[:, None, :] & is_word[:, :, None])[:, None]  # (B, 1, T, T)
        return word_pairs * pair

    def word_vectors(self, slots: Tensor) -> Tensor:
        """Mean over the sub-words of each word.

        Args:
            slots: (B, L, ...), such as ``hidden[3]`` or ``heads[0]``.

        Returns:
            (N, ...), all sentences one after another, no padding.
        """
        flat = slots.reshape(slots.shape[0] * slots.shape[1], -1)
        bags = functional.embedding_bag(self.batch.piece_slot, flat, self.batch.first_piece, mode="mean")
        return bags.unflatten(1, slots.shape[2:])


def use_eager(encoder: Encoder) -> Encoder:
    """Let an encoder compute attention in the way that shows it; fused kernels never hold it. In place."""
    if isinstance(encoder.transformer, PreTrainedModel):
        encoder.transformer.set_attn_implementation("eager")
    return encoder


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, without gradients; afterwards every module's mode is as before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def observe(
    encoder: Encoder, batch: EncoderBatch, gates: Tensor | None = None, want: Collection[str] = ("attention", "heads")
) -> Observation:
    """One forward pass of an encoder in evaluation mode over a batch on its device.

    Args:
        encoder: of any family in the table of heads, with or without removed heads.
        batch: from ``encoder.collate``; sentences of one window only, because attention between windows does not exist.
        gates: (layers, heads) in original numbering, as for the encoder itself.
        want: of ``attention`` (needs :func:`use_eager`), ``heads``, ``hidden``, ``norms``.

    Raises:
        EncoderError: unknown family, training mode, a sentence of several windows, or a kernel that shows no attention.
    """
    places, transformer = encoder.head_hooks, cast(PreTrainedModel, encoder.transformer)
    if transformer.training:
        raise EncoderError(
            "the encoder is in training mode, in which dropout changes its outputs; call its eval() first"
        )
    if len(batch.input_ids) != len(batch.sizes):
        raise EncoderError(
            f"a sentence is longer than the {encoder.limit} tokens the encoder sees at once, and words in different "
            "windows do not attend to each other; leave out such sentences"
        )
    if "attention" in want and transformer.config._attn_implementation != "eager":
        raise EncoderError(
            f"the encoder computes attention as {transformer.config._attn_implementation!r}, which never holds it; "
            "call use_eager(encoder) first, or load it with attention='eager'"
        )
    norms: Norms = {}
    with ExitStack() as stack:
        stack.enter_context(encoder.gated(gates, batch))
        outputs = stack.enter_context(places.cache_outputs(after_gates=True)) if "heads" in want else []
        if "norms" in want:
            norms = stack.enter_context(_caching_norms(transformer, batch.input_ids.shape))
        output = transformer(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            **encoder.token_types(batch),
            output_attentions="attention" in want,
            output_hidden_states="hidden" in want,
        )
    observation = Observation(batch, len(encoder.frame.before), output.last_hidden_state)
    observation.norms = norms
    observation.heads = list(outputs)
    if "hidden" in want:
        observation.hidden = list(output.hidden_states)
    if "attention" in want:
        observation.attention = list(output.attentions)
    return observation


def observations(
    encoder: Encoder, pieces: Sequence[Pieces], gates: Tensor | None, want: Collection[str]
) -> Iterator[tuple[list[int], Observation]]:
    """Observe an encoder on tokenised sentences, of which each fits into one window: rows of ``pieces``, of similar
    length and longest first, with their observation. The body of a loop over these is what an analysis sees; only one
    observation is held at a time."""
    device = next(encoder.parameters()).device
    for rows in observation_batches([len(p.ids) for p in pieces]):
        yield rows, observe(encoder, encoder.collate([pieces[row] for row in rows]).to(device), gates, want)


@contextmanager
def _caching_norms(transformer: PreTrainedModel, shape: torch.Size) -> Iterator[Norms]:
    """Cache the inputs of normalisations within layers.

    They are known by their place and class: every module within a layer of the table's stack whose class is called
    ...LayerNorm or ...RMSNorm, and whose input is (B, L, H); the k-th call of a module that layers share is the k-th
    of these layers. Hooks live in this context only.
    """
    layers_of: dict[nn.Module, list[int]] = {}
    for layer, block in enumerate(by_layer(transformer, family_of(transformer).blocks)):
        layers_of.setdefault(block, []).append(layer)
    inputs: Norms = {}

    def record(name: str, layers: Iterator[int], module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].ndim == 3 and args[0].shape[:2] == shape:
            inputs[next(layers), name] = args[0]

    with ExitStack() as hooks:
        for block, layers in layers_of.items():
            for name, module in block.named_modules():
                if type(module).__name__.endswith(_NORMS):
                    hooks.enter_context(module.register_forward_pre_hook(partial(record, name, iter(layers))))
        yield inputs


def observation_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of similar length within the budget of an observation, longest first; equal ones in their order."""
    return by_length(lengths, lambda n: min(SENTENCES, SLOTS // (n + 4), SQUARES // (n + 4) ** 2))
