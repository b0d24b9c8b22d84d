"""mtlprune report: everything that is known of some runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import say
from mtlprune.corpora import CorpusError
from mtlprune.files import write_text
from mtlprune.runs import RunError, RunFolder
from mtlprune.sweeps.folder import INDEX, expanded, read_index, unusable

if TYPE_CHECKING:
    from mtlprune.reports.page.scores import Gold
    from mtlprune.sentence import Sentence


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or sweeps.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    probes: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote. Repeatable.")
    ] = None,
    analyses: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="What mtlprune analyze wrote. Repeatable.")
    ] = None,
    latency: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="latency.json of mtlprune prune, or the run it made. Repeatable."),
    ] = None,
    title: Annotated[str, typer.Option(help="Of the page; else encoder and data.", show_default=False)] = "",
    split: Annotated[
        str | None, typer.Option(help="Whose scores; else test where a run is scored on it, else dev.")
    ] = None,
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
    from mtlprune.cli.check import check_corpora

    check_corpora(data)

    from mtlprune.reports.page import Choices, Sources
    from mtlprune.reports.page import report as page

    folders = [RunFolder.existing(run) for run in expanded(runs)]
    sources = Sources(folders, probes or (), analyses or (), latency or (), notes=unfinished_cells(runs))
    text = page(sources, Choices(title, split, resamples, permutations, seed), gold_of(data))
    write_text(out, text)
    say(f"{out}: {max(0.1, len(text.encode()) / 1e6):.1f} MB; open it in a browser")


def unfinished_cells(given: Sequence[Path]) -> list[str]:
    """Of every sweep named by its folder, the cells that the page has to do without, in a sentence."""
    notes = []
    for root in given:
        if not (root / INDEX).is_file():
            continue
        cells = read_index(root)["cells"]
        missing, damaged = unusable(root, {name: cell["folder"] for name, cell in cells.items()})
        notes += [f"Cell {name} of {root} is left out: {reason}." for name, reason in damaged.items()]
        if missing:
            shown = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
            notes.append(f"{len(missing)} of the {len(cells)} cells of {root} are not finished: {shown}.")
    return notes


def gold_of(data: Path | None) -> Gold:
    """Reads gold sentences where a run says its corpus is, or at ``data``; each corpus and split once."""
    from mtlprune.corpora.store import load_corpus

    held: dict[tuple[Path, str], Sequence[Sentence]] = {}

    def gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
        path = data or Path(str(RunFolder(run).read_config().get("data", {}).get("path", "")))
        if (path, split) not in held:
            try:
                corpus = load_corpus(path)
                if corpus.fingerprint != fingerprint:
                    raise RunError(
                        f"{path} is not the corpus of {run} (their fingerprints differ); name it with --data"
                    )
                held[path, split] = list(corpus[split])
            except CorpusError as error:
                raise RunError(f"the gold is not to be had ({error}); name its corpus with --data") from None
        return held[path, split]

    return gold
