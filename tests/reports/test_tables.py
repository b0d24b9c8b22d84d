"""Tables from run folders: which runs share a column, what stands in a cell, and what is refused."""

import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_runs import write_run
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.layers import KINDS
from mtlprune.reports.grid import mean_sd
from mtlprune.reports.scores.comparisons import compare, read_run
from mtlprune.reports.scores.layouts import difference
from mtlprune.reports.scores.tables import markdown
from mtlprune.runs import RunError, RunFolder
from mtlprune.scores import MAIN, NAMES, main_score

TREE = {
    "name": "base",
    "data": {"path": "data/x", "train": "train", "dev": "dev", "train_sentences": None},
    "tasks": [],
    "encoder": {"name": "minilm", "random": False, "context": True},
    "decoders": {"pos": {}, "ner": {"size": 150}},
    "train": {"epochs": 3, "seed": 1, "device": "cpu", "threads": 1, "checkpoint_minutes": 5, "mixing": "joint"},
}
Make = Callable[..., RunFolder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a run folder as training and evaluation leave it: ``make({"pos": 90.0}, **{"train.seed": 2})``."""

    def run(scores: dict[str, float], data: str = "f" * 64, split: str = "test", **settings: Any) -> RunFolder:
        tree: dict[str, Any] = {**copy.deepcopy(TREE), "tasks": list(scores)}
        for path, value in settings.items():
            block, _, key = path.rpartition(".")
            (tree[block] if block else tree)[key] = value
        folder = RunFolder(tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
        folder.write_config(tree)
        folder.write_json("manifest.json", {"data": {"fingerprint": data}, "finished": {"epoch": 3}})
        table = {task: {main_score(task, {}): value, "other": 1.0} for task, value in scores.items()}
        folder.write_results(split, table, [], {}, [])
        return folder

    return run


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without its rule."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines]


def table(folders: list[RunFolder], extra: dict[str, dict[str, float]] | None = None) -> list[list[str]]:
    return rows(markdown(compare(folders, "test", extra)))


def test_stl_beside_mtl(make):
    folders = [
        make({"pos": 97.0, "ner": 80.5}, name="together"),
        make({"ner": 82.0}, name="alone-ner"),
        make({"pos": 96.25}, name="alone-pos", **{"train.threads": 8, "data.path": "elsewhere"}),
    ]
    assert table(folders) == [
        ["task", "STL", "MTL-2", "Δ"],
        ["POS accuracy", "96.25", "**97.00**", "+0.75"],
        ["NER strict span F1", "**82.00**", "80.50", "-1.50"],
    ]


def test_a_run_that_is_not_trained_to_the_end_is_named(make):
    one, other = make({"pos": 90.0}), make({"pos": 91.0}, **{"train.seed": 2})
    assert "not trained" not in markdown(compare([one, other], "test"))
    other.write_json("manifest.json", {"data": {"fingerprint": "f" * 64}})
    assert markdown(compare([one, other], "test")).endswith(f"; not trained to the end: {other.path}.\n")


def test_seeds_are_averaged(make):
    seeds = {1: 90.0, 2: 92.0, 3: 97.0}
    folders = [make({"pos": score, "ner": 50.0}, **{"train.seed": seed}) for seed, score in seeds.items()]
    folders.append(make({"pos": 91.0}))
    assert table(folders)[1] == ["POS accuracy", "91.00", "**93.00 ± 3.61 (n=3)**", "+2.00"]
    assert "mean ± sample standard deviation over n seeds" in markdown(compare(folders, "test"))


def test_baselines_have_columns_of_their_own(make):
    both = {"pos": 1.0, "ner": 2.0}
    folders = [
        make({"pos": 3.0}),
        make(both),
        make(both, **{"encoder.context": False}),
        make(both, **{"encoder.random": True}),
    ]
    header = table(folders, {"majority": both})[0]
    assert header == ["task", "majority", "no encoder", "random encoder", "STL", "MTL-2", "Δ"]
    header = table([*folders, make({"pos": 1.0}, **{"encoder.context": False})])[0]
    assert header == ["task", "no encoder, STL", "no encoder, MTL-2", "random encoder", "STL", "MTL-2", "Δ"]


def test_settings_are_told_apart(make):
    both = {"pos": 1.0, "ner": 2.0}
    stl = make({"pos": 3.0})
    by_name = [stl, make(both, name="joint"), make(both, name="sampled", **{"train.mixing": "sampled"})]
    assert table(by_name)[0] == ["task", "STL", "MTL-2 (joint)", "Δ", "MTL-2 (sampled)", "Δ"]
    assert "in MTL-2 (sampled) not only the tasks differ from STL" in markdown(compare(by_name, "test"))
    by_setting = [stl, make(both), make(both, **{"train.mixing": "sampled"})]
    titles = ["MTL-2 (train.mixing=joint)", "MTL-2 (train.mixing=sampled)"]
    assert [title for title in table(by_setting)[0][2:] if title != "Δ"] == titles
    alone = [  # a column holds runs of several names: none of them may stand for all
        make({task: 1.0}, name=f"{fusion}-{task}", **{"encoder.fusion": fusion})
        for fusion in ("none", "gate")
        for task in ("pos", "dep")
    ]
    assert table(alone)[0] == ["task", "STL (encoder.fusion=gate)", "STL (encoder.fusion=none)"]
    three = {"pos": 1.0, "ner": 2.0, "dep": 3.0}
    other_tasks = [make(three), make({**three, "srl": 1.0} | {"con": 1.0}), make({"pos": 1.0, "ner": 2.0, "srl": 2.0})]
    assert set(table(other_tasks)[0][1:]) == {"MTL-3 (pos+ner+dep)", "MTL-3 (pos+ner+srl)", "MTL-5"}


def test_differences_are_taken_to_the_same_settings(make):
    """Two STL settings: each MTL setting has its own; one without a counterpart has no difference."""
    both = {"pos": 10.0, "ner": 10.0}
    folders = [make({"pos": 1.0}), make({"pos": 2.0}, **{"train.epochs": 9})]
    folders += [make(both), make(both, **{"train.epochs": 9}), make(both, **{"train.epochs": 5})]
    comparison = compare(folders, "test")
    pairs = {comparison.columns[m].title: comparison.columns[s].title for m, s in comparison.against.items()}
    assert pairs == {"MTL-2 (train.epochs=3)": "STL (train.epochs=3)", "MTL-2 (train.epochs=9)": "STL (train.epochs=9)"}


def test_refusals_are_sentences(make, tmp_path):
    run = make({"pos": 1.0})
    with pytest.raises(
        RunError, match=r"is not scored on 'dev' \(scored: test\); run: mtlprune evaluate .*--split dev$"
    ):
        compare([run], "dev")
    with pytest.raises(RunError, match="have the same settings, tasks and seed, so they are one result, not two"):
        compare([run, make({"pos": 1.5}, name="copy")], "test")
    with pytest.raises(RunError, match="were trained on different data"):
        compare([run, make({"ner": 1.5}, data="0" * 64)], "test")
    with pytest.raises(RunError, match="at least one run"):
        compare([], "test")
    (run.path / "config.yaml").write_text("name: [")
    with pytest.raises(RunError, match=r"config.yaml: not readable as YAML"):
        compare([run], "test")


def test_the_same_run_twice_counts_once_only(make):
    run = make({"pos": 1.0})
    assert table([run, run]) == [["task", "STL"], ["POS accuracy", "1.00"]]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_cells(values):
    text = mean_sd(values)
    assert text.startswith(f"{statistics.mean(values):.2f}")
    assert ("±" in text) == (len(values) > 1)
    assert difference(values, values) in ("+0.00", "-0.00")


def test_every_kind_has_a_title():
    assert set(NAMES) - {"las_no_punct"} == set(KINDS) == set(MAIN)


def test_settings_that_came_later_do_not_split_a_column(tmp_path):
    old = write_run(tmp_path / "old", {"pos": 0.8}, seed=1)
    new = write_run(tmp_path / "new", {"pos": 0.8}, seed=2, **{"encoder.fusion": "none", "train.cosreg": 0.0})
    other = write_run(tmp_path / "other", {"pos": 0.8}, seed=2, **{"encoder.fusion": "gate"})
    runs = [read_run(folder, "test") for folder in (old, new, other)]
    assert runs[0].setting == runs[1].setting != runs[2].setting
