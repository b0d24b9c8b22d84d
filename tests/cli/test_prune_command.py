"""mtlprune prune: a run without its closed heads is a run like any other and predicts the same; or nothing is left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtlprune.claimed_heads import load_claims
from mtlprune.encoder.removal import KeptHeads
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder

Command = Callable[..., Any]
LAYERS, HEADS = 2, 4


@pytest.fixture(scope="module")
def gated(train: Callable[..., Path]) -> Path:
    """One task with gates between 0 and 1."""
    return train("gated-pos", "tasks=pos", "pruning.method=gates", "pruning.rate=0.3", "train.seed=2")


def test_the_run_is_whole_and_says_where_it_came_from(pruned, masked):
    source, folder = RunFolder(masked), RunFolder(pruned)
    (claim,) = load_claims([masked])
    kept = [np.flatnonzero(row).tolist() for row in claim.open]
    assert [list(row) for row in KeptHeads.read(folder.encoder_path).kept] == kept
    manifest = folder.read_manifest()
    record = manifest["pruned"]
    assert record["heads"] == kept and record["heads_kept"] == 3 and record["from"] == str(masked)
    assert record["epoch"] == source.read_best()["joint"]["epoch"] and record["gates"] == "shared"
    assert record["config"] == source.read_config()
    assert manifest["data"] == source.read_manifest()["data"]
    head = 3 * (32 + 1) * 8 + 32 * 8
    before, after = record["parameters"]["before"], record["parameters"]["after"]
    assert before["encoder"] - after["encoder"] == 5 * head and before["pos"] == after["pos"]
    assert manifest["parameters"] == after
    assert folder.read_config()["pruning"]["method"] == "none"
    assert not (pruned / "gates.jsonl").exists() and not (pruned / "latency.json").exists()
    assert [path.name for path in pruned.parent.glob(".*")] == []


def test_it_predicts_what_the_masked_run_predicts(mtlprune, pruned, masked):
    assert RunFolder(pruned).read_predictions("dev") == RunFolder(masked).read_predictions("dev")
    scores = [RunFolder(path).read_scores("dev") for path in (pruned, masked)]
    assert scores[0] == scores[1]
    best = RunFolder(pruned).read_best()
    assert best["joint"]["score"] == RunFolder(masked).read_best()["joint"]["score"]
    assert best["pos"]["score"] == scores[0]["pos"]["accuracy"]
    for path in (pruned, masked):
        assert mtlprune("evaluate", path, "--split", "test").code == 0
    assert RunFolder(pruned).read_predictions("test") == RunFolder(masked).read_predictions("test")
    words = ["the", "dog", "saw", "London"]
    found = [MultiTaskModel.load(path).parse(words)[0] for path in (pruned, masked)]
    assert found[0].pos is not None and found[0] == found[1]


def test_other_verbs_take_it(mtlprune, pruned, masked, tmp_path):
    table = mtlprune("table", masked, pruned, "--split", "dev")
    assert table.code == 0 and "tiny-pruned" in table.out, table.err
    again = mtlprune("train", pruned / "config.yaml", "--out", pruned)
    assert again.code == 2 and "was made by `mtlprune prune` and is not trained on" in again.err
    tuned = tmp_path / "tuned"
    more = mtlprune("train", pruned / "config.yaml", f"train.start={pruned}", "train.epochs=1", "--out", tuned)
    assert more.code == 0, more.err
    kept = KeptHeads.read(pruned / "encoder")
    assert KeptHeads.read(tuned / "encoder") == MultiTaskModel.load(tuned).encoder.head_map == kept
    assert mtlprune("evaluate", tuned, "--split", "test").code == 0
    figures = tmp_path / "bench.json"
    short = ("--batches", 1, "--rounds", 1, "--no-memory", "--out", figures)
    assert mtlprune("bench", pruned / "config.yaml", *short).code == 0
    assert json.loads(figures.read_text())["ratios"]["bare encoder"] == 1.0


def test_the_most_open_heads_stay_and_time_is_measured(mtlprune, gated, tmp_path):
    out = tmp_path / "five"
    answer = mtlprune("prune", gated, "--out", out, "--heads", 5, "--rounds", 1)
    assert answer.code == 0, answer.err
    (claim,) = load_claims([gated])
    largest = set(np.argsort(-claim.gates.flatten())[:5].tolist())
    heads = KeptHeads.read(out / "encoder")
    assert {layer * HEADS + head for layer, row in enumerate(heads.kept) for head in row} == largest
    assert "heads: 5 of 8 are kept; 5 gates below 1 are in the weights now" in answer.out
    record = json.loads((out / "latency.json").read_text())
    assert [(cell["batch"], cell["length"]) for cell in record["cells"]] == [
        (batch, length) for length in (16, 64) for batch in (1, 8, 32)
    ]
    assert "not measured: length 256; the encoder sees 64 tokens at once" in answer.out
    for cell in record["cells"]:
        assert cell["attention"]["ideal_gain"] == pytest.approx(3 / 8)
        assert 0 < cell["encoder"]["ideal_gain"] < 3 / 8
        assert set(cell["encoder"]["seconds"]) == {"full", "masked", "removed"}
    assert RunFolder(out).read_manifest()["pruned"]["most_open"] == 5


def test_a_task_s_own_gates_make_a_run_of_that_task(mtlprune, own_gates, tmp_path):
    refused = mtlprune("prune", own_gates, "--out", tmp_path / "none")
    assert refused.code == 2 and "expected --task with one of pos, ner" in refused.err
    out = tmp_path / "ner"
    answer = mtlprune("prune", own_gates, "--out", out, "--task", "ner", "--no-latency")
    assert answer.code == 0, answer.err
    assert RunFolder(out).read_config()["tasks"] == ["ner"] and set(RunFolder(out).read_best()) == {"joint", "ner"}
    assert list(MultiTaskModel.load(out).tasks) == ["ner"] and set(RunFolder(out).read_vocabularies()) == {"ner"}
    mine, theirs = (RunFolder(path).read_predictions("dev") for path in (out, own_gates))
    assert [sentence.ner for sentence in mine] == [sentence.ner for sentence in theirs]


def refusal(mtlprune: Command, place: Path, *arguments: object) -> str:
    """One sentence, exit 2, and nothing written at ``place``."""
    before = sorted(place.rglob("*"))
    answer = mtlprune("prune", *arguments)
    assert answer.code == 2 and answer.err.startswith("mtlprune: ") and answer.err.count("\n") == 1, answer.err
    assert sorted(place.rglob("*")) == before
    return answer.err


def test_what_cannot_be_done_is_refused_and_nothing_is_written(mtlprune, masked, pruned, trained, tmp_path):
    out = tmp_path / "out"
    said = refusal(mtlprune, tmp_path, masked, "--out", out, "--heads", 9)
    assert "--heads 9: expected at most 8 heads" in said and "(2 layers of 4)" in said
    for run in (trained, pruned):  # heads cannot go twice
        assert "is a run without gates" in refusal(mtlprune, tmp_path, run, "--out", out)
    assert "is no run folder" in refusal(mtlprune, tmp_path, tmp_path, "--out", out)
    said = refusal(mtlprune, tmp_path, masked, "--out", out, "--task", "pos")
    assert "has no gates of the task 'pos': it has one gate set that all tasks share; leave --task out" in said
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "is not empty; name a new folder" in refusal(mtlprune, tmp_path, masked, "--out", out)
    assert "is a file" in refusal(mtlprune, tmp_path, masked, "--out", out / "notes.txt")


def test_gates_that_are_not_those_of_the_weights_are_refused(mtlprune, gated, tmp_path):
    run = Path(shutil.copytree(gated, tmp_path / "run"))
    lines = [json.loads(line) for line in (run / "gates.jsonl").read_text().splitlines()]
    for line in lines:
        line["gates"]["shared"][1][2] = 1 - line["gates"]["shared"][1][2]
    (run / "gates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = refusal(mtlprune, tmp_path, run, "--out", tmp_path / "out")
    assert "gates.jsonl and the weights of epoch" in said and "disagree" in said
