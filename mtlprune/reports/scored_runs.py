"""One run, as far as a table is concerned: its scores, its settings, the heads it has open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mtlprune.blocks import filled
from mtlprune.reports.pruning_title import pruning_title
from mtlprune.runs import ASIDE, RunError, RunFolder
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
    finished: bool = True
    """Trained to the end."""
    encoder: str = ""
    heads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Task → heads open or kept for it, and all heads; nothing where heads were not pruned."""


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
    tree = filled(tree)
    flat = dict(_flat(tree))
    return ScoredRun(
        path=str(folder.path),
        name=tree.get("name", "run"),
        tasks=tuple(tree["tasks"]),
        kind=kind,
        pruning=pruning_title(tree),
        setting={path: value for path, value in flat.items() if path not in (*ASIDE, "encoder.name")},
        seed=flat.get("train.seed", 0),
        data=manifest["data"]["fingerprint"],
        scores={task: values[names[task]] for task, values in scores.items()},
        names=names,
        finished="finished" in manifest,
        encoder=str(encoder.get("name", "")),
        heads=_heads(folder, manifest, tuple(tree["tasks"])),
    )


def _heads(folder: RunFolder, manifest: Mapping[str, Any], tasks: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Task → heads it may use and heads there were, of a run with gates or one made by `mtlprune prune`."""
    if "pruned" in manifest:
        there = folder.read_json("encoder/heads.json")
        return dict.fromkeys(tasks, (sum(map(len, there["kept"])), there["heads"] * len(there["kept"])))
    if not folder.gates_path.is_file():
        return {}
    from mtlprune.analyses.claims import load_claims  # needs numpy, which other tables do without

    found = {}
    for claim in load_claims([folder.path]):
        own = claim.label.partition(":")[2].lower()
        found.update(dict.fromkeys((own,) if own else tasks, (int(claim.open.sum()), claim.gates.size)))
    return found


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _flat(value, here)
        else:
            yield here, value
