"""Claims are what training wrote, under the right label; anything else is refused in words."""

import json

import numpy as np
import pytest
from gated_runs import append_gates, claim, write_run

from mtlprune.claimed_heads import ClaimError, group, is_joint, load_claims, notes
from mtlprune.runs import RunError, RunFolder

GATES = np.array([[0.0, 0.5, 1.0], [0.001, 0.002, 1.0]])
WHOLE = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])


def test_gates_are_those_of_the_best_epoch(tmp_path):
    folder = write_run(tmp_path / "run", ["pos"], GATES, seed=7)
    (found,) = load_claims([folder.path])
    assert (found.run, found.label, found.seed, found.encoder) == (str(folder.path), "POS", 7, "minilm")
    assert found.gates.dtype == np.float64 and found.gates.tolist() == GATES.tolist()
    assert found.open.tolist() == [[False, True, True], [False, True, True]]
    assert [step for step, _ in found.history] == [10, 20, 30]
    assert [gates.tolist() for _, gates in found.history] == [[[1] * 3] * 2, GATES.tolist(), [[1] * 3] * 2]
    append_gates(folder, 2, {"shared": GATES / 2})  # the last evaluation of the epoch counts
    assert load_claims([folder.path])[0].gates.tolist() == (GATES / 2).tolist()
    with (folder.path / "gates.jsonl").open("a") as handle:
        handle.write('{"epoch": 2, "st')  # a line that is being written
    assert len(load_claims([folder.path])[0].history) == 4


def test_labels(tmp_path):
    five = ["pos", "ner", "dep", "con", "srl"]
    runs = {
        "one": (["dep"], GATES),
        "pair": (["pos", "dep"], GATES),
        "all": (five, GATES),
        "own": (["pos", "dep"], {"dep": GATES, "pos": GATES / 2}),
        "three": (["pos", "ner", "dep"], GATES),
    }
    folders = {name: write_run(tmp_path / name, tasks, gates).path for name, (tasks, gates) in runs.items()}
    found = [(found.label, found.gates[0, 2]) for found in load_claims(folders.values())]
    assert found == [("DEP", 1), ("POS+DEP", 1), ("MTL-5", 1), ("POS+DEP:POS", 0.5), ("POS+DEP:DEP", 1), ("MTL-3", 1)]
    assert [is_joint(label) for label, _ in found] == [False, True, True, True, True, True]
    other = write_run(tmp_path / "other three", ["ner", "dep", "srl"], GATES).path
    labels = [found.label for found in load_claims([folders["three"], other, folders["all"]])]
    assert labels == ["POS+NER+DEP", "NER+DEP+SRL", "MTL-5"]


def _spoil(folder: RunFolder, line: int, text: str) -> None:
    path = folder.path / "gates.jsonl"
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


def _line(gates: object, **more: object) -> str:
    return json.dumps({"epoch": 2, "step": 20, "open": {}, "expected": {}, "gates": gates, **more})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"epoch": 2', r"gates.jsonl, line 2: not readable as JSON"),
        (_line({"shared": [[1.0]]}, step=None), r"line 2: unexpected content: nothing as step"),
        (_line({"pos": [[1.0]]}), r"line 2: expected the gate set 'shared', found pos"),
        (_line({"shared": [[1, 0, 1], [1, 0]]}), r"line 2: expected rows of equally many numbers"),
        (_line({"shared": [[1, 0, 1], [1, 0, 1.5]]}), r"line 2: .*1.5 as gates.shared.1.2 .*less than or equal to 1"),
        (_line({"shared": [[1, 0], [1, 0]]}), r"line 2: gate sets and their sizes change within the file"),
        (_line({"shared": GATES.tolist()}, epoch=1), r"the best epoch is 2 \(best.json\), but there are no gates of"),
    ],
)
def test_damaged_gates_are_refused(tmp_path, text, message):
    folder = write_run(tmp_path / "run", ["pos"], GATES)
    _spoil(folder, 2, text)
    with pytest.raises(RunError, match=message):
        load_claims([folder.path])


def test_gate_sets_of_some_tasks_only_are_refused(tmp_path):
    folder = write_run(tmp_path / "run", ["pos", "dep"], {"pos": GATES})
    with pytest.raises(
        ClaimError, match=r"line 1: expected the gate set 'shared', or one set for each of pos, dep, fo"
    ):
        load_claims([folder.path])
    sizes = write_run(tmp_path / "sizes", ["pos", "dep"], {"pos": GATES, "dep": GATES[:1]})
    with pytest.raises(ClaimError, match="in every gate set"):
        load_claims([sizes.path])


