"""Tests over sentences, and of labels: p-values by enumeration, scipy where it has the test, planted differences."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_sentences import sentences
from scipy import optimize, stats
from sizes import LEVELS, of_counts, of_scores, rejected

from mtlprune.evaluation.scores import COUNT, MAIN, SCORES, count, count_names
from mtlprune.sentence import LAYERS, Sentence, Span
from mtlprune.statistics import labels, resamples, significance
from mtlprune.statistics.contrast import NOT_SUPPORTED, SUPPORTED, UNDECIDED, Contrast, contrast_frame, verdict
from mtlprune.statistics.resamples import Resampled, by_draw, pooled_deviation
from mtlprune.statistics.standard_errors import StandardError, detectable, seen_at, upper_tail

ACCURACY = ("correct", "words"), SCORES["tags"]["accuracy"]
F1 = ("correct", "gold", "predicted"), SCORES["brackets"]["f1"]


def accuracy(*runs: Sequence[int], words: int = 1) -> resamples.System:
    """A system from the right words of each sentence, a sequence a run."""
    right = np.array(runs)
    return resamples.System(np.stack([right, np.full_like(right, words)], -1), *ACCURACY)


def brackets(
    seed: int, sentences: int, *skills: float, runs: Sequence[int] = (3, 3), rare: float = 1.0
) -> list[resamples.System]:
    """A system for each skill, its runs find brackets by chance; some sentences are hard for all, some have no gold."""
    generator, systems = np.random.default_rng(seed), []
    gold = np.where(generator.random(sentences) < rare, generator.integers(1, 12, sentences), 0)
    for skill, number in zip(skills, runs, strict=True):
        easy = generator.beta(8 * skill, 8 * (1 - skill), (1, sentences))
        right = generator.binomial(gold, easy, (number, sentences))
        wrong = generator.binomial(gold, 1 - easy, (number, sentences))
        counts = np.stack([right, np.broadcast_to(gold, right.shape), right + wrong], -1)
        systems.append(resamples.System(counts, *F1))
    return systems


def one(
    first: resamples.System, second: resamples.System, resamples: int = 10_000, seed: int = 0
) -> significance.Difference:
    (found,) = significance.differences([first, second], [(0, 1)], resamples, seed)
    return found


def score(system: resamples.System, rows: NDArray[np.int64]) -> float:
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
    assert (found.delta, found.p, found.floor, found.differing) == (0, 1, 1, 0)
    assert math.isnan(found.effect)
    first, second = accuracy([5, 3, 4, 1, 2], words=6), accuracy([2, 3, 1, 2, 1], words=6)
    gains = np.array([3, 0, 3, -1, 1])
    assert one(first, second).effect == pytest.approx(gains.mean() / gains.std(ddof=1))


@pytest.mark.parametrize("runs", [(1, 1), (3, 5), (10, 10), (33, 3), (24, 24), (24, 20), (24, 25), (200, 1)])
def test_every_run_meets_equally_many_others(runs):
    meetings = significance._pairings(*runs)
    assert len(set(zip(*meetings, strict=True))) == len(meetings[0])  # no two twice
    assert all(len(set(np.bincount(side, minlength=n))) == 1 for side, n in zip(meetings, runs, strict=True))
    every, most = math.prod(runs), max(significance.MAX_PAIRINGS, math.lcm(*runs))
    assert len(meetings[0]) == every if every <= significance.MAX_PAIRINGS else len(meetings[0]) <= most


def test_how_sums_are_cut_changes_nothing(monkeypatch):
    systems, pairs = [*brackets(5, 40, 0.6, 0.6, rare=0.1), *brackets(6, 40, 0.6, 0.6)], [(0, 1), (2, 3)]
    found = significance.differences(systems, pairs, 500)
    monkeypatch.setattr(significance, "SUMS", 700)
    monkeypatch.setattr(resamples, "SUMS", 700)
    assert significance.differences(systems, pairs, 500) == found
    monkeypatch.setattr(resamples, "FEW_SENTENCES", 0.0)
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
    first, second = accuracy([3, 1, 2, 0], [1, 1, 0, 2], words=3), accuracy([0, 1, 1, 1], words=3)
    gains = np.array([2, 0, 0, 0]) / 3 * 100
    every = [np.mean(draw) for draw in itertools.product(gains, repeat=4)]
    found = one(first, second, 50_000)
    assert [found.low, found.high] == pytest.approx(np.percentile(every, [2.5, 97.5]))


def test_where_sentences_hardly_differ_the_main_interval_is_that_of_paired_t():
    """There is next to nothing but seeds. With other seeds it is Behrens and Fisher's interval, wider than Welch's."""
    ours, theirs = [9, 7, 8], [5, 6, 6]
    systems = [accuracy(*([n] * 400 + [n + 1 - k] for n in side), words=10) for k, side in enumerate((ours, theirs))]
    found = one(*(replace(system, seeds=(1, 2, 3)) for system in systems), 2000)
    test = stats.ttest_rel(*(10 * np.array(side) for side in (ours, theirs)))
    assert (found.wide_low, found.wide_high) == pytest.approx(tuple(test.confidence_interval()), rel=5e-3)
    assert found.wide_p == pytest.approx(test.pvalue, rel=5e-3) and found.paired
    wider = one(*systems, 2000)
    welch = stats.ttest_ind(*(10 * np.array(side) for side in (ours, theirs)), equal_var=False)
    assert not wider.paired and wider.wide_low < welch.confidence_interval().low < found.delta
    assert wider.wide_error.free == (2, 2) and found.wide_error.free == (2,)
    assert found.detectable == pytest.approx(float(detectable(found.delta / test.statistic, 2)), rel=5e-3)
    assert math.isnan(one(accuracy([1, 0]), accuracy([0, 1], [0, 0])).wide_low)


@pytest.mark.parametrize("seeds", [(1, 2, 3), ()])
def test_variance_is_split_by_what_all_runs_share(seeds):
    """In plain Python: the covariance of two runs' scores on the same resampled sentences, and the variance of runs."""
    generator, drawn = np.random.default_rng(42), []
    first, second = (replace(system, seeds=seeds) for system in brackets(41, 60, 0.7, 0.5))
    for _ in range(1500):
        rows = generator.integers(0, 60, 60)
        drawn.append([[score(side, run[rows]) for run in side.counts] for side in (first, second)])
    ours, theirs = np.moveaxis(np.array(drawn), 1, 0)  # (C, S) each
    different = ~np.eye(3, dtype=bool)

    def between(left: NDArray[np.float64], right: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
        return float(np.cov(left.T, right.T)[:3, 3:][kept].mean())

    every = np.ones((3, 3), bool)
    crossed = between(ours, theirs, different if seeds else every)
    shared = between(ours, ours, different) + between(theirs, theirs, different) - 2 * crossed
    error = one(first, second, 20_000).wide_error
    assert error.sentences**2 == pytest.approx(shared, abs=0.1 * float((ours - theirs).mean(1).var()))
    sides = [side.scores(side.totals) for side in (first, second)]
    runs = [sides[0] - sides[1]] if seeds else sides
    own = [(ours - theirs)] if seeds else [ours, theirs]
    noise = [np.trace(np.cov(side.T)) / 3 - np.cov(side.T)[different].mean() for side in own]  # variance − covariance
    assert error.noise == pytest.approx(np.sqrt(np.array(noise) / 3), rel=0.1)
    assert error.seeds == pytest.approx([stats.sem(side) for side in runs])


def test_the_distribution_of_the_error_is_that_of_its_parts():
    """scipy's t and normal where there is one part; draws of three; p, interval and equivalence are of the same."""
    for free, value in itertools.product((2, 4, 30), (0.5, 3, 40)):
        assert upper_tail(value, (2.0,), (free,), 0.0) == pytest.approx(stats.t.sf(value / 2, free), rel=1e-4, abs=1e-7)
    assert upper_tail(3.0, (), (), 2.0) == pytest.approx(stats.norm.sf(1.5))
    generator = np.random.default_rng(5)
    drawn = generator.standard_t(2, 400_000) + 2 * generator.standard_t(4, 400_000) + generator.normal(0, 3, 400_000)
    error = StandardError((1.0, 2.0), (2, 4), (0.0, 0.0), 3.0)
    for value in (1.0, 5.0, 20.0):
        tail = float((drawn >= value).mean())
        assert error.upper_tail(value) == pytest.approx(tail, abs=4 * math.sqrt(tail / 400_000))
    assert [error.two_sided(far) for far in (error.half_width(), 0.0)] == pytest.approx([0.05, 1.0])
    assert error.upper_tail(-1.0) == pytest.approx(1 - error.upper_tail(1.0))
    ratios = 2 / generator.chisquare(2, 400_000), 4 / generator.chisquare(4, 400_000)
    variance = 9 + np.maximum(ratios[0], 4.0) + np.maximum(4 * ratios[1], 9.0)
    tail = float(stats.norm.sf(8 / np.sqrt(variance)).mean())
    assert StandardError((1.0, 2.0), (2, 4), (2.0, 3.0), 3.0).upper_tail(8) == pytest.approx(tail, rel=0.02)


@pytest.mark.parametrize("free", [2, 4, 30, math.inf])
def test_detectable_effects_of_seeds_or_sentences_alone(free):
    """By scipy's noncentral t, averaged over the variances that an estimate leaves possible; and by the error in
    parts."""
    generator = np.random.default_rng(0)
    expected = stats.norm.ppf([0.975, 0.8]).sum()
    if free < math.inf:
        expected = float(detectable(1.0, free))
        far = expected * np.sqrt(generator.chisquare(free, 20_000) / free)
        assert np.nanmean(stats.nct.sf(stats.t.isf(0.025, free), free, far)) == pytest.approx(0.8, abs=0.006)
    assert float(detectable(0.7, free)) == pytest.approx(0.7 * expected)
    parts = StandardError((0.7,), (int(free),), (0.0,), 0.0) if free < math.inf else StandardError((), (), (), 0.7)
    assert parts.detectable() == pytest.approx(0.7 * expected, rel=0.003)
    if free < math.inf:  # more seeds: their power is known better than this error is
        shrunk = 0.7 * math.sqrt((free + 1) / (free + 5))
        assert parts.detectable(int(free) + 5) == pytest.approx(shrunk * seen_at(free + 4, free), rel=0.003)
        assert seen_at(free + 4, math.inf) < seen_at(free + 4, free) < seen_at(free, free)


@pytest.mark.parametrize(
    ("seeds", "sentences"), [(3, 0.0), (5, 0.0), (10, 0.0), (3, 0.5), (3, 2.0), (5, 0.5), (10, 1.0)]
)
def test_a_detectable_effect_is_shown_in_four_of_five_studies(seeds, sentences):
    """Each of 800 studies of paired differences says what it could detect; its effect is that size in another study,
    of the same error (1 point between seeds, and what all seeds share)."""
    generator = np.random.default_rng(seeds)
    by_sentences = sentences / math.sqrt(seeds)

    def study() -> tuple[float, StandardError]:
        drawn = generator.normal(size=seeds)
        error = StandardError((stats.sem(drawn),), (seeds - 1,), (0.0,), by_sentences)
        return float(drawn.mean()) + by_sentences * generator.normal(), error

    studies = ((study()[1].detectable(), study()) for _ in range(800))
    shown = [error.two_sided(delta + effect) < 0.05 for effect, (delta, error) in studies]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.05)


