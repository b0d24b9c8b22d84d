"""Runs as far as tables of scores are concerned, grouped into columns, and which column is compared with which."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtlprune.config.blocks import filled
from mtlprune.evaluation.scores import main_score, name_of
from mtlprune.figures.grid import html
from mtlprune.io.files import from_here
from mtlprune.layers import in_order, kind_of, layer_order
from mtlprune.runs.folder import RunError, RunFolder, flat, is_aside

if TYPE_CHECKING:
    from pandas import DataFrame

    from mtlprune.reports.scores.tests import Tested

_PRUNING, _TREATMENT = ("pruning.", "heads removed"), "treatment."
MARGIN = 1.0
"""In points: differences smaller than this are called equivalent."""
MORE_UPDATES = 1.05
"""A run has seen more training than its neighbours where its encoder's updates exceed theirs by this factor."""


# -- one run ---------------------------------------------------------------------------------------------------------


def pruning_title(tree: Mapping[str, Any]) -> str:
    """How a run's heads were pruned, in a few words; "" where they were not.

    Args:
        tree: a configuration with the blocks train and pruning filled in.
    """
    settings, static = tree["pruning"], "decoders" in tree["train"]["freeze"]
    method, keep = settings["method"], settings["keep"]
    if method == "none":
        return "heads removed" if "heads removed" in tree else ""
    if method == "random":
        return "random heads" if keep is None else f"{keep} random heads"
    if method == "given":
        return "own given heads a task" if settings["sets"] == "per_task" else "given heads"
    if method == "stable":
        return f"stable heads by {settings['selector']}, {keep} a half"
    how = method
    if method in ("gates", "topk"):
        how = "gates" if method == "gates" else "top-K gates"
        how = ("static " if static else "") + (f"own {how} a task" if settings["sets"] == "per_task" else how)
    many = f"{keep} heads by " if keep is not None else "heads by "
    penalty = f", λ {settings['strength']:g}" if method == "gates" and settings["penalty"] == "lambda" else ""
    return many + how + penalty


def treatment_title(tree: Mapping[str, Any]) -> str:
    """How a run was treated, in a few words, such as "clone of random heads"; "" where it was not.

    Args:
        tree: a configuration with the block treatment filled in.
    """
    ways = {"named": "named", "per_task": "each task's", "claims": "claimed"}
    found = []
    for name, options in tree["treatment"].items():
        if isinstance(options, Mapping):
            heads = options.get("heads") or {}
            way = next((told for key, told in ways.items() if heads.get(key)), heads.get("rule") or "")
            of = f" of {way} heads" if way and options.get("at") != "features" else ""
            found.append(name + treatment_way(options) + of)
    return ", ".join(found)


def treatment_way(options: Mapping[str, Any]) -> str:
    """How heads or gradients are treated, beside which heads: " by pcgrad at heads", " of rank 8", " from POS+NER"."""
    words = f" by {options['method']}" if "method" in options else ""
    words += f" at {options['at']}" if options.get("at") else ""
    words += f" of rank {options['rank']}" if options.get("rank") else ""
    tasks = options.get("tasks")
    return words + (f" from {'+'.join(map(str, tasks)).upper()}" if isinstance(tasks, list) and tasks else "")


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
    treatment: str
    """"", or how the run was treated: "clone of random heads"."""
    setting: dict[str, Any]
    """Flat settings beside the tasks, the encoder's name and those that `is_aside` names."""
    seed: int
    data: str
    """Fingerprint of the data."""
    scores: dict[str, float]
    """Task → *the* score in percent."""
    names: dict[str, str]
    """Task → the name of that score."""
    layer_kinds: dict[str, str]
    """Task → the kind of its layer."""
    finished: bool = True
    """Trained to the end."""
    encoder: str = ""
    heads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Task → heads open or kept for it, and all heads; nothing where heads were not pruned."""
    updates: int = 0
    """Of its encoder's weights, those of the run it started from included; 0 where manifests do not say."""
    earlier: str = ""
    """How a finished run has been of use to it (train.start, pruning.importance_of), in words; "" where none has."""


