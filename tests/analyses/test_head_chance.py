"""Chance of single heads, against enumeration of all placements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mtlprune.analyses.claims import maths


def enumerated(open_: np.ndarray, layer: int, head: int) -> float:
    """Share of all placements of each map's open heads within the layer that reach what is observed."""
    heads = open_.shape[2]
    ways = [list(itertools.combinations(range(heads), int(one[layer].sum()))) for one in open_]
    observed = int(open_[:, layer, head].sum())
    reached = [sum(head in chosen for chosen in placed) >= observed for placed in itertools.product(*ways)]
    return sum(reached) / len(reached)


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_placements(seed: int) -> None:
    open_ = np.random.default_rng(seed).random((3, 2, 4)) < 0.5
    p = maths.by_maps(open_)
    for layer, head in np.ndindex(2, 4):
        assert p[layer, head] == pytest.approx(enumerated(open_, layer, head))
    assert (p >= maths.least(open_) - 1e-12).all()


def test_a_layer_that_is_all_open_shows_nothing() -> None:
    open_ = np.zeros((3, 2, 4), dtype=bool)
    open_[:, 0] = True
    open_[:, 1, 0] = True
    p = maths.by_maps(open_)
    assert p[0].tolist() == [1, 1, 1, 1]
    assert p[1].tolist() == pytest.approx([1 / 64, 1, 1, 1])
    open_[0, 1, 0] = False  # one map opens nothing in the layer: two of three is the most there can be
    assert maths.least(open_) == pytest.approx(1 / 16)
    assert maths.over_all_heads(p)[1, 0] == pytest.approx(8 / 64)
