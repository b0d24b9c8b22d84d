"""Differences of a table: pairing, Holm's correction, why there is no test; and the page's first statement of them."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from run_folders import SENTENCES, write_counts, write_run, write_runs

from mtlprune.figures.grid import probability
from mtlprune.reports.page.scores import Scored, part
from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.reports.scores.tables import Comparison, details, latex, markdown, to_csv, to_json
from mtlprune.runs.folder import RunFolder

STL, MTL = 0, 1


def study(tmp_path: Path, seeds: int = 2) -> list[RunFolder]:
    """POS and CON alone and together: together POS is much worse, and CON the same by chance."""
    return write_runs(tmp_path, [{"pos": 0.9}, {"con": 0.7}, {"pos": 0.7, "con": 0.701}], range(1, seeds + 1))


def test_a_table_of_tests(tmp_path):
    comparison = with_tests(compare(study(tmp_path, 4), "test"), 2000)
    assert set(comparison.tests) == {(MTL, "pos"), (MTL, "con")}
    assert comparison.untested == {}
    pos, con = comparison.tests[MTL, "pos"], comparison.tests[MTL, "con"]
    assert pos.significant and pos.difference.high < 0 and pos.p_holm == 2 * pos.difference.p
    assert not con.significant and con.p_holm == con.difference.p  # the larger of two is not corrected
    rows = details(comparison).rows
    assert [(*row[:2], row[-1]) for row in rows] == [(task, "POS+CON − STL", "4, 4") for task in ("POS", "CON")]


def changed(run: RunFolder, ids: list[str] | None = None, **edits: Any) -> None:
    """Counts of the run on test, edited: ids and, by task, counts."""
    tree = run.read_counts("test")
    for task, edit in edits.items():
        tree["counts"][task] = {name: edit(values) for name, values in tree["counts"][task].items()}
    write_counts(run, "test", ids or tree["ids"], tree["counts"])


def test_sentences_are_paired_by_id_and_unknown_ones_left_out(tmp_path):
    folders = study(tmp_path, 1)
    before = with_tests(compare(folders, "test"), 500)
    backwards = [f"s{i}" for i in reversed(range(SENTENCES))]
    changed(folders[2], ids=backwards, pos=lambda values: values[::-1], con=lambda values: values[::-1])
    assert str(with_tests(compare(folders, "test"), 500).tests) == str(before.tests)
    folders = study(tmp_path, 1)
    for run in folders:
        tasks = run.read_config()["tasks"]
        changed(run, **{task: lambda values: [None, None, *values[2:]] for task in tasks})
    found = with_tests(compare(folders, "test"), 500)
    assert [test.difference.sentences for test in found.tests.values()] == [SENTENCES - 2] * 2


def reasons(comparison: Comparison) -> list[str]:
    assert comparison.tests.keys() | comparison.untested.keys() == set(comparison.compared())
    return list(comparison.untested.values())


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"ids": [f"t{i}" for i in range(SENTENCES)]}, "were not scored on the same sentences (60 and 60, of which 0"),
        ({"pos": lambda values: [None, *values[1:]]}, "were not scored on the same sentences (59 and 60, of which 59"),
    ],
)
def test_what_cannot_be_paired_is_told(edit, reason, tmp_path):
    folders = study(tmp_path, 1)
    changed(folders[2], **edit)
    comparison = with_tests(compare(folders, "test"), 200)
    assert all(reason in found for found in reasons(comparison))
    assert (MTL, "pos") in comparison.untested


def test_counts_that_are_missing_or_damaged_are_told(tmp_path):
    folders = study(tmp_path, 1)
    path = folders[2].path / "counts/test.json"
    for damage, said in (
        (lambda: path.write_text("["), "line 1: not readable as JSON"),
        (lambda: path.write_text(json.dumps({"ids": [], "counts": {"pos": {}, "con": {}}})), "has no counts of"),
        (path.unlink, r"has no counts of (pos|con) on test; `mtlprune evaluate \S* --split test` writes them$"),
    ):
        damage()
        comparison = with_tests(compare(folders, "test"), 99)
        assert all(re.search(said, reason) for reason in reasons(comparison))
    assert f"- There is no test of POS in POS+CON: {comparison.untested[MTL, 'pos']}.\n" in markdown(comparison)


def test_a_difference_within_the_variance_of_seeds_is_marked_so(tmp_path):
    """STL of seed 1 is excellent and of seed 2 poor; MTL in between, but nearer to the poor one."""
    folders = [
        write_run(tmp_path / "a", {"pos": 0.95}, seed=1),
        write_run(tmp_path / "b", {"pos": 0.70}, seed=2),
        *(write_run(tmp_path / f"m{seed}", {"pos": 0.72, "ner": 0.5}, seed=seed) for seed in (1, 2)),
    ]
    comparison = with_tests(compare(folders, "test"), 2000)
    test = comparison.tests[MTL, "pos"]
    assert test.mark == "†" and not test.significant and test.p_holm < 0.05 < test.wide_p_holm
    assert test.interval == (test.difference.wide_low, test.difference.wide_high)
    assert test.interval[0] < 0 < test.interval[1]


def test_one_run_a_side_is_never_called_significant(tmp_path):
    comparison = with_tests(compare(study(tmp_path, 1), "test"), 2000, margin=1.5)
    assert "the margin of 1.5 points needs two or more seeds" in markdown(comparison)
    assert all(math.isnan(test.difference.wide_low) and test.seeds is None for test in comparison.tests.values())
    test = comparison.tests[MTL, "pos"]
    assert test.mark == "†" and not test.significant and test.of_these_runs
    assert test.interval == (test.difference.low, test.difference.high)
    assert "* p <" not in markdown(comparison)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_difference_without_an_error_is_not_certain(seeds, tmp_path):
    """One sentence alone; other cases stand in tests/analyses/test_significance.py."""
    folders = []
    for seed, alone, together in [(0, 6, 2), (1, 5, 1), (2, 6, 2)][:seeds]:
        for name, skills, right in (("ner", {"ner": 0.5}, alone), ("mtl", {"pos": 0.5, "ner": 0.5}, together)):
            run = write_run(tmp_path / f"{name}-{seed}", skills, seed=seed, ids=["s0"])
            counts = {"correct": [right], "gold": [6], "predicted": [right]}
            write_counts(run, "test", ["s0"], {**run.read_counts("test")["counts"], "ner": counts})
            folders.append(run)
    comparison = with_tests(compare(folders, "test"), 300)
    test, shown, table = comparison.tests[MTL, "ner"], markdown(comparison), details(comparison)
    assert not test.significant and math.isnan(test.equivalence_p) and all(map(math.isnan, test.interval))
    assert (
        "- The difference of NER in POS+NER has no interval, because resampling the sentences does not change it."
        in shown
    )
    row = dict(zip(table.header, table.rows[0], strict=True))
    wide = ("95 %, seeds and sentences", "p", "p (Holm)", "p (within ±1)")
    assert [row.get(name) for name in wide] == [None if seeds == 1 else "–"] * 4 and "*" not in row["Δ"]
    cell = next(cell for cell in json.loads(to_json(comparison))["cells"] if cell["delta"] is not None)
    names = ["wide_low", "wide_p", "equivalence_p", "wide_free"]
    names += [f"wide_error_{part}" for part in ("seeds", "noise", "sentences")]
    assert [cell[name] for name in names] == [None] * 7
    body = part([Scored("x", False, comparison)], []).body.lower().replace("nance", "")
    assert "nan" not in shown + to_csv(comparison) + body


def test_equivalence_stands_in_the_table(tmp_path):
    comparison = with_tests(compare(study(tmp_path, 3), "test"), 2000, margin=15.0)
    tests = [comparison.tests[MTL, task] for task in ("pos", "con")]
    assert [test.equivalence_p for test in tests] == [test.difference.equivalence_p(15.0) for test in tests]
    assert tests[0].equivalence_p > 0.5 > 0.05 > tests[1].equivalence_p
    place = details(comparison).header.index("p (within ±15)")
    assert [row[place] for row in details(comparison).rows] == [probability(test.equivalence_p) for test in tests]


@pytest.mark.parametrize("seeds", [1, 4])
def test_detectable_effects_stand_where_nothing_is_shown(seeds, tmp_path):
    """POS is shown to differ, CON is not; with one run a side by the error of sentences."""
    comparison = with_tests(compare(study(tmp_path, seeds), "test"), 2000)
    (_, pos), (_, con) = sorted(comparison.tests.items(), key=lambda test: test[0][1] == "con")
    error, place = con.difference.wide_error, details(comparison).header.index("detectable")
    least = con.difference.detectable
    if seeds > 1:
        known = error.quantile(0.025) + error.quantile(0.2)  # Bloom's (1995), as if the error were known
        assert known < least < 1.64 * known  # 1.64: of three seeds, where nothing but seeds varies
    else:  # a normal, as wide as the bootstrap's interval
        assert least == pytest.approx((con.difference.high - con.difference.low) / 3.92 * 2.80, rel=0.05)
    assert [row[place] for row in details(comparison).rows] == ["–", f"{least:.2f}"]
    assert f"{least:.2f}" in latex(comparison) and "four of five such studies would" in latex(comparison)
    cells = [cell for cell in json.loads(to_json(comparison))["cells"] if cell["detectable"] is not None]
    assert [cell["detectable"] for cell in cells] == pytest.approx([pos.difference.detectable, least])
