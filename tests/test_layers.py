"""Layers beside the five: whatever is done with a known layer gives the same with the same data under another name."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from random_sentences import corpora, sentences

from mtlprune.analyses.probes.items import read_items
from mtlprune.analyses.vectors.dissection.decoders import term_items
from mtlprune.analyses.vectors.smoothing.maths import word_labels
from mtlprune.corpora import CorpusError
from mtlprune.corpora.export import export
from mtlprune.corpora.formats.jsonl import check_sentence, from_json, to_json
from mtlprune.corpora.store import Corpus, load_corpus, save_corpus
from mtlprune.corpora.tables import fingerprint
from mtlprune.evaluation.baselines import Majority
from mtlprune.evaluation.scores import count, score
from mtlprune.layers import LAYERS, Layer
from mtlprune.sentence import Sentence, SentenceError, Span, declared
from mtlprune.statistics.labels import count_labels

NAMES = {"pos": "upos", "ner": "chunk", "dep": "tree2", "con": "con2", "srl": "nombank"}
KINDS = {"upos": "tags", "chunk": "spans", "tree2": "tree", "con2": "brackets:upos", "nombank": "frames"}
DOUBLED = {**LAYERS, **dict(sorted(KINDS.items()))}


def doubled(sentence: Sentence) -> Sentence:
    """Every layer a second time, under a name of its own; the brackets name the second tags."""
    return sentence.with_layers(**{new: Layer(KINDS[new], sentence.get(old)) for old, new in NAMES.items()})


def save(out: Path, content: list[Sentence], **options: bool) -> Corpus:
    return save_corpus({"train": content}, out, name="few", licence="CC0", sources={"a": "0"}, **options)


def two(words: str = "a b", **layers: object) -> Sentence:
    return Sentence("s", tuple(words.split())).with_layers(**layers)


@given(sentences())
def test_a_sentence_takes_further_layers(sentence: Sentence) -> None:
    twice = doubled(sentence).validate()
    assert all(twice.get(new) == sentence.get(old) for old, new in NAMES.items())
    assert twice.layers() == sentence.layers() + tuple(sorted(NAMES[old] for old in sentence.layers()))
    assert twice.get("never") is None and twice.with_layers(**dict.fromkeys(KINDS)) == sentence
    assert twice.with_layers(upos=None).get("upos") is None
    assert hash(twice) == hash(doubled(sentence))
    assert twice.bare() == sentence.bare()


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (two(upos=("A", "B")), r"upos: expected a further layer, Layer\(kind, value\)"),
        (two(chunk=Layer("spans", (Span(0, 2, "X"), Span(1, 2, "Y")))), "chunk: Y 1–2 overlaps or precedes X 0–2"),
        (two(upos=Layer("tag", ("A", "B"))), "layer upos: expected one of the kinds tags, .*, found 'tag'"),
        (two(id=Layer("tags", ("A", "B"))), "expected the name of a layer: .*; found 'id'"),
        (Sentence("s", ("a",), further=(("pos", Layer("tags", ("A",))),)), "pos: expected a further layer"),
        (Sentence("s", ("a",), further=(("b", Layer("spans", ())), ("a", Layer("spans", ())))), "in order"),
    ],
)
def test_what_a_further_layer_may_not_be(sentence: Sentence, message: str) -> None:
    with pytest.raises(SentenceError, match=message):
        sentence.validate()


def test_a_layer_has_one_kind() -> None:
    tags, chunks = two(x=Layer("tags", ("A", "B"))), two(x=Layer("spans", ()))
    with pytest.raises(SentenceError, match="'s', x: it is of the kind spans, but tags in an earlier sentence"):
        declared([tags, chunks])
    with pytest.raises(SentenceError, match="x is of the kind tags in gold, but spans was predicted"):
        count("x", tags, chunks)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(corpora())
def test_a_corpus_keeps_layers_of_every_kind(tmp_path: Path, content: list[Sentence]) -> None:
    twice = [doubled(sentence) for sentence in content]
    whole = save(tmp_path / "c", twice, overwrite=True)
    assert list(load_corpus(tmp_path / "c")["train"]) == twice
    assert [whole["train"][k] for k in range(len(twice))] == twice and whole["train"][:1] == twice[:1]
    known = {new for new in KINDS if any(s.get(new) is not None for s in twice)}
    assert whole.layers == {name: kind for name, kind in DOUBLED.items() if name in LAYERS or name in known}
    assert (fingerprint({"train": twice}) == fingerprint({"train": content})) == (not known)
    counts = whole.info["splits"]["train"]
    assert all(counts["known"][new] == counts["known"][old] for old, new in NAMES.items() if new in known)
    assert ("layers" in whole.info) == ("further" in counts) == bool(known)
    for found in counts.get("further", {}).values():
        assert found.items() <= counts.items()


def test_every_part_of_a_further_layer_is_in_the_fingerprint() -> None:
    tags = Layer("tags", ("A", "B"))
    variants = [two(), two(x=tags), two(y=tags), two(x=Layer("tags", ("A", "C"))), two(x=tags, y=tags)]
    variants += [two(x=Layer(kind, ())) for kind in ("spans", "brackets", "brackets:pos", "brackets:upos", "frames")]
    assert len({fingerprint({"train": [sentence]}) for sentence in variants}) == len(variants)
    assert fingerprint({"train": [two(x=tags, y=tags)]}) == fingerprint({"train": [two(y=tags).with_layers(x=tags)]})


@given(sentences())
def test_json_writes_the_five_as_ever_and_others_with_their_kind(sentence: Sentence) -> None:
    plain, tree = to_json(sentence), to_json(doubled(sentence))
    assert {key: tree[key] for key in plain} == plain
    assert {new: tree[new] for new in KINDS if new in tree} == {
        new: {"kind": KINDS[new], "value": plain[old]} for old, new in NAMES.items() if old in plain
    }
    tree = json.loads(json.dumps(tree))
    check_sentence(tree)
    assert from_json(tree) == doubled(sentence)
    assert from_json(tree | {"comment": "of another tool", "odd": {"kind": 1}}) == doubled(sentence)


@given(corpora())
def test_baselines_scores_and_labels_are_those_of_the_known_name(content: list[Sentence]) -> None:
    twice = [doubled(sentence) for sentence in content]
    majority, both = Majority(content), Majority(twice)
    for old, new in NAMES.items():
        assert [word_labels(s, new) for s in twice] == [word_labels(s, old) for s in content]
        if new in declared(twice):
            mine, theirs = term_items(new, twice), term_items(old, content)
            assert (mine.spans.tolist(), mine.labels.tolist()) == (theirs.spans.tolist(), theirs.labels.tolist())
    for gold in content:
        guess = majority.predict(gold)
        assert both.predict(gold) == doubled(guess)
        for old, new in NAMES.items():
            found = count(new, doubled(gold), doubled(guess))
            if gold.get(old) is None:
                assert found is None
                continue
            assert found == count(old, gold, guess)
            assert score(KINDS[new], [found]) == score(old, [found])
            assert count_labels(new, doubled(gold), doubled(guess)) == count_labels(old, gold, guess)


def test_brackets_leave_out_the_punctuation_of_the_tags_they_name() -> None:
    """The same brackets under Penn tags, UPOS, and no tags at all: only Penn tags say what EVALB deletes."""
    spans = (Span(0, 3, "S"), Span(2, 3, "X"))
    gold = two("a b .", pos=("N", "V", "."), upos=Layer("tags", ("N", "V", "PUNCT")), con=spans)
    for kind, brackets in (("brackets:pos", 1), ("brackets:upos", 2), ("brackets:never", 2), ("brackets", 2)):
        sentence = gold.with_layers(tree2=Layer(kind, spans))
        assert count("tree2", sentence, sentence) == {"correct": brackets, "gold": brackets, "predicted": brackets}
    assert count("con", gold, gold) == {"correct": 1, "gold": 1, "predicted": 1}


@given(corpora())
def test_probe_items_are_those_of_the_known_name_with_shuffles_of_their_own(content: list[Sentence]) -> None:
    plain = read_items({"train": content, "test": content[:1]}, 3)
    twice = [doubled(s) for s in content]
    both = read_items({"train": twice, "test": twice[:1]}, 3)
    for split, items in plain.items():
        found = {one.task: one for one in both[split]}
        for old in items:
            same, new = found[old.task], found[NAMES[old.task]]
            assert new.kind == old.kind and new.labels == old.labels
            assert new.columns.tolist() == old.columns.tolist()
            assert (new.label == old.label).all() and (new.offsets == old.offsets).all()
            assert same.shuffled.tolist() == old.shuffled.tolist()
            assert sorted(new.shuffled.tolist()) == sorted(old.shuffled.tolist())
    only = [s.bare().with_layers(upos=Layer("tags", s.pos)) for s in content]  # what is beside it changes nothing
    for split, items in read_items({"train": only, "test": only[:1]}, 3).items():
        found = {one.task: one.shuffled.tolist() for one in both[split]}
        assert all(one.shuffled.tolist() == found["upos"] for one in items)


@given(sentences())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_export_is_that_of_the_known_name(tmp_path: Path, sentence: Sentence) -> None:
    def exported(content: Sentence, layer: str) -> bytes | str:
        try:
            export([content], layer, tmp_path / "out")
        except CorpusError as error:
            return str(error)
        return (tmp_path / "out").read_bytes()

    for old, new in NAMES.items():
        if sentence.get(old) is not None:
            tags = {"con": {"pos": sentence.pos}}.get(old, {})
            alone = sentence.bare().with_layers(**tags | {old: sentence.get(old)})
            assert exported(doubled(sentence), new) == exported(alone, old)
    with pytest.raises(CorpusError, match=r"expected one of the layers pos, .*, found 'never'"):
        export([doubled(sentence)], "never", tmp_path / "x")
