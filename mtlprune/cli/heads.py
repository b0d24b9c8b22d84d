"""mtlprune heads: every head in a row, with all that is known of it, and what goes together within layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import say


def heads(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS", help="Runs with gates: who claims which head.")
    ] = None,
    probes: Annotated[Path | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote.")] = None,
    analyses: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="What mtlprune analyze wrote. Repeatable.")
    ] = None,
    of: Annotated[str, typer.Option(metavar="LABEL", help="Encoder to read in probes and analyses.")] = "pretrained",
    gradients: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A joint run, for its tasks' gradients on each head.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="For --gradients; else the run's.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Training sentences for --gradients.")] = 128,
    permutations: Annotated[int, typer.Option(min=1, help="Of heads within layers.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of sentences and permutations.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="For heads.json, heads.csv and heads.md.")] = None,
) -> None:
    """Every head in a row: claims, gates, probes, gradients, syntax, smoothing, share, isotropy; and which of these go
    together within layers (Spearman, permutations of heads within layers, corrected).

    Only what is named is joined. One head with its attention instead: mtlprune head RUN LAYER HEAD.
    """
    from mtlprune.analyses.claims.maths import claim_columns
    from mtlprune.claimed_heads import load_claims
    from mtlprune.files import RunError
    from mtlprune.reports.heads import SOURCES, HeadTable, correlations, lead, tree, write

    if out is None:
        raise RunError("heads: expected --out DIR, a folder for the table")
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder")
    joined = HeadTable()
    if runs:
        joined.add(claim_columns(load_claims(runs)), "the runs with gates")
    if probes is not None:
        joined.read(probes, of, ["probes"])
    named = {"claims": runs, "probes": probes}
    for folder in analyses or ():
        joined.read(folder, of, [name for name in SOURCES if not named.get(name)])
    sources = {"claims": "RUNS", "probes": "--probes"} | {name: "--analyses" for name in SOURCES if name not in named}
    there = {column.source for column in joined.columns}
    absent = [f"{source} ({option})" for source, option in sources.items() if source not in there]
    if absent:
        joined.notes.append(f"Not named, so without columns: {', '.join(absent)}.")
    if gradients is not None:
        from mtlprune.analyses.joint_gradients import gradient_columns

        joined.add(gradient_columns(gradients, corpus, sentences, seed), str(gradients))
        joined.notes.append(
            f"Gradients: {gradients}, at most {sentences} training sentences, no dropout; cosine on the query, key and "
            "value rows and output columns of each head, mean over pairs of tasks; importance: mean of |∂L/∂ξ| over "
            "sentences."
        )
    if not joined.columns:
        raise RunError("heads: nothing to join; name runs with gates, --probes, --analyses or --gradients")
    found = correlations(joined.columns, permutations, seed)
    paths = [str(path) for path in (*(runs or []), probes, *(analyses or []), gradients) if path is not None]
    content = tree(joined, found, {"of": of, "permutations": permutations, "seed": seed, "sources": paths})
    write(out, content)
    say(lead(content))
    say(f"written: {out}")
