"""Pretraining: masked-language modelling by the updates of training, watched on a log schedule."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from mtlprune.config.config import ConfigError
from mtlprune.corpora.blimp import Paradigm, read_blimp
from mtlprune.corpora.grammar import draw_minimal_pairs
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.arcs import ArcCounts, uas_of
from mtlprune.encoder.batch import EncoderBatch, by_length
from mtlprune.encoder.model import Encoder, input_embeddings
from mtlprune.encoder.observe import evaluating
from mtlprune.encoder.pieces import Pieces
from mtlprune.encoder.pseudo_likelihood import MaskedLanguageModel, check_lengths, judge
from mtlprune.encoder.sources import load_tokenizer, quiet
from mtlprune.io.files import one_writer, plain, remove, remove_halves, replacing_folder, write_sums
from mtlprune.model import Batch
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.model import NOT_HIDDEN, TASK, MaskedWords, build_model, make_tokenizer
from mtlprune.runs.folder import CURVES, RunError, RunFolder
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.statistics.twonn import likelihood
from mtlprune.training.arcs import SyntaxPenalty, arc_penalty, attention_seen, batch_arcs
from mtlprune.training.callbacks import Callback
from mtlprune.training.checkpoint import Progress, epoch_generator, finished, load_checkpoint, record_finish
from mtlprune.training.cosreg import CosReg, mean_cosine, tied_table
from mtlprune.training.hardware import configure_process, resolve_auto
from mtlprune.training.mixing import MiniBatch, batches
from mtlprune.training.setup import begin_folder, check_same
from mtlprune.training.updates import BaseTrainer, Event

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"


@dataclass(eq=False)
class Pretraining:
    """Configuration, model and data of a pretraining.

    Attributes:
        pieces, trees, lengths: of each training sentence; lengths with special tokens.
        dev: by name of corpus, sentences short enough.
        pairs: to be judged at each evaluation; none where they are not asked for.
        callbacks: penalties on attention along arcs and on the embeddings.
    """

    config: PretrainConfig
    model: MaskedWords
    pieces: list[Pieces]
    trees: list[Dependencies | None]
    lengths: list[int]
    dev: dict[str, list[Sentence]]
    pairs: list[Paradigm]
    callbacks: list[Callback]

    def batch(self, mini_batch: MiniBatch) -> Batch:
        """Join the rows of a mini-batch, on the CPU."""
        pieces = self.model.encoder.collate([self.pieces[row] for row in mini_batch.rows])
        return Batch(pieces, {}, len(mini_batch.rows), sum(pieces.sizes))


def pretrain(
    config: PretrainConfig,
    folder: RunFolder,
    *,
    watch: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Pretrain, or go on with, the run in ``folder``; returns where it stands in the end.

    Args:
        watch: called after every update and evaluation.
        stop: asked after every update and evaluation; True writes a resumable state and returns early.

    Raises:
        RunError: the folder is in use, holds another run, or the disk is full.
        CorpusError, ConfigError, EncoderError: data or model cannot be used.
        TrainingError: a loss or a gradient is no number.
    """
    corpora = _load_corpora(config)
    with folder.locked():
        config = resolve_auto(config, folder)
        if folder.has("config.yaml"):
            check_same(config, folder, fingerprint(corpora))
        if result := finished(folder):
            folder.verify()
            # The process may have been killed between writing the end and clearing up, so both are repeated here.
            with one_writer(folder.path):
                remove(folder.checkpoint_path)
                remove_halves(folder.path)
            return result
        trainer = Pretrainer(prepare(config, folder, corpora), folder)
        trainer.watch, trainer.stop = watch, stop
        return trainer.run()


