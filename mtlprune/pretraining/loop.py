"""The training loop of pretraining: masked-language modelling, with measurements on a log schedule."""

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
from mtlprune.io.files import one_writer, plain, remove, remove_temporary_paths, replacing_folder, write_sums
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
    """Configuration, model and data of a pretraining run.

    Attributes:
        config: the settings.
        model: the masked language model.
        pieces: sub-words of each training sentence.
        trees: dependency tree of each training sentence, or None if the sentence is not annotated.
        lengths: number of sub-words of each training sentence, including special tokens.
        dev: dev sentences that fit into the model, by name of corpus.
        pairs: minimal pairs that are scored at each evaluation; empty without ``watch.pairs``.
        callbacks: the penalties on attention along dependency arcs and on the embeddings.
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
        """Build the batch, on the CPU, from the sentences of a mini-batch."""
        pieces = self.model.encoder.collate([self.pieces[row] for row in mini_batch.rows])
        return Batch(pieces, {}, len(mini_batch.rows), sum(pieces.sizes))


def pretrain(
    config: PretrainConfig,
    folder: RunFolder,
    *,
    watch: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Start or resume the pretraining run in ``folder`` and train until it is finished or ``stop`` returns True.

    Args:
        config: the settings.
        folder: the folder of the run, which may be new.
        watch: called after every update and evaluation.
        stop: called after every update and evaluation. If it returns True, the function writes a checkpoint from which
            the run can be resumed, and returns.

    Returns:
        The progress of the run at the end.

    Raises:
        RunError: the folder is in use or contains another run, or the disk is full.
        CorpusError, ConfigError, EncoderError: if data or model cannot be used.
        TrainingError: a loss or a gradient is not finite.
    """
    corpora = _load_corpora(config)
    with folder.locked():
        config = resolve_auto(config, folder)
        if folder.has("config.yaml"):
            check_same(config, folder, _fingerprint(corpora))
        if result := finished(folder):
            folder.verify()
            # The process may have been killed after it recorded the end and before it deleted temporary files, so the
            # deletion is repeated here.
            with one_writer(folder.path):
                remove(folder.checkpoint_path)
                remove_temporary_paths(folder.path)
            return result
        trainer = Pretrainer(prepare(config, folder, corpora), folder)
        trainer.watch, trainer.stop = watch, stop
        return trainer.run()


class Pretrainer(BaseTrainer):
    """The trainer of a pretraining run: it plans the updates, measures the model between them, and writes the logs."""

    advice = "Lower train.rate or syntax.strength, or take train.precision=fp32"

    def __init__(self, data: Pretraining, folder: RunFolder) -> None:
        config, optimizer, progress = data.config, _make_optimizer(data.model, data.config), Progress()
        if folder.checkpoint_path.exists():
            progress = load_checkpoint(folder.checkpoint_path, data.model, optimizer)
            log.info("continuing after update %d", progress.step)
        progress.restore_logs(folder.path / CURVES)
        for path in (folder.path, folder.path / CHECKPOINTS):
            remove_temporary_paths(path)
        super().__init__(data.model, (TASK,), data.batch, config.train, folder, optimizer, progress)
        self.data, self.config, self.total, self.callbacks = data, config, config.train.steps, data.callbacks
        self.checkpoints, self.watched = set(config.log_steps()), set(config.watched_steps())

    def plan(self, epoch: int) -> list[list[MiniBatch]]:
        settings = self.config.train
        generator = epoch_generator(settings.seed, epoch)
        rows_of_batches = batches(self.data.lengths, settings.batch_sentences, settings.batch_tokens, generator)
        return [[MiniBatch((TASK,), rows)] for rows in rows_of_batches]

    def is_due(self) -> bool:
        """Return whether an evaluation is due that has not been made yet."""
        return self.progress.step in self.watched and bool(self.progress.losses or CURVES not in self.progress.logs)

    def evaluation(self) -> None:
        """Write a model folder on the log schedule, measure the model, log the results, and write a checkpoint.

        After the last update, the end of the run is recorded and its checkpoint is deleted instead.
        """
        progress, step = self.progress, self.progress.step
        if step in self.checkpoints and (self.config.watch.models or step == self.total):
            self.write_model(step)
        losses = progress.take_losses()
        line = {"step": step, "epoch": progress.epoch, "train": losses, **_measure(self.data)}
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
        """Write the model to a folder that transformers can load. Raises RunError if writing fails."""
        final = self.folder.path / CHECKPOINTS / f"step-{step}"
        try:
            # If the folder already exists, an earlier process wrote the same bytes before it was killed.
            with replacing_folder(final) as staging, quiet():
                self.data.model.full_model.save_pretrained(staging)
                # The files of the tokenizer are copied instead of saved again, because a tokenizer that was loaded from
                # a folder writes slightly different files.
                for file in self.folder.encoder_path.iterdir():
                    if not (staging / file.name).exists():
                        shutil.copyfile(file, staging / file.name)
                write_sums(staging)
        except Exception as error:  # safetensors and tokenizers raise their own exception classes if the disk is full
            raise RunError(f"{final} could not be written ({' '.join(str(error).split())})") from error


