"""mtlprune table: runs side by side, seeds as mean ± standard deviation, differences tested over sentences."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtlprune.cli.console import say
from mtlprune.files import write_text
from mtlprune.runs import RunError, RunFolder


def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or sweeps.")],
    split: Annotated[str, typer.Option(help="Whose scores.")] = "test",
    format_: Annotated[Literal["markdown", "latex", "csv", "json"], typer.Option("--format")] = "markdown",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here instead of to the terminal.")] = None,
    test: Annotated[bool, typer.Option("--test/--no-test", help="Test differences over sentences.")] = True,
    resamples: Annotated[int, typer.Option(min=1, help="Of the sentences, for each test.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    margin: Annotated[
        float, typer.Option(help="In points: are differences smaller than this? Tested beside whether there are any.")
    ] = 1.0,
    against: Annotated[
        str | None, typer.Option(metavar="TITLE", help="Compare columns with the one of this title, not with STL.")
    ] = None,
    majority: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Add the majority baseline, counted on this corpus.")
    ] = None,
) -> None:
    """Compare runs: one row per task, a column a setting, several seeds as mean ± sample standard deviation.

    Differences to STL are tested over seeds and sentences, from the stored counts.
    """
    from mtlprune.cli.check import check_corpora

    check_corpora(majority)

    from mtlprune.sweeps.folder import expanded

    if not 0 < margin < 100:
        raise RunError(f"--margin: expected points above 0 and below 100, found {margin:g}")
    left_out: list[str] = []
    folders = [RunFolder.existing(run) for run in expanded(runs, left_out=left_out)]

    from mtlprune.reports.scores import tables
    from mtlprune.reports.scores.comparisons import compare

    extra = {"majority": majority_scores(majority, folders[0], split)} if majority is not None else {}
    comparison = dataclasses.replace(compare(folders, split, extra, against or ""), left_out=tuple(left_out))
    if test and comparison.against:
        from mtlprune.reports.scores.tests import with_tests

        comparison = with_tests(comparison, resamples, seed, margin)
    write = {"markdown": tables.markdown, "latex": tables.latex, "csv": tables.to_csv, "json": tables.to_json}
    text = write[format_](comparison)
    if out is None:
        say(text, nl=False)
        return
    write_text(out, text)


def majority_scores(data: Path, run: RunFolder, split: str) -> dict[str, float]:
    """*The* score of each layer when every word gets what it mostly has in train.

    Raises:
        CorpusError: no such corpus or split.
        RunError: not the corpus that ``run`` was trained on.
    """
    from mtlprune.baselines import Majority
    from mtlprune.corpora.store import load_corpus
    from mtlprune.scores import count, main_score, score

    corpus = load_corpus(data)
    trained = run.read_manifest()["data"]["fingerprint"]
    if corpus.fingerprint != trained:
        raise RunError(
            f"{data} has the fingerprint {corpus.fingerprint[:16]}…, but {run.path} was trained on {trained[:16]}…; "
            "give --majority the corpus of the runs"
        )
    settings = run.read_config()["data"]
    baseline = Majority(list(corpus[settings["train"]])[: settings.get("train_sentences")])
    gold = list(corpus[split])
    predicted = [baseline.predict(sentence) for sentence in gold]
    scores = {}
    for layer, kind in baseline.layers.items():
        counts = [count(layer, g, p) for g, p in zip(gold, predicted, strict=True)]
        if any(row is not None for row in counts):
            decoders = {layer: {"kind": kind}} | run.read_config()["decoders"]
            scores[layer] = score(kind, counts)[main_score(layer, decoders)]
    return scores
