"""Three analyses over seeds: mean ± sample standard deviation of what `mtlprune analyze` wrote for many runs.

python results/seeds/by_seed.py SYNTAX_DIR DEGENERATION_DIR SMOOTHING_DIR
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def said(values: list[float], digits: int) -> str:
    """Mean ± sample standard deviation; the value alone where there is one."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def table(columns: dict[str, int], rows: dict[str, dict[str, list[float]]]) -> str:
    """A Markdown table; columns: name → digits."""
    lines = ["| encoder | " + " | ".join(columns) + " |", "|:--|" + "--:|" * len(columns)]
    for label, found in rows.items():
        cells = [said(found[name], digits) if found.get(name) else "–" for name, digits in columns.items()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def read(folder: str, name: str) -> Any:
    return json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def collected() -> dict[str, dict[str, list[float]]]:
    return defaultdict(lambda: defaultdict(list))


def main(syntax: str, degeneration: str, smoothing: str) -> None:
    rows = collected()
    for one in read(syntax, "syntax")["encoders"]:
        mine = rows[one["encoder"]]
        mine["UAS_single"].append(one["uas_single"]["held_out"])
        mine["UAS_best"].append(one["uas_best"]["held_out"])
        mine["weight on arcs"].append(one["weight_best"]["held_out"])
        mine["like pretrained"].append(one["uas_like_first"])
    print("## Syntax in single heads (held out, percent)\n")
    print(table({"UAS_single": 1, "UAS_best": 1, "weight on arcs": 1, "like pretrained": 2}, rows))

    rows, chosen = collected(), ("pos", "ner", "dep", "con", "srl")
    for one in read(smoothing, "smoothing")["encoders"]:
        mine, last = rows[one["label"]], one["layers"][-1]
        mine["CosSim"].append(last["cosine"]["mean"])
        mine["minus corpus mean"].append(last["cosine_centred"]["mean"])
        for split in one["labels"]:
            if split["layer"] == last["layer"] and split["task"] in chosen:
                mine[f"between {split['task'].upper()}"].append(split["gain"])
    print("## Last layer: likeness of tokens, and share of their spread between gold labels, beyond chance\n")
    columns = {"CosSim": 3, "minus corpus mean": 3} | {f"between {task.upper()}": 3 for task in chosen}
    print(table(columns, rows))

    rows, found = collected(), read(degeneration, "degeneration")
    for one in found["encoders"]:
        mine, last = rows[one["label"]], one["hidden"][-1]
        mine["cone of embeddings"].append(one["embeddings"]["mean_cosine"])
        mine["cone of last layer"].append(last["mean_cosine"])
        mine["IsoScore of last layer"].append(last["isoscore"])
        mine["effective rank"].append(last["rank"])
    print("## Degeneration\n")
    columns = {"cone of embeddings": 3, "cone of last layer": 3, "IsoScore of last layer": 3, "effective rank": 0}
    print(table(columns, rows))

    rows = collected()
    for one in found["decoders"]:
        if one["slope"]["spearman"] is not None:
            rows[one["label"]][one["task"].upper()].append(one["slope"]["spearman"])
    print("Spearman of a label's cosine to the mean of its decoder's weights with its frequency:\n")
    print(table({task.upper(): 2 for task in chosen}, rows))

    rows = collected()
    for pair in found["pairs"]:
        for test in pair["tests"]:
            if test["value"] is not None:
                rows[pair["task"].upper()][test["against"]].append(test["value"])
    print("Spearman over labels of F1 (MTL-5 − STL) with what changed in the decoder's weights:\n")
    names = {name for found in rows.values() for name in found}
    print(table({name: 2 for name in sorted(names)}, rows).replace("encoder", "task", 1))


if __name__ == "__main__":
    main(*sys.argv[1:4])
