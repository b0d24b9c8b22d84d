"""mtlprune export: what a model card says loads the states the run computes; what cannot be exported is refused."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from tiny import make_lab
from transformers import AutoModel, AutoTokenizer

from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import quiet
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs import RunFolder

Command = Callable[..., Any]
GATES = ("pruning.method=gates", "pruning.rate=0.3", "train.epochs=1")


@pytest.fixture(scope="module")
def own(train: Callable[..., Path]) -> Path:
    """Two tasks with a gate set each, linear decoders, words by their first sub-word."""
    return train(
        "own-first", "tasks=pos,ner", "pruning.sets=per_task", "encoder.pooling=first", "decoders.ner.type=bio", *GATES
    )


def exported(mtlprune: Command, out: Path, run: Path, *options: str) -> Path:
    answer = mtlprune("export", run, "--out", out, *options)
    assert answer.code == 0, answer.err
    return out


def as_the_card_says(folder: Path) -> dict[str, Any]:
    """Run the model card's Python in its folder, and give its names."""
    code = re.search(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert code is not None
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with quiet():
            exec(compile(code[1], str(folder), "exec"), names)
    finally:
        os.chdir(before)
    return names


TEXTS = ("the old dog saw London .", "nobody gave the parcel to Paris", "unbelievably , two cats walked home")


@torch.no_grad()
def states(run: Path, gate_set: str | None = None) -> list[torch.Tensor]:
    """The last hidden states of a run, of one text at a time; each fits a window."""
    model = MultiTaskModel.load(run)
    found = []
    for text in TEXTS:
        batch = model.encoder.collate([model.encoder.tokenize(text.split())])
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        gates = model.gates[gate_set].evaluated() if gate_set else torch.ones(2, 4)
        with model.encoder.places.gated(gates):
            hidden = model.encoder.transformer(**inputs).last_hidden_state
        found.append(hidden[:, : int(batch.attention_mask.sum())])  # rows are padded
    return found


@torch.no_grad()
def compare(names: dict[str, Any], wanted: list[torch.Tensor]) -> None:
    for text, before in zip(TEXTS, wanted, strict=True):
        found = names["model"](**names["tokenizer"](text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(found, before, rtol=0, atol=1e-6 * float(before.abs().max()))


def test_a_run_without_gates_is_exported_as_it_is(mtlprune, single, tmp_path):
    out = exported(mtlprune, tmp_path / "plain", single, "--licence", "apache-2.0")
    names = as_the_card_says(out)
    compare(names, states(single))
    assert names["model"].pooler is None
    card = ModelCard.load(out / "README.md")
    assert (card.data.license, card.data.library_name, card.data.base_model) == ("apache-2.0", "transformers", None)
    score = RunFolder(single).read_scores("dev")["pos"]["accuracy"]
    assert f"| dev | pos | accuracy | {score:.2f} |" in card.text and "| grammar | Apache-2.0 |" in card.text
    assert str(tmp_path) not in card.text + (out / "config.json").read_text()  # no path of this machine


def test_gates_are_in_the_weights(mtlprune, masked, tmp_path):
    begun = RunFolder(shutil.copytree(masked, tmp_path / "begun"))
    begun.write_config({**(tree := begun.read_config()), "train": {**tree["train"], "start": "runs/finished"}})
    out = exported(mtlprune, tmp_path / "mask", begun.path)
    compare(as_the_card_says(out), states(masked, SHARED))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "5 of 8 heads are closed" in card and "with the weights of the finished run finished." in card
    again = Encoder.load(str(out))  # and as an encoder of ours
    assert again.head_map is None


def test_heads_removed_and_heads_put_back(mtlprune, masked, pruned, tmp_path):
    wanted = states(masked, SHARED)
    out = exported(mtlprune, tmp_path / "removed", masked, "--remove")
    assert KeptHeads.read(out).count == 3
    tokenizer = AutoTokenizer.from_pretrained(out)
    compare({**as_the_card_says(out), "tokenizer": tokenizer}, wanted)
    with pytest.raises(RuntimeError, match="size"), quiet():
        AutoModel.from_pretrained(out)
    back = exported(mtlprune, tmp_path / "back", pruned)
    compare(as_the_card_says(back), wanted)
    assert "3 of 8 heads are left" in (back / "README.md").read_text(encoding="utf-8")
    cut = exported(mtlprune, tmp_path / "cut", pruned, "--remove")
    compare({**as_the_card_says(cut), "tokenizer": tokenizer}, wanted)


@pytest.mark.slow
def test_means_of_closed_heads_go_along(mtlprune, train, tmp_path):
    """The command itself compares what it wrote with the run, whose closed heads contribute their means."""
    run = train(
        "means", "tasks=pos", "pruning.method=random", "pruning.keep=3", "pruning.closed=mean", "train.epochs=1"
    )
    model = MultiTaskModel.load(run)
    gates, tokenizer = model.gates[SHARED].evaluated(), AutoTokenizer.from_pretrained(run / "encoder")
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    with model.encoder.gated(gates), torch.no_grad():
        wanted = model.encoder.transformer(**inputs).last_hidden_state
    with model.encoder.places.gated(gates), torch.no_grad():
        assert not torch.allclose(model.encoder.transformer(**inputs).last_hidden_state, wanted, atol=1e-4)
    for options in ((), ("--remove",)):
        out = exported(mtlprune, tmp_path / f"out{len(options)}", run, *options)
        found = as_the_card_says(out)["model"](**inputs).last_hidden_state
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert mtlprune("prune", run, "--out", tmp_path / "pruned", "--no-latency").code == 0
    before, after = (RunFolder(path).read_scores("dev") for path in (run, tmp_path / "pruned"))
    assert before == after


def test_a_gated_transformer_is_not_loaded_without_its_gates_by_accident(masked, tmp_path):
    with pytest.raises(OSError), quiet():
        AutoModel.from_pretrained(masked / "encoder")
    model = MultiTaskModel.load(masked)
    for save in (model.encoder.transformer.save_pretrained, model.encoder.save):
        with pytest.raises(EncoderError, match="`mtlprune export RUN --out DIR` folds them into the weights"):
            save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("task", ["pos", "ner"])
def test_a_pipeline_gives_what_the_run_predicts(mtlprune, own, tmp_path, task):
    out = exported(mtlprune, tmp_path / task, own, "--head", task)
    label = as_the_card_says(out)["label"]
    compare({"model": label.model.base_model, "tokenizer": label.tokenizer}, states(own, task))
    predicted = MultiTaskModel.load(own).parse(*TEXTS)
    assert task == "pos" or any(sentence.ner for sentence in predicted)
    for sentence in predicted:
        starts = [0]
        for word in sentence.words:
            starts.append(starts[-1] + len(word) + 1)
        found = {item["start"]: item for item in label(" ".join(sentence.words))}
        if task == "pos":
            assert tuple(found[start]["entity"] for start in starts[:-1]) == sentence.pos
        else:
            spans = {(starts[s.start], starts[s.end] - 1, s.label) for s in sentence.ner}
            assert {(item["start"], item["end"], item["entity_group"]) for item in found.values()} == spans
    score = RunFolder(own).read_scores("dev")[task]["accuracy" if task == "pos" else "f1"]
    [result] = ModelCard.load(out / "README.md").data.eval_results
    assert (result.dataset_split, result.metric_value) == ("dev", pytest.approx(score / 100, abs=1e-4))


def test_what_cannot_be_exported_is_refused(mtlprune, train, masked, own, single, lab, tiny_encoder, tmp_path):
    def refusal(*arguments: object) -> str:
        answer = mtlprune("export", *arguments, "--out", tmp_path / "out")
        assert answer.code == 2 and answer.err.count("\n") == 1 and not list(tmp_path.iterdir()), answer.err
        return answer.err

    short = ("tasks=pos", "train.epochs=1")
    assert "encoder.fusion: gate" in refusal(train("fused", *short, "encoder.fusion=gate"))
    assert "without context" in refusal(train("words", *short, "encoder.context=false"))
    assert "expected --task with one of pos, ner" in refusal(own)
    assert "expected --task pos, found ner" in refusal(own, "--head", "pos", "--task", "ner")
    assert "one gate set that all tasks share; leave --task out" in refusal(masked, "--task", "pos")
    assert "has no gates; leave --task out" in refusal(single, "--task", "pos")
    assert "has no gates, so no head of it is closed" in refusal(single, "--remove")
    assert "expected a run with encoder.pooling: first" in refusal(single, "--head", "pos")
    assert "the decoder of dep is more than a linear layer" in refusal(masked, "--head", "dep")
    assert "it has pos, dep" in refusal(masked, "--head", "ner")
    assert "cannot go with --remove" in refusal(own, "--head", "pos", "--remove")
    assert "is no run folder" in refusal(tmp_path)


@pytest.mark.slow
def test_albert_has_one_set_of_weights(mtlprune, train, tiny_encoder, tmp_path):
    config = make_lab(tmp_path, tiny_encoder("albert"), (12, 4, 4))
    run = train("albert", "tasks=pos", *GATES, config=config)
    answer = mtlprune("export", run, "--out", tmp_path / "out")
    assert answer.code == 2 and "layers 1 and 2 share their weights, but their gates differ" in answer.err
    wanted = states(run, SHARED)
    out = exported(mtlprune, tmp_path / "out", run, "--remove")
    tokenizer = AutoTokenizer.from_pretrained(out)
    compare({**as_the_card_says(out), "tokenizer": tokenizer}, wanted)
    assert json.loads((out / "heads.json").read_text())["layer_gates"]