def described(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.yaml with defaults filled in, and manifest.json. The settings of a run that `mtlprune prune` made are
    those of its source: seeds share them. Raises RunError where a file is missing or damaged."""
    tree, manifest = folder.read_config(), folder.read_manifest()
    if pruned := manifest.get("pruned"):
        kept = {"heads removed": pruned["most_open"] or "closed"}
        tree = {**pruned["config"], "name": tree["name"], "tasks": tree["tasks"], **kept}
    return filled(tree), manifest


def read_run(folder: RunFolder, split: str) -> ScoredRun:
    """What a table needs of a run. Raises RunError where it is not scored on ``split``."""
    tree, manifest = described(folder)
    if split not in folder.splits():
        there = ", ".join(folder.splits()) or "none"
        how = f"run: mtlprune evaluate {folder.path} --split {split.partition('.')[0]}"
        if folder.packed is not None:
            how = "score the run that was packed on that split, and pack it into another study"
        raise RunError(f"{folder.path} is not scored on {split!r} (scored: {there}); {how}")
    scores = folder.read_scores(split)
    names = {task: main_score(task, tree.get("decoders", {})) for task in scores}
    encoder = tree.get("encoder", {})
    kind = "no encoder" if not encoder.get("context", True) else "random encoder" if encoder.get("random") else ""
    settings: dict[str, Any] = {key: from_here(value) if isinstance(value, str) else value for key, value in flat(tree)}
    return ScoredRun(
        path=str(folder.path),
        name=tree.get("name", "run"),
        tasks=tuple(tree["tasks"]),
        kind=kind,
        pruning=pruning_title(tree),
        treatment=treatment_title(tree),
        setting={path: value for path, value in settings.items() if path != "encoder.name" and not is_aside(path)},
        seed=settings.get("train.seed", 0),
        data=manifest["data"]["fingerprint"],
        scores={task: values[names[task]] for task, values in scores.items()},
        names=names,
        layer_kinds={task: kind_of(task, tree.get("decoders", {})) for task in scores},
        finished="finished" in manifest,
        encoder=settings.get("encoder.name", ""),
        heads=_heads(folder, manifest, tuple(tree["tasks"])),
        updates=_updates(manifest) + _updates_before(folder, tree["train"]["start"]),
        earlier=_earlier(folder, tree, manifest),
    )


def _updates(manifest: Mapping[str, Any]) -> int:
    return int(manifest.get("finished", {}).get("step", 0))


def _updates_before(run: RunFolder, start: str | None) -> int:
    """Those of the run that another started from, and of the one before; 0 where it is not there any more."""
    folder = run.other(start) if start is not None else None
    if folder is None or folder.path.resolve() == run.path.resolve():
        return 0
    before = filled(folder.read_config())["train"]["start"]
    return _updates(folder.read_manifest()) + (_updates_before(folder, before) if before != start else 0)


def _earlier(run: RunFolder, tree: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    start, pruning = tree["train"]["start"], tree["pruning"]
    source = start or pruning["importance_of"]
    if source is None:
        return ""
    before, own = _updates_before(run, source), _updates(manifest)
    updates = f" ({before:,} updates)" if before else ""
    if start is None or {"encoder", "decoders"} <= set(tree["train"]["freeze"]):
        return f"a finished run{updates} chose its heads"
    return f"starts from a finished run{updates} and trains on{f' for {own:,} more' if own else ''}"


def _heads(folder: RunFolder, manifest: Mapping[str, Any], tasks: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Task → heads it may use and heads there were, of a run with gates or one made by `mtlprune prune`."""
    if "pruned" in manifest:
        there = folder.read_json("encoder/heads.json")
        return dict.fromkeys(tasks, (sum(map(len, there["kept"])), there["heads"] * len(there["kept"])))
    if not folder.gates_path.is_file():
        return {}
    from mtlprune.runs.claims import load_claims  # needs numpy, which other tables do without

    found = {}
    for claim in load_claims([folder.path]):
        own = claim.label.partition(":")[2].lower()
        found.update(dict.fromkeys((own,) if own else tasks, (int(claim.open.sum()), claim.gates.size)))
    return found


# -- columns ---------------------------------------------------------------------------------------------------------


@dataclass
class ScoreColumn:
    """Scores of one setting, all seeds."""

    title: str
    runs: list[ScoredRun] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)
    """Scores that come from no run (a baseline that is not trained)."""
    in_triangle: bool = False
    """A pair of tasks, shown beside the other pairs of its setting."""

    def runs_of(self, task: str) -> list[ScoredRun]:
        """The runs that have a score of a task, by seed."""
        return sorted((run for run in self.runs if task in run.scores), key=lambda run: run.seed)

    def values(self, task: str) -> list[float]:
        """The scores of a task, a value a seed."""
        found = [run.scores[task] for run in self.runs if task in run.scores]
        return found + ([self.extra[task]] if task in self.extra else [])

    @property
    def encoder(self) -> str:
        """The encoder's name; "" for scores that come from no run, which stand beside every encoder."""
        return self.runs[0].encoder if self.runs else ""


