"""mtlprune probe and bench --probes: runs with and without gates beside the encoder they began with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mtlprune.claimed_heads import load_claims


@pytest.fixture(scope="module")
def runs(train: Callable[..., Path], single: Path, own_gates: Path) -> dict[str, Path]:
    """POS alone (two seeds), two tasks with gates of their own."""
    return {"pos-1": single, "pos-2": train("pos-2", "tasks=pos", "train.epochs=1", "train.seed=2"), "own": own_gates}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(folder / "probes-accuracy.parquet").to_dict("records")


@pytest.mark.slow
def test_before_and_after(mtlprune, lab, runs, tiny_encoder, tmp_path):
    encoder = tiny_encoder("bert")
    options = "--corpus", lab.corpus, "--out", tmp_path / "p", "--few", 3
    answer = mtlprune("probe", encoder, runs["pos-1"], runs["pos-2"], runs["own"], *options)
    assert answer.code == 0, answer.err
    own = "POS+NER (gates):NER, seed"
    for words in ("sound, pretrained, seed 0", "POS, seed 2", own, "are left out", f"written: {tmp_path}"):
        assert words in answer.out.replace("\n", " ")
    tree = json.loads((tmp_path / "p" / "probes.json").read_text())
    labels = [entry["encoder"] for entry in tree["encoders"]]
    assert labels == ["pretrained", "POS", "POS", "POS+NER (gates):POS", "POS+NER (gates):NER"]
    rows = [row for row in rows_of(tmp_path / "p") if row["control"] == "none" and row["task"] == "pos"]
    best = {(row["encoder"], row["seed"], row["label"]): row["test"] for row in rows if row["best"]}
    compared = pd.read_parquet(tmp_path / "p" / "probes-differences.parquet")
    assert set(compared["other"]) == {"POS"} and set(compared["task"]) == {"pos"}
    assert (compared["low"] <= compared["high"]).all() and set(compared["encoder"]) == set(labels) - {"POS"}
    mine = compared[compared["encoder"] == "pretrained"]
    assert len(mine) > 3 and set(mine["seeds"]) == {1} and set(mine["other_seeds"]) == {2}
    for row in mine.itertuples():
        single = np.mean([best["POS", seed, row.label] for seed in (1, 2)])
        assert row.difference == pytest.approx(best["pretrained", 0, row.label] - single, abs=1e-3)
    assert (tmp_path / "p/probes-layers-pos.svg").is_file() and (tmp_path / "p/probes.md").is_file()


@pytest.mark.slow
def test_removed_heads_have_no_numbers_and_the_others_those_of_the_mask(mtlprune, lab, masked, pruned, tmp_path):
    found = []
    for run in (masked, pruned):
        options = "--corpus", lab.corpus, "--out", tmp_path / run.name, "--mode", "as-released", "--no-random-encoder"
        answer = mtlprune("probe", run, *options)
        assert answer.code == 0, answer.err
        found.append([row for row in rows_of(tmp_path / run.name) if row["control"] in ("none", "shuffled_labels")])
    closed = load_claims([masked])[0].gates == 0
    assert closed.sum() == 5
    for one, other in zip(*found, strict=True):
        gone = bool(closed[one["layer"] - 1, one["head"] - 1])
        assert np.isnan(one["test"]) == np.isnan(other["test"]) == gone
        assert not (gone and one["best"])
        if not gone:
            assert one["test"] == pytest.approx(other["test"], abs=1e-6)


def test_mistakes_are_one_sentence_and_leave_nothing(mtlprune, lab, runs, tiny_encoder, tmp_path):
    out = tmp_path / "never"
    for names, words in (
        ((tmp_path / "nowhere",), "no such folder"),
        ((tiny_encoder("bert"), tiny_encoder("roberta")), "could not be told apart"),
        ((tiny_encoder("roberta"), runs["pos-1"]), "heads of different encoders do not correspond"),
    ):
        answer = mtlprune("probe", *names, "--corpus", lab.corpus, "--out", out, "--mode", "as-released")
        assert answer.code == 2 and answer.err.count("\n") == 1 and words in answer.err, answer.err
    answer = mtlprune("probe", runs["pos-1"], "--corpus", tmp_path, "--out", out)
    assert answer.code == 2 and "corpus.json" in answer.err
    assert not out.exists()


@pytest.mark.slow
def test_what_probing_costs(mtlprune, lab, runs, tmp_path):
    out = tmp_path / "bench.json"
    answer = mtlprune("bench", runs["pos-1"], "--probes", "--rounds", 1, "--out", out)
    assert answer.code == 0, answer.err
    figures = json.loads(out.read_text())
    forward, *others = figures["seconds"]
    assert figures["ratios"][forward] == 1 and all(figures["ratios"][kind] > 0 for kind in others)
    for kind in others:
        assert figures["ratios"][kind] == pytest.approx(figures["seconds"][kind] / figures["seconds"][forward])
        assert kind in answer.out
    assert 1e8 < figures["memory"] < 1e10 and f"{figures['memory'] / 1e9:.2f} GB" in answer.out


def test_a_head_of_a_run_with_a_gate_set_a_task(mtlprune, runs):
    words = "--text", "the old cat sleeps"
    seen = [mtlprune("head", runs["own"], 2, 1, *words, "--gates-of", task) for task in ("pos", "ner")]
    assert [answer.code for answer in seen] == [0, 0], seen[0].err
    assert "POS+NER:POS" in seen[0].out and "POS+NER:NER" in seen[1].out
    for wrong, message in ((("own",), "expected --gates-of pos or ner, found none"), (("own", "dep"), "found 'dep'")):
        answer = mtlprune("head", runs[wrong[0]], 2, 1, *words, *(("--gates-of", *wrong[1:]) if wrong[1:] else ()))
        assert answer.code == 2 and message in answer.err
    answer = mtlprune("head", runs["pos-1"], 2, 1, *words, "--gates-of", "pos")
    assert answer.code == 2 and "has no gate set of its own for each task" in answer.err
