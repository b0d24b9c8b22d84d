"""The pretraining loop.

before the first update: measure; checkpoint
for each update:                batch from (seed, epoch); masks and dropout from (seed, step)
    loss of hidden pieces + λ · attention along arcs (until its release) + γ · CosReg; backward; clip; step
    measure and write a model folder after updates of the log schedule
"""

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel, evaluating, judge
from mtlprune.encoder.arcs import ArcCounts, uas_of
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import input_embeddings
from mtlprune.encoder.sources import quiet
from mtlprune.io.files import one_writer, plain, remove, remove_halves, replacing_folder, write_sums
from mtlprune.model import autocast
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.setup import (
    Pretraining,
    Weights,
    fingerprint,
    load_corpora,
    prediction_loss,
    prepare,
    tied_embeddings,
)
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.twonn import likelihood
from mtlprune.training import hardware
from mtlprune.training.arcs import arc_penalty, attention_seen, batch_arcs
from mtlprune.training.checkpoint import (
    Progress,
    epoch_generator,
    finished,
    load_checkpoint,
    note_end,
    save_checkpoint,
    seed_step,
)
from mtlprune.training.loop import TrainingError
from mtlprune.training.mixing import batches
from mtlprune.training.optimisation import mean_cosine, schedule
from mtlprune.training.setup import check_same, decide

log = logging.getLogger(__name__)

CURVES = "curves.jsonl"
CHECKPOINTS = "checkpoints"
_STREAM = ("pretraining",)
"""What tells this training's random numbers from those of other kinds with the same seed."""


@dataclass(frozen=True)
class PretrainingEvent:
    """What a watcher is told after each update, and of each evaluation.

    Attributes:
        losses: of the update, by name: mlm, and syntax and cosreg where they are on, without their factors.
        line: at an evaluation, what was logged.
    """

    progress: Progress
    total: int
    losses: dict[str, float]
    sentences: int
    line: dict[str, Any] | None = None