@dataclass
class Comparison:
    """Columns side by side, and which column each is compared with."""

    split: str
    columns: list[ScoreColumn]
    against: dict[int, int]
    """Places in ``columns``: MTL → STL, and STL with pruned heads → STL with all heads; or all → the one asked for."""
    reference: str = ""
    """The title of the column that all are compared with, where one was asked for."""
    tests: dict[tuple[int, str], Tested] = field(default_factory=dict)
    """Column and task → the test of that difference."""
    untested: dict[tuple[int, str], str] = field(default_factory=dict)
    """Column and task → why there is no test of that difference."""
    resamples: int = 0
    """Of each test; 0 where none was asked for."""
    seed: int = 0
    margin: float = MARGIN
    """Of the tests of equivalence, in points."""
    left_out: tuple[str, ...] = ()
    """Which cells of a sweep are not in it, and why, in sentences."""

    def __repr__(self) -> str:
        from mtlprune.reports.scores import tables

        return tables.markdown(self)

    def _repr_html_(self) -> str:
        from mtlprune.reports.scores import tables

        return html([*tables.blocks(self), *tables.notes(self)])

    def frame(self) -> DataFrame:
        """A row for each number of the table, unrounded: column, task, score, n, mean, sd and, where a difference was
        tested, its size, intervals and p-values; what ``mtlprune table --format csv`` writes."""
        from pandas import DataFrame

        from mtlprune.reports.scores import tables

        return DataFrame(tables.records(self))

    def more_training(self, place: int, task: str) -> str:
        """Why the runs of a cell have seen more training than their neighbours in its row, in words; "" elsewhere.

        That is so where they start from a finished run, where a finished run chose their heads, or where their
        encoder had more updates than those of the row that had the fewest. Baselines are no neighbours.
        """
        column = self.columns[place]
        runs = column.runs_of(task)
        if not runs or runs[0].kind:
            return ""
        if earlier := next((run.earlier for run in runs if run.earlier), ""):
            return earlier
        fewest = self._fewest_updates.get((column.encoder, task), 0)
        most = max(run.updates for run in runs)
        return f"{most:,} updates of the encoder, others {fewest:,}" if most > MORE_UPDATES * fewest > 0 else ""

    @functools.cached_property
    def _fewest_updates(self) -> dict[tuple[str, str], int]:
        """By encoder and task, of the runs that are no baselines and had no help of a finished run."""
        fewest: dict[tuple[str, str], int] = {}
        for column in self.columns:
            for run in column.runs:
                for task in run.scores if run.updates and not run.kind and not run.earlier else ():
                    fewest[column.encoder, task] = min(run.updates, fewest.get((column.encoder, task), run.updates))
        return fewest

    def name(self, task: str) -> str:
        """The name of the score in a task's row."""
        return next(run.names[task] for column in self.columns for run in column.runs if task in run.names)

    def row_title(self, task: str) -> str:
        """The task and the name of its score."""
        return f"{task.upper()} {name_of(self.kind(task), self.name(task))}"

    def kind(self, task: str) -> str:
        """The kind of a task's layer."""
        return next(run.layer_kinds[task] for column in self.columns for run in column.runs if task in run.names)

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
            for place, other in self.against.items()
            for task in tasks
            if self.columns[place].runs_of(task) and self.columns[other].runs_of(task)
        ]


