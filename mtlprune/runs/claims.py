"""The attention heads that runs claim, read from the gates of each run's best epoch, and groups of claims by label.

The analysis ``claims``, the maps and the report use this module.

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

from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import SHARED, DescribedRun, differing_settings, is_joint, label_order, task_labels

Gates = NDArray[np.float64]  # (L, A): L layers with A heads each


class ClaimError(RunError):
    """The gates of some runs cannot be read or compared. The message names the runs, the reason and the remedy."""


@dataclass(frozen=True, eq=False)
class Claim:
    """The final gates of one run. A run with a separate gate set for each task has one claim for each gate set."""

    run: str
    """The run folder, as the user named it."""
    label: str
    """POS (one task), POS+DEP (two tasks that share gates), MTL-5 (five tasks that share gates), or MTL-5:POS (the gate
    set of POS in a joint run)."""
    seed: int
    encoder: str
    gates: Gates
    """(L, A), in [0, 1], with the layers and heads numbered as in the pretrained encoder."""
    history: list[tuple[int, Gates]]
    """Optimiser step and gates of every evaluation, in the order of training."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Path → value of the settings in which seeds of one label should not differ."""
    data: str = ""
    """Fingerprint of the data."""
    finished: bool = True
    """True if the run was trained to its end."""
    step: int = 0
    """Optimiser step of the best epoch, from which ``gates`` is taken."""
    frequencies: Gates | None = None
    """(L, A): the share of random halves of the data on which a head was selected; only for pruning.method=stable."""
    expected_false: float | None = None
    """Upper bound on the expected number of falsely claimed heads; only for pruning.method=stable."""
    start: int | str | None = None
    """Seed of the finished run whose weights chose the heads (``train.start`` or ``pruning.importance_of``), the path
    of that run if its folder cannot be found, or None if there is no such run."""
    remarks: str = ""
    """Unusual properties of the encoder's heads: causal attention, or heads that share a key and a value."""
    half: str = ""
    """The part of the data on which the run was trained: the setting ``data.half``, else the split ``data.train``."""
    name: str = ""
    """Name of the claim within its label, set by ``group``: the seed, with the training seed and the half of the data
    if the seed alone is ambiguous."""

    @property
    def training(self) -> int | str:
        """Seed of the run whose weights chose the heads: ``start`` if that is another run, else ``seed``."""
        return self.seed if self.start is None else self.start

    @property
    def open(self) -> NDArray[np.bool_]:
        """(L, A): True for heads whose gate counts as open."""
        return self.gates > OPEN_ABOVE


def load_claims(paths: Iterable[str | Path]) -> list[Claim]:
    """Read the claims of run folders, in the given order.

    A run with a separate gate set for each task yields one claim per task.

    Raises:
        ClaimError: a run has no gates, a run is named twice, or the encoders differ.
        RunError: a path is no run folder, or its files (such as the gates) are damaged.
    """
    folders = [RunFolder.existing(path) for path in paths]
    first: dict[Path, Path] = {}
    for folder in folders:
        before = first.setdefault(folder.path.resolve(), folder.path)
        if before is not folder.path:
            other_path = "" if str(before) == str(folder.path) else f" (also as {before})"
            raise ClaimError(f"{folder.path} is named twice{other_path}; name each run once")
    return labelled([(folder_run.tasks, claims_of(folder_run)) for folder_run in map(DescribedRun.read, folders)])


def labelled(runs: Sequence[tuple[Sequence[str], Sequence[Claim]]]) -> list[Claim]:
    """Complete the labels of claims, so that the labels of all runs can be shown side by side.

    Args:
        runs: the tasks of each run, with the claims that ``claims_of`` returned for the run.

    Raises:
        ClaimError: the runs have different encoders.
    """
    labels = task_labels([tasks for tasks, _ in runs])
    claims = [
        replace(claim, label=label + claim.label)
        for label, (_, claims) in zip(labels, runs, strict=True)
        for claim in claims
    ]
    encoders = [f"{c.encoder} ({c.gates.shape[0]} layers of {c.gates.shape[1]} heads)" for c in claims]
    for claim, encoder in zip(claims, encoders, strict=True):
        if encoder != encoders[0]:
            raise ClaimError(
                f"{claims[0].run} is a run of the encoder {encoders[0]} and {claim.run} one of {encoder}; name runs of "
                "one encoder at a time, because heads of different encoders do not correspond"
            )
    return claims


def claims_of(run: DescribedRun) -> list[Claim]:
    """Read the claims of one run. Their labels are only "" (shared gates) or ":TASK" until ``labelled`` completes them.

    Raises:
        ClaimError: the run has no gates.
        RunError: the file of gates is damaged.
    """
    if not run.folder.has("gates.jsonl"):
        raise ClaimError(
            f"{run.path} is a run without gates (it has no {run.folder.gates_path.name}), so it claims no heads; name "
            "runs that were trained with pruning"
        )
    step, gate_sets = run.folder.best_gates()
    evaluations, selection = run.folder.gates(), run.folder.selection() or {}
    return [
        Claim(
            run=run.path,
            label="" if key == SHARED else f":{key.upper()}",
            seed=run.seed,
            encoder=run.encoder,
            gates=gate_sets[key],
            history=[(earlier, sets[key]) for _, earlier, sets in evaluations],
            settings=run.settings,
            data=run.fingerprint,
            start=run.training,
            half=run.half_name,
            remarks=run.manifest.get("remarks", ""),
            finished=run.finished,
            step=step,
            frequencies=selection.get("frequencies"),
            expected_false=selection.get("expected_false"),
        )
        for key in (SHARED, *run.tasks)
        if key in gate_sets
    ]


