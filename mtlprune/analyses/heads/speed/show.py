"""Sentences and the table of a Result of ``analyze speed``."""

from typing import Any

import pandas as pd

from mtlprune.errors import plural
from mtlprune.figures.grid import number, percent
from mtlprune.runs.results import Result


def about(result: Result) -> str:
    """Describe what was timed."""
    settings = result.about["settings"]
    return (
        f"{result.origin} {settings['batches']} batches of each size were timed in {settings['rounds']} interleaved "
        f"rounds, of which the fastest of each batch counts. The device is {settings['device']}; times on a CPU are "
        "processor seconds of one thread."
    )


def rated(result: Result) -> pd.DataFrame:
    """Return the frame ``times`` with columns that compare the forms of a run.

    ``gain`` is the share of the encoder's time that removal saves, and ``reached`` is this share over the ideal one.
    ``mask`` is the encoder's time with masked heads over that with all heads. ``speed`` is the number of sentences per
    second with heads removed over that with heads masked, for whole predictions, and ``rate`` is the former number.
    """
    rows = result.with_names("times")
    rows = rows.assign(gain=1 - rows["removed"] / rows["full"], mask=rows["masked"] / rows["full"])
    rows = rows.assign(reached=rows["gain"] / rows["ideal"], speed=rows["masked_whole"] / rows["removed_whole"])
    return rows.assign(rate=rows["sentences"] / rows["removed_whole"])


def findings(result: Result) -> list[str]:
    """Report the time that removal saves, for each size of batches."""
    return [
        f"In batches of {batch} the encoder takes {percent(rows['gain'].mean())} less time without closed heads "
        f"(ideally {percent(rows['ideal'].mean())}). Whole predictions are {number(rows['speed'].mean())} times as "
        f"fast. With a mask the encoder takes {number(rows['mask'].mean())} of the full model's time (mean of "
        f"{plural(len(rows), 'run')})."
        for batch, rows in rated(result).groupby("batch")
    ]


def _times(result: Result) -> pd.DataFrame:
    rows = rated(result)
    ms = {name: 1000 * rows[name] / rows["sentences"] for name in ("full", "masked", "removed")}
    return rows.assign(**ms)


TABLES = {"times": _times}
FIGURES: dict[str, Any] = {}
