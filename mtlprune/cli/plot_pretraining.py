"""mtlprune plot pretraining: curves of pretrainings with their breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import say


def pretraining(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of mtlprune pretrain.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For pictures, table and breaks (json).", show_default=False)
    ],
    scale: Annotated[int, typer.Option(min=1, max=8, help="Pixels a unit of 1/96 inch, in PNG.")] = 2,
) -> None:
    """Loss, syntactic attention, minimal pairs and dimension by update, all runs in one figure, breaks marked."""
    from mtlprune.files import RunError, json_text, write_bytes
    from mtlprune.reports.charts import Style, render
    from mtlprune.reports.pretraining import chart, markdown, read_pretrainings, summary

    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder")
    logs = read_pretrainings(runs)
    spec, text = chart(logs), markdown(logs)
    made = {
        "pretraining.png": render(spec, "png", Style(scale=scale)),
        "pretraining.svg": render(spec, "svg"),
        "pretraining.md": text.encode(),
        "pretraining.json": json_text(summary(logs)).encode(),
    }
    for name, content in made.items():
        write_bytes(out / name, content)
    say(text)
    say(f"{', '.join(made)} in {out}")
