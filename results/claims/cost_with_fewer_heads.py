"""Compare joint minus single-task scores (Δ) with all 72 heads and with 36 heads, chosen in three ways.

    python results/claims/cost_with_fewer_heads.py results/ewt5-minilm/records > results/gates/cost-with-fewer-heads.md

The table shows MTL-5 minus STL on test, and the difference of this Δ from Δ with all heads, which was not planned.
Intervals are over sentences and three training seeds. If the last difference is not significant, the table shows the
minimum detectable effect. The random heads of STL and MTL-5 were drawn independently, with the same number of heads in
each layer as the heads that gates keep.
"""

import sys
from pathlib import Path

from claimed_heads_only import TASKS, test_scores

from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import weighted

HEADS = {"none": "72 heads", "random": "36 random", "gates": "36 by gates", "importance": "36 by importance"}


def main(study: str) -> None:
    """Print a row for each choice of heads."""
    scores = test_scores(
        Path(study), {f"{kind}-{side}": f"{kind}-{side}" for kind in HEADS for side in ("mtl5", "TASK")}
    )
    deltas = {kind: [scores[f"{kind}-mtl5", task] - scores[f"{kind}-TASK", task] for task in TASKS] for kind in HEADS}
    print(
        f"| MTL-5 − STL | {' | '.join(map(str.upper, TASKS))} | mean | above 72 heads | detectable |\n|:--|{'--:|' * 8}"
    )
    for kind, name in HEADS.items():
        task_cells = [f"{delta.observed.mean():+.2f}" for delta in deltas[kind]]
        contrasts = [
            Contrast.of(delta) for delta in (weighted(deltas[kind]), weighted(deltas[kind]) - weighted(deltas["none"]))
        ]
        cells = [f"{contrast.estimate:+.2f} [{contrast.low:+.2f}, {contrast.high:+.2f}]" for contrast in contrasts]
        cells += [f"{contrasts[1].detectable:.2f}" if contrasts[1].low < 0 < contrasts[1].high else "–"]
        print(f"| {' | '.join([name, *task_cells, *(cells if kind != 'none' else (cells[0], '', ''))])} |")
    link = "[scarcity](../fight/scarcity/scarcity.md)"
    print(
        f"\nSingle-task and joint runs lack different heads here. The page of {link} has runs that lack the same heads."
    )


if __name__ == "__main__":
    main(sys.argv[1])
