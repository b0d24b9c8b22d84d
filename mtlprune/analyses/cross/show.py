"""What closing one task's heads costs every task: tables, sentences and figures of a Result."""

from typing import Any

import pandas as pd

from mtlprune.reports.charts import Chart, Spec, cells, figure
from mtlprune.reports.grid import Grid, number, probability
from mtlprune.results import Result
from mtlprune.statistics.significance import LEVEL, holm


def about(result: Result) -> str:
    """Where the numbers come from, and how to read them."""
    told, settings = result.about, result.about["settings"]
    return (
        f"{result.source} ({told['fingerprint'][:8]}); {told['too_long']} too long and left out; seed {told['seed']}. "
        "Heads that a label claims (open in more than half of its seeds) are closed in finished runs, whose weights "
        f"stay as they are. Beside it {settings['draws']} draws of as many other heads of the same layers. "
        "Differences: claimed minus random, in points of the task's main score; intervals and p resample seeds and "
        f"sentences ({settings['resamples']:,}), Holm over the cells of other tasks, margin ±{settings['margin']:g}."
    )


def findings(result: Result) -> list[str]:
    """Whether closing one task's heads hurts others more than closing other heads, and itself more than others."""
    held = _cells(result)
    apart = held[held["encoder"] != held["other"]]
    found = []
    if len(apart):
        lower, higher = (int(((apart["holm"] < LEVEL) & (sign * apart["delta"] < 0)).sum()) for sign in (1, -1))
        equal = int((holm(apart["equal"]) < LEVEL).sum())
        found.append(
            "Closing the heads that one task claims, instead of others of the same layers, lowers the score of "
            f"another task in {lower} of {len(apart)} cells and raises it in {higher}; in {equal} the difference is "
            f"shown to be below {result.about['settings']['margin']:g} points (Holm, p < {LEVEL}). Mean difference "
            f"{number(apart['delta'].mean())} points."
        )
    for row in () if len(apart) else held.itertuples():
        found.append(
            f"Closing the heads that {row.other} claims, instead of others of the same layers, changes the score of "
            f"{row.scored} by {number(row.delta)} points, 95 % [{number(row.low)}, {number(row.high)}], p "
            f"{probability(row.p)}."
        )
    for row in result.frames.get("own", pd.DataFrame()).itertuples():
        found.append(
            f"A task loses {number(abs(row.delta))} points {'more' if row.delta < 0 else 'less'} by its own claimed "
            f"heads than other tasks do by them, beside what random heads cost (own minus others "
            f"{number(row.delta)}, 95 % [{number(row.low)}, {number(row.high)}] over seeds and sentences, "
            f"p {probability(row.p)}, {row.n} seeds)."
        )
    return found


def _cells(result: Result) -> pd.DataFrame:
    held = result.frames["cells"]
    sizes = result.frames["claimed"].groupby("other")["value"].sum().astype(int)
    return held.assign(
        closed_for=[f"{label} ({sizes[label]} heads)" for label in held["other"]],
        scored=[
            label if task.upper() in label.split(" (")[0] else f"{label}: {task.upper()}"
            for label, task in zip(held["encoder"], held["task"], strict=True)
        ],
    )


def _table(result: Result) -> Grid:
    held = _cells(result)
    columns: dict[str, Any] = {"heads of": "closed_for", "scored": "scored"}
    columns |= {"all open": ("open", 2), "closed": ("closed", 2), "random closed": ("random", 2)}
    columns |= {"difference": ("delta", 2), "low": ("low", 2), "high": ("high", 2), "p": ("p", probability)}
    return Grid.of(
        "Scores with the heads of one label closed",
        held,
        {**columns, "Holm": ("holm", probability), "below margin: p": ("equal", probability)},
        "Means over seeds. Difference: claimed minus random heads closed, with 95 % interval.",
        texts=2,
    )


TABLES = (_table,)


def _matrix(result: Result) -> Spec:
    """Matrix of closed heads by scored tasks: claimed minus random heads closed."""
    held = _cells(result)
    table = held.assign(
        value=held["delta"],
        words=[
            number(row.delta, 1) + ("*" if (row.holm if row.encoder != row.other else row.p) < LEVEL else "")
            for row in held.itertuples()
        ],
    )
    bound = float(table["value"].abs().max())
    return figure(
        cells(table, "scored", "closed_for", (-bound, bound), size=(60, 30)),
        "What closing one task's heads costs every task",
        [
            "Points, claimed heads (rows) minus as many random heads of the same layers. * p < 0.05 over seeds and "
            "sentences, after Holm off the diagonal."
        ],
    )


FIGURES = {"matrix": Chart.of(_matrix, "cells")}
