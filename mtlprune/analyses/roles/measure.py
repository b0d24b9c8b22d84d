"""Roles of every head for every task of finished runs, and what closing conflict heads gains.

Letters for shapes: V selections, T tasks, L layers, A heads a layer, N sentences, K counts a score is made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.cross.measure import ClosedCounts
from mtlprune.analyses.reading import Found, Reading, Subject, read_request, survey, training_sentences
from mtlprune.analyses.roles import MEAN, ROLES, STL
from mtlprune.analyses.roles.maths import Mask, agreed, conflicts, role_scores, two_sided
from mtlprune.encoder.gates import Gates
from mtlprune.evaluation import scores
from mtlprune.evaluation.head_masks import random_heads
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.significance import holm, over_seeds, resampled_sums
from mtlprune.tasks.base import Task
from mtlprune.training import hardware
from mtlprune.training.ablation import close_with, known_target
from mtlprune.training.evaluation import evaluate

Roles = dict[tuple[str, int], dict[str, dict[str, Mask]]]
"""Label and seed of a run → task → role → (L, A)."""


@dataclass(frozen=True, eq=False)
class _Study:
    """The sentences that gates are fitted to, and what all runs have found so far."""

    reading: Reading
    request: Request
    train: Sequence[Sentence]
    roles: Roles
    closed: dict[tuple[str, str, str], ClosedCounts]
    """Label, task, one of "open", "closed", "random" → counts of its runs."""


def measure(request: Request) -> Result:
    """All runs, gates fitted to the same sentences of train, scores on the same of the split. Frames:

    - ``heads``: scores of the ROLES by ``task`` and ``step`` (selection, from 0); NaN where a head was removed.
    - ``conflicts``, wide: of each joint run, and of the single-task runs of a seed together (``encoder`` STL), the
      number of ``conflict`` heads, ``expected`` with heads permuted within layers, and p of so many.
    - ``roles``: ``heads`` with a role in all selections, by ``task`` and role (``mode``).
    - ``gains``, wide: of each label and task with conflict heads that interfere with it: mean score with all heads
      ``open``, with these ``closed`` for this task alone and with as many ``random`` ones of their layers; ``delta`` =
      closed − random with interval and p over seeds and sentences, ``holm`` over all tasks, ``n`` runs; of several
      runs also MEAN, over the tasks of each run that have such heads.

    Raises:
        RunError, CorpusError, EncoderError: what cannot be loaded; no run among what is named.
    """
    reading = read_request(request)
    study = _Study(reading, request, training_sentences(reading, request, request.options.train_sentences), {}, {})
    result = survey("roles", reading, request, lambda subject: _roles(study, subject))
    frames = {"conflicts": _conflicts(study), "gains": _gains(study)}
    return replace(result, frames={**result.frames, **{name: frame for name, frame in frames.items() if len(frame)}})


def _roles(study: _Study, subject: Subject) -> Found | str:
    folder = RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders has no task, so no loss; name a run"
    if folder.read_manifest()["data"]["fingerprint"] != study.reading.fingerprint:
        return f"it was trained on another corpus than {study.request.corpus}"
    model = subject.model(study.request.device)
    places = model.encoder.places
    if model.gates or min(map(len, places.kept)) < places.heads:
        return "some of its heads are closed already; name a run whose heads are all open"
    frames, roles = [], {}
    for name in model.tasks if subject.task is None else [subject.task]:
        selections = _fitted(study, model, name)  # role → (V, L, A)
        if selections is None:
            return f"none of the training sentences has its layer {name} with known labels"
        roles[name] = {role: agreed(values) for role, values in selections.items()}
        for step in range(study.request.options.selections):
            rows = head_rows({role: values[step] for role, values in selections.items()})
            frames.append(rows.assign(task=name, step=step))
    study.roles[subject.label, subject.seed] = roles
    if len(roles) > 1:
        _close(study, subject, model, roles, hardware.dtype(folder.read_config()["train"]["precision"]))
    counted = [
        {"task": name, "mode": role, "measure": "heads", "value": float(mask.sum())}
        for name, masks in roles.items()
        for role, mask in masks.items()
    ]
    return Found({"heads": pd.concat(frames, ignore_index=True), "roles": pd.DataFrame(counted)})


def _fitted(study: _Study, model: MultiTaskModel, name: str) -> dict[str, NDArray[np.float64]] | None:
    """Role → scores (V, L, A) for one task of a run; None where no sentence has its layer with known labels."""
    options, task = study.request.options, cast(Task, model.tasks[name])
    known = [(sentence, target) for sentence in study.train if (target := known_target(task, sentence)) is not None]
    if not known:
        return None
    pieces = model.encoder.tokenize_all([sentence.words for sentence, _ in known])
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in weights:  # gates alone are fitted
        parameter.requires_grad_(False)
    places, found = model.encoder.places, []
    for selection in range(options.selections):
        generator = np.random.default_rng([study.request.seed, 13, selection])
        size = min(options.batch, len(known))
        order = [generator.choice(len(known), size, replace=False) for _ in range(options.updates)]

        def loss(gates: Tensor, update: int, order: list[NDArray[np.intp]] = order) -> Tensor:
            batch = model.collate(
                [pieces[row] for row in order[update]], {name: [known[row][1] for row in order[update]]}
            )
            return task.loss(model.encoder(batch.pieces, gates), batch.targets[name][1])

        size_of = places.layers, places.heads
        opened, closed = two_sided(loss, size_of, options.strength, options.updates, options.rate)
        study.request.on_batch()
        found.append(role_scores(opened.double().cpu().numpy(), closed.double().cpu().numpy()))
    for parameter in weights:
        parameter.requires_grad_()
    return {role: np.stack([one[role] for one in found]) for role in ROLES}


def _close(
    study: _Study, subject: Subject, model: MultiTaskModel, roles: dict[str, dict[str, Mask]], precision: torch.dtype
) -> None:
    """Score each task with the conflict heads closed that interfere with it, with random ones, and with none."""
    places = model.encoder.places
    generator = np.random.default_rng([study.request.seed, 14, subject.seed])
    for name, own in roles.items():
        helped = np.any([masks["facilitating"] for other, masks in roles.items() if other != name], axis=0)
        heads = own["interfering"] & helped
        if not heads.any():
            continue
        draws = [
            random_heads(heads.sum(1).tolist(), places.heads, generator) for _ in range(study.request.options.draws)
        ]
        alone = MultiTaskModel(model.encoder, {name: cast(Task, model.tasks[name])})
        gates = Gates(places.layers, places.heads).to(model.device)
        alone.gates = nn.ModuleDict({SHARED: gates})
        masks = [torch.from_numpy(~mask).float().to(model.device) for mask in (np.zeros_like(heads), heads, *draws)]
        close_with(alone, study.request.options.closed, study.train, masks[1:], study.request.seed)
        for kind, mask in zip(["open", "closed", *["random"] * len(draws)], masks, strict=True):
            gates.fix(mask)
            evaluation = evaluate(alone, study.reading.sentences, precision)
            study.request.on_batch()
            layer, score = alone.tasks[name].kind, evaluation.names[name]
            names = scores.count_names(layer, score)  # type: ignore[arg-type]
            counts = np.array([[row[key] if row else 0 for key in names] for row in evaluation.counts[name]])
            cell = study.closed.setdefault(
                (subject.label, name, kind),
                ClosedCounts(names, scores.SCORES[layer][score]),  # type: ignore[index]
            )
            cell.runs[subject.seed] = cell.runs.get(subject.seed, 0) + counts


def _conflicts(study: _Study) -> pd.DataFrame:
    """A row for each joint run, and for the single-task runs of each seed together."""
    sets = {key: roles for key, roles in study.roles.items() if len(roles) > 1}
    for (label, seed), roles in study.roles.items():
        if len(roles) == 1 and not is_joint(label):
            sets.setdefault((STL, seed), {}).update(roles)
    rows = []
    for (label, seed), roles in sets.items():
        if len(roles) < 2:
            continue
        helps, hinders = (np.stack([roles[name][role] for name in roles]) for role in ("facilitating", "interfering"))
        generator = np.random.default_rng([study.request.seed, 15])
        count, expected, p = conflicts(helps, hinders, study.request.options.permutations, generator)
        rows.append({"encoder": label, "seed": seed, "conflict": count, "expected": expected, "p": p, "n": len(roles)})
    return pd.DataFrame(rows)


def _gains(study: _Study) -> pd.DataFrame:
    """What closing its interfering conflict heads gains a task, beyond random heads of the same layers."""
    keys = [(label, task) for label, task, kind in study.closed if kind == "closed"]
    systems = []
    for label, task in keys:
        parts = [study.closed[label, task, kind] for kind in ("open", "closed", "random")]
        seeds = tuple(sorted(parts[1].runs))
        systems += [parts[0].system(seeds), parts[1].system(seeds, study.request.options.draws), parts[2].system(seeds)]
    if not systems:
        return pd.DataFrame()
    observed = [system.scores(system.totals) for system in systems]
    booted: list[list[Any]] = [[] for _ in systems]
    for sums in resampled_sums(systems, study.request.options.resamples, study.request.seed):
        for place, (system, part) in enumerate(zip(systems, sums, strict=True)):
            booted[place].append(system.scores(part))
    rows = []
    runs: dict[tuple[str, int], list[tuple[float, Any]]] = {}  # label, seed → gains of tasks, observed and resampled
    for place, (label, task) in enumerate(keys):
        _, closed, random = (np.concatenate(booted[3 * place + part]) for part in range(3))
        gain = observed[3 * place + 1] - observed[3 * place + 2]
        figure = over_seeds(gain, closed - random)
        means = {
            name: float(observed[3 * place + part].mean()) for part, name in enumerate(("open", "closed", "random"))
        }
        row = {name: figure[name] for name in ("delta", "low", "high", "p", "detectable")}
        rows.append({"encoder": label, "task": task, "n": len(gain), **means, **row})
        for seed, one, drawn in zip(systems[3 * place + 1].seeds, gain, (closed - random).T, strict=True):
            runs.setdefault((label, seed), []).append((one, drawn))
    frame = pd.DataFrame(rows)
    return pd.concat([frame.assign(holm=holm(frame["p"].to_numpy())), _mean_gains(runs)], ignore_index=True)


def _mean_gains(runs: dict[tuple[str, int], list[tuple[float, Any]]]) -> pd.DataFrame:
    """Rows of the mean over the tasks of each run that have conflict heads, of labels with several runs."""
    rows = []
    for label in dict.fromkeys(label for label, _ in runs):
        means = [
            [np.mean(part, axis=0) for part in zip(*gains, strict=True)]
            for (one, _), gains in runs.items()
            if one == label
        ]
        if len(means) > 1:
            figure = over_seeds(np.array([gain for gain, _ in means]), np.stack([drawn for _, drawn in means], 1))
            row = {name: figure[name] for name in ("delta", "low", "high", "p", "detectable")}
            rows.append({"encoder": label, "task": MEAN, "n": len(means), **row})
    return pd.DataFrame(rows)