def test_draws_and_pooled_errors_widen_and_nothing_else_does():
    """Sets that do not vary add no error; a pooled deviation below the own changes nothing; runs that share a draw are
    one."""
    generator = np.random.default_rng(3)
    observed = np.array([1.0, 2.0, 1.5, 2.5])
    booted = observed + generator.normal(0, 0.1, (500, 1)) + generator.normal(0, 0.01, (500, 4))
    figure = Resampled(observed, booted)
    plain = Contrast.of(figure)
    assert Contrast.of(figure, draws=np.ones((2, 5))) == plain
    wider = Contrast.of(figure, draws=generator.normal(size=(2, 5)))
    assert wider.low < plain.low and wider.p > plain.p and wider.detectable > plain.detectable
    assert Contrast.of(figure, pooled=3.0).low < plain.low
    assert Contrast.of(figure, pooled=0.1).low == pytest.approx(plain.low, abs=0.01)
    assert pooled_deviation([observed, observed + 5, np.ones(1)]) == pytest.approx(observed.std(ddof=1))
    shared = by_draw(Resampled(observed, booted), ["a", "b", "a", "c"])
    assert shared.observed.tolist() == [1.25, 2.0, 2.5]
    assert shared.booted[:, 0] == pytest.approx(booted[:, [0, 2]].mean(1))