# -- claims with the same label ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All claims with the same label, ordered by selector seed, training seed and half of the data."""

    label: str
    claims: tuple[Claim, ...]

    @property
    def joint(self) -> bool:
        """True if the runs were trained on several tasks."""
        return is_joint(self.label)

    @cached_property
    def gates(self) -> NDArray[np.float64]:
        """(S, L, A): gates by seed."""
        return np.stack([claim.gates for claim in self.claims])

    @property
    def mean(self) -> Gates:
        """(L, A): mean gate over the seeds."""
        return self.gates.mean(0)

    @cached_property
    def open(self) -> NDArray[np.bool_]:
        """(S, L, A): True for heads that are open, by seed."""
        return np.stack([claim.open for claim in self.claims])

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """(L, A): the number of seeds in which each head is open."""
        return self.open.sum(axis=0, dtype=np.int64)

    @property
    def claimed_by_most(self) -> NDArray[np.bool_]:
        """(L, A): True for heads that are open in more than half of the seeds (with two seeds, in both)."""
        return 2 * self.times > len(self.claims)


def group(claims: Iterable[Claim]) -> list[RunGroup]:
    """Group claims by label.

    Returns:
        Groups of single tasks first, in the order of a sentence's layers, then joint groups with fewer tasks before
        joint groups with more tasks.

    Raises:
        ClaimError: there is no claim, or two claims with the same label have the same selector seed, the same training
            seed and the same half of the data, and are thus not two independent observations.
    """
    members: dict[str, dict[tuple[int, str, str], Claim]] = {}
    for claim in claims:
        key = claim.seed, f"{claim.training!s:>20}", claim.half  # padded, so that seeds as text sort like numbers
        duplicate = members.setdefault(claim.label, {}).setdefault(key, claim)
        if duplicate is not claim:
            differences = differing_settings([duplicate, claim]) + ["the data"] * (duplicate.data != claim.data)
            raise ClaimError(
                f"{duplicate.run} and {claim.run} are both runs of {claim.label} with seed {claim.seed}"
                f"{' (they differ in ' + ', '.join(differences) + ')' if differences else ''}; runs of one label may "
                "differ only in the seed, so name one of the two, and compare other settings separately"
            )
    if not members:
        raise ClaimError(
            "expected one or more runs to compare, found none with selected heads (gates.jsonl); name runs that were "
            "trained with pruning, such as the runs heads-* of `mtlprune compare`"
        )
    return [
        RunGroup(label, _with_names([members[label][key] for key in sorted(members[label])]))
        for label in sorted(members, key=label_order)
    ]


