"""Measure processor time and peak memory of our runs and of other projects, from the first import to the test score.

    PYTHONPATH=FOLDER_OF_ACCELERATE python results/speed/peers_time.py data/ewt5 FOLDER PASSES pos ner dep

Both sides train MiniLM on the same 640 sentences with 32 sentences per update, evaluate on 300 dev sentences after each
pass, and score 300 test sentences. The settings of the peers are in `results/baselines/peers.py`. Our runs and those of
the peer alternate.
"""

import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from mtlprune.corpora.store import load_corpus, save_corpus

SEEDS, TRAIN, EVALUATED = (1, 2, 3), 640, 300


def measured(command: str) -> tuple[float, float]:
    """Run a command; return processor seconds and peak memory in GB of the command and the processes that it starts."""
    process = subprocess.Popen(["sh", "-ec", command], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {command}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    """Print a row for each task."""
    source, out, passes, *tasks = sys.argv[1:]
    folder, corpus = Path(out), load_corpus(Path(source))
    small = folder / "corpus"
    numbers = {"train": TRAIN, "dev": EVALUATED, "test": EVALUATED}
    splits = {split: corpus[split].first(number) for split, number in numbers.items()}
    save_corpus(splits, small, name="first-sentences", licence="as the source", sources={})
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| task | ours, s | peer, s | ours, GB | peer, GB | peer over ours |\n|:--|--:|--:|--:|--:|--:|")
    for task in tasks:
        values: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
        for seed in SEEDS:
            run, peer = (shlex.quote(f"{folder}/{task}-{seed}-{side}") for side in ("ours", "peer"))
            ours = (
                f"mtlprune train minilm-ewt5 tasks={task} data.path={small} train.epochs={passes} train.seed={seed} "
                f"train.precision=fp32 train.threads=1 --out {run}; mtlprune evaluate {run}"
            )
            theirs = (
                f"{sys.executable} results/baselines/peers.py train {task} {small} --passes {passes} --seed {seed} "
                f"--precision fp32 --out {peer}"
            )
            for side, command in (("ours", ours), ("peer", theirs)):
                values[side].append(measured(command))
                print(task, seed, side, values[side][-1], file=sys.stderr, flush=True)
        cells = []
        for column, digits in ((0, 1), (1, 2)):
            for side in ("ours", "peer"):
                low, middle, high = (f"{value:.{digits}f}" for value in sorted(row[column] for row in values[side]))
                cells.append(f"{middle} ({low} to {high})")
        first, second = (statistics.median(row[0] for row in values[side]) for side in ("ours", "peer"))
        print(f"| {task.upper()} | {' | '.join(cells)} | {second / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
