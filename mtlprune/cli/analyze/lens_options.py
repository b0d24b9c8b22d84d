"""What every `mtlprune analyze` of encoders asks for in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[
    list[str],
    typer.Argument(metavar="RUN_OR_ENCODER", help="Runs, sweeps, encoder names or folders.", show_default=False),
]
Corpus = Annotated[Path, typer.Option(help="Folder of a corpus.", show_default=False)]
Out = Annotated[Path, typer.Option(metavar="DIR", help="For json, Markdown, parquet and figures.", show_default=False)]
Split = Annotated[str, typer.Option(help="Of the corpus.")]
Sentences = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the split, at random (all, if not given).")]
Claims = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN", help="A run with gates, for stem, exclusive and free heads. Repeatable.", show_default=False
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
