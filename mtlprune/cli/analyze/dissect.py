"""mtlprune analyze dissect: vectors as input + heads + feed-forward + correction (Mickus et al. 2022)."""

from __future__ import annotations

from typing import Annotated

import typer

from mtlprune.cli.analyze.command import Corpus, Device, Names, Out, Sentences, Split
from mtlprune.layers import LAYERS


def dissect(
    names: Names,
    corpus: Corpus,
    out: Out,
    split: Split = "dev",
    sentences: Sentences = None,
    train_sentences: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of train, at random: what light decoders learn from.")
    ] = 1000,
    tasks: Annotated[
        str, typer.Option(help="What subsets of terms are scored on, with commas between; none: on nothing.")
    ] = ",".join((*LAYERS, "wsd", "mlm")),
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of light decoders.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="Of light decoders.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and decoders.")] = 0,
    device: Device = "cpu",
) -> None:
    """Take vectors apart, exactly: what comes from the input, from heads, from feed-forward parts, and from biases.

    Importance of each term by layer and of each head at the end; what each of the 16 subsets of terms is worth to a
    fresh light decoder (rolesets stand in for senses; masked sub-words where the encoder folder has such a head); and,
    with several encoders, which term carries the loss of multi-task learning, whether gates keep the heads with the
    largest shares, and whether the joint encoder is a compromise of the single ones. Post-LN encoders only.
    """
    from mtlprune.cli.early import check_corpora

    check_corpora(corpus)

    from mtlprune.analyses.dissection.results import tree, write
    from mtlprune.analyses.dissection.run import DissectionRequest
    from mtlprune.analyses.dissection.run import dissect as run
    from mtlprune.analyses.dissection.show.files import write_report
    from mtlprune.analyses.dissection.subset_nets import NetSettings
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import make_room

    make_room(out)
    asked = () if tasks == "none" else tuple(dict.fromkeys(task.strip() for task in tasks.split(",")))
    nets = NetSettings(hidden=hidden, epochs=epochs, seed=seed)
    request = DissectionRequest(
        tuple(names), corpus, split, sentences, train_sentences, asked, nets, seed=seed, device=device
    )
    terminal = console()
    with counted() as (say, tick):
        found = run(request, say, tick)
        say("comparing")
        content = tree(found)
    write(content, out)
    terminal.print(write_report(out), soft_wrap=True, highlight=False, markup=False)
    for line in content["refused"]:
        terminal.print(f"not taken apart: {line}", soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)
