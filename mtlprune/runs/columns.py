"""Runs grouped into the columns of a table of scores, and the column with which each column is compared.

``mtlprune table``, ``mtlprune compare`` and the HTML report build their tables from these columns.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtlprune.errors import command
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.evaluation.scores import main_score, name_of
from mtlprune.layers import in_order, kind_of, layer_order
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import (
    PRUNING,
    SHARED,
    TREATMENT,
    DescribedRun,
    describe_unique,
    differing_settings,
    group_titles,
    partners,
)

MORE_UPDATES = 1.05
"""A run counts as trained longer than others in its row if its encoder had more than this factor times the updates of
the run with the fewest."""


@dataclass(frozen=True, eq=False)
class ScoredRun(DescribedRun):
    """A run with its scores on one split.

    Attributes:
        scores: task → main score of the task, in percent.
        names: task → name of the main score.
        layer_kinds: task → kind of the task's layer.
        heads: task → (number of heads open or kept for the task, number of all heads); empty if no heads were pruned.
        rows: title of the block of rows in which the run is shown: the encoder's name, with the name of the corpus if
            corpora are compared.
    """

    scores: Mapping[str, float]
    names: Mapping[str, str]
    layer_kinds: Mapping[str, str]
    heads: Mapping[str, tuple[int, int]]
    rows: str

    @classmethod
    def of(cls, run: DescribedRun, split: str, by_corpus: bool = False) -> "ScoredRun":
        """Read the scores of a run. Raises RunError if the run is not scored on ``split``."""
        folder, decoders = run.folder, run.config.decoders.model_dump()
        if split not in folder.splits():
            scored = ", ".join(folder.splits()) or "none"
            how = f"run: {command('evaluate', folder.path, '--split', split.partition('.')[0])}"
            if folder.packed is not None:
                how = "score the original run on that split, and pack it into another study"
            raise RunError(f"{folder.path} is not scored on {split!r} (scored: {scored}); {how}")
        scores = folder.read_scores(split)
        names = {task: main_score(task, decoders) for task in scores}
        return cls(
            folder,
            run.config,
            run.manifest,
            scores={task: values[names[task]] for task, values in scores.items()},
            names=names,
            layer_kinds={task: kind_of(task, decoders) for task in scores},
            heads=_heads(run),
            rows=f"{run.architecture}, {Path(run.corpus).name}" if by_corpus else run.architecture,
        )


def _heads(run: DescribedRun) -> dict[str, tuple[int, int]]:
    """Return (heads that the task may use, heads before pruning) for each task of a run that has gates or was exported
    with `mtlprune export --remove`; empty for other runs."""
    if "pruned" in run.manifest:
        left = run.folder.read_json("encoder/heads.json")
        return dict.fromkeys(run.tasks, (sum(map(len, left["kept"])), left["heads"] * len(left["kept"])))
    if not run.folder.has("gates.jsonl"):
        return {}
    heads = {key: (int((gates > OPEN_ABOVE).sum()), gates.size) for key, gates in run.folder.best_gates()[1].items()}
    return dict.fromkeys(run.tasks, heads[SHARED]) if SHARED in heads else heads


# -- columns ---------------------------------------------------------------------------------------------------------


@dataclass
class ScoreColumn:
    """A column of the table: the scores of one group of runs, which differ in seeds (and in tasks, for STL)."""

    title: str
    runs: list[ScoredRun] = field(default_factory=list)
    extra: Mapping[str, float] = field(default_factory=dict)
    """Task → score of a baseline that needs no run, such as the majority baseline."""
    in_triangle: bool = False
    """True if the column is a pair of tasks that is shown in a triangular table of all pairs."""

    def runs_of(self, task: str) -> list[ScoredRun]:
        """Return the runs with a score for a task, ordered by seed."""
        return sorted((run for run in self.runs if task in run.scores), key=lambda run: run.seed)

    def values(self, task: str) -> list[float]:
        """Return the scores of a task, one value per seed."""
        values = [run.scores[task] for run in self.runs if task in run.scores]
        return values + ([self.extra[task]] if task in self.extra else [])

    @property
    def encoder(self) -> str:
        """Name of the encoder (with the corpus if corpora are compared); "" for a baseline without runs, which is
        shown next to every encoder."""
        return self.runs[0].rows if self.runs else ""


@dataclass
class Columns:
    """All columns of a table, and the column with which each column is compared."""

    split: str
    columns: list[ScoreColumn]
    against: dict[int, int]
    """Index in ``columns`` → index of the column with which it is compared. By default MTL is compared with STL, and
    STL with pruned heads is compared with STL with all heads."""
    reference: str = ""
    """Title of the column with which all columns are compared, if the user chose one."""

    def more_training(self, place: int, task: str) -> str:
        """Explain why the runs of a cell were trained longer than other runs in its row; "" if they were not.

        Runs were trained longer if they start from a finished run, if a finished run chose their heads, or if their
        encoder had more updates than the run of the row with the fewest updates. Baselines are not compared.
        """
        column = self.columns[place]
        runs = column.runs_of(task)
        if not runs or runs[0].kind:
            return ""
        if reason := next((run.auxiliary_runs for run in runs if run.auxiliary_runs), ""):
            return reason
        fewest = self._fewest_updates.get((column.encoder, task), 0)
        largest = max(run.updates for run in runs)
        return f"{largest:,} updates of the encoder, others {fewest:,}" if largest > MORE_UPDATES * fewest > 0 else ""

    @functools.cached_property
    def _fewest_updates(self) -> dict[tuple[str, str], int]:
        """The fewest updates, by (encoder, task), of any run that is no baseline and did not use a finished run."""
        fewest: dict[tuple[str, str], int] = {}
        for column in self.columns:
            for run in column.runs:
                if run.updates and not run.kind and not run.auxiliary_runs:
                    for task in run.scores:
                        fewest[column.encoder, task] = min(run.updates, fewest.get((column.encoder, task), run.updates))
        return fewest

    def _scored(self, task: str) -> ScoredRun:
        return next(run for column in self.columns for run in column.runs if task in run.scores)

    def name(self, task: str) -> str:
        """Return the name of the score that a task's row shows."""
        return self._scored(task).names[task]

    def kind(self, task: str) -> str:
        """Return the kind of a task's layer."""
        return self._scored(task).layer_kinds[task]

    def row_title(self, task: str) -> str:
        """Return the title of a task's row, such as "DEP LAS"."""
        return f"{task.upper()} {name_of(self.kind(task), self.name(task))}"

    def tasks(self) -> list[str]:
        """Return the tasks for which any run has a score, in the order of a sentence's layers."""
        return in_order(task for column in self.columns for run in column.runs for task in run.scores)

    def encoders(self) -> list[str]:
        """Return the names of the encoders, in the order of their columns."""
        return list(dict.fromkeys(column.encoder for column in self.columns if column.runs))

    def compared(self) -> list[tuple[int, str]]:
        """Return the cells (column index, task) for which a difference to another column can be computed."""
        tasks = self.tasks()
        return [
            (place, task)
            for place, reference in self.against.items()
            for task in tasks
            if self.columns[place].runs_of(task) and self.columns[reference].runs_of(task)
        ]


