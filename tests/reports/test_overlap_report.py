"""The report of overlap: what it shows is in the Result, and a Result that was stored shows the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from gated_runs import claim, scattered

from mtlprune.analyses.analysis import read
from mtlprune.analyses.claims import ANALYSIS
from mtlprune.analyses.claims.measure import overlap
from mtlprune.reports.analyses import figures, markdown, tables
from mtlprune.reports.grid import number, probability
from mtlprune.results import Result, write_result


@pytest.fixture(scope="module")
def result() -> Result:
    generator = np.random.default_rng(0)
    stem = scattered(generator, [2] * 4, 6)
    return overlap(
        [
            claim(label, seed, np.maximum(stem, scattered(generator, [1] * 4, 6)) * generator.uniform(0.1, 1, (4, 6)))
            for label in ("POS", "DEP", "SRL", "MTL-5", "MTL-5:POS")
            for seed in (1, 2, 3)
        ],
        permutations=200,
    )


def test_tables_hold_what_the_frames_hold(result: Result) -> None:
    made = {table.title: table for table in tables(ANALYSIS, result)}
    matrix, pairs = made["Correlation of gates"], result.frames["pairs"]
    assert list(matrix.header) == ["", "POS", "DEP", "SRL", "MTL-5", "MTL-5:POS"]
    cells = {(row[0], name): cell for row in matrix.rows for name, cell in zip(matrix.header[1:], row[1:], strict=True)}
    for pair in pairs.itertuples():
        assert cells[pair.encoder, pair.other] == cells[pair.other, pair.encoder] == number(pair.pearson)
    for label in result.frames["labels"].itertuples():
        assert cells[label.encoder, label.encoder] == number(label.multiple_last)
    assert [(row[0], row[3], row[6], row[7]) for row in made["Heads shared by two labels"].rows] == [
        (f"{p.encoder} – {p.other}", number(p.shared, 1), probability(p.p), probability(p.q))
        for p in pairs.itertuples()
    ]
    heads = result.frames["groups"]
    stem = heads[heads["group"] == "stem"].sort_values("tasks", ascending=False, kind="stable")
    named = [(f"{head.layer}-{head.head}", head.claimed_by) for head in stem.itertuples()]
    assert [(row[0], row[1]) for row in made["Stem heads"].rows] == named
    assert sum(float(row[2]) for row in made["Variance of gates"].rows) == pytest.approx(100, abs=0.3)
    rest = heads[heads["group"].isin(["exclusive", "free"])]
    listed = re.findall(r"\d+-\d+", " ".join(row[1] for row in made["Exclusive and free heads"].rows))
    assert sorted(listed) == sorted(f"{head.layer}-{head.head}" for head in rest.itertuples())


def test_what_is_stored_shows_the_same(result: Result, tmp_path: Path) -> None:
    write_result(tmp_path, result)
    stored = read(tmp_path, "claims")
    assert markdown(ANALYSIS, stored) == markdown(ANALYSIS, result)
    assert list(figures(ANALYSIS, stored)) == ["correlation", "shared", "heads"]
    gates = stored.grids(stored.about["encoders"][0])["gate"]
    assert int((gates > stored.about["settings"]["open_above"]).sum()) == stored.about["encoders"][0]["open"]


def test_a_single_run_has_a_report() -> None:
    found = overlap([claim("POS", 1, [[1, 0], [0, 1]])], permutations=10)
    text = markdown(ANALYSIS, found)
    assert "Heads shared by two labels" not in text and "POS has one seed" in text
    assert "Whether tasks claim the same heads is open: two single-task labels or more are needed." in text
    assert "| POS only             | 1-1, 2-2 |" in text and list(figures(ANALYSIS, found)) == ["heads"]