def compare(
    runs: Iterable[RunFolder], split: str, extra: Mapping[str, Mapping[str, float]] | None = None, reference: str = ""
) -> Comparison:
    """Group runs into columns.

    Runs with one task and otherwise equal settings share a column (STL), each filling its row. Runs with the same
    several tasks share one too. Without context or with a random encoder they are baselines, with columns of their own.
    Runs of different encoders never share a column.

    Args:
        split: whose scores.
        extra: title → task → score of columns that come from no run; they stand first.
        reference: title of the column with which those that share a task are compared, instead of STL.

    Raises:
        RunError: no run, a run not scored on the split, two runs of the same setting, task and seed, different data, or
            no column with the title ``reference``.
    """
    once = {folder.path.resolve(): folder for folder in runs}  # a folder named twice is still one result
    found = [read_run(folder, split) for folder in once.values()]
    if not found:
        raise RunError("a table needs at least one run")
    _refuse_unlike(found)
    columns = [ScoreColumn(title, extra=dict(scores)) for title, scores in (extra or {}).items()]
    against: dict[int, int] = {}
    for encoder in dict.fromkeys(run.encoder for run in found):
        groups: dict[str, list[ScoredRun]] = {}
        for run in found:
            if run.encoder == encoder:
                tasks = list(run.tasks) if len(run.tasks) > 1 else "STL"
                groups.setdefault(json.dumps([run.kind, tasks, run.setting], sort_keys=True), []).append(run)
        members = sorted(_merged(groups.values()), key=column_order)
        for group in members:
            _refuse_duplicates(group)
        here = _columns(members)
        found_here = _referred(here, reference) if reference else _counterparts(here)
        against |= {len(columns) + m: len(columns) + s for m, s in found_here.items()}
        columns += here
    if reference and reference not in (column.title for column in columns if column.runs):
        titles = ", ".join(repr(title) for title in dict.fromkeys(column.title for column in columns if column.runs))
        raise RunError(f"--against: no column is called {reference!r}; there are {titles}")
    return Comparison(split, columns, against, reference=reference)


def _referred(columns: Sequence[ScoreColumn], reference: str) -> dict[int, int]:
    """Each column that has a task of the one of that title → that one."""
    tasks = [{task for run in column.runs for task in run.tasks} for column in columns]
    places = [place for place, column in enumerate(columns) if column.title == reference]
    return {k: place for place in places for k, own in enumerate(tasks) if k != place and own & tasks[place]}


def _refuse_unlike(found: Sequence[ScoredRun]) -> None:
    names: dict[str, tuple[str, ScoredRun]] = {}
    for run in found:
        if run.data != found[0].data:
            raise RunError(
                f"{found[0].path} and {run.path} were trained on different data (fingerprints {found[0].data[:12]} and "
                f"{run.data[:12]}); their scores do not belong into one table"
            )
        for task, name in run.names.items():
            first_name, first = names.setdefault(task, (name, run))
            if name != first_name:
                raise RunError(
                    f"{first.path} is scored by {first_name} and {run.path} by {name} (decoders.{task}); "
                    "they do not belong into one row"
                )


def column_order(group: Sequence[ScoredRun]) -> tuple[bool, bool, int, str, list[tuple[int, str]], str]:
    """Baselines first, then STL, then MTL with few tasks before many; unpruned before pruned."""
    run = group[0]
    several = len(run.tasks) > 1
    layers = sorted(map(layer_order, run.tasks)) if several else []
    return run.kind == "", several, len(run.tasks), run.pruning, layers, run.treatment + run.name


def _refuse_duplicates(group: Sequence[ScoredRun]) -> None:
    seen: dict[tuple[tuple[str, ...], int], str] = {}
    for run in group:
        duplicate = seen.setdefault((run.tasks, run.seed), run.path)
        if duplicate != run.path:
            raise RunError(
                f"{duplicate} and {run.path} have the same settings, tasks and seed, so they are one result, not two; "
                "name one of them"
            )


def _merged(groups: Iterable[list[ScoredRun]]) -> list[list[ScoredRun]]:
    """Single-task groups whose tasks are all different become one: settings may differ by task (the legend says so)."""
    kept: list[list[ScoredRun]] = []
    alone: dict[tuple[str, str], list[list[ScoredRun]]] = {}
    for group in groups:
        if len(group[0].tasks) > 1:
            kept.append(group)
        else:
            alone.setdefault((group[0].kind, group[0].pruning), []).append(group)
    for rivals in alone.values():
        tasks = [task for group in rivals for task in {run.tasks for run in group}]
        kept += rivals if len(set(tasks)) < len(tasks) else [[run for group in rivals for run in group]]
    return kept


