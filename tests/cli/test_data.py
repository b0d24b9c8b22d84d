"""mtlprune data, as a user calls it: what it prints, what it leaves behind, and one sentence for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conll2012_files import NAMED, put, small_corpus
from rich.console import Console
from shared_corpora import EWT, needs_ewt

from mtlprune.cli import main
from mtlprune.cli.sentence_display import format_tree_lines, print_sentence
from mtlprune.corpora.formats.brackets import format_tree
from mtlprune.corpora.store import load_corpus
from mtlprune.sentence import Sentence, Span


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated corpus, made once; do not write into it."""
    folder = tmp_path_factory.mktemp("data") / "grammar"
    arguments = ["data", "build", "grammar", "--out", str(folder), "--train", "20", "--dev", "5", "--test", "0"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "argv", ["mtlprune", *arguments])
        main()
    assert stopped.value.code == 0
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run ``mtlprune data ...`` in this process; the exit code."""
    monkeypatch.setattr(sys, "argv", ["mtlprune", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_build_stores_what_was_asked_for(corpus: Path) -> None:
    stored = load_corpus(corpus)
    assert {split: len(stored[split]) for split in stored.splits} == {"train": 20, "dev": 5}
    assert stored.info["licence"] == "Apache-2.0"
    assert "train 20, dev 5, test 0, seed 1" in stored.info["sources"]["generator"]


def test_check_counts(corpus: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert call(monkeypatch, "check", corpus) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "sentences with all layers" in line)
    assert row.replace("│", " ").split() == ["sentences", "with", "all", "layers", "20", "5"]
    assert load_corpus(corpus).fingerprint in out


def test_show_prints_every_layer(corpus: Path, monkeypatch: Patch, capsys: Captured) -> None:
    sentence = next(s for s in load_corpus(corpus)["dev"] if s.srl and s.ner)
    assert call(monkeypatch, "show", corpus, sentence.id) == 0
    out = capsys.readouterr().out
    assert f"{sentence.id} (dev)" in out
    assert " ".join(sentence.words) in out
    for text in (sentence.ner[0].label, *sentence.dep.relations, *sentence.pos, sentence.srl[0].arguments[0].label):  # type: ignore
        assert text in out
    place = load_corpus(corpus)["dev"].ids().index(sentence.id) + 1
    assert call(monkeypatch, "show", corpus, f"dev:{place}") == 0
    assert capsys.readouterr().out == out


def test_export_writes_one_layer(corpus: Path, monkeypatch: Patch, capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "dev.con"
    assert call(monkeypatch, "export", corpus, "--split", "dev", "--layer", "con", "--out", out) == 0
    assert out.read_text().splitlines() == [format_tree(sentence) for sentence in load_corpus(corpus)["dev"]]
    assert f"{out}: 5 of 5 sentences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "wsj", "--out", "{tmp}/x"], "expected one of the corpora ewt5, ontonotes5, grammar, found 'wsj'"),
        (["build", "ewt5", "--out", "{tmp}/x"], "say where they are with --sources"),
        (
            ["build", "ewt5", "--out", "{tmp}/x", "--sources", "{tmp}"],
            "en_ewt-ud-train.conllu: expected a file, found none",
        ),
        (["build", "ewt5", "--out", "{tmp}/x", "--sources", ".", "--seed", "1"], "--seed does not apply to ewt5"),
        (["build", "grammar", "--out", "{tmp}/x", "--sources", "."], "--sources does not apply to grammar"),
        (["build", "grammar", "--out", "{tmp}/x", "--masked-tokens"], "--masked-tokens does not apply to grammar"),
        (["build", "grammar", "--out", "{corpus}"], "expected a folder yet to be made, found one"),
        (["build", "grammar", "--out", "{tmp}", "--overwrite"], "only a corpus is ever overwritten"),
        (["check", "{tmp}"], "expected a corpus made by 'mtlprune data build', found no corpus.json"),
        (["show", "{corpus}", "nobody"], "expected the id of a sentence, found 'nobody'; ids are like"),
        (["show", "{corpus}", "dev:999999"], "dev has the sentences 1 to "),
        (
            ["export", "{corpus}", "--split", "test", "--layer", "con", "--out", "{tmp}/x"],
            "splits train, dev, found 'test'",
        ),
        (
            ["export", "{corpus}", "--split", "dev", "--layer", "tags", "--out", "{tmp}/x"],
            "expected a layer out of pos",
        ),
        (["export", "{corpus}", "--split", "dev", "--layer", "con", "--out", "{tmp}/n/x"], "No such file or directory"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    arguments: list[str], message: str, corpus: Path, monkeypatch: Patch, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert call(monkeypatch, *(argument.format(tmp=tmp_path, corpus=corpus) for argument in arguments)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("mtlprune: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_help_is_light() -> None:
    """No heavy library is loaded to say what the verbs are."""
    code = "import sys; import mtlprune.cli; print([m for m in ('torch', 'datasets', 'pyarrow') if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.strip() == "[]"


def test_unknown_and_empty_layers_are_told_apart(capsys: Captured) -> None:
    print_sentence(Console(width=80), Sentence("s", ("[red]", "b"), ner=()), "dev")
    out = capsys.readouterr().out
    assert "unknown: pos, dep, con, srl\n" in out
    assert "nothing there: ner\n" in out
    assert "[red]" in out


def test_long_trees_are_indented() -> None:
    words = tuple(f"word{k}" for k in range(20))
    sentence = Sentence("s", words, con=(Span(0, 20, "S"), Span(0, 20, "S"), Span(0, 2, "NP"), Span(2, 20, "VP")))
    lines = format_tree_lines(sentence)
    assert lines[:3] == ["  (S", "    (S", "      (NP (X word0) (X word1))"]
    assert lines[-1].endswith("(X word19))))")
    assert " ".join(" ".join(lines).split()) == format_tree(sentence)[len("(TOP ") : -1]


@needs_ewt
@pytest.mark.slow
def test_the_real_corpus(monkeypatch: Patch, capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "ewt5"
    assert call(monkeypatch, "build", "ewt5", "--sources", EWT, "--out", out, "--masked-tokens") == 0
    assert len(load_corpus(out).info["sources"]) == 8
    assert call(monkeypatch, "check", out) == 0
    assert "40,486" in capsys.readouterr().out


def test_building_ontonotes_says_what_it_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    files, dependencies = small_corpus(tmp_path, documents=1)
    put(files, "test", "nw/own/01/own_0009", NAMED, ending="v9_auto_mention_boundaries_conll")
    arguments = ("--sources", files, "--dep", dependencies, "--out", tmp_path / "made")
    assert call(monkeypatch, "build", "ontonotes5", *arguments) == 0
    said = capsys.readouterr().err
    assert "left out 1 automatic files, 0 in other languages, 0 in no split folder" in said
    counts = "1 documents, 0 without ner, 0 without srl, 0 nested entities, 0 unparsed sentences"
    assert all(f"OntoNotes 5 {split}: {counts}" in said for split in ("train", "dev", "test"))
