"""Settings of scored runs that have all tasks, each scored on the same resampled sentences.

A setting is a group of runs that differ only in the seed. The analyses treatments, scarcity and equal_loss compare
settings.

Letters for shapes: C resamples, N sentences, S runs (seeds) of a setting, K counts from which a score is computed.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mtlprune.analyses.frames import MEAN
from mtlprune.runs.columns import Columns, ScoreColumn, ScoredRun
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import partners, short_names
from mtlprune.statistics.paired import PairedCounts, RunCounts
from mtlprune.statistics.resamples import Resampled, System, resampled_scores, weighted


@dataclass(frozen=True, eq=False)
class Setting:
    """The runs of one setting: joint runs, or single-task runs of every task.

    Attributes:
        label: short name of the setting.
        place: index of ``column`` among the columns of its table.
        systems: counts of each task, on the same sentences and for the same seeds.
        scores: scores of each task on resampled sentences, which are the same for all settings.
        kind: category that an analysis assigns to the setting.
    """

    label: str
    place: int
    column: ScoreColumn
    systems: Sequence[System]
    scores: Sequence[Resampled]
    kind: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the setting; for single-task runs, the seeds that all tasks have in common."""
        return self.systems[0].seeds

    @property
    def runs(self) -> list[ScoredRun]:
        """Runs of the setting whose seeds are in ``seeds``."""
        return [run for run in self.column.runs if run.seed in self.seeds]

    def draws(self, seeds: Sequence[int]) -> list[int | None]:
        """Return the seed of the random heads (``pruning.draw``) of each seed's run; None for runs without it."""
        draws = {run.seed: run.config.pruning.draw if run.pruning else None for run in self.runs}
        return [draws[seed] for seed in seeds]

    @property
    def updates(self) -> int:
        """Number of updates of each run."""
        return self.column.runs[0].updates

    @property
    def is_single_task(self) -> bool:
        """Whether the runs are single-task runs."""
        return len(self.column.runs[0].tasks) == 1

    def of_seeds(self, seeds: Sequence[int], tasks: slice | Sequence[int] = slice(None)) -> Resampled:
        """Return the mean score of some tasks for some seeds; ``tasks`` are positions of tasks in ``scores``."""
        seed_places = [self.seeds.index(seed) for seed in seeds]
        mean = weighted(self.scores[tasks] if isinstance(tasks, slice) else [self.scores[task] for task in tasks])
        return Resampled(mean.observed[seed_places], mean.booted[:, seed_places])


def difference(
    first: Setting, second: Setting, seeds: Sequence[int], tasks: slice | Sequence[int] = slice(None)
) -> Resampled:
    """Compute the mean score of some tasks in the first setting minus that in the second, seed by seed."""
    return first.of_seeds(seeds, tasks) - second.of_seeds(seeds, tasks)


def means_of(tasks: Sequence[str], without: str) -> dict[str, list[str]]:
    """Return the rows of a table, each with the tasks over which it is a mean.

    The rows are the mean of all tasks, the mean without the task ``without`` (if it is not empty), and each task.

    Raises:
        RunError: if ``without`` is none of the tasks, or the only one.
    """
    means = {MEAN: list(tasks)}
    if without:
        if without not in tasks or len(tasks) < 2:
            raise RunError(f"without: expected one of the tasks {', '.join(tasks)}, found {without!r}")
        means[f"mean without {without.upper()}"] = [task for task in tasks if task != without]
    return means | {task: [task] for task in tasks}


