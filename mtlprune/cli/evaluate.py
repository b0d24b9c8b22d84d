"""mtlprune evaluate: score a run on a split, and write what it predicts."""

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import Device, RunFolderArgument


def evaluate(
    run: RunFolderArgument,
    split: Annotated[str, typer.Option(help="Such as dev or test.")],
    best: Annotated[str | None, typer.Option(metavar="TASK", help="The weights best for this task alone.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Write LAYER.gold and LAYER.pred for the official scorers here.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Another corpus than the run's own.")] = None,
    device: Device = None,
) -> None:
    """Score a run's best weights; scores, per-sentence counts and predictions stay in the run folder."""
    from mtlprune.cli.check import check_run

    check_run(run, data)

    from mtlprune.cli.console import console, new_table
    from mtlprune.corpora.export import write_scorer_files
    from mtlprune.files import make_folder
    from mtlprune.runs import RunFolder
    from mtlprune.scores import foreign_punctuation, name_of
    from mtlprune.training.evaluation import evaluate_run

    terminal = console()
    folder = RunFolder.with_weights(run)
    if predictions is not None:
        make_folder(predictions)  # before the work, which would be lost if they had no place
    if not folder.is_finished():
        words = f"{folder.path} is not trained to the end; its best weights so far are taken"
        terminal.print(f"warning: {words}")
    result, gold, name = evaluate_run(folder, split, best=best, data=data, device=device)
    settings = folder.read_config()
    for task in settings["tasks"]:
        if task not in result.scores:
            terminal.print(f"{task}: no sentence of {split} has this layer, so it has no score")
    table = new_table(f"{folder.path}: {name}", "task", "score", ">%")  # *the* score of each task first and in bold
    for task, values in result.scores.items():
        main = result.names[task]
        table.add_row(task, name_of(task, main, settings.get("decoders", {})), f"{values[main]:.2f}", style="bold")
        for other, value in values.items():
            if other != main:
                table.add_row("", other, f"{value:.2f}")
        table.add_section()
    terminal.print(table)
    terminal.print(f"written: {folder.path}/{{scores,counts,predictions}}/{name}.*")
    for line in filter(None, (foreign_punctuation(gold, task) for task in result.scores)):
        terminal.print(line)
    if predictions is not None:
        for layer, number in write_scorer_files(gold, result.predictions, predictions).items():
            terminal.print(f"{predictions}/{layer}.gold and {layer}.pred: {number} of {len(gold)} sentences")
