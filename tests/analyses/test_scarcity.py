"""Joint minus single-task scores with many and few heads, on runs whose skill is planted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import TASKS, end_with, gold_sentences, result_of, write_study_run

from mtlprune.analyses.analysis import find
from mtlprune.analyses.frames import MEAN
from mtlprune.analyses.heads.scarcity import ScarcityOptions
from mtlprune.reports.analyses import figures, markdown
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result

GOLD = gold_sentences(150)
HEADS = 12


def write(
    root: Path, heads: int, single: float, joint: float, seeds: tuple[int, ...] = (1, 2, 3), epochs: int = 3
) -> None:
    for tasks in (*((task,) for task in TASKS), TASKS):
        for seed in seeds:
            name = f"{heads}-{epochs}-{'_'.join(tasks)}-{seed}"
            pruned, skill = heads < HEADS, single if len(tasks) == 1 else joint
            folder = write_study_run(root / name, tasks, seed, pruned, skill, GOLD)
            tree = folder.read_config()
            tree["train"] |= {"epochs": epochs}
            if pruned:
                tree["pruning"] = {"method": "random", "keep": heads, "draw": seed}
                lines = [json.loads(line) for line in folder.gates_path.read_text().splitlines()]
                for line in lines:
                    line["gates"]["shared"] = (np.arange(HEADS) < heads).reshape(3, 4).astype(float).tolist()
                folder.gates_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            folder.write_config(tree)
            end_with(folder, step=4 * epochs)


def found(root: Path, runs: Sequence[str] | None = None, **changed: Any) -> Result:
    return result_of(root, "scarcity", ScarcityOptions(resamples=300, margin=3.0).model_copy(update=changed), runs)


def test_a_gap_that_widens_is_seen_and_one_that_does_not_is_not(tmp_path):
    write(tmp_path, 12, 0.9, 0.9)
    write(tmp_path, 6, 0.8, 0.8, seeds=(2, 3, 4))
    write(tmp_path, 3, 0.8, 0.4)
    write(tmp_path, 12, 0.9, 0.9, epochs=15)
    result = found(tmp_path, without=TASKS[0])
    levels = result.frames["levels"].set_index(["term", "task"])
    names = ["12 heads, 12 updates", "12 heads, 60 updates", "6 heads, 12 updates", "3 heads, 12 updates"]
    assert [*dict.fromkeys(term for term, _ in levels.index)] == names
    changes = result.frames["changes"].set_index(["term", "task"])
    for (term, task), row in changes.iterrows():
        own, base = levels.loc[(term, task)], levels.loc[(row["other"], task)]
        assert row["other"] == names[0] and own["estimate"] == pytest.approx(own["joint"] - own["single"], abs=3e-4)
        if term != names[2]:  # which has other seeds
            assert row["estimate"] == pytest.approx(own["estimate"] - base["estimate"], abs=3e-4) and row["n"] == 3
    scarce = changes.xs(MEAN, level="task")
    assert scarce.loc[names[3], "high"] < -3 and scarce.loc[names[3], "p_fall"] > 0.95
    assert scarce.loc[names[2], "n"] == 2 and abs(scarce.loc[names[2], "estimate"]) < 3
    assert scarce.loc[names[2], "low"] < 0 < scarce.loc[names[2], "high"]
    tasks = [changes.loc[(names[3], task), "estimate"] for task in TASKS]
    assert scarce.loc[names[3], "estimate"] == pytest.approx(np.mean(tasks), abs=3e-4)
    others = changes.loc[(names[3], f"mean without {TASKS[0].upper()}"), "estimate"]
    assert others == pytest.approx(np.mean(tasks[1:]), abs=3e-4)
    shown = markdown(find("scarcity"), result)
    assert "Δ falls, as competition for heads predicts (p " in shown and "other heads open" not in shown
    assert figures(find("scarcity"), result)["delta"]


def test_heads_that_cannot_be_compared(tmp_path):
    write(tmp_path, 12, 0.9, 0.9)
    with pytest.raises(RunError, match="with few"):
        found(tmp_path)
    write(tmp_path, 6, 0.9, 0.9)
    path = tmp_path / f"6-3-{TASKS[0]}-1" / "gates.jsonl"
    path.write_text(path.read_text().replace("1.0, 0.0", "0.0, 1.0"))
    assert "have other heads open" in markdown(find("scarcity"), found(tmp_path))
    with pytest.raises(RunError, match="without: expected one of the tasks"):
        found(tmp_path, without="pet")
    for folder in map(RunFolder, tmp_path.glob("6-*")):
        tree = folder.read_config()
        folder.write_config(tree | {"pruning": {"method": "topk", "keep": 6}})
    with pytest.raises(RunError, match="expected all heads, or random ones"):
        found(tmp_path)


def listed(root: Path, text: str, *runs: str) -> Result:
    (root / "groups.yaml").write_text(text)
    return found(root, runs, groups=str(root / "groups.yaml"))


def test_groups_of_a_file_are_measured_as_groups_of_equal_settings_are(tmp_path):
    write(tmp_path, 12, 0.9, 0.9)
    write(tmp_path, 3, 0.8, 0.4)
    plain = found(tmp_path)
    groups = f"groups: {{all: ['{tmp_path}/12-*'], few: ['{tmp_path}/3-*']}}\n"
    result = listed(tmp_path, f"{groups}changes: [[few, all]]\npooled: {{both: [[few, all], [few, all]]}}\n")
    for name in ("levels", "changes"):
        same = ["task", "n", "estimate", "low", "high", "p"]
        assert result.frames[name][same].to_dict() == plain.frames[name][same].to_dict()
        frame = result.frames[name]
        assert frame["p_holm"].isna().equals(frame["task"] == MEAN) and not (frame["p_holm"] < frame["p"]).any()
    seeds = result.frames["seeds"].query("other == 'all' and task == 'mean'")["value"]
    change = result.frames["changes"].set_index("task").loc[MEAN, "estimate"]
    assert len(seeds) == 3 and seeds.mean() == pytest.approx(change, abs=3e-4)
    pooled = result.frames["pooled"].query("mode == 'points'").set_index("task")["estimate"]
    assert pooled[TASKS[0]] == pytest.approx(result.frames["changes"].set_index("task").loc[TASKS[0], "estimate"])
    assert "The change of Δ, pooled by seed" in markdown(find("scarcity"), result)
    # Single-task runs of one task only are enough where the file asks for no other.
    runs = {heads: [f"{tmp_path}/{heads}-*-{tasks}-*" for tasks in (TASKS[0], "_".join(TASKS))] for heads in (12, 3)}
    of_one = f"groups: {{all: {runs[12]}, few: {runs[3]}}}\ntasks: [{TASKS[0]}]\n"
    one = listed(tmp_path, f"{of_one}changes: [[few, all]]\n").frames["changes"].set_index("task")
    assert one.loc[TASKS[0], "estimate"] == result.frames["changes"].set_index("task").loc[TASKS[0], "estimate"]
    for seed in (1, 2, 3):
        end_with(write_study_run(tmp_path / f"two-{seed}", TASKS[:2], seed, False, 0.9, GOLD), step=12)
    two = f"two: ['{tmp_path}/12-*-{TASKS[0]}-*', '{tmp_path}/12-*-{TASKS[1]}-*', '{tmp_path}/two-*']"
    unlike = groups.replace("few:", f"{two}, few:")
    with pytest.raises(RunError, match=rf"'all' with .* and 'two' with .*; add `tasks: \[{', '.join(TASKS[:2])}\]`"):
        listed(tmp_path, unlike)
    assert listed(tmp_path, f"{unlike}tasks: [{', '.join(TASKS[:2])}]\n").frames["levels"]["n"].eq(3).all()
    for folder in map(RunFolder, tmp_path.glob("12-*")):  # an encoder for each seed
        tree = folder.read_config()
        folder.write_config(tree | {"encoder": {**tree["encoder"], "name": f"encoder-{tree['train']['seed']}"}})
    frame = listed(tmp_path, f"{groups}changes: [[few, all]]\n").frames["changes"]
    assert frame["estimate"].tolist() == result.frames["changes"]["estimate"].tolist()
    with pytest.raises(RunError, match=r"expected titles of its groups \(all; few\), found 'fewer'"):
        listed(tmp_path, f"{groups}changes: [[fewer, all]]\n")
    with pytest.raises(RunError, match="expected one group or more, found none"):
        listed(tmp_path, "groups: {}\n")
    with pytest.raises(RunError, match=r"group 'all'.*found runs without pet"):
        listed(tmp_path, f"{groups}tasks: [pet]\n")
    with pytest.raises(RunError, match="names the runs; leave out x"):
        listed(tmp_path, groups, "x")
    with pytest.raises(RunError, match=r"group 'all'.*found 0 and 1"):
        listed(tmp_path, f"groups: {{all: ['{tmp_path}/12-*-{'_'.join(TASKS)}-*']}}\n")
