"""Correlation and sets of heads against scipy and numbers made by hand; variance components on drawn gates."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtlprune.statistics.agreement import (
    PARTS,
    decompose,
    jaccard,
    multiple_correlation,
    overlap_coefficient,
    pearson,
    spread,
    within_label,
)


def test_pearson():
    one, other = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    assert pearson(one, other) == pytest.approx(1 / math.sqrt(3))  # covariance 1/8, variances 1/4 and 3/16
    assert pearson(one, one) == 1 and pearson(one, 1 - one) == -1
    assert math.isnan(pearson(one, np.ones(4)))
    a, b = np.random.default_rng(0).random((2, 144))
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic)


def test_multiple_correlation_of_two_by_the_textbook():
    """R² = (r1² + r2² − 2·r1·r2·r12) / (1 − r12²), adjusted by (H − 1) / (H − 3)."""
    generator = np.random.default_rng(2)
    shared = generator.random(144)
    runs = np.clip(shared + generator.normal(0, 0.3, (3, 144)), 0, 1)
    r = np.corrcoef(runs)
    r2 = (r[2, 0] ** 2 + r[2, 1] ** 2 - 2 * r[2, 0] * r[2, 1] * r[0, 1]) / (1 - r[0, 1] ** 2)
    found = multiple_correlation(runs[2], runs[:2])
    assert found == pytest.approx(math.sqrt(1 - (1 - r2) * 143 / 141))
    twice = multiple_correlation(runs[2], np.stack([runs[0], runs[1], runs[1]]))
    assert twice == pytest.approx(found)  # a predictor that says nothing new costs no degree of freedom


def test_where_multiple_correlation_is_not_defined():
    a, b = np.random.default_rng(3).random((2, 5))
    assert math.isnan(multiple_correlation(np.ones(5), b[None]))
    assert math.isnan(multiple_correlation(a, np.empty((0, 5))))
    assert math.isnan(multiple_correlation(a, np.random.default_rng(4).random((4, 5))))
    assert multiple_correlation(a, np.ones((1, 5))) == 0
    worse = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    assert multiple_correlation(worse[0], worse[1][None]) == 0  # R² 0, adjusted below 0


def test_within_a_label():
    gates = np.random.default_rng(5).random((3, 20))
    opened = gates > 0.5
    found = within_label(gates, opened)
    each = [multiple_correlation(gates[i], gates[[j for j in range(3) if j != i]]) for i in range(3)]
    assert found.multiple_last == each[2] and found.multiple_mean == pytest.approx(np.mean(each))
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert found.pearson.mean == pytest.approx(np.mean([np.corrcoef(gates)[pair] for pair in pairs]))
    assert found.jaccard.number == 3
    alone = within_label(gates[:1], opened[:1])
    assert math.isnan(alone.multiple_last) and math.isnan(alone.multiple_mean) and alone.pearson.number == 0


def test_spread():
    found = spread([1.0, math.nan, 2.0, 6.0])
    assert (found.mean, found.least, found.most, found.number) == (3, 1, 6, 3) and found.sd == pytest.approx(
        math.sqrt(7)
    )
    assert spread([2.0]).mean == 2 and math.isnan(spread([2.0]).sd)
    assert math.isnan(spread([]).mean) and spread([math.nan]).number == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_sets_against_python(heads):
    one, other = np.array(heads).T
    a, b = ({place for place, is_open in enumerate(side) if is_open} for side in (one, other))
    share = len(a & b) / len(a | b) if a | b else math.nan
    least = len(a & b) / min(len(a), len(b)) if a and b else math.nan
    assert jaccard(one, other) == pytest.approx(share, nan_ok=True)
    assert overlap_coefficient(one, other) == pytest.approx(least, nan_ok=True)


# -- Variance components --


TRUE = {"layers": 3.0, "heads": 2.0, "tasks": 1.0, "tasks_by_layers": 0.5, "tasks_by_heads": 1.5}
SEEDS = {"level": 0.4, "layers": 0.3, "heads": 1.2}


def draw(generator: np.random.Generator, seeds: list[int], layers: int = 6, heads: int = 4) -> list[np.ndarray]:
    """Gates (here any numbers) with the components above."""

    def effect(variance: float, *shape: int) -> np.ndarray:
        return generator.normal(0, math.sqrt(variance), shape)

    common = effect(TRUE["layers"], layers, 1) + effect(TRUE["heads"], layers, heads)
    found = []
    for number in seeds:
        task = effect(TRUE["tasks"], 1, 1) + effect(TRUE["tasks_by_layers"], layers, 1)
        task = task + effect(TRUE["tasks_by_heads"], layers, heads)
        own = effect(SEEDS["level"], number, 1, 1) + effect(SEEDS["layers"], number, layers, 1)
        found.append(common + task + own + effect(SEEDS["heads"], number, layers, heads))
    return found


@pytest.mark.parametrize("seeds", [[3, 3, 3, 3], [1, 4, 2, 3]])
def test_estimates_are_unbiased(seeds):
    generator = np.random.default_rng(0)
    draws = [decompose(draw(generator, seeds)) for _ in range(600)]
    expected = {**TRUE}
    for part, true in expected.items():
        values = np.array([found.components[part] for found in draws])
        assert abs(values.mean() - true) < 4 * values.std() / math.sqrt(len(values)), part
    for part, true in SEEDS.items():
        values = np.array([found.seeds[part] for found in draws])
        assert abs(values.mean() - true) < 4 * values.std() / math.sqrt(len(values)), part


def test_extremes():
    rows = np.arange(4.0)[:, None] * np.ones((4, 5))
    heads = np.stack([np.random.default_rng(layer).permutation(5) for layer in range(4)]).astype(float)
    assert decompose([np.stack([rows] * 3)] * 4).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"layers": 1})
    assert decompose([np.stack([heads] * 3)] * 4).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"heads": 1})
    level = [np.full((2, 4, 5), value) for value in (0.0, 0.5, 1.0)]
    assert decompose(level).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"tasks": 1})
    assert decompose(level).components["tasks"] == pytest.approx(0.25)


def test_shares_sum_to_one_and_estimates_below_zero_count_as_zero():
    noise = np.random.default_rng(1).random((5, 3, 12, 12))
    found = decompose(list(noise))
    assert sum(found.shares.values()) == pytest.approx(1) and found.shares["seeds"] > 0.95
    assert min(found.components.values()) < 0 and min(found.shares.values()) == 0
    assert found.total == pytest.approx(1 / 12, rel=0.05)  # of numbers uniform between 0 and 1


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
    found = decompose(list(np.random.default_rng(2).random(shape)))
    assert {part for part, share in found.shares.items() if math.isnan(share)} == void
    assert {part for part, value in found.components.items() if math.isnan(value)} == void
    assert sum(share for part, share in found.shares.items() if part not in void) == pytest.approx(1)


def test_equal_gates_and_no_gates():
    equal = decompose([np.full((3, 4, 5), 0.3)] * 2)
    assert all(math.isnan(share) for share in equal.shares.values())
    assert all(math.isnan(share) for share in decompose([]).shares.values())
