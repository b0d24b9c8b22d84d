"""Roles of every head for every task of finished runs, and what closing conflict heads gains.

Letters for shapes: V selections, T tasks, L layers, A heads a layer, N sentences, K counts a score is made of.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.closing import (
    ClosedCounts,
    WholeRun,
    add_counts,
    count_closed,
    whole_run,
    with_task,
)
from mtlprune.analyses.reading import Found, Reading, Subject, read_request, survey, training_sentences
from mtlprune.analyses.roles import MEAN, ROLES, STL
from mtlprune.analyses.roles.maths import agreed, conflicts, role_scores, two_sided
from mtlprune.evaluation.head_masks import Mask, random_sets
from mtlprune.model import autocast
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import Resampled, over_seeds, resampled_scores, weighted
from mtlprune.statistics.significance import holm
from mtlprune.tasks.base import Task
from mtlprune.training.ablation import close_with, known_target

Roles = dict[tuple[str, int], dict[str, dict[str, Mask]]]
"""Label and seed of a run → task → role → (L, A)."""


@dataclass(frozen=True, eq=False)
class _Study:
    """The sentences that gates are fitted to, and what all runs have found so far."""

    reading: Reading
    request: Request
    train: list[Sentence]
    roles: Roles = field(default_factory=dict)
    closed: dict[tuple[str, str, str], ClosedCounts] = field(default_factory=dict)
    """Label, task, one of "open", "closed", "random" → counts of its runs."""


def measure(request: Request) -> Result:
    """All runs, gates fitted to the same sentences of train, scores on the same of the split. Frames:

    - ``heads``: scores of the ROLES by ``task`` and ``step`` (selection, from 0); NaN where a head was removed.
    - ``conflicts``, wide: of each joint run, and of the single-task runs of a seed together (``encoder`` STL), the
      number of ``conflict`` heads, ``expected`` with heads permuted within layers, and p of so many.
    - ``gains``, wide: of each label and task with conflict heads that interfere with it: mean score with all heads
      ``open``, with these ``closed`` for this task alone and with as many ``random`` ones of their layers; ``delta`` =
      closed − random with interval and p over seeds and sentences, ``holm`` over all tasks, ``n`` runs; of several
      runs also MEAN, over the tasks of each run that have such heads.

    Raises:
        RunError, CorpusError, EncoderError: what cannot be loaded; no run among what is named.
    """
    reading = read_request(request)
    study = _Study(reading, request, training_sentences(reading, request, request.options.train_sentences))
    result = survey("roles", reading, request, lambda subject: _roles(study, subject))
    return result.with_frames(conflicts=pd.DataFrame(_conflicts(study)), gains=_gains(study))


def _roles(study: _Study, subject: Subject) -> Found | str:
    run = whole_run(subject, study.request.device, study.reading.fingerprint)
    if isinstance(run, str):
        return run
    run.model.requires_grad_(False)  # gates alone are fitted
    frames, roles = [], {}
    for name in run.model.tasks if subject.task is None else [subject.task]:
        study.request.on_status(subject.part(name, "gates, selection"), study.request.options.selections)
        selections = _fitted(study, run, name)  # role → (V, L, A)
        if selections is None:
            return f"none of the training sentences has its layer {name} with known labels"
        roles[name] = {role: agreed(values) for role, values in selections.items()}
        for step in range(study.request.options.selections):
            rows = head_rows({role: values[step] for role, values in selections.items()})
            frames.append(rows.assign(task=name, step=step))
    study.roles[subject.label, subject.seed] = roles
    if len(roles) > 1:
        _close(study, subject, run, roles)
    return Found({"heads": pd.concat(frames, ignore_index=True)})


def _fitted(study: _Study, run: WholeRun, name: str) -> dict[str, NDArray[np.float64]] | None:
    """Role → scores (V, L, A) for one task of a run; None where no sentence has its layer with known labels."""
    options, model, task = study.request.options, run.model, cast(Task, run.model.tasks[name])
    known = [(sentence, target) for sentence in study.train if (target := known_target(task, sentence)) is not None]
    if not known:
        return None
    pieces, scores = model.encoder.tokenize_all([sentence.words for sentence, _ in known]), []
    for selection in range(options.selections):
        generator = np.random.default_rng([study.request.seed, 13, selection])
        size = min(options.batch, len(known))
        order = [generator.choice(len(known), size, replace=False) for _ in range(options.updates)]

        def loss(gates: Tensor, update: int, order: list[NDArray[np.intp]] = order) -> Tensor:
            rows = order[update]
            batch = model.collate([pieces[row] for row in rows], {name: [known[row][1] for row in rows]})
            with autocast(model.device, run.precision):
                return task.loss(model.encoder(batch.pieces, gates), batch.targets[name][1])

        fits = two_sided(loss, run.size, options.strength, options.updates, options.rate)
        scores.append(role_scores(*(gates.double().cpu().numpy() for gates in fits)))
        study.request.on_batch()
    return {role: np.stack([one[role] for one in scores]) for role in ROLES}


def _close(study: _Study, subject: Subject, run: WholeRun, roles: dict[str, dict[str, Mask]]) -> None:
    """Score each task with the conflict heads closed that interfere with it, with random ones, and with none."""
    options, generator = study.request.options, np.random.default_rng([study.request.seed, 14, subject.seed])
    for name, own in roles.items():
        helped = np.any([masks["facilitating"] for other, masks in roles.items() if other != name], axis=0)
        heads = own["interfering"] & helped
        if not heads.any():
            continue
        closed = [heads, *random_sets(heads, options.draws, generator)]
        alone = with_task(run.model, name)
        close_with(alone, options.closed, study.train, closed, study.request.seed)
        study.request.on_status(subject.part(name, "conflict heads closed, evaluation"), 1 + len(closed))
        kinds = ["open", "closed", *["random"] * options.draws]
        for kind, mask in zip(kinds, [np.zeros_like(heads), *closed], strict=True):
            counted = count_closed(alone, mask, study.reading.sentences, run.precision)
            add_counts(study.closed, (subject.label, name, kind), subject.seed, counted[name])
            study.request.on_batch()


def _conflicts(study: _Study) -> Iterator[dict[str, Any]]:
    """A row for each joint run, and for the single-task runs of each seed together."""
    sets = {key: roles for key, roles in study.roles.items() if len(roles) > 1}
    for (label, seed), roles in study.roles.items():
        if len(roles) == 1 and not is_joint(label):
            sets.setdefault((STL, seed), {}).update(roles)
    for (label, seed), roles in sets.items():
        if len(roles) > 1:
            helps, hinders = (np.stack([one[role] for one in roles.values()]) for role in ROLES[:2])
            generator = np.random.default_rng([study.request.seed, 15])
            count, expected, p = conflicts(helps, hinders, study.request.options.permutations, generator)
            row = {"encoder": label, "seed": seed, "conflict": count, "expected": expected}
            yield {**row, "p": p, "n": len(roles)}


def _gains(study: _Study) -> pd.DataFrame:
    """The gain of a task by closing its interfering conflict heads, beyond random heads of the same layers."""
    options, keys = study.request.options, [key[:2] for key in study.closed if key[2] == "closed"]
    seeds = [tuple(sorted(study.closed[(*key, "closed")].runs)) for key in keys]
    systems = [
        study.closed[(*key, kind)].system(own, options.draws if kind == "closed" else 1)
        for key, own in zip(keys, seeds, strict=True)
        for kind in ("open", "closed", "random")
    ]
    scores = resampled_scores(systems, options.resamples, study.request.seed)
    rows = []
    runs: dict[tuple[str, int], list[Resampled]] = {}  # label and seed → gains of its tasks
    for place, (label, task) in enumerate(keys):
        three = dict(zip(("open", "closed", "random"), scores[3 * place : 3 * place + 3], strict=True))
        gain = three["closed"] - three["random"]
        means = {kind: float(one.observed.mean()) for kind, one in three.items()}
        rows.append({"encoder": label, "task": task, "n": len(seeds[place]), **over_seeds(*gain), **means})
        for run, seed in enumerate(seeds[place]):
            runs.setdefault((label, seed), []).append(Resampled(gain.observed[[run]], gain.booted[:, [run]]))
    each = pd.DataFrame(rows, columns=None if rows else ["p"])
    return pd.concat([each.assign(holm=holm(each["p"])), pd.DataFrame(_mean_gains(runs))], ignore_index=True)


def _mean_gains(runs: dict[tuple[str, int], list[Resampled]]) -> Iterator[dict[str, Any]]:
    """Rows of the mean over the tasks of each run that have conflict heads, of labels with several runs."""
    for label in dict.fromkeys(label for label, _ in runs):
        means = [weighted(gains) for (one, _), gains in runs.items() if one == label]
        if len(means) > 1:
            observed, booted = (np.concatenate(parts, axis=-1) for parts in zip(*means, strict=True))
            yield {"encoder": label, "task": MEAN, "n": len(means), **over_seeds(observed, booted)}
