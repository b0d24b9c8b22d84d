"""One run, as far as a table is concerned: its scores, its settings, the heads it has open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtlprune.blocks import filled
from mtlprune.layers import kind_of
from mtlprune.reports.scores.pruning_title import pruning_title
from mtlprune.runs import ASIDE, RunError, RunFolder, flat
from mtlprune.scores import main_score


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
    """Flat settings beside the tasks, the encoder's name and those in ASIDE."""
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


def read_run(folder: RunFolder, split: str) -> ScoredRun:
    """What a table needs of a run. Raises RunError where it is not scored on ``split``."""
    tree, manifest = folder.read_config(), folder.read_manifest()
    if pruned := manifest.get("pruned"):  # its settings are those of the run it was made from: seeds share them
        kept = {"heads removed": pruned["most_open"] or "closed"}
        tree = {**pruned["config"], "name": tree["name"], "tasks": tree["tasks"], **kept}
    if split not in folder.splits():
        there = ", ".join(folder.splits()) or "none"
        how = f"run: mtlprune evaluate {folder.path} --split {split.partition('.')[0]}"
        if folder.is_record:
            how = "score the run it was made of on that split, and record it again"
        raise RunError(f"{folder.path} is not scored on {split!r} (scored: {there}); {how}")
    scores = folder.read_scores(split)
    names = {task: main_score(task, tree.get("decoders", {})) for task in scores}
    encoder = tree.get("encoder", {})
    kind = "no encoder" if not encoder.get("context", True) else "random encoder" if encoder.get("random") else ""
    tree = filled(tree)
    settings = dict(flat(tree))
    return ScoredRun(
        path=str(folder.path),
        name=tree.get("name", "run"),
        tasks=tuple(tree["tasks"]),
        kind=kind,
        pruning=pruning_title(tree),
        setting={path: value for path, value in settings.items() if path not in (*ASIDE, "encoder.name")},
        seed=settings.get("train.seed", 0),
        data=manifest["data"]["fingerprint"],
        scores={task: values[names[task]] for task, values in scores.items()},
        names=names,
        layer_kinds={task: kind_of(task, tree.get("decoders", {})) for task in scores},
        finished="finished" in manifest,
        encoder=str(encoder.get("name", "")),
        heads=_heads(folder, manifest, tuple(tree["tasks"])),
        updates=_updates(manifest) + _updates_before(folder, tree["train"]["start"]),
        earlier=_earlier(folder, tree, manifest),
    )


def _updates(manifest: Mapping[str, Any]) -> int:
    step = manifest.get("finished", {}).get("step")
    return step if isinstance(step, int) else 0


def _updates_before(run: RunFolder, start: str | None) -> int:
    """Those of the run that another started from, and of the one before; 0 where it is not there any more.

    It is looked for where the run says, then beside the run under the same name: folders are moved, and records know
    only the name.
    """
    if start is None:
        return 0
    places = (RunFolder(start), RunFolder(run.path.parent / Path(start).name))
    folder = next((place for place in places if place.config_path.is_file()), None)
    if folder is None or folder.path.resolve() == run.path.resolve():
        return 0
    before = filled(folder.read_config())["train"]["start"]
    return _updates(folder.read_manifest()) + (_updates_before(folder, before) if before != start else 0)


def _earlier(run: RunFolder, tree: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    own = _updates(manifest)
    start = tree["train"]["start"]
    ranking = tree["pruning"]["importance_of"] if tree["pruning"]["method"] == "importance" else None
    if start is None and ranking is None:
        return ""
    before = _updates_before(run, start or ranking)
    updates = f" ({before:,} updates)" if before else ""
    more = f" for {own:,} more" if own else ""
    if start is not None:
        return f"starts from a finished run{updates} and trains on{more}"
    return f"a finished run{updates} chose its heads"


def _heads(folder: RunFolder, manifest: Mapping[str, Any], tasks: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Task → heads it may use and heads there were, of a run with gates or one made by `mtlprune prune`."""
    if "pruned" in manifest:
        there = folder.read_json("encoder/heads.json")
        return dict.fromkeys(tasks, (sum(map(len, there["kept"])), there["heads"] * len(there["kept"])))
    if not folder.gates_path.is_file():
        return {}
    from mtlprune.claimed_heads import load_claims  # needs numpy, which other tables do without

    found = {}
    for claim in load_claims([folder.path]):
        own = claim.label.partition(":")[2].lower()
        found.update(dict.fromkeys((own,) if own else tasks, (int(claim.open.sum()), claim.gates.size)))
    return found
