"""Observation of a forward pass: attention, head outputs, hidden states and LayerNorm inputs, also for whole words.

    use_eager(encoder)
    seen = observe(encoder, encoder.collate(encoder.tokenize_all(sentences)), want={"attention", "heads"})
    seen.word_attention(0)  # (B, n, S, S): rows sum to 1
    seen.word_vectors(seen.heads[0])  # (N, n, d)

An observation holds the tensors of one batch. Observing changes nothing: the output of the encoder is the same to the
last bit. Analyses use this module.

Letters for shapes: B sentences, L slots in a row (sub-words, special tokens, padding), N words in the batch, T words in
the longest sentence, S = T + 2 positions in the longest sentence (words, the special tokens before them, and the
special tokens after them), n heads in a layer now, d values in the output of a head, H the hidden size.
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
"""The limits of an observed batch: the number of rows, of slots (rows · width), and of entries in an attention map
(rows · width²)."""

_NORMS = ("LayerNorm", "RMSNorm")


_Norms = dict[tuple[int, str], Tensor]
"""The input (B, L, H) of each norm, by the layer (from 0) and the path of the norm within the layer, such as
``attention.output.LayerNorm``."""


@dataclass(eq=False)
class Observation:
    """The observed tensors of one batch, for each slot of its rows, with methods that convert them to words.

    Tensors that were not requested are empty.

    Attributes:
        batch: the observed batch.
        front: the number of special tokens before a sentence.
        last: (B, L, H), the last hidden states.
        attention: for each layer the attention weights (B, n, L, L) after the softmax. Rows attend to columns.
        heads: for each layer the head outputs (B, L, n, d) after gates, which are the input of the attention output
            projection.
        hidden: the hidden states (B, L, H) of the embeddings and of each layer (layers + 1 tensors).
        norms: the inputs of all norms within layers.
    """

    batch: EncoderBatch
    front: int
    last: Tensor
    attention: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    norms: _Norms = field(default_factory=dict)

    @cached_property
    def positions(self) -> Tensor:
        """The position of each slot in its sentence, (B, L) int64, −1 for padding.

        The special tokens before the words ([CLS]) have the position 0, word i (from 0) has i + 1, and the special
        tokens after the words ([SEP]), or between the texts of a pair, have the last position.
        """
        batch = self.batch
        lengths = batch.lengths[:, None]
        first = (batch.lengths.cumsum(0) - batch.lengths)[:, None]  # (B, 1), the first word of each sentence
        words = batch.piece_word[batch.source.clamp(min=0)] - first + 1
        column = torch.arange(batch.source.shape[1], device=words.device)
        positions = torch.where(column < self.front, 0, lengths + 1).where(batch.source < 0, words)
        return positions.masked_fill(batch.attention_mask == 0, -1)

    def word_attention(self, layer: int, specials: Literal["kept", "dropped"] = "kept") -> Tensor:
        """Return attention weights between words: the mean over attending sub-words, the sum over attended sub-words.

        Args:
            layer: the layer, from 0.
            specials: ``kept`` includes special tokens, in the order of :attr:`positions`, so that rows sum to 1.
                ``dropped`` includes words only, so that rows sum to the attention on words.

        Returns:
            (B, n, S, S) if special tokens are kept, otherwise (B, n, T, T). Rows attend to columns. Rows and columns
            beyond the end of a sentence are 0.

        Source: He and Choi (2021), released code; Clark et al. (2019), section 4.1.
        """
        side = max(self.batch.sizes) + 2
        columns = functional.one_hot(self.positions + 1, side + 1)[..., 1:].to(self.last)  # (B, L, S)
        rows = columns.transpose(1, 2) / columns.sum(1).clamp(min=1)[..., None]  # (B, S, L)
        word_pairs = (rows[:, None] @ self.attention[layer]) @ columns[:, None]
        if specials == "kept":
            return word_pairs
        # The last position is [SEP] in the longest sentences only. The mask below removes the [SEP] of shorter ones.
        word_pairs = word_pairs[:, :, 1:-1, 1:-1]  # (B, n, T, T)
        is_word = torch.arange(side - 2, device=word_pairs.device) < self.batch.lengths[:, None]  # (B, T)
        pair = (is_word[:, None, :] & is_word[:, :, None])[:, None]  # (B, 1, T, T)
        return word_pairs * pair

    def word_vectors(self, slots: Tensor) -> Tensor:
        """Average the vectors of each word's sub-words.

        Args:
            slots: (B, L, ...), such as ``hidden[3]`` or ``heads[0]``.

        Returns:
            (N, ...), the words of all sentences one after another, without padding.
        """
        flat = slots.reshape(slots.shape[0] * slots.shape[1], -1)
        bags = functional.embedding_bag(self.batch.piece_slot, flat, self.batch.first_piece, mode="mean")
        return bags.unflatten(1, slots.shape[2:])


def use_eager(encoder: Encoder) -> Encoder:
    """Switch an encoder to eager attention, in place, because fused kernels do not return attention weights."""
    if isinstance(encoder.transformer, PreTrainedModel):
        encoder.transformer.set_attn_implementation("eager")
    return encoder


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and restore the mode of every module on exit."""
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
    """Run a forward pass of an encoder over a batch and return the requested tensors.

    Args:
        encoder: an encoder in evaluation mode, of any family in the table of families, with or without removed heads.
        batch: a batch from ``encoder.collate`` on the encoder's device. Every sentence must fit into one window,
            because words in different windows do not attend to each other.
        gates: (layers, heads) gates in the original numbering, None without gates.
        want: the requested tensors among ``attention`` (which needs :func:`use_eager`), ``heads``, ``hidden`` and
            ``norms``.

    Raises:
        EncoderError: the family is unknown, the encoder is in training mode, a sentence needs several windows, or the
            attention kernel does not return attention weights.
    """
    hooks, transformer = encoder.head_hooks, cast(PreTrainedModel, encoder.transformer)
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
    norms: _Norms = {}
    with ExitStack() as stack:
        stack.enter_context(encoder.gated(gates, batch))
        outputs = stack.enter_context(hooks.cache_outputs(after_gates=True)) if "heads" in want else []
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
    """Observe an encoder on tokenised sentences, batch by batch, longest sentences first.

    Args:
        encoder: the encoder, as for :func:`observe`.
        pieces: the tokenised sentences, each of which must fit into one window.
        gates, want: as for :func:`observe`.

    Yields:
        The indices in ``pieces`` of a batch of sentences of similar length, and the observation of this batch. Callers
        process an observation before they request the next, so that only one is in memory.
    """
    device = next(encoder.parameters()).device
    for rows in observation_batches([len(p.ids) for p in pieces]):
        yield rows, observe(encoder, encoder.collate([pieces[row] for row in rows]).to(device), gates, want)


@contextmanager
def _caching_norms(transformer: PreTrainedModel, shape: torch.Size) -> Iterator[_Norms]:
    """Enter a context in which the inputs of all norms within layers are recorded in the yielded dictionary.

    A norm is a module within a layer whose class name ends in LayerNorm or RMSNorm and whose input is (B, L, H). If
    layers share a module, its k-th call belongs to the k-th of these layers.
    """
    layers_of: dict[nn.Module, list[int]] = {}
    for layer, block in enumerate(by_layer(transformer, family_of(transformer).blocks)):
        layers_of.setdefault(block, []).append(layer)
    inputs: _Norms = {}

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
    """Yield batches of rows of similar length within the limits of an observation, longest rows first.

    Args:
        lengths: the number of sub-words of each sentence, without special tokens.
    """
    return by_length(lengths, lambda n: min(SENTENCES, SLOTS // (n + 4), SQUARES // (n + 4) ** 2))
