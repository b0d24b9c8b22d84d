"""Tables as LaTeX: short ones float, long ones break over pages with their header on each."""

import math

import pytest

from mtlprune.reports.grid import LONG, Grid, Strong, escape, number, probability


@pytest.mark.parametrize("rows", [1, LONG, LONG + 1, 200])
def test_every_row_and_what_is_opened_is_closed(rows):
    made = Grid(["label", "F1"], [[f"row_{k}", Strong(f"{k}.5")] for k in range(rows)]).latex("tab:x", "Of 50 %.")
    kind = "longtable" if rows > LONG else "tabular"
    assert f"\\begin{{{kind}}}{{lr}}" in made and f"\\end{{{kind}}}" in made
    assert made.count("\\begin{") == made.count("\\end{") and ("\\endhead" in made) == (rows > LONG)
    assert all(f"row\\_{k} & \\textbf{{{k}.5}} \\\\" in made for k in range(rows))
    assert made.count("\\caption{Of 50 \\%.}") == 1 == made.count("label & F1")


def test_cells_are_escaped_and_numbers_shown():
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
