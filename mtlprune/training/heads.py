"""The choice of heads that the settings of a treatment or of ``pruning.method: given`` describe."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.config.blocks import HeadsConfig
from mtlprune.config.config import Config, ConfigError
from mtlprune.encoder.families import by_layer
from mtlprune.encoder.heads import HeadHooks, head_mask
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.evaluation.head_masks import OPEN_ABOVE, random_heads
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.groups import encoder_name, same_encoder

Sets = dict[str, Tensor]
"""Task (or "shared") → mask of heads, (L, A) bool."""


def choose(settings: HeadsConfig, config: Config, model: MultiTaskModel, one_set: bool, key: str) -> Sets:
    """Return the heads that a block of settings describes, a set for each task or a single set named "shared".

    Args:
        settings: the block ``heads``.
        one_set: whether all tasks share a set of heads.
        key: the key of the settings, for error messages.

    Raises:
        ConfigError: the settings do not fit the tasks, the encoder or the claims.
    """
    hooks = model.encoder.head_hooks
    tasks = (SHARED,) if one_set else config.tasks
    if settings.per_task is not None:
        if one_set or set(settings.per_task) != set(tasks):
            expectation = "one set of heads (named)" if one_set else f"heads for each of {', '.join(tasks)}"
            raise ConfigError(f"{key}.per_task: expected {expectation}, found heads for {', '.join(settings.per_task)}")
        return {task: _heads_by_name(settings.per_task[task], hooks, key) for task in tasks}
    if settings.named is not None:
        return dict.fromkeys(tasks, _heads_by_name(settings.named, hooks, key))
    if settings.rule == "all":
        return dict.fromkeys(tasks, torch.ones(hooks.layers, hooks.heads, dtype=torch.bool))
    if settings.like is not None:
        if one_set and settings.rule == "permuted":
            raise ConfigError(
                f"{key}.rule: permuted keeps the heads that tasks share, and here all tasks have one set of heads; "
                "give random"
            )
        return drawn_heads(settings, choose(settings.like, config, model, one_set, f"{key}.like"), config)
    claims = _heads_of_claims(Path(cast(str, settings.claims)), config, hooks, key)
    if not one_set:
        if settings.least != 3:
            raise ConfigError(f"{key}.least has no effect if each task has separate heads; leave it out")
        return claims
    shared_heads = torch.stack(list(claims.values())).sum(0) >= settings.least
    if not shared_heads.any():
        raise ConfigError(
            f"{key}: expected heads that {settings.least} tasks or more claim, found none in {settings.claims}; lower "
            "least"
        )
    return {SHARED: shared_heads}


def _heads_by_name(heads: Sequence[str], hooks: HeadHooks, key: str) -> Tensor:
    for name in heads:
        layer, head = map(int, name.split("-"))
        if layer > hooks.layers or head > hooks.heads:
            raise ConfigError(f"{key}: expected heads up to {hooks.layers}-{hooks.heads}, found {name}")
    return head_mask(heads, hooks.layers, hooks.heads)


def drawn_heads(control: HeadsConfig, sets: Sets, config: Config) -> Sets:
    """Draw a control for each set of heads, with as many heads of each layer as the set has.

    Args:
        control: settings with the rule random, unclaimed or permuted.
    """
    seed, masks = config.train.seed if control.seed is None else control.seed, {}
    for task, mask in sets.items():
        # The rule `permuted` applies the same permutation to all tasks, so that the overlap of their sets does not
        # change. So its random numbers must not depend on the task.
        stream = b"" if control.rule == "permuted" else task.encode()
        generator = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(stream), 8]))
        rows = mask.numpy()
        if control.rule == "random":
            random_rows = random_heads(rows.sum(1).tolist(), rows.shape[1], generator)
        elif control.rule == "permuted":
            random_rows = np.stack([row[generator.permutation(len(row))] for row in rows])
        else:
            random_rows = np.zeros_like(rows)
            for random_row, row in zip(random_rows, rows, strict=True):
                # Heads outside the set come first; heads of the set follow only if there are too few others.
                order = [*generator.permutation(np.flatnonzero(~row)), *generator.permutation(np.flatnonzero(row))]
                random_row[order[: row.sum()]] = True
        masks[task] = torch.from_numpy(random_rows)
    return masks


def _heads_of_claims(folder: Path, config: Config, hooks: HeadHooks, key: str) -> Sets:
    """Return the heads that are open in more than half of each task's single-task runs in a result of claims.

    Raises:
        ConfigError: there is no such result, it lacks a task, or its encoder is another one.
    """
    if not (folder / "claims.json").exists():
        raise ConfigError(f"{key}.claims: expected a folder that `mtlprune claims RUNS --out` wrote, found {folder}")
    # The import is here, because reading results imports pandas, which takes 0.3 s and 65 MB that other runs save.
    from mtlprune.runs.results import read_result

    result = read_result(folder / "claims.json")
    claims, own_encoder = {}, encoder_name(config.encoder.name, config.encoder.random)
    for task in config.tasks:
        runs = [entry for entry in result.about["encoders"] if entry["encoder"] == task.upper()]
        if not runs:
            raise ConfigError(
                f"{key}.claims: expected single-task runs of {task} in {folder}, found none; give such runs to "
                "`mtlprune claims`"
            )
        encoder_of_claims = runs[0]["kind"]
        if not same_encoder(own_encoder, encoder_of_claims):
            raise ConfigError(
                f"{key}.claims: expected claims of the encoder {own_encoder}, found those of {encoder_of_claims} in "
                f"{folder}; give claims of the same encoder (with the same encoder.name), because heads of different "
                "encoders do not correspond"
            )
        grids = [result.grids(run)["gate"] for run in runs]
        if grids[0].shape != (hooks.layers, hooks.heads):
            raise ConfigError(
                f"{key}.claims: expected claims of {hooks.layers} layers × {hooks.heads} heads, found "
                f"{grids[0].shape[0]} × {grids[0].shape[1]} in {folder}"
            )
        claims[task] = torch.from_numpy(2 * (np.stack(grids) > OPEN_ABOVE).sum(0) > len(grids))
    return claims


def check_own_weights(encoder: Encoder) -> None:
    """Raise EncoderError unless each head can be treated separately.

    Heads cannot if they share weights, if a norm or a mixing layer combines them, or if some were removed.
    """
    hooks, transformer = encoder.head_hooks, cast(PreTrainedModel, encoder.transformer)
    attentions, kind = by_layer(transformer, hooks.family.attention), encoder.config.model_type
    reason = ""
    if len(set(attentions)) < hooks.layers:
        reason = "its layers share their weights"
    elif max(hooks.groups) > 1:
        reason = "its heads share keys and values"
    elif any(hooks.family.norms):
        reason = "a norm divides each head by the output of all heads of its layer"
    elif any(getattr(attention, name, None) is not None for attention in attentions for name in hooks.family.mixers):
        reason = "some of its layers mix heads with each other"
    elif encoder.head_map is not None:
        reason = "some of its heads were removed"
    if reason:
        raise EncoderError(f"treatment: heads of this encoder ({kind}) cannot be treated separately, because {reason}")
