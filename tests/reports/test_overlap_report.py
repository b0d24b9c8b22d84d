"""The report of overlap: every figure in it is one of Overlap, and its three forms say the same."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from gated_runs import claim, scattered
from mtlprune.analyses.claims.overlap import Overlap, measure
from mtlprune.analyses.claims.show.overlap import answer, latex, markdown, sections, to_json

from mtlprune.reports.grid import Grid, escape, number, probability


@pytest.fixture(scope="module")
def overlap() -> Overlap:
    generator = np.random.default_rng(0)
    stem = scattered(generator, [2] * 4, 6)
    return measure(
        [
            claim(label, seed, np.maximum(stem, scattered(generator, [1] * 4, 6)) * generator.uniform(0.1, 1, (4, 6)))
            for label in ("POS", "DEP", "SRL", "MTL-5", "MTL-5:POS")
            for seed in (1, 2, 3)
        ],
        permutations=200,
    )


def rows(text: str, title: str) -> list[list[str]]:
    part = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_markdown(overlap: Overlap) -> None:
    text = markdown(overlap)
    assert "Encoder minilm: 4 layers × 6 heads = 24. Runs: 15." in text and answer(overlap) in text
    matrix = rows(text, "Correlation of gates")
    assert matrix[0] == ["", "POS", "DEP", "SRL", "MTL-5", "MTL-5:POS"]
    assert [row[1:] for row in matrix[1:]] == [[number(value) for value in row] for row in overlap.correlation]
    pairs = rows(text, "Heads shared by two labels")[1:]
    assert [(row[0], row[3], row[6], row[7]) for row in pairs] == [
        (f"{p.first} – {p.second}", f"{p.sharing.heads:.1f}", probability(p.sharing.p), probability(p.q))
        for p in overlap.pairs
    ]
    stem = rows(text, "Stem heads")[1:]
    assert [(row[0], row[1]) for row in stem] == [(head.name, ", ".join(head.labels)) for head in overlap.stem]
    shares = [float(row[2]) for row in rows(text, "Variance of gates")[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert "- POS: runs/POS-1, runs/POS-2, runs/POS-3" in text and "nan" not in text.lower()
    listed = {name for head in (*overlap.exclusive, *overlap.free) for name in [head.name]}
    assert listed <= set(re.findall(r"\d+-\d+", text.split("## Exclusive and free heads")[1]))


def test_latex_has_the_same_tables(overlap: Overlap) -> None:
    text = latex(overlap)
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(sections(overlap)) == 9
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 9
    assert "POS & " in text and "$\\pm$" in text
    for found in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n\\toprule\n(.*?)\\bottomrule", text, re.DOTALL):
        lines = [line for line in found[1].splitlines() if line != r"\midrule"]
        assert all(line.endswith(r" \\") and len(re.findall(r"(?<!\\)&", line)) + 1 == len(found[0]) for line in lines)
    visible = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert visible.isascii()
    assert visible.count("{") == visible.count("}")


def test_json_holds_everything(overlap: Overlap) -> None:
    tree = json.loads(to_json(overlap), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert tree["numbering"] == "layers and heads are counted from 1"
    assert tree["pairs"][0]["sharing"]["p"] == overlap.pairs[0].sharing.p
    assert tree["correlation"] == [list(row) for row in overlap.correlation]
    first = overlap.stem[0]
    assert tree["stem"][0] == {
        "layer": first.layer,
        "head": first.head,
        "labels": list(first.labels),
        "confidence": first.confidence,
    }
    assert tree["variance"]["shares"] == overlap.variance.shares
    alone = json.loads(to_json(measure([claim("POS", 1, [[1, 0]])], permutations=0)))
    assert alone["tasks"] == {"heads": None, "expected": None, "z": None, "p": None} and alone["undefined"]


def test_a_single_run_has_a_report() -> None:
    found = measure([claim("POS", 1, [[1, 0], [0, 1]])], permutations=10)
    text = markdown(found)
    assert "Heads shared by two labels" not in text and "## Not defined (–)" in text
    assert "Whether tasks claim the same heads is open: two single-task labels or more are needed." in text
    assert "Stem heads: none." in text and "Claimed by POS only: 1-1, 2-2 (2 heads)." in text
    assert latex(found).count(r"\begin{table}") == len(sections(found)) == 4


def test_the_answer() -> None:
    def ask(one: object, other: object, permutations: int = 2000) -> str:
        return answer(measure([claim("POS", 1, one), claim("DEP", 1, other)], permutations))  # type: ignore[arg-type]

    half = scattered(np.random.default_rng(1), [5] * 10, 10)
    assert ask(half, half).startswith(
        "Two runs of different single tasks share 50.0 open heads on average; layer depth "
    )
    assert ask(half, half).endswith(": they share more than depth explains.")
    assert ask(half, 1 - half).endswith(": no more than depth explains is shown.")
    assert "no permutations, so no p" in ask(half, half, 0)
    assert ask(half, np.ones((10, 10))).endswith("permuting heads within layers cannot change that.")


def test_grid() -> None:
    grid = Grid(["a|b", "n"], [["x_1", "10"], ["50%", "2"]])
    assert grid.markdown() == "| a\\|b |  n |\n|:-----|---:|\n| x_1  | 10 |\n| 50%  |  2 |\n"
    assert "x\\_1 & 10 \\\\\n50\\% & 2 \\\\" in grid.latex("l", "c")
    assert (
        escape("a\\b ≥ {2} & x^y ~ #")
        == r"a\textbackslash{}b $\geq$ \{2\} \& x\textasciicircum{}y \textasciitilde{} \#"
    )
    assert (number(-1.234), number(math.nan), number(0.5, 0)) == ("−1.23", "–", "0")
    assert (probability(0.04321), probability(1 / 10_001), probability(1e-9), probability(math.nan)) == (
        "0.0432",
        "0.0001",
        "1e−09",
        "–",
    )
