"""Sentences, tables and the figure of a Result of ``analyze scarcity``."""

import math
from typing import Any

import pandas as pd

from mtlprune.analyses.frames import is_mean, row_title
from mtlprune.errors import plural
from mtlprune.figures.charts import AnyChart, Interval, forest, panels
from mtlprune.figures.grid import number, points, power_clause, probability, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import SUPPORTED, UNDECIDED, only_not_shown
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the data and the tests, and define Δ and its change."""
    info, settings = result.about, result.about["settings"]
    base = "that of another group" if is_of_groups_file(result) else "Δ with all heads"
    return (
        f"The scores are of {info['sentences']:,} sentences of {info['split']}. Δ is the score of joint training "
        f"minus that of single tasks, in points of the main scores of {', '.join(map(str.upper, info['tasks']))}. The "
        f"change is Δ minus {base}, paired by seed. Intervals and p are over seeds and sentences "
        f"({settings['resamples']:,} resamples; seed {settings['seed']}), not corrected. Where seeds share draws of "
        f"heads, intervals and p are also over draws instead of seeds. The margin is {points(settings['margin'])}."
    )


def findings(result: Result) -> list[str]:
    """Report the mean Δ with few heads and with all heads, and whether it falls; add notes on unequal heads."""
    margin, levels = result.about["settings"]["margin"], result.frames["levels"].set_index(["term", "task"])
    sentences = []
    for row in result.frame("changes").itertuples():
        if not is_mean(row.task):
            continue
        delta, base = levels.loc[(row.term, row.task)], levels.loc[(row.other, row.task)]
        # With a single task, the mean is the score of this task.
        name = row.task if len(tasks := result.about["tasks"]) > 1 else tasks[0].upper()
        sentences.append(
            f"Δ with {row.term} ({name}) is {with_interval(delta)} ({plural(delta['n'], 'seed')}). Δ with "
            f"{row.other} is {with_interval(base)} ({plural(base['n'], 'seed')}). The change is {with_interval(row)} "
            f"({plural(row.n, 'seed')}). {_in_words(row, margin)}."
        )
    return sentences + [note for note in result.about["notes"] if "other heads open" in note]


def _in_words(row: Any, margin: float) -> str:
    """Report whether Δ falls by the margin or more, as competition predicts where heads are closed.

    If Δ does not fall, further clauses report whether this also holds with draws as the unit, or with the pooled
    error of all changes.
    """
    if row.n < 2:
        return "One seed cannot show whether Δ falls, because its interval is over sentences only"
    if row.high < 0:
        predicted = ", as competition for heads predicts" * (row.verdict == SUPPORTED and closes_heads(row))
        return f"Δ falls{predicted} (p {probability(row.p)})"
    if row.verdict == UNDECIDED:
        return f"It is undecided whether Δ falls by {points(margin)}{power_clause(row.detectable)}"
    words = f"Δ does not fall by {points(margin)} (p {probability(row.p_fall)}){', and it rises' * (row.low > 0)}"
    variants = {"draws_": "over {} of heads instead of seeds", "pooled_": "with the error of all changes"}
    for prefix, name in variants.items():
        if not math.isnan(low := getattr(row, f"{prefix}low", math.nan)):
            holds = "this also holds" if low > -margin else "it is undecided"
            ends = f"[{number(low)}, {number(getattr(row, f'{prefix}high'))}], p "
            words += f"; {holds} {name.format(plural(getattr(row, 'draws', 0), 'draw'))} ({ends}"
            words += f"{probability(getattr(row, f'{prefix}p_fall'))})"
    return words


def _groups(result: Result) -> pd.DataFrame | None:
    if not is_of_groups_file(result):
        return None
    return _with_words(only_not_shown(_with_seeds(result, "levels"), "p"))


def _group_changes(result: Result) -> pd.DataFrame | None:
    if "changes" not in result.frames or not is_of_groups_file(result):
        return None
    frame = only_not_shown(_with_seeds(result, "changes"), "p")
    for prefix in ("draws", "pooled"):
        frame[prefix] = [_with_variant(row, f"{prefix}_") for row in frame.to_dict("records")]
    return _with_words(frame)


def is_of_groups_file(result: Result) -> bool:
    """Return whether groups and their comparisons come from a file."""
    return bool(result.about["settings"].get("groups"))


def closes_heads(change: Any) -> bool:
    """Return whether a row of ``changes`` compares few heads with all heads, and is no control or pair of groups."""
    return bool(getattr(change, "heads", 0) < 0)


def _with_seeds(result: Result, name: str) -> pd.DataFrame:
    """Return a frame with the column ``by_seed``, the values of all seeds as text."""
    frame, keys = result.frames[name], ["term", "other", "task"]
    by_seed = result.frames["seeds"].groupby(keys)["value"].agg(lambda values: ", ".join(map(number, values)))
    return (frame if "other" in frame else frame.assign(other="")).join(by_seed.rename("by_seed"), on=keys)


def _with_variant(row: dict[str, Any], prefix: str) -> str:
    """Format the change with draws as the unit, or with the pooled error; "–" if there is none."""
    if math.isnan(row.get(f"{prefix}low", math.nan)):
        return "–"
    estimate, low, high = (number(row[prefix + name]) for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}], p {probability(row[f'{prefix}p_fall'])}"


def _with_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``name``, with tasks in capitals.

    If there is only one task, the mean over tasks is left out, because it is the same as the task.
    """
    is_task = ~frame["task"].map(is_mean).astype(bool)
    if frame["task"][is_task].nunique() == 1:
        frame = frame[is_task]
    return frame.assign(name=[row_title(task) for task in frame["task"]])


def _unless_groups(result: Result, frame: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows of a table, or None for the Result of a groups file, which does not have this table."""
    return None if is_of_groups_file(result) else _with_words(frame)


TABLES = {
    "groups": _groups,
    "levels": lambda result: _unless_groups(result, result.frames["levels"]),
    "changes": lambda result: _unless_groups(result, only_not_shown(result.frame("changes", "task", "p"), "p")),
    "group_changes": _group_changes,
    "pooled": lambda result: _with_words(result.frame("pooled", "task")),
}


def _delta(result: Result) -> AnyChart | None:
    if is_of_groups_file(result):  # too many groups for one figure
        return None
    levels, changes, charts = _with_words(result.frames["levels"]), _with_words(result.frames["changes"]), []
    levels["called"], changes["called"] = levels["term"], changes["term"] + " − " + changes["other"]
    for name in levels["name"].unique():
        for frame, title in ((levels, "joint minus single tasks"), (changes, "change of Δ")):
            intervals = [
                Interval(
                    row.called, row.estimate, row.low, row.high, row.p < LEVEL, f"{name}, {title}: {with_interval(row)}"
                )
                for row in frame[frame["name"] == name].itertuples()
            ]
            charts.append(forest(intervals, title=str(name), x_title=f"{title}, points"))
    return panels(charts, 2)


FIGURES = {"delta": _delta}
