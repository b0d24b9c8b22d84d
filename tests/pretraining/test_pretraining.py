"""Pretraining: settings, masks, what a run leaves, that watching does not disturb it, and what is refused.

That it resumes exactly is tested as power cuts are (tests/training/test_power_cuts.py).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import change_json
from transformers import AutoModelForMaskedLM, AutoTokenizer

from mtlprune.config.config import ConfigError, validated
from mtlprune.corpora.grammar import build_grammar, draw_minimal_pairs
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.encoder.pseudo_likelihood import MaskedLanguageModel, judge, pseudo_log_likelihoods
from mtlprune.io.files import verify_sums
from mtlprune.model import Batch
from mtlprune.pretraining.config import PretrainConfig, load_pretraining
from mtlprune.pretraining.loop import Pretrainer, prepare, pretrain
from mtlprune.pretraining.model import NOT_HIDDEN, TASK, MaskedWords
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.training.updates import Event, TrainingError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
Settings = Callable[..., dict[str, Any]]


def test_settings_without_brackets_and_points_on_a_log_axis(tmp_path):
    def configured(text: str, *overrides: str) -> PretrainConfig:
        (tmp_path / "c.yaml").write_text("data:\n  corpora: [a]\n" + text)
        return load_pretraining(tmp_path / "c.yaml", overrides)

    config = configured("", "data.corpora=a,b/c", "syntax.strength=-0.5", "syntax.heads=3-10,1-4,3-2")
    assert config.data.corpora == ("a", "b/c") and config.syntax.heads == ("1-4", "3-2", "3-10")
    config = configured("train: {steps: 1000}\nwatch: {points: 4, first: 1, every: 300}")
    assert config.log_steps() == [0, 1, 10, 100, 1000]
    assert config.watched_steps() == [0, 1, 10, 100, 300, 600, 900, 1000]
    with pytest.raises(ConfigError, match=r"pairs_each has an effect only with watch\.pairs"):
        configured("watch: {pairs_each: 3}")
    assert configured("train: {steps: 3}\nwatch: {points: 20, first: 1}").log_steps() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("folder", "released"),
    [("syntax", ["sas-minus-released"]), ("two-stages", [f"released-{s}" for s in ("early", "during", "end", "late")])],
)
def test_shipped_arms_differ_by_the_price_and_its_release_alone(folder, released):
    configs = {path.stem: load_pretraining(path) for path in sorted((EXPERIMENTS / folder).glob("*.yaml"))}
    assert set(configs) == {"base", "sas-minus", "sas-plus", *released}
    base, minus, plus = (configs[name] for name in ("base", "sas-minus", "sas-plus"))
    for name, config in configs.items():
        assert config.name == name and config.model_copy(update={"name": base.name, "syntax": base.syntax}) == base
    assert base.syntax.strength == 0 and minus.syntax.strength > 0 > plus.syntax.strength
    releases = [configs[name].syntax.release for name in released]
    assert all(configs[name].syntax.model_copy(update={"release": None}) == minus.syntax for name in released)
    assert None not in releases and releases == sorted({*releases})


COMMITTED = EXPERIMENTS.parent / "results" / "pretraining"


@pytest.mark.parametrize("path", sorted(COMMITTED.rglob("config.yaml")), ids=lambda path: path.parent.name)
def test_committed_pretrainings_have_settings_of_today(path):
    config = load_pretraining(path)
    lines = [json.loads(line) for line in (path.parent / "curves.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == config.watched_steps()
    assert all(("pairs" in line) is (config.watch.pairs is not None) for line in lines)


exactly = partial(torch.testing.assert_close, rtol=0, atol=0)


def masked(folder: Path) -> MaskedWords:
    """A tiny masked language model as the training loop has it."""
    whole = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    return MaskedWords(whole, AutoTokenizer.from_pretrained(folder))


def batch_of(model: MaskedWords, *lengths: int) -> EncoderBatch:
    special, generator = set(model.encoder.tokenizer.all_special_ids), np.random.default_rng(0)
    plain = [i for i in range(len(model.encoder.tokenizer)) if i not in special]
    rows = [Pieces(generator.choice(plain, n).astype(np.int32), np.ones(n, np.int32)) for n in lengths]
    return model.encoder.collate(rows)


def test_words_alone_are_hidden_and_which_follows_from_the_seed(tiny_encoder):
    model = masked(tiny_encoder("bert"))
    batch = batch_of(model, *[20] * 1500, 3)
    torch.manual_seed(1)
    shown, labels = model.hide(batch)
    hidden = labels != NOT_HIDDEN
    assert (batch.source[hidden] >= 0).all() and torch.equal(batch.input_ids[hidden], labels[hidden])
    assert torch.equal(shown[~hidden], batch.input_ids[~hidden])
    masks = shown[hidden] == model.encoder.tokenizer.mask_token_id
    assert float(hidden.sum()) / 30003 == pytest.approx(0.15, abs=0.01)
    assert masks.double().mean().item() == pytest.approx(0.8, abs=0.02)
    torch.manual_seed(1)
    exactly(model.hide(batch), (shown, labels))
    assert not torch.equal(model.hide(batch)[1], labels)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_the_loss_is_that_of_the_whole_model(tiny_encoder, family):
    model = masked(tiny_encoder(family))
    batch = batch_of(model, 39, 34, 44)
    torch.manual_seed(3)
    shown, labels = model.hide(batch)
    expected = model.full_model(input_ids=shown, attention_mask=batch.attention_mask, labels=labels).loss
    torch.manual_seed(3)
    loss = model.losses(Batch(batch, {}, 3, 117))[TASK]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    logits = model.full_model(input_ids=shown, attention_mask=batch.attention_mask).logits
    assert logits.ndim == 3  # the head sees all slots again
    none = model.summed_loss(batch, shown, torch.full_like(labels, NOT_HIDDEN))
    none.backward()
    assert none.item() == 0


@pytest.fixture(scope="module")
def small_pretraining(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a pretraining of seconds, with dropout and a penalty; blocks go over them.

    Sixty training and sixteen development sentences of the grammar, every fifth to learn from without its tree.
    """
    folder = tmp_path_factory.mktemp("pretraining")
    parts = build_grammar(60, 16, 0, seed=3)
    train = [s.with_layers(dep=None) if place % 5 == 0 else s for place, s in enumerate(parts["train"])]
    splits = {"train": train, "dev": parts["dev"]}
    save_corpus(splits, folder / "corpus", name="trees", licence="Apache-2.0", sources={})

    def settings(**blocks: Any) -> dict[str, Any]:
        same = {"precision": "fp32", "device": "cpu", "threads": 1}
        tree: dict[str, Any] = {
            "name": "small",
            "data": {"corpora": [str(folder / "corpus")]},
            "model": {"vocabulary": 200, "layers": 2, "heads": 2, "hidden": 16, "positions": 40},
            "syntax": {"strength": 0.5, "scale": "mean", "release": 9},
            "cosreg": 0.5,
            "train": {"steps": 12, "batch_sentences": 16, "rate": 0.01, "checkpoint_minutes": 1e6, **same},
            "watch": {"points": 3, "first": 2},
        }
        for name, value in blocks.items():
            tree[name] = {**tree[name], **value} if isinstance(value, dict) and value else value
        return tree

    return settings


