"""Before training: mtlprune plan, which differences a sweep could show; mtlprune train --dry-run, everything that can
fail, and what a run will cost."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import console, named_runs, new_table, say, seen_from_here
from mtlprune.corpora.store import load_corpus
from mtlprune.figures.grid import number
from mtlprune.sweeps.specification import SweepError, SweepSpecification, read_specification

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.statistics.standard_errors import StandardError
    from mtlprune.training.inspection import Inspection

MEASURED = "results/ewt5-minilm/records:none-???-?,none-mtl5-?"
USUAL = {"sd": 0.5, "sentences": 0.2}
"""Points by which MTL − STL, mean of five tasks, varies between seeds, and its standard error by test sentences, where
nothing else is given: as ``mtlprune plan SWEEP`` measures them on the three seeds of MEASURED."""
MOST_SEEDS = 200
SHOWN = 8  # unseen labels named by name
NAMED = 6
"""Settings of the same number of seeds that are named."""


def plan(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="The YAML file of a sweep.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUNS|KEY=VALUE]",
            help="Finished single-task and joint runs whose variance is taken; or sd=POINTS, by which MTL − STL varies "
            "between seeds, and sentences=POINTS, its standard error by test sentences.",
        ),
    ] = None,
) -> None:
    """Say which difference of MTL and STL a sweep's seeds would show in four of five studies, and how many seeds show
    one point.

    At two-sided 5 %, paired by seed, not corrected for several comparisons (docs/significance.md).
    """
    settings = _joint_settings(read_specification(sweep))
    values = dict(one.split("=", 1) for one in given or () if "=" in one)
    runs = [one for one in given or () if "=" not in one]
    if values and runs:
        raise SweepError(f"expected finished runs or {'=POINTS, '.join(values)}=POINTS, found both; give one of them")
    errors, source = _measured(runs) if runs else _given(values)
    columns = (f">{name.upper()}" for name in errors)
    table = new_table(f"MTL − STL that {sweep} could show, points", ">seeds", *columns, "settings")
    for seeds, names in sorted(settings.items()):
        known = [number(error.of_seeds(seeds).detectable()) for error in errors.values()]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        table.add_row(str(seeds), *known, ", ".join(names[:NAMED]) + more)
    console().print(table)
    needed = (f"{name.upper()} {_seeds_for(1.0, error)}" for name, error in errors.items())
    say(f"seeds that would show 1 point: {', '.join(needed)}")
    say(source)


def _joint_settings(specification: SweepSpecification) -> dict[int, list[str]]:
    """Number of seeds, two or more → the joint settings that have so many in common with single-task runs of all their
    tasks. Raises SweepError where there are none."""
    from mtlprune.sweeps.cells import resolve

    cells = resolve(specification, Path(), planned=True).cells
    alone, joint = defaultdict[str, set[int]](set), dict[str, tuple[Sequence[str], set[int]]]()
    for recipe in specification.recipes():
        config = cells[recipe.name].config
        if len(config.tasks) == 1:
            alone[config.tasks[0]].add(config.train.seed)
        else:
            joint.setdefault(recipe.title or recipe.name, (config.tasks, set()))[1].add(config.train.seed)
    settings = defaultdict[int, list[str]](list)
    for title, (tasks, seeds) in joint.items():
        settings[len(seeds.intersection(*(alone[task] for task in tasks)))].append(title)
    settings = {seeds: titles for seeds, titles in settings.items() if seeds > 1}
    if not settings:
        raise SweepError(
            f"{specification.path}: expected tasks trained alone and jointly with the same two seeds or more, found "
            "none; add them to the grid"
        )
    return settings


def _given(values: Mapping[str, str]) -> tuple[dict[str, StandardError], str]:
    """Errors of one seed by values, or usual ones, and where they are from."""
    from mtlprune.statistics.standard_errors import StandardError

    points = USUAL | {key: _points(key, text) for key, text in values.items()}
    source = (
        f"standard deviation between seeds {points['sd']:g} points, error by test sentences {points['sentences']:g}"
    )
    if not values:
        source += f', as "mtlprune plan SWEEP {MEASURED}" measures for MiniLM and 2,000 sentences'
    return {"mean": StandardError((points["sd"],), (0,), (0.0,), points["sentences"])}, source


def _points(key: str, text: str) -> float:
    if key not in USUAL:
        raise SweepError(f"{key}={text}: expected {' or '.join(f'{known}=POINTS' for known in USUAL)}")
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < 100:
            return value
    raise SweepError(f"{key}: expected points above 0 and below 100, found {text!r}")


def _measured(runs: Sequence[str]) -> tuple[dict[str, StandardError], str]:
    """Errors of the mean of tasks and of each task by finished runs, and what they are."""
    from scipy import stats

    from mtlprune.analyses.analysis import Request, find
    from mtlprune.analyses.treatments.measure import gap_errors

    folders = named_runs(seen_from_here(runs))
    split = "test" if all("test" in folder.splits() for folder in folders) else "dev"
    errors = gap_errors(Request([str(folder.path) for folder in folders], Path(), find("treatments").options(), split))
    mean = errors["mean"]
    if mean.unknown or not mean.free:
        raise SweepError(f"{runs[0]}: {mean.unknown or 'two seeds or more are needed'}, so no variance is known")
    [free], parts = mean.free, []
    for name, error in errors.items():
        between = error.of_seeds(1).seeds
        parts.append(f"{name.upper()} {number(*between) if between else '–'} and {number(error.sentences)}")
    far = [math.sqrt(free / stats.chi2.isf(tail, free)) for tail in (0.975, 0.025)]
    return errors, (
        f"standard deviation between seeds, and error by sentences of {split}, points: {', '.join(parts)}; by "
        f"{free + 1} seeds, so that the former may be {far[1]:.1f} to {far[0]:.1f} times as large (95 %)"
    )


def _seeds_for(effect: float, error: StandardError) -> str:
    """The fewest seeds whose minimum detectable effect is no larger."""
    enough = (seeds for seeds in range(2, MOST_SEEDS + 1) if error.of_seeds(seeds).detectable() <= effect)
    return str(next(enough, f"more than {MOST_SEEDS}"))


def show_plan(settings: Config) -> None:
    """Check configuration, data and encoder as training would use them, and print what it will do and cost; ends with
    "ready", or, where the corpus is missing, with how it is built."""
    from mtlprune.sweeps.times import data_missing

    path, terminal = Path(settings.data.path), console()
    if missing := data_missing(path):
        for line in [*_without_corpus(settings), *_cost(settings)]:
            terminal.print(line)
        return terminal.print(missing, style="bold")

    from mtlprune.training.inspection import inspect

    with console(stderr=True).status("checking …"):
        inspection = inspect(settings, load_corpus(path))
    terminal.print(_split_table(inspection))
    for line in [*_facts(inspection), *_cost(settings), *_plan(inspection)]:
        terminal.print(line)
    for line in [*_warnings(inspection), *_pruning_warnings(inspection)]:
        terminal.print(f"warning: {line}", style="yellow")
    terminal.print("ready", style="bold")


def _without_corpus(settings: Config) -> Iterator[str]:
    """Lines of what is known of a run before its corpus is there."""
    from mtlprune.sweeps.times import shape_of, training_sentences

    train, data = settings.train, settings.data
    yield f"parameters: encoder about {shape_of(settings.encoder.name).weights:,}; decoders by the labels of the corpus"
    if (known := training_sentences(settings)) is not None:
        sentences = min(known, data.train_sentences or known)
        each = math.ceil(sentences / train.batch_sentences)
        each *= len(settings.tasks) if train.mixing == "sampled" else 1
        of = f"{sentences:,} sentences, {train.mixing} mixing"
        yield f"updates: about {each:,} an epoch, {each * train.epochs:,} in {train.epochs} epochs ({of})"
    if text := start_and_pruning(settings):
        yield text


def _cost(settings: Config) -> Iterator[str]:
    """Lines about memory and time, by arithmetic."""
    from mtlprune.sweeps.times import CORE, GPU, rough_memory, rough_seconds

    yield f"memory: about {rough_memory(settings) / 1e9:.1f} GB"
    if (slow := rough_seconds(settings)) is not None:
        speeds = f"{CORE / 1e12:g} and {GPU / 1e12:g} TFLOP/s"
        yield f"time, roughly: {_duration(slow)} on one core, {_duration(slow * CORE / GPU)} on a GPU ({speeds})"


def _duration(seconds: float) -> str:
    number, unit = (seconds / 3600, "h") if seconds >= 3600 else (seconds / 60, "min")
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def _split_table(inspection: Inspection) -> Table:
    table = new_table(None, "", *(f">{split}" for split in inspection.sentences))
    rows: dict[str, dict[str, int]] = {
        "sentences": inspection.sentences,
        "words": inspection.words,
        **{
            f"sentences with {task}": {split: inspection.known[split][task] for split in inspection.sentences}
            for task in inspection.config.tasks
        },
        "longest sentence (words)": inspection.longest,
        "words that become unknown tokens": inspection.unknown_words,
        "sentences longer than the positions": inspection.windowed,
        "windows of the longest": inspection.windows,
    }
    for title, cells in rows.items():
        table.add_row(title, *(f"{cells[split]:,}" for split in inspection.sentences))
    return table


def _facts(inspection: Inspection) -> list[str]:
    train = inspection.config.train
    least, most = min(inspection.updates), max(inspection.updates)
    per_epoch = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    epochs = "1 epoch" if train.epochs == 1 else f"{train.epochs} epochs"
    parameters = ", ".join(f"{name} {number:,}" for name, number in inspection.parameters.items())
    return [
        f"precision {train.precision} on {train.device}, threads: {train.threads}",
        f"updates: {per_epoch} an epoch, {sum(inspection.updates):,} in {epochs} ({train.mixing} mixing)",
        f"parameters: {parameters}; together {sum(inspection.parameters.values()):,}",
        *filter(None, [inspection.remarks]),
    ]


def _warnings(inspection: Inspection) -> list[str]:
    warnings, data = [], inspection.config.data
    for task, labels in inspection.unseen.items():
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        warnings.append(
            f"{task}: {len(labels)} labels of {data.dev} are not in {data.train} and can never be predicted: "
            f"{', '.join(labels[:SHOWN])}{more}"
        )
    for task, wide in inspection.wide_arguments.items():
        if wide:
            width = getattr(inspection.config.decoders, task).max_width
            warnings.append(
                f"{task}: {wide:,} arguments of {data.train} are wider than "
                f"decoders.{task}.max_width = {width} and cannot be learnt"
            )
    for split, unknown in inspection.unknown_words.items():
        if unknown > 0.01 * inspection.words[split]:
            warnings.append(f"{split}: {unknown / inspection.words[split]:.1%} of the words become unknown tokens")
    return warnings


TRAVEL = 25
"""Rate times updates that gates need to come to a given number of heads (docs/gates.md)."""
CLOSED_GATE = 2.4
"""How far a logit lies below 0 where its head is closed."""


def start_and_pruning(config: Config) -> str:
    """train.start, train.freeze, treatment and pruning in words; empty where a run trains all of the encoder."""
    from mtlprune.runs.groups import pruning_title, treatment_title

    tree, train = config.model_dump(mode="json"), config.train
    begun = f"starts from {train.start}, its best epoch" if train.start else ""
    frozen = f"frozen: {' and '.join(train.freeze)}" if train.freeze else ""
    named = {"treatment": treatment_title(tree), "pruning": pruning_title(tree)}
    return "; ".join(filter(None, [begun, frozen, *(f"{key}: {title}" for key, title in named.items() if title)]))


def _plan(inspection: Inspection) -> Iterator[str]:
    """Lines that say from what a run starts, and what pruning is going to do."""
    from mtlprune.training.pruning.selectors import expected_false

    if text := start_and_pruning(inspection.config):
        yield text
    if inspection.heads is None:
        return
    settings, total = inspection.config.pruning, sum(inspection.updates)
    layers, each = inspection.heads
    yield f"heads: {layers * each} ({layers} layers × {each})"
    if settings.sets == "per_task":
        yield f"each task has gates of its own: a batch is encoded {len(inspection.config.tasks)} times"
    if settings.importance_of is not None:
        sentences = min(settings.importance_sentences, inspection.sentences[inspection.config.data.train])
        yield f"heads are chosen by the loss of {settings.importance_of} on {sentences:,} training sentences"
    if settings.method == "stable":
        bound = expected_false(settings.keep or 0, settings.threshold, layers * each)
        yield (
            f"stable: claimed are heads that {settings.threshold:g} of {settings.halves} halves of them keep; at most "
            f"{bound:.1f} false claims are expected"
        )
    if settings.method == "gates" and settings.penalty == "lambda":
        yield f"penalty lambda {settings.strength:g}: how many heads stay open is not known before"
    elif settings.method == "gates" or settings.noise:
        yield f"heads are closed by update {inspection.settled:,} of {total:,}; an epoch after it may be the best"


def _pruning_warnings(inspection: Inspection) -> Iterator[str]:
    """Rates by which gates hardly come to what was asked for."""
    settings, total = inspection.config.pruning, sum(inspection.updates)
    free = settings.penalty == "lambda"
    if settings.method == "gates" and settings.rate * total < (CLOSED_GATE if free else 0.9 * TRAVEL):
        late = "hardly any head will close" if free else f"the gates may not come to {settings.keep} heads in time"
        advice = f"take about {TRAVEL / total:.2g}, or train for more updates"
        yield f"pruning.rate: {settings.rate:g} is small for {total:,} updates; {late}; {advice}"
