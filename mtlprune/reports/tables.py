"""Tables of scores from run folders: STL beside MTL, seeds as mean ± sample standard deviation.

print(markdown(compare([RunFolder("runs/a"), RunFolder("runs/b")], "test")))
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtlprune.reports.pruning_title import filled, pruning_title
from mtlprune.runs import RunError, RunFolder
from mtlprune.scores import main_score
from mtlprune.sentence import LAYERS

SCORE_TITLES = {
    "pos": "POS accuracy",
    "ner": "NER strict span F1",
    "dep": "DEP LAS",
    "las_no_punct": "DEP LAS without punctuation",
    "con": "CON bracket F1",
    "srl": "SRL end-to-end F1",
}

# Settings that do not change what is trained, or that are told apart otherwise.
_ASIDE = (
    *("name", "tasks", "data.path", "train.seed", "train.device", "train.threads", "train.checkpoint_minutes"),
    *("train.start", "train.tensorboard", "pruning.importance_of", "pruning.layers_like"),  # runs of the same seed
)


@dataclass(frozen=True)
class ScoredRun:
    """One run, as far as a table is concerned."""

    path: str
    name: str
    tasks: tuple[str, ...]
    kind: str
    """"", no encoder, or random encoder."""
    pruning: str
    """"", or how heads were pruned: "36 heads by gates"."""
    setting: dict[str, Any]
    """Flat settings beside the tasks and those in _ASIDE."""
    seed: int
    data: str
    """Fingerprint of the data."""
    scores: dict[str, float]
    """Task → *the* score in percent."""
    names: dict[str, str]
    """Task → the name of that score."""
    finished: bool = True
    """Trained to the end."""


@dataclass
class Column:
    """Scores of one setting, all seeds."""

    title: str
    runs: list[ScoredRun] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)
    """Scores that come from no run (a baseline that is not trained)."""

    def values(self, task: str) -> list[float]:
        """The scores of a task, a value a seed."""
        found = [run.scores[task] for run in self.runs if task in run.scores]
        return found + ([self.extra[task]] if task in self.extra else [])


@dataclass
class Comparison:
    """Columns side by side, and which STL column each MTL column is compared with."""

    split: str
    columns: list[Column]
    against: dict[int, int]
    """MTL column → STL column, as places in ``columns``."""

    def name(self, task: str) -> str:
        """The name of the score in a task's row."""
        return next(run.names[task] for column in self.columns for run in column.runs if task in run.names)

    def tasks(self) -> list[str]:
        """The tasks for which a run has a score, in the order of the layers."""
        return [task for task in LAYERS if any(task in run.scores for column in self.columns for run in column.runs)]


def compare(
    runs: Iterable[RunFolder], split: str, extra: Mapping[str, Mapping[str, float]] | None = None
) -> Comparison:
    """Group runs into columns.

    Runs with one task and otherwise equal settings share a column (STL), each filling its row. Runs with the same
    several tasks share one too. Without context or with a random encoder they are baselines, with columns of their own.

    Args:
        split: whose scores.
        extra: title → task → score of columns that come from no run; they stand first.

    Raises:
        RunError: no run, a run not scored on the split, two runs of the same setting, task and seed, or different data.
    """
    once = {folder.path.resolve(): folder for folder in runs}  # a folder named twice is still one result
    found = [read_run(folder, split) for folder in once.values()]
    if not found:
        raise RunError("a table needs at least one run")
    for run in found[1:]:
        if run.data != found[0].data:
            raise RunError(
                f"{found[0].path} and {run.path} were trained on different data (fingerprints {found[0].data[:12]} and "
                f"{run.data[:12]}); their scores do not belong into one table"
            )
        for task, name in run.names.items():
            if name != (first_name := found[0].names.get(task, name)):
                raise RunError(
                    f"{found[0].path} is scored by {first_name} and {run.path} by {name} (decoders.{task}); "
                    "they do not belong into one row"
                )
    groups: dict[str, list[ScoredRun]] = {}
    for run in found:
        tasks = list(run.tasks) if len(run.tasks) > 1 else "STL"
        groups.setdefault(json.dumps([run.kind, tasks, run.setting], sort_keys=True), []).append(run)
    members = sorted(groups.values(), key=_column_order)
    for group in members:
        _refuse_twins(group)
    first = [Column(title, extra=dict(scores)) for title, scores in (extra or {}).items()]
    columns = [*first, *(Column(title, group) for title, group in zip(_titles(members), members, strict=True))]
    return Comparison(split, columns, _counterparts(columns))


def read_run(folder: RunFolder, split: str) -> ScoredRun:
    """What a table needs of a run. Raises RunError where it is not scored on ``split``."""
    tree, manifest = folder.read_config(), folder.read_manifest()
    if pruned := manifest.get("pruned"):  # its settings are those of the run it was made from: seeds share them
        kept = {"heads removed": pruned["most_open"] or "closed"}
        tree = {**pruned["config"], "name": tree["name"], "tasks": tree["tasks"], **kept}
    if split not in folder.splits():
        there = ", ".join(folder.splits()) or "none"
        raise RunError(
            f"{folder.path} is not scored on {split!r} (scored: {there}); run: "
            f"mtlprune evaluate {folder.path} --split {split.partition('.')[0]}"
        )
    scores = folder.read_scores(split)
    names = {task: main_score(task, tree.get("decoders", {})) for task in scores}
    encoder = tree.get("encoder", {})
    kind = "no encoder" if not encoder.get("context", True) else "random encoder" if encoder.get("random") else ""
    tasks = tuple(tree["tasks"])
    tree = filled(tree)
    flat = dict(_flat(tree))
    return ScoredRun(
        str(folder.path),
        tree.get("name", "run"),
        tasks,
        kind,
        pruning_title(tree),
        {path: value for path, value in flat.items() if path not in _ASIDE},
        flat.get("train.seed", 0),
        manifest["data"]["fingerprint"],
        {task: values[names[task]] for task, values in scores.items()},
        names,
        "finished" in manifest,
    )


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _flat(value, here)
        else:
            yield here, value


