"""Compare joint runs with single-task runs at equal updates and at equal training loss (``analyze equal_loss``).

Letters for shapes: C resamples, S runs (seeds), U numbers of updates of single-task runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator, make_interp_spline

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.costs.equal_loss import LOSS, UPDATES, WORSE
from mtlprune.analyses.harness.settings import Setting, common_seeds, difference, have_all, means_of, read_settings
from mtlprune.runs.columns import ScoredRun, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, ratio_over_seeds, weighted
from mtlprune.statistics.standard_errors import Floats

_Interpolation = Callable[[Any, Any], Callable[[float], Any]]
_CURVES: dict[str, _Interpolation] = {"cubic": PchipInterpolator, "linear": partial(make_interp_spline, k=1)}


def measure(request: Request) -> Result:
    """Measure the cost of joint training in all runs of a request. ``frames.yaml`` declares the frames.

    For each seed, the score of single-task runs is a function of the logarithm of their training loss: a monotone cubic
    (or with ``curve=linear`` a line between neighbours) through the runs of all numbers of updates. The cost of a joint
    run at equal loss is its score minus the value of its seed's curve at its own training loss. If this loss is beyond
    an end of the curve, the nearest run is used, and a note reports how often this happened.

    Raises:
        RunError: there are fewer than two numbers of updates of single-task runs, two settings of the same number, no
            joint runs, or no common seeds; or runs did not log their training loss on the same sentences.
    """
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    tasks = max((list(column.runs[0].tasks) for column in comparison.columns), key=len)
    order = have_all(comparison, tasks)
    settings = read_settings(comparison, order, tasks, request.options.resamples, request.seed, request.on_batch)
    settings.sort(key=lambda setting: setting.updates)
    singles, joints = (
        [setting for setting in settings if setting.is_single_task is single] for single in (True, False)
    )
    _check(singles, joints, tasks)
    means = {task: [task] for task in tasks} | means_of(tasks, request.options.without)  # tasks come first
    costs, shares, notes, outside = [], [], [], 0
    for joint in joints:
        figures, beyond = _figures(joint, singles, tasks, means, _CURVES[request.options.curve])
        outside += beyond
        if UPDATES not in figures:
            notes.append(f"Joint runs have {joint.updates:,} updates, and no single-task runs have this number.")
        for mode, rows in figures.items():
            costs += [
                ({"updates": joint.updates, "mode": mode, "task": task}, Contrast.of(figure))
                for task, figure in rows.items()
            ]
        if UPDATES in figures:
            # The share is of the mean over tasks: shares of single tasks would divide by differences near 0.
            shares += [
                {"updates": joint.updates, "task": mean, **share_of(figures[LOSS][mean], figures[UPDATES][mean])}
                for mean in means
                if mean not in tasks
            ]
    if outside:
        notes.append(
            f"In {outside} cases of a task and a seed, the training loss of a joint run lies beyond the curve."
        )
    about: dict[str, Any] = {"split": request.split, "encoders": [], "tasks": tasks, "notes": notes}
    about |= {"settings": {**request.options.model_dump(mode="json"), "seed": request.seed}}
    about |= {"sentences": settings[0].systems[0].counts.shape[1]}
    frames = {
        "costs": contrast_frame(
            costs, ["updates", "mode"], lambda frame: frame["p"].notna() & frame["task"].isin(tasks)
        ),
        "shares": pd.DataFrame(shares),
        "runs": pd.DataFrame(_rows(settings, tasks)),
    }
    return Result("equal_loss", about, {name: frame for name, frame in frames.items() if len(frame)})


def _check(singles: Sequence[Setting], joints: Sequence[Setting], tasks: Sequence[str]) -> None:
    """Refuse runs that do not determine a curve.

    Raises:
        RunError: there are too few numbers of updates, two settings of one kind have the same number, or losses are
            those of different sentences.
    """
    for kind, sides, least in (("single-task", singles, 2), ("joint", joints, 1)):
        updates = [setting.updates for setting in sides]
        update_counts = ", ".join(f"{number:,}" for number in updates)
        if len(updates) < least or len({*updates}) < len(updates):
            raise RunError(
                f"expected {kind} runs of {', '.join(tasks)} with {least} different numbers of updates or more and one "
                f"setting for each number, found {f'runs with {update_counts} updates' if updates else 'none'}; train "
                "further runs with other values of train.epochs, or name fewer settings"
            )
    logged = {run.config.train.log_train_loss for setting in (*singles, *joints) for run in setting.runs}
    if len(logged) > 1:
        raise RunError(
            f"expected the same train.log_train_loss in all runs, found {', '.join(map(str, sorted(logged)))}; give "
            "all runs the same number, because losses of different sentences cannot be compared"
        )


def _figures(
    joint: Setting,
    singles: Sequence[Setting],
    tasks: Sequence[str],
    means: Mapping[str, Sequence[str]],
    interpolation: _Interpolation,
) -> tuple[dict[str, dict[str, Resampled]], int]:
    """Compute the cost of a joint setting at equal loss and, if possible, at equal updates.

    The cost at equal updates needs single-task runs with the joint setting's number of updates.

    Args:
        means: rows of the result, each with the tasks over which it is a mean.
        interpolation: the function that interpolates the curve of single-task runs.

    Returns:
        Mode → costs by row; and the number of losses beyond the curve.
    """
    # Joint and single-task runs are paired by seed, so only the seeds count that every number of updates has.
    seeds = common_seeds(joint, *singles)
    parts, outside = {}, 0
    for place, task in enumerate(tasks):
        curve = [_points(single, place, task, seeds) for single in singles]
        parts[task], beyond = cost_at_equal_loss(curve, _points(joint, place, task, seeds), interpolation)
        outside += beyond
    figures = {LOSS: {row: weighted([parts[task] for task in row_tasks]) for row, row_tasks in means.items()}}
    for single in singles:
        if single.updates == joint.updates:
            figures[UPDATES] = {
                row: difference(joint, single, seeds, [tasks.index(task) for task in row_tasks])
                for row, row_tasks in means.items()
            }
    return figures, outside


def cost_at_equal_loss(
    curve: Sequence[tuple[Floats, Resampled]],
    joint: tuple[Floats, Resampled],
    interpolation: _Interpolation = PchipInterpolator,
) -> tuple[Resampled, int]:
    """Compute the scores of joint runs minus the scores of single-task runs at the same training loss.

    Args:
        curve: training losses (S,) and scores of single-task runs, for each of U numbers of updates and the same seeds.
        joint: training losses (S,) and scores of the joint runs.
        interpolation: function from increasing points (U,) and values (U, ...) to a function that interpolates them.

    Returns:
        The differences by seed, and the number of losses beyond the curve.

    Raises:
        RunError: two single-task runs of a seed have the same training loss, or a single-task run has a loss of 0.
    """
    # A loss falls by factors while a score rises by points, so the curve is taken over the logarithm of the loss.
    losses = np.log([losses for losses, _ in curve])  # (U, S)
    observed, booted, outside = [], [], 0
    for seed, loss in enumerate(np.log(joint[0])):
        # More updates need not give a smaller loss, so runs are sorted by their loss and not by their updates.
        order = np.argsort(losses[:, seed])
        x = losses[order, seed]
        if not np.isfinite(x).all() or not (np.diff(x) > 0).all():
            raise RunError(
                f"expected a different training loss above 0 for each number of updates, found "
                f"{', '.join(f'{value:g}' for value in np.exp(x))} with the same seed"
            )
        inside = float(np.clip(loss, x[0], x[-1]))
        outside += int(inside != loss)
        scores = [curve[place][1] for place in order]
        # The same resampled sentences go through the curve and the joint run, so that their errors cancel where they
        # are shared. The losses are those of training sentences, which are not resampled.
        on_curve = interpolation(x, [score.observed[seed] for score in scores])(inside)
        booted_on_curve = interpolation(x, np.stack([score.booted[:, seed] for score in scores]))(inside)  # (C,)
        observed.append(joint[1].observed[seed] - on_curve)
        booted.append(joint[1].booted[:, seed] - booted_on_curve)
    return Resampled(np.array(observed), np.stack(booted, 1)), outside


def share_of(part: Resampled, cost: Resampled) -> dict[str, float]:
    """Compute the share of a cost that a part of it accounts for, with Fieller's interval.

    The ends of the interval, and the two-sided p of a share of `WORSE`, are NaN if the cost does not differ
    significantly from 0.
    """
    low, high = ratio_over_seeds(part, cost)
    total = float(cost.observed.mean())
    share = float(part.observed.mean()) / total if total else math.nan
    p = math.nan if math.isnan(low) else Contrast.of(weighted([part, cost], [1, -WORSE])).p
    return {"value": share, "low": low, "high": high, "n": len(cost.observed), "p_worse": p}


def _points(setting: Setting, place: int, task: str, seeds: Sequence[int]) -> tuple[Floats, Resampled]:
    """Return training losses (S,) and scores of a task, for the runs of some seeds."""
    of_seed = {run.seed: run for run in setting.runs if task in run.tasks}
    return np.array([_loss(of_seed[seed], task) for seed in seeds]), setting.of_seeds(seeds, [place])


def _loss(run: ScoredRun, task: str) -> float:
    """Return the logged training loss of the weights that were scored.

    Raises:
        RunError: the run did not log it.
    """
    best = run.folder.read_best()["joint"]["epoch"]
    for line in run.folder.read_metrics():
        if line["epoch"] == best and task in line.get("train_loss", {}):
            return float(line["train_loss"][task])
    raise RunError(
        f"{run.path}: expected the training loss of its best evaluation in metrics.jsonl, found none; train the run "
        "again with train.log_train_loss=500"
    )


def _rows(settings: Sequence[Setting], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of the frame ``runs``."""
    return [
        {
            "mode": "single" if setting.is_single_task else "joint",
            "updates": setting.updates,
            "task": task,
            "seed": seed,
        }
        | {"loss": float(loss), "score": float(score)}
        for setting in settings
        for place, task in enumerate(tasks)
        for losses, scores in [_points(setting, place, task, setting.seeds)]
        for seed, loss, score in zip(setting.seeds, losses, scores.observed, strict=True)
    ]
