"""mtlprune analyze syntax: numbers, figures, notes and the section."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

import mtlprune as package
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.encoder.model import Encoder


def test_numbers_are_those_of_the_functions(mtlprune, lab, trained, tiny_encoder, tmp_path):
    """Of a tiny masked language model, beside a run."""
    masked, blimp, out = tmp_path / "masked", tmp_path / "blimp", tmp_path / "out"
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_encoder("bert"))).save_pretrained(masked)
    AutoTokenizer.from_pretrained(tiny_encoder("bert")).save_pretrained(masked)
    blimp.mkdir()
    for name in ("a", "b"):
        entry = {"UID": name, "linguistics_term": f"t-{name}", "field": "syntax"}
        pairs = [entry | {"sentence_good": f"the dog {k}", "sentence_bad": f"a cat cat {k}"} for k in range(5)]
        (blimp / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = ["--corpus", lab.corpus, "--split", "train", "--blimp", blimp, "--pairs", 3, "--out", out]
    answer = mtlprune("analyze", "syntax", masked, trained, *given)
    assert answer.code == 0, answer.err
    found = package.read_results(out)["syntax"]
    assert [one["encoder"] for one in found.about["encoders"]] == ["pretrained", "MTL-5"]
    counts = uas_of(Encoder.load(str(masked), attention="eager"), list(load_corpus(lab.corpus)["train"]))
    assert found.about["tokens"] == counts.size()
    facts = found.frames["encoders"].query("encoder == 'pretrained'").set_index("measure")
    single = counts.single()
    assert facts.loc["uas_single", "value"] == pytest.approx(single.value, abs=1e-3)
    assert facts.loc["uas_single_held_out", "value"] == pytest.approx(single.held_out, abs=1e-3)
    assert facts.loc["uas_single", ["layer", "head"]].tolist() == [single.layer + 1, single.head + 1]
    assert facts.loc["uas_like_first", "value"] == 1
    grids = found.grids(found.about["encoders"][0])
    assert np.allclose(grids["uas"], counts.by_head(), atol=1e-3) and grids["twonn"].shape == (2, 4)
    arcs = found.frames["arcs"].query("encoder == 'pretrained'")
    assert len(arcs) == len(counts.relations) * 2 * 8
    assert (arcs["hits_1"] + arcs["hits_2"]).sum() == counts.hits.sum()
    one = (
        arcs.query("layer == 1 and head == 2 and direction == 'head<-dep'")
        .set_index("label")
        .loc[list(counts.relations)]
    )
    assert one["tokens"].tolist() == counts.tokens.sum(0).tolist()
    assert (one["hits_1"] + one["hits_2"]).tolist() == counts.hits[:, 1, :, 0, 1].sum(0).tolist()
