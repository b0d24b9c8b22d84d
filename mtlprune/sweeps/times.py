"""How long cells take: as long as finished ones of their kind did, or measured on a few batches.

A kind is a configuration but for its seed, its rates, and for which runs it makes use of.
"""

from __future__ import annotations

import logging
import platform
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtlprune.io.block import Block
from mtlprune.io.files import RunError, read_json, write_json
from mtlprune.sweeps.cells import LETTERS, REFERENCES, Cell, Known, whole_digest
from mtlprune.sweeps.folder import ASIDE, State

FILE = "times.json"
BATCHES = 6
"""Measured of each kind of batch, and of dev's, spread from the longest to the shortest."""

log = logging.getLogger(__name__)


WITHOUT_COST = {
    "train": ("seed", "encoder_rate", "decoder_rate", "weight_decay", "warmup", "schedule", "clip"),
    "pruning": ("strength", "rate", "multiplier_rate", "temperature", "anneal_from"),
}
"""Settings that change what is learnt, not how long that takes."""
OTHER = "another run"


class Times:
    """What is known of the time of a sweep's cells.

    Args:
        cells: of the whole sweep: those that are finished tell about those that are not.
        root: the sweep's folder, where measurements are kept.
        threads: of each cell; measurements with others do not count.
        standing: where they all stand.
    """

    def __init__(self, cells: Iterable[Cell], root: Path, threads: int, standing: Mapping[str, State]) -> None:
        self.path, self.threads, self.standing = root / ASIDE / FILE, threads, standing
        taken: dict[str, list[float]] = {}
        self.kinds: dict[str, str] = {}
        self.alike: dict[str, Block] = {}
        self.known: Known = {}
        for cell in cells:
            if (seconds := standing[cell.name].seconds) is not None:
                taken.setdefault(self.kind(cell), []).append(seconds)
        self.taken = {name: statistics.mean(values) for name, values in taken.items()}
        self.measured = self._read()

    def _read(self) -> dict[str, float]:
        if not self.path.is_file():
            return {}
        try:
            kept = read_json(self.path)
        except RunError as error:
            log.warning("%s; times are measured again", error)
            return {}
        return dict(kept["seconds"]) if isinstance(kept, dict) and kept.get("where") == self._where() else {}

    def _where(self) -> dict[str, Any]:
        return {"host": platform.node(), "threads": self.threads, "batches": BATCHES}

    def whole(self, cell: Cell) -> float | None:
        """Seconds of a cell from its beginning to its end; None where nothing is known of its kind."""
        if not self.taken and not self.measured:
            return None
        return self.taken.get(self.kind(cell), self.measured.get(self.kind(cell)))

    def kind(self, cell: Cell) -> str:
        """Eight letters, the same for cells that cost the same."""
        if cell.name not in self.kinds:
            config = cell.config.model_copy(update={name: self._plain(cell, name) for name in WITHOUT_COST})
            settings = [f"{block}.{key}" for block, key in REFERENCES]
            settings += [f"treatment.{key}" for key in config.treatment.runs]
            found = whole_digest(config, config.data.path, dict.fromkeys(settings, OTHER), self.known)
            self.kinds[cell.name] = found[:LETTERS]
        return self.kinds[cell.name]

    def _plain(self, cell: Cell, name: str) -> Block:
        """A block of settings with defaults in the place of those without cost; one object for all that are alike."""
        block: Block = getattr(cell.config, name)
        fields, runs = type(block).model_fields, [key for of, key in REFERENCES if of == name]
        plain = {key: fields[key].default for key in WITHOUT_COST[name]}
        plain |= {key: OTHER for key in runs if getattr(block, key) is not None}
        return self.alike.setdefault(repr({**block.__dict__, **plain}), block.model_copy(update=plain))

    def left(self, cell: Cell) -> float | None:
        """Seconds until a cell is trained; what it has behind it counts by whole epochs, if it evaluates after each."""
        found = self.standing[cell.name]
        if found.trained:
            return 0.0
        whole = self.whole(cell)
        if whole is None or not found.note or cell.config.train.evaluate_every:
            return whole
        try:
            done = len(cell.place.run.read_metrics()) / cell.config.train.epochs
        except RunError:  # what is wrong there is said where its state is
            return whole
        return whole * max(0.0, 1 - done)

    def measure(self, cell: Cell) -> None:
        """Measure the cell's kind, unless its time is known, and keep the result.

        Raises:
            ConfigError, CorpusError, EncoderError, RunError: the cell could not be trained either.
        """
        if self.whole(cell) is not None:
            return
        self.measured[self.kind(cell)] = measured_seconds(cell, self.threads)
        write_json(self.path, {"where": self._where(), "seconds": self.measured})