def _column_order(group: Sequence[ScoredRun]) -> tuple[bool, bool, int, str, str]:
    """Baselines first, then STL, then MTL with few tasks before many; unpruned before pruned."""
    run = group[0]
    return run.kind == "", len(run.tasks) > 1, len(run.tasks), run.pruning, run.name


def _refuse_twins(group: Sequence[ScoredRun]) -> None:
    seen: dict[tuple[tuple[str, ...], int], str] = {}
    for run in group:
        twin = seen.setdefault((run.tasks, run.seed), run.path)
        if twin != run.path:
            raise RunError(
                f"{twin} and {run.path} have the same settings, tasks and seed, so they are one result, not two; "
                "name one of them"
            )


def _titles(groups: Sequence[Sequence[ScoredRun]]) -> list[str]:
    """Short titles; where several groups would share one, what tells them apart is added."""
    several = {run.kind for group in groups for run in group if len(run.tasks) > 1}
    alone = {run.kind for group in groups for run in group if len(run.tasks) == 1}
    plain = []
    for group in groups:
        run = group[0]
        regime = "STL" if len(run.tasks) == 1 else f"MTL-{len(run.tasks)}"
        both = run.kind in several and run.kind in alone
        title = regime if not run.kind else f"{run.kind}, {regime}" if both else run.kind
        plain.append(f"{title}, {run.pruning}" if run.pruning else title)
    titles = []
    for title, group in zip(plain, groups, strict=True):
        rivals = [other[0] for other, theirs in zip(groups, plain, strict=True) if theirs == title]
        titles.append(title if len(rivals) == 1 else f"{title} ({_distinction(group[0], rivals)})")
    return titles


def _distinction(run: ScoredRun, rivals: Sequence[ScoredRun]) -> str:
    """The name, where it tells the rivals apart; else the tasks and settings in which they differ."""
    if len({rival.name for rival in rivals}) == len(rivals):
        return run.name
    parts = [] if len({rival.tasks for rival in rivals}) == 1 or len(run.tasks) == 1 else ["+".join(run.tasks)]
    paths = sorted({path for rival in rivals for path in rival.setting})
    differing = [path for path in paths if len({repr(rival.setting.get(path)) for rival in rivals}) > 1]
    return ", ".join([*parts, *(f"{path}={run.setting.get(path)}" for path in differing)])


def _counterparts(columns: Sequence[Column]) -> dict[int, int]:
    """Each MTL column's STL column: the one with the same settings, else the only one."""
    alone = [k for k, c in enumerate(columns) if c.runs and not c.runs[0].kind and len(c.runs[0].tasks) == 1]
    found = {}
    for place, column in enumerate(columns):
        if column.runs and not column.runs[0].kind and len(column.runs[0].tasks) > 1:
            equal = [k for k in alone if columns[k].runs[0].setting == column.runs[0].setting] or alone
            if len(equal) == 1:
                found[place] = equal[0]
    return found


def markdown(comparison: Comparison) -> str:
    """The table in Markdown: a row a task, the difference MTL − STL behind each MTL column, and what it shows."""
    header = ["task"]
    for place, column in enumerate(comparison.columns):
        header += [column.title] + (["Δ"] if place in comparison.against else [])
    rows = [[cell.replace("|", "\\|") for cell in header]]
    for task in comparison.tasks():
        row = [SCORE_TITLES.get(comparison.name(task), SCORE_TITLES[task])]
        for place, column in enumerate(comparison.columns):
            row.append(cell(column.values(task)))
            if place in comparison.against:
                row.append(difference(column.values(task), comparison.columns[comparison.against[place]].values(task)))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([lines[0], rule, *lines[1:], "", _legend(comparison)]) + "\n"


def cell(values: Sequence[float]) -> str:
    """The mean; with two values or more ± the sample standard deviation and their number."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} (n={len(values)})"


def difference(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Difference of the means, with its sign."""
    return f"{statistics.mean(mine) - statistics.mean(theirs):+.2f}" if mine and theirs else "–"


def _legend(comparison: Comparison) -> str:
    parts = [f"Scores in percent on {comparison.split}"]
    if any(len(column.values(task)) > 1 for column in comparison.columns for task in comparison.tasks()):
        parts.append("mean ± sample standard deviation over n seeds")
    if comparison.against:
        parts.append("Δ = MTL − STL")
        columns = comparison.columns
        unlike = [columns[m].title for m, s in comparison.against.items() if _differ(columns[m], columns[s])]
        if unlike:
            parts.append(f"in {', '.join(unlike)} not only the tasks differ from STL, but other settings too")
    unfinished = [run.path for column in comparison.columns for run in column.runs if not run.finished]
    if unfinished:
        parts.append(f"not trained to the end: {', '.join(unfinished)}")
    return "; ".join(parts) + "."


def _differ(one: Column, other: Column) -> bool:
    return one.runs[0].setting != other.runs[0].setting
