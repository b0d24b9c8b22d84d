"""mtlprune head: one head on the terminal, as a page and as pictures; what it refuses."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gated_runs import write_run
from PIL import Image
from probe_results import row, write_probes, write_rows

from mtlprune.reports.charts import ABOVE


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Callable[[str], Path]) -> Path:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def shape(encoder: Path) -> tuple[int, int]:
    from mtlprune.encoder.model import Encoder

    places = Encoder.load(str(encoder)).places
    return places.layers, places.heads


@pytest.fixture
def probes(tmp_path: Path, encoder: Path, shape: tuple[int, int]) -> Path:
    """Head 2 of layer 1 knows every label of the generated corpus's dependencies best."""
    folder = write_probes(tmp_path / "probes", (("pretrained", 0),), {"dep": ("punct",)}, shape)
    rows = []
    for label, items in (("det", 90), ("nsubj", 60)):
        same = {"run": str(encoder), "task": "dep", "label": label, "items": items}
        for x, y in np.ndindex(*shape):
            best = (x, y) == (0, 1)
            reached = 80.0 if best else 10.0
            rows.append(row(**same, layer=x + 1, head=y + 1, dev=reached, test=reached, best=best))
        rows.append(row(**same, control="chance", layer=0, head=0, dev=20.0, test=20.0, best=True))
    write_rows(folder, rows)
    return folder


def test_the_weights_are_those_of_the_encoder(mtlprune, encoder):
    from mtlprune.encoder.model import Encoder

    answer = mtlprune("head", encoder, 2, 1, "--text", "the old cat sleeps")
    assert answer.code == 0, answer.err
    loaded = Encoder.load(str(encoder), attention="eager")
    batch = loaded.collate([loaded.tokenize(("the", "old", "cat", "sleeps"))])
    with torch.no_grad():
        weights = loaded.transformer(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_attentions=True
        ).attentions[1][0, 0]
    place = [int(word) for word in batch.piece_word]  # sub-words come one after another between [CLS] and [SEP]
    words = ("the", "old", "cat", "sleeps")
    for number, word in enumerate(words):
        rows = [k + 1 for k, owner in enumerate(place) if owner == number]
        sums = [
            weights[rows][:, [k + 1 for k, o in enumerate(place) if o == other]].sum(1).mean() for other in range(4)
        ]
        best = int(torch.stack(sums).argmax())
        assert re.search(rf" {word} → {words[best]} +{float(sums[best]):.2f}", answer.out), (word, answer.out)


def test_it_tells_what_the_head_knows_who_claims_it_and_where_it_looks(mtlprune, encoder, probes, lab, shape, tmp_path):
    gates = np.zeros(shape)
    gates[0, 1] = 0.5
    runs = [write_run(tmp_path / f"dep-{seed}", ["dep"], gates * (seed == 1), seed=seed) for seed in (1, 2)]
    runs.append(write_run(tmp_path / "pos-1", ["pos"], np.zeros(shape)))
    claims = [part for run in runs for part in ("--claims", run.path)]
    outs = [tmp_path / "new" / f"head.{ending}" for ending in ("html", "svg", "png")]
    shared = ["head", encoder, 1, 2, "--probes", probes, "--corpus", lab.corpus, *claims]
    shared += ["--sentences", 2, "--split", "train"]
    answers = [mtlprune(*shared, "--out", out) for out in outs]
    assert [answer.code for answer in answers] == [0, 0, 0], answers[0].err
    said = answers[0].out
    assert "DEP  det     80.0 %   +60.0  rank 1 of" in said and "chosen" in said
    assert "DEP (1 of 2 seeds, mean gate 0.25)" in said and "POS" not in said.partition("claimed by")[2]
    assert "those with most DEP det by length" in said and said.count("special tokens") > 8
    page = outs[0].read_text()
    assert all(words in page for words in ("<svg", "<td>det</td>", "<td>1 of 2</td>"))
    assert "http" not in page.replace("http://www.w3.org", "") and f'stroke="{ABOVE}' in outs[1].read_text()
    ElementTree.parse(outs[1])
    with Image.open(outs[2]) as picture:
        picture.verify()


def test_mistakes_are_sentences_and_nothing_is_written(mtlprune, encoder, probes, shape, tmp_path):
    layers, heads = shape
    other = write_probes(tmp_path / "other", (("pretrained", 0),), {"dep": ("det",)}, (layers, heads + 1))
    tuned = write_probes(tmp_path / "tuned", (("DEP", 3),), {"dep": ("det",)}, shape)
    bare = write_run(tmp_path / "bare", ["pos"], np.zeros(shape))
    small = write_run(tmp_path / "small", ["pos"], np.zeros((1, 1)))
    (bare.path / "gates.jsonl").unlink()
    text = ("--text", "a b c")
    for arguments, said in [
        ((encoder, 0, 1, *text), "counted from 1"),
        (
            (encoder, layers + 1, 1, *text),
            f"has {layers} layers of {heads} heads, so there is no head 1 in layer {layers + 1}",
        ),
        ((encoder, 1, 1, "--text", "  "), "--text: expected words"),
        ((encoder, 1, 1, *text, "--out", tmp_path / "x.pdf"), "--out: expected a file .html, .svg, .png"),
        ((encoder, 1, 1, *text, "--probes", other), f"{layers} × {heads + 1} heads"),
        ((encoder, 1, 1, *text, "--probes", tuned), "holds no results of pretrained, seed 0 (there: DEP (seed 3))"),
        ((encoder, 1, 1, *text, "--claims", bare.path), "without gates"),
        ((encoder, 1, 2, *text, "--claims", small.path), "so there is no head 2 in layer 1"),
    ]:
        answer = mtlprune("head", *arguments)
        answer.refuses(said)
        assert not (tmp_path / "x.pdf").exists() and not answer.out
