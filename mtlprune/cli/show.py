"""`mtlprune table`, `mtlprune report` and `mtlprune runs pack`: tables of scores, HTML reports, and packed studies."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtlprune.cli.console import (
    ADVANCED,
    Data,
    Resamples,
    Runs,
    console,
    named_runs,
    say,
    seen_from_here,
    show_document,
)
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import Corpus, load_corpus, read_info
from mtlprune.errors import plural
from mtlprune.io.files import json_text, make_room, read_json, write_bytes, write_json, write_text
from mtlprune.runs import forms
from mtlprune.runs.folder import CURVES, RunError, RunFolder, run_name
from mtlprune.runs.study import MAJORITY


def table(
    runs: Runs,
    split: Annotated[str, typer.Option(help="Split whose scores are shown.")] = "test",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write to instead of the terminal.")] = None,
    format_: Annotated[
        Literal["markdown", "latex", "csv", "json"], typer.Option("--format", help="Output format.")
    ] = "markdown",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="TITLE",
            help="Title of the column with which others are compared (the single-task runs, if not given).",
        ),
    ] = None,
    by: Annotated[
        Literal["corpus"] | None, typer.Option(help="Show a block of rows for each corpus.", rich_help_panel=ADVANCED)
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            help="Largest difference, in points, that is considered equivalent to none.", rich_help_panel=ADVANCED
        ),
    ] = 1.0,
    majority: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="Add the majority baseline of this corpus.", rich_help_panel=ADVANCED),
    ] = None,
    speed: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that `mtlprune analyze speed` wrote, whose speeds are added as a column.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    resamples: Resamples = 10_000,
) -> None:
    """Compare runs in a table with one row per task and one column per setting.

    Several seeds are shown as mean ± sample standard deviation. Differences from single-task training (STL) are tested
    over seeds and sentences, with the counts stored in the runs.
    """
    if not 0 < margin < 100:
        raise RunError(f"--margin: expected points above 0 and below 100, found {margin:g}; correct the number")
    if majority is not None:
        read_info(majority)
    left_out: list[str] = []
    folders = named_runs(seen_from_here(runs), left_out=left_out)

    from mtlprune.cli.display import working
    from mtlprune.reports.scores import tables
    from mtlprune.reports.scores.comparisons import compare, with_tests

    extra = {"majority": _majority_scores(majority, folders[0], split)} if majority is not None else {}
    comparison = compare(folders, split, extra, against or "", by == "corpus")
    speeds = speeds_in(speed, [folder.path for folder in folders]) if speed is not None else {}
    comparison = dataclasses.replace(comparison, left_out=tuple(left_out), speeds=speeds)
    if resamples and comparison.against:
        with working("testing differences"):
            comparison = with_tests(comparison, resamples, margin=margin)
    write = {"markdown": tables.markdown, "latex": tables.latex, "csv": tables.to_csv, "json": tables.to_json}
    text = write[format_](comparison)
    if out is not None:
        write_text(out, text)
    elif format_ == "markdown":
        show_document(with_narrow_tables(comparison, text))
    else:
        say(text, nl=False)


def with_narrow_tables(comparison: Comparison, text: str) -> str:
    """On a terminal, for which a table may be too wide, put narrow tables before the table's Markdown."""
    from mtlprune.reports.scores.tables import narrow

    tables = narrow(comparison) if console().is_terminal else []
    return "\n".join([*(grid.part() for grid in tables), text])


def speeds_in(folder: Path, runs: Sequence[Path] = ()) -> dict[str, float]:
    """Read the speed of each run in the largest timed batches, by `run_name`, from the result of `analyze speed`.

    Names and not paths identify runs, because runs may have been packed into a study after they were timed.

    Raises:
        RunError: the folder has no such result, or several timed runs or several of ``runs`` have one name.
    """
    from mtlprune.analyses.analysis import read
    from mtlprune.analyses.heads.speed.show import rated

    rows = rated(read(folder, "speed")).sort_values("batch")
    speeds = {Path(str(run)): float(frames["speed"].iloc[-1]) for run, frames in rows.groupby("run")}
    timed_names, table_names = (Counter(map(run_name, paths)) for paths in (speeds, runs))
    if repeated := sorted(name for name in timed_names if max(timed_names[name], table_names[name]) > 1):
        raise RunError(
            f"--speed: expected one run of each name, found several with the name {', '.join(repeated)}, whose speeds "
            "cannot be distinguished; rename their folders or leave out --speed"
        )
    return {run_name(run): speed for run, speed in speeds.items()}


