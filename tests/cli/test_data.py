"""mtlprune data and check, as a user calls them: what they print, and what they leave behind."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conll2012_files import document
from conllu_files import TREEBANK

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.formats.guess import guess_columns, guess_format
from mtlprune.corpora.formats.jsonl import to_json
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Predicate, Sentence, Span

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def corpus(mtlprune: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated corpus, made once; do not write into it."""
    folder = tmp_path_factory.mktemp("data") / "grammar"
    mtlprune("data", "build", "grammar", "--out", folder, "--train", 20, "--dev", 5, "--test", 0).done()
    return folder


def row(out: str, title: str) -> list[str]:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    return next(cells[1:] for cells in rows if cells[:1] == [title])


def test_build_check_show_and_export(corpus, mtlprune, tmp_path):
    stored = load_corpus(corpus)
    assert {split: len(stored[split]) for split in stored.splits} == {"train": 20, "dev": 5}
    assert stored.info["licence"] == "Apache-2.0"
    assert "train 20, dev 5, test 0, seed 1" in stored.info["sources"]["generator"]
    out = mtlprune("data", "check", corpus).done().out
    assert row(out, "sentences with all layers") == ["20", "5"] and stored.fingerprint in out
    sentence = next(s for s in stored["dev"] if s.srl and s.ner)
    out = mtlprune("data", "show", corpus, sentence.id).done().out
    assert f"{sentence.id} (dev)" in out and " ".join(sentence.words) in out
    assert mtlprune("data", "show", corpus).done().out == mtlprune("data", "show", corpus, "dev:1").done().out
    for text in (sentence.ner[0].label, *sentence.dep.relations, *sentence.pos, sentence.srl[0].arguments[0].label):  # type: ignore
        assert text in out
    assert mtlprune("data", "show", corpus, f"dev:{list(stored['dev']).index(sentence) + 1}").out == out
    out = tmp_path / "dev.con"
    answer = mtlprune("data", "export", corpus, "--split", "dev", "--layer", "con", "--out", out).done()
    assert out.read_text().splitlines() == [format_tree(sentence) for sentence in stored["dev"]]
    assert f"{out}: 5 of 5 sentences" in answer.out


