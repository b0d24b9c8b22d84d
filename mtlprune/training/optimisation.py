"""The optimizer of a run, and the schedule of its learning rates."""

import math

import torch
from torch import nn

from mtlprune.config.config import Config
from mtlprune.model import MultiTaskModel


def make_optimizer(model: MultiTaskModel, config: Config) -> torch.optim.AdamW:
    """Return AdamW with three groups of parameters, which leave out frozen parameters.

    The first group contains the encoder. The second group contains the decoders and the fusion of layers, which is
    newly initialised like the decoders. The third group contains the gates and the learnt constants of closed heads; it
    has a constant rate and no weight decay. The fused implementation is used on CPUs and GPUs.
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
    """Return the learning rate of update ``step`` (from 0) as a share of its peak.

    The rate rises linearly over the first share ``warmup`` of the ``total`` updates. It then falls to 0 after the last
    update, linearly or along half a period of a cosine (Loshchilov and Hutter 2017), or remains constant.
    """
    rise = math.ceil(total * warmup)
    if step < rise:
        return (step + 1) / rise
    left = (total - step) / max(1, total - rise)
    return {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[shape]
