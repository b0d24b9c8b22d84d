"""The tables of the page: a row a setting, a column a task, differences tested and drawn with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtlprune.reports.charts import DOZEN, Interval, figure, forest
from mtlprune.reports.grid import Strong, probability
from mtlprune.reports.page.render import Part, grid_rows
from mtlprune.reports.page.runs import ReadRun
from mtlprune.reports.scores.comparisons import Comparison, ScoreColumn, compare
from mtlprune.reports.scores.layouts import MORE, best, cell, details, difference, heads, notes, span, tests_legend
from mtlprune.reports.scores.layouts import legend as table_legend
from mtlprune.reports.scores.tests import Tested, with_tests
from mtlprune.reports.sections import Figure, Rows


@dataclass(frozen=True)
class Scored:
    """Runs that stand in one table: same data, scored on the same split."""

    data: str
    """Name of the corpus."""
    chose: bool
    """Whether the split also chose the best epoch."""
    comparison: Comparison

    @property
    def title(self) -> str:
        return f"{self.data}, {self.comparison.split}"


def compared(
    runs: Sequence[ReadRun],
    split: str | None,
    resamples: int,
    seed: int,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[list[Scored], list[str]]:
    """Tables of the runs, and which runs have none and why.

    Args:
        split: whose scores; None: test where a run is scored on it, else its dev split.
        resamples: of every test; 0 leaves tests out.
        baselines: scores that come from no run, for the first table.

    Raises:
        RunError: runs that cannot stand side by side (tables.compare says why), damaged files.
    """
    groups: dict[tuple[str, str], list[ReadRun]] = {}
    left_out = []
    for run in runs:
        there = [name for name in run.folder.splits() if "." not in name]
        dev = str(run.tree.get("data", {}).get("dev", "dev"))
        wanted = split if split is not None else "test" if "test" in there else dev
        if wanted in there:
            groups.setdefault((run.manifest["data"]["fingerprint"], wanted), []).append(run)
        else:
            left_out.append(
                f"{run.path} is not scored on {wanted}, so no table shows it; `mtlprune evaluate` scores it."
            )
    made: list[Scored] = []
    for (_, name), group in sorted(groups.items(), key=lambda item: (item[0][1] != "test", item[0])):
        comparison = compare([run.folder for run in group], name, None if made else baselines)
        if resamples and comparison.against:
            comparison = with_tests(comparison, resamples, seed)
        chose = any(run.tree.get("data", {}).get("dev", "dev") == name for run in group)
        made.append(Scored(group[0].data, chose, comparison))
    return made, left_out


def part(tables: Sequence[Scored], left_out: Sequence[str]) -> Part:
    """The part of the page."""
    caveats, found = list(left_out), []
    for scored in tables:
        where = f"{scored.title}: " if len(tables) > 1 else ""
        caveats += [f"{where}{line}" for line in notes(scored.comparison)]
        if scored.chose:
            caveats.append(
                f"{where}scores are those of the split that also chose the best epoch, so they are a little too good; "
                "differences suffer less, since every setting was chosen in the same way."
            )
        found += list(_found(scored, several=len(tables) > 1))
    return Part("scores", "Scores", {"tables": list(map(_one, tables))}, caveats, found)


def _one(scored: Scored) -> dict[str, Any]:
    comparison = scored.comparison
    shown = {
        "title": scored.title,
        "scores": _scores(comparison, scored.title),
        "legend": table_legend(comparison),
        "forest": None,
    }
    if comparison.tests:
        shown["forest"] = _forest(list(_differences(comparison)))
        shown["details"] = grid_rows(details(comparison), "Tests of differences")
        shown["tests_legend"] = tests_legend(comparison)
    return shown


def _scores(comparison: Comparison, name: str) -> Rows:
    tasks, several = comparison.tasks(), len(comparison.encoders()) > 1
    pruned = any(run.heads for column in comparison.columns for run in column.runs)
    columns = [*(["encoder"] if several else []), "setting", *(["heads"] if pruned else []), "n"]
    columns += ["\n".join(filter(None, comparison.row_title(task).split(" ", 1))) for task in tasks]
    rows = []
    for place, column in enumerate(comparison.columns):
        numbers = [len(column.values(task)) for task in tasks if column.values(task)]
        shown = str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}" if numbers else "–"
        row = [*([column.encoder] if several else []), column.title, *([_heads(column, tasks)] if pruned else [])]
        rows.append([*row, shown, *(_cell(comparison, place, task) for task in tasks)])
    return Rows(columns, rows, f"Scores, {name}", columns[1 + several + pruned :])


def _heads(column: ScoreColumn, tasks: Sequence[str]) -> str:
    found = dict.fromkeys(heads(column, task) for task in tasks if column.runs_of(task))
    return ", ".join(found) if found and set(found) != {"–"} else "all"


def _cell(comparison: Comparison, place: int, task: str) -> str:
    """The mean, in bold where it is the best, its spread, and on a second line the difference."""
    column = comparison.columns[place]
    values = column.values(task)
    if not values:
        return "–"
    text = cell(values, numbered=False)
    rivals = {p for p, c in enumerate(comparison.columns) if c.values(task) and c.encoder in ("", column.encoder)}
    more = MORE if comparison.more_training(place, task) else ""
    bold = place in best(comparison, task, rivals)
    if more and not bold:
        mean, sign, spread = text.partition(" ± ")
        text = f"{mean}{more}{sign}{spread}"
    if place in comparison.against and (theirs := comparison.columns[comparison.against[place]].values(task)):
        mark = comparison.tests[place, task].mark if (place, task) in comparison.tests else ""
        text += f"\n{difference(values, theirs)}{mark}{more}".replace("-", "−")
    return Strong(text) if bold else text


def _forest(rows: Sequence[Interval]) -> Figure:
    caption = (
        "Differences in points with 95 % intervals over seeds and sentences (with one run, over sentences only); full "
        "dots are significant over both after Holm's correction, never with one run."
    )
    if len(rows) > DOZEN:
        caption += f" The first {DOZEN} of {len(rows)} differences; the table has all."
    chart = figure(forest(rows, x_title="difference, points", width=420))
    return Figure(chart, f"Differences. {'; '.join(one.told for one in rows[:DOZEN])}", caption)


def _differences(comparison: Comparison) -> Iterator[Interval]:
    """Of all tested settings their tasks: settings in the order of the table, those trained jointly first."""

    def order(one: tuple[int, str]) -> tuple[bool, int, int]:
        return len(comparison.columns[one[0]].runs[0].tasks) < 2, one[0], comparison.tasks().index(one[1])

    several = len(comparison.encoders()) > 1
    for place, task in sorted(comparison.tests, key=order):
        test = comparison.tests[place, task]
        column, other = comparison.columns[place], comparison.columns[comparison.against[place]]
        found = test.difference
        where = f", {column.encoder}" if several else ""
        title = f"{column.title}{MORE if comparison.more_training(place, task) else ''} − {other.title}{where}"
        alone = math.isnan(found.wide_low)
        told = (
            f"{task.upper()}, {title}: {found.delta:+.2f}, 95 % interval over "
            f"{'sentences' if alone else 'seeds and sentences'} {span(*test.interval)}, "
            f"p (Holm) {probability(test.p_holm if alone else test.wide_p_holm)}"
        )
        yield Interval(f"{task.upper()}, {title}", found.delta, *test.interval, test.significant, told)


def _found(scored: Scored, several: bool) -> Iterator[str]:
    """How joint training without pruning compares with single tasks, counted over tasks."""
    comparison = scored.comparison
    for place, other in comparison.against.items():
        column = comparison.columns[place]
        run = column.runs[0]
        if len(run.tasks) < 3 or run.pruning:
            continue
        tests = {
            task: comparison.tests[place, task] for task in comparison.tasks() if (place, task) in comparison.tests
        }
        if not tests:
            continue
        where = f" ({scored.title})" if several else ""
        here = {task: test for task, test in tests.items() if test.of_these_runs}
        sure = []
        if any(min(test.difference.seeds) > 1 for test in tests.values()):
            sure.append(f"significantly {_counted({task: t for task, t in tests.items() if t.significant})}")
        if here or not sure:
            two = "two " if all(test.difference.seeds == (1, 1) for test in tests.values()) else ""
            sure.append(f"{_counted(here)} over sentences only, of these {two}runs")
        more = any(comparison.more_training(place, task) for task in comparison.tasks())
        yield (
            f"{column.title} ({_training(column)}) beside {comparison.columns[other].title} "
            f"({_training(comparison.columns[other])}){where}: of {len(tests)} tasks {'; '.join(sure)}."
            + (" It has seen more training, so what it gains is no gain from sharing." if more else "")
        )


def _counted(tests: Mapping[str, Tested]) -> str:
    worse = [task.upper() for task, test in tests.items() if test.difference.delta < 0]
    better = [task.upper() for task, test in tests.items() if test.difference.delta > 0]
    sides = (("worse", worse), ("better", better))
    return " and ".join(f"{word} on {len(t)} ({', '.join(t)})" if t else f"{word} on none" for word, t in sides)


def _training(column: ScoreColumn) -> str:
    """Seeds, updates and mixing of its runs."""
    seeds = sorted({run.seed for run in column.runs})
    updates = sorted({run.updates for run in column.runs if run.updates})
    said = [f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"]
    if updates:
        said.append(f"{' to '.join(f'{n:,}' for n in dict.fromkeys([updates[0], updates[-1]]))} updates")
    if any(len(run.tasks) > 1 for run in column.runs):
        said.append(f"{column.runs[0].setting.get('train.mixing', 'joint')} mixing")
    return ", ".join(said)