def test_repaired_tags_and_a_corpus_of_everything(corpus, mtlprune, tmp_path, monkeypatch):
    """Every format on what export and predict write of one corpus: merged, it is that corpus."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("-DOCSTART- O\n\na O\nb I-X\n\nc B-X\nd I-Y\n")
    few = ("--train", "few.txt", "--columns", "word,ner", "--repair", "--out", "few")
    answer = mtlprune("data", "build", "columns", *few).done()
    assert "few.txt: column ner: tags were repaired, as conlleval reads them, in 2 sentences\n" in answer.err
    assert [s.ner for s in load_corpus(tmp_path / "few")["train"]] == [((1, 2, "X"),), ((0, 1, "X"), (1, 2, "Y"))]
    stored = load_corpus(corpus)
    for split in stored.splits:
        for layer in ("dep", "ner", "con"):
            words = ("--split", split, "--layer", layer, "--out", f"{split}.{layer}")
            mtlprune("data", "export", corpus, *words).done()
        lines = [json.dumps(to_json(s.bare().with_layers(srl=s.srl))) for s in stored[split]]
        (tmp_path / f"{split}.srl").write_text("".join(line + "\n" for line in lines))
    sources = {"dep": ["--pos", "xpos"], "ner": [], "con": [], "srl": []}
    formats = {"dep": "conllu", "ner": "columns", "con": "brackets", "srl": "jsonl"}
    for layer, how in sources.items():
        files = [word for split in stored.splits for word in (f"--{split}", f"{split}.{layer}")]
        answer = mtlprune("data", "build", *how, *files, "--out", layer).done()
        assert f"train.{layer}: read as {formats[layer]}; to choose another format" in answer.err
    mtlprune("data", "build", *sources, "--out", "all").done()
    for split in stored.splits:
        assert list(load_corpus(tmp_path / "all")[split]) == list(stored[split])


def test_a_treebank_comes_back_as_it_was(mtlprune, tmp_path):
    (tmp_path / "t.conllu").write_text(TREEBANK, encoding="utf-8")
    read = enumerate(read_conllu(tmp_path / "t.conllu", "upos"))
    names = [{"id": f"n{k}", "words": s.words, "ner": []} for k, s in read]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(tree) + "\n" for tree in names))
    build = ("data", "build", "conllu", "--misc", "ner=who:spans", "--out", tmp_path / "u", "--train")
    answer = mtlprune(*build, tmp_path / "t.conllu").done()
    assert "xpos: tags were left out in 1 of 3 sentences, in which some words have none" in answer.err
    assert "1 sentence had the id of an earlier sentence" in answer.err and "layers: pos, dep, who, xpos" in answer.err
    assert [s.id for s in load_corpus(tmp_path / "u")["train"]] == ["1", "1~2", "t-3"]
    mtlprune("data", "build", "jsonl", "--train", tmp_path / "n.jsonl", "--out", tmp_path / "n").done()
    for order in ("nu", "un"):
        parts = (tmp_path / name for name in order)
        mtlprune("data", "build", *parts, "--out", tmp_path / order).done()
        mtlprune("data", "check", tmp_path / order).done()
        for layer in ("pos", "dep"):
            words = ("--split", "train", "--layer", layer, "--out", tmp_path / "out")
            mtlprune("data", "export", tmp_path / order, *words).done()
            assert (tmp_path / "out").read_text(encoding="utf-8") == TREEBANK


def test_json_lines_written_by_hand(mtlprune, tmp_path):
    """A BOM, empty lines and a last line without its end lose nothing; what is no layer is told."""
    page = (Path(__file__).parents[2] / "docs/guides/your_data.md").read_text(encoding="utf-8")
    [shown] = re.findall(r'`(\{"id".*?\}\})`', page)
    second = '{"id": "s2", "words": ["a"], "poss": ["X"], "chunk": ["NP"]}'
    (tmp_path / "few.jsonl").write_text(f"\ufeff{shown}\r\n\n{second}", encoding="utf-8")
    answer = mtlprune("data", "build", "jsonl", "--train", tmp_path / "few.jsonl", "--out", tmp_path / "made").done()
    assert "chunk, poss were left out; a layer with another name" in answer.err, answer
    first, last = load_corpus(tmp_path / "made")["train"]
    assert json.loads(shown) == to_json(first) and last == Sentence("s2", ("a",))


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ('{"words": ["Ann"], "pos": ["X"], "ner": [[0, 1, "PER"]]}', ["few-1"]),
        ('{"id": 7, "words": ["Ann"], "pos": ["X"], "ner": [[0, 1, "PER"]]}', ["7"]),
        ('{"tokens": ["Ann"], "pos": ["X"], "ner": [[0, 1, "PER"]]}', ["few-1"]),
        ('{"words": ["Ann"], "pos": ["X"], "ner": ["B-PER"]}', ["train-0"]),  # a row of a dataset
    ],
)
def test_json_lines_of_others_have_ids_and_words_of_other_forms(line, ids, mtlprune, tmp_path):
    (tmp_path / "few.jsonl").write_text(line + "\n")
    mtlprune("data", "build", "--train", tmp_path / "few.jsonl", "--out", tmp_path / "made").done()
    sentences = load_corpus(tmp_path / "made")["train"]
    assert [s.id for s in sentences] == ids
    assert all(s.ner == (Span(0, 1, "PER"),) and s.pos == ("X",) for s in sentences)


@pytest.mark.parametrize(
    ("format_", "text", "message"),
    [
        ([], '{"id": 1, "text": "Ann", "label": [[0, 3, "PER"]]}', "found text with spans that count characters"),
        ([], '["Ann", "sang"]', r"line 1: .*expected an object with words, found \['Ann', 'sang'\]"),
        (["jsonl"], '"Ann sang"', "expected an object with words, found 'Ann sang'"),
        (["jsonl"], "null", "expected an object with words, found nothing"),
        ([], '{\n"words": ["Ann"]}', "few.jsonl, line 1: not readable as JSON"),
        (["jsonl"], '{\n"words": ["Ann"]}', "few.jsonl, line 1: not readable as JSON .*; a line holds one whole value"),
        ([], "", "few.jsonl: expected sentences, found none"),
        (["hf"], "\n", "few.jsonl: expected rows of a dataset, found none"),
    ],
)
def test_json_of_other_shapes_is_named(format_, text, message, mtlprune, tmp_path):
    (tmp_path / "few.jsonl").write_text(text)
    train = [tmp_path / "few.jsonl"] if format_ == ["hf"] else ["--train", tmp_path / "few.jsonl"]
    answer = mtlprune("data", "build", *format_, *train, "--out", tmp_path / "made")
    assert answer.code == 2 and re.search(message, answer.err), answer.err


ROLES = "ab X (S*) * - -\n\n"
ONTONOTES = document("dNUMBER", ("ab X (TOP(S*)) - - (P)",), ("cd X (TOP(S*)) - - *",))
OF_FORMAT = {
    "conllu": ("1\tab\t_\tX\tY\t_\t0\troot\t_\t_\n\n", "1\tab\n\n", ["--pos", "xpos"], ["pos", "dep", "upos"]),
    "columns": ("ab X B-P\n\n", "ab X\n\n", ["--columns", "word,pos,ner"], ["pos", "ner"]),
    "brackets": ("(S (X ab))\n", "(S (X ab)\n", [], ["pos", "con"]),
    "propbank": (ROLES, "ab\n\n", [], ["pos", "con", "ner", "srl"]),
    "propbank, CoNLL-2012": (ONTONOTES, ONTONOTES.replace("ab ", "", 1), [], ["pos", "con", "ner"]),
    "jsonl": ('{"id": "s", "words": ["ab"], "pos": ["X"], "ner": []}\n', '{"id": "s"}\n', [], ["pos", "ner"]),
    "hf": ('{"tokens": ["ab"], "pos": ["X"], "ner": ["O"]}\n', '{"tokens": ["ab"], "pos": []}\n', [], ["pos", "ner"]),
}


GUESSED = [(name.partition(",")[0], good) for name, (good, *_) in OF_FORMAT.items()]
GUESSED += [  # what could be taken for another format
    ("brackets", "( (S (NP-SBJ (-NONE- *-1))\n   (VP (VB go))))\n"),
    ("columns", "( -LRB- O\na X O\n) -RRB- O\n"),
    ("conllu", "# newdoc\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n1\tde\t_\t_\t_\t_\t0\troot\t_\t_\n\n# end\n"),
    ("conllu", "# global.columns = ID FORM UPOS\n1\tde\tX\n"),
    ("columns", "1 She PRP\n"),
    ("columns", ""),
]


@pytest.mark.parametrize(("name", "text"), GUESSED)
def test_a_format_is_guessed_from_the_first_lines_of_a_file_or_folder(tmp_path, name, text):
    file = tmp_path / ("few.jsonl" if name in ("jsonl", "hf") else "few.txt")
    file.write_text(text)
    assert guess_format(file) == guess_format(tmp_path) == name


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ("{} NNP B-NP O", "word,pos,_,ner"),
        ("{}\tB-PER", "word,ner"),
        ("1\t{}\tO\t-\tme", "_,word,ner,_,_"),
        ("{} NN", "word,pos"),
        ("{} {}", None),
    ],
)
def test_columns_are_guessed_from_their_cells(tmp_path, row, columns):
    rows = [row.format(word, word) for word in "abc"]
    (tmp_path / "few.txt").write_text("\n".join([*rows, rows[0].replace("B-PER", "O")]) + "\n")
    if columns is None:
        with pytest.raises(CorpusError, match="found others; name them, such as --columns"):
            guess_columns(tmp_path / "few.txt")
    else:
        assert guess_columns(tmp_path / "few.txt") == columns


@pytest.mark.parametrize("format_", OF_FORMAT)
def test_sentences_and_layers_left_out_of_every_format(mtlprune, tmp_path, format_):
    """One sentence of a few that cannot be read; then each layer, which the others know."""
    good, bad, options, layers = OF_FORMAT[format_]
    file, out = tmp_path / "few.jsonl", tmp_path / "made"
    file.write_text("".join(text.replace("NUMBER", str(k)) for k, text in enumerate([*[good] * 4, bad, good])))
    build = ["data", "build", format_.partition(",")[0], file, *options, "--split", "100/0/0", "--out", out]
    refused = mtlprune(*build)
    assert refused.code == 2 and "few.jsonl" in refused.err and "--skip-bad" in refused.err, refused
    refused = mtlprune(*build, "--skip-bad", "1")
    assert refused.code == 2 and "allow more (--skip-bad)" in refused.err and not out.exists(), refused
    mtlprune(*build, "--skip-bad", "50").done()
    stored = load_corpus(out)
    known = {name for name, kind in stored.layers.items() if stored.info["splits"]["train"]["known"][name]}
    assert known == set(layers) and stored.info["left_out"]["sentences"] == 1
    assert {s.words for s in stored["train"]} >= {("ab",)} and len(stored["train"]) >= 5
    for layer in layers:
        mtlprune(*build, "--skip-bad", "50", "--leave-out", layer, "--overwrite").done()
        less = load_corpus(out)
        assert list(less["train"]) == [s.with_layers(**{layer: None}) for s in stored["train"]], layer
        assert less.info["left_out"]["layers"] == [layer]
    refused = mtlprune(*build, "--skip-bad", "50", "--leave-out", "nothing", "--overwrite")
    assert refused.code == 2 and "--leave-out: expected layers that are read" in refused.err, refused


CONLLU = "1\t{0}\t_\tX\tY\t_\t0\troot\t_\t_\n\n"
FOLDERS = [
    ("x_y-ud-train.conllu x_y-ud-dev.conllu x_y-ud-test.conllu x_y-ud-test.txt README.md LICENSE.txt stats.xml", 3),
    ("eng.train eng.testa eng.testb", 3),
    ("training/a.conllu valid/b.conllu", 2),
    ("latest.conllu attest.conllu", 0),
    ("train.conllu more.conllu", 0),
]


@pytest.mark.parametrize(("names", "splits"), FOLDERS)
def test_a_folder_whose_files_name_their_splits_is_never_mixed(names, splits, mtlprune, tmp_path):
    for name in names.split():
        (tmp_path / "test" / name).parent.mkdir(parents=True, exist_ok=True)
        is_text = name.endswith((".txt", ".md", ".xml"))
        (tmp_path / "test" / name).write_text("a text" if is_text else CONLLU.format(name) * 10)
    answer = mtlprune("data", "build", tmp_path / "test", "--out", tmp_path / "made").done()
    made = load_corpus(tmp_path / "made")
    files = {split: {word for s in made[split] for word in s.words} for split in made.splits}
    if splits:
        assert len(files) == splits and all(len(words) == 1 for words in files.values())
        assert all(f"files whose names say {split}: " in answer.err for split in files)
        assert ("files left out because " in answer.err) == ("README" in names)
        refused = mtlprune("data", "build", tmp_path / "test", "--split", "50/50/0", "--out", tmp_path / "again")
        assert (
            refused.code == 2
            and "--split: the names of the files already decide which of them are train, dev" in refused.err
        )
    else:
        assert list(files) == ["train", "dev", "test"] and "files whose names say" not in answer.err


def test_a_file_that_names_no_split_beside_others_that_do_is_refused(mtlprune, tmp_path):
    for name in ("a-train.conllu", "a-dev.conllu", "more.conllu"):
        (tmp_path / name).write_text(CONLLU.format(name))
    answer = mtlprune("data", "build", "conllu", *sorted(tmp_path.iterdir()), "--out", tmp_path / "made")
    assert answer.code == 2 and "more.conllu; name the files of each split (--train" in answer.err


def test_a_generated_split_has_one_size(mtlprune, tmp_path):
    command = "data", "build", "grammar", "--out", tmp_path / "g", "--train", 5, "--train", 7
    mtlprune(*command).refuses("expected one number of sentences after --train, found '5' and '7'")


@pytest.mark.parametrize("name", ["my data (2)", "c #1", "it's", "a$b", "[x] & (y)"])
def test_commands_that_are_printed_can_be_pasted(name, mtlprune, lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--train", 20, "--dev", 8, "--test", 8)
    answer = mtlprune("data", "build", "grammar", "--out", name, *small).done()
    printed = [line for line in answer.err.splitlines() if ": mtlprune " in line]
    [train, compare] = [shlex.split(line.split(": ", 1)[1]) for line in printed]
    assert compare[:3] == ["mtlprune", "compare", name] and compare[-1] == f"compare-{name}"
    settings = [word.replace("tasks=pos,ner,dep,con,srl", "tasks=pos") for word in train[3:]]
    said = mtlprune("train", lab.config, *settings, "train.epochs=1").done()
    printed = [line for line in (said.out + said.err).splitlines() if "next: " in line]
    pasted = [shlex.split(line.split("next: ", 1)[1]) for line in printed]
    assert pasted and all(mtlprune(*words[1:]).code == 0 for words in pasted)
    assert RunFolder(tmp_path / "runs" / name).read_config()["data"]["path"] == name
    shutil.rmtree(tmp_path / "runs" / name / "scores")
    hint = mtlprune("table", f"runs/{name}", "--split", "test").err
    assert f"`{shlex.join(['mtlprune', 'evaluate', f'runs/{name}', '--split', 'test'])}` writes it again" in hint, hint


def test_paths_with_signs_of_patterns_are_paths(mtlprune, tmp_path):
    folder = tmp_path / "a[1] *"
    folder.mkdir()
    for name, other in (("x[2].jsonl", "[3]"), ("y?.jsonl", "[4]")):
        (folder / name).write_text('{"tokens": ["Ann"], "ner_tags": ["O"]}\n')
        mtlprune("data", "build", "hf", folder / name, "--split", "100/0/0", "--out", tmp_path / other).done()
    mtlprune("data", "build", "hf", folder, "--split", "100/0/0", "--out", tmp_path / "both").done()
    assert len(load_corpus(tmp_path / "both")["train"]) == 2
    (folder / "rows*.txt").write_text("Ann B-PER\nsang O\n")
    (folder / "rows.txt").write_text("Bo B-PER\n")
    mtlprune("data", "build", "--columns", "word,ner", "--train", folder / "rows*.txt", "--out", tmp_path / "5").done()
    assert [s.words for s in load_corpus(tmp_path / "5")["train"]] == [("Ann", "sang")]


def test_a_layer_without_labels_in_train_is_told(mtlprune, tmp_path):
    line = '{"id": "a", "words": ["Ann"], "pos": ["X"], "ner": [], "srl": []}'
    (tmp_path / "few.jsonl").write_text(line)
    train = ("--train", tmp_path / "few.jsonl", "--dev", tmp_path / "few.jsonl")
    said = mtlprune("data", "build", *train, "--out", tmp_path / "made").done().err
    assert [layer for layer in ("pos", "ner", "srl") if f"train has no label of {layer}, " in said] == ["ner", "srl"]


@pytest.mark.parametrize("name", ["few.txt", "few.conllu", "few.jsonl"])
def test_a_pointer_of_git_lfs_is_named(name, mtlprune, tmp_path):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    answer = mtlprune("data", "build", "--train", tmp_path / name, "--out", tmp_path / "made")
    assert answer.code == 2 and f"{name} is a pointer of Git LFS, not the file itself; run `git lfs pull`" in answer.err


def test_what_is_said_of_many_files_is_said_once(mtlprune, tmp_path):
    for name, text in {"a": "x O\n", "b": "x\tO\n", "c": "x O\n"}.items():
        (tmp_path / name).write_text(text)
    build = ("data", "build", "columns", "--columns", "word,ner", "--train", tmp_path, "--out", tmp_path / "made")
    lines = mtlprune(*build).done().err.splitlines()
    between = [f"{tmp_path / name}: columns are separated by {what}" for name, what in (("a", "blanks"), ("b", "tabs"))]
    assert [line for line in lines if "columns are separated by" in line] == between


def test_it_says_what_training_then_does(mtlprune, lab, trained):
    answer = mtlprune("train", lab.config, "--dry-run").done()
    assert answer.out.endswith("ready\n")
    assert row(answer.out, "sentences with srl") == ["24", "8"]
    corpus = load_corpus(lab.corpus)
    assert row(answer.out, "longest sentence (words)")[0] == str(max(map(len, corpus["train"])))
    manifest = RunFolder(trained).read_manifest()
    assert f"updates: 3 per epoch, {manifest['finished']['step']} in 2 epochs (joint mixing)" in answer.out
    assert f"in all {sum(manifest['parameters'].values()):,}" in answer.out
    assert "precision fp32 on cpu, threads: 1" in answer.out


def test_it_warns(mtlprune, lab, tmp_path):
    words = tuple(f"w{place}" for place in range(70))
    wide = (Predicate(0, None, (Span(1, 50, "ARG1"),)),)
    train = [Sentence("a", words, ("NN",) * 70, srl=wide), Sentence("b", ("\u4eba", "runs"), ("NN", "VB"), srl=())]
    dev = [Sentence("c", ("Ann", "!"), ("NNP", "."), srl=())]
    save_corpus({"train": train, "dev": dev}, tmp_path / "c", name="small", licence="none", sources={})
    answer = mtlprune("train", "--dry-run", lab.config, f"data.path={tmp_path / 'c'}", "tasks=pos,srl").done()
    assert "warning: pos: 2 labels of dev are not in train and can never be predicted: ., NNP" in answer.out
    assert "warning: srl: 1 arguments of train are wider than decoders.srl.max_width = 30" in answer.out
    assert "warning: train: 1.4% of the words become unknown tokens" in answer.out
    assert row(answer.out, "sentences with more sub-words than positions") == ["1", "0"]
    assert int(row(answer.out, "windows of the longest sentence")[0]) > 1
    assert row(answer.out, "words that become unknown tokens") == ["1", "0"]
