"""Sentences, tables and the figure of a Result of ``analyze cross``."""

from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.frames import TableRows
from mtlprune.analyses.heads.cross import ALL_TASKS
from mtlprune.errors import plural
from mtlprune.evaluation.ablations import SENTENCES
from mtlprune.figures.charts import Drawing, matrix
from mtlprune.figures.grid import number, percent, points, probability, with_interval
from mtlprune.runs.groups import label_order
from mtlprune.runs.results import Result
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the data, the closing of heads, its random control, and the tests."""
    settings = result.about["settings"]
    return (
        f"{result.origin} Heads that a setting claims (open in more than half of its seeds) are {_treatment(result)} "
        f"in finished runs, whose weights stay as they are.{SENTENCES[settings.get('closed', 'zero')]} The control is "
        f"{plural(settings['draws'], 'draw')} of as many random heads of the same layers. Differences are scores with "
        f"claimed heads {_treatment(result)} minus those with random heads, in points of the task's main score. "
        "Intervals and p are over seeds, sentences "
        f"({settings['resamples']:,} resamples) and draws. Holm's correction is over the cells of other tasks, and the "
        f"margin is ±{settings['margin']:g}."
    )


def _treatment(result: Result) -> str:
    """Say what happens to heads: they are closed, or their outputs are multiplied by a factor."""
    factor = result.about["settings"].get("factor")
    return "closed" if factor is None else f"multiplied by {factor:g}"


def findings(result: Result) -> list[str]:
    """Report whether closing the heads of a task costs other tasks more than closing random heads, and itself more."""
    all_cells = _cells(result)
    across_tasks = all_cells[all_cells["encoder"] != all_cells["other"]]
    sentences = []
    factor = result.about["settings"].get("factor")
    closing = "Closing" if factor is None else f"Multiplying by {factor:g} the outputs of"
    words = {
        "claimed": "",
        "exclusive": " and no other single task claims",
        "shared": " and another single task also claims",
    }
    margin = result.about["settings"]["margin"]
    for part, rows in across_tasks.groupby("mode", sort=False):
        lower, higher = (int(((rows["p_holm"] < LEVEL) & (sign * rows["estimate"] < 0)).sum()) for sign in (1, -1))
        equal = int((holm(rows["p_margin"]) < LEVEL).sum())
        sentences.append(
            f"{closing} the heads that one task claims{words[part]}, instead of random ones of the same layers, lowers "
            f"the score of another task in {lower} of {len(rows)} cells and raises it in {higher}. In {equal} "
            f"of them the difference is below {points(margin)} (Holm, p < {LEVEL}). The mean difference is "
            f"{number(rows['estimate'].mean())} points."
        )
    for row in () if len(across_tasks) else all_cells.itertuples():
        sentences.append(
            f"{closing} the heads that {row.other} claims{words[row.mode]}, instead of random ones of the same layers, "
            f"changes the score of {row.scored} by {with_interval(row)} points, p {probability(row.p)}."
        )
    own_rows = _in_order(result.frame("own", "encoder", "mode", "term"), "encoder")
    for part, rows in own_rows.groupby("mode", sort=False):
        mean, in_points = (
            rows[(rows["encoder"] == ALL_TASKS) & (rows["term"] == term)].iloc[0] for term in ("units", "points")
        )
        tasks = rows[(rows["encoder"] != ALL_TASKS) & (rows["term"] == "points")].itertuples()
        sentences.append(
            f"In units of the usual change of its score, a task loses {_more(mean)} by {_PART_NAMES[part]} than by "
            f"those of other tasks (mean of tasks, 95 % [{number(mean.low)}, {number(mean.high)}], "
            f"p {probability(mean.p)}, {mean.n} seeds). The differences in points are "
            f"{', '.join(f'{_more(row)} for {row.encoder}' for row in tasks)}. The mean of these differences is "
            f"{with_interval(in_points)} points, but it adds scores without a common scale."
        )
    claimed_only = result.frame("claimed_only", "encoder", "mode", "term")
    shares = claimed_only.query("encoder == @ALL_TASKS and term == 'share'").set_index("mode")
    if len(shares):
        claims, random, difference = (
            shares.loc[name] for name in ("claims - none", "random - none", "claims - random")
        )
        sentences.append(
            f"With only the heads open that it claims, a task keeps {percent(claims.estimate)} of what all heads add "
            f"to its score (mean of tasks). With random heads of the same layers it keeps {percent(random.estimate)}. "
            f"The difference between the two shares is {with_interval(difference)}, p {probability(difference.p)}."
        )
    return sentences


_BOUND = 5.0
"""Least difference, in points, at the ends of the colour scale of the matrix."""
_PART_NAMES = {
    "claimed": "the heads that it claims",
    "exclusive": "the heads that only it claims",
    "shared": "the heads that it claims together with another task",
}


def _more(row: Any) -> str:
    return f"{number(abs(row.estimate))} {'more' if row.estimate < 0 else 'less'}"


def _in_order(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Sort rows by the labels in these columns: first the mean of tasks, then the labels in their usual order."""
    by = list(columns)
    return frame.sort_values(
        by, key=lambda names: [(name != ALL_TASKS, label_order(name)) for name in names], kind="stable"
    )


