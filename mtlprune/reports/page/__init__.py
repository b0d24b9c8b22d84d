"""One page that says all that is known of some runs: a single HTML file that needs no network and no script.

text = report(Sources(runs, probes=[...], analyses=[...]), Choices(), gold)

Same sources, same bytes. Modules give the numbers and sentences of the parts, templates/ what HTML they become, assets/
style and script; the script only makes the page interactive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtlprune.reports.page import analyses as page_analyses
from mtlprune.reports.page import claims as page_claims
from mtlprune.reports.page import curves as page_curves
from mtlprune.reports.page import runs as page_runs
from mtlprune.reports.page import scores as page_scores
from mtlprune.reports.page.first_screen import first_screen
from mtlprune.reports.page.render import rendered
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import describe_unique


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
    """The title, the split and the sizes of tests of a page."""

    title: str = ""
    split: str | None = None
    """The split of the scores; None: test where a run is scored on it, else dev."""
    resamples: int = 10_000
    """Resamples of each test; 0 leaves tests out."""
    permutations: int = 10_000


def report(sources: Sources, choices: Choices, gold: page_scores.Gold) -> str:
    """The page.

    Args:
        gold: where per-label scores find the gold sentences.

    Raises:
        RunError: nothing to report, runs that cannot stand side by side, damaged files.
    """
    if not sources.runs:
        raise RunError("report: expected at least one run, found none; name runs")
    runs = describe_unique(sources.runs)
    corpora = {run.fingerprint for run in runs}
    # what else was named is read first: whoever mistyped it need not wait for all tests
    results = page_analyses.results_of(sources.analyses)
    probes = page_analyses.probes_part(sources.probes, corpora)
    analyses = page_analyses.parts(results, corpora)
    tables, unscored = page_scores.compared(runs, choices.split, choices.resamples, sources.baselines)
    all_selections, notes_of_missing = page_claims.selections(runs, results, choices.permutations)
    parts = [
        page_scores.part(tables, unscored),
        page_scores.labels_part(tables, gold, choices.resamples),
        page_claims.part(all_selections, notes_of_missing),
        probes,
        *analyses,
        page_runs.part(runs, sources.notes),
        page_curves.part(tables),
    ]
    encoders = ", ".join(dict.fromkeys(run.encoder_title.partition(",")[0] for run in runs))
    title = choices.title or f"{encoders} on {', '.join(dict.fromkeys(run.corpus for run in runs))}"
    first = first_screen(title, runs, tables, all_selections, results)
    return rendered(title, first, [part for part in parts if part is not None], [run.folder.path for run in runs])