SIZES = [(runs, ratio, "normal", 1) for runs in ((3,), (5,), (3, 5)) for ratio in (0.5, 1.0, 3.0)]
SIZES += [((3,), 3.0, "laplace", 1), ((5,), 3.0, "laplace", 1), ((3, 3), 3.0, "exponential", 1)]
SIZES += [((3,), 3.0, "exponential", 4), ((5,), 3.0, "exponential", 22)]  # skewed in one setting alone: few seeds


@pytest.mark.parametrize(("runs", "ratio", "deviations", "times_too_often"), SIZES)
def test_p_over_seeds_and_sentences_is_not_too_small_where_holm_needs_it(runs, ratio, deviations, times_too_often):
    """True nulls are rejected at most as often as p says, down to 0.0001, and not a tenth as often at 0.05."""
    times = 40_000 if len(runs) == 1 else 2_000
    shares = rejected(of_scores(runs, ratio, times, deviations))
    bounds = [times_too_often * level + 4 * math.sqrt(times_too_often * level / times) for level in LEVELS]
    assert all(share <= bound for share, bound in zip(shares, bounds, strict=True)) and shares[0] > 0.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "own", "rare"), [((3,), 0.0, 1.0), ((3,), 0.2, 0.1), ((5,), 0.2, 1.0), ((3, 5), 0.2, 1.0)]
)
def test_sizes_of_f1_from_counts_with_noise_of_run_and_sentence(runs, own, rare):
    p = of_counts(runs, own, 1500, rare=rare, resamples=200)
    shares = rejected(p)
    assert all(share <= level + 4 * math.sqrt(level / 1500) for share, level in zip(shares, LEVELS, strict=True))
    assert shares[0] > 0.002 and np.isnan(p).mean() < 0.05


