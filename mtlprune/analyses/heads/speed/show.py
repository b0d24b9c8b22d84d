"""Times of pruned runs: sentences and a table of a Result."""

from typing import Any

import pandas as pd

from mtlprune.errors import plural
from mtlprune.figures.grid import number, percent
from mtlprune.runs.results import Result


def about(result: Result) -> str:
    """Describe what was timed."""
    settings = result.about["settings"]
    return (
        f"{result.origin} {settings['batches']} batches of each size, {settings['rounds']} interleaved rounds, of "
        f"which the fastest of each batch counts; {settings['device']}, on a CPU seconds of one thread."
    )


def rated(result: Result) -> pd.DataFrame:
    """The frame ``times`` with ``gain`` (the share of the encoder's time that removal saves), ``reached`` (of the
    ideal), ``mask`` (masked over full) and ``speed`` (sentences a second without heads over those with a mask)."""
    rows = result.with_names("times")
    rows = rows.assign(gain=1 - rows["removed"] / rows["full"], mask=rows["masked"] / rows["full"])
    rows = rows.assign(reached=rows["gain"] / rows["ideal"], speed=rows["masked_whole"] / rows["removed_whole"])
    return rows.assign(rate=rows["sentences"] / rows["removed_whole"])


def findings(result: Result) -> list[str]:
    """What removal saves, by size of the batches."""
    return [
        f"Batches of {batch}: the encoder takes {percent(rows['gain'].mean())} less time without closed heads (ideal "
        f"{percent(rows['ideal'].mean())}), whole predictions are {number(rows['speed'].mean())} times as fast; with a "
        f"mask the encoder takes {number(rows['mask'].mean())} of the full model's time (mean of "
        f"{plural(len(rows), 'run')})."
        for batch, rows in rated(result).groupby("batch")
    ]


def _times(result: Result) -> pd.DataFrame:
    rows = rated(result)
    ms = {name: 1000 * rows[name] / rows["sentences"] for name in ("full", "masked", "removed")}
    return rows.assign(**ms)


TABLES = {"times": _times}
FIGURES: dict[str, Any] = {}
