"""mtlprune analyze degeneration: do vectors fall into a cone, and do rare labels pay for it? (Gao et al. 2019)"""

from __future__ import annotations

from typing import Annotated

import typer

from mtlprune.cli.analyze.command import Claims, Corpus, Device, Names, Out, Sentences, Split


def degeneration(
    names: Names,
    corpus: Corpus,
    out: Out,
    split: Split = "dev",
    sentences: Sentences = None,
    claims: Claims = None,
    rows: Annotated[
        int, typer.Option(min=2, help="Words whose angles are looked at one by one; the same for all encoders.")
    ] = 2000,
    permutations: Annotated[int, typer.Option(min=1, help="Of labels, and of heads within layers.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and permutations.")] = 0,
    device: Device = "cpu",
) -> None:
    """Cones, spectra and isotropy of embeddings, hidden states, heads and label weights, and what they have to do with
    labels lost and with claims.

    Token embeddings, hidden states by layer, outputs of every head, label weights of a run's decoders: mean cosine (R),
    angles, spectrum, effective rank, IsoScore; where the mean vector comes from, by term and by head; whether rare
    labels lie in the cone, and whether labels that fell further lose more F1 in joint training.
    """
    from mtlprune.cli.early import check_corpora

    check_corpora(corpus)

    from mtlprune.analyses.degeneration.run import run
    from mtlprune.analyses.degeneration.show.files import write
    from mtlprune.analyses.degeneration.survey import DegenerationSettings
    from mtlprune.analyses.reading import read
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import make_room

    make_room(out)
    terminal = console()
    reading = read(names, corpus, split, sentences, seed)
    with counted() as (say, tick):
        run(
            reading,
            corpus,
            DegenerationSettings(rows, permutations, seed, device),
            claims or [],
            out,
            say,
            tick,
        )
    terminal.print(write(out), soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)
