"""Studies: small, exact, portable; packed of any run, read in the place of runs; damage is told, never read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from power_cuts import Recorder, images, lay_out
from random_sentences import LABELS, sentences
from report_runs import TASKS, gold_sentences, write_study, write_study_run
from run_folders import scattered, write_run
from safetensors.numpy import save_file

from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.evaluation.scores import count
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.study import ROWS, add_runs, open_study, read_study
from mtlprune.sentence import LAYERS, Dependencies, Sentence
from mtlprune.statistics.labels import count_labels
from mtlprune.sweeps.folder import found_runs, write_index
from mtlprune.sweeps.packing import pack, without_places


def gold_of(folder: Path) -> Callable[[str, str, str], Sequence[Any]]:
    return lambda run, fingerprint, split: list(load_corpus(folder)[split])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(folder: Path) -> dict[str, dict[str, Any]]:
    study = open_study(folder)
    assert study is not None
    rows = study.table.read().to_pylist()
    return {row["run"]: {name: value for name, value in row.items() if value is not None} for row in rows}


def test_studies_are_joined(study, tmp_path):
    _, there = study
    names = [path.name for path in read_study(there / "mine").paths()]
    first, rest = names[0], names[1:]
    pack([there / "mine" / first], tmp_path / "first", no_gold)
    pack([there / "mine" / name for name in rest], tmp_path / "rest", no_gold)
    pack([tmp_path / "first", tmp_path / "rest"], tmp_path / "both", no_gold)
    assert packed(tmp_path / "both") == packed(there / "mine")
    assert {*read_study(tmp_path / "both").paths()} == {tmp_path / "both" / name for name in names}
    pack([tmp_path / "first", there / "mine"], tmp_path / "again", no_gold)
    assert packed(tmp_path / "again") == packed(there / "mine")  # what both have is stored once
    other = {name: row | {"config.yaml": "other"} for name, row in packed(tmp_path / "first").items()}
    add_runs(tmp_path / "other", other, {name: name for name in other}, {})
    with pytest.raises(RunError, match="has another run"):
        pack([there / "mine", tmp_path / "other"], tmp_path / "twice", no_gold)


def no_gold(*_: str) -> list[Any]:
    raise AssertionError("packed runs need no corpus")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders to work in: in one the runs of a sweep and their corpus, in the other their study, under one name.

    Beside the cells of the study: a run with a gate set a task, one whose heads were removed, one not finished.
    """
    here, there = (tmp_path_factory.mktemp(name) for name in ("runs", "studies"))
    gold = gold_sentences()
    save_corpus({"test": gold}, here / "data/x", name="x", licence="none", sources={})
    runs = write_study(here / "mine", seeds=(1, 2), gold=gold)
    generator = np.random.default_rng(5)
    sets = {task: scattered(generator, (3, 2, 1), 4) for task in TASKS}
    own = {"pruning.method": "gates", "pruning.sets": "per_task"}
    runs.append(write_run(here / "mine/sets-1", TASKS, sets, **own))
    shutil.copytree(here / "mine/none-pos-1", here / "mine/removed-pos-1")
    runs.append(RunFolder(here / "mine/removed-pos-1"))
    runs[-1].write_json("encoder/heads.json", {"kept": [[0], [1, 2], []], "heads": 4})
    pruned = {"pruned": {"config": runs[-1].read_config(), "most_open": None}}
    runs[-1].write_json("manifest.json", runs[-1].read_manifest() | pruned)
    fingerprint = load_corpus(here / "data/x").fingerprint
    for run in runs:
        manifest = run.read_manifest()
        run.write_json("manifest.json", manifest | {"data": {"fingerprint": fingerprint, "name": "x"}})
        run.write_json("vocabulary.json", {task: {"labels": ["a"]} for task in run.read_config()["tasks"]})
        for best in run.read_best().values():  # a cell without its weights is not done
            run.weights_path(best["epoch"]).parent.mkdir(exist_ok=True)
            save_file({"x": np.zeros(1)}, run.weights_path(best["epoch"]))
    write_run(here / "mine/late-1", ["pos"], sets["pos"], finished=False)
    cells = {path.name: {"folder": path.name} for path in sorted((here / "mine").iterdir())}
    write_index(here / "mine", "mine", Path("mine.yaml"), cells)
    pack([here / "mine"], there / "mine", gold_of(here / "data/x"))
    assert len(packed(there / "mine")) == len(runs) == 26
    return here, there


PAGE = ("report", "mine", "--resamples", 50, "--out", "made/page.html")


