"""The largest batches of a run are trained with gradient checkpointing, and every result is the same, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from interrupted import outcome
from small_runs import Settings, prepared, trained

from mtlprune.config.config import build_config
from mtlprune.encoder.model import Encoder
from mtlprune.model import autocast
from mtlprune.sweeps.cells import digest
from mtlprune.training import mixing
from mtlprune.training.activations import LargestBatches
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.loop import Trainer
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.run import Run

GATES = {"method": "gates", "penalty": "target", "keep": 3}


def with_checkpointing(settings: dict[str, Any], value: bool | str) -> dict[str, Any]:
    return settings | {"encoder": settings["encoder"] | {"checkpointing": value}}


@pytest.mark.parametrize("pruning", [{}, GATES], ids=["ungated", "gated"])
def test_a_run_ends_as_without_checkpointing(
    pruning: dict[str, Any], small_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(batch_sentences=4) | {"pruning": pruning}
    checkpointed: list[bool] = []
    losses = Trainer.losses

    def observed_losses(trainer: Trainer, mini_batch: MiniBatch) -> Any:
        result = losses(trainer, mini_batch)
        layer = trainer.model.encoder.transformer.encoder.layer[0]
        checkpointed.append(layer.gradient_checkpointing)
        return result

    monkeypatch.setattr(Trainer, "losses", observed_losses)
    results = {}
    for value in ("auto", False):
        results[value] = outcome(trained(with_checkpointing(settings, value), tmp_path / str(value)).path)
        assert (1 <= sum(checkpointed) <= 3) if value == "auto" else not any(checkpointed)
        checkpointed.clear()
    # The recorded settings differ as they were given.
    assert results["auto"].keys() == results[False].keys()
    differing = {name for name, content in results["auto"].items() if content != results[False][name]}
    assert differing <= {"config.yaml", "manifest.json"}


def test_the_batches_with_the_largest_activations_are_checkpointed(small_settings: Settings, tmp_path: Path) -> None:
    run = prepared(small_settings("pos", batch_sentences=1), tmp_path)
    largest_batches = LargestBatches(run)
    settings = run.config.train
    plan = mixing.plan(settings, run.lengths, run.is_annotated, epoch_generator(settings.seed, 0))
    checkpointed = [length for [b] in plan if largest_batches.contains(b) for length in lengths_of(run, b)]
    others = [length for [b] in plan if not largest_batches.contains(b) for length in lengths_of(run, b)]
    assert (len(checkpointed), len(others)) == (2, 58) and min(checkpointed) > max(others)
    # Two sentences take twice the memory of one, and a sentence of twice the length takes more than that.
    assert largest_batches.size(MiniBatch(("pos",), [0, 0])) == 2 * largest_batches.size(MiniBatch(("pos",), [0]))


def lengths_of(run: Run, batch: MiniBatch) -> list[int]:
    return [run.lengths[row] for row in batch.rows]


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": {"checkpointing": False}},
        {"syntax": {"strength": 0.1}},
        {"treatment": {"project": {}}},
        {"encoder": {"context": False, "word_dropout": 0.0}},
    ],
    ids=["false", "syntax", "treatment", "no layers"],
)
def test_auto_leaves_some_runs_alone(changes: dict[str, Any], small_settings: Settings, tmp_path: Path) -> None:
    settings = small_settings("pos,dep")
    for block, content in changes.items():
        settings[block] = settings.get(block, {}) | content
    assert LargestBatches(prepared(settings, tmp_path)).smallest_size is None


def test_checkpointing_changes_no_digest(small_settings: Settings) -> None:
    digests = {
        digest(build_config(with_checkpointing(small_settings("pos"), value)), "data", {})
        for value in (True, False, "auto")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_layers_are_computed_again_by_the_same_kernel_in_bf16(family: str, tmp_path: Path) -> None:
    """Without dropout, attention has a fused kernel, which `autocast` switches off in training."""
    gradients = []
    for is_enabled in (False, True):
        encoder = Encoder.load(str(tiny.make_tiny(family, tmp_path, dropout=0.0)), word_dropout=0.0).train()
        encoder.use_checkpointing(is_enabled)
        batch = encoder.collate(encoder.tokenize_all([["time", "people"], ["time", "year", "year"]]))
        with autocast(torch.device("cpu"), torch.bfloat16):
            loss = encoder(batch).words.float().square().mean()
        loss.backward()
        gradients.append([p.grad for p in encoder.parameters() if p.grad is not None])
    assert len(gradients[0]) > 10 and all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
