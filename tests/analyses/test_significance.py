"""Tests over sentences, and of labels: p-values by enumeration, scipy where it has the test, planted differences."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_sentences import sentences
from scipy import stats

from mtlprune.scores import SCORES, count
from mtlprune.sentence import LAYERS, Sentence, Span
from mtlprune.statistics import significance

ACCURACY = ("correct", "words"), SCORES["tags"]["accuracy"]
F1 = ("correct", "gold", "predicted"), SCORES["brackets"]["f1"]


def accuracy(*runs: Sequence[int], words: int = 1) -> significance.System:
    """A system from the right words of each sentence, a sequence a run."""
    right = np.array(runs)
    return significance.System(np.stack([right, np.full_like(right, words)], -1), *ACCURACY)


def brackets(
    seed: int, sentences: int, *skills: float, runs: Sequence[int] = (3, 3), rare: float = 1.0
) -> list[significance.System]:
    """A system for each skill, its runs find brackets by chance; some sentences are hard for all, some have no gold."""
    generator, systems = np.random.default_rng(seed), []
    gold = np.where(generator.random(sentences) < rare, generator.integers(1, 12, sentences), 0)
    for skill, number in zip(skills, runs, strict=True):
        easy = generator.beta(8 * skill, 8 * (1 - skill), (1, sentences))
        right = generator.binomial(gold, easy, (number, sentences))
        wrong = generator.binomial(gold, 1 - easy, (number, sentences))
        counts = np.stack([right, np.broadcast_to(gold, right.shape), right + wrong], -1)
        systems.append(significance.System(counts, *F1))
    return systems


def one(
    first: significance.System, second: significance.System, resamples: int = 10_000, seed: int = 0
) -> significance.Difference:
    (found,) = significance.differences([first, second], [(0, 1)], resamples, seed)
    return found


def score(system: significance.System, rows: NDArray[np.int64]) -> float:
    """(N, K) → the score of their sum."""
    return float(system.scores(rows.sum(0).astype(float)))


def test_known_p_values_and_effects():
    """Five sentences tell the two apart, all for the first: 2 of 2⁵ swaps reach that; the others change nothing."""
    found = one(accuracy([1] * 5 + [0] * 9), accuracy([0] * 14))
    assert (found.p, found.floor, found.exact) == (2 / 32, 2 / 32, True)
    assert (found.sentences, found.differing, found.seeds) == (14, 5, (1, 1))
    assert found.delta == pytest.approx(500 / 14)
    six = one(accuracy([1] * 6 + [0]), accuracy([0] * 6 + [1]))  # 2 · (1 + 7) of 2⁷: the sign test's
    assert six.p == pytest.approx(stats.binomtest(6, 7).pvalue) == pytest.approx(16 / 128)
    found = one(accuracy([1, 0, 1]), accuracy([1, 0, 1]))
    assert (found.delta, found.p, found.floor, found.low, found.high, found.differing) == (0, 1, 1, 0, 0, 0)
    assert math.isnan(found.effect)
    first, second = accuracy([5, 3, 4, 1, 2], words=6), accuracy([2, 3, 1, 2, 1], words=6)
    gains = np.array([3, 0, 3, -1, 1])
    assert one(first, second).effect == pytest.approx(gains.mean() / gains.std(ddof=1))


@pytest.mark.parametrize("runs", [(1, 1), (3, 5), (10, 10), (33, 3), (24, 24), (24, 20), (24, 25), (200, 1)])
def test_every_run_meets_equally_many_others(runs):
    meetings = significance._meetings(*runs)
    assert len(set(zip(*meetings, strict=True))) == len(meetings[0])  # no two twice
    assert all(len(set(np.bincount(side, minlength=n))) == 1 for side, n in zip(meetings, runs, strict=True))
    every, most = math.prod(runs), max(significance.MEETINGS, math.lcm(*runs))
    assert len(meetings[0]) == every if every <= significance.MEETINGS else len(meetings[0]) <= most


def test_how_sums_are_cut_changes_nothing(monkeypatch):
    """Labels of few sentences beside common ones; blocks of resamples, and sums over the sentences that count."""
    systems, pairs = [*brackets(5, 40, 0.6, 0.6, rare=0.1), *brackets(6, 40, 0.6, 0.6)], [(0, 1), (2, 3)]
    found = significance.differences(systems, pairs, 500)
    monkeypatch.setattr(significance, "SUMS", 700)
    assert significance.differences(systems, pairs, 500) == found
    monkeypatch.setattr(significance, "FEW_SENTENCES", 0.0)
    assert significance.differences(systems, pairs, 500) == found


@pytest.mark.parametrize("runs", [(1, 1), (2, 2), (1, 3), (3, 2)])
def test_p_equals_full_enumeration(runs):
    """All swaps of seven sentences in plain Python: every run of one system meets every run of the other."""
    first, second = brackets(3, 7, 0.7, 0.5, runs=runs)
    found, null = one(first, second), []
    for signs in itertools.product((True, False), repeat=7):
        keep = np.array(signs)[:, None]
        meetings = [
            score(first, np.where(keep, a, b)) - score(second, np.where(keep, b, a))
            for a, b in itertools.product(first.counts, second.counts)
        ]
        null.append(np.mean(meetings))
    assert null[0] == pytest.approx(found.delta) and found.exact
    assert found.p == pytest.approx((np.abs(null) >= abs(found.delta) - 1e-9).mean())


def test_approximate_p_comes_near_the_exact_one():
    """Twelve sentences: 4,096 swaps are enumerated with 5,000 resamples, and sampled with 4,000."""
    systems = brackets(5, 12, 0.65, 0.5, runs=(2, 2))
    exact, sampled = one(*systems, 5000), one(*systems, 4000)
    assert exact.exact and not sampled.exact and sampled.floor == 1 / 4001
    assert sampled.p == pytest.approx(exact.p, abs=4 * math.sqrt(exact.p * (1 - exact.p) / 4000))


def test_interval_equals_all_resamples():
    """Four sentences have 4⁴ resamples, whose percentiles are known; here of the mean of two runs against one."""
    first, second = accuracy([3, 1, 2, 0], [1, 1, 0, 2], words=3), accuracy([0, 1, 1, 1], words=3)
    gains = np.array([2, 0, 0, 0]) / 3 * 100
    every = [np.mean(draw) for draw in itertools.product(gains, repeat=4)]
    found = one(first, second, 50_000)
    assert [found.low, found.high] == pytest.approx(np.percentile(every, [2.5, 97.5]))


@pytest.mark.parametrize("paired", [False, True])
def test_where_sentences_are_alike_the_main_interval_is_that_of_t(paired):
    """There is nothing but seeds: Welch's interval, or where settings have the same seeds that of paired t."""
    ours, theirs = [9, 7, 8], [5, 6, 6]
    systems = [accuracy(*([n] * 30 for n in side), words=10) for side in (ours, theirs)]
    found = one(*(replace(system, seeds=(1, 2, 3) if paired else ()) for system in systems), 40_000)
    points = [10 * np.array(side) for side in (ours, theirs)]
    test = stats.ttest_rel(*points) if paired else stats.ttest_ind(*points, equal_var=False)
    known = test.confidence_interval()
    assert (found.low, found.high) == pytest.approx((found.delta, found.delta))
    half = (known.high - known.low) / 2
    assert (found.wide_low, found.wide_high) == pytest.approx((known.low, known.high), abs=0.03 * half)
    assert found.wide_p == pytest.approx(test.pvalue, rel=0.08) and found.paired is paired
    assert math.isnan(one(accuracy([1, 0]), accuracy([0, 1], [0, 0])).wide_low)


