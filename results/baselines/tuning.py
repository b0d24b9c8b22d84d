"""Print the dev scores of all settings that were tried in tuning, for each single task and for joint training.

    python results/baselines/tuning.py results/baselines/records/tuning

A row is named by the tuned settings only. For a single task, these do not include the decoders of other tasks. With
several seeds, a score is a mean.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from mtlprune.evaluation.scores import MAIN
from mtlprune.layers import kind_of
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "dep", "con", "srl")
DECODERS = {"ner": ("type", "ner"), "dep": ("relation_scorer", "biaffine"), "con": ("label_scorer", "biaffine")}
"""For each task, the tuned option of its decoder, and the default of this option."""


def row_of(tree: dict[str, Any]) -> tuple[str, ...]:
    """Format the tuned settings of a run, starting with those of the decoders."""
    decoders = []
    for task, (option, default) in DECODERS.items():
        if task in tree["tasks"]:
            decoders.append(
                f"{task.upper()} {tree['decoders'].get(task, {}).get(option, default).replace('ner', 'spans')}"
            )
    encoder, train = tree["encoder"], tree["train"]
    rates = f"{encoder['word_dropout']:g}", f"{train['encoder_rate']:g}", f"{train['decoder_rate']:g}"
    return (", ".join(decoders), *rates, encoder["pooling"], f"{train['batch_sentences']}")


def main(study: Path) -> None:
    scores: dict[tuple[str, ...], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in read_study(study).paths("*"):
        run = RunFolder(path)
        tree, dev = run.read_config(), run.read_scores("dev")
        values = {task: dev[task][MAIN[kind_of(task)]] for task in tree["tasks"]}
        name = tree["tasks"][0] if len(values) == 1 else "all five"
        for column, value in {name: mean(values.values()), **values}.items():
            scores[(name, *row_of(tree))][column][tree["train"]["seed"]] = value
    print(
        "# Tuning on dev, step by step\n\nScores are percentages on dev. *All five* is their mean in joint training. "
        "The score of two seeds is their mean, followed by the score of each.\n"
    )
    for name in (*TASKS, "all five"):
        columns = [name] if name in TASKS else [name, *TASKS]
        rows = sorted((row for row in scores if row[0] == name), key=lambda row: (*map(_number, row[2:]), row[1]))
        best = {column: max(mean(scores[row][column].values()) for row in rows) for column in columns}
        print(f"## {name.upper() if name in TASKS else 'Joint training'}\n")
        heads = "decoders", "word dropout", "encoder rate", "decoder rate", "pooling", "sentences an update", "seeds"
        print("|".join(["", *heads, *(column.upper() if column in TASKS else column for column in columns), ""]))
        print("|".join(["", *[":--"] * len(heads), *["--:"] * len(columns), ""]))
        for row in rows:
            cells = []
            for column in columns:
                values = dict(sorted(scores[row][column].items()))
                value = mean(values.values())
                cell = f"**{value:.2f}**" if value == best[column] else f"{value:.2f}"
                cells.append(
                    f"{cell} ({', '.join(f'{each:.2f}' for each in values.values())})" if len(values) > 1 else cell
                )
            print("|".join(["", *row[1:], ", ".join(map(str, values)), *cells, ""]))
        print()


def _number(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size and other values by name."""
    try:
        return float(text), ""
    except ValueError:
        return 0.0, text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
