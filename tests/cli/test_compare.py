"""mtlprune compare and quickstart: from own files to one page, what a stop or a second call leaves, and mistakes."""

from __future__ import annotations

import html
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markup import markdown_rows
from power_cuts import Recorder, contents, images, lay_out
from tiny import HEADS, LAYERS

from mtlprune.analyses.analysis import read
from mtlprune.cli.show import majority_of
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import load_corpus, read_info, save_corpus
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.settings import changes
from mtlprune.sentence import Sentence
from mtlprune.sweeps import found_runs
from mtlprune.sweeps.cells import resolve
from mtlprune.sweeps.compare import EFFORT, choose_tasks, settings_of, sweep_tree
from mtlprune.sweeps.specification import parse_specification
from mtlprune.training.hardware import resolve_auto
from mtlprune.training.setup import FREE

pytestmark = pytest.mark.usefixtures("forked_workers")
Call = Callable[..., Any]
RATES = ["train.encoder_rate=1e-4", "train.decoder_rate=1e-3", "encoder.word_dropout=0.2"]  # so that heads are claimed
FAST = ["train.epochs=1", "train.precision=fp32", *RATES, "train.device=cpu", "train.threads=1", "--jobs", 1]


@pytest.fixture(scope="module")
def own(mtlprune: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two files in columns, with one of the five layers and one of another name."""
    folder = tmp_path_factory.mktemp("own")
    for split, sentences in build_grammar(24, 8, 8, 1).items():
        rows = [[f"{word}\t{tag}\t{tag[0]}" for word, tag in zip(s.words, s.pos, strict=True)] for s in sentences]
        (folder / f"{split}.tsv").write_text("\n\n".join("\n".join(some) for some in rows) + "\n")
    files = [word for split in ("train", "dev", "test") for word in (f"--{split}", folder / f"{split}.tsv")]
    mtlprune("data", "build", "columns", "--columns", "word,pos,first:tags", *files, "--out", folder / "own").done()
    return folder / "own"


@pytest.fixture(scope="module")
def compared(own: Path, mtlprune: Call, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a comparison of two tasks with two seeds, and what the command printed; do not write into it."""
    out = tmp_path_factory.mktemp("compared") / "mine"
    return out, mtlprune("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out).done()


@pytest.fixture(scope="module")
def dropped(compared: tuple[Path, Any], own: Path, mtlprune: Call, encoder: Path) -> Path:
    """A copy of that comparison, of which no weights are kept."""
    out = shutil.copytree(compared[0], compared[0].parent / "dropped")
    command = ("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out)
    assert " MB: removed at the end" in mtlprune(*command, "--drop-weights").done().out
    for options in ([], ["--keep-weights"]):  # once removed they stay so
        again = mtlprune(*command, *options).done()
        assert " MB: removed by an earlier call; " in again.out and " MB: kept" not in again.out
    return out


def files_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_from_two_tasks_of_ones_own_to_a_page(compared):
    out, answer = compared
    first, *_ = answer.out.splitlines()
    assert first.startswith("comparing pos, first of ")
    assert "1 of 13" in answer.out and "13 of 13: " in answer.out
    table = (out / "table.md").read_text()
    header, *rows = markdown_rows(table)[:3]
    assert header[:5] == ["task", "majority", "no encoder", "STL", "POS+FIRST"] and table in answer.out
    assert not {"", "–"} & {cell for row in rows for cell in row[:5]}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert (out / "report.html").resolve().as_uri() in answer.out and "Which labels do heads identify?" in page
    first = page.partition('class="first"')[2].partition("</header>")[0]
    assert "POS+FIRST − STL" in first and "heads of both tasks are outlined" in first and "<span>1,2,3</span>" in first
    runs = [RunFolder(run) for run in found_runs(out / "runs")]
    assert len(runs) == 13 and all({"dev", "test"} <= set(run.splits()) for run in runs)
    assert found_runs(out / "sweep.yaml") == [run.path for run in runs]  # the file knows where its runs lie
    assert len(list((out / "runs/cells").glob("*.log"))) == 13  # also where one process did several cells
    for claim in load_claims(found_runs(out / "runs", "heads-*")):
        assert claim.open.sum() <= HEADS * LAYERS and claim.frequencies is not None
    names = {"sweep.yaml", "runs", "analyses", "probes", "table.md", "report.html"}
    assert {path.name for path in out.iterdir()} == names
    assert read(out / "probes", "probes").about["kinds"].keys() == {"pos", "first"}  # what is compared is probed


def test_a_page_of_its_runs_shows_what_the_comparison_did(compared, own, mtlprune, tmp_path):
    """The page of the runs alone had no baseline, no analyses, and a command without the settings of the runs."""
    out, _ = compared
    mtlprune("report", out / "runs", "--out", tmp_path / "page.html", "--resamples", 50).done()
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    first = page.partition('class="first"')[2].partition("</header>")[0]
    assert ">majority</th>" in page and "Change of every task" in page and "Which labels do heads identify?" in page
    assert first.count("Not asked by these runs") == 0 and "The majority baseline is not known" not in page
    [printed] = set(re.findall(r'<code class="command">(.*?)</code>', first))
    words = shlex.split(html.unescape(re.sub("<[^>]*>", "", printed)))[2:]
    options = dict(itertools.pairwise(words))
    assert options["--tasks"] == "pos,first" and options["--seeds"] == "1,2,3"
    corpus, overrides = words[0], words[1 : words.index("--tasks")]
    assert corpus == own.name
    settings = settings_of(own, read_info(own), ["pos", "first"], overrides)
    tree = sweep_tree(settings, ["pos", "first"], [1, 2], False, HEADS * LAYERS, EFFORT)
    again = resolve(parse_specification(tmp_path / "sweep.yaml", tree), tmp_path / "runs").cells
    before = {run.path.name.rpartition("-")[0]: run.read_config() for run in map(RunFolder, found_runs(out / "runs"))}
    assert {name: cell.config.train.epochs for name, cell in again.items()}.keys() == before.keys()
    for name, cell in again.items():
        free = {*FREE, "train.threads", "train.start", "pruning.importance_of", "encoder.name"}
        assert not changes(before[name], resolve_auto(cell.config).model_dump(mode="json"), free), name


def test_a_page_says_where_the_majority_baseline_is_not_known(compared, mtlprune, tmp_path, monkeypatch):
    """It is kept beside the runs of a comparison; of a run elsewhere, whose corpus is gone, nothing is known."""
    [run, *_] = found_runs(compared[0] / "runs", "stl-*")
    mtlprune("runs", "pack", run, "--out", tmp_path / "study").done()
    monkeypatch.setattr(RunFolder, "corpus_path", lambda run: Path("gone"))
    for kept in (run, tmp_path / "study" / run.name):
        assert majority_of(RunFolder(kept), "test").keys() >= {"pos", "first"}
    shutil.copytree(run, tmp_path / "run")
    mtlprune("report", tmp_path / "run", "--out", tmp_path / "page.html", "--resamples", 0).done()
    assert "The majority baseline is not known" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_weights_are_kept_where_they_are_small_and_a_further_seed_adds_its_runs(compared, own, encoder, mtlprune):
    out, answer = compared
    weights = [line for line in answer.out.splitlines() if line.startswith("weights of 13 runs in ")]
    assert len(weights) == 2 and all(line.endswith(" MB: kept") for line in weights)  # before the first run, at the end
    more = shutil.copytree(out, out.parent / "more")
    before = {run.name: RunFolder(run).read_manifest()["finished"] for run in found_runs(more / "runs")}
    command = ("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2,3", "--out", more)
    assert "19 cells, 13 already done" in mtlprune(*command).done().out
    after = {run.name: RunFolder(run).read_manifest()["finished"] for run in found_runs(more / "runs")}
    assert len(after) == 19 and before.items() <= after.items()


def test_a_second_tag_set_is_no_task_unless_it_is_named():
    splits = {name: {"sentences": 2, "known": {"pos": 2, "xpos": 2, "dep": 2}} for name in ("train", "dev", "test")}
    info = {"splits": splits, "layers": {"pos": "tags", "dep": "tree", "xpos": "tags"}}
    assert choose_tasks(Path("c"), info, None) == ["pos", "dep"]
    assert choose_tasks(Path("c"), info, "pos,xpos") == ["pos", "xpos"]


def test_without_weights_what_needs_them_says_so(dropped, mtlprune):
    out = dropped
    assert not list(out.rglob("epoch-*.safetensors")) and not list(out.rglob("checkpoint*"))
    [run, *_] = found_runs(out / "runs", "stl-*")
    mtlprune("evaluate", run, "--split", "test").refuses("is kept without its weights")
    begun = mtlprune("train", run / "config.yaml", f"train.start={run}", "--out", out.parent / "new")
    begun.refuses("without its weights")
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
        (["{own}", "pruning=gates"], "pruning=gates: the runs of a comparison differ in this setting"),
        (["{own}", "train.seed=3"], "train.seed=3: the runs of a comparison differ in this setting"),
        (["{own}", "train.epoch=3"], "unknown key train.epoch"),
        (["{own}", "encoder.name=./nowhere"], "no such folder"),
        (["{own}", "train.device=meta"], "cannot be used here"),
        (["{own}", "--out", "{own}"], "expected a comparison or an empty folder, found "),
        (["{own}", "--out", "{own}/corpus.json"], "is a file; name a folder"),
        (
            ["{own}", "--out", "{out}", "--seeds", "3"],
            "(was [1, 2], is [3]); --seeds 1,2,3 adds runs to the comparison.",
        ),
        (["{own}", "--out", "{out}", "train.weight_decay=0.1"], "train.weight_decay (was 0.0, is 0.1)"),
        (["{own}", "--tasks", "pos", "first"], "as one word with commas (--tasks pos,dep)"),
        (["{own}", "--out", "{dropped}", "--seeds", "1,2,3"], "its other runs have no weights"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    words, sentence, compared, dropped, own, encoder, mtlprune, tmp_path
):
    filled = [word.format(own=own, out=compared[0], dropped=dropped) for word in words]
    place = [] if "--out" in words else ["--out", tmp_path / "new"]
    settings = [] if any(word.startswith("encoder.name") for word in words) else [f"encoder.name={encoder}"]
    before = files_of(compared[0])
    fast = FAST[: 2 if "train.device=meta" in words else None]
    mtlprune("compare", *filled, *settings, *fast, *place).refuses(sentence)
    assert not (tmp_path / "new").exists() and files_of(compared[0]) == before


def test_damage_names_its_file_and_the_way_on(dropped, own, encoder, mtlprune, tmp_path):
    """One bit of any file that a run left, in a comparison that is finished and keeps no weights."""
    out = shutil.copytree(dropped, tmp_path / "mine")
    again = ("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out)
    [run, *_] = found_runs(out / "runs", "heads-*")
    for name in ("config.yaml", "best.json", "gates.jsonl", "selection.json", "scores/test.json", "counts/test.json"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        answer = mtlprune(*again)
        answer.refuses("restore that file, or name another --out")
        assert answer.names(str(run / name)), answer.err
        (run / name).write_bytes(whole)
    index = out / "runs/sweep.json"
    text = index.read_text()
    index.write_text(text.replace('"digest": "', '"digest": "x', 1))
    mtlprune(*again).refuses(f"{index}: unexpected content")
    index.unlink()
    (out / "notes.txt").write_text("mine")
    mtlprune(*again).done()
    assert index.read_text() == text.replace(str(dropped), str(out)) and (out / "notes.txt").read_text() == "mine"
    index.unlink()
    mtlprune(*again, "encoder.word_dropout=0.1").refuses("expected a comparison or an empty folder, found ")


def test_damage_in_a_comparison_that_keeps_its_weights_is_named_by_the_cell(compared, own, encoder, mtlprune, tmp_path):
    out = shutil.copytree(compared[0], tmp_path / "mine")
    [run, *_] = found_runs(out / "runs", "heads-*")
    text = (run / "gates.jsonl").read_text()
    (run / "gates.jsonl").write_text(text[:-9] + "1" + text[-8:])
    answer = mtlprune("compare", own, f"encoder.name={encoder}", *FAST, "--seeds", "1,2", "--out", out)
    assert answer.code == 1 and str(run / "gates.jsonl") in "".join(answer.out.split())


def test_one_training_sentence_is_refused_before_the_first_cell(mtlprune, encoder, tmp_path):
    sentence = Sentence("s", ("Ann", "sang"), ("X", "Y"), ())
    splits = {name: [replace(sentence, id=name)] for name in ("train", "dev", "test")}
    save_corpus(splits, tmp_path / "one", name="one", licence="none", sources={})
    answer = mtlprune("compare", tmp_path / "one", f"encoder.name={encoder}", *FAST, "--out", tmp_path / "new")
    answer.refuses("expected two training sentences or more")
    assert not (tmp_path / "new").exists()


def test_a_plan_writes_nothing_and_says_what_becomes_of_large_weights(own, mtlprune, encoder, tmp_path, monkeypatch):
    command = ("compare", own, f"encoder.name={encoder}", *FAST, "--out", tmp_path / "new", "--dry-run")
    answer = mtlprune(*command, "--seeds", "1,2,3").done()
    assert "19 cells: 19 left" in answer.out and "estimated" in answer.out
    assert "disk: about 57 MB, and" in answer.out
    assert "analyses and report: about " in answer.out and "; in all about " in answer.out
    assert not (tmp_path / "new").exists()
    pairs = mtlprune(*command, "--seeds", "1", "--pairs").done()  # of two tasks, the pair is the joint run
    assert "7 cells: 7 left" in pairs.out
    monkeypatch.setattr("mtlprune.cli.compare.MAX_WEIGHT_BYTES", 0)
    assert "removed at the end; --keep-weights keeps the weights" in mtlprune(*command).done().out
    assert " MB: kept" in mtlprune(*command, "--keep-weights").done().out


def test_jobs_of_a_cluster_depend_neither_on_the_cores_nor_on_the_devices_of_this_machine(
    own, encoder, mtlprune, tmp_path, monkeypatch
):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    arrays = tmp_path / "arrays"
    for name, script in (("srun", ""), ("sbatch", f"grep -e --array= $1 >> {arrays}; echo Submitted batch job 7")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    command = ("compare", own, f"encoder.name={encoder}", *FAST[:-2], "train.device=cuda", "--seeds", "1", "--slurm")
    command += ("timeout_min=5", "--out", tmp_path / "new")
    assert "left, 7 at once" in mtlprune(*command, "--dry-run").done().out
    mtlprune(*command).done()
    assert re.findall(r"0-(\d)%(\d)", arrays.read_text()) == [("3", "4"), ("2", "3")]  # all cells of an array at once
    shutil.rmtree(tmp_path / "new")
    mtlprune(*command, "--jobs", 1).done()
    assert re.findall(r"0-(\d)%(\d)", arrays.read_text())[2:] == [("3", "1"), ("2", "1")]


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
    assert "12 already done" in second.out
    assert (out / "table.md").read_bytes() == table and (out / "report.html").read_bytes() == page
    after = {name: RunFolder(out / "runs" / name).read_json("manifest.json") for name in names}
    assert [one["finished"] for one in before.values()] == [one["finished"] for one in after.values()]
    assert list(out.rglob("epoch-*.safetensors"))

    mtlprune(*command[:-1], 7).refuses("found another corpus; name another --out")


def test_quickstart_refuses_mistakes_before_it_generates_a_corpus(mtlprune, tmp_path):
    mtlprune("quickstart", "train.foo=1", "--out", tmp_path / "q").refuses("train.foo")
    assert not (tmp_path / "q").exists()
    (tmp_path / "file").touch()
    mtlprune("quickstart", "--out", tmp_path / "file").refuses("is a file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("thesis.tex", "sweep.yaml"):  # a comparison has a file with the second name, too
        (foreign / name).write_text("")
        mtlprune("quickstart", "--out", foreign).refuses(f"expected a comparison or an empty folder, found {name}")
    assert {path.name for path in foreign.iterdir()} == {"thesis.tex", "sweep.yaml"}


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
    expected = contents(root)
    recorder.root = root.rename(tmp_path / "recorded")
    moments = images(recorder)
    assert len(moments) > 5
    for image in moments:
        shutil.rmtree(root, ignore_errors=True)
        lay_out(image, root)
        with pytest.raises(CellsBegin) as again:
            mtlprune(*words)
        assert again.value.args == whole.value.args and contents(root) == expected, image.keys()


def test_what_somebody_else_left_is_not_taken_for_a_beginning(own, encoder, mtlprune, tmp_path):
    for name in ("notes.txt", "runs/mine/config.yaml", ".secret"):
        out = tmp_path / name.partition("/")[0].strip(".")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        mtlprune("compare", own, f"encoder.name={encoder}", *FAST, "--out", out).refuses(
            "expected a comparison or an empty folder"
        )
        assert (out / name).read_text() == "mine"
