"""Compare the best heads of joint models with those of single-task training, by the rule of PLAN.md.

python results/probes/pairs.py results/probes/pairs > results/probes/pairs.md
"""

import sys
from pathlib import Path

from mtlprune.analyses.analysis import read
from mtlprune.figures.grid import number

MIN_ITEMS, MARGIN, MIN_MODELS = 20, -1.0, 4
"""The rule of the plan: fewest test items of a label, mean difference in points, and number of the five joint models
that must agree."""


def main(folder: str) -> None:
    """Print a row for each task and joint model, and a verdict for each task."""
    frame = read(Path(folder), "probes").frames["differences"].query(f"mode == 'sound' and items >= {MIN_ITEMS}")
    frame = frame[
        (frame["task"].str.upper() == frame["other"]) & ~((frame["task"] == "dep") & (frame["label"] == "root"))
    ]
    print("# Best heads of joint models minus single-task training\n")
    print("| task | joint model | labels | below | above | mean difference |\n|:--|:--|--:|--:|--:|--:|")
    verdicts = {}
    for task, of_task in frame.groupby("task", sort=False):
        joint = [name for name in of_task["encoder"].unique() if task.upper() in name.split("+") or name == "MTL-5"]
        lower = less = 0
        for name in joint:
            rows = of_task[of_task["encoder"] == name]
            below, above = int((rows["high"] < 0).sum()), int((rows["low"] > 0).sum())
            mean = rows["difference"].mean()
            lower += below > above and mean < MARGIN
            less += mean > MARGIN
            print(f"| {task.upper()} | {name} | {len(rows)} | {below} | {above} | {number(mean)} |")
        verdicts[task] = "supported" if lower >= MIN_MODELS else "not supported" if less >= MIN_MODELS else "undecided"
    print("\n*Below* and *above* count labels whose paired 95 % interval over sentences excludes 0, with one seed.\n")
    print("\n".join(f"- {task.upper()}: **{verdict}**." for task, verdict in verdicts.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
