"""`mtlprune train`: starts or resumes a run. A configuration with data.corpora pretrains a masked language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import (
    ADVANCED,
    INTERRUPTED,
    Overrides,
    console,
    new_table,
    next_command,
    resume_hint,
    say,
    shown_log,
)
from mtlprune.config import ConfigError, rates_remark, tree_of
from mtlprune.corpora.store import INFO, read_info
from mtlprune.errors import plural

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config
    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.runs.folder import RunFolder
    from mtlprune.training.checkpoint import Progress


def train(
    config: Annotated[str, typer.Argument(help="YAML file, or the name of a preset.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder (runs/NAME-DIGEST, if not given).")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Seeds, separated by commas. The run of each seed is trained in a subfolder of --out.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and estimate time and memory, without training.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every setting as YAML, without training.", rich_help_panel=ADVANCED)
    ] = False,
) -> None:
    """Train a run. If it is interrupted, run the same command again to continue.

    One task (tasks=pos) means single-task training, and several tasks (tasks=pos,ner) mean joint training. You can stop
    a run with Ctrl-C and resume it later. With --seeds, the command trains one run for each seed. `mtlprune sweep`
    trains larger sets of runs, several at once. If the configuration sets data.corpora, the command pretrains a masked
    language model. Other runs can use a checkpoint of this model as `encoder.name`.
    """
    data = tree_of(config, overrides or ()).get("data")
    if isinstance(data, dict) and "corpora" in data:
        if seeds is not None:
            raise ConfigError(
                "--seeds: expected no such option, because a pretraining run has one seed; give it as train.seed=N"
            )
        return _pretrain(config, overrides or [], out, dry_run, everything)

    from mtlprune.cli.plan import show_plan
    from mtlprune.config.config import default_folder, load_config
    from mtlprune.runs.folder import RunFolder

    terminal, folders = console(), list[RunFolder]()
    tasks = _tasks_there(load_config(config, overrides or ()), terminal)
    override_lists = [[*(overrides or []), *tasks, *seed] for seed in _seeds(seeds, overrides or ())]
    configs = [
        load_config(config, overrides_of_run) for overrides_of_run in override_lists
    ]  # all are checked before the first is trained
    if everything:
        return say("\n".join(configs[0].commented()))
    if remark := rates_remark(config, overrides or ()):
        terminal.print(remark)
    for settings in configs:
        place = out / f"seed-{settings.train.seed}" if out and seeds is not None else out
        folders.append(RunFolder(place or default_folder(settings)))
    if dry_run:
        return show_plan(configs, folders)
    for settings, folder in zip(configs, folders, strict=True):
        _train_run(settings, folder, terminal)
        terminal.print(_best_table(settings, folder))
    runs = [out] if out and len(folders) > 1 else [folder.path for folder in folders]
    splits = read_info(folders[0].corpus_path())["splits"]
    split, dev = "test" if "test" in splits else "", configs[0].data.dev
    next_command(terminal, *(("evaluate", *runs, "--split", split) if split else ("table", *runs, "--split", dev)))


def _tasks_there(config: Config, terminal: Console) -> list[str]:
    """Return an override of ``tasks`` by those whose layers the corpus has.

    The list is empty if the user names tasks, or if the corpus has all layers.
    """
    if "tasks" in config.model_fields_set or not (Path(config.data.path) / INFO).is_file():
        return []
    annotated_counts = read_info(Path(config.data.path))["splits"].get(config.data.train, {}).get("known", {})
    labelled = [task for task in config.tasks if annotated_counts.get(task)]
    if not labelled or len(labelled) == len(config.tasks):
        return []
    missing_tasks = ", ".join(task for task in config.tasks if task not in labelled)
    terminal.print(
        f"{config.data.path} has no {missing_tasks}, so the run trains {', '.join(labelled)}; tasks= chooses other "
        "tasks"
    )
    return [f"tasks={','.join(labelled)}"]


def _seeds(seeds_option: str | None, overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run: one of train.seed for each seed of --seeds, or none for a single run.

    Raises:
        ConfigError: --seeds is no list of different whole numbers, or train.seed is set as well.
    """
    if seeds_option is None:
        return [[]]
    from mtlprune.sweeps.compare import parse_seeds

    if any(override.startswith("train.seed=") for override in overrides):
        raise ConfigError("--seeds and train.seed both set the seed; give only one of the two")
    return [[f"train.seed={seed}"] for seed in parse_seeds(seeds_option)]


def _train_run(config: Config, folder: RunFolder, terminal: Console) -> Progress:
    """Train a run and show its progress. A training that is stopped ends the process with exit code 130."""
    from mtlprune.cli.display import TrainingWatch, duration
    from mtlprune.cli.plan import start_and_pruning
    from mtlprune.training.loop import finished
    from mtlprune.training.loop import train as train_model

    done_before = finished(folder) is not None
    begins = "; ".join(filter(None, [", ".join(config.tasks), start_and_pruning(config)]))
    terminal.print(f"run {folder.path}: {begins}")
    watch = TrainingWatch(terminal, config.train)
    progress = _attended(terminal, watch, partial(train_model, config, folder))
    state = "had already finished" if done_before else "finished"
    terminal.print(f"{folder.path} {state}: {plural(progress.epoch, 'epoch')}, {duration(progress.seconds)}")
    return progress


