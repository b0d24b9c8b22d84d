"""The masked language model of a pretraining: made anew, or started from one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mtlprune.analyses.syntax.pseudo_likelihood import head_at, load_masked
from mtlprune.config.config import ConfigError
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import load_tokenizer, quiet
from mtlprune.pretraining.config import MaskConfig, ModelConfig, PretrainConfig
from mtlprune.sentence import Sentence

log = logging.getLogger(__name__)


class Weights(nn.Module):
    """The parameters of a model, each once however many names it has: what a file of tensors can hold.

    Loading a state into it loads the model, since the tensors are the model's own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, parameter in model.named_parameters():
            self.register_parameter(name.replace(".", "/"), cast(nn.Parameter, parameter))


def make_tokenizer(settings: ModelConfig, train: Sequence[Sentence]) -> PreTrainedTokenizerBase:
    """The started model's, another encoder's, or one learnt from these sentences. Raises EncoderError."""
    if settings.start is not None:
        if (Path(settings.start) / "config.yaml").is_file():
            encoder = Path(settings.start) / "encoder"
            raise EncoderError(f"model.start: {settings.start} is a run of mtlprune; name its encoder, {encoder}")
        return load_tokenizer(settings.start)
    if settings.tokenizer != "learn":
        return load_tokenizer(settings.tokenizer)
    return learn_pieces(train, settings.vocabulary)


def build_model(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model before its first update, on the CPU, with eager attention: the kind that shows its maps.

    Raises:
        EncoderError: there is no such model to start from, or none that predicts pieces.
    """
    settings = config.model
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(config.train.seed)  # of a head that a started encoder lacks, too
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
        log.warning("%s has no head that predicts pieces; it begins at random (%s)", start, ", ".join(missing[:2]))
    return model


# -- A small vocabulary of word pieces, learnt from a corpus --


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def learn_pieces(sentences: Iterable[Sentence], size: int) -> PreTrainedTokenizerBase:
    """An uncased BERT tokenizer whose word pieces are learnt from these words.

    Words are given in sorted order, each as often as it occurs, so that the order of sentences means nothing.

    Args:
        size: pieces at most, special tokens included; letters that occur have pieces whatever it is.
    """
    words = Counter(word for sentence in sentences for word in sentence.words)
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = sorted({letter for word in words for letter in made.normalizer.normalize_str(word)} - {" "})
    # numbered beforehand: the trainer would number them in the order of a hash table, and break ties by number
    fixed = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    made.train_from_iterator((word for word in sorted(words) for _ in range(words[word])), trainer)
    return BertTokenizer(vocab=made.get_vocab(), do_lower_case=True)


# -- Tied embeddings, which CosReg is put on (Gao et al. 2019) --


def tied_embeddings(model: PreTrainedModel) -> Tensor:
    """(V, H), the table that reads pieces and predicts them.

    Raises:
        ConfigError: they are two tables.
    """
    head = model.get_output_embeddings()
    table = model.get_input_embeddings().weight
    if head is None or head.weight is not table:
        raise ConfigError(
            "cosreg: the theory is about embeddings that are read and predicted with one table, but this model "
            "predicts with another one; leave cosreg out"
        )
    return table


# -- Which pieces are to be predicted, and what is shown in their place (Devlin et al. 2019) --


class Masked(NamedTuple):
    """A batch with pieces hidden.

    Attributes:
        shown: (B, L) int64.
        places: (M,) int64, slots (row · L + column) of the pieces to be predicted.
        gold: (M,) int64.
    """

    shown: Tensor
    places: Tensor
    gold: Tensor


def mask(batch: EncoderBatch, settings: MaskConfig, mask_id: int, plain: Tensor, generator: torch.Generator) -> Masked:
    """Choose pieces one by one; special tokens and padding are never chosen.

    Args:
        batch: on the CPU.
        mask_id: of the mask token.
        plain: ids that may be shown as random ones.
        generator: of the CPU; all that is random is drawn from it.
    """
    ids = batch.input_ids
    chance, how = (torch.rand(ids.shape, generator=generator) for _ in range(2))
    others = plain[torch.randint(len(plain), ids.shape, generator=generator)]
    chosen = (chance < settings.share) & (batch.source >= 0)
    shown = ids.masked_fill(chosen & (how < settings.hidden), mask_id)
    swapped = chosen & (how >= settings.hidden) & (how < settings.hidden + settings.random)
    shown = torch.where(swapped, others, shown)
    places = chosen.flatten().nonzero()[:, 0]
    return Masked(shown, places, ids.flatten()[places])


def prediction_loss(model: PreTrainedModel, masked: Masked, there: Tensor) -> Tensor:
    """Σ of −log p of the hidden pieces, in float32; 0 where there are none.

    Args:
        masked: on the model's device.
        there: (B, L), 1 at tokens, 0 at padding.
    """
    with head_at(model, masked.places, masked.shown.shape):
        logits = model(input_ids=masked.shown, attention_mask=there).logits  # (M, V)
    return functional.cross_entropy(logits.float(), masked.gold, reduction="sum")
