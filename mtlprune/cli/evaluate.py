"""mtlprune evaluate: score a run on a split, and write what it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.corpora.store import Corpus
    from mtlprune.runs import RunFolder
    from mtlprune.training.evaluation import Evaluation


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
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
    device: Annotated[str | None, typer.Option(help="Another device than the run's own.", show_default=False)] = None,
) -> None:
    """Score a run's best weights; scores, per-sentence counts and predictions stay in the run folder."""
    from mtlprune.cli.console import console, scores_table
    from mtlprune.cli.scorer_files import make_folder
    from mtlprune.runs import RunFolder

    terminal = console()
    folder = RunFolder.existing(run)
    if predictions is not None:
        make_folder(predictions)  # before the work, which would be lost if they had no place
    if "finished" not in folder.read_manifest():
        words = f"{folder.path} is not trained to the end; its best weights so far are taken"
        terminal.print(f"warning: {words}", soft_wrap=True)
    result, gold, name = evaluate_run(folder, split, best=best, data=data, device=device)
    for task in folder.read_config()["tasks"]:
        if task not in result.scores:
            terminal.print(f"{task}: no sentence of {split} has this layer, so it has no score", soft_wrap=True)
    terminal.print(scores_table(result.scores, result.names, f"{folder.path}: {name}"))
    terminal.print(f"written: {folder.path}/{{scores,counts,predictions}}/{name}.*", soft_wrap=True)
    if predictions is not None:
        _write_files(gold, result.predictions, predictions, terminal)


def evaluate_run(
    folder: RunFolder,
    split: str,
    *,
    best: str | None = None,
    data: Path | None = None,
    device: str | None = None,
) -> tuple[Evaluation, list[Any], str]:
    """Evaluate and write the results into the run folder.

    Results of a task's own best weights are called SPLIT.best-TASK, those on other data SPLIT.on-NAME-FINGERPRINT, so
    that no result takes the place of another.

    Returns:
        the evaluation, the gold sentences, and what the results are called.
    """
    from mtlprune.config import build_config
    from mtlprune.corpora.store import load_corpus
    from mtlprune.model import MultiTaskModel
    from mtlprune.runs import RunError
    from mtlprune.training import hardware, setup
    from mtlprune.training.evaluation import evaluate as evaluate_model

    config = build_config(folder.read_config(), str(folder.config_path))
    corpus = load_corpus(data or Path(config.data.path))
    name = _name(folder, corpus, split, best, data is not None)
    gold = list(corpus[split])
    wanted = hardware.choose_device(device or config.train.device)
    setup.settle(config.train)
    model = MultiTaskModel.load(folder.path, task=best, device=wanted)
    result = evaluate_model(model, gold, hardware.dtype(config.train.precision))
    if not result.scores:
        raise RunError(
            f"{corpus.path}, split {split}: no sentence has a layer of {', '.join(config.tasks)}, so there is nothing "
            "to score"
        )
    folder.write_results(name, result.scores, [s.id for s in gold], result.counts, result.predictions)
    return result, gold, name


def _name(folder: RunFolder, corpus: Corpus, split: str, best: str | None, other: bool) -> str:
    from mtlprune.runs import RunError

    fingerprint = folder.read_manifest()["data"]["fingerprint"]
    name = split if best is None else f"{split}.best-{best}"
    if corpus.fingerprint == fingerprint:
        return name
    if not other:
        raise RunError(
            f"{corpus.path} has the fingerprint {corpus.fingerprint[:16]}…, but {folder.path} was trained on "
            f"{fingerprint[:16]}…; bring that data back, or name the corpus with --data"
        )
    return f"{name}.on-{corpus.info['name']}-{corpus.fingerprint[:8]}"


def _write_files(gold: list[Any], predicted: list[Any], folder: Path, terminal: Console) -> None:
    from mtlprune.cli.scorer_files import write_scorer_files

    for layer, number in write_scorer_files(gold, predicted, folder).items():
        terminal.print(f"{folder}/{layer}.gold and {layer}.pred: {number} of {len(gold)} sentences", soft_wrap=True)
