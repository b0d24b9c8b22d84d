"""Views of breaks of logged curves: sentences and tables of a Result."""

import math
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.figures.grid import Grid, probability
from mtlprune.runs.results import Result


def about(result: Result) -> str:
    """The definition of a break, and the logs that were read."""
    logs = result.about["logs"]
    return (
        f"The step of the largest acceleration of each curve{' of ' * bool(logs)}{', '.join(logs)}; a curve that ends "
        "lower than it began is read as falling."
    )


def findings(result: Result) -> list[str]:
    """The first and the last break, and how much heads lag, in sentences."""
    sentences = []
    curves = _curves(result)
    known = curves.dropna(subset=["break"])
    if len(curves):
        words = f"Of {len(curves)} curves {len(known)} break"
        for end, place in (("first", 0), ("last", -1)):
            words += (
                f", the {end} at {known['break'].iloc[place]:g} ({known['term'].iloc[place]})" if len(known) else ""
            )
        sentences.append(f"{words}.")
    for _, pair in _lags(result).iterrows():
        words = f"{pair['other']} after {pair['term']}: "
        if pair["n"]:
            words += (
                f"{pair['n']:.0f} heads break in both, lag {pair['0.5']:g} steps in the median (quartiles "
                f"{pair['0.25']:g} and {pair['0.75']:g}); p {probability(pair['p'])} that heads of a layer changing "
                "places gives lags as small."
            )
        sentences.append(words if pair["n"] else f"{words}no head breaks in both.")
    return sentences


def _curves(result: Result) -> pd.DataFrame:
    """One row a curve of no head, the earliest break first."""
    if "curves" not in result.frames:
        return pd.DataFrame(columns=["term", "n", "break"])
    frame = result.frames["curves"]
    return frame[frame["measure"] == "break"].rename(columns={"value": "break"}).sort_values("break", kind="stable")


def _lags(result: Result) -> pd.DataFrame:
    """One row a pair of numbers of heads: n, p, and quartiles of the lag."""
    if "lags" not in result.frames:
        return pd.DataFrame()
    frame = result.frames["lags"]
    lags = frame[frame["measure"] == "lag"].groupby(["term", "other"])["value"]
    quartiles = lags.quantile([0.25, 0.5, 0.75]).unstack().rename(columns=str)
    return frame[frame["measure"] == "size"].join(quartiles, on=["term", "other"])


def _order(result: Result) -> Grid:
    curves = _curves(result)
    steps = ["none" if math.isnan(step) else f"{step:g}" for step in curves["break"]]
    return Grid.of(
        "Curves by their break",
        curves.assign(step=steps),
        {"curve": "term", "break": ("step", str), "points": ("n", 0)},
        "The step of the break, the earliest first.",
    )


def _heads(result: Result) -> Grid | None:
    if "heads" not in result.frames:
        return None
    frame = result.frames["heads"]
    steps = np.unique(frame["value"].dropna()).tolist()
    shown = steps if len(steps) <= 8 else []
    by_curve = frame.groupby("term", sort=False)["value"]
    table = by_curve.agg(["size", "count", "min", "median", "max"])
    for step in shown:
        table[f"at {step:g}"] = by_curve.agg(lambda values, step=step: (values == step).sum())
    columns: dict[str, Any] = {"curve": "term", "heads": ("size", 0), "without": ("without", 0), "first": ("min", 0)}
    columns |= {"median": ("median", 0), "last": ("max", 0)} | {f"at {step:g}": (f"at {step:g}", 0) for step in shown}
    return Grid.of(
        "Heads by the step of their break",
        table.assign(without=table["size"] - table["count"]).reset_index(),
        columns,
        "How many heads there are, how many have no break, and steps of the breaks of the others.",
    )


TABLES = (_order, _heads)
FIGURES: dict[str, Any] = {}