def _make_optimizer(model: MaskedWords, config: PretrainConfig) -> torch.optim.AdamW:
    """Build AdamW with weight decay for matrices only, not for biases and the scales of normalisation layers."""
    rate, parameters = config.train.rate, [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) is matrix], "lr": rate, "peak": rate, "weight_decay": decay}
        for matrix, decay in ((True, config.train.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, fused=model.device.type in ("cpu", "cuda"))


def _load_corpora(config: PretrainConfig) -> dict[str, Corpus]:
    """Load the corpora by name of folder. Raises CorpusError, or ConfigError if two folders have the same name."""
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


def _fingerprint(corpora: Mapping[str, Corpus]) -> str:
    """Return the fingerprints of all corpora in their order, joined by ``+``."""
    return "+".join(corpus.fingerprint for corpus in corpora.values())


def prepare(config: PretrainConfig, folder: RunFolder, corpora: Mapping[str, Corpus]) -> Pretraining:
    """Read the data, build the model, and write the first files of the folder unless the run is resumed.

    Args:
        config: the settings, in which device, precision and threads are no longer "auto" or None.
        folder: the folder of the run.
        corpora: the corpora by name of folder.
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
        data = {"path": ",".join(config.data.corpora), "fingerprint": _fingerprint(corpora), "name": "+".join(corpora)}
        begin_folder(config, folder, model.encoder, {"data": data, "parameters": model.sizes()})
    settings = config.train
    message = "%d sentences; precision %s on %s, threads: %d"
    log.info(message, len(train), settings.precision, settings.device, settings.threads)
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
    """Return the sentences that fit into the model. Raises ConfigError if there are none."""
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


_BATCH_ROWS = 64
"""Sentences in a batch of an evaluation."""
_MASKS = 15
"""Seed of the masks in dev sentences, which are the same at every evaluation of every run."""
_MAX_VECTORS = 1000
"""Largest number of sentences from whose vectors the intrinsic dimension is estimated."""


def _measure(run: Pretraining) -> dict[str, Any]:
    """Compute the measurements of the present weights that an evaluation logs.

    The function does not change the mode of the model or the state of the random generators.

    Returns:
        Numbers by name, or None for undefined numbers (a relation that is too rare, or identical points). UAS is in
        percent; the entry ``heads`` holds the UAS of each head, (L layers, A heads). Losses are in nats per masked
        sub-word.
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
    """Compute the mean loss per masked sub-word, and the mean of γ over directed arcs.

    γ is the largest attention weight of any head on an arc.
    """
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
    """Convert arc counts to the logged numbers.

    These are UAS of the best head and UAS with the best head of each relation (each also held out), the largest mean
    attention weight of a head on arcs, UAS of the best fixed offsets as baselines, and UAS of each head.
    """
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
    """Estimate the intrinsic dimension (TwoNN) of sentence vectors from the last layer.

    The vector of a sentence is its first token (``twonn_cls``) or the mean of its sub-words (``twonn_mean``).
    """
    unique_sentences = list({sentence.words: sentence for sentence in sentences}.values())[:_MAX_VECTORS]
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
        # The dimension may be undefined, because an untrained model may give all sentences the same vector.
        "twonn_cls": plain(likelihood(np.concatenate(first))),
        "twonn_mean": plain(likelihood(np.concatenate(mean))),
    }


def _batches(run: Pretraining, sentences: Sequence[Sentence]) -> Iterator[tuple[EncoderBatch, list[Sentence]]]:
    """Yield batches of sentences of similar length on the CPU, longest first, together with the sentences."""
    encoder = run.model.encoder
    pieces = encoder.tokenize_sentences(sentences)
    for rows in by_length([len(p.ids) for p in pieces], lambda longest: _BATCH_ROWS):
        yield encoder.collate([pieces[row] for row in rows]), [sentences[row] for row in rows]