def test_what_is_no_set_of_runs_is_refused(tmp_path, monkeypatch):
    first = write_run(tmp_path / "first", ["pos"], GATES).path
    with pytest.raises(RunError, match=r"nowhere is no run folder: nothing is there"):
        load_claims([first, tmp_path / "nowhere"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClaimError, match=r"^first is given twice \(also as .*first\); a run counts once"):
        load_claims([first, "first"])
    with pytest.raises(ClaimError, match=r"^first is given twice; a run counts once"):
        load_claims(["first", "first"])
    bert = write_run(tmp_path / "bert", ["pos"], GATES, encoder="bert").path
    with pytest.raises(ClaimError, match=r"first is a run of the encoder minilm and .*bert one of bert; heads of diff"):
        load_claims([first, bert])
    control = write_run(tmp_path / "control", ["pos"], GATES, random=True).path
    with pytest.raises(ClaimError, match=r"control one of minilm, random weights"):
        load_claims([first, control])
    other = write_run(tmp_path / "other", ["pos"], GATES[:1]).path
    with pytest.raises(ClaimError, match=r"gates for 2 layers of 3 heads and .*other for 1 of 3"):
        load_claims([first, other])
    for name, words in (("plain", "run without gates"), ("empty", "holds no evaluation yet"), ("bytes", "UTF-8 text")):
        folder = write_run(tmp_path / name, ["pos"], GATES).path
        (folder / "gates.jsonl").unlink()
        if name != "plain":
            (folder / "gates.jsonl").write_bytes(b"\xff\n" if name == "bytes" else b"")
        with pytest.raises(RunError, match=words):
            load_claims([folder])
    (first / "config.yaml").write_text("data: {path: d}\ntasks: [pos]\n")
    with pytest.raises(ClaimError, match=r"config.yaml: expected tasks, encoder.name and train.seed"):
        load_claims([first])


def test_seeds_of_a_label_stand_together_and_tasks_before_joint_runs():
    labels = ["MTL-5:DEP", "MTL-5", "SRL", "POS+DEP", "POS", "MTL-5:POS", "MTL-3", "XYZ", "DEP"]
    found = group([claim(label, seed, GATES) for seed in (3, 1) for label in labels])
    expected = ["POS", "DEP", "SRL", "XYZ", "POS+DEP", "MTL-3", "MTL-5", "MTL-5:POS", "MTL-5:DEP"]
    assert [run_group.label for run_group in found] == expected
    assert all([claim.seed for claim in run_group.claims] == [1, 3] for run_group in found)
    with pytest.raises(ClaimError, match=r"runs/POS-1 and runs/POS-1 are both runs of POS with seed 1; one label"):
        group([claim("POS", 1, GATES), claim("POS", 1, GATES)])
    with pytest.raises(ClaimError, match="expected one run or more"):
        group([])


@pytest.mark.parametrize(("seeds", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_head_is_claimed_by_more_than_half_of_the_seeds(seeds, needed):
    gates = np.array([[[float(seed < times) for times in range(seeds + 1)]] for seed in range(seeds)])
    (found,) = group([claim("POS", seed, one) for seed, one in enumerate(gates)])
    assert found.times.tolist() == [list(range(seeds + 1))]
    assert found.claimed.tolist() == [[times >= needed for times in range(seeds + 1)]]


def test_labels_that_differ_in_more_than_tasks_are_named(tmp_path):
    first = write_run(tmp_path / "a", ["pos"], WHOLE).path
    second = write_run(tmp_path / "b", ["dep"], WHOLE).path
    assert notes(group(load_claims([first, second]))) == []
    third = write_run(tmp_path / "c", ["dep"], WHOLE, rate=0.5).path
    assert notes(group(load_claims([first, third]))) == [
        "Not only the tasks differ, but train.encoder_rate too: 0.0001 (POS); 0.5 (DEP)."
    ]
    with pytest.raises(
        ClaimError, match=r"both runs of DEP with seed 1 \(they differ in train.encoder_rate\); one label"
    ):
        group(load_claims([second, third]))


def test_what_a_reader_must_know(tmp_path):
    second = write_run(tmp_path / "b", ["pos"], 1 - WHOLE, seed=2).path
    first = write_run(tmp_path / "a", ["pos"], WHOLE).path
    assert notes(group(load_claims([first, second]))) == []
    third = write_run(tmp_path / "c", ["pos"], WHOLE[::-1], seed=3, rate=0.5).path
    fourth = write_run(tmp_path / "d", ["dep"], WHOLE, data="e" * 64, finished=False).path
    assert notes(group(load_claims([first, second, third, fourth]))) == [
        "The seeds of POS differ in train.encoder_rate too: 0.0001, 0.0001, 0.5.",
        "Not all runs were trained on the same data (their fingerprints differ).",
        f"Not trained to the end: {fourth}.",
        "Labels have different numbers of seeds (POS 3, DEP 1); every label weighs the same all the same.",
    ]
