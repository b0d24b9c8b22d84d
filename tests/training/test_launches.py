"""What a GPU would be asked to do: a counter against counts by hand, and ceilings of steps and annotation."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from launch_counter import DEVICE, Launches, counted
from small_runs import Settings

from mtlprune.config.config import build_config
from mtlprune.encoder.batch import to_device
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span
from mtlprune.tasks import TASKS
from mtlprune.training.benchmark import Stepper, gated_run
from mtlprune.training.checkpoint import Progress
from mtlprune.training.data import load_data
from mtlprune.training.hardware import configure_process, resolve_auto
from mtlprune.training.loop import Trainer
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.run import Run, gate_sets


def launches_of(work: Callable[[torch.Tensor], object]) -> Launches:
    with counted() as launches:
        work(torch.arange(12.0, requires_grad=True, device=DEVICE).view(3, 4))
    launches.operations.subtract({"arange": 1})
    return launches


def test_operations_on_tensors_of_both_sides_are_seen():
    """And waits: the controls of the counts below."""
    assert launches_of(lambda x: x + torch.ones(4)).mixed == {"add": 1}
    assert not launches_of(lambda x: x + torch.tensor(1.0)).mixed  # a scalar may lie anywhere
    assert launches_of(lambda x: x.detach().cpu() + torch.ones(4)).waits.total() == 1  # the host adds
    assert launches_of(lambda x: x[x > 3]).waits.total() == 1
    assert not launches_of(lambda x: x[to_device(np.array([0, 2]), x.device)]).waits


WORDS = "the old students of London unbelievably wrote , antidisestablishmentarianism letters".split()  # noqa: SIM905


def sentence_of(number: int, size: int) -> Sentence:
    every = range(0, size - 3, 5)
    return Sentence(
        str(number),
        tuple(WORDS[(number * number + place) % len(WORDS)] for place in range(size)),
        pos=tuple("ABC"[place % 3] for place in range(size)),
        ner=tuple(Span(place, place + 2, "AB"[place % 2]) for place in every),
        dep=Dependencies(tuple(range(size)), ("root", *["ab"[place % 2] for place in range(size - 1)])),
        con=(Span(0, size, "S"), *(Span(place, place + 2, "NP") for place in every)),
        srl=tuple(Predicate(place, None, (Span(place + 1, place + 3, "A"),)) for place in every),
    ).validate()


def counts_of(work: Callable[[], object], model: MultiTaskModel) -> Launches:
    work()  # the first call makes the optimizer's state
    with counted([gates.fixed for gates in gate_sets(model).values()]) as launches:
        work()
    return launches


def run_of(settings: dict[str, Any], words: int) -> Run:
    """A new model on four sentences; more sentences take the same operations on larger tensors."""
    config = resolve_auto(build_config(settings))
    configure_process(config.train.threads)
    rows = [sentence_of(number, words) for number in range(4)]
    model = MultiTaskModel.build(config, {task: TASKS[task].collect(rows, task) for task in config.tasks})
    return load_data(config, model, rows, rows)


def steps_of(run: Run) -> Iterator[tuple[str, Launches]]:
    """Counts of a step of the bare encoder, of each task, of all and of all with gates."""
    every, tasks, gated = list(range(4)), run.config.tasks, gated_run(run)
    assert gated is not None
    bare = Stepper(run, (), torch.float32)
    yield "bare", counts_of(lambda: bare.step(every), run.model)
    joint = {"all": (run, tasks), "gated": (gated, tasks)}
    for name, (some, own) in ({task: (run, (task,)) for task in tasks} | joint).items():
        some = replace(some, config=some.config.model_copy(update={"tasks": own}))
        trainer = Trainer(some, RunFolder("launches"), make_optimizer(some.model, some.config), Progress())
        trainer.model.train()
        yield name, counts_of(lambda trainer=trainer, own=own: trainer.update([MiniBatch(own, every)]), some.model)


BARE = {20: 457, 88: 482}
"""Words of a sentence → operations of a step of MiniLM alone."""
MOST = {20: 2.53, 88: 4.2}
"""Words of a sentence → the most that a step of five tasks may launch, in multiples of a step of MiniLM alone."""


@pytest.mark.parametrize("words", [20, pytest.param(88, marks=pytest.mark.slow)])
def test_steps_launch_and_wait_no_more_than_they_have_to(small_settings: Settings, words: int):
    """Operations beyond the encoder's own do not depend on the encoder, so a tiny one stands in for MiniLM."""
    decoders = {"dep": {"relation_scorer": "mlp"}, "con": {"label_scorer": "mlp"}}  # as the preset has them
    settings = small_settings() | {"decoders": decoders}
    settings["encoder"]["checkpointing"] = False  # as on a GPU
    steps = dict(steps_of(run_of(settings, words)))
    beyond = steps["all"].operations.total() - steps["bare"].operations.total()
    assert beyond <= (MOST[words] - 1) * BARE[words]
    waits = {name: launches.waits.total() for name, launches in steps.items()}
    assert waits == {"bare": 0, "pos": 1, "ner": 1, "dep": 1, "con": 1, "srl": 2, "all": 2, "gated": 3}
    assert sum((launches.mixed for launches in steps.values()), Counter()) == {}


def test_annotation_waits_at_most_twice_a_task(small_settings: Settings):
    run = run_of(small_settings(), 20)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in run.model.tasks.parameters():
            parameter.normal_(std=0.3)  # new decoders predict next to nothing
    for tasks in (*((task,) for task in run.config.tasks), run.config.tasks):
        model = MultiTaskModel(run.model.encoder, {task: run.model.tasks[task] for task in tasks})  # type: ignore[misc]
        launches = counts_of(lambda model=model: list(model.annotate(run.dev, torch.float32)), model)
        assert launches.waits.total() <= 2 * len(tasks) and not launches.mixed, (tasks, launches)
