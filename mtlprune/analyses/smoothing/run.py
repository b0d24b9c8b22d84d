"""What ``mtlprune analyze smoothing`` does: read, measure, compare with claims, write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtlprune.analyses.claims.stem import STEM_TASKS
from mtlprune.analyses.reading import Reading
from mtlprune.analyses.smoothing.claims import Groups, compare, correct, read_groups
from mtlprune.analyses.smoothing.results import summary, write
from mtlprune.analyses.smoothing.survey import Settings, Smoothing, survey
from mtlprune.claimed_heads import ClaimError, load_claims

log = logging.getLogger(__name__)

PERMUTATIONS = 10_000
"""Of heads within layers."""


def run(
    reading: Reading,
    settings: Settings,
    claims: Sequence[str | Path],
    out: Path,
    say: Callable[[str], None] = log.info,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Measure all subjects and write ``smoothing.json`` and ``sentences.parquet``.

    Args:
        claims: run folders with gates; none for no comparison.
        say, tick: told of each subject, called after each batch.

    Raises:
        ClaimError: claims that cannot be read, or that are of no encoder that is measured.
        EncoderError, RunError: a subject cannot be loaded.
    """
    groups = read_groups(load_claims(claims)) if claims else None
    if groups is not None and all(source.kind != groups.encoder for source in reading.sources):
        raise ClaimError(
            f"the claims are of {groups.encoder}, but none of the encoders to be measured is that one or began with it "
            f"({', '.join(sorted({source.kind for source in reading.sources}))}); heads of different encoders do not "
            "correspond"
        )
    found = survey(reading, settings, say, tick)
    told, notes = (None, []) if groups is None else _compared(groups, found, settings.seed)
    head = {**reading.head(), "seed": settings.seed}
    content = summary(found, head, {**asdict(settings), "head_permutations": PERMUTATIONS}, told, notes)
    write(out, content, found, [sentence.id for sentence in reading.sentences])


def _compared(groups: Groups, found: Sequence[Smoothing], seed: int) -> tuple[dict[str, Any], list[str]]:
    """What stands under ``claims``, and notes."""
    entries: list[dict[str, Any]] = []
    notes = []
    for one in found:
        if one.kind != groups.encoder or one.heads["gate"].shape != groups.counts.shape:
            notes.append(f"{one.label} ({one.run}) is not compared with claims: they are of {groups.encoder}'s heads.")
            continue
        shut = int((one.heads["gate"] <= 1e-3).sum())
        if shut:
            notes.append(
                f"{one.label} ({one.run}) has {shut} heads shut; they take no part in its comparison with claims, so "
                "free heads may be missing."
            )
        tests = compare(groups, one.heads, PERMUTATIONS, seed)
        entries += [{"encoder": one.label, "seed": one.seed, "run": one.run} | test for test in tests]
    correct(entries)
    if len(groups.labels) < STEM_TASKS:
        notes.append(
            f"Claims are of {', '.join(groups.labels)} only, and a stem head is claimed by {STEM_TASKS} single tasks "
            "or more, so there are none."
        )
    sizes = {name: int(groups.of(name).sum()) for name in ("stem", "exclusive", "free")}
    return {
        "encoder": groups.encoder,
        "tasks": list(groups.labels),
        "groups": sizes,
        "counts": groups.counts.tolist(),
        "gates": {label: gates.tolist() for label, gates in groups.gates.items()},
        "tests": entries,
    }, notes