def measured_seconds(cell: Cell, threads: int) -> float:
    """Seconds of a run's epochs and evaluations, from a few of its updates and of the batches of dev."""
    from mtlprune.training.benchmark import Stepper, clock, evenly, make_run
    from mtlprune.training.checkpoint import epoch_generator
    from mtlprune.training.evaluation import evaluate
    from mtlprune.training.mixing import plan
    from mtlprune.training.treatments.benchmark import TreatedStepper, plain

    train = cell.config.train
    train = train.model_copy(update={"threads": train.threads or threads, "shuffle": True})
    config = cell.config.model_copy(update={"train": train})
    treatment = config.treatment.model_copy(update={"merge": None})  # which is done before training
    run, precision = make_run(plain(config))
    for part in config.train.freeze:
        (run.model.encoder if part == "encoder" else run.model.tasks).requires_grad_(False)
    updates = plan(config.train, run.lengths, run.known, epoch_generator(1, 0))
    batches = [batch for update in updates for batch in update]
    epoch = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for tasks in dict.fromkeys(batch.tasks for batch in batches):
            alike = [batch for batch in batches if batch.tasks == tasks]
            chosen = evenly(alike, BATCHES, run.lengths)
            rows = sorted({row for batch in chosen for row in batch.rows})
            if treatment.given:
                stepper: Stepper = TreatedStepper(run, config.name, treatment, precision, rows, Path(folder))
                stepper.tasks = tasks
            else:
                stepper = Stepper(run, tasks, precision)
            stepper.step(chosen[0].rows)  # the first one allocates
            epoch += statistics.mean(stepper.step(batch.rows) for batch in chosen) * len(alike)
    model = stepper.run.model.eval()  # with its clones
    pieces = model.encoder.tokenize_all([sentence.words for sentence in run.dev])
    rows, share = part_of([len(p.ids) for p in pieces])
    some = [run.dev[row] for row in rows]
    evaluate(model, some[-2:], precision)  # the first one loads and allocates
    with clock(model.device) as seconds:
        evaluate(model, some, precision)
    epochs = config.train.epochs
    return epochs * epoch + config.train.evaluations(epochs, epochs * len(updates)) * seconds[0] / share


def part_of(lengths: Sequence[int]) -> tuple[list[int], float]:
    """Rows of some of the batches in which sentences are predicted, and their share of the work (sub-words, padded).

    They are whole ones, from the longest sentences to the shortest: batches of any other part of the sentences hold
    long ones beside short ones, and most of their cost is padding.
    """
    from mtlprune.model import evaluation_batches

    whole = list(evaluation_batches(lengths))
    count = min(BATCHES, len(whole))
    part = [whole[(2 * place + 1) * len(whole) // (2 * count)] for place in range(count)]
    padded = [sum(lengths[rows[0]] * len(rows) for rows in batches) for batches in (part, whole)]
    return [row for rows in part for row in rows], padded[0] / padded[1]


@dataclass(frozen=True)
class Outlook:
    """What is left of a sweep."""

    seconds: float
    """Until the last cell of known time is trained, by so many processes."""
    unknown: int
    """Cells of which no time is known; they are not in it."""


def outlook(cells: Mapping[str, Cell], times: Times, jobs: int) -> Outlook:
    """Cells begin as soon as a process is free and those they need are done, in the order of the sweep."""
    free = [0.0] * jobs
    ends: dict[str, float] = {}
    unknown = 0
    for name, cell in cells.items():
        seconds = times.left(cell)
        unknown += seconds is None
        if not seconds:
            ends[name] = max((ends[other] for other in cell.needs), default=0.0) if seconds is None else 0.0
            continue
        slot = min(range(jobs), key=free.__getitem__)
        free[slot] = max([free[slot], *(ends[other] for other in cell.needs)]) + seconds
        ends[name] = free[slot]
    return Outlook(max(free), unknown)
