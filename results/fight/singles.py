"""E2 on single-task runs (and on an encoder of random weights), beside the joint runs. (PLAN.md, 2026-11-27, 00:39)

    python results/fight/singles.py results/fight > results/fight/singles.md
    python results/fight/singles.py results/fight roles-mpnet > results/fight/singles-mpnet.md

Reads the Results roles, roles-singles/SEED and, where it is there, roles-random. Intervals and p by t over the seeds
that both sides have.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from answer import of_seeds

from mtlprune.analyses.analysis import read
from mtlprune.analyses.heads.roles import ROLES, STL
from mtlprune.evaluation.head_masks import Mask
from mtlprune.figures.grid import number, probability
from mtlprune.runs.results import Result
from mtlprune.statistics.agreement import pearson

RANDOM = "joint, random weights"
Masks = dict[tuple[str, int, str], Mask]
"""Task, seed and role → (L·A,), heads that have it in every selection."""


def masks(results: list[Result]) -> Masks:
    """All roles of some Results."""
    frame = pd.concat([result.frames["heads"] for result in results])
    always = frame.groupby(["task", "seed", "measure", "layer", "head"])["value"].min() > 0.5
    return {key: heads.to_numpy() for key, heads in always.groupby(["task", "seed", "measure"])}


def with_interval(values: np.ndarray) -> str:
    mean, low, high, p, least = of_seeds(values)
    seen = "" if p < 0.05 else f", {number(least)} detectable"
    return f"{number(mean)} [{number(low)}, {number(high)}], p {probability(p)}{seen}"


def agreement(one: Masks, other: Masks, role: str, task: str, same_seed: bool | None) -> str:
    """Mean Φ between runs of a task on two sides; of other seeds, of the same, or all pairs of one side."""
    mine, theirs = ({key[1]: heads for key, heads in side.items() if key[::2] == (task, role)} for side in (one, other))
    pairs = itertools.product(mine, theirs) if same_seed is not None else itertools.combinations(mine, 2)
    chosen = [pair for pair in pairs if same_seed is None or (pair[0] == pair[1]) is same_seed]
    return number(float(np.mean([pearson(mine[a].astype(float), theirs[b].astype(float)) for a, b in chosen])))


def main(folder: str, name: str = "roles") -> None:
    """Print all of it."""
    joint = read(Path(folder, name), "roles")
    found = {"joint": [joint], STL: [read(path, "roles") for path in sorted(Path(folder, f"{name}-singles").iterdir())]}
    if Path(folder, f"{name}-random").is_dir():
        found[RANDOM] = [read(Path(folder, f"{name}-random"), "roles")]
    counts = {
        name: pd.concat([result.frames["conflicts"] for result in results]).set_index("seed").sort_index()
        for name, results in found.items()
    }
    apart = (counts["joint"]["conflict"] - counts[STL]["conflict"]).dropna()
    print("# Roles in single-task runs\n")
    if withdrawn := joint.withdrawn:
        print(f"{withdrawn[0]}\n")
    print("## Conflict heads\n")
    print("| runs | by seed | by chance |\n|:--|--:|--:|")
    for name, frame in counts.items():
        by_seed, chance = frame["conflict"], frame["expected"]
        print(f"| {name} | {', '.join(map(str, by_seed))} | {', '.join(number(value, 1) for value in chance)} |")
    print(f"\nJoint minus {STL}: {with_interval(apart.to_numpy(float))}.\n")
    for row in found[RANDOM][0].frames["gains"].query("task != 'mean'").itertuples() if RANDOM in found else ():
        closed = (
            f"With random weights, closing {row.task.upper()}'s conflict heads gains it {number(row.estimate)} points"
        )
        print(f"{closed} beyond random heads.\n")
    print("## How many heads have each role, by seed\n\n| runs | task |", " | ".join(ROLES), "|\n|:--|:--|--:|--:|--:|")
    every = {name: masks(results) for name, results in found.items()}
    tasks = list(dict.fromkeys(joint.frames["heads"]["task"]))
    for name, roles in every.items():
        seeds = sorted({seed for _, seed, _ in roles})
        for task in tasks:
            cells = [", ".join(str(int(roles[task, seed, role].sum())) for seed in seeds) for role in ROLES]
            print(f"| {name} | {task.upper()} | {' | '.join(cells)} |")
    print("\n## Do heads that facilitate a task repeat?\n\nMean Φ between runs of one task.\n")
    print("| task | joint, two seeds | single, two seeds | joint and single, one seed | joint and single, two seeds |")
    print("|:--|--:|--:|--:|--:|")
    one, other = every["joint"], every[STL]
    for task in tasks:
        cells = [agreement(side, side, ROLES[0], task, None) for side in (one, other)]
        cells += [agreement(one, other, ROLES[0], task, same) for same in (True, False)]
        print(f"| {task.upper()} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
