"""Joint minus single-task training of the four tasks that all corpora and encoders have. (PLAN.md, E4: MTL − STL)

    python results/fight/joint.py "MiniLM, EWT5=results/fight/records/scarcity:72-own-*" TITLE=RUNS...

RUNS: what `mtlprune table` takes, blanks between. Intervals and p over seeds and sentences; of the mean of tasks, and
of each task.
"""

import sys
from typing import Any

import pandas as pd

from mtlprune.analyses.harness.settings import Setting, common_seeds, gap, read_settings
from mtlprune.figures.grid import Grid, number, probability, with_interval
from mtlprune.runs.columns import in_columns
from mtlprune.runs.folder import RunFolder
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.sweeps.folder import expanded

TASKS = ("pos", "ner", "con", "srl")
RESAMPLES, SEED, MARGIN = 10_000, 0, 1.0
MEAN = "mean of tasks"
CAPTION = (
    "Main scores on test, points. Holm over the tasks of a row of runs. Detectable: seen in four of five such studies "
    f"(two-sided 5 %, not corrected). p (within ±{MARGIN:g}): two one-sided tests; below 0.05 the gap is smaller."
)


def sides(runs: str) -> tuple[list[str], Setting, Setting]:
    """The tasks, the single-task runs and the joint runs of one setting."""
    comparison = in_columns([RunFolder(path) for path in expanded(runs.split())], "test")
    tasks = max((list(column.runs[0].tasks) for column in comparison.columns), key=len)
    [(place, other)] = comparison.against.items()
    single, joint = read_settings(comparison, [other, place], tasks, RESAMPLES, SEED, lambda: None)
    return tasks, single, joint


def gaps(runs: str) -> pd.DataFrame:
    """A row for the mean of TASKS and for each; ``p_margin``: p of a true difference of MARGIN or more either way."""
    tasks, single, joint = sides(runs)
    seeds = common_seeds(single, joint)
    rows = []
    for name, chosen in {MEAN: TASKS, **{task: (task,) for task in TASKS}}.items():
        places = [tasks.index(task) for task in chosen]
        figure = gap(joint, single, seeds, places)
        contrast = Contrast.of(figure)
        row = {"task": name, "p_margin": contrast.p_margin(MARGIN)}
        for side, setting in (("single", single), ("joint", joint)):
            row[side] = float(setting.of_seeds(seeds, places).observed.mean())
        rows.append((row | {"each": ", ".join(number(value) for value in figure.observed)}, contrast))
    return contrast_frame(rows, [], lambda frame: frame["task"] != MEAN)


def main(*titled: str) -> None:
    """Print a table of all."""
    frames = []
    for each in titled:
        title, _, runs = each.partition("=")
        frames.append(gaps(runs).assign(title=title))
    frame = pd.concat(frames, ignore_index=True)
    frame["shown"] = [with_interval(row) for row in frame.itertuples()]
    columns: dict[str, Any] = {"runs": "title", "seeds": ("n", 0), "task": "task"}
    columns |= {"single": ("single", 2), "joint": ("joint", 2), "joint - single, 95 %": "shown", "by seed": "each"}
    columns |= {"p": ("p", probability), "p (Holm)": ("p_holm", probability), "detectable": ("detectable", number)}
    columns |= {f"p (within ±{MARGIN:g})": ("p_margin", probability)}
    grid = Grid.of("", frame, columns, CAPTION, texts=3)
    print(f"# Joint minus single-task training, by encoder and corpus\n\n{grid.markdown()}\n{grid.caption}")


if __name__ == "__main__":
    main(*sys.argv[1:])
