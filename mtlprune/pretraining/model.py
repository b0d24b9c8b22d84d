"""The masked language model of pretraining, with random or given initial weights, in the form of a training task."""

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
"""Name of the only task of a pretraining run."""
NOT_HIDDEN = -100
"""Label of sub-words that are not to be predicted, as in transformers."""


class MaskedWords(MultiTaskModel):
    """A masked language model as a multi-task model with a single task (Devlin et al. 2019).

    The task is to predict 15 % of the sub-words. Of these, 80 % are replaced by the mask token and 10 % by a random
    sub-word, and the rest are not changed.

    Args:
        full_model: the model with its prediction head. The attribute ``encoder`` is the model without this head.
        tokenizer: the tokenizer of the model.

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
        """Compute the mean loss of the masked sub-words, in nats.

        Args:
            batch: a batch on the CPU. The masks are drawn here by torch's generator, so that batches can be prepared in
                advance without drawing random numbers.
            decode: not used.
        """
        masked_ids, labels = self.hide(batch.pieces)
        hidden = int((labels != NOT_HIDDEN).sum())
        return {TASK: self.summed_loss(batch.pieces, masked_ids, labels) / max(1, hidden)}

    def hide(self, pieces: EncoderBatch) -> tuple[Tensor, Tensor]:
        """Mask sub-words at random.

        Returns:
            The masked input ids, and the labels, which are the original ids of the sub-words to predict and
            ``NOT_HIDDEN`` elsewhere; (R, L) int64 each, on the CPU.
        """
        masked_ids, labels = self.collator.torch_mask_tokens(pieces.input_ids.clone(), pieces.source < 0)
        return masked_ids, labels

    def summed_loss(self, pieces: EncoderBatch, masked_ids: Tensor, labels: Tensor) -> Tensor:
        """Compute the sum of −log p over the masked sub-words, in float32, or 0 if there are none."""
        slots = (labels.flatten() != NOT_HIDDEN).nonzero()[:, 0]
        gold = labels.flatten()[slots]
        input_ids, mask, slots, gold = (
            part.to(self.device) for part in (masked_ids, pieces.attention_mask, slots, gold)
        )
        with head_at(self.full_model, slots, input_ids.shape):
            logits = self.full_model(input_ids=input_ids, attention_mask=mask).logits  # (M, V)
        return functional.cross_entropy(logits.float(), gold, reduction="sum")

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Return every parameter once, under one of its names, because a safetensors file cannot hold tied weights."""
        return dict(self.named_parameters())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what ``state_dict`` returned; further names of tied parameters may be missing."""
        return super().load_state_dict(state_dict, strict=False, assign=assign)


def make_tokenizer(settings: ModelConfig, train: Sequence[Sentence]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the model in ``model.start``, or learn one from the training sentences.

    Raises:
        EncoderError: the model has no tokenizer that can be used, or ``model.start`` names a run of mtlprune.
    """
    if settings.start is not None:
        if (Path(settings.start) / "config.yaml").is_file():
            encoder = Path(settings.start) / "encoder"
            raise EncoderError(f"model.start: {settings.start} is a run of mtlprune; name its encoder, {encoder}")
        return load_tokenizer(settings.start)
    return _learn_pieces(train, settings.vocabulary)


def build_model(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Build the model before its first update, on the CPU.

    It uses eager attention, because the other implementations do not return attention weights.

    Raises:
        EncoderError: the model in ``model.start`` does not exist or cannot predict sub-words.
    """
    settings = config.model
    with torch.random.fork_rng(), quiet():
        # The seed also determines the initial weights of the prediction head if the model in `model.start` has none.
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
    """Learn the word pieces of an uncased BERT tokenizer from the words of these sentences.

    The words are sorted, and repeated as often as they occur, so that the order of sentences has no influence.

    Args:
        sentences: the training sentences.
        size: largest number of word pieces, including special tokens. All letters that occur get word pieces, even if
            there are more of them.
    """
    words = Counter(word for sentence in sentences for word in sentence.words)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = sorted({letter for word in words for letter in tokenizer.normalizer.normalize_str(word)} - {" "})
    # The letters are passed as special tokens, which are numbered in this order. Otherwise the trainer would number
    # them in the order of a hash table, and break ties by these numbers, so that results would vary.
    fixed = [*_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    tokenizer.train_from_iterator((word for word in sorted(words) for _ in range(words[word])), trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True)
