"""OntoNotes 5 on a small corpus of our own in the same formats: splits, unknown layers, dependencies both ways."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conll2012_files import NAMED, PLAIN, put, tree

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.conll2012 import read_conll2012
from mtlprune.corpora.ontonotes5 import build_ontonotes5
from mtlprune.corpora.tables import source_digest
from mtlprune.sentence import Dependencies, Sentence

TREELESS = ("Uh XX (TOP* - - *", "well XX *) - - *")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two documents in train, one each in dev and test; the second of train has neither entities nor predicates."""
    root = tmp_path / "conll-2012"
    put(root, "train", "nw/own/00/own_0002", PLAIN, NAMED)
    put(root, "train", "nw/own/00/own_0010", PLAIN)
    put(root, "development", "nw/own/00/own_0003", NAMED, PLAIN)
    put(root, "test", "nw/own/00/own_0004", NAMED)
    return root


def test_layers_splits_and_order(corpus: Path) -> None:
    splits = build_ontonotes5(corpus)
    assert {split: [sentence.id for sentence in sentences] for split, sentences in splits.items()} == {
        "train": ["nw/own/00/own_0002/000/0", "nw/own/00/own_0002/000/1", "nw/own/00/own_0010/000/0"],
        "dev": ["nw/own/00/own_0003/000/0", "nw/own/00/own_0003/000/1"],
        "test": ["nw/own/00/own_0004/000/0"],
    }
    [path] = (corpus / "data/test").rglob("*_conll")
    assert splits["test"] == list(read_conll2012(path))


@pytest.mark.parametrize("ending", ["v4_gold_conll", "gold_conll", "v12_conll"])
def test_automatic_and_stray_files_are_no_gold(corpus: Path, ending: str) -> None:
    expected = build_ontonotes5(corpus)
    for path in list(corpus.rglob("*_conll")):
        path.rename(path.with_suffix("." + ending))
        put(corpus, path.relative_to(corpus).parts[1], "nw/own/00/" + path.stem, PLAIN, ending="v4_auto_conll")
    for name in ("v9_auto_mention_boundaries_conll", "auto_conll", "v4_auto_gold_conll"):
        put(corpus, "test", "nw/own/01/own_0009", NAMED, ending=name)  # a folder without gold files
    for folder in ("train/data/chinese", "conll-2012-test"):
        (corpus / "data" / folder).mkdir(parents=True)
        (corpus / "data" / folder / "few.v4_gold_conll").write_text("not read")
    said: list[str] = []
    assert build_ontonotes5(corpus, tell=said.append) == expected
    assert said[0].endswith("7 automatic files, 1 in other languages and 1 outside of split folders were left out")
    next((corpus / "data/test").rglob(f"own_0004.{ending}")).unlink()
    with pytest.raises(CorpusError, match=r"found none for test\. Files with auto in their name have no gold"):
        build_ontonotes5(corpus)


def test_linked_folders_are_followed(corpus: Path, tmp_path: Path) -> None:
    expected, digest = build_ontonotes5(corpus), source_digest(corpus)
    (corpus / "data/test").rename(tmp_path / "elsewhere")
    (corpus / "data/test").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(corpus)  # a circle
    assert build_ontonotes5(corpus) == expected and source_digest(corpus) == digest
    touch(tmp_path / "annotations/nw/own/00", "own_0010.name")
    (corpus / "annotations").symlink_to(tmp_path / "annotations")
    assert known(build_ontonotes5(corpus))["0010/000/0"] == "+-"
    assert source_digest(corpus) != digest


def known(splits: dict[str, list[Sentence]]) -> dict[str, str]:
    """End of id → whether NER and SRL are unknown (-), empty (+) or there (#)."""
    marks = {None: "-", (): "+"}
    every = [sentence for sentences in splits.values() for sentence in sentences]
    return {s.id[len("nw/own/00/own_") :]: "".join(marks.get(layer, "#") for layer in (s.ner, s.srl)) for s in every}