def _with_names(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Name the claims of one label by their seeds, and by training seed and half of the data if seeds are ambiguous."""
    names = [str(claim.seed) for claim in claims]
    if len(set(names)) < len(names):
        halves = len({claim.half for claim in claims}) > 1
        names = [f"{claim.seed} on {claim.training}{f', {claim.half}' * halves}" for claim in claims]
    return tuple(replace(claim, name=name) for claim, name in zip(claims, names, strict=True))


def notes(run_groups: Sequence[RunGroup]) -> list[str]:
    """Return caveats about the runs that a reader has to know before trusting the numbers, one sentence each."""
    return [*_notes_of_settings(run_groups), *_notes_of_seeds(run_groups), *_notes_of_gates(run_groups)]


def _notes_of_settings(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield notes on unusual encoders, on settings and data that differ between runs, and on unfinished runs."""
    claims = [claim for run_group in run_groups for claim in run_group.claims]
    yield from filter(None, dict.fromkeys(claim.remarks for claim in claims))
    for run_group in run_groups:
        for path in differing_settings(run_group.claims):
            values = ", ".join(json.dumps(claim.settings.get(path)) for claim in run_group.claims)
            yield f"The seeds of {run_group.label} also differ in {path}: {values}."
    for path in differing_settings(claims):
        labels: dict[str, dict[str, None]] = {}
        for claim in claims:
            labels.setdefault(json.dumps(claim.settings.get(path)), {})[claim.label] = None
        # The loop above has already reported the settings with several values for one label.
        has_one_value_per_label = sum(map(len, labels.values())) == len(run_groups)
        if has_one_value_per_label and not path.startswith("decoders."):
            values = "; ".join(f"{value} ({', '.join(names)})" for value, names in labels.items())
            yield f"Runs differ in tasks and also in {path}: {values}."
    if len({claim.data for claim in claims}) > 1:
        yield "Not all runs were trained on the same data, because the fingerprints of their data differ."
    if unfinished := dict.fromkeys(claim.run for claim in claims if not claim.finished):
        yield f"These runs have not finished training: {', '.join(unfinished)}."


def _notes_of_seeds(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield notes on unequal numbers of seeds, on heads open in exactly half of them, and on bit-identical seeds."""
    if len({len(run_group.claims) for run_group in run_groups}) > 1:
        seeds = ", ".join(f"{run_group.label} {len(run_group.claims)}" for run_group in run_groups)
        yield f"Labels have different numbers of seeds ({seeds}), but every label has the same weight."
    halves = [(c.label, int((2 * c.times == len(c.claims)).sum()), len(c.claims) // 2) for c in run_groups]
    if tied := [f"{label} {heads} (by {seeds})" for label, heads, seeds in halves if heads]:
        yield f"Heads that are open in exactly half of the seeds do not count as claimed: {', '.join(tied)}."
    for run_group in run_groups:
        by_gates: dict[bytes, list[str]] = {}
        for claim in run_group.claims:
            # Other methods choose a mask of 0 and 1, which two seeds can share without being the same run.
            if claim.settings.get("pruning.method") in ("gates", "topk"):
                gates_over_time = np.stack([claim.gates, *(gates for _, gates in claim.history)])
                by_gates.setdefault(gates_over_time.tobytes(), []).append(claim.name)
        for names in by_gates.values():
            if len(names) > 1:
                yield (
                    f"Seeds {' and '.join(names)} of {run_group.label} have bit-identical gates at every evaluation, "
                    "so they are one observation and not several, and their agreement is not informative."
                )


def _notes_of_gates(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield notes on gates strictly between 0 and 1, on ties between gates, and on gates that had not settled."""
    shares = [(c.label, int(((c.gates > 0) & (c.gates < 1)).sum()), c.gates.size) for c in run_groups]
    if partial := [f"{label} {number} of {total} ({number / total:.0%})" for label, number, total in shares if number]:
        yield (
            f"Gates strictly between 0 and 1: {', '.join(partial)}. These heads count as open, although they are "
            "scaled down."
        )
    if tied := [
        f"{c.label}, seed {c.name}: {by_chance(c)[0]} of {c.open.sum()}"
        for group in run_groups
        for c in group.claims
        if tied_heads(c)
    ]:
        yield (
            f"Open heads that were chosen among heads with the same gate: {'; '.join(tied)}. Their gates did not "
            "distinguish heads, so chance decides which of these heads are claimed. Train longer, or with a higher "
            "pruning.rate."
        )
    if moving := [
        f"{c.label}, seed {c.name} ({cause})" for group in run_groups for c in group.claims if (cause := _unsettled(c))
    ]:
        yield f"Gates that had not settled: {'; '.join(moving)}. Their claims might change with more training."


def by_chance(claim: Claim) -> tuple[int, int]:
    """Count the open heads of a run that were chosen by chance, because closed heads had the same gate.

    The gates are compared at the last evaluation at which they differ from the final gates, because final gates of 1
    do not rank their heads. Only heads that are open at this evaluation count.

    Returns:
        The number of open heads whose gate a closed head shared, and the number of all heads with such a gate. Both
        are 0 if gates separate open from closed heads, if all evaluations have the final gates, or if the run was not
        trained with pruning.method=gates and a target number of heads.
    """
    before = [gates for step, gates in claim.history if step <= claim.step and not np.array_equal(gates, claim.gates)]
    if claim.settings.get("pruning.method") != "gates" or not claim.settings.get("pruning.keep") or not before:
        return 0, 0
    last = before[-1]
    shared = np.isin(last, np.intersect1d(last[claim.open], last[~claim.open])) & (last > OPEN_ABOVE)
    return int((shared & claim.open).sum()), int(shared.sum())


def tied_heads(claim: Claim) -> int:
    """Count the heads of a run that share a gate with heads that chance opened (see ``by_chance``).

    The count is 0 if chance hardly matters, which means that it opened at most a twentieth of the open heads, or one.
    """
    chance_count, tie_count = by_chance(claim)
    return tie_count if chance_count > max(1, claim.open.sum() / 20) else 0


def _unsettled(claim: Claim) -> str:
    """Describe why a run's gates had not settled at its best epoch; "" if they had, or if no gates were trained.

    With a target of K heads, gates have not settled if the number of open heads is off by more than max(1, K/20).
    Without a target (penalty "lambda"), they have not settled if the number of open heads changed by more than
    max(1, open/20) since the previous evaluation, or since the start, when all heads are open.
    """
    if claim.settings.get("pruning.method") != "gates":
        return ""
    open_count, keep = int(claim.open.sum()), claim.settings.get("pruning.keep")
    if isinstance(keep, int):
        return f"{open_count} heads were open instead of {keep}" if abs(open_count - keep) > max(1, keep / 20) else ""
    earlier = [gates for step, gates in claim.history if step < claim.step]
    before = int((earlier[-1] > OPEN_ABOVE).sum()) if earlier else claim.gates.size
    return (
        f"{before} heads were open one evaluation before, and {open_count} at the end"
        if abs(open_count - before) > max(1, open_count / 20)
        else ""
    )
