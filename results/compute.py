"""Hours that the committed runs took, by machine, from the manifests of studies and single runs; as a Markdown table.

    python results/compute.py results > results/compute.md

A run that lies in several studies counts once. Hours are the seconds that training and evaluation of a run took on the
clock; several runs shared a machine at a time, so they are hours of a run and not of a machine. Memory is that of the
GPU where the run was on one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

MANIFEST = "manifest.json"


def manifests(folder: Path) -> Iterator[dict[str, Any]]:
    """The manifest of every run below a folder: of studies, of single runs, and of lists."""
    for path in sorted(folder.rglob("*.parquet")):
        if MANIFEST in pq.ParquetFile(path).schema_arrow.names:
            yield from map(json.loads, filter(None, pq.read_table(path, columns=[MANIFEST])[MANIFEST].to_pylist()))
    for path in sorted(folder.rglob(MANIFEST)):
        yield json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(folder.rglob("manifests.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def machine(manifest: dict[str, Any]) -> str:
    """The processor, and whether the run's system was one with a GPU, which the manifest's platform names."""
    return manifest["processor"] + (", GPU" if "gpu" in manifest["platform"] else "")


def main() -> None:
    """Print a row for each machine."""
    runs = {
        json.dumps([run["begun"], run["command"], run["parameters"], run["seed"]]): run
        for run in manifests(Path(sys.argv[1]))
    }
    print("| machine | runs | hours | peak memory of a run, GB |\n|:--|--:|--:|--:|")
    for name in sorted(set(map(machine, runs.values()))):
        group = [run for run in runs.values() if machine(run) == name]
        hours = sum(run["finished"]["seconds"] for run in group) / 3600
        print(f"| {name} | {len(group)} | {hours:.1f} | {max(run['peak_memory'] for run in group) / 1e9:.1f} |")
    total = sum(run["finished"]["seconds"] for run in runs.values()) / 3600
    print(f"| all | {len(runs)} | {total:.1f} | |")


if __name__ == "__main__":
    main()
