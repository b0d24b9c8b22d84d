"""The generated corpus: layers that agree, splits that do not overlap, templates that all occur, pairs."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, count
from typing import ClassVar

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.grammar import LONGEST, build_grammar, draw_minimal_pairs, draw_pairs, fill, labels
from mtlprune.corpora.grammar.derivation import FRAMES, RULES, Derivation
from mtlprune.corpora.grammar.lexicon import Draw
from mtlprune.corpora.tables import fingerprint
from mtlprune.layers import LAYERS
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
    assert [len(distinct) for distinct in once] == [len(sentences)] * 2


def test_the_corpus_follows_its_seed_and_is_the_same_on_every_python():
    """Its fingerprint was recorded once; it changes only where the grammar changes on purpose."""
    recorded = "4b0f8e49e2e159bb45cd6eb73a18046f8156476c9c0c675cddd93786a3c9f0a0"
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


class Everything(list[str]):
    def __contains__(self, _: object) -> bool:
        return True


def test_running_out_of_sentences_or_pairs_is_said():
    few = [Sentence("-", ("a", str(n))) for n in range(3)]
    draws = ((lambda identity, s=few[n % 3]: Sentence(identity, s.words)) for n in count())
    taken: set[bytes] = set()
    assert len(list(fill("dev", 1, draws, taken))) == 1
    with pytest.raises(CorpusError, match=r"expected 3 different sentences, found 2, because the next \d+ sentences"):
        list(fill("dev", 3, draws, taken))
    assert len(list(fill("dev", 2, draws, set()))) == 2
    with pytest.raises(CorpusError, match="asked for 1 pairs that differ in lemmas, found 0"):
        draw_pairs(1, layers=["lemmas"])
    with pytest.raises(CorpusError, match="asked for 1 minimal pairs of agreement, found 0"):
        draw_minimal_pairs(1, leave_out=Everything())


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


def test_trees_are_projective_and_every_constituent_has_one_head(sentences):
    for s in sentences:
        arcs = [(min(word, head), max(word, head)) for word, head in enumerate(s.dep.heads, 1)]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs), s.words
        for c in s.con:
            inside = range(c.start + 1, c.end + 1)
            assert sum(s.dep.heads[word - 1] not in inside for word in inside) == 1, (s.words, c)


def test_every_template_occurs():
    class Recording(Draw):
        drawn: ClassVar[list[object]] = []

        def weighted(self, options):
            self.drawn.append(super().weighted(options))
            return self.drawn[-1]

    draw = Recording("any", unseen_share=0.0)
    for _ in range(3000):
        Derivation(draw, reflexives=True).sentence()
    drawn = {id(option) for option in draw.drawn}
    assert set(FRAMES) <= {option for option in draw.drawn if isinstance(option, str)}
    assert not [name for name, rules in RULES.items() if name != "sentence" for rule in rules if id(rule) not in drawn]


@pytest.mark.parametrize("name", [*LAYERS, "dep+con"])
def test_pairs_differ_in_the_layers_they_name_alone(name):
    pairs = draw_pairs(40, seed=2, layers=[name])
    assert len(pairs) == len({pair.first.words for pair in pairs}) == 40
    for layers, first, second in pairs:
        assert len(first) == len(second) and first.words != second.words
        assert layers == tuple(name.split("+"))
        assert layers == tuple(layer for layer in LAYERS if first.get(layer) != second.get(layer))
    assert pairs == draw_pairs(40, seed=2, layers=[name]) != draw_pairs(40, seed=3, layers=[name])


def test_minimal_pairs_break_one_word_and_a_model_without_context_is_at_chance():
    paradigms = draw_minimal_pairs(96, seed=2)
    assert len(paradigms) >= 5
    known = {word.lower() for s in build_grammar(4000, 0, 0, reflexives=True)["train"] for word in s.words}
    for paradigm in paradigms:
        assert len(paradigm.pairs) == len({pair.good for pair in paradigm.pairs}) == 96
        both = [(pair.good.lower().split(), pair.bad.lower().split()) for pair in paradigm.pairs]
        assert {word for good, bad in both for word in good + bad} <= known
        broken = [[words for words in zip(good, bad, strict=True) if words[0] != words[1]] for good, bad in both]
        assert all(len(words) == 1 for words in broken)
        swaps = Counter(words[0] for words in broken)
        if paradigm.name == "argument_structure":  # the verbs are drawn, so the balance is that of their two lists
            assert {good for good, _ in swaps} == {bad for _, bad in swaps}
        else:  # a sentence that was drawn before is skipped, so the balance is not exact
            more = [abs(number - swaps[bad, good]) for (good, bad), number in swaps.items()]
            assert sum(more) / 2 <= 0.08 * 96  # without context at most 54 % are right
    assert paradigms == draw_minimal_pairs(96, seed=2) != draw_minimal_pairs(96, seed=3)
    seen = {text.lower() for paradigm in paradigms for text in paradigm.pairs[0]}
    fresh = draw_minimal_pairs(96, seed=2, leave_out=seen)
    assert not seen & {text.lower() for paradigm in fresh for pair in paradigm.pairs for text in pair}


def test_reflexives_agree_with_their_subject():
    of_pronouns = {"i": "myself", "you": "yourself", "we": "ourselves", "they": "themselves"}
    of_pronouns |= {"he": "himself", "she": "herself"}
    checked = Counter[str]()
    for s in build_grammar(6000, 0, 0, reflexives=True)["train"]:
        for place, word in enumerate(s.words):
            if not word.endswith(("self", "selves")):
                continue
            verb = s.dep.heads[place]
            arcs = [*zip(s.dep.heads, s.dep.relations, strict=True)]
            if (verb, "nsubj") not in arcs:
                continue  # understood from another clause
            at = arcs.index((verb, "nsubj"))
            subject, tag, joined = s.words[at].lower(), s.pos[at], (at + 1, "conj") in arcs
            if joined or tag == "NNS":
                assert word == "themselves", s.words
            elif tag == "PRP":
                assert word == of_pronouns[subject], s.words
            elif tag in ("NN", "NNP"):
                assert word in ("himself", "herself"), s.words
            checked["joined" if joined else tag] += 1
    assert len(checked) >= 4 and checked["PRP"] > 5
