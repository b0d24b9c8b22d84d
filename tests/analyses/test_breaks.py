"""Breaks: the published definition on curves whose break is known, and curves that have none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mtlprune.analyses.onset.breaks import BreakError, find_break, order

STEPS = np.arange(101.0)
KINK = np.maximum(0, STEPS - 40)
LOGISTIC = 1 / (1 + np.exp(-(STEPS - 50) / 4))


@pytest.mark.parametrize("delta", [None, 1, 5])
def test_a_kink_is_found(delta: float | None) -> None:
    found = find_break(STEPS, KINK, delta)
    assert found.step == 40 and found.bend == pytest.approx(1) and found.points == 101


@pytest.mark.parametrize(("delta", "step"), [(1, 45), (None, 45), (5, 44)])
def test_a_logistic_breaks_where_its_second_derivative_is_highest(delta: float | None, step: float) -> None:
    assert find_break(STEPS, LOGISTIC, delta).step == step
    assert abs(step - (50 - 4 * math.log(2 + math.sqrt(3)))) < 1


@pytest.mark.parametrize("delta", [None, 1, 3])
def test_a_line_has_no_break_nor_has_one_that_flattens_out(delta: float | None) -> None:
    for slope in (0.0, 1 / 3, -1e-5, 1e6):
        assert find_break(STEPS, 0.1 + slope * STEPS, delta).step is None
    assert find_break([0, 1, 3, 8], [0.1, 0.2, 0.4, 0.9]).step is None
    assert find_break(STEPS, np.minimum(STEPS, 40), delta).step is None


@pytest.mark.parametrize("delta", [None, 1, 5])
def test_adding_a_line_and_scaling_do_not_move_it(delta: float | None) -> None:
    for curve in (KINK, LOGISTIC):
        expected = find_break(STEPS, curve, delta).step
        assert find_break(STEPS, 0.3 * curve - 0.7 * STEPS + 11, delta).step == expected
        assert find_break(STEPS, 1e4 * curve, delta).step == expected


def test_a_drop_is_found_by_its_mirror() -> None:
    assert find_break(STEPS, 5 - KINK, falling=True).step == 40
    assert find_break(STEPS, 5 - KINK).step is None


def test_the_definition_by_hand() -> None:
    curve = np.random.default_rng(0).normal(size=30).cumsum()
    for delta in (1, 2, 4):
        bends = {t: curve[t + delta] - 2 * curve[t] + curve[t - delta] for t in range(delta, 30 - delta)}
        assert find_break(np.arange(30), curve, delta).step == max(bends, key=bends.__getitem__)


def test_uneven_steps_and_log_schedules() -> None:
    uneven = np.array([0, 10, 15, 40, 70, 71, 100])
    assert find_break(uneven, np.maximum(0, uneven - 40)).step == 40
    powers = 2 ** np.arange(11)
    late = np.maximum(0, np.log2(powers) - 6)
    assert find_break(np.append(0, powers), np.append(0, late), axis="log").step == 64
    assert find_break(powers, late, delta=math.log(4), axis="log").step == 64


def test_breaks_are_ordered_and_those_without_come_last() -> None:
    curves = {"line": (STEPS, STEPS), "late": (STEPS, KINK), "loss": (STEPS, -np.maximum(0, STEPS - 20))}
    found = order(curves, falling=["loss"])
    assert [(name, b.step) for name, b in found] == [("loss", 20), ("late", 40), ("line", None)]


@pytest.mark.parametrize(
    ("steps", "values", "options", "words"),
    [
        ([1, 2], [0, 1], {}, "at least 3 points"),
        ([0, 1, 2], [0, 1, 2], {"axis": "log"}, "at least 3 points"),
        ([1, 2, 3], [0, math.nan, 2], {}, "finite"),
        ([1, 3, 2], [0, 1, 2], {}, "must rise"),
        ([1, 2, 3], [0, 1], {}, "as many values as steps"),
        ([1, 2, 3], [0, 1, 2], {"delta": 2}, "Δ = 2 on both sides"),
        ([1, 2, 3], [0, 1, 2], {"delta": 0}, "above 0"),
    ],
)
def test_curves_without_a_break_to_look_for(steps: list, values: list, options: dict, words: str) -> None:
    with pytest.raises(BreakError, match=words):
        find_break(steps, values, **options)
    with pytest.raises(BreakError, match="gate 3"):
        order({"gate 3": ([1, 2], [0, 1])})
