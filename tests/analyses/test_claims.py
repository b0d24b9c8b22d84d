"""Claims are what training wrote, or are refused; their overlap: planted, by hand, enumerated, and null by depth."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import append_gates, claim, scattered, write_run

from mtlprune.analyses.heads.claims import maths
from mtlprune.analyses.heads.claims.maths import SHARING, claimed_by, list_heads, majority_probability
from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.runs.claims import Claim, ClaimError, by_chance, group, load_claims, notes
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result
from mtlprune.sentence import LAYERS

GATES = np.array([[0.0, 0.5, 1.0], [0.001, 0.002, 1.0]])
MASK, OPEN = np.array([[1.0, 0, 0, 1], [0, 1, 1, 0]]), np.ones((2, 4))


def test_gates_are_those_of_the_best_epoch(tmp_path):
    folder = write_run(tmp_path / "run", ["pos"], GATES, seed=7)
    (found,) = load_claims([folder.path])
    assert (found.run, found.label, found.seed, found.encoder) == (str(folder.path), "POS", 7, "minilm")
    assert found.settings["train.encoder_rate"] == 1e-4 and found.data == "f" * 64 and found.finished
    assert found.gates.tolist() == GATES.tolist() and found.open.tolist() == [[False, True, True]] * 2
    ones = np.ones((2, 3)).tolist()
    history = [(step, gates.tolist()) for step, gates in found.history]
    assert history == [(10, ones), (20, GATES.tolist()), (30, ones)]
    append_gates(folder, 2, {"shared": GATES / 2})  # the last evaluation of the epoch counts
    assert load_claims([folder.path])[0].gates.tolist() == (GATES / 2).tolist()
    with (folder.path / "gates.jsonl").open("a") as handle:
        handle.write('{"epoch": 2, "st')  # a line that is being written
    assert len(load_claims([folder.path])[0].history) == 4


def test_open_heads_that_were_drawn_from_equal_gates_are_counted():
    settings = {"pruning.method": "gates", "pruning.keep": 2}
    ones, zeros = np.ones((2, 3)), np.array([[1.0, 1, 0], [0, 0, 0]])
    told = np.array([[1.0, 0.9, 0.2], [0.1, 0.3, 0]])
    tied = np.array([[1.0, 0.5, 0.5], [0.5, 0, 0]])
    for before, expected in ((ones, (2, 6)), (told, (0, 0)), (tied, (1, 3)), (zeros, (0, 0))):
        run = replace(claim("POS", 1, zeros), history=[(1, before), (2, zeros), (3, ones)], step=2)
        assert by_chance(replace(run, settings=settings)) == expected
        assert by_chance(replace(run, settings={"pruning.method": "fisher"})) == (0, 0)
    run = replace(claim("POS", 1, zeros), history=[(1, ones)], step=2, settings=settings)
    result = overlap([run], permutations=0)
    assert any("POS, seed 1: 2 of 2" in note for note in result.about["notes"])
    assert result.about["encoders"][0]["by_chance"] == 2


def test_labels(tmp_path):
    own = {"dep": GATES, "pos": GATES / 2}
    runs = {"one": ["dep"], "pair": ["pos", "dep"], "all": [*LAYERS], "own": ["pos", "dep"], "three": [*LAYERS][:3]}
    folders = {name: write_run(tmp_path / name, of, own if name == "own" else GATES).path for name, of in runs.items()}
    found = [(found.label, found.gates[0, 2]) for found in load_claims(folders.values())]
    assert found == [("DEP", 1), ("POS+DEP", 1), ("MTL-5", 1), ("POS+DEP:POS", 0.5), ("POS+DEP:DEP", 1), ("MTL-3", 1)]
    assert [is_joint(label) for label, _ in found] == [False, True, True, True, True, True]
    other = write_run(tmp_path / "other three", ["ner", "dep", "srl"], GATES).path
    labels = [found.label for found in load_claims([folders["three"], other, folders["all"]])]
    assert labels == ["POS+NER+DEP", "NER+DEP+SRL", "MTL-5"]


def test_what_is_no_set_of_runs_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(name: str, tasks: tuple[str, ...] = ("pos",), gates: Any = GATES, **how: Any) -> Path:
        return write_run(Path(name), tasks, gates, **how).path

    first, runs = made("first"), {name: made(name) for name in ("plain", "empty", "bytes", "ragged")}
    (runs["plain"] / "gates.jsonl").unlink()
    (runs["empty"] / "gates.jsonl").write_bytes(b"")
    (runs["bytes"] / "gates.jsonl").write_bytes(b"\xff\n")
    ragged = (runs["ragged"] / "gates.jsonl").read_text().replace("0.002, 1.0]", "0.002]")
    (runs["ragged"] / "gates.jsonl").write_text(ragged)
    for others, words in (
        (["nowhere"], "nowhere: expected a run folder, found nothing"),
        ([first.absolute()], r"first is named twice \(also as first\); name each run once"),
        (
            [made("bert", encoder="bert")],
            r"minilm \(2 layers of 3 heads\) and bert one of bert \(2 .*because heads of diff",
        ),
        ([made("control", **{"encoder.random": True})], "control one of minilm, random weights"),
        ([made("other", gates=GATES[:1])], r"minilm \(2 layers .* and other one of minilm \(1 layers of 3 heads\)"),
        ([runs["plain"]], "run without gates"),
        ([runs["empty"]], "expected the gates of epoch 2"),
        ([runs["bytes"]], "UTF-8 text"),
        ([runs["ragged"]], "gates.jsonl: unexpected content: "),
    ):
        with pytest.raises(RunError, match=words):
            load_claims([first, *others])
        load_claims([first])


def test_seeds_of_a_label_stand_together_and_tasks_before_joint_runs():
    labels = ["MTL-5:DEP", "MTL-5", "SRL", "POS+DEP", "POS", "MTL-5:POS", "MTL-3", "XYZ", "DEP"]
    found = group([claim(label, seed, GATES) for seed in (3, 1) for label in labels])
    expected = ["POS", "DEP", "SRL", "XYZ", "POS+DEP", "MTL-3", "MTL-5", "MTL-5:POS", "MTL-5:DEP"]
    assert [run_group.label for run_group in found] == expected
    assert all([claim.seed for claim in run_group.claims] == [1, 3] for run_group in found)
    for other, said in (
        ({}, "; runs of one label"),
        ({"settings": SLOW, "data": "e"}, r" \(they differ in train.rate, the data\)"),
    ):
        with pytest.raises(ClaimError, match=rf"runs/POS-1 and runs/POS-1 are both runs of POS with seed 1{said}"):
            group([made(), made(**other)])
    with pytest.raises(ClaimError, match="expected one or more runs to compare"):
        group([])


def made(label: str = "POS", seed: int = 1, gates: np.ndarray = MASK, before: Any = None, **how: Any) -> Claim:
    history = [(10, gates if before is None else before), (20, gates)]
    return replace(claim(label, seed, gates), history=history, step=20, **how)


EXACT = {"settings": {"pruning.method": "gates", "pruning.keep": 4}}
PENALTY = {"settings": {"pruning.method": "gates", "pruning.keep": None}}
FIXED = {"settings": {"pruning.method": "random", "pruning.keep": 9}}
SLOW = {"train.rate": 0.5}


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (
            [made(**EXACT), made(seed=2, gates=MASK[::-1], **EXACT)],
            "Heads that are open in exactly half of the seeds do not count",
        ),
        ([made("POS", seed, **EXACT) for seed in (1, 2, 3)], "Seeds 1 and 2 and 3 of POS have bit-identical"),
        ([made(**FIXED), made(seed=2, **FIXED)], ""),
        ([made(gates=MASK / 2, before=MASK, **EXACT)], "Gates strictly between 0 and 1: POS 4 of 8 (50%)."),
        ([made("DEP", gates=OPEN, **EXACT)], "DEP, seed 1 (8 heads were open instead of 4)"),
        (
            [made("SRL", before=OPEN, **PENALTY)],
            "SRL, seed 1 (8 heads were open one evaluation before, and 4 at the end)",
        ),
        ([made("SRL", **PENALTY)], ""),
        ([made(), made("DEP", settings=SLOW)], "Runs differ in tasks and also in train.rate: null (POS); 0.5 (DEP)."),
        ([made(settings=SLOW), made(seed=2)], "The seeds of POS also differ in train.rate: 0.5, null."),
        ([made(), made(seed=2, data="e")], "Not all runs were trained on the same data"),
        ([made(finished=False)], "These runs have not finished training: runs/POS-1."),
        ([made(), made(seed=2, gates=1 - MASK)], "half of the seeds do not count as claimed: POS 8 (by 1)"),
        ([made(seed=k, gates=MASK if k < 3 else OPEN) for k in range(4)], ""),  # three of four have MASK, one all
        ([made(seed=k, gates=MASK if k < 2 else OPEN) for k in range(4)], "do not count as claimed: POS 4 (by 2)"),
        ([made(), made(seed=2), made("DEP")], "Labels have different numbers of seeds (POS 2, DEP 1)"),
    ],
)
def test_what_a_reader_must_know(claims, said):
    found = notes(group(claims))
    assert len(found) == bool(said) and said in "".join(found)


TASKS = ("POS", "NER", "DEP", "CON", "SRL")
EVEN = [6] * 12  # open heads in each of 12 layers, of 12
MIDDLE = [0, 1, 2, 5, 9, 11, 11, 9, 5, 2, 1, 0]


def seeds_of(generator: np.random.Generator, label: str, wanted: np.ndarray) -> list[Claim]:
    """Three that agree on the wanted heads, but for a tenth of them, and open a tenth as many others of the layer."""
    found = []
    for seed in range(3):
        rate = np.where(wanted > 0, 0.9, 0.1 * wanted.mean(1, keepdims=True))
        opened = generator.random(wanted.shape) < rate
        found.append(claim(label, seed, np.where(opened, generator.uniform(0.2, 1, wanted.shape), 0.0)))
    return found


def compare(generator: np.random.Generator, sets: Sequence[np.ndarray], **options: int) -> Result:
    labels = TASKS[: len(sets)]
    claims = [one for label, wanted in zip(labels, sets, strict=True) for one in seeds_of(generator, label, wanted)]
    return overlap(claims, **options)


def row(result: Result, frame: str, **key: object) -> Any:
    held = result.frames[frame]
    for name, value in key.items():
        held = held[held[name] == value]
    assert len(held) == 1
    return held.iloc[0]


def tasks_of(result: Result) -> Any:
    return row(result, "tests", mode="all")


def test_planted_overlap_is_found():
    generator = np.random.default_rng(0)
    stem = scattered(generator, [4] * 12, 12)
    sets = [np.maximum(stem, scattered(generator, [2] * 12, 12)) for _ in TASKS]
    found = compare(generator, sets)
    pairs, groups = found.frames["pairs"], found.frames["groups"]
    assert tasks_of(found).p < 0.001 and tasks_of(found).z > 5
    assert (pairs[["p", "q"]] < 0.05).all(axis=None)
    planted = {(layer + 1, head + 1) for layer, head in zip(*np.nonzero(stem), strict=True)}
    sure = groups[(groups["group"] == "stem") & (groups["tasks"] == 5) & (groups["confidence"] > 0.9)]
    named = set(zip(sure["layer"], sure["head"], strict=True))
    assert len(planted & named) > 0.8 * len(planted) and len(named - planted) < 0.2 * len(named)
    by_all = row(found, "numbers", tasks=5)
    assert by_all["heads"] > 2 * by_all.layers_expected and by_all.layers_more < 0.001
    assert row(found, "variance", part="heads").share > 0.2 > row(found, "variance", part="layers").share
    assert (found.frames["labels"]["p"] < 0.001).all()  # within a label every seed is permuted
    alien = [claim("POS", seed, scattered(generator, EVEN, 12)) for seed in range(3)]
    assert row(overlap(alien, 500), "labels", encoder="POS").p > 0.05


def test_a_common_preference_for_layers_is_not_taken_for_overlap():
    generator = np.random.default_rng(1)
    found = compare(generator, [scattered(generator, MIDDLE, 12) for _ in TASKS])
    pairs = found.frames["pairs"]
    assert (pairs[["p_anywhere", "q_anywhere"]] < 0.001).all(axis=None)
    assert (pairs["pearson"] > 0.3).all()  # which the original read as the same heads
    assert (pairs["q"] > 0.05).all() and (pairs["p_layers"] > 0.01).all()
    assert tasks_of(found).p > 0.05
    by_all = row(found, "numbers", tasks=5)
    assert by_all.uniform_more < 0.001 and by_all["heads"] > 3 * by_all.uniform_expected
    assert by_all.layers_more > 0.05 and abs(by_all["heads"] - by_all.layers_expected) < 6
    assert row(found, "variance", part="layers").share > 0.3 and row(found, "variance", part="heads").share < 0.05


def test_one_pair_by_hand():
    pos = [claim("POS", seed, [[1, 0], [0.5, 0]]) for seed in (1, 2)]
    dep = [claim("DEP", 1, [[1, 0], [1, 0]]), claim("DEP", 2, [[1, 0], [0, 1]])]
    found = overlap([*dep, *pos], permutations=4000)
    pair = row(found, "pairs", encoder="POS", other="DEP")
    assert pair.jaccard_mean == pytest.approx((1 + 1 / 3) / 2)
    assert pair.jaccard_sd == pytest.approx(0.5 * (2 / 3) / math.sqrt(0.75))
    assert pair.overlap_coefficient_mean == pytest.approx(0.75)
    assert pair.shared == 1.5 and pair.expected == 1
    # Layer 2 of DEP is open once in either head, so only layer 1 matters: 1.5 or 0.5, evenly likely.
    assert pair.p == pytest.approx(0.5, abs=0.03) and pair.z == pytest.approx(1)
    assert pair.q == pair.p and tuple(tasks_of(found)[list(SHARING)]) == tuple(pair[list(SHARING)])
    assert pair.pearson == pytest.approx(np.corrcoef([1, 0, 0.5, 0], [1, 0, 0.5, 0.5])[0, 1])
    assert (pair.claimed, pair.claimed_anywhere, pair.claimed_layers) == (1, 0.5, 0.5)
    assert pair.p_anywhere == pytest.approx(0.5) and pair.p_layers == pytest.approx(0.5)
    assert found.frames["layers"]["claimed"].tolist() == [1, 1, 1, 0]
    columns = ["multiple_last", "multiple_mean", "pearson_mean", "jaccard_mean"]
    for label, expected in (("POS", (1, 1, 1, 1)), ("DEP", (0, 0, 0, 1 / 3))):
        assert tuple(row(found, "labels", encoder=label)[columns]) == pytest.approx(expected)


def test_joint_labels_are_compared_but_are_no_tasks():
    generator = np.random.default_rng(4)
    labels = (*TASKS[:4], "MTL-5", "MTL-5:POS", "POS+DEP")
    every = [one for label in labels for one in seeds_of(generator, label, scattered(generator, EVEN, 12))]
    claims, joint = every[:12], every[12:]
    alone, both = overlap(claims, permutations=100), overlap([*joint, *claims], permutations=100)
    assert both.about["single"] == [*TASKS[:4]] and (len(both.frames["labels"]), len(both.frames["pairs"])) == (7, 21)
    for frame in ("groups", "variance"):
        assert both.frames[frame].equals(alone.frames[frame])
    assert both.frames["numbers"]["heads"].equals(alone.frames["numbers"]["heads"])
    assert (tasks_of(both).shared, tasks_of(both).z) == (tasks_of(alone).shared, tasks_of(alone).z)
    only = overlap(joint, permutations=100)
    assert only.frames.keys().isdisjoint({"groups", "numbers"}) and math.isnan(tasks_of(only).shared)
    assert "There is no single task, so tasks cannot be compared, and" in "\n".join(only.about["notes"])


def test_a_label_that_is_alone():
    found = overlap([claim("POS", 1, [[1, 0, 1], [0, 1, 0]])], permutations=20)
    assert "pairs" not in found.frames and found.frames["numbers"]["heads"].tolist() == [3]
    assert math.isnan(row(found, "labels", encoder="POS").multiple_last) and math.isnan(tasks_of(found).p)
    text = "\n".join(found.about["notes"])
    assert "POS: with one seed" in text and "one single task" in text and "cannot be resampled" in text


def test_the_seed_decides():
    generator = np.random.default_rng(8)
    claims = [one for label in TASKS[:2] for one in seeds_of(generator, label, scattered(generator, EVEN, 12))]
    one, same, other = (overlap(claims, permutations=300, seed=seed) for seed in (1, 1, 2))
    assert all(frame.equals(same.frames[name]) for name, frame in one.frames.items())
    assert not one.frames["pairs"].equals(other.frames["pairs"])
    turned = overlap(claims[::-1], permutations=300, seed=1)  # and not the order in which runs are given
    assert all(frame.equals(turned.frames[name]) for name, frame in one.frames.items())


def test_stem_exclusive_and_free_heads():
    """Heads are open in the first so many of three seeds."""
    times = {"POS": [[3, 3, 0], [2, 1, 3]], "NER": [[3, 0, 0], [3, 1, 0]]}
    times |= {"DEP": [[2, 0, 0], [2, 1, 3]], "SRL": [[3, 1, 0], [0, 1, 0]]}
    heads = list_heads(group(claim(label, k, np.array(rows) > k) for label, rows in times.items() for k in range(3)))
    assert heads[["layer", "head", "claimed_by", "group"]].values.tolist() == [
        [1, 1, "POS, NER, DEP, SRL", "stem"],
        [1, 2, "POS", "exclusive"],
        [1, 3, "", "free"],
        [2, 1, "POS, NER, DEP", "stem"],
        [2, 2, "", "free"],
        [2, 3, "POS, DEP", ""],  # two tasks: none of the three
    ]
    assert heads["tasks"].tolist() == [4, 1, 0, 3, 0, 2]
    sure = [1, 20 / 27, 1, (20 / 27) ** 2, (20 / 27) ** 4]  # two of three: 3·(2/3)²·(1/3) + (2/3)³
    assert heads["confidence"][:5].tolist() == pytest.approx(sure)  # of 1-1 three tasks always, whatever DEP does
    assert math.isnan(heads["confidence"][5])


@pytest.mark.parametrize(("seeds", "times"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (4, 3), (5, 2)])
def test_bootstrap_of_one_task_against_enumeration(seeds, times):
    samples = list(itertools.product(range(seeds), repeat=seeds))
    claimed = [2 * sum(seed < times for seed in sample) > seeds for sample in samples]
    assert majority_probability(seeds, times) == pytest.approx(np.mean(claimed))


def test_claimed_by_against_enumeration():
    claimed = np.array([[[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 1, 0]], [[1, 1, 0], [0, 0, 1]]], dtype=bool)
    orders = np.array([*itertools.product(itertools.permutations(range(3)), repeat=2)])
    second, third = ([np.take_along_axis(one, order, 1) for order in orders] for one in claimed[1:])
    every = np.array([claimed[0] + one.astype(int) + other for one, other in itertools.product(second, third)])
    found = claimed_by([*claimed], 20_000, np.random.default_rng(0), np.random.default_rng(1))
    assert found[["tasks", "heads"]].values.tolist() == [[1, 5], [2, 3], [3, 1]]
    for row in found.itertuples():
        numbers = (every >= row.tasks).sum((1, 2))
        assert row.layers_expected == pytest.approx(numbers.mean())
        assert row.layers_more == pytest.approx((numbers >= row.heads).mean(), abs=0.02)
        assert row.layers_fewer == pytest.approx((numbers <= row.heads).mean(), abs=0.02)
    # Three of six heads claimed by each of three labels, anywhere: 6·(1/2)³ heads by all, 6·4/8 by two or more.
    assert found["uniform_expected"].tolist() == pytest.approx([6 * 7 / 8, 3, 6 / 8])

    heads = list_heads(group(claim(label, 1, [[1, 0]]) for label in ("POS", "NER", "DEP")))
    assert heads["group"].tolist() == ["stem", "free"] and heads["confidence"].isna().all()  # one seed each

    found = claimed_by([np.eye(2, dtype=bool)], 0, np.random.default_rng(0), np.random.default_rng(0))
    assert found.loc[0, ["heads", "layers_expected"]].tolist() == [2, 2] and math.isnan(found["layers_more"][0])


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_placements(seed):
    open_ = np.random.default_rng(seed).random((3, 2, 4)) < 0.5
    p = maths.by_maps(open_)
    for layer, head in np.ndindex(2, 4):
        ways = [list(itertools.combinations(range(4), int(one[layer].sum()))) for one in open_]
        times = np.array([sum(head in chosen for chosen in placed) for placed in itertools.product(*ways)])
        assert p[layer, head] == pytest.approx(np.mean(times >= open_[:, layer, head].sum()))
    assert (p >= maths.least(open_) - 1e-12).all()
