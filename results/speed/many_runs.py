"""Measure processor time and peak memory of a table, a report and claims of many runs, on one thread.

    python results/speed/many_runs.py results/ewt5-minilm/records FOLDER 10 100 1000

The runs are copies of the runs of a study with new seeds. The claims are computed from runs with gates (`gates-*`).
"""

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from peers_time import measured

from mtlprune.io.files import file_sha256
from mtlprune.runs.study import FILE, FORMAT, ROWS, VERSION, read_study

COMMANDS = {
    "table": "mtlprune table {runs} --out {runs}/table.md",
    "report": "mtlprune report {runs} --out {runs}/report.html",
    "claims": "mtlprune claims {gated} --out {gated}/claims --format png",
}


def copies(source: Path, folder: Path, number: int, pattern: str) -> Path:
    """Write a study of ``number`` runs, which repeats the cells that match the pattern with different seeds."""
    study = read_study(source)
    paths, rows = study.paths(pattern), {}
    texts = {row["run"]: row for row in study.table.read().to_pylist()}
    for copy, path in enumerate(islice(cycle(paths), number)):
        row = dict(texts[path.name])
        old, new = row["seed"], row["seed"] + 100 * (copy // len(paths))
        row["config.yaml"] = row["config.yaml"].replace(f"\n  seed: {old}\n", f"\n  seed: {new}\n")
        row["manifest.json"] = row["manifest.json"].replace(f'\n "seed": {old},', f'\n "seed": {new},')
        row["seed"], row["run"] = new, f"{path.name}-{new}"
        rows[row["run"]] = row
    table = pa.Table.from_pylist([rows[run] for run in sorted(rows)])
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "table", row_group_size=ROWS)  # `runs pack` compresses more, and takes longer
    digest = file_sha256(folder / "table")
    (folder / "table").rename(folder / f"runs-{digest[:8]}.parquet")
    content = {"format": FORMAT, "version": VERSION, "sha256": digest, "cells": {run: run for run in rows}, "sweep": {}}
    (folder / FILE).write_text(json.dumps(content), encoding="utf-8")
    return folder


def main() -> None:
    """Print a row for each number of runs."""
    source, folder, *numbers = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| runs | table | report | claims |\n|--:|--:|--:|--:|")
    for number in map(int, numbers):
        # The studies are written in a separate process, because the peak memory of a process also counts for the
        # commands that it starts.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            runs, gated = (
                pool.submit(copies, Path(source), Path(folder) / f"{name}-{number}", number, pattern).result()
                for name, pattern in (("runs", "*"), ("gated", "gates-*"))
            )
        cells = []
        for command in COMMANDS.values():
            seconds, memory = measured(command.format(runs=runs, gated=gated))
            cells.append(f"{seconds:.0f} s, {memory:.2f} GB")
            print(number, cells[-1], file=sys.stderr, flush=True)
        print(f"| {number:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
