"""mtlprune heads --table: every head in a row, with all that is known of it, and what goes together within layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from mtlprune.cli.console import say

if TYPE_CHECKING:
    from mtlprune.analyses.heads.columns import HeadTable

FLAG = "--table"


def head_table(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help="Runs with gates: who claims which head.", show_default=False),
    ] = None,
    table: Annotated[bool, typer.Option(FLAG, help="This table, not one head.", show_default=False)] = True,
    probes: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote.", show_default=False)
    ] = None,
    analyses: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="What mtlprune analyze wrote. Repeatable.", show_default=False),
    ] = None,
    of: Annotated[str, typer.Option(metavar="LABEL", help="Encoder to read in probes and analyses.")] = "pretrained",
    gradients: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A joint run, for its tasks' gradients on each head.", show_default=False),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For --gradients; else the run's.", show_default=False)
    ] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Training sentences for --gradients.")] = 128,
    permutations: Annotated[int, typer.Option(min=1, help="Of heads within layers.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of sentences and permutations.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For heads.json, heads.csv and heads.md.", show_default=False)
    ] = None,
) -> None:
    """Every head in a row: claims, gates, probes, gradients, syntax, smoothing, share, isotropy; and which of these go
    together within layers (Spearman, permutations of heads within layers, corrected).

    Only what is named is joined.
    """
    from mtlprune.analyses.heads.columns import HeadTable, HeadTableError, correlations, tree
    from mtlprune.analyses.heads.show.section import lead, write

    if out is None:
        raise HeadTableError("heads --table: expected --out DIR, a folder for the table")
    if out.exists() and not out.is_dir():
        raise HeadTableError(f"--out: {out} is a file; name a folder")
    joined = HeadTable()
    _join(joined, runs or [], probes, analyses or [], of)
    if gradients is not None:
        _add_gradients(joined, gradients, corpus, sentences, seed)
    if not joined.columns:
        raise HeadTableError(
            "heads --table: nothing to join; name runs with gates, --probes, --analyses or --gradients"
        )
    found = correlations(joined.columns, permutations, seed)
    named = [str(path) for path in (*(runs or []), probes, *(analyses or []), gradients) if path is not None]
    settings: dict[str, Any] = {"of": of, "permutations": permutations, "seed": seed, "sources": named}
    content = tree(joined, found, settings)
    write(out, content)
    say(lead(content))
    say(f"written: {out}")


def _join(joined: HeadTable, runs: list[Path], probes: Path | None, analyses: list[Path], of: str) -> None:
    """What needs no encoder."""
    from mtlprune.analyses.heads.columns import claim_columns
    from mtlprune.analyses.heads.show.reading import FILES, add_analyses, add_probes
    from mtlprune.claimed_heads import load_claims

    if runs:
        joined.add(claim_columns(load_claims(runs)), "the runs with gates")
    if probes is not None:
        add_probes(joined, probes, of)
    for folder in analyses:
        add_analyses(joined, folder, of)
    there = {column.source for column in joined.columns}
    sources = {"claims": "RUNS", "probes": "--probes"}
    sources |= {name.removesuffix(".json"): "--analyses" for name in FILES}
    absent = [f"{source} ({option})" for source, option in sources.items() if source not in there]
    if absent:
        joined.notes.append(f"Not named, so without columns: {', '.join(absent)}.")


def _add_gradients(joined: HeadTable, run: Path, corpus: Path | None, sentences: int, seed: int) -> None:
    from mtlprune.analyses.heads.joint_gradients import gradient_columns

    joined.add(gradient_columns(run, corpus, sentences, seed), str(run))
    joined.notes.append(
        f"Gradients: {run}, at most {sentences} training sentences, no dropout; cosine on the query, key and value "
        "rows and output columns of each head, mean over pairs of tasks; importance: mean of |∂L/∂ξ| over sentences."
    )


class HeadsOrTable(TyperCommand):
    """``heads`` with its places as arguments; with ``--table`` among its words, the table instead."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = args[: args.index("--")] if "--" in args else args
        if FLAG in words:
            return _command().make_context(f"{info_name} {FLAG}", args, parent, **extra)
        return super().make_context(f"{info_name} {FLAG}", args, parent, **extra)


def _command() -> TyperCommand:
    """The table as a command of its own."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("heads")(head_table)
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    return command
