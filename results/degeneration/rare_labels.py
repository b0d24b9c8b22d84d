"""Compare runs with and without CosReg: F1 of rare labels on test, and R of each decoder's label weights.

    python results/degeneration/rare_labels.py data/ewt5 runs/five-papers*/{none,cosreg}-*-?-*

The names of runs are REGIME-TASKS. A label is rare if it has 1 to 50 items in the training sentences of the run, and
occurs in test. R is the mean cosine of the label weights. Differences are cosreg minus none, and their intervals cover
seeds and sentences. The mean is over the tasks that have rare labels.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mtlprune.corpora.store import load_corpus
from mtlprune.evaluation.scores import MAIN, SCORES, count_names
from mtlprune.layers import kind_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.labels import count_labels
from mtlprune.statistics.resamples import Resampled, System, resampled_scores, weighted
from mtlprune.training.cosreg import mean_cosine

TASKS, TASK_SETS = ("pos", "ner", "dep", "con", "srl"), ("alone", "mtl5")
SEEDS, RESAMPLES = (1, 2, 3), 10_000
MAX_ITEMS = 50
"""Largest number of training items of a rare label."""
Table = dict[tuple[str, str, str, int], str]
"""The run folder of each regime, set of tasks (alone or mtl5), task and seed."""


def runs_of(folders: list[str]) -> Table:
    """Collect the runs, with an entry for each of their tasks."""
    table: Table = {}
    for folder in folders:
        if (Path(folder) / "config.yaml").is_file():
            config = RunFolder(folder).config
            regime, tasks = config.name.split("-")
            for task in TASKS if tasks == "mtl5" else (tasks,):
                table[regime, "mtl5" if tasks == "mtl5" else "alone", task, config.train.seed] = folder
    return table


def rare_labels(corpus: Path, sentences: int | None) -> dict[str, dict[str, int]]:
    """Find the rare labels of each task, with the number of their items in test."""
    stored, rare = load_corpus(corpus), {}
    train, test = list(stored["train"])[:sentences], list(stored["test"])
    for task in TASKS:
        sums: list[Counter[str]] = []
        for part in (train, test):
            counts = [count_labels(task, sentence, sentence) or {} for sentence in part]
            sums.append(
                sum((Counter({k: v[1] for k, v in label_counts.items()}) for label_counts in counts), Counter())
            )
        rare[task] = {k: sums[1][k] for k, number in sums[0].items() if number <= MAX_ITEMS and sums[1][k]}
    return rare


def rare_counts(folder: str, task: str, rare: dict[str, int], gold: list) -> np.ndarray:
    """Count the correct, gold and predicted items of rare labels in each test sentence: (N, 3)."""
    rows = []
    for gold_sentence, predicted in zip(gold, RunFolder(folder).read_predictions("test"), strict=True):
        counts = count_labels(task, gold_sentence, predicted) or {}
        rows.append(np.sum([counts[label] for label in counts.keys() & rare.keys()] or [(0, 0, 0)], axis=0))
    return np.array(rows)


def main_counts(folder: str, task: str) -> np.ndarray:
    """Read the counts of the main score for each test sentence: (N, K)."""
    counts = RunFolder(folder).read_counts("test")["counts"][task]
    names = count_names(kind_of(task), MAIN[kind_of(task)])
    return np.array([[value or 0 for value in counts[name]] for name in names]).T


def row(label: str, words: str, first: Resampled, second: Resampled) -> str:
    """Format a row with two scores and their difference, second minus first."""
    contrast = Contrast.of(second - first)
    seeds = ", ".join(f"{value:+.1f}" for value in (second - first).observed)
    between = f"{contrast.estimate:+.2f}"
    if np.isfinite(contrast.low):  # there is no interval if the score is 0 in every run
        between += f" [{contrast.low:+.2f}, {contrast.high:+.2f}]"
    return f"| {label} | {words} | {first.observed.mean():.2f} | {second.observed.mean():.2f} | {between} | {seeds} |"


def main(corpus: str, *folders: str) -> None:
    """Print the rare labels, R, and the differences in F1 of rare labels and in main scores."""
    table, gold = runs_of(list(folders)), list(load_corpus(Path(corpus))["test"])
    sizes = {RunFolder(folder).config.data.train_sentences for folder in table.values()}
    rare = rare_labels(Path(corpus), *sizes)
    print("These labels are rare (with their items in test):\n")
    for task in TASKS:
        print(f"- {task.upper()}: " + (", ".join(f"{k} {n}" for k, n in sorted(rare[task].items())) or "none"))
    print("\n| trained | task | R, γ = 0 | R, γ = 1 |\n|:--|:--|--:|--:|")
    loaded = {folder: MultiTaskModel.load(folder) for folder in dict.fromkeys(table.values())}
    for kind in TASK_SETS:
        for task in TASKS:
            r_by_regime = [
                [
                    float(mean_cosine(loaded[table[regime, kind, task, seed]].tasks[task].label_rows().rows.detach()))  # type: ignore[operator]
                    for seed in SEEDS
                ]
                for regime in ("none", "cosreg")
            ]
            cells = " | ".join(f"{np.mean(r):+.3f} ({min(r):+.3f} to {max(r):+.3f})" for r in r_by_regime)
            print(f"| {kind} | {task.upper()} | {cells} |")
    f1 = SCORES["spans"]["f1"]
    systems = {}
    for regime, kind, task in {key[:3] for key in table}:
        run_folders = [table[regime, kind, task, seed] for seed in SEEDS]
        names, score = count_names(kind_of(task), MAIN[kind_of(task)]), SCORES[kind_of(task)][MAIN[kind_of(task)]]
        systems["main", regime, kind, task] = System(
            np.stack([main_counts(f, task) for f in run_folders]), names, score, SEEDS
        )
        if rare[task]:
            counts = np.stack([rare_counts(folder, task, rare[task], gold) for folder in run_folders])
            systems["rare", regime, kind, task] = System(counts, ("correct", "gold", "predicted"), f1, SEEDS)
    scores = dict(zip(systems, resampled_scores(list(systems.values()), RESAMPLES, 0), strict=True))
    print("\n| trained | F1 on test | γ = 0 | γ = 1 | difference, 95 % | by seed |\n|:--|:--|--:|--:|--:|:--|")
    for kind_of_score, title in (("rare", "rare labels"), ("main", "main score")):
        for kind in TASK_SETS:
            tasks = [task for task in TASKS if (kind_of_score, "none", kind, task) in scores]
            without, with_cosreg = (
                [scores[kind_of_score, regime, kind, task] for task in tasks] for regime in ("none", "cosreg")
            )
            print(row(kind, f"**{title}, mean of {len(tasks)}**", weighted(without), weighted(with_cosreg)))
            for task, first, second in zip(tasks, without, with_cosreg, strict=True):
                print(row(kind, f"{title}, {task.upper()}", first, second))


if __name__ == "__main__":
    main(*sys.argv[1:])