def test_without_annotation_files_the_columns_decide(corpus: Path) -> None:
    said: list[str] = []
    assert known(build_ontonotes5(corpus, tell=said.append)) == {
        "0002/000/0": "++", "0002/000/1": "##", "0010/000/0": "--",
        "0003/000/0": "##", "0003/000/1": "++", "0004/000/0": "##",
    }  # fmt: skip
    assert "train: 2 documents, 1 without ner, 1 without srl" in said[0]


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


NAMES = ("own_0002.name", "own_0010.name", "own_0002.prop")


@pytest.mark.parametrize(
    ("folder", "names", "expected"),
    [
        ("data/train/data/english/annotations/nw/own/00", NAMES, "+-"),  # named, with no names in it; not propbanked
        ("release/files/english/annotations/nw/own/00", NAMES, "+-"),
        ("annotations/nw/own/00", ["own_0010.prop"], "-+"),  # one layer's files say nothing of the other
        (".", ["own_0010.prop"], "--"),  # not under the document's name: no document has a .prop here
        ("release/chinese/annotations/nw/own/00", ["own_0010.prop"], "--"),
    ],
)
def test_annotation_files_decide(corpus: Path, folder: str, names: Sequence[str], expected: str) -> None:
    put(corpus, "development", "nw/own/00/own_0003", PLAIN)  # nothing on the layers, as in the document after it
    put(corpus, "development", "nw/own/00/own_0005", PLAIN)
    touch(corpus / folder, *names)
    found = known(build_ontonotes5(corpus))
    assert found["0010/000/0"] == expected
    assert found["0003/000/0"] == found["0005/000/0"] == "--"
    assert found["0004/000/0"] == "##"  # what is marked is known, whatever files were copied


def test_what_does_not_fit_is_told(corpus: Path, tmp_path: Path) -> None:
    def refused(message: str, *arguments: Path) -> None:
        with pytest.raises(CorpusError, match=message):
            build_ontonotes5(*(arguments or [corpus]))

    refused("expected a folder", tmp_path / "none")
    twice = put(corpus, "test", "nw/own/00/own_0002", NAMED)
    refused(r"already read from .*each document in one split")
    twice.unlink()
    dev = next((corpus / "data" / "development").rglob("*_conll"))
    skeleton = dev.rename(dev.with_suffix(".v4_gold_skel"))
    refused(r"found none for dev\. The words of \*_skel files")
    skeleton.unlink()
    refused(r"found none for dev\.$")


NAMED_DEP, PLAIN_DEP = tree(NAMED), tree(PLAIN).replace("-LRB-", "(")  # brackets and slashes may be written otherwise
ALL_DEP = (PLAIN_DEP, NAMED_DEP) * 3  # of train, dev and test


def test_dependencies_from_one_file(corpus: Path, tmp_path: Path) -> None:
    plain = build_ontonotes5(corpus)
    (tmp_path / "all.conllx").write_text("".join(ALL_DEP))
    splits = build_ontonotes5(corpus, dep=tmp_path / "all.conllx")
    flat = Dependencies((0, 1, 1, 1), ("root", "dep", "dep", "dep"))
    assert splits == {split: [s.with_layers(dep=flat) for s in plain[split]] for split in plain}
    put(corpus, "test", "nw/own/00/own_0004", TREELESS, NAMED)  # a sentence without a tree may be missing
    treeless, named = build_ontonotes5(corpus, dep=tmp_path / "all.conllx")["test"]
    assert (treeless.dep, treeless.con, treeless.pos, named.dep) == (None, None, None, flat)