def test_the_main_interval_is_the_hierarchical_bootstrap_in_plain_python():
    """Seeds drawn with replacement, then sentences; deviations of drawn seeds enlarged by n/(n − 1)."""
    generator, drawn = np.random.default_rng(42), []
    first, second = (replace(system, seeds=(1, 2, 3)) for system in brackets(41, 60, 0.7, 0.5))
    for _ in range(4000):
        rows, runs = generator.integers(0, 60, 60), generator.integers(0, 3, 3)
        gaps = np.array([score(first, first.counts[k][rows]) - score(second, second.counts[k][rows]) for k in range(3)])
        drawn.append(gaps.mean() + math.sqrt(3 / 2) * (gaps[runs].mean() - gaps.mean()))
    assert one(first, second, 20_000).wide_error == pytest.approx(np.std(drawn), rel=0.05)


def test_equivalence_is_two_one_sided_tests():
    """Its p is below 0.05 exactly where the 90 % interval lies within the margin."""
    for seed in range(4):
        found = one(*(replace(system, seeds=(1, 2, 3)) for system in brackets(seed, 300, 0.5, 0.5)), 2000)
        reach = abs(found.delta) + stats.t.ppf(0.95, found.wide_free) * found.wide_error
        assert found.equivalence_p(reach + 0.01) < 0.05 < found.equivalence_p(reach - 0.01)
        assert found.equivalence_p(abs(found.delta)) == pytest.approx(0.5)
    assert math.isnan(one(accuracy([1, 0]), accuracy([0, 1])).equivalence_p(1.0))


def test_ratios_margins_and_swaps_of_known_systems():
    top = np.array([1.0, 1.1, 0.9]) + 0.05 * np.random.default_rng(2).normal(size=(500, 1))
    assert significance.ratio_over_seeds(0.5 * top, top, 0) == pytest.approx((0.5, 0.5))
    worse, equal = significance.within_margin(top.mean(0), top, 0, 2.0)
    assert worse < equal < 0.05 < significance.within_margin(top.mean(0), top, 0, 1.0)[1]
    good, bad, same = ([system] for system in brackets(2, 80, 0.9, 0.5, 0.5, runs=(2, 2, 2)))
    assert significance.swapped_p(good, bad, 199, 0) == pytest.approx(1 / 200)
    assert significance.swapped_p(bad, same, 199, 0) > 0.05 and significance.swapped_p(good, good, 199, 0) == 1


