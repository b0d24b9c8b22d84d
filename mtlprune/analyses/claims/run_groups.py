"""Claims grouped by label: a run_group is a task (or a joint setting) with all its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtlprune.claimed_heads import OPEN_ABOVE, Claim, ClaimError, is_joint
from mtlprune.layers import layer_order


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All claims of one label, by rising seed."""

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
        ClaimError: no claim; or two claims of one label with the same seed, which are no two seeds.
    """
    members: dict[str, dict[int, Claim]] = {}
    for claim in claims:
        duplicate = members.setdefault(claim.label, {}).setdefault(claim.seed, claim)
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
        RunGroup(label, tuple(seeds[seed] for seed in sorted(seeds)))
        for label, seeds in sorted(members.items(), key=lambda item: _order(item[0]))
    ]


def _order(label: str) -> tuple[bool, int, str, int, str]:
    shared, _, task = label.partition(":")
    size = int(shared[4:]) if shared.startswith("MTL-") else shared.count("+") + 1
    own = task or shared
    return is_joint(label), size, shared if task else "", _layer(own), own


def _layer(label: str) -> int:
    return -1 if is_joint(label) else layer_order(label.lower())[0]


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
    return [*found, *_identical(run_groups), *_fractional(run_groups), *_unsettled(run_groups)]


def _identical(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Seeds of a label that have the same gates to the last bit: one observation that is counted as several."""
    for run_group in run_groups:
        by_gates: dict[bytes, list[Claim]] = {}
        for claim in run_group.claims:
            every = [claim.gates, *(gates for _, gates in claim.history)]
            by_gates.setdefault(np.stack(every).tobytes(), []).append(claim)
        for same in by_gates.values():
            if len(same) > 1:
                seeds = " and ".join(str(claim.seed) for claim in same)
                yield (
                    f"Seeds {seeds} of {run_group.label} have bit-identical gates at every evaluation, so they are one "
                    "observation, not several: their agreement says nothing."
                )


def _fractional(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """How many gates are neither 0 nor 1."""
    shares = [(c.label, int(((c.gates > 0) & (c.gates < 1)).sum()), c.gates.size) for c in run_groups]
    said = [f"{label} {number} of {of} ({number / of:.0%})" for label, number, of in shares if number]
    if said:
        yield (
            f"Gates strictly between 0 and 1: {', '.join(said)}. Such heads count as open here, though they are scaled "
            "down, not kept or removed."
        )


def _unsettled(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Runs whose gates had not arrived at what the penalty steers to when they were read."""
    said = [
        f"{claim.label}, seed {claim.seed} ({reason})"
        for run_group in run_groups
        for claim in run_group.claims
        if (reason := unsettled(claim))
    ]
    if said:
        yield f"Gates that had not settled: {'; '.join(said)}. What they claim may still have changed."


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
