"""From a configuration and a folder to a masked language model and data that are ready to pretrain, and what it is to
predict; everything that can fail early."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from mtlprune.analyses.syntax.pseudo_likelihood import head_at, load_masked
from mtlprune.config.blocks import TrainConfig
from mtlprune.config.config import ConfigError
from mtlprune.corpora.blimp import Paradigm, read_blimp
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.encoder.sources import load_tokenizer, positions, quiet
from mtlprune.pretraining.config import MaskConfig, ModelConfig, PretrainConfig
from mtlprune.runs.folder import RunFolder
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

    @cached_property
    def plain_ids(self) -> Tensor:
        """Ids of pieces that are no special tokens."""
        special = set(self.encoder.tokenizer.all_special_ids)
        return torch.tensor([i for i in range(len(self.encoder.tokenizer)) if i not in special])

    def masked(self, batch: EncoderBatch, generator: torch.Generator) -> "Masked":
        """A batch of the CPU with pieces hidden (`mask`), on the model's device."""
        mask_id = int(self.encoder.tokenizer.mask_token_id)
        return Masked(
            *(part.to(self.device) for part in mask(batch, self.config.mask, mask_id, self.plain_ids, generator))
        )


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


# -- the model: made anew, or started from one --


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