@pytest.mark.parametrize(
    "words",
    [
        *(("table", "mine:none-*,gates-*", "--format", kind, "--resamples", 50) for kind in ("markdown", "json")),
        ("table", "mine:none-pos-?,removed-*", "--resamples", "0"),
        ("claims", "mine:gates-*", "--out", "made", "--permutations", 50),
        ("claims", "mine/sets-1", "--permutations", 50),
        ("claims", "mine:gates-pos-*", "--out", "made", "--format", "svg"),
        ("analyze", "heads", "mine/gates-pos-1", "mine/gates-dep-1", "permutations=50", "--out", "made"),
        pytest.param(PAGE, marks=pytest.mark.slow, id="report-mine"),
    ],
    ids=lambda words: "-".join(map(str, words[:2])).replace("mine:", ""),
)
def test_what_is_made_of_a_study_is_what_is_made_of_runs(study, monkeypatch, mtlprune, words):
    made = []
    for folder in study:
        monkeypatch.chdir(folder)
        shutil.rmtree("made", ignore_errors=True)
        made.append((mtlprune(*words).done().out, files(Path("made")) if Path("made").is_dir() else {}))
    of_runs, (text, written) = made  # a cell of a study is not packed, whatever has become of it since
    written = {name: content.replace(b"not packed", b"not finished") for name, content in written.items()}
    assert of_runs == (text, written)


BREAKS: dict[str, Callable[[str], str]] = {
    "scores/test.json": lambda text: text.replace('"pos"', '"posx"'),
    "counts/test.json": lambda text: text.replace('"correct"', '"right"'),
    "gates.jsonl": lambda text: text.replace('"shared"', '"ner"'),
    "config.yaml": lambda text: text.replace("encoder:", "encoders:"),
    "best.json": lambda text: text.replace('"joint"', '"joined"'),
}


@pytest.mark.parametrize("file", BREAKS)
def test_a_broken_cell_is_left_out_and_its_file_named(file, study, monkeypatch, mtlprune, tmp_path, caplog):
    root = shutil.copytree(study[0] / "mine", tmp_path / "mine")
    RunFolder(root / "gates-pos-1").write_end()  # with the SHA-256 of its files
    broken = root / "gates-pos-1" / file
    text = broken.read_text(encoding="utf-8")
    broken.write_text(BREAKS[file](text), encoding="utf-8")
    assert broken.read_text(encoding="utf-8") != text
    monkeypatch.chdir(tmp_path)
    for words in (
        ("table", "mine:gates-pos-*,none-pos-*", "--resamples", "0"),
        ("claims", "mine:gates-pos-*"),
        PAGE[:-1],
    ):
        answer = mtlprune(*words, *([tmp_path / "page.html"] if words[0] == "report" else [])).done()
        shown = answer.out + answer.err + caplog.text + "".join(page.read_text() for page in tmp_path.glob("*.html"))
        caplog.clear()
        assert "gates-pos-1 " in shown and " left out: " in shown and f"gates-pos-1/{file}" in shown, shown[:2000]


def test_runs_and_runs_of_studies_stand_side_by_side(study, mtlprune):
    here, there = study
    half = [place / "mine" / f"none-{tasks}-1" for place, tasks in ((here, "pos"), (there, "mtl5"))]
    whole = [here / "mine" / path.name for path in half]
    made = [mtlprune("table", *runs, "--resamples", 50) for runs in (half, whole)]
    assert made[0] == made[1].done()


def test_a_study_grows_and_is_the_same_however_it_grew(study, tmp_path):
    """In parts, with labels or without; what it has already is left as it is."""
    here, there = study
    gold, out = gold_of(here / "data/x"), tmp_path / "out"
    for pattern in ("none-*", "gates-*", "none-*", "*"):
        pack([f"{here / 'mine'}:{pattern}"], out, gold)
    assert files(out) == files(there / "mine")
    cells, notes = open_study(out).cells, []
    assert list(cells) == sorted(cells) and cells["late-1"] is None and cells["none-pos-1"] == "none-pos-1"
    assert len(found_runs(out, left_out=notes)) == 26
    assert notes == [f"{out}: 1 of 27 cells is not packed and left out: late-1"]
    pack([here / "mine/none-pos-1"], tmp_path / "alone", gold, labels=False)
    alone, whole = packed(tmp_path / "alone")["none-pos-1"], packed(out)["none-pos-1"]
    assert alone.items() <= whole.items() and whole.keys() - alone.keys() == {"labels/test.json"}


