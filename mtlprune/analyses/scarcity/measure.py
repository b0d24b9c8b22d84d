"""Gaps between joint and single-task runs under many and few heads, and how they change.

Letters: C resamples, S seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.scarcity import MEAN
from mtlprune.analyses.settings import Setting, common_seeds, gap, have_all, read_settings
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.columns import Columns, ScoredRun, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import PRUNING, SHARED, untreated
from mtlprune.runs.results import Result
from mtlprune.statistics.resamples import over_seeds, weighted, within_margin


class Level(NamedTuple):
    """Single-task and joint runs of equal settings, with so many heads open from the first update; the label says how
    many, after how many updates where these differ, and of which joint runs where there is need."""

    single: Setting
    joint: Setting
    heads: int
    label: str = ""

    @property
    def others(self) -> str:
        """The encoder and the settings beside those of pruning."""
        kept = [pair for pair in untreated(self.joint.column.runs[0]).items() if not pair[0].startswith(PRUNING)]
        return f"{self.joint.column.encoder} {sorted(kept)}"


def measure(request: Request) -> Result:
    """All runs. Frames, by ``task`` (a task, MEAN, or the mean without one):

    - ``levels``: the ``gap`` of a level (``term``), joint minus single tasks, with the interval over seeds and
      sentences; ``heads`` open (``all``: none closed), ``updates`` of joint runs, scores ``single`` and ``joint``.
    - ``changes``: the gap of ``term`` minus that of ``other``, which has all heads and else the same settings (or, of a
      level with all heads, is the first such); paired by seed. ``widens``: p of a true change of −margin or less;
      ``equal``: p of one of the margin or more either way.

    Raises:
        RunError: no single-task and joint runs of the same settings under two numbers of heads; runs that cannot be
            compared.
    """
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    options, tasks = request.options, max((list(one.runs[0].tasks) for one in comparison.columns), key=len)
    means = {MEAN: list(range(len(tasks)))}
    if options.without:
        if options.without not in tasks or len(tasks) < 2:
            raise RunError(f"without: expected one of the tasks {', '.join(tasks)}, found {options.without!r}")
        means[f"mean without {options.without.upper()}"] = [k for k, t in enumerate(tasks) if t != options.without]
    means |= {task: [place] for place, task in enumerate(tasks)}
    levels = _levels(comparison, tasks, request)
    alike: dict[str, list[Level]] = {}  # levels of equal other settings, many heads before few
    for one in levels:
        alike.setdefault(one.others, []).append(one)
    whole = [some[0] for some in alike.values() if some[0].heads == levels[0].heads]
    bases = {one: some[0] for some in alike.values() if some[0] in whole for one in some[1:]}
    bases |= dict.fromkeys(whole[1:], whole[0])
    rows: dict[str, list[dict[str, Any]]] = {"levels": [], "changes": []}
    for one in levels:
        rows["levels"] += _rows({one: 1}, means, {"term": one.label, "heads": one.heads, "updates": one.joint.updates})
        if base := bases.get(one):
            keys = {"term": one.label, "other": base.label}
            rows["changes"] += _rows({one: 1, base: -1}, means, keys, options.margin)
    paired = {place for one in levels for place in (one.single.place, one.joint.place)}
    notes = [
        f"{comparison.columns[place].title} is left out: no joint or single-task runs of the same settings."
        for place in have_all(comparison, tasks)
        if place not in paired
    ]
    notes += _unlike(levels)
    about = {"split": request.split, "sentences": levels[0].joint.systems[0].counts.shape[1], "encoders": []}
    about |= {"settings": {**options.model_dump(mode="json"), "seed": request.seed}, "tasks": tasks, "notes": notes}
    about |= {"heads": max(one.heads for one in levels)}
    return Result("scarcity", about, {name: pd.DataFrame(each) for name, each in rows.items()})


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
            f"(pruning.method: random, pruning.draw), found {len(pairs)} such settings, all with as many heads"
        )
    total = max(whole for _, joint in pairs for run in columns[joint].runs for _, whole in run.heads.values())
    order = [place for pair in pairs for place in pair]
    settings = read_settings(comparison, order, tasks, request.options.resamples, request.seed, request.on_batch)
    of = {one.place: one for one in settings}
    levels = [Level(of[single], of[joint], open_heads[joint] or total) for single, joint in pairs]
    levels.sort(key=lambda one: (-one.heads, one.joint.updates))
    updates = len({one.joint.updates for one in levels}) > 1
    labels = [f"{one.heads} heads" + f", {one.joint.updates:,} updates" * updates for one in levels]
    if len({*labels}) < len(labels):
        labels = [f"{label}, {one.joint.label}" for label, one in zip(labels, levels, strict=True)]
    return [one._replace(label=label) for one, label in zip(levels, labels, strict=True)]


def _unlike(levels: Sequence[Level]) -> list[str]:
    """A sentence for each level whose single-task and joint runs of a seed have other heads open."""
    notes = []
    for one in levels:
        runs = [run for run in (*one.single.column.runs, *one.joint.column.runs) if run.heads]
        masks = {(run.seed, (run.best_gates[1][SHARED] > OPEN_ABOVE).tobytes()) for run in runs}
        if len(masks) > len({run.seed for run in runs}):
            notes.append(
                f"{one.label}: single-task and joint runs of one seed have other heads open, so their draws add noise "
                "to the gap; pruning.draw gives them the same."
            )
    return notes


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


def _rows(
    weights: Mapping[Level, float], means: Mapping[str, list[int]], keys: dict[str, Any], margin: float | None = None
) -> Iterator[dict[str, Any]]:
    """A row for each mean: the weighted sum of the gaps of some levels; of one level also its scores."""
    seeds = common_seeds(*(side for one in weights for side in (one.single, one.joint)))
    for name, places in means.items():
        figure = weighted([gap(one.joint, one.single, seeds, places) for one in weights], list(weights.values()))
        row = {**keys, "task": name, "n": len(seeds), **over_seeds(*figure)}
        if margin is not None:
            row |= dict(zip(("widens", "equal"), within_margin(*figure, margin), strict=True))
        if len(weights) == 1:
            [one] = weights
            sides = {"single": one.single, "joint": one.joint}
            row |= {side: float(of.of_seeds(seeds, places).observed.mean()) for side, of in sides.items()}
        yield row
