"""Count the heads that three tasks or more claim, the heads that tasks share, and the heads that are found again.

    python results/claims/counts.py results/claims/records results/ewt5-minilm/records >> results/claims/numbers.md

The claims are stable heads of five tasks with three training runs each. The number of heads that three tasks or more
claim is given for the majority of runs, for each seed, and for all choices of one run per task. Heads are *found again*
if two selections with the same seeds share them, where the runs were trained on two machines.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from mtlprune.runs.claims import load_claims
from mtlprune.runs.study import read_study

TASKS, MIN_TASKS = ("pos", "ner", "dep", "con", "srl"), 3
"""MIN_TASKS is the number of tasks that must claim a head for it to be counted."""


def open_heads(folder: Path) -> np.ndarray:
    """Return the mask of the open heads of a run: (L, A)."""
    [claim] = load_claims([folder])
    return np.asarray(claim.open)


def shared_with_repeats(first: list[Path], second: list[Path]) -> str:
    """Describe how many heads the runs of one study share with the corresponding runs of another study."""
    shared = [int((open_heads(path) & open_heads(repeat)).sum()) for path, repeat in zip(first, second, strict=True)]
    return f"{np.mean(shared):.1f} in the mean of {len(shared)} ({min(shared)} to {max(shared)})"


def main(studies: str, older: str) -> None:
    """Print all counts."""
    stable, frozen_runs, regimes = (read_study(Path(studies, name)) for name in ("stable", "frozen", "regimes"))
    dynamic = sorted(read_study(Path(older)).paths("gates-???-?"))
    runs = np.array([[open_heads(path) for path in sorted(stable.paths(f"stable-{task}-*"))] for task in TASKS])
    majority = 2 * runs.sum(1) > runs.shape[1]  # (T, L, A)
    by_seed = [int((runs[:, seed].sum(0) >= MIN_TASKS).sum()) for seed in range(runs.shape[1])]
    choices = [
        int((sum(runs[task, seed] for task, seed in enumerate(seeds)) >= MIN_TASKS).sum())
        for seeds in itertools.product(range(runs.shape[1]), repeat=len(TASKS))
    ]
    print(
        f"{MIN_TASKS} tasks or more claim {(majority.sum(0) >= MIN_TASKS).sum()} heads in the majority of runs. "
        f"Single seeds give {', '.join(map(str, by_seed))}. All {len(choices)} choices of runs give {min(choices)} "
        f"to {max(choices)}, with a mean of {np.mean(choices):.1f}.\n"
    )
    print(f"| claims of | {' | '.join(task.upper() for task in TASKS)} |\n|:--|{'--:|' * len(TASKS)}")
    for task, claims in zip(TASKS, majority, strict=True):
        print(f"| {task.upper()} | {' | '.join(str(int((claims & others).sum())) for others in majority)} |")
    frozen = sorted(frozen_runs.paths("frozen-*"))
    repeats = [regimes.paths(path.name.rpartition("-")[0])[0] for path in frozen]
    names = [path.name.split("-")[1:3] for path in dynamic]
    trained = [regimes.paths(f"dynamic-{task}-own-{seed}")[0] for task, seed in names]
    print(
        f"\nGates on frozen runs find {shared_with_repeats(frozen, repeats)} of 36 heads again. "
        f"Gates trained with the encoder find {shared_with_repeats(dynamic, trained)}."
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
