"""The tables of the page: a row a setting, a column a task, differences tested and drawn with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mtlprune.reports.grid import probability
from mtlprune.reports.page.html import Html, element, folded, grid_table, joined, paragraph, table
from mtlprune.reports.page.parts import Part
from mtlprune.reports.page.plots import Interval, Look, intervals, legend
from mtlprune.reports.page.runs import ReadRun
from mtlprune.reports.scores.comparisons import Comparison, ScoreColumn, compare
from mtlprune.reports.scores.layouts import MORE, best, cell, details, difference, heads, span
from mtlprune.reports.scores.notes import legend as table_legend
from mtlprune.reports.scores.notes import notes, tests_legend
from mtlprune.reports.scores.tests import Tested, with_tests


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
        data = str(group[0].manifest["data"].get("name", group[0].tree.get("data", {}).get("path", "data")))
        chose = any(run.tree.get("data", {}).get("dev", "dev") == name for run in group)
        made.append(Scored(data, chose, comparison))
    return made, left_out


def looks(comparison: Comparison) -> list[Look]:
    """A look a column: colours tell prunings (and baselines) apart, dashes joint training."""
    hues: dict[tuple[str, str, str], int] = {}
    found = []
    for column in comparison.columns:
        run = column.runs[0] if column.runs else None
        key = (run.kind, run.pruning, run.encoder) if run else ("majority", "", "")
        found.append(Look(hues.setdefault(key, len(hues)), dashed=bool(run) and len(run.tasks) > 1 if run else False))
    return found


def part(tables: Sequence[Scored], left_out: Sequence[str]) -> Part:
    """The part of the page."""
    bodies, caveats, found = [], list(left_out), []
    for scored in tables:
        bodies.append(_one(scored, several=len(tables) > 1))
        where = f"{scored.title}: " if len(tables) > 1 else ""
        caveats += [f"{where}{line}" for line in notes(scored.comparison)]
        if scored.chose:
            caveats.append(
                f"{where}scores are those of the split that also chose the best epoch, so they are a little too good; "
                "differences suffer less, since every setting was chosen in the same way."
            )
        found += list(_found(scored, several=len(tables) > 1))
    body = joined(bodies) if bodies else paragraph("No run is scored yet.")
    return Part("scores", "Scores", body, tuple(caveats), tuple(found))


def _one(scored: Scored, several: bool) -> Html:
    comparison = scored.comparison
    parts = [element("h3", scored.title)] if several else []
    parts += [_scores(comparison, scored.title), paragraph(table_legend(comparison), class_="note")]
    if comparison.tests:
        parts += [_forest(comparison), folded("Every difference with its test", _details(comparison))]
    return joined(parts)


def _scores(comparison: Comparison, name: str) -> Html:
    tasks, several = comparison.tasks(), len(comparison.encoders()) > 1
    pruned = any(run.heads for column in comparison.columns for run in column.runs)
    columns = [*(["encoder"] if several else []), "setting", *(["heads"] if pruned else []), "n"]
    columns += [joined(task.upper(), element("small", comparison.row_title(task).partition(" ")[2])) for task in tasks]
    rows = []
    for place, column in enumerate(comparison.columns):
        numbers = [len(column.values(task)) for task in tasks if column.values(task)]
        shown = str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}" if numbers else "–"
        row: list[object] = [*([column.encoder] if several else []), column.title]
        row += [*([_heads(column, tasks)] if pruned else []), shown]
        rows.append([*row, *(_cell(comparison, place, task) for task in tasks)])
    return table(columns, rows, f"Scores, {name}", texts=1 + several + pruned)


def _heads(column: ScoreColumn, tasks: Sequence[str]) -> str:
    found = dict.fromkeys(heads(column, task) for task in tasks if column.runs_of(task))
    return ", ".join(found) if found and set(found) != {"–"} else "all"


def _cell(comparison: Comparison, place: int, task: str) -> object:
    column = comparison.columns[place]
    values = column.values(task)
    if not values:
        return "–"
    text = cell(values, numbered=False)
    mean, _, spread = text.partition(" ± ")
    rivals = {p for p, c in enumerate(comparison.columns) if c.values(task) and c.encoder in ("", column.encoder)}
    more = MORE if comparison.more_training(place, task) else ""
    shown = [element("strong", mean) if place in best(comparison, task, rivals) else f"{mean}{more}"]
    shown += [element("span", f" ± {spread}", class_="sd")] if spread else []
    if place in comparison.against:
        other = comparison.columns[comparison.against[place]]
        if theirs := other.values(task):
            mark = comparison.tests[place, task].mark if (place, task) in comparison.tests else ""
            delta = difference(values, theirs).replace("-", "−")
            shown.append(element("span", f"{delta}{mark}{more}", class_="delta"))
    return joined(*shown)


def _forest(comparison: Comparison) -> Html:
    styles = looks(comparison)
    groups, used = [], {}
    for task in comparison.tasks():
        rows = []
        for (place, name), test in sorted(comparison.tests.items()):
            if name != task:
                continue
            column, other = comparison.columns[place], comparison.columns[comparison.against[place]]
            found = test.difference
            title = f"{column.title}{MORE if comparison.more_training(place, task) else ''} − {other.title}"
            low, high = test.interval
            over = "sentences" if math.isnan(found.wide_low) else "seeds and sentences"
            p = test.p_holm if math.isnan(found.wide_low) else test.wide_p_holm
            used[place] = (title, styles[place])
            told = (
                f"{task.upper()}, {title}: {found.delta:+.2f}, 95 % interval over {over} {span(low, high)}, "
                f"p (Holm) {probability(p)}"
            )
            rows.append(Interval(title, styles[place], found.delta, low, high, test.significant, told))
        if rows:
            groups.append((task.upper(), rows))
    alt = "; ".join(one.told for _, rows in groups for one in rows)
    caption = (
        "Differences in points with 95 % intervals over seeds and sentences (with one run, over sentences only); full "
        "dots are significant over both after Holm's correction, never with one run. Dashed: trained jointly."
    )
    picture = element(
        "div",
        intervals(f"Differences. {alt}", groups, "0"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Differences, drawn",
    )
    return element("figure", picture, legend([used[place] for place in sorted(used)]), element("figcaption", caption))


def _details(comparison: Comparison) -> Html:
    return joined(
        grid_table(details(comparison), "Tests of differences", sortable=True),
        paragraph(tests_legend(comparison), class_="note"),
    )


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
