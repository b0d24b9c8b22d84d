"""Test the four predictions about tasks of whole sentences (PLAN.md), with estimates, intervals, p-values and verdicts.

    python results/sentences/predictions.py results/sentences/records results/sentences/full

Predictions a1 and a2 are about Φ between the claims of single-task runs (stable selection of 12 heads), with a
jack-knife over training runs. Predictions b and c are about points on test, with intervals over seeds and sentences.
Holm's correction is over the four predictions, where the p-value of a1 is the larger one of its two tasks.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mtlprune.analyses.harness.settings import Setting, difference, read_settings
from mtlprune.analyses.heads.claims.stability import Floats, Runs, jackknife, phi
from mtlprune.runs.claims import RunGroup, load_claims
from mtlprune.runs.columns import in_columns
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import Study, read_study
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.significance import holm

TASKS = ("pos", "dep", "type", "prominence", "transition")
MIN_PHI, MIN_LOWER_END, EQUIVALENCE_MARGIN, MAX_LOSS = 0.4, 0.2, 0.1, 2.0
"""Margins of the plan: Φ of one task, the bound of its interval, the difference of Φ that counts as equal, and points
of accuracy."""


class Estimate(NamedTuple):
    """A value with its 95 % interval and its two-sided p-value without correction."""

    value: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def within_range(self) -> "Estimate":
        """Return the estimate of a Φ with an interval inside the range of Φ, which is from −1 to 1."""
        return self._replace(low=max(self.low, -1.0), high=min(self.high, 1.0))


def similarities(study: Study) -> Callable[[Callable[[Floats], float], float], Estimate]:
    """Build a function that estimates quantities of the matrix of Φ between all tasks, (tasks, tasks).

    Φ is a mean over pairs of runs whose training seeds and selection seeds differ.

    Returns:
        A function that receives a function of the matrix and a bound. It returns the estimate of this quantity, with
        its p-value against the bound.
    """
    groups = [RunGroup(task, tuple(load_claims(study.paths(f"stable-{task}-?")))) for task in TASKS]
    runs = Runs.of(groups)
    left = [phi(runs, runs.unequal_seeds, runs.units != unit)[0] for unit in range(len(runs.first_of_units))]
    full = phi(runs, runs.unequal_seeds)[0]

    def estimate(figure: Callable[[Floats], float], bound: float) -> Estimate:
        value = np.array([figure(full) - bound])
        left_out = np.array([[figure(matrix) - bound] for matrix in left])
        low, high, _, p = jackknife(value, left_out, runs.unit_labels)
        return Estimate(float(value[0]) + bound, float(low[0]) + bound, float(high[0]) + bound, float(p[0]))

    return estimate


def cell(first: int, second: int) -> Callable[[Floats], float]:
    """Return the function that reads one Φ from the matrix."""
    return lambda matrix: float(matrix[first, second])


def settings(study: Study, cells: Sequence[str], tasks: Sequence[str]) -> list[Setting]:
    """Read the settings of these cells, which all have the given tasks, in the order of the cells."""
    comparison = in_columns([RunFolder(path) for cell in cells for path in study.paths(cell)], "test")
    order = range(len(comparison.columns))
    return read_settings(comparison, order, tasks, 10_000, 0, lambda: None)


def points(contrast: Contrast, bound: float = 0.0) -> Estimate:
    """Convert a contrast to an estimate with a p-value against a bound."""
    return Estimate(contrast.estimate, contrast.low, contrast.high, contrast.error.two_sided(contrast.estimate - bound))


def extra_cost(study: Study, prefix: str) -> Estimate:
    """Estimate the cost of joint training for DEP minus its cost for sentence type, in points.

    The joint runs have POS, DEP and sentence type. The names of the cells begin with ``prefix``.
    """
    cells = [f"{prefix}{tasks}-?" for tasks in ("pos", "dep", "type", "pos-dep-type")]
    parts = settings(study, cells, ["pos", "dep", "sentence_type"])
    single, joint = sorted(parts, key=lambda setting: not setting.is_single_task)
    return points(
        Contrast.of(difference(single, joint, single.seeds, [1]) - difference(single, joint, single.seeds, [2]))
    )


def main(folder: str, full_folder: str) -> None:
    study = read_study(Path(folder))
    estimate, index_of = similarities(study), {task: index for index, task in enumerate(TASKS)}
    dep, pos, kind, prominence = (index_of[task] for task in ("dep", "pos", "type", "prominence"))
    same_task = [estimate(cell(task, task), MIN_LOWER_END).within_range() for task in (kind, prominence)]
    phi_difference = estimate(lambda matrix: matrix[pos, dep] - matrix[kind, dep], 0.0)

    unpruned, pruned = settings(study, ["none-type-?", "few-type-?"], ["sentence_type"])
    fall = points(Contrast.of(difference(unpruned, pruned, unpruned.seeds)), MAX_LOSS)

    dearer = extra_cost(study, "none-")

    corrected = holm([max(one.p for one in same_task), phi_difference.p, fall.p, dearer.p])
    all_low = all(value.value < MIN_PHI for value in same_task)
    verdicts = (
        verdict(all(value.value >= MIN_PHI and value.low > MIN_LOWER_END for value in same_task), all_low),
        verdict(
            phi_difference.low > 0,
            phi_difference.value < 0
            or (phi_difference.low > -EQUIVALENCE_MARGIN and phi_difference.high < EQUIVALENCE_MARGIN),
        ),
        verdict(fall.high < MAX_LOSS, fall.low > MAX_LOSS),
        verdict(dearer.low > 0, dearer.value < 0),
    )
    rows = (
        ("a1", "Φ of one task, sentence type; prominence", "; ".join(map(str, same_task))),
        ("a2", "Φ(POS, DEP) − Φ(sentence type, DEP)", str(phi_difference)),
        ("b", "accuracy of sentence type that 54 of 72 heads carry, points", str(fall)),
        ("c", "cost of DEP − cost of sentence type in joint training, points", str(dearer)),
    )
    print("| | prediction | estimate | p (Holm) | verdict |\n|:--|:--|:--|--:|:--|")
    for (name, text, value), p, outcome in zip(rows, corrected, verdicts, strict=True):
        if outcome == "supported" and p > 0.05:
            outcome = "undecided after correction"
        print(f"| {name} | {text} | {value} | {p:.4f} | {outcome} |")
    full = extra_cost(read_study(Path(full_folder)), "")
    print(f"\nWith all training sentences the difference of c is {full} points (p {full.p:.4f}, not corrected).")
    print("\n| Φ |", " | ".join(TASKS), "|\n|:--|" + "--:|" * len(TASKS))
    for first, task in enumerate(TASKS):
        cells = (estimate(cell(first, second), 0.0).within_range() for second in range(len(TASKS)))
        print(f"| {task} | {' | '.join(map(str, cells))} |")


def verdict(is_supported: bool, is_refuted: bool) -> str:
    """Return the verdict by the rules of the plan, without correction."""
    return "supported" if is_supported else "not supported" if is_refuted else "undecided"


if __name__ == "__main__":
    main(*sys.argv[1:])