class Pretrainer(BaseTrainer):
    """The updates of a pretraining, and what is measured and written between them."""

    advice = "Lower train.rate or syntax.strength, or take train.precision=fp32"

    def __init__(self, data: Pretraining, folder: RunFolder) -> None:
        config, optimizer, progress = data.config, make_optimizer(data.model, data.config), Progress()
        if folder.checkpoint_path.exists():
            progress = load_checkpoint(folder.checkpoint_path, data.model, optimizer)
            log.info("continuing after update %d", progress.step)
        progress.restore_logs(folder.path / CURVES)
        for place in (folder.path, folder.path / CHECKPOINTS):
            remove_halves(place)
        super().__init__(data.model, (TASK,), data.batch, config.train, folder, optimizer, progress)
        self.data, self.config, self.total, self.callbacks = data, config, config.train.steps, data.callbacks
        self.checkpoints, self.watched = set(config.log_steps()), set(config.watched_steps())

    def plan(self, epoch: int) -> list[list[MiniBatch]]:
        settings = self.config.train
        generator = epoch_generator(settings.seed, epoch)
        cut = batches(self.data.lengths, settings.batch_sentences, settings.batch_tokens, generator)
        return [[MiniBatch((TASK,), rows)] for rows in cut]

    def is_due(self) -> bool:
        """True after updates of the schedule that were not yet measured, and before the first."""
        return self.progress.step in self.watched and bool(self.progress.losses or CURVES not in self.progress.logs)

    def evaluation(self) -> None:
        """Measure, log, and write a model folder where the log schedule says so."""
        progress, step = self.progress, self.progress.step
        if step in self.checkpoints and (self.config.watch.models or step == self.total):
            self.write_model(step)
        losses = progress.take_losses()
        line = {"step": step, "epoch": progress.epoch, "train": losses, **measure(self.data)}
        progress.log(self.folder.path / CURVES, line)
        progress.finished = step == self.total
        if progress.finished:
            self.note()
            record_finish(self.folder, progress)
            remove(self.folder.checkpoint_path)
        else:
            self.checkpoint()
        self.watch(Event(progress, self.total, losses, line=line))

    def write_model(self, step: int) -> None:
        """A folder that transformers loads: written beside, then renamed. Raises RunError where the disk refuses."""
        final = self.folder.path / CHECKPOINTS / f"step-{step}"
        try:
            with replacing_folder(final) as staging, quiet():  # there already: the same bits, written before a kill
                self.data.model.full_model.save_pretrained(staging)
                for file in self.folder.encoder_path.iterdir():  # as they were first written: a tokenizer that was
                    if not (staging / file.name).exists():  # read from a folder writes itself a little differently
                        shutil.copyfile(file, staging / file.name)
                write_sums(staging)
        except Exception as error:  # safetensors and tokenizers tell of a full disk by classes of their own
            raise RunError(f"{final} could not be written ({' '.join(str(error).split())})") from error