def pretrain(
    config: PretrainConfig,
    folder: RunFolder,
    *,
    watch: Callable[[PretrainingEvent], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Pretrain, or go on with, the run in ``folder``; returns where it stands in the end.

    Args:
        watch: called after every update and evaluation.
        stop: asked after every update; True writes a resumable state and returns early.

    Raises:
        RunError: the folder is in use, holds another run, or the disk is full.
        CorpusError, ConfigError, EncoderError: data or model cannot be used.
        TrainingError: a loss or a gradient is no number.
    """
    corpora = load_corpora(config)
    with folder.locked():
        config = decide(config, folder)
        if folder.config_path.exists():
            check_same(config, folder, fingerprint(corpora))
        else:
            folder.check_ours()
        if done := finished(folder):
            folder.verify()
            with one_writer(folder.path):  # in case the end was cut short just here
                remove(folder.checkpoint_path)
                remove_halves(folder.path)
            return done
        trainer = _Pretrainer(prepare(config, folder, corpora), folder)
        trainer.watch, trainer.stop = watch, stop
        return trainer.run()


def make_optimizer(model: nn.Module, config: PretrainConfig) -> torch.optim.AdamW:
    """AdamW with decay of matrices only: not of biases, nor of what normalisations scale by."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) is matrix], "lr": config.train.rate, "weight_decay": decay}
        for matrix, decay in ((True, config.train.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, fused=config.train.device.split(":")[0] in ("cpu", "cuda"))


class _Pretrainer:
    def __init__(self, data: Pretraining, folder: RunFolder) -> None:
        self.data, self.folder, self.config = data, folder, data.config
        self.model, self.encoder = data.model, data.encoder
        self.watch: Callable[[PretrainingEvent], None] = lambda event: None
        self.stop: Callable[[], bool] = lambda: False
        self.optimizer = make_optimizer(self.model, self.config)
        self.weights = Weights(self.model)
        self.penalty = data.penalty
        self.embeddings = tied_embeddings(self.model) if self.config.cosreg else None
        self.precision = hardware.dtype(self.config.train.precision)
        self.total = self.config.train.steps
        self.checkpoints, self.watched = set(self.config.log_steps()), set(self.config.watched_steps())
        self.progress = self.take_up()
        self.started_at = self.saved_at = time.monotonic()
        self.seconds_before = self.progress.seconds

    def take_up(self) -> Progress:
        """Go on from the resumable state, if there is one; what was logged after it is forgotten."""
        progress = Progress()
        if self.folder.checkpoint_path.exists():
            progress = load_checkpoint(self.folder.checkpoint_path, self.weights, self.optimizer)
            log.info("going on after update %d", progress.step)
        progress.restore_logs(self.folder.path / CURVES)
        for place in (self.folder.path, self.folder.path / CHECKPOINTS):
            remove_halves(place)
        return progress

    def run(self) -> Progress:
        progress, losses = self.progress, dict[str, float]()
        if not progress.step:
            self.evaluate(losses)
        while not progress.finished:
            plan = self.plan(progress.epoch)
            for rows in plan[progress.update :]:
                losses = self.update(rows)
                progress.update += 1
                progress.step += 1
                if progress.update == len(plan):
                    progress.epoch, progress.update = progress.epoch + 1, 0
                self.watch(PretrainingEvent(progress, self.total, losses, len(rows)))
                if progress.step in self.watched:
                    self.evaluate(losses)
                if progress.step == self.total:
                    return self.finish()
                stopped = self.stop()
                if stopped or time.monotonic() - self.saved_at > 60 * self.config.train.checkpoint_minutes:
                    self.save()
                if stopped:
                    return progress
        return progress

    def plan(self, epoch: int) -> list[list[int]]:
        settings = self.config.train
        generator = epoch_generator(settings.seed, epoch)
        return batches(self.data.lengths, settings.batch_sentences, settings.batch_tokens, generator)

    def update(self, rows: list[int]) -> dict[str, float]:
        """One step of the optimizer; returns the losses by name."""
        config, step = self.config, self.progress.step
        seed_step(config.train.seed, step, _STREAM)
        rate = config.train.rate * schedule(step, self.total, config.train.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        loss, values = self.loss(rows)
        wrong = [f"the loss {name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if not wrong:
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.train.clip)
            wrong = [] if math.isfinite(norm) else [f"the gradient is {float(norm)}"]
        if wrong:
            raise TrainingError(
                f"{self.folder.path}: at update {step}, {wrong[0]}; lower train.rate or syntax.strength, or take "
                "train.precision=fp32; the last resumable state, if one was written, is kept"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for name, value in values.items():
            self.progress.add_losses(name, value)
        return values

    def loss(self, rows: list[int]) -> tuple[Tensor, dict[str, float]]:
        """Of one batch, with its penalties; and each by name, without factors."""
        data, device, step = self.data, self.data.device, self.progress.step
        batch = self.encoder.collate([data.pieces[row] for row in rows])
        masked = data.masked(batch, torch.default_generator)
        penalised = self.penalty.active(step)
        with contextlib.ExitStack() as held:
            maps = held.enter_context(attention_seen(self.model)) if penalised else []
            with autocast(device, self.precision):
                total = prediction_loss(self.model, masked, batch.attention_mask.to(device))
        loss = total / max(1, len(masked.gold))
        values = {"mlm": float(loss.detach())}
        if penalised:
            arcs = batch_arcs(batch, [data.trees[row] for row in rows]).to(device)
            term, values["syntax"] = self.penalty(maps, arcs)
            loss = loss + term
        if self.embeddings is not None:
            cosine = mean_cosine(self.embeddings)
            values["cosreg"] = float(cosine.detach())
            loss = loss + self.config.cosreg * cosine
        return loss, values

    def evaluate(self, losses: dict[str, float]) -> None:
        """Measure, log, and write a model folder where the log schedule says so."""
        progress, step = self.progress, self.progress.step
        if step in self.checkpoints and (self.config.watch.models or step == self.total):
            self.write_model(step)
        line = {"step": step, "epoch": progress.epoch, "train": progress.take_losses(), **measure(self.data)}
        progress.log(self.folder.path / CURVES, line)
        self.watch(PretrainingEvent(progress, self.total, losses, 0, line))

    def write_model(self, step: int) -> None:
        """A folder that transformers loads: written beside, then renamed. Raises RunError where the disk refuses."""
        final = self.folder.path / CHECKPOINTS / f"step-{step}"
        try:
            with replacing_folder(final) as beside, quiet():  # there already: the same bits, written before a kill
                self.model.save_pretrained(beside)
                for file in self.folder.encoder_path.iterdir():  # as they were first written: a tokenizer that was
                    if not (beside / file.name).exists():  # read from a folder writes itself a little differently
                        shutil.copyfile(file, beside / file.name)
                write_sums(beside)
        except Exception as error:  # safetensors and tokenizers tell of a full disk by classes of their own
            raise RunError(f"{final} could not be written ({' '.join(str(error).split())})") from error

    def save(self) -> None:
        """Write the resumable state."""
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        save_checkpoint(self.folder.checkpoint_path, self.weights, self.optimizer, self.progress)
        self.saved_at = time.monotonic()

    def finish(self) -> Progress:
        """Note the end in the manifest; the resumable state is of no more use."""
        self.progress.finished = True
        self.progress.seconds = self.seconds_before + time.monotonic() - self.started_at
        note_end(self.folder, self.progress)
        remove(self.folder.checkpoint_path)
        return self.progress


# -- what is measured at an evaluation ---------------------------------------------------------------------------------


ROWS = 64
MASKS = 15
"""Seed of the masks of dev sentences: the same at every evaluation of every run."""
CLOUD = 1000
"""Sentences at most whose vectors' dimension is estimated."""


def measure(run: Pretraining) -> dict[str, Any]:
    """All that is logged of the present weights; the model's mode and the random generators are as before afterwards.

    Returns:
        Numbers by name; None for what cannot be told (a relation too rare, points that are one). UAS in percent, in
        layers × heads where it is of each head; losses in nats a hidden piece.
    """
    everything = [sentence for sentences in run.dev.values() for sentence in sentences]
    with torch.random.fork_rng(), evaluating(run.model):
        found = {**_losses(run, everything), **_syntax(uas_of(run.encoder, everything)), **_dimensions(run, everything)}
        if len(run.dev) > 1:
            found["corpora"] = {name: _of_corpus(run, sentences) for name, sentences in run.dev.items()}
        if run.paradigms:
            lm = MaskedLanguageModel.of(run.model, run.encoder.tokenizer)
            judged = judge(lm, run.paradigms)
            found["blimp"] = judged.overall
            found["blimp_phenomena"] = judged.phenomena
    found["embedding_cosine"] = float(mean_cosine(input_embeddings(run.model).weight.detach()))
    return found


def _of_corpus(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    found = _losses(run, sentences)
    if any(sentence.dep is not None for sentence in sentences):
        found |= {key: value for key, value in _syntax(uas_of(run.encoder, sentences)).items() if key != "heads"}
    return found


def _losses(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Mean loss a hidden piece, and mean γ (largest weight of any head) over directed arcs."""
    generator = torch.Generator().manual_seed(MASKS)
    total, hidden, penalty, arcs = 0.0, 0, 0.0, 0
    for batch, part in _batches(run, sentences):
        masked = run.masked(batch, generator)
        with attention_seen(run.model) as maps:
            total += float(prediction_loss(run.model, masked, batch.attention_mask.to(run.device)))
        found = batch_arcs(batch, [sentence.dep for sentence in part]).to(run.device)
        penalty += float(arc_penalty(maps, found))
        hidden += len(masked.gold)
        arcs += found.number
    return {"loss": total / hidden if hidden else None, "arc_weight": penalty / arcs if arcs else None}


def _syntax(counts: ArcCounts) -> dict[str, Any]:
    """Both numbers of the model level, on all and held out; the companion that knows no threshold; each head."""
    single, best = counts.single(), counts.mean_best(counts.listed())
    weight = counts.best(weight=True)
    found = {
        "uas_single": single.value,
        "uas_single_held_out": single.held_out,
        "uas_best": best.value,
        "uas_best_held_out": best.held_out,
        "weight": weight.value,
        "offset_single": counts.best_offset().value,
        "offset_best": counts.mean_best_offset(counts.listed())[0],
        "heads": counts.by_head(),
    }
    return dict(plain(found))


def _dimensions(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """TwoNN (maximum likelihood) of the last layer's first token and of its mean word piece, one a sentence."""
    chosen = list({sentence.words: sentence for sentence in sentences}.values())[:CLOUD]
    first, mean = [], []
    for batch, _ in _batches(run, chosen):
        here = batch.to(run.device)
        last = run.model.base_model(input_ids=here.input_ids, attention_mask=here.attention_mask).last_hidden_state
        within = (here.source >= 0).to(last.dtype)[..., None]  # (B, L, 1)
        first.append(last[:, 0].double().cpu().numpy())
        mean.append(((last * within).sum(1) / within.sum(1)).double().cpu().numpy())
    return {
        "twonn_cls": plain(likelihood(np.concatenate(first))),  # a model yet untrained may say the same of all
        "twonn_mean": plain(likelihood(np.concatenate(mean))),
    }


def _batches(run: Pretraining, sentences: Sequence[Sentence]) -> Iterator[tuple[EncoderBatch, list[Sentence]]]:
    """On the CPU, of similar length, longest first."""
    pieces = run.encoder.tokenize_all([sentence.words for sentence in sentences])
    order = sorted(range(len(pieces)), key=lambda row: (-len(pieces[row].ids), row))
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        yield run.encoder.collate([pieces[row] for row in rows]), [sentences[row] for row in rows]
