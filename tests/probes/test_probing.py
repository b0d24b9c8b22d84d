"""Results of real runs and encoders: files, controls, differences, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny import make_tiny

from mtlprune.analyses.probes.probing import ProbeRequest, probe
from mtlprune.analyses.probes.results import Results
from mtlprune.analyses.probes.survey import AS_RELEASED, MODES, SOUND
from mtlprune.analyses.subjects import ProbeError, find_sources
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus

LAYERS, HEADS = 2, 4


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> ProbeRequest:
    folder = tmp_path_factory.mktemp("probing")
    save_corpus(build_grammar(30, 12, 12, 1), folder / "corpus", name="grammar", licence="Apache-2.0", sources={})
    encoder = make_tiny("bert", folder / "encoder", positions=160)
    return ProbeRequest((str(encoder),), folder / "corpus", MODES, few=8)


@pytest.fixture(scope="module")
def results(request_: ProbeRequest) -> Results:
    return probe(request_)


@pytest.fixture(scope="module")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("written") / "probes"
    results.write(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["probes.json", "probes.parquet"]
    return pq.read_table(folder / "probes.parquet").to_pylist(), json.loads((folder / "probes.json").read_text())


def test_one_row_a_head_and_label(results: Results, written: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    rows, tree = written
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in ("encoder", "mode", "control", "task", "label")), []).append(row)
    tasks = {items.task: items for items in results.items["test"]}
    for (encoder, _mode, control, task, label), group in groups.items():
        assert encoder == "pretrained" and sum(row["best"] for row in group) <= 1
        place = tasks[task].labels.index(label)
        assert {row["items"] for row in group} == {tasks[task].counts()[place]}
        if control in ("offset", "chance"):
            assert [(row["layer"], row["head"]) for row in group] == [(0, 0)]
        else:
            assert [(row["layer"], row["head"]) for row in group] == [
                (layer, head) for layer in range(1, LAYERS + 1) for head in range(1, HEADS + 1)
            ]
            best = [row for row in group if row["best"]]
            if best:
                assert best[0]["dev"] == max(row["dev"] for row in group)
    controls = {(task, control) for _, _, control, task, _ in groups}
    always = {"none", "random_encoder", "shuffled_labels", "chance"}
    assert controls == {(t, c) for t in tasks for c in always} | {("dep", "offset"), ("srl", "offset")}
    assert {key[1] for key in groups} == set(MODES) == set(tree["modes"])


def test_the_summary_says_what_the_table_says(written: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    rows, tree = written
    best = {
        tuple(row[k] for k in ("mode", "control", "task", "label")): row for row in rows if row["best"]
    }  # fmt: skip
    assert tree["corpus"] == "grammar" and tree["few"] == 8 and "[CLS]" in tree["specials"]
    assert tree["encoders"][0]["label"] == "pretrained" and not tree["differences"]
    assert tree["splits"]["train"] == {"sentences": 30, "too_long": 0}
    assert {entry["label"] for entry in tree["summary"] if entry["apart"]} == {"root"}
    assert any(entry["few"] for entry in tree["summary"]) and not all(entry["few"] for entry in tree["summary"])
    for entry in tree["summary"]:
        row = best.get((entry["mode"], "none", entry["task"], entry["label"]))
        assert entry["few"] == (entry["items"] < 8)
        if row is None:  # no dev item to choose a head by
            assert entry["mode"] == SOUND and entry["test"] is None and entry["gain"] is None
            continue
        assert (entry["layer"], entry["head"], entry["items"]) == (row["layer"], row["head"], row["items"])
        assert entry["test"] == pytest.approx(row["test"], abs=1e-3)
        for control, value in entry["controls"].items():
            other = best[entry["mode"], control, entry["task"], entry["label"]]
            assert value == pytest.approx(other["test"], abs=1e-3)
        assert entry["gain"] == pytest.approx(entry["test"] - max(entry["controls"].values()), abs=1e-3)


def test_as_released_chooses_on_what_it_reports(written: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    released = [row for row in written[0] if row["mode"] == AS_RELEASED]
    assert all(row["dev"] == row["test"] or np.isnan(row["test"]) for row in released)


def test_a_single_item_scores_100_as_released(request_: ProbeRequest, results: Results) -> None:
    found = results.probed[0].found.test[AS_RELEASED, "none", "pos"]
    counts = next(items for items in results.items["test"] if items.task == "pos").counts()
    assert (found[counts == 1] == 100).all()


def test_means_leave_out_rare_labels_and_the_root(results: Results) -> None:
    for mean in results.means():
        mine = [
            entry
            for entry in results.summary
            if (entry["mode"], entry["task"]) == (mean["mode"], mean["task"])
            and entry["gain"] is not None
            and entry["items"] >= 8
            and entry["label"] != "root"
        ]
        assert mean["labels"] == len(mine)
        assert mean["test"] == pytest.approx(np.mean([entry["test"] for entry in mine]))
        assert mean["gain"] == pytest.approx(np.mean([entry["gain"] for entry in mine]))


def test_the_same_request_gives_the_same_numbers(request_: ProbeRequest, results: Results) -> None:
    again = probe(replace(request_, modes=(SOUND,)))
    for key, grid in again.probed[0].found.test.items():
        np.testing.assert_array_equal(grid, results.probed[0].found.test[key])
    untrained = results.probed[0].untrained
    assert untrained is not None
    for key, grid in again.probed[0].untrained.test.items():
        np.testing.assert_array_equal(grid, untrained.test[key])


def test_part_of_train_and_no_random_encoder(request_: ProbeRequest) -> None:
    found = probe(replace(request_, train_sentences=5, modes=(SOUND,), untrained=False))
    assert found.head["splits"]["train"]["sentences"] == 5 and found.probed[0].untrained is None
    assert {control for entry in found.summary for control in entry["controls"]} == {
        "shuffled_labels",
        "offset",
        "chance",
    }


def test_long_sentences_are_left_out_and_counted(request_: ProbeRequest, tmp_path: Path) -> None:
    small = make_tiny("bert", tmp_path / "small", positions=64)
    found = probe(replace(request_, names=(str(small),), modes=(AS_RELEASED,), untrained=False))
    left = found.head["splits"]["test"]
    assert 0 < left["too_long"] < 12 and left["sentences"] + left["too_long"] == 12


def test_what_cannot_be_probed_is_refused(request_: ProbeRequest, tmp_path: Path) -> None:
    name = request_.names[0]
    with pytest.raises(ProbeError, match="are both pretrained, seed 0"):
        find_sources([name, name])
    with pytest.raises(ProbeError, match="found none"):
        find_sources([])
    with pytest.raises(ProbeError, match="expected modes among"):
        probe(replace(request_, modes=("wild",)))
    save_corpus({"test": build_grammar(1, 1, 2, 1)["test"]}, tmp_path / "c", name="g", licence="x", sources={})
    with pytest.raises(ProbeError, match="expected the splits train, dev, test"):
        probe(replace(request_, corpus=tmp_path / "c"))
    assert probe(replace(request_, corpus=tmp_path / "c", modes=(AS_RELEASED,), untrained=False)).summary
    tiny = make_tiny("bert", tmp_path / "tiny", positions=4)
    with pytest.raises(ProbeError, match="no sentence of"):
        probe(replace(request_, names=(str(tiny),)))


def test_labels_of_runs_are_those_of_overlap(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    names = [str(make_run(tasks, seed)) for tasks, seed in ((("pos",), 1), (("pos", "dep"), 1), (("pos",), 2))]
    names.append(str(make_run(("pos", "ner", "dep", "con", "srl"), 3)))
    found = find_sources([*names, "minilm"])
    assert [(source.label, source.seed, source.is_run) for source in found] == [
        ("POS", 1, True), ("POS+DEP", 1, True), ("POS", 2, True), ("MTL-5", 3, True), ("pretrained", 0, False),
    ]  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A folder with no more than the configuration of a run."""

    def make(tasks: tuple[str, ...], seed: int) -> Path:
        import yaml

        folder = tmp_path / f"{'-'.join(tasks)}-{seed}"
        folder.mkdir()
        tree = {"name": "x", "tasks": list(tasks), "data": {"path": "none"}, "train": {"seed": seed}}
        (folder / "config.yaml").write_text(yaml.safe_dump(tree | {"encoder": {"name": "minilm"}}))
        return folder

    return make
