"""Two settings with the same tasks against each other: paired over sentences, seeds stacked, as in tables.

python results/fusion/against.py SPLIT RUN ... -- RUN ...    # the first group minus the second
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mtlprune.reports.scores.comparisons import read_run
from mtlprune.reports.scores.tests import count_names
from mtlprune.runs import RunFolder
from mtlprune.scores import SCORES
from mtlprune.statistics.significance import System, differences, holm


def system(folders: list[str], task: str, score: str, split: str) -> System:
    """(S, N, K) counts of the runs of one setting."""
    names, rows, known = count_names(task, score), [], None
    for folder in folders:
        stored = RunFolder(Path(folder)).read_json(f"counts/{split}.json")
        known = known or stored["ids"]
        assert stored["ids"] == known, f"{folder}: other sentences"
        columns = [stored["counts"][task][name] for name in names]
        # a sentence without the layer has no counts: the same ones in every run
        rows.append(np.array([row for row in zip(*columns, strict=True) if None not in row]))
    return System(np.stack(rows), names, SCORES[task][score])


def main(split: str, *words: str) -> None:
    first, second = list(words[: words.index("--")]), list(words[words.index("--") + 1 :])
    run = read_run(RunFolder(Path(first[0])), split)
    systems = [system(side, task, run.names[task], split) for task in run.tasks for side in (first, second)]
    found = differences(systems, [(2 * k, 2 * k + 1) for k in range(len(run.tasks))])
    for task, one, p in zip(run.tasks, found, holm([one.p for one in found]), strict=True):
        over_sentences, with_seeds = (
            f"[{one.low:+.2f}, {one.high:+.2f}]",
            f"[{one.wide_low:+.2f}, {one.wide_high:+.2f}]",
        )
        print(f"{task.upper()} {one.delta:+.2f} {over_sentences}; with seeds {with_seeds}; p {p:.4f} (Holm)")


if __name__ == "__main__":
    main(*sys.argv[1:])
