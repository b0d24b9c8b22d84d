"""The sweep of `mtlprune compare`, which compares single-task with multi-task training on any corpus.

This module does not import torch. The cells are:

stl-TASK-SEED      one task alone
mtl-N-SEED         all N tasks together
pair-A-B-SEED      two tasks together (only with --pairs)
heads-TASK-SEED    selection of the heads on which random halves of the data agree, on the finished run stl-TASK-SEED
                   (or, for TASK = mtl-N, on mtl-N-SEED)
no-encoder         all tasks from words without context, with the first seed
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtlprune.config import ConfigError, apply_override, nearest
from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import whole_number
from mtlprune.corpora.formats.conllu import TAGS
from mtlprune.layers import LAYERS, decoder_of
from mtlprune.sweeps.cells import Cell
from mtlprune.sweeps.times import FP32, START, forward_operations, scoring_operations, sentences_in

FILE, RUNS, ANALYSES, PROBES = "sweep.yaml", "runs", "analyses", "probes"
"""Names in the folder of a comparison: the file of its sweep, and the folders of runs, analyses and probes."""
_SPLITS = ("train", "dev", "test")
_SET_BY_COMPARE = (
    "name",
    "tasks",
    "data.path",
    "pruning",
    "train.start",
    "train.freeze",
    "train.seed",
    "encoder.context",
    "base",
)
"""Settings that differ between the runs of a comparison, so that users cannot set them."""
_LONGEST_FIRST = ("srl", "con", "dep", "ner", "pos")
"""Order in which single-task runs start. Long runs come first, so that parallel processes end at a similar time."""
NO_ENCODER, HEADS = "no-encoder", "heads-"
_PART = 6
"""Each half of the data selects one head in this number of heads: 12 of MiniLM's 72, as in results/claims. The expected
number of false selections is then at most about a fifth of the number that each half selects, 2.5 of 12
(docs/methods/selectors.md)."""


@dataclass(frozen=True)
class Effort:
    """The preset of a comparison, and the sizes of the measurements that follow training.

    Attributes:
        base: preset on which the configurations of all runs are based.
        selection: number of training sentences by which heads are selected.
        cross: number of dev sentences on which each task is scored with the heads of each task closed.
        draws: number of random sets of heads that are closed for comparison with each set of claimed heads.
        probes: number of training sentences for probes.
        probe_alone: probe the heads of single-task runs, too.
    """

    base: str
    selection: int
    cross: int
    draws: int
    probes: int
    probe_alone: bool


EFFORT = Effort("minilm-ewt5", selection=2000, cross=300, draws=2, probes=2000, probe_alone=True)
QUICKSTART = Effort("quickstart", selection=300, cross=30, draws=2, probes=300, probe_alone=False)
"""EFFORT is for the corpora of users, and QUICKSTART for the few generated sentences of `mtlprune quickstart`."""


def choose_tasks(path: Path, info: Mapping[str, Any], tasks_option: str | None) -> list[str]:
    """Return the tasks of --tasks, in the order of the corpus layers.

    Without --tasks, all layers that every split has are returned, except a second tag set.

    Args:
        info: description of the corpus, as ``corpora.store.read_info`` returns it.
        tasks_option: value of --tasks, or None.

    Raises:
        CorpusError: the corpus lacks a split or a layer, or has fewer than two training sentences.
        ConfigError: there are fewer than two tasks, or a task is named twice.
    """
    for split in _SPLITS:
        if split not in info["splits"]:
            raise CorpusError(
                f"{path}: a comparison needs the splits {', '.join(_SPLITS)}, found {', '.join(info['splits'])}; build "
                "it with all three (`mtlprune data build --help`)"
            )
    if info["splits"]["train"]["sentences"] < 2:
        raise CorpusError(
            f"{path}: expected two training sentences or more, because heads are selected on halves, found one"
        )
    layers = info.get("layers", LAYERS)
    layers_known = [name for name in layers if all(info["splits"][split]["known"].get(name) for split in _SPLITS)]
    tasks = (
        [name.strip() for name in tasks_option.split(",")] if tasks_option is not None else _one_tag_set(layers_known)
    )
    for name in tasks:
        if name not in layers_known:
            presence = "in each of its splits" if name in layers else f"at all{nearest(name, layers_known)}"
            raise CorpusError(f"{path} does not have the layer {name} {presence}; it has {', '.join(layers_known)}")
    if len(set(tasks)) < max(2, len(tasks)):
        found_tasks = ", ".join(tasks) or "none"
        raise ConfigError(f"{path}: expected two different tasks or more to compare (--tasks), found {found_tasks}")
    return [name for name in layers if name in tasks]


def _one_tag_set(layers: Sequence[str]) -> list[str]:
    """Leave out the second tag set of CoNLL-U, because two tag sets of the same words do not count as two tasks."""
    return [name for name in layers if name not in TAGS or "pos" not in layers]


def parse_seeds(seeds_option: str) -> list[int]:
    """Parse --seeds, such as "1,2,3". Raises ConfigError unless it contains different whole numbers."""
    seeds = [seed for text in seeds_option.split(",") if (seed := whole_number(text.strip())) is not None]
    if len(set(seeds)) < seeds_option.count(",") + 1:
        raise ConfigError(
            "--seeds: expected different whole numbers (at most nine digits) with commas between them, such as 1,2,3, "
            f"found {seeds_option[:60]!r}"
        )
    return seeds


def settings_of(path: Path, info: Mapping[str, Any], tasks: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that all runs add to the base preset.

    Raises:
        ConfigError: an override changes a setting that differs between runs.
    """
    kinds = info.get("layers", LAYERS)
    decoder_types = {name: {"type": decoder_of(kinds[name])} for name in tasks if name not in LAYERS}
    tree: dict[str, Any] = {
        "data": {"path": str(path)},
        "tasks": list(tasks),
        **({"decoders": decoder_types} if decoder_types else {}),
    }
    for override in overrides:
        key = override.partition("=")[0]
        if any(key == setting or key.startswith(f"{setting}.") for setting in _SET_BY_COMPARE):
            raise ConfigError(
                f"{override}: the runs of a comparison differ in this setting; use `mtlprune train` for other values"
            )
        apply_override(tree, override)
    return tree


