"""What a run with gates needs beside its loop: the penalty, fixed masks for comparison, and the record of the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mtlprune.analyses.claims import OPEN_ABOVE, load_claims
from mtlprune.config import Config, ConfigError
from mtlprune.encoder.gates import Gates, overlap, top_mask
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.training.batches import batches
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.penalty import ExactPenalty, LambdaPenalty, Penalty, TargetPenalty
from mtlprune.training.setup import Run, check_kin

IMPORTANCE_BATCH = 32


def gate_sets(model: MultiTaskModel) -> dict[str, Gates]:
    """The model's gate sets by name, none where it has no gates."""
    return {name: cast(Gates, gates) for name, gates in model.gates.items()}


class Pressure:
    """The penalty on the gates of a run, applied once an update between the backward passes and the optimizer's step.

    Args:
        config: with pruning.method: gates.
        total: updates of the run.

    Raises:
        ConfigError: more heads to keep than there are.
    """

    def __init__(self, config: Config, model: MultiTaskModel, total: int) -> None:
        self.sets = gate_sets(model)
        self.overlap = config.pruning.overlap
        self.penalty = make_penalty(config, model, total)

    def press(self, tasks: set[str], step: int) -> None:
        """Add the penalty's gradient to that of the tasks.

        Args:
            tasks: those that took part in this update.
        """
        used = {name: gates for name, gates in self.sets.items() if name in tasks or name == "shared"}
        total = self.penalty(used, step)
        if self.overlap:
            total = total + self.overlap * overlap([gates() for gates in self.sets.values()])
        if total.requires_grad:  # fixed gates feel no pressure
            total.backward()

    def end_update(self, step: int) -> None:
        """To be called after the optimizer's step."""
        self.penalty.end_update(self.sets, step)


def make_penalty(config: Config, model: MultiTaskModel, total: int) -> Penalty:
    """The penalty that the configuration names; its own defaults where the configuration is silent."""
    settings = config.pruning
    if settings.penalty == "lambda":
        return LambdaPenalty(settings.strength, total, settings.warmup or 0.0)
    heads = model.encoder.places.layers * model.encoder.places.heads
    given = {name: value for name in ("warmup", "settle") if (value := getattr(settings, name)) is not None}
    kind = ExactPenalty if settings.penalty == "exact" else TargetPenalty
    assert settings.keep is not None  # the configuration was checked
    return kind(settings.keep, heads, total, **given)


def record(model: MultiTaskModel, epoch: int, step: int) -> dict[str, Any]:
    """One line of gates.jsonl: evaluated gates of every set, how many are open, how many are expected to be."""
    sets = gate_sets(model)
    return {
        "epoch": epoch,
        "step": step,
        "open": {name: gates.open_count() for name, gates in sets.items()},
        "expected": {name: round(float(gates.expected_open().detach()), 4) for name, gates in sets.items()},
        "gates": {name: _rounded(gates.evaluated()) for name, gates in sets.items()},
    }


def _rounded(values: Tensor) -> list[list[float]]:
    """Six digits, but nothing becomes 0 that is not."""
    return [[float(f"{value:.6g}") for value in row] for row in values.detach().cpu().tolist()]


# -- fixed masks: what gates are compared with -------------------------------------------------------------------------


def fix_heads(run: Run, precision: torch.dtype) -> None:
    """For pruning.method importance and random: choose the heads, and fix the gates to them for the whole run.

    Raises:
        ConfigError: more heads to keep than there are; a run that does not fit.
        RunError: a run that cannot be read.
    """
    settings = run.config.pruning
    if settings.method not in ("importance", "random"):
        return
    places = run.model.encoder.places
    heads = places.layers * places.heads
    if settings.keep is not None and settings.keep > heads:
        raise ConfigError(
            f"pruning.keep: expected at most the encoder's {heads} heads ({places.layers} layers × {places.heads}), "
            f"found {settings.keep}"
        )
    if settings.method == "importance":
        mask = top_mask(importance(run, precision), cast(int, settings.keep))
    else:
        generator = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 4]))
        mask = random_mask(layer_counts(run), places.heads, generator)
    for gates in gate_sets(run.model).values():
        gates.fix(mask)


