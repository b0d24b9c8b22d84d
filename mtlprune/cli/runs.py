"""mtlprune runs: what is done with run folders as such."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def runs() -> None:
    """Records of runs."""


@app.command(short_help="Keep runs without weights and text.")
def record(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs, or sweeps.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the records go, a folder each.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The corpus with the gold labels, if not where the runs say.")
    ] = None,
) -> None:
    """Make a small record of each run: table, maps, overlap, heads and report work on it as on the run.

    It holds settings, scores, gates and counts by sentence and label; no weights, no words, no predictions.
    """
    from mtlprune.cli.show import gold_of
    from mtlprune.sweeps.recording import record as make

    size, number = 0, 0
    for made in make(runs, out, gold_of(data)):
        size, number = size + made.bytes, number + 1
        typer.echo(f"{made.path}: {made.bytes / 1e3:.0f} kB")
    shared = sum(path.stat().st_size for path in (out / "gold").glob("*.parquet"))
    many = "1 record" if number == 1 else f"{number} records"
    typer.echo(f"{many} in {out}: {size / 1e6:.2f} MB, and gold counts that all there share: {shared / 1e6:.2f} MB")
