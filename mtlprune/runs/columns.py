"""Scores of runs in columns, a group of runs each, and which column is compared with which."""

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
"""A run has seen more training than its neighbours where its encoder's updates exceed theirs by this factor."""


@dataclass(frozen=True, eq=False)
class ScoredRun(DescribedRun):
    """A run with its scores on one split.

    Attributes:
        scores: task → *the* score in percent.
        names: task → the name of that score.
        layer_kinds: task → the kind of its layer.
        heads: task → heads open or kept for it, and all heads; nothing where heads were not pruned.
        rows: the block of rows that it is in: its encoder's name, with that of its corpus where these are compared.
    """

    scores: Mapping[str, float]
    names: Mapping[str, str]
    layer_kinds: Mapping[str, str]
    heads: Mapping[str, tuple[int, int]]
    rows: str

    @classmethod
    def of(cls, run: DescribedRun, split: str, by_corpus: bool = False) -> "ScoredRun":
        """Read the scores of a run. Raises RunError where it is not scored on ``split``."""
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
    """Task → heads it may use and heads there were, of a run with gates or one made by `mtlprune export --remove`."""
    if "pruned" in run.manifest:
        left = run.folder.read_json("encoder/heads.json")
        return dict.fromkeys(run.tasks, (sum(map(len, left["kept"])), left["heads"] * len(left["kept"])))
    if not run.folder.has("gates.jsonl"):
        return {}
    heads = {key: (int((gates > OPEN_ABOVE).sum()), gates.size) for key, gates in run.best_gates[1].items()}
    return dict.fromkeys(run.tasks, heads[SHARED]) if SHARED in heads else heads


# -- columns ---------------------------------------------------------------------------------------------------------


@dataclass
class ScoreColumn:
    """Scores of one group of runs, all seeds."""

    title: str
    runs: list[ScoredRun] = field(default_factory=list)
    extra: Mapping[str, float] = field(default_factory=dict)
    """Scores that come from no run (a baseline that is not trained)."""
    in_triangle: bool = False
    """A pair of tasks, shown beside the other pairs of its setting."""

    def runs_of(self, task: str) -> list[ScoredRun]:
        """The runs that have a score of a task, by seed."""
        return sorted((run for run in self.runs if task in run.scores), key=lambda run: run.seed)

    def values(self, task: str) -> list[float]:
        """The scores of a task, a value a seed."""
        values = [run.scores[task] for run in self.runs if task in run.scores]
        return values + ([self.extra[task]] if task in self.extra else [])

    @property
    def encoder(self) -> str:
        """The encoder's name, with the corpus where these are compared; "" for scores that come from no run, which
        stand beside every encoder."""
        return self.runs[0].rows if self.runs else ""


@dataclass
class Columns:
    """Columns side by side, and which column each is compared with."""

    split: str
    columns: list[ScoreColumn]
    against: dict[int, int]
    """Places in ``columns``: MTL → STL, and STL with pruned heads → STL with all heads; or all → the one asked for."""
    reference: str = ""
    """The title of the column that all are compared with, where one was asked for."""

    def more_training(self, place: int, task: str) -> str:
        """The reason that runs of a cell have seen more training than their neighbours in its row; "" elsewhere.

        That is so where they start from a finished run, where a finished run chose their heads, or where their
        encoder had more updates than those of the row that had the fewest. Baselines are no neighbours.
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
        """Fewest updates by encoder and task, of runs that are no baselines and had no help of a finished run."""
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
        """The name of the score in a task's row."""
        return self._scored(task).names[task]

    def kind(self, task: str) -> str:
        """The kind of a task's layer."""
        return self._scored(task).layer_kinds[task]

    def row_title(self, task: str) -> str:
        """The task and the name of its score."""
        return f"{task.upper()} {name_of(self.kind(task), self.name(task))}"

    def tasks(self) -> list[str]:
        """The tasks for which a run has a score, in the order of the layers."""
        return in_order(task for column in self.columns for run in column.runs for task in run.scores)

    def encoders(self) -> list[str]:
        """The encoders' names, in the order of their columns."""
        return list(dict.fromkeys(column.encoder for column in self.columns if column.runs))

    def compared(self) -> list[tuple[int, str]]:
        """Columns and tasks that have a difference."""
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

    Runs with one task and otherwise equal settings share a column (STL), each filling its row. Runs with the same
    several tasks share one too. Without context or with a random encoder they are baselines, with columns of their own.
    Runs of different encoders never share a column.

    Args:
        extra: title → task → score of columns that come from no run; they stand first.
        reference: title of the column with which those that share a task are compared, instead of STL.
        by_corpus: runs of several corpora, a block of rows each; none is compared with one of another corpus.

    Raises:
        RunError: no run, a run not scored on the split, two runs of the same setting, task and seed, different data, or
            no column with the title ``reference``.
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
    """Runs of one encoder that share a column, in the order of columns."""
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
    """Single-task groups whose tasks are all different become one: settings may differ by task (the legend says so)."""
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
    """Baselines first, then STL, then MTL with few tasks before many; unpruned before pruned."""
    run = group[0]
    is_joint = len(run.tasks) > 1
    layers = sorted(map(layer_order, run.tasks)) if is_joint else []
    return run.kind == "", is_joint, len(run.tasks), run.pruning, layers, run.treatment + run.name


# -- counterparts ----------------------------------------------------------------------------------------------------


def _referred(columns: Sequence[ScoreColumn], reference: str) -> dict[int, int]:
    """Each column that has a task of the one of that title → that one."""
    tasks = [{task for run in column.runs for task in run.tasks} for column in columns]
    places = [place for place, column in enumerate(columns) if column.title == reference]
    return {
        k: place for place in places for k, own_tasks in enumerate(tasks) if k != place and own_tasks & tasks[place]
    }


def _counterparts(columns: Sequence[ScoreColumn]) -> dict[int, int]:
    """Each MTL column's STL column, and each pruned STL column's unpruned one.

    That is the one with the same settings (but for those of pruning, in the second case), else the only one, else the
    only one that is pruned in the same way.
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
    """The settings in which two runs differ though the table does not say so: beside treatments and, of a pruned STL
    run, pruning."""
    paths = [path for path in differing_settings([run, partner]) if not path.startswith(TREATMENT)]
    return [path for path in paths if len(run.tasks) > 1 or not path.startswith(PRUNING)]
