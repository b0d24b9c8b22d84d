"""mtlprune export: the run without its closed heads, and the exported encoder, compute what the run does."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from run_folders import change_config, forget_hashes
from tiny import HEADS
from transformers import AutoModel

from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import quiet
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def gated(train: Callable[..., Path]) -> Path:
    return train("gated-pos", "tasks=pos", "pruning.method=gates", "pruning.rate=0.3", "train.seed=2")


def test_the_run_is_whole_and_says_where_it_came_from(pruned, masked):
    source, folder = RunFolder(masked), RunFolder(pruned)
    (claim,) = load_claims([masked])
    kept = [np.flatnonzero(row).tolist() for row in claim.open]
    assert [list(row) for row in KeptHeads.read(folder.encoder_path).kept] == kept
    manifest = folder.read_manifest()
    record = manifest["pruned"]
    assert record["heads"] == kept and record["heads_kept"] == 3 and record["from"] == str(masked)
    assert record["config"] == source.read_config() and manifest["data"] == source.read_manifest()["data"]
    head = 3 * (32 + 1) * 8 + 32 * 8
    before, after = record["parameters"]["before"], record["parameters"]["after"]
    assert before["encoder"] - after["encoder"] == 5 * head and before["pos"] == after["pos"]
    assert manifest["parameters"] == after
    assert folder.read_config()["pruning"]["method"] == "none"
    assert not (pruned / "gates.jsonl").exists()


def test_other_verbs_take_it(mtlprune, pruned, masked, tmp_path):
    table = mtlprune("table", masked, pruned, "--split", "dev").done()
    assert "tiny-pruned" in table.out
    answer = mtlprune("train", pruned / "config.yaml", "--out", pruned)
    answer.refuses("was made by `mtlprune export --remove` and cannot be trained further")
    tuned = tmp_path / "tuned"
    mtlprune("train", pruned / "config.yaml", f"train.start={pruned}", "train.epochs=1", "--out", tuned).done()
    kept = KeptHeads.read(pruned / "encoder")
    assert KeptHeads.read(tuned / "encoder") == MultiTaskModel.load(tuned).encoder.head_map == kept
    assert mtlprune("evaluate", tuned, "--split", "test").code == 0
    mtlprune("bench", pruned / "config.yaml", "--batches", 1, "--rounds", 1, "--no-memory").done()


def test_the_most_open_heads_stay(mtlprune, gated, tmp_path):
    out = tmp_path / "five"
    answer = mtlprune("export", gated, "--remove", "--out", out, "--keep", 5).done()
    (claim,) = load_claims([gated])
    largest = set(np.argsort(-claim.gates.flatten())[:5].tolist())
    heads = KeptHeads.read(out / "encoder")
    assert {layer * HEADS + head for layer, row in enumerate(heads.kept) for head in row} == largest
    assert "heads: 5 of 8 are kept; 5 gates below 1 are folded into the weights" in answer.out
    assert RunFolder(out).read_manifest()["pruned"]["most_open"] == 5


def test_chance_decides_only_if_more_heads_are_open_than_stay(mtlprune, masked, tmp_path, caplog):
    for keep in (2, 5):  # three heads are open, with equal gates
        caplog.clear()
        answer = mtlprune("export", masked, "--remove", "--out", tmp_path / str(keep), "--keep", keep).done()
        assert f"heads: {min(keep, 3)} of 8 are kept" in answer.out
        assert ("chance decides" in caplog.text + answer.err) == (keep == 2)


def test_a_task_s_own_gates_make_a_run_of_that_task(mtlprune, own_gates, tmp_path):
    out = tmp_path / "ner"
    mtlprune("export", own_gates, "--remove", "--out", out, "--task", "ner").done()
    assert RunFolder(out).read_config()["tasks"] == ["ner"] and set(RunFolder(out).read_best()) == {"joint", "ner"}
    assert list(MultiTaskModel.load(out).tasks) == ["ner"] and set(RunFolder(out).read_vocabularies()) == {"ner"}
    mine, theirs = (RunFolder(path).read_predictions("dev") for path in (out, own_gates))
    assert [sentence.ner for sentence in mine] == [sentence.ner for sentence in theirs]


def test_a_task_s_own_clones_go_into_the_weights(mtlprune, train, tmp_path):
    """The commands compare states and word vectors of what they wrote with those of the run; here predictions."""
    settings = ("tasks=pos,dep", "treatment.clone.heads=[1-2,2-3]", "pruning.method=random", "pruning.keep=5")
    run = train("clones", *settings, "train.epochs=1", "train.encoder_rate=0.01")
    theirs = RunFolder(run).read_predictions("dev")
    for name, more in (("removed", ["--remove"]), ("export", [])):
        words = ("export", run, "--out", tmp_path / name, *more)
        mtlprune(*words).refuses("--task with one of pos, dep")
        answer = mtlprune(*words, "--task", "dep").done()
    assert "The clones of heads of dep are part of the weights" in answer.out
    pruned = MultiTaskModel.load(tmp_path / "removed")
    assert list(pruned.tasks) == ["dep"] and pruned.encoder.clones is None
    assert [one.dep for one in RunFolder(tmp_path / "removed").read_predictions("dev")] == [one.dep for one in theirs]
    whole, removed = (pruned.encoder.transformer, Encoder.load(str(tmp_path / "export")).transformer)
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(whole(ids).last_hidden_state, removed(ids).last_hidden_state, rtol=1e-4, atol=1e-5)


def exported(mtlprune: Command, out: Path, run: Path, *options: str) -> Path:
    mtlprune("export", run, "--out", out, *options).done()
    return out


def as_the_card_says(folder: Path) -> dict[str, Any]:
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
    model = MultiTaskModel.load(run)
    last_states = []
    for text in TEXTS:
        batch = model.encoder.collate([model.encoder.tokenize(text.split())])
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        gates = model.gates[gate_set].evaluated() if gate_set else torch.ones(2, 4)
        with model.encoder.head_hooks.gated(gates):
            hidden = model.encoder.transformer(**inputs).last_hidden_state
        last_states.append(hidden[:, : int(batch.attention_mask.sum())])  # rows are padded
    return last_states


@torch.no_grad()
def compare(names: dict[str, Any], wanted: list[torch.Tensor]) -> None:
    for text, before in zip(TEXTS, wanted, strict=True):
        after = names["model"](**names["tokenizer"](text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(after, before, rtol=0, atol=1e-6 * float(before.abs().max()))


def test_a_run_without_gates_is_exported_as_it_is(mtlprune, single, tmp_path):
    out = exported(mtlprune, tmp_path / "plain", single, "--licence", "apache-2.0")
    names = as_the_card_says(out)
    compare(names, states(single))
    assert names["model"].pooler is None
    card = ModelCard.load(out / "README.md")
    assert (card.data.license, card.data.library_name, card.data.base_model) == ("apache-2.0", "transformers", None)
    score = RunFolder(single).read_scores("dev")["pos"]["accuracy"]
    [(low, high)] = re.findall(rf"\| dev \| pos \| accuracy \| {score:.2f} \| ([\d.]+) to ([\d.]+) \|", card.text)
    assert float(low) < score < float(high) and "| grammar | Apache-2.0 |" in card.text
    assert " with the training sentences of " in card.text
    assert str(tmp_path) not in card.text + (out / "config.json").read_text()  # no path of this machine


def test_names_and_licences_of_others_are_no_markup_in_the_card(mtlprune, single, tmp_path):
    evil = "x | [y](https://z.org) <b>`*&lt;\n---\nlicense: mine"
    run = RunFolder(shutil.copytree(single, tmp_path / "run"))
    forget_hashes(run.path)
    change_config(run, name=evil)
    run.write_json("manifest.json", (manifest := run.read_manifest()) | {"data": manifest["data"] | {"name": evil}})
    mtlprune("export", run.path, "--out", tmp_path / "out", "--licence", evil).refuses("name: expected")
    change_config(run, name="a [b](c) | d", data={"train_sentences": 1200, "half": 2})
    card = ModelCard.load(exported(mtlprune, tmp_path / "out", run.path, "--licence", evil) / "README.md")
    shown = r"x \| \[y\](https://z.org) \<b\>\`\*\&lt;\\n---\\nlicense: mine"
    assert " with one random half of the training sentences 1 to 1,200 of " in card.text
    assert card.data.license == evil and "# a \\[b\\](c) \\| d\n" in card.text
    assert f"| this model | {shown} |\n" in card.text and f"| {shown} | Apache-2.0 |" in card.text


def test_gates_are_in_the_weights(mtlprune, masked, tmp_path):
    begun = RunFolder(shutil.copytree(masked, tmp_path / "begun"))
    forget_hashes(begun.path)
    change_config(begun, train={"start": "runs/finished"})
    out = exported(mtlprune, tmp_path / "mask", begun.path)
    compare(as_the_card_says(out), states(masked, SHARED))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "5 of 8 heads are closed" in card and "with the weights of the finished run finished." in card
    assert Encoder.load(str(out)).head_map is None  # and as an encoder of ours


def test_heads_removed_are_put_back_as_zeros(mtlprune, masked, pruned, tmp_path):
    with pytest.raises(RuntimeError, match="size"), quiet():
        AutoModel.from_pretrained(pruned / "encoder")
    back = exported(mtlprune, tmp_path / "back", pruned)
    compare(as_the_card_says(back), states(masked, SHARED))
    assert "3 of 8 heads are left" in (back / "README.md").read_text(encoding="utf-8")


def test_a_gated_transformer_is_not_loaded_without_its_gates_by_accident(masked, tmp_path):
    with pytest.raises(OSError), quiet():
        AutoModel.from_pretrained(masked / "encoder")
    model = MultiTaskModel.load(masked)
    for save in (model.encoder.transformer.save_pretrained, model.encoder.save):
        with pytest.raises(EncoderError, match="`mtlprune export RUN --out DIR` folds the gates into the weights"):
            save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


APART = ("O'Brien saw Jean-Luc of U.S. Steel .", "they paid 5.75 % ( C&A )", "[SEP] \u200b <s> the dog")
"""Words that tokenizers take apart, that are signs of theirs, or that yield no sub-word."""


@pytest.mark.parametrize(
    ("family", "task"), [("bert", "pos"), ("bert", "ner"), ("roberta", "ner"), ("deberta-v2", "ner")]
)
def test_the_cards_code_labels_words_as_the_run_does(mtlprune, train, own_gates, tiny_encoder, tmp_path, family, task):
    """By WordPiece, BPE on bytes and SentencePiece; so whoever follows the card has the run's scores."""
    run, split = own_gates, "dev"
    if family != "bert":
        split = "test"  # sentences are compared on the split that the run itself uses as dev
        own = (f"encoder.name={tiny_encoder(family)}", "encoder.pooling=first", "decoders.ner.type=bio")
        pruning = ("pruning=gates", "pruning.sets=per_task")
        run = train(f"linear-{family}", "tasks=pos,ner", "data.dev=test", *pruning, *own)
    answer = mtlprune("export", run, "--out", tmp_path / "out", "--head", task).done()
    names = as_the_card_says(tmp_path / "out")
    compare({"model": names["model"].base_model, "tokenizer": names["tokenizer"]}, states(run, task))
    dev = RunFolder(run).read_predictions(split)
    assert f"gives {sum(map(len, dev)) + 12} words" in answer.out, answer.out
    model = MultiTaskModel.load(run)
    linear, gates = model.tasks[task].linear(), model.gates[task].evaluated()
    predicted = [*dev, *model.parse(*TEXTS, *(text.split(" ") for text in APART))]
    for sentence in predicted:
        words = list(sentence.words)
        labels = names["label"](words)
        with torch.no_grad():
            encoded = model.encoder(model.encoder.collate([model.encoder.tokenize(words)]), gates)
            best = linear[0](encoded.words).softmax(-1).max(-1)
        assert [label for label, _ in labels] == [linear[1][place] for place in best.indices]
        torch.testing.assert_close(torch.tensor([value for _, value in labels]), best.values)
        if task == "pos":
            assert tuple(label for label, _ in labels) == sentence.pos
        else:
            assert names["join_tags"]([label for label, _ in labels]) == list(map(tuple, sentence.ner))
    score = RunFolder(run).read_scores(split)[task]["accuracy" if task == "pos" else "f1"]
    [result] = ModelCard.load(tmp_path / "out" / "README.md").data.eval_results
    assert (result.dataset_split, result.metric_value) == (split, pytest.approx(score / 100, abs=1e-4))


def test_scores_before_and_after_are_of_the_same_sentences(mtlprune, train, tmp_path):
    """Those of the run's scores: a part of dev, or, after an evaluation, all of it."""
    few = train("few", "tasks=pos", "pruning.method=random", "pruning.keep=3", "train.epochs=1", "data.dev_sentences=3")
    for place in (tmp_path / "part", tmp_path / "all"):
        mtlprune("export", few, "--remove", "--out", place).done()
        assert RunFolder(place).read_counts("dev")["ids"] == RunFolder(few).read_counts("dev")["ids"]
        assert RunFolder(place).read_scores("dev") == RunFolder(few).read_scores("dev")
        mtlprune("evaluate", few, "--split", "dev").done()