def make(tree: dict[str, Any]) -> PretrainConfig:
    return validated(PretrainConfig, tree, "test")


def pretrained(tree: dict[str, Any], folder: Path, **options: Any) -> Any:
    return pretrain(make(tree), RunFolder(folder), **options)


def weights_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return AutoModelForMaskedLM.from_pretrained(folder / "checkpoints" / f"step-{step}").state_dict()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done(small_pretraining: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    folder, events = tmp_path_factory.mktemp("done") / "run", list[Event]()
    assert pretrained(small_pretraining(), folder, watch=events.append).finished
    return folder, events


def test_the_run_folder_holds_what_is_promised(done):
    folder, events = done
    steps = [0, 2, 5, 12]
    promised = ["checkpoints", "config.yaml", "curves.jsonl", "encoder", "manifest.json"]
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == promised
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == sorted(f"step-{s}" for s in steps)
    lines = lines_of(folder)
    assert [line["step"] for line in lines] == [event.line["step"] for event in events if event.line] == steps
    for line in lines:
        assert 0 < line["loss"] < 7 and 0 <= line["arc_weight"] <= 1
        assert 0 <= line["uas_single_held_out"] <= line["uas_single"] <= 100
        assert len(line["heads"]) == 2 and max(max(row) for row in line["heads"]) == pytest.approx(line["uas_single"])
        assert line["twonn_mean"] > 0
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert set(lines[1]["train"]) == {"mlm", "syntax", "cosreg"}
    updates = [event for event in events if event.line is None]
    assert [set(event.losses) for event in updates] == [{"mlm", "syntax", "cosreg"}] * 9 + [{"mlm", "cosreg"}] * 3
    assert pretrained(RunFolder(folder).read_config(), folder).step == 12  # a finished run stays as it is


def test_a_checkpoint_is_a_model_that_others_load(done):
    path = done[0] / "checkpoints" / "step-12"
    verify_sums(path, "")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForMaskedLM.from_pretrained(path)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tokenizer.tokenize("The dogs sleep.") and tokenizer.mask_token_id is not None
    encoder = Encoder.load(str(path))
    batch = encoder.collate(encoder.tokenize_all([["The", "dogs", "sleep", "."]]))
    assert encoder(batch).words.shape[-1] == 16
    lm = MaskedLanguageModel.load(str(path))
    assert pseudo_log_likelihoods(lm, ["The dogs sleep."])[0] < 0


def test_what_is_watched_does_not_change_what_is_learnt(done, small_pretraining, tmp_path):
    watch = {"points": 2, "every": 5, "models": False, "pairs": "grammar", "pairs_each": 4}
    pretrained(small_pretraining(watch=watch), tmp_path)
    exactly(weights_of(done[0], 12), weights_of(tmp_path, 12))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-12"]
    assert [line["step"] for line in lines_of(tmp_path)] == [0, 2, 5, 10, 12]
    lm = MaskedLanguageModel.load(str(tmp_path / "checkpoints" / "step-12"))
    judged, last = judge(lm, draw_minimal_pairs(4)), lines_of(tmp_path)[-1]
    assert last["pairs"] == judged.overall and last["pairs_phenomena"] == judged.phenomena


def test_no_pair_is_among_the_training_sentences_and_long_ones_are_refused_in_time(small_pretraining, tmp_path):
    good = draw_minimal_pairs(4)[0].pairs[0].good.split()
    one = Sentence("x", tuple(good), dep=Dependencies((0,) + (1,) * (len(good) - 1), ("dep",) * len(good)))
    eight = {split: [replace(one, id=f"{split}-{n}") for n in range(8)] for split in ("train", "dev")}
    save_corpus(eight, tmp_path / "c", name="c", licence="none", sources={})
    watch = {"pairs": "grammar", "pairs_each": 4}
    config = make(small_pretraining(data={"corpora": [str(tmp_path / "c")]}, watch=watch))
    data = prepare(config, RunFolder(tmp_path / "a"), {"c": load_corpus(tmp_path / "c")})
    texts = [text for paradigm in data.pairs for pair in paradigm.pairs for text in pair]
    assert len(texts) == 8 * len(data.pairs) and " ".join(good) not in texts
    (tmp_path / "pairs").mkdir()
    pair = {"sentence_good": "a " * 50, "sentence_bad": "b", "UID": "long", "linguistics_term": "long"}
    (tmp_path / "pairs" / "long.jsonl").write_text(json.dumps(pair))
    with pytest.raises(EncoderError, match="and the model sees 40 at once"):
        pretrained(small_pretraining(watch={"pairs": str(tmp_path / "pairs")}), tmp_path / "b")
    assert not (tmp_path / "b" / "config.yaml").exists()


def test_from_its_release_on_loss_and_gradients_are_the_unregularised_runs(small_pretraining, tmp_path):
    def loss_and_gradients(step: int, **blocks: Any) -> tuple[torch.Tensor, ...]:
        """Of the first batch as if so many updates were done, from the same weights."""
        config, folder = make(small_pretraining(**blocks)), RunFolder(tmp_path / f"{step}-{len(blocks)}")
        trainer = Pretrainer(prepare(config, folder, {"corpus": load_corpus(Path(config.data.corpora[0]))}), folder)
        trainer.progress.step = step
        trainer.model.train()
        trainer.begin_update()
        logged = trainer.backward(trainer.plan(0)[0][0], 1)
        gradients = [torch.zeros(()) if p.grad is None else p.grad for p in trainer.moving]
        return logged[TASK], *gradients

    for step, same in ((8, False), (9, True), (11, True)):
        both = zip(loss_and_gradients(step), loss_and_gradients(step, syntax={}), strict=True)
        assert all(torch.equal(penalised, free) for penalised, free in both) is same


def test_what_a_pretraining_starts_from(done, small_pretraining, tmp_path, tiny_encoder, caplog):
    def begun(name: str, **model: Any) -> Path:
        pretrained(small_pretraining() | {"model": model}, tmp_path / name, stop=lambda: True)
        return tmp_path / name

    start = begun("start", start=str(done[0] / "checkpoints" / "step-12"))
    exactly(weights_of(done[0], 12), weights_of(start, 0))
    caplog.set_level("INFO", logger="mtlprune")
    tiny = str(tiny_encoder("bert"))
    begun("random", start=tiny)
    assert "starts from random weights" in caplog.text


def test_a_loss_that_is_no_number_says_what_to_lower(small_pretraining, tmp_path):
    settings = small_pretraining(train={"rate": 1e18, "warmup": 0.0}, watch={"points": 2, "first": 12})
    with pytest.raises(TrainingError, match=r"Lower train\.rate"):
        pretrained(settings, tmp_path / "run")


def test_cosreg_lowers_r_of_tied_embeddings(done, small_pretraining, tmp_path):
    free = small_pretraining(cosreg=0.0)
    pretrained(free, tmp_path / "free")
    unnamed = {name: block for name, block in free.items() if name != "cosreg"}
    pretrained(unnamed, tmp_path / "unnamed")
    exactly(weights_of(tmp_path / "free", 12), weights_of(tmp_path / "unnamed", 12))
    first, last = lines_of(tmp_path / "free")[0], lines_of(tmp_path / "free")[-1]
    assert "cosreg" not in last["train"] and first["embedding_cosine"] == lines_of(done[0])[0]["embedding_cosine"]
    assert lines_of(done[0])[-1]["embedding_cosine"] < last["embedding_cosine"]


def test_cosreg_is_refused_where_nothing_is_tied(small_pretraining, tmp_path, tiny_encoder):
    folder = tmp_path / "untied"
    shutil.copytree(tiny_encoder("bert"), folder)
    change_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"cosreg: expected a model that reads and predicts pieces by one table"):
        pretrained(small_pretraining() | {"model": {"start": str(folder)}}, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