WITHOUT_ERROR = {
    "one sentence, equal differences": ([[6], [5], [6]], [[2], [1], [2]], "resampling"),
    "one sentence, differences that vary": ([[6], [5], [3]], [[2], [1], [2]], "resampling"),
    "never learnt": ([[0] * 40] * 3, [[0] * 40] * 3, "resampling"),
    "the same runs": (
        [[1, 5, 3, 6], [2, 5, 3, 6], [1, 4, 4, 6]],
        [[1, 5, 3, 6], [2, 5, 3, 6], [1, 4, 4, 6]],
        "resampling",
    ),
    "perfect and never learnt": ([[6] * 40] * 3, [[0] * 40] * 3, "resampling"),
    "seeds change nothing": ([[6, 1]] * 3, [[3, 1]] * 3, "same with every seed"),
}


def test_seeds_alike_by_chance_are_not_taken_for_certainty():
    """79 words more with each of three seeds, found in different sentences: their noise is the variance of seeds."""
    first, second = (replace(system, seeds=(1, 2, 3)) for system in brackets(3, 40, 0.8, 0.4))
    rows = np.stack([second.counts[0, order] for order in ([*range(40)], [*range(1, 40), 0], [*range(2, 40), 0, 1])])
    equal = [replace(system, counts=counts) for system, counts in ((first, first.counts[[0, 0, 0]]), (second, rows))]
    equal[0].counts[..., 1] = equal[1].counts[..., 1] = 6
    found = one(*equal, 2000)
    assert np.ptp(equal[0].scores(equal[0].totals) - equal[1].scores(equal[1].totals)) < 1e-9
    assert not found.unknown and found.wide_error.noise[0] > 0.5
    assert found.wide_high - found.wide_low > 0.97 * (found.high - found.low)


