"""What analyses are tested on: an encoder as after pretraining, gates, sentences; and what was found, as arrays."""

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from tiny import WORDS
from torch import Tensor

from mtlprune.analyses.harness.reading import Reading, Subject, SubjectResult
from mtlprune.config.config import build_config
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.removal import remove_heads
from mtlprune.model import MultiTaskModel
from mtlprune.runs.results import Result
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.tasks import TASKS

GATES = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 0.75, 1.0, 0.1]])
"""Of a tiny encoder; two heads are closed."""


def loaded(folder: Path, dtype: torch.dtype = torch.float64) -> Encoder:
    """With gains and biases that are not 1 and 0, as they are after pretraining."""
    encoder = Encoder.load(str(folder), attention="eager")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return encoder.to(dtype)


def model_of(folder: Path, sentences: Sequence[Sentence], tasks: Sequence[str]) -> MultiTaskModel:
    tree = {"data": {"path": "nowhere"}, "tasks": list(tasks), "encoder": {"name": str(folder)}}
    config = build_config({**tree, "decoders": {"dep": {"arc_size": 8, "relation_size": 4}}}, "test")
    model = MultiTaskModel.build(config, {task: TASKS[task].collect(sentences) for task in config.tasks}).eval()
    torch.manual_seed(1)
    for parameter in model.tasks.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    return model


def sentences_of(sizes: Sequence[int], seed: int = 0) -> list[Sentence]:
    """With random tags, and random trees: each word hangs on one that came before it in a random order."""
    generator = np.random.default_rng(seed)
    made = []
    for number, size in enumerate(sizes):
        order, heads = generator.permutation(size) + 1, np.zeros(size, int)
        for place in range(1, size):
            heads[order[place] - 1] = order[generator.integers(place)]
        names = np.where(heads == 0, "root", generator.choice(["nsubj", "obj", "punct"], size))
        words, tags = (tuple(generator.choice(choices, size).tolist()) for choices in (WORDS, [*"ABC"]))
        tree = Dependencies(tuple(heads.tolist()), tuple(names.tolist()))
        made.append(Sentence(str(number), words, pos=tags, dep=tree))
    return made


def subject_of(encoder: Encoder, gates: Tensor | None = None) -> Subject:
    return Subject("POS", "run", 1, encoder, gates, "tiny")


def reading_of(sentences: Sequence[Sentence], *subjects: Subject) -> Reading:
    sources = [SimpleNamespace(name=one.name, kind="tiny", open=lambda device, one=one: [one]) for one in subjects]
    return Reading("tiny", "f" * 64, "dev", list(sentences), 0, sources, 0)


def grids(found: SubjectResult | Result) -> dict[str, np.ndarray]:
    rows = found.frames["heads"].groupby("measure")
    return {name: one.pivot(index="layer", columns="head", values="value").to_numpy() for name, one in rows}


def column(found: SubjectResult | Result, frame: str, measure: str) -> np.ndarray:
    held = found.frames[frame]
    return held.loc[held["measure"] == measure, "value"].to_numpy()


def without_heads(encoder: Encoder, gates: Tensor) -> Encoder:
    """A copy in which heads with gates at 0 are removed, and others have their gates folded in."""
    cut = copy.deepcopy(encoder)
    cut.__dict__.pop("head_hooks", None)
    cut.head_map = remove_heads(cut.transformer, gates, encoder.head_hooks.kept_heads)
    return cut
