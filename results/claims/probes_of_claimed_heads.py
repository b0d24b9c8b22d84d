"""Compare the probe scores of claimed heads with those of other heads of the same layers (PLAN.md, part 6).

    python results/claims/probes_of_claimed_heads.py PROBES_SEEDS PROBES_RANDOM CLAIMS \\
        > results/claims/probes-of-claimed-heads.md

`mtlprune analyze probes` wrote the first two folders, for all runs, and for the pretrained and a random encoder.
`mtlprune claims` wrote the third folder.

The score of a head has three definitions, all over labels with 20 test items or more. The label root is left out,
because attention rests on [CLS] anyway. The best label of a head is the label on which its accuracy on dev exceeds the
best control (shuffled labels, best offset or chance) by the largest amount. The definitions are the accuracy on test
for this label, the same accuracy minus that of the control, and the mean accuracy over labels.
"""

import sys

import numpy as np
import pandas as pd

import mtlprune
from mtlprune.statistics.permutation import layer_orders, tail
from mtlprune.statistics.significance import holm

TASKS = ("pos", "ner", "dep", "con", "srl")
MIN_ITEMS, PERMUTATIONS = 20, 10_000
"""Fewest test items of a label that counts, and number of permutations of heads."""
MEASURES = {"best": "best label, accuracy", "gain": "best label, gain", "mean": "mean over labels"}
"""Titles of the three scores of a head."""
KEYS = ["encoder", "seed", "task", "layer", "head"]


def head_scores(probes: str) -> pd.DataFrame:
    """Compute the scores of all heads in percent, with a row for each encoder, seed, task and head.

    The columns are the keys of MEASURES.
    """
    frame = mtlprune.read_results(probes)["probes"].frames["accuracy"]
    frame = frame[(frame["mode"] == "sound") & (frame["items"] >= MIN_ITEMS) & (frame["label"] != "root")]
    control = frame[frame["control"].isin(["shuffled_labels", "offset", "chance"])]
    control = control.groupby(["encoder", "seed", "task", "label"])[["dev", "test"]].max().add_prefix("bar_")
    frames = []
    for kind, name in (("none", None), ("random_encoder", "random")):
        rows = frame[(frame["control"] == kind) & (frame["layer"] > 0)]
        rows = rows.join(control, on=["encoder", "seed", "task", "label"])
        rows = rows.assign(over=rows["dev"] - rows["bar_dev"], encoder=name or rows["encoder"])
        if len(rows):
            best = rows.loc[rows.groupby(KEYS)["over"].idxmax()].set_index(KEYS)
            scores = {"best": best["test"], "gain": best["test"] - best["bar_test"]}
            frames.append(pd.DataFrame({**scores, "mean": rows.groupby(KEYS)["test"].mean()}).reset_index())
    return pd.concat(frames)


def contrast(scores: np.ndarray, claimed: np.ndarray) -> tuple[float, float]:
    """Compare the scores (L, A) of claimed heads with those of the other heads of their layers.

    Returns:
        The mean difference over claimed heads, and its two-sided p-value from permutations of heads within layers.
    """
    layers = np.repeat(np.arange(len(scores)), scores.shape[1])
    orders = np.concatenate([np.arange(scores.size)[None], layer_orders(layers, PERMUTATIONS, (0,))])
    marked = claimed.reshape(-1)[orders].reshape(-1, *scores.shape)  # (1 + P, L, A)
    count = marked.sum(-1)  # (1 + P, L)
    inside = (marked * scores).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        differences = inside / count - (scores.sum(-1) - inside) / (scores.shape[1] - count)
    values = np.where((count > 0) & (count < scores.shape[1]), differences * count, 0.0).sum(-1) / count.sum(-1)
    return float(values[0]), tail(abs(values[0]), np.abs(values[1:]))


def main(seeds: str, random: str, claims: str) -> None:
    """Print a table with a row for each task and encoder."""
    gates = mtlprune.read_results(claims)["claims"].frames["heads"].query("measure == 'gate'")
    majority = gates.groupby(["encoder", "layer", "head"])["value"].median().unstack("head") > 0.5
    scores = head_scores(random)
    scores = pd.concat([head_scores(seeds), scores[scores["encoder"] == "random"]])
    rows = []
    for task in TASKS:
        claimed = majority.loc[task.upper()].to_numpy()  # (L, A)
        for encoder in ("pretrained", task.upper(), "MTL-5", "random"):
            task_scores = scores[(scores["task"] == task) & (scores["encoder"] == encoder)]
            means = task_scores.groupby(["layer", "head"])[list(MEASURES)].mean()  # over seeds
            title = {task.upper(): "STL", "random": "random weights"}.get(encoder, encoder)
            for name in MEASURES:
                estimate_and_p = contrast(means[name].unstack("head").to_numpy(), claimed)
                rows.append((task.upper(), int(claimed.sum()), title, name, *estimate_and_p))
    frame = pd.DataFrame(rows, columns=["task", "claims", "encoder", "measure", "value", "p"])
    frame["holm"] = frame.groupby(["encoder", "measure"])["p"].transform(lambda p: holm(p.to_numpy()))  # over tasks
    print(f"| task | claims | encoder | {' | '.join(f'{title} | p' for title in MEASURES.values())} |")
    print("|:--|--:|:--|" + "--:|" * 2 * len(MEASURES))
    for (task, count, encoder), task_scores in frame.groupby(["task", "claims", "encoder"], sort=False):
        values = " | ".join(f"{row.value:+.1f} | {row.holm:.4f}" for row in task_scores.itertuples())
        print(f"| {task} | {count} | {encoder} | {values} |")


if __name__ == "__main__":
    main(*sys.argv[1:4])
