"""Derivatives of the tasks' losses by heads, one pass a task over each run.

Letters for shapes: S sentences, L layers, A heads a layer before any was removed.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import known_target
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    gate_grid,
    read_request,
    survey,
)
from mtlprune.analyses.heads.gradients import ALL_TASKS, HALVES
from mtlprune.corpora.tables import batched
from mtlprune.errors import plural
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Grid, Result, head_rows
from mtlprune.statistics.permutation import layered_rank_test
from mtlprune.tasks.base import Task
from mtlprune.training.head_gradients import agreement, derivatives

BATCH = 32
"""Sentences of a mini-batch."""
Key = tuple[str, str, int]
"""Label of an encoder, task, seed."""
Maps = dict[Key, dict[str, Grid]]
"""Importance, from all sentences ("") and from each half."""


def measure(request: Request) -> Result:
    """All runs on the same sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError: what cannot be loaded; no run among what is named.
    """
    reading = read_request(request)
    surveyed = survey("gradients", reading, request, lambda subject: _gradients(reading, subject, request))
    maps: Maps = {
        (label, task, seed): grids for (label, seed), of in surveyed.measured.items() for task, grids in of.items()
    }
    return surveyed.result.with_frames(pairs=pd.DataFrame(_pairs(maps, request)))


def _gradients(reading: Reading, subject: Subject, request: Request) -> SubjectResult:
    folder = RunFolder(subject.name)
    if not folder.has("config.yaml"):
        raise SubjectError("an encoder without decoders has no task, so no loss; name a run")
    if folder.read_manifest()["data"]["fingerprint"] != reading.fingerprint:
        raise SubjectError(f"it was trained on another corpus than {request.corpus}")
    model = subject.model(request.device)
    kept = list(model.tasks) if subject.task is None else [subject.task]
    tasks = {name: cast(Task, model.tasks[name]) for name in kept}
    every = [(one, {name: known_target(task, one) for name, task in tasks.items()}) for one in reading.sentences]
    known = [(sentence, labels) for sentence, labels in every if all(target is not None for target in labels.values())]
    if len(known) < 2:
        raise SubjectError(
            f"{len(known)} of the sentences have its layers ({', '.join(kept)}) with known labels; expected 2 or more"
        )
    chosen = [sentence for sentence, _ in known]
    pieces = model.encoder.tokenize_sentences(chosen)
    targets = {name: [labels[name] for _, labels in known] for name in kept}
    half = np.random.default_rng([request.seed, 8]).permutation(len(chosen)) % 2
    signed: dict[str, NDArray[np.float64]] = {}
    by_length = sorted(range(len(chosen)), key=lambda row: -len(pieces[row].ids))  # no time goes into padding
    for name, wanted in targets.items():
        signed[name] = np.empty((len(chosen), model.encoder.places.layers, model.encoder.places.heads))
        for rows in batched(by_length, BATCH):
            slopes = derivatives(model, [pieces[row] for row in rows], {name: [wanted[row] for row in rows]})
            signed[name][rows] = slopes.double().numpy()  # (B, L, A)
            request.on_batch()
    if len(kept) > 1:
        signed[ALL_TASKS] = np.sum(list(signed.values()), axis=0)
    present = gate_grid(subject) > 0  # a closed head may still matter: its factor is 0, its derivative need not be
    frames, maps = [], dict[str, dict[str, Grid]]()
    for task, each in signed.items():
        sizes: NDArray[np.float64] = np.where(present | (each != 0).any(0), np.abs(each), np.nan)
        grids: dict[str, Grid] = {"": sizes.mean(0)}
        grids |= {name: sizes[half == place].mean(0) for place, name in enumerate(HALVES)}
        maps[task] = grids
        for mode, grid in grids.items():
            norm = np.sqrt(np.nansum(grid**2, axis=1, keepdims=True))
            rows = head_rows({"importance": grid, "relative": grid / np.where(norm > 0, norm, np.nan)})
            frames.append(rows.assign(task=task, mode=mode))
    tables = {"heads": pd.concat(frames, ignore_index=True)}
    if len(kept) > 1:
        pulls = agreement(model, pieces, targets, BATCH)
        joint = {"cosine": pulls.mean(), "opposed": pulls.opposed()}
        if len(chosen) > BATCH:  # with one batch there is no other half
            joint["halves"] = pulls.halves.mean(0)
        tables["joint"] = head_rows(joint)
        pairs = combinations(enumerate(pulls.tasks), 2)
        tables["cosines"] = pd.concat(
            [head_rows({"cosine": pulls.cosines[i, j]}).assign(task=one, other=two) for (i, one), (j, two) in pairs],
            ignore_index=True,
        )
    left = len(reading.sentences) - len(chosen)
    unfit = f"{subject.label}: {plural(left, 'sentence')} without its layers, or with labels it was not trained on."
    return SubjectResult(tables, {"tasks": kept}, [unfit] * bool(left), maps)


def _pairs(maps: Maps, request: Request) -> Iterator[dict[str, Any]]:
    def row(one: Key, other: Key, mode: str, first: Grid, second: Grid) -> dict[str, Any]:
        test = layered_rank_test(first, second, request.options.permutations, (request.seed, 9))
        keys = dict(zip(("encoder", "task", "seed", "other", "other_task", "other_seed"), (*one, *other), strict=True))
        return {**keys, "mode": mode, "spearman": test.value, "p": test.p, "n": test.heads}

    for key, grids in maps.items():
        yield row(key, key, "halves", *(grids[name] for name in HALVES))
    for one, other in combinations([key for key in maps if key[1] != ALL_TASKS], 2):
        yield row(one, other, "maps", maps[one][""], maps[other][""])