def test_a_run_beside_a_sweep_is_a_cell_of_the_study_too(study, tmp_path):
    here, _ = study
    write_study_run(tmp_path / "lone", TASKS[:1], 7, False, 0.9, gold_sentences())
    pack([here / "mine/none-pos-1", tmp_path / "lone"], tmp_path / "out", no_gold, labels=False)
    assert {path.name for path in found_runs(tmp_path / "out")} == {"none-pos-1", "lone"}


@pytest.mark.parametrize("held", [[], ["none-pos-2"]], ids=["begun", "grown"])
def test_a_study_that_is_killed_while_it_is_written_is_written_anew(held, study, tmp_path):
    """At every operation on files, and after a power cut then; what it held stays, and nothing half written does."""
    here, _ = study
    gold, root = gold_of(here / "data/x"), tmp_path / "root"
    root.mkdir()
    for name in held:
        pack([here / "mine" / name], root / "out", gold)

    def work() -> dict[str, Any]:
        pack([here / "mine/none-pos-1"], root / "out", gold)
        return {path.name: path.read_bytes() for path in (root / "out").iterdir()}

    with Recorder(root) as recorder:
        expected = work()
    recorder.root = root.rename(tmp_path / "recorded")
    moments = images(recorder)
    assert held or any(any("runs-" in path for path in image) and "out/study.json" not in image for image in moments)
    for image in moments:
        shutil.rmtree(root, ignore_errors=True)
        lay_out(image, root)
        assert not held or packed(root / "out").keys() >= {*held}
        assert work() == expected, image.keys()


def test_old_tables_go_and_files_of_others_stay(study, tmp_path):
    here, _ = study
    gold, out = gold_of(here / "data/x"), tmp_path / "out"
    pack([here / "mine/none-pos-1"], out, gold)
    old = out / f"runs-{sha256(b'old').hexdigest()[:8]}.parquet"
    old.write_bytes(b"old")
    (theirs := out / "runs-12345678.parquet").write_bytes(b"mine")
    pack([here / "mine/none-pos-1"], out, gold)
    assert theirs.read_bytes() == b"mine" and not old.exists() and len(open_study(out).rows) == 1


def test_nothing_of_the_corpus_or_the_machine_is_in_it(study):
    here, there = study
    text = " ".join(str(value) for row in packed(there / "mine").values() for value in row.values())
    assert str(here) not in text and '"cat"' not in text and "w17" not in text
    assert all(word in text for word in ("nsubj", "ARG0", "s001", "srl"))


def test_counts_on_another_corpus_are_kept(tmp_path):
    """Labels are not: its gold is not at hand."""
    run, split = write_run(tmp_path / "a", {"pos": 0.9}, split="test.on-other-12345678"), "test.on-other-12345678"
    pack([run.path], tmp_path / "study", gold_of(tmp_path / "nowhere"))
    kept = RunFolder.existing(tmp_path / "study/a")
    assert kept.splits() == run.splits() == [split] and kept.read_scores(split) == run.read_scores(split)
    assert kept.read_counts(split) == run.read_counts(split) and not kept.has_labels(split)


def test_a_run_that_scored_the_first_sentences_of_dev_is_packed(tmp_path):
    sentences, gold = gold_sentences(6), tmp_path / "gold"
    save_corpus({"test": sentences}, gold, name="x", licence="none", sources={})
    folder = write_study_run(tmp_path / "run", TASKS[:1], 1, False, 0.9, sentences[:4])
    pack([folder.path], tmp_path / "study", gold_of(gold))
    labels = RunFolder.existing(tmp_path / "study/run").read_labels("test", TASKS[0])
    assert [*labels] == [sentence.id for sentence in sentences[:4]]
    with pytest.raises(RunError, match=r"test\.json: expected sentences of test, found s000, which test does not have"):
        pack([folder.path], tmp_path / "other", lambda *_: sentences[1:])
    ids, rows = [sentence.id for sentence in sentences[:4]], [count("pos", one, one) for one in sentences[:4]]
    folder.write_results("test", folder.read_scores("test"), ids, {"pos": rows}, sentences[1:5])
    with pytest.raises(RunError, match=r"test\.jsonl: expected predictions of the 4 sentences of test that are scored"):
        pack([folder.path], tmp_path / "other", gold_of(gold))


def write_over(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def with_entry(**entry: Any) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        tree = json.loads(path.read_text()) | entry
        path.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))

    return damage


DAMAGE = [("runs-*", write_over), ("runs-*", Path.unlink)]
DAMAGE += [("study.json", with_entry(**one)) for one in ({"version": 2}, {"format": "x"}, {"more": 1}, {"cells": None})]


