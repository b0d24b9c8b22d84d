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
        typer.Option(metavar="DIR", help="Also write overlap.json, .md and .tex here.", show_default=False),
    ] = None,
    permutations: Annotated[int, typer.Option(min=0, help="How many, for each null.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the permutations.")] = 0,
) -> None:
    """Compare which heads runs claim: correlation, shared heads and their p-values, variance, stem heads."""
    from mtlprune.analyses.claims.overlap import measure
    from mtlprune.analyses.claims.show.overlap import latex, markdown, to_json
    from mtlprune.claimed_heads import load_claims
    from mtlprune.files import write_text
    from mtlprune.sweeps.folder import expanded

    found = measure(load_claims(expanded(runs, having="gates.jsonl")), permutations, seed)
    texts = {"overlap.json": to_json(found), "overlap.md": markdown(found), "overlap.tex": latex(found)}
    if out is not None:
        for name, text in texts.items():
            write_text(out / name, text)
    say(texts["overlap.md"], nl=False)
