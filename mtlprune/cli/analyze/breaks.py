"""mtlprune analyze breaks: where logged curves bend, in order."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import say


class StepScale(str, Enum):
    """How far steps lie apart."""

    step = "step"
    log = "log"


def breaks(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Logs (*.jsonl with step), or folders of them.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write breaks.json and .md here.", show_default=False)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Steps to both sides (neighbours in the log, if not given).", show_default=False),
    ] = None,
    axis: Annotated[StepScale, typer.Option(help="log for curves logged on a log schedule.")] = StepScale.step,
    permutations: Annotated[int, typer.Option(min=1, help="Of heads within layers, for lags.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of the permutations.")] = 0,
) -> None:
    """The step of every curve's largest acceleration, the earliest first; lags between breaks of the same heads.

    A run's folder gives its losses, dev scores and gates. Curves of several logs are ordered together.
    """
    from mtlprune.analyses.onset.curves import onsets, read_curves
    from mtlprune.analyses.onset.show.breaks import markdown, tree
    from mtlprune.files import RunError, json_text, write_text

    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder")
    found = onsets([curve for log in logs for curve in read_curves(log)], delta, axis.value, permutations, seed)
    text = markdown(found)
    if out is not None:
        for name, content in (("breaks.json", json_text(tree(found))), ("breaks.md", text)):
            write_text(out / name, content)
    say(text, nl=False)
