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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_runs import write_run as write_counted
from gated_runs import scattered
from gated_runs import write_run as write_gated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_sentences import LABELS, sentences
from report_runs import EVIL, TASKS, gold_sentences, write_study
from safetensors.numpy import save_file

from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.evaluation.scores import count
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.study import Additions, Gold, PackedRun, open_study
from mtlprune.sentence import LAYERS, Dependencies, Sentence
from mtlprune.statistics.significance import count_labels
from mtlprune.sweeps.folder import write_index
from mtlprune.sweeps.packing import gold_counts, pack, without_places


def gold_of(folder: Path) -> Callable[[str, str, str], Sequence[Any]]:
    return lambda run, fingerprint, split: list(load_corpus(folder)[split])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of a run → what its study has of it, counts of sentences and labels with it."""
    study = open_study(folder)
    assert study is not None
    rows = {}
    for name, row in study.rows.items():
        run = PackedRun(study, name)
        counts = {split: run.read_counts(split) for split in run.counted}
        labels = {
            (split, task): run.read_labels(split, task)
            for split, about in run.counted.items()
            for task in about["tasks"]
            if about["labels"]
        }
        rows[name] = {key: value for key, value in row.items() if value is not None} | {"c": counts, "l": labels}
    return rows


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
    runs.append(write_gated(here / "mine/sets-1", TASKS, sets))
    runs[-1].write_config(runs[-1].read_config() | {"pruning": {"method": "gates", "sets": "per_task"}})
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
    write_gated(here / "mine/late-1", ["pos"], sets["pos"], finished=False)
    cells = {path.name: {"folder": path.name} for path in sorted((here / "mine").iterdir())}
    write_index(here / "mine", "mine", Path("mine.yaml"), cells)
    pack([here / "mine"], there / "mine", gold_of(here / "data/x"))
    assert len(packed(there / "mine")) == len(runs) == 26
    return here, there


PAGE = ("report", "mine", "--resamples", 50, "--permutations", 20, "--out", "made/page.html")


@pytest.mark.parametrize(
    "words",
    [
        *(("table", "mine:none-*,gates-*", "--format", kind, "--resamples", 50) for kind in ("markdown", "json")),
        ("table", "mine:none-pos-?,removed-*", "--no-test"),
        ("claims", "mine:gates-*", "--out", "made", "--permutations", 50),
        ("claims", "mine/sets-1", "--permutations", 50),
        ("maps", "mine:gates-pos-*", "--out", "made", "--format", "svg", "--animate"),
        ("heads", "mine/gates-pos-1", "mine/gates-dep-1", "--permutations", 50, "--out", "made"),
        ("analyze", "breaks", "mine/gates-pos-1", "mine/none-pos-1", "--out", "made"),
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
    assert made[0] == made[1]


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
    broken = root / "gates-pos-1" / file
    text = broken.read_text(encoding="utf-8")
    broken.write_text(BREAKS[file](text), encoding="utf-8")
    assert broken.read_text(encoding="utf-8") != text
    monkeypatch.chdir(tmp_path)
    for words in (("table", "mine:gates-pos-*,none-pos-*", "--no-test"), ("claims", "mine:gates-pos-*"), PAGE[:-1]):
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
    """In parts, with labels or not, with gold of its own or shared; what it has already is left as it is."""
    here, there = study
    gold, out, shared = gold_of(here / "data/x"), tmp_path / "out", tmp_path / "gold"
    for pattern in ("none-*", "gates-*", "none-*", "*"):
        pack([f"{here / 'mine'}:{pattern}"], out, gold, shared)
    whole, grown = open_study(there / "mine"), open_study(out)
    assert packed(out) == packed(there / "mine")
    assert (grown.cells, grown.sweep, grown.gold) == (whole.cells, whole.sweep, whole.gold)
    assert list(grown.cells) == list(whole.cells) and grown.cells["late-1"] is None
    assert sorted(path.name.partition("-")[0] for path in out.iterdir()) == ["counts", "labels", "runs", "study.json"]
    before = files(tmp_path)
    pack([here / "mine"], out, gold)
    assert files(tmp_path) == before
    pack([here / "mine/none-pos-1"], tmp_path / "alone", gold, shared, labels=False)
    alone = packed(tmp_path / "alone")
    assert alone["none-pos-1"]["c"] == packed(out)["none-pos-1"]["c"]
    assert alone["none-pos-1"]["l"] == {} and len(list(shared.iterdir())) == 1
    assert len(list((tmp_path / "alone").iterdir())) == 3


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_kill_while_runs_are_added_leaves_the_study_as_it_was(study, tmp_path, monkeypatch, moment):
    here, _ = study
    gold, out = gold_of(here / "data/x"), tmp_path / "out"
    pack([here / "mine/none-pos-1"], out, gold)
    before = packed(out)
    calls = []

    def killed(path: Path) -> None:
        calls.append(path)
        if len(calls) == moment:
            raise KeyboardInterrupt

    monkeypatch.setattr("mtlprune.io.files.sync", killed)
    try:
        pack([here / "mine/none-pos-2"], out, gold)
    except KeyboardInterrupt:
        assert packed(out) in (before, before | {"none-pos-2": packed(out).get("none-pos-2")})
    monkeypatch.undo()
    pack([here / "mine/none-pos-2"], out, gold)
    assert packed(out).keys() == {"none-pos-1", "none-pos-2"} and packed(out)["none-pos-1"] == before["none-pos-1"]
    if moment < 8:
        pack(
            [here / "mine/none-pos-3"] if (here / "mine/none-pos-3").exists() else [here / "mine/none-dep-1"], out, gold
        )
    assert sorted(path.name.partition("-")[0] for path in out.iterdir() if path.suffix) == [
        "counts",
        "labels",
        "runs",
        "study.json",
    ]


def test_nothing_of_the_corpus_or_the_machine_is_in_it(study):
    import gzip

    import pyarrow.parquet as pq

    here, there = study
    strings: set[str] = set()
    for path in there.rglob("*.parquet"):
        table = pq.read_table(path)
        if path.name.startswith("runs"):
            text = "".join(str(row) for row in table.to_pylist())
            assert str(here) not in text and "w17" not in text and "'cat'" not in text
        else:
            strings.update(*(table[name].to_pylist() for name in {"task", "label"} & set(table.column_names)))
    [gold] = (json.loads(gzip.decompress(path.read_bytes())) for path in there.rglob("*.json.gz"))
    strings.update(gold["ids"], *(labels for rows in gold["labels"].values() for labels in rows if labels))
    words = {word for sentence in gold_sentences() for word in sentence.words} - {EVIL, "."}  # which are tags, too
    assert not strings & words and {"nsubj", "ARG0", "s001", "srl"} <= strings


def test_counts_on_another_corpus_are_left_out_and_scores_are_kept(tmp_path, caplog):
    """Its gold is not at hand."""
    run = write_counted(tmp_path / "a", {"pos": 0.9, "ner": 0.5}, split="test.on-other-12345678")
    pack([run.path], tmp_path / "study", gold_of(tmp_path / "nowhere"))
    kept = RunFolder.existing(tmp_path / "study/a")
    split = "test.on-other-12345678"
    assert kept.splits() == run.splits() == [split] and kept.read_scores(split) == run.read_scores(split)
    assert not kept.has_counts(split) and not kept.has_labels(split) and "are left out" in caplog.text


def write_over(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [write_over, Path.unlink])
@pytest.mark.parametrize("name", ["runs-*", "counts-*", "labels-*", "gold/*"])
def test_a_damaged_study_is_one_sentence(study, tmp_path, monkeypatch, mtlprune, name, damage):
    """Where the gold is gone, scores are left, and it is said why no difference is tested."""
    shutil.copytree(study[1] / "mine", tmp_path / "mine")
    [path] = (tmp_path / "mine").glob(name)
    damage(path)
    answer = mtlprune("table", tmp_path / "mine/none-pos-1", tmp_path / "mine/none-mtl5-1")
    if name == "gold/*":
        assert f"not tested ({path}" in answer.done().out or str(path) in answer.out
    else:
        answer.refuses(str(path))
        assert answer.out == ""


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "another"}, {"cells": None}, {"more": 1}])
def test_a_study_of_another_version_is_refused(study, tmp_path, change):
    shutil.copytree(study[1] / "mine", tmp_path / "mine")
    path = tmp_path / "mine/study.json"
    path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | change).items() if v is not None}))
    with pytest.raises(RunError, match=re.escape(str(path))):
        RunFolder(tmp_path / "mine/none-pos-1")


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
    for runs, out, words in [
        ([here / "mine/late-1"], tmp_path / "new", "is not trained to the end"),
        ([tmp_path / "nowhere"], tmp_path / "new", "is no run folder"),
        ([there / "mine/none-pos-1"], tmp_path / "new", "is packed already"),
        ([there / "mine/none-pos-9"], tmp_path / "new", "has no run none-pos-9; it has gates-con-1, "),
        ([run], tmp_path / "other", "holds notes.txt and no study"),
        ([run], here / "mine", "and no study"),
        ([run], run, "and no study"),
        ([run], tmp_path / "other/notes.txt", "is a file"),
        ([run, tmp_path / "duplicate/none-pos-1"], tmp_path / "new", "two of the runs have the name"),
        ([run, tmp_path / "unlike/none-pos-1"], tmp_path / "new", "are two sweeps"),
        ([tmp_path / "unlike/none-pos-1"], tmp_path / "has", "has another run of the name none-pos-1 than"),
        ([tmp_path / "unlike/none-pos-1"], tmp_path / "sweep", "is a study of the sweep mine"),
    ]:
        before = files(tmp_path)
        with pytest.raises(RunError, match=words):
            pack(runs, out, gold)
        assert files(tmp_path) == before and not (tmp_path / "new").exists()


def test_gold_that_is_not_to_be_had_is_told_and_no_half_study_is_left(study, tmp_path, monkeypatch, mtlprune):
    monkeypatch.chdir(tmp_path)
    words = "runs", "pack", study[0] / "mine:none-pos-1", "--out", "new"
    mtlprune(*words).refuses("the gold is not to be had")
    assert files(tmp_path) == {}
    assert "new: 1 runs in 0.0" in mtlprune(*words, "--data", study[0] / "data/x").done().out
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
    assert names >= {f"gates/{name}" for name in ("scores.md", "scores.json", "overlap/claims.md", "maps/rgb-CON.png")}
    tables = [made[name].decode() for name in names if name.endswith((".md", ".tex"))]
    assert not any(re.search(r"\de[-−]\d", table) for table in tables)  # no p like 3e-66
    assert b"STL, 6 heads by gates" in made["gates/scores.md"] and b"STL, 6 heads" in made["ewt5-minilm/pruning.md"]


@pytest.mark.slow
def test_the_study_of_the_repository_makes_its_table(tmp_path, mtlprune, monkeypatch):
    """Without runs and corpus, to the byte."""
    monkeypatch.chdir(Path(__file__).parents[2])
    words = ("table", "results/ewt5-minilm/records:none-???-?,none-mtl5-?", "--split", "test", "--margin", "1.0")
    assert mtlprune(*words).done().out == Path("results/ewt5-minilm/records.md").read_text()


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
def test_counts_come_back_as_they_were(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("tables")
    gold = [replace(sentence, id=f"s{place}") for place, (sentence, _) in enumerate(drawn)]
    predicted = [replace(sentence, id=f"s{place}") for place, (_, sentence) in enumerate(drawn)]
    counts: dict[str, dict[str, list[int | None]]] = {}
    for task in LAYERS:
        rows = [count(task, g, p) for g, p in zip(gold, predicted, strict=True)]
        names = sorted({name for row in rows if row for name in row})
        if names:
            counts[task] = {name: [None if row is None else row.get(name, 0) for row in rows] for name in names}
    labels = {task: [count_labels(task, g, p) for g, p in zip(gold, predicted, strict=True)] for task in counts}
    added = Additions(folder)
    added.gold["x"] = gold_counts(gold)
    config = {"config.yaml": "tasks: [pos]\ntrain: {seed: 1}\n"}
    added.add("b", config, {"test": ("x", counts)}, {"test": labels})
    added.add("a", config, {"test": ("x", added.gold["x"].counts), "dev": ("x", counts)}, {})
    added.write({"a": "a", "b": "b"}, {})
    a, b = (PackedRun(open_study(folder), name) for name in "ab")
    whole = {"ids": [sentence.id for sentence in gold], "counts": counts}
    assert b.read_counts("test") == a.read_counts("dev") == whole
    assert a.read_counts("test") == {**whole, "counts": added.gold["x"].counts}
    assert {task: list(b.read_labels("test", task).values()) for task in counts} == labels
    assert b.has_labels("test") and not a.has_labels("test") and not b.has_labels("dev")


@pytest.mark.parametrize(
    "counts",
    [{"pos": {"words": [1, 1, None], "correct": [1, 1, 1]}}, {"pos": {"words": [1, 1, 1]}}, {"chess": {"x": [1]}}],
)
def test_counts_that_gold_does_not_know_are_refused(counts):
    gold = Gold(["a", "b", "c"], {"pos": {"words": [1, 1, 1], "correct": [1, 1, 1]}}, {})
    with pytest.raises(RunError, match="counts of"):
        list(gold.count_differences(counts))


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
