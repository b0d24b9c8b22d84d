"""The section of runs in the HTML report: encoders, data, settings, versions and times, from config.yaml and
manifest.json of each run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mtlprune.evaluation.head_masks import head_names
from mtlprune.figures.grid import Grid
from mtlprune.reports.page.render import Part
from mtlprune.runs.groups import DescribedRun, treatment_way
from mtlprune.runs.settings import flat

_Heads = Mapping[str, Sequence[str]]
"""Task, or "shared" → heads such as 3-7."""
_SHOWN_ELSEWHERE = ("name", "tasks", "data.path", "encoder.name", "train.seed")
"""Settings that the tables of settings leave out, because the table of runs shows them or they only name a run."""


def _seconds(run: DescribedRun) -> float:
    """Return the seconds of training, or 0 if the manifest lacks them."""
    return float(run.manifest.get("finished", {}).get("seconds", 0.0))


def _subset(run: DescribedRun) -> int | None:
    """Return the largest number of training sentences that the run reads, or None for all."""
    return run.config.data.train_sentences


def duration(seconds: float) -> str:
    """Format a duration, such as ``3 h 12 min``, ``4 min 5 s`` or ``12 s``."""
    total_seconds = round(seconds)
    if total_seconds >= 3600:
        return f"{total_seconds // 3600} h {total_seconds % 3600 // 60} min"
    return f"{total_seconds // 60} min {total_seconds % 60} s" if total_seconds >= 60 else f"{total_seconds} s"


def _moment(words: str) -> str:
    """Format a time: ``2026-11-21T01:25:34+00:00`` → ``2026-11-21 01:25 UTC``."""
    return f"{words[:10]} {words[11:16]} UTC" if words.endswith("+00:00") else words


def part(runs: Sequence[DescribedRun], notes: Sequence[str] = ()) -> Part:
    """Return the part of the report on runs. ``notes``: sentences on missing runs or analyses, which become caveats."""
    holds = {"facts": _facts(runs), "runs": _table(runs), "treated": list(_treated(runs)), **_settings(runs)}
    return Part("run", "", holds, "runs", (*notes, *_caveats(runs)), template="runs")


def _treated(runs: Sequence[DescribedRun]) -> Iterator[str]:
    """Yield a sentence for each run with treatments or given heads, which names the treatments and the heads."""
    for run in runs:
        heads = run.folder.treated()
        parts = [
            f"{name}{treatment_way(options)}{_of_heads(**heads.get(name, {}))}"
            for name, options in run.config.treatment.chosen_treatments.items()
        ]
        # Runs that have not been evaluated yet have no file of gates.
        has_given_heads = run.config.pruning.method == "given" and run.folder.has("gates.jsonl")
        for line in run.folder.read_gates()[-1:] if has_given_heads else ():
            sets = line["gates"].items()
            open_heads = {task: head_names(np.array(gates)) for task, gates in sets}
            parts.append(f"only the given heads {_name_heads(open_heads)} (layer-head) are open")
        if parts:
            yield f"{run.path} was treated: {'; '.join(parts)}."


def _of_heads(heads: _Heads = MappingProxyType({}), imitated: _Heads = MappingProxyType({})) -> str:
    """Return " of the heads ...", or "" without heads.

    Args:
        heads: heads of a treatment.
        imitated: if the heads were drawn at random, the heads whose layers they imitate. They should not be drawn, and
            the sentence says how many of them were drawn because a layer had too few others.
    """
    if not heads:
        return ""
    shared_count = sum(len(set(heads[task]) & set(avoided)) for task, avoided in imitated.items())
    random_note = (
        f", drawn at random in the layers of {_name_heads(imitated)}, with {shared_count} heads in both"
        if imitated
        else ""
    )
    return f" of the heads {_name_heads(heads)} (layer-head{random_note})"


def _name_heads(sets: _Heads) -> str:
    """List heads by task, such as ``POS: 3-7 4-1, NER: none``."""
    return ", ".join(
        f"{'' if task == 'shared' else f'{task.upper()}: '}{' '.join(heads) or 'none'}" for task, heads in sets.items()
    )


def _values(runs: Sequence[DescribedRun], path: str) -> list[str]:
    """Return the different values at a path of the manifests, as text."""
    facts = (dict(flat(run.manifest)) for run in runs)
    return list(dict.fromkeys(str(run_facts[path]) for run_facts in facts if run_facts.get(path) is not None))


def _facts(runs: Sequence[DescribedRun]) -> list[tuple[str, str]]:
    """Return name and value of each fact about all runs, such as their tasks, data, versions and time."""
    corpora = {(run.corpus, run.fingerprint) for run in runs}
    packages = sorted({name for run in runs for name in run.manifest.get("packages", {})})
    versions = [
        f"mtlprune {', '.join(_values(runs, 'mtlprune')) or 'unknown'}",
        *(f"Python {v}" for v in _values(runs, "python")),
        *(f"{name} {' / '.join(_values(runs, f'packages.{name}'))}" for name in packages),
    ]
    start_times = sorted(_values(runs, "begun"))
    return [
        ("Runs", f"{len(runs)}, of which {sum(run.finished for run in runs)} trained to the end"),
        ("Tasks", ", ".join(dict.fromkeys(task.upper() for run in runs for task in run.tasks))),
        ("Encoders", "; ".join(dict.fromkeys(run.encoder_title for run in runs))),
        ("Data", "; ".join(f"{name} (fingerprint {mark[:12]})" for name, mark in sorted(corpora))),
        ("Seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ("Versions", ", ".join(versions)),
        ("Machine", "; ".join(_values(runs, "processor") + _values(runs, "platform")) or "unknown"),
        ("Time", f"{duration(sum(_seconds(run) for run in runs))} of training in all runs"),
        (
            "Begun",
            " to ".join(_moment(moment) for moment in dict.fromkeys([*start_times[:1], *start_times[-1:]]))
            or "unknown",
        ),
    ]


# Heading of each column of the table of runs → function that returns the cell of a run.
_COLUMNS: dict[str, Callable[[DescribedRun], Any]] = {
    "run": lambda run: run.path,
    "tasks": lambda run: " ".join(task.upper() for task in run.tasks),
    "encoder": lambda run: run.encoder_title,
    "heads": lambda run: run.pruning or "all",
    "data": lambda run: run.fingerprint[:8],
    "seed": lambda run: run.seed,
    "best epoch": lambda run: run.manifest.get("finished", {}).get("best", {}).get("joint", {}).get("epoch", "–"),
    "epochs": lambda run: run.config.train.epochs,
    "training sentences": lambda run: f"≤ {_subset(run):,}" if _subset(run) else "all",
    "time": lambda run: duration(_seconds(run)) if _seconds(run) else "–",
}


def _table(runs: Sequence[DescribedRun]) -> Grid:
    words = f"All {len(runs)} runs" if len(runs) > 1 else "The run"
    return Grid(
        list(_COLUMNS), [[str(render_cell(run)) for render_cell in _COLUMNS.values()] for run in runs], 5, words
    )


def _settings(runs: Sequence[DescribedRun]) -> dict[str, Grid]:
    """Return two tables: the settings in which runs differ, with all their values, and the settings that all runs
    share."""
    trees = [run.every_setting for run in runs]
    shared: list[list[str]] = []
    differing: list[list[str]] = []
    for path in sorted({path for tree in trees for path in tree} - set(_SHOWN_ELSEWHERE)):
        values_set = [tree[path] for tree in trees if path in tree]
        values = list(dict.fromkeys(json.dumps(value, sort_keys=True) for value in values_set))
        # Settings of optional blocks, such as those of treatments, exist only in some runs. In other runs the whole
        # block is null, which is not shown.
        partly = len(values_set) < len(trees)
        if not partly or values != ["null"]:
            text = ", ".join(values) + " (where set)" * partly
            (differing if len(values) > 1 or partly else shared).append([path, text])
    return {
        "differing": Grid(["setting", "values"], differing, 2, "Settings in which runs differ"),
        "shared": Grid(["setting", "value"], shared, 2, "Settings that runs share"),
    }


def _caveats(runs: Sequence[DescribedRun]) -> Iterator[str]:
    if unfinished := [run.path for run in runs if not run.finished]:
        yield f"These runs have not finished training: {', '.join(unfinished)}."
    if sizes := [size for run in runs if (size := _subset(run)) is not None]:
        limited_count, subsets = len(sizes), sorted(set(sizes))
        runs_text = "All runs" if limited_count == len(runs) else f"{limited_count} of {len(runs)} runs"
        yield (
            f"{runs_text} saw the first {' or '.join(f'{number:,}' for number in subsets)} training sentences "
            "at most. If the corpus has more, scores are not those of the full corpus, and differences may change with "
            "more data."
        )
    seeds: dict[tuple[Any, ...], set[int]] = {}
    for run in runs:
        seeds.setdefault((run.tasks, run.encoder_title, run.pruning, _subset(run)), set()).add(run.seed)
    if single := sum(len(numbers) == 1 for numbers in seeds.values()):
        settings_text = "Every setting" if single == len(seeds) else f"{single} of {len(seeds)} settings"
        has = "has" if single == len(seeds) or single == 1 else "have"
        yield f"{settings_text} {has} only one seed, so the variation between seeds is not known."
    for name in ("mtlprune", "packages.torch", "packages.transformers", "processor"):
        values = _values(runs, name)
        if len(values) > 1:
            yield f"Runs differ in {name.rpartition('.')[2]}: {', '.join(values)}."
    if runs and not (_values(runs, "git") or _values(runs, "code")):
        yield "No run names the commit or the hash of the code that made it, so only the version number is known."
