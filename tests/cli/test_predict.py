"""mtlprune predict, evaluate and mtlprune.load: layers out of text, results in the run folder, files of scorers."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_folders import forget_hashes
from safetensors.torch import load_file, save_file

import mtlprune as package
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.corpora.formats.jsonl import from_json
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.io.files import file_sha256
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import LAYERS, Sentence
from mtlprune.training import evaluation as scoring

TEXT = "\ufeffThe dog sees a man .\r\n\r\n  Ann   sleeps \r\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8", newline="")
    return tmp_path / "t.txt"


def jsonl(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_text_becomes_json_lines_and_sentences_of_python(mtlprune, trained, text):
    answer = mtlprune("predict", trained, text).done()
    sentences = [from_json(tree) for tree in jsonl(answer.out)]
    assert [s.id for s in sentences] == ["t-1", "t-3"]
    assert [s.words for s in sentences] == [("The", "dog", "sees", "a", "man", "."), ("Ann", "sleeps")]
    parsed = package.load(trained).parse("The dog sees a man .", ["Ann", "sleeps"])
    assert [replace(s, id="") for s in parsed] == [replace(s, id="") for s in sentences]
    assert all(s.validate().layers() == tuple(LAYERS) for s in parsed)
    assert list(package.load(str(trained), task="srl").tasks) == list(LAYERS)


def test_a_list_of_texts_is_a_sentence_each(trained):
    model = package.load(trained)
    apart = [s.words for s in model.parse("The dog sees a man .", "Ann sleeps")]
    assert [s.words for s in model.parse(["The dog sees a man .", "Ann sleeps"])] == apart
    assert [s.words for s in model.parse(["Ann", "sleeps"])] == apart[1:]
    assert [s.words for s in model.parse([["The", "dog", "sees", "a", "man", "."], ["Ann", "sleeps"]])] == apart


WORN = """\
# newdoc
# sent_id = 1
1\tAnn\tAnn\t\tN\t_\t9\tx\t2:x\tSpaceAfter=No
2-3\tdoes\t_\t_\t_\t_\t_\t_\t_\t_
2\tsees\tsee\tVERB\t_\tbroken\t3\t_\t_\t_
2.1\tit\t_\t_\t_\t_\t_\t_\t2:obj\t_
3\ther\ther\tPRON\t_\t_\t2\tobj\t_\tner=O

# sent_id = 1
1\tNobody\t_\t_\t_\t_\t_\t_\t_\t_

