"""Measure Δ, the joint minus the single-task score, of groups of runs that a file names, and its changes.

Groups that differ in more than heads (precision, corpus, encoder, updates) cannot be paired by their settings, so a
file names the runs of each group and the groups that are compared.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field
from scipy import special

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.frames import is_mean
from mtlprune.analyses.harness.settings import have_all, means_of, read_settings
from mtlprune.analyses.heads.scarcity.levels import Level, doubts, figure_of, seeds_of
from mtlprune.config.config import validated
from mtlprune.io.block import Block
from mtlprune.io.files import read_yaml
from mtlprune.runs.columns import Columns, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import differing_settings
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, pooled_deviation, weighted
from mtlprune.sweeps.folder import expanded

_SCALES = {"points": lambda score: score, "logits": lambda score: special.logit(score / 100)}
"""Scales of pooled changes. A point is a larger change near 0 and 100, which logits of the score take into account."""
Pair = tuple[str, str]
"""Titles of two groups."""


class GroupsFile(Block):
    """Content of the file that the option ``groups`` names."""

    groups: dict[str, list[str]] = Field(
        description="Single-task and joint runs of one setting, by title. Encoders may differ between seeds.",
    )
    tasks: list[str] = Field(
        default=[],
        description="Tasks of the mean and of the rows (all, if not given). Single-task runs of other tasks may be "
        "missing.",
    )
    changes: list[Pair] = Field(
        default=[], description="Pairs of titles. Δ of the second is subtracted from that of the first."
    )
    first_looks: list[Pair] = Field(default=[], description="Changes that the pooled error leaves out.")
    pooled: dict[str, list[Pair]] = Field(default={}, description="Changes that are averaged by seed, by title.")


@dataclass(frozen=True, eq=False)
class RunPair:
    """Single-task and joint runs of one group.

    Attributes:
        task_indices: for each row of a table, by its name, the indices of the tasks over which it is a mean.
    """

    level: Level
    task_indices: Mapping[str, list[int]]


def measure(request: Request) -> Result:
    """Measure all groups of the file. ``frames.yaml`` declares the frames.

    ``term`` and ``other`` are titles of the file, and Holm's correction is over the tasks of the same groups. A pooled
    change is averaged over several pairs of groups for each seed, so that a task has one test with all seeds instead
    of several tests with few seeds.

    Raises:
        RunError: the request also names runs, if the file has no groups or lacks a title, or if a group is not one
            setting of single-task runs and one of joint runs, or if groups have different tasks.
    """
    file, margin = Path(request.options.groups), request.options.margin
    if request.names:
        raise RunError(f"analyze scarcity: groups={file} names the runs; leave out {request.names[0]}")
    groups_file = validated(GroupsFile, read_yaml(file), str(file))
    if not groups_file.groups:
        raise RunError(f"{file}: expected one group or more, found none")
    compared = [*groups_file.changes, *groups_file.first_looks]
    for title in itertools.chain(*compared, *itertools.chain(*groups_file.pooled.values())):
        if title not in groups_file.groups:
            raise RunError(f"{file}: expected titles of its groups ({'; '.join(groups_file.groups)}), found {title!r}")
    groups = {title: _group(title, runs, groups_file.tasks, request) for title, runs in groups_file.groups.items()}
    _refuse_unlike_tasks(groups, file)
    names = list(next(iter(groups.values())).task_indices)
    levels, changes, pooled, seeds = [], [], [], []
    for (title, group), name in itertools.product(groups.items(), names):
        figure, _ = _figure({group: 1}, name)
        delta = Contrast.of(figure)
        row = {"term": title, "task": name, "updates": group.level.joint.updates, "p_margin": delta.p_margin(margin)}
        levels.append((row | group.level.scores(group.task_indices[name]), delta))
        seeds += _by_seed({"term": title, "other": "", "task": name}, {group: 1}, figure)
    for name in names:  # tasks are in the outer loop, because the pooled error needs all changes of a task
        pairs = {pair: {groups[pair[0]]: 1, groups[pair[1]]: -1} for pair in compared}
        error = pooled_deviation([_figure(pairs[pair], name)[0].observed for pair in groups_file.changes])
        for (term, base), weights in pairs.items():
            figure, draws = _figure(weights, name)
            keys = {"term": term, "other": base, "task": name}
            changes.append((keys | doubts(figure, draws, margin, error), Contrast.of(figure)))
            seeds += _by_seed(keys, weights, figure)
    changes.sort(key=lambda row: compared.index((str(row[0]["term"]), str(row[0]["other"]))))
    tasks = [name for name in names if not is_mean(name)]
    for (title, pairs_of), scale in itertools.product(groups_file.pooled.items(), _SCALES):
        effect, rows = (-margin if scale == "points" else None), []  # the margin is in points
        for task in tasks:
            change = _pooled([(groups[term], groups[base]) for term, base in pairs_of], task, scale)
            p_fall = np.nan if effect is None else change.p_at_most(effect)
            rows.append(({"term": title, "mode": scale, "task": task, "p_fall": p_fall}, change))
        pooled.append(contrast_frame(rows, ["term"], effect=effect))
    frames = {"levels": contrast_frame(levels, ["term"], _is_task)}
    if changes:
        frames["changes"] = contrast_frame(changes, ["term", "other"], _is_task, -margin)
    if pooled:
        frames["pooled"] = pd.concat(pooled, ignore_index=True)
    frames["seeds"] = pd.DataFrame(seeds)
    about: dict[str, Any] = {"split": request.split, "encoders": [], "tasks": tasks, "notes": []}
    about |= {"settings": {**request.options.model_dump(mode="json"), "seed": request.seed}}
    about |= {"sentences": max(group.level.joint.systems[0].counts.shape[1] for group in groups.values())}
    return Result("scarcity", about, frames)


def _group(title: str, runs: Sequence[str], task_names: Sequence[str], request: Request) -> RunPair:
    """Read the runs of one group.

    Raises:
        RunError: the runs lack a task, or are not one setting of single tasks and one of joint training.
    """
    options = request.options
    comparison = _with_encoders_by_seed(in_columns([RunFolder(path) for path in expanded(runs)], request.split))
    tasks = max((list(column.runs[0].tasks) for column in comparison.columns), key=len)
    order = have_all(comparison, tasks)
    if missing := [task for task in task_names if task not in tasks]:
        raise RunError(
            f"group {title!r} of {options.groups}: expected joint runs of {', '.join(task_names)} (tasks), found runs "
            f"without {', '.join(missing)}"
        )
    if task_names and len(order) < 2:  # there may be single-task runs of only those tasks that the file names
        order, tasks = have_all(comparison, tasks, task_names), [task for task in tasks if task in task_names]
    settings = read_settings(comparison, order, tasks, options.resamples, request.seed, request.on_batch)
    single, joint = (
        [setting for setting in settings if setting.is_single_task is one_task] for one_task in (True, False)
    )
    if (len(single), len(joint)) != (1, 1):
        raise RunError(
            f"group {title!r} of {options.groups}: expected one setting of single tasks and one of joint training of "
            f"{', '.join(tasks)}, found {len(single)} and {len(joint)}"
        )
    means = means_of([task for task in tasks if task in (task_names or tasks)], options.without)
    task_indices = {name: [tasks.index(task) for task in mean_tasks] for name, mean_tasks in means.items()}
    return RunPair(Level(single[0], joint[0], 0, title), task_indices)


def _refuse_unlike_tasks(groups: Mapping[str, RunPair], file: Path) -> None:
    """Raise RunError if groups have different tasks, because their Δ would be means over different tasks."""
    tasks = {title: [name for name in group.task_indices if not is_mean(name)] for title, group in groups.items()}
    first, *later_groups = tasks
    for title in later_groups:
        if set(tasks[title]) != set(tasks[first]):
            common = [task for task in tasks[first] if all(task in names for names in tasks.values())]
            remedy = f"add `tasks: [{', '.join(common)}]`" if common else "name groups with a common task"
            raise RunError(
                f"{file}: expected groups with the same tasks, found {first!r} with {', '.join(tasks[first])} and "
                f"{title!r} with {', '.join(tasks[title])}; {remedy}"
            )


def _with_encoders_by_seed(comparison: Columns) -> Columns:
    """Merge columns whose runs differ only in their encoders, if each seed has one encoder.

    An example is an encoder whose units were removed at random by the seed. Single-task and joint runs are merged
    separately.
    """
    columns = []
    for one_task in (True, False):
        of_side = [column for column in comparison.columns if (len(column.runs[0].tasks) == 1) is one_task]
        runs = sorted((run for column in of_side for run in column.runs), key=lambda run: run.seed)
        has_one_each = len({(run.tasks, run.seed) for run in runs}) == len(runs)
        is_one_setting = len(of_side) > 1 and has_one_each and not differing_settings(runs)
        columns += [replace(of_side[0], runs=runs)] if is_one_setting else of_side
    return replace(comparison, columns=columns, against={})


def _figure(weights: Mapping[RunPair, float], name: str) -> tuple[Resampled, list[tuple[int | None, ...]]]:
    """Return `figure_of` for the weighted groups and the tasks of the row ``name``."""
    task_indices = next(iter(weights)).task_indices[name]
    return figure_of({group.level: weight for group, weight in weights.items()}, task_indices)


def _by_seed(keys: Mapping[str, str], weights: Mapping[RunPair, float], figure: Resampled) -> list[dict[str, Any]]:
    """Return the rows of the frame ``seeds``."""
    values = zip(seeds_of(group.level for group in weights), figure.observed, strict=True)
    return [{**keys, "seed": seed, "measure": "delta", "value": float(value)} for seed, value in values]


def _pooled(pairs: Sequence[tuple[RunPair, RunPair]], task: str, scale: str) -> Contrast:
    """Compute the pooled change of a task's Δ on one of _SCALES, for each seed the mean over pairs that have it."""
    by_seed: dict[int, list[Resampled]] = {}
    for first, second in pairs:
        seeds, parts = seeds_of([first.level, second.level]), []
        for group in (first, second):
            for side in (group.level.single, group.level.joint):
                score = side.of_seeds(seeds, group.task_indices[task])
                parts.append(Resampled(*(np.asarray(_SCALES[scale](values)) for values in score)))
        figure = weighted(parts, [-1, 1, 1, -1])  # single and joint of the first, then of the second group
        for column, seed in enumerate(seeds):
            by_seed.setdefault(seed, []).append(Resampled(figure.observed[column], figure.booted[:, column]))
    means = [weighted(by_seed[seed]) for seed in sorted(by_seed)]
    return Contrast.of(
        Resampled(np.array([mean.observed for mean in means]), np.stack([mean.booted for mean in means], 1))
    )


def _is_task(frame: pd.DataFrame) -> Any:
    """Select the rows of single tasks, which Holm's correction covers; means over tasks are not corrected."""
    return frame["p"].notna() & ~frame["task"].map(is_mean)
