"""The report of overlap: what it shows is in the Result, and a Result that was stored shows the same."""

import re

import numpy as np
import pytest
from gated_runs import claim, scattered

from mtlprune.analyses.claims import ANALYSIS
from mtlprune.analyses.claims.measure import overlap
from mtlprune.reports.analyses import tables
from mtlprune.reports.grid import number, probability
from mtlprune.results import Result


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


def test_tables_hold_what_the_frames_hold(result):
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
