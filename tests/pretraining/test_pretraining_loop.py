"""What a pretraining leaves, that watching does not disturb it, and what release and penalties do to its gradients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel, pseudo_log_likelihoods
from mtlprune.config.config import ConfigError, validated
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.files import SUMS
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.loop import PretrainingEvent, _Pretrainer, pretrain
from mtlprune.pretraining.setup import prepare
from mtlprune.runs import RunError, RunFolder
from mtlprune.training.loop import TrainingError

Settings = Callable[..., dict[str, Any]]


def make(tree: dict[str, Any]) -> PretrainConfig:
    return validated(PretrainConfig, tree, "test")


def weights_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return AutoModelForMaskedLM.from_pretrained(folder / "checkpoints" / f"step-{step}").state_dict()


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def done(small_pretraining: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PretrainingEvent]]:
    folder, events = tmp_path_factory.mktemp("done") / "run", list[PretrainingEvent]()
    assert pretrain(make(small_pretraining()), RunFolder(folder), watch=events.append).finished
    return folder, events


def test_the_run_folder_holds_what_is_promised(done):
    folder, events = done
    steps = [0, 2, 5, 12]
    promised = ["checkpoints", "config.yaml", "curves.jsonl", "encoder", "manifest.json"]
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == promised
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == sorted(f"step-{s}" for s in steps)
    lines = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == steps
    assert [event.line["step"] for event in events if event.line] == steps
    for line in lines:
        assert 0 < line["loss"] < 7 and 0 <= line["arc_weight"] <= 1
        assert 0 <= line["uas_single_held_out"] <= line["uas_single"] <= 100
        assert len(line["heads"]) == 2 and max(max(row) for row in line["heads"]) == pytest.approx(line["uas_single"])
        assert line["blimp"] in {100 * k / 6 for k in range(7)} or 0 <= line["blimp"] <= 100
        assert line["twonn_mean"] > 0
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert set(lines[1]["train"]) == {"mlm", "syntax", "cosreg"}
    updates = [event for event in events if event.line is None]
    assert [set(event.losses) for event in updates] == [{"mlm", "syntax", "cosreg"}] * 9 + [{"mlm", "cosreg"}] * 3
    again = make(RunFolder(folder).read_config())
    assert pretrain(again, RunFolder(folder)).step == 12  # a finished run stays as it is


def test_a_checkpoint_is_a_model_that_others_load(done):
    path = done[0] / "checkpoints" / "step-12"
    assert {line.split("  ")[1] for line in (path / SUMS).read_text().splitlines()} == {
        file.name for file in path.iterdir() if file.name != SUMS
    }
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
    tree = small_pretraining(watch={"points": 2, "every": 3, "blimp": None, "blimp_pairs": None, "models": False})
    pretrain(make(tree), RunFolder(tmp_path / "run"))
    assert equal(weights_of(done[0], 12), weights_of(tmp_path / "run", 12))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-12"]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "curves.jsonl").read_text().splitlines()]
    assert steps == [0, 2, 3, 6, 9, 12]


def test_runs_of_one_seed_share_their_beginning_and_their_masks(done, small_pretraining, tmp_path):
    tree = small_pretraining(syntax={}, cosreg=0.0)
    events: list[PretrainingEvent] = []
    pretrain(make(tree), RunFolder(tmp_path / "run"), watch=events.append, stop=lambda: True)
    assert equal(weights_of(done[0], 0), weights_of(tmp_path / "run", 0))
    first = next(event for event in done[1] if event.line is None)
    assert [event.losses["mlm"] for event in events if event.line is None] == [first.losses["mlm"]]


def _gradients(tree: dict[str, Any], step: int, folder: Path) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of the first batch as if so many updates were done, from the same weights."""
    config = make(tree)
    corpora = {"corpus": load_corpus(Path(config.data.corpora[0]))}
    trainer = _Pretrainer(prepare(config, RunFolder(folder), corpora), RunFolder(folder))
    trainer.progress.step = step
    torch.manual_seed(5)
    trainer.model.train()
    loss, _ = trainer.loss(trainer.plan(0)[0])
    loss.backward()
    return loss.item(), [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]


def test_from_its_release_on_loss_and_gradients_are_the_unregularised_runs(small_pretraining, tmp_path):
    penalised = small_pretraining(cosreg=0.0)
    plain = small_pretraining(syntax={}, cosreg=0.0)
    for step, same in ((8, False), (9, True), (11, True)):
        loss, gradients = _gradients(penalised, step, tmp_path / f"penalised-{step}")
        expected, free = _gradients(plain, step, tmp_path / f"plain-{step}")
        assert (loss == expected) is same
        assert all(torch.equal(one, other) for one, other in zip(gradients, free, strict=True)) is same


def test_going_on_from_a_folder_takes_its_weights_and_its_tokenizer(done, small_pretraining, tmp_path):
    start = done[0] / "checkpoints" / "step-12"
    tree = small_pretraining(model={}) | {"model": {"start": str(start)}}
    pretrain(make(tree), RunFolder(tmp_path / "run"), stop=lambda: True)
    assert equal(weights_of(done[0], 12), weights_of(tmp_path / "run", 0))


def test_a_folder_without_head_and_another_tokenizer(tiny_encoder, small_pretraining, tmp_path, caplog):
    caplog.set_level("INFO", logger="mtlprune")
    tiny = str(tiny_encoder("bert"))
    pretrain(make(small_pretraining() | {"model": {"start": tiny}}), RunFolder(tmp_path / "a"), stop=lambda: True)
    assert "begins at random" in caplog.text
    tree = small_pretraining() | {"model": {"tokenizer": tiny, "layers": 1, "heads": 2, "hidden": 8}}
    pretrain(make(tree), RunFolder(tmp_path / "b"), stop=lambda: True)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "b" / "encoder")) == len(AutoTokenizer.from_pretrained(tiny))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"data": {"dev": "tset"}}, ConfigError, "no split 'tset'"),
        ({"model": {"tokenizer": "no/such/folder/x", "vocabulary": 4000}}, ValueError, "no/such/folder/x"),
        ({"model": {"positions": 8}}, ConfigError, "fits into 8 tokens"),
        ({"watch": {"blimp": "nowhere"}}, CorpusError, "data_scripts/blimp.py"),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_nothing(small_pretraining, tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        pretrain(make(small_pretraining(**change)), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_other_settings_and_foreign_folders_are_refused(done, small_pretraining, tmp_path):
    with pytest.raises(RunError, match=r"train.rate \(was 0.01, is 0.02\)"):
        pretrain(make(small_pretraining(train={"rate": 0.02})), RunFolder(done[0]))
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RunError, match=r"holds mine.txt"):
        pretrain(make(small_pretraining()), RunFolder(tmp_path))


def test_a_loss_that_is_no_number_breaks_the_training(small_pretraining, tmp_path):
    watch = {"points": 2, "first": 12, "blimp": None, "blimp_pairs": None}
    tree = small_pretraining(train={"rate": 1e30, "warmup": 0.0}, watch=watch)
    with pytest.raises(TrainingError, match=r"lower train\.rate"):
        pretrain(make(tree), RunFolder(tmp_path / "run"))
