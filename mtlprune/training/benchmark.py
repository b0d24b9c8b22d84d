"""Costs of training and evaluation, as multiples of plain fine-tuning and of a bare forward pass on the same batches.

Everything is interleaved in one process: batch by batch each kind of step once, round after round, so that what other
processes do meanwhile meets all kinds alike. Of the rounds the median of each (kind, batch) counts. Ratios are of sums
over batches, and the ratios of single rounds say how far to trust them. On a CPU they are of processor seconds, which
do not pass while another process has the core; what others do to caches and to the clock rate remains.
"""

import copy
import itertools
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mtlprune.config.blocks import PruningConfig
from mtlprune.config.config import Config, ConfigError
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.embedding_rows import train_used_rows
from mtlprune.encoder.pieces import EncoderError
from mtlprune.errors import plural
from mtlprune.model import MultiTaskModel, autocast, evaluation_batches, make_gates
from mtlprune.tasks import decoder_class
from mtlprune.training import hardware, mixing
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.data import load_data, read_splits
from mtlprune.training.evaluation import evaluate
from mtlprune.training.hardware import configure_process, resolve_auto
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.pruning.gate_penalty import GatePenalty
from mtlprune.training.run import Run

log = logging.getLogger(__name__)

PLAIN, GATED = "plain fine-tuning", ", gated"
BARE, EVALUATION = "bare forward over dev", "evaluation, all tasks"
_MAX_SPREAD = 0.2
"""Spread of a ratio, relative to it, from which on its digits say nothing."""
STEPS = 1000  # of the run that a gated step pretends to belong to


class Ratio(NamedTuple):
    """The time of one kind of step over that of another."""

    value: float
    lowest_round: float
    """Smallest ratio of a single round."""
    highest_round: float

    @property
    def is_steady(self) -> bool:
        return self.highest_round - self.lowest_round <= _MAX_SPREAD * self.value


@dataclass
class Times:
    """Seconds by kind of step, in the order measured; each array is (rounds, batches)."""

    clock: dict[str, NDArray[np.float64]]
    processor: dict[str, NDArray[np.float64]]
    sentences: int
    """Of all batches."""
    on_cpu: bool

    def seconds(self, kind: str) -> tuple[float, float]:
        """Seconds by the clock and of the processor for all batches: sums of the medians of the rounds."""
        return _medians(self.clock[kind]), _medians(self.processor[kind])

    def ratio(self, kind: str, base: str) -> Ratio:
        """One kind over another; of processor seconds on a CPU, else of seconds."""
        times = self.processor if self.on_cpu else self.clock
        by_round = times[kind].sum(1) / times[base].sum(1)
        return Ratio(_medians(times[kind]) / _medians(times[base]), float(by_round.min()), float(by_round.max()))


def _medians(times: NDArray[np.float64]) -> float:
    return float(np.median(times, axis=0).sum())


@dataclass
class Measured:
    """Times of training and of evaluation."""

    settings: dict[str, Any]
    steps: Times
    evaluation: Times
    memory: int
    """Peak resident bytes of a fresh process that trains MTL for the batches measured (0: not measured)."""

    def ratios(self) -> dict[str, Ratio]:
        """Each kind of step over that of plain fine-tuning, and evaluation over the bare forward pass."""
        kinds = self.steps.clock
        gated = [(kind, kind.removesuffix(GATED)) for kind in kinds if kind.endswith(GATED)]
        return {
            **{kind: self.steps.ratio(kind, PLAIN) for kind in kinds},
            **{f"{plain}: gated / ungated": self.steps.ratio(kind, plain) for kind, plain in gated},
            EVALUATION: self.evaluation.ratio(EVALUATION, BARE),
        }