@pytest.mark.parametrize(("file", "damage"), DAMAGE)
def test_a_study_that_is_damaged_or_of_another_version_is_one_sentence(study, tmp_path, mtlprune, file, damage):
    shutil.copytree(study[1] / "mine", tmp_path / "mine")
    [path] = (tmp_path / "mine").glob(file)
    damage(path)
    answer = mtlprune("table", tmp_path / "mine/none-pos-1", tmp_path / "mine/none-mtl5-1")
    answer.refuses(str(path))
    assert answer.out == ""


def test_what_cannot_be_packed_is_refused_and_nothing_is_written(study, tmp_path):
    here, there = study
    run, gold = here / "mine/none-pos-1", gold_of(here / "data/x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    shutil.copytree(run, tmp_path / "duplicate/none-pos-1")
    shutil.copytree(here / "mine/none-pos-2", tmp_path / "unlike/none-pos-1")
    write_index(tmp_path / "unlike", "unlike", Path("x.yaml"), {"a": {"folder": "none-pos-1"}})
    pack([tmp_path / "duplicate/none-pos-1"], tmp_path / "has", gold)
    shutil.copytree(there / "mine", tmp_path / "sweep")
    shutil.copytree(here / "mine/none-pos-2", tmp_path / "retrained/none-pos-new")
    write_index(tmp_path / "retrained", "mine", Path("mine.yaml"), {"none-pos-1": {"folder": "none-pos-new"}})
    for runs, out, words in [
        ([here / "mine/late-1"], tmp_path / "new", "has not finished training"),
        ([tmp_path / "nowhere"], tmp_path / "new", "expected a run folder"),
        ([there / "mine/none-pos-1", here / "mine/none-pos-2"], tmp_path / "new", "is already packed"),
        ([there / "mine/none-pos-9"], tmp_path / "new", "has no run none-pos-9; it has gates-con-1, "),
        ([run], tmp_path / "other", "expected a study or an empty folder, found notes.txt"),
        ([run], here / "mine", "expected a study or an empty folder"),
        ([run], run, "expected a study or an empty folder"),
        ([run], tmp_path / "other/notes.txt", "is a file"),
        ([run, tmp_path / "duplicate/none-pos-1"], tmp_path / "new", "expected runs of different names"),
        ([run, tmp_path / "unlike/none-pos-1"], tmp_path / "new", "expected runs of one sweep"),
        ([tmp_path / "unlike/none-pos-1"], tmp_path / "has", "has another run of the name none-pos-1 than"),
        ([tmp_path / "unlike/none-pos-1"], tmp_path / "sweep", "is a study of the sweep mine"),
        ([tmp_path / "retrained"], tmp_path / "sweep", "expected the run none-pos-1 of the cell none-pos-1, found"),
    ]:
        before = files(tmp_path)
        with pytest.raises(RunError, match=words):
            pack(runs, out, gold)
        assert files(tmp_path) == before and not (tmp_path / "new").exists()


def test_gold_that_is_not_to_be_had_is_told_and_no_half_study_is_left(study, tmp_path, monkeypatch, mtlprune):
    monkeypatch.chdir(tmp_path)
    words = "runs", "pack", study[0] / "mine:none-pos-1", "--out", "new"
    mtlprune(*words).refuses("the gold labels cannot be read")
    assert files(tmp_path) == {}
    assert "new: 1 run in 0.0" in mtlprune(*words, "--data", study[0] / "data/x").done().out
    assert packed(Path("new"))["none-pos-1"] == packed(study[1] / "mine")["none-pos-1"]
    Path("new/study.json").unlink()  # as the message advises, the same command packs the runs anew
    Path("new/majority.json").write_text("{}")
    mtlprune(*words, "--data", study[0] / "data/x").done()
    assert packed(Path("new"))["none-pos-1"] == packed(study[1] / "mine")["none-pos-1"]


@pytest.mark.slow
def test_results_are_made_again_from_a_study_alone(study, tmp_path):
    """results/rebuild.sh, by a shell, with a small study, away from its corpus."""
    root = Path(__file__).parents[2]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mtlprune").write_text(f'#!/bin/sh\nexec {sys.executable} -m mtlprune "$@"\n')
    (tmp_path / "bin/mtlprune").chmod(0o755)
    shutil.copytree(study[0] / "mine", tmp_path / "mine")
    for path in [*(tmp_path / "mine").glob("*/*/test.json"), *(tmp_path / "mine").glob("*/*/test.jsonl")]:
        shutil.copy(path, path.with_stem("dev"))
    gold = list(load_corpus(study[0] / "data/x")["test"])
    pack([tmp_path / "mine"], tmp_path / "results/ewt5-minilm/records", lambda *asked: gold)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = ["sh", str(root / "results/rebuild.sh")]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PATH": path, "PYTHONPATH": str(root)}, check=True)
    made = files(tmp_path / "results")
    names = {name for name in made if "/records/" not in name}
    assert names >= {f"ewt5-minilm/{name}" for name in ("scores.md", "pruning.md", "report.html")}
    of_gates = ("scores.md", "scores.json", "overlap/claims.md", "overlap/maps/rgb-CON.png")
    assert names >= {f"gates/{name}" for name in of_gates}
    tables = [made[name].decode() for name in names if name.endswith((".md", ".tex"))]
    assert not any(re.search(r"\de[-−]\d", table) for table in tables)  # no p like 3e-66
    assert b"STL, 6 heads by gates" in made["gates/scores.md"] and b"STL, 6 heads" in made["ewt5-minilm/pruning.md"]


@pytest.mark.slow
def test_the_study_of_the_repository_makes_its_table(mtlprune, monkeypatch):
    """Without runs and corpus, to the byte."""
    monkeypatch.chdir(Path(__file__).parents[2])
    words = ("table", "results/ewt5-minilm/records:none-???-?,none-mtl5-?", "--split", "test", "--margin", "1.0")
    assert mtlprune(*words).done().out == Path("results/ewt5-minilm/records.md").read_text()


FILES = ("config.yaml", "gates.jsonl", "encoder/heads.json", "scores/dev.json", "counts/dev.json", "labels/dev.json")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Sentence, Sentence]:
    """Gold with any layers known, and a prediction of all of them with other labels and places."""
    gold = draw(sentences())
    other = draw(sentences(words=st.sampled_from(gold.words)).filter(lambda s: len(s) == len(gold)) | st.just(gold))
    known = {name: value for name in LAYERS if (value := other.get(name)) is not None}
    tags = tuple(draw(LABELS) for _ in gold.words)
    guess: dict[str, Any] = {"ner": (), "dep": Dependencies((0, *[1] * (len(gold) - 1)), tags), "con": (), "srl": ()}
    return gold, replace(gold, **guess | known | {"pos": tags})


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.lists(pairs(), min_size=1, max_size=5))
def test_counts_of_labels_come_back_as_they_were(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("study")
    labels = {
        task: {f"s{place}": count_labels(task, gold, guess) for place, (gold, guess) in enumerate(drawn)}
        for task in LAYERS
    }
    add_runs(folder, {"a": {"tasks": [], "seed": 1, "labels/test.json": json.dumps(labels)}}, {"a": "a"}, {})
    assert {task: RunFolder(folder / "a").read_labels("test", task) for task in LAYERS} == labels


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.lists(st.dictionaries(st.sampled_from(FILES), st.text(), max_size=4), min_size=2, max_size=3 * ROWS))
def test_files_come_back_as_they_were(tmp_path_factory, drawn):
    """Also where runs are added, and of runs in several groups of rows."""
    folder = tmp_path_factory.mktemp("study")
    kinds = {"tasks": ["pos"], "seed": 1}
    rows = {f"{hash(str(place)) % 1000}-{place}": {**kinds, **one} for place, one in enumerate(drawn)}
    names = list(rows)
    for some in (names[::2], names[1::2]):
        add_runs(folder, {name: rows[name] for name in some}, {f"cell {name}": name for name in some}, {})
    for name, row in rows.items():
        run = RunFolder(folder / name)
        held = {file: run.read_text(file) for file in FILES if run.has(file)}
        assert held == {file: text for file, text in row.items() if file in FILES}
    study = open_study(folder)
    assert study.paths("cell *") == [folder / name for name in (*names[1::2], *names[::2])]
    with pytest.raises(RunError, match=f"already has a run {names[0]}"):
        add_runs(folder, {names[0]: rows[names[0]]}, {}, {})


def test_absolute_paths_keep_their_last_part():
    """And two encoders of one folder name stay two."""
    words = ["/opt/x/worker.py", "runs/a", "data.path=/home/me/d/ewt5", "--out=~/runs/b"]
    tree = {"command": words, "data": {"path": "/home/me/d/ewt5", "train": "train"}, "parameters": {"encoder": 3}}
    found = without_places(tree | {"encoder": {"name": "/models/one/bert", "random": False}})
    one, other = found.pop("encoder")["name"], without_places({"name": "/models/two/bert"})["name"]
    assert one != other and one.startswith("./bert-") and other.startswith("./bert-")
    short = ["./worker.py", "runs/a", "data.path=./ewt5", "--out=./b"]
    assert found == tree | {"command": short, "data": {"path": "./ewt5", "train": "train"}}
    assert without_places(found) == found