def test_a_pair_does_not_depend_on_the_others():
    sizes = enumerate((40, 40, 30))
    systems = [one for seed, number in sizes for one in brackets(seed, number, 0.6, 0.7, runs=(2, 1))]
    pairs = [(1, 0), (3, 2), (4, 5), (0, 0)]
    together = significance.differences(systems, pairs, 800, seed=4)
    alone = [one(systems[a], systems[b], 800, seed=4) for a, b in pairs]
    assert str(alone) == str(together)  # nan is no equal of itself
    assert str(significance.differences(systems, pairs, 800, seed=5)) != str(together)
    assert significance.differences([], []) == []


def test_numbers_too_large_for_float32_stay_exact():
    """Sums of counts are whole numbers; 2²⁴ is where float32 begins to lose them."""
    small = brackets(29, 50, 0.6, 0.65)
    assert one(*(replace(system, counts=system.counts * 2**20) for system in small), 500) == one(*small, 500)


@pytest.mark.parametrize(
    ("other", "resamples", "said"),
    [
        (accuracy([1, 0, 1]), 9, r"of the same sentences under the same names, found \(1, 2, 2\)"),
        (replace(accuracy([1, 0]), names=("right", "words")), 9, "same names"),
        (accuracy([1, 0]), 0, "at least one resample, found 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(other, resamples, said):
    with pytest.raises(ValueError, match=said):
        one(accuracy([1, 0]), other, resamples)


def test_sign_flip_equals_scipy():
    values = np.random.default_rng(37).normal(0.5, 1, 8)
    theirs = stats.permutation_test(
        (values, np.zeros(8)),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=False,
    )
    assert significance.sign_flip(values).p == pytest.approx(theirs.pvalue)
    assert significance.sign_flip([1.0, -2.0, 4.0]).agreeing == 2
    for seeds in (1, 2, 3, 5, 8):  # seeds alone have a floor
        found = significance.sign_flip(np.arange(1, seeds + 1))
        assert found.p == found.floor == 2 / 2**seeds and (found.agreeing, found.seeds) == (seeds, seeds)
    with pytest.raises(ValueError, match="1 to 20 differences, found 0"):
        significance.sign_flip([])


def test_holm_by_hand():
    """0.005 · 4; 0.01 · 3; 0.03 · 2; 0.04 · 1, which may not be less than the one before."""
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.4, math.nan, 0.7]) == pytest.approx([0.8, math.nan, 0.8], nan_ok=True)
    assert significance.holm([0.3]) == pytest.approx([0.3])
    assert significance.holm([]).size == 0


@pytest.mark.parametrize("layer", LAYERS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_labels_add_up_to_the_score(layer, data):
    gold = data.draw(sentences())
    drawn = data.draw(st.none() | sentences().filter(lambda sentence: len(sentence) == len(gold)))
    other = replace(drawn, words=gold.words) if drawn is not None else gold
    if getattr(other, layer) is None:
        with pytest.raises(ValueError, match="do not have the same words, or"):
            significance.count_labels(layer, gold, other)
        return
    counted, whole = significance.count_labels(layer, gold, other), count(layer, gold, other)
    assert (counted is None) == (whole is None)
    if counted is not None and whole is not None:
        sums = np.array([*counted.values(), (0, 0, 0)]).sum(0)
        right = whole["arcs" if layer == "dep" else "correct"]
        of = [whole["gold"], whole["predicted"]] if "gold" in whole else [len(gold)] * 2
        assert sums.tolist() == [right, *of]


def compared(layer: str, joint: list, gold: list) -> dict[str, significance.LabelDifference]:
    """Of joint training and single-task runs that find what is gold."""
    sides = [[[significance.count_labels(layer, *two) for two in zip(gold, run, strict=True)]] for run in (joint, gold)]
    return {row.label: row for row in significance.compare_counted(*sides, resamples=200)}


def test_differences_by_label_and_labels_with_few_items():
    gold = [Sentence("s", (*"abc",), pos=(*"NNV",), ner=(Span(0, 1, "PER" if k > 5 else "LOC"),)) for k in range(30)]
    joint = [replace(one, pos=(*("NNV" if k % 2 else "NVV"),), ner=()) for k, one in enumerate(gold)]
    rows = compared("pos", joint, gold)
    assert list(rows) == ["N", "V"]
    assert (rows["N"].items, rows["V"].items) == (60, 30)
    assert rows["N"].single == 100 and rows["N"].joint == pytest.approx(200 * 45 / (60 + 45))
    assert rows["V"].found.delta == pytest.approx(200 * 30 / (30 + 45) - 100)
    assert rows["N"].q < 0.05 and not rows["N"].few
    rows = compared("ner", joint, gold)
    assert rows["LOC"].few and np.isnan(rows["LOC"].q)
    assert rows["PER"].q == rows["PER"].found.p and rows["PER"].found.delta == -100
