"""Which heads a run claims: the gates of its best epoch, read from its folder; and the runs of one label, its seeds.

for claim in load_claims(["runs/pos-1", "runs/pos-2"]):
    claim.label, claim.seed, claim.gates.shape  # "POS", 1, (12, 12)
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.config.blocks import filled
from mtlprune.io.files import from_here, reading
from mtlprune.layers import layer_order
from mtlprune.runs.folder import RunError, RunFolder, flat, is_aside, task_labels

Gates = NDArray[np.float64]  # (L, A): layers, heads a layer

FILE = "gates.jsonl"
SHARED = "shared"
RANDOM = ", random weights"
"""Behind the name of an encoder that was not pretrained."""
ROUNDED = 1e-4
"""How far a gate in gates.jsonl may lie from the one in the weights."""
OPEN_ABOVE = 1e-3
"""A head is open where its gate exceeds this (He and Choi 2021, the released code)."""


class ClaimError(RunError):
    """Runs whose gates cannot be read or compared; the message says which, why and what to do."""


@dataclass(frozen=True, eq=False)
class Claim:
    """The gates that one run ended with: one gate set of it, where it has one a task."""

    run: str
    """The folder, as it was given."""
    label: str
    """POS (one task), POS+DEP (two, one gate set), MTL-5 (five), MTL-5:POS (a task's own gate set in a joint run)."""
    seed: int
    encoder: str
    gates: Gates
    """(L, A), in [0, 1], in the encoder's original numbering."""
    history: list[tuple[int, Gates]]
    """Optimiser step and gates of every evaluation, in the order of training."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Path → value of the settings in which seeds of one label should not differ."""
    data: str = ""
    """Fingerprint of the data."""
    finished: bool = True
    """Trained to the end."""
    step: int = 0
    """Optimiser step of the best epoch, whose gates these are."""
    frequencies: Gates | None = None
    """(L, A): the share of halves of the data that selected a head (pruning.method: stable)."""
    expected_false: float | None = None
    """At most so many of its heads are expected to be claimed falsely (stable)."""
    start: int | str | None = None
    """Seed of the run whose weights chose the heads (``train.start``, or ``pruning.importance_of``); that run's path
    where it is not to be found; None: there is no other run."""
    half: str = ""
    """Which part of the data it saw: the setting called ``half``, else the split ``data.train``."""
    name: str = ""
    """What ``group`` tells it apart by from the other runs of its label: its seed, and what else they differ in."""

    @property
    def training(self) -> int | str:
        """The seed of training: that of the run it began with, else its own."""
        return self.seed if self.start is None else self.start

    @property
    def open(self) -> NDArray[np.bool_]:
        """(L, A): which heads are open."""
        return self.gates > OPEN_ABOVE


def is_joint(label: str) -> bool:
    """Whether runs of several tasks have this label."""
    return "+" in label or ":" in label or label.startswith("MTL-")


def load_claims(paths: Iterable[str | Path]) -> list[Claim]:
    """Read the claims of run folders, in the order given; a run with one gate set a task gives one claim a task.

    Raises:
        ClaimError: a run without gates or with damaged ones, the same run twice, different encoders.
        RunError: no run folder, or a damaged one.
    """
    folders = [RunFolder.existing(path) for path in paths]
    _refuse_repeated(folders)
    read = [_read(folder) for folder in folders]
    names = task_labels([tasks for tasks, _ in read])
    found = [
        replace(claim, label=name + claim.label)
        for name, (_, claims) in zip(names, read, strict=True)
        for claim in claims
    ]
    for claim in found[1:]:
        _refuse_other_encoder(found[0], claim)
    return found


def _refuse_repeated(folders: Iterable[RunFolder]) -> None:
    seen: dict[Path, Path] = {}
    for folder in folders:
        first = seen.setdefault(folder.path.resolve(), folder.path)
        if first is not folder.path:
            also = "" if str(first) == str(folder.path) else f" (also as {first})"
            raise ClaimError(f"{folder.path} is given twice{also}; a run counts once, so name it once")


def _refuse_other_encoder(first: Claim, other: Claim) -> None:
    if first.encoder != other.encoder:
        raise ClaimError(
            f"{first.run} is a run of the encoder {first.encoder} and {other.run} one of {other.encoder}; heads of "
            "different encoders do not correspond, so give runs of one encoder at a time"
        )
    if first.gates.shape != other.gates.shape:
        (layers, heads), (l_other, h_other) = first.gates.shape, other.gates.shape
        raise ClaimError(
            f"{first.run} has gates for {layers} layers of {heads} heads and {other.run} for {l_other} of {h_other}; "
            "these are different encoders, so give runs of one encoder at a time"
        )


def _read(folder: RunFolder) -> tuple[tuple[str, ...], list[Claim]]:
    """The tasks of a run and its claims, whose labels are "" (shared gates) or ":TASK" yet."""
    tree = folder.read_config()
    try:
        tasks, encoder, seed = tuple(map(str, tree["tasks"])), dict(tree["encoder"]), int(tree["train"]["seed"])
        name = str(encoder["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClaimError(
            f"{folder.config_path}: expected tasks, encoder.name and train.seed of a run ({type(error).__name__}: "
            f"{error}); is this the folder of a run?"
        ) from None
    manifest = folder.read_manifest()
    path = folder.gates_path
    if not path.is_file():
        raise ClaimError(
            f"{folder.path} is a run without gates (it has no {FILE}), so it claims no heads; give runs that were "
            "trained with pruning"
        )
    records = _records(folder, tasks)
    best = folder.read_best()["joint"]["epoch"]
    chosen = [(step, sets) for epoch, step, sets in records if epoch == best]
    if not chosen:
        raise ClaimError(
            f"{path}: the best epoch is {best} (best.json), but there are no gates of that epoch; the folder is "
            "damaged, so train the run anew"
        )
    step, sets_of_best = chosen[-1]
    weights = folder.weights_path(best)
    if weights.is_file():  # a study has none
        keep = filled(tree)["pruning"]["keep"]
        for key, gates in gates_of_weights(weights, keep).items():
            if key not in sets_of_best or not np.allclose(gates, sets_of_best[key], rtol=0, atol=ROUNDED):
                raise ClaimError(
                    f"{path}: the gates of {key} in epoch {best} are not those of the weights, {weights}; one of them "
                    "is from another run, or was changed: bring it back, or train the run anew"
                )
    selection = folder.selection() or {}
    claims = [
        Claim(
            run=str(folder.path),
            label="" if key == SHARED else f":{key.upper()}",
            seed=seed,
            encoder=from_here(name) + RANDOM * bool(encoder.get("random")),
            gates=sets_of_best[key],
            history=[(step, sets[key]) for _, step, sets in records],
            settings={path: _shown(value) for path, value in flat(filled(tree)) if not is_aside(path)},
            data=manifest["data"]["fingerprint"],
            start=_start(folder, tree),
            half=_half(tree),
            finished="finished" in manifest,
            step=step,
            frequencies=selection.get("frequencies"),
            expected_false=selection.get("expected_false"),
        )
        for key in records[0][2]
    ]
    return tasks, claims


def gates_of_weights(path: Path, keep: int | None) -> dict[str, Gates]:
    """Gate set → (L, A) gates as weights have them; `mtlprune.encoder.gates` says the same with torch.

    Args:
        keep: heads that gates of method topk keep open.

    Raises:
        RunError: a damaged file.
    """
    from safetensors import SafetensorError, safe_open

    found = {}
    try:
        with reading(path), safe_open(path, framework="np") as file:
            names = set(file.keys())
            for key in sorted(name.split(".")[1] for name in names if name.startswith("gates.") and "logits" in name):
                logits, mask, fixed = (file.get_tensor(f"gates.{key}.{part}") for part in ("logits", "mask", "fixed"))
                if fixed:
                    found[key] = mask
                elif f"gates.{key}.temperature" in names:
                    order = np.argsort(-logits, axis=None, kind="stable")
                    found[key] = np.isin(np.arange(logits.size), order[:keep]).reshape(logits.shape) * 1.0
                else:
                    found[key] = np.clip(1.2 / (1 + np.exp(-logits.astype(np.float64))) - 0.1, 0, 1)
    except SafetensorError as error:
        raise ClaimError(f"{path} cannot be read ({error}); bring it back, or train the run anew") from None
    return found


def _start(folder: RunFolder, tree: Mapping[str, Any]) -> int | str | None:
    """The seed of the run whose weights chose the heads; its path where it is not to be found."""
    path = tree.get("pruning", {}).get("importance_of") or tree["train"].get("start")
    if path is None:
        return None
    other = folder.other(path)
    return str(path) if other is None else int(other.read_config().get("train", {}).get("seed", 1))


def _shown(value: Any) -> Any:
    return from_here(value) if isinstance(value, str) else value


def _half(tree: Mapping[str, Any]) -> str:
    named = [value for path, value in flat(tree) if path.rpartition(".")[2] == "half" and value is not None]
    return str(named[0] if named else tree.get("data", {}).get("train", "train"))


def _records(folder: RunFolder, tasks: tuple[str, ...]) -> list[tuple[int, int, dict[str, Gates]]]:
    """Epoch, step and gate sets of every evaluation. Raises ClaimError, or RunError with file and line."""
    records: list[tuple[int, int, dict[str, Gates]]] = []
    allowed = [[SHARED], list(tasks)] if len(tasks) > 1 else [[SHARED]]
    for number, record in enumerate(folder.read_gates(), 1):
        where, sets = f"{folder.gates_path}, line {number}", record["gates"]
        keys = next((keys for keys in allowed if sets.keys() == set(keys)), None)
        if keys is None:
            several = f", or one set for each of {', '.join(tasks)}" if len(tasks) > 1 else ""
            raise ClaimError(f"{where}: expected the gate set {SHARED!r}{several}, found {', '.join(sets) or 'none'}")
        sizes = {(len(rows), *map(len, rows)) for rows in sets.values()}
        layers, *heads = sizes.pop()
        if sizes or len({*heads}) != 1 or not heads[0]:
            raise ClaimError(f"{where}: expected rows of equally many numbers, a row a layer, in every gate set")
        first = records[0][2] if records else {}
        if first and (first.keys() != set(keys) or first[keys[0]].shape != (layers, heads[0])):
            raise ClaimError(f"{where}: gate sets and their sizes change within the file; train the run anew")
        records.append((record["epoch"], record["step"], {key: np.array(sets[key], np.float64) for key in keys}))
    if not records:
        raise ClaimError(f"{folder.gates_path} holds no evaluation yet; wait for the first one, or train the run anew")
    return records


# -- runs of one label -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All claims of one label, by rising seed of selection, then of training."""

    label: str
    claims: tuple[Claim, ...]

    @property
    def joint(self) -> bool:
        """Whether several tasks trained its runs."""
        return is_joint(self.label)

    @cached_property
    def gates(self) -> NDArray[np.float64]:
        """(S, L, A): gates of each seed."""
        return np.stack([claim.gates for claim in self.claims])

    @property
    def mean(self) -> Gates:
        """(L, A): mean gate over the seeds."""
        return self.gates.mean(0)

    @cached_property
    def open(self) -> NDArray[np.bool_]:
        """(S, L, A): open heads of each seed."""
        return np.stack([claim.open for claim in self.claims])

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """(L, A): in how many seeds a head is open."""
        return self.open.sum(axis=0, dtype=np.int64)

    @property
    def claimed(self) -> NDArray[np.bool_]:
        """(L, A): heads that more than half of the seeds have open. Of two seeds that is both."""
        return 2 * self.times > len(self.claims)


def group(claims: Iterable[Claim]) -> list[RunGroup]:
    """RunGroups: single tasks in the order of the layers of a sentence, then joint ones, smaller before larger.

    Raises:
        ClaimError: no claim; or two claims of one label with the same seeds (of selection and of the run it began with)
            and the same half of the data, which are no two observations.
    """
    members: dict[str, dict[tuple[int, str, str], Claim]] = {}
    for claim in claims:
        place = claim.seed, f"{claim.training!s:>20}", claim.half  # seeds in the order of numbers
        duplicate = members.setdefault(claim.label, {}).setdefault(place, claim)
        if duplicate is not claim:
            apart = [
                path for path in _paths([duplicate, claim]) if duplicate.settings.get(path) != claim.settings.get(path)
            ]
            apart += ["the data"] if duplicate.data != claim.data else []
            raise ClaimError(
                f"{duplicate.run} and {claim.run} are both runs of {claim.label} with seed {claim.seed}"
                f"{' (they differ in ' + ', '.join(apart) + ')' if apart else ''}; one label holds "
                "runs that differ in nothing but the seed, so name one of them, and compare other settings apart"
            )
    if not members:
        raise ClaimError("nothing to compare: expected one run or more")
    return [
        RunGroup(label, _named([runs[place] for place in sorted(runs)]))
        for label, runs in sorted(members.items(), key=lambda item: _order(item[0]))
    ]


def _named(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Claims of one label with names that tell them apart: their seeds, where these alone do."""
    names = [str(claim.seed) for claim in claims]
    if len(set(names)) < len(names):
        halves = len({claim.half for claim in claims}) > 1
        names = [f"{claim.seed} on {claim.training}{f', {claim.half}' * halves}" for claim in claims]
    return tuple(replace(claim, name=name) for claim, name in zip(claims, names, strict=True))


def _order(label: str) -> tuple[bool, int, str, int, str]:
    shared, _, task = label.partition(":")
    size = int(shared[4:]) if shared.startswith("MTL-") else shared.count("+") + 1
    own = task or shared
    layer = -1 if is_joint(own) else layer_order(own.lower())[0]
    return is_joint(label), size, shared if task else "", layer, own


def _paths(claims: Iterable[Claim]) -> list[str]:
    return sorted({path for claim in claims for path in claim.settings})


def notes(run_groups: Sequence[RunGroup]) -> list[str]:
    """What a reader must know of the runs before believing the numbers, in sentences."""
    claims = [claim for run_group in run_groups for claim in run_group.claims]
    found = []
    for run_group in run_groups:
        for path in _paths(run_group.claims):
            values = [json.dumps(claim.settings.get(path)) for claim in run_group.claims]
            if len(set(values)) > 1:
                found.append(f"The seeds of {run_group.label} differ in {path} too: {', '.join(values)}.")
    for path in _paths(claims):
        by_value: dict[str, list[str]] = {}
        for claim in claims:
            labels = by_value.setdefault(json.dumps(claim.settings.get(path)), [])
            labels += [claim.label] if claim.label not in labels else []
        once = sum(map(len, by_value.values())) == len(run_groups)  # else it is said of a label's seeds above
        if len(by_value) > 1 and once and not path.startswith("decoders."):
            said = "; ".join(f"{value} ({', '.join(labels)})" for value, labels in by_value.items())
            found.append(f"Not only the tasks differ, but {path} too: {said}.")
    if len({claim.data for claim in claims}) > 1:
        found.append("Not all runs were trained on the same data (their fingerprints differ).")
    unfinished = list(dict.fromkeys(claim.run for claim in claims if not claim.finished))
    if unfinished:
        found.append(f"Not trained to the end: {', '.join(unfinished)}.")
    numbers = {len(run_group.claims) for run_group in run_groups}
    if len(numbers) > 1:
        seeds = ", ".join(f"{run_group.label} {len(run_group.claims)}" for run_group in run_groups)
        found.append(f"Labels have different numbers of seeds ({seeds}); every label weighs the same all the same.")
    halves = [(c.label, int((2 * c.times == len(c.claims)).sum()), len(c.claims) // 2) for c in run_groups]
    if tied := [f"{label} {heads} (by {seeds})" for label, heads, seeds in halves if heads]:
        found.append(f"Heads that exactly half of the seeds have open count as not claimed: {', '.join(tied)}.")
    found += _identical(run_groups)
    shares = [(c.label, int(((c.gates > 0) & (c.gates < 1)).sum()), c.gates.size) for c in run_groups]
    if between := [f"{label} {number} of {of} ({number / of:.0%})" for label, number, of in shares if number]:
        found.append(
            f"Gates strictly between 0 and 1: {', '.join(between)}. Such heads count as open here, though they are "
            "scaled down, not kept or removed."
        )
    if moving := [
        f"{c.label}, seed {c.name} ({why})" for group in run_groups for c in group.claims if (why := unsettled(c))
    ]:
        found.append(f"Gates that had not settled: {'; '.join(moving)}. What they claim may still have changed.")
    return found


def _identical(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Seeds of a label whose learnt gates are the same to the last bit: one observation that is counted as several."""
    for run_group in run_groups:
        by_gates: dict[bytes, list[Claim]] = {}
        for claim in run_group.claims:
            if claim.settings.get("pruning.method") not in ("gates", "topk"):
                continue  # two runs may well choose the same fixed heads
            every = [claim.gates, *(gates for _, gates in claim.history)]
            by_gates.setdefault(np.stack(every).tobytes(), []).append(claim)
        for same in by_gates.values():
            if len(same) > 1:
                seeds = " and ".join(claim.name for claim in same)
                yield (
                    f"Seeds {seeds} of {run_group.label} have bit-identical gates at every evaluation, so they are one "
                    "observation, not several: their agreement says nothing."
                )


def unsettled(claim: Claim) -> str:
    """Why the gates of a run had not settled at its best epoch; "" where they had, or where none were trained.

    With a wanted number of heads K: more than max(1, K/20) heads off. With the penalty lambda nothing is wanted: as
    many heads opened or closed, on balance, since the evaluation before (or since all were open).
    """
    if claim.settings.get("pruning.method") != "gates":
        return ""
    opened, keep = int(claim.open.sum()), claim.settings.get("pruning.keep")
    if isinstance(keep, int):
        return f"{opened} heads open, {keep} wanted" if abs(opened - keep) > max(1, keep / 20) else ""
    earlier = [gates for step, gates in claim.history if step < claim.step]
    before = int((earlier[-1] > OPEN_ABOVE).sum()) if earlier else claim.gates.size
    return (
        f"{before} heads open one evaluation before, {opened} now" if abs(opened - before) > max(1, opened / 20) else ""
    )
