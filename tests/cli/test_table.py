"""mtlprune table, report, --help and --version: what they print and write, and that they stay light."""

import subprocess
import sys
from pathlib import Path

import gated_runs
import numpy as np
import pytest
from counted_runs import write_run
from report_runs import write_study

import mtlprune as package
from mtlprune.baselines import Majority
from mtlprune.corpora.store import load_corpus
from mtlprune.runs import RunFolder
from mtlprune.scores import count, score

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "datasets", "supar", "pyarrow", "numpy")


def test_a_run_beside_the_majority(mtlprune, trained, lab):
    answer = mtlprune("table", trained, "--majority", lab.corpus).done()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in answer.out.splitlines() if line[:2] == "| "]
    assert rows[0] == ["task", "majority", "MTL-5"]
    assert [row[0].split()[0] for row in rows[1:]] == ["POS", "NER", "DEP", "CON", "SRL"]
    corpus = load_corpus(lab.corpus)
    baseline = Majority(corpus["train"])
    majority = score("dep", [count("dep", s, baseline.predict(s)) for s in corpus["test"]])["las"]
    cells = [f"{majority:.2f}", f"{RunFolder(trained).read_scores('test')['dep']['las']:.2f}"]
    assert [cell.strip("*") for cell in rows[3][1:]] == cells


def printed(*command: object) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and the modules that it loads there."""
    code = f"import sys; sys.argv = ['mtlprune', *{list(map(str, command))}]\n"
    code += "from mtlprune.cli import main\ntry:\n    main()\nfinally:\n    print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    text, _, loaded = done.stdout.partition("loaded:")
    return text, set(loaded.split())


@pytest.mark.parametrize("command", ["--help", "--version", "train --help", "probe --help", "table nowhere"])
def test_light_commands_load_nothing_heavy(command):
    text, loaded = printed(*command.split())
    assert bool(text) == (command != "table nowhere") and not set(HEAVY) & loaded


def test_version(mtlprune):
    answer = mtlprune("--version")
    assert (answer.code, answer.out) == (0, f"mtlprune {package.__version__}\n")


def test_defects_of_ours_are_not_hidden(mtlprune, trained, monkeypatch):
    """A traceback is for what no user can mend."""
    monkeypatch.setattr(RunFolder, "read_scores", lambda folder, split: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mtlprune("table", trained)


@pytest.fixture
def compared(tmp_path: Path) -> list[Path]:
    """POS and NER alone and together, two seeds."""
    sets = [{"pos": 0.9}, {"ner": 0.6}, {"pos": 0.7, "ner": 0.6}]
    return [
        write_run(tmp_path / f"{'-'.join(skills)}-{seed}", skills, seed=seed).path for seed in (1, 2) for skills in sets
    ]


def test_overlap_needs_no_torch(tmp_path):
    run = gated_runs.write_run(tmp_path / "run", ["pos"], np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]))
    text, loaded = printed("claims", run.path, "--permutations", 10)
    assert "| POS only             | 1-1, 1-3, 2-2 |" in text and "scipy.stats" in loaded
    assert not {"torch", "transformers", "datasets", "supar"} & loaded


def test_differences_are_tested_without_torch(mtlprune, compared):
    text, loaded = printed("table", *compared)
    assert not {"torch", "transformers", "datasets", "supar"} & loaded and "numpy" in loaded
    answer = mtlprune("table", *compared).done()
    pos = answer.out.splitlines()[2].split("|")
    assert pos[1].strip() == "POS accuracy" and "* [-" in pos[-2]
    assert (
        "10,000 resamples each" in answer.out and "sign-flip test over 2 seeds alone cannot go below 0.5" in answer.out
    )
    assert text == answer.out
    other = mtlprune("table", *compared, "--seed", 1, "--resamples", 500).out
    assert "500 resamples each" in other and other != answer.out
    bare = mtlprune("table", *compared, "--no-test").out
    assert bare == bare.replace("[", "") and "resamples" not in bare and "Δ = MTL − STL." in bare


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


FAST = ("--resamples", 20, "--permutations", 10)


def test_a_trained_run_with_the_gold_of_its_corpus(mtlprune, trained, lab, tmp_path):
    out = tmp_path / "deep" / "page.html"
    answer = mtlprune("report", trained, "--out", out, *FAST).done()
    assert answer.out.startswith(f"{out}: ") and answer.out.endswith("open it in a browser\n")
    text = out.read_text(encoding="utf-8")
    las = RunFolder(trained).read_scores("test")["dep"]["las"]
    assert f"{las:.2f}" in text and "What was run" in text


def test_gold_that_is_not_there_is_a_caveat(mtlprune, lab, tmp_path):
    runs = [run.path for run in write_study(tmp_path / "runs", seeds=(1,)) if run.path.name.startswith("none")]
    out = tmp_path / "page.html"
    assert mtlprune("report", *runs, "--out", out, *FAST).code == 0
    assert "the gold is not to be had" in out.read_text(encoding="utf-8")
    assert mtlprune("report", *runs, "--out", out, "--data", lab.corpus, *FAST).code == 0
    assert "is not the corpus of" in out.read_text(encoding="utf-8")
