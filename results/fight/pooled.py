"""E1 by task, its three trainings pooled by seed: looked at afterwards (2026-11-28), not planned.

    python results/fight/pooled.py > results/fight/pooled.md

MiniLM on EWT5 with 18 and with 72 heads: 252 updates (five seeds), 1,008 updates and the full training set (three seeds
each). A seed's change of the gap is the mean over the trainings that have the seed, so that a task is one test of five
seeds and not three of three to five. In points, and in logits of the scores, in which a point weighs more near 0 and
100. Intervals and p over seeds and sentences; Holm over tasks.
"""

from typing import Any

import numpy as np
from control import MARGIN
from joint import sides
from scipy import special

from mtlprune.analyses.harness.settings import Setting, common_seeds
from mtlprune.figures.grid import Grid, number, probability, with_interval
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, weighted

RECORDS = "results/fight/records"
TRAININGS = {
    "252 updates": (f"{RECORDS}/scarcity:18-*", f"{RECORDS}/scarcity:72-own-*"),
    "1,008 updates": (f"{RECORDS}/longer-18:18-*-1008", f"{RECORDS}/longer-72:72-own-*-1008"),
    "full set": (f"{RECORDS}/longer-18:18-*-full {RECORDS}/longer-more", "results/treatments/full/records:none-*"),
}
SCALES = {"points": lambda score: score, "logits": lambda score: special.logit(score / 100)}
CAPTION = (
    "Change: the gap (joint minus single tasks) with 18 heads minus that with 72; below 0 it is wider with 18. A "
    "seed's is the mean over 252 updates, 1,008 updates and the full set, of which seeds 4 and 5 have the first only. "
    "fp32, and bf16 after 1,008 updates and on the full set, where 72 heads are from a CPU and 18 from a GPU (two "
    "cells CPU). "
    f"Intervals and p over seeds and sentences, Holm over tasks. p (wider by {MARGIN:g}): below 0.05 a widening by "
    f"{MARGIN:g} point or more is excluded (one-sided). Afterwards, not planned."
)


def scaled(one: Setting, seeds: list[int], place: int, scale: str) -> Resampled:
    """The score of a task on a scale."""
    return Resampled(*(np.asarray(SCALES[scale](part)) for part in one.of_seeds(seeds, [place])))


def main() -> None:
    """Print the table."""
    read = [[sides(runs) for runs in pair] for pair in TRAININGS.values()]
    tasks, rows = read[0][0][0], []
    for (place, task), scale in ((pair, scale) for scale in SCALES for pair in enumerate(tasks)):
        by_seed: dict[int, list[tuple[float, np.ndarray]]] = {}
        for few, all_ in read:
            seeds = common_seeds(*few[1:], *all_[1:])
            parts = [scaled(side, seeds, place, scale) for _, *both in (few, all_) for side in both]
            figure = weighted(parts, [-1, 1, 1, -1])  # single and joint with few heads, with all
            for column, seed in enumerate(seeds):
                by_seed.setdefault(seed, []).append((figure.observed[column], figure.booted[:, column]))
        means = [[np.mean(part, axis=0) for part in zip(*by_seed[seed], strict=True)] for seed in sorted(by_seed)]
        pooled = Resampled(np.array([one for one, _ in means]), np.stack([drawn for _, drawn in means], 1))
        contrast = Contrast.of(pooled)
        row: dict[str, Any] = {"in": scale, "task": task.upper()}
        row |= {"p_widening": contrast.p_at_most(-MARGIN) if scale == "points" else np.nan}
        rows.append((row | {"each": ", ".join(number(value) for value in pooled.observed)}, contrast))
    frame = contrast_frame(rows, ["in"])
    frame["shown"] = [with_interval(row) for row in frame.itertuples()]
    columns: dict[str, Any] = {
        "in": "in",
        "task": "task",
        "seeds": ("n", 0),
        "change, 95 %": "shown",
        "by seed": "each",
    }
    columns |= {"p": ("p", probability), "p (Holm)": ("p_holm", probability)}
    columns |= {f"p (wider by {MARGIN:g})": ("p_widening", probability)}
    print("# The change of the gap with 18 heads, by task, pooled by seed\n")
    print(Grid.of("", frame, columns, "", texts=2).markdown())
    print(CAPTION)


if __name__ == "__main__":
    main()