def layer_counts(run: Run) -> list[int]:
    """How many heads of each layer a random mask keeps."""
    settings, places = run.config.pruning, run.model.encoder.places
    if settings.layers_like is None:
        return even_counts(cast(int, settings.keep), places.layers)
    claims = load_claims([Path(settings.layers_like)])
    if len(claims) > 1:
        raise ConfigError(f"pruning.layers_like: {settings.layers_like} has one gate set a task; expected a shared one")
    gates = claims[0].gates
    if gates.shape != (places.layers, places.heads):
        raise ConfigError(
            f"pruning.layers_like: expected gates of {places.layers} layers × {places.heads} heads, "
            f"found {gates.shape[0]} × {gates.shape[1]} in {settings.layers_like}"
        )
    return (gates > OPEN_ABOVE).sum(1).tolist()


def even_counts(keep: int, layers: int) -> list[int]:
    """``keep`` heads spread over the layers as evenly as possible, the lower layers first with what is left over."""
    return [keep // layers + (layer < keep % layers) for layer in range(layers)]


def random_mask(counts: list[int], heads: int, generator: np.random.Generator) -> Tensor:
    """A mask (L, A) that keeps so many heads of each layer, drawn without replacement."""
    mask = torch.zeros(len(counts), heads)
    for layer, count in enumerate(counts):
        mask[layer, generator.choice(heads, count, replace=False).tolist()] = 1.0
    return mask


def importance(run: Run, precision: torch.dtype) -> Tensor:
    """How much each head matters to a finished run: E_x |∂L(x) / ∂ξ_h| over training sentences x, with ξ_h a factor of
    the head's output (Michel, Levy and Neubig 2019, equation 5), normalised within each layer by the l2 norm as there.

    The loss of several tasks is the sum of theirs. Sentences do not meet in the encoder, so one backward pass gives the
    derivative of each sentence's share of the loss: ∂L / ∂ξ_h = Σ_t,d O · ∂L / ∂O over the sentence's row.

    Returns:
        (L, A) float32.
    """
    settings = run.config.pruning
    model = measured_model(run)
    count = min(settings.importance_sentences, len(run.pieces))
    generator = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 5]))
    rows = generator.permutation(len(run.pieces))[:count].tolist()
    sums = torch.zeros(model.encoder.places.layers, model.encoder.places.heads)
    for batch in batches([run.lengths[row] for row in rows], IMPORTANCE_BATCH, 4096, generator, shuffle=False):
        chosen = [rows[place] for place in batch]
        sums += sentence_derivatives(run, model, MiniBatch(run.config.tasks, chosen), precision).abs().sum(0)
    return sums / sums.norm(dim=1, keepdim=True).clamp(min=1e-30)


def sentence_derivatives(run: Run, model: MultiTaskModel, batch: MiniBatch, precision: torch.dtype) -> Tensor:
    """∂ (loss · words of the batch) / ∂ξ for each row of a batch. (R, L, A), fp32"""
    joined = Run(run.config, model, run.pieces, run.targets, run.lengths, run.known, run.dev).batch(batch)
    with model.encoder.places.watched() as outputs, autocast(model.device, precision):
        losses = model.losses(joined)
    total = torch.stack(list(losses.values())).sum() * joined.words
    slopes = torch.autograd.grad(total, outputs)  # one (R, T, A, d) a layer
    pairs = zip(outputs, slopes, strict=True)
    return torch.stack([(o.detach().float() * s.float()).sum((1, 3)) for o, s in pairs], dim=1).cpu()


def measured_model(run: Run) -> MultiTaskModel:
    """The run whose importance is asked for, in evaluation mode; it must have the same encoder and labels."""
    path = cast(str, run.config.pruning.importance_of)
    check_kin(run.config, path, "pruning.importance_of")
    return MultiTaskModel.load(path, device=str(run.model.device))
