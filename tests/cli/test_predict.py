"""mtlprune predict and mtlprune.load: text or CoNLL-U in, all layers out."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import mtlprune as package
from mtlprune.corpora.export import export
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.store import load_corpus
from mtlprune.runs import RunFolder, from_json

TEXT = "\ufeffThe dog sees a man .\r\n\r\n  Ann   sleeps \r\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8", newline="")
    return tmp_path / "t.txt"


def test_text_becomes_json_lines(mtlprune, trained, text):
    answer = mtlprune("predict", trained, text)
    assert answer.code == 0, answer.err
    found = [from_json(json.loads(line)) for line in answer.out.splitlines()]
    assert [s.id for s in found] == ["t-1", "t-3"]
    assert [s.words for s in found] == [("The", "dog", "sees", "a", "man", "."), ("Ann", "sleeps")]
    assert all(s.validate().layers() == ("pos", "ner", "dep", "con", "srl") for s in found)


def test_conllu_in_and_out(mtlprune, lab, trained, tmp_path):
    """The words of the test split give the predictions that evaluation stored; gold layers are not looked at."""
    export(load_corpus(lab.corpus)["test"], "dep", tmp_path / "in.conllu")
    out = tmp_path / "out.conllu"
    answer = mtlprune("predict", trained, tmp_path / "in.conllu", "--format", "conllu", "--out", out)
    assert answer.code == 0, answer.err
    assert answer.out == f"{out}: 8 sentences\n"
    stored = RunFolder(trained).read_predictions("test")
    read = list(read_conllu(out))
    assert [(s.id, s.words, s.pos, s.dep) for s in read] == [(s.id, s.words, s.pos, s.dep) for s in stored]


def test_from_python(trained):
    model = package.load(trained)
    [first, second] = model.parse("The dog sees a man .", ["Ann", "sleeps"])
    assert first.validate().layers() == ("pos", "ner", "dep", "con", "srl")
    assert second.words == ("Ann", "sleeps")
    assert list(package.load(str(trained), task="srl").tasks) == ["pos", "ner", "dep", "con", "srl"]


def test_the_suffix_of_the_output_chooses_the_format(mtlprune, trained, text, tmp_path):
    for name in ("out.conllu", "out.jsonl"):
        assert mtlprune("predict", trained, text, "--out", tmp_path / name).code == 0
    assert [s.words for s in read_conllu(tmp_path / "out.conllu")][1] == ("Ann", "sleeps")
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])["words"] == ["Ann", "sleeps"]


def test_standard_input(mtlprune, trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    answer = mtlprune("predict", trained, "-")
    assert [json.loads(line)["id"] for line in answer.out.splitlines()] == ["stdin-1", "stdin-3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}", "{tmp}/t.txt"], "is no run folder"),
        (["{run}", "{tmp}/empty.txt"], "empty.txt: expected one sentence a line, found none"),
        (["{run}", "{tmp}/latin.txt"], "latin.txt, line 2: expected UTF-8 text"),
        (["{run}", "{tmp}/t.conllu"], "t.conllu, line 1: "),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, mtlprune, trained, text, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes(b"Ann\ncaf\xe9\n")
    (tmp_path / "t.conllu").write_text("The dog sees a man .\n")
    answer = mtlprune("predict", *(argument.format(tmp=tmp_path, run=trained) for argument in arguments))
    answer.refuses(message)
    assert answer.out == ""


def jsonl(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_sentence_too_long_for_the_chart_loses_that_layer_alone(mtlprune, trained, tmp_path, caplog):
    (tmp_path / "t.txt").write_text("Ann sleeps\n\nThe dog sees a man .\nAnn\n")
    whole = jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out)
    limited = mtlprune("predict", trained, tmp_path / "t.txt", "--longest-con", "2")
    assert limited.code == 0 and f"{tmp_path / 't.txt'}, line 3: a sentence of 6 words" in limited.err
    assert limited.err.count("warning") == 1
    without = [{key: value for key, value in tree.items() if key != "con"} for tree in whole]
    assert jsonl(limited.out) == [whole[0], without[1], whole[2]]
    none = mtlprune("predict", trained, tmp_path / "t.txt", "--longest-con", "0")
    assert jsonl(none.out) == without
    [parsed] = package.load(trained).parse("Ann sleeps", longest_con=1)
    assert parsed.layers() == ("pos", "ner", "dep", "srl") and "sentence 1 has 2 words" in caplog.text


def test_results_come_group_by_group_in_the_order_of_the_file(mtlprune, trained, tmp_path, monkeypatch):
    """A bad line at the end stops the command when what stands before is written; a file is whole or not there."""
    text = "Ann sleeps\nThe dog sees a man .\nAnn\nThe dog\n"
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "bad.txt").write_bytes(text.encode() + b"caf\xe9\nAnn\n")
    whole = jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out)
    monkeypatch.setattr("mtlprune.cli.predict.SENTENCES", 2)
    assert jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out) == whole
    monkeypatch.setattr("mtlprune.cli.predict.WORDS", 6)
    assert jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out) == whole
    bad = mtlprune("predict", trained, tmp_path / "bad.txt")
    assert bad.code == 2 and "bad.txt, line 5: expected UTF-8 text" in bad.err
    assert [tree["words"] for tree in jsonl(bad.out)] == [tree["words"] for tree in whole][: len(jsonl(bad.out))] != []
    (tmp_path / "out.jsonl").write_text("before")
    assert mtlprune("predict", trained, tmp_path / "bad.txt", "--out", tmp_path / "out.jsonl").code == 2
    assert (tmp_path / "out.jsonl").read_text() == "before"
    skipped = mtlprune("predict", trained, tmp_path / "bad.txt", "--skip-bad", "--out", tmp_path / "out.jsonl")
    assert skipped.code == 0 and "bad.txt, line 5: " in skipped.err and "1 bad lines" in skipped.err
    assert [tree["id"] for tree in jsonl((tmp_path / "out.jsonl").read_text())] == [f"bad-{n}" for n in (1, 2, 3, 4, 6)]


def test_a_bad_sentence_of_conllu_is_skipped_whole(mtlprune, trained, tmp_path):
    rows = [b"1\tAnn" + 8 * b"\t_", b"2\tcaf\xe9" + 8 * b"\t_", b"2\tsleeps" + 8 * b"\t_"]
    (tmp_path / "t.conllu").write_bytes(b"\n".join([rows[0], rows[1], b"", rows[0], rows[2], b"", rows[2], b"", b""]))
    bad = mtlprune("predict", trained, tmp_path / "t.conllu")
    assert bad.code == 2 and "t.conllu, line 2: expected UTF-8" in bad.err
    answer = mtlprune("predict", trained, tmp_path / "t.conllu", "--skip-bad", "--format", "jsonl")
    assert [tree["words"] for tree in jsonl(answer.out)] == [["Ann", "sleeps"]]
    assert "line 2: " in answer.err and "line 7: " in answer.err and "2 bad lines" in answer.err
