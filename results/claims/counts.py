"""How many heads: claimed by three tasks or more by seed and by choice of runs, shared by claims, found again.

python results/claims/counts.py results/claims/records results/ewt5-minilm/records >> results/claims/numbers.md

Stable claims of five tasks, three training runs each. A choice of runs takes one run of each task, in all ways. Found
again: heads that two selections with the same seeds share, whose runs were trained on two machines.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from mtlprune.runs.claims import load_claims
from mtlprune.runs.study import read_study

TASKS, LEAST = ("pos", "ner", "dep", "con", "srl"), 3


def opened(folder: Path) -> np.ndarray:
    """(L, A): the heads that a run has open."""
    [claim] = load_claims([folder])
    return np.asarray(claim.open)


def again(first: list[Path], second: list[Path]) -> str:
    """How many heads runs of one place share with those of another."""
    shared = [int((opened(one) & opened(other)).sum()) for one, other in zip(first, second, strict=True)]
    return f"{np.mean(shared):.1f} in the mean of {len(shared)} ({min(shared)} to {max(shared)})"


def main(studies: str, older: str) -> None:
    """Print all of it."""
    stable, frozen_runs, regimes = (read_study(Path(studies, name)) for name in ("stable", "frozen", "regimes"))
    dynamic = sorted(read_study(Path(older)).paths("gates-???-?"))
    runs = np.array([[opened(path) for path in sorted(stable.paths(f"stable-{task}-*"))] for task in TASKS])
    most = 2 * runs.sum(1) > runs.shape[1]  # (T, L, A)
    by_seed = [int((runs[:, seed].sum(0) >= LEAST).sum()) for seed in range(runs.shape[1])]
    choices = [
        int((sum(runs[task, seed] for task, seed in enumerate(seeds)) >= LEAST).sum())
        for seeds in itertools.product(range(runs.shape[1]), repeat=len(TASKS))
    ]
    print(
        f"{LEAST} tasks or more claim {(most.sum(0) >= LEAST).sum()} heads in the majority of runs. Single seeds give "
        f"{', '.join(map(str, by_seed))}. All {len(choices)} choices of runs give {min(choices)} to {max(choices)}, "
        f"with a mean of {np.mean(choices):.1f}.\n"
    )
    print(f"| claims of | {' | '.join(task.upper() for task in TASKS)} |\n|:--|{'--:|' * len(TASKS)}")
    for task, mine in zip(TASKS, most, strict=True):
        print(f"| {task.upper()} | {' | '.join(str(int((mine & other).sum())) for other in most)} |")
    frozen = sorted(frozen_runs.paths("frozen-*"))
    repeats = [regimes.paths(path.name.rpartition("-")[0])[0] for path in frozen]
    names = [path.name.split("-")[1:3] for path in dynamic]
    trained = [regimes.paths(f"dynamic-{task}-own-{seed}")[0] for task, seed in names]
    print(
        f"\nGates on frozen runs find {again(frozen, repeats)} of 36 heads again. Gates trained with the encoder find "
        f"{again(dynamic, trained)}."
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
