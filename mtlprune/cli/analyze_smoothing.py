"""mtlprune analyze smoothing: do token vectors grow alike, and which heads make them so? (Shi et al. 2022)"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def smoothing(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN_OR_ENCODER", help="Run folders, encoder names or folders.", show_default=False),
    ],
    corpus: Annotated[Path, typer.Option(help="Folder of a corpus.", show_default=False)],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For json, Markdown, parquet and figures.", show_default=False)
    ],
    split: Annotated[str, typer.Option(help="Of the corpus.")] = "dev",
    sentences: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the split, at random (all, if not given).")
    ] = None,
    claims: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN", help="A run with gates, for stem, exclusive and free heads. Repeatable.", show_default=False
        ),
    ] = None,
    closing: Annotated[int, typer.Option(min=0, help="Sentences in which each head is closed in turn.")] = 64,
    permutations: Annotated[int, typer.Option(min=1, help="Of labels within sentences, a task.")] = 199,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and permutations.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Similarity of tokens by layer, what bounds it, how much of it is within labels, and what each head does to it.

    CosSim and d_M, the ratio of d_M from layer to layer beside two bounds on it; the share of spread between gold
    labels beside chance; λ, amplification and the measured effect of closing each head, between heads that tasks claim
    and others of the same layers where --claims names runs with gates.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from mtlprune.analyses.reading import read
    from mtlprune.analyses.smoothing_run import run
    from mtlprune.analyses.smoothing_survey import Settings
    from mtlprune.cli.console import console
    from mtlprune.files import make_room
    from mtlprune.reports.smoothing_files import write

    make_room(out)
    terminal, bar = console(), console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}, batch {task.completed}"), TimeElapsedColumn()
    reading = read(names, corpus, split, sentences, seed)
    with Progress(*columns, console=bar, disable=not bar.is_terminal, transient=True) as progress:
        shown = progress.add_task("reading", total=None)
        run(
            reading,
            Settings(closing, permutations, seed, device),
            claims or [],
            out,
            lambda words: progress.update(shown, description=words),
            lambda: progress.advance(shown),
        )
    terminal.print(write(out), soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)
