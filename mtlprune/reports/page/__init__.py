"""One page that says all that is known of some runs: a single HTML file that needs no network and no script.

text = report(Sources(runs, probes=[...], analyses=[...], latency=[...]), Choices(), gold)

Same sources, same bytes. Style sheet and script stand beside this file, in page/; the script only makes it interactive.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from mtlprune import __version__
from mtlprune.reports import charts
from mtlprune.reports.page import analyses as page_analyses
from mtlprune.reports.page import curves as page_curves
from mtlprune.reports.page import gates as page_gates
from mtlprune.reports.page import labels as page_labels
from mtlprune.reports.page import latency as page_latency
from mtlprune.reports.page import overlap as page_overlap
from mtlprune.reports.page import probes as page_probes
from mtlprune.reports.page import runs as page_runs
from mtlprune.reports.page import scores as page_scores
from mtlprune.reports.page.html import Html, element, escaped, island, joined, paragraph, plain
from mtlprune.reports.page.parts import Part
from mtlprune.runs import RunError, RunFolder

SCRIPTS = ("page.js", "gates.js", "heads.js", "tables.js")


@dataclass(frozen=True)
class Sources:
    """What the page is made from."""

    runs: Sequence[RunFolder]
    probes: Sequence[Path] = ()
    """Folders that `mtlprune probe` wrote."""
    analyses: Sequence[Path] = ()
    """Folders that `mtlprune analyze` wrote."""
    latency: Sequence[Path] = ()
    """Files latency.json, or run folders that `mtlprune prune` made; those among the runs are found."""
    notes: Sequence[str] = ()
    """What is known to be missing, in sentences, for the caveats."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Title → task → score of columns that come from no run; they stand in the first table."""


@dataclass(frozen=True)
class Choices:
    """How it is made."""

    title: str = ""
    split: str | None = None
    """Whose scores; None: test where a run is scored on it, else dev."""
    resamples: int = 10_000
    """Of each test; 0 leaves tests out."""
    permutations: int = 10_000
    seed: int = 0


def report(sources: Sources, choices: Choices, gold: page_labels.Gold) -> str:
    """The page.

    Args:
        gold: where per-label scores find the gold sentences.

    Raises:
        RunError: nothing to report, runs that cannot stand side by side, damaged files.
    """
    if not sources.runs:
        raise RunError("a report needs at least one run")
    once = {folder.path.resolve(): folder for folder in sources.runs}
    runs = [page_runs.read(folder) for folder in once.values()]
    tables, unscored = page_scores.compared(runs, choices.split, choices.resamples, choices.seed, sources.baselines)
    sets, without = page_gates.claim_sets(runs)
    corpora = {run.manifest["data"]["fingerprint"] for run in runs}
    measured = [run.folder.path for run in runs if (run.folder.path / page_latency.FILE).is_file()]
    parts = [
        page_runs.part(runs, sources.notes),
        page_scores.part(tables, unscored),
        page_labels.part(tables, gold, choices.resamples, choices.seed),
        page_gates.part(sets, without),
        page_overlap.part(sets, choices.permutations, choices.seed),
        page_probes.part(sources.probes, corpora),
        *page_analyses.parts(sources.analyses, corpora),
        page_curves.part(tables, sets),
        page_latency.part([*measured, *sources.latency]),
    ]
    present = [part for part in parts if part is not None]
    return _assembled(choices.title or _title(runs), [*present, _caveats(present)])


def _title(runs: Sequence[page_runs.ReadRun]) -> str:
    encoders = list(dict.fromkeys(run.encoder.partition(",")[0] for run in runs))
    data = dict.fromkeys(
        str(run.manifest["data"].get("name", run.tree.get("data", {}).get("path", ""))) for run in runs
    )
    return f"{', '.join(encoders)} on {', '.join(data)}"


def _caveats(parts: Sequence[Part]) -> Part:
    """The log of caveats: what every part said of its own limits."""
    said = [(part, part.caveats) for part in parts if part.caveats]
    if not said:
        return Part("caveats", "Caveats", paragraph("No part of this page found anything to warn of."))
    groups = [
        joined(
            element("h3", element("a", part.title, href=f"#{part.key}")),
            element("ul", *(element("li", line) for line in dict.fromkeys(lines))),
        )
        for part, lines in said
    ]
    first = paragraph("What these numbers cannot show, as found in the data: nothing here was written by hand.")
    return Part("caveats", "Caveats", joined(first, groups))


def _assembled(title: str, parts: Sequence[Part]) -> str:
    folder = files("mtlprune.reports") / "page"
    style = (folder / "page.css").read_text(encoding="utf-8")
    body = joined(map(_section, parts))
    has_charts = '<figure class="chart">' in body
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in (*SCRIPTS, *["chart.js"] * has_charts))
    script += f"\n{charts.script()}" if has_charts else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    data = island("data", plain({part.key: part.data for part in parts if part.data}))
    template = (folder / "page.html").read_text(encoding="utf-8")
    pieces = {
        "policy": escaped(policy),
        "title": escaped(title),
        "style": style,
        "contents": _contents(parts),
        "found": _found(parts),
        "parts": body,
        "foot": f"Made by mtlprune {escaped(__version__)}. This file needs no network and sends nothing.",
        "data": data,
        "script": script,
    }
    split = re.split(r"<!--(\w+)-->", template)  # every second one names a piece; no piece is looked into again
    return "".join(pieces[part] if place % 2 else part for place, part in enumerate(split))


def _contents(parts: Sequence[Part]) -> Html:
    entries = (element("li", element("a", part.title, href=f"#{part.key}")) for part in parts)
    return element("ol", *entries)


def _found(parts: Sequence[Part]) -> Html:
    lines = [joined(line, " ", element("a", part.title, href=f"#{part.key}")) for part in parts for line in part.found]
    return element("ul", *(element("li", line) for line in lines), class_="found") if lines else Html("")


def _section(part: Part) -> Html:
    heading = element("h2", part.title, id=f"{part.key}-title")
    return element("section", heading, part.body, id=part.key, aria_labelledby=f"{part.key}-title", class_="part")
