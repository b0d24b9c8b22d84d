"""Light decoders on partial sums, senses, and items: against direct computation and enumeration."""

import numpy as np
import pytest
import torch

from mtlprune.analyses.dissection import SUBSETS, TERMS, decoders
from mtlprune.analyses.dissection.decoders import (
    Material,
    NetSettings,
    SubsetNets,
    macro_f1,
    nearest,
    predict,
    score,
    term_items,
    train_nets,
)
from mtlprune.sentence import Dependencies, Layer, Predicate, Sentence, Span

QUICK = NetSettings(hidden=16, epochs=30, batch=64, rate=1e-2)


def summed(parts: torch.Tensor, subset: str) -> torch.Tensor:
    found = torch.zeros_like(parts[0])
    for term in subset:
        found = found + parts[TERMS.index(term)]
    return found


def test_scaling_is_that_of_each_sum():
    torch.manual_seed(0)
    parts = torch.randn(4, 50, 6, dtype=torch.float64)
    parts[1, :, 2] = 3.0  # a constant feature of h
    scaled = SubsetNets(parts, 2, QUICK).scaled(parts)
    for place, subset in enumerate(SUBSETS):
        whole = summed(parts, subset)
        std = whole.std(0, correction=0)
        moving = std > 1e-6
        expected = torch.where(moving, (whole - whole.mean(0)) / torch.where(moving, std, 1.0), 0.0)
        assert torch.allclose(scaled[place], expected, atol=1e-8)


def test_each_net_reads_its_own_terms_only():
    torch.manual_seed(1)
    parts, labels = torch.randn(4, 300, 8), torch.randint(0, 3, (300,))
    labels = (parts[0, :, 0] > 0).long()  # the input knows it
    answers = predict(train_nets(parts, labels, 3, QUICK), parts)
    changed = parts.clone()
    changed[1:] = torch.randn(3, 300, 8)
    again = predict(train_nets(changed, labels, 3, QUICK), changed)
    same = [bool((answers[place] == again[place]).all()) for place in range(16)]
    assert same[SUBSETS.index("i")] and same[0] and not same[SUBSETS.index("h")]
    assert (answers[SUBSETS.index("i")] == labels).float().mean() > 0.95


def test_the_empty_subset_says_the_majority_label():
    torch.manual_seed(2)
    labels = torch.tensor([0] * 30 + [1] * 50 + [2] * 40)
    parts = torch.randn(4, 120, 5)
    answers = predict(train_nets(parts, labels, 3, QUICK), torch.randn(4, 20, 5))
    assert (answers[0] == 1).all()


def sentence() -> Sentence:
    return Sentence(
        "1",
        ("the", "dog", "saw", "London"),
        pos=("DET", "NOUN", "VERB", "PROPN"),
        ner=(Span(3, 4, "LOC"),),
        dep=Dependencies((2, 3, 0, 3), ("det", "nsubj", "root", "obj")),
        con=(Span(0, 4, "S"), Span(0, 4, "FRAG"), Span(0, 2, "NP"), Span(3, 4, "NP")),
        srl=(Predicate(2, "see.01", (Span(0, 2, "ARG0"), Span(2, 3, "V"), Span(3, 4, "ARG1")), "see"),),
    )


def test_items_and_their_features():
    both = [Sentence("0", ("hello",)), sentence()]  # one that lacks all layers, before
    items = {task: term_items(task, both) for task in ("pos", "ner", "dep", "con", "srl")}
    assert items["pos"].labels.tolist() == ["DET", "NOUN", "VERB", "PROPN"]
    assert items["ner"].labels.tolist() == ["O", "O", "O", "B-LOC"]
    assert items["dep"].labels.tolist() == ["det", "nsubj", "obj"]  # the root has no head to be asked of
    assert items["con"].labels.tolist() == ["S", "NP"]
    assert items["srl"].labels.tolist() == ["ARG0", "ARG1"] and set(items["srl"].sentence.tolist()) == {1}
    parts = torch.randn(4, 5, 3)
    features = items["srl"].features(parts)
    assert torch.allclose(features[:, 0], torch.cat([parts[:, 3], parts[:, 1:3].mean(1)], 1))
    assert torch.allclose(items["dep"].features(parts)[:, 0], torch.cat([parts[:, 1], parts[:, 2]], 1))
    assert term_items("wsd", both).labels.tolist() == ["see.01"]


