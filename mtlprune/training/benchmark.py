"""The measurement behind `mtlprune bench`: how long updates and evaluation of a configuration take.

Updates are compared with plain fine-tuning of the encoder, and evaluation is compared with a bare forward pass of the
encoder, on the same batches. Kinds of step are interleaved in one process: in every round, each kind of step runs once
on each batch, so that the load of other processes affects all kinds alike. The time of a kind on a batch is the median
over rounds. A ratio divides sums over batches; the ratios within single rounds show how reliable it is. On a CPU,
ratios use processor seconds, which do not pass while another process has the core. They still depend on what other
processes do to caches and to the clock rate.
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
from mtlprune.training import hardware, mixing
from mtlprune.training.activations import LargestBatches
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.data import load_data, read_splits
from mtlprune.training.evaluation import evaluate
from mtlprune.training.hardware import configure_process, resolve_auto
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.pruning.gate_penalty import GatePenalty
from mtlprune.training.run import Run
from mtlprune.training.start import collect_labels

log = logging.getLogger(__name__)

_PLAIN, _GATED = "plain fine-tuning", ", gated"
_RANDOM = "plain fine-tuning, random batches"
"""Plain fine-tuning on sentences that are drawn without regard to their length, as Hugging Face's Trainer does it by
default. Each batch has as many sentences as the batch of the other kinds, but more padding."""
BARE, EVALUATION = "bare forward over dev", "evaluation, all tasks"
_MAX_SPREAD = 0.2
"""The largest spread of a ratio over rounds, as a fraction of the ratio, at which the ratio counts as steady."""
_STEPS = 1000
"""The total number of updates that the gate penalty of a timed step assumes."""


class Ratio(NamedTuple):
    """The time of a kind of step, divided by the time of another kind."""

    value: float
    lowest_round: float
    """The smallest ratio within a round."""
    highest_round: float
    """The largest ratio within a round."""

    @property
    def is_steady(self) -> bool:
        """Whether the ratios within rounds differ by at most `_MAX_SPREAD` of the ratio."""
        return self.highest_round - self.lowest_round <= _MAX_SPREAD * self.value


@dataclass
class Times:
    """The measured times of several kinds of step on the same batches; kinds are in the order of measurement."""

    clock: dict[str, NDArray[np.float64]]
    """Kind of step → elapsed seconds, (rounds, batches)."""
    processor: dict[str, NDArray[np.float64]]
    """Kind of step → seconds of processor time of this process, (rounds, batches)."""
    sentences: int
    """Number of sentences in all batches together."""
    on_cpu: bool
    """Whether the model was on a CPU."""

    def seconds(self, kind: str) -> tuple[float, float]:
        """Return the elapsed and the processor seconds of a kind, sums over batches of medians over rounds."""
        return _medians(self.clock[kind]), _medians(self.processor[kind])

    def ratio(self, kind: str, base: str) -> Ratio:
        """Divide the time of ``kind`` by the time of ``base``, in processor seconds on a CPU, else elapsed seconds."""
        times = self.processor if self.on_cpu else self.clock
        by_round = times[kind].sum(1) / times[base].sum(1)
        return Ratio(_medians(times[kind]) / _medians(times[base]), float(by_round.min()), float(by_round.max()))


def _medians(times: NDArray[np.float64]) -> float:
    return float(np.median(times, axis=0).sum())


@dataclass
class Measured:
    """The result of `measure`: times of kinds of update and of evaluation."""

    settings: dict[str, Any]
    """The precision, device, threads and largest batch of the measurement."""
    steps: Times
    """Times of kinds of update."""
    evaluation: Times
    """Times of the bare forward pass over dev and of the evaluation."""
    memory: int
    """Peak memory in bytes of a fresh process that trains all tasks jointly (see `peak_memory`); 0 if not measured."""

    def ratios(self) -> dict[str, Ratio]:
        """Return all ratios by name.

        They compare every kind of step with plain fine-tuning on the same batches, gated with ungated steps, and
        evaluation with the bare forward pass.
        """
        kinds = self.steps.clock
        gated = [(kind, kind.removesuffix(_GATED)) for kind in kinds if kind.endswith(_GATED)]
        return {
            **{kind: self.steps.ratio(kind, _PLAIN) for kind in kinds},
            **{f"{plain}: gated / ungated": self.steps.ratio(kind, plain) for kind, plain in gated},
            EVALUATION: self.evaluation.ratio(EVALUATION, BARE),
        }

    def ratios_to_random(self) -> dict[str, Ratio]:
        """Return the ratios of every kind of step to plain fine-tuning on random batches."""
        return {kind: self.steps.ratio(kind, _RANDOM) for kind in self.steps.clock}


def measure(
    config: Config,
    batches: int,
    rounds: int,
    memory: bool,
    on_batch: Callable[[], None] = lambda: None,
    trained: Path | None = None,
) -> Measured:
    """Time the updates and the evaluation of a configuration.

    Args:
        batches: number of training batches that are timed.
        rounds: number of repetitions, over which medians are taken.
        memory: whether to measure peak memory in a fresh process.
        on_batch: function called after each training batch of each round, and after each round over dev.
        trained: folder of a run of this configuration, whose weights are used; by default, a new model is built.

    Raises:
        RunError: the folder ``trained`` has no weights.
        ConfigError: no batch has the layers of all tasks, so their steps cannot be compared on the same batches.
    """
    # Peak memory is measured in a separate process, before this process also holds a model.
    peak = peak_memory(config, batches) if memory else 0
    run, precision = make_run(config, trained)
    settings = run.config.train
    timed_batches = _joint_batches(run, batches)
    # Plain fine-tuning trains all embedding rows. It needs a copy of the model, since the other kinds of step may
    # replace the embedding table of the encoder by its used rows.
    steppers = {_PLAIN: Stepper(replace(run, model=copy.deepcopy(run.model)), (), precision)}
    if run.config.train.embedding_rows == "used":
        train_used_rows(run.model.encoder, run.pieces)
    for task in config.tasks:
        steppers[f"STL {task}"] = Stepper(run, (task,), precision)
    joint = f"MTL-{len(config.tasks)} joint" if len(config.tasks) > 1 else f"STL {config.tasks[0]}"
    steppers.setdefault(joint, Stepper(run, config.tasks, precision))
    gated = gated_run(run)
    if gated is not None:
        steppers[joint + _GATED] = Stepper(gated, config.tasks, precision)
    # All optimizers share their state, which is stored by parameter, so that the moments of a parameter that several
    # kinds of step train are held only once.
    for stepper in steppers.values():
        stepper.optimizer.state = steppers[_PLAIN].optimizer.state
    facts = {"precision": settings.precision, "device": settings.device, "threads": settings.threads}
    facts["largest batch"] = _largest(timed_batches, run.lengths)
    rows = [batch.rows for batch in timed_batches]

    def random_step(rows: list[int]) -> None:
        # The first sentence seeds the draw, so that every round has the same batches.
        random_rows = np.random.default_rng(rows[0]).choice(len(run.lengths), len(rows), replace=False)
        steppers[_PLAIN].step(random_rows.tolist())

    kinds = {_PLAIN: steppers[_PLAIN].step, _RANDOM: random_step}
    kinds |= {kind: stepper.step for kind, stepper in steppers.items()}
    steps = _interleaved(kinds, rows, rounds, run, lambda _: on_batch())
    return Measured(facts, steps, _measure_evaluation(run, precision, rounds, on_batch), peak)


def _largest(batches: Sequence[mixing.MiniBatch], lengths: Sequence[int]) -> str:
    """Describe the largest batch, on which peak memory depends."""
    padded, sentences = max((max(lengths[row] for row in b.rows) * len(b.rows), len(b.rows)) for b in batches)
    return f"{plural(sentences, 'sentence')} padded to {padded:,} sub-words"


def _joint_batches(run: Run, batches: int) -> list[mixing.MiniBatch]:
    """Return at most ``batches`` batches of the first epoch with the layers of all tasks, from large to small.

    Raises ConfigError if no batch has all layers.
    """
    annotated = run.is_annotated.values()
    serving = [batch for batch in _first_epoch(run) if all(any(has[row] for row in batch.rows) for has in annotated)]
    if not serving:
        raise ConfigError(
            f"{run.config.data.path}: expected a batch with the layers of all of {', '.join(run.config.tasks)}, found "
            "none; measure fewer tasks, or larger batches"
        )
    return evenly(serving, batches, run.lengths)


def _first_epoch(run: Run) -> list[mixing.MiniBatch]:
    """Return the shuffled batches of the first epoch of joint training."""
    settings = run.config.train.model_copy(update={"mixing": "joint", "accumulate": 1, "shuffle": True})
    return [batch for [batch] in mixing.plan(settings, run.lengths, run.is_annotated, epoch_generator(1, 0))]


def make_run(config: Config, trained: Path | None = None) -> tuple[Run, torch.dtype]:
    """Set up the process as for training, and load the data with a new model or with the model of the run ``trained``.

    Returns:
        The run (model and data) and the precision of its forward passes.
    """
    config = resolve_auto(config)
    configure_process(config.train.threads)
    train, dev = read_splits(config, load_corpus(Path(config.data.path)))
    if trained is not None:
        model = MultiTaskModel.load(trained)
    else:
        model = MultiTaskModel.build(config, collect_labels(config, train))
    return load_data(config, model.to(config.train.device), train, dev), hardware.dtype(config.train.precision)


def gated_run(run: Run) -> Run | None:
    """Return the run with the same weights and a set of gates for all tasks that is steered to half of the heads.

    Returns None, with a warning, if the encoder family is not in the table of families.
    """
    try:
        hooks = run.model.encoder.head_hooks
    except EncoderError as error:
        log.warning("no gated step is measured: %s", error)
        return None
    half_open = PruningConfig(method="gates", penalty="target", keep=hooks.layers * hooks.heads // 2, init="open")
    config = run.config.model_copy(update={"pruning": half_open})
    model = MultiTaskModel(run.model.encoder, dict(run.model.tasks.items()), make_gates(config, run.model.encoder))  # type: ignore[arg-type]
    return replace(run, config=config, model=model.to(run.model.device))


class Stepper:
    """A kind of update of the encoder and the decoders of ``tasks``: forward, backward, clipping and fused AdamW.

    Without tasks the loss is the mean square of the word vectors. This is plain fine-tuning, except for the cost of a
    classifier on top of the encoder.
    """

    def __init__(self, run: Run, tasks: tuple[str, ...], precision: torch.dtype) -> None:
        self.run, self.tasks, self.precision = run, tasks, precision
        self.largest_batches = LargestBatches(run)
        self.optimizer = make_optimizer(run.model, run.config)
        self.penalty = GatePenalty(run.config, run.model, _STEPS) if run.config.pruning.moves else None
        decoders = {id(p) for task in tasks for p in run.model.tasks[task].parameters()}
        encoder, heads, _ = self.optimizer.param_groups
        heads["params"] = [p for p in heads["params"] if id(p) in decoders]
        self.parameters = [*encoder["params"], *heads["params"]]
        for group in self.optimizer.param_groups:
            # With this rate the weights hardly move, so that every kind of step is timed on the same model.
            group["lr"] = 1e-8

    def loss(self, rows: list[int]) -> Tensor:
        """Compute the loss of the training sentences with the indices ``rows``."""
        mini_batch = mixing.MiniBatch(self.tasks, rows)
        batch = self.run.batch(mini_batch)
        if not self.tasks:
            return self.run.model.encoder(batch.pieces).words.square().mean()
        self.largest_batches.switch(mini_batch)
        return torch.stack(list(self.run.model.losses(batch).values())).sum()

    def step(self, rows: list[int]) -> None:
        """Make an update on the training sentences with the indices ``rows``."""
        self.run.model.train()
        with autocast(self.run.model.device, self.precision):
            loss = self.loss(rows)
        if loss.requires_grad:  # False if encoder and decoders are frozen and the gates are fixed
            loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.run.config.train.clip)
        if self.penalty is not None:
            self.penalty.before_step(self.tasks)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def _measure_evaluation(run: Run, precision: torch.dtype, rounds: int, on_batch: Callable[[], None]) -> Times:
    """Time two kinds of work on the batches of dev: the bare forward pass, and the evaluation of all tasks."""
    model = run.model.eval()
    pieces = model.encoder.tokenize_sentences(run.dev)
    batches = list(evaluation_batches([len(p.ids) for p in pieces], precision))

    def bare_forward(rows: list[int]) -> None:
        with torch.no_grad(), autocast(model.device, precision):
            model.encoder(model.encoder.collate([pieces[row] for row in rows]).to(model.device))

    def evaluation(rows: list[int]) -> None:
        evaluate(model, [run.dev[row] for row in rows], precision)

    last = batches[-1]
    return _interleaved(
        {BARE: bare_forward, EVALUATION: evaluation},
        batches,
        rounds,
        run,
        lambda rows: on_batch() if rows is last else None,
    )


def _interleaved(
    kinds: Mapping[str, Callable[[list[int]], None]],
    batches: Sequence[list[int]],
    rounds: int,
    run: Run,
    on_batch: Callable[[list[int]], None],
) -> Times:
    """Time every kind of work on every batch, in each of ``rounds`` rounds.

    Args:
        kinds: name → function that does the work on a batch, given as indices of sentences.
        batches: indices of the sentences of each batch.
        run: the run whose device does the work.
        on_batch: function called after all kinds of work on a batch are done.
    """
    device, shape = run.model.device, (rounds, len(batches))
    times = Times(
        {kind: np.zeros(shape) for kind in kinds},
        {kind: np.zeros(shape) for kind in kinds},
        sum(map(len, batches)),
        device.type == "cpu",
    )
    for work in kinds.values():  # untimed, because the first call allocates memory
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
    """Return the peak memory in bytes of a fresh process that trains all tasks jointly; on a GPU, the GPU memory.

    The process trains on the batch of the first epoch with the largest activations, on the largest batch without
    gradient checkpointing, and on ``batches`` further batches.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_train_alone, config.model_dump(mode="json"), batches).result()


