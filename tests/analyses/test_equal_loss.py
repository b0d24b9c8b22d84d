"""Joint runs compared with single-task runs of equal training loss, on runs whose scores are planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import TASKS, end_with, gold_sentences, result_of, write_study_run
from run_folders import change_config
from scipy.optimize import brentq

from mtlprune.analyses.analysis import find
from mtlprune.analyses.costs.equal_loss import LOSS, UPDATES, EqualLossOptions
from mtlprune.analyses.costs.equal_loss.measure import cost_at_equal_loss, share_of
from mtlprune.analyses.frames import MEAN
from mtlprune.reports.analyses import figures, markdown
from mtlprune.runs.folder import RunError
from mtlprune.runs.results import Result
from mtlprune.statistics.resamples import Resampled

GOLD = gold_sentences(150)
SKILL = {4: (0.5, 0.8), 8: (0.65, 0.4), 16: (0.8, 0.2), 32: (0.9, 0.1)}
"""Updates of single-task runs → their skill and training loss."""


def write(root: Path, tasks: tuple[str, ...], updates: int, skill: float, loss: float | None, seeds=(1, 2, 3)) -> None:
    for seed in seeds:
        name = "_".join(tasks)
        folder = write_study_run(root / f"{name}-{updates}-{seed}", tasks, seed, False, skill, GOLD)
        best = folder.read_best()["joint"]["epoch"]
        change_config(folder, train={"epochs": updates // 4})
        end_with(folder, step=updates)
        if loss is not None:
            logged = {"train_loss": dict.fromkeys(tasks, loss)}
            lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
            lines = [line | (logged if line["epoch"] == best else {}) for line in lines]
            folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def found(root: Path, **options: Any) -> Result:
    return result_of(root, "equal_loss", EqualLossOptions(resamples=300, **options))


@pytest.mark.parametrize(
    ("loss", "left", "words"),
    [(0.4, (-0.5, 0.3), "do not decide"), (0.1, (0.99, 1.01), "generalises worse at the same training loss")],
)
def test_what_is_left_at_equal_loss_is_what_was_planted(tmp_path, loss: float, left: tuple[float, float], words: str):
    """A joint run scores as single tasks of 8 updates do. With their loss nothing is left of its cost, with that of 32
    updates all of it."""
    for updates, (skill, single_loss) in SKILL.items():
        for task in TASKS:
            write(tmp_path, (task,), updates, skill, single_loss)
    write(tmp_path, TASKS, 32, SKILL[8][0], loss)
    result = found(tmp_path)
    costs = result.frames["costs"].set_index(["mode", "task"])
    [share] = result.frames["shares"].itertuples()
    assert costs.loc[(UPDATES, MEAN), "estimate"] < -10
    by_loss, by_updates = (costs.loc[(mode, MEAN), "estimate"] for mode in (LOSS, UPDATES))
    assert share.value == pytest.approx(by_loss / by_updates, abs=1e-3)
    assert left[0] <= share.value <= left[1]
    assert words in markdown(find("equal_loss"), result) and figures(find("equal_loss"), result)["curves"]


def test_a_gain_of_joint_training_is_not_explained(tmp_path):
    for updates, (skill, single_loss) in SKILL.items():
        for task in TASKS:
            write(tmp_path, (task,), updates, skill, single_loss)
    write(tmp_path, TASKS, 8, SKILL[32][0], SKILL[8][1])
    shown = markdown(find("equal_loss"), found(tmp_path))
    assert "no evidence of a cost" in shown and "generalises worse" not in shown and "more slowly" not in shown


def test_a_linear_curve_and_a_mean_without_one_task(tmp_path):
    """Both curves pass through the runs, and differ between them. The mean without a task is that of the others."""
    for updates, (skill, single_loss) in SKILL.items():
        for task in TASKS:
            write(tmp_path, (task,), updates, skill, single_loss)
    write(tmp_path, TASKS, 32, SKILL[8][0], SKILL[8][1])
    write(tmp_path, TASKS, 16, SKILL[8][0], 0.9 * SKILL[8][1])
    cubic, linear = (found(tmp_path, curve=curve, without=TASKS[0]) for curve in ("cubic", "linear"))
    costs = [result.frames["costs"].set_index(["updates", "mode", "task"])["estimate"] for result in (cubic, linear)]
    for values in costs:
        others = [values[32, LOSS, task] for task in TASKS[1:]]
        assert values[32, LOSS, f"mean without {TASKS[0].upper()}"] == pytest.approx(np.mean(others), abs=1e-3)
    assert costs[0][32, LOSS].to_numpy() == pytest.approx(costs[1][32, LOSS].to_numpy(), abs=1e-3)
    assert np.abs(costs[0][16, LOSS] - costs[1][16, LOSS]).min() > 0.01
    assert cubic.frames["shares"]["task"].unique().tolist() == [MEAN, f"mean without {TASKS[0].upper()}"]
    assert "piecewise linear" in markdown(find("equal_loss"), linear)
    with pytest.raises(RunError, match="without: expected one of the tasks"):
        found(tmp_path, without="srl" if "srl" not in TASKS else "pos1")


def test_single_task_runs_without_a_common_seed_are_refused(tmp_path):
    write(tmp_path, TASKS, 4, 0.5, 0.8)
    for seed, task in enumerate(TASKS, 1):
        write(tmp_path, (task,), 4, 0.5, 0.8, (seed,))
    with pytest.raises(RunError, match="expected single-task runs of each task with common seeds"):
        found(tmp_path)


def test_missing_losses_equal_losses_and_one_number_of_updates_are_refused(tmp_path):
    for root in (tmp_path / "none", tmp_path / "equal"):
        for tasks in (*((task,) for task in TASKS), TASKS):
            write(root, tasks, 4, 0.5, 0.8)
    with pytest.raises(RunError, match=r"expected single-task runs of .* with 2 different numbers of updates"):
        found(tmp_path / "none")
    for task in TASKS:
        write(tmp_path / "none", (task,), 8, 0.6, None)
        write(tmp_path / "equal", (task,), 8, 0.6, 0.8)
    with pytest.raises(RunError, match=r"expected the training loss .*train.log_train_loss=500"):
        found(tmp_path / "none")
    with pytest.raises(RunError, match=r"expected a different training loss above 0 .* found 0.8, 0.8 with"):
        found(tmp_path / "equal")


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_interval_of_the_share_covers_it(share: float):
    """200 simulated studies of five seeds. Joint runs lose 3 points, of which so much stays at equal training loss.

    The score is a concave function of the logarithm of the loss, and losses and scores vary between seeds.
    """
    generator, inside, studies = np.random.default_rng(7), 0, 200

    def score(x: Any) -> Any:
        return 80 + 2.5 * x - 0.1 * x**2

    def runs(x: float, lost: float = 0) -> tuple[np.ndarray, Resampled]:
        by_seed = x + generator.normal(0, 0.1, 5)
        observed = score(by_seed) - lost + generator.normal(0, 0.3, 5)
        return np.exp(-by_seed), Resampled(observed, observed + generator.normal(0, 0.05, (100, 5)))

    slower = float(brentq(lambda x: score(4) - score(x) - 3 * (1 - share), 0, 4.001))
    for _ in range(studies):
        curve = [runs(x) for x in range(6)]  # the joint runs have as many updates as the fifth point
        joint = runs(slower, 3 * share)
        part, outside = cost_at_equal_loss(curve, joint)
        assert not outside
        row = share_of(part, joint[1] - curve[4][1])
        inside += row["low"] <= share <= row["high"]
        assert (row["p_worse"] < 0.05) == (not row["low"] <= 0.4 <= row["high"])
    assert 0.93 <= inside / studies <= 0.97
