"""The HTML report on runs: a single file that needs no network, and is complete without JavaScript.

    text = report(Sources(runs, probes=[...], analyses=[...]), Choices(), gold)

The same sources always give the same bytes. The modules of this package compute the numbers and sentences of the
report's parts, ``templates/`` turns them into HTML, and ``assets/`` holds the style sheet and the script, which only
makes the report interactive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The input of a report.

    Attributes:
        runs: the runs.
        probes: folders that `mtlprune analyze probes` wrote.
        analyses: folders that `mtlprune analyze` wrote.
        notes: sentences on missing runs or analyses, which become caveats.
        majority: function that returns the majority baseline of a run's corpus.
    """

    runs: Sequence[RunFolder]
    probes: Sequence[Path] = ()
    analyses: Sequence[Path] = ()
    notes: Sequence[str] = ()
    majority: page_scores.Majority = lambda run, split: {}


@dataclass(frozen=True)
class Choices:
    """Options of a report.

    Attributes:
        title: title; if empty, the names of encoders and corpora.
        split: the split of the scores. If None, it is test for runs that are scored on test, and otherwise dev.
        resamples: number of resamples of each test of scores; 0 for no tests.
        permutations: number of permutations of each test of claims.
    """

    title: str = ""
    split: str | None = None
    resamples: int = 10_000
    permutations: int = 10_000


def report(sources: Sources, choices: Choices, gold: page_scores.Gold) -> str:
    """Return the HTML of a report.

    Args:
        sources: the runs, and the folders of analyses.
        choices: options of the report.
        gold: function that returns the gold sentences of a run's split, for the scores of labels.

    Raises:
        RunError: there are no runs, the runs cannot be compared in one table, or a file is damaged.
    """
    if not sources.runs:
        raise RunError("report: expected at least one run, found none; name runs")
    runs = describe_unique(sources.runs)
    corpora = {run.fingerprint for run in runs}
    # Results are read before the tests of scores are computed, so that a typing error in a path fails at once.
    results = page_analyses.results_of(sources.analyses)
    probes = page_analyses.probes_part(sources.probes, corpora)
    analyses = page_analyses.parts(results, corpora)
    tables, unscored = page_scores.compared(runs, choices.split, choices.resamples, sources.majority)
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
