"""mtlprune overlap: do tasks claim the same heads, beyond what layer depth explains?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import say


def overlap(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders with gates, or sweeps.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For claims.json, .parquet, .md, .tex and figures.", show_default=False),
    ] = None,
    permutations: Annotated[int, typer.Option(min=0, help="How many, for each null.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the permutations.")] = 0,
) -> None:
    """Compare which heads runs claim: correlation, shared heads and their p-values, variance, stem heads."""
    from mtlprune.analyses.claims import ANALYSIS
    from mtlprune.analyses.claims.measure import overlap as measured
    from mtlprune.claimed_heads import load_claims
    from mtlprune.reports.analyses import markdown, write_shown
    from mtlprune.results import write_result
    from mtlprune.sweeps.folder import expanded

    result = measured(load_claims(expanded(runs, having="gates.jsonl")), permutations, seed)
    if out is not None:
        write_result(out, result)
        write_shown(ANALYSIS, result, out, ("png", "svg", "tex"))
    say(markdown(ANALYSIS, result), nl=False)
