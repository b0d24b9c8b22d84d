"""Print the tables of README.md: the planned comparisons (../PLAN.md) of pretraining runs, from their curves.

    python results/pretraining/two-stages/compare.py results/pretraining/records [SEED...]

An arm of the experiment consists of the runs ARM-SEED. Differences are paired by seed. Intervals come from all
resamples of seeds.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mtlprune.reports.pretraining import MEASURES, read_pretrainings
from mtlprune.runs.folder import CURVES, RunFolder
from mtlprune.statistics.resamples import Floats, percentiles

ARMS = ("base", "sas-plus", "sas-minus", "released-early", "released-during", "released-end", "released-late")
MEASURE = {measure.key: measure for measure in MEASURES}
ENDS = {"pairs": 1, "case": 1, "others": 1, "loss": 2, "uas_best": 1, "arc_weight": 2, "twonn_mean": 1}
MARGINS = {"pairs": 2.0, "loss": 0.05, "uas_best": 3.0}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % interval of the mean over all resamples of seeds."""
    means = np.array([np.mean(resample) for resample in itertools.product(values, repeat=len(values))])
    low, high = percentiles(means)
    return (float(values[0]),) * 2 if np.ptp(means) == 0 else (low, high)


def verdict(low: float, high: float, margin: float) -> str:
    """Return the verdict on the claim that a difference exceeds the margin."""
    return "supported" if low > margin else "not supported" if high <= margin else "undecided"


def mean_and_verdict(values: Sequence[float], margin: float, digits: int = 1) -> str:
    """Format the last cells of a row: the mean with its interval, the values by seed, and the verdict."""
    low, high = interval(values)
    by_seed = ", ".join(f"{value:+.{digits}f}" for value in values)
    bounds = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{np.mean(values):+.{digits}f} {bounds} | {by_seed} | {verdict(low, high, margin)}"


class Arms:
    """The logs of all finished runs, by arm and seed."""

    def __init__(self, folder: Path, seeds: Sequence[str]) -> None:
        runs = {(arm, seed): folder / f"{arm}-{seed}" for arm in ARMS for seed in seeds}
        existing = {key: path for key, path in runs.items() if RunFolder(path).has(CURVES)}
        logs = dict(zip(existing, read_pretrainings([*existing.values()]), strict=True))
        self.logs = {key: log for key, log in logs.items() if log.lines[-1]["step"] == log.total}
        missing = ["-".join(key) for key in runs if key not in self.logs]
        print("runs:", len(self.logs), "; not finished:", ", ".join(missing) or "none")

    def last(self, arm: str, seed: str, key: str) -> float:
        """Return a measure of a run at its last evaluation, where "others" are all phenomena except case."""
        line = self.logs[arm, seed].lines[-1]
        phenomena = line["pairs_phenomena"]
        if key == "others":
            return float(np.mean([value for name, value in phenomena.items() if name != "case"]))
        return float(phenomena[key] if key in phenomena else line[key])

    def differences(self, first: str, second: str, key: str) -> list[float]:
        """Return the differences of a measure between two arms, for each seed that both have."""
        seeds = [seed for seed in self.seeds_of(first) if seed in self.seeds_of(second)]
        return [self.last(first, seed, key) - self.last(second, seed, key) for seed in seeds]

    def seeds_of(self, arm: str) -> list[str]:
        """Return the seeds of an arm."""
        return [seed for name, seed in self.logs if name == arm]

    def breaks(self, arm: str, key: str, even: bool) -> Floats:
        """Return the update of the break of a measure for each seed of an arm, NaN for curves without a break.

        Args:
            arm: the arm.
            key: the measure.
            even: whether to use only evenly spaced evaluations on a linear axis, as published, instead of all
                evaluations on a logarithmic axis.
        """
        logs = [self.logs[arm, seed] for seed in self.seeds_of(arm)]
        steps = [(log.even_break_of if even else log.break_of)(MEASURE[key]) for log in logs]
        return np.array(steps, float)  # None becomes NaN


def table_of_ends(arms: Arms) -> None:
    """Print all measures at the end of training, as mean and range over seeds."""
    print("\n| arm (seeds) | accuracy | case | others | loss | UAS, a head a relation | attention on arcs | TwoNN |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for arm in ARMS:
        cells = []
        for key, digits in ENDS.items():
            values = [arms.last(arm, seed, key) for seed in arms.seeds_of(arm)]
            cells.append(f"{np.mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})")
        print(f"| {arm} ({', '.join(arms.seeds_of(arm))}) | " + " | ".join(cells) + " |")


def table_of_breaks(arms: Arms) -> None:
    """Print the breaks of all curves for evenly spaced evaluations, and in brackets for all, on a logarithmic axis."""
    print("\n| arm, seed | UAS | accuracy | TwoNN | loss |\n|---|---:|---:|---:|---:|")
    for arm in ARMS:
        for seed in arms.seeds_of(arm):
            log, cells = arms.logs[arm, seed], []
            for key in ("uas_best", "pairs", "twonn_mean", "loss"):
                steps = log.even_break_of(MEASURE[key]), log.break_of(MEASURE[key])
                cells.append(" (".join("–" if step is None else f"{step:g}" for step in steps) + ")")
            print(f"| {arm}, {seed} | " + " | ".join(cells) + " |")


def table_of_claims(arms: Arms) -> None:
    """Print the comparisons of the plan with their verdicts."""
    print("\n| comparison | mean [interval] | by seed | claim |\n|---|---:|---|---|")
    for even, axis in ((True, ""), (False, ", further: log axis")):
        uas, pairs, twonn = (arms.breaks("base", key, even) for key in ("uas_best", "pairs", "twonn_mean"))
        print(f"| 1 break of accuracy − of UAS, updates{axis} | {mean_and_verdict([*(pairs - uas)], 0, 0)} |")
        print(f"| 2 break of UAS − of TwoNN, updates{axis} | {mean_and_verdict([*(uas - twonn)], 0, 0)} |")
    for key, sign, digits in (("pairs", 1, 1), ("loss", -1, 3)):
        name = "accuracy" if key == "pairs" else "−loss"

        def row(title: str, first: str, second: str, key: str = key, sign: int = sign, digits: int = digits) -> None:
            values = [sign * value for value in arms.differences(first, second, key)]
            print(f"| {title} | {mean_and_verdict(values, MARGINS[key], digits)} |")

        row(f"3 released-early − base, {name}", "released-early", "base")
        for other in ("early", "end", "late"):
            row(f"4 released-{other} − released-during, {name}", f"released-{other}", "released-during")
        for arm in ARMS[1:]:
            row(f"further: base − {arm}, {name}", "base", arm)
    late = arms.differences("base", "released-late", "uas_best")
    print(f"| 5 base − released-late, UAS | {mean_and_verdict(late, MARGINS['uas_best'])} |")


if __name__ == "__main__":
    arms = Arms(Path(sys.argv[1]), sys.argv[2:] or ("1", "2", "3"))
    for table in (table_of_ends, table_of_breaks, table_of_claims):
        table(arms)