def measure(
    config: Config,
    batches: int,
    rounds: int,
    memory: bool,
    on_batch: Callable[[], None] = lambda: None,
    trained: Path | None = None,
) -> Measured:
    """Measure a configuration.

    Args:
        rounds: repetitions; medians count.
        on_batch: called after each batch of each round; of dev after each round.
        trained: a run of this configuration, whose weights are measured; new ones, if not given.

    Raises:
        RunError: no weights there.
        ConfigError: no batch has the layers of all tasks, so their steps cannot be compared on the same batches.
    """
    # Peak memory is measured in a process of its own, before this one holds a model too.
    peak = peak_memory(config, batches) if memory else 0
    run, precision = make_run(config, trained)
    settings = run.config.train
    timed_batches = _joint_batches(run, batches)
    # as others fine-tune: all embedding rows are trained, so the encoder is a copy
    steppers = {PLAIN: Stepper(replace(run, model=copy.deepcopy(run.model)), (), precision)}
    if run.config.train.embedding_rows == "used":
        train_used_rows(run.model.encoder, run.pieces)
    for task in config.tasks:
        steppers[f"STL {task}"] = Stepper(run, (task,), precision)
    joint = f"MTL-{len(config.tasks)} joint" if len(config.tasks) > 1 else f"STL {config.tasks[0]}"
    steppers.setdefault(joint, Stepper(run, config.tasks, precision))
    gated = gated_run(run)
    if gated is not None:
        steppers[joint + GATED] = Stepper(gated, config.tasks, precision)
    # All kinds of step share one model and its optimizer, so that Adam's moments are held once.
    for stepper in steppers.values():
        stepper.optimizer.state = steppers[PLAIN].optimizer.state
    facts = {"precision": settings.precision, "device": settings.device, "threads": settings.threads}
    facts["largest batch"] = _largest(timed_batches, run.lengths)
    rows = [batch.rows for batch in timed_batches]
    steps = interleaved(
        {kind: stepper.step for kind, stepper in steppers.items()}, rows, rounds, run, lambda _: on_batch()
    )
    return Measured(facts, steps, _measure_evaluation(run, precision, rounds, on_batch), peak)


def _largest(batches: Sequence[mixing.MiniBatch], lengths: Sequence[int]) -> str:
    """The batch on which memory depends, in words."""
    padded, sentences = max((max(lengths[row] for row in b.rows) * len(b.rows), len(b.rows)) for b in batches)
    return f"{plural(sentences, 'sentence')} padded to {padded:,} sub-words"


def _joint_batches(run: Run, batches: int) -> list[mixing.MiniBatch]:
    """Some of the first epoch's batches that hold the layers of all tasks, from long to short. Raises ConfigError."""
    annotated = run.is_annotated.values()
    serving = [batch for batch in _first_epoch(run) if all(any(has[row] for row in batch.rows) for has in annotated)]
    if not serving:
        raise ConfigError(
            f"{run.config.data.path}: expected a batch with the layers of all of {', '.join(run.config.tasks)}, found "
            "none; measure fewer tasks, or larger batches"
        )
    return evenly(serving, batches, run.lengths)


def _first_epoch(run: Run) -> list[mixing.MiniBatch]:
    """Its shuffled batches of all tasks."""
    settings = run.config.train.model_copy(update={"mixing": "joint", "accumulate": 1, "shuffle": True})
    return [batch for [batch] in mixing.plan(settings, run.lengths, run.is_annotated, epoch_generator(1, 0))]


def make_run(config: Config, trained: Path | None = None) -> tuple[Run, torch.dtype]:
    """Model and data for a configuration, new or of a run; the process is set up as for training."""
    config = resolve_auto(config)
    configure_process(config.train.threads)
    train, dev = read_splits(config, load_corpus(Path(config.data.path)))
    if trained is not None:
        model = MultiTaskModel.load(trained)
    else:
        labels = {task: decoder_class(config.decoder(task)).collect(train, task) for task in config.tasks}
        model = MultiTaskModel.build(config, labels)
    return load_data(config, model.to(config.train.device), train, dev), hardware.dtype(config.train.precision)


