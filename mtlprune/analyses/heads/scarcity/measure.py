"""Measure Δ, the joint minus the single-task score, with many and with few open heads, and its change."""

import itertools
from collections.abc import Sequence

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.settings import have_all, joint_pairs, means_of, read_settings
from mtlprune.analyses.heads.scarcity import groups_file
from mtlprune.analyses.heads.scarcity.levels import Level, doubts, figure_of
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.columns import Columns, ScoredRun, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import SHARED
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import pooled_deviation


def measure(request: Request) -> Result:
    """Measure all runs, or the groups of a file. ``frames.yaml`` declares the frames.

    Raises:
        RunError: there are no single-task and joint runs of the same settings with two numbers of heads, or if runs
            cannot be compared.
    """
    if request.options.groups:
        return groups_file.measure(request)
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    options, tasks = request.options, max((list(column.runs[0].tasks) for column in comparison.columns), key=len)
    means = means_of(tasks, options.without)
    rows = {name: [tasks.index(task) for task in mean_tasks] for name, mean_tasks in means.items()}
    levels = _levels(comparison, tasks, request)
    # A level is compared with the level of the same other settings that has all heads. Levels with all heads, such as
    # longer training, are compared with the first of them.
    levels_by_settings: dict[str, list[Level]] = {}  # from many heads to few
    for level in levels:
        levels_by_settings.setdefault(level.other_settings, []).append(level)
    base_levels = [
        equal_levels[0] for equal_levels in levels_by_settings.values() if equal_levels[0].heads == levels[0].heads
    ]
    bases = {
        level: equal_levels[0]
        for equal_levels in levels_by_settings.values()
        if equal_levels[0] in base_levels
        for level in equal_levels[1:]
    }
    bases |= dict.fromkeys(base_levels[1:], base_levels[0])
    deltas, changes = [], []
    for level, (name, task_indices) in itertools.product(levels, rows.items()):
        figure, _ = figure_of({level: 1}, task_indices)
        row = {"term": level.label, "heads": level.heads, "updates": level.joint.updates, "task": name}
        deltas.append((row | level.scores(task_indices), Contrast.of(figure)))
    for name, task_indices in rows.items():
        figures = {level: figure_of({level: 1, base: -1}, task_indices) for level, base in bases.items()}
        pooled = pooled_deviation([figure.observed for figure, _ in figures.values()])
        for level, (figure, draws) in figures.items():
            keys = {"term": level.label, "other": bases[level].label, "task": name}
            row = {"heads": level.heads - bases[level].heads, **doubts(figure, draws, options.margin, pooled)}
            changes.append((keys | row, Contrast.of(figure)))
    order = {level.label: index for index, level in enumerate(levels)}
    changes.sort(key=lambda row: order[str(row[0]["term"])])
    paired = {column for level in levels for column in (level.single.place, level.joint.place)}
    notes = [
        f"{comparison.columns[column].title} is left out, because there are no joint or single-task runs of the same "
        "settings."
        for column in have_all(comparison, tasks)
        if column not in paired
    ]
    notes += _notes_of_differences(levels)
    about = {"split": request.split, "sentences": levels[0].joint.systems[0].counts.shape[1], "encoders": []}
    about |= {"settings": {**options.model_dump(mode="json"), "seed": request.seed}, "tasks": tasks, "notes": notes}
    about |= {"heads": max(level.heads for level in levels)}
    frames = {"levels": contrast_frame(deltas), "changes": contrast_frame(changes, effect=-options.margin)}
    return Result("scarcity", about, frames)


def _levels(comparison: Columns, tasks: Sequence[str], request: Request) -> list[Level]:
    """Pair joint runs with single-task runs of the same settings, and sort the pairs from many heads to few.

    Raises:
        RunError: as in `measure`.
    """
    columns, complete = comparison.columns, have_all(comparison, tasks)
    pairs = [pair for pair in joint_pairs(comparison) if {*pair} <= {*complete}]
    open_heads = {joint: _open_heads(columns[joint].runs) for _, joint in pairs}
    if len(set(open_heads.values())) < 2:
        raise RunError(
            "expected single-task and joint runs with all heads, and single-task and joint runs with few heads "
            "(pruning.method=random, pruning.draw), found "
            f"{'runs with only one number of heads' if pairs else 'no joint run with single-task runs of its tasks'}; "
            "name runs with another number of heads as well (docs/methods/scarcity.md)"
        )
    total = max(head_count for _, joint in pairs for run in columns[joint].runs for _, head_count in run.heads.values())
    order = [column for pair in pairs for column in pair]
    settings = read_settings(comparison, order, tasks, request.options.resamples, request.seed, request.on_batch)
    by_column = {setting.place: setting for setting in settings}
    levels = [Level(by_column[single], by_column[joint], open_heads[joint] or total) for single, joint in pairs]
    levels.sort(key=lambda level: (-level.heads, level.joint.updates))
    updates = len({level.joint.updates for level in levels}) > 1
    labels = [f"{level.heads} heads" + f", {level.joint.updates:,} updates" * updates for level in levels]
    if len({*labels}) < len(labels):
        labels = [f"{label}, {level.joint.label}" for label, level in zip(labels, levels, strict=True)]
    return [level._replace(label=label) for level, label in zip(levels, labels, strict=True)]


def _notes_of_differences(levels: Sequence[Level]) -> list[str]:
    """Return a sentence for each level whose single-task and joint runs of one seed have different heads open."""
    notes = []
    for level in levels:
        runs = [run for run in (*level.single.column.runs, *level.joint.column.runs) if run.heads]
        masks = {(run.seed, (run.folder.best_gates()[1][SHARED] > OPEN_ABOVE).tobytes()) for run in runs}
        if len(masks) > len({run.seed for run in runs}):
            notes.append(
                f"{level.label}: single-task and joint runs of one seed have other heads open, so the draws of heads "
                "add noise to Δ; pruning.draw gives both the same heads."
            )
    return notes


def _open_heads(runs: Sequence[ScoredRun]) -> int:
    """Return the number of open heads of these runs, or 0 if all heads are open.

    Raises:
        RunError: heads were not closed at random from the start, or if runs have different numbers of open heads.
    """
    for run in runs:
        if run.pruning and run.config.pruning.method != "random":
            raise RunError(
                f"{run.path}: expected all heads, or random ones (pruning.method: random), found {run.pruning}"
            )
    numbers = {count for run in runs for count, _ in run.heads.values()} or {0}
    if len(numbers) > 1:
        raise RunError(
            f"{runs[0].path} and other runs of its settings: expected one number of heads, found {sorted(numbers)}"
        )
    return numbers.pop()