def read_settings(
    comparison: Columns,
    order: Sequence[int],
    tasks: Sequence[str],
    resamples: int,
    seed: int,
    on_chunk: Callable[[], None],
) -> list[Setting]:
    """Read the settings of some columns, in their order, and score them on resampled sentences.

    Args:
        order: indices of columns that have every task.
        on_chunk: called after each chunk of resamples.

    Raises:
        RunError: the tasks of a column have no seed in common, runs cannot be compared sentence by sentence, or some
            tasks are scored by correlations and others by percentages, so that a mean over tasks is not defined.
    """
    columns, counts = comparison.columns, PairedCounts(comparison)
    numbers = [task for task in tasks if comparison.kind(task) == "number"]
    if 0 < len(numbers) < len(tasks):
        raise RunError(
            f"the mean over tasks is taken over scores of one kind, and {', '.join(numbers)} is scored by r × 100, "
            "while the other tasks are scored by percentages of correct items; compare the tasks one by one (mtlprune "
            "table)"
        )
    shared = {
        place: tuple(sorted(set.intersection(*({run.seed for run in columns[place].runs_of(t)} for t in tasks))))
        for place in order
    }
    if without_seeds := [columns[place].title for place, seeds in shared.items() if not seeds]:
        raise RunError(
            f"expected single-task runs of each task with common seeds, found none in {', '.join(without_seeds)}; name "
            "runs with the same seeds"
        )
    counts_of_setting: dict[tuple[int, str], list[RunCounts]] = {}
    for task in tasks:
        for place in order:
            pairs = zip(columns[place].runs_of(task), counts.counts_of(place, task), strict=True)
            counts_of_setting[place, task] = [run_counts for run, run_counts in pairs if run.seed in shared[place]]
        counts.refuse_unpaired([run_counts for place in order for run_counts in counts_of_setting[place, task]])
    ids = sorted({name for runs in counts_of_setting.values() for name in runs[0].ids})
    row_of = {name: row for row, name in enumerate(ids)}
    systems = {}
    for place, task in itertools.product(order, tasks):
        runs = counts_of_setting[place, task]
        run_rows = np.stack([run.rows for run in runs])  # integers, or floats for numbers
        rows = np.zeros((len(runs), len(ids), len(counts.names(task))), run_rows.dtype)  # 0 where the layer is missing
        rows[:, [row_of[name] for name in runs[0].ids]] = run_rows
        systems[place, task] = counts.system(list(rows), task, shared[place])
    scores = dict(zip(systems, resampled_scores(list(systems.values()), resamples, seed, on_chunk), strict=True))
    labels = short_names([columns[place].runs for place in order], [columns[place].title for place in order])
    return [
        Setting(label, place, columns[place], [systems[place, t] for t in tasks], [scores[place, t] for t in tasks])
        for place, label in zip(order, labels, strict=True)
    ]


def joint_pairs(comparison: Columns) -> list[tuple[int, int]]:
    """Return pairs of column indices: single-task runs, and untreated joint runs that are compared with them.

    Two columns form a pair if the single-task column contains `partners` for each task of the joint runs.
    """
    columns = comparison.columns
    return [
        (single, joint)
        for joint, column in enumerate(columns)
        for single, single_column in enumerate(columns)
        if len((run := column.runs[0]).tasks) > 1 and not run.treatment
        if {partner.tasks for partner in partners(run, single_column.runs)} >= {(task,) for task in run.tasks}
    ]


def have_all(comparison: Columns, tasks: Sequence[str], single_task_names: Sequence[str] | None = None) -> list[int]:
    """Return the indices of columns that have exactly these tasks.

    Such a column consists of joint runs of all tasks, or of single-task runs of each task.

    Args:
        single_task_names: tasks of which a single-task column must consist; by default all.
    """
    single_tasks = {(task,) for task in (tasks if single_task_names is None else single_task_names)}
    return [
        place
        for place, column in enumerate(comparison.columns)
        if {run.tasks for run in column.runs} in ({tuple(tasks)}, single_tasks)
    ]


def common_seeds(*settings: Setting) -> list[int]:
    """Return the seeds that all settings have, in ascending order.

    Raises:
        RunError: the settings have no seed in common.
    """
    common = sorted(set.intersection(*(set(setting.seeds) for setting in settings)))
    if not common:
        names = " and ".join(setting.label for setting in settings)
        raise RunError(f"expected runs with common seeds, found none among {names}; name runs with the same seeds")
    return common