"""


def test_conllu_is_kept_but_for_what_is_predicted(mtlprune, trained, tmp_path):
    """Annotation that is not used is not judged: half of the tags and heads, circles, heads out of range, ids twice."""
    (tmp_path / "in.conllu").write_text(WORN)
    answer = mtlprune("predict", trained, tmp_path / "in.conllu", "--out", tmp_path / "out.conllu").done()
    assert answer.err.startswith(
        "layers left out: con, srl, because CoNLL-U has no place for them; --format jsonl keeps them\n"
    )
    predicted = package.load(trained).parse(["Ann", "sees", "her"], ["Nobody"])
    rows = iter([(s, place) for s in predicted for place in range(len(s))])
    expected = []
    for line in WORN.split("\n"):
        row = line.split("\t")
        if row[0].isdecimal():
            sentence, place = next(rows)
            head, relation = str(sentence.dep.heads[place]), sentence.dep.relations[place]
            name = f"ner={iob2_from_spans(sentence.ner, len(sentence))[place]}"
            misc = name if row[9] in ("_", "ner=O") else f"{row[9]}|{name}"
            row[4], row[6:] = sentence.pos[place], [head, relation, "_", misc]
        expected.append("\t".join(row))
    assert (tmp_path / "out.conllu").read_text() == "\n".join(expected)
    answer = mtlprune("predict", trained, tmp_path / "out.conllu", "--out", tmp_path / "again.conllu").done()
    assert answer.out and (tmp_path / "again.conllu").read_text() == "\n".join(expected)
    [_, read, *_] = mtlprune("predict", trained, tmp_path / "in.conllu", "--format", "jsonl").out.split("\n")
    assert json.loads(read)["words"] == ["Nobody"] and json.loads(read)["id"] == "1"


def test_a_run_writes_what_conllu_has_a_place_for(mtlprune, train, single, text, tmp_path):
    """A run without trees keeps the file's own; names alone stand in MISC; roles alone have no place."""
    (tmp_path / "in.conllu").write_text(WORN)
    mtlprune("predict", single, tmp_path / "in.conllu", "--out", tmp_path / "out.conllu").done()
    rows = [line.split("\t") for line in (tmp_path / "out.conllu").read_text().split("\n")]
    before = [line.split("\t") for line in WORN.split("\n")]
    assert [r[:4] + r[5:] for r in rows] == [r[:4] + r[5:] for r in before] and rows != before
    names = train("ner", "tasks=ner", "train.epochs=1")
    mtlprune("predict", names, text, "--out", tmp_path / "names.txt").done()
    assert "{" not in (tmp_path / "names.txt").read_text()  # text for readers, as --format text writes it
    answer = mtlprune("predict", names, text, "--out", tmp_path / "names.conllup").done()
    lines = (tmp_path / "names.conllup").read_text().splitlines()
    assert lines[0].startswith("# global.columns = ID FORM ") and "left out" not in answer.err
    assert all(line.split("\t")[9].startswith("ner=") for line in lines if "\t" in line)
    roles = train("srl", "tasks=srl", "train.epochs=1")
    refused = mtlprune("predict", roles, text, "--format", "conllu")
    assert refused.code == 2 and "but this run predicts srl; use --format jsonl" in refused.err


LINE = '{"id": "a", "words": ["Ann", "sees\\u00a0her"], "pos": "not looked at", "ner": 7}\n'
ROWS = "1\tAnn" + 8 * "\t_" + "\n2\tsees\u00a0her" + 8 * "\t_" + "\n\n"
READ = [
    ("t.jsonl", LINE, "a"),
    ("t.ndjson", "\ufeff\r\n" + LINE.replace('"id": "a", ', ""), "t-2"),
    ("t.conll", ROWS, "t-1"),
    ("t.cupt", "# global.columns = FORM X ID\nAnn\tx\t1\nsees\u00a0her\t_\t2\n", "t-1"),
    ("t", "Ann\tsees\u00a0her \u00a0 \n", "t-1"),
    ("-", "Ann\tsees\u00a0her\n", "stdin-1"),
    ("--input text t.tsv", "Ann\tsees\u00a0her\n", "t-1"),
    ("--input jsonl t.txt", LINE, "a"),
    ("--input conllu -", ROWS, "standard input-1"),
]


