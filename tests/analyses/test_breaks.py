"""Breaks: the published definition on curves whose break is known, curves out of logs, lags against heads changing
places, and ``mtlprune analyze breaks``."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import mtlprune as package
from mtlprune.analyses.analysis import Request, find
from mtlprune.analyses.breaks import BreaksOptions
from mtlprune.analyses.breaks.measure import BreakError, find_break, lag_test
from mtlprune.reports.analyses import markdown
from mtlprune.runs.results import Result

STEPS = np.arange(101.0)
KINK = np.maximum(0, STEPS - 40)
LOGISTIC = 1 / (1 + np.exp(-(STEPS - 50) / 4))


def test_a_logistic_breaks_where_its_second_derivative_is_highest():
    assert find_break(STEPS, LOGISTIC) == 45 == round(50 - 4 * math.log(2 + math.sqrt(3)))


def test_a_line_has_no_break_nor_has_one_that_flattens_out():
    for slope in (0.0, 1 / 3, -1e-5, 1e6):
        assert find_break(STEPS, 0.1 + slope * STEPS) is None
    assert find_break([0, 1, 3, 8], [0.1, 0.2, 0.4, 0.9]) is None
    assert find_break(STEPS, np.minimum(STEPS, 40)) is None


def test_the_definition_by_hand_its_mirror_and_uneven_steps():
    assert find_break(STEPS, KINK) == 40
    assert find_break(STEPS, 5 - KINK, falling=True) == 40
    assert find_break(STEPS, 5 - KINK) is None
    curve = np.random.default_rng(0).normal(size=30).cumsum()
    bends = {t: curve[t + 1] - 2 * curve[t] + curve[t - 1] for t in range(1, 29)}
    assert find_break(np.arange(30), curve) == max(bends, key=bends.__getitem__)
    uneven = np.array([0, 10, 15, 40, 70, 71, 100])
    assert find_break(uneven, np.maximum(0, uneven - 40)) == 40
    powers = 2 ** np.arange(11)
    late = np.maximum(0, np.log2(powers) - 6)
    assert find_break(np.append(0, powers), np.append(0, late), axis="log") == 64


@pytest.mark.parametrize(
    ("steps", "values", "options", "words"),
    [
        ([0, 1, 2], [0, 1, 2], {"axis": "log"}, "at least 3 points"),
        ([1, 2, 3], [0, math.nan, 2], {}, "finite"),
        ([1, 3, 2], [0, 1, 2], {}, "must rise"),
    ],
)
def test_curves_without_a_break_to_look_for(steps, values, options, words):
    with pytest.raises(BreakError, match=words):
        find_break(steps, values, **options)


def test_lags_are_small_where_heads_keep_their_order():
    generator = np.random.default_rng(0)
    steps = generator.permuted(np.tile(np.arange(12.0) * 10, (6, 1)), axis=1)
    assert lag_test(steps, steps + 3, 999, (0,)) == pytest.approx((3, 1 / 1000))
    assert lag_test(steps, generator.permuted(steps, axis=1), 999, (0,))[1] > 0.01
    # all heads of a layer alike: nothing to permute, nothing to find
    assert lag_test(np.ones((2, 3)), np.ones((2, 3)) * 4, 99, (0,)) == (3, 1)
    assert np.isnan(lag_test(np.full((1, 2), np.nan), np.ones((1, 2)), 9, (0,))).all()


def write(folder: Path) -> Path:
    """Loss falls at 20, the score rises at 30; heads of layer 1 at 10, 20, the gates 10 later; the last is flat."""
    lines = []
    for step in range(0, 60, 10):
        ten, twenty, thirty, forty = (max(0.0, step - at) for at in (10, 20, 30, 40))
        curves = {"loss": {"mlm": 5 - twenty}, "dev": {"las": thirty}, "uas": [[ten, twenty], [thirty, 1.0]]}
        gates = {"shared": [[twenty, -thirty], [forty, None]]}
        lines.append(json.dumps({"step": step, "epoch": 1, **curves, "gates": gates, "name": "text", "done": True}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "log.jsonl"


def breaks_of(*logs: Path) -> Result:
    return find("breaks").measure(Request([str(log) for log in logs], Path(), BreaksOptions(permutations=99)))


def grid(result: Result, term: str) -> list[list[float]]:
    heads = result.frames["heads"].query("term == @term")
    return heads.pivot(index="layer", columns="head", values="value").to_numpy().tolist()


def test_breaks_are_found_in_order_whatever_the_depth(tmp_path):
    result, here = breaks_of(write(tmp_path)), f"{tmp_path.name}/log"
    single = result.frames["curves"].query("measure == 'break'").set_index("term")["value"]
    assert single.to_dict() == {f"{here}:loss.mlm": 20, f"{here}:dev.las": 30}
    assert np.array_equal(grid(result, f"{here}:uas"), [[10, 20], [30, np.nan]], equal_nan=True)
    assert np.array_equal(grid(result, f"{here}:gates.shared"), [[20, 30], [40, np.nan]], equal_nan=True)
    lags = result.frames["lags"]
    assert lags.query("measure == 'lag'")["value"].tolist() == [10, 10, 10]
    assert lags.query("measure == 'size'")[["value", "n"]].to_numpy().tolist() == [[10, 3]]
    text = markdown(find("breaks"), result)
    assert "3 heads break in both, lag 10 steps in the median" in text and "| at 40 |" in text


def test_logs_of_one_name_are_told_apart_and_short_curves_are_named(tmp_path):
    first, second = write(tmp_path / "a" / "run"), write(tmp_path / "b" / "run")
    (first.parent / "more.jsonl").write_text('{"step": 1, "x": 2}\n{"step": 2, "x": 3}\n')
    result = breaks_of(first.parent, second)
    assert result.frames["curves"]["term"].nunique() == 4 and result.frames["heads"]["term"].nunique() == 4
    assert result.about["notes"] == ["Fewer than three points, left out: run/more:x."]


def test_the_command_says_all_or_writes_it(mtlprune, tmp_path):
    log, out = write(tmp_path), tmp_path / "out"
    answer = mtlprune("analyze", "breaks", log).done()
    assert "| none " not in answer.out and f"| {tmp_path.name}/log:loss.mlm | " in answer.out
    answer = mtlprune("analyze", "breaks", log, "--axis", "log", "--out", out).done()
    assert "3 heads break in both" in answer.out
    result = package.read_results(out)["breaks"]
    assert result.about["settings"]["axis"] == "log" and len(result.frames["heads"]) == 8
    written = {path.name for path in out.iterdir()}
    assert written == {"breaks.json", "breaks.md", *(f"breaks-{name}.parquet" for name in result.frames)}
