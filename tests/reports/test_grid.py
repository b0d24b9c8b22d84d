"""Tables as LaTeX: short ones float, long ones break over pages with their header on each."""

from __future__ import annotations

import pytest

from mtlprune.reports.grid import LONG, Grid, Strong


@pytest.mark.parametrize("rows", [1, LONG, LONG + 1, 200])
def test_every_row_and_what_is_opened_is_closed(rows: int) -> None:
    made = Grid(["label", "F1"], [[f"row_{k}", Strong(f"{k}.5")] for k in range(rows)]).latex("tab:x", "Of 50 %.")
    kind = "longtable" if rows > LONG else "tabular"
    assert f"\\begin{{{kind}}}{{lr}}" in made and f"\\end{{{kind}}}" in made
    assert made.count("\\begin{") == made.count("\\end{") and ("\\endhead" in made) == (rows > LONG)
    assert all(f"row\\_{k} & \\textbf{{{k}.5}} \\\\" in made for k in range(rows))
    assert made.count("\\caption{Of 50 \\%.}") == 1 == made.count("label & F1")