@pytest.mark.parametrize(("words", "content", "name"), READ, ids=[words for words, _, _ in READ])
def test_what_a_file_holds_is_known_or_said(words, content, name, mtlprune, single, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *options, file = words.split()
    (tmp_path / file).write_text(content, encoding="utf-8", newline="")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    [sentence] = jsonl(mtlprune("predict", single, *options, file).done().out)
    assert (sentence["id"], sentence["words"]) == (name, ["Ann", "sees\u00a0her"])


REFUSED = [
    *((f"t{suffix}", "Ann", f"found {suffix}; ") for suffix in (".tsv", ".json", ".mrg", ".parquet")),
    ("t.txt", LINE, "t.txt, line 1: expected text, found what looks like jsonl; use --input jsonl, or"),
    ("t.txt", "\n[\n" + LINE, "t.txt, line 2: expected text, found what looks like jsonl"),
    ("t.txt", ROWS, "t.txt, line 1: expected text, found what looks like conllu; use --input conllu, or"),
    ("t", "# sent_id = 1\n" + ROWS, "t, line 1: expected text, found what looks like conllu"),
    ("t.jsonl", "\n{}\n", "t.jsonl, line 2: unexpected content"),
    ("t.jsonl", '["Ann"]\n', "t.jsonl, line 1: unexpected content: expected an object with words, found ['Ann']; a"),
    ("t.conllu", "", "t.conllu: expected sentences, found none"),
    ("t.jsonl", '{"id": "a", "words": ["a", " "]}', "t.jsonl, line 1: sentence 'a', words: word 1 is ' '"),
    ("t.conllu", ROWS.replace("\t_\n", "\n", 1), "t.conllu, line 1: expected 10 columns between tabs, found 9"),
    (
        "--format conllu t.jsonl",
        '{"id": "a", "words": ["a  b"]}',
        "t.jsonl, lines 1 to 1: sentence 'a': CoNLL-U cannot",
    ),
    ("t.txt", "(TOP (S (NP (NN dogs))))\n", "t.txt, line 1: expected text, found what looks like trees"),
    ("t.txt", "\n( (S (NP (NN dogs))))\n", "t.txt, line 2: expected text, found what looks like trees"),
    (
        "t.txt",
        "Ann\tB-PER\nsang\tO\n\nBo\tB-PER\n",
        "t.txt, line 1: expected text, found what looks like columns; name",
    ),
    (
        "t.txt",
        "Ann NNP\nsang VBD\n. .\n\nBo NNP\n",
        "t.txt, line 1: expected text, found what looks like columns; name",
    ),
    ("t.txt", "Word,POS\nAnn,NNP\n", "t.txt, line 1: expected text, found what looks like columns"),
    ("t.txt", "Sentence #,Word,POS\n1,Ann,NNP\n,of the,IN\n", "found what looks like columns"),
    ("t.txt", "<doc id=1>\nAnn sang .\n</doc>\n", "found what looks like markup"),
    ("t.txt", "-DOCSTART- -X- O\n\na b O\n", "found what looks like CoNLL-2012"),
    ("t.txt", '<?xml version="1.0"?>\n<a/>\n', "found what looks like markup"),
    ("--out o.csv t.txt", "Ann", "o.csv: expected a file .jsonl, .conllu, .tsv or .txt, found .csv"),
    (
        "--out o.tsv t.txt",
        "Ann",
        "--format tsv holds labels of whole sentences, but this run predicts pos; use --format jsonl",
    ),
]


@pytest.mark.parametrize(("words", "content", "message"), REFUSED, ids=[f"{w}: {s[:50]}" for w, _, s in REFUSED])
def test_what_is_no_text_is_refused_in_words(words, content, message, mtlprune, single, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *options, file = words.split()
    (tmp_path / file).write_text(content, encoding="utf-8")
    answer = mtlprune("predict", single, *options, file)
    assert (answer.code, message in answer.err, "Traceback" in answer.err) == (2, True, False), answer


@pytest.mark.parametrize(
    "text", ["I run\nYou run\nWe run\n", "Go there .\nMy dog .\nOld cat !\n", "(I saw)\n(He did)\n"]
)
def test_text_of_lines_of_equal_length_is_text(text, mtlprune, single, tmp_path):
    (tmp_path / "t.txt").write_text(text)
    read = jsonl(mtlprune("predict", single, tmp_path / "t.txt").done().out)
    assert [s["words"] for s in read] == [line.split() for line in text.splitlines()]


def test_a_device_is_refused_where_a_pipe_is_read(mtlprune, single, tmp_path):
    """A device has no end, and the first line of /dev/zero filled the memory."""
    (tmp_path / "text.txt").symlink_to("/dev/zero")
    answer = mtlprune("predict", single, tmp_path / "text.txt")
    assert (answer.code, "expected a file or a pipe, found a device" in answer.err) == (2, True), answer


def test_output_is_utf8_in_every_locale(single, tmp_path):
    """As text of a pipe, whose encoding Python takes from the environment."""
    (tmp_path / "t.txt").write_text("Größe 你好\n", encoding="utf-8")
    command = [sys.executable, "-m", "mtlprune", "predict", single, tmp_path / "t.txt"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    out = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert json.loads(out.decode("utf-8"))["words"] == ["Größe", "你好"]


def test_a_sentence_too_long_for_the_chart_loses_that_layer_alone(mtlprune, trained, tmp_path, caplog):
    (tmp_path / "t.txt").write_text("Ann sleeps\n\nThe dog sees a man .\nAnn\n")
    whole = jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out)
    limited = mtlprune("predict", trained, tmp_path / "t.txt", "--longest-con", "2").done()
    assert f"{tmp_path / 't.txt'}, line 3: a sentence of 6 words" in limited.err
    assert limited.err.count("warning") == 1
    without = [{key: value for key, value in tree.items() if key != "con"} for tree in whole]
    assert jsonl(limited.out) == [whole[0], without[1], whole[2]]
    [parsed] = package.load(trained).parse("Ann sleeps", longest_con=1)
    assert parsed.layers() == ("pos", "ner", "dep", "srl") and "sentence 1 has 2 words" in caplog.text


def test_results_come_group_by_group_in_the_order_of_the_file(mtlprune, trained, tmp_path, monkeypatch):
    """A bad line at the end stops the command when what stands before is written; a file is whole or not there."""
    text = "Ann sleeps\nThe dog sees a man .\nAnn\nThe dog\n"
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "bad.txt").write_bytes(text.encode() + b"caf\xe9\nAnn\n")
    whole = jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out)
    monkeypatch.setattr("mtlprune.cli.predict.SENTENCES", 2)
    monkeypatch.setattr("mtlprune.cli.predict.WORDS", 6)
    assert jsonl(mtlprune("predict", trained, tmp_path / "t.txt").out) == whole
    bad = mtlprune("predict", trained, tmp_path / "bad.txt")
    assert bad.code == 2 and "bad.txt, line 5: expected UTF-8 text" in bad.err
    assert [tree["words"] for tree in jsonl(bad.out)] == [tree["words"] for tree in whole][: len(jsonl(bad.out))] != []
    (tmp_path / "out.jsonl").write_text("before")
    assert mtlprune("predict", trained, tmp_path / "bad.txt", "--out", tmp_path / "out.jsonl").code == 2
    assert (tmp_path / "out.jsonl").read_text() == "before"
    skipped = mtlprune("predict", trained, tmp_path / "bad.txt", "--skip-bad", "--out", tmp_path / "out.jsonl").done()
    assert "bad.txt, line 5: " in skipped.err and "1 bad line or sentence\n" in skipped.err
    assert [tree["id"] for tree in jsonl((tmp_path / "out.jsonl").read_text())] == [f"bad-{n}" for n in (1, 2, 3, 4, 6)]


