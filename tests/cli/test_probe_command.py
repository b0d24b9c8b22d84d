"""mtlprune analyze probes and analyze head: rows, and what the terminal shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from probe_results import read_rows, row, write_probes, write_rows
from run_folders import write_run
from tiny import HEADS, LAYERS

from mtlprune.analyses.analysis import Request, find
from mtlprune.encoder.model import Encoder
from mtlprune.runs.results import read_result

PUBLISHED = Path(__file__).parents[2] / "experiments/he-choi-2021/probes.csv"


@pytest.fixture(scope="module")
def runs(train: Callable[..., Path], single: Path, own_gates: Path) -> dict[str, Path]:
    return {"pos-1": single, "pos-2": train("pos-2", "tasks=pos", "train.epochs=1", "train.seed=2"), "own": own_gates}


@pytest.mark.slow
def test_before_and_after(mtlprune, lab, runs, tiny_encoder, tmp_path):
    encoder = tiny_encoder("bert")
    options = "--corpus", lab.corpus, "--out", tmp_path / "p", "few=3", f"against={PUBLISHED}"
    answer = mtlprune("analyze", "probes", encoder, runs["pos-1"], runs["pos-2"], runs["own"], *options).done()
    own = "POS+NER (gates):NER, seed"
    for words in ("sound, pretrained, seed 0", "POS, seed 2", own, "are left out", f"written: {tmp_path}"):
        assert words in answer.out.replace("\n", " ")
    assert "POS: compared with the published numbers of BERT" in (tmp_path / "p" / "probes.md").read_text()
    tree = json.loads((tmp_path / "p" / "probes.json").read_text())
    labels = [entry["encoder"] for entry in tree["encoders"]]
    assert labels == ["pretrained", "POS", "POS", "POS+NER (gates):POS", "POS+NER (gates):NER"]
    rows = [row for row in read_rows(tmp_path / "p") if row["control"] == "none" and row["task"] == "pos"]
    best = {(row["encoder"], row["seed"], row["label"]): row["test"] for row in rows if row["best"]}
    compared = read_result(tmp_path / "p" / "probes.json").frames["differences"]
    assert set(compared["other"]) == {"POS"} and set(compared["task"]) == {"pos"}
    mine = compared[compared["encoder"] == "pretrained"]
    assert len(mine) > 3 and set(mine["seeds"]) == {1} and set(mine["other_seeds"]) == {2}
    for line in mine.itertuples():
        single = np.mean([best["POS", seed, line.label] for seed in (1, 2)])
        assert line.difference == pytest.approx(best["pretrained", 0, line.label] - single, abs=1e-3)


def test_a_head_of_a_run_with_a_gate_set_a_task(mtlprune, runs):
    words = "layer=2", "head=1", "text=the old cat sleeps"
    seen = [mtlprune("analyze", "head", runs["own"], *words, f"gates_of={task}") for task in ("pos", "ner")]
    assert [answer.code for answer in seen] == [0, 0], seen[0].err
    assert "POS+NER:POS" in seen[0].out and "POS+NER:NER" in seen[1].out


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


def test_the_weights_are_those_of_the_encoder(encoder):
    options = find("head").options(layer=2, head=1, text="the old cat sleeps")
    result = find("head").measure(Request([str(encoder)], Path(), options))
    loaded = Encoder.load(str(encoder), attention="eager")
    words = ("the", "old", "cat", "sleeps")
    batch = loaded.collate([loaded.tokenize(words)])
    with torch.no_grad():
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        maps = loaded.transformer(**inputs, output_attentions=True).attentions
    pieces = slice(1, 1 + len(batch.piece_word))  # between [CLS] and [SEP]; rows are padded
    weights = maps[1][0, 0, pieces, pieces]
    for number, found in enumerate(result.frames["attention"].itertuples()):
        rows = weights[batch.piece_word == number]
        sums = [float(rows[:, batch.piece_word == other].sum(1).mean()) for other in range(len(words))]
        assert (found.word, found.target) == (words[number], words[int(np.argmax(sums))])
        assert found.weight == pytest.approx(max(sums), abs=1e-5)
        assert found.special == pytest.approx(1 - sum(sums), abs=1e-5)


def test_it_tells_what_the_head_knows_who_claims_it_and_where_it_looks(mtlprune, encoder, probes, lab, tmp_path):
    gates = np.zeros((LAYERS, HEADS))
    gates[0, 1] = 0.5
    runs = [write_run(tmp_path / f"dep-{seed}", ["dep"], gates * (seed == 1), seed=seed) for seed in (1, 2)]
    runs.append(write_run(tmp_path / "pos-1", ["pos"], 0 * gates))
    claims = [part for run in runs for part in ("--claims", run.path)]
    words = ("analyze", "head", encoder, "layer=1", "head=2", f"probes={probes}", "--corpus", lab.corpus, *claims)
    said = mtlprune(*words, "--sentences", 2, "--split", "train").done().out
    assert re.search(r"DEP +\| det +\| +80.0 \| +\+60.0 \| +1 \|", said) and "chosen for it" in said
    assert "The head is claimed by DEP (1 of 2 seeds, mean gate 0.25)." in said
    assert (
        "The label that the head identifies best is DEP det (accuracy 80.0 %, 60.0 points beyond every control)."
        in said
    )
    assert "those with most DEP det (of" in said and said.count("Attention: ") == 2
