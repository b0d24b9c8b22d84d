"""The section of scores in the HTML report: tables of scores, tests and plots of their differences, and the same label
by label.

Tables have a row for each setting and a column for each task. The scores of labels come from stored predictions, which
are compared with the gold annotation of the corpus.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mtlprune.errors import plural
from mtlprune.figures.charts import MAX_FOREST_ROWS, Interval, figure, forest, panels
from mtlprune.figures.grid import Grid, number, probability, shown_label
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page.render import Part, forest_figure
from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.reports.scores.tables import (
    MORE_TRAINING_MARK,
    Comparison,
    details,
    heads,
    notes,
    score,
    span,
    tested_difference,
    tests_legend,
)
from mtlprune.reports.scores.tables import legend as table_legend
from mtlprune.runs.columns import ScoreColumn
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import DescribedRun
from mtlprune.sentence import Sentence
from mtlprune.statistics.labels import FEW_ITEMS, LabelDifference, compare_counted, count_labels
from mtlprune.statistics.standard_errors import LEVEL

_UNKNOWN = " The majority baseline is not known, because the corpus is not available."
_LabelsBySentence = dict[str, dict[str, tuple[int, int, int]] | None]
"""Sentence → label → numbers of its correct, gold and predicted items, or sentence → None without gold annotation."""
Gold = Callable[[str, str, str], Sequence[Sentence]]
"""Function of the folder of a run, the fingerprint of its data, and a split that returns the gold sentences. It raises
RunError if they are not available."""
Majority = Callable[[RunFolder, str], Mapping[str, float]]
"""Function of a run and a split that returns task → main score of the majority baseline of the run's corpus, which is
empty if it is not known."""


@dataclass(frozen=True)
class Scored:
    """A table of runs with the same data, scored on the same split.

    Attributes:
        data: name of the corpus.
        chose: whether the best epoch of a run was chosen by its score on this split.
        comparison: the scores, with tests of their differences.
    """

    data: str
    chose: bool
    comparison: Comparison

    @property
    def title(self) -> str:
        """Corpus and split."""
        return f"{self.data}, {self.comparison.split}"


def compared(
    runs: Sequence[DescribedRun],
    split: str | None,
    resamples: int,
    majority: Majority = lambda run, split: {},
) -> tuple[list[Scored], list[str]]:
    """Make a table for each corpus and split, with tests of differences.

    Args:
        runs: the runs.
        split: split of the scores. If None, it is test for runs that are scored on test, and otherwise their dev split.
        resamples: number of resamples of each test; 0 for no tests.
        majority: function that returns the majority baseline of a table.

    Returns:
        the tables, and sentences on runs that have no table or a separate one.

    Raises:
        RunError: runs that cannot be compared in one table (`in_columns` says why), or a damaged file.
    """
    groups: dict[tuple[str, str], list[DescribedRun]] = {}
    unscored: dict[str, list[DescribedRun]] = {}
    for run in runs:
        splits = [name for name in run.folder.splits() if "." not in name]
        chosen_split = split if split is not None else "test" if "test" in splits else run.config.data.dev
        if chosen_split in splits:
            groups.setdefault((run.fingerprint, chosen_split), []).append(run)
        else:
            unscored.setdefault(chosen_split, []).append(run)
    if split is not None and not groups:
        scored = (
            ", ".join(dict.fromkeys(name for run in runs for name in run.folder.splits() if "." not in name)) or "none"
        )
        raise RunError(
            f"expected a split on which a run is scored, found {split!r} (scored: {scored}); correct --split"
        )
    left_out = [_note_unscored(split_runs, name, "no table has") for name, split_runs in unscored.items()]
    if split is None and len({name for _, name in groups}) > 1:
        other_runs = [run for (_, name), group in groups.items() if name != "test" for run in group]
        left_out.append(_note_unscored(other_runs, "test", "separate tables have"))
    tables: list[Scored] = []
    for (_, name), group in sorted(groups.items(), key=lambda item: (item[0][1] != "test", item[0])):
        baseline = majority(group[0].folder, name)
        comparison = compare(group, name, {"majority": baseline} if baseline else {})
        if resamples and comparison.against:
            comparison = with_tests(comparison, resamples)
        chose = any(run.config.data.dev == name for run in group)
        tables.append(Scored(group[0].corpus, chose, comparison))
    return tables, left_out


def _note_unscored(runs: Sequence[DescribedRun], split: str, location: str) -> str:
    """Return a sentence on runs that are not scored on a split, with the command that scores them. ``location``: what
    happens to these runs, such as "no table has"."""
    paths, is_plural = [str(run.path) for run in runs], len(runs) > 1
    runs_text = f"{len(paths)} runs are" if is_plural else f"{paths[0]} is"
    command = f"mtlprune evaluate {shlex.join(paths)} --split {split}"
    pronoun = "them" if is_plural else "it"
    return f"{runs_text} not scored on {split}, so {location} {pronoun}; this command scores the rest: {command}"


def part(tables: Sequence[Scored], left_out: Sequence[str]) -> Part:
    """Return the part of the report on scores. ``left_out``: sentences on runs without a table."""
    caveats = list(left_out)
    for scored in tables:
        prefix = f"{scored.title}: " if len(tables) > 1 else ""
        caveats += [f"{prefix}{line}" for line in notes(scored.comparison)]
        if scored.chose:
            caveats.append(
                f"{prefix}Scores are those of the split that also chose the best epoch, so they are a little too high. "
                "Differences are affected less, because every setting was chosen in the same way."
            )
    return Part(
        "table",
        "",
        {"tables": list(map(_render_table, tables)), "left_out": left_out},
        "scores",
        caveats,
        template="scores",
    )


def _render_table(scored: Scored) -> dict[str, Any]:
    """Return the values of the template for a table: scores, pairs of tasks, legend, and the tests with their plot."""
    comparison = scored.comparison
    indices = range(len(comparison.columns))
    pairs = [index for index in indices if comparison.columns[index].in_triangle]
    score_indices = [index for index in indices if index not in pairs] or pairs
    content: dict[str, Any] = {
        "title": scored.title,
        "scores": _scores(comparison, score_indices, scored.title),
        "pairs": _scores(comparison, pairs, f"pairs of tasks, {scored.title}")
        if score_indices != pairs and pairs
        else None,
        "legend": table_legend(comparison, intervals=False)
        + _UNKNOWN * (not any(column.extra for column in comparison.columns)),
        "forest": None,
    }
    if comparison.tests:
        caption = (
            "Differences are in points, with 95 % intervals over seeds and sentences (with one run, over "
            "sentences only). Filled dots are significant over both after Holm's correction within a question, which "
            "is not possible with one run."
        )
        differences = list(_differences(comparison))
        content["forest"] = forest_figure(differences, "Differences", "difference, points", caption, 420)
        content["details"] = replace(details(comparison), title="Tests of differences")
        content["tests_legend"] = tests_legend(comparison)
    return content


def _scores(comparison: Comparison, indices: Sequence[int], name: str) -> Grid:
    """Return a table with a row for each setting and a column for each task. ``indices``: indices of the settings in
    ``comparison.columns``."""
    tasks, has_encoders = comparison.tasks(), len(comparison.encoders()) > 1
    pruned = any(run.heads for column in comparison.columns for run in column.runs)
    columns = [*(["encoder"] if has_encoders else []), "setting", *(["heads"] if pruned else []), "n"]
    columns += ["\n".join(filter(None, comparison.row_title(task).split(" ", 1))) for task in tasks]
    rows = []
    for index in indices:
        column = comparison.columns[index]
        numbers = [len(column.values(task)) for task in tasks if column.values(task)]
        seeds_text = str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}" if numbers else "–"
        row = [*([column.encoder] if has_encoders else []), column.title, *([_heads(column, tasks)] if pruned else [])]
        rows.append([*row, seeds_text, *(_cell(comparison, index, task) for task in tasks)])
    return Grid(columns, rows, 1 + has_encoders + pruned, f"Scores, {name}")


def _heads(column: ScoreColumn, tasks: Sequence[str]) -> str:
    """Return the numbers of open heads of a setting, or "all"."""
    counts = dict.fromkeys(heads(column, task) for task in tasks if column.runs_of(task))
    return ", ".join(counts) if counts and set(counts) != {"–"} else "all"


def _cell(comparison: Comparison, index: int, task: str) -> str:
    """Return the cell of a setting and task: the score, and on a second line the difference from the reference."""
    columns = comparison.columns
    if not columns[index].values(task):
        return "–"
    rivals = {p for p, c in enumerate(columns) if c.values(task) and c.encoder in ("", columns[index].encoder)}
    text = score(comparison, rivals, index, task)
    if index not in comparison.against or not columns[comparison.against[index]].values(task):
        return text
    return type(text)(f"{text}\n{tested_difference(comparison, index, task, interval=False)}".replace("-", "−"))


def _differences(comparison: Comparison) -> Iterator[Interval]:
    """Yield all tested differences. Settings with the most tasks come first, and settings without pruning before
    others."""

    def order(entry: tuple[int, str]) -> tuple[int, bool, int, int]:
        run = comparison.columns[entry[0]].runs[0]
        return -len(run.tasks), bool(run.pruning), entry[0], comparison.tasks().index(entry[1])

    has_encoders = len(comparison.encoders()) > 1
    for index, task in sorted(comparison.tests, key=order):
        test = comparison.tests[index, task]
        column, reference = comparison.columns[index], comparison.columns[comparison.against[index]]
        difference = test.difference
        encoder_suffix = f", {column.encoder}" if has_encoders else ""
        marker = MORE_TRAINING_MARK if comparison.more_training(index, task) else ""
        title = f"{column.title}{marker} − {reference.title}{encoder_suffix}"
        one_seed = not difference.has_seeds
        text = (
            f"{task.upper()}, {title}: {difference.delta:+.2f}, 95 % interval over "
            f"{'sentences' if one_seed else 'seeds and sentences'} {span(*test.interval)}, "
            f"p (Holm) {probability(test.p_holm if one_seed else test.wide_p_holm)}"
        )
        yield Interval(f"{task.upper()}, {title}", difference.delta, *test.interval, test.significant, text)


# -- labels -----------------------------------------------------------------------------------------------------------


class _Contrast(NamedTuple):
    """A joint setting and the single-task setting with which the table compares it."""

    title: str
    scored: Scored
    joint: ScoreColumn
    single: ScoreColumn


def labels_part(tables: Sequence[Scored], gold: Gold, resamples: int) -> Part | None:
    """Return the part of the report on labels, or None without joint and single-task training to compare, or without
    tests.

    Args:
        tables: tables of scores.
        gold: function that returns gold sentences.
        resamples: number of resamples of each test; 0 for no tests.
    """
    contrasts = [contrast for scored in tables for contrast in _contrasts(scored)]
    if not contrasts or not resamples:
        return None
    has_contrasts, contrasts_shown, caveats, findings = len(contrasts) > 1, [], [], []
    for contrast in contrasts:
        by_task: dict[str, list[LabelDifference]] = {}
        for task in contrast.scored.comparison.tasks():
            try:
                if rows := _compared(contrast, task, gold, resamples):
                    by_task[task] = rows
            except RunError as error:
                caveats.append(f"There are no labels of {task.upper()} in {contrast.title}: {error}")
        if by_task:
            contrasts_shown.append(_one_contrast(contrast, by_task))
            findings.append(_labels_found(by_task, f" ({contrast.title})" if has_contrasts else ""))
            if rare_count := sum(row.is_rare for rows in by_task.values() for row in rows):
                caveats.append(
                    f"{contrast.title}: {rare_count} of {sum(map(len, by_task.values()))} labels have fewer than "
                    f"{FEW_ITEMS} gold items, and are marked ° and not tested. The q of the other labels is corrected "
                    "(Benjamini and Hochberg) within a task, not over tasks."
                )
    holds = {"contrasts": contrasts_shown, "several": has_contrasts}
    return Part("labels", "Labels lost and gained", holds, "scores", caveats, findings, folded=has_contrasts)


def _contrasts(scored: Scored) -> Iterator[_Contrast]:
    """Yield the joint settings without pruning that have three tasks or more or, if there are none, the pairs of
    tasks."""
    comparison = scored.comparison
    pairs = [
        (comparison.columns[index], comparison.columns[reference]) for index, reference in comparison.against.items()
    ]
    joint = [(a, b) for a, b in pairs if len(a.runs[0].tasks) > 1 and not a.runs[0].pruning]
    larger_joint = [(a, b) for a, b in joint if len(a.runs[0].tasks) > 2]
    for first, second in larger_joint or joint:
        yield _Contrast(f"{first.title} − {second.title}, {scored.title}", scored, first, second)


def _compared(contrast: _Contrast, task: str, gold: Gold, resamples: int) -> list[LabelDifference]:
    """Compare joint with single-task training on each label of a task.

    Raises:
        RunError: predictions or gold sentences are missing, or do not match.
    """
    split = contrast.scored.comparison.split
    joint, single = contrast.joint.runs_of(task), contrast.single.runs_of(task)
    if not joint or not single:
        return []
    uncounted = [run for run in (*joint, *single) if not run.folder.has_labels(split)]
    truth = gold(uncounted[0].path, uncounted[0].fingerprint, split) if uncounted else ()
    sides = [[_counted_labels(run.folder, split, task, truth) for run in side] for side in (joint, single)]
    first = sides[0][0]
    for run, run_counts in zip([*joint, *single], [*sides[0], *sides[1]], strict=True):
        if run_counts.keys() != first.keys():
            raise RunError(f"{joint[0].path} and {run.path} were not scored on the same sentences of {split}")
    rows = [[[run_counts[name] for name in first] for run_counts in side] for side in sides]
    return compare_counted(rows[0], rows[1], resamples)


def _counted_labels(folder: RunFolder, split: str, task: str, truth: Sequence[Sentence]) -> _LabelsBySentence:
    """Return the counts of labels by sentence, which a study stores, or which are counted from predictions and gold.
    ``truth``: the gold sentences of the split, if the run stores no counts of labels.

    Raises:
        RunError: predictions are missing, or are not those of the sentences that were scored.
    """
    if folder.has_labels(split):
        return folder.read_labels(split, task)
    pairs = folder.gold_and_predicted(split, truth)
    return {gold.id: count_labels(task, gold, predicted) for gold, predicted in pairs}


def _one_contrast(contrast: _Contrast, by_task: dict[str, list[LabelDifference]]) -> dict[str, Any]:
    """Return the values of the template for a joint setting: a forest plot of labels and a table of all labels."""
    plots, words = [], []
    for task, rows in by_task.items():
        if intervals := [_interval_of_row(row) for row in rows if not row.is_rare]:
            frequency_note = (
                f", the {MAX_FOREST_ROWS} most frequent of {len(intervals)} labels"
                if len(intervals) > MAX_FOREST_ROWS
                else ""
            )
            plots.append(forest(intervals, title=f"{task.upper()}{frequency_note}", width=180))
            text = "; ".join(interval.words for interval in intervals[:MAX_FOREST_ROWS])
            words.append(f"{task.upper()}: F1 of joint minus single-task training by label. {text}.")
    figure_or_none = Figure(figure(panels(plots, 3)), " ".join(words)) if plots else None
    columns = ["task", "label", "items", "joint F1", "single F1", "Δ", "95 % interval", "p", "q"]
    cells = [_row(task, row) for task, rows_of_task in by_task.items() for row in rows_of_task]
    table = Grid(columns, cells, 2, f"Labels, {contrast.title}")
    return {"title": contrast.title, "forest": figure_or_none, "table": table}


def _interval_of_row(row: LabelDifference) -> Interval:
    low, high = row.difference.low, row.difference.high
    text = f"{row.label}: {row.difference.delta:+.1f} {span(low, high)}, {plural(row.items, 'item')}"
    return Interval(shown_label(row.label), row.difference.delta, low, high, row.q < LEVEL, text)


def _row(task: str, row: LabelDifference) -> list[str]:
    tested = "–" if row.is_rare else probability(row.q)
    delta = f"{row.difference.delta:+.1f}".replace("-", "−")
    interval_text = span(row.difference.low, row.difference.high).replace("-", "−")
    label = row.label + ("°" if row.is_rare else "")
    numbers = [str(row.items), number(row.joint, 1), number(row.single, 1), delta, interval_text]
    return [task.upper(), label, *numbers, "–" if row.is_rare else probability(row.difference.p), tested]


def _labels_found(by_task: dict[str, list[LabelDifference]], location: str) -> str:
    """Return a sentence with the numbers of labels that joint training makes better or worse."""
    significant = [(task, row) for task, rows in by_task.items() for row in rows if row.q < LEVEL]
    tested = sum(not row.is_rare for rows in by_task.values() for row in rows)
    losses = sorted(
        (row.difference.delta, task.upper(), row.label) for task, row in significant if row.difference.delta < 0
    )
    gained = sum(row.difference.delta > 0 for _, row in significant)
    worst_labels = ", ".join(f"{task} {label} ({delta:+.1f})".replace("-", "−", 1) for delta, task, label in losses[:3])
    return (
        f"Of {tested} labels with enough items, joint training loses F1 on {len(losses)} and gains F1 on {gained} "
        "beyond the chance of sentences, in these runs"
        + location
        + (f"; the largest losses are those of {worst_labels}." if worst_labels else ".")
    )
