"""Stability of claims, and runs of one task against runs of two: formulas by hand, enumeration, planted structure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_folders import change_config, claim, scattered, write_run
from scipy import stats

from mtlprune import read_results
from mtlprune.analyses.heads.claims import ANALYSIS, stability
from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.figures.maps import claim_maps
from mtlprune.reports.analyses import markdown
from mtlprune.runs.claims import Claim, ClaimError, group, load_claims
from mtlprune.runs.results import write_result

TASKS = ("POS", "NER", "DEP", "CON", "SRL")


def drawn(generator: np.random.Generator, likings: np.ndarray, keep: int, runs: int) -> np.ndarray:
    """(runs, L, A) masks of ``keep`` heads each, drawn without replacement; what is liked more comes more often."""
    keys = likings.ravel() + generator.gumbel(size=(runs, likings.size))
    opened = np.zeros(keys.shape)
    np.put_along_axis(opened, keys.argsort(axis=1)[:, -keep:], 1, axis=1)
    return opened.reshape(runs, *likings.shape)


def claims_of(label: str, masks: Sequence[np.ndarray]) -> list[Claim]:
    return [claim(label, seed, mask) for seed, mask in enumerate(masks, 1)]


def within(claims: Sequence[Claim], **key: str) -> Any:
    run_groups = group(claims)
    found = stability.stability(run_groups, sum(not run_group.joint for run_group in run_groups))
    wanted = {"encoder": claims[0].label, "term": "within", "mode": "plain", "measure": "phi", "control": "all pairs"}
    for name, value in {**wanted, **key}.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize("sizes", [[[2, 3, 1]] * 4, [[2, 3, 1], [4, 0, 2], [1, 1, 5]]])
def test_phi_is_the_formula_and_fleiss_kappa(sizes):
    generator = np.random.default_rng(0)
    masks = np.stack([scattered(generator, each, 6) for each in sizes])  # (M, L, A)
    runs, heads = len(masks), masks[0].size
    share = masks.mean(0)
    variance = runs / (runs - 1) * share * (1 - share)
    kept = masks.sum() / runs / heads
    nogueira = 1 - variance.mean() / (kept * (1 - kept))
    opened = masks.sum(0).ravel()  # Fleiss (1971): heads are subjects, runs raters, open and closed the categories
    agree = (opened * (opened - 1) + (runs - opened) * (runs - opened - 1)).mean() / (runs * (runs - 1))
    chance = kept**2 + (1 - kept) ** 2
    found = within(claims_of("POS", masks))
    assert found.value == pytest.approx(nogueira) == pytest.approx((agree - chance) / (1 - chance))
    layers = share.mean(1)
    centred = 1 - variance.mean() / (layers * (1 - layers)).mean()
    assert within(claims_of("POS", masks), mode="layer-centred").value == pytest.approx(centred)


def test_phi_of_identical_and_opposite_masks_and_of_one_run():
    mask = scattered(np.random.default_rng(1), [3, 3], 6)
    same = within(claims_of("POS", [mask] * 3))
    assert same.value == pytest.approx(1) and math.isnan(same.low)  # runs that differ in nothing tell no error
    assert within(claims_of("POS", [mask, 1 - mask])).value == pytest.approx(-1)
    everything = group(claims_of("POS", [np.ones((2, 6))] * 3))
    assert np.isnan(stability.phi(stability.Runs.of(everything), np.ones((3, 3), bool))).all()  # nothing is chosen
    one, other = (scattered(np.random.default_rng(k), [2, 2], 4) for k in range(2))
    result = overlap([claim("POS", 1, one), claim("DEP", 1, other), claim("MTL-5", 2, one)], 20)
    assert set(result.frames["stability"]["term"]) == {"between"} and "split" not in result.frames
    text = markdown(ANALYSIS, result)
    assert "two runs of two tasks" in text and "; Spearman-Brown" not in text and "Variance of gates within" not in text


def test_phi_between_labels_by_hand():
    """POS opens heads 1 and 2 of four, DEP 1 and 3, and once three of them."""
    masks = {"POS": [[1, 1, 0, 0]] * 2, "DEP": [[1, 0, 1, 0], [1, 1, 1, 0]]}
    claims = [one for label, each in masks.items() for one in claims_of(label, [np.array([row]) for row in each])]
    runs = stability.Runs.of(group(claims))
    found = stability.phi(runs, np.ones((4, 4), bool))[0]
    apart = np.mean([2, 1]) / 8  # heads in which two runs differ, over twice the heads
    assert found[0, 1] == found[1, 0] == pytest.approx(1 - apart / ((0.5 + 0.625) / 2 - 0.5 * 0.625))


@pytest.mark.parametrize(
    ("reliability", "wanted", "runs"),
    [(0.5, 0.8, 4), (0.5, 0.9, 9), (1, 0.9, 1), (0, 0.8, math.inf), (-0.2, 0.8, math.inf), (math.nan, 0.8, math.nan)],
)
def test_how_many_runs_spearman_brown_asks_for(reliability, wanted, runs):
    assert stability.runs_needed(reliability, wanted) == pytest.approx(runs, nan_ok=True)


def test_the_jackknife_of_a_mean_is_students_interval_and_of_two_samples_welchs():
    generator = np.random.default_rng(4)
    one, two = generator.normal(size=5), generator.normal(size=4) * 3
    left = np.array([np.delete(one, i).mean() for i in range(5)])
    low, high, least, p = stability.jackknife(np.array(one.mean()), left, np.zeros(5, np.int64))
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 4, one.mean(), stats.sem(one)))
    assert least == pytest.approx(4.678 * stats.sem(one), rel=1e-3)  # of five seeds (docs/methods/significance.md)
    assert p == pytest.approx(stats.ttest_1samp(one, 0).pvalue)
    other = [two.mean() - value for value in left], [np.delete(two, i).mean() - one.mean() for i in range(4)]
    between, strata = np.array(two.mean() - one.mean()), np.repeat([0, 1], [5, 4])
    low, high, *_ = stability.jackknife(between, np.concatenate(other), strata)
    interval = stats.ttest_ind(two, one, equal_var=False).confidence_interval()
    assert (low, high) == pytest.approx((interval.low, interval.high))


def test_no_interval_is_made_of_one_unit_or_of_no_difference():
    """A stratum of one says nothing of its variance: no interval where the statistic hangs on it."""
    value, left = np.array([1.0, 1.0]), np.array([[0.8, 1.0], [1.1, 1.2], [1.3, 0.9], [1.4, 1.0]])  # the last is alone
    low, high, *_ = stability.jackknife(value, left, np.array([0, 0, 0, 1]))
    assert np.isnan([low[0], high[0]]).all() and low[1] < 1 < high[1]  # the second does not hang on it
    masks = drawn(np.random.default_rng(6), np.linspace(0, 2, 24).reshape(2, 12), 8, 6)
    claims = [*claims_of("POS", masks[:3]), claim("DEP", 7, masks[3])]
    assert math.isnan(by_kind(claims)["all", "shared heads"].low)
    more = by_kind([*claims, claim("DEP", 8, masks[4]), claim("DEP", 9, masks[5])])["all", "shared heads"]
    assert more.low < more.within - more.between < more.high


def test_what_the_jackknife_leaves_out_is_a_training_run():
    masks = drawn(np.random.default_rng(6), np.linspace(0, 2, 24).reshape(2, 12), 8, 8)
    claims = [replace(claim("POS", k % 2, mask), start=k // 2) for k, mask in enumerate(masks)]
    found = within(claims)
    left = np.array([within([one for one in claims if one.start != training]).value for training in range(4)])
    half = stats.t.ppf(0.975, 3) * math.sqrt(3 / 4 * ((left - left.mean()) ** 2).sum())
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def runs_of(generator: np.random.Generator, own: float, trained: float, tasks: int = 4) -> list[Claim]:
    """Three selections on each of three finished runs of some tasks: likings of the task and of its finished run."""
    made = []
    for label in TASKS[:tasks]:
        task = own * generator.normal(size=(4, 10))
        for start in (1, 2, 3):
            masks = drawn(generator, task + trained * generator.normal(size=(4, 10)), 20, 3)
            made += [replace(one, start=start) for one in claims_of(label, masks)]
    return made


def by_kind(claims: Sequence[Claim], permutations: int = 199, seed: int = 0) -> dict[tuple[str, str], Any]:
    found = stability.label_tests(group(claims), permutations, np.random.default_rng(seed))
    return {(test.pairs, test.counted): test for test in found.itertuples()}


def test_planted_tasks_are_found_if_a_task_has_several_finished_runs():
    for test in by_kind(runs_of(np.random.default_rng(6), own=3, trained=0.5)).values():
        assert test.p == test.nearest_p == test.least <= 0.01 and not test.exact and test.labellings == 199
        assert test.nearest > 0.95 and test.nearest_chance < 0.5
    runs = runs_of(np.random.default_rng(9), own=3, trained=0)
    tests = by_kind([one for one in runs if one.start == 1])
    assert all(math.isnan(test.p) and math.isnan(test.nearest_p) for test in tests.values())
    assert tests["all", "shared heads"].within > tests["all", "shared heads"].between + 2
    assert by_kind([one for one in runs if one.label == TASKS[0]]) == {}
    assert by_kind([one for one in runs if (one.start, one.seed) == (1, 1)]) == {}
    assert all(math.isnan(test.p) for test in by_kind(runs, permutations=0).values())
    assert {pairs for pairs, _ in by_kind([one for one in runs if one.seed == 1])} == {"all"}  # no unequal seeds


def test_p_is_uniform_where_tasks_mean_nothing():
    """100 studies of runs that are alike where they share a finished run, whatever their task.

    Permuting single runs would find the finished runs, and call them tasks.
    """
    generator = np.random.default_rng(8)
    every: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for k in range(100):
        for kind, test in by_kind(runs_of(generator, own=0, trained=1.5, tasks=3), 199, k).items():
            every.setdefault(kind, []).append((test.p, test.nearest_p))
    assert set(every) == set(itertools.product(("all", "unequal seeds"), stability.MEASURES_OF_SHARING))
    for (_, counted), found in every.items():
        gap, nearest = np.array(found).T
        # the larger of two p is never too small
        either = "greater" if counted == stability.MEASURES_OF_SHARING[2] else "two-sided"
        assert stats.kstest(gap, "uniform", alternative=either).pvalue > 0.01
        known = nearest[~np.isnan(nearest)]  # NaN: each run is nearest to one of its finished run, whatever the labels
        assert len(known) > 75  # a share of few runs has ties, which count as reached: p may be too large, never small
        assert stats.kstest(known, "uniform", alternative="greater").pvalue > 0.01


def test_what_is_beyond_depth_and_ranking_by_enumeration():
    """Two tasks of two runs: the mean of all sets of masks with both margins is taken off every pair."""
    runs = np.array([[[1, 1, 1, 0]], [[1, 1, 0, 0]], [[1, 0, 1, 0]], [[0, 1, 0, 1]]], bool)
    claims = [claim("POS" if k < 2 else "DEP", k, gates) for k, gates in enumerate(runs)]
    rows = [[np.isin(range(4), some) for some in itertools.combinations(range(4), int(run.sum()))] for run in runs]
    sets = np.array([one for one in itertools.product(*rows) if (np.sum(one, 0) == runs.sum(0)[0]).all()], float)
    both = np.array([one @ one.T for one in sets])  # (sets, M, M)
    apart = (runs[:, 0].astype(float) @ runs[:, 0].T) - both.mean(0)
    within, between = apart[[0, 2], [1, 3]].mean(), apart[:2, 2:].mean()
    gaps = both[:, [0, 2], [1, 3]].mean(1) - both[:, :2, 2:].mean((1, 2))
    test = by_kind(claims, 4_000)["all", "beyond depth and ranking"]
    assert (test.within, test.between) == pytest.approx((within, between), abs=0.03)
    observed = within - between + gaps.mean()
    labels = by_kind(claims, 4_000)["all", "shared heads"]  # three labellings, of which one pairs the runs so
    assert test.p == pytest.approx(max(labels.p, (gaps >= observed - 1e-9).mean()), abs=0.03)


def test_what_shares_a_seed_is_left_out():
    claims = runs_of(np.random.default_rng(10), own=0, trained=8)
    over = {"encoder": stability.OVER_TASKS}
    every, unequal = within(claims, **over), within(claims, **over, control="unequal seeds")
    assert (every.n, unequal.n) == (4 * 36, 4 * 18)  # of 9 runs a task: 3 pairs of finished runs, 3 · 2 of selectors
    assert every.value > unequal.value + 0.15
    tests = overlap(claims, 10).frames["tests"].set_index("mode")
    for mode, same in (("equal seeds", {True}), ("unequal seeds", {False})):
        pairs = [
            (a.open & b.open).sum()
            for a, b in itertools.combinations(claims, 2)
            if a.label != b.label and {a.start == b.start, a.seed == b.seed} == same
        ]
        assert tests.loc[mode, "shared"] == pytest.approx(np.mean(pairs))


def shares(claims: Sequence[Claim], seed: int = 0) -> pd.DataFrame:
    found = stability.variance_split(group(claims), len({one.label for one in claims}), np.random.default_rng(seed))
    return found.set_index(["encoder", "term"])


def test_the_variance_split_is_that_of_the_analysis_of_variance():
    """Training by selector seeds, balanced: expected mean squares of heads by rows, columns and rest, by hand."""
    generator = np.random.default_rng(11)
    parts = [generator.normal(0, sd, shape) for sd, shape in ((1.4, (1, 1, 72)), (1, (3, 1, 72)), (0.7, (1, 4, 72)))]
    values = sum(parts) + generator.normal(0, 1, (3, 4, 72))
    claims = [replace(claim("POS", j, values[i, j].reshape(6, 12)), start=i) for i, j in np.ndindex(3, 4)]
    mean = values.mean((0, 1))
    rows, columns = values.mean(1) - mean, values.mean(0) - mean
    rest = values - mean - rows[:, None] - columns[None]
    noise = (rest**2).sum() / (2 * 3 * 72)
    training = ((rows**2).sum() * 4 / (2 * 72) - noise) / 4
    selector = ((columns**2).sum() * 3 / (3 * 72) - noise) / 3
    found = shares(claims).loc["POS", "value"]
    names = ["training seed", "selector seed", "training seed × selector seed"]
    assert list(found.index) == [stability.COMMON, *names] and found.sum() == pytest.approx(1)
    parts = np.array([training, selector, noise])
    assert (found[names] / found[names].sum()).to_numpy() == pytest.approx(parts / parts.sum())
    total = values.var(2, ddof=1).mean()
    assert found[stability.COMMON] == pytest.approx(1 - parts.sum() / total)


def test_without_structure_nothing_is_common_and_what_varies_together_is_one():
    generator = np.random.default_rng(13)
    claims = [one for label in TASKS[:3] for one in claims_of(label, drawn(generator, np.zeros((6, 12)), 36, 3))]
    found = shares(claims)
    together = "training seed and selector seed"

    over_tasks = found.loc[stability.OVER_TASKS]
    assert list(over_tasks.index) == [stability.COMMON, together]
    assert over_tasks.loc[together, "value"] > 0.85 and over_tasks.loc[stability.COMMON, "low"] < 0.02
    (said,) = stability.identifiability_notes(group(claims))
    assert "training seed and selector seed only vary together, half of the data does not vary" in said
    same = shares([claim("POS", seed, claims[0].gates) for seed in (1, 2)]).loc[("POS", stability.COMMON)]
    assert same["value"] == 1 and math.isnan(same["low"])  # two runs that agree are no certainty


def test_runs_of_one_selector_seed_are_said_to_share_its_noise():
    first = drawn(np.random.default_rng(3), np.zeros((6, 12)), 36, 2)
    alike = [replace(claim("POS", 7, gates), start=k) for k, gates in enumerate(first)]
    for method, said in (("gates", True), ("random", True), ("fisher", False)):
        notes = list(
            stability.identifiability_notes(group(replace(one, settings={"pruning.method": method}) for one in alike))
        )
        assert any("drew the same noise" in note for note in notes) is said


def started(path: Path, seed: int, gates: np.ndarray, **settings: dict[str, Any]) -> Path:
    return change_config(write_run(path, ["pos"], gates, seed=seed), **settings).path


def test_seeds_and_halves_are_read_from_runs_and_the_runs_they_began_with(tmp_path):
    gates = np.stack([scattered(np.random.default_rng(k), [2, 2], 4) for k in range(5)])
    first, second = (started(tmp_path / f"none-{seed}", seed, gates[0]) for seed in (4, 5))
    own = started(tmp_path / "own", 1, gates[0])
    on_first = started(tmp_path / "a", 1, gates[1], train={"start": str(first)})
    beside = started(tmp_path / "b", 1, gates[2], train={"start": "elsewhere/none-5"}, data={"train": "train-b"})
    importance = {"method": "importance", "keep": 4, "importance_of": str(second)}
    ranked = started(tmp_path / "c", 2, gates[3], pruning=importance)
    lost = started(tmp_path / "d", 3, gates[4], train={"start": "elsewhere/none-9"})
    claims = load_claims([own, on_first, beside, ranked, lost])
    (run_group,) = group(claims)
    names = ["1 on 1, train", "1 on 4, train", "1 on 5, train-b", "2 on 5, train", "3 on elsewhere/none-9, train"]
    assert [one.name for one in run_group.claims] == names
    assert names == [f"{one.seed} on {one.training}, {one.half}" for one in claims]
    said = list(stability.identifiability_notes([run_group]))
    assert said[0].startswith(f"elsewhere/none-9, on which the heads of {lost} were chosen,")
    maps = claim_maps([run_group], "rgb")
    assert len({one.name for one in maps}) == len(maps) and [*maps[5].numbers] == [f"seed {one}" for one in names[:3]]
    with pytest.raises(ClaimError, match="are both runs of POS with seed 1"):
        group(load_claims([on_first, started(tmp_path / "again", 1, gates[2], train={"start": str(first)})]))


def test_a_result_holds_the_frequencies_of_stable_claims_and_the_bound_on_false_ones(tmp_path):
    generator, settings = np.random.default_rng(3), {"pruning.threshold": 0.9, "pruning.halves": 64}
    frequencies = generator.integers(0, 65, (4, 6, 12)) / 64
    claims = [
        replace(claim(label, seed, share >= 0.9), frequencies=share, expected_false=bound, settings=settings)
        for (label, seed, bound), share in zip(
            [("POS", 1, 2.5), ("POS", 2, 2.5), ("NER", 1, 2.5), ("SRL", 1, 1.1)], frequencies, strict=True
        )
    ]
    learnt = claim("DEP", 1, frequencies[0] >= 0.5)
    write_result(tmp_path, overlap([*claims, learnt], 10))
    stored = read_results(tmp_path)["claims"]
    by_run = {(one["encoder"], one["seed"]): one for one in stored.about["encoders"]}
    for one in claims:
        entry = by_run[one.label, one.seed]
        assert (stored.grids(entry)["frequency"] == one.frequencies).all()
        assert entry["stable"] == {"threshold": 0.9, "halves": 64, "expected_false": one.expected_false}
    assert [*stored.grids(by_run["DEP", 1])] == ["gate"] and "stable" not in by_run["DEP", 1]
    mean = np.mean([one.open.sum() for one in claims[:3]])
    words = f"A run claims {mean:.1f} of 72 heads on average, of which at most 2.5 are expected to be false."
    text = markdown(ANALYSIS, stored)
    rule = "heads with π ≥ 0.9 in 64 halves of the data."
    assert f"- The stable claims of POS, NER are {rule} {words}\n- The stable claims of SRL are {rule}" in text


def test_runs_of_one_task_and_of_two_by_enumeration():
    generator = np.random.default_rng(4)
    runs = [scattered(generator, [3, 2], 6) for _ in range(6)]
    claims = [claim("POS" if k < 3 else "DEP", k, gates) for k, gates in enumerate(runs)]
    shared = {(i, j): float((runs[i] * runs[j]).sum()) for i, j in itertools.permutations(range(6), 2)}
    best = {i: max(shared[i, j] for j in range(6) if j != i) for i in range(6)}
    gaps, shares = [], []
    for pos in itertools.combinations(range(6), 3):
        same = {(i, j): (i in pos) == (j in pos) for i, j in shared}
        sides = [[value for two, value in shared.items() if same[two] is inside] for inside in (True, False)]
        gaps.append(np.mean(sides[0]) - np.mean(sides[1]))
        shares.append(
            np.mean([np.mean([same[i, j] for _, j in shared if _ == i and shared[i, j] == best[i]]) for i in best])
        )
    found = by_kind(claims)
    assert set(found) == {("all", counted) for counted in stability.MEASURES_OF_SHARING}  # no two runs have one seed
    test = found["all", "shared heads"]
    assert test.exact and test.labellings == 20 and test.within - test.between == pytest.approx(gaps[0])
    assert test.p == pytest.approx(np.mean(np.array(gaps) >= gaps[0] - 1e-9))
    assert test.least == np.mean(np.array(gaps) >= max(gaps) - 1e-9) >= 0.1
    assert (test.nearest, test.nearest_chance) == pytest.approx((shares[0], np.mean(shares)))
    assert test.nearest_p == pytest.approx(np.mean(np.array(shares) >= shares[0] - 1e-9))
    deep = found["all", "beyond depth"]  # every run opens as many heads of a layer: 9/6 + 4/6 are depth's
    assert deep.within == pytest.approx(test.within - 13 / 6) and deep.p == pytest.approx(test.p)
    alike = [claim("POS" if k < 3 else "DEP", k % 3, runs[k % 3]) for k in range(6)]
    test = by_kind(alike, 2000)["unequal seeds", "shared heads"]  # permuted among runs of one seed: 2!³ labellings
    assert test.exact and test.labellings == 8 and math.isnan(test.p)  # each gives the same


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
    times = 0  # by hand: both seeds of a task move by one permutation within each layer; of two tasks one is enough
    for _ in range(2000):
        order = generator.permuted(np.tile(np.arange(12), (6, 1)), axis=1)
        first, second = (np.take_along_axis(sets["NER", seed], order, 1) for seed in (1, 2))
        times += ((sets["POS", 1] * second).sum() + (sets["POS", 2] * first).sum()) / 2 >= both
    assert unequal.p == pytest.approx(times / 2000, abs=0.04)


def test_differences_without_a_unit_are_those_of_the_other_pairs() -> None:
    generator = np.random.default_rng(0)
    labels, units = np.arange(12) % 3, np.array([0, 0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 8])
    pairs = first, second = np.triu_indices(12, 1)
    values, same = generator.random(len(first)), labels[first] == labels[second]
    expected = []
    for unit in range(9):
        others = (units[first] != unit) & (units[second] != unit)
        expected.append(values[others & same].mean() - values[others & ~same].mean())
    assert stability._left_out(labels, units, 9, pairs, values) == pytest.approx(expected)
