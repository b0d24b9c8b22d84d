"""Spearman by permutation: SciPy's value, exact p on few labels, partial correlation by its formula."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtlprune.statistics.permutation import layered_rank_test, rank_test, ranks_within_layers

numbers = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=4, max_size=12)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@given(numbers)
def test_the_value_is_spearmans(rows: list[tuple[int, int, int]]) -> None:
    x, y, _ = map(list, zip(*rows, strict=True))
    value, p = rank_test(x, y, 20, rng())
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(value) and np.isnan(p)
    else:
        assert value == pytest.approx(stats.spearmanr(x, y).statistic) and 0 < p <= 1


@given(numbers)
def test_the_partial_one_is_the_formula_on_ranks(rows: list[tuple[int, int, int]]) -> None:
    x, y, z = map(list, zip(*rows, strict=True))
    if min(len(set(x)), len(set(y)), len(set(z))) == 1:
        return
    xy, xz, yz = (stats.spearmanr(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    left = (1 - xz**2) * (1 - yz**2)
    value, _ = rank_test(x, y, 5, rng(), z)
    if left > 1e-9:
        assert value == pytest.approx((xy - xz * yz) / np.sqrt(left), abs=1e-6)
    else:
        assert np.isnan(value)


def test_p_is_that_of_all_orders() -> None:
    x, y = [1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5]
    observed = abs(stats.spearmanr(x, y).statistic)
    exact = np.mean([abs(stats.spearmanr(order, y).statistic) >= observed - 1e-9 for order in permutations(x)])
    _, p = rank_test(x, y, 20_000, rng())
    assert p == pytest.approx(exact, abs=0.004)


def test_what_one_variable_explains_is_held() -> None:
    generator = np.random.default_rng(4)
    z = generator.standard_normal(200)
    x, y = z + 0.3 * generator.standard_normal(200), z + 0.3 * generator.standard_normal(200)
    plain, held = rank_test(x, y, 500, generator), rank_test(x, y, 500, generator, z)
    assert plain[0] > 0.8 and plain[1] < 0.01 and abs(held[0]) < 0.2 and held[1] > 0.01


def test_within_layers_only_what_depth_does_not_explain_counts() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4, 12)) + 10 * np.arange(4)[:, None]
    found = layered_rank_test(values, np.exp(values), 999, (0, 1))
    assert found.value == pytest.approx(1) and found.p == pytest.approx(1 / 1000)
    depth = layered_rank_test(values, generator.normal(size=(4, 12)) + 10 * np.arange(4)[:, None], 999, (0, 1))
    assert depth.p > 0.05 and abs(depth.value) < 0.5
    assert np.isnan(layered_rank_test(values, np.ones((4, 12)), 99, (0,)).value)


def test_within_one_layer_it_is_spearmans_and_within_two_p_is_that_of_all_orders() -> None:
    x, y = np.random.default_rng(5).normal(size=(2, 2, 4))
    x[0, 3] = np.nan
    assert layered_rank_test(x[1:], y[1:], 9, (0,)).value == pytest.approx(stats.spearmanr(x[1], y[1]).statistic)
    ranks, others, layers = ranks_within_layers(x, y)
    assert layers.tolist() == [0] * 3 + [1] * 4 and ranks[:3].sum() == ranks[3:].sum() == 0
    orders = [[*a, *b] for a, b in product(permutations(ranks[:3]), permutations(ranks[3:]))]
    exact = np.mean(np.abs(np.array(orders) @ others) >= abs(ranks @ others) - 1e-9)
    found = layered_rank_test(x, y, 20_000, (1,))
    assert found.p == pytest.approx(exact, abs=0.012) and found.heads == 7
    assert np.isnan(layered_rank_test(x, y, 9, (1,), fewest=8).p)
