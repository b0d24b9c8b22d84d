"""mtlprune heads: every head in a row, with all that is known of it, and what goes together within layers."""

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import say
from mtlprune.files import RunError, make_room


def heads(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For heads.json, heads.csv and heads.md.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS", help="Runs with gates: who claims which head.")
    ] = None,
    probes: Annotated[Path | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote.")] = None,
    analyses: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="What mtlprune analyze wrote. Repeatable.")
    ] = None,
    of: Annotated[str, typer.Option(metavar="LABEL", help="Encoder to read in probes and analyses.")] = "pretrained",
    permutations: Annotated[int, typer.Option(min=1, help="Of heads within layers.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of permutations.")] = 0,
) -> None:
    """Every head in a row: claims, gates, probes, gradients, syntax, smoothing, share, isotropy; and which of these go
    together within layers (Spearman, permutations of heads within layers, corrected).

    Only what is named is joined. One head with its attention instead: mtlprune head RUN LAYER HEAD.
    """
    from mtlprune.analyses.claims.maths import claim_columns
    from mtlprune.claimed_heads import load_claims
    from mtlprune.reports.heads import SOURCES, HeadTable, correlations, lead, tree, write

    make_room(out)
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
    if not joined.columns:
        raise RunError("heads: nothing to join; name runs with gates, --probes or --analyses")
    found = correlations(joined.columns, permutations, seed)
    paths = [str(path) for path in (*(runs or []), probes, *(analyses or [])) if path is not None]
    content = tree(joined, found, {"of": of, "permutations": permutations, "seed": seed, "sources": paths})
    write(out, content)
    say(lead(content))
    say(f"written: {out}")
