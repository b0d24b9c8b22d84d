"""mtlprune analyze smoothing: do token vectors grow alike, and which heads make them so? (Shi et al. 2022)"""

from __future__ import annotations

from typing import Annotated

import typer

from mtlprune.cli.analyze.lens_options import Claims, Corpus, Device, Names, Out, Sentences, Split


def smoothing(
    names: Names,
    corpus: Corpus,
    out: Out,
    split: Split = "dev",
    sentences: Sentences = None,
    claims: Claims = None,
    closing: Annotated[int, typer.Option(min=0, help="Sentences in which each head is closed in turn.")] = 64,
    permutations: Annotated[int, typer.Option(min=1, help="Of labels within sentences, a task.")] = 199,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and permutations.")] = 0,
    device: Device = "cpu",
) -> None:
    """Similarity of tokens by layer, what bounds it, how much of it is within labels, and what each head does to it.

    CosSim and d_M, the ratio of d_M from layer to layer beside two bounds on it; the share of spread between gold
    labels beside chance; λ, amplification and the measured effect of closing each head, between heads that tasks claim
    and others of the same layers where --claims names runs with gates.
    """
    from mtlprune.cli.early import check_corpora

    check_corpora(corpus)

    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from mtlprune.analyses.reading import read
    from mtlprune.analyses.smoothing.run import run
    from mtlprune.analyses.smoothing.show.files import write
    from mtlprune.analyses.smoothing.survey import Settings
    from mtlprune.cli.console import console
    from mtlprune.files import make_room

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