def gated_run(run: Run) -> Run | None:
    """The same run (the same weights) with a gate set for all tasks that is steered to half of the heads; None where
    it is not known where the encoder's heads are."""
    try:
        places = run.model.encoder.head_hooks
    except EncoderError as error:
        log.warning("no gated step is measured: %s", error)
        return None
    half_open = PruningConfig(method="gates", penalty="target", keep=places.layers * places.heads // 2, init="open")
    config = run.config.model_copy(update={"pruning": half_open})
    model = MultiTaskModel(run.model.encoder, dict(run.model.tasks.items()), make_gates(config, run.model.encoder))  # type: ignore[arg-type]
    return replace(run, config=config, model=model.to(run.model.device))


class Stepper:
    """One kind of update: forward, backward, clip, fused AdamW, over the encoder and the decoders of ``tasks``.

    Without tasks the loss is the mean square of the word vectors: plain fine-tuning, but for a head on top.
    """

    def __init__(self, run: Run, tasks: tuple[str, ...], precision: torch.dtype) -> None:
        self.run, self.tasks, self.precision = run, tasks, precision
        self.optimizer = make_optimizer(run.model, run.config)
        self.penalty = GatePenalty(run.config, run.model, STEPS) if run.config.pruning.moves else None
        decoders = {id(p) for task in tasks for p in run.model.tasks[task].parameters()}
        encoder, heads, _ = self.optimizer.param_groups
        heads["params"] = [p for p in heads["params"] if id(p) in decoders]
        self.parameters = [*encoder["params"], *heads["params"]]
        for group in self.optimizer.param_groups:
            # With this rate the weights hardly move, so that every kind of step is timed on the same model.
            group["lr"] = 1e-8

    def loss(self, rows: list[int]) -> Tensor:
        batch = self.run.batch(mixing.MiniBatch(self.tasks, rows))
        if not self.tasks:
            return self.run.model.encoder(batch.pieces).words.square().mean()
        return torch.stack(list(self.run.model.losses(batch).values())).sum()

    def step(self, rows: list[int]) -> None:
        """One update."""
        self.run.model.train()
        with autocast(self.run.model.device, self.precision):
            loss = self.loss(rows)
        if loss.requires_grad:  # nothing does where encoder and decoders are frozen and the gates fixed
            loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.run.config.train.clip)
        if self.penalty is not None:
            self.penalty.before_step(self.tasks)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def _measure_evaluation(run: Run, precision: torch.dtype, rounds: int, on_batch: Callable[[], None]) -> Times:
    """The bare forward pass over batches of dev beside predicting and counting every task on them."""
    model = run.model.eval()
    pieces = model.encoder.tokenize_sentences(run.dev)
    batches = list(evaluation_batches([len(p.ids) for p in pieces], precision))

    def bare_forward(rows: list[int]) -> None:
        with torch.no_grad(), autocast(model.device, precision):
            model.encoder(model.encoder.collate([pieces[row] for row in rows]).to(model.device))

    def evaluation(rows: list[int]) -> None:
        evaluate(model, [run.dev[row] for row in rows], precision)

    last = batches[-1]
    return interleaved(
        {BARE: bare_forward, EVALUATION: evaluation},
        batches,
        rounds,
        run,
        lambda rows: on_batch() if rows is last else None,
    )


def interleaved(
    kinds: Mapping[str, Callable[[list[int]], None]],
    batches: Sequence[list[int]],
    rounds: int,
    run: Run,
    on_batch: Callable[[list[int]], None],
) -> Times:
    """Do each kind of work on each batch in turn, round after round."""
    device, shape = run.model.device, (rounds, len(batches))
    times = Times(
        {kind: np.zeros(shape) for kind in kinds},
        {kind: np.zeros(shape) for kind in kinds},
        sum(map(len, batches)),
        device.type == "cpu",
    )
    for work in kinds.values():  # the first time allocates memory
        work(batches[0])
    for turn, (place, rows) in itertools.product(range(rounds), enumerate(batches)):
        for kind, work in kinds.items():
            processor = time.process_time()
            with clock(device) as seconds:
                work(rows)
            times.processor[kind][turn, place] = time.process_time() - processor
            times.clock[kind][turn, place] = seconds[0]
        on_batch(rows)
    return times


def peak_memory(config: Config, batches: int) -> int:
    """Peak memory in bytes of a fresh process (or of its GPU) that makes MTL updates."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_train_alone, config.model_dump(mode="json"), batches).result()


def _train_alone(tree: dict[str, Any], batches: int) -> int:
    run, precision = make_run(Config.model_validate(tree))
    plan = _first_epoch(run)
    longest = max(plan, key=lambda batch: sum(run.lengths[row] for row in batch.rows))
    if run.config.train.embedding_rows == "used":
        train_used_rows(run.model.encoder, run.pieces)
    stepper = Stepper(run, run.config.tasks, precision)
    for batch in [longest, *evenly(plan, batches, run.lengths)]:
        stepper.step(batch.rows)
    return hardware.peak_memory(run.model.device)


def evenly(plan: list[mixing.MiniBatch], count: int, lengths: list[int]) -> list[mixing.MiniBatch]:
    """``count`` batches spread over the plan from the largest to the smallest, so that all lengths are met."""
    ordered = sorted(plan, key=lambda batch: (-sum(lengths[row] for row in batch.rows), batch.rows))
    count = min(count, len(ordered))
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


@contextmanager
def clock(device: torch.device) -> Iterator[list[float]]:
    """Seconds spent in the block, with the GPU's work finished."""
    seconds = [0.0]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    yield seconds
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[0] = time.perf_counter() - start
