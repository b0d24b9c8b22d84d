"""Independent code computes the estimates of the primary comparisons of results/why/PLAN.md again.

It uses none of the package's statistics, only the formulas of the plan. Experiments 1 to 3 start from the scores of
packed runs. Experiments 0 and 4 close heads of finished runs, so they start from scores in the stored Results.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import PchipInterpolator

from mtlprune.runs.results import read_result

WHY = Path(__file__).parents[2] / "results" / "why"
MAIN = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}


def frame(path, name):
    return read_result(WHY / path).frames[name]


def only(rows, **values):
    for column, value in values.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def scores(study):
    """Scores on test by name of the cell and task, and the runs."""
    (table,) = (WHY / "records" / study).glob("*.parquet")
    runs = pd.read_parquet(table).set_index("run")
    cells = json.loads((WHY / "records" / study / "study.json").read_text())["cells"]
    runs = runs.loc[list(cells.values())].set_index(pd.Index(cells))
    tested = {cell: json.loads(text) for cell, text in runs["scores/test.json"].items()}
    return {(cell, task): tree[MAIN[task]] for cell, of in tested.items() for task, tree in of.items()}, runs


@pytest.mark.parametrize("encoder", ["closing", "closing-mpnet"])
def test_the_gain_by_closing_heads_is_a_mean_over_runs_and_tasks(encoder):
    gains = frame(f"{encoder}/roles.json", "gains")
    tasks = gains[gains["task"] != "mean"]
    total = (tasks["n"] * (tasks["closed"] - tasks["random"])).sum()  # runs and tasks without such a head count 0
    assert only(gains, task="mean")["estimate"] == pytest.approx(total / (3 * len(MAIN)), abs=1e-3)


def confirmed(result, number_of_tests=None):
    """Task and seed of each head that Holm confirms, over the chosen heads of a seed or another number of tests."""
    pairs = []
    for seed, rows in frame(f"{result}/roles.json", "chosen").groupby("seed"):
        ordered = rows.sort_values("p")
        tests = number_of_tests[seed] if number_of_tests is not None else len(rows)
        p = np.maximum.accumulate(ordered["p"].to_numpy() * np.arange(tests, tests - len(rows), -1))
        pairs += [(task, seed) for task in ordered["task"][p < 0.05]]
    return pairs


@pytest.mark.parametrize(("encoder", "number"), [("closing", 2), ("closing-mpnet", 5)])
def test_confirmed_heads_are_those_of_holm_over_all_chosen_heads_of_a_run(encoder, number):
    pairs, gains = confirmed(encoder), frame(f"{encoder}/roles.json", "gains").set_index("task")["n"].drop("mean")
    assert len(pairs) == number and gains.to_dict() == Counter(task for task, _ in {*pairs})


def test_delta_of_dep_with_few_heads_minus_the_control():
    values, runs = scores("dep")
    by_seed = {}
    for cell, run in runs.iterrows():
        kind = "joint" if len(run["tasks"]) > 1 else "single"
        by_seed.setdefault(cell.split("-")[0], {}).setdefault(run["seed"], {})[kind] = values[cell, "dep"]
    assert all(sorted(seeds) == list(range(11, 21)) for seeds in by_seed.values()) and len(by_seed) == 3
    delta = {kind: np.array([of[s]["joint"] - of[s]["single"] for s in sorted(of)]) for kind, of in by_seed.items()}
    few, control = (next(delta[kind] for kind in delta if kind == start) for start in ("18", "units"))
    pooled = only(frame("dep/scarcity.json", "pooled"), term="18 heads minus 48 units", mode="points", task="dep")
    assert pooled["estimate"] == pytest.approx((few - control).mean(), abs=1e-3)


def test_the_share_that_remains_at_equal_training_loss():
    values, runs = scores("equal_loss")
    points = {}
    for cell, run in runs.iterrows():
        best = json.loads(run["best.json"])["joint"]["epoch"]
        lines = map(json.loads, run["metrics.jsonl"].splitlines())
        loss = next(line["train_loss"] for line in lines if line["epoch"] == best and "train_loss" in line)
        kind = "joint" if len(run["tasks"]) > 1 else "single"
        for task in run["tasks"]:
            updates = int(cell.split("-")[0])
            points[kind, task, run["seed"], updates] = loss[task], values[cell, task]
    at_updates, at_loss = [], []
    for task in MAIN:
        for seed in range(21, 26):
            single = [points["single", task, seed, updates] for updates in (63, 126, 252, 504, 1008)]
            loss, score = points["joint", task, seed, 1008]
            x, y = np.array(sorted((np.log(one), other) for one, other in single)).T
            at_loss.append(score - PchipInterpolator(x, y)(np.clip(np.log(loss), x[0], x[-1])))
            at_updates.append(score - single[-1][1])
    share = only(frame("equal_loss/equal_loss.json", "shares"), updates=1008, task="mean")["value"]
    assert share == pytest.approx(np.mean(at_loss) / np.mean(at_updates), abs=1e-3)


def test_the_change_of_delta_when_a_task_becomes_rare():
    values, _ = scores("rare")
    shares = {"all": 1, "33": 1 / 3, "10": 1 / 10, "3": 1 / 33}

    def delta(heads, task, share, seed):
        joint = f"{heads}-all-{seed}" if share == "all" else f"{heads}-{task}-{share}-{seed}"
        cells = {cell.replace(f"-d{seed}-", "-").replace("-own-", "-"): cell for cell, _ in values}
        return values[cells[joint], task] - values[cells[f"{heads}-{task}-alone-{seed}"], task]

    changes = {}
    for heads in ("72", "18"):
        slopes = []
        for task in ("ner", "srl"):
            means = [np.mean([delta(heads, task, share, seed) for seed in (1, 2, 3)]) for share in shares]
            slopes.append(np.polyfit(np.log(list(shares.values())), means, 1)[0] * np.log(1 / 33))
        changes[heads] = np.mean(slopes)
    stored = only(frame("rare/rare.json", "changes"), heads="18 minus 72", task="mean")["estimate"]
    assert stored == pytest.approx(changes["18"] - changes["72"], abs=1e-3)


@pytest.mark.parametrize("corpus", ["cross", "cross-masc"])  # on MPNet no task has a specificity
def test_specificity_is_a_ratio_of_mean_losses(corpus):
    rows = frame(f"{corpus}/cross.json", "scores")
    rows = rows[rows["mode"] == "claimed"]
    loss = rows.groupby(["encoder", "other", "seed", "control"])["value"].mean().unstack("control")
    loss = (loss["random"] - loss[""]).groupby(["encoder", "other"]).mean().unstack("other")  # (task, whose heads)
    loss = loss.loc[[task for task in loss.columns if task in loss.index]]
    stored = frame(f"{corpus}/cross.json", "specificity")
    expected = {
        task: np.log(loss.loc[task, task] / loss.drop(task)[task].mean())
        for task in loss.columns
        if task in set(stored["encoder"])
    }
    for task, value in expected.items():
        # mtlprune adds the counts of all draws where this code averages their scores.
        assert only(stored, encoder=task, mode="claimed")["estimate"] == pytest.approx(value, abs=0.01)
    predicted = read_result(WHY / corpus / "cross.json").about["settings"]["specific"].upper().split(",")
    primary = only(stored, encoder="mean of predicted tasks", mode="claimed")["estimate"]
    assert primary == pytest.approx(np.mean([expected[task] for task in predicted]), abs=0.01)


def test_two_heads_of_single_tasks_of_mpnet_stay_confirmed_if_corrected_over_as_many_as_in_joint_runs():
    """Holm over as many heads as a joint run of the same seed chooses (closing.md)."""
    joint = frame("closing-mpnet/roles.json", "chosen").groupby("seed").size()
    assert confirmed("closing-mpnet-singles", joint) == [("srl", 21), ("srl", 22)]


def test_heads_of_single_tasks_stay_confirmed_if_a_seed_is_corrected_together():
    """Holm over all chosen heads of the five single-task runs of a seed, as in a joint run (closing.md)."""
    assert [task for task, _ in confirmed("closing-singles")] == ["srl"] * 11
