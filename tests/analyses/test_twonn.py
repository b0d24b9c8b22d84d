"""TwoNN: estimates where the truth is known, what must not change them, and points that have no dimension."""

import itertools

import numpy as np
import pytest

from mtlprune.statistics.twonn import DimensionError, from_ratios, twonn


@pytest.mark.parametrize("dimension", [3, 12, 50])
def test_ratios_of_the_assumed_law_give_the_dimension(dimension):
    ratios = np.random.default_rng(dimension).uniform(size=5000) ** (-1 / dimension)
    fit, likelihood = from_ratios(ratios)
    assert abs(likelihood - dimension) < 3 * dimension / np.sqrt(5000)
    assert abs(fit - dimension) < 6 * dimension / np.sqrt(5000)


def test_the_line_is_fitted_to_all_but_the_largest_tenth():
    ratios = np.random.default_rng(3).uniform(1, 3, size=50)
    x = np.sort(np.log(ratios))[:45]
    y = -np.log(1 - np.arange(1, 46) / 50)
    assert from_ratios(ratios)[0] == pytest.approx(np.linalg.lstsq(x[:, None], y, rcond=None)[0][0])
    assert from_ratios(ratios)[1] == pytest.approx(50 / np.log(ratios).sum())


def test_rotation_scale_place_and_empty_features_change_nothing():
    generator = np.random.default_rng(4)
    points = generator.normal(size=(300, 4))
    turn = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    base = twonn(points)
    for other in (points @ turn, 7 * points, points + 3, np.hstack([points, np.zeros((300, 5))]), points[::-1]):
        found = twonn(other)
        assert found.fit == pytest.approx(base.fit) and found.likelihood == pytest.approx(base.likelihood)


def test_copies_are_dropped_and_counted_exact_ones_and_those_float32_blurs():
    points = np.random.default_rng(5).normal(size=(200, 6))
    base = twonn(points)
    noise = points[:30] * (1 + 3e-8)
    for copies in (points[:30], noise, np.vstack([points[:15], noise[:15]])):
        found = twonn(np.vstack([points, copies]))
        assert (found.points, found.dropped) == (200, 30)
        assert (found.fit, found.likelihood) == pytest.approx((base.fit, base.likelihood), rel=1e-12)


def test_more_points_than_one_block_of_distances():
    points = np.random.default_rng(6).normal(size=(1500, 3))
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1))
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)
    assert twonn(points).likelihood == pytest.approx(1500 / np.log(nearest[:, 1] / nearest[:, 0]).sum())


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (np.zeros((9, 3)), "found 1 .8 of the 9 given are copies"),
        (np.eye(2), "at least 3 different points, found 2"),
        (np.array(list(itertools.product(range(4), repeat=2))), "lattice"),
        (np.array([[0.0], [np.nan], [1.0]]), "finite"),
        (np.zeros(5), "rows of numbers"),
    ],
)
def test_points_without_a_dimension(points, words):
    with pytest.raises(DimensionError, match=words):
        twonn(points)
    with pytest.raises(DimensionError, match="at least 3 ratios"):
        from_ratios([2.0, 3.0])
