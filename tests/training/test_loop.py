"""One update, the schedule, what is kept: the parts of the loop that formulas and counting can judge."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import (
    Settings,
    assert_alike,
    corpus_of,
    gradients,
    prepared,
    train_until,
    trained,
    trainer,
    with_sentences,
)

from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.training import data
from mtlprune.training.evaluation import evaluate
from mtlprune.training.loop import TrainingError, train
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.optimisation import make_optimizer, schedule


@given(st.integers(1, 400), st.floats(0, 0.99, allow_subnormal=False))
def test_the_schedule_rises_then_falls_to_nothing(total, warmup):
    rates = [schedule(step, total, warmup) for step in range(total)]
    rise = math.ceil(total * warmup)
    assert rates[:rise] == pytest.approx([(step + 1) / rise for step in range(rise)])
    fall = total - rise
    assert rates[rise:] == pytest.approx([1 - step / fall for step in range(fall)])
    assert all(0 < rate <= 1 for rate in rates) and schedule(total, total, warmup) == 0
    cosine = [(1 + math.cos(math.pi * step / fall)) / 2 for step in range(fall)]
    for shape, left in (("cosine", cosine), ("constant", [1.0] * fall)):
        other = [schedule(step, total, warmup, shape) for step in range(total)]
        assert other[:rise] == rates[:rise] and other[rise:] == pytest.approx(left)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", ["nothing", "encoder", "decoders", "all"])
def test_a_joint_loss_has_the_gradient_of_its_decoders(small_settings: Settings, tmp_path, frozen, precision):
    run = prepared(small_settings(), tmp_path / "run")
    model, factors = run.model.train(), torch.tensor([1.0, 0.5, 3.0, -2.0, 0.0])
    for task in model.tasks.values():
        for parameter in task.parameters():
            torch.nn.init.normal_(parameter, 0, 0.1)
    if frozen != "nothing":
        {"encoder": model.encoder, "decoders": model.tasks, "all": model}[frozen].requires_grad_(False)
    batch = run.batch(MiniBatch(run.config.tasks, list(range(12))))  # two lack their roles, two their trees

    def directly() -> list[torch.Tensor]:
        encoded = model.encoder(batch.pieces)
        parts = [(encoded if rows is None else encoded.select(rows), target) for rows, target in batch.targets.values()]
        return [task.loss(*part) for task, part in zip(model.tasks.values(), parts, strict=True)]

    values, slopes = [], []
    for losses_of in (lambda: list(model.losses(batch).values()), directly):
        torch.manual_seed(1)  # dropout is on
        with autocast(model.device, precision):
            losses = torch.stack(losses_of())
        if frozen != "all":
            (losses * factors).sum().backward(retain_graph=True)
            (losses * factors).sum().backward()  # some treatments need gradients more than once
        values.append(losses.tolist())
        slopes.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        model.zero_grad(set_to_none=True)
    assert values[0] == values[1]
    if frozen == "all":
        assert slopes == [{}, {}]
        return
    assert_alike(*slopes, *((1e-5, 1e-4) if precision == torch.float32 else (1e-2, 3e-2)))


def norm(grads: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([grad.norm() for grad in grads.values()]).norm())


def test_accumulated_mini_batches_of_equal_size_give_the_gradient_of_one_batch(small_settings: Settings, tmp_path):
    """Exact where the mini-batches hold equally many words (POS, DEP: means over words); where they do not, each
    mini-batch counts the same, so its words weigh more or less than in one batch. Means over other things than words
    (gold spans in CON, pairs in ranked SRL) equal those of one batch only where the counts of those are equal."""
    settings = small_settings("pos,dep", clip=1e6, balance="none")
    made = trainer(settings, tmp_path / "run")
    sizes = [len(s) for s in corpus_of(settings)["train"]]
    often, short = max(sizes, key=sizes.count), sizes.index(min(sizes))
    a, b, c, d = [row for row, size in enumerate(sizes) if size == often][:4]
    start = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}

    def grads(*rows: list[int]) -> dict[str, torch.Tensor]:
        made.model.load_state_dict(start)
        return gradients(made, *(MiniBatch(("pos", "dep"), part) for part in rows))

    torch.testing.assert_close(grads([a, b], [c, d]), grads([a, b, c, d]), rtol=1e-3, atol=1e-6)
    whole, parts, first, second = grads([a, short]), grads([a], [short]), grads([a]), grads([short])
    share = sizes[a] / (sizes[a] + sizes[short])
    assert share > 0.55 and norm({n: parts[n] - g for n, g in whole.items()}) > 0.01 * norm(whole)
    for found, weight in ((parts, 0.5), (whole, share)):
        expected = {name: weight * grad + (1 - weight) * second[name] for name, grad in first.items()}
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_the_last_checkpoint_is_kept_when_a_loss_is_no_number(small_settings, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    settings = small_settings("pos,dep", epochs=2)
    train_until(1, settings, folder)
    good = folder.checkpoint_path.read_bytes()
    plain = MultiTaskModel.losses

    def poisoned(self: MultiTaskModel, *given: Any) -> Any:
        found = plain(self, *given)
        return found | {"dep": found["dep"] * math.nan}

    with monkeypatch.context() as patch:
        patch.setattr(MultiTaskModel, "losses", poisoned)
        with pytest.raises(TrainingError, match=r"step 1 \(epoch 1\), task dep: the loss is nan; the last check"):
            train(build_config(settings), folder)
    assert folder.checkpoint_path.read_bytes() == good and folder.read_metrics() == []
    trained(settings, folder.path)


def test_dev_is_scored_every_so_many_updates_and_training_is_the_same(small_settings: Settings, tmp_path):
    """Ten sentences a batch: six updates an epoch, 18 in all."""
    plain, folder, losses = RunFolder(tmp_path / "plain"), RunFolder(tmp_path / "every"), []
    for run, more in ((plain, {}), (folder, {"evaluate_every": 4})):
        seen: list[Any] = []
        train(build_config(small_settings("pos,dep", batch_sentences=10, **more)), run, watch=seen.append)
        losses.append([event.losses["dep"] for event in seen if event.evaluation is None])
    assert losses[0] == losses[1]
    lines = folder.read_metrics()
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 4), (2, 8), (3, 12), (4, 16), (5, 18)]
    for line in lines:
        assert line["loss"]["dep"] == pytest.approx(np.mean(losses[1][4 * line["epoch"] - 4 : line["step"]]))
    assert lines[-1]["dev"] == plain.read_metrics()[-1]["dev"]
    best = {key: one["epoch"] for key, one in folder.read_best().items()}
    assert best["joint"] == max(lines, key=lambda line: line["joint"])["epoch"]
    assert set(folder.weights_path(0).parent.iterdir()) == {folder.weights_path(number) for number in best.values()}
    assert folder.read_manifest()["finished"]["epoch"] == 3


@pytest.mark.parametrize("more", [{"log_train_loss": 20, "shares": {"ner": 0.3}}, {"mixing": "sampled"}])
def test_training_on_sentences_that_are_not_held_in_memory_is_the_same(small_settings, tmp_path, monkeypatch, more):
    folders = [RunFolder(tmp_path / name) for name in ("memory", "file")]
    settings = small_settings(epochs=2, **more)
    config = build_config({**settings, "syntax": {"strength": 0.0 if "mixing" in more else 1.0}})
    for folder, limit in zip(folders, (10**6, 3), strict=True):
        monkeypatch.setattr(data, "IN_MEMORY", limit)
        splits = data.read_splits(config, load_corpus(Path(config.data.path)))
        assert [isinstance(sentences, list) for sentences in splits] == 2 * [limit > 3]
        train(config, folder)
    assert folders[0].read_metrics() == folders[1].read_metrics()
    weights = [folder.weights_path(folder.read_best()["joint"]["epoch"]).read_bytes() for folder in folders]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("how", "step", "epoch", "evaluations"),
    [({"epochs": 9, "patience": 2}, 12, 3, 3), ({"evaluate_every": 4, "patience": 1, "batch_sentences": 10}, 8, 1, 2)],
)
def test_patience_counts_evaluations(small_settings: Settings, how, step, epoch, evaluations, tmp_path):
    """Nothing changes: no evaluation is better than the first."""
    config = build_config(small_settings("pos,ner", **how, encoder_rate=1e-12, decoder_rate=1e-12))
    folder = RunFolder(tmp_path / "run")
    progress = train(config, folder)
    assert (progress.step, progress.epoch, progress.finished) == (step, epoch, True)
    assert [line["epoch"] for line in folder.read_metrics()] == list(range(1, evaluations + 1))
    assert {best["epoch"] for best in folder.read_json("best.json").values()} == {1}
    assert [path.name for path in (folder.path / "weights").iterdir()] == ["epoch-001.safetensors"]
    assert train(config, folder).end() == progress.end()  # again: nothing left to do


@pytest.fixture(scope="module")
def finished(small_settings: Settings, tmp_path_factory) -> RunFolder:
    settings = small_settings("pos,ner,dep", epochs=6, encoder_rate=5e-3, decoder_rate=2e-2)
    return trained(settings, tmp_path_factory.mktemp("finished") / "run")


def test_the_best_of_all_and_of_each_task_are_kept_and_nothing_else(finished: RunFolder):
    best, main = finished.read_json("best.json"), {"pos": "accuracy", "ner": "f1", "dep": "las"}
    lines = [{task: line["dev"][task][main[task]] for task in main} for line in finished.read_metrics()]
    joint = [line["joint"] for line in finished.read_metrics()]
    assert joint == pytest.approx([sum(line.values()) / 3 for line in lines]) and set(best) == {"joint", *main}
    for key, entry in best.items():
        values = joint if key == "joint" else [line[key] for line in lines]
        assert (entry["epoch"], entry["score"]) == (values.index(max(values)) + 1, max(values))
    kept = sorted(path.name for path in (finished.path / "weights").iterdir())
    assert kept == sorted({f"epoch-{entry['epoch']:03d}.safetensors" for entry in best.values()})
    assert len({entry["epoch"] for entry in best.values()}) > 1  # or the test shows little
    assert not finished.checkpoint_path.exists()


@pytest.mark.parametrize("task", [None, "pos", "ner", "dep"])
def test_each_kept_best_scores_what_was_noted(finished: RunFolder, task):
    model = MultiTaskModel.load(finished.path, task=task)
    found = evaluate(model, list(corpus_of(finished.read_config())["dev"]), torch.float32)
    value = found.main()[task] if task else found.joint()
    assert value == finished.read_json("best.json")[task or "joint"]["score"]
    if task is None:
        assert found.scores == finished.read_scores("dev")
        assert found.predictions == finished.read_predictions("dev")


def test_other_settings_and_other_data_are_refused(finished: RunFolder, tmp_path):
    tree = finished.read_config()
    tree["train"]["seed"] = 2
    tree["encoder"]["pooling"] = "first"
    expected = r"other settings: encoder.pooling \(was 'mean', is 'first'\); train.seed \(was 1, is 2\). Choose another"
    with pytest.raises(RunError, match=expected):
        train(build_config(tree), finished)
    tree = finished.read_config()
    less = with_sentences(tree, tmp_path / "less", lambda sentences: sentences[:-1])
    old, new = (corpus_of(one).fingerprint for one in (tree, less))
    with pytest.raises(RunError, match=f"begun on data with fingerprint {old}, but .* {new}"):
        train(build_config(less), finished)
    # the same data elsewhere are accepted
    shutil.copytree(tree["data"]["path"], tmp_path / "moved")
    tree["data"]["path"] = str(tmp_path / "moved")
    assert train(build_config(tree), finished).finished


def test_fusion_learns_at_the_decoders_rate_and_goes_with_its_weights(small_settings: Settings, tmp_path):
    settings = small_settings("pos,dep", epochs=1)
    settings["encoder"]["fusion"] = "gate"
    run = prepared(settings, tmp_path / "new")
    new, groups = run.model.encoder.fusion, make_optimizer(run.model, run.config).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert {rates[id(p)] for p in new.parameters()} == {run.config.train.decoder_rate}
    assert [id(p) for p in groups[0]["params"]] == [id(p) for p in run.model.encoder.transformer.parameters()]
    learnt = MultiTaskModel.load(trained(settings, tmp_path / "run").path).encoder.fusion
    assert learnt.kind == "gate"
    assert all(not torch.equal(tensor, learnt.state_dict()[name]) for name, tensor in new.state_dict().items())
    with pytest.raises(ConfigError, match=r"encoder\.fusion none, found gate in"):
        trained(small_settings("pos", start=str(tmp_path / "run")), tmp_path / "other")
    settings["encoder"] |= {"fusion": "gate", "context": False}
    with pytest.raises(ConfigError, match="context: false has none"):
        build_config(settings)
