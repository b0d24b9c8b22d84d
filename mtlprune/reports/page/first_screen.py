"""The first screen of the HTML report: three verdicts, a map of claimed heads for all tasks, a plot of what joint
training costs each task, and commands for further steps."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlprune.config import find_config, merged, read_tree
from mtlprune.config.config import build_config
from mtlprune.errors import command
from mtlprune.figures.charts import Interval, figure, forest, task_colours
from mtlprune.figures.grid import number
from mtlprune.io.files import from_here
from mtlprune.layers import in_order
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page import answers
from mtlprune.reports.page.answers import Joint, TaskDelta
from mtlprune.reports.page.claims import Selection
from mtlprune.reports.page.scores import Scored
from mtlprune.runs.columns import MORE_UPDATES, ScoreColumn, paths_that_differ
from mtlprune.runs.groups import PRUNING, TRAINED_WITH, TREATMENT, DescribedRun
from mtlprune.runs.results import Result
from mtlprune.runs.settings import flat, is_ignored

_QUESTION = "Which heads does each task claim, and does multi-task learning fail because tasks fight over them?"
_RATES = "train.encoder_rate", "train.decoder_rate"
"""Learning rates, which are a number or a mapping."""
_PRESET, _NOT_SHARED = "minilm-ewt5", (*PRUNING, *TRAINED_WITH[::2], TREATMENT, "encoder.context", "encoder.name")
"""The preset from which `mtlprune compare` starts, and the prefixes of settings that the suggested command does not
copy from the runs, because `compare` varies them itself. The name of the encoder is copied separately."""
_ROWS = 12
"""The largest number of differences at equal updates in the plot, and the largest number with more updates."""


def first_screen(
    title: str,
    runs: Sequence[DescribedRun],
    tables: Sequence[Scored],
    selections: Sequence[Selection],
    results_by_folder: Sequence[tuple[Path, Mapping[str, Result]]],
) -> dict[str, Any]:
    """Return the values of the template of the first screen. Without claims ``map`` is None, and without differences
    ``plot`` is None.

    Args:
        title: title of the report.
        runs: the runs.
        tables: tables of scores with tests of differences.
        selections: selections of heads, of which the first has the seeds that agree most.
        results_by_folder: folders, each with a mapping from names of analyses to Results.
    """
    ask = _compare_command(runs)
    joint = next(filter(None, map(largest_joint, tables)), Joint())
    results = {
        name: result
        for _, results_of_folder in reversed(results_by_folder)
        for name, result in results_of_folder.items()
    }
    verdicts = [
        answers.claims_verdict(*((selections[0].result, bool(selections[0].ties_by_run)) if selections else (None,))),
        answers.on_scores(joint),
        answers.sharing_verdict(results, selections[0].result if selections else None),
    ]
    splits = dict.fromkeys(scored.comparison.split for scored in tables)
    return {
        "about": _describe_study(title, runs, list(splits)),
        "question": _QUESTION,
        "verdicts": verdicts,
        "unlearnt": _unlearnt(tables),
        "map": _claim_map(selections[0]) if selections else None,
        "plot": plot(joint),
        "following": list(_following(runs, [verdict.question for verdict in verdicts if not verdict.link], ask)),
    }


def _describe_study(title: str, runs: Sequence[DescribedRun], splits: Sequence[str]) -> str:
    """Describe the runs, their seeds and their data on one line."""
    seeds = sorted({run.seed for run in runs})
    sizes = sorted({run.config.data.train_sentences or 0 for run in runs})
    parts = [title, f"{len(runs)} run{'s' * (len(runs) > 1)}"]
    parts += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}", *splits]
    if sizes[0]:
        parts.append(f"{' or '.join(f'{size:,}' for size in sizes)} training sentences")
    return " · ".join(parts)


def _unlearnt(tables: Sequence[Scored]) -> str:
    """Return a sentence on tasks that are not better than the majority baseline of their table, with their settings, or
    "" without such tasks or without a baseline."""
    tasks = []
    for scored in tables:
        columns = scored.comparison.columns
        plain = [column for column in columns if column.runs and not _has_other_settings(column)]
        table = f" in {scored.title}" * (len(tables) > 1)
        for task, majority_score in next((column.extra for column in columns if column.extra), {}).items():
            low = [
                column.title
                for column in plain
                if column.runs_of(task) and np.mean(column.values(task)) <= majority_score
            ]
            tasks += [f"{task.upper()} ({', '.join(low)}{table})"] * bool(low)
    baseline = "the majority baseline, which gives every word or sentence its most frequent label in train"
    advice = "train longer or on more sentences before you interpret the heads and differences of these tasks"
    return f"These tasks are not better than {baseline}: {', '.join(tasks)}. Please {advice}." if tasks else ""


# -- the map -----------------------------------------------------------------------------------------------------------


def _claim_map(selection: Selection) -> dict[str, Any]:
    """Return the values of the template for the map: for each head, the tasks that claim it in most seeds and whether
    enough tasks claim it for an outline, and sentences about the map."""
    groups = selection.single_task_groups
    colours = task_colours([run_group.label for run_group in groups])
    claimed_heads = np.stack([run_group.claimed_by_most for run_group in groups])  # (T, L, A)
    minimum, claiming_tasks = answers.required_tasks(len(groups))
    rows = []
    for layer in range(claimed_heads.shape[1]):
        labels = [
            [g.label for g, heads_of_task in zip(groups, claimed_heads, strict=True) if heads_of_task[layer, head]]
            for head in range(claimed_heads.shape[2])
        ]
        rows.append([{"tasks": tasks, "outlined": 1 < minimum <= len(tasks)} for tasks in labels])
    phi, stable = answers.phi_of(selection.result), answers.phi_words(selection.result)
    warnings = []
    if selection.ties_by_run:
        warnings.append("gates do not distinguish heads")
    if phi is None:
        warnings.append("another seed may choose other heads")
    elif phi[0] < answers.UNSTABLE:
        warnings.append("another seed would choose other heads")
    seeds = "in most seeds" if max(len(run_group.claims) for run_group in groups) > 1 else "with one seed"
    outlined = f", and heads of {claiming_tasks} are outlined" if len(groups) > 1 else ""
    return {
        "rows": rows,
        "colours": colours,
        "about": "Each cell is a head, and rows are layers, with layer 1 at the top. Stripes are the tasks that claim "
        "the head "
        f"{seeds}{outlined}.",
        "selection": ", ".join(filter(None, [selection.title, stable])),
        "warning": "; ".join(warnings),
    }


# -- joint training compared with single tasks -------------------------------------------------------------------------


def largest_joint(scored: Scored) -> Joint | None:
    """Return the comparison of the joint settings with the most tasks in a table, or None if no task is trained both
    alone and jointly.

    Baselines, settings with pruning or treatments, and settings that use a finished run are left out. If several
    settings train the same tasks with a similar number of updates, the one that differs in the fewest settings from its
    single-task runs is chosen.
    """
    comparison = scored.comparison
    plain = {
        index: column
        for index in comparison.against
        if len((column := comparison.columns[index]).runs[0].tasks) > 1 and not _has_other_settings(column)
    }
    if not plain:
        return None
    size = max(len(column.runs[0].tasks) for column in plain.values())
    sides: dict[bool, dict[tuple[str, ...], int]] = {False: {}, True: {}}
    for index in sorted(plain, key=lambda index: _distance(scored, index)):
        column = plain[index]
        if len(column.runs[0].tasks) == size:
            sides[_updates(scored, index) > MORE_UPDATES].setdefault(column.runs[0].tasks, index)
    equal, more_updates = sides[False], sides[True]
    deltas, deltas_with_more = (list(_deltas(scored, list(side.values())))[:_ROWS] for side in (equal, more_updates))
    titles, other_titles = (
        {plain[index].title for index in side.values()} for side in (equal or more_updates, more_updates)
    )
    single = comparison.columns[comparison.against[next(iter(plain))]].title
    has_fewer = any(0 < _updates(scored, index) < 1 / MORE_UPDATES for index in equal.values())
    title_suffix = f" ({', '.join(other_titles)})" if len(other_titles) == 1 and other_titles != titles else ""
    return Joint(
        f"{titles.pop() if len(titles) == 1 else 'Joint'} − {single}",
        deltas,
        "at fewer updates" if has_fewer else "at equal updates",
        deltas_with_more,
        f"with more updates{title_suffix}",
    )


def _has_other_settings(column: ScoreColumn) -> bool:
    """Return whether the runs of a column are baselines, have pruning or treatments, or use a finished run."""
    run = column.runs[0]
    return bool(run.kind or run.pruning or run.treatment or run.auxiliary_runs)


def _distance(scored: Scored, index: int) -> int:
    """Count the settings in which a column differs from the single-task runs with which it is compared."""
    comparison = scored.comparison
    return len(
        paths_that_differ(comparison.columns[index].runs[0], comparison.columns[comparison.against[index]].runs[0])
    )


def _updates(scored: Scored, index: int) -> float:
    """Return the number of updates of a column, divided by that of its single-task runs; 0 if it is not known."""
    comparison = scored.comparison
    single = [run.updates for run in comparison.columns[comparison.against[index]].runs]
    return max(run.updates for run in comparison.columns[index].runs) / max(1, *single)


def _deltas(scored: Scored, indices: Sequence[int]) -> Iterator[TaskDelta]:
    """Yield the differences of some columns from single-task runs, with the tests of their table."""
    comparison = scored.comparison
    for index, task in comparison.compared():
        if index in indices:
            column, reference = comparison.columns[index], comparison.columns[comparison.against[index]]
            name = task.upper() if len(indices) == 1 else f"{task.upper()}, {column.title}"
            if test := comparison.tests.get((index, task)):
                difference = test.difference
                seeds, detectable = difference.has_seeds, difference.detectable
                yield TaskDelta(name, difference.delta, *test.interval, test.significant, seeds, detectable)
            else:
                delta = float(np.mean(column.values(task)) - np.mean(reference.values(task)))
                yield TaskDelta(name, delta, np.nan, np.nan, False, False)


def plot(joint: Joint) -> Figure | None:
    """Draw the differences with their intervals, with a row for each task at equal updates, and below it one with more
    updates. Return None without differences."""
    has_both = bool(joint.deltas and joint.deltas_with_more_updates)
    sides = (joint.deltas, ""), (joint.deltas_with_more_updates, ", more updates" * has_both)
    names = list(dict.fromkeys(delta.name for deltas, _ in sides for delta in deltas))
    rows = []
    for name in names:
        for delta, suffix in ((delta, suffix) for deltas, suffix in sides for delta in deltas if delta.name == name):
            words = f"{name}{suffix}: {number(delta.value)}{answers.interval_text(delta.low, delta.high)}"
            rows.append(Interval(name + suffix, delta.value, delta.low, delta.high, delta.significant, words))
    if not rows:
        return None
    seeds = any(delta.seeds for deltas, _ in sides for delta in deltas)
    budgets = [joint.training_budget] * bool(joint.deltas) + [joint.larger_budget] * bool(
        joint.deltas_with_more_updates
    )
    caption = f"Differences are those of joint training {' and '.join(budgets)}, with 95 % intervals over " + (
        "seeds and sentences. Filled dots have p < 0.05 (Holm), and hollow dots are no evidence."
        if seeds
        else "sentences."
    )
    title, chart = f"{joint.title}, points", forest(rows, x_title="joint is worse ← → better", width=240)
    return Figure(figure(chart, title), f"{title}. {'; '.join(row.words for row in rows)}", caption)


# -- what to do next ---------------------------------------------------------------------------------------------------


def _compare_command(runs: Sequence[DescribedRun]) -> str:
    """Return the command `mtlprune compare` that answers all questions for the tasks and the corpus of these runs, with
    three seeds, and with the settings in which the runs differ from the preset of `mtlprune compare`."""
    plain = [run for run in runs if not (run.kind or run.pruning or run.treatment or run.config.train.start)]
    run, tasks = (plain or runs)[0], in_order({task for run in runs for task in run.tasks})
    decoders = run.config.decoders.model_dump()
    types = {name: {"type": settings["type"]} for name, settings in decoders.items() if "type" in settings}
    preset = build_config(merged(read_tree(find_config(_PRESET)), {"tasks": tasks, "decoders": types}))
    base = dict(flat(preset.model_dump(mode="json")))
    differing: dict[str, Any] = {
        path: value
        for path, value in run.every_setting.items()
        if value != base.get(path, value) and not (is_ignored(path) or path.startswith((*_NOT_SHARED, *_RATES)))
    }
    # A rate is compared as a whole, because a number may replace a mapping or the reverse.
    for rate in _RATES:
        name = rate.partition(".")[2]
        if (value := getattr(run.config.train, name)) != getattr(preset.train, name):
            differing[rate] = value
    if run.config.encoder.name != preset.encoder.name:
        differing["encoder.name"] = _short_path(run.config.encoder.name)
    words = [f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in differing.items()]
    pairs = ["--pairs"] * (len(tasks) > 2 and any(len(run.tasks) == 2 for run in plain))
    options = ["--tasks", ",".join(tasks)] * (len(tasks) > 1) + pairs
    data_path = _short_path(run.config.data.path)
    return command("compare", data_path, *words, *options, "--seeds", "1,2,3", "--out", "compared")


def _short_path(path: str) -> str:
    """Return a path relative to the working directory or, for a path outside it, only the last name, so that the report
    reveals no folders."""
    relative = from_here(path)
    return Path(path).name if Path(relative).is_absolute() else relative


def _following(runs: Sequence[DescribedRun], unasked: Sequence[str], ask: str) -> Iterator[tuple[str, str]]:
    """Yield sentences on what these runs leave open, each with the command for it.

    Args:
        runs: the runs.
        unasked: questions that the runs cannot answer.
        ask: command that answers all questions.
    """
    seeds = {run.seed for run in runs if not run.config.train.start}
    if 0 < len(seeds) < 3:
        words = "one seed cannot" if len(seeds) == 1 else "two seeds can hardly"
        yield (
            f"{words} separate effects of tasks from random variation of training. This command uses three seeds and "
            "writes a report",
            ask,
        )
    elif unasked:
        yield f"this command answers the open questions and writes a report ({' '.join(unasked)})", ask
    if any(run.corpus == "grammar" for run in runs):
        yield (
            "this corpus is generated. This command shows how to build a corpus of your files",
            "mtlprune data build --help",
        )
