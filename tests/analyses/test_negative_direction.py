"""Uniformly negative directions: the LayerNorm hyperplane, existence against a linear programme, Wendel's guard."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from mtlprune.analyses.degeneration.maths import (
    CHANCE,
    DirectionError,
    layernorm_hyperplane,
    negative_direction,
    wendel,
)


def by_programme(rows: np.ndarray) -> bool:
    """H v ≤ −1 has a solution."""
    found = linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None))
    return found.status == 0


def test_layernorm_puts_everything_on_a_hyperplane() -> None:
    torch.manual_seed(1)
    norm = torch.nn.LayerNorm(24, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight, 1, 0.5)
    torch.nn.init.normal_(norm.bias)
    rows = norm(torch.randn(500, 24, dtype=torch.float64) * torch.rand(500, 1) * 30).detach()
    plane = layernorm_hyperplane(norm.weight, norm.bias)
    assert plane is not None and plane.spread(rows) < 1e-14
    torch.testing.assert_close(rows @ plane.direction, torch.full((500,), -abs(plane.offset), dtype=torch.float64))
    assert (plane.angles(rows) > 90).all()
    assert 1 / 24 <= plane.largest <= 1
    assert plane.distance == pytest.approx(float((rows @ plane.direction).abs().mean() / plane.normal.norm()))
    assert negative_direction(rows.numpy()) is not None  # 500 ≫ 2 · 24: by chance this does not happen
    assert plane.spread(torch.randn(9, 24)) > 1e-3


def test_a_layernorm_without_offset_has_none() -> None:
    norm = torch.nn.LayerNorm(6, dtype=torch.float64)
    plane = layernorm_hyperplane(norm.weight, norm.bias)
    assert plane is not None and plane.offset == 0 and plane.direction.abs().max() == 0 and plane.distance == 0
    assert layernorm_hyperplane(torch.tensor([1.0, 0.0]), torch.zeros(2)) is None


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.6])
def test_existence_is_that_of_the_linear_programme(shift: float) -> None:
    generator = np.random.default_rng(3)
    answers = []
    for number in (2, 5, 8, 10, 12, 30):
        for _ in range(6):
            rows = generator.standard_normal((number, 5)) + shift
            found = negative_direction(rows)
            answers.append(found is not None)
            assert answers[-1] == by_programme(rows)
            if found is not None:
                assert (rows @ found[0]).max() < 0 and np.linalg.norm(found[0]) == pytest.approx(1)
    assert len(set(answers)) == 2


def test_the_margin_is_the_widest() -> None:
    fan = np.deg2rad([-70, -20, 30, 50])
    found = negative_direction(np.stack([np.cos(fan), np.sin(fan)], 1) * [[3.0], [1], [2], [1]])
    assert found is not None and found[1] == pytest.approx(np.cos(np.deg2rad(60)))
    assert found[0] == pytest.approx([-np.cos(np.deg2rad(-10)), -np.sin(np.deg2rad(-10))])
    generator = np.random.default_rng(11)
    rows = generator.standard_normal((40, 6)) + 1.5
    best = negative_direction(rows)
    assert best is not None
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    others = best[0] + generator.standard_normal((500, 6)) * 0.1
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    assert (-(others @ units.T)).min(1).max() <= best[1] + 1e-12


def test_wendels_numbers() -> None:
    assert [round(wendel(m, 5), 3) for m in (5, 8, 10, 15, 30)] == [1.0, 0.773, 0.5, 0.09, 0.0]
    assert wendel(768, 768) == 1 and wendel(1536, 768) == pytest.approx(0.5)
    assert wendel(2000, 768) < CHANCE <= wendel(1536, 768)


@pytest.mark.parametrize("rows", [np.zeros((2, 3)), np.full((2, 3), np.nan), np.zeros((0, 3)), np.ones(3)])
def test_what_is_no_vector_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(DirectionError):
        negative_direction(rows)
