"""CON: binarisation against supar's, loss and decoding against enumeration of binary trees."""

import pytest
import torch
from by_hand import check_loss, leaky, pair_scores, surprise, with_one
from hypothesis import given, settings
from hypothesis import strategies as st
from random_sentences import nested_spans
from test_structs import binary_trees

from mtlprune.sentence import Sentence, Span
from mtlprune.tasks.con import CON, binarise, debinarise

sized_trees = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), nested_spans(n)))


@given(sized_trees)
def test_binarised_and_back(tree):
    n, brackets = tree
    spans = binarise(brackets, n)
    assert debinarise(spans) == brackets
    places = {(start, end) for start, end, _ in spans}
    assert len(spans) == len(places) == 2 * n - 1
    for start, end in places:  # a binary tree: each longer span falls into two that are there
        assert end - start == 1 or sum((start, m) in places and (m, end) in places for m in range(start + 1, end)) == 1


def test_by_hand():
    rows = ((0, 5, "S"), (0, 1, "NP"), (1, 4, "VP"), (2, 4, "S"), (2, 4, "VP"), (3, 4, "NP"))
    assert set(binarise([Span(*row) for row in rows], 5)) == {  # "She enjoys playing tennis .", supar's own example
        (0, 5, "S"), (0, 4, "S|<>"), (0, 1, "NP"), (1, 4, "VP"), (1, 2, "VP|<>"), (2, 4, "S+VP"), (2, 3, "VP|<>"),
        (3, 4, "NP"), (4, 5, "S|<>"),
    }  # fmt: skip
    assert binarise((), 1) == [(0, 1, "TOP")] and debinarise([(0, 1, "TOP")]) == ()
    assert set(binarise((Span(0, 1, "NP"),), 2)) == {(0, 2, "TOP"), (0, 1, "NP"), (1, 2, "TOP|<>")}


def as_nltk(brackets: tuple[Span, ...], n: int):
    """The tree under TOP, with a pre-terminal above every word."""
    import nltk

    root = nltk.Tree("TOP", [])
    stack, place = [(root, n)], 0

    def words_up_to(end: int) -> None:
        nonlocal place
        while place < end:
            while stack[-1][1] <= place:
                stack.pop()
            stack[-1][0].append(nltk.Tree("_", [f"w{place}"]))
            place += 1

    for start, end, label in brackets:
        words_up_to(start)
        while stack[-1][1] <= start:
            stack.pop()
        node = nltk.Tree(label, [])
        stack[-1][0].append(node)
        stack.append((node, end))
    words_up_to(n)
    return root


@settings(deadline=None)
@given(sized_trees)
def test_equal_to_supar(tree):
    """Where one bracket covers the sentence, as in every treebank tree; supar joins chains by '::'."""
    pytest.importorskip("supar")
    from supar.utils.transform import Tree

    n, brackets = tree
    letters = [Span(0, n, "ROOT"), *brackets]
    letters = [Span(start, end, label.replace(":", "c").replace("-", "d")) for start, end, label in letters]
    made = Tree.binarize(as_nltk(tuple(letters), n))
    expected = {(i, j, label.replace("::", "+")) for i, j, label in Tree.factorize(made[0])}
    assert set(binarise(letters, n)) == expected


SIZES = [3, 1, 4]
GOLD = [
    Sentence("1", tuple("abc"), con=(Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"))),
    Sentence("2", ("d",), con=(Span(0, 1, "NP"),)),
    Sentence("3", tuple("efgh"), con=(Span(0, 4, "S"), Span(0, 2, "NP"), Span(2, 3, "VP"), Span(2, 3, "VP"))),
]
SCORERS = ["biaffine", "mlp"]


def tables(task: CON, words, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(n + 1, n + 1) span scores and (n + 1, n + 1, L) label scores of one sentence, everything computed."""
    inner = words.words.split(words.sizes)[number]
    framed = torch.cat([words.cls[number][None], inner, words.sep[number][None]])
    half = framed.shape[1] // 2
    posts = torch.cat([framed[:-1, :half], framed[1:, half:]], dim=1)  # left of the post, right of the post
    size = task.options.span_size
    hidden = leaky(posts @ task.mlp.linear.weight.T + task.mlp.linear.bias)
    spans = torch.einsum("ai,ij,bj->ab", with_one(hidden[:, :size]), task.span, hidden[:, size:])
    return spans, pair_scores(task.label, posts, task.options.label_size)


@pytest.mark.parametrize("label_scorer", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_loss_is_that_of_the_tree_among_all_trees_and_of_its_labels(encoded, decoder, label_scorer, seed):
    task = decoder(CON, CON.collect(GOLD), seed, span_size=6, label_size=4, label_scorer=label_scorer)
    names = task.labels["labels"]
    assert names == sorted({label for s in GOLD for _, _, label in binarise(s.con, len(s))}) and "VP+VP" in names
    words = encoded(SIZES, seed)
    crf, labels = [], []
    for number, sentence in enumerate(GOLD):
        spans, table = tables(task, words, number)
        all_trees = [sum(spans[i, j] for i, j in tree) for tree in binary_trees(0, len(sentence))]
        gold = binarise(sentence.con, len(sentence))
        crf.append(torch.logsumexp(torch.stack(all_trees), 0) - sum(spans[i, j] for i, j, _ in gold))
        labels += [surprise(table[i, j], names.index(label)) for i, j, label in gold]
    check_loss(task, words, GOLD, sum(crf) / sum(SIZES) + torch.stack(labels).mean())


@pytest.mark.parametrize("label_scorer", SCORERS)
def test_decoding_is_the_tree_of_highest_expected_overlap(encoded, decoder, label_scorer):
    sizes = [5, 1, 4, 2, 5]
    for seed in range(3):
        task = decoder(CON, CON.collect(GOLD), seed, span_size=6, label_size=4, label_scorer=label_scorer)
        words = encoded(sizes, seed)
        for number, found in enumerate(task.decode(words)):
            spans, table = tables(task, words, number)
            trees = list(binary_trees(0, sizes[number]))
            chance = torch.stack([sum(spans[i, j] for i, j in tree) for tree in trees]).softmax(0).tolist()
            marginal: dict[tuple[int, int], float] = {}
            for tree, p in zip(trees, chance, strict=True):
                for span in tree:
                    marginal[span] = marginal.get(span, 0.0) + p
            best = max(trees, key=lambda tree: sum(marginal[span] for span in tree))
            names = task.labels["labels"]
            labelled = [(i, j, names[int(table[i, j].argmax())]) for i, j in best]
            assert found == debinarise(labelled)
            Sentence("x", tuple("abcde"[: sizes[number]]), con=found).validate()
