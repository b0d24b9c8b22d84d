"""Gaps between joint and single-task runs under many and few heads, and how they change.

Letters: C resamples, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.scarcity import MEAN
from mtlprune.analyses.settings import Setting, common_seeds, have_all, read_settings
from mtlprune.runs.columns import Columns, ScoredRun, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import PRUNING, untreated
from mtlprune.runs.results import Result
from mtlprune.statistics.significance import Floats, over_seeds, within_margin

Tasks = dict[str, list[int]]
"""Name of a mean → places of its tasks."""


@dataclass(frozen=True, eq=False)
class Level:
    """Single-task and joint runs of equal settings, with so many heads open from the first update.

    Attributes:
        label: how many, and in which encoder and after how many updates where these differ between levels.
    """

    single: Setting
    joint: Setting
    heads: int
    label: str = ""

    @property
    def sides(self) -> dict[str, Setting]:
        """The two, by their names."""
        return {"single": self.single, "joint": self.joint}

    @property
    def seeds(self) -> list[int]:
        """The seeds that both have."""
        return common_seeds(self.single, self.joint)

    @property
    def others(self) -> dict[str, Any]:
        """The encoder and the settings beside those of pruning."""
        run = self.joint.column.runs[0]
        kept = {path: value for path, value in untreated(run).items() if not path.startswith(PRUNING)}
        return {"encoder": self.joint.column.encoder, **kept}

    @property
    def updates(self) -> int:
        """Of the joint runs."""
        return self.joint.column.runs[0].updates

    def gap(self, seeds: Sequence[int], tasks: Sequence[int]) -> tuple[Floats, Floats]:
        """Joint minus single tasks, in points: (S,) observed, (C, S) resampled."""
        joint, single = self.joint.of_seeds(seeds, tasks), self.single.of_seeds(seeds, tasks)
        return joint[0] - single[0], joint[1] - single[1]


def measure(request: Request) -> Result:
    """All runs. Frames, by ``task`` (a task, MEAN, or the mean without one):

    - ``levels``: the ``gap`` of a level (``term``), joint minus single tasks, with the interval over seeds and
      sentences; ``heads`` open (``all``: none closed), ``updates`` of joint runs, scores ``single`` and ``joint``.
    - ``changes``: the gap of ``term`` minus that of ``other``, which has all heads and else the same settings (or, of a
      level with all heads, is the first such); paired by seed. ``widens``: p of a true change of −margin or less;
      ``equal``: p of one of the margin or more either way.
    - ``slopes``: by how much the gap changes for each quarter of the heads that is taken away, least squares over all
      levels of equal other settings, of which there are three or more.

    Raises:
        RunError: no single-task and joint runs of the same settings under two numbers of heads; runs that cannot be
            compared.
    """
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    options, tasks = request.options, _tasks(comparison)
    means: Tasks = {MEAN: list(range(len(tasks)))}
    if options.without:
        if options.without not in tasks or len(tasks) < 2:
            raise RunError(f"without: expected one of the tasks {', '.join(tasks)}, found {options.without!r}")
        means[f"mean without {options.without.upper()}"] = [k for k, t in enumerate(tasks) if t != options.without]
    means |= {task: [place] for place, task in enumerate(tasks)}
    levels = _levels(comparison, tasks, request)
    rows = {
        "levels": [row for one in levels for row in _gaps(one, means)],
        "changes": [
            row for one in levels if (base := _base(one, levels)) for row in _changes(one, base, means, options.margin)
        ],
        "slopes": [row for some in _alike(levels) for row in _slopes(some, means)],
    }
    paired = {place for one in levels for place in (one.single.place, one.joint.place)}
    notes = [
        f"{comparison.columns[place].title} is left out: no joint or single-task runs of the same settings."
        for place in have_all(comparison, tasks)
        if place not in paired
    ]
    about = {"split": request.split, "sentences": levels[0].joint.systems[0].counts.shape[1], "encoders": []}
    about |= {"settings": {**options.model_dump(mode="json"), "seed": request.seed}, "tasks": tasks, "notes": notes}
    about |= {"heads": max(one.heads for one in levels)}
    return Result("scarcity", about, {name: pd.DataFrame(each) for name, each in rows.items() if each})


def _tasks(comparison: Columns) -> list[str]:
    """Of the joint runs with the most tasks."""
    return max((list(column.runs[0].tasks) for column in comparison.columns), key=len)


def _levels(comparison: Columns, tasks: Sequence[str], request: Request) -> list[Level]:
    """Joint columns with the single tasks of the same settings, many heads before few. Raises RunError as `measure`."""
    columns, places = comparison.columns, have_all(comparison, tasks)
    alone = {place for place in places if len(columns[place].runs[0].tasks) == 1}
    pairs = [
        (single, joint)
        for joint in places
        for single in alone
        if joint not in alone and columns[joint].encoder == columns[single].encoder
        if all(run.settings == columns[joint].runs[0].settings for run in columns[single].runs)
    ]
    open_heads = {joint: _open(columns[joint].runs) for _, joint in pairs}
    if len(set(open_heads.values())) < 2:
        raise RunError(
            "expected single-task and joint runs of the same settings with all heads, and such with few "
            f"(pruning.method: random, pruning.draw), found {len(pairs)} pair(s) with "
            f"{len(set(open_heads.values()))} number(s) of heads"
        )
    total = max(
        whole for runs in (columns[joint].runs for _, joint in pairs) for run in runs for _, whole in run.heads.values()
    )
    order = [place for pair in pairs for place in pair]
    settings = read_settings(comparison, order, tasks, request.options.resamples, request.seed, request.on_batch)
    of = {one.place: one for one in settings}
    levels = [Level(of[single], of[joint], open_heads[joint] or total) for single, joint in pairs]
    return _labelled(sorted(levels, key=lambda one: (-one.heads, one.updates)))


def _labelled(levels: Sequence[Level]) -> list[Level]:
    """The same with their labels."""
    encoders, updates = (
        {of(one) for one in levels} for of in (lambda one: one.joint.column.encoder, lambda one: one.updates)
    )
    labelled = []
    for one in levels:
        words = [f"{one.heads} heads"] + [one.joint.column.encoder] * (len(encoders) > 1)
        labelled.append(replace(one, label=", ".join(words + [f"{one.updates:,} updates"] * (len(updates) > 1))))
    if len({one.label for one in labelled}) < len(labelled):
        labelled = [replace(one, label=f"{one.label}, {one.joint.label}") for one in labelled]
    return labelled


def _open(runs: Sequence[ScoredRun]) -> int:
    """Heads that are open; 0 where all are. Raises RunError where they are not fixed at random, or differ."""
    for run in runs:
        if run.pruning and run.tree["pruning"]["method"] != "random":
            raise RunError(
                f"{run.path}: expected all heads, or random ones (pruning.method: random), found {run.pruning}"
            )
    numbers = {count for run in runs for count, _ in run.heads.values()} or {0}
    if len(numbers) > 1:
        raise RunError(f"{runs[0].path} and others of its settings have {sorted(numbers)} heads; expected one number")
    return numbers.pop()


def _base(level: Level, levels: Sequence[Level]) -> Level | None:
    """The level with all heads and else the same settings; of one with all heads the first of these; None for it."""
    whole = [one for one in levels if one.heads == max(other.heads for other in levels)]
    base = whole[0] if level in whole else next((one for one in whole if one.others == level.others), None)
    return None if base is level else base


def _alike(levels: Sequence[Level]) -> list[list[Level]]:
    """Levels of equal other settings, where there are three or more."""
    groups: list[list[Level]] = []
    for level in levels:
        group = next((some for some in groups if some[0].others == level.others), None)
        groups.append([level]) if group is None else group.append(level)
    return [group for group in groups if len(group) > 2]


def _gaps(level: Level, means: Tasks) -> list[dict[str, Any]]:
    """Rows of the frame ``levels``."""
    seeds, rows = level.seeds, list[dict[str, Any]]()
    for name, places in means.items():
        scores = {side: float(one.of_seeds(seeds, places)[0].mean()) for side, one in level.sides.items()}
        row = {"term": level.label, "task": name, "heads": level.heads, "updates": level.updates, "n": len(seeds)}
        rows.append(row | scores | over_seeds(*level.gap(seeds, places)))
    return rows


def _changes(level: Level, base: Level, means: Tasks, margin: float) -> list[dict[str, Any]]:
    """Rows of the frame ``changes``."""
    seeds = common_seeds(level.single, level.joint, base.single, base.joint)
    rows = []
    for name, places in means.items():
        own, other = level.gap(seeds, places), base.gap(seeds, places)
        change = own[0] - other[0], own[1] - other[1]
        above, equal = within_margin(*change, margin)
        row = {"term": level.label, "other": base.label, "task": name, "n": len(seeds)}
        rows.append(row | over_seeds(*change) | {"widens": above, "equal": equal})
    return rows


def _slopes(levels: Sequence[Level], means: Tasks) -> list[dict[str, Any]]:
    """Rows of the frame ``slopes``."""
    seeds = common_seeds(*(side for one in levels for side in one.sides.values()))
    taken = np.array([one.heads for one in levels], float)
    taken = (taken.max() - taken) / taken.max() * 4  # quarters taken away
    weights = (taken - taken.mean()) / ((taken - taken.mean()) ** 2).sum()
    rows = []
    for name, places in means.items():
        gaps = [one.gap(seeds, places) for one in levels]
        slope = [sum(weight * gap[part] for weight, gap in zip(weights, gaps, strict=True)) for part in (0, 1)]
        row = {"term": ", ".join(str(one.heads) for one in levels) + " heads", "task": name, "n": len(seeds)}
        rows.append(row | {"updates": levels[0].updates} | over_seeds(slope[0], slope[1]))
    return rows
