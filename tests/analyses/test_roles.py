"""Roles of heads: planted roles are found, one gate ends where a line search ends, conflicts against enumeration."""

import itertools

import numpy as np
import pytest
import torch

from mtlprune.analyses.roles import MEAN
from mtlprune.analyses.roles.maths import START, conflict_heads, conflicts, fit_gates, role_scores, two_sided
from mtlprune.analyses.roles.measure import _mean_gains
from mtlprune.statistics.resamples import Resampled


def test_one_gate_without_a_push_ends_where_a_line_search_ends():
    best = 0.3  # (g − 0.3)² + 0.1 g has its minimum at 0.25
    logits = fit_gates(
        lambda gates, update: ((gates - best) ** 2 + 0.1 * gates).sum(), torch.full((1, 1), START), 0, 400, 0.1
    )
    grid = torch.linspace(0, 1, 10001)
    found = grid[((grid - best) ** 2 + 0.1 * grid).argmin()]
    assert torch.sigmoid(logits).item() == pytest.approx(found.item(), abs=2e-3)


def test_planted_roles_are_found():
    """Of four heads the loss needs the first, suffers from the second, and does not know the others."""
    need = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    opened, closed = two_sided(lambda gates, update: -(need * gates).sum(), (2, 2), 0.5, 120, 0.3)
    scores = role_scores(opened.double().numpy(), closed.double().numpy())
    assert (scores["facilitating"] > 0.5).tolist() == [[True, False], [False, False]]
    assert (scores["interfering"] > 0.5).tolist() == [[False, True], [False, False]]
    assert (scores["irrelevant"] > 0.5).tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("seed", range(20))
def test_conflict_heads_are_those_of_two_different_tasks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    helps, hinders = generator.random((2, 3, 2, 4)) < 0.4
    expected = np.zeros((2, 4), bool)
    for one, other in itertools.permutations(range(3), 2):
        expected |= helps[one] & hinders[other]
    assert (conflict_heads(helps, hinders) == expected).all()


def test_chance_keeps_layers():
    """Tasks that meet in no layer can have no conflict by chance; those that fill a layer always have."""
    helps, hinders = np.zeros((2, 2, 2, 4), bool)
    helps[0, 0], hinders[1, 1] = True, True
    assert conflicts(helps, hinders, 99, np.random.default_rng(0)) == (0, 0.0, 1.0)
    hinders[1, 0] = True
    assert conflicts(helps, hinders, 99, np.random.default_rng(0)) == (4, 4.0, 1.0)


def test_a_planted_conflict_is_above_chance():
    helps, hinders = np.zeros((2, 2, 3, 12), bool)
    helps[0, :, :3], hinders[1, :, :3] = True, True
    count, expected, p = conflicts(helps, hinders, 999, np.random.default_rng(0))
    assert count == 9 and expected == pytest.approx(9 / 4, abs=0.3) and p == pytest.approx(0.001)


def test_mean_gains_are_over_the_tasks_of_each_run() -> None:
    """A run's gain is the mean of its tasks, however many have conflict heads."""
    noise = np.random.default_rng(0).normal(0, 0.1, (3, 2000))

    def gain(value: float, draws: np.ndarray) -> Resampled:
        return Resampled(np.array([value]), value + draws[:, None])

    runs = {("MTL-2", 1): [gain(1, noise[0]), gain(3, noise[1])], ("MTL-2", 2): [gain(2.4, noise[2])]}
    [row] = _mean_gains({**runs, ("MTL-3", 1): [gain(1, noise[0])]})
    assert (row["encoder"], row["task"], row["n"]) == ("MTL-2", MEAN, 2)
    assert row["delta"] == pytest.approx(2.2) and row["high"] - row["low"] > 2 * 12.7 * 0.2 * 0.99
