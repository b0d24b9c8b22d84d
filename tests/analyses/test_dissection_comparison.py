"""Comparisons of decompositions, and r² of feed-forward parts: against scipy, least squares, known answers."""

import math

import numpy as np
import pytest
from scipy import stats

from mtlprune.analyses.dissection.comparison import (
    composition,
    fit,
    gates_against_shares,
    linearity,
    losses,
    lost_share,
    moments,
    mu_correlations,
    r2,
)


def test_r2_is_that_of_direct_least_squares():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)) * 3 + 1, rng.normal(size=(60, 4))
    y[:, 0] += x @ rng.normal(size=5)
    design = np.column_stack([np.ones(60), x])
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    expected = (1 - ((y - fitted) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
    whole = moments(x, y)
    assert r2(whole, fit(whole, 5)) == pytest.approx(expected, abs=1e-10)
    found = linearity(moments(x[:40], y[:40]), moments(x[40:], y[40:]), 5)
    assert found["in_sample"] == pytest.approx(expected, abs=1e-10)
    assert found["held_out"] < expected and found["tokens"] == 60


def test_correlations_are_scipys_and_undefined_where_nothing_moves():
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(2, 40, 3, 4)).astype(np.float32)
    one[:, 0, 1] = 0
    spearman, pearson = mu_correlations(one, other).values()
    assert math.isnan(spearman[0, 1]) and math.isnan(pearson[0, 1])
    assert spearman[2, 3] == pytest.approx(stats.spearmanr(one[:, 2, 3], other[:, 2, 3]).statistic)
    assert pearson[1, 0] == pytest.approx(stats.pearsonr(one[:, 1, 0], other[:, 1, 0]).statistic, abs=1e-6)
    assert mu_correlations(other, other)["spearman"] == pytest.approx(np.ones((3, 4)))


def test_gates_that_follow_shares_do_not_pass_for_chance():
    rng = np.random.default_rng(3)
    shares = rng.normal(size=(6, 12)) + np.arange(6)[:, None]
    follows = (stats.rankdata(shares, axis=1) > 6).astype(float)
    found = gates_against_shares(follows, shares)
    assert (found["open"], found["shared"], found["expected"]) == (36, 36, 18.0) and found["rho"] > 0.8
    assert found["rho_p"] < 0.01 and found["shared_p"] < 1e-6
    by_layer = np.repeat(np.arange(6)[:, None] > 2, 12, axis=1).astype(float)  # all of some layers: no ranks within
    assert math.isnan(gates_against_shares(by_layer, shares)["rho"])
    blind = [gates_against_shares(rng.permuted(follows, axis=1), shares, seed)["rho_p"] for seed in range(12)]
    assert np.median(blind) > 0.1


def test_lost_shares_of_exclusive_heads():
    single, joint = np.zeros((2, 3)), np.array([[-1.0, 0, 0], [0, 0.5, 0]])
    mine = np.array([[True, False, False], [False, False, False]])
    assert lost_share(single, joint, mine) == {"heads": 1, "exclusive": -1.0, "others": 0.1}
    assert math.isnan(lost_share(single, joint, ~mine & mine)["exclusive"])


def test_losses_of_equal_encoders_are_none_and_intervals_hold_the_difference():
    rng = np.random.default_rng(4)
    gold = rng.integers(2, 9, size=50)
    counts = np.stack([np.stack([rng.binomial(gold, p), gold, gold], 1) for p in np.linspace(0.1, 0.9, 16)])
    same = losses(counts, counts)
    assert not same["difference"].any() and not same["low"].any() and not same["high"].any()
    found = losses(counts[::-1], counts)
    assert (found["low"] < found["difference"]).all() and (found["difference"] < found["high"]).all()
    assert found["low"][0] > 0 > found["high"][-1] and found["difference"][0] == pytest.approx(0.8, abs=0.1)


def test_a_mixture_is_found_and_no_weight_is_negative():
    rng = np.random.default_rng(5)
    parts = {name: rng.normal(size=(30, 8)) + 1 for name in "abc"}
    found = composition(0.3 * parts["a"] + 0.7 * parts["c"], parts)
    assert found["weights"] == pytest.approx({"a": 0.3, "b": 0.0, "c": 0.7}, abs=1e-10)
    assert found["unexplained"] == pytest.approx(0, abs=1e-12)
    assert found["centred"] == pytest.approx(found["weights"], abs=1e-10)
    against = composition(-parts["a"], {"a": parts["a"]})
    assert against["weights"] == {"a": 0.0} and against["unexplained"] == pytest.approx(1)
    assert math.isnan(composition(np.zeros((30, 8)), parts)["unexplained"])


def test_a_rotation_is_undone():
    rng = np.random.default_rng(6)
    one = rng.normal(size=(40, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    found = composition(one @ turn, {"a": one})
    assert found["rotated"] == pytest.approx({"a": 1.0})
    assert found["rotated_unexplained"] == pytest.approx(0, abs=1e-12) and found["unexplained"] > 0.3
