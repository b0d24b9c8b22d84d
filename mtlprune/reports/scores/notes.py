"""What a table of scores shows, and what its tests cannot say, in sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mtlprune.reports.scores.comparisons import Comparison, ScoreColumn, unlike
from mtlprune.reports.scores.layouts import MORE, apart, has_triangle, seeds_of_all

LEVEL = 0.05  # that of analyses.significance, which needs numpy


def legend(comparison: Comparison) -> str:
    """What stands in the cells, in one sentence."""
    parts = [f"Scores in percent on {comparison.split}"]
    columns = comparison.columns
    if any(len(column.values(task)) > 1 for column in columns for task in comparison.tasks()):
        number = seeds_of_all(comparison) if has_triangle(comparison) else None
        parts.append(f"mean ± sample standard deviation over {f'n = {number}' if number else 'n'} seeds")
    if has_triangle(comparison):
        parts.append("+POS: trained together with POS and nothing else")
    if any(run.heads for column in columns for run in column.runs):
        parts.append("heads: open or kept, of all")
    parts += _differences(comparison)
    unfinished = [run.path for column in columns for run in column.runs if not run.finished]
    if unfinished:
        parts.append(f"not trained to the end: {', '.join(unfinished)}")
    return "; ".join(parts) + "."


def _differences(comparison: Comparison) -> Iterator[str]:
    columns = comparison.columns
    if comparison.reference:
        yield f"Δ = it − {comparison.reference}"
    elif any(len(columns[place].runs[0].tasks) > 1 for place in comparison.against):
        yield "Δ = MTL − STL"
    pruned = [columns[place].title for place in comparison.against if len(columns[place].runs[0].tasks) == 1]
    if pruned and not comparison.reference:
        yield f"in {', '.join(dict.fromkeys(pruned))}: Δ = it − STL with all heads"
    yield from _marks(comparison)
    yield from _more_training(comparison)
    if comparison.reference:
        return
    differing = {place: _unlike(comparison, place, other) for place, other in comparison.against.items()}
    for several, what in ((True, "the tasks differ"), (False, "pruning differs")):
        named = [
            columns[place].title
            for place, paths in differing.items()
            if paths and (len(columns[place].runs[0].tasks) > 1) == several
        ]
        if named:
            yield f"in {', '.join(dict.fromkeys(named))} not only {what} from STL, but other settings too"
    mixed = [column for column in columns if len({repr(sorted(run.setting.items())) for run in column.runs}) > 1]
    for column in mixed:
        yield f"runs of {column.title} differ in {', '.join(_mixed(column))}"


def _marks(comparison: Comparison) -> Iterator[str]:
    """What the signs beside differences mean, and their intervals."""
    tests = list(comparison.tests.values())
    over_seeds = [min(test.difference.seeds) > 1 for test in tests]
    if any(over_seeds):
        yield f"* p < {LEVEL} (Holm) over seeds and sentences"
    if not all(over_seeds):
        yield f"† p < {LEVEL} (Holm) over sentences, of these runs only: with one seed nothing is known of others"
    elif any(test.of_these_runs for test in tests):
        yield f"† p < {LEVEL} (Holm) over sentences only, of these runs: not beyond the variance between seeds"
    if tests and not apart(comparison):
        both = "seeds and sentences" + ("" if all(over_seeds) else " (with one seed: over sentences)")
        yield f"in brackets 95 % intervals over {both if any(over_seeds) else 'sentences'}"


def _more_training(comparison: Comparison) -> Iterator[str]:
    cells = [
        (column, comparison.more_training(k, t))
        for k, column in enumerate(comparison.columns)
        for t in comparison.tasks()
    ]
    reasons = dict.fromkeys(f"{column.title}: {reason}" for column, reason in cells if reason)
    if reasons:
        yield f"{MORE} has seen more training than the others of its row, so it is never in bold ({'; '.join(reasons)})"


def _unlike(comparison: Comparison, place: int, other: int) -> list[str]:
    """The settings other than tasks (and pruning) in which runs differ from those they are compared with."""
    mine, theirs = comparison.columns[place], comparison.columns[other]
    pairs = [(mine.runs_of(task), theirs.runs_of(task)) for at, task in comparison.compared() if at == place]
    return sorted({path for ours, stl in pairs for path in unlike(ours[0], stl[0])})


def _mixed(column: ScoreColumn) -> list[str]:
    paths = {path for run in column.runs for path in run.setting}
    return sorted(path for path in paths if len({repr(run.setting.get(path)) for run in column.runs}) > 1)


def tests_legend(comparison: Comparison) -> str:
    """How differences were tested."""
    number, tests = len(comparison.tests), list(comparison.tests.values())
    sentences = sorted({test.difference.sentences for test in tests})
    span = f"{sentences[0]:,}" if len(sentences) == 1 else f"{sentences[0]:,} to {sentences[-1]:,}"
    parts = [f"Paired over {span} sentences, scores from resampled counts, {comparison.resamples:,} resamples each"]
    if any(min(test.difference.seeds) > 1 for test in tests):
        parts += [
            "seeds and sentences: hierarchical bootstrap (seeds, then sentences) and t with the degrees of freedom "
            "that so few seeds leave",
            f"p (within ±{comparison.margin:g}): two one-sided tests, below {LEVEL} the difference is smaller than "
            f"{comparison.margin:g} points, not corrected",
        ]
    parts += [
        "sentences: these runs held fixed, interval by bootstrap, p by randomisation",
        f"p (Holm) is corrected for {number} {'differences' if number > 1 else 'difference'}, intervals are not",
        "d: Δ over its standard deviation between sentences",
    ]
    return "; ".join(parts) + "."


def notes(comparison: Comparison) -> list[str]:
    """Which runs are left out, what the tests cannot say, and which differences have none and why."""
    return [*comparison.left_out, *_reach(comparison), *_seeds(comparison), *_untested(comparison)]


def _reach(comparison: Comparison) -> Iterator[str]:
    tests = comparison.tests
    if not tests:
        return
    smallest, number = min(test.difference.floor for test in tests.values()), len(tests)
    if smallest * number >= LEVEL:
        few = all(test.difference.exact for test in tests.values())
        advice = "more sentences are needed" if few else "take more --resamples"
        yield (
            f"None of these tests can reach {LEVEL}: the smallest p possible is {smallest:.2g}, corrected for "
            f"{number} {'differences' if number > 1 else 'difference'} {min(1.0, smallest * number):.2g}; {advice}."
        )
        return
    for (place, task), test in tests.items():
        found = test.difference
        if found.floor >= LEVEL:
            yield (
                f"{task.upper()} in {comparison.columns[place].title}: only {found.differing} of {found.sentences:,} "
                f"sentences tell the two apart, so p cannot go below {found.floor:.2g}."
            )


def _seeds(comparison: Comparison) -> Iterator[str]:
    """What seeds alone could show."""
    if not comparison.tests:
        return
    numbers = {min(test.difference.seeds) for test in comparison.tests.values()}
    if 1 in numbers:
        yield (
            "Settings with one run: the tests say whether these runs differ on other sentences of this kind, not "
            "whether runs with other seeds do, so nothing is called significant there. Nor is it tested whether their "
            f"difference is smaller than the margin of {comparison.margin:g} points: that needs two seeds or more."
        )
    for number in sorted(numbers - {1}):
        floor = 2 / 2**number
        if floor >= LEVEL:
            yield (
                f"A two-sided sign-flip test over {number} seeds alone cannot go below {floor:.4g}: without assuming a "
                f"distribution, seeds alone show nothing at {LEVEL}. The interval over seeds and sentences takes what "
                "seeds do as normal."
            )


def _untested(comparison: Comparison) -> Iterator[str]:
    reasons = defaultdict(list)
    for (place, task), reason in comparison.untested.items():
        reasons[reason].append(f"{task.upper()} in {comparison.columns[place].title}")
    for reason, cells in reasons.items():
        yield f"Not tested, {', '.join(cells)}: {reason}."
