"""mtlprune table, report, --help: what they print and write, and that they stay light."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from markup import Markup, markdown_rows
from report_runs import write_study
from run_folders import change_config, counts, forget_hashes, write_counts, write_run, write_runs

import mtlprune as package
from mtlprune.cli.show import keep_majority, majority_of
from mtlprune.corpora.store import load_corpus
from mtlprune.evaluation.baselines import Majority
from mtlprune.evaluation.scores import count, score
from mtlprune.io.files import read_json, write_json
from mtlprune.runs.folder import RunFolder

HEAVY = {"torch", "transformers", "datasets", "supar"}


def test_a_run_beside_the_majority(mtlprune, trained, lab):
    answer = mtlprune("table", trained, "--majority", lab.corpus).done()
    rows = markdown_rows(answer.out)
    assert rows[0] == ["task", "majority", "MTL-5"]
    assert [row[0].split()[0] for row in rows[1:]] == ["POS", "NER", "DEP", "CON", "SRL"]
    corpus = load_corpus(lab.corpus)
    baseline = Majority(corpus["train"])
    majority = score("dep", [count("dep", s, baseline.predict(s)) for s in corpus["test"]])["las"]
    cells = [f"{majority:.2f}", f"{RunFolder(trained).read_scores('test')['dep']['las']:.2f}"]
    assert [cell.strip("*") for cell in rows[3][1:]] == cells


def test_the_majority_is_scored_on_the_sentences_of_the_run_and_stored_by_split(trained, lab, tmp_path):
    """The counts say which sentences these are, and not data.dev_sentences: an evaluation scores all of dev."""
    corpus = load_corpus(lab.corpus)
    dev, baseline = list(corpus["dev"]), Majority(corpus["train"])
    for name, scored in (("all", dev), ("few", dev[2:5])):
        run = RunFolder(shutil.copytree(trained, tmp_path / name / "run"))
        forget_hashes(run.path)
        change_config(run, data={"dev_sentences": 3})
        write_counts(run, "dev", [sentence.id for sentence in scored], {"pos": counts("pos", 0.9, 1, len(scored))})
        for split, sentences in (("test", list(corpus["test"])), ("dev", scored)):
            keep_majority(tmp_path / name, run, [split], lab.corpus)
            expected = score("pos", [count("pos", s, baseline.predict(s)) for s in sentences])["accuracy"]
            assert majority_of(run, split)["pos"] == expected
        [splits] = read_json(tmp_path / name / "majority.json").values()
        assert set(splits) == {"dev", "test"}


@pytest.mark.parametrize("command", ["--help", "train --help", "analyze --help", "table nowhere"])
def test_light_commands_load_nothing_heavy(command, apart):
    _, text, _, loaded = apart(*command.split())
    assert bool(text) == (command != "table nowhere") and not {*HEAVY, "pyarrow", "numpy"} & loaded


def test_version_and_defects(mtlprune, trained, monkeypatch):
    answer = mtlprune("--version")
    first, second = answer.out.splitlines()
    assert (answer.code, first) == (0, f"mtlprune {package.__version__}")
    assert second.startswith(f"Python {platform.python_version()}, torch {torch.__version__}, ")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert (
            mtlprune("--help").code,
            "Windows Subsystem" in mtlprune("--help").err,
        ) == (2, True)
    monkeypatch.setattr(RunFolder, "read_scores", lambda folder, split: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mtlprune("table", trained)


@pytest.fixture
def compared(tmp_path: Path) -> list[Path]:
    sets = [{"pos": 0.9}, {"ner": 0.6}, {"pos": 0.7, "ner": 0.6}]
    return [run.path for run in write_runs(tmp_path, sets, (1, 2))]


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_shows_a_narrow_table_first_and_cuts_no_number(mtlprune, compared, monkeypatch, width):
    command = ["table", *compared, "--resamples", 200]
    document = mtlprune(*command).out
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", mtlprune(*command).done().out).splitlines()]
    shown = "\n".join(lines)
    header = next(line for line in lines if "task" in line)
    joint = lines[0].partition(" − STL")[0]
    assert header.split() == ["task", "STL", joint, "Δ", "[95", "%]", "p", "(Holm)"]
    assert "|" not in shown and "…" not in shown and max(map(len, lines)) <= width
    assert re.search(r"POS accuracy +90\.81 +69\.46 +-21\.35\* \[-25\.15, -17\.55\] +<0\.0001\n", shown)
    assert (f"(One table is wider than {width} characters and is left out." in shown) == (width == 80)
    assert document.startswith("| task ") and "p (Holm)" in document.splitlines()[7]


def test_differences_are_tested_with_so_many_resamples_or_not_at_all(mtlprune, compared):
    answer = mtlprune("table", *compared).done()
    pos = answer.out.splitlines()[2].split("|")
    assert pos[1].strip() == "POS accuracy" and "* [-" in pos[-2]
    assert "10,000 resamples each" in answer.out
    other = mtlprune("table", *compared, "--resamples", 500).out
    assert "500 resamples each" in other and other != answer.out
    bare = mtlprune("table", *compared, "--resamples", 0).out
    assert bare == bare.replace("[", "") and "resamples" not in bare and "Δ is MTL − STL." in bare


@pytest.mark.parametrize("kind", ["markdown", "latex", "csv", "json"])
def test_formats_and_files(kind, mtlprune, compared, tmp_path):
    command = ("table", *compared, "--format", kind, "--resamples", 100)
    shown = mtlprune(*command)
    file = tmp_path / "deep" / "table"
    written = mtlprune(*command, "--out", file)
    assert (shown.code, written.code, written.out) == (0, 0, ""), shown.err + written.err
    assert file.read_text(encoding="utf-8") == shown.out != ""
    assert [path.name for path in file.parent.iterdir()] == ["table"]
    begins = {"markdown": "| task ", "latex": "% \\usepackage{", "csv": "encoder,task,score,", "json": "{\n"}
    assert shown.out.startswith(begins[kind])
    mtlprune(*command, "--out", tmp_path).refuses("could not be written")


FAST = ("--resamples", 20)


def test_a_report_with_and_without_its_gold(mtlprune, trained, lab, tmp_path):
    out = tmp_path / "deep" / "page.html"
    answer = mtlprune("report", trained, "--out", out, *FAST).done()
    assert answer.out.startswith(f"{out}: ") and answer.out.endswith("open it in a browser\n")
    text = out.read_text(encoding="utf-8")
    las = RunFolder(trained).read_scores("test")["dep"]["las"]
    assert f"{las:.2f}" in text and "What was run" in text
    runs = [run.path for run in write_study(tmp_path / "runs", seeds=(1,)) if run.path.name.startswith("none")]
    out = tmp_path / "page.html"
    assert mtlprune("report", *runs, "--out", out, *FAST).code == 0
    assert "expected the corpus of the run, found none at" in out.read_text(encoding="utf-8")
    assert mtlprune("report", *runs, "--out", out, "--data", lab.corpus, *FAST).code == 0
    assert "is not the corpus of" in out.read_text(encoding="utf-8")


def test_a_report_refuses_a_split_on_which_no_run_is_scored(mtlprune, trained, tmp_path):
    answer = mtlprune("report", trained, "--split", "tset", "--out", tmp_path / "page.html", *FAST)
    answer.refuses("expected a split on which a run is scored, found 'tset' (scored: dev, test); correct --split")
    assert not (tmp_path / "page.html").exists()


def test_each_table_of_a_report_has_the_majority_of_its_own_corpus(mtlprune, tmp_path):
    runs = [write_run(tmp_path / name, {"pos": 0.9}, data=name * 64) for name in "bca"]  # tables are sorted by corpus
    write_json(tmp_path / "majority.json", {"a" * 64: {"test": {"pos": 99.5}}, "b" * 64: {"test": {"pos": 22.2}}})
    mtlprune("report", *(run.path for run in runs), "--out", tmp_path / "page.html", *FAST).done()
    page = Markup((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert re.findall(r"99\.50|22\.20|is not known", page.sections["scores"]) == ["99.50", "22.20", "is not known"]
    assert (
        page.sections[""].count("POS (STL in data/x, test)") == 1
    )  # only runs on the corpus a are worse than its majority


def test_no_table_and_no_claims_tell_how_the_machine_is_laid_out(mtlprune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [run.path for run in write_study(tmp_path / "mine", seeds=(1, 2))]
    for run in map(RunFolder, runs):
        teachers = {task: str(tmp_path / "pos") for task in run.config.tasks}
        change_config(run, encoder={"name": str(tmp_path / "encoder")}, treatment={"distil": {"teachers": teachers}})
    gated = [run for run in runs if run.name.startswith("gates")]
    (runs[0] / "counts/test.json").write_text("{}")  # why there is no test of it
    shown = mtlprune("claims", *gated, "--permutations", 10, "--out", "claims").done().out
    for kind in ("markdown", "latex", "csv", "json"):
        shown += mtlprune("table", *runs, "--format", kind, "--resamples", 10).done().out
    written = [path for path in Path("claims").rglob("*.*") if path.suffix in (".json", ".md", ".csv")]
    shown += "".join(path.read_text() for path in written)
    assert "mine/gates-pos-1" in shown and str(tmp_path) not in shown
