"""mtlprune train: begin a run, or go on with it. mtlprune pretrain: the same of a language model; or draw such runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.check import check_settings, start_and_pruning
from mtlprune.cli.console import Overrides, Scale, console, new_table, rank, say, shown_log
from mtlprune.config import ConfigError
from mtlprune.corpora.store import read_info
from mtlprune.io.files import RunError, json_text, make_room, write_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config
    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.runs.folder import RunFolder
    from mtlprune.training.checkpoint import Progress


INTERRUPTED = 130
Out = Annotated[Path | None, typer.Option(help="The run folder; runs/NAME-DIGEST if not given.")]


def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
    overrides: Overrides = None,
    out: Out = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="A run for each seed; --out then holds them.")
    ] = None,
) -> None:
    """Train a run; the same command again continues where it stopped.

    One task is single-task training (tasks=pos), several are multi-task (tasks=pos,ner). Ctrl-C leaves a run that can
    go on. Several seeds are several runs; `mtlprune sweep` runs more of them, side by side.
    """
    check_settings(config, overrides or ())

    from mtlprune.config.config import default_folder, load_config
    from mtlprune.runs.folder import RunFolder

    terminal, folders = console(), []
    tasks = _tasks_there(load_config(config, overrides or ()), terminal)
    asked = [[*(overrides or []), *tasks, *seed] for seed in _seeds(seeds, overrides or ())]
    for settings in [load_config(config, one) for one in asked]:  # all are checked before the first is trained
        place = out / f"seed-{settings.train.seed}" if out and seeds is not None else out
        folder = RunFolder(place or default_folder(settings))
        train_run(settings, folder, terminal)
        folders.append(str(folder.path))
        if not rank():  # of several processes the first one owns the folder
            terminal.print(_best_table(settings, folder))
    if len(folders) > 1:
        terminal.print(f"compare them: mtlprune table {shlex.join(folders)}")


def _tasks_there(config: Config, terminal: Console) -> list[str]:
    """An override that names the tasks whose layers the corpus has; none where tasks are named or all are there."""
    if "tasks" in config.model_fields_set:
        return []
    known = read_info(Path(config.data.path))["splits"].get(config.data.train, {}).get("known", {})
    there = [task for task in config.tasks if known.get(task)]
    if not there or len(there) == len(config.tasks):
        return []
    lacking = ", ".join(task for task in config.tasks if task not in there)
    terminal.print(f"{config.data.path} has no {lacking}: trained are {', '.join(there)}, as tasks= could say")
    return [f"tasks={','.join(there)}"]


def _seeds(given: str | None, overrides: Sequence[str]) -> list[list[str]]:
    """An override for each seed, none where none are given. Raises ConfigError: no whole numbers, or one twice."""
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
    from mtlprune.cli.display import TrainingWatch
    from mtlprune.training.loop import finished
    from mtlprune.training.loop import train as train_model

    done_before = finished(folder) is not None
    begins = "; ".join(filter(None, [", ".join(config.tasks), start_and_pruning(config)]))
    terminal.print(f"run {folder.path}: {begins}")
    watch = TrainingWatch(terminal, config.train)
    progress = attended(terminal, watch, partial(train_model, config, folder))
    state = "was finished already" if done_before else "finished"
    epochs = "1 epoch" if progress.epoch == 1 else f"{progress.epoch} epochs"
    terminal.print(f"{folder.path} {state}: {epochs}, {progress.seconds:.0f} s")
    return progress


def attended(terminal: Console, watch: Any, training: Callable[..., Progress]) -> Progress:
    """Train with a display; a stopped training ends the process with code 130, saying how to go on."""
    from mtlprune.cli.display import interruption

    hint = f"the same command continues: {command()}"
    try:
        with shown_log(terminal), interruption(terminal) as stop, watch.progress:
            progress = training(watch=watch, stop=stop)
    except KeyboardInterrupt:
        terminal.print(f"stopped at once; what came after the last checkpoint is lost; {hint}")
        raise typer.Exit(INTERRUPTED) from None
    if not progress.finished:
        where = f"epoch {progress.epoch + 1}, update {progress.step}"
        terminal.print(f"stopped in {where}; a checkpoint is written; {hint}")
        raise typer.Exit(INTERRUPTED)
    return progress


def command() -> str:
    """The command that started this process, or all of them."""
    words = ["mtlprune", *sys.argv[1:]]
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        words = ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "N"), "-m", *words]
    return shlex.join(words)


def _best_table(config: Config, folder: RunFolder) -> object:
    from mtlprune.cli.display import number_of_heads
    from mtlprune.evaluation.scores import main_score, name_of

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


def pretrain(
    config: Annotated[str, typer.Argument(help="A YAML file; to plot, a folder it made.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.PATH=VALUE", help="Settings; to plot, folders.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder, or that of plots.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw and tabulate pretrainings; train nothing.")] = False,
    scale: Scale = 2,
) -> None:
    """Pretrain a masked language model; the same command again continues where it stopped.

    Loss, syntactic attention of every head, dimension of sentences and minimal pairs are logged on a log schedule, and
    each checkpoint is a folder that transformers loads and `encoder.name` takes. Ctrl-C leaves a run that can go on.
    """
    if plot:
        return _plot([Path(run) for run in [config, *(overrides or [])]], out, scale)

    check_settings(config, overrides or ())

    from mtlprune.cli.display import PretrainingWatch
    from mtlprune.config.config import default_folder
    from mtlprune.pretraining.config import load_pretraining
    from mtlprune.pretraining.loop import CHECKPOINTS, finished
    from mtlprune.pretraining.loop import pretrain as run
    from mtlprune.runs.folder import RunFolder

    settings = load_pretraining(config, overrides or [])
    folder = RunFolder(out or default_folder(settings))
    terminal = console()
    done_before = finished(folder) is not None
    _begins(terminal, settings, folder)
    progress = attended(terminal, PretrainingWatch(terminal), partial(run, settings, folder))
    state = "was finished already" if done_before else "finished"
    last = folder.path / CHECKPOINTS / f"step-{progress.step}"
    terminal.print(f"{folder.path} {state}: {progress.step} updates, {progress.seconds:.0f} s; {last}")


def _begins(terminal: Console, settings: PretrainConfig, folder: RunFolder) -> None:
    syntax, words = settings.syntax, [f"pretraining {folder.path}: {', '.join(settings.data.corpora)}"]
    if syntax.strength:
        until = f" until update {syntax.release}" if syntax.release else ""
        words.append(f"syntax λ {syntax.strength:g} ({syntax.variant}, {syntax.scale}){until}")
    if settings.cosreg:
        words.append(f"CosReg γ {settings.cosreg:g}")
    terminal.print("; ".join(words))


def _plot(runs: list[Path], out: Path | None, scale: int) -> None:
    """Loss, syntactic attention, minimal pairs and dimension by update, all runs in one figure, breaks marked."""
    from mtlprune.figures.charts import Style, render
    from mtlprune.reports.pretraining import chart, markdown, read_pretrainings, summary

    if out is None:
        raise RunError("pretrain --plot: expected --out DIR, a folder for figure, table and breaks")
    logs = read_pretrainings(runs)
    spec, text = chart(logs), markdown(logs)
    files = {
        "pretraining.png": render(spec, "png", Style(scale=scale)),
        "pretraining.svg": render(spec, "svg"),
        "pretraining.md": text.encode(),
        "pretraining.json": json_text(summary(logs)).encode(),
    }
    make_room(out)
    for name, content in files.items():
        write_bytes(out / name, content)
    say(text)
    say(f"{', '.join(files)} in {out}")