def _attended(terminal: Console, watch: Any, training: Callable[..., Progress]) -> Progress:
    """Call a training function, and show progress and log messages meanwhile.

    If training is stopped by a signal, a hint on how to continue is printed and the process ends with exit code 130.

    Args:
        watch: callback that shows progress, such as TrainingWatch.
        training: function with the parameters ``watch`` and ``stop``.
    """
    from mtlprune.cli.display import interruption, progress_shown

    hint = resume_hint()
    try:
        with shown_log(terminal), interruption(terminal) as stop, progress_shown(watch.progress):
            progress = training(watch=watch, stop=stop)
    except KeyboardInterrupt:
        terminal.print(f"stopped at once, and updates after the last checkpoint are lost; {hint}")
        raise typer.Exit(INTERRUPTED) from None
    if not progress.finished:
        position = f"epoch {progress.epoch + 1}, update {progress.step}"
        terminal.print(f"stopped in {position}, and a checkpoint is written; {hint}")
        raise typer.Exit(INTERRUPTED)
    return progress


def _best_table(config: Config, folder: RunFolder) -> object:
    """Return the table of dev scores at the best evaluation, with the number of open heads."""
    from mtlprune.cli.display import number_of_heads
    from mtlprune.evaluation.scores import main_score, name_of

    best, decoders = folder.read_best(), config.model_dump()["decoders"]
    scores = folder.read_scores(config.data.dev)
    evaluation_word = "evaluation" if config.train.evaluate_every else "epoch"
    title = f"{config.data.dev}, best {evaluation_word} {best['joint']['epoch']}"
    table = new_table(title, "task", "score", ">%", ">own best", f">in {evaluation_word}")
    for task, values in scores.items():
        best_record, main = best[task], main_score(task, decoders)
        score_cells = f"{values[main]:.2f}", f"{best_record['score']:.2f}", str(best_record["epoch"])
        table.add_row(task, name_of(task, main, decoders), *score_cells)
    if len(scores) > 1:
        table.add_section()
        table.add_row("joint", "mean", f"{best['joint']['score']:.2f}", "", "")
    lines = folder.read_gates() if folder.has("gates.jsonl") else []
    if gates := [line for line in lines if line["epoch"] == best["joint"]["epoch"]]:
        table.add_section()
        for name, count in gates[-1]["open"].items():
            owner = "heads" if name == "shared" else f"heads of {name}"
            table.add_row(owner, "open", f"{count} of {number_of_heads(gates[-1])}", "", "")
    return table


def _pretrain(config: str, overrides: list[str], out: Path | None, dry_run: bool, all_settings: bool) -> None:
    """Pretrain a masked language model.

    Loss, syntactic attention of every head, intrinsic dimension of sentences and accuracy on minimal pairs are logged
    at logarithmically spaced updates. Each checkpoint is a folder that transformers can load, and that can be the value
    of `encoder.name`.
    """
    from mtlprune.cli.display import PretrainingWatch, duration
    from mtlprune.cli.plan import check_folder
    from mtlprune.config.config import default_folder
    from mtlprune.corpora.blimp import read_blimp
    from mtlprune.pretraining.config import load_pretraining

    settings = load_pretraining(config, overrides)
    if all_settings:
        return say("\n".join(settings.commented()))
    for path in settings.data.corpora:
        read_info(Path(path))
    if settings.watch.pairs not in (None, "grammar"):
        read_blimp(Path(settings.watch.pairs), 1)

    from mtlprune.pretraining.loop import CHECKPOINTS, finished
    from mtlprune.pretraining.loop import pretrain as run
    from mtlprune.runs.folder import RunFolder

    folder = RunFolder(out or default_folder(settings))
    terminal = console()
    done_before = finished(folder) is not None
    _begins(terminal, settings, folder)
    if dry_run:
        check_folder(folder)
        return terminal.print("ready", style="bold")
    progress = _attended(terminal, PretrainingWatch(terminal), partial(run, settings, folder))
    state = "had already finished" if done_before else "finished"
    last = folder.path / CHECKPOINTS / f"step-{progress.step}"
    terminal.print(f"{folder.path} {state}: {plural(progress.step, 'update')}, {duration(progress.seconds)}; {last}")
    next_command(terminal, "report", folder.path, "--out", f"{folder.path}-curves")


def _begins(terminal: Console, settings: PretrainConfig, folder: RunFolder) -> None:
    """Print the corpora and penalties of a pretraining run."""
    syntax, words = settings.syntax, [f"pretraining {folder.path}: {', '.join(settings.data.corpora)}"]
    if syntax.strength:
        release_note = f" until update {syntax.release}" if syntax.release else ""
        words.append(f"syntax λ {syntax.strength:g} ({syntax.variant}, {syntax.scale}){release_note}")
    if settings.cosreg:
        words.append(f"CosReg γ {settings.cosreg:g}")
    terminal.print("; ".join(words))
