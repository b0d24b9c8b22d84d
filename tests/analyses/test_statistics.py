"""Permutations, ranks, agreement, variance components, TwoNN, breaks: against enumeration, scipy and known truth."""

import itertools
import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import spatial, stats

from mtlprune.statistics import agreement, permutation
from mtlprune.statistics.curves import find_break
from mtlprune.statistics.twonn import DimensionError, twonn


def enumerated(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Σ one·other under every permutation of the heads of ``other`` within its layers."""
    layers, heads = other.shape
    orders = itertools.product(itertools.permutations(range(heads)), repeat=layers)
    return np.array([(one * np.take_along_axis(other, np.array(order), 1)).sum() for order in orders])


@pytest.mark.parametrize("within", [True, False])
def test_permuting_keeps_what_it_must(within):
    generator = np.random.default_rng(3)
    values = generator.random((2, 3, 4, 5), dtype=np.float32)
    chunks = np.concatenate(list(permutation.permuted(values, 50, generator, within))).reshape(50, 2, 3, 4, 5)
    axes = -1 if within else (-2, -1)
    assert np.allclose(np.sort(chunks, None), np.sort(np.broadcast_to(values, chunks.shape), None))
    assert np.allclose(chunks.sum(axes), values.sum(axes))
    together = {tuple(heads) for heads in values.reshape(2, 3, 20).swapaxes(1, 2).reshape(40, 3)}
    moved = chunks.reshape(50, 2, 3, 20).swapaxes(2, 3).reshape(-1, 3)
    assert {tuple(heads) for heads in moved} == together  # all vectors of a label by the same permutation
    assert len(np.unique(chunks[:, 0, 0].reshape(50, -1), axis=0)) == 50  # and not always by the same one
    values = np.arange(3, dtype=np.float32).reshape(1, 1, 1, 3)
    found = np.concatenate(list(permutation.permuted(values, 6000, np.random.default_rng(0), within))).reshape(-1, 3)
    _, counts = np.unique(found, axis=0, return_counts=True)  # each is equally likely
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("case", range(4))
def test_p_against_enumeration(case):
    generator = np.random.default_rng(case)
    one, other = generator.integers(0, 4, (2, 3, 3))  # open in 0 to 3 of three seeds; 3 layers of 3 heads
    every = enumerated(one, other)
    observed = float((one * other).sum())
    exact = (every >= observed).mean()
    permutations = 40_000
    null = permutation.shared_null(np.stack([one, other]), permutations, generator)[:, 0, 1]
    p = permutation.tail(observed, null)
    assert abs(p - exact) < 4 * math.sqrt(exact * (1 - exact) / permutations) + 1 / permutations
    assert set(null) == set(every.astype(float))
    assert permutation.shared_moments(one, other) == pytest.approx((every.mean(), every.std()))


@pytest.mark.parametrize(
    "masks",
    [
        [[[1, 1, 0, 0]], [[1, 0, 1, 0]], [[0, 1, 1, 1]]],  # (M, L, A): an odd number of masks
        [[[1, 0, 0], [1, 1, 0]], [[0, 1, 0], [0, 1, 1]], [[0, 0, 1], [1, 0, 1]], [[1, 1, 0], [1, 0, 0]]],
        [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]]],
    ],
)
def test_swapped_masks_are_all_those_of_both_margins_equally_often(masks):
    masks = np.array(masks, bool)
    rows = [[np.isin(range(masks.shape[2]), some) for some in itertools.combinations(range(masks.shape[2]), int(n))]
            for n in masks.sum(2).ravel()]  # fmt: skip
    every = {
        tried.tobytes()
        for choice in itertools.product(*rows)
        if ((tried := np.stack(choice).reshape(masks.shape)).sum(0) == masks.sum(0)).all()
    }
    drawn = np.concatenate(list(permutation.swapped(masks, 6_000, np.random.default_rng(1))))
    assert drawn.shape == (6_000, *masks.shape)
    counts = dict.fromkeys(every, 0)
    for one in drawn:
        counts[one.tobytes()] += 1  # KeyError: a margin has changed
    assert len(every) == 1 or stats.chisquare(list(counts.values())).pvalue > 0.001


def test_exact_tail_within_layers_against_enumeration():
    one = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    other = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    every = enumerated(one, other)
    for shared in range(5):
        found = permutation.hypergeometric_p(one.sum(1), other.sum(1), 4, shared)
        assert found == pytest.approx((every >= shared).mean())
    assert math.isnan(permutation.hypergeometric_p([4, 0], [2, 3], 4, 2))  # always two


@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=3)
)
def test_benjamini_and_hochberg(p_values, holes):
    expected, with_holes = stats.false_discovery_control(p_values), list(p_values)
    for hole in holes:
        with_holes.insert(min(hole, len(with_holes)), math.nan)
    found = permutation.benjamini_hochberg(with_holes)
    assert np.isnan(found).tolist() == np.isnan(with_holes).tolist()
    assert found[~np.isnan(found)] == pytest.approx(expected)
    assert permutation.benjamini_hochberg([]).size == 0 and np.isnan(permutation.benjamini_hochberg([math.nan])).all()


numbers = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=4, max_size=12)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@given(numbers)
def test_the_value_is_spearmans_and_the_partial_one_the_formula_on_ranks(rows):
    x, y, z = map(list, zip(*rows, strict=True))
    value, p = permutation.rank_test(x, y, 20, rng())
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(value) and np.isnan(p)
        return
    xy = stats.spearmanr(x, y).statistic
    assert value == pytest.approx(xy) and 0 < p <= 1
    xz, yz = (stats.spearmanr(side, z).statistic if len(set(z)) > 1 else 0.0 for side in (x, y))
    left = (1 - xz**2) * (1 - yz**2)
    expected = (xy - xz * yz) / np.sqrt(left) if left > 1e-9 else math.nan
    assert permutation.rank_test(x, y, 5, rng(), z)[0] == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_p_is_that_of_all_orders():
    x, y = [1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5]
    observed = abs(stats.spearmanr(x, y).statistic)
    exact = np.mean([abs(stats.spearmanr(order, y).statistic) >= observed - 1e-9 for order in permutations(x)])
    _, p = permutation.rank_test(x, y, 20_000, rng())
    assert p == pytest.approx(exact, abs=0.004)


def test_within_one_layer_it_is_spearmans_and_within_two_p_is_that_of_all_orders():
    x, y = np.random.default_rng(5).normal(size=(2, 2, 4))
    x[0, 3] = np.nan
    spearman = stats.spearmanr(x[1], y[1]).statistic
    assert permutation.layered_rank_test(x[1:], y[1:], 9, (0,)).value == pytest.approx(spearman)
    ranks, others, layers = permutation.ranks_within_layers(x, y)
    assert layers.tolist() == [0] * 3 + [1] * 4 and ranks[:3].sum() == ranks[3:].sum() == 0
    orders = [[*a, *b] for a, b in product(permutations(ranks[:3]), permutations(ranks[3:]))]
    exact = np.mean(np.abs(np.array(orders) @ others) >= abs(ranks @ others) - 1e-9)
    found = permutation.layered_rank_test(x, y, 20_000, (1,))
    assert found.p == pytest.approx(exact, abs=0.012) and found.heads == 7
    assert np.isnan(permutation.layered_rank_test(x, y, 9, (1,), fewest=8).p)
    values, other = np.random.default_rng(0).normal(size=(2, 4, 12)) + 10 * np.arange(4)[:, None]  # both follow depth
    found = permutation.layered_rank_test(values, np.exp(values), 999, (0, 1))
    assert found.value == pytest.approx(1) and found.p == pytest.approx(1 / 1000)
    depth = permutation.layered_rank_test(values, other, 999, (0, 1))
    assert depth.p > 0.05 and abs(depth.value) < 0.5
    assert np.isnan(permutation.layered_rank_test(values, np.ones((4, 12)), 99, (0,)).value)


def test_multiple_correlation_of_two_by_the_textbook_and_where_it_is_not_defined():
    """R² = (r1² + r2² − 2·r1·r2·r12) / (1 − r12²), adjusted by (H − 1) / (H − 3)."""
    generator = np.random.default_rng(2)
    runs = generator.random(144) + generator.normal(0, 0.3, (3, 144))
    r = np.corrcoef(runs)
    r2 = (r[2, 0] ** 2 + r[2, 1] ** 2 - 2 * r[2, 0] * r[2, 1] * r[0, 1]) / (1 - r[0, 1] ** 2)
    expected = math.sqrt(1 - (1 - r2) * 143 / 141)
    for others in ([0, 1], [0, 1, 1]):  # a predictor that says nothing new costs no degree of freedom
        assert agreement.multiple_correlation(runs[2], runs[others]) == pytest.approx(expected)
    assert agreement.multiple_correlation(np.array([0.0, 0, 1, 1]), np.array([[0.0, 1, 0, 1]])) == 0  # R² adjusted < 0
    five = generator.random((5, 5))
    for target, others in ((np.ones(5), five[:1]), (five[0], five[:0]), (five[0], five[1:])):
        assert math.isnan(agreement.multiple_correlation(target, others))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_sets_against_python(heads):
    one, other = np.array(heads).T
    a, b = ({*np.flatnonzero(side)} for side in (one, other))
    share = len(a & b) / len(a | b) if a | b else math.nan
    least = len(a & b) / min(len(a), len(b)) if a and b else math.nan
    assert agreement.jaccard(one, other) == pytest.approx(share, nan_ok=True)
    assert agreement.overlap_coefficient(one, other) == pytest.approx(least, nan_ok=True)


TRUE = {"layers": 3.0, "heads": 2.0, "tasks": 1.0, "tasks_by_layers": 0.5, "tasks_by_heads": 1.5}
SEEDS = {"level": 0.4, "layers": 0.3, "heads": 1.2}


def draw(generator: np.random.Generator, seeds: list[int], layers: int = 6, heads: int = 4) -> list[np.ndarray]:
    def effect(variance: float, *shape: int) -> np.ndarray:
        return generator.normal(0, math.sqrt(variance), shape)

    common = effect(TRUE["layers"], layers, 1) + effect(TRUE["heads"], layers, heads)
    shapes = {"tasks": (1, 1), "tasks_by_layers": (layers, 1), "tasks_by_heads": (layers, heads)}
    own = {"level": (1, 1), "layers": (layers, 1), "heads": (layers, heads)}
    return [
        common
        + sum(effect(TRUE[part], *shape) for part, shape in shapes.items())
        + sum(effect(SEEDS[part], number, *shape) for part, shape in own.items())
        for number in seeds
    ]


@pytest.mark.parametrize("seeds", [[3, 3, 3, 3], [1, 4, 2, 3]])
def test_estimates_are_unbiased(seeds):
    generator = np.random.default_rng(0)
    draws = [agreement.decompose(draw(generator, seeds)) for _ in range(600)]
    for field, expected in (("components", TRUE), ("seeds", SEEDS)):
        for part, true in expected.items():
            values = np.array([getattr(found, field)[part] for found in draws])
            assert abs(values.mean() - true) < 4 * values.std() / math.sqrt(len(values)), part


def test_shares_sum_to_one_where_there_are_any_and_below_zero_counts_as_zero():
    noise = np.random.default_rng(1).random((5, 3, 12, 12))
    found = agreement.decompose(list(noise))
    assert sum(found.shares.values()) == pytest.approx(1) and found.shares["seeds"] > 0.95
    assert min(found.components.values()) < 0 and min(found.shares.values()) == 0
    assert found.total == pytest.approx(1 / 12, rel=0.05)  # of numbers uniform between 0 and 1
    for nothing in ([np.full((3, 4, 5), 0.3)] * 2, []):
        assert all(math.isnan(share) for share in agreement.decompose(nothing).shares.values())


@pytest.mark.parametrize(
    ("shape", "void"),
    [
        ((1, 3, 4, 5), {"tasks", "tasks_by_layers", "tasks_by_heads"}),
        ((3, 1, 4, 5), {"seeds"}),
        ((1, 1, 4, 5), {"tasks", "tasks_by_layers", "tasks_by_heads", "seeds"}),
        ((3, 3, 1, 5), {"layers", "tasks_by_layers"}),
        ((3, 3, 4, 1), {"heads", "tasks_by_heads"}),
    ],
)
def test_what_cannot_be_told_apart(shape, void):
    found = agreement.decompose(list(np.random.default_rng(2).random(shape)))
    assert {part for part, share in found.shares.items() if math.isnan(share)} == void
    assert {part for part, value in found.components.items() if math.isnan(value)} == void
    assert sum(share for part, share in found.shares.items() if part not in void) == pytest.approx(1)


def test_the_estimate_is_that_of_all_distances_whatever_the_rotation_scale_place_and_empty_features():
    generator = np.random.default_rng(4)
    points = generator.normal(size=(300, 4))
    turn = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    base = twonn(points)
    nearest = np.sort(spatial.distance.cdist(points, points), axis=1)  # the nearest is the point itself
    logs = np.log(nearest[:, 2] / nearest[:, 1])
    assert base.likelihood == pytest.approx(300 / logs.sum())
    for other in (points @ turn, 7 * points, points + 3, np.hstack([points, np.zeros((300, 5))]), points[::-1]):
        assert twonn(other).likelihood == pytest.approx(base.likelihood)


def test_copies_are_dropped_and_counted_exact_ones_and_those_float32_blurs():
    points = np.random.default_rng(5).normal(size=(200, 6))
    base = twonn(points)
    noise = points[:30] * (1 + 3e-8)
    for copies in (points[:30], noise, np.vstack([points[:15], noise[:15]])):
        found = twonn(np.vstack([points, copies]))
        assert (found.points, found.dropped) == (200, 30)
        assert found.likelihood == pytest.approx(base.likelihood, rel=1e-12)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (np.zeros((9, 3)), "found 1 .8 of the 9 given are copies"),
        (np.eye(2), "at least 3 different points, found 2"),
        (np.array(list(itertools.product(range(4), repeat=2))), "lattice"),
    ],
)
def test_points_without_a_dimension(points, words):
    with pytest.raises(DimensionError, match=words):
        twonn(points)


LOGS = np.arange(101.0)
KINK = np.maximum(0, LOGS - 40)


def log_break(logs: np.ndarray, values: np.ndarray, falling: bool = False) -> float | None:
    step = find_break(1.1**logs, values, falling)
    return None if step is None else round(math.log(step, 1.1), 4)


def test_a_line_has_no_break_nor_has_one_that_flattens_out():
    for slope in (0.0, 1 / 3, -1e-5, 1e6):
        assert log_break(LOGS, 0.1 + slope * LOGS) is None
    assert find_break([1, 2, 8, 256], [0.1, 0.2, 0.4, 0.9]) is None
    assert log_break(LOGS, np.minimum(LOGS, 40)) is None


def test_breaks_by_definition_of_a_logistic_by_hand_mirrored_and_with_uneven_steps():
    logistic = 1 / (1 + np.exp(-(LOGS - 50) / 4))  # its second derivative is highest at 50 − 4 ln(2 + √3)
    assert log_break(LOGS, logistic) == 45 == round(50 - 4 * math.log(2 + math.sqrt(3)))
    assert log_break(LOGS, KINK) == 40
    assert log_break(LOGS, 5 - KINK, falling=True) == 40
    assert log_break(LOGS, 5 - KINK) is None
    curve = np.random.default_rng(0).normal(size=30).cumsum()
    bends = {t: curve[t + 1] - 2 * curve[t] + curve[t - 1] for t in range(1, 29)}
    assert log_break(np.arange(30), curve) == max(bends, key=bends.__getitem__)
    uneven = np.array([0, 10, 15, 40, 70, 71, 100])
    assert log_break(uneven, np.maximum(0, uneven - 40)) == 40
    assert find_break(LOGS, KINK, axis="linear") == find_break(LOGS[::5], KINK[::5], axis="linear") == 40
    assert find_break(LOGS, logistic, axis="linear") == 45
    even, bends = np.arange(0, 900, 30), {t: curve[t + 1] - 2 * curve[t] + curve[t - 1] for t in range(1, 29)}
    assert find_break(even, curve, axis="linear") == 30 * max(bends, key=bends.__getitem__)
    powers = 2 ** np.arange(11)
    assert find_break(powers, np.maximum(0, np.log2(powers) - 6)) == 64


def test_nothing_is_significant_where_a_value_is_not_known():
    null = np.arange(99.0)
    assert math.isnan(permutation.tail(math.nan, null)) and permutation.tail(98.0, null, enumerated=True) == 1 / 99
    assert np.isnan(permutation.rank_test([1, 2, 3], [1, 2, math.nan], 50, rng())).all()
