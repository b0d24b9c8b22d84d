"""Compare language models with and without CosReg, from the result of `mtlprune analyze degeneration`.

    python results/degeneration/seeds.py results/degeneration/lm base cosreg-0.1 cosreg-1

The names are those of pretraining runs, and the others are compared with the first. Differences are paired by seed,
with Student's 95 % interval over seeds.
"""

import sys
from pathlib import Path

import pandas as pd
from scipy import stats

from mtlprune.runs.results import read_result

RARE, NEVER, OFTEN = "1 to 9", "never", "1,000 or more"
ROWS = {
    "R of the embeddings": ("embeddings", "mean_cosine", None, 3),
    "share of the top direction (%)": ("embeddings", "top1", None, 1),
    "effective rank / possible": ("embeddings", "rank_share", None, 3),
    "median angle to the mean (°)": ("embeddings", "angle", None, 1),
    "Spearman of frequency and cosine to the mean": ("embeddings", "spearman", None, 2),
    "loss, all pieces (nats)": ("softmax", "loss", None, 3),
    "**loss, pieces that occur 1 to 9 times**": ("pieces", "loss", RARE, 3),
    "loss, 10 to 99 times": ("pieces", "loss", "10 to 99", 3),
    "loss, 1,000 times or more": ("pieces", "loss", OFTEN, 3),
    "R of the hidden states before the softmax": ("softmax", "mean_cosine", None, 3),
    "negative margin of these": ("softmax", "margin", None, 3),
    "pieces that never occur: R": ("pieces", "R", NEVER, 3),
    "never: norm": ("pieces", "norm", NEVER, 2),
    "never: negative products (%)": ("pieces", "negative", NEVER, 1),
    "never: moved / initial norm": ("pieces", "moved", NEVER, 2),
    "never: cosine of the way with minus the mean state": ("pieces", "away", NEVER, 3),
    "1,000 or more: negative products (%)": ("pieces", "negative", OFTEN, 1),
    "1,000 or more: moved / initial norm": ("pieces", "moved", OFTEN, 2),
    "1,000 or more: cosine of the way with minus the mean state": ("pieces", "away", OFTEN, 3),
}
"""The frame, the measure, the frequency band of sub-words, and the number of digits of each row of the table."""


def values(frame: pd.DataFrame, measure: str, band: str | None, name: str) -> pd.Series:
    """Return a measure of the last checkpoint of a pretraining run, by seed."""
    rows = frame[(frame["measure"] == measure) & frame["encoder"].str.startswith(f"{name}, step ")]
    rows = rows[~rows["encoder"].str.endswith(" step 0")]
    rows = rows if band is None else rows[rows["term"] == band]
    return rows.set_index("seed")["value"] * (100 if measure in ("top1", "negative") else 1)


def main(folder: str, *names: str) -> None:
    """Print means with their ranges, and differences from the first pretraining."""
    result = read_result(Path(folder) / "degeneration.json")
    print("# CosReg on tied embeddings, seed by seed\n")
    print("| |" + "".join(f" {name} |" for name in names) + "".join(f" {one} − {names[0]} |" for one in names[1:]))
    print("|:--|" + "--:|" * (2 * len(names) - 1))
    for title, (frame, measure, band, digits) in ROWS.items():
        runs = [values(result.frames[frame], measure, band, name) for name in names]
        cells = [f"{run.mean():.{digits}f} ({run.min():.{digits}f} to {run.max():.{digits}f})" for run in runs]
        for run in runs[1:]:
            difference = (run - runs[0]).dropna()
            low, high = stats.ttest_1samp(difference, 0).confidence_interval()
            cells.append(f"{difference.mean():+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
