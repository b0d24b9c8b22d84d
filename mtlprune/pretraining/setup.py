"""From a configuration and a folder to a model and data that are ready to pretrain; everything that can fail early."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import PreTrainedModel

from mtlprune.blocks import TrainConfig
from mtlprune.config.config import ConfigError
from mtlprune.corpora.blimp import Paradigm, read_blimp
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.encoder.sources import load_tokenizer, positions
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.model import build_model, make_tokenizer, tied_embeddings
from mtlprune.runs import RunFolder
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.training.arcs import SyntaxPenalty
from mtlprune.training.setup import provenance, save_encoder_files, settle

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Pretraining:
    """What pretraining needs, in memory.

    Attributes:
        model: masked language model on its device, eager attention.
        encoder: the same transformer as analyses read it.
        pieces, trees, lengths: of each training sentence; lengths with special tokens.
        penalty: the penalty on attention along arcs.
        dev: by name of corpus, sentences short enough.
        paradigms: of BLiMP; none where it is not asked for.
    """

    config: PretrainConfig
    model: PreTrainedModel
    encoder: Encoder
    pieces: list[Pieces]
    trees: list[Dependencies | None]
    lengths: list[int]
    penalty: SyntaxPenalty
    dev: dict[str, list[Sentence]]
    paradigms: list[Paradigm]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def plain_ids(self) -> torch.Tensor:
        """Ids of pieces that are no special tokens."""
        special = set(self.encoder.tokenizer.all_special_ids)
        return torch.tensor([i for i in range(len(self.encoder.tokenizer)) if i not in special])


def load_corpora(config: PretrainConfig) -> dict[str, Corpus]:
    """By name of folder. Raises CorpusError, or ConfigError where two have one name."""
    found: dict[str, Corpus] = {}
    for path in config.data.corpora:
        name = Path(path).name
        if name in found:
            raise ConfigError(f"data.corpora: two folders are named {name}; the log tells corpora apart by that name")
        found[name] = load_corpus(Path(path))
    return found


def fingerprint(corpora: Mapping[str, Corpus]) -> str:
    """Of all corpora together, in their order."""
    return "+".join(corpus.fingerprint for corpus in corpora.values())


def prepare(config: PretrainConfig, folder: RunFolder, corpora: Mapping[str, Corpus]) -> Pretraining:
    """Read the data, make the model, and write the folder's first files where there are none yet.

    Args:
        config: with device, precision and threads decided.

    Raises:
        ConfigError, CorpusError, EncoderError: what does not fit, in words.
        RunError: the disk is full.
    """
    settle(TrainConfig(threads=config.train.threads))
    train = [sentence for corpus in _splits(config, corpora, "train").values() for sentence in corpus]
    dev = _splits(config, corpora, "dev")
    watch = config.watch
    paradigms = read_blimp(Path(watch.blimp), watch.blimp_pairs) if watch.blimp is not None else []
    begun = folder.config_path.exists()
    if begun:
        folder.verify()
    tokenizer = load_tokenizer(str(folder.encoder_path)) if begun else make_tokenizer(config.model, train)
    model = build_model(config, tokenizer)
    if config.cosreg:
        tied_embeddings(model)
    limit = positions(model, tokenizer)
    body = cast(PreTrainedModel, model.base_model)
    encoder = Encoder(body, model.config, tokenizer, pooling="mean", word_dropout=0.0, limit=limit)
    if tokenizer.mask_token_id is None:
        raise EncoderError("pretraining hides pieces behind a mask token, and this tokenizer has none")
    train = _short(encoder, train)
    dev = {name: _short(encoder, sentences) for name, sentences in dev.items()}
    _check_trees(config, train, dev)
    model.to(config.train.device)  # type: ignore[arg-type]  # transformers annotates a device only
    pieces = encoder.tokenize_all([sentence.words for sentence in train])
    lengths = [len(p.ids) + encoder.frame.size for p in pieces]
    penalty = SyntaxPenalty(config.syntax, model, encoder.places.kept)
    run = Pretraining(config, model, encoder, pieces, [s.dep for s in train], lengths, penalty, dev, paradigms)
    if not begun:
        _write_beginning(run, folder, corpora)
    told = len(train), config.train.precision, config.train.device, config.train.threads
    log.info("%d sentences; precision %s on %s, threads: %d", *told)
    return run


def _splits(config: PretrainConfig, corpora: Mapping[str, Corpus], which: str) -> dict[str, list[Sentence]]:
    split = getattr(config.data, which)
    most = getattr(config.data, f"{which}_sentences")
    for path, corpus in zip(config.data.corpora, corpora.values(), strict=True):
        if split not in corpus.splits:
            raise ConfigError(f"{path} has no split {split!r} (data.{which}); it has {', '.join(corpus.splits)}")
    return {name: list(corpus[split])[:most] for name, corpus in corpora.items()}


def _short(encoder: Encoder, sentences: Sequence[Sentence]) -> list[Sentence]:
    """Those that the model sees whole."""
    pieces = encoder.tokenize_all([sentence.words for sentence in sentences])
    capacity = encoder.frame.capacity
    kept = [s for s, p in zip(sentences, pieces, strict=True) if capacity is None or len(p.ids) <= capacity]
    if not kept:
        raise ConfigError(f"model.positions: none of {len(sentences)} sentences fits into {encoder.limit} tokens")
    if gone := len(sentences) - len(kept):
        log.info("%d of %d sentences are longer than the model sees and left out", gone, len(sentences))
    return kept


def _check_trees(config: PretrainConfig, train: Sequence[Sentence], dev: Mapping[str, Sequence[Sentence]]) -> None:
    if config.syntax.strength and all(sentence.dep is None for sentence in train):
        raise ConfigError(
            f"syntax.strength: the penalty needs dependency trees, and no training sentence of "
            f"{', '.join(config.data.corpora)} has one; build a corpus with the layer dep, or leave syntax out"
        )
    if all(sentence.dep is None for sentences in dev.values() for sentence in sentences):
        raise ConfigError(f"data.dev: UAS of heads needs dependency trees, and {config.data.dev} has none")


def _write_beginning(run: Pretraining, folder: RunFolder, corpora: Mapping[str, Corpus]) -> None:
    """The files a run begins with; config.yaml comes last, so that its presence means that all are there."""
    config = run.config
    save_encoder_files(run.encoder, folder.encoder_path)
    folder.write_json(
        "manifest.json",
        {
            **provenance(config.train.seed),
            "data": {
                "path": ",".join(config.data.corpora),
                "fingerprint": fingerprint(corpora),
                "name": "+".join(corpora),
                "sentences": len(run.pieces),
                "pieces": int(np.sum([len(p.ids) for p in run.pieces])),
                "arcs": sum(sum(head > 0 for head in tree.heads) for tree in run.trees if tree is not None),
            },
            "files": folder.hashes(),
            "parameters": sum(p.numel() for p in run.model.parameters()),
        },
    )
    folder.write_config(config.model_dump(mode="json"))
