"""Print means ± sample standard deviations over seeds of the results of three analyses.

python results/seeds/by_seed.py SYNTAX_DIR DEGENERATION_DIR SMOOTHING_DIR
"""

from __future__ import annotations

import sys

import pandas as pd

import mtlprune


def table(title: str, frame: pd.DataFrame, row: str, column: str, columns: dict[str, tuple[str, int]]) -> None:
    """Print a Markdown table of the column ``value`` of a frame.

    Args:
        title: text above the table.
        frame: the frame.
        row: column of the frame whose values are the rows of the table.
        column: column of the frame whose values are the columns of the table.
        columns: title and number of digits of each value of ``column`` to show.
    """
    lines = [
        "| " + " | ".join([row, *(heading for heading, _ in columns.values())]) + " |",
        "|:--|" + "--:|" * len(columns),
    ]
    for name, rows in frame.dropna(subset="value").groupby(row, sort=False):
        cells = [name.upper() if row == "task" else name]
        for key, (_, digits) in columns.items():
            values = rows.loc[rows[column] == key, "value"].dropna()
            sd = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.{digits}f}{sd}" if len(values) else "–")
        lines.append("| " + " | ".join(cells) + " |")
    print(f"{title}\n\n" + "\n".join(lines) + "\n")


def main(syntax: str, degeneration: str, smoothing: str) -> None:
    frames = mtlprune.read_results(syntax)["syntax"].frames
    names = {"uas_single_held_out": ("UAS_single", 1), "uas_best_held_out": ("UAS_best", 1)}
    names |= {"weight_best_held_out": ("weight on arcs", 1), "uas_like_first": ("like pretrained", 2)}
    table("## Syntax in single heads (held out, percent)", frames["encoders"], "encoder", "measure", names)

    frames, tasks = mtlprune.read_results(smoothing)["smoothing"].frames, ("pos", "ner", "dep", "con", "srl")
    layers, labels = frames["layers"], frames["labels"]
    last = layers["layer"].max()
    between = labels[(labels["layer"] == last) & (labels["measure"] == "gain")].assign(measure=lambda one: one["task"])
    joined = pd.concat([layers[layers["layer"] == last], between])
    names = {"cosine": ("CosSim", 3), "cosine_centred": ("minus corpus mean", 3)}
    names |= {task: (f"between {task.upper()}", 3) for task in tasks}
    title = "## Last layer: likeness of tokens, and share of their spread between gold labels, beyond chance"
    table(title, joined, "encoder", "measure", names)

    frames = mtlprune.read_results(degeneration)["degeneration"].frames
    layers, embeddings = frames["layers"], frames["embeddings"].copy()
    embeddings["measure"] = "embeddings " + embeddings["measure"]
    joined = pd.concat([embeddings, layers[layers["layer"] == layers["layer"].max()]])
    names = {"embeddings mean_cosine": ("cone of embeddings", 3), "mean_cosine": ("cone of last layer", 3)}
    names |= {"isoscore": ("IsoScore of last layer", 3), "rank": ("effective rank", 0)}
    table("## Degeneration", joined, "encoder", "measure", names)

    decoders = frames["decoders"]
    slopes = decoders[decoders["measure"] == "spearman"]
    title = "Spearman correlates a label's cosine to the mean of its decoder's weights with its frequency."
    table(title, slopes, "encoder", "task", {task: (task.upper(), 2) for task in tasks})

    pairs = frames["pairs"]
    title = "Spearman correlates F1 of labels (MTL-5 − STL) with what changed in the decoder's weights."
    table(title, pairs, "task", "term", {name: (name, 2) for name in sorted(pairs["term"].dropna().unique())})


if __name__ == "__main__":
    main(*sys.argv[1:4])