@pytest.mark.parametrize("seeds", [(1, 2, 3), ()])
@pytest.mark.parametrize("case", WITHOUT_ERROR)
def test_without_variation_there_is_no_error_and_nothing_is_certain(case, seeds):
    first, second, said = WITHOUT_ERROR[case]
    systems = [replace(accuracy(*runs, words=7), seeds=seeds) for runs in (first, second)]
    found = one(*systems, 500)
    equal = found.equivalence_p(1.0), found.equivalence_p(99)
    assert np.isnan([found.wide_low, found.wide_high, found.wide_p, *equal]).all()
    assert said in found.unknown
    if said == "resampling":
        assert math.isnan(found.low) and math.isnan(found.high)
        alone = one(*(replace(system, counts=system.counts[:1]) for system in systems), 500)
        assert math.isnan(alone.low) and said in alone.unknown
    drawn = next(iter(resamples.resampled_sums(systems, 500, 0)))
    booted = systems[0].scores(drawn[0]) - systems[1].scores(drawn[1])
    apart = systems[0].scores(systems[0].totals) - systems[1].scores(systems[1].totals)
    for noise in (0.0, 1e-13):  # rounding is no error
        shaken = booted + noise * np.random.default_rng(1).normal(size=booted.shape)
        contrast = Contrast.of(Resampled(apart + noise * np.arange(3), shaken))
        numbers = [contrast.low, contrast.high, contrast.p, contrast.p_at_most(-1.0), contrast.p_margin(1.0)]
        assert np.isnan(numbers).all()
        single = Contrast.of(Resampled(apart[:1], shaken[:, :1]), one_run=True)
        assert np.isnan([single.low, single.p]).all() or said != "resampling"


def test_equivalence_is_two_one_sided_tests():
    """Its p is below 0.05 exactly where the 90 % interval lies within the margin."""
    for seed in range(4):
        found = one(*(replace(system, seeds=(1, 2, 3)) for system in brackets(seed, 300, 0.5, 0.5)), 2000)
        reach = abs(found.delta) + optimize.brentq(lambda far: found.wide_error.upper_tail(far) - 0.05, 0, 1000)  # noqa: B023
        assert found.equivalence_p(reach + 0.01) < 0.05 < found.equivalence_p(reach - 0.01)
        assert found.equivalence_p(abs(found.delta)) == pytest.approx(0.5)
    assert math.isnan(one(accuracy([1, 0]), accuracy([0, 1])).equivalence_p(1.0))


