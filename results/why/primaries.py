"""Correct the p-values of the five primary comparisons of PLAN.md together, by Holm.

    python results/why/primaries.py results/why/primaries > results/why/primaries.md

All p-values are two-sided against no effect, except that of experiment 2, which is against the share of 40 % that its
verdict names. An experiment with several places has the largest p of its places, because its verdict needs all of them.
A place in which the comparison has no p-value counts as 1.
"""

import sys
from pathlib import Path

import pandas as pd

from mtlprune.figures.grid import probability
from mtlprune.runs.results import Result, read_result, write_result
from mtlprune.statistics.significance import holm

HERE = Path(__file__).parent
SPECIFIC: dict[str, str | int] = {"encoder": "mean of predicted tasks", "mode": "claimed"}
Place = tuple[str, str, dict[str, str | int], str]
"""Result, frame, values of columns that select a row, and column of the p-value."""
FAMILY: dict[str, list[Place]] = {
    "0. Gain by closing interfering heads": [
        ("closing/roles.json", "gains", {"task": "mean"}, "p"),
        ("closing-mpnet/roles.json", "gains", {"task": "mean"}, "p"),
    ],
    "1. Δ of DEP with 18 heads, compared with the control": [
        ("dep/scarcity.json", "pooled", {"term": "18 heads minus 48 units", "mode": "points", "task": "dep"}, "p")
    ],
    "2. Share of the cost that remains at equal training loss": [
        ("equal_loss/equal_loss.json", "shares", {"updates": 1008, "task": "mean"}, "p_worse")
    ],
    "3. Change of Δ when a task becomes rare, 18 heads compared with 72": [
        ("rare/rare.json", "changes", {"heads": "18 minus 72", "task": "mean"}, "p")
    ],
    "4. Specificity of the heads of POS, DEP and CON": [
        ("cross/cross.json", "specificity", SPECIFIC, "p"),
        ("cross-masc/cross.json", "specificity", SPECIFIC, "p"),
        ("cross-mpnet/cross.json", "specificity", SPECIFIC, "p"),
    ],
}


def p_of(path: str, frame: str, row: dict[str, str | int], column: str) -> float:
    """Read the p-value of a place; 1 if the result has none."""
    rows = read_result(HERE / path).frames.get(frame, pd.DataFrame(columns=[*row, column]))
    for name, value in row.items():
        rows = rows[rows[name] == value]
    values = rows[column].dropna()
    return float(values.iloc[0]) if len(values) else 1.0


def main(out: str) -> None:
    """Print a table of the family, and write it to the folder ``out``."""
    ps = [max(p_of(*place) for place in places) for places in FAMILY.values()]
    corrected_ps = holm(ps)
    rows = pd.DataFrame({"term": list(FAMILY), "n": list(map(len, FAMILY.values())), "p": ps, "p_holm": corrected_ps})
    write_result(Path(out), Result("primaries", {"encoders": [], "notes": []}, {"family": rows}))
    print("# The five primary comparisons after Holm's correction\n")
    print(
        "P-values are two-sided against no effect, and that of experiment 2 is against a share of 40 %. A place is one"
    )
    print(
        "encoder and corpus. An experiment with several places has the largest p of its places, and a place without a"
    )
    print("p-value counts as 1.\n")
    print("| primary comparison | places | p | p (Holm, five tests) |\n|:--|--:|--:|--:|")
    for (name, places), p, corrected in zip(FAMILY.items(), ps, corrected_ps, strict=True):
        print(f"| {name} | {len(places)} | {probability(p)} | {probability(corrected)} |")


if __name__ == "__main__":
    main(sys.argv[1])
