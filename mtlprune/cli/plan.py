"""`mtlprune plan` and `mtlprune train --dry-run`, which are run before training.

The first computes which differences a sweep can detect. The second checks everything that can fail in a run, and
estimates its time and memory.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import console, named_runs, new_table, say, seen_from_here
from mtlprune.corpora.store import load_corpus
from mtlprune.errors import plural
from mtlprune.figures.grid import number
from mtlprune.io.files import make_room
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import DescribedRun, partners, pruning_title, treatment_title
from mtlprune.sweeps.folder import default_folder
from mtlprune.sweeps.specification import SweepError, SweepSpecification, read_specification

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.statistics.standard_errors import StandardError
    from mtlprune.training.inspection import Inspection

_SD, _SENTENCES = 0.3, 0.2
"""Assumed standard deviation between seeds, and assumed standard error over sentences, of MTL − STL averaged over five
tasks, in points. They were estimated for MiniLM on 2,000 sentences. Single tasks have standard deviations of 0.14 to
1.29 points (``mtlprune plan SWEEP 'results/ewt5-minilm/records:none-???-?,none-mtl5-?'``), so the mean of five
independent tasks would have 0.29. The observed standard deviation of the mean is 0.11, which may be chance."""
_MOST_SEEDS = 200
_MAX_LABELS_SHOWN = 8
"""Number of unseen labels that a warning lists by name."""


def plan(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="The YAML file of a sweep.")],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUNS|sd=POINTS]",
            help="Finished single-task and joint runs from which the variance is estimated, or the standard "
            f"deviation over seeds of the joint minus the single-task score (sd={_SD:g}, if not given).",
        ),
    ] = None,
) -> None:
    """Compute which difference between joint and single-task training a sweep can detect.

    A difference is detectable if four of five repetitions of the sweep would find the difference with a two-sided test
    at 5 %. The test is paired by seed and not corrected for multiple tests. The command also computes how many seeds
    are needed to detect a difference of one point (docs/methods/significance.md).
    """
    run_arguments = runs or [f"sd={_SD}"]
    tasks, settings = _joint_settings(read_specification(sweep))
    errors = _assumed(run_arguments) if run_arguments[0].startswith("sd=") else _measured(run_arguments, tasks)
    title = f"MTL − STL of {', '.join(map(str.upper, tasks))} that {sweep} can detect, in points"
    table = new_table(title, "", *(f">{name.upper()}" for name in errors), "settings")
    seed_deviations = (number(error.of_seeds(1).seeds[0]) for error in errors.values())
    table.add_row("standard deviation between seeds", *seed_deviations, "")
    table.add_row("standard error over sentences", *(number(error.sentences) for error in errors.values()), "")
    for seeds, names in sorted(settings.items()):
        detectable_effects = (number(error.detectable(seeds)) if seeds > 1 else "–" for error in errors.values())
        table.add_row(f"detectable with {plural(seeds, 'seed')}", *detectable_effects, ", ".join(names))
    table.add_row("seeds for 1 point", *map(_seeds_for_a_point, errors.values()), "")
    console().print(table)
    if not runs:
        say(
            f"The table assumes standard deviations of {_SD:g} points between seeds and {_SENTENCES:g} points over "
            "sentences, which are those of the mean of five tasks of MiniLM on 2,000 sentences. Name finished runs or "
            "sd=POINTS to change them. A single task varies more."
        )


def _joint_settings(specification: SweepSpecification) -> tuple[Sequence[str], dict[int, list[str]]]:
    """Find the joint settings of a sweep that can be compared with single-task runs.

    Only joint runs with the largest number of tasks count. Their seeds are compared with those of their single-task
    partners, or of all single-task runs of a task that has no partner.

    Returns:
        The tasks of these joint runs, and number of seeds in common with single-task runs → settings, each by the name
        of its first cell.

    Raises:
        SweepError: no setting has two or more seeds in common with single-task runs.
    """
    from mtlprune.sweeps.cells import resolve

    cells = resolve(specification, default_folder(specification), planned=True).cells
    names = [recipe.name for recipe in specification.recipes()]
    runs = [DescribedRun(RunFolder(name), cells[name].config, {}) for name in names]
    tasks = max((run.tasks for run in runs), key=len)
    groups = dict[str, list[DescribedRun]]()
    for run in runs:
        if run.tasks == tasks:
            groups.setdefault(repr((run.encoder, sorted(run.settings.items()))), []).append(run)
    singles = [run for run in runs if len(run.tasks) == 1]
    shared = defaultdict[int, list[str]](list)
    for group in groups.values():
        partner_runs, seeds = partners(group[0], singles), {run.seed for run in group}
        for task in tasks:
            of_task = [[run.seed for run in run_set if run.tasks == (task,)] for run_set in (partner_runs, singles)]
            seeds &= {*(of_task[0] or of_task[1])}
        shared[len(seeds)].append(group[0].name)
    if len(tasks) < 2 or max(shared) < 2:
        missing_tasks = ", ".join(task for task in tasks if (task,) not in {run.tasks for run in singles})
        missing_runs = f"no single-task runs of {missing_tasks}" if len(tasks) > 1 and missing_tasks else "none"
        raise SweepError(
            f"{specification.path}: expected joint runs and single-task runs of each of their tasks, with two or more "
            f"common seeds, found {missing_runs}; add such runs to the grid"
        )
    return tasks, {number: names for number, names in shared.items() if number}


def _assumed(run_arguments: Sequence[str]) -> dict[str, StandardError]:
    """Return the standard error of the mean of tasks that the argument sd=POINTS implies. Raises SweepError."""
    from mtlprune.statistics.standard_errors import StandardError

    with contextlib.suppress(ValueError):
        if len(run_arguments) == 1 and 0 < (points := float(run_arguments[0].removeprefix("sd="))) < 100:
            return {"mean": StandardError((points,), (0,), (0.0,), _SENTENCES)}
    raise SweepError(
        f"{' '.join(run_arguments)}: expected sd=POINTS above 0 and below 100, or finished runs; correct the argument"
    )


def _measured(runs: Sequence[str], tasks: Sequence[str]) -> dict[str, StandardError]:
    """Estimate the standard errors of MTL − STL from finished runs, for the mean of tasks ("mean") and for each task.

    Raises:
        SweepError: the runs have other tasks than the sweep, or too few seeds.
    """
    from mtlprune.analyses.analysis import Request, find
    from mtlprune.analyses.heads.treatments.measure import difference_errors

    folders = named_runs(seen_from_here(runs))
    split = next(
        (split_name for split_name in ("test", "dev") if all(split_name in folder.splits() for folder in folders)),
        "test",
    )
    errors = difference_errors(
        Request([str(folder.path) for folder in folders], Path(), find("treatments").options(), split)
    )
    if {*errors} != {"mean", *tasks}:
        joint_tasks = ", ".join(map(str.upper, [*errors][1:]))
        raise SweepError(
            f"{runs[0]}: expected joint runs of the tasks that the sweep trains jointly, found those of {joint_tasks}; "
            "name other runs"
        )
    for name, error in errors.items():
        if error.unknown or not error.free:
            cause = error.unknown or "two or more seeds are needed"
            raise SweepError(f"{runs[0]}: the variance of {name.upper()} is not known: {cause}")
    return errors


def _seeds_for_a_point(error: StandardError) -> str:
    """Return the smallest number of seeds with which one point is detectable, as text."""
    seeds_needed = bisect_left(range(_MOST_SEEDS + 1), True, 2, key=lambda seeds: error.detectable(seeds) <= 1)
    return str(seeds_needed) if seeds_needed <= _MOST_SEEDS else f">{_MOST_SEEDS}"


def show_plan(configs: Sequence[Config], folders: Sequence[RunFolder]) -> None:
    """Check configuration, data, encoder and run folders as training does, and print what training will do and cost.

    The last line is "ready", or if the corpus is missing, the command that builds it.

    Args:
        configs: the configurations of runs that differ only in their seeds.
        folders: the folders of the runs.
    """
    from mtlprune.sweeps.times import data_missing

    settings = configs[0]
    path, terminal = Path(settings.data.path), console()
    for folder in folders:
        check_folder(folder)
    if len(configs) > 1:
        terminal.print(f"{len(configs)} runs that differ in their seeds; this is the plan of each")
    if missing := data_missing(path):
        for line in [*_without_corpus(settings), *_cost(settings)]:
            terminal.print(line)
        return terminal.print(missing, style="bold")

    from mtlprune.cli.display import working
    from mtlprune.training.hardware import resolve_auto
    from mtlprune.training.inspection import inspect
    from mtlprune.training.setup import check_same

    with working("checking …"):
        corpus = load_corpus(path)
        for config, folder in zip(configs, folders, strict=True):
            if folder.has("config.yaml"):
                check_same(resolve_auto(config, folder), folder, corpus.fingerprint)
        inspection = inspect(settings, corpus)
    terminal.print(_split_table(inspection))
    for line in [*_facts(inspection), *_cost(settings), *_plan(inspection)]:
        terminal.print(line)
    for line in [*_warnings(inspection), *_pruning_warnings(inspection)]:
        terminal.print(f"warning: {line}", style="yellow")
    terminal.print("ready", style="bold")


def check_folder(folder: RunFolder) -> None:
    """Raise RunError if a run cannot be trained in a folder, because it is packed or foreign or cannot be written."""
    folder.refuse_packed("weights")
    make_room(folder.path)
    folder.check_ours()


def _without_corpus(settings: Config) -> Iterator[str]:
    """Yield the lines that can be computed for a run whose corpus is not built yet."""
    from mtlprune.sweeps.times import shape_of, training_sentences

    train, data = settings.train, settings.data
    yield (
        f"parameters: encoder about {shape_of(settings.encoder.name).weights:,}; the size of the decoders depends on "
        "the labels of the corpus"
    )
    if (sentence_count := training_sentences(settings)) is not None:
        sentences = min(sentence_count, data.train_sentences or sentence_count)
        updates_per_epoch = math.ceil(sentences / train.batch_sentences)
        updates_per_epoch *= len(settings.tasks) if train.mixing == "sampled" else 1
        basis = f"{sentences:,} sentences, {train.mixing} mixing"
        total = f"{updates_per_epoch * train.epochs:,} in {plural(train.epochs, 'epoch')}"
        yield f"updates: about {updates_per_epoch:,} per epoch, {total} ({basis})"
    if text := start_and_pruning(settings):
        yield text


def _cost(settings: Config) -> Iterator[str]:
    """Yield lines with the estimated memory and time of training."""
    from mtlprune.cli.display import duration
    from mtlprune.sweeps.times import GPU, core, rough_memory, rough_seconds

    yield f"memory: about {rough_memory(settings) / 1e9:.1f} GB"
    if (slow := rough_seconds(settings)) is not None:
        speeds = f"{core() / 1e12:g} and {GPU / 1e12:g} TFLOP/s"
        yield f"estimated time: {duration(slow)} on one core, {duration(slow * core() / GPU)} on a GPU ({speeds})"


def _split_table(inspection: Inspection) -> Table:
    table = new_table(None, "", *(f">{split}" for split in inspection.sentences))
    rows: dict[str, dict[str, int]] = {
        "sentences": inspection.sentences,
        "words": inspection.words,
        **{
            f"sentences with {task}": {
                split: inspection.annotated_counts[split][task] for split in inspection.sentences
            }
            for task in inspection.config.tasks
        },
        "longest sentence (words)": inspection.longest,
        "words that become unknown tokens": inspection.unknown_words,
        "sentences with more sub-words than positions": inspection.windowed,
        "windows of the longest sentence": inspection.windows,
    }
    for title, cells in rows.items():
        table.add_row(title, *(f"{cells[split]:,}" for split in inspection.sentences))
    return table


def _facts(inspection: Inspection) -> list[str]:
    """Return lines on precision, updates and parameters of a run."""
    train = inspection.config.train
    fewest, largest = min(inspection.updates), max(inspection.updates)
    per_epoch = f"{fewest:,}" if fewest == largest else f"{fewest:,} to {largest:,}"
    epochs = plural(train.epochs, "epoch")
    parameters = ", ".join(f"{name} {number:,}" for name, number in inspection.parameters.items())
    return [
        f"precision {train.precision} on {train.device}, threads: {train.threads}",
        f"updates: {per_epoch} per epoch, {sum(inspection.updates):,} in {epochs} ({train.mixing} mixing)",
        f"parameters: {parameters}; in all {sum(inspection.parameters.values()):,}",
        *filter(None, [inspection.remarks]),
    ]


def _warnings(inspection: Inspection) -> list[str]:
    """Return warnings about labels that cannot be learnt, and about unknown words."""
    warnings, data = [], inspection.config.data
    for task, labels in inspection.labels_unseen.items():
        remaining = f" and {len(labels) - _MAX_LABELS_SHOWN} more" if len(labels) > _MAX_LABELS_SHOWN else ""
        warnings.append(
            f"{task}: {len(labels)} labels of {data.dev} are not in {data.train} and can never be predicted: "
            f"{', '.join(labels[:_MAX_LABELS_SHOWN])}{remaining}"
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


_TRAVEL = 25
"""Product of learning rate and number of updates that gates need to reach a target number of heads
(docs/methods/gates.md)."""
_CLOSED_GATE = 2.4
"""A head is closed if the logit of its gate is below minus this value."""


def start_and_pruning(config: Config) -> str:
    """Describe train.start, train.freeze, treatments and pruning of a run; "" if it uses none of them."""
    train = config.train
    start_text = f"starts from the best epoch of {train.start}" if train.start else ""
    frozen = f"frozen: {' and '.join(train.freeze)}" if train.freeze else ""
    titles = {"treatment": treatment_title(config.treatment), "pruning": pruning_title(config)}
    return "; ".join(filter(None, [start_text, frozen, *(f"{key}: {title}" for key, title in titles.items() if title)]))


def _plan(inspection: Inspection) -> Iterator[str]:
    """Yield lines that describe from what a run starts, and what pruning will do."""
    from mtlprune.training.pruning.selectors import expected_false

    if text := start_and_pruning(inspection.config):
        yield text
    if inspection.heads is None:
        return
    settings, total = inspection.config.pruning, sum(inspection.updates)
    layers, heads_per_layer = inspection.heads
    yield f"heads: {layers * heads_per_layer} ({layers} layers × {heads_per_layer})"
    if settings.sets == "per_task":
        yield f"each task has separate gates, so a batch is encoded {len(inspection.config.tasks)} times"
    if settings.importance_of is not None:
        sentences = min(settings.importance_sentences, inspection.sentences[inspection.config.data.train])
        yield f"heads are chosen by the loss of {settings.importance_of} on {sentences:,} training sentences"
    if settings.method == "stable":
        bound = expected_false(settings.keep or 0, settings.threshold, layers * heads_per_layer)
        yield (
            f"stable: a head is claimed if at least {settings.threshold:.0%} of {settings.halves} random halves of "
            f"these sentences keep it; at most {bound:.1f} false claims are expected"
        )
    if settings.method == "gates" and settings.penalty == "lambda":
        yield (
            f"the penalty is λ = {settings.strength:g}; the number of heads that stay open is not known before training"
        )
    elif settings.method == "gates" or settings.noise:
        yield f"heads are closed by update {inspection.settles_at:,} of {total:,}; only later epochs may be the best"


def _pruning_warnings(inspection: Inspection) -> Iterator[str]:
    """Yield warnings about learning rates that are too small for the gates to close heads within the updates."""
    settings, total = inspection.config.pruning, sum(inspection.updates)
    free = settings.penalty == "lambda"
    if settings.method == "gates" and settings.rate * total < (_CLOSED_GATE if free else 0.9 * _TRAVEL):
        late = "hardly any head will close" if free else f"the gates may not reach {settings.keep} heads in time"
        advice = f"set it to about {_TRAVEL / total:.2g}, or train for more updates"
        yield f"pruning.rate = {settings.rate:g} is small for {total:,} updates, so {late}; {advice}"