def drawn_figure(seed: int, mean: float, runs: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    observed = mean + generator.normal(size=runs)
    return observed, observed + generator.normal(0, 0.5, (800, 1)) + generator.normal(0, 0.3, (800, runs))


@pytest.mark.parametrize("runs", [1, 3, 5])
def test_the_interval_of_a_ratio_holds_what_is_not_excluded(runs):
    """Fieller: at its ends the difference of top and θ times bottom is just not shown."""
    for seed in range(5):
        top, bottom = drawn_figure(seed, 4.0, runs), drawn_figure(seed + 50, 30.0, runs)
        low, high = resamples.ratio_over_seeds(top, bottom)

        def p(theta: float) -> float:
            apart = [part - theta * other for part, other in zip(top, bottom, strict=True)]  # noqa: B023
            return StandardError.of(apart[:1], apart[1:]).two_sided(float(apart[0].mean()))

        assert low < top[0].mean() / bottom[0].mean() < high
        assert [p(low), p(high)] == pytest.approx([0.05, 0.05], abs=1e-3)
        assert max(p(low - 0.1), p(high + 0.1), p(-5), p(5)) < 0.05
    halved = resamples.ratio_over_seeds((0.5 * bottom[0], 0.5 * bottom[1]), bottom)
    assert halved == pytest.approx((0.5, 0.5), abs=1e-3)


def test_a_ratio_to_what_may_be_nothing_has_no_interval():
    """Its Fieller set has no end: top − θ · bottom is not shown to differ from 0 however large θ is."""
    assert np.isnan(resamples.ratio_over_seeds(drawn_figure(1, 9.0), drawn_figure(2, 0.5))).all()
    never = np.zeros(3), np.zeros((800, 3))
    assert np.isnan(resamples.ratio_over_seeds(drawn_figure(1, 9.0), never)).all()


@pytest.mark.parametrize(
    ("estimate", "low", "high", "p", "runs", "effect", "expected"),
    [
        (-2.0, -3.0, -1.0, 0.01, 3, -1.0, SUPPORTED),
        (-0.5, -0.9, -0.1, 0.01, 3, -1.0, NOT_SUPPORTED),  # shown, and smaller than was asked for
        (-0.9, -1.5, -0.1, 0.01, 3, -1.0, UNDECIDED),
        (2.0, 1.0, 3.0, 0.01, 3, -1.0, NOT_SUPPORTED),  # on the other side of 0
        (2.0, 1.0, 3.0, 0.20, 3, 1.0, UNDECIDED),  # not after correction
        (2.0, 1.0, 3.0, 0.01, 1, 1.0, UNDECIDED),
        (0.1, -0.2, 0.4, 0.50, 3, 1.0, NOT_SUPPORTED),
        (0.1, -0.2, 0.4, 0.50, 3, None, UNDECIDED),
        (-0.3, -0.5, -0.1, 0.01, 3, None, SUPPORTED),
        (0.0, math.nan, math.nan, math.nan, 3, 1.0, UNDECIDED),
    ],
)
def test_three_verdicts(estimate, low, high, p, runs, effect, expected):
    assert verdict(estimate, low, high, p, runs, effect) == expected


def test_contrasts_are_corrected_apart_and_judged_by_the_corrected_p():
    rows = [
        ({"part": part, "task": task}, replace(Contrast.of(Resampled(*drawn_figure(seed, 9.0))), p=p))
        for seed, (part, task, p) in enumerate(
            [("a", "x", 0.04), ("a", "y", 0.03), ("b", "x", 0.04), ("b", "mean", 0.01)]
        )
    ]
    frame = contrast_frame(rows, ["part"], lambda frame: frame["task"] != "mean", effect=1.0)
    assert frame["p_holm"].tolist() == pytest.approx([0.06, 0.06, 0.04, math.nan], nan_ok=True)
    assert frame["verdict"].tolist() == [UNDECIDED, UNDECIDED, SUPPORTED, SUPPORTED]
    assert "p_holm" not in contrast_frame(rows) and contrast_frame([]).empty


def test_margins_and_swaps_of_known_systems():
    top = np.array([1.0, 1.1, 0.9]) + 0.05 * np.random.default_rng(2).normal(size=(500, 1))
    contrast = Contrast.of(Resampled(top.mean(0), top))
    assert contrast.p_at_most(-2.0) < contrast.p_margin(2.0) < 0.05 < contrast.p_margin(1.0)
    good, bad, same = ([system] for system in brackets(2, 80, 0.9, 0.5, 0.5, runs=(2, 2, 2)))
    assert resamples.swapped_p(good, bad, 199, 0) == pytest.approx(1 / 200)
    assert resamples.swapped_p(bad, same, 199, 0) > 0.05 and resamples.swapped_p(good, good, 199, 0) == 1


def test_a_pair_does_not_depend_on_the_others():
    sizes = enumerate((40, 40, 30))
    systems = [system for seed, number in sizes for system in brackets(seed, number, 0.6, 0.7, runs=(2, 1))]
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


def test_sign_flip_equals_scipy():
    values = np.random.default_rng(37).normal(0.5, 1, 8)
    theirs = stats.permutation_test(
        (values, np.zeros(8)),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=False,
    )
    assert significance.sign_flip(values) == pytest.approx(theirs.pvalue)
    for seeds in (1, 2, 3, 5, 8):  # seeds alone have a floor
        assert significance.sign_flip(np.arange(1, seeds + 1)) == 2 / 2**seeds


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
    assume(getattr(other, layer) is not None)
    counted, whole = labels.count_labels(layer, gold, other), count(layer, gold, other)
    assert (counted is None) == (whole is None)
    if counted is not None and whole is not None:
        sums = np.array([*counted.values(), (0, 0, 0)]).sum(0)
        right = whole["arcs" if layer == "dep" else "correct"]
        of = [whole["gold"], whole["predicted"]] if "gold" in whole else [len(gold)] * 2
        assert sums.tolist() == [right, *of]


def compared(layer: str, joint: list, gold: list) -> dict[str, labels.LabelDifference]:
    sides = [[[labels.count_labels(layer, *two) for two in zip(gold, run, strict=True)]] for run in (joint, gold)]
    return {row.label: row for row in labels.compare_counted(*sides, resamples=200)}


def test_differences_by_label_and_labels_with_few_items():
    gold = [Sentence("s", (*"abc",), pos=(*"NNV",), ner=(Span(0, 1, "PER" if k > 5 else "LOC"),)) for k in range(30)]
    joint = [replace(one, pos=(*("NNV" if k % 2 else "NVV"),), ner=()) for k, one in enumerate(gold)]
    rows = compared("pos", joint, gold)
    assert list(rows) == ["N", "V"]
    assert (rows["N"].items, rows["V"].items) == (60, 30)
    assert rows["N"].single == 100 and rows["N"].joint == pytest.approx(200 * 45 / (60 + 45))
    assert rows["V"].difference.delta == pytest.approx(200 * 30 / (30 + 45) - 100)
    assert rows["N"].q < 0.05 and not rows["N"].is_rare
    rows = compared("ner", joint, gold)
    assert rows["LOC"].is_rare and np.isnan(rows["LOC"].q)
    assert rows["PER"].q == rows["PER"].difference.p and rows["PER"].difference.delta == -100


def drawn_values(kind: str, generator: np.random.Generator, size: int) -> list[tuple]:
    """Gold and predicted values of a population with a fixed score."""
    if kind == "label":
        gold = generator.choice(3, size, p=(0.6, 0.3, 0.1))
        return [(g, g if right else 3) for g, right in zip(gold, generator.random(size) < 0.7, strict=True)]
    if kind == "number":
        gold = generator.normal(size=size)
        return list(zip(gold, 0.6 * gold + 0.8 * generator.normal(size=size), strict=True))
    gold = generator.random((size, 4)) < 0.3
    found = np.where(generator.random((size, 4)) < 0.2, ~gold, gold)
    return [tuple(tuple(np.flatnonzero(row)) for row in pair) for pair in zip(gold, found, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["label", "number", "labels"])
def test_intervals_over_sentences_cover(kind: str) -> None:
    """Of 2,000 samples of 300 sentences 93 to 97 % have the population's score within their interval."""
    generator, names = np.random.default_rng(7), count_names(kind, MAIN[kind])
    score_of = SCORES[kind][MAIN[kind]]

    def counts(size: int) -> np.ndarray:
        rows = [COUNT[kind](gold, found, None, kind) for gold, found in drawn_values(kind, generator, size)]
        return np.array([[row[name] for name in names] for row in rows], float)

    population = counts(400_000)
    truth = score_of({name: population[:, k].sum() for k, name in enumerate(names)})
    inside = 0
    for seed in range(2000):
        [found] = resamples.resampled_scores([resamples.System(counts(300)[None], names, score_of)], 400, seed)
        low, high = resamples.percentiles(found.booted[:, 0])
        inside += low <= truth <= high
    assert 0.93 <= inside / 2000 <= 0.97
