"""The shared encoder: any Hugging Face encoder, giving one vector a word.

Letters for shapes: B sentences, R rows of the batch, L slots a row, P sub-words, N words over the batch, T words of the
longest sentence, H the hidden size.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn
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

_ASKS = {"bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "eurobert"}
"""Families that make the mask of scaled dot-product attention by asking whether it masks anything."""


def input_embeddings(transformer: PreTrainedModel | nn.Embedding) -> nn.Embedding:
    """The table of input embeddings of a transformer, or the table itself where nothing else is left."""
    if isinstance(transformer, PreTrainedModel):
        return cast(nn.Embedding, transformer.get_input_embeddings())
    return transformer


class Encoder(nn.Module):
    """A transformer (or only its input embeddings) and its tokenizer, from words to word vectors.

    Made by :meth:`load`.

    Attributes:
        transformer: the Hugging Face model; without context only its table of input embeddings.
        config: the model's Hugging Face config.
        tokenizer: its Hugging Face tokenizer.
        hidden_size: H.
        limit: tokens, special ones included, the model can see at once; None without context.
        head_map: which heads are left, where some were removed; else None.
        attention_direction: causal where words see only those before them, as in decoder-only models, else full.
        clones: of heads, where each task has some of its own; None without. Then only `encode_for_tasks` encodes.
        commit: of the hub, from which it was read; else None.
        fusion: joins all layers into word vectors; None where they are the last layer's.
        head_constants: (layers, heads, d), what closed heads contribute instead of nothing (their means, or constants
            that are learnt); None without.
        resample: a seed: closed heads contribute their outputs for other sentences of the batch; None without.
        ablation: heads that are ablated at the moment, by :func:`mtlprune.encoder.interventions.ablated`; else None.
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
        # the model's own padding id first: RoBERTa-like models count positions by it
        padding = next((i for i in (config.pad_token_id, tokenizer.pad_token_id) if i is not None), 0)
        self.frame = Frame(before, after, padding, capacity, self.word_pieces.between)

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
            name: a hub name, a folder, or ``minilm``.
            pooling: how a word's sub-words become one vector: their mean, the first or the last; under causal
                attention, where only the last has seen the word, mean is the last.
            word_dropout: while training, each sub-word is replaced by the mask token with this probability.
            random: initialise at random from the config instead of reading the weights.
            context: False keeps only the input embeddings: the baseline that sees no neighbours.
            seed: of the random initialisation; None draws from torch's global generator.
            attention: ``sdpa`` (``eager`` where the family lacks it), ``eager``, or another transformers name.
            attention_direction: which words a word of a decoder-only model sees; as it was pretrained or saved, if not
                given.
            fusion: how layers are joined; its parameters are read where the encoder was saved with some.
            fusion_layers: the layers that are joined, from 1; all, if not given.
            revision: of a hub name: a commit, tag or branch.

        Raises:
            EncoderError: in words, if there is no such encoder or it cannot serve.
        """
        config = load_config(name, revision, attention_direction)
        commit = commit_of(name, revision)
        # One commit for all files, so that a branch that moves between two downloads cannot mix two versions.
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
        """True where the tokenizer itself puts a special token before a sentence, and this token sees the sentence."""
        return self.attention_direction == "full" and not self.word_pieces.framed

    def tokenize(self, words: Sequence[str]) -> Pieces:
        """Tokenise one sentence; keep the result, it never changes."""
        return self.word_pieces.tokenize([words])[0]

    def tokenize_all(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """Tokenise many sentences at once, which is faster than one by one."""
        return self.word_pieces.tokenize(sentences)

    def tokenize_sentences(self, sentences: Sequence[Sentence]) -> list[Pieces]:
        """Tokenise many sentences and pairs; of a pair that does not fit the longer text is cut, with a warning.

        A word that is cut has no sub-word; its vector is 0.
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
        if long:
            log.warning("%d of %d pairs have more sub-words than the %d that fit, and were cut", long, len(pairs), room)
        return pieces

    def collate(self, pieces: Sequence[Pieces]) -> EncoderBatch:
        """Make a padded batch, on the CPU; see :func:`mtlprune.encoder.batch.collate` for sentences too long."""
        return collate(pieces, self.frame)

    @cached_property
    def head_hooks(self) -> HeadHooks:
        """Hooks at the heads of the transformer. Raises EncoderError for a family that is not in the table."""
        if not isinstance(self.transformer, PreTrainedModel):
            raise EncoderError("an encoder without context has no attention heads")
        return HeadHooks(self.transformer, self.head_map.kept if self.head_map else None)

    def forget_head_hooks(self) -> None:
        """Make `head_hooks` anew when they are asked for next, because heads were removed and lie elsewhere now."""
        vars(self).pop("head_hooks", None)

    def remarks(self) -> str:
        """Sentences on the words that a word sees and the heads that share keys; "" where there is nothing unusual."""
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

    def use_checkpointing(self) -> None:
        """Keep of each layer only its input for the backward pass of training, and run the layer again there, with the
        same dropout and gates. In place. Raises EncoderError for a family that cannot do that."""
        transformer = self.transformer
        if not isinstance(transformer, PreTrainedModel) or not transformer.supports_gradient_checkpointing:
            raise EncoderError(
                f"encoder.checkpointing: transformers has no gradient checkpointing for {self.config.model_type!r}; "
                "leave it out and use smaller mini-batches (train.accumulate), or use another encoder"
            )
        # the public method also asks for gradients of the embeddings where they are frozen
        transformer._set_gradient_checkpointing(
            True, partial(checkpoint, use_reentrant=False, context_fn=self._contexts)
        )

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts in which a layer runs first, and runs again."""
        return nullcontext(), self.head_hooks.rerunning() if "head_hooks" in vars(self) else nullcontext()

    def gated(self, gates: Tensor | None, batch: EncoderBatch | None = None) -> AbstractContextManager[None]:
        """Within it heads are under gates, (layers, heads), and ablated ones are; see :meth:`HeadHooks.gated`.

        Args:
            gates: None where the run has none.
            batch: that is to be encoded, which closed heads need that contribute what they give for its sentences.

        Raises:
            EncoderError: they need it, and there is none; an ablation that does not go with the gates or the batch.
        """
        instead: Substitutes | None = self.head_constants
        seed = self.resample
        if self.ablation is not None:
            instead, seed = self.ablation.instead, self.ablation.seed
            gates = self.ablation.under(gates, None if batch is None else batch.input_ids.shape)
        if gates is None:
            return nullcontext()
        if seed is None:
            return self.head_hooks.gated(gates, instead)
        if batch is None:
            raise EncoderError(
                "closed heads contribute their outputs for other sentences (resample), which no weights can hold and "
                "no single layer can compute; give zero, mean or optimal"
            )
        return self.head_hooks.gated(gates, self.outputs_elsewhere(batch, donors(batch, seed)))

    @torch.no_grad()
    def outputs_elsewhere(self, batch: EncoderBatch, slots: Tensor) -> list[Tensor]:
        """The outputs of all heads for a batch without gates, each slot with those of another one.

        Args:
            slots: (R, L) int64, row · L + column of the other slot.

        Returns:
            (R, L, n, d) for each layer.
        """
        with self.head_hooks.cache_outputs() as outputs:
            self._contextual(batch.input_ids, batch)
        return [heads.flatten(0, 1)[slots] for heads in outputs]

    def forward(self, batch: EncoderBatch, gates: Tensor | None = None) -> Encoded:
        """Encode a batch that lies on the encoder's device.

        Args:
            gates: (layers, heads) factors of the heads' outputs; all heads as they are, if not given.
        """
        return self._encoded(self._hidden(batch, gates), batch)

    def encode_for_tasks(self, batch: EncoderBatch, names: Sequence[str], gates: Tensor | None = None) -> list[Encoded]:
        """The same of an encoder with clones: an encoding for each of some tasks, with one pass up to the clones."""
        assert self.clones is not None
        with self.clones.serving(names):
            hidden = self._hidden(batch, gates)
        return [self._encoded(states, batch) for states in hidden.chunk(len(names))]

    def _hidden(self, batch: EncoderBatch, gates: Tensor | None) -> Tensor:
        """(R, L, H), whatever dtype."""
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
        """The mask of padding for the transformer; where it would look whether there is any, for which a GPU's host
        waits, the mask that it would make itself."""
        if self.config.model_type not in _ASKS or self.config._attn_implementation != "sdpa":
            return batch.attention_mask
        return (
            None if batch.full else batch.attention_mask.bool()[:, None, None].expand(-1, 1, batch.source.shape[1], -1)
        )

    def token_types(self, batch: EncoderBatch) -> dict[str, Tensor]:
        """The argument of the transformer that tells the second text of each pair from the first, where the family has
        token types and the batch has pairs."""
        if batch.second is None or not self.word_pieces.second_type or getattr(self.config, "type_vocab_size", 0) < 2:
            return {}
        column = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        is_second = (column >= batch.second[:, None]) & batch.attention_mask.bool()
        return {"token_type_ids": is_second.long() * self.word_pieces.second_type}

    def _contextual(self, ids: Tensor, batch: EncoderBatch) -> Tensor:
        """(R, L, H): the last layer, or several joined."""
        mask, types = self._mask(batch), self.token_types(batch)
        if self.fusion is None:
            return self.transformer(input_ids=ids, attention_mask=mask, **types).last_hidden_state
        output = self.transformer(input_ids=ids, attention_mask=mask, output_hidden_states=True, **types)
        return self.fusion([*output.hidden_states[1:-1], output.last_hidden_state])

    def _drop(self, batch: EncoderBatch) -> Tensor:
        """Word dropout: one draw a piece, so that a piece shown in two windows falls in both or in neither."""
        if not self.training or self.word_dropout == 0:
            return batch.input_ids
        pieces = len(batch.piece_slot)
        is_dropped = torch.rand(pieces + 1, device=batch.input_ids.device) < self.word_dropout  # (P + 1,)
        # The row behind the last piece is what index −1 reads; special tokens and padding point there, and are never
        # dropped.
        is_dropped[pieces] = False
        return batch.input_ids.masked_fill(is_dropped[batch.source], self.word_pieces.mask)

    def _pool(self, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        if self.pooling != "mean":
            last = batch.piece_counts.long() - 1 if self.pooling == "last" else 0
            if batch.second is None:
                return hidden.index_select(0, batch.piece_slot[batch.first_piece + last])
            place = (batch.first_piece + last).clamp(0, len(batch.piece_slot) - 1)  # words that were cut have no piece
            return hidden.index_select(0, batch.piece_slot[place]) * (batch.piece_counts > 0).unsqueeze(1)
        pieces = hidden.index_select(0, batch.piece_slot)  # (P, H)
        sums = hidden.new_zeros(len(batch.first_piece), hidden.shape[1]).index_add(0, batch.piece_word, pieces)
        return sums / batch.piece_counts.clamp(min=1).unsqueeze(1)

    def save(self, folder: str | Path) -> None:
        """Write config, tokenizer and weights (safetensors) for :meth:`load`, and which heads are left where some were
        removed; an older save there is replaced as a whole.

        Raises:
            EncoderError: the encoder has no context, or has gates beside its weights.
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
