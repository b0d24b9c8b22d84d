"""Records: small, exact, portable; made of any run, read in the place of runs; damage is told, never read."""

from __future__ import annotations

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
from mtlprune.runs import records
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import LAYERS, Dependencies, Sentence
from mtlprune.statistics.significance import count_labels
from mtlprune.sweeps.folder import write_index
from mtlprune.sweeps.recording import gold_tables, record, without_places


def gold_of(folder: Path) -> Callable[[str, str, str], Sequence[Any]]:
    return lambda run, fingerprint, split: list(load_corpus(folder)[split])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders to work in: in one the runs of a sweep and their corpus, in the other their records, under one name.

    Beside the cells of the study: a run with a gate set a task, one whose heads were removed, one not finished.
    """
    here, there = (tmp_path_factory.mktemp(name) for name in ("runs", "records"))
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
    made = list(record([here / "mine"], there / "mine", gold_of(here / "data/x")))
    assert len(made) == len(runs) == 26
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
def test_what_is_made_of_records_is_what_is_made_of_runs(study, monkeypatch, mtlprune, words):
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
    "record.json": lambda text: text.replace('"run"', '"ran"'),
}


@pytest.mark.parametrize("file", BREAKS)
def test_a_broken_cell_is_left_out_and_its_file_named(file, study, monkeypatch, mtlprune, tmp_path, caplog):
    here, there = study
    root = shutil.copytree((there if file == "record.json" else here) / "mine", tmp_path / "mine")
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


def test_runs_and_records_stand_side_by_side_and_records_are_replaced_whole(study, mtlprune, tmp_path):
    here, there = study
    half = [place / "mine" / f"none-{tasks}-1" for place, tasks in ((here, "pos"), (there, "mtl5"))]
    whole = [here / "mine" / path.name for path in half]
    made = [mtlprune("table", *runs, "--resamples", 50) for runs in (half, whole)]
    assert made[0] == made[1].done()
    shutil.copytree(there / "mine", tmp_path / "mine")
    (tmp_path / "mine/none-pos-1/scores/extra.json").write_text("{}")
    list(record([f"{here / 'mine'}:none-*"], tmp_path / "mine", gold_of(here / "data/x")))
    assert files(tmp_path / "mine") == files(there / "mine")
    list(record([here / "mine/none-pos-1"], tmp_path / "alone", gold_of(here / "data/x")))
    assert files(tmp_path / "alone/none-pos-1") == files(there / "mine/none-pos-1")


def test_nothing_of_the_corpus_or_the_machine_is_in_it(study):
    import pyarrow.parquet as pq

    here, there = study
    text = b"".join(content for name, content in files(there / "mine").items() if not name.endswith(".parquet"))
    assert str(here).encode() not in text and b'"cat"' not in text and b"w17" not in text
    strings: set[str] = set()
    for table in map(pq.read_table, there.rglob("*.parquet")):
        strings.update(*(table[name].to_pylist() for name in {"id", "task", "label"} & set(table.column_names)))
    words = {word for sentence in gold_sentences() for word in sentence.words} - {EVIL, "."}  # which are tags, too
    assert not strings & words and {"nsubj", "ARG0", "s001", "srl"} <= strings


def test_counts_without_predictions_are_recorded_whole(tmp_path, mtlprune):
    """Such as those on another corpus, whose gold is not at hand."""
    run = write_counted(tmp_path / "a", {"pos": 0.9, "ner": 0.5}, split="test.on-other-12345678")
    list(record([run.path], tmp_path / "records", gold_of(tmp_path / "nowhere")))
    again = RunFolder.existing(tmp_path / "records/a")
    assert again.read_counts("test.on-other-12345678") == run.read_counts("test.on-other-12345678")
    assert again.splits() == run.splits() and not again.has_labels("test.on-other-12345678")


def write_over(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("mine/none-pos-1/counts/test.parquet", write_over),
        ("mine/none-pos-1/config.yaml", write_over),
        ("mine/none-pos-1/labels/test.parquet", Path.unlink),
        ("mine/none-pos-1/scores/dev.json", lambda path: path.write_text("{}")),
        ("mine/none-pos-1/record.json", lambda path: path.write_text("[]")),
        ("mine/none-pos-1/record.json", lambda path: path.write_text('{"version": 2}')),
    ],
)
def test_a_damaged_record_is_one_sentence(study, tmp_path, mtlprune, name, damage):
    shutil.copytree(study[1] / "mine", tmp_path / "mine")
    damage(tmp_path / name)
    answer = mtlprune("table", tmp_path / "mine/none-pos-1")
    answer.refuses(str(tmp_path / name))
    assert answer.out == "" and "runs record" in answer.err


def test_what_cannot_be_recorded_is_refused_and_nothing_is_written(study, tmp_path):
    here, there = study
    run, gold = here / "mine/none-pos-1", gold_of(here / "data/x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    shutil.copytree(run, tmp_path / "duplicate/none-pos-1")
    shutil.copytree(here / "mine/none-pos-2", tmp_path / "unlike/none-pos-1")
    write_index(tmp_path / "unlike", "unlike", Path("x.yaml"), {"a": {"folder": "none-pos-1"}})
    list(record([tmp_path / "duplicate/none-pos-1"], tmp_path / "has", gold))
    for runs, out, words in [
        ([here / "mine/late-1"], tmp_path / "new", "is not trained to the end"),
        ([tmp_path / "nowhere"], tmp_path / "new", "is no run folder"),
        ([there / "mine/none-pos-1"], tmp_path / "new", "is a record already"),
        ([run], tmp_path / "other", "holds notes.txt, which is no record"),
        ([run], here / "mine", "which is no record"),
        ([run], run, "which is no record"),
        ([run], tmp_path / "other/notes.txt", "is a file"),
        ([run, tmp_path / "duplicate/none-pos-1"], tmp_path / "new", "have the same name"),
        ([run, tmp_path / "unlike/none-pos-1"], tmp_path / "new", "are two sweeps"),
        ([tmp_path / "unlike/none-pos-1"], tmp_path / "has", "is the record of another run"),
    ]:
        before = files(tmp_path)
        with pytest.raises(RunError, match=words):
            list(record(runs, out, gold))
        assert files(tmp_path) == before and not (tmp_path / "new").exists()


def test_gold_that_is_not_to_be_had_is_told_and_no_half_record_is_left(study, tmp_path, monkeypatch, mtlprune):
    monkeypatch.chdir(tmp_path)
    words = "runs", "record", study[0] / "mine:none-pos-1", "--out", "new"
    mtlprune(*words).refuses("the gold is not to be had")
    assert files(tmp_path) == {}
    assert "1 record in new" in mtlprune(*words, "--data", study[0] / "data/x").done().out
    assert files(Path("new/none-pos-1")) == files(study[1] / "mine/none-pos-1")


@pytest.mark.slow
def test_results_are_made_again_from_records_alone(study, tmp_path):
    """results/rebuild.sh, by a shell, with the records of a small study, away from its corpus."""
    root = Path(__file__).parents[2]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mtlprune").write_text(f'#!/bin/sh\nexec {sys.executable} -m mtlprune "$@"\n')
    (tmp_path / "bin/mtlprune").chmod(0o755)
    shutil.copytree(study[0] / "mine", tmp_path / "mine")
    for path in [*(tmp_path / "mine").glob("*/*/test.json"), *(tmp_path / "mine").glob("*/*/test.jsonl")]:
        shutil.copy(path, path.with_stem("dev"))
    gold = list(load_corpus(study[0] / "data/x")["test"])
    list(record([tmp_path / "mine"], tmp_path / "results/ewt5-minilm/records", lambda *asked: gold))
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
def test_the_records_of_the_repository_make_its_table(tmp_path, mtlprune, monkeypatch):
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
    tables = gold_tables(gold)
    mark = records.write_gold(folder, "x-test", tables)
    again = records.read_gold(folder, "x-test", mark)
    assert (list(again.ids), again.counts, again.labels) == (list(tables.ids), tables.counts, tables.labels)
    counts: dict[str, dict[str, list[int | None]]] = {}
    for task in LAYERS:
        rows = [count(task, g, p) for g, p in zip(gold, predicted, strict=True)]
        names = sorted({name for row in rows if row for name in row})
        if names:
            counts[task] = {name: [None if row is None else row.get(name, 0) for row in rows] for name in names}
    for held in (again, None):
        records.write_counts(folder / "counts.parquet", tables.ids, counts, held)
        assert records.read_counts(folder / "counts.parquet", held) == {"ids": list(tables.ids), "counts": counts}
    labels = {task: [count_labels(task, g, p) for g, p in zip(gold, predicted, strict=True)] for task in again.labels}
    records.write_labels(folder / "labels.parquet", labels)
    for task, rows in labels.items():
        assert records.read_labels(folder / "labels.parquet", again, task) == rows


def test_counts_of_other_sentences_are_no_differences_to_gold(tmp_path):
    gold = gold_tables(gold_sentences(3))
    for ids, known in ((["s000", "s002", "s001"], 1), (["s000", "s001", "s002"], None)):
        with pytest.raises(RunError, match="sentences"):
            records.write_counts(tmp_path / "x.parquet", ids, {"pos": {"words": [1, 1, known]}}, gold)
    assert not (tmp_path / "x.parquet").exists()


def test_gold_of_the_same_content_stays_as_other_records_know_it(tmp_path):
    """Such as where another version of pyarrow wrote it."""
    import pyarrow.parquet as pq

    gold = gold_tables(gold_sentences(3))
    first = records.write_gold(tmp_path, "x", gold)
    for path in (tmp_path / "gold").iterdir():
        pq.write_table(pq.read_table(path), path)
    second = records.write_gold(tmp_path, "x", gold)
    assert second != first and records.write_gold(tmp_path, "x", gold) == second
    (tmp_path / "gold/x.labels.parquet").write_bytes(b"PAR1")
    assert records.read_gold(tmp_path, "x", records.write_gold(tmp_path, "x", gold)) == gold
    third = records.write_gold(tmp_path, "x", gold_tables(gold_sentences(4)))
    assert len(records.read_gold(tmp_path, "x", third).ids) == 4


@pytest.mark.parametrize("kind", ["counts", "labels"])
def test_gold_that_changed_or_is_gone_is_told(tmp_path, kind):
    mark, path = records.write_gold(tmp_path, "x", gold_tables(gold_sentences(3))), tmp_path / f"gold/x.{kind}.parquet"
    for damage, said in ((write_over, "not those that the record was made"), (Path.unlink, "missing; .*copy both")):
        damage(path)
        with pytest.raises(RunError, match=said):
            records.read_gold(tmp_path, "x", mark)


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