def test_dependencies_from_a_folder(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dep"
    touch(folder, "README")
    (folder / "train.dep.conllx").write_text("".join(ALL_DEP[:3]))
    (folder / "en-development.conllu").write_text("# sent_id = x\n" + "".join(ALL_DEP[3:5]))
    with pytest.raises(CorpusError, match="one file with test in its name, found none"):
        build_ontonotes5(corpus, dep=folder)
    (folder / "test.conllx").write_text(ALL_DEP[5])
    (tmp_path / "all.conllx").write_text("".join(ALL_DEP))
    assert build_ontonotes5(corpus, dep=folder) == build_ontonotes5(corpus, dep=tmp_path / "all.conllx")
    touch(folder, "test.conllu")
    with pytest.raises(CorpusError, match=r"found test\.conllu, test\.conllx"):
        build_ontonotes5(corpus, dep=folder)


@pytest.mark.parametrize(
    ("sentences", "what"),
    [
        (ALL_DEP[:5], r"expected 6 sentences \(6 with trees\), found 5"),
        ((PLAIN_DEP, NAMED_DEP.replace("Rome", "Rom")), "all.conllx, sentence 2: .*'Rome', found 'Rom'"),
        ((PLAIN_DEP, tree((*NAMED, "! ."))), "sentence 2: .* nw/own/00/own_0002/000/1, and there None, found '!'"),
    ],
)
def test_dependencies_that_do_not_fit(corpus: Path, tmp_path: Path, sentences: tuple[str, ...], what: str) -> None:
    (tmp_path / "all.conllx").write_text("".join(sentences))
    with pytest.raises(CorpusError, match=what):
        build_ontonotes5(corpus, dep=tmp_path / "all.conllx")


# Stands in for Java with Stanford's class: checks how it is called, chains each word of every tree to the one before
# it, and goes wrong in the way the environment asks for.
JAVA = f"""#!{sys.executable}
import os, pathlib, re, sys
wrong, words = os.environ.get("FAKE_CONVERTER", ""), sys.argv[-6:]
expected = ["edu.stanford.nlp.trees.EnglishGrammaticalStructure", "-basic", "-keepPunct", "-conllx", "-treeFile"]
if wrong == "exit" or words[:5] != expected:
    print("no such luck:", *words, file=sys.stderr)
    sys.exit(3)
trees = pathlib.Path(words[5]).read_text(encoding="utf-8").splitlines()
for tree in trees:
    for number, word in enumerate(re.findall(r"\\([^\\s()]+ ([^\\s()]+)\\)", tree)):
        row = [number + 1, word, "_", "X", "X", "_", number, "dep" if number else "root", "_", "_"]
        sys.stdout.buffer.write(("\\t".join(map(str, row)) + "\\n").encode())
    sys.stdout.buffer.write(b"\\n")
"""


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").write_text(JAVA)
    (tmp_path / "bin/java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "a parser.jar").touch()
    return tmp_path / "a parser.jar"


def test_the_converter_is_called_on_the_trees(corpus: Path, jar: Path) -> None:
    put(corpus, "test", "nw/own/00/own_0004", TREELESS, NAMED, tuple(row.replace("Rome", "Zürich") for row in NAMED))
    splits = build_ontonotes5(corpus, dep=jar)
    for sentence in (sentence for sentences in splits.values() for sentence in sentences):
        n = len(sentence)
        chain = Dependencies(tuple(range(n)), ("root",) + ("dep",) * (n - 1))
        assert sentence.dep == (None if sentence.con is None else chain)
    assert splits["test"][2].words == ("Ada", "saw", "Zürich", ".")


def test_converters_that_fail_or_are_not_there(corpus: Path, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CONVERTER", "exit")
    with pytest.raises(CorpusError, match=r"exit code 3 \(no such luck"):
        build_ontonotes5(corpus, dep=jar)
    monkeypatch.setenv("PATH", str(corpus))
    for name, reason in (("none.jar", "found no such file"), (jar.name, "install a Java runtime")):
        with pytest.raises(CorpusError, match=reason):
            build_ontonotes5(corpus, dep=jar.parent / name)
