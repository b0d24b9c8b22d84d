"""Heads by the number of tasks: counts, their expectation, the bootstrap and the chance of single heads, enumerated."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from gated_runs import claim

from mtlprune.analyses.claims import maths
from mtlprune.analyses.claims.maths import claimed_by, count_distribution, list_heads, majority_probability
from mtlprune.claimed_heads import RunGroup, group


def run_groups(**times: list[list[int]]) -> list[RunGroup]:
    """Labels with three seeds; head h is open in the first times[label][l][h] of them."""
    return group(
        claim(label, seed, (np.array(rows) > seed).astype(float)) for label, rows in times.items() for seed in range(3)
    )


def test_stem_exclusive_and_free_heads():
    found = run_groups(
        POS=[[3, 3, 0], [2, 1, 3]], NER=[[3, 0, 0], [3, 1, 0]], DEP=[[2, 0, 0], [2, 1, 3]], SRL=[[3, 1, 0], [0, 1, 0]]
    )
    heads = list_heads(found)
    assert heads[["layer", "head", "claimed_by", "group"]].values.tolist() == [
        [1, 1, "POS, NER, DEP, SRL", "stem"],
        [1, 2, "POS", "exclusive"],
        [1, 3, "", "free"],
        [2, 1, "POS, NER, DEP", "stem"],
        [2, 2, "", "free"],
        [2, 3, "POS, DEP", ""],  # two tasks: none of the three
    ]
    assert heads["tasks"].tolist() == [4, 1, 0, 3, 0, 2]
    two_of_three = majority_probability(3, 2)
    assert two_of_three == pytest.approx(20 / 27)  # 3·(2/3)²·(1/3) + (2/3)³
    sure = [1, 1 - majority_probability(3, 1), 1, two_of_three**2, (1 - 7 / 27) ** 4]
    assert heads["confidence"][:5].tolist() == pytest.approx(sure)  # of 1-1 three tasks always, whatever DEP does
    assert math.isnan(heads["confidence"][5])


@pytest.mark.parametrize(("seeds", "times"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (4, 3), (5, 2)])
def test_bootstrap_of_one_task_against_enumeration(seeds, times):
    samples = list(itertools.product(range(seeds), repeat=seeds))
    claimed = [2 * sum(seed < times for seed in sample) > seeds for sample in samples]
    assert majority_probability(seeds, times) == pytest.approx(np.mean(claimed))


def test_one_seed_gives_no_confidence():
    heads = list_heads(group(claim(label, 1, [[1, 0]]) for label in ("POS", "NER", "DEP")))
    assert heads["group"].tolist() == ["stem", "free"] and heads["confidence"].isna().all()


def test_count_distribution_against_enumeration():
    p = [0.2, 0.5, 0.9]
    expected: Counter[int] = Counter()
    for outcome in itertools.product((0, 1), repeat=3):
        expected[sum(outcome)] += math.prod(q if hit else 1 - q for q, hit in zip(p, outcome, strict=True))
    assert count_distribution(p) == pytest.approx([expected[k] for k in range(4)])


def test_claimed_by_against_enumeration():
    claimed = [
        np.array(rows, dtype=bool) for rows in ([[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 1, 0]], [[1, 1, 0], [0, 0, 1]])
    ]
    orders = list(itertools.product(itertools.permutations(range(3)), repeat=2))
    ways = [
        [np.take_along_axis(one, np.array(order), 1) for order in orders] if place else [one]
        for place, one in enumerate(claimed)
    ]
    every = np.array([sum(way.astype(int) for way in chosen) for chosen in itertools.product(*ways)])
    found = claimed_by(claimed, 20_000, np.random.default_rng(0), np.random.default_rng(1))
    assert found[["tasks", "heads"]].values.tolist() == [[1, 5], [2, 3], [3, 1]]
    for row in found.itertuples():
        numbers = (every >= row.tasks).sum((1, 2))
        assert row.layers_expected == pytest.approx(numbers.mean())
        assert row.layers_more == pytest.approx((numbers >= row.heads).mean(), abs=0.02)
        assert row.layers_fewer == pytest.approx((numbers <= row.heads).mean(), abs=0.02)
    # Three of six heads claimed by each of three labels, anywhere: 6·(1/2)³ heads by all, 6·4/8 by two or more.
    assert found["uniform_expected"].tolist() == pytest.approx([6 * 7 / 8, 3, 6 / 8])


def test_without_tasks_or_permutations():
    assert not len(claimed_by([], 10, np.random.default_rng(0), np.random.default_rng(0))) and not len(list_heads([]))
    found = claimed_by([np.eye(2, dtype=bool)], 0, np.random.default_rng(0), np.random.default_rng(0))
    assert found.loc[0, ["heads", "layers_expected"]].tolist() == [2, 2] and math.isnan(found["layers_more"][0])


# -- single heads, against all placements within layers ----------------------------------------------------------------


def enumerated(open_: np.ndarray, layer: int, head: int) -> float:
    """Share of all placements of each map's open heads within the layer that reach what is observed."""
    heads = open_.shape[2]
    ways = [list(itertools.combinations(range(heads), int(one[layer].sum()))) for one in open_]
    observed = int(open_[:, layer, head].sum())
    reached = [sum(head in chosen for chosen in placed) >= observed for placed in itertools.product(*ways)]
    return sum(reached) / len(reached)


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_placements(seed):
    open_ = np.random.default_rng(seed).random((3, 2, 4)) < 0.5
    p = maths.by_maps(open_)
    for layer, head in np.ndindex(2, 4):
        assert p[layer, head] == pytest.approx(enumerated(open_, layer, head))
    assert (p >= maths.least(open_) - 1e-12).all()
