"""Views of runs: mtlprune table (scores, tested), maps (the heads they claim), report (all on one page);
mtlprune runs pack: what these need of them, without weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtlprune.cli.check import check_corpora
from mtlprune.cli.console import Analyses, FontSize, Scale, Title, Width, chosen_formats, say, seen_from_here
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import load_corpus
from mtlprune.io.files import make_room, one_writer, remove, write_bytes, write_json, write_text
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sweeps.folder import expanded


def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or sweeps.")],
    split: Annotated[str, typer.Option(help="Whose scores.")] = "test",
    format_: Annotated[Literal["markdown", "latex", "csv", "json"], typer.Option("--format")] = "markdown",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here instead of to the terminal.")] = None,
    test: Annotated[bool, typer.Option("--test/--no-test", help="Test differences over sentences.")] = True,
    resamples: Annotated[int, typer.Option(min=1, help="Of the sentences, for each test.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    margin: Annotated[float, typer.Option(help="Of differences that do not matter, in points.")] = 1.0,
    against: Annotated[
        str | None, typer.Option(metavar="TITLE", help="Compare with the column of this title, not STL.")
    ] = None,
    majority: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Add the majority baseline of this corpus.")
    ] = None,
) -> None:
    """Compare runs: one row per task, a column a setting, several seeds as mean ± sample standard deviation.

    Differences to STL are tested over seeds and sentences, from the stored counts.
    """
    check_corpora(majority)

    if not 0 < margin < 100:
        raise RunError(f"--margin: expected points above 0 and below 100, found {margin:g}")
    left_out: list[str] = []
    runs = seen_from_here(runs)
    folders = [RunFolder.existing(run) for run in expanded(runs, left_out=left_out)]

    from mtlprune.reports.scores import tables
    from mtlprune.reports.scores.comparisons import compare, with_tests

    extra = {"majority": majority_scores(majority, folders[0], split)} if majority is not None else {}
    comparison = dataclasses.replace(compare(folders, split, extra, against or ""), left_out=tuple(left_out))
    if test and comparison.against:
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
    from mtlprune.evaluation.baselines import Majority
    from mtlprune.evaluation.scores import count, main_score, score

    corpus = load_corpus(data)
    trained = run.read_manifest()["data"]["fingerprint"]
    if corpus.fingerprint != trained:
        raise RunError(
            f"{data} has the fingerprint {corpus.fingerprint[:16]}…, but {run.path} was trained on {trained[:16]}…; "
            "give --majority the corpus of the runs"
        )
    settings = run.read_config()["data"]
    train = corpus[settings["train"]].first(settings.get("train_sentences")).half(settings.get("half"))
    baseline = Majority(list(train))
    gold = list(corpus[split])
    predicted = [baseline.predict(sentence) for sentence in gold]
    scores = {}
    for layer, kind in baseline.layers.items():
        counts = [count(layer, g, p) for g, p in zip(gold, predicted, strict=True)]
        if any(row is not None for row in counts):
            decoders = {layer: {"kind": kind}} | run.read_config()["decoders"]
            scores[layer] = score(kind, counts)[main_score(layer, decoders)]
    return scores


# -- maps --------------------------------------------------------------------------------------------------------------


def maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs with gates, or sweeps.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")],
    values: Annotated[bool, typer.Option("--values", help="Write the numbers into the cells.")] = False,
    palette: Annotated[Literal["colourblind", "rgb"], typer.Option(help="Of the maps of seeds.")] = "colourblind",
    format_: Annotated[str, typer.Option("--format", help="png, svg, pdf, with commas between.")] = "png,svg",
    scale: Scale = 2,
    training: Annotated[bool, typer.Option("--training", help="Each run's gates at every evaluation, too.")] = False,
    width: Width = None,
    font_size: FontSize = 11,
    title: Title = True,
) -> None:
    """Draw which heads runs claim: each run, seeds by colour, means, all tasks, differences, evaluations."""
    from mtlprune.figures.charts import FORMATS, Style, render
    from mtlprune.figures.maps import claim_maps, left_out, training_map
    from mtlprune.runs.claims import group, load_claims, notes

    formats = chosen_formats(format_, FORMATS)
    make_room(out)
    claims = load_claims(expanded(seen_from_here(runs), having="gates.jsonl"))
    run_groups = group(claims)
    remarks = [*notes(run_groups), *left_out(run_groups)]
    during = [training_map(claim) for each in run_groups for claim in each.claims] if training else []
    drawn = [*claim_maps(run_groups, palette), *during]
    entries = [{"files": [f"{one.name}.{kind}" for kind in formats], **one.entry()} for one in drawn]
    layers, heads = claims[0].gates.shape
    head = {"encoder": claims[0].encoder, "layers": layers, "heads": heads, "palette": palette, "notes": remarks}
    style = Style(width, font_size, title, scale)
    with one_writer(out):  # where two commands write the same maps, the last one's stay, all of them
        remove(out / "maps.json")
        for one in drawn:
            spec = one.spec(values)
            for kind in formats:
                write_bytes(out / f"{one.name}.{kind}", render(spec, kind, style))
        write_json(out / "maps.json", head | {"maps": entries})  # last, so that it never names what is not there
    pictures = len(drawn) * len(formats)
    say(f"{pictures} pictures of {len(drawn)} maps in {out}; maps.json there lists them with their numbers")
    for caption in dict.fromkeys(entry["caption"] for entry in entries if entry.get("caption")):
        say(f"maps of seeds: {caption}")
    for note in remarks:
        say(f"note: {note}")


# -- report ------------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from mtlprune.reports.page.scores import Gold
    from mtlprune.sentence import Sentence


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or sweeps.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    probes: Annotated[list[Path] | None, typer.Option(metavar="DIR", help="Of mtlprune probe. Repeatable.")] = None,
    analyses: Analyses = None,
    title: Annotated[str, typer.Option(help="Of the page; else encoder and data.", show_default=False)] = "",
    split: Annotated[str | None, typer.Option(help="Whose scores; else test, or dev.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The corpus with the gold labels, if not where the runs say.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Of the sentences, for each test; 0: no tests.")] = 10_000,
    permutations: Annotated[int, typer.Option(min=0, help="Of heads, for each null of the overlap.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of resamples and permutations.")] = 0,
) -> None:
    """Write one HTML page: what was run, tables with tests, gate maps, overlap, probes, curves, caveats.

    The file opens from disk, needs no network, and shows everything essential without JavaScript.
    """
    check_corpora(data)

    from mtlprune.reports.page import Choices, Sources
    from mtlprune.reports.page import report as page

    runs = seen_from_here(runs)
    notes: list[str] = []
    folders = [RunFolder.existing(run) for run in expanded(runs, left_out=notes)]
    sources = Sources(folders, probes or (), analyses or (), notes=notes)
    text = page(sources, Choices(title, split, resamples, permutations, seed), gold_of(data))
    write_text(out, text)
    say(f"{out}: {max(0.1, len(text.encode()) / 1e6):.1f} MB; open it in a browser")


def gold_of(data: Path | None) -> Gold:
    """Reads gold sentences where a run says its corpus is, or at ``data``; each corpus and split once."""
    loaded: dict[tuple[Path, str], Sequence[Sentence]] = {}

    def gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
        path = data or Path(str(RunFolder(run).read_config().get("data", {}).get("path", "")))
        if (path, split) not in loaded:
            try:
                corpus = load_corpus(path)
                if corpus.fingerprint != fingerprint:
                    raise RunError(
                        f"{path} is not the corpus of {run} (their fingerprints differ); name it with --data"
                    )
                loaded[path, split] = list(corpus[split])
            except CorpusError as error:
                raise RunError(f"the gold is not to be had ({error}); name its corpus with --data") from None
        return loaded[path, split]

    return gold


# -- studies: runs without weights -------------------------------------------------------------------------------------


runs = typer.Typer(no_args_is_help=True, callback=lambda: None, help="Studies: many runs in a few files.")


@runs.command(short_help="Keep runs without weights and text.")
def pack(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs, or sweeps.")],
    out: Annotated[
        Path, typer.Option(metavar="STUDY", help="The study: a folder. Runs are added to one that is there.")
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The corpus with the gold labels, if not where the runs say.")
    ] = None,
    labels: Annotated[bool, typer.Option(help="Count the labels of every sentence; the page compares them.")] = True,
) -> None:
    """Pack runs into a study: table, maps, claims, heads and report work on STUDY and STUDY/NAME as on the runs.

    It holds settings, scores, gates and counts by sentence and label; no weights, no words, no predictions.
    """
    from mtlprune.sweeps.packing import pack as make

    make(runs, out, gold_of(data), labels)
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    say(f"{out}: {len(expanded([out]))} runs in {size / 1e6:.2f} MB")
