"""`mtlprune evaluate`: scores the best weights of runs on a split and writes scores, counts and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import ADVANCED, Device, Runs, console, named_runs, new_table, next_command, warn_unfinished
from mtlprune.corpora.store import read_info
from mtlprune.io.files import make_folder
from mtlprune.sweeps.folder import output_folders

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.runs.folder import RunFolder


def evaluate(
    runs: Runs,
    split: Annotated[str, typer.Option(help="Split, such as dev or test.")] = "test",
    best: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Task whose best weights are scored (the weights with the best mean score of all tasks, if not "
            "given).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the files LAYER.gold and LAYER.pred, which official scorers read.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--corpus",
            "--data",
            metavar="DIR",
            help="Corpus on which runs are scored (the corpus of the run, if not given).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Score the best weights of runs. The command writes scores, counts per sentence and predictions into the run
    folders."""
    from mtlprune.cli.display import working

    folders = named_runs(runs)
    for folder in folders:
        folder.check_weights_kept()
        read_info(data or folder.corpus_path())
    places = [None] * len(folders) if predictions is None else output_folders(predictions, folders)
    terminal = console()
    for folder, place in zip(folders, places, strict=True):
        with working(f"scoring {folder.path}", terminal):
            _evaluate(folder, split, best, place, data, device, terminal)
    if best is None and data is None:
        next_command(terminal, "table", *runs, "--split", split)


def _evaluate(
    folder: RunFolder,
    split: str,
    best: str | None,
    predictions: Path | None,
    data: Path | None,
    device: str | None,
    terminal: Console,
) -> None:
    """Score one run, write the results into its folder, and print the scores."""
    from mtlprune.corpora.export import write_scorer_files
    from mtlprune.evaluation.by_type import scores_by_type
    from mtlprune.evaluation.scores import foreign_punctuation, name_of
    from mtlprune.layers import kind_of
    from mtlprune.sentence import declared
    from mtlprune.training.evaluation import evaluate_run

    if predictions is not None:
        make_folder(predictions)  # first, so that a folder that cannot be created fails before the scoring
    warn_unfinished(folder, terminal)
    result, gold, name = evaluate_run(folder, split, best=best, data=data, device=device)
    config = folder.config
    for task in config.tasks:
        if task not in result.scores:
            terminal.print(f"{task}: no sentence of {split} has this layer, so it has no score")
    # The main score of each task comes first and is bold.
    table = new_table(f"{folder.path}: {name}", "task", "score", ">%")
    for task, values in result.scores.items():
        main = result.names[task]
        table.add_row(task, name_of(task, main, config.decoders.model_dump()), f"{values[main]:.2f}", style="bold")
        for score_name, value in values.items():
            if score_name != main:
                table.add_row("", score_name, f"{value:.2f}")
        table.add_section()
    terminal.print(table)
    kinds = {layer: kind_of(kind) for layer, kind in declared(gold).items() if layer in result.scores}
    for layer in (layer for layer, kind in kinds.items() if kind == "spans"):
        types = new_table(f"{layer} by type (seqeval)", "type", ">precision", ">recall", ">F1", ">gold spans")
        for row in scores_by_type(layer, gold, result.predictions):
            types.add_row(row.label, *(f"{value:.2f}" for value in row[1:4]), f"{row.gold:,}")
        terminal.print(types)
    if nested := [layer for layer, kind in kinds.items() if kind in ("brackets", "frames")]:
        terminal.print(
            f"{', '.join(nested)} have no scores by type, because seqeval reads one tag per word, and these spans "
            "overlap"
        )
    terminal.print(f"written: {folder.path}/{{scores,counts,predictions}}/{name}.*")
    for line in filter(None, (foreign_punctuation(gold, task) for task in result.scores)):
        terminal.print(line)
    if predictions is not None:
        for layer, number in write_scorer_files(gold, result.predictions, predictions).items():
            terminal.print(f"{predictions}/{layer}.gold and {layer}.pred: {number} of {len(gold)} sentences")
