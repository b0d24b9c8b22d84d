"""Measure the derivatives of each task's loss by the heads of a run, with one pass over the sentences for each task.

Letters for shapes: B sentences of a mini-batch, L layers, A heads per layer before any was removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import known_target, run_of
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
from mtlprune.encoder.batch import Pieces
from mtlprune.errors import plural
from mtlprune.model import MultiTaskModel
from mtlprune.runs.results import Grid, Result, head_rows
from mtlprune.statistics.permutation import layered_rank_test
from mtlprune.tasks.base import Task
from mtlprune.training.head_gradients import agreement, derivatives

_BATCH = 32
"""Number of sentences in a mini-batch."""
Key = tuple[str, str, int]
"""Label of a run, task, and seed."""
Maps = dict[Key, dict[str, Grid]]
"""Maps of importance, from all sentences (key "") and from each of HALVES."""


def measure(request: Request) -> Result:
    """Measure all runs on the same sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError: if the input cannot be loaded, or if no run can be measured.
    """
    reading = read_request(request)
    surveyed = survey("gradients", reading, request, partial(_gradients, reading, request=request))
    maps: Maps = {
        (label, task, seed): grids
        for (label, seed), maps_of_tasks in surveyed.measured.items()
        for task, grids in maps_of_tasks.items()
    }
    return surveyed.result.with_frames(pairs=pd.DataFrame(_pairs(maps, request)))


def _gradients(reading: Reading, subject: Subject, request: Request) -> SubjectResult:
    """Measure the importance of all heads of one run for each task, and the agreement of gradients in joint runs.

    All tasks use the same sentences, which have the layers of all tasks with known labels.

    Raises:
        SubjectError: the subject is no run, or was trained on another corpus; or fewer than two sentences have the
            layers of all tasks with known labels.
    """
    run_of(subject, reading.fingerprint)
    model = subject.model(request.device)
    task_names = list(model.tasks) if subject.task is None else [subject.task]
    tasks = {name: cast(Task, model.tasks[name]) for name in task_names}
    with_targets = [
        (sentence, {name: known_target(task, sentence) for name, task in tasks.items()})
        for sentence in reading.sentences
    ]
    annotated = [
        (sentence, labels) for sentence, labels in with_targets if all(target is not None for target in labels.values())
    ]
    if len(annotated) < 2:
        raise SubjectError(
            f"expected two or more sentences with its layers ({', '.join(task_names)}) and known labels, found "
            f"{len(annotated)}; read more sentences"
        )
    sentences = [sentence for sentence, _ in annotated]
    pieces = model.encoder.tokenize_sentences(sentences)
    targets = {name: [labels[name] for _, labels in annotated] for name in task_names}
    half_of_sentence = np.random.default_rng([request.seed, 8]).permutation(len(sentences)) % 2
    signed: dict[str, NDArray[np.float64]] = {}
    by_length = sorted(range(len(sentences)), key=lambda row: -len(pieces[row].ids))  # batches need little padding
    for name, task_targets in targets.items():
        signed[name] = np.empty((len(sentences), model.encoder.head_hooks.layers, model.encoder.head_hooks.heads))
        for rows in batched(by_length, _BATCH):
            slopes = derivatives(model, [pieces[row] for row in rows], {name: [task_targets[row] for row in rows]})
            signed[name][rows] = slopes.double().numpy()  # (B, L, A)
            request.on_batch()
    if len(task_names) > 1:
        signed[ALL_TASKS] = np.sum(list(signed.values()), axis=0)
    # The loss may depend on the factor of a closed head, so closed heads with a derivative other than 0 also count.
    present = gate_grid(subject) > 0
    frames, maps = [], dict[str, dict[str, Grid]]()
    for task, signed_slopes in signed.items():
        sizes: NDArray[np.float64] = np.where(present | (signed_slopes != 0).any(0), np.abs(signed_slopes), np.nan)
        grids: dict[str, Grid] = {"": sizes.mean(0)}
        grids |= {name: sizes[half_of_sentence == half_index].mean(0) for half_index, name in enumerate(HALVES)}
        maps[task] = grids
        for mode, grid in grids.items():
            norm = np.sqrt(np.nansum(grid**2, axis=1, keepdims=True))
            rows = head_rows({"importance": grid, "relative": grid / np.where(norm > 0, norm, np.nan)})
            frames.append(rows.assign(task=task, mode=mode))
    tables = {"heads": pd.concat(frames, ignore_index=True)}
    if len(task_names) > 1:
        tables |= _joint_frames(model, pieces, targets)
    left_out = len(reading.sentences) - len(sentences)
    note = f"{subject.label}: {plural(left_out, 'sentence')} without its layers or with unknown labels were left out."
    return SubjectResult(tables, {"tasks": task_names}, [note] * bool(left_out), maps)


def _joint_frames(
    model: MultiTaskModel, pieces: Sequence[Pieces], targets: Mapping[str, list[Any]]
) -> dict[str, pd.DataFrame]:
    """Return the frames ``joint`` and ``cosines``: how far the gradients of a joint run's tasks agree for each head."""
    pulls = agreement(model, pieces, targets, _BATCH)
    joint = {"cosine": pulls.mean(), "opposed": pulls.opposed()}
    if len(pieces) > _BATCH:  # halves consist of whole batches, so a single batch has no second half
        joint["halves"] = pulls.halves.mean(0)
    cosines = [
        head_rows({"cosine": pulls.cosines[i, j]}).assign(task=first, other=second)
        for (i, first), (j, second) in combinations(enumerate(pulls.tasks), 2)
    ]
    return {"joint": head_rows(joint), "cosines": pd.concat(cosines, ignore_index=True)}


def _pairs(maps: Maps, request: Request) -> Iterator[dict[str, Any]]:
    """Yield the rows of the frame ``pairs``: correlations of the halves of each map, and of every two maps of tasks."""

    def row(first_key: Key, second_key: Key, mode: str, first: Grid, second: Grid) -> dict[str, Any]:
        test = layered_rank_test(first, second, request.options.permutations, (request.seed, 9))
        keys = dict(
            zip(
                ("encoder", "task", "seed", "other", "other_task", "other_seed"), (*first_key, *second_key), strict=True
            )
        )
        return {**keys, "mode": mode, "spearman": test.value, "p": test.p, "n": test.heads}

    for key, grids in maps.items():
        yield row(key, key, "halves", *(grids[name] for name in HALVES))
    for first_key, second_key in combinations([key for key in maps if key[1] != ALL_TASKS], 2):
        yield row(first_key, second_key, "maps", maps[first_key][""], maps[second_key][""])
