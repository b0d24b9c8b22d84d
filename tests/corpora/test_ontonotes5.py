"""OntoNotes 5 on a small corpus of our own in the same formats: splits, unknown layers, dependencies both ways."""

import logging
import os
import sys
from pathlib import Path

import pytest
from conll2012_files import NAMED, PLAIN, put
from random_sentences import spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.ontonotes5 import build_ontonotes5
from mtlprune.corpora.tables import source_digest
from mtlprune.sentence import Dependencies, Predicate, Sentence

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
    assert splits["test"][0] == Sentence(
        "nw/own/00/own_0004/000/0",
        ("Ada", "saw", "Rome", "."),
        pos=("NNP", "VBD", "NNP", "."),
        ner=spans((0, 1, "PERSON"), (2, 3, "GPE")),
        con=spans((0, 4, "S"), (0, 1, "NP"), (1, 3, "VP"), (2, 3, "NP")),
        srl=(Predicate(1, "see.01", spans((0, 1, "ARG0"), (1, 2, "V"), (2, 3, "ARG1")), "see"),),
    )


@pytest.mark.parametrize("ending", ["v4_gold_conll", "gold_conll", "v12_conll"])
def test_releases_and_stray_files(corpus: Path, ending: str) -> None:
    expected = build_ontonotes5(corpus)
    for path in list(corpus.rglob("*_conll")):
        path.rename(path.with_suffix("." + ending))
        put(corpus, path.relative_to(corpus).parts[1], "nw/own/00/" + path.stem, PLAIN, ending="v4_auto_conll")
    chinese = corpus / "data/train/data/chinese/annotations/zh.v4_gold_conll"
    chinese.parent.mkdir(parents=True)
    chinese.write_text("not read")
    (corpus / "data" / "conll-2012-test").mkdir()
    (corpus / "data" / "conll-2012-test" / "few.v4_gold_conll").write_text("not read")
    assert build_ontonotes5(corpus) == expected


@pytest.mark.parametrize("name", ["v9_auto_mention_boundaries_conll", "auto_conll", "v4_auto_gold_conll"])
def test_automatic_files_are_never_gold(corpus: Path, name: str) -> None:
    expected = build_ontonotes5(corpus)
    put(corpus, "test", "nw/own/01/own_0009", NAMED, ending=name)  # a folder without gold files
    said: list[str] = []
    assert build_ontonotes5(corpus, tell=said.append) == expected
    assert said[0].endswith("left out 1 automatic files, 0 in other languages, 0 in no split folder")
    [gold] = (corpus / "data/test").rglob("own_0004*")
    gold.unlink()
    with pytest.raises(CorpusError, match=r"found none for test\. Files with auto in their name are no gold"):
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
    return {
        sentence.id[len("nw/own/00/own_") :]: "".join(
            "+" if layer == () else "-" if layer is None else "#" for layer in (sentence.ner, sentence.srl)
        )
        for sentences in splits.values()
        for sentence in sentences
    }


def test_without_annotation_files_the_columns_decide(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        splits = build_ontonotes5(corpus)
    assert known(splits) == {
        "0002/000/0": "++", "0002/000/1": "##", "0010/000/0": "--",
        "0003/000/0": "##", "0003/000/1": "++", "0004/000/0": "##",
    }  # fmt: skip
    assert "train: 2 documents, 1 without ner, 1 without srl" in caplog.text


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("place", ["data/train/data/english/annotations", "release/files/english/annotations"])
def test_annotation_files_decide(corpus: Path, place: str) -> None:
    put(corpus, "development", "nw/own/00/own_0003", PLAIN)  # nothing on the layers, as in the document after it
    put(corpus, "development", "nw/own/00/own_0005", PLAIN)
    touch(corpus / place / "nw/own/00", "own_0002.name", "own_0010.name", "own_0002.prop")
    found = known(build_ontonotes5(corpus))
    assert found["0010/000/0"] == "+-"  # named, with no names in it; not propbanked
    assert found["0003/000/0"] == found["0005/000/0"] == "--"
    assert found["0004/000/0"] == "##"  # what is marked is known, whatever files were copied


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("annotations/nw/own/00", "-+"),  # one layer's files say nothing of the other
        (".", "--"),  # not under the document's name: no document has a .prop here
        ("release/chinese/annotations/nw/own/00", "--"),
        ("release/arabic/annotations/nw/own/00", "--"),
    ],
)
def test_annotation_files_count_for_their_layer_and_their_document(corpus: Path, folder: str, expected: str) -> None:
    touch(corpus / folder, "own_0010.prop")
    assert known(build_ontonotes5(corpus))["0010/000/0"] == expected


def test_what_does_not_fit_is_told(corpus: Path, tmp_path: Path) -> None:
    def refused(message: str, *arguments: Path) -> None:
        with pytest.raises(CorpusError, match=message):
            build_ontonotes5(*(arguments or [corpus]))

    refused("expected a folder", tmp_path / "none")
    refused("give one", corpus, tmp_path, tmp_path)
    twice = put(corpus, "test", "nw/own/00/own_0002", NAMED)
    refused(r"already read from .*each document in one split")
    twice.unlink()
    dev = next((corpus / "data" / "development").rglob("*_conll"))
    skeleton = dev.rename(dev.with_suffix(".v4_gold_skel"))
    refused(r"found none for dev\. There are \*_skel files")
    skeleton.unlink()
    refused(r"found none for dev\.$")


