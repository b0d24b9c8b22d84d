"""The sweep that compares single-task with multi-task training on any corpus. Knows nothing of torch.

stl-TASK-SEED      each task alone
mtl-N-SEED         all N tasks together; pair-A-B-SEED any two of them, where pairs are wanted
heads-TASK-SEED    the heads that halves of the data agree on, chosen on the finished run of the task (or of all: mtl-N)
no-encoder         all tasks from words alone, with the first seed
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
"""Names in the folder of a comparison: its sweep, and the folders of runs and of what is measured on them."""
SPLITS = ("train", "dev", "test")
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
"""Settings in which the runs of a comparison differ."""
_LONGEST_FIRST = ("srl", "con", "dep", "ner", "pos")
"""Order in which runs begin, so that processes side by side end together."""
NO_ENCODER, HEADS = "no-encoder", "heads-"
PART = 6
"""Each half of the data selects one of so many heads, of which at most a fifth are expected to be false
(docs/methods/selectors.md); 12 of MiniLM's 72, as in results/claims."""


@dataclass(frozen=True)
class Effort:
    """The preset of a comparison, and the size of its measurements beside training.

    Attributes:
        base: the preset that all runs begin from.
        selection: training sentences by which heads are selected.
        cross, draws: sentences of dev on which every task is scored with every task's heads closed, and random closings
            beside each.
        probes: training sentences of probes.
        probe_alone: whether heads of single-task runs are probed, too.
    """

    base: str
    selection: int
    cross: int
    draws: int
    probes: int
    probe_alone: bool


EFFORT = Effort("minilm-ewt5", selection=2000, cross=300, draws=2, probes=2000, probe_alone=True)
QUICKSTART = Effort("quickstart", selection=300, cross=30, draws=2, probes=300, probe_alone=False)
"""On corpora of users, and on a few generated sentences."""


def choose_tasks(path: Path, info: Mapping[str, Any], tasks_option: str | None) -> list[str]:
    """The tasks asked for, or all layers that every split has but a second tag set, in the order of the layers.

    Raises:
        CorpusError: a split is missing, or a layer.
        ConfigError: fewer than two tasks, or one twice.
    """
    for split in SPLITS:
        if split not in info["splits"]:
            raise CorpusError(
                f"{path}: a comparison needs the splits {', '.join(SPLITS)}, found {', '.join(info['splits'])}; build "
                "it with all three (`mtlprune data build --help`)"
            )
    if info["splits"]["train"]["sentences"] < 2:
        raise CorpusError(
            f"{path}: expected two training sentences or more, because heads are selected on halves, found one"
        )
    layers = info.get("layers", LAYERS)
    layers_known = [name for name in layers if all(info["splits"][split]["known"].get(name) for split in SPLITS)]
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
    """Layers without the second tag set of CoNLL-U, because two tag sets of the same words are no two tasks."""
    return [name for name in layers if name not in TAGS or "pos" not in layers]


def parse_seeds(seeds_option: str) -> list[int]:
    """Different whole numbers with commas between. Raises ConfigError."""
    seeds = [seed for text in seeds_option.split(",") if (seed := whole_number(text.strip())) is not None]
    if len(set(seeds)) < seeds_option.count(",") + 1:
        raise ConfigError(
            "--seeds: expected different whole numbers such as 1,2,3 of at most nine digits, found "
            f"{seeds_option[:60]!r}"
        )
    return seeds


def settings_of(path: Path, info: Mapping[str, Any], tasks: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """Settings of all runs, over the base. Raises ConfigError: an override of what runs differ in."""
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
    """The content of the sweep's file."""
    slow = sorted(tasks, key=lambda name: _LONGEST_FIRST.index(name) if name in _LONGEST_FIRST else -1)
    runs = {f"mtl-{len(tasks)}": list(tasks)}
    if pairs and len(tasks) > 2:
        runs |= {f"pair-{first}-{second}": [first, second] for first, second in itertools.combinations(tasks, 2)}
    runs |= {f"stl-{name}": [name] for name in slow}
    frozen = {"freeze": ["encoder", "decoders"], "epochs": 1}
    pruning = {"method": "stable", "keep": max(1, heads // PART), "importance_sentences": effort.selection}
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


PAGE = 10.0
"""Seconds that tests, figures and the page of two tasks take."""
PARTS = 2
"""Parts of a task's heads that the cross matrix closes: all, and mostly those that it claims alone or shares, too."""
_PROBING = 2
"""Time of probes, as a multiple of the forward pass."""


def rough_analyses(cells: Mapping[str, Cell], effort: Effort) -> float:
    """Seconds on one core, by arithmetic, of what follows the cells: cross matrix, probes and page. Their many short
    passes are as slow as float32."""
    single_task_configs = [cell.config for name, cell in cells.items() if name.startswith("stl-")]
    joint = [cell.config for name, cell in cells.items() if name.startswith("mtl-")]
    config, path = single_task_configs[0], Path(single_task_configs[0].data.path)
    closings = 1 + PARTS * len(joint[0].tasks) * (1 + effort.draws)
    crossed = len(single_task_configs) * closings * min(effort.cross, sentences_in(path, "dev"))
    read = min(effort.probes, sentences_in(path, "train")) + sentences_in(path, "dev") + sentences_in(path, "test")
    probed = read * (1 + len(joint) + len(single_task_configs) * effort.probe_alone) * _PROBING
    operations = scoring_operations(config, crossed) + probed * forward_operations(config)
    return operations / FP32 + 2 * START + PAGE
