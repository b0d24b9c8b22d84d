"""Permutations and rank tests against enumeration, tails against scipy and against counting."""

import itertools
import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtlprune.statistics.permutation import (
    corrected,
    hypergeometric_p,
    layer_orders,
    layered_hypergeometric_p,
    layered_rank_test,
    permuted,
    rank_test,
    ranks_within_layers,
    shared_moments,
    shared_null,
    tail,
)


def enumerated(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Σ one·other under every permutation of the heads of ``other`` within its layers."""
    layers, heads = other.shape
    orders = itertools.product(itertools.permutations(range(heads)), repeat=layers)
    return np.array([(one * np.take_along_axis(other, np.array(order), 1)).sum() for order in orders])


@pytest.mark.parametrize("within", [True, False])
def test_permuting_keeps_what_it_must(within):
    generator = np.random.default_rng(3)
    values = generator.random((2, 3, 4, 5), dtype=np.float32)
    chunks = np.concatenate(list(permuted(values, 50, generator, within))).reshape(50, 2, 3, 4, 5)
    axes = -1 if within else (-2, -1)
    rows = values if within else values.reshape(2, 3, 1, 20)
    shuffled = chunks if within else chunks.reshape(50, 2, 3, 1, 20)
    assert np.allclose(chunks.sum(axes), values.sum(axes))
    for one, label in itertools.product(range(50), range(2)):
        order = [
            [np.flatnonzero(rows[label, 0, r] == x)[0] for x in row] for r, row in enumerate(shuffled[one, label, 0])
        ]
        for vector in range(3):  # all vectors of a label by the same permutation
            expected = np.take_along_axis(rows[label, vector], np.array(order), 1)
            assert (shuffled[one, label, vector] == expected).all()
    assert len(np.unique(chunks[:, 0, 0].reshape(50, -1), axis=0)) == 50  # and not always by the same one
    moved = (chunks[:, 0, 0] == values[0, 0]).reshape(50, -1).mean()
    assert moved < 0.5


def test_every_permutation_is_equally_likely():
    values = np.arange(3, dtype=np.float32).reshape(1, 1, 1, 3)
    found = np.concatenate(list(permuted(values, 6000, np.random.default_rng(0)))).reshape(-1, 3)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("case", range(4))
def test_p_against_enumeration(case):
    generator = np.random.default_rng(case)
    one, other = generator.integers(0, 4, (2, 3, 3))  # open in 0 to 3 of three seeds; 3 layers of 3 heads
    every = enumerated(one, other)
    observed = float((one * other).sum())
    exact = (every >= observed).mean()
    permutations = 40_000
    null = shared_null(np.stack([one, other]), permutations, generator)[:, 0, 1]
    found = tail(observed, null)
    assert (
        abs((found.greater + found.equal) / permutations - exact)
        < 4 * math.sqrt(exact * (1 - exact) / permutations) + 1e-9
    )
    assert found.p == (1 + found.greater + found.equal) / (1 + permutations)
    assert set(null) == set(every.astype(float))
    assert shared_moments(one, other) == pytest.approx((every.mean(), every.std()))


def test_exact_tail_within_layers_against_enumeration():
    one = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    other = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    every = enumerated(one, other)
    for shared in range(5):
        found = layered_hypergeometric_p(one.sum(1), other.sum(1), 4, shared)
        assert found == pytest.approx((every >= shared).mean())
    assert layered_hypergeometric_p([3], [2], 6, 2) == pytest.approx(hypergeometric_p(3, 2, 6, 2))
    assert math.isnan(layered_hypergeometric_p([4, 0], [2, 3], 4, 2))  # always two


@given(st.integers(1, 20), st.data())
def test_hypergeometric_against_fisher(places, data):
    first, second = (data.draw(st.integers(0, places)) for _ in "ab")
    least, most = max(0, first + second - places), min(first, second)
    shared = data.draw(st.integers(least, most))
    found = hypergeometric_p(first, second, places, shared)
    if least == most:
        assert math.isnan(found)
    else:
        table = [[shared, first - shared], [second - shared, places - first - second + shared]]
        assert found == pytest.approx(stats.fisher_exact(table, alternative="greater").pvalue)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_benjamini_and_hochberg(p_values, holes):
    expected, with_holes = stats.false_discovery_control(p_values), list(p_values)
    for hole in holes:
        with_holes.insert(min(hole, len(with_holes)), math.nan)
    found = corrected(with_holes)
    assert np.isnan(found).tolist() == np.isnan(with_holes).tolist()
    assert found[~np.isnan(found)] == pytest.approx(expected)


def test_nothing_to_correct_and_nothing_to_permute():
    assert corrected([]).size == 0 and np.isnan(corrected([math.nan])).all()
    null = shared_null(np.ones((2, 2, 2), dtype=int), 0, np.random.default_rng(0))
    assert null.shape == (0, 2, 2) and math.isnan(tail(1.0, null[:, 0, 1]).p)


def test_no_p_is_zero_and_ties_count():
    null = np.array([0.0, 1.0, 1.0 + 1e-12, 2.0])
    assert (tail(1.0, null).greater, tail(1.0, null).equal, tail(1.0, null).p) == (1, 2, 0.8)
    assert tail(9.0, null).p == 0.2


# -- Spearman by permutation --


numbers = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=4, max_size=12)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@given(numbers)
def test_the_value_is_spearmans(rows):
    x, y, _ = map(list, zip(*rows, strict=True))
    value, p = rank_test(x, y, 20, rng())
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(value) and np.isnan(p)
    else:
        assert value == pytest.approx(stats.spearmanr(x, y).statistic) and 0 < p <= 1


@given(numbers)
def test_the_partial_one_is_the_formula_on_ranks(rows):
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


def test_p_is_that_of_all_orders():
    x, y = [1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5]
    observed = abs(stats.spearmanr(x, y).statistic)
    exact = np.mean([abs(stats.spearmanr(order, y).statistic) >= observed - 1e-9 for order in permutations(x)])
    _, p = rank_test(x, y, 20_000, rng())
    assert p == pytest.approx(exact, abs=0.004)


def test_what_one_variable_explains_is_held():
    generator = np.random.default_rng(4)
    z = generator.standard_normal(200)
    x, y = z + 0.3 * generator.standard_normal(200), z + 0.3 * generator.standard_normal(200)
    plain, held = rank_test(x, y, 500, generator), rank_test(x, y, 500, generator, z)
    assert plain[0] > 0.8 and plain[1] < 0.01 and abs(held[0]) < 0.2 and held[1] > 0.01


def test_within_layers_only_what_depth_does_not_explain_counts():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4, 12)) + 10 * np.arange(4)[:, None]
    found = layered_rank_test(values, np.exp(values), 999, (0, 1))
    assert found.value == pytest.approx(1) and found.p == pytest.approx(1 / 1000)
    depth = layered_rank_test(values, generator.normal(size=(4, 12)) + 10 * np.arange(4)[:, None], 999, (0, 1))
    assert depth.p > 0.05 and abs(depth.value) < 0.5
    assert np.isnan(layered_rank_test(values, np.ones((4, 12)), 99, (0,)).value)


def test_within_one_layer_it_is_spearmans_and_within_two_p_is_that_of_all_orders():
    x, y = np.random.default_rng(5).normal(size=(2, 2, 4))
    x[0, 3] = np.nan
    assert layered_rank_test(x[1:], y[1:], 9, (0,)).value == pytest.approx(stats.spearmanr(x[1], y[1]).statistic)
    ranks, others, layers = ranks_within_layers(x, y)
    assert layers.tolist() == [0] * 3 + [1] * 4 and ranks[:3].sum() == ranks[3:].sum() == 0
    assert (layers[layer_orders(layers, 50, (1,))] == layers).all()
    orders = [[*a, *b] for a, b in product(permutations(ranks[:3]), permutations(ranks[3:]))]
    exact = np.mean(np.abs(np.array(orders) @ others) >= abs(ranks @ others) - 1e-9)
    found = layered_rank_test(x, y, 20_000, (1,))
    assert found.p == pytest.approx(exact, abs=0.012) and found.heads == 7
    assert np.isnan(layered_rank_test(x, y, 9, (1,), fewest=8).p)