def in_columns(
    runs: Iterable[RunFolder | DescribedRun],
    split: str,
    extra: Mapping[str, Mapping[str, float]] | None = None,
    reference: str = "",
    by_corpus: bool = False,
) -> Columns:
    """Group runs into columns.

    Single-task runs with otherwise equal settings share a column (STL), in which each run fills the row of its task.
    Joint runs share a column if their tasks and settings are equal. Runs with a random encoder or without context are
    baselines, which have separate columns. Runs of different encoders never share a column.

    Args:
        extra: title → task → score, for columns that need no run. These columns come first.
        reference: title of the column with which other columns that share a task are compared, instead of STL.
        by_corpus: show runs of several corpora, with a block of rows for each corpus. Runs of different corpora are
            not compared.

    Raises:
        RunError: there is no run, a run is not scored on the split, two runs have the same settings, tasks and seed,
            the data differ, runs score one task by different scores, or no column has the title ``reference``.
    """
    scored = [ScoredRun.of(run, split, by_corpus) for run in describe_unique(runs)]
    if not scored:
        raise RunError("expected at least one run, found none; name runs")
    _refuse_unlike(scored, by_corpus)
    columns = [ScoreColumn(title, extra=scores) for title, scores in (extra or {}).items()]
    against: dict[int, int] = {}
    for rows in dict.fromkeys(run.rows for run in scored):
        groups = _groups([run for run in scored if run.rows == rows])
        titled = zip(groups, *group_titles(groups), strict=True)
        new_columns = [ScoreColumn(title, group, in_triangle=in_pair) for group, title, in_pair in titled]
        pairs = _referred(new_columns, reference) if reference else _counterparts(new_columns)
        against |= {len(columns) + place: len(columns) + reference for place, reference in pairs.items()}
        columns += new_columns
    titles = dict.fromkeys(column.title for column in columns if column.runs)
    if reference and reference not in titles:
        raise RunError(
            f"--against: expected the title of a column, found {reference!r}; the titles are "
            f"{', '.join(map(repr, titles))}"
        )
    return Columns(split, columns, against, reference)


def _refuse_unlike(runs: Sequence[ScoredRun], by_corpus: bool) -> None:
    """Raise RunError if runs in one table have different data, or if one task is scored by different scores."""
    names: dict[str, tuple[str, ScoredRun]] = {}
    of_rows: dict[str, ScoredRun] = {}
    for run in runs:
        first_run = of_rows.setdefault(run.rows if by_corpus else "", run)
        if run.fingerprint != first_run.fingerprint:
            raise RunError(
                f"{first_run.path} and {run.path} were trained on different data (fingerprints "
                f"{first_run.fingerprint[:12]} and {run.fingerprint[:12]}), so their scores are not compared; name "
                "runs of one corpus (`mtlprune table --by corpus` gives each corpus separate rows)"
            )
        for task, name in run.names.items():
            first_name, first = names.setdefault(task, (name, run))
            if name != first_name:
                raise RunError(
                    f"{first.path} is scored by {first_name} and {run.path} by {name} (decoders.{task}); "
                    "so they do not belong in one row; name runs with the same decoder"
                )


