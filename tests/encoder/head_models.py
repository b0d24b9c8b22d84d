"""Tiny models of every family whose heads are known, and what they say of two rows, one of them padded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import HEAD_FAMILIES, HEADS, HIDDEN, make_config
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.sources import quiet

WIDTH = HIDDEN // HEADS
WITH_SDPA = [name for name in HEAD_FAMILIES if name not in ("deberta", "deberta-v2", "mpnet", "roformer")]
CASES = [(name, "eager") for name in HEAD_FAMILIES] + [(name, "sdpa") for name in WITH_SDPA]
SHARED = dict(num_hidden_layers=4, num_hidden_groups=2)  # ALBERT: layers 0 and 1 are one module, 2 and 3 another
IDS = torch.tensor([[7, 40, 80, 120, 140, 60, 9], [7, 90, 150, 33, 9, 1, 1]])
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])


def build(family: str, attention: str = "eager", dropout: float = 0.0, **more: Any) -> PreTrainedModel:
    """A random model in evaluation mode; biases are random too, so that forgetting one shows."""
    if family == "albert":
        more = SHARED | more
    if family in ("modernbert", "eurobert"):
        more = {"attention_bias": True} | more
    with torch.random.fork_rng():
        torch.manual_seed(5)
        config = make_config(family, dropout=dropout, **more)
        model = AutoModel.from_config(config, attn_implementation=attention, dtype=torch.float32)
        for name, weight in model.named_parameters():
            if "bias" in name:
                nn.init.normal_(weight, std=0.2)
    return model.eval()


def run(model: PreTrainedModel, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    hidden = model(input_ids=IDS, attention_mask=MASK)[0]
    return hidden[MASK.bool()]  # what padding says is nobody's concern


@torch.no_grad()
def gated(model: PreTrainedModel, gates: Tensor, kept: Any = None) -> Tensor:
    with HeadHooks(model, kept).gated(gates):
        return run(model)


def drawn(layers: int) -> Tensor:
    return torch.linspace(0.2, 0.9, layers * HEADS).view(layers, HEADS)


def by_onnx(model: PreTrainedModel, ids: Tensor, mask: Tensor, file: Path) -> Tensor:
    runtime = pytest.importorskip("onnxruntime", reason="pip install onnx onnxscript onnxruntime")
    pytest.importorskip("onnxscript")
    inputs = {"input_ids": ids, "attention_mask": mask}
    with quiet():
        torch.onnx.export(model, (), file, kwargs=inputs, dynamo=True, verbose=False)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])
