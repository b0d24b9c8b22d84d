"""Measure the role of every head for every task of finished runs, and the gain from closing heads that interfere.

Letters for shapes: V selections, L layers, A heads per layer, D draws of random heads, C resamples, S runs (seeds).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.frames import MEAN
from mtlprune.analyses.harness.ablation import (
    SENTENCES,
    AblatableRun,
    AblatedCounts,
    add_counts,
    join_counts,
    known_target,
    read_arrays,
    write_arrays,
)
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    read_request,
    sentences_of_split,
    survey,
    training_sentences,
)
from mtlprune.analyses.heads.roles import GAIN, ROLES, STL
from mtlprune.analyses.heads.roles.maths import agreed, conflicts, least_effect, role_scores, two_sided
from mtlprune.analyses.heads.roles.single import count_each, halves, interfering
from mtlprune.corpora.tables import batched, fingerprint
from mtlprune.encoder.batch import Encoded
from mtlprune.encoder.interventions import CONSTANT
from mtlprune.evaluation.head_masks import Mask, random_sets, single_heads
from mtlprune.model import autocast
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, System, resampled_scores, weighted
from mtlprune.tasks.base import Task

_ENCODED = 8
"""Number of sentences that are encoded together while gates are fitted."""
Roles = dict[tuple[str, int], dict[str, dict[str, Mask]]]
"""Masks (L, A) of heads by label and seed of a run, then by task, then by role."""


@dataclass(frozen=True, eq=False)
class _RunMeasurements:
    """Measurements of one run.

    Attributes:
        roles: masks (L, A) of heads by task and role; empty without gates.
        counts: counts by task and one of `_Study.kinds`, for tasks with heads that interfere with them.
        tasks: number of tasks that are scored with each head closed by itself; 0 with gates.
    """

    roles: dict[str, dict[str, Mask]] = field(default_factory=dict)
    counts: dict[tuple[str, str], AblatedCounts] = field(default_factory=dict)
    tasks: int = 0


@dataclass(frozen=True, eq=False)
class _Study:
    """The input that all runs share.

    Attributes:
        train: training sentences to which gates, or the constants that replace closed heads, are fitted.
        scored: sentences on which the heads that interfere are closed together.
    """

    reading: Reading
    request: Request
    train: list[Sentence]
    scored: list[Sentence]

    @property
    def kinds(self) -> list[str]:
        """Names of the conditions in which a task is scored: all heads open, interfering heads closed, and a number for
        each draw of random heads closed."""
        return ["open", "closed", *map(str, range(self.request.options.draws))]


def measure(request: Request) -> Result:
    """Measure all runs on the same sentences. ``frames.yaml`` declares the frames.

    Gates are fitted to training sentences, and scores are of sentences of the split ``request.split``.

    Raises:
        RunError, CorpusError, EncoderError: if the input cannot be loaded, or if no run can be measured.
    """
    reading = read_request(request)
    single = request.options.closing == "single"
    number = SENTENCES if single else request.options.train_sentences
    needed = not single or request.options.closed in CONSTANT
    train = training_sentences(reading, request, number) if needed else []
    study = _Study(reading, request, train, _scored(reading, request))
    measure_subject = _each_closed if single else _roles
    surveyed = survey("roles", reading, request, partial(measure_subject, study))
    result = surveyed.result
    strength = request.options.strength
    for heads in () if single else sorted({entry["layers"] * entry["heads"] for entry in result.about["encoders"]}):
        result.about["notes"].append(
            f"The push of λ = {strength:g} over {heads} heads lets through effects of "
            f"{least_effect(strength, heads):.2g} nats of a task's loss or more (4 λ / heads). A head whose closing "
            "changes the loss by less follows the push."
        )
    roles: Roles = {key: measurements.roles for key, measurements in surveyed.measured.items() if measurements.roles}
    closed = join_counts({key: measurements.counts for key, measurements in surveyed.measured.items()})
    tasks = {key: measurements.tasks for key, measurements in surveyed.measured.items()}
    return result.with_frames(conflicts=pd.DataFrame(_conflicts(study, roles)), gains=_gains(study, closed, tasks))


def _scored(reading: Reading, request: Request) -> list[Sentence]:
    """Return the sentences on which the heads that interfere with a task are closed together."""
    if request.options.scored is not None:
        return sentences_of_split(reading, request, request.options.scored)
    if request.options.closing != "single":
        return reading.sentences
    # Heads were chosen on one half of the sentences. Their gain is measured on the other half only, because the best of
    # many heads always seems to gain on the sentences that chose it.
    return [reading.sentences[row] for row in halves(len(reading.sentences), request.seed)[1]]


def _each_closed(study: _Study, subject: Subject) -> SubjectResult:
    """Close each head of a run by itself, then together those heads that interfere with a task on both halves.

    Raises:
        SubjectError: no layer of its tasks is annotated in both halves of the sentences.
    """
    request, options = study.request, study.request.options
    run = AblatableRun.of(subject, request.device, study.reading.fingerprint, request.store)
    run = run.contributing(options.closed, study.train, list(single_heads(run.size)), study.request.seed)
    sentences = study.reading.sentences
    sides = [[sentences[row] for row in rows] for rows in halves(len(sentences), study.request.seed)]

    def count(side: int, heads: Sequence[int]) -> dict[str, list[System]]:
        status = f"{subject.label}, seed {subject.seed}: half {side + 1}, each head closed alone, evaluation"
        study.request.on_status(status, 1 + len(heads))
        return count_each(run, heads, sides[side], study.request.on_batch)

    arguments = run.size, options.resamples, study.request.seed, options.max_chosen, options.confirmed
    heads, chosen_rows, masks = interfering(count, *arguments)
    if not len(heads):
        raise SubjectError("no layer of its tasks is annotated in both halves of the sentences")
    missing = sorted({*run.model.tasks} - {*heads["task"]})
    notes = [f"{subject.label}, seed {subject.seed}: {', '.join(missing)} left out, not annotated in both halves."]
    measured = _RunMeasurements(tasks=heads["task"].nunique())
    for name, mask in masks.items():
        measured.counts.update(_closed_counts(study, subject, run, name, mask))
    return SubjectResult({"heads": heads, "chosen": chosen_rows}, notes=notes if missing else (), measured=measured)


def _roles(study: _Study, subject: Subject) -> SubjectResult:
    """Fit the gates of all tasks of one run, and score its tasks with their conflict heads closed.

    Raises:
        SubjectError: no training sentence has the layer of one of its tasks with known labels.
    """
    request = study.request
    run = AblatableRun.of(subject, request.device, study.reading.fingerprint, request.store)
    # Only gates are fitted, so the weights need no gradients.
    run.model.requires_grad_(False)
    frames, measured = [], _RunMeasurements()
    for name in run.model.tasks if subject.task is None else [subject.task]:
        study.request.on_status(subject.part(name, "gates, selection"), study.request.options.selections)
        selections = _fitted(study, run, name)  # role → (V, L, A)
        if selections is None:
            raise SubjectError(f"none of the training sentences has its layer {name} with known labels")
        measured.roles[name] = {role: agreed(values) for role, values in selections.items()}
        for step in range(study.request.options.selections):
            rows = head_rows({role: values[step] for role, values in selections.items()})
            frames.append(rows.assign(task=name, step=step))
    for name, mask in _hindering(measured.roles) if len(measured.roles) > 1 else ():
        measured.counts.update(_closed_counts(study, subject, run, name, mask))
    return SubjectResult({"heads": pd.concat(frames, ignore_index=True)}, measured=measured)


def _fitted(study: _Study, run: AblatableRun, name: str) -> dict[str, NDArray[np.float64]] | None:
    """Fit the gates of one task of a run, and return the scores (V, L, A) of each role.

    The result is None if no training sentence has the layer of the task with known labels.
    """
    options, model, task = study.request.options, run.model, cast(Task, run.model.tasks[name])
    annotated = [(sentence, target) for sentence in study.train if (target := known_target(task, sentence)) is not None]
    if not annotated:
        return None
    pieces, scores = model.encoder.tokenize_sentences([sentence for sentence, _ in annotated]), []
    fit = [options.updates, options.rate, options.strength, options.batch, study.request.seed, str(run.precision)]
    content = [name, fingerprint({"": [sentence for sentence, _ in annotated]})]
    for selection in range(options.selections):
        path = run.store and run.store.path(["gates", selection, *fit, *content])
        if path and path.exists():
            scores.append(read_arrays(path))
            study.request.on_batch()
            continue
        generator = np.random.default_rng([study.request.seed, 13, selection])
        size = min(options.batch, len(annotated))
        # All three fits use the same batches, so gates that are pushed open and gates that are pushed closed differ
        # only because of the push.
        order = [generator.choice(len(annotated), size, replace=False) for _ in range(options.updates)]

        def loss(gates: Tensor, update: int, order: list[NDArray[np.intp]] = order) -> Tensor:
            # Sentences of similar length are encoded together, because padding takes more than half of a random batch.
            rows = sorted(order[update], key=lambda row: len(pieces[row].ids))
            batch = model.collate([pieces[row] for row in rows], {name: [annotated[row][1] for row in rows]})
            parts = [model.collate([pieces[row] for row in part], {}).pieces for part in batched(rows, _ENCODED)]
            with autocast(model.device, run.precision):
                encoded = Encoded.joined([model.encoder(part, gates) for part in parts])
                return task.loss(encoded, batch.targets[name][1])

        fits = two_sided(loss, run.size, options.strength, options.updates, options.rate)
        scores.append(role_scores(*(gates.double().cpu().numpy() for gates in fits)))
        if path:
            write_arrays(path, scores[-1])
        study.request.on_batch()
    return {role: np.stack([scores_of_seed[role] for scores_of_seed in scores]) for role in ROLES}


def _hindering(roles: dict[str, dict[str, Mask]]) -> Iterator[tuple[str, Mask]]:
    """Yield each task with the conflict heads that interfere with it and facilitate another task, if there are any."""
    for name, masks_of_task in roles.items():
        helped = np.any([masks["facilitating"] for other_task, masks in roles.items() if other_task != name], axis=0)
        if (heads := masks_of_task["interfering"] & helped).any():
            yield name, heads


def _closed_counts(
    study: _Study, subject: Subject, run: AblatableRun, name: str, heads: Mask
) -> dict[tuple[str, str], AblatedCounts]:
    """Score a task with no heads closed, with these heads closed, and with random heads of the same layers closed.

    The random heads depend on the seed of the run, so runs with different seeds have different draws.

    Returns:
        The counts from which scores are computed, by the name of the task and one of ``study.kinds``.
    """
    options, generator = study.request.options, np.random.default_rng([study.request.seed, 14, subject.seed])
    closed = [heads, *random_sets(heads, options.draws, generator)]
    run = run.of_task(name).contributing(options.closed, study.train, closed, study.request.seed)
    counts: dict[tuple[str, str], AblatedCounts] = {}
    study.request.on_status(subject.part(name, "heads that interfere closed, evaluation"), 1 + len(closed))
    for kind, counts_by_task in zip(study.kinds, run.counts_each(closed, study.scored), strict=True):
        add_counts(counts, (name, kind), subject.seed, counts_by_task[name])
        study.request.on_batch()
    return counts


def _conflicts(study: _Study, by_run: Roles) -> Iterator[dict[str, Any]]:
    """Yield the rows of the frame ``conflicts``, for each joint run and the combined single-task runs of each seed."""
    sets = {key: roles for key, roles in by_run.items() if len(roles) > 1}
    for (label, seed), roles in by_run.items():
        if len(roles) == 1 and not is_joint(label):
            sets.setdefault((STL, seed), {}).update(roles)
    for (label, seed), roles in sets.items():
        if len(roles) > 1:
            helps, hinders = (np.stack([masks_of_role[role] for masks_of_role in roles.values()]) for role in ROLES[:2])
            generator = np.random.default_rng([study.request.seed, 15])
            count, expected, p = conflicts(helps, hinders, study.request.options.permutations, generator)
            row = {"encoder": label, "seed": seed, "conflict": count, "expected": expected}
            yield {**row, "p": p, "n": len(roles)}


def _gains(
    study: _Study, counts: Mapping[tuple[Any, ...], AblatedCounts], tasks: Mapping[tuple[str, int], int]
) -> pd.DataFrame:
    """Compute the gain of each task from closing the heads that interfere with it, beyond random heads.

    Args:
        counts: counts by label, task and one of ``study.kinds``.
        tasks: number of tasks by label and seed of a run, as in `_RunMeasurements`.
    """
    options, keys = study.request.options, [key[:2] for key in counts if key[2] == "closed"]
    seeds = [tuple(sorted(counts[(*key, "closed")].runs)) for key in keys]
    systems = [
        counts[(*key, kind)].system(seeds_of_key)
        for key, seeds_of_key in zip(keys, seeds, strict=True)
        for kind in study.kinds
    ]
    scores = resampled_scores(systems, options.resamples, study.request.seed)
    generator, rows, width = np.random.default_rng([study.request.seed, 17]), [], len(study.kinds)
    # Label and seed → gains of its tasks. With closing=single, runs in which no head interferes count too.
    runs: dict[tuple[str, int], list[Resampled]] = {key: [] for key, number in tasks.items() if number}
    for index, (label, task) in enumerate(keys):
        opening, closed, *draws = scores[width * index : width * (index + 1)]
        random = with_draws(draws, generator)
        gain, three = closed - random, zip(("open", "closed", "random"), (opening, closed, random), strict=True)
        means = {kind: float(gain_of_kind.observed.mean()) for kind, gain_of_kind in three}
        rows.append(({"encoder": label, "task": task, **means}, Contrast.of(gain)))
        for column, seed in enumerate(seeds[index]):
            runs.setdefault((label, seed), []).append(Resampled(gain.observed[[column]], gain.booted[:, [column]]))
    rows += _mean_gains(runs, tasks, options.resamples)
    return contrast_frame(rows, [], lambda frame: frame["task"] != MEAN, effect=GAIN)


def with_draws(draws: Sequence[Resampled], generator: np.random.Generator) -> Resampled:
    """Return the mean of a figure over random draws, with resamples that also vary the draws.

    In each resample of the sentences, every run uses as many draws, drawn with replacement from its own draws. The
    interval of the result therefore includes the uncertainty about the draws.
    """
    # Draws are resampled independently for each run, because each run has its own random heads.
    booted = np.stack([draw.booted for draw in draws])  # (D, C, S)
    resampled_draws = generator.integers(len(draws), size=booted.shape)
    observed = np.mean([draw.observed for draw in draws], axis=0)
    return Resampled(observed, np.take_along_axis(booted, resampled_draws, axis=0).mean(0))


def _mean_gains(
    runs: Mapping[tuple[str, int], Sequence[Resampled]], tasks: Mapping[tuple[str, int], int], resamples: int
) -> Iterator[tuple[dict[str, Any], Contrast]]:
    """Yield for each label with several runs the mean gain over tasks.

    With gates, this is the mean over the tasks of each run that have conflict heads. With closing=single, it is the
    mean over all tasks, and a task without heads that interfere counts 0.
    """
    zero_gain = Resampled(np.zeros(1), np.zeros((resamples, 1)))
    for label in dict.fromkeys(label for label, _ in runs):
        means = [
            weighted([*gains, *[zero_gain] * (tasks[key] - len(gains))])
            for key, gains in runs.items()
            if key[0] == label
        ]
        if len(means) > 1:
            observed, booted = (np.concatenate(parts, axis=-1) for parts in zip(*means, strict=True))
            yield {"encoder": label, "task": MEAN}, Contrast.of(Resampled(observed, booted))
