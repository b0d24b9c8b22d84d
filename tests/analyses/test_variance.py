"""Variance components: unbiased on gates drawn from known ones, and right by hand in the extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mtlprune.statistics.agreement import PARTS, decompose

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
def test_estimates_are_unbiased(seeds: list[int]) -> None:
    generator = np.random.default_rng(0)
    draws = [decompose(draw(generator, seeds)) for _ in range(2000)]
    expected = {**TRUE}
    for part, true in expected.items():
        values = np.array([found.components[part] for found in draws])
        assert abs(values.mean() - true) < 4 * values.std() / math.sqrt(len(values)), part
    for part, true in SEEDS.items():
        values = np.array([found.seeds[part] for found in draws])
        assert abs(values.mean() - true) < 4 * values.std() / math.sqrt(len(values)), part


def test_extremes() -> None:
    rows = np.arange(4.0)[:, None] * np.ones((4, 5))
    heads = np.stack([np.random.default_rng(layer).permutation(5) for layer in range(4)]).astype(float)
    assert decompose([np.stack([rows] * 3)] * 4).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"layers": 1})
    assert decompose([np.stack([heads] * 3)] * 4).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"heads": 1})
    level = [np.full((2, 4, 5), value) for value in (0.0, 0.5, 1.0)]
    assert decompose(level).shares == pytest.approx(dict.fromkeys(PARTS, 0) | {"tasks": 1})
    assert decompose(level).components["tasks"] == pytest.approx(0.25)


def test_shares_sum_to_one_and_estimates_below_zero_count_as_zero() -> None:
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
def test_what_cannot_be_told_apart(shape: tuple[int, ...], void: set[str]) -> None:
    found = decompose(list(np.random.default_rng(2).random(shape)))
    assert {part for part, share in found.shares.items() if math.isnan(share)} == void
    assert {part for part, value in found.components.items() if math.isnan(value)} == void
    assert sum(share for part, share in found.shares.items() if part not in void) == pytest.approx(1)


def test_equal_gates_and_no_gates() -> None:
    equal = decompose([np.full((3, 4, 5), 0.3)] * 2)
    assert all(math.isnan(share) for share in equal.shares.values())
    assert all(math.isnan(share) for share in decompose([]).shares.values())
