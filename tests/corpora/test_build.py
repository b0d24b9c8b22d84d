"""Anyone's files: which are read, how they are split, ids that differ, and corpora merged."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import corpora

from mtlprune.corpora import CorpusError, store
from mtlprune.corpora.build import expand_paths, find_oddities, merge, read_files, split_at_random, with_unique_ids
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Sentence, Span


def lines(path: Path) -> list[Sentence]:
    """A sentence a line, the ids of every file the same."""
    return [Sentence(f"s{k}", tuple(text.split())) for k, text in enumerate(path.read_text().splitlines())]


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} x\n")
    names = [str(tmp_path / part) for part in ("a.txt", "b", "*.txt")]
    assert [path.name for path in expand_paths(names)] == ["a.txt", "1.txt", "2.txt"]
    with pytest.raises(CorpusError, match="expected a file, a folder of files or a pattern, found none"):
        expand_paths([""])
    if sys.version_info < (3, 13):
        with pytest.raises(CorpusError, match=r"a..b: expected a pattern"):
            expand_paths(["a**b"])
    told: list[str] = []
    splits, about = read_files([], {"train": names, "dev": [names[0]], "test": []}, lines, told.append)
    assert {split: [s.id for s in found] for split, found in splits.items()} == {
        "train": ["s0", "s0~2", "s0~3"], "dev": ["s0~4"],
    }  # fmt: skip
    assert len(about["sources"]) == 3 and about["left_out"] == {}
    assert told == ["3 sentences had the id of an earlier sentence and got another id, such as ID~2"]


@pytest.mark.parametrize("is_split", [False, True])
def test_a_corpus_that_is_not_held_in_memory_is_the_same(tmp_path: Path, monkeypatch, is_split: bool) -> None:
    """Three files repeat ids. With a limit of two sentences they pass through temporary files."""
    names = [str(tmp_path / f"{number}.txt") for number in range(3)]
    for name in names:
        Path(name).write_text("".join(f"{name} x{row}\n" for row in range(5)))
    paths = (names, {}) if is_split else ([], {"train": names[:2], "dev": names[2:]})
    built = {}
    for limit in (10**6, 2):
        monkeypatch.setattr(store, "IN_MEMORY", limit)
        splits, record = read_files(*paths, lines, lambda line: None)
        assert all(isinstance(sentences, list) == (len(sentences) <= limit) for sentences in splits.values())
        folder = tmp_path / f"corpus-{limit}"
        store.save_corpus(splits, folder, name="many", licence="CC0", sources=record["sources"])
        built[limit] = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert find_oddities(splits) == find_oddities(store.load_corpus(folder)._splits)
    assert built[2] == built[10**6] and len(built[2]) == (4 if is_split else 3)


def test_a_temporary_file_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "IN_MEMORY", 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(CorpusError, match=r"missing: a temporary file could not be written .*TMPDIR"):
        store.spooled(Sentence(f"s{k}", ("a",)) for k in range(3))


@given(st.integers(10, 60), st.integers(0, 5))
def test_a_split_by_chance_is_a_partition_in_order(size: int, seed: int) -> None:
    sentences = [Sentence(f"s{k:03}", ("a",)) for k in range(size)]
    splits = split_at_random(sentences, "60/20/20", seed)
    assert sorted(s.id for part in splits.values() for s in part) == [s.id for s in sentences]
    assert all([s.id for s in part] == sorted(s.id for s in part) for part in splits.values())
    assert abs(len(splits["train"]) - 0.6 * size) <= 1
    assert [list(part) for part in splits.values()] == [
        list(p) for p in split_at_random(sentences, "60/20/20", seed).values()
    ]
    assert list(split_at_random(sentences, "80/20/0", seed)) == ["train", "dev"]


def test_what_a_file_contradicts_or_lacks_names_it(tmp_path: Path) -> None:
    for name, kind in (("one", "tags"), ("two", "spans")):
        (tmp_path / name).write_text(kind)

    def read(path: Path) -> list[Sentence]:
        kind = path.read_text()
        return [Sentence("s", ("a",)).with_layers(chunk=Layer(kind, ("X",) if kind == "tags" else ()))]

    one, two = (str(tmp_path / name) for name in ("one", "two"))
    with pytest.raises(CorpusError, match=r"/two, sentence 's': .* of the kind tags, as it is in .*/one, found spans"):
        read_files([one, two], {}, read, print)
    with pytest.raises(CorpusError, match="/one: expected enough sentences for 10 % of dev, found 1 sentence"):
        read_files([one], {}, read, print)
    for shares in ("80/20", "80/10/9", "٨٠/10/10", f"{'9' * 5000}/10/10", "-80/90/90"):
        with pytest.raises(CorpusError, match="--split: expected percentages"):
            read_files([one], {}, read, print, shares=shares)


def test_new_ids_never_take_those_that_stand_in_the_files() -> None:
    names = ["a", "a", "a~2", "a", "a~2"]
    found = with_unique_ids({"train": [Sentence(name, ("w",)) for name in names]}, print)["train"]
    assert len({s.id for s in found}) == 5 and [s.id for s in found][::2][:2] == ["a", "a~2"]


@given(corpora(), st.randoms(use_true_random=False))
def test_merging_puts_layers_together_again(content: list[Sentence], chance: Random) -> None:
    """Sentences taken apart by layers, the second part in another order, and some of either part alone."""
    first = [s.bare().with_layers(pos=s.pos, dep=s.dep) for s in content]
    second = [s.bare().with_layers(ner=s.ner, con=s.con, srl=s.srl, x=Layer("tags", s.words)) for s in content]
    chance.shuffle(second)
    whole, _ = merge({"a": {"train": first}, "b": {"train": second, "dev": second[:1]}}, print)
    assert [s.words for s in whole["train"]] == [s.words for s in content]
    if len({s.words for s in content}) == len(content):
        assert list(whole["train"]) == [s.with_layers(x=Layer("tags", s.words)) for s in content]
    assert [s.words for s in whole["dev"]] == [second[0].words]


def test_merging_keeps_what_came_first_and_refuses_two_kinds() -> None:
    told: list[str] = []
    a = Sentence("1", ("a", "b"), pos=("X", "Y"))
    b = Sentence("1", ("a", "b"), pos=("X", "Z"), ner=(Span(0, 1, "P"),))
    merged, _ = merge({"A": {"train": [a]}, "B": {"train": [b, b], "test": [b]}}, told.append)
    assert [(s.id, s.pos, s.ner) for s in merged["train"]] == [("1", a.pos, b.ner), ("1~2", b.pos, b.ner)]
    assert "in 1 of the joined sentences pos differs from the earlier corpus" in told[1]
    kinds = [a.with_layers(x=Layer("tags", ("A", "B"))), a.with_layers(x=Layer("spans", ()))]
    with pytest.raises(CorpusError, match="B: expected the layer x to be of the kind tags as in A, found spans"):
        merge({name: {"train": [s]} for name, s in zip("AB", kinds, strict=True)}, print)


def test_what_is_odd_is_told_of_every_corpus() -> None:
    plain = Sentence("s", ("a", "b"), dep=Dependencies((2, 0), ("x", "root")))
    roots = replace(plain, id="t", words=("a", "\x00b"), dep=Dependencies((0, 0), ("root", "root")))
    assert find_oddities({"train": [plain], "dev": [replace(plain, words=("b", "a"))]}) == []
    said = find_oddities({"train": [roots, plain], "dev": [plain]})
    assert [line.partition("; ")[2] for line in said] == ["the first is t", "the first is t", "the first is s"]
    assert "1 of 2 sentences of train have several roots" in said[0] and "control characters" in said[1]
    assert said[2] == "warning: 1 of 1 sentences of dev have the same words as a sentence of train; the first is s"
    odd = Sentence("o", ("c",), pos=("B-PER",), ner=(Span(0, 1, "O"),))
    assert ["such as B-PER" in line for line in find_oddities({"train": [odd]})] == [True, False]
    assert "spans of the type O" in find_oddities({"train": [odd]})[1]
    lacking = find_oddities({"train": [plain], "dev": [Sentence("u", ("c",), pos=("N",))]})
    assert [line.partition(" ")[2].partition(",")[0] for line in lacking] == ["train lacks pos", "dev lacks dep"]
