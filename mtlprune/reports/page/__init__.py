"""One page that says all that is known of some runs: a single HTML file that needs no network and no script.

text = report(Sources(runs, probes=[...], analyses=[...]), Choices(), gold)

Same sources, same bytes. Modules give the numbers and sentences of the parts, templates/ what HTML they become, assets/
style and script; the script only makes the page interactive.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtlprune.reports.page import analyses as page_analyses
from mtlprune.reports.page import curves as page_curves
from mtlprune.reports.page import gates as page_gates
from mtlprune.reports.page import runs as page_runs
from mtlprune.reports.page import scores as page_scores
from mtlprune.reports.page.render import rendered
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import DescribedRun, described_once


@dataclass(frozen=True)
class Sources:
    """Everything that the page is made from."""

    runs: Sequence[RunFolder]
    probes: Sequence[Path] = ()
    """Folders that `mtlprune analyze probes` wrote."""
    analyses: Sequence[Path] = ()
    """Folders that `mtlprune analyze` wrote."""
    notes: Sequence[str] = ()
    """Sentences on what is known to be missing, for the caveats."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Title → task → score of columns that come from no run; they stand in the first table."""


@dataclass(frozen=True)
class Choices:
    """How it is made."""

    title: str = ""
    split: str | None = None
    """Whose scores; None: test where a run is scored on it, else dev."""
    resamples: int = 10_000
    """Resamples of each test; 0 leaves tests out."""
    permutations: int = 10_000
    seed: int = 0


def report(sources: Sources, choices: Choices, gold: page_scores.Gold) -> str:
    """The page.

    Args:
        gold: where per-label scores find the gold sentences.

    Raises:
        RunError: nothing to report, runs that cannot stand side by side, damaged files.
    """
    if not sources.runs:
        raise RunError("a report needs at least one run")
    runs = described_once(sources.runs)
    corpora = {run.fingerprint for run in runs}
    # what else was named is read first: whoever mistyped it need not wait for all tests
    probes = page_analyses.probes_part(sources.probes, corpora)
    analyses = list(page_analyses.parts(sources.analyses, corpora))
    tables, unscored = page_scores.compared(runs, choices.split, choices.resamples, choices.seed, sources.baselines)
    sets, without = page_gates.claim_sets(runs)
    parts = [
        page_runs.part(runs, sources.notes),
        page_scores.part(tables, unscored),
        page_scores.labels_part(tables, gold, choices.resamples, choices.seed),
        page_gates.part(sets, without),
        page_analyses.overlap_part(sets, sources.analyses, choices.permutations, choices.seed),
        probes,
        *analyses,
        page_curves.part(tables, sets),
    ]
    encoders = ", ".join(dict.fromkeys(run.encoder_title.partition(",")[0] for run in runs))
    title = choices.title or f"{encoders} on {', '.join(dict.fromkeys(run.corpus for run in runs))}"
    present = [part for part in parts if part is not None]
    return rendered(title, present, [run.folder.path for run in runs], list(_following(runs, bool(sets), sources)))


def _following(runs: Sequence[DescribedRun], claims: bool, sources: Sources) -> Iterator[tuple[str, str]]:
    """Commands to run next, and why: what these runs lack most for an answer that another seed confirms."""
    trained = [run for run in runs if not run.tree["train"].get("start")]
    seeds = {run.seed for run in trained}
    if 0 < len(seeds) < 3:
        why = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} cannot tell training's chance from tasks; repeat runs"
        once = [run for run in trained if run.seed == max(seeds)]
        more = ",".join(str(max(seeds) + k) for k in range(1, 4 - len(seeds)))
        shown = [Path(run.path) for run in once]
        shown = [Path(path.name) if path.is_absolute() else path for path in shown]  # nobody's page says where it lay
        paths = " ".join(shlex.quote(f"{path}/config.yaml") for path in shown)
        command = f"mtlprune train {paths if len(once) == 1 else '$run'} --seeds {more}"
        yield why, command if len(once) == 1 else f"for run in {paths}; do {command}; done"
    if not claims:
        yield "ask a finished run which heads its task claims", GATES_ON_A_RUN
    if not sources.probes:
        yield "see what heads know", "mtlprune analyze probes ENCODER RUN... --corpus DIR --out DIR"
    if any(run.corpus == "grammar" for run in runs):
        yield "this corpus is generated; bring your own sentences", "mtlprune data build --help"


GATES_ON_A_RUN = (
    "mtlprune train CONFIG train.start=RUN train.freeze=encoder,decoders pruning.method=fisher pruning.keep=K "
    "pruning.importance_of=RUN"
)
