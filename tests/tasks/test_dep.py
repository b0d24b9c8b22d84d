"""DEP against plain loops over words and heads, and decoding against enumeration of trees."""

import pytest
import torch
from by_hand import check_loss, decoder, encoded, leaky, pair_scores, surprise, with_one
from test_inference import dependency_trees, tree_score

from mtlprune.sentence import Dependencies, Sentence
from mtlprune.tasks.dep import DEP

SIZES = [3, 1, 4]
GOLD = [
    Sentence("1", tuple("abc"), dep=Dependencies((2, 0, 2), ("nsubj", "root", "obj"))),
    Sentence("2", ("d",), dep=Dependencies((0,), ("root",))),
    Sentence("3", tuple("efgh"), dep=Dependencies((3, 4, 0, 3), ("obj", "nsubj", "root", "obj"))),
]
NAMES = ["nsubj", "obj", "root"]
SCORERS = ["biaffine", "mlp"]


def tables(task: DEP, words, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one sentence the (n + 1, n + 1) score of every head (column) for every dependent (row), and (n + 1, n + 1, R)
    of every relation for both: all, where the decoder asks for few."""
    rows = torch.cat([words.cls[number][None], words.words.split(words.sizes)[number]])  # the root's vector first
    size = task.options.arc_size
    hidden = leaky(rows @ task.mlp.linear.weight.T + task.mlp.linear.bias)
    arcs = torch.einsum("di,ij,hj->dh", with_one(hidden[:, :size]), task.arc, hidden[:, size:])
    return arcs, pair_scores(task.relation, rows, task.options.relation_size)


@pytest.mark.parametrize("relation_scorer", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_loss_is_that_of_heads_and_of_relations_at_gold_heads(relation_scorer, seed):
    task = decoder(DEP, DEP.collect(GOLD), seed, arc_size=6, relation_size=4, relation_scorer=relation_scorer)
    assert task.labels == {"relations": NAMES}
    words = encoded(SIZES, seed)
    heads, relations = [], []
    for number, sentence in enumerate(GOLD):
        arcs, labels = tables(task, words, number)
        for dependent, (head, relation) in enumerate(zip(*sentence.dep, strict=True), 1):
            heads.append(surprise(arcs[dependent], head))
            relations.append(surprise(labels[dependent, head], NAMES.index(relation)))
    check_loss(task, words, GOLD, torch.stack(heads).mean() + torch.stack(relations).mean())


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("relation_scorer", SCORERS)
def test_decoding_finds_the_best_tree_of_all(relation_scorer, projective):
    sizes = [4, 1, 5, 2, 5, 4]
    options = {"arc_size": 6, "relation_size": 4, "relation_scorer": relation_scorer, "projective": projective}
    greedy = 0
    for seed in range(3):
        task = decoder(DEP, {"relations": NAMES}, seed, **options)
        words = encoded(sizes, seed)
        for number, found in enumerate(task.decode(words)):
            arcs, labels = tables(task, words, number)
            trees = dependency_trees(sizes[number], projective)
            best = max(trees, key=lambda tree: tree_score(arcs.detach(), tree))[1:]
            assert found.heads == best
            names = [NAMES[int(labels[dependent, head].argmax())] for dependent, head in enumerate(best, 1)]
            assert found.relations == tuple(names)
            greedy += all(arcs[d, h] == arcs[d].max() for d, h in enumerate(best, 1))
    assert greedy < 3 * len(sizes)  # some trees were not simply the best head of each word
