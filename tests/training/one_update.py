"""A trainer before its first update, and what an update gives the optimizer."""

from pathlib import Path
from typing import Any

import torch

from mtlprune.config.config import build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.runs import RunFolder
from mtlprune.training.checkpoint import Progress
from mtlprune.training.loop import Trainer
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.parallel import ALONE, ProcessGroup
from mtlprune.training.setup import prepare


def trainer(settings: dict[str, Any], folder: Path, group: ProcessGroup = ALONE) -> Trainer:
    """Ready for its first update, without noise and dropout; of several processes, the first has written the folder."""
    config = build_config(settings)
    run = prepare(config, RunFolder(folder), load_corpus(Path(config.data.path)), group.leads)
    made = Trainer(run, RunFolder(folder), make_optimizer(run.model, config), Progress(), group=group)
    made.model.eval()
    return made


def gradients(made: Trainer, *mini_batches: MiniBatch) -> dict[str, torch.Tensor]:
    """Those the optimizer is given in one update."""
    seen: dict[str, torch.Tensor] = {}

    def look(*_: Any) -> None:
        seen.update({n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None})

    handle = made.optimizer.register_step_pre_hook(look)
    made.update(list(mini_batches))
    handle.remove()
    return seen