def test_evaluating_dev_again_gives_what_training_found(mtlprune, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (folder / "scores/dev.json").read_text()
    (folder / "scores/dev.json").unlink()
    answer = mtlprune("evaluate", folder, "--split", "dev", "--predictions", tmp_path / "files").done()
    assert f"{tmp_path / 'files'}/srl.gold and srl.pred: 8 of 8 sentences" in answer.out
    assert (folder / "scores/dev.json").read_text() == before
    assert RunFolder(folder).read_counts("dev")["ids"] == [s.id for s in RunFolder(folder).read_predictions("dev")]
    predicted = [s.pos for s in RunFolder(folder).read_predictions("dev")]
    assert [s.pos for s in read_conllu(tmp_path / "files/pos.pred")] == predicted


def test_results_of_other_weights_or_data_have_their_own_names(mtlprune, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    small = ("--out", tmp_path / "g", "--train", 9, "--dev", 3, "--test", 0)
    mtlprune("data", "build", "grammar", *small).done()
    mtlprune("evaluate", folder, "--split", "test", "--best", "ner").done()
    mtlprune("evaluate", folder, "--split", "dev", "--data", tmp_path / "g").done()
    mark = load_corpus(tmp_path / "g").fingerprint[:8]
    assert RunFolder(folder).splits() == ["dev", f"dev.on-grammar-{mark}", "test", "test.best-ner"]
    assert len(RunFolder(folder).read_predictions(f"dev.on-grammar-{mark}")) == 3


def test_labels_that_a_run_never_learnt_are_named(mtlprune, single, tmp_path, caplog):
    """None of them is an error with the way out; less than half a warning with their number."""
    known = RunFolder(single).read_vocabularies()["pos"]["tags"]
    for name, tags in (("none", ["Q1", "Q2"]), ("few", [known[0], "Q1", "Q2"])):
        sentences = [Sentence("s", tuple("abc"[: len(tags)]), tuple(tags))]
        save_corpus({"test": sentences}, tmp_path / name, name=name, licence="none", sources={})
    answer = mtlprune("evaluate", single, "--split", "test", "--data", tmp_path / "none")
    assert answer.code == 2 and "none of the 2 tags of pos is known to" in answer.err and "Q1, Q2; build" in answer.err
    mtlprune("evaluate", single, "--split", "test", "--data", tmp_path / "few").done()
    assert "1 of 3 tags of pos are known, and none is such as Q1, Q2" in caplog.text


def replace_best(folder: RunFolder) -> None:
    best = folder.read_best()
    old = folder.weights_path(best["joint"]["epoch"])
    tensors = load_file(old)
    name = next(name for name in tensors if name.startswith("tasks.pos") and name.endswith("bias"))
    tensors[name][0] += 100.0
    save_file(tensors, folder.weights_path(99))
    new = {"epoch": 99, "score": 99.0, "sha256": file_sha256(folder.weights_path(99))}
    folder.write_json("best.json", dict.fromkeys(best, new))
    folder.forget_results(best)
    old.unlink()


@pytest.mark.parametrize("moment", ["while it is loaded", "while it is evaluated"])
def test_results_are_of_the_weights_that_best_names(moment, trained, tmp_path, monkeypatch):
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    forget_hashes(folder.path)  # as of a run that trains on, whose manifest has none of what training writes
    waiting = [replace_best]

    def first(original: Callable[..., Any]) -> Callable[..., Any]:
        def then(*args: Any, **named: Any) -> Any:
            if waiting:
                waiting.pop()(folder)
            return original(*args, **named)

        return then

    if moment == "while it is loaded":
        monkeypatch.setattr(RunFolder, "verify_weights", first(RunFolder.verify_weights))
    else:
        monkeypatch.setattr(scoring, "evaluate", first(scoring.evaluate))
    result, _, _ = scoring.evaluate_run(folder, "test")
    assert not waiting
    monkeypatch.undo()
    repeated, _, _ = scoring.evaluate_run(RunFolder(shutil.copytree(folder.path, tmp_path / "copy")), "test")
    assert folder.read_scores("test") == RunFolder(tmp_path / "copy").read_scores("test")
    assert result.scores == repeated.scores != RunFolder(trained).read_scores("test")


def test_columns_are_written_in_place(mtlprune, trained, tmp_path):
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("# a comment of several words\n1 The x\n2 dog y\n\n1 No z\n")
    words = "predict", trained, file, "--columns", "_,word,pos", "--out", out
    assert "left out: ner, dep, con, srl" in mtlprune(*words).done().err
    before, after = ([line.split(" ") for line in path.read_text().splitlines()] for path in (file, out))
    assert [row[:2] for row in after] == [row[:2] for row in before] and after[0] == before[0]
    assert not {"x", "y", "z"} & {row[2] for row in after[1:] if len(row) == 3}
    mtlprune(*words, "--skip-bad").refuses("leave out --format, --input and --skip-bad")