def _train_alone(tree: dict[str, Any], batches: int) -> int:
    run, precision = make_run(Config.model_validate(tree))
    plan = _first_epoch(run)
    if run.config.train.embedding_rows == "used":
        train_used_rows(run.model.encoder, run.pieces)
    stepper = Stepper(run, run.config.tasks, precision)
    by_size = sorted(plan, key=stepper.largest_batches.size, reverse=True)
    largest_stored = next((batch for batch in by_size if not stepper.largest_batches.contains(batch)), by_size[0])
    for batch in [by_size[0], largest_stored, *evenly(plan, batches, run.lengths)]:
        stepper.step(batch.rows)
    return hardware.peak_memory(run.model.device)


def evenly(plan: list[mixing.MiniBatch], count: int, lengths: list[int]) -> list[mixing.MiniBatch]:
    """Select ``count`` batches of the plan, at equal distances in the order from the largest to the smallest batch.

    A plan with fewer batches is returned whole.
    """
    ordered = sorted(plan, key=lambda batch: (-sum(lengths[row] for row in batch.rows), batch.rows))
    count = min(count, len(ordered))
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


@contextmanager
def clock(device: torch.device) -> Iterator[list[float]]:
    """Measure the seconds spent in the context, including the work that it queued on a GPU.

    Yields:
        A list with a single number, which is 0 until the context ends.
    """
    seconds = [0.0]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    yield seconds
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[0] = time.perf_counter() - start
