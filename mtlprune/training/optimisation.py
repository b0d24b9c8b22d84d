"""Turn gradients into updates: AdamW, and the schedule of its rates."""

import math

import torch
from torch import nn

from mtlprune.config.config import Config
from mtlprune.model import MultiTaskModel


def make_optimizer(model: MultiTaskModel, config: Config) -> torch.optim.AdamW:
    """AdamW with one rate for the encoder, one for the decoders (and a fusion of layers, which is as new as they are),
    and a constant one for gates and for what closed heads contribute, which do not decay; the fused kernel where there
    is one. What is frozen is left out.
    """
    settings = config.train
    encoder_rate, decoder_rate = (settings.rate(name, config.tasks) for name in ("encoder_rate", "decoder_rate"))
    gates = model.gates if config.pruning.learns else nn.ModuleDict()
    fusion = list(model.encoder.fusion.parameters()) if model.encoder.fusion is not None else []
    constants = [model.encoder.head_constants] if isinstance(model.encoder.head_constants, nn.Parameter) else []
    new = {id(parameter) for parameter in (*fusion, *constants)}
    groups = [
        {"params": [p for p in parameters if p.requires_grad], "lr": rate, "peak": rate, "gates": last}
        for parameters, rate, last in (
            ([p for p in model.encoder.parameters() if id(p) not in new], encoder_rate, False),
            ([*model.tasks.parameters(), *fusion], decoder_rate, False),
            ([*gates.parameters(), *constants], config.pruning.rate, True),
        )
    ]
    groups[2]["weight_decay"] = 0.0
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=model.device.type in ("cpu", "cuda"))


def schedule(step: int, total: int, warmup: float, shape: str = "linear") -> float:
    """The rates' share of their peak: a linear rise over the first ``warmup`` share of ``total`` updates, then a fall
    to 0 after the last, linear or along half a cosine (Loshchilov and Hutter 2017, one period), or none (constant)."""
    rise = math.ceil(total * warmup)
    if step < rise:
        return (step + 1) / rise
    left = (total - step) / max(1, total - rise)
    return {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[shape]
