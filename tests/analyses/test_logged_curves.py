"""Logs to curves, curves to ordered breaks, lags of heads against heads changing places."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mtlprune.analyses.onset.breaks import BreakError
from mtlprune.analyses.onset.curves import HeadBreaks, lag, onsets, read_curves
from mtlprune.analyses.onset.show.breaks import markdown, tree
from mtlprune.runs import RunError


def kink(step: float, at: float) -> float:
    return max(0.0, step - at)


def write(folder: Path, name: str = "log") -> Path:
    """Loss falls at 20, the score rises at 30; heads of layer 1 at 10, 20, the gates 10 later; the last is flat."""
    path = folder / f"{name}.jsonl"
    records = [
        {
            "step": step,
            "epoch": 1,
            "loss": {"mlm": 5 - kink(step, 20)},
            "dev": {"las": kink(step, 30)},
            "uas": [[kink(step, 10), kink(step, 20)], [kink(step, 30), 1.0]],
            "gates": {"shared": [[kink(step, 20), -kink(step, 30)], [kink(step, 40), None]]},
            "name": "text",
            "done": True,
        }
        for step in range(0, 60, 10)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_breaks_are_found_in_order_whatever_the_depth(tmp_path: Path) -> None:
    found = onsets(read_curves(write(tmp_path)))
    here = tmp_path.name
    assert [(curve.name, at.step) for curve, at in found.single] == [
        (f"{here}/log:loss.mlm", 20),
        (f"{here}/log:dev.las", 30),
    ]
    assert [one.name for one in found.heads] == [f"{here}/log:uas", f"{here}/log:gates.shared"]
    assert np.array_equal(found.heads[0].steps, np.array([[10, 20], [30, np.nan]]), equal_nan=True)
    assert found.heads[1].steps[:, 0].tolist() == [20, 40] and found.heads[1].steps[0, 1] == 30
    assert found.lags[0].lags.tolist() == [10, 10, 10]
    text, made = markdown(found), tree(found)
    assert "3 heads break in both, lag 10 steps in the median" in text and "| " in text
    assert json.loads(json.dumps(made))["heads"][0]["breaks"] == [[10, 20], [30, None]]


def test_a_folder_gives_all_its_logs_and_short_curves_are_named(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / "b.jsonl").write_text('{"step": 1, "x": 2}\n{"step": 2, "x": 3}\n')
    found = onsets(read_curves(tmp_path))
    assert len(found.single) == 2 and found.short == [f"{tmp_path.name}/b:x"]
    assert f"Fewer than three points, left out: {tmp_path.name}/b:x." in markdown(found)


def test_lags_are_small_where_heads_keep_their_order() -> None:
    generator = np.random.default_rng(0)
    steps = generator.permuted(np.tile(np.arange(12.0) * 10, (6, 1)), axis=1)
    near = lag(HeadBreaks("a", steps), HeadBreaks("b", steps + 3), 999, generator)
    far = lag(HeadBreaks("a", steps), HeadBreaks("b", generator.permuted(steps, axis=1)), 999, generator)
    assert (near.lags == 3).all() and near.p == pytest.approx(1 / 1000) and far.p > 0.01
    # all heads of a layer alike: nothing to permute, nothing to find
    same = lag(HeadBreaks("a", np.ones((2, 3))), HeadBreaks("b", np.ones((2, 3)) * 4), 99, generator)
    assert same.p == 1 and (same.lags == 3).all()
    none = lag(HeadBreaks("a", np.full((1, 2), np.nan)), HeadBreaks("b", np.ones((1, 2))), 9, generator)
    assert np.isnan(none.p) and not len(none.lags)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"step": 1, "x": 1}\n{"step": 2, "x": 1}\n', "at least 3 points, and none of the 1 curves has more than 2"),
        ('{"epoch": 1}\n', "line 1: expected an object with a number step"),
        ("[1]\n", "line 1: expected an object with a number step"),
        ('{"step": 1, "x": 1}\n{"step": 2, "x": NaN}\n{"step": 3, "x": 1}\n', "line 2: unexpected content: NaN"),
        ("{]\n", "line 1: not readable as JSON"),
    ],
)
def test_logs_without_breaks_are_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(RunError, match=words):
        onsets(read_curves(tmp_path / "log.jsonl"))


def test_places_without_logs(tmp_path: Path) -> None:
    with pytest.raises(BreakError, match="there is no such log"):
        read_curves(tmp_path / "none.jsonl")
    with pytest.raises(BreakError, match="found none"):
        read_curves(tmp_path)
