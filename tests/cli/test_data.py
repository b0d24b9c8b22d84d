"""mtlprune data, as a user calls it: what it prints, what it leaves behind, and one sentence for each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conll2012_files import NAMED, put, small_corpus
from rich.console import Console

from mtlprune.cli.display import print_sentence
from mtlprune.corpora.formats.brackets import format_tree
from mtlprune.corpora.store import load_corpus
from mtlprune.sentence import Sentence

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def corpus(mtlprune: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated corpus, made once; do not write into it."""
    folder = tmp_path_factory.mktemp("data") / "grammar"
    assert mtlprune("data", "build", "grammar", "--out", folder, "--train", 20, "--dev", 5, "--test", 0).code == 0
    return folder


def test_build_stores_what_was_asked_for(corpus: Path) -> None:
    stored = load_corpus(corpus)
    assert {split: len(stored[split]) for split in stored.splits} == {"train": 20, "dev": 5}
    assert stored.info["licence"] == "Apache-2.0"
    assert "train 20, dev 5, test 0, seed 1" in stored.info["sources"]["generator"]


def test_check_counts(corpus: Path, mtlprune: Call) -> None:
    code, out, _ = mtlprune("data", "check", corpus)
    assert code == 0
    row = next(line for line in out.splitlines() if "sentences with all layers" in line)
    assert row.replace("│", " ").split() == ["sentences", "with", "all", "layers", "20", "5"]
    assert load_corpus(corpus).fingerprint in out


def test_show_prints_every_layer(corpus: Path, mtlprune: Call) -> None:
    sentence = next(s for s in load_corpus(corpus)["dev"] if s.srl and s.ner)
    code, out, _ = mtlprune("data", "show", corpus, sentence.id)
    assert code == 0
    assert f"{sentence.id} (dev)" in out
    assert " ".join(sentence.words) in out
    for text in (sentence.ner[0].label, *sentence.dep.relations, *sentence.pos, sentence.srl[0].arguments[0].label):  # type: ignore
        assert text in out
    place = load_corpus(corpus)["dev"].ids().index(sentence.id) + 1
    assert mtlprune("data", "show", corpus, f"dev:{place}").out == out


def test_export_writes_one_layer(corpus: Path, mtlprune: Call, tmp_path: Path) -> None:
    out = tmp_path / "dev.con"
    answer = mtlprune("data", "export", corpus, "--split", "dev", "--layer", "con", "--out", out)
    assert out.read_text().splitlines() == [format_tree(sentence) for sentence in load_corpus(corpus)["dev"]]
    assert answer.code == 0 and f"{out}: 5 of 5 sentences" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "wsj", "--out", "{tmp}/x"], "expected one of the corpora ewt5, ontonotes5, grammar, found 'wsj'"),
        (["build", "ewt5", "--out", "{tmp}/x"], "say where they are with --sources"),
        (["build", "grammar", "--out", "{tmp}/x", "--sources", "."], "--sources does not apply to grammar"),
        (["build", "grammar", "--out", "{corpus}"], "expected a folder yet to be made, found one"),
        (["build", "grammar", "--out", "{tmp}", "--overwrite"], "only a corpus is ever overwritten"),
        (["show", "{corpus}", "nobody"], "expected the id of a sentence, found 'nobody'; ids are like"),
        (
            ["export", "{corpus}", "--split", "test", "--layer", "con", "--out", "{tmp}/x"],
            "splits train, dev, found 'test'",
        ),
        (
            ["export", "{corpus}", "--split", "dev", "--layer", "tags", "--out", "{tmp}/x"],
            "expected a layer out of pos",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(arguments, message, corpus, mtlprune, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    answer = mtlprune("data", *(argument.format(tmp=tmp_path, corpus=corpus) for argument in arguments))
    answer.refuses(message)
    assert answer.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_unknown_and_empty_layers_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_sentence(Console(width=80), Sentence("s", ("[red]", "b"), ner=()), "dev")
    out = capsys.readouterr().out
    assert "unknown: pos, dep, con, srl\n" in out
    assert "nothing there: ner\n" in out
    assert "[red]" in out


def test_building_ontonotes_says_what_it_counted(tmp_path: Path, mtlprune: Call) -> None:
    files, dependencies = small_corpus(tmp_path, documents=1)
    put(files, "test", "nw/own/01/own_0009", NAMED, ending="v9_auto_mention_boundaries_conll")
    arguments = ("--sources", files, "--dep", dependencies, "--out", tmp_path / "made")
    code, _, said = mtlprune("data", "build", "ontonotes5", *arguments)
    assert code == 0
    assert "left out 1 automatic files, 0 in other languages, 0 in no split folder" in said
    counts = "1 documents, 0 without ner, 0 without srl, 0 nested entities, 0 unparsed sentences"
    assert all(f"OntoNotes 5 {split}: {counts}" in said for split in ("train", "dev", "test"))
