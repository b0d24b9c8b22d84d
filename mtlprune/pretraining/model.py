"""The masked language model of a pretraining: made anew, or started from one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import load_config, load_tokenizer, locate, quiet
from mtlprune.pretraining.config import ModelConfig, PretrainConfig
from mtlprune.pretraining.vocabulary import learn_pieces
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
    architecture = load_config(start)
    try:
        model, report = AutoModelForMaskedLM.from_pretrained(
            locate(start),
            config=architecture,
            output_loading_info=True,
            attn_implementation="eager",
            dtype=torch.float32,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EncoderError(f"model.start: {start!r} cannot be loaded as a masked language model: {reason}") from error
    body = f"{model.base_model_prefix}."
    missing = sorted(report["missing_keys"])
    if [name for name in missing if name.startswith(body)]:
        raise EncoderError(f"model.start: {start!r} lacks weights of the encoder, among them {missing[0]}")
    if missing:
        log.warning("%s has no head that predicts pieces; it begins at random (%s)", start, ", ".join(missing[:2]))
    return model