# -- groups ----------------------------------------------------------------------------------------------------------


def _groups(runs: Iterable[ScoredRun]) -> list[list[ScoredRun]]:
    """Group the runs of one encoder by column, in the order of columns. Raises RunError for duplicate runs."""
    by_settings: dict[str, list[ScoredRun]] = {}
    for run in runs:
        tasks = list(run.tasks) if len(run.tasks) > 1 else "STL"
        by_settings.setdefault(json.dumps([run.kind, tasks, run.settings], sort_keys=True), []).append(run)
    groups = sorted(_merged(by_settings.values()), key=column_order)
    for group in groups:
        paths_seen: dict[tuple[tuple[str, ...], int], str] = {}
        for run in group:
            duplicate = paths_seen.setdefault((run.tasks, run.seed), run.path)
            if duplicate != run.path:
                raise RunError(
                    f"{duplicate} and {run.path} have the same settings, tasks and seed, so they are one result; name "
                    "only one of the two"
                )
    return groups


def _merged(groups: Iterable[list[ScoredRun]]) -> list[list[ScoredRun]]:
    """Merge single-task groups of the same kind and pruning into one column if their tasks are all different.

    Other settings may differ between these tasks; the legend of the table reports them.
    """
    merged: list[list[ScoredRun]] = []
    single_task_groups: dict[tuple[str, str], list[list[ScoredRun]]] = {}
    for group in groups:
        if len(group[0].tasks) > 1:
            merged.append(group)
        else:
            single_task_groups.setdefault((group[0].kind, group[0].pruning), []).append(group)
    for rivals in single_task_groups.values():
        tasks = [task for group in rivals for task in {run.tasks for run in group}]
        merged += rivals if len(set(tasks)) < len(tasks) else [[run for group in rivals for run in group]]
    return merged


def column_order(group: Sequence[ScoredRun]) -> tuple[bool, bool, int, str, list[tuple[int, str]], str]:
    """Return the key that sorts groups: baselines, STL, then MTL with fewer tasks first; unpruned before pruned."""
    run = group[0]
    is_joint = len(run.tasks) > 1
    layers = sorted(map(layer_order, run.tasks)) if is_joint else []
    return run.kind == "", is_joint, len(run.tasks), run.pruning, layers, run.treatment + run.name


# -- counterparts ----------------------------------------------------------------------------------------------------


def _referred(columns: Sequence[ScoreColumn], reference: str) -> dict[int, int]:
    """Map the index of each column that shares a task with the column titled ``reference`` to that column's index."""
    tasks = [{task for run in column.runs for task in run.tasks} for column in columns]
    places = [place for place, column in enumerate(columns) if column.title == reference]
    return {
        k: place for place in places for k, own_tasks in enumerate(tasks) if k != place and own_tasks & tasks[place]
    }


def _counterparts(columns: Sequence[ScoreColumn]) -> dict[int, int]:
    """Map the index of each MTL column to its STL column, and of each pruned STL column to the unpruned STL column.

    The counterpart is the column with the same settings (for pruned STL, apart from the settings of pruning). If there
    is no such column, it is the only candidate, or the only candidate that is pruned in the same way. A column with
    several possible counterparts has none.
    """
    trained = {place: column.runs[0] for place, column in enumerate(columns) if not column.runs[0].kind}
    single_task_places = {place: run for place, run in trained.items() if len(run.tasks) == 1}
    counterparts = {}
    for place, run in trained.items():
        if len(run.tasks) > 1:
            candidates = single_task_places
            equal = [o for o in single_task_places if partners(run, columns[o].runs)]
        elif run.pruning:
            candidates = {candidate: stl for candidate, stl in single_task_places.items() if not stl.pruning}
            equal = [o for o in candidates if any(not paths_that_differ(run, stl) for stl in columns[o].runs)]
        else:
            continue
        equal = equal or list(candidates)
        if len(equal) > 1:
            equal = [o for o in equal if candidates[o].pruning == (run.pruning if len(run.tasks) > 1 else "")]
        if len(equal) == 1:
            counterparts[place] = equal[0]
    return counterparts


def paths_that_differ(run: ScoredRun, partner: ScoredRun) -> list[str]:
    """Return the paths of settings in which two runs differ and which the table does not already show.

    The table shows treatments and, for a pruned single-task run, the settings of pruning.
    """
    paths = [path for path in differing_settings([run, partner]) if not path.startswith(TREATMENT)]
    return [path for path in paths if len(run.tasks) > 1 or not path.startswith(PRUNING)]
