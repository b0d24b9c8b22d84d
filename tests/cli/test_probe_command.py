"""mtlprune probe, its --plot, and mtlprune head: rows, figures, and what the terminal shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gated_runs import write_run
from probe_results import row, write_probes, write_rows
from tiny import HEADS, LAYERS

from mtlprune.encoder.model import Encoder


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
    answer = mtlprune("probe", encoder, runs["pos-1"], runs["pos-2"], runs["own"], *options).done()
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
    mine = compared[compared["encoder"] == "pretrained"]
    assert len(mine) > 3 and set(mine["seeds"]) == {1} and set(mine["other_seeds"]) == {2}
    for line in mine.itertuples():
        single = np.mean([best["POS", seed, line.label] for seed in (1, 2)])
        assert line.difference == pytest.approx(best["pretrained", 0, line.label] - single, abs=1e-3)


def test_a_head_of_a_run_with_a_gate_set_a_task(mtlprune, runs):
    words = "--text", "the old cat sleeps"
    seen = [mtlprune("head", runs["own"], 2, 1, *words, "--gates-of", task) for task in ("pos", "ner")]
    assert [answer.code for answer in seen] == [0, 0], seen[0].err
    assert "POS+NER:POS" in seen[0].out and "POS+NER:NER" in seen[1].out


PUBLISHED = Path(__file__).parents[2] / "experiments/he-choi-2021/probes.csv"
LABELS = {"ner": ("PERSON", "ORG", "LAW"), "dep": ("det", "nsubj", "acl:relcl", "root", "csubj")}
ENCODERS = (("pretrained", 0), ("DEP", 1), ("DEP", 2), ("MTL-5", 1))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_probes(tmp_path_factory.mktemp("probes") / "p", ENCODERS, LABELS, (3, 4))


def test_it_draws_and_tabulates_everything_and_lists_it(mtlprune, results, tmp_path):
    out = tmp_path / "deep" / "plots"
    answer = mtlprune("probe", "--plot", results, "--out", out, "--against", PUBLISHED, "--scale", 1).done()
    listed = json.loads((out / "plots.json").read_text())
    names = {name for picture in listed["pictures"] for name in picture["files"]}
    assert {f"{stem}.png" for stem in ("layers-ner", "layers-dep", "differences-dep", "heads-dep-pretrained")} <= names
    assert "differences-ner.png" not in names and "No STL run is among the results of NER" in answer.out
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert written == names | {"plots.json", "tables.md", "tables.tex"}
    assert listed["mode"] == "sound" and f"{len(names)} pictures" in answer.out
    assert "DEP: beside the published numbers of BERT" in (out / "tables.md").read_text()
    assert r"\begin{tabular}" in (out / "tables.tex").read_text()


@pytest.fixture
def probes(tmp_path: Path, encoder: Path) -> Path:
    """Head 2 of layer 1 knows every label of the generated corpus's dependencies best."""
    folder = write_probes(tmp_path / "probes", (("pretrained", 0),), {"dep": ("punct",)}, (LAYERS, HEADS))
    rows = []
    for label, items in (("det", 90), ("nsubj", 60)):
        same = {"run": str(encoder), "task": "dep", "label": label, "items": items}
        for x, y in np.ndindex(LAYERS, HEADS):
            best = (x, y) == (0, 1)
            reached = 80.0 if best else 10.0
            rows.append(row(**same, layer=x + 1, head=y + 1, dev=reached, test=reached, best=best))
        rows.append(row(**same, control="chance", layer=0, head=0, dev=20.0, test=20.0, best=True))
    write_rows(folder, rows)
    return folder


def test_the_weights_are_those_of_the_encoder(mtlprune, encoder):
    answer = mtlprune("head", encoder, 2, 1, "--text", "the old cat sleeps").done()
    loaded = Encoder.load(str(encoder), attention="eager")
    words = ("the", "old", "cat", "sleeps")
    batch = loaded.collate([loaded.tokenize(words)])
    with torch.no_grad():
        maps = loaded.transformer(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_attentions=True
        ).attentions
    pieces = slice(1, 1 + len(batch.piece_word))  # between [CLS] and [SEP]; rows are padded
    weights = maps[1][0, 0, pieces, pieces]
    for number, word in enumerate(words):
        rows = weights[batch.piece_word == number]
        sums = [rows[:, batch.piece_word == other].sum(1).mean() for other in range(len(words))]
        best = int(torch.stack(sums).argmax())
        assert re.search(rf" {word} → {words[best]} +{float(sums[best]):.2f}", answer.out), (word, answer.out)


def test_it_tells_what_the_head_knows_who_claims_it_and_where_it_looks(mtlprune, encoder, probes, lab, tmp_path):
    gates = np.zeros((LAYERS, HEADS))
    gates[0, 1] = 0.5
    runs = [write_run(tmp_path / f"dep-{seed}", ["dep"], gates * (seed == 1), seed=seed) for seed in (1, 2)]
    runs.append(write_run(tmp_path / "pos-1", ["pos"], 0 * gates))
    claims = [part for run in runs for part in ("--claims", run.path)]
    shared = ["head", encoder, 1, 2, "--probes", probes, "--corpus", lab.corpus, *claims]
    shared += ["--sentences", 2, "--split", "train"]
    said = mtlprune(*shared).done().out
    assert "DEP  det     80.0 %   +60.0  rank 1 of" in said and "chosen" in said
    assert "DEP (1 of 2 seeds, mean gate 0.25)" in said and "POS" not in said.partition("claimed by")[2]
    assert "those with most DEP det by length" in said and said.count("special tokens") > 8
