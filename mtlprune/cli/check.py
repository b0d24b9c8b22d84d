"""mtlprune check: everything that can fail before training, without training."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import Overrides, console, new_table
from mtlprune.config import apply_override, find_config, merged, read_tree, tree_of
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import load_corpus, read_info

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.sweeps.specification import SweepSpecification
    from mtlprune.training.inspection import Inspection


SHOWN = 8  # unseen labels named by name


def check(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
    overrides: Overrides = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all settings as YAML; check no data.")] = False,
) -> None:
    """Check configuration, data and encoder as `train` would use them; ends with "ready" or exit code 2."""
    if not everything:
        check_settings(config, overrides or ())

    from mtlprune.config.config import load_config

    settings = load_config(config, overrides or [])
    if everything:
        typer.echo("\n".join(settings.commented()))
        return

    from mtlprune.training.inspection import inspect

    terminal = console()
    with console(stderr=True).status("checking …"):
        inspection = inspect(settings, load_corpus(Path(settings.data.path)))
    terminal.print(_split_table(inspection))
    for line in [*_facts(inspection), *_plan(inspection)]:
        terminal.print(line)
    for line in [*_warnings(inspection), *_pruning_warnings(inspection)]:
        terminal.print(f"warning: {line}", style="yellow")
    terminal.print("ready", style="bold")


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
    for task, number in inspection.wide_arguments.items():
        if number:
            width = getattr(inspection.config.decoders, task).max_width
            warnings.append(
                f"{task}: {number:,} arguments of {data.train} are wider than "
                f"decoders.{task}.max_width = {width} and cannot be learnt"
            )
    for split, number in inspection.unknown_words.items():
        if number > 0.01 * inspection.words[split]:
            warnings.append(f"{split}: {number / inspection.words[split]:.1%} of the words become unknown tokens")
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


# -- A wrong path of a corpus is said at once: before torch and all that needs it are loaded, which takes seconds --


def check_corpora(*paths: Path | None) -> None:
    """Raises CorpusError where no corpus lies at a path that is given."""
    for path in paths:
        if path is not None:
            read_info(path)


def check_settings(source: str | Path, overrides: Sequence[str] = ()) -> None:
    """The same of the corpora that a configuration names. Raises ConfigError too, where it cannot be read."""
    check_tree(tree_of(source, overrides))


def check_tree(tree: Mapping[str, Any]) -> None:
    """The same of data.path, or data.corpora, in a configuration's keys and values."""
    data = tree.get("data")
    block = data if isinstance(data, Mapping) else {}
    named = block.get("corpora", block.get("path"))
    several = named.split(",") if isinstance(named, str) and "corpora" in block else named
    paths = several if isinstance(several, list) else [several]
    check_corpora(*(Path(path.strip()) for path in paths if isinstance(path, str)))


def check_run(run: Path, data: Path | None = None) -> None:
    """The same of a run's own corpus, or of ``data`` instead. Raises RunError too: no run, or a damaged one."""
    from mtlprune.runs.folder import RunFolder

    folder = RunFolder.with_weights(run)
    tree = folder.read_config()
    try:
        check_tree(tree) if data is None else check_corpora(data)
    except CorpusError as error:
        raise CorpusError(f"{folder.path}: {error}") from None


def check_sweep(specification: SweepSpecification, overrides: Sequence[str] = ()) -> None:
    """The same of the first cell of a sweep."""
    beside = specification.path.parent / specification.base
    tree = read_tree(beside if beside.is_file() else find_config(specification.base))
    for recipe in itertools.islice(specification.recipes(), 1):
        for layer in recipe.layers:
            tree = merged(tree, copy.deepcopy(layer))
    for override in overrides:
        apply_override(tree, override)
    check_tree(tree)
