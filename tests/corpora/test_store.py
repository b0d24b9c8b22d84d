"""The store: round trips, fingerprints, and folders that are refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_sentences import corpora

from mtlprune.corpora import CorpusError
from mtlprune.corpora.fingerprint import fingerprint, source_digest
from mtlprune.corpora.store import Corpus, load_corpus, save_corpus
from mtlprune.corpora.tables import from_table, to_table
from mtlprune.sentence import Dependencies, Predicate, Sentence, SentenceError, Span

FULL = Sentence(
    "full",
    ("Ann", "sings", "\\"),
    pos=("NNP", "VBZ", "NFP"),
    ner=(Span(0, 1, "PER"),),
    dep=Dependencies((2, 0, 2), ("nsubj", "root", "punct")),
    con=(Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 2, "VP")),
    srl=(Predicate(1, "sing.01", (Span(0, 1, "ARG0"), Span(1, 2, "V")), "sing"),),
)
BARE = Sentence("bare", ("a", "b"))
EMPTY = Sentence("empty", ("a",), ner=(), con=(), srl=())
ODD = Sentence("odd", ("a",), srl=(Predicate(0),))
SPLITS = {"train": [FULL, BARE], "dev": [EMPTY, ODD]}


def save(out: Path, splits: dict[str, list[Sentence]] | None = None, **options: bool) -> Corpus:
    return save_corpus(splits or SPLITS, out, name="few", licence="CC0", sources={"a": "0"}, **options)


@settings(deadline=None)  # the first table takes longer than all others
@given(corpora())
def test_tables_hold_every_sentence_exactly(sentences: list[Sentence]) -> None:
    table = to_table(sentences)
    assert from_table(table) == sentences
    assert from_table(table.slice(1, 2)) == sentences[1:3]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(corpora())
def test_what_is_saved_is_loaded(tmp_path: Path, sentences: list[Sentence]) -> None:
    corpus = save(tmp_path / "c", {"train": sentences}, overwrite=True)
    assert list(corpus["train"]) == sentences
    corpus.verify()


def test_a_corpus_says_what_it_is(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "c")
    corpus = load_corpus(tmp_path / "deep" / "c")
    assert corpus.splits == ("train", "dev")
    assert [list(corpus[split]) for split in corpus.splits] == list(SPLITS.values())
    assert corpus.info["name"] == "few"
    assert corpus.info["licence"] == "CC0"
    assert corpus.info["sources"] == {"a": "0"}
    assert corpus.info["splits"]["train"]["words"] == 5
    assert corpus.fingerprint == fingerprint(SPLITS)
    with pytest.raises(CorpusError, match="expected one of the splits train, dev, found 'tset'"):
        corpus["tset"]


def test_unknown_is_not_empty(tmp_path: Path) -> None:
    corpus = save(tmp_path / "c")
    assert corpus["train"][1].layers() == ()
    assert corpus["dev"][0].layers() == ("ner", "con", "srl")


def test_splits_are_sequences(tmp_path: Path) -> None:
    many = [replace(FULL, id=f"s{k}") for k in range(10)]
    train = save(tmp_path / "c", {"train": many})["train"]
    assert len(train) == 10
    assert [train[k] for k in (0, 9, -1, -10)] == [many[k] for k in (0, 9, -1, -10)]
    for part in (slice(2, 5), slice(None, None, -1), slice(8, 1, -3), slice(5, 5), slice(4, 100)):
        assert train[part] == many[part]
    for outside in (10, -11):
        with pytest.raises(IndexError):
            train[outside]
    assert train.ids() == [sentence.id for sentence in many]
    assert train.find("s7") == many[7]
    assert train.find("s77") is None


def test_no_pickle_is_written(tmp_path: Path) -> None:
    save(tmp_path / "c")
    assert {path.suffix for path in (tmp_path / "c").rglob("*") if path.is_file()} == {".json", ".arrow"}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    "other",
    [
        {"train": [FULL, BARE], "test": [EMPTY, ODD]},
        {"train": [BARE, FULL], "dev": [EMPTY, ODD]},
        {"train": [FULL, BARE, EMPTY], "dev": [ODD]},
        {"train": [FULL, BARE], "dev": [replace(EMPTY, ner=None), ODD]},
        {"train": [FULL, BARE], "dev": [EMPTY, replace(ODD, srl=(Predicate(0, "a.01"),))]},
        {"train": [FULL, BARE], "dev": [EMPTY, replace(ODD, srl=(Predicate(0, None, (), "a"),))]},
        {"train": [FULL, replace(BARE, words=("a", "c"))], "dev": [EMPTY, ODD]},
    ],
)
def test_any_difference_changes_the_fingerprint(other: dict[str, list[Sentence]]) -> None:
    assert fingerprint(other) != fingerprint(SPLITS)


def test_the_fingerprint_is_the_same_everywhere() -> None:
    """In another process with another hash seed, and by hand."""
    code = "import test_store, mtlprune.corpora.fingerprint as f; print(f.fingerprint(test_store.SPLITS))"
    tests = Path(__file__).parent
    path = os.pathsep.join(map(str, (tests, tests.parent, tests.parents[1])))
    environment = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == fingerprint(SPLITS)
    assert fingerprint({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    lines = b'["split", "train"]\n["bare",["a","b"],null,null,null,null,null]\n'
    assert fingerprint({"train": [BARE]}) == hashlib.sha256(lines).hexdigest()


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    save(tmp_path / "c")
    with pytest.raises(CorpusError, match="expected a folder yet to be made"):
        save(tmp_path / "c", {"train": [BARE]})
    assert load_corpus(tmp_path / "c").splits == ("train", "dev")
    save(tmp_path / "c", {"train": [BARE]}, overwrite=True)
    assert load_corpus(tmp_path / "c").splits == ("train",)
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter1.txt").write_text("years of work")
    with pytest.raises(CorpusError, match="only a corpus is ever overwritten"):
        save(foreign, overwrite=True)
    assert (foreign / "chapter1.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "empty", "thesis"]


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({"train": [FULL], "dev": [FULL]}, SentenceError, "'full' occurs twice"),
        ({"train": [replace(BARE, pos=("A",))]}, SentenceError, "expected one tag a word"),
        ({"train": [BARE], "dev": []}, CorpusError, "expected at least one sentence in 'dev'"),
        ({"../train": [BARE]}, CorpusError, "expected split names of letters"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(
    tmp_path: Path, splits: dict[str, list[Sentence]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        save(tmp_path / "c", splits)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_worded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CorpusError, match="nothing was left behind"):
        save(tmp_path / "file" / "c")


def test_foreign_and_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="found no such folder"):
        load_corpus(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"found no corpus.json in it"):
        load_corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("{")
    with pytest.raises(CorpusError, match="expected JSON"):
        load_corpus(tmp_path)
    for text in ("[]", '{"format": "another"}'):
        (tmp_path / "corpus.json").write_text(text)
        with pytest.raises(CorpusError, match="found another format"):
            load_corpus(tmp_path)


def damage_cut(folder: Path) -> None:
    file = folder / "train/data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:200])


def damage_remove(folder: Path) -> None:
    shutil.rmtree(folder / "dev")


def damage_state(folder: Path) -> None:
    (folder / "train/state.json").write_text("{}")


def damage_keys(folder: Path) -> None:
    info = json.loads((folder / "corpus.json").read_text())
    del info["splits"]
    (folder / "corpus.json").write_text(json.dumps(info))


def damage_swap(folder: Path) -> None:
    (folder / "train").rename(folder / "x")
    (folder / "dev").rename(folder / "train")
    (folder / "x").rename(folder / "dev")


def damage_no_splits(folder: Path) -> None:
    info = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps({**info, "splits": {}}))


def damage_counts(folder: Path) -> None:
    info = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps({**info, "splits": {"train": {}}}))


def damage_count(folder: Path) -> None:
    info = json.loads((folder / "corpus.json").read_text())
    info["splits"]["train"]["sentences"] = 3
    (folder / "corpus.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_remove, damage_state, damage_keys, damage_no_splits, damage_counts, damage_swap, damage_count],
    ids=lambda f: f.__name__,
)
def test_damage_is_noticed(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(CorpusError, match=r"build (it|the corpus) anew"):
        load_corpus(tmp_path / "c").verify()


def test_offsets_that_would_crash_the_reader_are_noticed_when_opened(tmp_path: Path) -> None:
    save(tmp_path / "c", {"train": [replace(FULL, id=str(k)) for k in range(500)]})
    file = tmp_path / "c/train/data-00000-of-00001.arrow"
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = b"\xff" * 4000
    file.write_bytes(data)
    with pytest.raises(CorpusError, match="build it anew"):
        load_corpus(tmp_path / "c")


def test_source_digests(tmp_path: Path) -> None:
    for name, text in (("a/x", "1"), ("a/y/z", "2"), ("b/x", "1"), ("b/y/z", "2")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert source_digest(tmp_path / "a/x") == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    assert source_digest(tmp_path / "a") == source_digest(tmp_path / "b")
    (tmp_path / "b/x").rename(tmp_path / "b/w")
    assert source_digest(tmp_path / "a") != source_digest(tmp_path / "b")


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_no_flipped_bit_passes_for_the_corpus(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    """Either the corpus is refused in words, or the bit was padding and nothing has changed."""
    folder = tmp_path_factory.mktemp("flip") / "c"
    save(folder)
    file = folder / "train/data-00000-of-00001.arrow"
    data = bytearray(file.read_bytes())
    data[place % len(data)] ^= 1 << bit
    file.write_bytes(data)
    try:
        corpus = load_corpus(folder)
        corpus.verify()
    except (CorpusError, SentenceError):
        return
    assert list(corpus["train"]) == SPLITS["train"]


@settings(max_examples=50)
@given(st.data())
def test_the_fingerprint_depends_on_content_only(data: st.DataObject) -> None:
    first, second = data.draw(corpora()), data.draw(corpora())
    assert (fingerprint({"train": first}) == fingerprint({"train": second})) == (first == second)
