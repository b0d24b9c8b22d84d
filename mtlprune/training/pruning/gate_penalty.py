"""The callback that applies the penalty on the gates of a run, and the choice of the penalty by the configuration."""

import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import numpy as np

from mtlprune.config.config import Config, ConfigError
from mtlprune.encoder.gates import overlap
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.claims import Claim, load_claims
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.pruning.penalty import (
    SETTLE,
    Annealing,
    ClosingSchedule,
    ExactPenalty,
    LagrangianPenalty,
    LambdaPenalty,
    Penalty,
    TargetPenalty,
)
from mtlprune.training.run import gate_sets


class GatePenalty(Callback):
    """Callback that adds the penalty on gates to their gradient after clipping, or with ``pruning.in_loss`` to losses.

    Args:
        config: a configuration whose gates change during training (``pruning.moves``).
        total: the number of updates of the run.
    """

    def __init__(self, config: Config, model: MultiTaskModel, total: int) -> None:
        self.sets, self.step = gate_sets(model), 0
        self.overlap, self.in_loss = config.pruning.overlap, config.pruning.in_loss
        self.penalty = make_penalty(config, model, total)

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.step = step

    def terms(self, losses: Losses) -> None:
        for task, loss in losses.tasks.items() if self.in_loss else ():
            penalty = self.penalty({task: self.sets[task if task in self.sets else SHARED]}, self.step)
            losses.tasks[task] = loss + penalty

    def before_step(self, tasks: Collection[str]) -> None:
        if self.in_loss:
            return
        used = {name: gates for name, gates in self.sets.items() if name in tasks or name == SHARED}
        total = self.penalty(used, self.step)
        # Gate sets of tasks without a batch in this update count in the overlap, but their values are detached, so that
        # they do not change.
        if self.overlap:
            values = [gates() if name in used else gates().detach() for name, gates in self.sets.items()]
            total = total + self.overlap * overlap(values)
        if total.requires_grad:  # no gradient flows through fixed gates
            total.backward()

    def after_step(self) -> None:
        self.penalty.end_update(self.sets, self.step)


def make_penalty(config: Config, model: MultiTaskModel, total: int) -> Penalty:
    """Return the penalty, or the schedule without a penalty, that the configuration describes.

    The defaults of ``warmup`` and ``settle`` depend on the penalty.

    Args:
        total: the number of updates of the run.
    """
    settings = config.pruning
    heads = model.encoder.head_hooks.layers * model.encoder.head_hooks.heads
    options: dict[str, Any] = {
        name: value for name in ("warmup", "settle") if (value := getattr(settings, name)) is not None
    }
    if settings.method == "topk":
        return Annealing(settings.anneal_from, settings.temperature, total, **options)
    if settings.noise:
        claim = claim_like(config, model) if settings.noise == "run" else None
        return ClosingSchedule(heads, total, claim, **options)
    if settings.penalty == "lambda":
        return LambdaPenalty(settings.strength, total, settings.warmup or 0.0)
    assert settings.keep is not None  # the configuration was checked
    if settings.penalty == "target":
        return TargetPenalty(settings.keep, heads, total, **options)
    options["generator"] = lambda: seeded(config, 9)
    if settings.penalty == "lagrangian":
        return LagrangianPenalty(settings.keep, heads, total, settings.multiplier_rate, **options)
    return ExactPenalty(settings.keep, heads, total, **options)


def seeded(config: Config, purpose: int) -> np.random.Generator:
    """Return a generator seeded by the run's seed, its tasks and a purpose, so that tasks draw independently."""
    salt = zlib.crc32(",".join(config.tasks).encode())
    return np.random.default_rng(np.random.SeedSequence([config.train.seed, salt, purpose]))


def claim_like(config: Config, model: MultiTaskModel) -> Claim:
    """Return the gates of the run ``pruning.layers_like``.

    Raises:
        ConfigError: the run has several gate sets, or its gates do not fit the encoder or the settings.
        ClaimError: the run has no gates.
    """
    path, hooks = cast(str, config.pruning.layers_like), model.encoder.head_hooks
    claims = load_claims([Path(path)])
    if len(claims) > 1:
        raise ConfigError(f"pruning.layers_like: expected a shared gate set, found one for each task in {path}")
    [claim] = claims
    if claim.gates.shape != (hooks.layers, hooks.heads):
        raise ConfigError(
            f"pruning.layers_like: expected gates of {hooks.layers} layers × {hooks.heads} heads, "
            f"found {claim.gates.shape[0]} × {claim.gates.shape[1]} in {path}"
        )
    for name in ("settle", "temperature", "init") if config.pruning.noise == "run" else ():
        other_value, own_value = (
            claim.settings[f"pruning.{name}"],
            "open" if name == "init" else getattr(config.pruning, name),
        )
        if other_value != own_value and {other_value, own_value} != {None, SETTLE}:
            raise ConfigError(
                f"pruning.noise: run: expected {name} {own_value} in {path}, found {other_value}; give both runs the "
                "same value"
            )
    if config.pruning.noise == "run" and not any(0 < value < 1 for _, gates in claim.history for value in gates.flat):
        raise ConfigError(
            f"pruning.noise: run: expected gates that were noisy when an epoch of {path} ended, found only open and "
            "closed ones; name a run whose gates are trained for longer, or give noise: true"
        )
    return claim
