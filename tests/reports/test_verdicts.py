"""One difference has one verdict: on the first screen, in tables and in forests, whatever else these show. Where a
single task lies below plain fine-tuning, a warning says so."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from markup import Markup, markdown_rows

from mtlprune.reports.page import Choices, Sources, report
from mtlprune.reports.page.first_screen import largest_joint, plot
from mtlprune.reports.page.scores import Scored
from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.reports.scores.plain_heads import PLAIN_HEADS, warnings
from mtlprune.reports.scores.tables import Comparison, DifferenceTests
from mtlprune.reports.scores.tables import tests_legend as legend_of_tests
from mtlprune.runs.folder import RunFolder
from mtlprune.sweeps.folder import expanded

RESULTS = Path("results")
RECORDS = RESULTS / "ewt5-minilm/records"
JOINT, ALL = "none-???-?,none-mtl5-?", "none-*,sampled-*,random-*"
RESAMPLES = 200


def runs(pattern: str) -> list[RunFolder]:
    return [RunFolder(path) for path in expanded([f"{RECORDS}:{pattern}"])]


def named(comparison: Comparison) -> dict[tuple[str, str], DifferenceTests]:
    """Task and difference → its test."""
    columns = comparison.columns
    return {
        (task.upper(), f"{columns[place].title} − {columns[comparison.against[place]].title}"): test
        for (place, task), test in comparison.tests.items()
    }


@pytest.fixture(scope="module")
def whole() -> Comparison:
    return with_tests(compare(runs(ALL), "test"), RESAMPLES)


def test_what_else_a_table_shows_changes_no_verdict(whole):
    """DEP and CON of MTL-5 were shown in a table of five differences, and not in one of thirty."""
    few = with_tests(compare(runs(JOINT), "test"), RESAMPLES)
    assert len(few.tests) == 5 < len(whole.tests)
    p = {test.wide_p_holm for test in few.tests.values()}
    assert p == {test.wide_p_holm for test in whole.tests.values() if test.question == "MTL-5 − STL"}
    assert " 2 tasks jointly − STL: 20 · " in legend_of_tests(whole) and "MTL-5 − STL: 5" in legend_of_tests(whole)


def test_each_way_of_pruning_is_a_question_of_its_own():
    """Gates that are static and gates that are not were corrected together, though only in a table that has both."""
    every = with_tests(compare(runs("none-???-?,gates-*,static-*,importance-*,none-mtl5-?"), "test"), RESAMPLES)
    for pattern in ("none-???-?,gates-*", "none-???-?,static-*", "none-???-?,importance-*"):
        alone = named(with_tests(compare(runs(pattern), "test"), RESAMPLES))
        assert len(alone) == 10
        assert all(test.wide_p_holm == named(every)[name].wide_p_holm for name, test in alone.items())


def test_no_difference_has_two_verdicts_on_one_page(whole):
    text = report(Sources(runs(ALL)), Choices(resamples=RESAMPLES, permutations=20), lambda *_: [])
    expected, seen = {name: test.significant for name, test in named(whole).items()}, defaultdict(set)
    full_name = {name.partition(" − ")[0]: name for _, name in expected}
    joint = largest_joint(Scored("", False, whole))
    figure = plot(joint) if joint is not None else None
    assert figure is not None
    for row in (row for rows in figure.spec["datasets"].values() for row in rows if "is_significant" in row):
        task, _, more = row["name"].partition(", ")
        seen[task, f"MTL-5{', sampled' if more else ''} − STL"].add(("first screen", row["is_significant"]))
    page = Markup(text)
    header: list[str] = []
    for row in ([" ".join(cell.split()) for cell in cells] for cells in page.rows):
        if {"difference", "p (Holm)"} <= {*row} or {"setting", "n"} <= {*row}:
            header = row
        cells = dict(zip(header, row, strict=False))
        if len(row) != len(header) or row == header:
            continue
        if "difference" in cells:
            seen[cells["task"], cells["difference"]].add(("tests", "*" in cells["Δ"]))
        for name, words in cells.items() if "setting" in cells else ():
            if re.search(r" [+−]\d+\.\d+[*†‡]*$", words):
                seen[name.split()[0], full_name[cells["setting"]]].add(("scores", "*" in words))
    forest = next(
        tag["aria-label"] for _, tag in page.tags if (tag.get("aria-label") or "").startswith("Differences. ")
    )
    for task, title, p in re.findall(r"(?:Differences\. |; )(\w+), ([^;]+): [^;]*?p \(Holm\) ([<\d.]+)", forest):
        seen[task, title.replace("‡", "")].add(("forest", float(p.strip("<.")) < 0.05))
    first = {cell for cell, found in seen.items() if "first screen" in dict(found)}
    assert len(first) == 10 and first <= expected.keys() <= seen.keys()
    for cell, found in seen.items():
        assert {shown for _, shown in found} == {expected[cell]}, (cell, found)
    assert {len(dict(found)) for cell, found in seen.items() if cell in first} == {4}


def test_committed_tables_have_one_verdict_for_each_difference():
    """The tables, README and page of the showcase gave one number three significances."""
    seen = defaultdict(set)
    for path in (*RESULTS.glob("ewt5-minilm/*.md"), *RESULTS.glob("gates/*.md")):
        text, header = path.read_text(encoding="utf-8"), list[str]()
        if "percentages on dev" in text:
            continue
        for row in markdown_rows(text):
            header = row if "difference" in row else header
            cells = dict(zip(header, row, strict=False))
            if row != header and len(row) == len(header) and "p (Holm)" in cells:
                delta = float(re.sub("[*†‡]", "", cells["Δ"]))
                seen[cells["task"], cells["difference"], delta].add((path.name, "*" in cells["Δ"], cells["p (Holm)"]))
    several = {cell: of for cell, of in seen.items() if len({name for name, *_ in of}) > 1}
    assert len(several) >= 10
    for cell, of in several.items():
        assert len({(shown, p) for _, shown, p in of}) == 1, (cell, of)
    page = (RESULTS / "ewt5-minilm/report.html").read_text(encoding="utf-8")
    label, drawing = re.search(r'aria-label="MTL-5 − STL, points. (.*?)"(.*?)</svg>', page, re.S).groups()  # type: ignore[union-attr]
    fills = re.findall(r'<path transform[^>]* fill="(#\w+)" stroke="#1c1c1e"', drawing)  # full: significant
    names = [interval.partition(":")[0] for interval in label.split("; ")]
    dots = [(name, fill != "#ffffff") for name, fill in zip(names, fills, strict=True) if "more updates" not in name]
    of_records = {task: of for (task, name, _), of in seen.items() if "records.md" in {table for table, *_ in of}}
    assert dict(dots) == {task: next(iter(of))[1] for task, of in of_records.items()}


@pytest.mark.parametrize(
    ("pattern", "tasks"),
    [
        ("ewt5-minilm/records:none-pos-[0-9]*,none-ner-[0-9]*,none-mtl5-*", {"POS", "NER"}),
        ("baselines/records/tuned:72-own-*", set()),
    ],
)
def test_runs_below_plain_fine_tuning_are_warned_of(pattern: str, tasks: set[str]) -> None:
    below = [RunFolder(path) for path in expanded([f"{RESULTS}/{pattern}"])]
    assert {re.match(r"Warning: (\w+)", line)[1] for line in warnings(compare(below, "test"))} == tasks  # type: ignore[index]


def test_the_scores_of_plain_fine_tuning_are_those_of_the_page() -> None:
    page = (RESULTS / "baselines/peers.md").read_text(encoding="utf-8")
    [plain] = PLAIN_HEADS
    for task, score in plain.scores.items():
        [row] = re.findall(rf"^\| {task.upper()} \|.*$", page, re.MULTILINE)
        assert row.split("|")[4].split("±")[0].strip() == f"{score:.2f}"
