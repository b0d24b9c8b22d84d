"""CON: binarisation against supar's, loss and decoding against enumeration of binary trees."""

import pytest
import torch
from by_hand import check_loss, decoder, encoded, leaky, pair_scores, surprise, with_one
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import nested_spans
from test_inference import binary_trees, enumerate_constituency

from mtlprune.corpora.formats.brackets import format_tree
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


def test_where_no_bracket_covers_the_sentence_top_does():
    assert binarise((), 1) == [(0, 1, "TOP")] and debinarise([(0, 1, "TOP")]) == ()
    assert set(binarise((Span(0, 1, "NP"),), 2)) == {(0, 2, "TOP"), (0, 1, "NP"), (1, 2, "TOP|<>")}


@given(sized_trees)
def test_equal_to_supar(tree):
    """Where one bracket covers the sentence, as in every treebank tree; supar joins chains by '::'."""
    import nltk
    from supar.utils.transform import Tree

    n, brackets = tree
    letters = [Span(0, n, "ROOT"), *brackets]
    letters = [Span(start, end, label.replace(":", "c").replace("-", "d")) for start, end, label in letters]
    text = format_tree(Sentence("s", ("w",) * n, con=tuple(letters)))
    made = Tree.binarize(nltk.Tree.fromstring(text))
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
def test_loss_is_that_of_the_tree_among_all_trees_and_of_its_labels(label_scorer, seed):
    task = decoder(CON, CON.collect(GOLD), seed, span_size=6, label_size=4, label_scorer=label_scorer)
    names = task.labels["labels"]
    assert names == sorted({label for s in GOLD for _, _, label in binarise(s.con, len(s))}) and "VP+VP" in names
    words = encoded(SIZES, seed)
    crf, labels = [], []
    for number, sentence in enumerate(GOLD):
        spans, table = tables(task, words, number)
        gold = binarise(sentence.con, len(sentence))
        crf.append(enumerate_constituency(spans, len(sentence))[0] - sum(spans[i, j] for i, j, _ in gold))
        labels += [surprise(table[i, j], names.index(label)) for i, j, label in gold]
    check_loss(task, words, GOLD, (sum(crf) / sum(SIZES) + torch.stack(labels).mean()).float())


@pytest.mark.parametrize("label_scorer", SCORERS)
def test_decoding_is_the_tree_of_highest_expected_overlap(label_scorer):
    sizes = [5, 1, 4, 2, 5]
    for seed in range(3):
        task = decoder(CON, CON.collect(GOLD), seed, span_size=6, label_size=4, label_scorer=label_scorer)
        words = encoded(sizes, seed)
        for number, found in enumerate(task.decode(words)):
            spans, table = tables(task, words, number)
            marginal = enumerate_constituency(spans.detach(), sizes[number])[1].tolist()
            best = max(binary_trees(0, sizes[number]), key=lambda tree: sum(marginal[i][j] for i, j in tree))
            names = task.labels["labels"]
            labelled = [(i, j, names[int(table[i, j].argmax())]) for i, j in best]
            assert found == debinarise(labelled)
            Sentence("x", tuple("abcde"[: sizes[number]]), con=found).validate()