def sweep_tree(
    settings: Mapping[str, Any], tasks: Sequence[str], seeds: Sequence[int], pairs: bool, heads: int, effort: Effort
) -> dict[str, Any]:
    """Return the content of the sweep's YAML file.

    Args:
        settings: settings of all runs, from ``settings_of``.
        pairs: also train every pair of tasks.
        heads: number of heads of the encoder.
    """
    slow = sorted(tasks, key=lambda name: _LONGEST_FIRST.index(name) if name in _LONGEST_FIRST else -1)
    runs = {f"mtl-{len(tasks)}": list(tasks)}
    if pairs and len(tasks) > 2:
        runs |= {f"pair-{first}-{second}": [first, second] for first, second in itertools.combinations(tasks, 2)}
    runs |= {f"stl-{name}": [name] for name in slow}
    frozen = {"freeze": ["encoder", "decoders"], "epochs": 1}
    pruning = {"method": "stable", "keep": max(1, heads // _PART), "importance_sentences": effort.selection}
    axis: dict[str, Any] = {name: {"tasks": tasks_of_run} for name, tasks_of_run in runs.items()}
    for name, tasks_of_run in runs.items():
        if not name.startswith("pair-"):
            joint_run = f"@{name}-{{seed}}"
            axis[HEADS + name.removeprefix("stl-")] = {
                "tasks": tasks_of_run,
                "train": {"start": joint_run, **frozen},
                "pruning": {**pruning, "importance_of": joint_run},
            }
    return {
        "name": "compare",
        "base": effort.base,
        "settings": dict(settings),
        "grid": {"run": axis, "seed": list(seeds)},
        "cells": {NO_ENCODER: {"encoder": {"context": False}, "train": {"seed": seeds[0]}}},
        "evaluate": ["test"],
    }


_REPORT_SECONDS = 10.0
"""Seconds for tests, figures and the report of two tasks."""
PARTS = 2
"""Assumed number of sets of heads that the analysis ``cross`` closes for each task: all claimed heads, and usually also
the exclusive or the shared heads."""
_PROBING = 2
"""Time of probes, as a multiple of the time of the forward pass."""


def rough_analyses(cells: Mapping[str, Cell], effort: Effort) -> float:
    """Estimate the seconds on one core for the steps after training: analysis ``cross``, probes and report.

    The estimate counts operations at the speed of float32, because many short passes gain nothing from bf16.
    """
    single_task_configs = [cell.config for name, cell in cells.items() if name.startswith("stl-")]
    joint = [cell.config for name, cell in cells.items() if name.startswith("mtl-")]
    config, path = single_task_configs[0], Path(single_task_configs[0].data.path)
    closings = 1 + PARTS * len(joint[0].tasks) * (1 + effort.draws)
    crossed = len(single_task_configs) * closings * min(effort.cross, sentences_in(path, "dev"))
    read = min(effort.probes, sentences_in(path, "train")) + sentences_in(path, "dev") + sentences_in(path, "test")
    probed = read * (1 + len(joint) + len(single_task_configs) * effort.probe_alone) * _PROBING
    operations = scoring_operations(config, crossed) + probed * forward_operations(config)
    return operations / FP32 + 2 * START + _REPORT_SECONDS
