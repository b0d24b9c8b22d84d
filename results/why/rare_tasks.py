"""Compare what changes for a task when it becomes rare, with all heads and with a quarter of the heads (PLAN.md, 3).

    python results/why/rare_tasks.py results/why/records/rare results/why/rare

Δ is the score of joint training minus that of single-task training with as many updates for the task and with the same
heads. A line through Δ over the logarithm of the task's share of the batches gives the change of Δ from a share of 1 to
1/33. Competition by frequency predicts that this change is lower with few heads.
Intervals and p-values cover seeds and sentences, and Holm's correction is over the two tasks.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from mtlprune.analyses.frames import MEAN
from mtlprune.evaluation.scores import MAIN, SCORES, count_names
from mtlprune.figures.grid import probability, with_interval
from mtlprune.layers import kind_of
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, write_result
from mtlprune.runs.study import read_study
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, System, resampled_scores, weighted

TASKS, HEADS, SEEDS, RESAMPLES = ("ner", "srl"), ("72", "18"), (1, 2, 3), 10_000
SHARES = {"all": 1.0, "33": 1 / 3, "10": 1 / 10, "3": 1 / 33}
"""Name in the sweep rare.yaml → share of the batches in which the task takes part."""
COMPARISON = "18 minus 72"
PREDICTED = -1.0
"""Predicted difference between few heads and all heads, in points at the smallest share."""


def weights_of_change() -> list[float]:
    """Return the weights of Δ at each share whose sum is the fitted change of Δ from a share of 1 to the smallest."""
    logs = np.log(list(SHARES.values()))
    slope = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    return list(slope * (logs.min() - logs.max()))


def system(study: Path, task: str, pattern: str) -> System:
    """Build the system of the runs of all seeds. ``pattern`` lacks the seed at its end."""
    kind, records = kind_of(task), read_study(study)
    names, score = count_names(kind, MAIN[kind]), SCORES[kind][MAIN[kind]]
    runs = []
    for seed in SEEDS:
        [folder] = records.paths(f"{pattern}-{seed}")
        counts = RunFolder(folder).read_counts("test")["counts"][task]
        # SRL is not annotated in 15 sentences of test. They count 0, so that both tasks have the same sentences.
        runs.append(np.array([[value or 0 for value in counts[name]] for name in names]).T)
    return System(np.stack(runs), names, score, SEEDS)


def scores_of(study: Path) -> dict[tuple[str, str], list[Resampled]]:
    """Score single-task training and joint training at each share, by the number of heads and the task."""
    keys, systems = [], []
    for heads in HEADS:
        for task in TASKS:
            names = [f"{task}-alone", *("all" if share == "all" else f"{task}-{share}" for share in SHARES)]
            keys += [(heads, task)] * len(names)
            systems += [system(study, task, f"{heads}-*-{name}") for name in names]
    scores = resampled_scores(systems, RESAMPLES, 0)
    by_key: dict[tuple[str, str], list[Resampled]] = {}
    for key, figure in zip(keys, scores, strict=True):
        by_key.setdefault(key, []).append(figure)
    return by_key


def frames(scores: dict[tuple[str, str], list[Resampled]]) -> dict[str, pd.DataFrame]:
    """Build the frames ``deltas`` (Δ at each share) and ``changes`` (from the largest to the smallest share)."""
    delta = {key: [joint - alone for joint in joints] for key, (alone, *joints) in scores.items()}
    levels = [
        (
            {"heads": heads, "task": task, "share": share, "single": scores[heads, task][0].observed.mean()},
            Contrast.of(figure),
        )
        for (heads, task), figures in delta.items()
        for share, figure in zip(SHARES.values(), figures, strict=True)
    ]
    changes = {key: weighted(figures, weights_of_change()) for key, figures in delta.items()}
    for heads in HEADS:
        changes[heads, MEAN] = weighted([changes[heads, task] for task in TASKS])
    few, full = reversed(HEADS)
    for task in (*TASKS, MEAN):
        changes[COMPARISON, task] = changes[few, task] - changes[full, task]
    rows = [({"heads": heads, "task": task}, Contrast.of(change)) for (heads, task), change in changes.items()]
    tested = contrast_frame(rows, ["heads"], lambda frame: frame["task"] != MEAN, effect=PREDICTED)
    # Only the comparison of few with all heads has a predicted size, so other rows get no verdict.
    tested["verdict"] = tested["verdict"].where(tested["heads"] == COMPARISON, "")
    order = [(heads, task) for heads in (*HEADS, COMPARISON) for task in (*TASKS, MEAN)]
    tested = tested.set_index(["heads", "task"]).loc[order].reset_index()
    return {"deltas": contrast_frame(levels).drop(columns="verdict"), "changes": tested}


def main(study: str, out: str) -> None:
    """Write the result to the folder ``out``, and print Δ at each share and its change, with the verdict."""
    tables = frames(scores_of(Path(study)))
    write_result(Path(out), Result("rare", {"encoders": [], "notes": [], "study": study}, tables))
    shares = [f"{share:.0%}".replace("%", " %") for share in SHARES.values()]
    print(f"| heads | task | single task | {' | '.join(f'Δ, {share}' for share in shares)} |")
    print("|:--|:--|--:|" + "--:|" * len(SHARES))
    for (heads, task), levels in tables["deltas"].groupby(["heads", "task"], sort=False):
        cells = [heads, task.upper(), f"{levels['single'].iloc[0]:.2f}", *map(with_interval, levels.itertuples())]
        print(f"| {' | '.join(cells)} |")
    print("\n| heads | task | change of Δ from 100 % to 3 % | p | p (Holm) | detectable | verdict |")
    print("|:--|:--|--:|--:|--:|--:|:--|")
    for row in tables["changes"].itertuples():
        cells = [row.heads, row.task.upper() if row.task in TASKS else row.task, with_interval(row)]
        cells += [probability(row.p), probability(row.p_holm), f"{row.detectable:.2f}", row.verdict]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
