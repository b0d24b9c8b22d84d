"""The contract of a GPU, and of the CPU: one table for both, so that the code of the tests runs where there is no GPU.

A GPU is compared with the CPU in fp32, without dropout; where there is none, its half of the table is skipped, and the
CPU is compared with itself.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Settings, assert_alike, check_resumes, gradients, prepared, trainer
from tiny import CONTRACT_FAMILIES, make_tiny

from mtlprune.encoder.model import Encoder
from mtlprune.encoder.removal import remove_heads
from mtlprune.sentence import LAYERS
from mtlprune.training.mixing import MiniBatch

ROWS = [2, 4, 5, 8]  # every task is known in all of them
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])]
pytestmark = pytest.mark.parametrize("device", DEVICES)
NOT_DETERMINISTIC = "NER's loss and attention are not deterministic (docs/guides/gpu.md)"
UNLIKE = pytest.mark.xfail(torch.cuda.is_available(), reason=NOT_DETERMINISTIC)
"""On a GPU known to fail; without one the same test must pass."""


def update(settings: dict[str, Any], folder: Path, device: str, **train: Any) -> dict[str, torch.Tensor]:
    """Losses and gradients of one update on a device, without noise and dropout, as the CPU reads them."""
    tree = copy.deepcopy(settings)
    tree["train"] |= {"device": device, "clip": 1e9, **train}
    made = trainer(tree, folder)
    found = gradients(made, MiniBatch(tuple(tree["tasks"]), ROWS))
    losses = {f"loss of {task}": torch.tensor(value[0]) for task, value in made.progress.losses.items()}
    return losses | {name: gradient.cpu() for name, gradient in found.items()}


def check_alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """In fp32: to a share of the largest loss, or gradient, and of itself."""
    for losses in (True, False):
        parts = [{n: v for n, v in each.items() if n.startswith("loss") == losses} for each in (one, other)]
        assert_alike(*parts, 1e-5, 2e-3)


@pytest.mark.parametrize(
    ("tasks", "family", "pruning"),
    [
        *((tasks, "bert", {}) for tasks in (*LAYERS, ",".join(LAYERS))),
        *(("pos,dep", family, {}) for family in CONTRACT_FAMILIES),
        ("pos,dep", "bert", {"method": "gates", "penalty": "target", "keep": 4}),
    ],
)
def test_the_update_is_that_of_the_cpu(tasks: str, family: str, pruning: Any, device: str, small_settings, tmp_path):
    settings = small_settings(tasks) | {"pruning": pruning}
    settings["encoder"]["name"] = str(make_tiny(family, tmp_path))
    check_alike(update(settings, tmp_path / "a", device), update(settings, tmp_path / "b", "cpu"))


def test_bf16_stays_near_fp32(device: str, small_settings: Settings, tmp_path: Path):
    """Losses within 3 %; gradients are finite."""
    settings = small_settings("pos,ner,dep")
    low, full = (update(settings, tmp_path / p, device, precision=p) for p in ("bf16", "fp32"))
    assert low.keys() == full.keys()
    for name, value in low.items():
        if name.startswith("loss"):
            torch.testing.assert_close(value, full[name], rtol=0.03, atol=0.0)
        assert bool(value.isfinite().all()), name


@pytest.mark.parametrize("gated", [pytest.param(False, marks=UNLIKE), True])
def test_stopped_and_resumed_is_as_undisturbed(gated: bool, device: str, small_settings: Settings, tmp_path: Path):
    """Bit for bit, with dropout and noise: training asks torch for deterministic algorithms."""
    settings = small_settings("pos,con" if gated else "pos,ner,dep,con,srl", epochs=2, batch_sentences=30)
    settings["train"]["device"] = device
    if gated:
        settings["pruning"] = {"method": "gates", "penalty": "exact", "keep": 4, "settle": 0.65, "rate": 0.1}
    check_resumes(settings, 2, tmp_path)


def test_annotation_is_that_of_the_cpu(device: str, small_settings: Settings, tmp_path: Path):
    run = prepared(small_settings(), tmp_path / "run")
    with torch.no_grad():  # untrained scorers are zero, and all their spans and heads alike
        for parameter in run.model.tasks.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    here = list(run.model.annotate(run.dev))
    there = list(run.model.to(device).annotate(run.dev))
    assert sum(one == other for one, other in zip(here, there, strict=True)) >= 0.9 * len(here)  # ties may fall over
    assert here == there or device != "cpu"


def test_removed_heads_are_closed_gates(device: str, tmp_path: Path):
    encoder = Encoder.load(str(make_tiny("bert", tmp_path))).to(device)
    batch = encoder.collate(encoder.tokenize_all([("the", "old", "dog"), ("Smith",)])).to(device)
    gates = torch.tensor([[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 1.0, 0.0]], device=device)
    with torch.no_grad():
        closed = encoder(batch, gates).words
        remove_heads(encoder.transformer, gates)  # type: ignore[arg-type]
        torch.testing.assert_close(encoder(batch).words, closed, rtol=1e-4, atol=1e-5)
