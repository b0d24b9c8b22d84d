"""mtlprune evaluate: score a run on a split, and write what it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import Device, RunFolderArgument

if TYPE_CHECKING:
    from rich.console import Console


def evaluate(
    run: RunFolderArgument,
    split: Annotated[str, typer.Option(help="Such as dev or test.", show_default=False)],
    best: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="The weights best for this task alone.", show_default=False),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Write LAYER.gold and LAYER.pred for the official scorers here.", show_default=False),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Another corpus than the run's own.", show_default=False)] = None,
    device: Device = None,
) -> None:
    """Score a run's best weights; scores, per-sentence counts and predictions stay in the run folder."""
    from mtlprune.cli.check import check_run

    check_run(run, data)

    from mtlprune.cli.console import console, scores_table
    from mtlprune.files import make_folder
    from mtlprune.runs import RunFolder
    from mtlprune.scores import foreign_punctuation
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
    terminal.print(scores_table(result.scores, result.names, f"{folder.path}: {name}", settings.get("decoders", {})))
    terminal.print(f"written: {folder.path}/{{scores,counts,predictions}}/{name}.*")
    for line in filter(None, (foreign_punctuation(gold, task) for task in result.scores)):
        terminal.print(line)
    if predictions is not None:
        _write_files(gold, result.predictions, predictions, terminal)


def _write_files(gold: list[Any], predicted: list[Any], folder: Path, terminal: Console) -> None:
    from mtlprune.corpora.export import write_scorer_files

    for layer, number in write_scorer_files(gold, predicted, folder).items():
        terminal.print(f"{folder}/{layer}.gold and {layer}.pred: {number} of {len(gold)} sentences")
