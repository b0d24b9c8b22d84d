"""Compare static and dynamic pruning with free numbers of heads: heads, scores and speed (PLAN.md, part 1).

    python results/gates/free_head_numbers.py results/gates/records [results/speed/pruned]

The table has a row for each single-task run and for each task of MTL-5, over the seeds that all regimes have.
Differences from static pruning are on test. Their intervals cover seeds and sentences, or sentences only with a single
seed.
"""

import sys
from pathlib import Path
from statistics import mean

import numpy as np

from mtlprune.evaluation.scores import MAIN, SCORES, count_names
from mtlprune.layers import kind_of
from mtlprune.runs.columns import ScoredRun
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import describe_unique
from mtlprune.runs.study import read_study
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import System, resampled_scores

TASKS, REGIMES, RESAMPLES = ("pos", "ner", "dep", "con", "srl"), ("none", "static", "dynamic", "dynamic-8"), 10_000
MIN_HEAD_DIFFERENCE = 3
"""Number of heads by which two regimes must differ, by the plan."""


def runs_of_regime(study: Path, regime: str, cell: str) -> dict[int, ScoredRun]:
    """Find the runs of a regime by seed. The names of gated runs contain their λ."""
    runs = {}
    pattern = f"none-{cell}-?" if regime == "none" else f"{regime}-0*-{cell}-?"
    for folder in describe_unique(map(RunFolder, read_study(study).paths(pattern))):
        run = ScoredRun.of(folder, "test")
        runs[run.seed] = run
    return runs


def system(runs: dict[int, ScoredRun], task: str, seeds: list[int]) -> System:
    """Build the system of the runs' counts, which are 0 in sentences without the layer."""
    kind = kind_of(task)
    names, counted = count_names(kind, MAIN[kind]), []
    for seed in seeds:
        counts = runs[seed].folder.read_counts("test")["counts"][task]
        counted.append(np.array([[value or 0 for value in counts[name]] for name in names]).T)
    return System(np.stack(counted), names, SCORES[kind][MAIN[kind]], tuple(seeds))


def speeds(folder: Path | None) -> dict[str, float]:
    """Read the measured speeds of runs by name; empty without a folder."""
    if folder is None:
        return {}
    from mtlprune.cli.show import speeds_in

    return speeds_in(folder)


def row(
    study: Path, cell: str, task: str, speed: dict[str, float]
) -> tuple[str, dict[str, tuple[float, float, float]]]:
    """Make a line of the table.

    Returns:
        The line, and for each dynamic regime the number of heads it has fewer than static pruning, and the interval of
        the difference in score.
    """
    runs_by_regime = {regime: runs for regime in REGIMES if (runs := runs_of_regime(study, regime, cell))}
    seeds = sorted(set.intersection(*(set(runs) for runs in runs_by_regime.values())))
    scored = {regime: system(runs, task, seeds) for regime, runs in runs_by_regime.items()}
    points = dict(zip(scored, resampled_scores(list(scored.values()), RESAMPLES, 0), strict=True))
    gated = {regime: [runs[seed] for seed in seeds] for regime, runs in runs_by_regime.items() if regime != "none"}
    heads = {regime: mean(run.heads[task][0] for run in runs) for regime, runs in gated.items()}
    cells, against = [f"{'MTL-5, ' * (cell == 'mtl5')}{task.upper()}", str(len(seeds))], {}
    for regime in REGIMES:
        if regime not in runs_by_regime:
            cells += ["–"] * (1 if regime == "none" else 3)
            continue
        cells.append(f"{points[regime][0].mean():.2f}")
        if regime != "none":
            run_speeds = [speed[name] for run in gated[regime] if (name := Path(run.path).name) in speed]
            cells += [f"{heads[regime]:g}", f"{mean(run_speeds):.2f}" if run_speeds else "–"]
    for regime in ("dynamic", "dynamic-8"):
        if regime not in runs_by_regime or "static" not in runs_by_regime:
            cells.append("–")
            continue
        contrast = Contrast.of(points[regime] - points["static"], one_run=True)
        against[regime] = (heads["static"] - heads[regime], contrast.low, contrast.high)
        cells.append(f"{contrast.estimate:+.2f} [{contrast.low:+.2f}, {contrast.high:+.2f}]")
    return f"| {' | '.join(cells)} |", against


def verdict(regime: str, against: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    """State the verdict by the plan's criterion over the single tasks that have both regimes."""
    measured = {task: of[regime] for task, of in against.items() if regime in of}
    agree = [task for task, (fewer, low, _) in measured.items() if fewer >= MIN_HEAD_DIFFERENCE and low > 0]
    opposed = [task for task, (fewer, _, high) in measured.items() if fewer <= -MIN_HEAD_DIFFERENCE or high < 0]
    outcome = "supported" if len(agree) >= 4 else "not supported" if len(opposed) >= 4 else "undecided"
    names, opposed_names = (", ".join(tasks) or "no task" for tasks in (agree, opposed))
    return (
        f"- **{regime} against static: {outcome}.** {len(measured)} of 5 tasks are measured. At least "
        f"{MIN_HEAD_DIFFERENCE} heads fewer and a higher score are found in {names}, and the opposite in one of both "
        f"is found in {opposed_names}."
    )


def main(study: str, speed: str = "") -> None:
    """Print the table and the verdicts."""
    measured = speeds(Path(speed) if speed else None)
    titles = ["task", "seeds", "all heads"]
    titles += [part for regime in REGIMES[1:] for part in (regime, "heads", "speed")]
    print(f"| {' | '.join([*titles, 'dynamic − static', 'dynamic-8 − static'])} |\n|:--|{'--:|' * (len(titles) + 1)}")
    against = {}
    for task in TASKS:
        if runs_of_regime(Path(study), "dynamic", task):
            line, against[task] = row(Path(study), task, task, measured)
            print(line)
    for task in TASKS if runs_of_regime(Path(study), "dynamic", "mtl5") else ():
        print(row(Path(study), "mtl5", task, measured)[0])
    print()
    for regime in ("dynamic", "dynamic-8"):
        print(verdict(regime, against))


if __name__ == "__main__":
    main(*sys.argv[1:])