def _columns(members: Sequence[list[ScoredRun]]) -> list[ScoreColumn]:
    """Columns of one encoder, with titles. Where there are several pairs of tasks, they are named by their tasks."""
    pairs = [group for group in members if len(group[0].tasks) == 2 and not group[0].kind]
    if len({frozenset(group[0].tasks) for group in pairs}) < 2:
        pairs = []
    others = [group for group in members if group not in pairs]
    titles = {id(group): title for group, title in zip(others, _titles(others), strict=True)}
    for group in pairs:
        tasks = "+".join(map(str.upper, in_order(group[0].tasks)))
        titles[id(group)] = tasks + family_suffix(group[0], [other[0] for other in pairs])
    return [ScoreColumn(titles[id(group)], group, in_triangle=group in pairs) for group in members]


def family_suffix(run: ScoredRun, pairs: Sequence[ScoredRun]) -> str:
    """What tells pairs of one setting from those of another: pruning, and settings where the same pair comes twice."""
    rivals = [other for other in pairs if other.pruning == run.pruning]
    same = [[other for other in rivals if set(other.tasks) == set(one.tasks)] for one in rivals]
    paths = sorted({path for group in same for path in differing_settings(group)})
    suffix = f" ({', '.join(f'{path}={run.setting.get(path)}' for path in paths)})" if paths else ""
    return (f", {run.pruning}" if run.pruning else "") + suffix


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
        plain.append(", ".join(part for part in (title, run.pruning, run.treatment) if part))
    titles = []
    for title, group in zip(plain, groups, strict=True):
        rivals = [other for other, theirs in zip(groups, plain, strict=True) if theirs == title]
        titles.append(title if len(rivals) == 1 else f"{title} ({_distinction(group, rivals)})")
    return titles


def _distinction(group: Sequence[ScoredRun], groups: Sequence[Sequence[ScoredRun]]) -> str:
    """The name, where each rival has one that tells it apart; else the tasks and settings in which they differ."""
    run, rivals = group[0], [other[0] for other in groups]
    one_name = all(len({member.name for member in other}) == 1 for other in groups)
    if one_name and len({rival.name for rival in rivals}) == len(rivals):
        return run.name
    parts = [] if len({rival.tasks for rival in rivals}) == 1 or len(run.tasks) == 1 else ["+".join(run.tasks)]
    return ", ".join([*parts, *(f"{path}={run.setting.get(path)}" for path in differing_settings(rivals))])


def differing_settings(runs: Sequence[ScoredRun]) -> list[str]:
    """Paths of the settings in which runs differ."""
    paths = sorted({path for run in runs for path in run.setting})
    return [path for path in paths if len({repr(run.setting.get(path)) for run in runs}) > 1]


def _counterparts(columns: Sequence[ScoreColumn]) -> dict[int, int]:
    """Each MTL column's STL column, and each pruned STL column's unpruned one.

    That is the one with the same settings (but for those of pruning, in the second case), else the only one, else the
    only one that is pruned in the same way.
    """
    trained = {place: column.runs[0] for place, column in enumerate(columns) if not column.runs[0].kind}
    alone = {place: run for place, run in trained.items() if len(run.tasks) == 1}
    settings = {place: [untreated(stl) for stl in columns[place].runs] for place in alone}
    found = {}
    for place, run in trained.items():
        if len(run.tasks) > 1:
            candidates = alone
            mine = untreated(run)
            equal = [o for o in alone if mine in settings[o]]
        elif run.pruning:
            candidates = {other: stl for other, stl in alone.items() if not stl.pruning}
            equal = [o for o in candidates if any(not unlike(run, stl) for stl in columns[o].runs)]
        else:
            continue
        equal = equal or list(candidates)
        if len(equal) > 1:
            equal = [o for o in equal if candidates[o].pruning == (run.pruning if len(run.tasks) > 1 else "")]
        if len(equal) == 1:
            found[place] = equal[0]
    return found


def unlike(run: ScoredRun, other: ScoredRun) -> list[str]:
    """The settings in which two runs differ though the table does not say so: beside treatments and, of a pruned STL
    run, pruning."""
    paths = [path for path in differing_settings([run, other]) if not path.startswith(_TREATMENT)]
    return [path for path in paths if len(run.tasks) > 1 or not path.startswith(_PRUNING)]


def untreated(run: ScoredRun) -> dict[str, Any]:
    """Its settings but for treatments."""
    return {path: value for path, value in run.setting.items() if not path.startswith(_TREATMENT)}
