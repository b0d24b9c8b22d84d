"""E1's further settings and its control: how the gap between joint and single-task training changes.

    python results/fight/control.py TITLE=RUNS... -- TITLE,TITLE... > results/fight/control.md

RUNS: what `mtlprune table` takes, blanks between; single-task runs of every task and joint ones of one setting.
TITLE,TITLE: the gap of the first minus that of the second, over the seeds that both have. Intervals and p over seeds
and sentences, for the mean of tasks, the mean without SRL, and each task. (PLAN.md, note of 2026-11-27, 00:39)
Beside it, where seeds share draws of heads, over draws; where there are three seeds, with an error that is not below
that of all comparisons of the table. A title with *first look* is not among these.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

from joint import MARGIN, sides

from mtlprune.analyses.harness.settings import Setting, common_seeds, gap
from mtlprune.analyses.heads.scarcity.measure import doubts
from mtlprune.figures.grid import Grid, number, probability, with_interval
from mtlprune.statistics.contrast import Contrast, contrast_frame, only_not_shown
from mtlprune.statistics.resamples import Resampled, pooled_deviation, weighted

CAPTION = (
    "Main scores on test, points. Holm over the tasks of a row of runs, else not corrected. Settings without (bf16) "
    "are fp32; (GPU): bf16 on a GPU. Differences are over the seeds that both have. Narrow: a quarter of the "
    "feed-forward width, one draw of units for all seeds, so intervals leave out other draws. Intervals and p "
    "over seeds and sentences; over draws: of heads, in the place of seeds, where several seeds have one draw; pooled "
    "error: with a standard deviation between seeds not below that of all comparisons of the table, where there are "
    "three seeds; behind both the p of the last column. "
    f"p (wider by {MARGIN:g}): below 0.05 the first gap is not lower than the second by {MARGIN:g} point or more "
    "(one-sided). Detectable, where nothing is shown: in four of five such studies (two-sided 5 %)."
)
Sides = tuple[list[str], Setting, Setting]
"""The tasks, single-task and joint runs of a setting."""


def difference(settings: Sequence[Sides], places: slice | Sequence[int]) -> tuple[list[int], Resampled]:
    """The gap of the first setting, minus that of a second one, over the seeds that both have; mean of some tasks."""
    seeds = common_seeds(*(side for setting in settings for side in setting[1:]))
    parts = [gap(joint, single, seeds, places) for _, single, joint in settings]
    return seeds, weighted(parts, [1, -1][: len(settings)])


def gaps(
    settings: Sequence[Sides], places: slice | Sequence[int], pooled: float = 0.0
) -> tuple[dict[str, Any], Contrast]:
    """The same with interval, p and scores, over draws and with a ``pooled`` standard deviation between seeds."""
    seeds, figure = difference(settings, places)
    draws = list(zip(*(joint.draws(seeds) for _, _, joint in settings), strict=True))
    contrast = Contrast.of(figure)
    row = doubts(figure, draws, MARGIN, pooled)
    for side, setting in zip(("single", "joint"), settings[0][1:], strict=True):
        row[side] = float(setting.of_seeds(seeds, places).observed.mean())
    return row | {"each": ", ".join(number(value) for value in figure.observed)}, contrast


def beside(row: dict[str, Any], prefix: str) -> str:
    """The difference over draws, or with the pooled error; – where there is none."""
    if math.isnan(row.get(f"{prefix}low", math.nan)):
        return "–"
    delta, low, high = (number(row[prefix + name]) for name in ("estimate", "low", "high"))
    return f"{delta} [{low}, {high}], p {probability(row[f'{prefix}p_widening'])}"


def main(*arguments: str) -> None:
    """Print the gaps, and how they differ."""
    split = arguments.index("--")
    read = {title: sides(runs) for title, _, runs in (each.partition("=") for each in arguments[:split])}
    tasks = next(iter(read.values()))[0]
    chosen = {"mean": [*range(len(tasks))], "mean without SRL": [k for k, task in enumerate(tasks) if task != "srl"]}
    chosen |= {task.upper(): [place] for place, task in enumerate(tasks)}
    rows: dict[bool, list[tuple[dict[str, Any], Contrast]]] = {False: [], True: []}
    single = [task.upper() for task in tasks]
    pairs = [[read[term] for term in pair.split(",")] for pair in arguments[split + 1 :] if "first look" not in pair]
    pooled = {
        name: pooled_deviation([difference(pair, of)[1].observed for pair in pairs]) for name, of in chosen.items()
    }
    for terms in [[title] for title in read] + [pair.split(",") for pair in arguments[split + 1 :]]:
        for name, places in chosen.items():
            row, contrast = gaps([read[term] for term in terms], places, pooled[name] if len(terms) > 1 else 0.0)
            rows[len(terms) > 1].append(({"of": " minus ".join(terms), "task": name, **row}, contrast))
    print("# The gap between joint and single-task training with fewer heads, and beside other settings\n")
    for apart, title in ((False, "Joint minus single tasks"), (True, "How the gap differs")):
        frame = only_not_shown(contrast_frame(rows[apart], ["of"], lambda frame: frame["task"].isin(single)), "p")
        frame["shown"] = [with_interval(row) for row in frame.itertuples()]
        columns: dict[str, Any] = {"runs": "of", "seeds": ("n", 0), "task": "task"}
        if not apart:
            columns |= {"single": ("single", 2), "joint": ("joint", 2)}
        columns |= {"gap, 95 %" if not apart else "difference, 95 %": "shown", "by seed": "each"}
        columns |= {"p": ("p", probability), "p (Holm)": ("p_holm", probability)}
        if apart:
            columns |= {"detectable": ("detectable", number), f"p (wider by {MARGIN:g})": ("p_widening", probability)}
            for prefix, title_of in {"draws_": "over draws", "pooled_": "pooled error"}.items():
                frame[prefix] = [beside(row, prefix) for row in frame.to_dict("records")]
                columns[title_of] = prefix
        print(f"## {title}\n\n{Grid.of('', frame, columns, '', texts=3).markdown()}")
    print(CAPTION)


if __name__ == "__main__":
    main(*sys.argv[1:])
