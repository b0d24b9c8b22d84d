"""The generated corpus: layers that agree with each other, splits that do not overlap, and ambiguity that is real."""

from collections.abc import Sequence
from itertools import chain, count

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.grammar import LONGEST, build_grammar, fill, labels
from mtlprune.corpora.tables import fingerprint
from mtlprune.sentence import Sentence


@pytest.fixture(scope="module")
def corpus() -> dict[str, Sequence[Sentence]]:
    return build_grammar()


@pytest.fixture(scope="module")
def sentences(corpus: dict[str, list[Sentence]]) -> list[Sentence]:
    return [*chain(*corpus.values())]


def test_sizes_lengths_and_layers(corpus, sentences):
    assert {split: len(corpus[split]) for split in corpus} == {"train": 2000, "dev": 300, "test": 300}
    assert all(s.validate().layers() == ("pos", "ner", "dep", "con", "srl") for s in sentences)
    lengths = [len(s) for s in sentences]
    assert max(lengths) <= LONGEST and 11 <= sum(lengths) / len(lengths) <= 14
    once = [{s.id for s in sentences}, {tuple(w.lower() for w in s.words) for s in sentences}]  # in all splits together
    assert [len(found) for found in once] == [len(sentences)] * 2


def test_the_corpus_follows_its_seed_and_is_the_same_on_every_python():
    """Its fingerprint was recorded once; it changes only where the grammar changes on purpose."""
    recorded = "500f0bd3fa89ce1f5da9171df155fee6cdb36f8591b8defef204ed95d856a991"
    assert fingerprint(build_grammar(train=200, dev=50, test=50, seed=7)) == recorded
    small = [build_grammar(train=60, dev=20, test=20, seed=seed) for seed in (3, 3, 4)]
    assert fingerprint(small[0]) == fingerprint(small[1]) != fingerprint(small[2])
    assert not {s.words for s in small[0]["train"]} & {s.words for s in small[2]["test"]}
    assert build_grammar(train=80, dev=0, test=0)["train"][:30] == build_grammar(train=30, dev=0, test=0)["train"]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("train", [25, 300])
def test_labels_of_dev_and_test_occur_in_train(train, seed):
    corpus = build_grammar(train=train, dev=20, test=20, seed=seed)
    known = set().union(*map(labels, corpus["train"]))
    assert all(labels(s) <= known for split in ("dev", "test") for s in corpus[split])


def test_running_out_of_sentences_is_said():
    few = [Sentence("-", ("a", str(n))) for n in range(3)]
    draws = ((lambda identity, s=few[n % 3]: Sentence(identity, s.words)) for n in count())
    taken: set[bytes] = set()
    assert len(list(fill("dev", 1, draws, taken))) == 1
    with pytest.raises(CorpusError, match=r"asked for 3 sentences, but after 2 the last \d+ drawn"):
        list(fill("dev", 3, draws, taken))
    assert len(list(fill("dev", 2, draws, set()))) == 2


def test_predicates_are_the_main_verbs_and_arguments_are_constituents_or_words_beside_them(sentences):
    for s in sentences:
        brackets = {(c.start, c.end) for c in s.con}
        words = zip(s.pos, s.dep.relations, strict=True)
        verbs = {n for n, (tag, arc) in enumerate(words) if tag.startswith("VB") and not arc.startswith("aux")}
        assert verbs == {p.index for p in s.srl}, s.words
        for p in s.srl:
            ends = [0, *(a.end for a in p.arguments)]
            assert all(a.end - a.start == 1 or (a.start, a.end) in brackets for a in p.arguments), s.words
            assert all(a.start >= end for a, end in zip(p.arguments, ends, strict=False)), s.words
            assert not any(a.start <= p.index < a.end for a in p.arguments), s.words


def test_every_constituent_has_one_head(sentences):
    """Exactly one word of a bracket depends on a word outside it; the long-distance relatives are the exception."""
    crossing = 0
    for s in sentences:
        for c in s.con:
            inside = range(c.start + 1, c.end + 1)
            tops = [w for w in inside if s.dep.heads[w - 1] not in inside]
            if len(tops) != 1:
                crossing += 1
                assert {s.pos[w - 1] for w in tops} & {"WDT", "WP"}, (s.words, c)
    assert crossing <= len(sentences) // 50


def test_control_gives_the_shared_argument_to_both(corpus):
    subjects = objects = 0
    for s in corpus["train"]:
        frames = {p.index: p for p in s.srl}
        for word, relation in enumerate(s.dep.relations):
            if relation != "xcomp" or word not in frames or s.dep.heads[word] - 1 not in frames:
                continue
            outer, inner = frames[s.dep.heads[word] - 1], frames[word]
            shared = {(a.start, a.end) for a in outer.arguments} & {(a.start, a.end) for a in inner.arguments}
            assert shared, s.words
            objects += any(a.start > outer.index for a in outer.arguments if (a.start, a.end) in shared)
            subjects += any(a.start < outer.index for a in outer.arguments if (a.start, a.end) in shared)
    assert subjects > 50 and objects > 20
