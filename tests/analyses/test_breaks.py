"""Breaks: the published definition on curves whose break is known."""

import math

import numpy as np

from mtlprune.statistics.curves import find_break

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
