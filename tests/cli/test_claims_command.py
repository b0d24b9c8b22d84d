"""mtlprune claims and analyze heads: what they print and write for run folders with gates."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from run_folders import scattered, write_run, write_selection

from mtlprune import read_results
from mtlprune.runs.folder import RunFolder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    stem = scattered(generator, [2] * 4, 6)
    names = {"pos": ["pos"], "dep": ["dep"], "srl": ["srl"], "mtl": ["pos", "ner", "dep", "con", "srl"]}
    return [
        write_run(
            tmp_path / f"{name}-{seed}", tasks, np.maximum(stem, scattered(generator, [1] * 4, 6)), seed=seed
        ).path
        for name, tasks in names.items()
        for seed in (1, 2, 3)
    ]


def test_a_report_on_the_terminal_and_a_result(mtlprune, runs, tmp_path, monkeypatch):
    out, words = tmp_path / "new" / "results", ("claims", *runs, "--permutations", 300)
    answer = mtlprune(*words, "--out", out).done()
    figures = [f"claims-{name}.{kind}" for name in ("correlation", "shared", "heads") for kind in ("png", "svg")]
    shown = {path.name for path in out.iterdir() if path.suffix != ".parquet"}
    assert shown == {"claims.json", "claims.md", "claims.tex", "maps", *figures}
    text = (out / "claims.md").read_text()
    assert text == mtlprune(*words).out
    findings = [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    assert answer.out.splitlines()[-1] in findings and "\n| " not in answer.out  # the last thing to be read
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", mtlprune(*words).out).splitlines()]
    assert lines.index("Open heads") < lines.index("Stem heads") < lines.index("Findings")
    result = read_results(out)["claims"]
    assert result.about["settings"]["permutations"] == 300
    assert result.frames["labels"]["encoder"].tolist() == ["POS", "DEP", "SRL", "MTL-5"]
    assert result.frames["tests"].set_index("mode").loc["all", "p"] < 0.05
    assert "They share more heads than depth" in answer.out and (result.frames["groups"]["group"] == "stem").sum() >= 8


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a run folder with gates, three evaluations, the second of which is best."""

    def run(tasks: str, seed: int, encoder: str = "minilm", own: bool = False) -> Path:
        names, random = tasks.split("+"), np.random.default_rng(seed + len(tasks))
        sets = {name: random.uniform(0, 1, (3, 4)).round(3) for name in (names if own else ["shared"])}
        return write_run(tmp_path / f"{tasks}-{seed}-{encoder}", names, sets, seed=seed, encoder=encoder).path

    return run


def gates(folder: Path, line: int = 1) -> list[list[float]]:
    return RunFolder(folder).read_gates()[line]["gates"]["shared"]


def test_it_draws_runs_seeds_means_tasks_and_differences_and_lists_their_numbers(mtlprune, make, tmp_path):
    runs = [make("pos", seed) for seed in (3, 1)] + [make("dep", 1), make("pos+ner+dep", 1)]
    out = tmp_path / "deep" / "maps"
    answer = mtlprune("claims", *runs, "--permutations", 9, "--out", out.parent).done()
    stems = {"run-POS-seed1", "run-POS-seed3", "run-DEP-seed1", "run-MTL-3-seed1", "colourblind-POS"}
    stems |= {"grey-POS", "grey-DEP", "grey-MTL-3", "grey-all-tasks"}
    stems |= {"difference-POS-DEP", "difference-POS-MTL-3", "difference-DEP-MTL-3"}
    written = {path.name for path in out.iterdir()}
    assert written == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")} | {"maps.json"}
    assert "MTL-3 has only one seed" in answer.out and f"{2 * len(stems)} pictures" in answer.out
    contents = json.loads((out / "maps.json").read_text())
    assert (contents["encoder"], contents["layers"], contents["heads"]) == ("minilm", 3, 4)
    entries = {Path(entry["files"][0]).stem: entry for entry in contents["maps"]}
    assert {name for entry in contents["maps"] for name in entry["files"]} | {"maps.json"} == written
    assert entries["run-POS-seed3"]["numbers"] == {"run": gates(runs[0])}  # of the best epoch, not the last
    assert entries["colourblind-POS"]["numbers"] == {"seed 1": gates(runs[1]), "seed 3": gates(runs[0])}
    mean = (np.array(gates(runs[0])) + gates(runs[1])) / 2
    assert np.allclose(entries["grey-POS"]["numbers"]["mean"], mean)
    assert np.allclose(entries["grey-all-tasks"]["numbers"]["tasks"], (mean + gates(runs[2])) / 2)
    assert np.allclose(entries["difference-POS-DEP"]["numbers"]["difference"], mean - gates(runs[2]))
    few = ("claims", *runs[:2], "--permutations", 9, "--out", out.parent)
    mtlprune(*few, "--format", "svg", "--palette", "rgb").done()
    fewer = {"run-POS-seed1.svg", "run-POS-seed3.svg", "rgb-POS.svg", "grey-POS.svg", "maps.json"}
    assert {path.name for path in out.iterdir()} == fewer  # nothing stays that was drawn of other runs
    assert not list(out.parent.glob("*.png"))


def test_a_gate_set_a_task_has_maps_of_its_own(mtlprune, make, tmp_path):
    runs = [make("pos+ner+dep", 1, own=True), make("pos", 1)]
    mtlprune("claims", *runs, "--permutations", 9, "--out", tmp_path, "--format", "svg").done()
    names = {path.stem for path in (tmp_path / "maps").glob("*.svg")}
    assert {"run-MTL-3_POS-seed1", "difference-POS-MTL-3_POS", "difference-MTL-3_POS-MTL-3_NER"} <= names
    assert "difference-POS-MTL-3_NER" not in names


def test_frequencies_over_halves_have_a_map_and_a_place_on_the_page(mtlprune, make, tmp_path):
    runs = [make("pos", 1), make("pos", 2)]
    shares = [[0.0, 0.1, 0.9, 1.0]] * 3
    write_selection(RunFolder(runs[1]), shares)
    mtlprune("claims", *runs, "--permutations", 9, "--out", tmp_path, "--format", "svg").done()
    entries = {entry["files"][0]: entry for entry in json.loads((tmp_path / "maps" / "maps.json").read_text())["maps"]}
    assert entries["frequency-POS-seed2.svg"]["numbers"] == {"frequency": shares}
    assert "frequency-POS-seed1.svg" not in entries
