"""Masked-language modelling as a task of the training loop: the model, made anew or started from one."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.pseudo_likelihood import head_at, load_masked
from mtlprune.encoder.sources import load_tokenizer, positions, quiet
from mtlprune.model import Batch, Decode, MultiTaskModel
from mtlprune.pretraining.config import ModelConfig, PretrainConfig
from mtlprune.sentence import Sentence

log = logging.getLogger(__name__)

TASK = "mlm"
NOT_HIDDEN = -100
"""Label of pieces that are not to be predicted, as transformers has it."""


class MaskedWords(MultiTaskModel):
    """A masked language model with one task, whose loss is that of hidden pieces: 15 % of all are chosen, of these 80 %
    shown as the mask token, 10 % as any other piece, the rest as it is (Devlin et al. 2019).

    Args:
        full_model: the model with its head, which `encoder` reads without it.

    Raises:
        EncoderError: the tokenizer has no mask token.
    """

    def __init__(self, full_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.mask_token_id is None:
            raise EncoderError(
                "expected a tokenizer with a mask token, which pretraining needs, found none; use another model"
            )
        body, limit = cast(PreTrainedModel, full_model.base_model), positions(full_model, tokenizer)
        super().__init__(Encoder(body, full_model.config, tokenizer, pooling="mean", word_dropout=0.0, limit=limit), {})
        self.full_model = full_model
        self.collator = DataCollatorForLanguageModeling(tokenizer)

    def losses(self, batch: Batch, decode: Decode | None = None) -> dict[str, Tensor]:
        """The mean loss of the hidden pieces.

        Args:
            batch: on the CPU, where pieces are hidden by torch's generator: batches that are made ahead draw nothing.
        """
        masked_ids, labels = self.hide(batch.pieces)
        hidden = int((labels != NOT_HIDDEN).sum())
        return {TASK: self.summed_loss(batch.pieces, masked_ids, labels) / max(1, hidden)}

    def hide(self, pieces: EncoderBatch) -> tuple[Tensor, Tensor]:
        """Ids with some hidden, and labels: ids of the hidden ones, `NOT_HIDDEN` elsewhere. (B, L) int64 on the CPU"""
        masked_ids, labels = self.collator.torch_mask_tokens(pieces.input_ids.clone(), pieces.source < 0)
        return masked_ids, labels

    def summed_loss(self, pieces: EncoderBatch, masked_ids: Tensor, labels: Tensor) -> Tensor:
        """Σ of −log p of the hidden pieces, in float32; 0 where there are none."""
        slots = (labels.flatten() != NOT_HIDDEN).nonzero()[:, 0]
        gold = labels.flatten()[slots]
        input_ids, mask, slots, gold = (
            part.to(self.device) for part in (masked_ids, pieces.attention_mask, slots, gold)
        )
        with head_at(self.full_model, slots, input_ids.shape):
            logits = self.full_model(input_ids=input_ids, attention_mask=mask).logits  # (M, V)
        return functional.cross_entropy(logits.float(), gold, reduction="sum")

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """The parameters, each once however many names it has: all that a file of tensors can hold."""
        return dict(self.named_parameters())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what `state_dict` gave; further names of a parameter are not missed."""
        return super().load_state_dict(state_dict, strict=False, assign=assign)


def make_tokenizer(settings: ModelConfig, train: Sequence[Sentence]) -> PreTrainedTokenizerBase:
    """The started model's, or one learnt from these sentences. Raises EncoderError."""
    if settings.start is not None:
        if (Path(settings.start) / "config.yaml").is_file():
            encoder = Path(settings.start) / "encoder"
            raise EncoderError(f"model.start: {settings.start} is a run of mtlprune; name its encoder, {encoder}")
        return load_tokenizer(settings.start)
    return _learn_pieces(train, settings.vocabulary)


def build_model(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model before its first update, on the CPU, with eager attention: the kind that shows its maps.

    Raises:
        EncoderError: there is no such model to start from, or none that predicts pieces.
    """
    settings = config.model
    with torch.random.fork_rng(), quiet():
        # The seed also decides the initial weights of a head that a started encoder lacks.
        torch.manual_seed(config.train.seed)
        if settings.start is not None:
            return _started(settings.start)
        architecture = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            intermediate_size=settings.inner or 4 * settings.hidden,
            max_position_embeddings=settings.positions,
            initializer_range=settings.init,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.attention_dropout,
            pad_token_id=tokenizer.pad_token_id,
        )
        return BertForMaskedLM._from_config(architecture, attn_implementation="eager", dtype=torch.float32)


def _started(start: str) -> PreTrainedModel:
    try:
        model, missing = load_masked(start, attn_implementation="eager")
    except EncoderError as error:
        raise EncoderError(f"model.start: {error}") from error
    body = f"{model.base_model_prefix}."
    if [name for name in missing if name.startswith(body)]:
        raise EncoderError(f"model.start: {start!r} lacks weights of the encoder, among them {missing[0]}")
    if missing:
        log.warning(
            "%s has no head that predicts pieces, so the head starts from random weights (%s)",
            start,
            ", ".join(missing[:2]),
        )
    return model


_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _learn_pieces(sentences: Iterable[Sentence], size: int) -> PreTrainedTokenizerBase:
    """An uncased BERT tokenizer whose word pieces are learnt from these words.

    Words are given in sorted order, each as often as it occurs, so that the order of sentences means nothing.

    Args:
        size: pieces at most, special tokens included; letters that occur have pieces whatever it is.
    """
    words = Counter(word for sentence in sentences for word in sentence.words)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = sorted({letter for word in words for letter in tokenizer.normalizer.normalize_str(word)} - {" "})
    # numbered beforehand: the trainer would number them in the order of a hash table, and break ties by number
    fixed = [*_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    tokenizer.train_from_iterator((word for word in sorted(words) for _ in range(words[word])), trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True)
