"""The whole comparison: planted overlap is found, overlap of layers alone is not taken for it, and chance is chance."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from gated_runs import claim, scattered
from scipy import stats

from mtlprune.analyses.claims.claimants import group
from mtlprune.analyses.claims.overlap import Overlap, measure
from mtlprune.claimed_heads import Claim
from mtlprune.statistics.permutation import shared_null, tail

TASKS = ("POS", "NER", "DEP", "CON", "SRL")
EVEN = [6] * 12  # open heads in each of 12 layers, of 12
MIDDLE = [0, 1, 2, 5, 9, 11, 11, 9, 5, 2, 1, 0]


def seeds_of(
    generator: np.random.Generator, label: str, wanted: np.ndarray, number: int = 3, moved: int = 1
) -> list[Claim]:
    """Seeds that agree on the wanted heads, but for ``moved`` of each layer, which swap with closed ones."""
    found = []
    for seed in range(number):
        gates = wanted.copy()
        for row in gates:
            for old, new in ((1, 0), (0, 1)):
                places = np.flatnonzero(row == old)
                if len(places) and (row == new).any():
                    row[generator.choice(places, min(moved, len(places)), replace=False)] = 0.5
            row[row == 0.5] = generator.permutation(row[row == 0.5])
        opened = (gates > 0.4) & (generator.random(gates.shape) < 0.97)
        found.append(claim(label, seed, np.where(opened, generator.uniform(0.2, 1, gates.shape), 0.0)))
    return found


def compare(generator: np.random.Generator, sets: Sequence[np.ndarray], **options: int) -> Overlap:
    labels = TASKS[: len(sets)]
    claims = [one for label, wanted in zip(labels, sets, strict=True) for one in seeds_of(generator, label, wanted)]
    return measure(claims, **options)


def test_planted_overlap_is_found() -> None:
    generator = np.random.default_rng(0)
    stem = scattered(generator, [4] * 12, 12)
    sets = [np.maximum(stem, scattered(generator, [2] * 12, 12)) for _ in TASKS]
    found = compare(generator, sets)
    assert found.tasks.p < 0.001 and found.tasks.z > 5
    assert all(pair.sharing.p < 0.05 and pair.q < 0.05 for pair in found.pairs)
    planted = {f"{layer + 1}-{head + 1}" for layer, head in zip(*np.nonzero(stem), strict=True)}
    named = {head.name for head in found.stem if len(head.labels) == 5 and head.confidence > 0.9}
    assert len(planted & named) > 0.8 * len(planted) and len(named - planted) < 0.2 * len(named)
    by_all = found.claimed_by[4]
    assert by_all.heads > 2 * by_all.layers.expected and by_all.layers.p_more < 0.001
    assert found.variance.shares["heads"] > 0.2 > found.variance.shares["layers"]


def test_a_common_preference_for_layers_is_not_taken_for_overlap() -> None:
    generator = np.random.default_rng(1)
    found = compare(generator, [scattered(generator, MIDDLE, 12) for _ in TASKS])
    assert all(pair.claimed.p_hypergeometric < 0.001 and pair.claimed.q_hypergeometric < 0.001 for pair in found.pairs)
    assert all(pair.pearson > 0.4 for pair in found.pairs)  # which the original read as the same heads
    assert all(pair.q > 0.05 and pair.claimed.p_layers > 0.01 for pair in found.pairs)
    assert found.tasks.p > 0.05
    by_all = found.claimed_by[4]
    assert by_all.uniform.p_more < 0.001 and by_all.heads > 3 * by_all.uniform.expected
    assert by_all.layers.p_more > 0.05 and abs(by_all.heads - by_all.layers.expected) < 6
    assert found.variance.shares["layers"] > 0.3 and found.variance.shares["heads"] < 0.05


def test_p_values_are_uniform_where_tasks_share_layers_only() -> None:
    """200 draws of tasks whose three seeds agree, with no overlap beyond layers.

    Ties of whole numbers count as reached, which makes p a little too large, never too small (in 1,500 such draws
    p ≤ 0.05 in 4.8 % of them); with ties broken at random it is exactly uniform.
    """
    generator = np.random.default_rng(2)
    p_pair, p_broken, p_all, plain = [], [], [], []
    for _ in range(200):
        sets = [scattered(generator, MIDDLE, 12) for _ in range(3)]
        claims = [one for label, wanted in zip(TASKS, sets, strict=False) for one in seeds_of(generator, label, wanted)]
        found = measure(claims, permutations=300, seed=int(generator.integers(2**31)))
        p_pair.append(found.pairs[0].sharing.p)
        p_all.append(found.tasks.p)
        plain.append(found.pairs[0].claimed.p_hypergeometric)
        times = np.stack([claimant.times for claimant in group(claims)[:2]])
        one = tail(float((times[0] * times[1]).sum()), shared_null(times, 300, generator)[:, 0, 1])
        p_broken.append((one.greater + generator.random() * (one.equal + 1)) / (one.permutations + 1))
    assert stats.kstest(p_pair, "uniform").pvalue > 0.01 and stats.kstest(p_all, "uniform").pvalue > 0.01
    assert stats.kstest(p_broken, "uniform").pvalue > 0.05
    assert np.mean(np.array(p_pair) <= 0.05) < 0.09 and np.mean(np.array(p_all) <= 0.05) < 0.09
    assert np.mean(np.array(plain) < 0.05) > 0.9  # the plain one calls nearly every draw significant


def test_agreement_within_a_task_does_not_make_overlap_between_tasks() -> None:
    """Nine pairs of seeds are not nine observations: permuting seeds one by one would be far too sure."""
    generator = np.random.default_rng(3)
    p_values = []
    for _ in range(100):
        sets = [scattered(generator, [4] * 6, 8) for _ in range(2)]
        claims = [claim(label, seed, one) for label, one in zip(TASKS, sets, strict=False) for seed in range(5)]
        p_values.append(measure(claims, permutations=200).pairs[0].sharing.p)
    assert np.mean(np.array(p_values) <= 0.05) < 0.13


def test_one_pair_by_hand() -> None:
    """Two layers of two heads; POS opens 1-1 and 2-1 in both seeds, DEP 1-1 and one of layer 2."""
    pos = [claim("POS", seed, [[1, 0], [0.5, 0]]) for seed in (1, 2)]
    dep = [claim("DEP", 1, [[1, 0], [1, 0]]), claim("DEP", 2, [[1, 0], [0, 1]])]
    found = measure([*dep, *pos], permutations=4000)
    (pair,) = found.pairs
    assert (pair.first, pair.second) == ("POS", "DEP")
    assert pair.jaccard.mean == pytest.approx((1 + 1 / 3) / 2) and pair.jaccard.sd == pytest.approx(
        0.5 * (2 / 3) / math.sqrt(0.75)
    )
    assert pair.overlap_coefficient.mean == pytest.approx(0.75)
    assert pair.sharing.heads == 1.5 and pair.sharing.expected == 1
    # Layer 2 of DEP is open once in either head, so only layer 1 matters: 1.5 or 0.5, evenly likely.
    assert pair.sharing.p == pytest.approx(0.5, abs=0.03) and pair.sharing.z == pytest.approx(1)
    assert pair.q == pair.sharing.p and found.tasks == pair.sharing
    assert pair.pearson == pytest.approx(np.corrcoef([1, 0, 0.5, 0], [1, 0, 0.5, 0.5])[0, 1])
    assert (pair.claimed.heads, pair.claimed.expected_uniform, pair.claimed.expected_layers) == (1, 0.5, 0.5)
    assert pair.claimed.p_hypergeometric == pytest.approx(0.5) and pair.claimed.p_layers == pytest.approx(0.5)
    assert [label.claimed_by_layer for label in found.labels] == [(1, 1), (1, 0)]
    assert found.correlation[0][1] == found.correlation[1][0] == pair.pearson
    assert found.correlation[0][0] == found.labels[0].within.multiple_last == pytest.approx(1)


def test_joint_labels_are_compared_but_are_no_tasks() -> None:
    generator = np.random.default_rng(4)
    sets = [scattered(generator, EVEN, 12) for _ in range(4)]
    claims = [one for label, wanted in zip(TASKS, sets, strict=False) for one in seeds_of(generator, label, wanted)]
    alone = measure(claims, permutations=100)
    joint = [one for label in ("MTL-5", "MTL-5:POS", "POS+DEP") for one in seeds_of(generator, label, sets[0])]
    both = measure([*joint, *claims], permutations=100)
    assert [label.joint for label in both.labels] == [False] * 4 + [True] * 3 and len(both.pairs) == 21
    assert np.shape(both.correlation) == (7, 7)
    assert (both.stem, both.exclusive, both.free, both.variance) == (
        alone.stem,
        alone.exclusive,
        alone.free,
        alone.variance,
    )
    assert [row.heads for row in both.claimed_by] == [row.heads for row in alone.claimed_by]
    assert (both.tasks.heads, both.tasks.z) == (alone.tasks.heads, alone.tasks.z)
    only = measure(joint, permutations=100)
    assert not only.stem and not only.claimed_by and math.isnan(only.tasks.heads)
    assert "There is no single-task label, so tasks cannot be compared, and their part" in only.undefined[0]


def test_within_a_label_every_seed_is_permuted() -> None:
    generator = np.random.default_rng(5)
    agreeing = compare(generator, [scattered(generator, EVEN, 12)]).labels[0].sharing
    assert agreeing.p < 0.001
    alien = [claim("POS", seed, scattered(generator, EVEN, 12)) for seed in range(3)]
    assert measure(alien, 500).labels[0].sharing.p > 0.05


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        (np.zeros((2, 3)), ["no open head in seed 1; overlap coefficients", "POS has no open head, so permuting"]),
        (np.ones((2, 3)), ["POS has all heads open, so permuting", "POS claims all heads, so it has no hyperg"]),
        (np.array([[1, 1, 1], [0, 0, 0]]), ["POS has the heads of each layer open equally often, so permuting"]),
    ],
)
def test_labels_that_say_nothing(gates: np.ndarray, words: list[str]) -> None:
    found = measure([claim("POS", 1, gates), claim("DEP", 1, [[1, 0, 0], [0, 1, 0]])], permutations=20)
    assert (
        math.isnan(found.pairs[0].sharing.p) and math.isnan(found.pairs[0].q) and math.isnan(found.pairs[0].sharing.z)
    )
    text = "\n".join(found.undefined)
    assert all(word in text for word in words)
    if np.ptp(gates) == 0:
        assert math.isnan(found.pairs[0].pearson) and "POS has the same mean gate for all heads" in text


def test_labels_that_meet_in_no_layer() -> None:
    found = measure([claim("POS", 1, [[1, 0], [0, 0]]), claim("DEP", 1, [[0, 0], [0, 1]])], permutations=20)
    assert math.isnan(found.pairs[0].sharing.p) and found.pairs[0].sharing.heads == 0
    assert "POS and DEP choose among the heads of no layer both, so permuting" in "\n".join(found.undefined)


def test_one_run_only() -> None:
    found = measure([claim("POS", 1, [[1, 0, 1], [0, 1, 0]])], permutations=20)
    assert not found.pairs and [row.heads for row in found.claimed_by] == [3]
    assert math.isnan(found.correlation[0][0]) and math.isnan(found.tasks.p)
    text = "\n".join(found.undefined)
    for words in ("POS has one seed", "one label only", "one single-task label", "fewer than 3", "cannot be resampled"):
        assert words in text


def test_different_numbers_of_seeds() -> None:
    generator = np.random.default_rng(6)
    wanted = scattered(generator, EVEN, 12)
    claims = [one for number, label in enumerate(TASKS, 1) for one in seeds_of(generator, label, wanted, number)]
    found = measure(claims, permutations=500)
    assert found.tasks.p < 0.01 and all(pair.q < 0.05 for pair in found.pairs)
    assert [pair.jaccard.number for pair in found.pairs] == [a * b for a, b in itertools.combinations(range(1, 6), 2)]
    assert math.isnan(found.correlation[0][0]) and not math.isnan(found.correlation[1][1])
    assert "Labels have different numbers of seeds (POS 1, NER 2, DEP 3, CON 4, SRL 5)" in found.notes[0]


def test_no_permutations() -> None:
    generator = np.random.default_rng(7)
    found = compare(generator, [scattered(generator, EVEN, 12) for _ in range(3)], permutations=0)
    assert math.isnan(found.tasks.p) and math.isnan(found.pairs[0].q) and not math.isnan(found.tasks.z)
    assert not math.isnan(found.pairs[0].claimed.p_layers) and not math.isnan(found.claimed_by[0].layers.expected)
    assert found.undefined == ("No permutations were asked for, so there are no p-values from permutations.",)


def test_the_seed_decides() -> None:
    generator = np.random.default_rng(8)
    claims = [one for label in TASKS[:2] for one in seeds_of(generator, label, scattered(generator, EVEN, 12))]
    one, same, other = (measure(claims, permutations=300, seed=seed) for seed in (1, 1, 2))
    assert one == same and one != other
    assert measure(claims[::-1], permutations=300, seed=1) == one  # and not the order in which runs are given


def test_ten_thousand_permutations_take_seconds() -> None:
    generator = np.random.default_rng(9)
    claims = [one for label in (*TASKS, "MTL-5") for one in seeds_of(generator, label, scattered(generator, EVEN, 12))]
    began = time.process_time()
    measure(claims)
    assert time.process_time() - began < 10


def test_equal_and_unequal_seeds_apart() -> None:
    """Tasks that follow their seed, and nothing else: only runs of equal seeds share heads."""
    sets = {seed: np.eye(3, 4)[[seed % 3, (seed + 1) % 3, (seed + 2) % 3]] for seed in (1, 2, 3)}
    found = measure([claim(label, seed, gates) for label in ("POS", "NER") for seed, gates in sets.items()], 10)
    assert found.by_seed.equal == 3 and found.by_seed.unequal == 0
    alone = measure([claim(label, 1, sets[1]) for label in ("POS", "NER")], 10)
    assert alone.by_seed.equal == 3 and math.isnan(alone.by_seed.unequal)
