"""Compare the claimed heads of single-task runs on two corpora (PLAN.md, primary test of E4).

    python results/fight/corpora.py NAME results/claims/records/stable:stable results/fight/records/masc:stable PICTURE

The runs of a corpus are given as STUDY:PREFIX, and are the cells with names PREFIX-TASK-*. The script computes Φ over
all pairs of runs of one task on both corpora, of two tasks on different corpora, and of the same pairs within each
corpus. Intervals are jack-knifes over training runs, where each task on each corpus is a stratum.

The script writes the result results/fight/corpora/NAME.json, whose frame ``phi`` contains the first printed table, and
draws Φ of each task on the first corpus with each task on the second corpus in PICTURE.png and PICTURE.svg. MASC has no
dependency trees, so in this picture the runs of DEP on the second corpus are those on GUM.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mtlprune.analyses.heads.claims.stability import MODES, Runs, jackknife, phi
from mtlprune.figures.charts import Spec, cells, figure, render
from mtlprune.figures.grid import number
from mtlprune.runs.claims import RunGroup, load_claims
from mtlprune.runs.results import Result, write_result
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "con", "srl")
"""The tasks that both corpora have."""
PICTURE_TASKS = ("pos", "dep", "con", "ner", "srl")
"""The tasks in the picture."""
GUM = "results/fight/records/gum:stable"
RUN_PAIRS = ("first corpus", "second corpus", "across corpora")
"""The corpora from which the two runs of a pair come: both from one corpus, or one from each."""
KINDS = ("one task", "two tasks", "difference")
"""Φ of runs of one task, Φ of runs of two tasks, and the first minus the second."""
RESULTS = Path("results/fight/corpora")


class Figure(NamedTuple):
    """A statistic with its 95 % interval, minimum detectable effect and p-value."""

    value: float
    low: float
    high: float
    detectable: float
    p: float

    @property
    def shown(self) -> str:
        """The value with its interval, if it has an interval."""
        ends = "" if math.isnan(self.low) else f" [{number(self.low)}, {number(self.high)}]"
        return f"{number(self.value)}{ends}"


def statistics(phis: np.ndarray) -> np.ndarray:
    """Average Φ within one task and between two tasks, for each of the RUN_PAIRS.

    Args:
        phis: (2, 2 · tasks, 2 · tasks) Φ by MODES between all tasks on both corpora.

    Returns:
        (2, 3, 3) by MODES, RUN_PAIRS and KINDS.
    """
    tasks, is_same_task = len(TASKS), np.eye(len(TASKS), dtype=bool)
    corners = (phis[:, :tasks, :tasks], phis[:, tasks:, tasks:], phis[:, :tasks, tasks:])
    ends = [(corner[:, is_same_task].mean(1), corner[:, ~is_same_task].mean(1)) for corner in corners]
    return np.stack(
        [np.stack([one_task, two_tasks, one_task - two_tasks], axis=1) for one_task, two_tasks in ends], axis=1
    )


def read(*places: tuple[str, str]) -> Runs:
    """Read the runs of pairs (STUDY:PREFIX, task), with one group for each pair."""
    groups = []
    for place, task in places:
        study, _, prefix = place.partition(":")
        paths = sorted(read_study(Path(study)).paths(f"{prefix}-{task}-*"))
        groups.append(RunGroup(f"{study} {task}", tuple(load_claims(paths))))
    return Runs.of(groups)


def measure(*places: str) -> tuple[list[list[list[Figure]]], list[list[Figure]]]:
    """Compute the statistics of two corpora with their intervals.

    Returns:
        The three KINDS of statistics by MODES and RUN_PAIRS, and Φ of each task across corpora by MODES.
    """
    runs = read(*((place, task) for place in places for task in TASKS))
    pairs = np.ones_like(runs.unequal_seeds)

    def statistics_of(is_kept: np.ndarray) -> np.ndarray:
        phis = phi(runs, pairs, is_kept)  # (2, 8, 8)
        rows = np.arange(len(TASKS))
        across = phis[:, rows, rows + len(TASKS)]  # (2, tasks)
        return np.concatenate([statistics(phis).reshape(len(MODES), -1), across], axis=1)

    units = np.unique(runs.units)
    left_out = np.stack([statistics_of(runs.units != unit) for unit in units])
    estimates = statistics_of(np.ones(len(runs.units), dtype=bool))
    parts = (estimates, *jackknife(estimates, left_out, runs.unit_labels))
    flat = [[Figure(*(float(part[mode, k]) for part in parts)) for k in range(estimates.shape[1])] for mode in range(2)]
    return [[row[3 * p : 3 * p + 3] for p in range(3)] for row in flat], [row[9:] for row in flat]


def crossed(first: str, second: str) -> pd.DataFrame:
    """Compute plain Φ of each task on the first corpus with each task on the second corpus (DEP on GUM).

    Returns:
        A frame with the columns ``first``, ``second`` and ``value``.
    """
    second_places = [(GUM if task == "dep" else second, task) for task in PICTURE_TASKS]
    runs = read(*((first, task) for task in PICTURE_TASKS), *second_places)
    phis = phi(runs, np.ones_like(runs.unequal_seeds), np.ones(len(runs.units), dtype=bool))[0]  # (10, 10)
    names = [task.upper() for task in PICTURE_TASKS]
    rows = np.ndindex(len(PICTURE_TASKS), len(PICTURE_TASKS))
    return pd.DataFrame(
        [{"first": names[i], "second": names[j], "value": phis[i, len(PICTURE_TASKS) + j]} for i, j in rows]
    )


def picture(frame: pd.DataFrame) -> Spec:
    """Draw the matrix of ``crossed``."""
    bound = float(frame["value"].abs().max())
    return figure(
        cells(frame.assign(words=frame["value"].map(number)), "second", "first", (-bound, bound), size=(60, 30)),
        "Do tasks claim the same heads on another corpus?",
        ["Rows: runs on EWT5; columns: on MASC (DEP: GUM). Φ, mean over pairs of runs; 1: the same heads, 0: chance."],
    )


def main(name: str, first: str, second: str, drawing: str = "") -> None:
    """Print the tables, write the result, and draw the picture if a path is given."""
    by_mode, phi_across = measure(first, second)
    rows = [
        {"term": place, "mode": mode, "control": kind, "estimate": value.value, **value._asdict()}
        for mode, by_place in zip(MODES, by_mode, strict=True)
        for place, values in zip(RUN_PAIRS, by_place, strict=True)
        for kind, value in zip(KINDS, values, strict=True)
    ]
    about = {"encoders": [], "notes": [], "first": first, "second": second}
    write_result(RESULTS, Result(name, about, {"phi": pd.DataFrame(rows).drop(columns="value")}))
    print(
        f"# Φ of claims on two corpora\n\nThe first corpus has the runs {first}, and the second has {second}. "
        "Intervals are jack-knifes over training runs.\n"
    )
    print("| pairs of runs | counted | one task | two tasks | difference | detectable |\n|:--|:--|--:|--:|--:|--:|")
    for mode, by_place in zip(MODES, by_mode, strict=True):
        for place, (one_task, two_tasks, difference) in zip(RUN_PAIRS, by_place, strict=True):
            texts = (one_task.shown, two_tasks.shown, difference.shown, f"{difference.detectable:.2f}")
            print(f"| {place} | {mode} | {' | '.join(texts)} |")
    print(f"\n| across corpora | {' | '.join(task.upper() for task in TASKS)} |\n|:--|{'--:|' * len(TASKS)}")
    for mode, figures in zip(MODES, phi_across, strict=True):
        print(f"| Φ, {mode} | {' | '.join(figure.shown for figure in figures)} |")
    if drawing:
        frame = crossed(first, second)
        print(
            f"\n| first, second (DEP: GUM) | {' | '.join(map(str.upper, PICTURE_TASKS))} |\n"
            f"|:--|{'--:|' * len(PICTURE_TASKS)}"
        )
        for name, table_rows in frame.groupby("first", sort=False):
            print(f"| {name} | {' | '.join(map(number, table_rows['value']))} |")
        for kind in ("png", "svg"):
            Path(f"{drawing}.{kind}").write_bytes(render(picture(frame), kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
