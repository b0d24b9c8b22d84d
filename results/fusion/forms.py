"""Compare four ways to fuse layers: scores of DEP, and the similarity of fused vectors, by the rules of PLAN.md.

    python results/fusion/forms.py STL.json MTL-5.json STL-late.json MTL-5-late.json results/fusion/smoothing \\
        > results/fusion/forms.md

`mtlprune table --format json` writes the JSON files (see rebuild.sh).
"""

import json
import sys
from pathlib import Path

import pandas as pd

from mtlprune.analyses.analysis import read
from mtlprune.figures.grid import number, probability
from mtlprune.statistics.significance import holm

FORMS, LAYERS, MIN_DECREASE = ("concat", "max", "gate", "scalar_mix"), ("1,2,3", "4,5,6"), 0.05
"""MIN_DECREASE is the amount by which the mean cosine must be lower, by the plan."""


def scores(tables: dict[str, Path]) -> None:
    """Print DEP LAS on test with each form and its difference from no fusion, with Holm's correction over the forms."""
    print("| runs | fusion | DEP LAS | minus no fusion | p | p (Holm) |\n|:--|:--|--:|--:|--:|--:|")
    for name, file in tables.items():
        frame = pd.DataFrame(json.loads(file.read_text(encoding="utf-8"))["cells"])
        frame = frame.query("task == 'dep'").set_index("column")
        print(f"| {name} | none | {number(frame.loc[name, 'mean'])} | – | – | – |")
        planned = [f"{name}, fusion {form}" for form in FORMS]
        corrected = dict(zip(planned, holm(frame.loc[planned, "wide_p"].to_numpy(float)), strict=True))
        for column in [*planned, *(f"{name}, fusion gate of layers {layers}" for layers in LAYERS)]:
            row = frame.loc[column]
            interval = f"{number(row['delta'])} [{number(row['wide_low'])}, {number(row['wide_high'])}]"
            p = probability(corrected[column]) if column in corrected else "–"
            form = column.removeprefix(f"{name}, fusion ")
            print(f"| {name} | {form} | {number(row['mean'])} | {interval} | {probability(row['wide_p'])} | {p} |")


def late_minus_early(tables: dict[str, Path]) -> None:
    """Print DEP LAS on test with gated fusion of layers 4 to 6 minus gated fusion of layers 1 to 3."""
    print("| runs | late minus early | p | p (within ±1) |\n|:--|--:|--:|--:|")
    for name, file in tables.items():
        frame = pd.DataFrame(json.loads(file.read_text(encoding="utf-8"))["cells"])
        [row] = frame[(frame["task"] == "dep") & frame["delta"].notna()].to_dict("records")
        interval = f"{number(row['delta'])} [{number(row['wide_low'])}, {number(row['wide_high'])}]"
        print(f"| {name} | {interval} | {probability(row['wide_p'])} | {probability(row['equivalence_p'])} |")


def similarity(folder: Path) -> None:
    """Print the mean cosine within sentences of the vectors that decoders read, and the verdict by the plan's rule."""
    result = read(folder, "smoothing")
    fused = result.frames["fused"].query("measure == 'cosine'").set_index(["encoder", "seed"])["value"]
    layers = result.frames["layers"].query("measure == 'cosine'")
    last = layers[layers["layer"] == layers["layer"].max()].set_index(["encoder", "seed"])["value"]
    print("| runs | fusion | CosSim by seed | no fusion | difference by seed | eases |\n|:--|:--|--:|--:|--:|:--|")
    for name in ("DEP", "MTL-5"):
        for form in FORMS:
            fused_values, without = fused[f"{name} (fusion {form})"].sort_index(), last[name].sort_index()
            difference = fused_values - without
            verdict = "undecided"
            if (difference < 0).all() and difference.mean() <= -MIN_DECREASE:
                verdict = "supported"
            elif (difference > 0).all() or (difference.abs() < MIN_DECREASE).all():
                verdict = "not supported"
            cells = (", ".join(number(value) for value in values) for values in (fused_values, without, difference))
            print(f"| {name} | {form} | {' | '.join(cells)} | {verdict} |")


def main(single: str, joint: str, single_late: str, joint_late: str, smoothing: str) -> None:
    print("# Four ways to join layers\n\n## Scores\n")
    scores({"STL": Path(single), "MTL-5": Path(joint)})
    print(
        "\nScores are on test with three seeds, and 95 % intervals are over seeds and sentences. Rows with chosen "
        "layers are not among the four forms.\n"
    )
    late_minus_early({"STL": Path(single_late), "MTL-5": Path(joint_late)})
    print("\n## Similarity of the vectors that decoders read\n")
    similarity(Path(smoothing))


if __name__ == "__main__":
    main(*sys.argv[1:])
