"""Tables, sentences and figures that show a Result of ``analyze equal_loss``."""

import math
from typing import Any

import altair as alt
import pandas as pd

from mtlprune.analyses.costs.equal_loss import LOSS, SLOWER, UPDATES, WORSE
from mtlprune.analyses.frames import MEAN, TableRows, is_mean, row_title
from mtlprune.figures.charts import AnyChart, band, colours, lines, mark, panels
from mtlprune.figures.grid import percent, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import UNDECIDED, only_not_shown


def about(result: Result) -> str:
    """Describe the scored sentences, the training losses and the intervals."""
    info, settings = result.about, result.about["settings"]
    return (
        f"The scores are the main scores of {', '.join(map(str.upper, info['tasks']))} on {info['sentences']:,} "
        f"sentences of {info['split']}. Training loss is that of the scored weights on fixed training sentences, "
        f"without dropout. Intervals and p are over seeds and sentences ({settings['resamples']:,} resamples; seed "
        f"{settings['seed']})."
    )


def findings(result: Result) -> list[str]:
    """Return sentences on the mean cost by updates, the share left at equal loss, and the supported explanation."""
    sentences, costs = [], result.frames["costs"]
    means = costs.set_index(["updates", "mode", "task"])
    for row in result.frames["shares"].itertuples() if "shares" in result.frames else ():
        at_updates, at_loss = (means.loc[(row.updates, mode, row.task)] for mode in (UPDATES, LOSS))
        interval = "no interval" if math.isnan(row.low) else f"[{percent(row.low)}, {percent(row.high)}]"
        sentences.append(
            f"With {row.updates:,} updates joint training changes the {_score_of(row.task)} by "
            f"{with_interval(at_updates)} points. Compared with single tasks of equal training loss it changes it by "
            f"{with_interval(at_loss)}, which is {percent(row.value)} of the first change ({interval}). "
            f"{_in_words(at_updates.estimate, _explanation(row))}."
        )
    return sentences + list(result.about["notes"])


def _explanation(row: Any) -> str:
    """Return the explanation that the interval of a share supports (docs/methods/equal_loss.md)."""
    if row.n > 1 and row.high <= SLOWER:
        return "joint training only optimises more slowly"
    if row.n > 1 and row.low >= WORSE:
        return "joint training generalises worse at the same training loss"
    return UNDECIDED


def _in_words(change: float, explanation_supported: str) -> str:
    if change >= 0:
        return "There is no evidence of a cost here that could be explained"
    if explanation_supported == UNDECIDED:
        return "The data do not decide whether it optimises more slowly or generalises worse"
    return f"Before correction for other tests, this supports that {explanation_supported}"


def _score_of(mean: str) -> str:
    """Name a mean over tasks, such as "mean score without NER"."""
    return mean.replace(MEAN, "mean score", 1)


def _costs(result: Result) -> TableRows:
    frame = only_not_shown(result.frames["costs"])
    curve = {"cubic": "monotone cubic", "linear": "piecewise linear"}[result.about["settings"].get("curve", "cubic")]
    return TableRows(frame.assign(name=[row_title(task) for task in frame["task"]]), {"curve": curve})


TABLES = {"costs": _costs, "shares": lambda result: result.frame("shares")}
"""Name of a declared table (``frames.yaml``) → function from a Result to the rows of the table."""


def _cost_by_updates(result: Result) -> AnyChart | None:
    costs = result.frames["costs"]
    costs = costs[(costs["task"] == MEAN) | ~costs["task"].map(is_mean)]  # the mean without a task is in the table
    if costs["updates"].nunique() < 2:
        return None
    charts = []
    look = colours(_with_names(costs, "mode"))
    for task, rows in costs.groupby("task", sort=False):
        rows_with_names = _with_names(rows, "mode")
        areas = band(rows_with_names, "updates", "low", "high", "points", look)
        curves = lines(rows_with_names, "updates", "estimate", title=row_title(str(task)), y_title="points", look=look)
        charts.append(alt.layer(mark(y=0), areas, curves))
    return panels(charts, 3)


def _curves(result: Result) -> AnyChart:
    keys = ["task", "mode", "updates"]
    means = result.frames["runs"].groupby(keys, sort=False)[["loss", "score"]].mean().reset_index()
    look = colours(_with_names(means, "mode"))
    charts = [
        lines(
            _with_names(rows.sort_values("loss"), "mode"),
            "loss",
            "score",
            title=row_title(str(task)),
            integer_axis=False,
            log_axis=True,
            x_title="training loss (logarithmic)",
            y_title="score",
            look=look,
        )
        for task, rows in means.groupby("task", sort=False)
    ]
    return panels(charts, 3)


def _with_names(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Add the column ``name``, by which the lines of a figure are distinguished."""
    return frame.assign(name=pd.Categorical(frame[column], list(dict.fromkeys(frame[column])), ordered=True))


FIGURES = {"costs": _cost_by_updates, "curves": _curves}
"""Name of a declared figure (``frames.yaml``) → function from a Result to the chart."""