def test_scores_count_what_is_right():
    upos = Layer("tags", ("D", "N", "V", "P"))
    sentences = [sentence().with_layers(upos=upos) for _ in range(6)]
    codes = torch.randn(4, 4, 16)
    material = Material(sentences, codes.repeat(1, 6, 1))
    for task in ("pos", "ner", "upos", "dep"):
        [found] = score(task, material, material, QUICK)
        assert found["score"][1:].min() == 1.0  # each term names the word
        assert found["counts"].shape == (16, 6, 3) and found["unseen"] == 0
    assert found["baseline"] == pytest.approx(1 / 3)
    assert score("con", Material([Sentence("0", ("a",))], codes[:, :1]), material, QUICK) == []


def test_macro_f1_by_hand():
    gold, answers = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    assert macro_f1(answers, gold) == macro_f1(gold, answers) == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert macro_f1(gold, gold) == 1


def test_neighbours_are_those_of_the_lemma(monkeypatch):
    monkeypatch.setattr(decoders, "NEIGHBOURS", 3)
    generator = torch.Generator().manual_seed(0)
    labels = np.array(["run.01", "run.02", "be.01", "be.02", "run.02", "be.02", "run.01", "run.02", "one.01"])
    names, gold = np.unique(labels, return_inverse=True)
    asked = np.array(["run.09", "be.01"])
    train, test = (torch.randn(4, size, 6, generator=generator) for size in (len(labels), 2))
    answers = nearest(train, labels, gold, test, asked)
    for place, subset in enumerate(SUBSETS):
        for row, lemma in enumerate(("run", "be")):
            pool = [k for k, label in enumerate(labels) if label.startswith(lemma)]
            cosine = torch.cosine_similarity(summed(train, subset)[pool], summed(test, subset)[row], dim=-1)
            near = cosine.argsort(descending=True)[: 3 if subset else len(pool)].tolist()
            votes = {
                sense: [float(cosine[k]) for k in near if gold[pool[k]] == sense]
                for sense, name in enumerate(names)
                if name.startswith(lemma)
            }
            best = max(votes, key=lambda sense: (len(votes[sense]), sum(votes[sense])))
            assert answers[place, row] == best, (subset, lemma)


def test_senses_from_rolesets_beside_the_most_frequent_one():
    generator = torch.Generator().manual_seed(0)
    sentences, rows = [], []
    for place in range(90):
        sense = 1 + (place % 3 == 0)
        sentences.append(Sentence(str(place), ("runs",), srl=(Predicate(0, f"run.0{sense}", (), "run"),)))
        vector = torch.randn(4, 1, 8, generator=generator)
        vector[1, 0, 0] += 6 * (sense - 1.5)  # the heads know the sense
        rows.append(vector)
    material = Material(sentences, torch.cat(rows, 1))
    learned, near = score("wsd", material, material, QUICK)
    heads = SUBSETS.index("h")
    assert learned["baseline"] == pytest.approx(2 / 3)
    assert learned["score"][heads] > 0.95 and near["score"][heads] > 0.95
    assert learned["score"][0] == near["score"][0] == pytest.approx(2 / 3)  # nothing to go by: the most frequent sense
    apart = np.array([[told[0][heads], told[heads][0]] for told in (near["micro_agreement"], near["macro_agreement"])])
    assert (apart[:, 0] == apart[:, 1]).all() and (apart < 1).all() and np.diag(near["macro_agreement"]).min() == 1
    assert score("wsd", Material(sentences[:1], rows[0]), material, QUICK) == []