def _majority_scores(data: Path, run: RunFolder, split: str) -> dict[str, float]:
    """Compute the main score of each layer for the majority baseline.

    Raises:
        CorpusError: the corpus or the split does not exist.
        RunError: ``run`` was trained on another corpus, or its counts are missing or damaged.
    """
    from mtlprune.evaluation.baselines import Majority
    from mtlprune.evaluation.scores import count, main_score, score

    corpus = load_corpus(data)
    trained = run.read_manifest()["data"]["fingerprint"]
    if corpus.fingerprint != trained:
        raise RunError(
            f"{data} has the fingerprint {corpus.fingerprint[:16]}…, but {run.path} was trained on {trained[:16]}…; "
            "give --majority the corpus of the runs"
        )
    config = run.config
    train = corpus[config.data.train].first(config.data.train_sentences).one_half(config.data.half)
    baseline = Majority(list(train))
    gold = run.scored_sentences(split, corpus[split])
    predicted = [baseline.predict(sentence) for sentence in gold]
    scores = {}
    for layer, kind in baseline.layers.items():
        counts = [count(layer, g, p) for g, p in zip(gold, predicted, strict=True)]
        if any(row is not None for row in counts):
            decoders = {layer: {"kind": kind}} | config.decoders.model_dump()
            scores[layer] = score(kind, counts)[main_score(layer, decoders)]
    return scores


def keep_majority(folder: Path, run: RunFolder, splits: Sequence[str], data: Path | None) -> None:
    """Store the majority baseline of a run's corpus in the folder of the runs, for use without the corpus.

    Nothing is written if the corpus is not available now, or has no training split.
    """
    baselines = _read_majority(folder)
    if scores := {split: of_split for split in splits if (of_split := majority_of(run, split, data))}:
        fingerprint = run.read_manifest()["data"]["fingerprint"]
        write_json(folder / MAJORITY, baselines | {fingerprint: baselines.get(fingerprint, {}) | scores})


def majority_of(run: RunFolder, split: str, data: Path | None = None) -> dict[str, float]:
    """Return the main score of the majority baseline for each layer.

    The scores are read from the file next to the run, or else computed from the corpus. They are empty if neither is
    available.
    """
    fingerprint = run.read_manifest()["data"]["fingerprint"]
    baselines = _read_majority(run.path.parent).get(fingerprint, {})
    if split in baselines:
        return dict(baselines[split])
    # ``data`` may be the corpus of other runs of a report. The report states if a baseline is unknown.
    if data is not None:
        with contextlib.suppress(CorpusError, RunError):
            return _majority_scores(data, run, split)
    with contextlib.suppress(CorpusError, RunError):
        return _majority_scores(run.corpus_path(), run, split)
    return {}


