"""The run folder: nothing half-written, one process at a time, everything read back as it was."""

import os
import platform
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtlprune.config.config import build_config
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.io.files import append_line, one_writer, replacing, replacing_folder
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence, Span
from mtlprune.sweeps.folder import output_folders
from mtlprune.training.checkpoint import Progress
from mtlprune.training.data import read_splits


def at_the_same_time(write: Callable[[int], None]) -> None:
    """Call it of six threads, ten times each."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [*range(6)] * 10))


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "sub" / "file"
    with replacing(path) as beside:
        beside.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    message = r"file could not be written \(No space left on device\); its earlier content is unchanged"
    full = OSError(28, "No space left on device")
    for error, raised, said in ((KeyError("x"), KeyError, "x"), (full, RunError, message)):
        with pytest.raises(raised, match=said), replacing(path) as beside:
            beside.write_text("two, but only ha")
            raise error
        assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_a_folder_has_one_owner_at_a_time(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    message = r"run is in use by another process \(number \d+\); wait for this process, or choose"
    with first.locked(), pytest.raises(RunError, match=message), second.locked():
        raise AssertionError("two owners")
    with pytest.raises(KeyError), second.locked():
        raise KeyError
    with first.locked():
        assert first.path.is_dir()
    assert not first.path.exists()  # nothing was written
    for owner in (first, second):
        with owner.locked():
            owner.write_text("manifest.json", "{}")
        assert (first.path / "manifest.json").is_file()


def test_results_of_surpassed_weights_are_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    names = {"dev", "test", "test.on-x-1234", "test.best-pos", "test.best-pos.on-x-1234", "test.best-ner"}
    for name in names:
        folder.write_results(name, {"pos": {"accuracy": 1.0}}, [], {}, [])
    for forgotten, left in (
        ([], names),
        (["pos"], names - {"test.best-pos", "test.best-pos.on-x-1234"}),
        (["joint"], {"test.best-ner"}),
    ):
        folder.forget_results(forgotten)
        assert set(folder.splits()) == left
    assert len(list(tmp_path.rglob("*.json*"))) == 3


def test_results_are_those_of_one_writer(tmp_path):
    folder = RunFolder(tmp_path)

    def write(number: int) -> None:
        predicted = [Sentence(str(number), ("x",), pos=("A",))]
        folder.write_results("test", {"pos": {"accuracy": number}}, [str(number)], {}, predicted)
        with one_writer(folder.path):
            score = str(folder.read_scores("test")["pos"]["accuracy"])
            assert folder.read_counts("test")["ids"] == [score] == [s.id for s in folder.read_predictions("test")]

    at_the_same_time(write)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "predictions", "scores"]


def test_a_folder_is_that_of_one_writer(tmp_path):
    def write(number: int) -> None:
        with replacing_folder(tmp_path / "new") as beside:
            for name in "abc":
                (beside / name).write_text(str(number))

    at_the_same_time(write)
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "new"):
        raise ZeroDivisionError
    assert len({(tmp_path / "new" / name).read_text() for name in "abc"}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_a_killed_process_was_filling_goes_and_a_living_one_s_stays(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = platform.node()
    gone = [f".new.{host}-{dead.pid}-140-0.part", f".new.{host}-{dead.pid}-140-1.old"]
    stays = [f".new.{host}-{os.getppid()}-140-0.part", f".new.elsewhere-{dead.pid}-140-0.part", ".new.theirs.part"]
    stays += [f".newer.{host}-{dead.pid}-140-0.part", f".new.{host}-{dead.pid}.txt"]
    for name in (*gone, *stays):
        (tmp_path / name).mkdir()
    with replacing_folder(tmp_path / "new"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"new", *stays}


def test_results_come_back(tmp_path):
    folder = RunFolder(tmp_path)
    predictions = [
        Sentence("a", ("x", "y\u2028z"), pos=("A", "B"), ner=(Span(0, 1, "P"),), srl=()),
        Sentence("b", ("x",), pos=("A",), ner=(), srl=()),
    ]
    counts = {"pos": [{"correct": 1, "words": 2}, None], "ner": [{"correct": 0}, {"correct": 1, "gold": 2}]}
    folder.write_results("dev", {"pos": {"accuracy": 50.0}}, ["a", "b"], counts, predictions)
    assert folder.splits() == ["dev"] and folder.read_scores("dev") == {"pos": {"accuracy": 50.0}}
    assert folder.read_predictions("dev") == predictions
    assert folder.read_counts("dev") == {
        "ids": ["a", "b"],
        "counts": {"pos": {"correct": [1, None], "words": [2, None]}, "ner": {"correct": [0, 1], "gold": [0, 2]}},
    }


def test_metrics_are_appended_cut_back_and_read(tmp_path):
    folder, progress = RunFolder(tmp_path), Progress()
    log = folder.metrics_path
    lines = [{"epoch": epoch, "step": 9, "loss": {}, "dev": {}, "joint": 1.0} for epoch in (1, 2)]
    assert folder.read_metrics() == [] and not log.exists()
    progress.log(log, lines[0])
    assert folder.read_metrics() == lines[:1]
    append_line(log, lines[1])
    assert folder.read_metrics() == lines
    progress.restore_logs(log)
    assert folder.read_metrics() == lines[:1]
    with log.open("a") as file:
        file.write('{"epoch": 2, "lo')  # a process was killed, or is writing just now
    assert folder.read_metrics() == lines[:1]
    log.unlink()
    progress.restore_logs(log, folder.gates_path)
    assert folder.read_metrics() == lines[:1] and not folder.has("gates.jsonl")


GATES_LINE = '{"epoch": 1, "step": 1, "open": {}, "expected": {}, "gates": {"x": %s}}\n'


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("manifest.json", '{"data": {"fingerprint": 3}}', RunFolder.read_manifest),
        ("manifest.json", '{"data": {"fingerprint": "f"}, "pruned": {"config": {}, "most_open": 2}}', RunFolder.verify),
        ("best.json", '{"joint": {"epoch": 0, "score": 1}}', RunFolder.read_best),
        ("best.json", '{"pos": {"epoch": 1, "score": 1}}', RunFolder.read_best),
        ("metrics.jsonl", '{"epoch": 1}\n', RunFolder.read_metrics),
        ("gates.jsonl", GATES_LINE % "[]", RunFolder.read_gates),
        ("gates.jsonl", GATES_LINE % "[[1.5]]", RunFolder.read_gates),
        ("config.yaml", "[]", RunFolder.read_config),
        ("config.yaml", "data: {path: x}", RunFolder.read_config),
    ],
)
def test_a_file_of_a_run_in_training_that_is_damaged_is_named(name, content, read, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=f"^damaged: {tmp_path / name}.*; restore the file, or train the run again"):
        read(RunFolder(tmp_path))


def test_the_corpus_is_found_from_anywhere(tmp_path, monkeypatch):
    """By data.path from where a run was started, which its folder says without naming any folder."""
    (tmp_path / "work" / "away").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    train = [Sentence("a", ("x",), pos=("A",)), Sentence("b", ("y",), pos=("A",))]
    corpus = save_corpus({"train": train[:1], "dev": train[1:]}, Path("data/c"), name="c", licence="x", sources={})
    folder = RunFolder("runs/deep/one")
    data = {"path": "data/c", "fingerprint": corpus.fingerprint, **folder.started()}
    folder.write_config({"data": {"path": "data/c"}, "tasks": ["pos"]})
    folder.write_json("manifest.json", {"data": data})
    assert data["started"] == "../../.." and folder.corpus_path() == Path("data/c")
    monkeypatch.chdir(tmp_path / "work" / "away")
    elsewhere = RunFolder("../runs/deep/one")
    assert load_corpus(elsewhere.corpus_path()).fingerprint == corpus.fingerprint
    save_corpus({"train": train}, Path("data/c"), name="another", licence="x", sources={})
    assert load_corpus(elsewhere.corpus_path()).fingerprint == corpus.fingerprint
    (tmp_path / "work" / "data").rename(tmp_path / "moved")
    assert elsewhere.corpus_path() == Path("data/c")  # of another content, which whoever reads it refuses
    (tmp_path / "work" / "away" / "data").rename(tmp_path / "too")
    with pytest.raises(RunError, match=r"found none at data/c \(data.path\); go to the folder where the run"):
        elsewhere.corpus_path()
    assert RunFolder(tmp_path / "outside").started() == {}


def test_only_the_first_sentences_of_dev_are_scored_in_training(tmp_path):
    sentences = [Sentence(str(k), ("x",), pos=("A",)) for k in range(5)]
    splits = {"train": sentences[:2], "dev": sentences[2:]}
    corpus = save_corpus(splits, tmp_path / "c", name="c", licence="x", sources={})
    config = build_config({"data": {"path": str(corpus.path), "dev_sentences": 2}, "tasks": ["pos"]})
    assert [[s.id for s in split] for split in read_splits(config, corpus)] == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize("inside", ["several", "several/runs"], ids=["runs", "a comparison"])
def test_a_folder_of_runs_is_no_run(tmp_path, inside):
    (tmp_path / inside / "one").mkdir(parents=True)
    (tmp_path / inside / "one" / "config.yaml").touch()
    with pytest.raises(RunError, match=rf"found no config.yaml in it; it contains runs, so name .*{inside}/\*"):
        RunFolder.existing(tmp_path / "several")


def test_a_run_does_not_begin_among_other_files(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "encoder").mkdir()
    (tmp_path / ".lock").touch()
    folder.check_ours()  # what a killed beginning leaves
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"found thesis\.tex; choose another --out"):
        folder.check_ours()
    with pytest.raises(RunError, match=r"expected a run folder or an empty folder, found thesis.tex"), folder.locked():
        raise AssertionError("begun among foreign files")
    file = RunFolder(tmp_path / "thesis.tex")
    with pytest.raises(RunError, match=r"tex: expected a folder that can be written.*choose another"), file.locked():
        raise AssertionError("begun in a file")
    assert {item.name for item in tmp_path.iterdir()} == {"encoder", ".lock", "thesis.tex"}


def test_output_of_several_runs_has_a_folder_each(tmp_path):
    """Runs of `mtlprune train --seeds` have the same folder names, so the name of their folder is added."""
    one, two, three = (RunFolder(tmp_path / name) for name in ("pos/seed-1", "ner/seed-1", "other/pos-seed-1"))
    assert output_folders(tmp_path, [one]) == [tmp_path]
    assert output_folders(tmp_path, [one, two]) == [tmp_path / "pos-seed-1", tmp_path / "ner-seed-1"]
    with pytest.raises(RunError, match="found pos-seed-1 twice"):
        output_folders(tmp_path, [one, two, three])


def test_a_study_finds_the_run_of_a_seed_from_which_a_run_starts(tmp_path):
    """A study stores run names, and the name of a run of `mtlprune train --seeds` has its folder's name in it."""
    for name in ("mtl-seed-1", "next"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    found = RunFolder(tmp_path / "next").referenced_run("runs/mtl/seed-1")
    assert found is not None and found.path.name == "mtl-seed-1"
