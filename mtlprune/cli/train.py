"""mtlprune train: begin a run, or go on with it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import Overrides, new_table

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config
    from mtlprune.runs import RunFolder
    from mtlprune.training.checkpoint import Progress


INTERRUPTED = 130
Out = Annotated[Path | None, typer.Option(help="The run folder; runs/NAME-DIGEST if not given.")]


def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
    overrides: Overrides = None,
    out: Out = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Train a run for each seed, one after another; --out is then the folder that holds them.",
        ),
    ] = None,
) -> None:
    """Train a run; the same command again continues where it stopped.

    One task is single-task training (tasks=pos), several are multi-task (tasks=pos,ner). Ctrl-C leaves a run that can
    go on. Several seeds are several runs; `mtlprune sweep` runs more of them, side by side.
    """
    from mtlprune.cli.check import check_settings

    check_settings(config, overrides or ())

    from mtlprune.cli.console import console, rank
    from mtlprune.config.config import default_folder, load_config
    from mtlprune.runs import RunFolder

    terminal, folders = console(), []
    asked = [[*(overrides or []), *seed] for seed in _seeds(seeds, overrides or ())]
    for settings in [load_config(config, one) for one in asked]:  # all are checked before the first is trained
        place = out / f"seed-{settings.train.seed}" if out and seeds is not None else out
        folder = RunFolder(place or default_folder(settings))
        train_run(settings, folder, terminal)
        folders.append(str(folder.path))
        if not rank():  # of several processes the first one owns the folder
            terminal.print(_best_table(settings, folder))
    if len(folders) > 1:
        terminal.print(f"compare them: mtlprune table {shlex.join(folders)}")


def _seeds(given: str | None, overrides: Sequence[str]) -> list[list[str]]:
    """An override for each seed, none where none are given. Raises ConfigError: no whole numbers, or one twice."""
    from mtlprune.config import ConfigError

    if given is None:
        return [[]]
    seeds = given.split(",")
    if not all(seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
        raise ConfigError(f"--seeds: expected different whole numbers such as 1,2,3, found {given!r}")
    if any(override.startswith("train.seed=") for override in overrides):
        raise ConfigError("--seeds and train.seed both say which seed; give one of them")
    return [[f"train.seed={int(seed)}"] for seed in seeds]


def train_run(config: Config, folder: RunFolder, terminal: Console) -> Progress:
    """Train with a display; a stopped training ends the process with code 130, saying how to go on."""
    from mtlprune.cli.check import start_and_freeze
    from mtlprune.cli.display import TrainingWatch
    from mtlprune.training.loop import finished
    from mtlprune.training.loop import train as train_model

    done_before = finished(folder) is not None
    begins = start_and_freeze(config)
    terminal.print(f"run {folder.path}: {', '.join(config.tasks)}{'; ' if begins else ''}{begins}{_pruning(config)}")
    watch = TrainingWatch(terminal, config.train)
    progress = attended(terminal, watch, partial(train_model, config, folder))
    state = "was finished already" if done_before else "finished"
    epochs = "1 epoch" if progress.epoch == 1 else f"{progress.epoch} epochs"
    terminal.print(f"{folder.path} {state}: {epochs}, {progress.seconds:.0f} s")
    return progress


def attended(terminal: Console, watch: Any, training: Callable[..., Progress]) -> Progress:
    """Train with a display; a stopped training ends the process with code 130, saying how to go on."""
    from mtlprune.cli.console import shown_log
    from mtlprune.cli.display import Interruption

    again = f"the same command continues: {command()}"
    try:
        with shown_log(terminal), Interruption(terminal) as stop, watch:
            progress = training(watch=watch, stop=stop)
    except KeyboardInterrupt:
        terminal.print(f"stopped at once; what came after the last checkpoint is lost; {again}")
        raise typer.Exit(INTERRUPTED) from None
    if not progress.finished:
        where = f"epoch {progress.epoch + 1}, update {progress.step}"
        terminal.print(f"stopped in {where}; a checkpoint is written; {again}")
        raise typer.Exit(INTERRUPTED)
    return progress


def command() -> str:
    """The command that started this process, or all of them."""
    words = ["mtlprune", *sys.argv[1:]]
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        words = ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "N"), "-m", *words]
    return shlex.join(words)


def _pruning(config: Config) -> str:
    settings = config.pruning
    if settings.method == "none":
        return ""
    words: list[str] = [settings.method]
    if settings.method == "gates":
        words = ["gates", f"penalty {settings.penalty}", *(["one set a task"] if settings.sets == "per_task" else [])]
    return f"; pruning: {', '.join(words)}{f', {settings.keep} heads' if settings.keep is not None else ''}"


def _best_table(config: Config, folder: RunFolder) -> object:
    from mtlprune.cli.display import number_of_heads
    from mtlprune.scores import main_score, name_of

    best, decoders = folder.read_best(), config.model_dump()["decoders"]
    scores = folder.read_scores(config.data.dev)
    what = "evaluation" if config.train.evaluate_every else "epoch"
    title = f"{config.data.dev}, best {what} {best['joint']['epoch']}"
    table = new_table(title, "task", "score", ">%", ">own best", f">in {what}")
    for task, values in scores.items():
        own, main = best[task], main_score(task, decoders)
        shown = f"{values[main]:.2f}", f"{own['score']:.2f}", str(own["epoch"])
        table.add_row(task, name_of(task, main, decoders), *shown)
    if len(scores) > 1:
        table.add_section()
        table.add_row("joint", "mean", f"{best['joint']['score']:.2f}", "", "")
    lines = folder.read_gates() if folder.gates_path.is_file() else []
    if gates := [line for line in lines if line["epoch"] == best["joint"]["epoch"]]:
        table.add_section()
        for name, count in gates[-1]["open"].items():
            owner = "heads" if name == "shared" else f"heads of {name}"
            table.add_row(owner, "open", f"{count} of {number_of_heads(gates[-1])}", "", "")
    return table