def _read_majority(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Read the majority baselines that are stored in a folder of runs; empty without any. Raises RunError if the file
    is damaged."""
    path = folder / MAJORITY
    baselines: dict[str, dict[str, dict[str, float]]] = read_json(path) if path.is_file() else {}
    try:
        forms.BASELINES.validate_python(baselines)
    except ValueError:
        raise RunError(
            f"{path} is damaged; remove it, and mtlprune makes it again if the corpus is available"
        ) from None
    return baselines


def _left_by_compare(folders: Sequence[RunFolder]) -> list[Path]:
    """Return the folders of results that `mtlprune compare` wrote next to the folder of its runs."""
    from mtlprune.sweeps.compare import ANALYSES, FILE, PROBES, RUNS

    places = dict.fromkeys(run.path.parent.parent for run in folders if run.path.parent.name == RUNS)
    analysis_folders = [place / name for place in places if (place / FILE).is_file() for name in (PROBES, ANALYSES)]
    return [folder for folder in analysis_folders if any(folder.glob("*.json"))]


# -- report ------------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from mtlprune.reports.page.scores import Gold
    from mtlprune.reports.scores.tables import Comparison
    from mtlprune.sentence import Sentence


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(help="File of the report (report.html, if not given). For pretraining runs, give a folder."),
    ] = None,
    analyses: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Folder that `mtlprune analyze` wrote. Repeatable.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split whose scores are shown (if not given, test, or dev if test was not scored)."),
    ] = None,
    title: Annotated[
        str,
        typer.Option(
            help="Title of the report (encoder and data, if not given).", show_default=False, rich_help_panel=ADVANCED
        ),
    ] = "",
    data: Data = None,
    resamples: Resamples = 10_000,
) -> None:
    """Write one HTML report with runs, tested tables, gate maps, overlap, probes, curves and caveats.

    The file opens from disk, needs no network, and shows everything essential without JavaScript. For pretraining runs,
    the command writes a figure and a table of loss, syntactic attention, accuracy on minimal pairs and intrinsic
    dimension by update.
    """
    from mtlprune.sweeps.folder import expanded

    notes: list[str] = []
    paths = expanded(seen_from_here(runs), left_out=notes)
    if pretrainings := [path for path in paths if RunFolder(path).has(CURVES)]:
        return _pretrainings(paths, pretrainings, out)
    if data is not None:
        read_info(data)

    from mtlprune.cli.display import working
    from mtlprune.reports.page import Choices, Sources
    from mtlprune.reports.page import report as page

    folders = [RunFolder.existing(path) for path in paths]
    folders_given = list(
        {folder.resolve(): folder for folder in [*(analyses or []), *_left_by_compare(folders)]}.values()
    )
    probes = [folder for folder in folders_given if (folder / "probes.json").is_file()]
    analysis_folders = [
        folder for folder in folders_given if folder not in probes or len(list(folder.glob("*.json"))) > 1
    ]
    majority = functools.partial(majority_of, data=data)
    sources = Sources(folders, probes, analysis_folders, notes, majority)
    file = out or Path("report.html")
    with working(f"writing {file}"):
        text = page(sources, Choices(title, split, resamples, resamples), gold_of(data))
    write_text(file, text)
    say(f"{file}: {max(0.1, len(text.encode()) / 1e6):.1f} MB; open it in a browser")


def _pretrainings(runs: Sequence[Path], pretrainings: Sequence[Path], out: Path | None) -> None:
    """Write a figure and a table of pretraining runs: loss, syntactic attention, minimal pairs and dimension by update.

    Raises:
        RunError: there are other runs among them, or no folder is given.
    """
    from mtlprune.figures.charts import render
    from mtlprune.reports.pretraining import chart, markdown, read_pretrainings, summary

    if len(pretrainings) < len(runs):
        raise RunError(
            f"report: expected only pretraining runs next to {pretrainings[0]}, which is one, found other runs; name "
            "only pretraining runs"
        )
    if out is None:
        raise RunError(
            "report: expected --out DIR for the figure and table of pretraining runs, found none; name a folder"
        )
    logs = read_pretrainings(pretrainings)
    spec, text = chart(logs), markdown(logs)
    files = {
        "pretraining.png": render(spec, "png"),
        "pretraining.svg": render(spec, "svg"),
        "pretraining.md": text.encode(),
        "pretraining.json": json_text(summary(logs)).encode(),
    }
    make_room(out)
    for name, content in files.items():
        write_bytes(out / name, content)
    show_document(f"{text}\n")
    say(f"{', '.join(files)} in {out}")


def gold_of(data: Path | None) -> Gold:
    """Return a function that reads the gold sentences of a split, from ``data`` or else from the corpus of the run.

    The function reads each corpus and split only once. It raises RunError if the corpus is not available or is not the
    corpus on which the run was trained.
    """
    corpora: dict[Path, Corpus] = {}
    loaded: dict[tuple[Path, str], Sequence[Sentence]] = {}

    def gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
        try:
            path = data or RunFolder(run).corpus_path()
            if path not in corpora:
                corpora[path] = load_corpus(path)
            corpus = corpora[path]
            if corpus.fingerprint == fingerprint and (path, split) not in loaded:
                loaded[path, split] = list(corpus[split])
        except (CorpusError, RunError) as error:
            raise RunError(f"the gold labels cannot be read ({error}); name their corpus with --corpus") from None
        if corpus.fingerprint != fingerprint:
            raise RunError(
                f"{path} is not the corpus of {run}, because the fingerprints differ; name the right corpus with "
                "--corpus"
            )
        return loaded[path, split]

    return gold


# -- studies: runs without weights -------------------------------------------------------------------------------------


runs = typer.Typer(
    no_args_is_help=True, callback=lambda: None, help="Pack runs into studies, which contain many runs in a few files."
)


@runs.command(short_help="Pack runs without weights and text.")
def pack(
    runs: Runs,
    out: Annotated[
        Path, typer.Option(metavar="STUDY", help="Folder of the study. If the study exists, the runs are added.")
    ],
    data: Data = None,
    labels: Annotated[
        bool, typer.Option(help="Count the labels of every sentence. The report compares these counts.")
    ] = True,
) -> None:
    """Pack runs into a study, which is a folder of a few small files. Other commands read STUDY and STUDY/NAME like
    runs.

    A study contains settings, scores, gates and counts by sentence and label, but no weights, words or predictions.
    """
    from mtlprune.cli.display import working
    from mtlprune.sweeps.packing import pack as make

    with working(f"packing {out}"):
        make(runs, out, gold_of(data), labels)
        if labels:  # without labels, the corpus need not be available
            first = named_runs(runs)[0]
            keep_majority(out, first, [split for split in first.splits() if "." not in split], data)
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    say(f"{out}: {plural(len(named_runs([str(out)])), 'run')} in {size / 1e6:.2f} MB")