def conllx(*sentences: str) -> str:
    """One string a sentence: words with head and relation, as in ``Ada/2/nsubj``."""
    text = ""
    for sentence in sentences:
        for number, row in enumerate(sentence.split(), 1):
            word, head, relation = row.rsplit("/", 2)
            text += f"{number}\t{word}\t_\tX\tX\t_\t{head}\t{relation}\t_\t_\n"
        text += "\n"
    return text


NAMED_DEP = "Ada/2/nsubj saw/0/root Rome/2/dobj /./2/punct"
PLAIN_DEP = "Yes/0/root (/1/punct really/1/advmod -RRB-/1/punct"


ALL_DEP = (PLAIN_DEP, NAMED_DEP) * 3
TREES = {
    "Ada": Dependencies((2, 0, 2, 2), ("nsubj", "root", "dobj", "punct")),
    "Yes": Dependencies((0, 1, 1, 1), ("root", "punct", "advmod", "punct")),
}


def check_dependencies(splits: dict[str, list[Sentence]]) -> None:
    assert all(s.dep == TREES[s.words[0]] for sentences in splits.values() for s in sentences)


def test_dependencies_from_one_file(corpus: Path, tmp_path: Path) -> None:
    plain = build_ontonotes5(corpus)
    (tmp_path / "all.conllx").write_text(conllx(*ALL_DEP))
    splits = build_ontonotes5(corpus, dep=tmp_path / "all.conllx")
    check_dependencies(splits)
    assert plain == {split: [old.with_layers(dep=None) for old in sentences] for split, sentences in splits.items()}
    put(corpus, "test", "nw/own/00/own_0004", TREELESS, NAMED)  # a sentence without a tree may be missing
    treeless, named = build_ontonotes5(corpus, dep=tmp_path / "all.conllx")["test"]
    assert (treeless.dep, treeless.con, treeless.pos, named.dep) == (None, None, None, TREES["Ada"])


@pytest.mark.parametrize("dev", ["dev.conllu", "en-development.conllx"])
def test_dependencies_from_a_folder(corpus: Path, tmp_path: Path, dev: str) -> None:
    folder = tmp_path / "dep"
    folder.mkdir()
    (folder / "train.dep.conllx").write_text(conllx(PLAIN_DEP, NAMED_DEP, PLAIN_DEP))
    (folder / dev).write_text("# sent_id = x\n" + conllx(NAMED_DEP, PLAIN_DEP))
    (folder / "README").write_text("not read")
    with pytest.raises(CorpusError, match="one file with test in its name, found none"):
        build_ontonotes5(corpus, dep=folder)
    (folder / "test.conllx").write_text(conllx(NAMED_DEP))
    check_dependencies(build_ontonotes5(corpus, dep=folder))
    (folder / "test.conllu").write_text(conllx(NAMED_DEP))
    with pytest.raises(CorpusError, match=r"found test\.conllu, test\.conllx"):
        build_ontonotes5(corpus, dep=folder)


@pytest.mark.parametrize(
    ("sentences", "what"),
    [
        (ALL_DEP[:5], r"expected 6 sentences \(6 with trees\), found 5"),
        ((PLAIN_DEP, NAMED_DEP.replace("Rome", "Rom")), "all.conllx, line 8: expected the word 'Rome' of sentence nw/"),
        ((PLAIN_DEP, NAMED_DEP + " !/2/punct"), "line 6: expected the 4 words of sentence nw/own/00/own_0002/000/1"),
        ((PLAIN_DEP, NAMED_DEP.replace("Ada/2", "Ada/1")), "line 6"),
        ((PLAIN_DEP, NAMED_DEP.replace("Ada/2", "Ada/9")), "line 6"),
    ],
)
def test_dependencies_that_do_not_fit(corpus: Path, tmp_path: Path, sentences: tuple[str, ...], what: str) -> None:
    (tmp_path / "all.conllx").write_text(conllx(*sentences))
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
for tree in trees[: -1 if wrong == "short" else None]:
    for number, word in enumerate(re.findall(r"\\([^\\s()]+ ([^\\s()]+)\\)", tree)):
        word += "x" if wrong == "words" else ""
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
    splits = build_ontonotes5(corpus, converter=jar)
    for sentence in (sentence for sentences in splits.values() for sentence in sentences):
        n = len(sentence)
        chain = Dependencies(tuple(range(n)), ("root",) + ("dep",) * (n - 1))
        assert sentence.dep == (None if sentence.con is None else chain)
    assert splits["test"][2].words == ("Ada", "saw", "Zürich", ".")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("exit", "exit code 3 (no such luck"),
        ("short", "for train does not fit: .*expected 3 sentences .*found 2"),
        ("words", "for train does not fit: .*line 1: expected the word 'Yes'.*found 'Yesx'"),
    ],
)
def test_a_converter_that_goes_wrong(corpus, jar, monkeypatch, wrong, what):
    monkeypatch.setenv("FAKE_CONVERTER", wrong)
    with pytest.raises(CorpusError, match=what.replace("(", r"\(")):
        build_ontonotes5(corpus, converter=jar)


def test_no_jar_and_no_java(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="found no such file"):
        build_ontonotes5(corpus, converter=tmp_path / "none.jar")
    jar = tmp_path / "any.jar"
    jar.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CorpusError, match="install a Java runtime"):
        build_ontonotes5(corpus, converter=jar)
