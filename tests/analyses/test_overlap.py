"""The whole comparison: planted overlap is found, overlap of layers alone is not taken for it, and chance is chance."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gated_runs import claim, scattered

from mtlprune.analyses.claims.maths import SHARING
from mtlprune.analyses.claims.measure import overlap
from mtlprune.claimed_heads import Claim
from mtlprune.results import Result

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


def compare(generator: np.random.Generator, sets: Sequence[np.ndarray], **options: int) -> Result:
    labels = TASKS[: len(sets)]
    claims = [one for label, wanted in zip(labels, sets, strict=True) for one in seeds_of(generator, label, wanted)]
    return overlap(claims, **options)


def row(result: Result, frame: str, **key: object) -> Any:
    """The one row of a frame with these keys."""
    held = result.frames[frame]
    for name, value in key.items():
        held = held[held[name] == value]
    assert len(held) == 1
    return held.iloc[0]


def tasks_of(result: Result) -> Any:
    return row(result, "tests", mode="all")


def test_planted_overlap_is_found():
    generator = np.random.default_rng(0)
    stem = scattered(generator, [4] * 12, 12)
    sets = [np.maximum(stem, scattered(generator, [2] * 12, 12)) for _ in TASKS]
    found = compare(generator, sets)
    pairs, groups = found.frames["pairs"], found.frames["groups"]
    assert tasks_of(found).p < 0.001 and tasks_of(found).z > 5
    assert (pairs[["p", "q"]] < 0.05).all(axis=None)
    planted = {(layer + 1, head + 1) for layer, head in zip(*np.nonzero(stem), strict=True)}
    sure = groups[(groups["group"] == "stem") & (groups["tasks"] == 5) & (groups["confidence"] > 0.9)]
    named = set(zip(sure["layer"], sure["head"], strict=True))
    assert len(planted & named) > 0.8 * len(planted) and len(named - planted) < 0.2 * len(named)
    by_all = row(found, "numbers", tasks=5)
    assert by_all["heads"] > 2 * by_all.layers_expected and by_all.layers_more < 0.001
    assert row(found, "variance", part="heads").share > 0.2 > row(found, "variance", part="layers").share


def test_a_common_preference_for_layers_is_not_taken_for_overlap():
    generator = np.random.default_rng(1)
    found = compare(generator, [scattered(generator, MIDDLE, 12) for _ in TASKS])
    pairs = found.frames["pairs"]
    assert (pairs[["p_anywhere", "q_anywhere"]] < 0.001).all(axis=None)
    assert (pairs["pearson"] > 0.4).all()  # which the original read as the same heads
    assert (pairs["q"] > 0.05).all() and (pairs["p_layers"] > 0.01).all()
    assert tasks_of(found).p > 0.05
    by_all = row(found, "numbers", tasks=5)
    assert by_all.uniform_more < 0.001 and by_all["heads"] > 3 * by_all.uniform_expected
    assert by_all.layers_more > 0.05 and abs(by_all["heads"] - by_all.layers_expected) < 6
    assert row(found, "variance", part="layers").share > 0.3 and row(found, "variance", part="heads").share < 0.05


@pytest.mark.slow
def test_agreement_within_a_task_does_not_make_overlap_between_tasks():
    """Nine pairs of seeds are not nine observations: permuting seeds one by one would be far too sure."""
    generator = np.random.default_rng(3)
    p_values = []
    for _ in range(100):
        sets = [scattered(generator, [4] * 6, 8) for _ in range(2)]
        claims = [claim(label, seed, one) for label, one in zip(TASKS, sets, strict=False) for seed in range(5)]
        p_values.append(overlap(claims, permutations=200).frames["pairs"]["p"][0])
    assert np.mean(np.array(p_values) <= 0.05) < 0.13


def test_one_pair_by_hand():
    """Two layers of two heads; POS opens 1-1 and 2-1 in both seeds, DEP 1-1 and one of layer 2."""
    pos = [claim("POS", seed, [[1, 0], [0.5, 0]]) for seed in (1, 2)]
    dep = [claim("DEP", 1, [[1, 0], [1, 0]]), claim("DEP", 2, [[1, 0], [0, 1]])]
    found = overlap([*dep, *pos], permutations=4000)
    pair = row(found, "pairs", encoder="POS", other="DEP")
    assert pair.jaccard_mean == pytest.approx((1 + 1 / 3) / 2)
    assert pair.jaccard_sd == pytest.approx(0.5 * (2 / 3) / math.sqrt(0.75))
    assert pair.overlap_coefficient_mean == pytest.approx(0.75)
    assert pair.shared == 1.5 and pair.expected == 1
    # Layer 2 of DEP is open once in either head, so only layer 1 matters: 1.5 or 0.5, evenly likely.
    assert pair.p == pytest.approx(0.5, abs=0.03) and pair.z == pytest.approx(1)
    assert pair.q == pair.p and tuple(tasks_of(found)[list(SHARING)]) == tuple(pair[list(SHARING)])
    assert pair.pearson == pytest.approx(np.corrcoef([1, 0, 0.5, 0], [1, 0, 0.5, 0.5])[0, 1])
    assert (pair.claimed, pair.claimed_anywhere, pair.claimed_layers) == (1, 0.5, 0.5)
    assert pair.p_anywhere == pytest.approx(0.5) and pair.p_layers == pytest.approx(0.5)
    assert found.frames["layers"]["claimed"].tolist() == [1, 1, 1, 0]
    assert row(found, "labels", encoder="POS").multiple_last == pytest.approx(1)


def test_joint_labels_are_compared_but_are_no_tasks():
    generator = np.random.default_rng(4)
    sets = [scattered(generator, EVEN, 12) for _ in range(4)]
    claims = [one for label, wanted in zip(TASKS, sets, strict=False) for one in seeds_of(generator, label, wanted)]
    alone = overlap(claims, permutations=100)
    joint = [one for label in ("MTL-5", "MTL-5:POS", "POS+DEP") for one in seeds_of(generator, label, sets[0])]
    both = overlap([*joint, *claims], permutations=100)
    assert (
        both.about["single"] == list(TASKS[:4]) and len(both.frames["labels"]) == 7 and len(both.frames["pairs"]) == 21
    )
    assert both.frames["groups"].equals(alone.frames["groups"])
    assert both.frames["variance"].equals(alone.frames["variance"])
    assert both.frames["numbers"]["heads"].equals(alone.frames["numbers"]["heads"])
    assert (tasks_of(both).shared, tasks_of(both).z) == (tasks_of(alone).shared, tasks_of(alone).z)
    only = overlap(joint, permutations=100)
    assert only.frames.keys().isdisjoint({"groups", "numbers"}) and math.isnan(tasks_of(only).shared)
    assert "There is no single-task label, so tasks cannot be compared, and their part" in "\n".join(
        only.about["notes"]
    )


def test_within_a_label_every_seed_is_permuted():
    generator = np.random.default_rng(5)
    agreeing = compare(generator, [scattered(generator, EVEN, 12)])
    assert row(agreeing, "labels", encoder="POS").p < 0.001
    alien = [claim("POS", seed, scattered(generator, EVEN, 12)) for seed in range(3)]
    assert row(overlap(alien, 500), "labels", encoder="POS").p > 0.05


@pytest.mark.parametrize("gates", [np.zeros((2, 3)), np.ones((2, 3)), np.array([[1, 1, 1], [0, 0, 0]])])
def test_labels_that_say_nothing(gates):
    found = overlap([claim("POS", 1, gates), claim("DEP", 1, [[1, 0, 0], [0, 1, 0]])], permutations=20)
    pair = found.frames["pairs"].iloc[0]
    assert pair[["z", "p", "q"]].isna().all()
    text = "\n".join(found.about["notes"])
    assert "\nPOS: the heads of each layer are open equally often, so permuting" in text
    flat = np.ptp(gates) == 0
    assert ("\nPOS: all gates of a run are equal" in text) == flat == math.isnan(pair.pearson)


def test_one_run_only():
    found = overlap([claim("POS", 1, [[1, 0, 1], [0, 1, 0]])], permutations=20)
    assert "pairs" not in found.frames and found.frames["numbers"]["heads"].tolist() == [3]
    assert math.isnan(row(found, "labels", encoder="POS").multiple_last) and math.isnan(tasks_of(found).p)
    text = "\n".join(found.about["notes"])
    for words in ("POS: one seed", "one label only", "one single-task label", "fewer than 3", "cannot be resampled"):
        assert words in text


def test_the_seed_decides():
    generator = np.random.default_rng(8)
    claims = [one for label in TASKS[:2] for one in seeds_of(generator, label, scattered(generator, EVEN, 12))]
    one, same, other = (overlap(claims, permutations=300, seed=seed) for seed in (1, 1, 2))
    assert all(frame.equals(same.frames[name]) for name, frame in one.frames.items())
    assert not one.frames["pairs"].equals(other.frames["pairs"])
    turned = overlap(claims[::-1], permutations=300, seed=1)  # and not the order in which runs are given
    assert all(frame.equals(turned.frames[name]) for name, frame in one.frames.items())
