"""The class Encoder, which wraps a Hugging Face encoder and returns one vector for each word.

All decoders of a model share one encoder. Letters for shapes: B sentences, R rows of the batch, L slots in a row, P
sub-words and N words in the batch, H the hidden size, n heads in a layer now, d values in the output of a head.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mtlprune.encoder.batch import Encoded, EncoderBatch, Frame, collate, donors
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.families import FAMILIES, Attention, Family, attention_of
from mtlprune.encoder.fusion import Fusion, Kind
from mtlprune.encoder.heads import Ablation, HeadHooks, Substitutes
from mtlprune.encoder.pieces import EncoderError, Pieces, WordPieces
from mtlprune.encoder.removal import KeptHeads, load_pruned, save_pruned
from mtlprune.encoder.sources import (
    FLOAT32_ONLY,
    commit_of,
    load_config,
    load_tokenizer,
    load_transformer,
    locate,
    positions,
    quiet,
)
from mtlprune.io.files import replacing_folder, write_sums
from mtlprune.io.reuse import reuse_or_make
from mtlprune.sentence import Sentence

log = logging.getLogger(__name__)
_Pooling = Literal["mean", "first", "last"]

__all__ = ["Encoded", "Encoder", "EncoderBatch", "EncoderError", "Pieces"]

_CHECKS_MASK = {"bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "eurobert"}
"""Families that check whether the attention mask masks anything, and then build the mask of scaled dot-product
attention. On a GPU this check makes the host wait."""


def input_embeddings(transformer: PreTrainedModel | nn.Embedding) -> nn.Embedding:
    """Return the input embeddings of a transformer, or the argument itself if it is only the input embeddings."""
    if isinstance(transformer, PreTrainedModel):
        return cast(nn.Embedding, transformer.get_input_embeddings())
    return transformer


class Encoder(nn.Module):
    """A transformer (or only its input embeddings) with its tokenizer, which maps words to word vectors.

    :meth:`load` makes encoders.

    Attributes:
        transformer: the Hugging Face model, or only its input embeddings for an encoder without context.
        config: the Hugging Face config of the model.
        tokenizer: the Hugging Face tokenizer of the model.
        hidden_size: H.
        limit: the number of tokens, including special tokens, that the model can read at once. None without context.
        head_map: the remaining heads if heads were removed, otherwise None.
        attention_direction: ``causal`` if words attend only to earlier words, as in decoder-only models, otherwise
            ``full``.
        clones: the clones of heads if each task has separate copies of some heads, otherwise None. An encoder with
            clones encodes only by `encode_for_tasks`.
        commit: the commit on the Hugging Face hub from which the model was read, None for local models.
        fusion: the module that joins several layers into word vectors, None if the last layer is used.
        head_constants: (layers, heads, d), the vectors that closed heads contribute: their mean outputs, or learnt
            constants. None if closed heads contribute zeros.
        resample: a random seed if closed heads contribute their outputs for other sentences of the batch, otherwise
            None.
        ablation: the active ablation by :func:`mtlprune.encoder.interventions.ablated`, otherwise None.
    """

    head_constants: Tensor | None
    resample: int | None = None
    ablation: Ablation | None = None

    def __init__(
        self,
        transformer: PreTrainedModel | nn.Embedding,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: _Pooling,
        word_dropout: float,
        limit: int | None,
        fusion: Kind = "none",
        fusion_layers: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.transformer: PreTrainedModel | nn.Embedding = transformer
        self.config, self.tokenizer = config, tokenizer
        self.head_map: KeptHeads | None = None
        self.commit: str | None = None
        self.clones: Clones | None = None
        self.register_buffer("head_constants", None)
        self.context = isinstance(transformer, PreTrainedModel)
        self.attention_direction: Attention = attention_of(config) if self.context else "full"
        if self.attention_direction == "causal" and pooling == "first":
            raise EncoderError(
                "encoder.pooling: under causal attention the first sub-word of a word has not seen the rest of it; "
                "leave pooling out, which takes the last one, or give encoder.attention: full"
            )
        self.pooling: _Pooling = "last" if self.attention_direction == "causal" else pooling
        self.word_dropout, self.limit = word_dropout, limit
        table = input_embeddings(transformer)
        self.hidden_size: int = config.hidden_size if self.context else table.embedding_dim
        depth = config.num_hidden_layers
        self.fusion = None if fusion == "none" else Fusion(fusion, depth, self.hidden_size, fusion_layers)
        rows = table.num_embeddings
        self.word_pieces = reuse_or_make("word pieces", (tokenizer, rows), lambda: WordPieces(tokenizer, rows))
        before, after = self.word_pieces.before, self.word_pieces.after
        capacity = None if limit is None else limit - len(before) - len(after)
        if capacity is not None and capacity < 2:
            raise EncoderError(
                f"the model sees {limit} tokens at once, of which special tokens take all but {capacity}"
            )
        # The padding id of the model takes precedence, because RoBERTa-like models derive positions from it.
        padding = next((i for i in (config.pad_token_id, tokenizer.pad_token_id) if i is not None), 0)
        self.frame = Frame(before, after, padding, capacity, self.word_pieces.between)
        self._warned_of_cut_pairs = False

    @classmethod
    def load(
        cls,
        name: str,
        *,
        pooling: _Pooling = "mean",
        word_dropout: float = 0.2,
        random: bool = False,
        context: bool = True,
        seed: int | None = None,
        attention: str = "sdpa",
        attention_direction: Attention | None = None,
        fusion: Kind = "none",
        fusion_layers: Sequence[int] | None = None,
        revision: str | None = None,
    ) -> "Encoder":
        """Load an encoder, in evaluation mode.

        Args:
            name: a hub name, a folder, ``minilm`` or ``mpnet``.
            pooling: how the vectors of a word's sub-words become one vector: by their mean, or by the first or the last
                sub-word. Under causal attention, ``mean`` becomes ``last``, because only the last sub-word has attended
                to the whole word.
            word_dropout: the probability with which each sub-word is replaced by the mask token in training.
            random: whether the weights are initialised at random from the config instead of being read.
            context: False keeps only the input embeddings, as a baseline whose word vectors ignore the context.
            seed: the random seed of the initialisation. None draws from torch's global generator.
            attention: the attention implementation, ``sdpa`` (``eager`` for families without it), ``eager``, or another
                name in transformers.
            attention_direction: causal or full attention for a decoder-only model, by default as the model was
                pretrained or saved.
            fusion: the kind of fusion that joins layers. Its parameters are read if the encoder was saved with some.
            fusion_layers: the layers that are joined, counted from 1, by default all layers.
            revision: a commit, tag or branch of a hub name.

        Raises:
            EncoderError: the encoder does not exist, or is not supported.
            RunError: a file in the folder or package of the encoder was changed.
        """
        config = load_config(name, revision, attention_direction)
        commit = commit_of(name, revision)
        # All files are read from one commit, so that a branch that changes between two downloads cannot mix versions.
        revision = commit or revision
        tokenizer = load_tokenizer(name, revision)
        head_map = KeptHeads.find(locate(name))
        if head_map is None:
            model = load_transformer(name, config, random=random, seed=seed, attention=attention, revision=revision)
        else:
            model = load_pruned(
                locate(name), random=random, seed=seed, attention=attention, attention_direction=attention_direction
            )
        limit = positions(model, tokenizer) if context else None
        part = model if context else input_embeddings(model)
        encoder = cls(
            part,
            model.config,
            tokenizer,
            pooling=pooling,
            word_dropout=word_dropout,
            limit=limit,
            fusion=fusion,
            fusion_layers=fusion_layers,
        )
        encoder.head_map = head_map if context else None
        encoder.commit = commit
        if encoder.fusion is not None and not random:
            encoder.fusion.read(Path(locate(name)))
        return encoder.eval()

    @property
    def reads_first(self) -> bool:
        """Whether the tokenizer puts a special token before a sentence, and this token attends to the sentence."""
        return self.attention_direction == "full" and not self.word_pieces.framed

    def tokenize(self, words: Sequence[str]) -> Pieces:
        """Tokenise one sentence. The result depends only on the words, so callers may keep it."""
        return self.word_pieces.tokenize([words])[0]

    def tokenize_all(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """Tokenise many sentences at once, which is faster than one by one."""
        return self.word_pieces.tokenize(sentences)

    def tokenize_sentences(self, sentences: Sequence[Sentence]) -> list[Pieces]:
        """Tokenise sentences and pairs of texts.

        If a pair does not fit into the model's limit, its longer text is cut. The first call that cuts pairs logs a
        warning. The vector of a word without remaining sub-words is 0.

        Raises:
            EncoderError: the model's limit is too small for any pair.
        """
        pieces = self.tokenize_all([sentence.words for sentence in sentences])
        pairs = [row for row, sentence in enumerate(sentences) if sentence.split is not None]
        room = None if self.frame.capacity is None else self.frame.capacity - len(self.frame.between)
        if pairs and room is not None and room < 2:
            raise EncoderError(f"the model sees {self.limit} tokens at once, too few for the texts of a pair")
        long = 0
        for row in pairs:
            pair = replace(pieces[row], split=int(pieces[row].counts[: sentences[row].split].sum()))
            long += room is not None and len(pair.ids) > room
            pieces[row] = pair if room is None else pair.cut(room)
        if long and not self._warned_of_cut_pairs:
            self._warned_of_cut_pairs = True
            problem = "%d of %d pairs have more sub-words than the %d that fit, and were cut (reported once)"
            log.warning(problem, long, len(pairs), room)
        return pieces

    def collate(self, pieces: Sequence[Pieces]) -> EncoderBatch:
        """Make a padded batch on the CPU. :func:`mtlprune.encoder.batch.collate` explains windows of long sentences."""
        return collate(pieces, self.frame)

    @cached_property
    def head_hooks(self) -> HeadHooks:
        """The hooks at the transformer's heads. Raises EncoderError for a family that is not in the table."""
        if not isinstance(self.transformer, PreTrainedModel):
            raise EncoderError("an encoder without context has no attention heads")
        return HeadHooks(self.transformer, self.head_map.kept if self.head_map else None)

    def forget_head_hooks(self) -> None:
        """Discard the cached `head_hooks` after heads were removed, because these hooks refer to the old layout."""
        vars(self).pop("head_hooks", None)

    def remarks(self) -> str:
        """Return sentences for users about unusual attention and shared keys, or "" if there is nothing unusual."""
        lines, family = [], FAMILIES.get(self.config.model_type, Family())
        if self.attention_direction == "causal":
            lines.append(
                "The attention is causal, so a word sees only the words before it, and its vector is that of its last "
                "sub-word."
            )
        elif self.context and family.pretrained == "causal":
            lines.append(
                "The attention is full, so a word sees all other words, although the model was pretrained to see only "
                "the words before it."
            )
        if self.context and family.grouping and (group := max(self.head_hooks.groups)) > 1:
            lines.append(
                f"Heads are query heads. Each group of {group} consecutive heads (1 to {group}, and so on) shares a "
                "key and a value."
            )
        return " ".join(lines)

    @property
    def can_use_checkpointing(self) -> bool:
        """Whether transformers supports gradient checkpointing for the encoder, and the encoder has layers."""
        return isinstance(self.transformer, PreTrainedModel) and self.transformer.supports_gradient_checkpointing

    def use_checkpointing(self, enabled: bool = True) -> None:
        """Switch gradient checkpointing on or off, in place.

        Only the input of each layer is kept for the backward pass, which runs the layer again with the same dropout and
        gates.

        Raises:
            EncoderError: transformers does not support gradient checkpointing for the family, or the encoder has no
                context.
        """
        if not self.can_use_checkpointing:
            raise EncoderError(
                f"encoder.checkpointing: transformers has no gradient checkpointing for {self.config.model_type!r}; "
                "leave it out and use smaller mini-batches (train.accumulate), or use another encoder"
            )
        logging.getLogger("transformers.utils.generic").addFilter(_is_not_about_caches)
        # The public method of transformers would also enable gradients of frozen embeddings.
        cast(PreTrainedModel, self.transformer)._set_gradient_checkpointing(
            enabled, partial(checkpoint, use_reentrant=False, context_fn=self._contexts)
        )

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a layer's forward pass and of its recomputation in the backward pass."""
        gates = self.head_hooks.rerunning() if "head_hooks" in vars(self) else nullcontext()
        # `autocast` in mtlprune/model.py has ended by then, and with it the choice of the attention kernel.
        is_plain = not torch.backends.cuda.flash_sdp_enabled()
        return nullcontext(), _recomputation(gates, sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext())

    def gated(self, gates: Tensor | None, batch: EncoderBatch | None = None) -> AbstractContextManager[None]:
        """Return a context in which gates and the active ablation apply to the heads (see :meth:`HeadHooks.gated`).

        Args:
            gates: (layers, heads) gates, None without gates.
            batch: the batch that will be encoded. It is needed if closed heads contribute their outputs for other
                sentences of the batch (resample).

        Raises:
            EncoderError: the batch is needed but missing, or the active ablation is incompatible with the gates, with
                the contributions of closed heads or with the batch.
        """
        substitutes: Substitutes | None = self.head_constants
        seed = self.resample
        if self.ablation is not None:
            substitutes, seed = self.ablation.substitutes, self.ablation.seed
            if gates is not None and (self.head_constants is not None or self.resample is not None):
                raise EncoderError(
                    "expected a run whose closed heads contribute zeros, or whose heads are all open, found one with "
                    "other contributions (pruning.closed), which an ablation would replace; name another run"
                )
            gates = self.ablation.under(gates, None if batch is None else batch.input_ids.shape)
        if gates is None:
            return nullcontext()
        if seed is None:
            return self.head_hooks.gated(gates, substitutes)
        if batch is None:
            raise EncoderError(
                "closed heads contribute their outputs for other sentences (resample), which no weights can hold and "
                "no single layer can compute; give zero, mean or optimal"
            )
        return self.head_hooks.gated(gates, self.outputs_elsewhere(batch, donors(batch, seed)))

    @torch.no_grad()
    def outputs_elsewhere(self, batch: EncoderBatch, slots: Tensor) -> list[Tensor]:
        """Compute the outputs of all heads for a batch without gates, and assign to each slot those of another slot.

        Args:
            batch: the batch.
            slots: (R, L) int64, the other slot (row · L + column) for each slot.

        Returns:
            (R, L, n, d) for each layer.
        """
        # Callers may cache the outputs of the forward pass that follows.
        with self.head_hooks.suspended(), self.head_hooks.cache_outputs() as outputs:
            self._contextual(batch.input_ids, batch)
        return [heads.flatten(0, 1)[slots] for heads in outputs]

    def forward(self, batch: EncoderBatch, gates: Tensor | None = None) -> Encoded:
        """Encode a batch on the encoder's device.

        Args:
            batch: the batch.
            gates: (layers, heads) factors of the heads' outputs, 1 by default.
        """
        return self._encoded(self._hidden(batch, gates), batch)

    def encode_for_tasks(self, batch: EncoderBatch, names: Sequence[str], gates: Tensor | None = None) -> list[Encoded]:
        """Encode a batch once for each task, in an encoder with clones.

        The tasks share one forward pass up to the lowest layer with clones.

        Args:
            batch: the batch.
            names: the tasks.
            gates: (layers, heads) factors of the heads' outputs, 1 by default.
        """
        assert self.clones is not None
        with self.clones.serving(names):
            hidden = self._hidden(batch, gates)
        return [self._encoded(states, batch) for states in hidden.chunk(len(names))]

    def _hidden(self, batch: EncoderBatch, gates: Tensor | None) -> Tensor:
        """Return the hidden states of a batch: (R, L, H), in the dtype of the forward pass."""
        ids = self._drop(batch)
        if not self.context:
            hidden: Tensor = self.transformer(ids)
            return hidden
        plain = self.config.model_type in FLOAT32_ONLY
        with (
            torch.autocast(ids.device.type, enabled=False) if plain else nullcontext(),
            self.gated(gates, batch),
        ):
            return self._contextual(ids, batch)

    def _encoded(self, hidden: Tensor, batch: EncoderBatch) -> Encoded:
        hidden = hidden.float().flatten(0, 1)  # (R · L, H)
        return Encoded(
            self._pool(hidden, batch),
            hidden.index_select(0, batch.cls_slot),
            hidden.index_select(0, batch.sep_slot),
            batch.lengths,
            batch.sizes,
        )

    def _mask(self, batch: EncoderBatch) -> Tensor | None:
        """Return the attention mask for the transformer.

        Some families check whether the mask masks anything, which makes the host wait for a GPU. They get the mask that
        they would build themselves.
        """
        if self.config.model_type not in _CHECKS_MASK or self.config._attn_implementation != "sdpa":
            return batch.attention_mask
        return (
            None if batch.full else batch.attention_mask.bool()[:, None, None].expand(-1, 1, batch.source.shape[1], -1)
        )

    def token_types(self, batch: EncoderBatch) -> dict[str, Tensor]:
        """Return ``token_type_ids`` as an argument for the transformer, which mark the second text of each pair.

        The result is empty if the family has no token types or the batch contains no pairs.
        """
        if batch.second is None or not self.word_pieces.second_type or getattr(self.config, "type_vocab_size", 0) < 2:
            return {}
        column = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        is_second = (column >= batch.second[:, None]) & batch.attention_mask.bool()
        return {"token_type_ids": is_second.long() * self.word_pieces.second_type}

    def _contextual(self, ids: Tensor, batch: EncoderBatch) -> Tensor:
        """Return the hidden states of the last layer, or of several joined layers: (R, L, H)."""
        mask, types = self._mask(batch), self.token_types(batch)
        if self.fusion is None:
            return self.transformer(input_ids=ids, attention_mask=mask, **types).last_hidden_state
        output = self.transformer(input_ids=ids, attention_mask=mask, output_hidden_states=True, **types)
        return self.fusion([*output.hidden_states[1:-1], output.last_hidden_state])

    def _drop(self, batch: EncoderBatch) -> Tensor:
        """Replace random sub-words by the mask token (word dropout): (R, L) ids.

        There is one draw for each sub-word, so that a sub-word in two windows is dropped in both or in neither.
        """
        if not self.training or self.word_dropout == 0:
            return batch.input_ids
        pieces = len(batch.piece_slot)
        is_dropped = torch.rand(pieces + 1, device=batch.input_ids.device) < self.word_dropout  # (P + 1,)
        # Special tokens and padding have the source −1, which reads the additional last entry. They are never dropped.
        is_dropped[pieces] = False
        return batch.input_ids.masked_fill(is_dropped[batch.source], self.word_pieces.mask)

    def _pool(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        """Pool the vectors of each word's sub-words: (R · L, H) → (N, H)."""
        if self.pooling != "mean":
            last = batch.piece_counts.long() - 1 if self.pooling == "last" else 0
            if batch.second is None:
                return hidden.index_select(0, batch.piece_slot[batch.first_piece + last])
            # Words that were cut from a pair have no piece. Their index is clamped to any piece, and their vector is 0.
            piece = (batch.first_piece + last).clamp(0, len(batch.piece_slot) - 1)
            return hidden.index_select(0, batch.piece_slot[piece]) * (batch.piece_counts > 0).unsqueeze(1)
        pieces = hidden.index_select(0, batch.piece_slot)  # (P, H)
        sums = hidden.new_zeros(len(batch.first_piece), hidden.shape[1]).index_add(0, batch.piece_word, pieces)
        return sums / batch.piece_counts.clamp(min=1).unsqueeze(1)

    def save(self, folder: str | Path) -> None:
        """Write the encoder into a folder from which :meth:`load` can read it, replacing an older folder as a whole.

        The folder contains the config, the tokenizer, the weights (safetensors), checksums, the list of the remaining
        heads if heads were removed, and the parameters of a fusion.

        Raises:
            EncoderError: the encoder has no context, or has gates outside its weights.
        """
        if not isinstance(self.transformer, PreTrainedModel):
            raise EncoderError("an encoder without context is kept with its run only; save one with context")
        with replacing_folder(Path(folder)) as fresh, quiet():
            self.tokenizer.save_pretrained(fresh)
            if self.head_map is None:
                self.transformer.save_pretrained(fresh)
            else:
                save_pruned(self.transformer, self.head_map, fresh)
            if self.fusion is not None:
                self.fusion.save(fresh)
            write_sums(fresh)


def _is_not_about_caches(record: logging.LogRecord) -> bool:
    """Drop the warning that checkpointing switches off the cache of keys and values, which an encoder does not have."""
    return "use_cache" not in record.getMessage()


@contextmanager
def _recomputation(gates: AbstractContextManager[None], kernel: AbstractContextManager[None]) -> Iterator[None]:
    """Enter the contexts of the gates and of the attention kernel that were active in a layer's forward pass."""
    with gates, kernel:
        yield
