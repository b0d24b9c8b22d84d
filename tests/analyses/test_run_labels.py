"""Runs of one task against runs of two: enumeration, planted structure."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gated_runs import claim, scattered

from mtlprune.analyses.claims.measure import overlap
from mtlprune.analyses.claims.stability import label_tests
from mtlprune.claimed_heads import Claim, group, notes

TASKS = ("POS", "NER", "DEP", "CON", "SRL")


def by_kind(claims: Sequence[Claim], permutations: int = 2000, seed: int = 0) -> dict[tuple[str, str], Any]:
    found = label_tests(group(claims), permutations, np.random.default_rng(seed))
    return {(test.pairs, test.counted): test for test in found.itertuples()}


def alike(generator: np.random.Generator, tasks: int, seeds: int, own: int = 0) -> list[Claim]:
    """Runs that keep ``own`` heads of their task in each of four layers; the others fall anywhere within the layer."""
    made = []
    for label in TASKS[:tasks]:
        core = scattered(generator, [own] * 4, 12)
        for seed in range(1, seeds + 1):
            gates = core.copy()
            for row, more in zip(gates, (2, 4, 6, 3), strict=True):
                row[generator.choice(np.flatnonzero(row == 0), more, replace=False)] = 1
            made.append(claim(label, seed, gates))
    return made


def test_enumeration_by_hand():
    """Two tasks of three runs with seeds of their own: 20 labellings, counted in plain Python."""
    generator = np.random.default_rng(4)
    runs = [scattered(generator, [3, 2], 6) for _ in range(6)]
    claims = [claim("POS" if k < 3 else "DEP", k, gates) for k, gates in enumerate(runs)]
    shared = {(i, j): float((runs[i] * runs[j]).sum()) for i, j in itertools.combinations(range(6), 2)}
    gaps = {}
    for pos in itertools.combinations(range(6), 3):
        inside = [value for (i, j), value in shared.items() if (i in pos) == (j in pos)]
        across = [value for (i, j), value in shared.items() if (i in pos) != (j in pos)]
        gaps[pos] = float(np.mean(inside) - np.mean(across))
    found = by_kind(claims)
    assert set(found) == {("all", "shared heads"), ("all", "beyond depth")}  # no two runs have one seed
    test = found["all", "shared heads"]
    assert test.exact and test.labellings == 20
    assert test.within - test.between == pytest.approx(gaps[0, 1, 2])
    assert test.p == pytest.approx(np.mean([gap >= gaps[0, 1, 2] - 1e-9 for gap in gaps.values()]))
    assert test.least == np.mean([gap >= max(gaps.values()) - 1e-9 for gap in gaps.values()]) >= 0.1
    deep = found["all", "beyond depth"]  # every run opens as many heads of a layer: 9/6 + 4/6 are depth's
    assert deep.within == pytest.approx(test.within - 13 / 6) and deep.p == pytest.approx(test.p)


def test_planted_tasks_are_found_among_drawn_labellings():
    """No labelling reaches what is planted; the observed one counts among them, so that p is never 0."""
    test = by_kind(alike(np.random.default_rng(7), 4, 4, own=6), permutations=99)["all", "shared heads"]
    assert not test.exact and test.labellings == 99 and test.nearest == 1
    assert test.p == test.least == test.nearest_p == 0.01


def test_labels_of_equal_seeds_are_permuted_among_each_other():
    """What runs of one seed have in common, whatever their task, is no difference between tasks, nor hides one."""
    generator = np.random.default_rng(5)
    by_seed = [scattered(generator, [5, 5, 5], 10) for _ in range(3)]
    claims = [claim(task, seed, gates) for task in TASKS[:3] for seed, gates in enumerate(by_seed)]
    found = by_kind(claims)
    assert found["all", "shared heads"].within < found["all", "shared heads"].between  # the equal seeds' doing
    assert found["unequal seeds", "shared heads"].labellings == math.factorial(3) ** 3
    assert found["unequal seeds", "shared heads"].exact
    assert math.isnan(found["unequal seeds", "shared heads"].p)  # every labelling gives the same


def test_what_cannot_be_tested():
    generator = np.random.default_rng(9)
    assert by_kind(alike(generator, 1, 3)) == {} and by_kind(alike(generator, 3, 1)) == {}
    assert all(math.isnan(test.p) for test in by_kind(alike(generator, 3, 2), permutations=0).values())


def test_order_of_runs_and_names_of_tasks_mean_nothing():
    generator = np.random.default_rng(10)
    claims = alike(generator, 3, 3, own=1)
    swap = dict(zip(TASKS[:3], TASKS[2::-1], strict=True))
    renamed = [claim(swap[one.label], one.seed, one.gates) for one in reversed(claims)]
    for kind, test in by_kind(claims).items():
        assert by_kind(renamed)[kind].p == pytest.approx(test.p)
        assert test.exact


# --- unequal seeds under permutation of heads, notes on doubtful gates -----------------------------------------------


def test_unequal_seeds_have_a_p_of_their_own():
    """Equal seeds that share all heads make the p of all pairs small; that of unequal seeds knows nothing of them."""
    generator = np.random.default_rng(11)
    sets = {(task, seed): scattered(generator, [4] * 6, 12) for task in TASKS[:2] for seed in (1, 2)}
    for seed in (1, 2):
        sets["NER", seed] = sets["POS", seed]
    found = overlap([claim(task, seed, gates) for (task, seed), gates in sets.items()], permutations=2000)
    both = float((sets["POS", 1] * sets["POS", 2]).sum())
    tests = found.frames["tests"].set_index("mode")
    every, unequal = tests.loc["all"], tests.loc["unequal seeds"]
    assert (tests.loc["equal seeds"].shared, unequal.shared) == (24, both)
    assert unequal.expected == pytest.approx(6 * 16 / 12)
    assert every.p < 0.01 < unequal.p
    # the same by hand: both seeds of a task move by one permutation within each layer
    times = 0
    for _ in range(2000):
        moved = {}
        for task in ("POS", "NER"):
            order = [generator.permutation(12) for _ in range(6)]
            for seed in (1, 2):
                moved[task, seed] = np.stack([row[o] for row, o in zip(sets[task, seed], order, strict=True)])
        mean = sum((moved["POS", a] * moved["NER", b]).sum() for a, b in ((1, 2), (2, 1))) / 2
        times += mean >= both
    assert unequal.p == pytest.approx(times / 2000, abs=0.04)
    strangers = overlap([claim(task, k, scattered(generator, [2], 6)) for k, task in enumerate(TASKS)], permutations=50)
    tests = strangers.frames["tests"].set_index("mode")
    assert math.isnan(tests.loc["equal seeds"].shared)
    known = ["shared", "expected"]
    assert tests.loc["unequal seeds", known].tolist() == pytest.approx(tests.loc["all", known].tolist())


def test_notes_name_identical_fractional_and_unsettled_gates():
    generator = np.random.default_rng(12)
    mask = scattered(generator, [2, 2], 4)
    steered = {"pruning.method": "gates", "pruning.penalty": "exact", "pruning.keep": 4}

    def made(label: str, seed: int, gates: np.ndarray, settings: dict[str, object], before: np.ndarray) -> Claim:
        history = [(10, before), (20, gates)]
        return Claim(f"runs/{label}-{seed}", label, seed, "minilm", gates, history, settings, step=20)

    clean = [made("POS", seed, scattered(generator, [2, 2], 4), steered, np.ones((2, 4))) for seed in (1, 2)]
    assert notes(group(clean)) == []
    duplicates = [made("POS", seed, mask, steered, np.ones((2, 4))) for seed in (1, 2, 3)]
    (note,) = notes(group(duplicates))
    assert note.startswith("Seeds 1 and 2 and 3 of POS have bit-identical gates")
    assert notes(group([made("POS", seed, mask, {"pruning.method": "stable"}, mask) for seed in (1, 2)])) == []
    half = [made("POS", 1, np.where(mask > 0, 0.5, 0), steered, mask), made("POS", 2, mask, steered, mask)]
    (note,) = notes(group(half))
    assert note.startswith("Gates strictly between 0 and 1: POS 4 of 16 (25%).")
    far = [made("DEP", 1, np.ones((2, 4)), steered, mask)]
    (note,) = notes(group(far))
    assert "DEP, seed 1 (8 heads open, 4 wanted)" in note
    falling = {"pruning.method": "gates", "pruning.penalty": "lambda", "pruning.keep": None}
    (note,) = notes(group([made("SRL", 1, mask, falling, np.ones((2, 4)))]))
    assert "SRL, seed 1 (8 heads open one evaluation before, 4 now)" in note
    assert notes(group([made("SRL", 1, mask, falling, mask)])) == []
    drawn = {"pruning.method": "random", "pruning.keep": 9}
    assert notes(group([made("SRL", 1, mask, drawn, mask)])) == []
