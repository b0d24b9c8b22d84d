"""Heads that a configuration names."""

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
from mtlprune.runs.groups import encoder_name
from mtlprune.runs.results import read_result

Sets = dict[str, Tensor]
"""Task, or "shared", → (L, A) of bool."""


def choose(wanted: HeadsConfig, config: Config, model: MultiTaskModel, one_set: bool, key: str) -> Sets:
    """The heads that a configuration names. ``one_set``: one for all tasks, not one for each; ``key``: of the setting,
    for messages."""
    places = model.encoder.places
    tasks = (SHARED,) if one_set else config.tasks
    if wanted.per_task is not None:
        if one_set or set(wanted.per_task) != set(tasks):
            what = "one set of heads (named)" if one_set else f"heads for each of {', '.join(tasks)}"
            raise ConfigError(f"{key}.per_task: expected {what}, found heads for {', '.join(wanted.per_task)}")
        return {task: _named(wanted.per_task[task], places, key) for task in tasks}
    if wanted.named is not None:
        return dict.fromkeys(tasks, _named(wanted.named, places, key))
    if wanted.rule == "all":
        return dict.fromkeys(tasks, torch.ones(places.layers, places.heads, dtype=torch.bool))
    if wanted.like is not None:
        if one_set and wanted.rule == "permuted":
            raise ConfigError(
                f"{key}.rule: permuted keeps what tasks share, and here is one set of heads for all tasks; take random"
            )
        return drawn_heads(wanted, choose(wanted.like, config, model, one_set, f"{key}.like"), config)
    claimed = _claimed(Path(cast(str, wanted.claims)), config, places, key)
    if not one_set:
        if wanted.least != 3:
            raise ConfigError(f"{key}.least has no effect where each task has heads of its own; leave it out")
        return claimed
    several = torch.stack(list(claimed.values())).sum(0) >= wanted.least
    if not several.any():
        raise ConfigError(f"{key}: no head in {wanted.claims} is claimed by {wanted.least} tasks or more; lower least")
    return {SHARED: several}


def _named(heads: Sequence[str], places: HeadHooks, key: str) -> Tensor:
    for name in heads:
        layer, head = map(int, name.split("-"))
        if layer > places.layers or head > places.heads:
            raise ConfigError(f"{key}: expected heads up to {places.layers}-{places.heads}, found {name}")
    return head_mask(heads, places.layers, places.heads)


def drawn_heads(control: HeadsConfig, like: Sets, config: Config) -> Sets:
    """Draw as many heads of each layer as each set of ``like`` has, by the rule of a control."""
    seed, masks = config.train.seed if control.seed is None else control.seed, {}
    for task, mask in like.items():
        stream = b"" if control.rule == "permuted" else task.encode()  # one permutation for all tasks
        generator = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(stream), 8]))
        rows = mask.numpy()
        if control.rule == "random":
            drawn = random_heads(rows.sum(1).tolist(), rows.shape[1], generator)
        elif control.rule == "permuted":
            drawn = np.stack([row[generator.permutation(len(row))] for row in rows])
        else:
            drawn = np.zeros_like(rows)
            for own, row in zip(drawn, rows, strict=True):  # others first
                order = [*generator.permutation(np.flatnonzero(~row)), *generator.permutation(np.flatnonzero(row))]
                own[order[: row.sum()]] = True
        masks[task] = torch.from_numpy(drawn)
    return masks


def _claimed(folder: Path, config: Config, places: HeadHooks, key: str) -> Sets:
    """Task → heads that more than half of its runs in a claims Result have open."""
    if not (folder / "claims.json").exists():
        raise ConfigError(f"{key}.claims: expected a folder that `mtlprune claims RUNS --out` wrote, found {folder}")
    result = read_result(folder / "claims.json")
    claimed, mine = {}, encoder_name(config.encoder.name, config.encoder.random)
    for task in config.tasks:
        runs = [one for one in result.about["encoders"] if one["encoder"] == task.upper()]
        if not runs:
            raise ConfigError(f"{key}.claims: {folder} has no runs of {task} alone; give `mtlprune claims` some")
        theirs = runs[0]["kind"]
        if Path(mine).expanduser().resolve() != Path(theirs).expanduser().resolve():  # a name, or a folder
            raise ConfigError(
                f"{key}.claims: expected claims of the encoder {mine}, found those of {theirs} in {folder}; heads of "
                "different encoders do not correspond, so give claims of this one (or call it in encoder.name as there)"
            )
        grids = [result.grids(one)["gate"] for one in runs]
        if grids[0].shape != (places.layers, places.heads):
            raise ConfigError(
                f"{key}.claims: expected claims of {places.layers} layers × {places.heads} heads, found "
                f"{grids[0].shape[0]} × {grids[0].shape[1]} in {folder}"
            )
        claimed[task] = torch.from_numpy(2 * (np.stack(grids) > OPEN_ABOVE).sum(0) > len(grids))
    return claimed


def check_own_weights(encoder: Encoder) -> None:
    """Raises EncoderError where a head has no weights of its own, or heads were removed."""
    places, transformer = encoder.places, cast(PreTrainedModel, encoder.transformer)
    attentions, kind = by_layer(transformer, places.family.attention), encoder.config.model_type
    why = ""
    if len(set(attentions)) < places.layers:
        why = "its layers share their weights"
    elif max(places.groups) > 1:
        why = "its heads share keys and values"
    elif any(places.family.norms):
        why = "a norm divides each by what all heads of its layer give"
    elif any(getattr(attention, name, None) is not None for attention in attentions for name in places.family.mixers):
        why = "layers of it mix heads with each other"
    elif encoder.head_map is not None:
        why = "some of its heads were removed"
    if why:
        raise EncoderError(f"treatment: heads of this encoder ({kind}) cannot be treated one by one, because {why}")
