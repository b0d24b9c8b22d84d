"""What treatments cost: each kind of update beside the joint one, interleaved on the same batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mtlprune.config.blocks import PruningConfig, TreatmentConfig
from mtlprune.config.config import Config, ConfigError
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.runs.folder import RunFolder
from mtlprune.training import benchmark, hardware, mixing
from mtlprune.training.parallel import ALONE
from mtlprune.training.setup import Beginning, Run
from mtlprune.training.treatments import Treatments, check_treatments
from mtlprune.training.treatments.base import Treated
from mtlprune.training.treatments.distil import Distil, Stored, store, taught

JOINT, SINGLE = "joint", "one task a batch"
STEPS = 1000
"""Of the run that a step pretends to belong to; dispatch is in its last ones."""


def kinds(run: Run, given: TreatmentConfig) -> dict[str, Any]:
    """What is measured: name → settings of `treatment`. Where it matters, the first half of the heads is treated.

    Of a configuration with treatments, or with gates for each task, these alone, by its name, beside the joint update.
    Raises ConfigError: merge.
    """
    if given.merge is not None:
        raise ConfigError(
            "--treatments: expected treatments of updates, found treatment.merge, which makes what a run begins with; "
            "leave it out (treatment.merge=null)"
        )
    if given.given or run.config.pruning.sets == "per_task":
        last = {} if given.dispatch is None else {"dispatch": given.dispatch.model_copy(update={"last": 1.0})}
        return {JOINT: {}, run.config.name: given.model_copy(update=last)}
    places = run.model.encoder.places
    half, layers = range(1, places.heads // 2 + 1), places.layers
    own = {
        task: [f"{layer + 1}-{(head + place) % places.heads + 1}" for layer in range(layers) for head in half]
        for place, task in enumerate(run.config.tasks)
    }
    dispatch = {"dispatch": {"heads": {"per_task": own}, "last": 1.0}}
    return {
        JOINT: {},
        "distil": {"distil": {"teachers": dict.fromkeys(run.config.tasks, "itself")}},
        "dispatch": dispatch,
        "protect, all tasks": {"protect": {"heads": [f"{layer + 1}-1" for layer in range(layers)]}},
        "project at features": {"project": {}},
        "project at heads": {"project": {"at": "heads"}},
        f"clone in layer {layers}": {"clone": {"heads": [f"{layers}-{head}" for head in half]}},
        f"clone from layer {layers - 1}": {
            "clone": {"heads": [f"{layer}-{head}" for layer in (layers - 1, layers) for head in half]}
        },
        "famo": {},
        SINGLE: {},
        f"dispatch, {SINGLE}": dispatch,
    }


@dataclass
class UpdateCost:
    """Of one kind of update, over all batches measured."""

    seconds: float
    memory: int = 0
    """Peak resident bytes of a fresh process that makes such updates (0: not measured)."""


class TreatedStepper(benchmark.Stepper):
    """One kind of update; with one task a batch, one for each task in turn."""

    def __init__(
        self, run: Run, name: str, settings: Any, precision: torch.dtype, rows: list[int], folder: Path
    ) -> None:
        settings = TreatmentConfig.model_validate(settings)
        if name == JOINT and run.config.pruning.sets == "per_task":
            bare = MultiTaskModel(run.model.encoder, dict(run.model.tasks.items()))  # type: ignore[arg-type]
            run = replace(run, model=bare, config=run.config.model_copy(update={"pruning": PruningConfig()}))
        if settings.clone is not None:  # whose hooks stay on its encoder
            run = replace(run, model=fresh(run))
        rest = settings.model_copy(update={"distil": None})
        run = replace(run, config=run.config.model_copy(update={"treatment": rest}))
        run.model.treated = {}
        check_treatments(Beginning(run.config, run.model, {}, (), ()))  # with its clones
        super().__init__(run, run.config.tasks, precision)
        self.name, here = name, RunFolder(folder)
        self.treatments = Treatments(run, here, STEPS, ALONE)
        if settings.distil is not None:  # by the model itself: no teacher need be there
            paths = {task: folder / f"{task}.scores" for task in settings.distil.teachers}
            for task, path in paths.items():
                store(path, iter(taught(run, run.model, task, precision, rows)))
            scores = {task: Stored(path) for task, path in paths.items()}
            self.treatments.all.insert(0, Distil(Treated(settings.distil, run, here, STEPS, ALONE, {}), scores))

    def step(self, rows: list[int]) -> float:
        """Seconds of one update, or of one for each task."""
        single = self.name.endswith(SINGLE)
        return sum(self._step(rows, (task,)) for task in self.tasks) if single else self._step(rows, self.tasks)

    def _step(self, rows: list[int], tasks: tuple[str, ...]) -> float:
        model = self.run.model.train()
        with benchmark.clock(model.device) as seconds:
            self.treatments.update(STEPS // 2)
            batch = self.run.batch(mixing.MiniBatch(tasks, rows))
            with autocast(model.device, self.precision):
                terms = model.terms(batch, self.treatments.decode(rows))
            losses, _ = ALONE.losses(terms, tasks)
            with self.treatments.backward(losses):
                torch.stack(list(losses.values())).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, self.run.config.train.clip)
            self.optimizer.step()
            if self.name == "famo":
                with torch.no_grad(), autocast(model.device, self.precision):
                    ALONE.losses(model.terms(batch), tasks)
            self.optimizer.zero_grad(set_to_none=True)
        return seconds[0]


def plain(config: Config) -> Config:
    """Without treatments."""
    return config.model_copy(update={"treatment": TreatmentConfig()})


def fresh(run: Run) -> MultiTaskModel:
    """A model with the same weights."""
    vocabularies = {name: task.labels for name, task in run.model.tasks.items()}
    made = MultiTaskModel.build(plain(run.config), vocabularies)  # type: ignore[arg-type]
    made.load_state_dict(run.model.state_dict())
    return made.to(run.model.device)


@contextmanager
def prepared(config: Config, batches: int) -> Iterator[tuple[Run, torch.dtype, list[mixing.MiniBatch], Path]]:
    """A run without treatments, its batches spread from long to short, and a folder that goes."""
    if len(config.tasks) < 2:
        raise ConfigError("--treatments: expected a configuration of several tasks, found one")
    run, precision = benchmark.make_run(plain(config))
    _, chosen = benchmark.joint_batches(run, batches)
    with tempfile.TemporaryDirectory() as folder:
        yield run, precision, chosen, Path(folder)


def measure(
    config: Config, batches: int, rounds: int, memory: bool, on_batch: Callable[[], None] = lambda: None
) -> dict[str, UpdateCost]:
    """The cost of each kind of update: of the rounds, the fastest time of each batch counts.

    Raises:
        ConfigError: no batch has the layers of all tasks, or there is only one task.
    """
    with prepared(config, batches) as (run, precision, chosen, folder):
        rows = sorted({row for batch in chosen for row in batch.rows})
        wanted = kinds(run, config.treatment).items()
        steppers = {name: TreatedStepper(run, name, one, precision, rows, folder) for name, one in wanted}
        seconds = benchmark.seconds_of(steppers, chosen, rounds, on_batch)
    found = {name: UpdateCost(number) for name, number in seconds.items()}
    for name, cost in found.items() if memory else ():
        cost.memory = hardware.in_fresh_process(_alone, config.model_dump(mode="json"), name, batches)
    return found


def ratios(costs: dict[str, UpdateCost], own: TreatmentConfig | None = None) -> dict[str, float]:
    """Each kind's time over that of the joint update; with one task a batch, over that of untreated ones. Where a
    configuration has dispatch alone, over its whole run."""
    last = own.dispatch.last if own is not None and own.dispatch is not None and len(own.given) == 1 else 1.0
    return {
        name: 1 + last * (cost.seconds / costs[SINGLE if name.endswith(SINGLE) else JOINT].seconds - 1)
        for name, cost in costs.items()
    }


def _alone(tree: dict[str, Any], name: str, batches: int) -> int:
    with prepared(Config.model_validate(tree), batches) as (run, precision, chosen, folder):
        rows = sorted({row for batch in chosen for row in batch.rows})
        settings = kinds(run, Config.model_validate(tree).treatment)[name]
        stepper = TreatedStepper(run, name, settings, precision, rows, folder)
        for batch in chosen:
            stepper.step(batch.rows)
        return hardware.peak_memory(run.model.device)
