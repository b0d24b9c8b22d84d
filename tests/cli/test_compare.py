"""mtlprune compare and quickstart: from own files to one page, what a stop or a second call leaves, and mistakes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markup import markdown_rows
from power_cuts import PASSING, Recorder, images, lay_out
from tiny import HEADS, LAYERS

from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.sweeps import found_runs

pytestmark = pytest.mark.usefixtures("forked_workers")
Call = Callable[..., Any]
FAST = ["train.epochs=1", "train.precision=fp32", "train.device=cpu", "train.threads=1", "--jobs", 1]


@pytest.fixture(scope="module")
def own(mtlprune: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two files in columns, with one of the five layers and one of another name."""
    folder = tmp_path_factory.mktemp("own")
    for split, sentences in build_grammar(24, 8, 8, 1).items():
        rows = [
            [f"{word}\t{tag}\t{tag[0]}" for word, tag in zip(s.words, s.get("pos"), strict=True)] for s in sentences
        ]
        (folder / f"{split}.tsv").write_text("\n\n".join("\n".join(some) for some in rows) + "\n")
    files = [word for split in ("train", "dev", "test") for word in (f"--{split}", folder / f"{split}.tsv")]
    mtlprune("data", "build", "columns", "--columns", "word,pos,first:tags", *files, "--out", folder / "own").done()
    return folder / "own"


