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
from mtlprune.sentence import Sentence, Span
from mtlprune.statistics import significance

ACCURACY = ("correct", "words"), SCORES["tags"]["accuracy"]
F1 = ("correct", "gold", "predicted"), SCORES["brackets"]["f1"]
Counts = NDArray[np.int64]


def accuracy(*runs: Sequence[int], words: int = 1) -> significance.System:
    """A system from the right words of each sentence, a sequence a run."""
    right = np.array(runs)
    return significance.System(np.stack([right, np.full_like(right, words)], -1), *ACCURACY)


def brackets(
    generator: np.random.Generator, runs: int, sentences: int, gold: Counts, skill: float = 0.6
) -> significance.System:
    """Runs that find brackets by chance; some sentences are hard for all of them."""
    easy = generator.beta(8 * skill, 8 * (1 - skill), (1, sentences))
    right = generator.binomial(gold, easy, (runs, sentences))
    wrong = generator.binomial(gold, 1 - easy, (runs, sentences))
    return significance.System(np.stack([right, np.broadcast_to(gold, right.shape), right + wrong], -1), *F1)


def golds(generator: np.random.Generator, sentences: int) -> Counts:
    return generator.integers(1, 12, sentences)


def one(
    first: significance.System, second: significance.System, resamples: int = 10_000, seed: int = 0
) -> significance.Difference:
    (found,) = significance.differences([first, second], [(0, 1)], resamples, seed)
    return found


def score(system: significance.System, rows: Counts) -> float:
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
    assert (found.delta, found.p, found.floor, found.low, found.high) == (0, 1, 1, 0, 0)
    assert math.isnan(found.effect)
    assert found.differing == 0
    first, second = accuracy([5, 3, 4, 1, 2], words=6), accuracy([2, 3, 1, 2, 1], words=6)
    gains = np.array([3, 0, 3, -1, 1])
    assert one(first, second).effect == pytest.approx(gains.mean() / gains.std(ddof=1))


@pytest.mark.parametrize("runs", [(1, 1), (3, 5), (10, 10), (33, 3), (24, 24), (24, 20), (24, 25), (200, 1)])
def test_every_run_meets_equally_many_others(runs):
    meetings = significance._meetings(*runs)
    assert len(set(zip(*meetings, strict=True))) == len(meetings[0])  # no two twice
    assert all(len(set(np.bincount(side, minlength=n))) == 1 for side, n in zip(meetings, runs, strict=True))
    allowed = max(significance.MEETINGS, math.lcm(*runs))
    assert (
        len(meetings[0]) == math.prod(runs) if math.prod(runs) <= significance.MEETINGS else len(meetings[0]) <= allowed
    )


def test_how_sums_are_cut_changes_nothing(monkeypatch):
    """Labels of few sentences beside common ones; blocks of resamples, and sums over the sentences that count."""
    generator = np.random.default_rng(5)
    rare = np.where(generator.random(40) < 0.1, golds(generator, 40), 0)
    both = golds(generator, 40)
    systems = [brackets(generator, 3, 40, gold) for gold in (rare, rare, both, both)]
    pairs = [(0, 1), (2, 3)]
    found = significance.differences(systems, pairs, 500)
    monkeypatch.setattr(significance, "SUMS", 700)
    assert significance.differences(systems, pairs, 500) == found
    monkeypatch.setattr(significance, "FEW_SENTENCES", 0.0)
    assert significance.differences(systems, pairs, 500) == found


@pytest.mark.parametrize("runs", [(1, 1), (2, 2), (1, 3), (3, 2)])
def test_p_equals_full_enumeration(runs):
    """All swaps of seven sentences in plain Python: every run of one system meets every run of the other."""
    generator = np.random.default_rng(3)
    gold = golds(generator, 7)
    first, second = brackets(generator, runs[0], 7, gold, 0.7), brackets(generator, runs[1], 7, gold, 0.5)
    found = one(first, second)

    def swapped(signs: Sequence[bool]) -> float:
        keep = np.array(signs)[:, None]
        meetings = [
            score(first, np.where(keep, a, b)) - score(second, np.where(keep, b, a))
            for a, b in itertools.product(first.counts, second.counts)
        ]
        return float(np.mean(meetings))

    null = np.array([swapped(signs) for signs in itertools.product((True, False), repeat=7)])
    assert null[0] == pytest.approx(found.delta)
    assert found.exact
    assert found.p == pytest.approx((np.abs(null) >= abs(found.delta) - 1e-9).mean())


def test_approximate_p_comes_near_the_exact_one():
    """Twelve sentences: 4,096 swaps are enumerated with 5,000 resamples, and sampled with 4,000."""
    generator = np.random.default_rng(5)
    gold = golds(generator, 12)
    first, second = brackets(generator, 2, 12, gold, 0.65), brackets(generator, 2, 12, gold, 0.5)
    exact, sampled = one(first, second, 5000), one(first, second, 4000)
    assert exact.exact and not sampled.exact
    assert sampled.floor == 1 / 4001
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
    first, second = (accuracy(*([n] * 30 for n in side), words=10) for side in (ours, theirs))
    if paired:
        first, second = (
            significance.System(side.counts, side.names, side.score, (1, 2, 3)) for side in (first, second)
        )
    found = one(first, second, 40_000)
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
    generator = np.random.default_rng(41)
    gold = golds(generator, 60)
    first, second = brackets(generator, 3, 60, gold, 0.7), brackets(generator, 3, 60, gold, 0.5)
    sides = [significance.System(side.counts, side.names, side.score, (1, 2, 3)) for side in (first, second)]
    drawn = []
    for _ in range(4000):
        rows, runs = generator.integers(0, 60, 60), generator.integers(0, 3, 3)
        gaps = np.array([score(first, first.counts[k][rows]) - score(second, second.counts[k][rows]) for k in range(3)])
        drawn.append(gaps.mean() + math.sqrt(3 / 2) * (gaps[runs].mean() - gaps.mean()))
    assert one(*sides, 20_000).wide_error == pytest.approx(np.std(drawn), rel=0.05)