def _cells(result: Result) -> pd.DataFrame:
    """Return the frame ``cells`` with the task and the closed heads in words (``scored`` and ``closed_for``)."""
    frame = _in_order(result.frame("cells", "encoder", "task", "other", "mode"), "encoder", "other")
    sizes = result.frames["claimed"].groupby(["other", "measure"])["value"].sum().astype(int)
    return frame.assign(
        closed_for=[
            f"{label}{'' if part == 'claimed' else f', {part}'} ({plural(sizes[label, part], 'head')})"
            for label, part in zip(frame["other"], frame["mode"], strict=True)
        ],
        scored=[
            label if task.upper() in label.split(" (")[0] else f"{label}: {task.upper()}"
            for label, task in zip(frame["encoder"], frame["task"], strict=True)
        ],
    )


def _specificity(result: Result) -> pd.DataFrame:
    """Return the frame ``specificity`` with ratios, which are the exponentials of its logarithms."""
    frame = result.frame("specificity", "encoder", "mode", "estimate", "low", "high")
    return frame.assign(
        **{
            name: np.exp(frame[column])
            for name, column in (("ratio", "estimate"), ("ratio_low", "low"), ("ratio_high", "high"))
        }
    )


def _claimed_only_scores(result: Result) -> pd.DataFrame:
    """Return the mean score of each task with all heads open, with only its claimed or random heads, and with none."""
    scores = result.frame("scores", "encoder", "mode", "control", "value")
    labels = scores.loc[scores["mode"] == "all", "encoder"].unique()
    rows = scores[scores["encoder"].isin(labels) & scores["mode"].isin(["", "others", "all"])]
    names = {("others", ""): "claims", ("others", "random"): "random", ("all", ""): "none", ("", ""): "all"}
    kinds = [names[pair] for pair in zip(rows["mode"], rows["control"], strict=True)]
    means = rows.assign(kind=kinds).groupby(["encoder", "kind"], sort=False)["value"].mean().unstack()
    sizes = result.frames["claimed"].query("measure == 'claimed'").groupby("other")["value"].sum()
    return means.reset_index().assign(heads=lambda frame: frame["encoder"].map(sizes))


TABLES = {
    "claimed_only_scores": _claimed_only_scores,
    "claimed_only": lambda result: _in_order(
        result.frame("claimed_only", "encoder", "mode", "term"), "encoder"
    ).sort_values(["term", "mode"], ascending=[False, True], kind="stable"),
    "own": lambda result: TableRows(
        _in_order(result.frame("own", "encoder"), "encoder"), {"changed": _treatment(result)}
    ),
    "specificity": _specificity,
    "table": lambda result: TableRows(_cells(result), {"changed": _treatment(result)}),
}


def _matrix(result: Result) -> Drawing:
    claimed_cells = _cells(result).query("mode == 'claimed'").assign(value=lambda frame: frame["estimate"])
    is_own = claimed_cells["encoder"] == claimed_cells["other"]
    is_shown = claimed_cells["p"].where(is_own, claimed_cells["p_holm"]) < LEVEL
    chart = matrix(claimed_cells, "scored", "closed_for", is_shown, is_own, "points", _BOUND)
    return Drawing(chart, {"changed": _treatment(result)})


FIGURES = {"matrix": _matrix}