def make_optimizer(model: MaskedWords, config: PretrainConfig) -> torch.optim.AdamW:
    """AdamW with decay of matrices only: not of biases, nor of what normalisations scale by."""
    rate, parameters = config.train.rate, [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) is matrix], "lr": rate, "peak": rate, "weight_decay": decay}
        for matrix, decay in ((True, config.train.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, fused=model.device.type in ("cpu", "cuda"))


def _load_corpora(config: PretrainConfig) -> dict[str, Corpus]:
    """The corpora by name of folder. Raises CorpusError, or ConfigError where two have one name."""
    corpora: dict[str, Corpus] = {}
    for path in config.data.corpora:
        name = Path(path).name
        if name in corpora:
            raise ConfigError(
                "data.corpora: expected folders of different names, by which the log distinguishes corpora, found "
                f"{name} twice; rename one"
            )
        corpora[name] = load_corpus(Path(path))
    return corpora


def fingerprint(corpora: Mapping[str, Corpus]) -> str:
    """The fingerprints of all corpora, in their order."""
    return "+".join(corpus.fingerprint for corpus in corpora.values())


def prepare(config: PretrainConfig, folder: RunFolder, corpora: Mapping[str, Corpus]) -> Pretraining:
    """Read the data, make the model, and write the folder's first files where there are none yet.

    Args:
        config: with device, precision and threads decided.
    """
    configure_process(config.train.threads)
    train = [sentence for corpus in _splits(config, corpora, "train").values() for sentence in corpus]
    dev = _splits(config, corpora, "dev")
    if is_resumed := folder.has("config.yaml"):
        folder.verify()
    tokenizer = load_tokenizer(str(folder.encoder_path)) if is_resumed else make_tokenizer(config.model, train)
    model = MaskedWords(build_model(config, tokenizer), tokenizer)
    train = _short(model.encoder, train)
    dev = {name: _short(model.encoder, sentences) for name, sentences in dev.items()}
    _check_trees(config, train, dev)
    pairs = _pairs(config, train)
    check_lengths(MaskedLanguageModel.of(model.full_model, tokenizer), pairs)
    pieces, trees = model.encoder.tokenize_sentences(train), [s.dep for s in train]
    lengths = [len(p.ids) + model.encoder.frame.size for p in pieces]
    callbacks: list[Callback] = []
    if config.syntax.strength:
        transformer = cast(PreTrainedModel, model.encoder.transformer)
        callbacks.append(SyntaxPenalty(config.syntax, transformer, model.encoder.head_hooks.kept_heads, trees))
    if config.cosreg:
        table = tied_table(model.full_model)
        callbacks.append(CosReg(config.cosreg, lambda task: table))
    run = Pretraining(config, model.to(config.train.device), pieces, trees, lengths, dev, pairs, callbacks)
    if not is_resumed:
        data = {"path": ",".join(config.data.corpora), "fingerprint": fingerprint(corpora), "name": "+".join(corpora)}
        begin_folder(config, folder, model.encoder, {"data": data, "parameters": model.sizes()})
    facts = len(train), config.train.precision, config.train.device, config.train.threads
    log.info("%d sentences; precision %s on %s, threads: %d", *facts)
    return run


def _splits(config: PretrainConfig, corpora: Mapping[str, Corpus], split_name: str) -> dict[str, list[Sentence]]:
    split = getattr(config.data, split_name)
    sentence_limit = getattr(config.data, f"{split_name}_sentences")
    for path, corpus in zip(config.data.corpora, corpora.values(), strict=True):
        if split not in corpus.splits:
            raise ConfigError(f"{path} has no split {split!r} (data.{split_name}); it has {', '.join(corpus.splits)}")
    return {name: list(corpus[split])[:sentence_limit] for name, corpus in corpora.items()}


def _pairs(config: PretrainConfig, train: Sequence[Sentence]) -> list[Paradigm]:
    source, number = config.watch.pairs, config.watch.pairs_each
    if source is None:
        return []
    if source == "grammar":
        return draw_minimal_pairs(number or 200, leave_out={" ".join(sentence.words).lower() for sentence in train})
    return read_blimp(Path(source), number)


def _short(encoder: Encoder, sentences: Sequence[Sentence]) -> list[Sentence]:
    """Those that the model sees whole."""
    pieces = encoder.tokenize_sentences(sentences)
    capacity = encoder.frame.capacity
    short_sentences = [s for s, p in zip(sentences, pieces, strict=True) if capacity is None or len(p.ids) <= capacity]
    if not short_sentences:
        raise ConfigError(f"model.positions: none of {len(sentences)} sentences fits into {encoder.limit} tokens")
    if number_left_out := len(sentences) - len(short_sentences):
        log.info(
            "%d of %d sentences have more tokens than the model reads and are left out", number_left_out, len(sentences)
        )
    return short_sentences


def _check_trees(config: PretrainConfig, train: Sequence[Sentence], dev: Mapping[str, Sequence[Sentence]]) -> None:
    if config.syntax.strength and all(sentence.dep is None for sentence in train):
        raise ConfigError(
            f"syntax.strength: the penalty needs dependency trees, and no training sentence of "
            f"{', '.join(config.data.corpora)} has one; build a corpus with the layer dep, or leave syntax out"
        )
    if all(sentence.dep is None for sentences in dev.values() for sentence in sentences):
        raise ConfigError(f"data.dev: UAS of heads needs dependency trees, and {config.data.dev} has none")


ROWS = 64
_MASKS = 15
"""Seed of the masks of dev sentences: the same at every evaluation of every run."""
CLOUD = 1000
"""Sentences at most whose vectors' dimension is estimated."""


def measure(run: Pretraining) -> dict[str, Any]:
    """All that is logged of the present weights; the model's mode and the random generators are as before afterwards.

    Returns:
        Numbers by name; None for what is not defined (a relation too rare, points that are one). UAS in percent, in
        layers × heads where it is of each head; losses in nats a hidden piece.
    """
    encoder, all_sentences = run.model.encoder, [sentence for sentences in run.dev.values() for sentence in sentences]
    with torch.random.fork_rng(), evaluating(run.model.full_model):
        line = {
            **_losses(run, all_sentences),
            **_syntax(uas_of(encoder, all_sentences)),
            **_dimensions(run, all_sentences),
        }
        if len(run.dev) > 1:
            line["corpora"] = {name: _of_corpus(run, sentences) for name, sentences in run.dev.items()}
        if run.pairs:
            judged = judge(MaskedLanguageModel.of(run.model.full_model, encoder.tokenizer), run.pairs)
            line |= {"pairs": judged.overall, "pairs_phenomena": judged.phenomena}
    line["embedding_cosine"] = float(mean_cosine(input_embeddings(run.model.full_model).weight.detach()))
    return line


def _of_corpus(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    numbers = _losses(run, sentences)
    if any(sentence.dep is not None for sentence in sentences):
        uas = _syntax(uas_of(run.model.encoder, sentences))
        numbers |= {key: value for key, value in uas.items() if key != "heads"}
    return numbers


def _losses(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Mean loss a hidden piece, and mean γ (largest weight of any head) over directed arcs."""
    torch.manual_seed(_MASKS)
    model, total, hidden, penalty, number = run.model, 0.0, 0, 0.0, 0
    transformer = cast(PreTrainedModel, model.encoder.transformer)
    for batch, part in _batches(run, sentences):
        masked_ids, labels = model.hide(batch)
        with attention_seen(transformer) as maps:
            total += float(model.summed_loss(batch, masked_ids, labels))
        arcs = batch_arcs(batch, [sentence.dep for sentence in part], model.device)
        penalty += float(arc_penalty(maps, arcs))
        hidden += int((labels != NOT_HIDDEN).sum())
        number += arcs.number
    return {"loss": total / hidden if hidden else None, "arc_weight": penalty / number if number else None}


def _syntax(counts: ArcCounts) -> dict[str, Any]:
    """Both numbers of the model level, on all and held out; the companion that knows no threshold; each head."""
    single, best = counts.best(), counts.mean_best(counts.frequent_relations())
    weight = counts.best(weight=True)
    numbers = {
        "uas_single": single.value,
        "uas_single_held_out": single.held_out,
        "uas_best": best.value,
        "uas_best_held_out": best.held_out,
        "weight": weight.value,
        "offset_single": counts.best_offset().value,
        "offset_best": counts.mean_best_offset(counts.frequent_relations())[0],
        "heads": counts.by_head(),
    }
    return dict(plain(numbers))


def _dimensions(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """TwoNN (maximum likelihood) of the last layer's first token and of its mean word piece, one a sentence."""
    unique_sentences = list({sentence.words: sentence for sentence in sentences}.values())[:CLOUD]
    first, mean = [], []
    for batch, _ in _batches(run, unique_sentences):
        device_batch = batch.to(run.model.device)
        last = run.model.full_model.base_model(
            device_batch.input_ids, attention_mask=device_batch.attention_mask
        ).last_hidden_state
        is_real_token = (device_batch.source >= 0).to(last.dtype)[..., None]  # (B, L, 1)
        first.append(last[:, 0].double().cpu().numpy())
        mean.append(((last * is_real_token).sum(1) / is_real_token.sum(1)).double().cpu().numpy())
    return {
        "twonn_cls": plain(likelihood(np.concatenate(first))),  # a model yet untrained may say the same of all
        "twonn_mean": plain(likelihood(np.concatenate(mean))),
    }


def _batches(run: Pretraining, sentences: Sequence[Sentence]) -> Iterator[tuple[EncoderBatch, list[Sentence]]]:
    """Batches with their sentences, of similar length, longest first; on the CPU."""
    encoder = run.model.encoder
    pieces = encoder.tokenize_sentences(sentences)
    for rows in by_length([len(p.ids) for p in pieces], lambda longest: ROWS):
        yield encoder.collate([pieces[row] for row in rows]), [sentences[row] for row in rows]
