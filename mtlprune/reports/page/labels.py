"""Losses and gains of joint training, label by label: stored predictions beside the gold of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mtlprune.reports.charts import DOZEN, Interval, figure, forest, panels
from mtlprune.reports.grid import number, probability
from mtlprune.reports.page.render import Part
from mtlprune.reports.page.scores import Scored
from mtlprune.reports.scores.comparisons import ScoreColumn
from mtlprune.reports.scores.layouts import span
from mtlprune.reports.sections import Figure, Rows
from mtlprune.runs import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.label_scores import FEW, LabelDifference, compare_counted, count_labels
from mtlprune.statistics.significance import LEVEL

LabelsBySentence = dict[str, dict[str, tuple[int, int, int]] | None]
Gold = Callable[[str, str, str], Sequence[Sentence]]
"""Folder of a run, fingerprint of its data, split → gold sentences. Raises RunError where they are not to be had."""


@dataclass(frozen=True)
class _Contrast:
    """A joint setting beside the single-task one that the table compares it with."""

    scored: Scored
    joint: ScoreColumn
    single: ScoreColumn

    @property
    def title(self) -> str:
        return f"{self.joint.title} − {self.single.title}, {self.scored.title}"


def part(tables: Sequence[Scored], gold: Gold, resamples: int, seed: int) -> Part | None:
    """The part of the page; None where nothing was trained jointly beside single tasks, or tests are not wanted.

    Args:
        resamples: of every test.
    """
    contrasts = [contrast for scored in tables for contrast in _contrasts(scored)]
    if not contrasts or not resamples:
        return None
    several, shown, caveats, found = len(contrasts) > 1, [], [], []
    for contrast in contrasts:
        made: dict[str, list[LabelDifference]] = {}
        for task in contrast.scored.comparison.tasks():
            try:
                if rows := _compared(contrast, task, gold, resamples, seed):
                    made[task] = rows
            except RunError as error:
                caveats.append(f"No labels of {task.upper()}, {contrast.title}: {error}")
        if made:
            shown.append(_one(contrast, made))
            found.append(_found(made, f" ({contrast.title})" if several else ""))
            if few := sum(row.few for rows in made.values() for row in rows):
                caveats.append(_few(contrast, few, sum(map(len, made.values()))))
    return Part("labels", "Labels lost and gained", {"contrasts": shown, "several": several}, caveats, found)


def _contrasts(scored: Scored) -> Iterator[_Contrast]:
    """Joint settings of three tasks or more that are not pruned; where there are none, pairs of tasks."""
    comparison = scored.comparison
    pairs = [(comparison.columns[place], comparison.columns[other]) for place, other in comparison.against.items()]
    joint = [(a, b) for a, b in pairs if len(a.runs[0].tasks) > 1 and not a.runs[0].pruning]
    many = [(a, b) for a, b in joint if len(a.runs[0].tasks) > 2]
    for first, second in many or joint:
        yield _Contrast(scored, first, second)


def _compared(contrast: _Contrast, task: str, gold: Gold, resamples: int, seed: int) -> list[LabelDifference]:
    """Raises RunError where predictions or gold are missing, or do not belong together."""
    split = contrast.scored.comparison.split
    joint, single = contrast.joint.runs_of(task), contrast.single.runs_of(task)
    if not joint or not single:
        return []
    uncounted = [run for run in (*joint, *single) if not RunFolder(run.path).has_labels(split)]
    truth = gold(uncounted[0].path, uncounted[0].data, split) if uncounted else ()
    sides = [[_counted(RunFolder(run.path), split, task, truth) for run in side] for side in (joint, single)]
    first = sides[0][0]
    for run, counted in zip([*joint, *single], [*sides[0], *sides[1]], strict=True):
        if counted.keys() != first.keys():
            raise RunError(f"{joint[0].path} and {run.path} were not scored on the same sentences of {split}")
    rows = [[[counted[name] for name in first] for counted in side] for side in sides]
    return compare_counted(rows[0], rows[1], resamples, seed)


def _counted(folder: RunFolder, split: str, task: str, truth: Sequence[Sentence]) -> LabelsBySentence:
    """Sentence → counts of its labels, as a record has them, or from predictions beside the gold."""
    if folder.has_labels(split):
        return folder.read_labels(split, task)
    predicted = _predicted(folder, split, truth)
    try:
        return {g.id: count_labels(task, g, p) for g, p in zip(truth, predicted, strict=True)}
    except ValueError as error:
        raise RunError(
            f"predictions on {split} cannot be compared ({error}); `mtlprune evaluate` writes them anew"
        ) from None


def _predicted(folder: RunFolder, split: str, truth: Sequence[Sentence]) -> list[Sentence]:
    found = {sentence.id: sentence for sentence in folder.read_predictions(split)}
    missing = [sentence.id for sentence in truth if sentence.id not in found]
    if missing or len(found) != len(truth):
        raise RunError(
            f"{folder.path} has predictions of {len(found)} sentences of {split}, the corpus has {len(truth)}"
            + (f" (first without one: {missing[0]})" if missing else "")
        )
    return [found[sentence.id] for sentence in truth]


def _one(contrast: _Contrast, made: dict[str, list[LabelDifference]]) -> dict[str, Any]:
    plots, words = [], []
    for task, rows in made.items():
        if drawn := [_drawn(row) for row in rows if not row.few]:
            most = f", {DOZEN} most frequent of {len(rows)} labels" if len(rows) > DOZEN else ""
            plots.append(forest(drawn, title=f"{task.upper()}{most}", width=180))
            told = "; ".join(one.told for one in drawn[:DOZEN])
            words.append(f"{task.upper()}: F1 of joint minus single-task training by label. {told}.")
    shown = Figure(figure(panels(plots, 3)), " ".join(words)) if plots else None
    columns = ["task", "label", "items", "joint F1", "single F1", "Δ", "95 % interval", "p", "q"]
    cells = [_row(task, row) for task, each in made.items() for row in each]
    table = Rows(columns, cells, f"Labels, {contrast.title}", columns[2:])
    return {"title": contrast.title, "forest": shown, "table": table}


def _drawn(row: LabelDifference) -> Interval:
    low, high = row.found.low, row.found.high
    told = f"{row.label}: {row.found.delta:+.1f} {span(low, high)}, {row.items} items"
    name = row.label if any(c.isalnum() or c in "$#" for c in row.label) else f"“{row.label}”"
    return Interval(name, row.found.delta, low, high, row.q < LEVEL, told)


def _row(task: str, row: LabelDifference) -> list[str]:
    tested = "–" if row.few else probability(row.q)
    delta = f"{row.found.delta:+.1f}".replace("-", "−")
    between = span(row.found.low, row.found.high).replace("-", "−")
    label = row.label + ("°" if row.few else "")
    numbers = [str(row.items), number(row.joint, 1), number(row.single, 1), delta, between]
    return [task.upper(), label, *numbers, "–" if row.few else probability(row.found.p), tested]


def _few(contrast: _Contrast, few: int, of: int) -> str:
    return (
        f"{contrast.title}: {few} of {of} labels have fewer than {FEW} gold items; they are marked ° and not tested. "
        "The q of the others is corrected (Benjamini and Hochberg) within a task, not over tasks."
    )


def _found(made: dict[str, list[LabelDifference]], where: str) -> str:
    sure = [(task, row) for task, rows in made.items() for row in rows if row.q < LEVEL]
    tested = sum(not row.few for rows in made.values() for row in rows)
    lost = sorted((row.found.delta, task.upper(), row.label) for task, row in sure if row.found.delta < 0)
    gained = sum(row.found.delta > 0 for _, row in sure)
    most = ", ".join(f"{task} {label} ({delta:+.1f})".replace("-", "−", 1) for delta, task, label in lost[:3])
    return (
        f"Of {tested} labels with enough items, joint training loses {len(lost)} and gains {gained} beyond the chance "
        "of sentences, of these runs" + where + (f"; it loses most on {most}." if most else ".")
    )