@pytest.fixture(scope="module")
def compared(own: Path, mtlprune: Call, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a comparison of two tasks with two seeds, and what the command printed; do not write into it."""
    out = tmp_path_factory.mktemp("compared") / "mine"
    return out, mtlprune("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out).done()


def files_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_from_two_tasks_of_ones_own_to_a_page(compared):
    out, answer = compared
    first, *_ = answer.out.splitlines()
    assert first.startswith("comparing pos, first of ")
    assert "1 of 13" in answer.out and "13 of 13: " in answer.out
    table = (out / "table.md").read_text()
    header, *rows = markdown_rows(table)[:3]
    assert header[:5] == ["task", "majority", "no encoder", "STL", "MTL-2"] and table in answer.out
    assert not {"", "–"} & {cell for row in rows for cell in row[:5]}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert (out / "report.html").resolve().as_uri() in answer.out and "What do heads know?" in page
    first = page.partition('class="first"')[2].partition("</header>")[0]
    assert "MTL-2 − STL" in first and "outlined: both tasks" in first and "--seeds 1,2,3" in first
    runs = [RunFolder(run) for run in found_runs(out / "runs")]
    assert len(runs) == 13 and all({"dev", "test"} <= set(run.splits()) for run in runs)
    assert found_runs(out / "sweep.yaml") == [run.path for run in runs]  # the file knows where its runs lie
    assert len(list((out / "runs/cells").glob("*.log"))) == 7  # heads are selected by the process that trained
    for claim in load_claims(found_runs(out / "runs", "heads-*")):
        assert claim.open.sum() <= HEADS * LAYERS and claim.frequencies is not None
    assert {path.name for path in out.iterdir()} == {
        "sweep.yaml",
        "runs",
        "analyses",
        "probes",
        "table.md",
        "report.html",
    }


def test_no_weights_are_kept_and_what_needs_them_says_so(compared, mtlprune):
    out, _ = compared
    assert not list(out.rglob("epoch-*.safetensors")) and not list(out.rglob("checkpoint*"))
    [run, *_] = found_runs(out / "runs", "stl-*")
    mtlprune("evaluate", run, "--split", "test").refuses("is kept without its weights")
    mtlprune("train", run / "config.yaml", f"train.start={run}", "--out", out.parent / "new").refuses(
        "without its weights"
    )
    mtlprune("train", run / "config.yaml", "--out", run).done()  # is finished, and stays so


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{own}", "--tasks", "pos,frist"], "does not have the layer frist at all (did you mean 'first'?)"),
        (["{own}", "--tasks", "pos,ner"], "does not have the layer ner"),
        (["{own}", "--tasks", "pos"], "expected two different tasks or more"),
        (["{own}", "--tasks", "pos,pos"], "expected two different tasks or more"),
        (["nowhere"], "nowhere: expected a corpus made by"),
        (["{own}", "--seeds", "1,1"], "--seeds: expected different whole numbers"),
        (["{own}", "--seeds", "9" * 5000], "--seeds: expected different whole numbers"),
        (["{own}", "--seeds", "١,٢"], "--seeds: expected different whole numbers"),
        (["{own}", "--seeds", "one"], "--seeds: expected different whole numbers"),
        (["{own}", "pruning=gates"], "the runs of a comparison differ in pruning"),
        (["{own}", "train.seed=3"], "the runs of a comparison differ in train.seed"),
        (["{own}", "train.epoch=3"], "unknown key train.epoch"),
        (["{own}", "encoder.name=./nowhere"], "no such folder"),
        (["{own}", "train.device=meta"], "cannot be used here"),
        (["{own}", "--out", "{own}"], "and no comparison; name another --out"),
        (["{own}", "--out", "{own}/corpus.json"], "is a file; name a folder"),
        (["{own}", "--out", "{out}", "--seeds", "3"], "other settings: --seeds (was [1, 2], is [3])."),
        (["{own}", "--out", "{out}", "encoder.word_dropout=0.1"], "encoder.word_dropout (was 0.2, is 0.1)"),
        (["{own}", "--out", "{out}", "--seeds", "1,2,3"], "its other runs are kept without their weights"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(words, sentence, compared, own, encoder, mtlprune, tmp_path):
    filled = [word.format(own=own, out=compared[0]) for word in words]
    place = [] if "--out" in words else ["--out", tmp_path / "new"]
    settings = [] if any(word.startswith("encoder.name") for word in words) else [f"encoder.name={encoder}"]
    before = files_of(compared[0])
    mtlprune("compare", *filled, *settings, *FAST[: 2 if "train.device=meta" in words else None], *place).refuses(
        sentence
    )
    assert not (tmp_path / "new").exists() and files_of(compared[0]) == before


def test_damage_names_its_file_and_the_way_on(compared, own, encoder, mtlprune, tmp_path):
    """One bit of any file that a run left, in a comparison that is finished and keeps no weights."""
    out = shutil.copytree(compared[0], tmp_path / "mine")
    again = ("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out)
    [run, *_] = found_runs(out / "runs", "heads-*")
    for name in ("config.yaml", "best.json", "gates.jsonl", "selection.json", "scores/test.json", "counts/test.json"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        answer = mtlprune(*again)
        answer.refuses("bring that file back, or name another --out")
        assert answer.names(str(run / name)), answer.err
        (run / name).write_bytes(whole)
    index = out / "runs/sweep.json"
    text = index.read_text()
    index.write_text(text.replace('"digest": "', '"digest": "x', 1))
    mtlprune(*again).refuses(f"{index}: unexpected content")
    index.unlink()
    (out / "notes.txt").write_text("mine")
    mtlprune(*again).done()
    assert index.read_text() == text.replace(str(compared[0]), str(out)) and (out / "notes.txt").read_text() == "mine"
    index.unlink()
    mtlprune(*again, "encoder.word_dropout=0.1").refuses("and no comparison; name another --out")


def test_one_training_sentence_is_refused_before_the_first_cell(mtlprune, encoder, tmp_path):
    sentence = Sentence("s", ("Ann", "sang"), ("X", "Y"), ())
    splits = {name: [replace(sentence, id=name)] for name in ("train", "dev", "test")}
    save_corpus(splits, tmp_path / "one", name="one", licence="none", sources={})
    answer = mtlprune("compare", tmp_path / "one", f"encoder.name={encoder}", *FAST, "--out", tmp_path / "new")
    answer.refuses("expected two training sentences or more")
    assert not (tmp_path / "new").exists()


def test_a_plan_writes_nothing(own, mtlprune, encoder, tmp_path):
    command = ("compare", own, f"encoder.name={encoder}", *FAST, "--out", tmp_path / "new", "--dry-run")
    answer = mtlprune(*command, "--seeds", "1,2,3").done()
    assert "19 cells: 19 left" in answer.out and "by arithmetic" in answer.out and "MB in the end" in answer.out
    assert not (tmp_path / "new").exists()
    pairs = mtlprune(*command, "--seeds", "1", "--pairs").done()  # of two tasks, the pair is the joint run
    assert "7 cells: 7 left" in pairs.out


def test_a_stopped_quickstart_goes_on(mtlprune, encoder, tmp_path):
    out = tmp_path / "quick 1"
    command = ["quickstart", f"encoder.name={encoder}", *FAST, "--out", out, "--keep-weights"]
    command += ["--train", 16, "--dev", 6, "--test", 6]
    first = mtlprune(*command).done()
    names = sorted(path.name for path in (out / "runs").iterdir() if (path / "config.yaml").is_file())
    assert len(names) == 13 and len(load_corpus(out / "corpus")["test"]) == 6
    page, table = ((out / name).read_bytes() for name in ("report.html", "table.md"))
    header, *rows = markdown_rows(table.decode())[:6]
    assert header == ["task", "majority", "no encoder", "STL", "MTL-5", "Δ"]
    assert not {"", "–"} & {cell for row in rows for cell in row} and table.decode() in first.out

    [stopped] = found_runs(out / "runs", "stl-srl-*")
    (stopped / "scores/test.json").unlink()  # as if it had been killed before that evaluation
    shutil.rmtree(out / "analyses")
    (out / "report.html").write_text("of a killed process")
    before = {name: RunFolder(out / "runs" / name).read_json("manifest.json") for name in names}
    second = mtlprune(*command).done()
    assert "12 done already" in second.out
    assert (out / "table.md").read_bytes() == table and (out / "report.html").read_bytes() == page
    after = {name: RunFolder(out / "runs" / name).read_json("manifest.json") for name in names}
    assert {name: one["finished"] for name, one in before.items()} == {
        name: one["finished"] for name, one in after.items()
    }
    assert list(out.rglob("epoch-*.safetensors"))

    mtlprune(*command[:-1], 7).refuses("found another one; name another --out")


class CellsBegin(BaseException):
    """Raised where the first cell would be trained."""


@pytest.mark.parametrize("command", ["compare", "quickstart"])
def test_what_is_killed_while_it_begins_begins_anew(command, own, encoder, mtlprune, tmp_path, monkeypatch):
    """At every operation on files up to the first cell, and after a power cut then: the same command goes on."""

    def begin(cells: Any, *_: Any) -> None:
        raise CellsBegin(*cells)

    monkeypatch.setattr("mtlprune.cli.sweep.run_cells", begin)
    root = tmp_path / "root"
    words = [command, *([own] if command == "compare" else ["--train", 16, "--dev", 6, "--test", 6])]
    words += [f"encoder.name={encoder}", *FAST, "--out", root / "mine"]
    root.mkdir()
    with Recorder(root) as recorder, pytest.raises(CellsBegin) as whole:
        mtlprune(*words)
    expected = visible(root)
    recorder.root = root.rename(tmp_path / "recorded")
    moments = images(recorder)
    assert len(moments) > 5
    for image in moments:
        shutil.rmtree(root, ignore_errors=True)
        lay_out(image, root)
        with pytest.raises(CellsBegin) as again:
            mtlprune(*words)
        assert again.value.args == whole.value.args and visible(root) == expected, image.keys()


def visible(root: Path) -> dict[str, bytes]:
    """Files by path, without locks; halves of files count."""
    paths = (path for path in root.rglob("*") if path.is_file() and path.name not in PASSING)
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_what_somebody_else_left_is_not_taken_for_a_beginning(own, encoder, mtlprune, tmp_path):
    for name in ("notes.txt", "runs/mine/config.yaml", ".secret"):
        out = tmp_path / name.partition("/")[0].strip(".")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        mtlprune("compare", own, f"encoder.name={encoder}", *FAST, "--out", out).refuses("and no comparison")
        assert (out / name).read_text() == "mine"
