"""Structured inference against plain enumeration and against supar. B sentences, T words in the longest one."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlprune.layers import find_cycle
from mtlprune.tasks import inference

LENGTHS = torch.tensor([5, 1, 4, 2, 3, 5])


def random_scores(*size, seed=0, scale=1.0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)) * scale


def binary_trees(start, end):
    if end - start == 1:
        yield [(start, end)]
        return
    for middle in range(start + 1, end):
        for left, right in itertools.product(binary_trees(start, middle), binary_trees(middle, end)):
            yield [(start, end), *left, *right]


def enumerate_constituency(scores, n):
    """log Z, marginals and the best score of one (T+1, T+1) chart, in fp64."""
    trees = list(binary_trees(0, n))
    totals = torch.stack([sum(scores[i, j] for i, j in tree) for tree in trees]).double()
    marginals = torch.zeros_like(scores, dtype=torch.float64)
    for tree, chance in zip(trees, totals.softmax(0), strict=True):
        for i, j in tree:
            marginals[i, j] += chance
    return totals.logsumexp(0), marginals, totals.max()


def cky(scores, lengths):
    splits = inference.best_splits(scores, lengths)
    return [inference.bracketing(row, n) for row, n in zip(splits, lengths.tolist(), strict=True)]


def gold_charts(lengths, size):
    charts = torch.zeros(len(lengths), size, size, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        for i, j in next(binary_trees(0, n)):
            charts[b, i, j] = True
    return charts


def dependency_trees(n, projective=False):
    """All single-root trees over n words as tuples of heads with a leading 0."""
    for heads in itertools.product(range(n + 1), repeat=n):
        if heads.count(0) != 1 or find_cycle(heads):
            continue
        arcs = [tuple(sorted((d, h))) for d, h in enumerate(heads, 1)]
        if projective and any(a < c < b < d for (a, b), (c, d) in itertools.permutations(arcs, 2)):
            continue
        yield (0, *heads)


def tree_score(scores, heads):
    return float(sum(scores[d, h].double() for d, h in enumerate(heads) if d))


@pytest.mark.filterwarnings("ignore")
def test_constituency_equals_supar_on_long_sentences():
    from supar.structs import ConstituencyCRF

    scores, lengths = random_scores(4, 31, 31, scale=3.0), torch.tensor([30, 7, 22, 1])
    oracle, marginals = ConstituencyCRF(scores.clone(), lengths), inference.constituency_marginals(scores, lengths)
    torch.testing.assert_close(inference.constituency_log_partition(scores, lengths), oracle.log_partition.detach())
    torch.testing.assert_close(marginals, oracle.marginals.float(), rtol=1e-4, atol=1e-4)
    assert cky(scores, lengths) == [[tuple(span) for span in tree] for tree in oracle.argmax]


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -1e30])
def test_constituency_alone_equals_in_a_padded_batch(rubbish):
    scores = random_scores(6, 6, 6)
    for b, n in enumerate(LENGTHS.tolist()):
        scores[b, n + 1 :], scores[b, :, n + 1 :] = rubbish, rubbish
    log_z, trees = inference.constituency_log_partition(scores, LENGTHS), cky(scores, LENGTHS)
    marginals, loss = inference.constituency_marginals(scores, LENGTHS), torch.tensor(0.0)
    charts = gold_charts(LENGTHS, 6)
    for b, n in enumerate(LENGTHS.tolist()):
        alone, length = scores[b : b + 1, : n + 1, : n + 1], LENGTHS[b : b + 1]
        torch.testing.assert_close(log_z[b : b + 1], inference.constituency_log_partition(alone, length))
        torch.testing.assert_close(marginals[b, : n + 1, : n + 1], inference.constituency_marginals(alone, length)[0])
        assert cky(alone, length) == [trees[b]]
        loss += inference.constituency_crf_loss(alone, charts[b : b + 1, : n + 1, : n + 1], length)
    torch.testing.assert_close(inference.constituency_crf_loss(scores, charts, LENGTHS), loss)
    assert torch.isfinite(marginals).all()


def test_huge_scores_give_no_nan():
    scores, lengths = random_scores(3, 21, 21, scale=1e4).requires_grad_(), torch.tensor([20, 11, 1])
    log_z = inference.constituency_log_partition(scores, lengths)
    log_z.sum().backward()
    assert torch.isfinite(log_z).all() and torch.isfinite(scores.grad).all()
    torch.testing.assert_close(scores.grad.sum((1, 2)), 2.0 * lengths - 1)  # 2n − 1 spans in every tree


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_equals_its_fp32_cast_even_under_autocast(dtype):
    half, charts = random_scores(6, 6, 6, scale=3).to(dtype), gold_charts(LENGTHS, 6)

    def everything(scores):
        names = ("log_partition", "marginals")
        floats = [getattr(inference, f"constituency_{name}")(scores, LENGTHS) for name in names]
        floats.append(inference.constituency_crf_loss(scores, charts, LENGTHS))
        return [*floats, inference.mst(scores, LENGTHS)], cky(scores, LENGTHS)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, trees = everything(half)
    expected, full_trees = everything(half.float())
    assert all(one.dtype == full.dtype and torch.equal(one, full) for one, full in zip(found, expected, strict=True))
    assert trees == full_trees


def test_equal_scores_split_to_the_left():
    trees = cky(torch.zeros(1, 4, 4), torch.tensor([3]))
    assert trees == [[(0, 3), (0, 1), (1, 3), (1, 2), (2, 3)]]


@pytest.mark.parametrize("projective", [False, True])
def test_mst_equals_enumeration(projective):
    trees = {n: list(dependency_trees(n, projective)) for n in range(1, 6)}
    for seed in range(25):
        scores = random_scores(6, 6, 6, seed=seed, scale=10.0 ** (seed % 5 - 2))
        scores[:3, :, 0] += 2.0  # tempt with several roots
        heads = inference.mst(scores, LENGTHS, projective)
        assert heads.dtype == torch.long and heads.shape == (6, 6)
        for b, n in enumerate(LENGTHS.tolist()):
            best = max(tree_score(scores[b], tree) for tree in trees[n])
            found = heads[b].tolist()
            assert tuple(found[: n + 1]) in trees[n] and not any(found[n + 1 :])
            assert tree_score(scores[b], found[: n + 1]) == pytest.approx(best, rel=1e-6, abs=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_mst_equals_supar_on_long_sentences():
    from supar.structs.fn import mst

    lengths = torch.tensor([40, 1, 23, 31, 40])
    mask = (torch.arange(41) <= lengths[:, None]) & (torch.arange(41) > 0)
    for seed in range(3):
        scores = random_scores(5, 41, 41, seed=seed)
        expected, found = mst(scores.clone(), mask), inference.mst(scores, lengths)
        for b, n in enumerate(lengths.tolist()):
            ours, theirs = found[b, : n + 1].tolist(), expected[b, : n + 1].tolist()
            assert not find_cycle(ours[1:]) and ours[1:].count(0) == 1
            assert tree_score(scores[b], ours) >= tree_score(scores[b], theirs) - 1e-9


@pytest.mark.parametrize("projective", [False, True])
def test_mst_alone_equals_in_a_padded_batch_and_leaves_its_input_alone(projective):
    scores = random_scores(6, 6, 6, seed=7)
    for b, n in enumerate(LENGTHS.tolist()):
        scores[b, n + 1 :], scores[b, :, n + 1 :] = float("nan"), float("inf")
    scores.requires_grad_()
    before = scores.detach().clone()
    heads = inference.mst(scores, LENGTHS, projective)
    assert torch.equal(scores.detach().nan_to_num(9e9), before.nan_to_num(9e9)) and scores.requires_grad
    for b, n in enumerate(LENGTHS.tolist()):
        alone = inference.mst(scores[b : b + 1, : n + 1, : n + 1], LENGTHS[b : b + 1], projective)
        assert alone[0].tolist() == heads[b, : n + 1].tolist()


@pytest.mark.parametrize("projective", [False, True])
def test_equal_scores_give_a_tree_and_always_the_same(projective):
    scores = torch.zeros(6, 6, 6)
    heads = inference.mst(scores, LENGTHS, projective)
    for b, n in enumerate(LENGTHS.tolist()):
        assert tuple(heads[b, : n + 1].tolist()) in set(dependency_trees(n, projective))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(inference.mst(scores[order], LENGTHS[order], projective), heads[order])


def test_a_chain_of_1500_words_with_a_circle_at_its_end():
    n = 1500
    scores = torch.zeros(1, n + 1, n + 1)
    scores[0, range(1, n), range(2, n + 1)] = 10.0  # every word under the next one
    scores[0, n, n - 1] = 10.0  # the last two under each other
    scores[0, n, 0] = 5.0
    heads = inference.mst(scores, torch.tensor([n]))
    assert heads[0].tolist() == [0, *range(2, n + 1), 0]


SIZES = st.integers(0, 7), st.integers(1, 4), st.integers(-3, 9)
WEIGHTED = st.builds(lambda start, size, weight: (start, start + size, float(weight), "A"), *SIZES)


@given(st.lists(WEIGHTED, max_size=8))
@settings(max_examples=300, deadline=None)
def test_nonoverlapping_equals_enumeration(spans):
    def legal(chosen):
        ordered = sorted(chosen)
        return all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))

    subsets = itertools.chain.from_iterable(itertools.combinations(spans, k) for k in range(len(spans) + 1))
    best = max(sum(span[2] for span in chosen) for chosen in subsets if legal(chosen))
    found = inference.nonoverlapping(spans)
    assert legal(found) and found == sorted(found) and all(span in spans for span in found)
    assert sum(span[2] for span in found) == best
    assert inference.nonoverlapping(reversed(spans)) == inference.nonoverlapping(spans)


def test_spans_that_add_nothing_are_not_taken():
    assert inference.nonoverlapping([(0, 1, 0.0, "A"), (1, 2, float("nan"), "A")]) == []