def test_equivalence_is_two_one_sided_tests():
    """Its p is below 0.05 exactly where the 90 % interval lies within the margin."""
    generator = np.random.default_rng(43)
    called = 0
    for skill in (0.5, 0.51, 0.53, 0.6):
        gold = golds(generator, 300)
        runs = brackets(generator, 6, 300, gold, skill).counts
        found = one(significance.System(runs[:3], *F1, (1, 2, 3)), significance.System(runs[3:], *F1, (1, 2, 3)), 2000)
        half = stats.t.ppf(0.95, found.wide_free) * found.wide_error
        for margin in (0.5, 2.0, abs(found.delta) + half - 0.01, abs(found.delta) + half + 0.01):
            within = -margin < found.delta - half and found.delta + half < margin
            assert (found.equivalence_p(margin) < 0.05) == within
            called += within
        assert found.equivalence_p(abs(found.delta)) == pytest.approx(0.5)
    assert called >= 4
    assert math.isnan(one(accuracy([1, 0]), accuracy([0, 1])).equivalence_p(1.0))


def test_a_pair_does_not_depend_on_the_others():
    generator = np.random.default_rng(23)
    systems = []
    for number in (40, 40, 30):
        gold = golds(generator, number)
        systems += [brackets(generator, 2, number, gold), brackets(generator, 1, number, gold, 0.7)]
    pairs = [(1, 0), (3, 2), (4, 5), (0, 0)]
    together = significance.differences(systems, pairs, 800, seed=4)
    alone = [one(systems[a], systems[b], 800, seed=4) for a, b in pairs]
    assert str(alone) == str(together)  # nan is no equal of itself
    assert str(significance.differences(systems, pairs, 800, seed=5)) != str(together)
    assert significance.differences([], []) == []


def test_numbers_too_large_for_float32_stay_exact():
    """Sums of counts are whole numbers; 2²⁴ is where float32 begins to lose them."""
    generator = np.random.default_rng(29)
    gold = golds(generator, 50)
    small = [brackets(generator, 2, 50, gold, skill) for skill in (0.6, 0.65)]
    large = [significance.System(system.counts * 2**20, *F1) for system in small]
    assert one(*large, 500) == one(*small, 500)


def test_mistakes_are_sentences():
    with pytest.raises(ValueError, match=r"of the same sentences under the same names, found \(1, 2, 2\)"):
        one(accuracy([1, 0]), accuracy([1, 0, 1]))
    with pytest.raises(ValueError, match="same names"):
        one(
            significance.System(np.ones((1, 2, 3), int), *F1),
            significance.System(np.ones((1, 2, 3), int), ("a", "b", "c"), F1[1]),
        )
    with pytest.raises(ValueError, match="at least one resample, found 0"):
        one(accuracy([1]), accuracy([0]), 0)


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


KEYS = {"pos": ("correct", None), "ner": ("correct", "gold"), "dep": ("arcs", None), "con": ("correct", "gold")}
KEYS["srl"] = ("correct", "gold")


@pytest.mark.parametrize("layer", KEYS)
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
        right, in_gold = KEYS[layer]
        sums = np.array([*counted.values(), (0, 0, 0)]).sum(0)
        assert sums[0] == whole[right]
        assert sums[1] == (whole[in_gold] if in_gold else len(gold))
        assert in_gold is None or sums[2] == whole["predicted"]


def tagged(tags: str, place: int) -> Sentence:
    return Sentence(f"s{place}", tuple("abc"), pos=tuple(tags))


def compared(layer: str, gold: list, joint: list, single: list) -> dict[str, significance.LabelDifference]:
    sides = [
        [significance.count_labels(layer, g, p) for g, p in zip(gold, run, strict=True)] for run in (joint, single)
    ]
    return {row.label: row for row in significance.compare_counted(sides[:1], sides[1:], resamples=200)}


def test_differences_by_label_and_labels_with_few_items():
    gold = [tagged("NNV", place) for place in range(30)]
    joint = [tagged("NNV" if place % 2 else "NVV", place) for place in range(30)]
    rows = compared("pos", gold, joint, gold)
    assert list(rows) == ["N", "V"]
    assert (rows["N"].items, rows["V"].items) == (60, 30)
    assert rows["N"].single == 100 and rows["N"].joint == pytest.approx(200 * 45 / (60 + 45))
    assert rows["V"].found.delta == pytest.approx(200 * 30 / (30 + 45) - 100)
    assert rows["N"].q < 0.05 and not rows["N"].few
    gold = [replace(tagged("NNV", place), ner=(Span(0, 1, "PER" if place else "LOC"),)) for place in range(25)]
    none = [replace(sentence, ner=()) for sentence in gold]
    rows = compared("ner", gold, none, gold)
    assert rows["LOC"].few and np.isnan(rows["LOC"].q)
    assert rows["PER"].q == rows["PER"].found.p and rows["PER"].found.delta == -100
