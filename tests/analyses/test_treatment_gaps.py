"""Treated runs beside joint ones and single tasks, on runs whose skill is planted."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import TASKS, end_with, gold_sentences, result_of, write_study_run
from run_folders import change_config

from mtlprune.analyses.analysis import Request, find
from mtlprune.analyses.heads.treatments import TreatmentsOptions, show
from mtlprune.analyses.heads.treatments.measure import difference_errors
from mtlprune.figures.grid import number
from mtlprune.reports.analyses import figures, markdown
from mtlprune.runs.folder import RunError
from mtlprune.runs.results import Result

GOLD = gold_sentences(150)
STEM = {"named": None, "claims": "claims", "least": 3, "rule": None, "like": None, "seed": None}
RANDOM = {"named": None, "claims": None, "least": 3, "rule": "random", "like": STEM, "seed": None}
OPTIONS = TreatmentsOptions(resamples=300, margin=3.0)


def write(
    root: Path, name: str, skill: float, seeds: tuple[int, ...] = (1, 2, 3), **changed: Mapping[str, Any]
) -> None:
    """Joint runs, those of one seed with the same random numbers whatever their skill."""
    for seed in seeds:
        folder = write_study_run(root / f"{name}-mtl5-{seed}", TASKS, seed, False, skill, GOLD)
        change_config(folder, name=f"{name}-mtl5", **changed)
        manifest = folder.read_manifest()
        seconds = 175.0 if name == "long" else 154.0 if "clone" in name else 35.0
        ended = {"step": 60 if name == "long" else 12, "seconds": seconds}
        manifest["parameters"] = {"encoder": 1000, "clones": 200} if "clone" in name else {"encoder": 1000}
        folder.write_json("manifest.json", manifest)
        end_with(folder, **ended)


def write_alone(root: Path, skill: float) -> None:
    for task, seed in itertools.product(TASKS, (1, 2, 3)):
        folder = write_study_run(root / f"none-{task}-{seed}", (task,), seed, False, skill, GOLD)
        end_with(folder, step=12)


def found(root: Path, **changed: Any) -> Result:
    return result_of(root, "treatments", OPTIONS.model_copy(update=changed))


def test_without_a_significant_gap_there_is_no_share(tmp_path):
    write_alone(tmp_path, 0.8)
    write(tmp_path, "none", 0.8)
    [first, *_] = show.findings(found(tmp_path))
    assert "The interval includes 0, so no share of the gap is given" in first and "above" not in first


def test_joint_training_above_single_tasks_has_no_gap(tmp_path):
    write_alone(tmp_path, 0.5)
    write(tmp_path, "none", 0.9)
    [first, *_] = show.findings(found(tmp_path))
    assert "above single tasks, so there is no gap to close" in first and "includes 0" not in first and "−" not in first


def test_planted_gaps_shares_controls_and_costs(tmp_path):
    write_alone(tmp_path, 0.9)
    write(tmp_path, "none", 0.5)
    write(tmp_path, "long", 0.8, train={"epochs": 15})
    write(tmp_path, "weights", 0.6, train={"balance": "uw"})
    for best in tmp_path.glob("weights-*/best.json"):
        best.write_text(best.read_text().replace('"score": ', '"score": 1'))  # the best on dev, whatever it is on test
    write(tmp_path, "clone-stem", 0.8, treatment={"clone": {"heads": STEM}})
    write(tmp_path, "clone-random", 0.6, treatment={"clone": {"heads": RANDOM}})
    write(tmp_path, "distil", 0.9, treatment={"distil": {"teachers": {"pos": "gone"}, "rise": 1.0}})
    write(tmp_path, "protect", 0.4, seeds=(1, 2), treatment={"protect": {"heads": STEM, "tasks": []}})
    result = found(tmp_path)
    rows = result.frames["settings"].set_index("term")
    treated = dict.fromkeys(("clone-stem", "clone-random", "distil", "protect"), "treated")
    assert rows["mode"].to_dict() == {"STL": "single", "none": "joint", "long": "other", "weights": "other", **treated}
    means = result.frames["scores"].groupby("term")["value"].mean()
    assert np.allclose(means[rows.index], rows["mean"], atol=1e-3)
    gap = rows.loc["none", "mean"], rows.loc["STL", "mean"]
    assert rows.loc["none", "gap_low"] > 0
    for name, planted in (("clone-stem", 0.75), ("clone-random", 0.25), ("long", 0.75), ("distil", 1.0)):
        one = rows.loc[name]
        assert one["estimate"] == pytest.approx(one["mean"] - gap[0], abs=1e-3) and one["p_holm"] < 0.05
        assert one["share"] == pytest.approx((one["mean"] - gap[0]) / (gap[1] - gap[0]), abs=1e-4)
        assert one["share_low"] < planted < one["share_high"] < one["share_low"] + 0.5
    assert math.isnan(rows.loc["protect", "share"]) and "protect has only the seeds 1, 2." in result.about["notes"]
    assert rows.loc["protect", "estimate"] < 0 and rows.loc["protect", "p_reach"] > 0.9
    assert rows.loc["clone-stem", ["parameters", "cost", "total"]].tolist() == [200, 4.4, 4.4]
    assert rows.loc["distil", "total"] == pytest.approx(1 + 5 * 61 / 35, abs=1e-4)
    pairs = result.frames["pairs"].set_index("mode")
    assert pairs.loc["primary", ["term", "other"]].tolist() == ["clone-stem", "clone-random"]
    assert pairs.loc["budget", "term"].tolist() == ["clone-stem", "clone-random", "distil"] and len(pairs) == 8
    assert set(pairs.loc["budget", "other"]) == {"long"}
    assert sorted(pairs.loc["tuned", "term"]) == ["clone-random", "clone-stem", "distil", "protect"]
    assert set(pairs.loc["tuned", "other"]) == {"weights"} and pairs.loc["tuned", "estimate"].gt(0).sum() == 2
    assert pairs.loc["primary", "p_holm"] == pairs.loc["primary", "p"] < 0.05 < pairs.loc["primary", "p_margin"]
    assert pairs.loc["primary", "p_sentences"] == pytest.approx(1 / 301, rel=1e-4)
    shown, drawn = markdown(find("treatments"), result), figures(find("treatments"), result)["costs"].spec
    values = next(values for values in drawn["datasets"].values() if "total" in values[0])
    dots = {one["term"]: one["total"] for one in values}
    expected = {"long": 5, "weights": 1, "clone-stem": 4.4, "clone-random": 4.4, "distil": 1 + 5 * 61 / 35}
    assert dots == pytest.approx(expected, abs=1e-3)
    assert "clone of random heads" in shown and "clone-stem minus clone-random (primary)" in shown
    assert rows["p_holm"].max() < 0.05 and "of what is not shown" not in shown
    settings = result.frames["settings"]
    settings = settings.assign(p_holm=settings["p_holm"].where(settings["term"] != "protect", 0.2))
    open_ = markdown(find("treatments"), Result("treatments", result.about, {**result.frames, "settings": settings}))
    least = number(rows.loc["protect", "detectable"], 1)
    assert f"a difference of {least} points or more would have been found in" in open_
    error = difference_errors(Request(list(map(str, tmp_path.glob("none-*"))), Path(), OPTIONS, split="test"))
    assert error["mean"].detectable() == pytest.approx(rows.loc["STL", "detectable"])
    assert list(error) == ["mean", *TASKS] and error["pos"].free == (2,)
    assert "weights is the best on dev" in shown and "2 of 4 treatments are better than weights" in shown


def test_without_a_gap_there_is_no_share_and_without_joint_runs_nothing(tmp_path):
    write_alone(tmp_path, 0.6)
    with pytest.raises(RunError, match="untreated joint runs of the same settings"):
        found(tmp_path)
    write(tmp_path, "none", 0.8)
    write(tmp_path, "clone-stem", 0.9, treatment={"clone": {"heads": STEM}})
    costs = tmp_path / "costs.json"
    names = {f"none-{min(TASKS)}-1": 1, "none-mtl5": 1, "long-mtl5": 1, "merge-mtl5": 1}
    names |= {"clone-stem-mtl5": 4.5, "famo-mtl5": 1.4}
    costs.write_text(json.dumps({"ratios": names}))
    owed = {"merge": {"sources": dict.fromkeys(TASKS, "gone"), "method": "ties"}}
    write(tmp_path, "merge", 0.9, treatment=owed)
    write(tmp_path, "long", 0.9, train={"epochs": 15})
    write(tmp_path, "famo", 0.9, train={"balance": "famo"})
    write(tmp_path, "distil", 0.9, treatment={"distil": {"teachers": {"pos": "gone"}}})
    result = found(tmp_path, costs=costs)
    rows = result.frames["settings"].set_index("term")
    expected = {"STL": 1, "none": 1, "clone-stem": 4.5, "famo": 1.4, "merge": 1, "long": 1}
    assert rows["cost"].drop("distil").to_dict() == expected
    assert rows.loc["long", "total"] == 5 and rows.loc["merge", "total"] == pytest.approx(1 + rows.loc["STL", "total"])
    assert math.isnan(rows.loc["distil", "total"])
    assert result.frames["settings"]["share"].isna().all() and "no gap" in markdown(find("treatments"), result)
