"""mtlprune sweep: cells from a file, what they leave, and what stands in for or spoils one of them."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from run_folders import write_run
from scipy import stats

from mtlprune.cli import display, sweep
from mtlprune.cli.terminal import PlainConsole
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sweeps import found_runs
from mtlprune.sweeps.folder import expanded

pytestmark = pytest.mark.usefixtures("forked_workers")
Call = Callable[..., Any]
CELLS = """
grid:
  regime: {none: {}, static: {train: {start: "@none-{tasks}-{seed}", freeze: decoders}, pruning: gates}}
  tasks: [pos]
  seed: [1]
cells: {wrong: {encoder: {name: ./nowhere}}, after: {train: {start: "@wrong"}}}
evaluate: [test]
"""


class Swept(NamedTuple):
    file: Path
    out: Path
    answer: Any


@pytest.fixture(scope="module")
def swept(mtlprune: Call, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Two cells that end well, one that fails, one that needs it; do not write into it."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "mine.yaml").write_text(f"base: {lab.config}\n{CELLS}")
    answer = mtlprune("sweep", folder / "mine.yaml", "--out", folder / "out", "--jobs", "2")
    return Swept(folder / "mine.yaml", folder / "out", answer)


def run_of(swept: Swept, cell: str) -> RunFolder:
    cells = json.loads((swept.out / "sweep.json").read_text())["cells"]
    return RunFolder(swept.out / cells[cell]["folder"])


def test_only_the_corpora_of_the_cells_that_run_must_exist(mtlprune, lab, tmp_path):
    corpora = f"{{here: {{}}, other: {{data: {{path: {tmp_path}/other}}, train: {{clip: 0.5}}}}}}"
    text = f"base: {lab.config}\ngrid: {{corpus: {corpora}, tasks: [pos], seed: [1]}}\n"
    (tmp_path / "two.yaml").write_text(text)
    command = "sweep", tmp_path / "two.yaml", "--out", tmp_path / "out"

    def cells() -> list[str]:
        return list(json.loads((tmp_path / "out/sweep.json").read_text())["cells"])

    mtlprune(*command, "--only", "here-*").done()
    assert cells() == ["here-pos-1"]
    answer = mtlprune(*command)
    assert answer.code == 2 and f"{tmp_path}/other: expected a corpus" in answer.err
    shutil.copytree(lab.corpus, tmp_path / "other")
    mtlprune(*command, "--only", "other-*").done()
    shutil.rmtree(tmp_path / "other")  # its finished run stays in the index
    mtlprune(*command, "--only", "here-*").done()
    assert cells() == ["here-pos-1", "other-pos-1"]


def test_status_and_dry_run_list_cells_and_a_failed_one_stops_no_other(swept, mtlprune):
    answer = swept.answer
    assert answer.code == 1, answer.err
    assert "wrong: failed: " in answer.out and "but there is no such folder" in answer.out
    assert "blocked: after: it needs wrong, which failed" in answer.out
    assert "\n2 of 4: static-pos-1 in " in answer.out  # no time is left, although two cells are not done
    assert answer.out.rstrip().endswith("4 cells: 2 done, 1 failed, 1 blocked")
    assert run_of(swept, "static-pos-1").splits() == ["dev", "test"]
    assert run_of(swept, "static-pos-1").read_config()["name"] == "static-pos"
    before = {path: path.stat().st_mtime_ns for path in swept.out.rglob("*")}
    status = mtlprune("sweep", "--dry-run", swept.file, "--out", swept.out).done()
    assert "4 cells: 2 done, 1 failed, 1 left" in status.out
    assert "failed: " in status.out and "are estimated for one core" in status.out and " GB per run" in status.out
    more = mtlprune("sweep", swept.file, "--out", swept.out, "--dry-run", "--only", "static-*-1").done()
    assert "2 cells: 2 done" in more.out
    assert {path: path.stat().st_mtime_ns for path in swept.out.rglob("*")} == before


def test_status_says_a_time_once_a_cell_of_its_kind_is_done(mtlprune, swept):
    words = ("sweep", "--dry-run", swept.file, "--out", swept.out)
    listed = mtlprune(*words, "train.encoder_rate=0.002", "--jobs", 2).done()
    assert "4 cells: 4 left" in listed.out and re.search(r"left, 2 at once: about \d+ s\n", listed.out)
    rough = listed.out.count("≈")
    (swept.file.parent / "two.yaml").write_text(swept.file.read_text().replace("seed: [1]", "seed: [1, 2]"))
    listed = mtlprune("sweep", "--dry-run", swept.file.parent / "two.yaml", "--out", swept.out).done()
    assert "6 cells: 2 done, 1 failed, 3 left" in listed.out
    assert "left, one after the other: about " in listed.out and listed.out.count("≈") == rough == 4
    two = mtlprune("sweep", "--dry-run", swept.file, swept.file.parent / "two.yaml").done().out
    assert "10 cells: 10 left" in two and str(swept.file) in two
    mtlprune("sweep", swept.file, swept.file).refuses("expected one file of a sweep, found 2")


def planned(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {name: cells for name, *cells in rows}


def test_what_a_sweep_could_show_is_known_before(mtlprune, tmp_path):
    """Of seeds that vary by 10 points, which is given and no estimate, sentences are nothing: the noncentral t."""
    grid = "  tasks: [pos, ner, [pos, ner]]\n  seed: [1, 2, 3, 4, 5]"
    (tmp_path / "s.yaml").write_text(f"base: minilm-ewt5\ngrid:\n{grid}\nexclude: [{{tasks: ner, seed: 1}}]\n")
    wide = planned(mtlprune("plan", tmp_path / "s.yaml", "sd=10").done().out)
    least = float(wide["detectable with 4 seeds"][0])  # NER lacks a seed
    assert stats.nct.sf(stats.t(3).ppf(0.975), 3, least / 5) == pytest.approx(0.8, abs=0.01)
    assert wide["detectable with 4 seeds"][1] == "pos-ner" and wide["seeds for 1 point"][0] == ">200"
    usual = planned(mtlprune("plan", tmp_path / "s.yaml").done().out)
    assert usual["seeds for 1 point"][0] == "4" and 0.5 < float(usual["detectable with 4 seeds"][0]) < 1
    runs = [
        write_run(tmp_path / f"{'-'.join(skills)}-{seed}", skills, seed=seed).path
        for seed in (1, 2, 3)
        for skills in ({"pos": 0.9}, {"ner": 0.6}, {"pos": 0.7, "ner": 0.5})
    ]
    found = planned(mtlprune("plan", tmp_path / "s.yaml", *runs).done().out)
    assert all(float(cell) > 1 for cell in found["detectable with 4 seeds"][:3])  # 60 sentences: mean, POS, NER
    assert all(int(cell) > 4 for cell in found["seeds for 1 point"][:3] if cell not in ("–", ">200"))
    mtlprune("plan", tmp_path / "s.yaml", *runs[:3]).refuses("two or more seeds are needed")
    mtlprune("plan", tmp_path / "s.yaml", *runs[:2]).refuses("expected finished single-task runs of every task and")
    other = write_run(tmp_path / "other", {"pos": 0.7, "ner": 0.5}, encoder="mpnet").path
    mtlprune("plan", tmp_path / "s.yaml", *runs, other).refuses("expected runs of one encoder, found minilm, mpnet")
    mtlprune("plan", tmp_path / "s.yaml", "sd=-1").refuses("sd=-1: expected sd=POINTS above 0")
    (tmp_path / "s.yaml").write_text("base: minilm-ewt5\ngrid: {tasks: [pos, [pos, ner]], seed: [1, 2]}\n")
    mtlprune("plan", tmp_path / "s.yaml").refuses("found no single-task runs of ner; add")


def test_the_paper_is_planned_without_its_corpus(mtlprune, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    files = sorted(Path("experiments/he-choi-2021").glob("*.yaml"))
    answer = mtlprune("sweep", *files, "data.path=nowhere/ontonotes5", "--dry-run").done()
    assert "831 cells: 831 left" in answer.out and " GB per run" in answer.out
    assert "data missing: LDC2013T19; build the corpus with python data_scripts/ontonotes5.py" in answer.out
    mtlprune("sweep", files[0], "data.path=nowhere/ontonotes5").refuses("expected a corpus made by")


def test_other_commands_take_a_sweep_for_its_finished_runs(mtlprune, swept):
    runs = [run_of(swept, name).path for name in ("none-pos-1", "static-pos-1")]
    assert found_runs(swept.out) == runs
    assert expanded([swept.out, "minilm", f"{swept.out}:none-*"]) == [*runs, Path("minilm"), runs[0]]
    assert expanded([swept.out], having="gates.jsonl") == runs[1:]
    table = mtlprune("table", swept.out, "--split", "test", "--resamples", 0).done()
    assert "gates" in table.out and "2 of 4 cells are not finished and left out: wrong, after" in table.out
    mtlprune("table", f"{swept.out}:gates-*").refuses("the sweep has no cell gates-*")


def test_a_pattern_leaves_out_folders_of_seeds_without_the_file(tmp_path):
    for name, file in (("a", "gates.jsonl"), ("b", "metrics.jsonl")):
        seed = tmp_path / name / "seed-1"
        seed.mkdir(parents=True)
        for file_name in ("config.yaml", file):
            (seed / file_name).write_text("{}")
    assert expanded([tmp_path / "*"], having="gates.jsonl") == [tmp_path / "a" / "seed-1"]
    for runs in ("b", "b*"):
        with pytest.raises(RunError, match=r"no run with gates\.jsonl is found at"):
            expanded([tmp_path / runs], having="gates.jsonl")


def test_commands_come_in_the_order_of_needs(mtlprune, swept, tmp_path):
    printed = mtlprune("sweep", swept.file, "--out", tmp_path / "o", "--print-commands", "--only", "static-*")
    commands = [shlex.split(line) for line in printed.out.splitlines()]
    assert [command[4].rpartition("-")[0] for command in commands] == ["none-pos-1", "static-pos-1"]
    assert all(command[1:3] == ["-m", "mtlprune.sweeps.worker"] for command in commands)
    assert len(list((tmp_path / "o" / "cells").glob("*.yaml"))) == 2
    mtlprune("sweep", swept.file, "--out", tmp_path / "n", "--slurm", "cluster=slrum").refuses("did you mean 'slurm'")
    assert not (tmp_path / "n").exists()
    (tmp_path / "file").touch()
    mtlprune("sweep", swept.file, "--out", tmp_path / "file", "--dry-run").refuses("is a file")


DAMAGE: dict[str, Callable[[Path], object]]
DAMAGE = {"manifest.json": lambda path: path.write_bytes(b"\xff"), "weights/*": lambda path: path.unlink()}


@pytest.mark.parametrize("file", DAMAGE)
def test_a_damaged_cell_fails_alone(mtlprune, swept, tmp_path, file):
    shutil.copytree(swept.out, tmp_path / "out")
    cells = json.loads((tmp_path / "out/sweep.json").read_text())["cells"]
    good, bad = (tmp_path / "out" / cells[name]["folder"] for name in ("none-pos-1", "static-pos-1"))
    for path in bad.glob(file):
        DAMAGE[file](path)
    only = ("--out", tmp_path / "out", "--only", "none-*,static-*")
    assert "2 cells: 1 done, 1 failed" in mtlprune("sweep", swept.file, "--dry-run", *only).done().out
    answer = mtlprune("sweep", swept.file, *only)
    assert answer.code == 1 and "failed: static-pos-1: " in answer.out and str(bad) in answer.out
    assert found_runs(tmp_path / "out") == [good]
    table = mtlprune("table", tmp_path / "out", "--split", "test", "--resamples", 0, "--format", "latex").done()
    assert "cell static-pos-1 is left out: " in table.out
    mtlprune("report", tmp_path / "out", "--out", tmp_path / "page.html", "--resamples", "10").done()
    assert "cell static-pos-1 is left out" in (tmp_path / "page.html").read_text()
    mtlprune("table", f"{tmp_path / 'out'}:static-*").refuses("none is finished, or can be read")


@pytest.mark.parametrize(("file", "text"), [("scores/test.json", ""), ("counts/dev.json", '{"ids": [], "counts": {}}')])
def test_a_cell_without_its_results_is_scored_again(mtlprune, swept, tmp_path, file, text):
    shutil.copytree(swept.out, tmp_path / "out")
    cells = json.loads((tmp_path / "out/sweep.json").read_text())["cells"]
    path = tmp_path / "out" / cells["none-pos-1"]["folder"] / file
    whole = path.read_bytes()
    path.write_text(text)
    options = ("--out", tmp_path / "out", "--only", "none-*")
    assert "1 cell: 1 left" in mtlprune("sweep", "--dry-run", swept.file, *options).out
    mtlprune("sweep", swept.file, *options).done()
    assert json.loads(path.read_bytes()) == json.loads(whole)


def test_the_time_left_falls_until_a_cell_takes_longer_than_expected(monkeypatch):
    monkeypatch.setattr(display, "MINUTE", 0.01)
    terminal = PlainConsole(file=io.StringIO(), width=80)
    watch = sweep._CellWatch({"first": Any, "second": Any, "third": Any}, 1, terminal)
    watch.left, watch.worked, watch.spent = {"second": 60.0, "third": 60.0}, 60.0, 600.0  # ten times as slow
    watch.running = {"second": time.monotonic() - 60}
    with display.progress_shown(watch.progress):
        for minutes in (1, 6, 9, 20):  # without an event between
            watch.running = {"second": time.monotonic() - 60 * minutes}
            time.sleep(0.5)
    printed = dict.fromkeys(re.findall(r"about (.*) left, 0 of 3", terminal.file.getvalue()))
    # At last the second cell has taken 20 minutes instead of one, so the third cell is expected to take 20, too.
    assert list(printed) == ["19 min", "14 min", "11 min", "22 min"]
