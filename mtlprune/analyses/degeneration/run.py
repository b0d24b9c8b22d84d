"""What ``mtlprune analyze degeneration`` does: read, measure, compare with claims and between decoders, write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtlprune.analyses.claims.groups import Groups, read_groups
from mtlprune.analyses.claims.stem import STEM_TASKS
from mtlprune.analyses.degeneration import claims as degeneration_claims
from mtlprune.analyses.degeneration import pairs as degeneration_pairs
from mtlprune.analyses.degeneration.labels import Decoder, Frequencies, decoders
from mtlprune.analyses.degeneration.results import ROWS, decoder, encoder, write
from mtlprune.analyses.degeneration.survey import Degeneration, DegenerationSettings, survey
from mtlprune.analyses.reading import Reading
from mtlprune.claimed_heads import ClaimError, load_claims

log = logging.getLogger(__name__)


def run(
    reading: Reading,
    corpus: Path,
    settings: DegenerationSettings,
    claims: Sequence[str | Path],
    out: Path,
    say: Callable[[str], None] = log.info,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Measure all subjects and write ``degeneration.json`` and its tables.

    Args:
        corpus: the folder that was read; label frequencies are counted there.
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
    made, notes = _decoders(reading, corpus, settings, say)
    told, more = (None, []) if groups is None else _compared(groups, found, settings)
    pairs = degeneration_pairs.compare(made, settings.permutations, settings.seed)
    degeneration_claims.correct([test for pair in pairs for test in pair["tests"]])
    content = {
        **reading.head(),
        "seed": settings.seed,
        "rows": ROWS,
        "settings": asdict(settings),
        "encoders": [encoder(one, _untuned(found, one)) for one in found],
        "decoders": [decoder(one) for one in made],
        "pairs": pairs,
        "claims": told,
        "notes": [*(note for one in found for note in one.notes), *notes, *more],
    }
    write(out, content, found, made)


def _decoders(
    reading: Reading, corpus: Path, settings: DegenerationSettings, say: Callable[[str], None]
) -> tuple[list[Decoder], list[str]]:
    frequencies = Frequencies(str(corpus), reading.fingerprint)
    found: list[Decoder] = []
    notes: list[str] = []
    for source in reading.sources:
        if source.is_run:
            say(f"decoders of {source.label}, seed {source.seed}")
            made, more = decoders(
                source, reading.sentences, frequencies, settings.seed, settings.permutations, settings.device
            )
            found += made
            notes += more
    if not found and not notes:
        notes.append("No run was named, only encoders; label weights are those of runs.")
    return found, notes


def _untuned(found: Sequence[Degeneration], one: Degeneration) -> Degeneration | None:
    """The encoder that a run began with, where it is among those measured."""
    return next((other for other in found if other is not one and other.run == one.kind), None)


def _compared(
    groups: Groups, found: Sequence[Degeneration], settings: DegenerationSettings
) -> tuple[dict[str, Any], list[str]]:
    """What stands under ``claims``, and notes."""
    tests: list[dict[str, Any]] = []
    entries, notes = [], []
    for one in found:
        if one.kind != groups.encoder or not one.heads or one.heads["gate"].shape != groups.counts.shape:
            notes.append(f"{one.label} ({one.run}) is not compared with claims: they are of {groups.encoder}'s heads.")
            continue
        named = {"encoder": one.label, "seed": one.seed, "run": one.run}
        made = degeneration_claims.compare(groups, one.heads, settings.permutations, settings.seed)
        tests += [named | test for test in made]
        entries.append(
            named
            | {
                "means": degeneration_claims.means(groups, one.heads),
                "cone": degeneration_claims.cone_by_group(groups, one),
            }
        )
    degeneration_claims.correct(tests)
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
        "encoders": entries,
        "tests": tests,
    }, notes
