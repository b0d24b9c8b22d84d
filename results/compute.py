"""Print a Markdown table of the hours that the committed runs took on each machine, from their manifests.

    python results/compute.py results > results/compute.md

A run that is in several studies counts once. Hours are the elapsed time of training and evaluation of a run. Several
runs shared a machine at the same time, so they are not hours of a machine. For runs on a GPU, memory is that of the
GPU.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

MANIFEST = "manifest.json"


def manifests(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the manifest of every run below a folder, from studies, run folders and files ``manifests.jsonl``."""
    for path in sorted(folder.rglob("*.parquet")):
        if MANIFEST in pq.ParquetFile(path).schema_arrow.names:
            yield from map(json.loads, filter(None, pq.read_table(path, columns=[MANIFEST])[MANIFEST].to_pylist()))
    for path in sorted(folder.rglob(MANIFEST)):
        yield json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(folder.rglob("manifests.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def machine(manifest: dict[str, Any]) -> str:
    """Return the processor of a run, and whether its system had a GPU, which the manifest's platform names."""
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
