"""Scores of finished runs with the heads closed that each task claims, and with random heads of the same layers closed.

Letters for shapes: S runs (seeds), N sentences, K counts a score is made of, L layers, A heads a layer, C resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from mtlprune import scores
from mtlprune.analyses.analysis import Request
from mtlprune.analyses.claims.groups import groups_of
from mtlprune.analyses.reading import Found, Reading, Subject, read_request, survey
from mtlprune.claimed_heads import ClaimError, group, is_joint, load_claims
from mtlprune.encoder.gates import Gates
from mtlprune.model import SHARED
from mtlprune.results import Result, head_rows
from mtlprune.runs import RunFolder
from mtlprune.statistics.significance import Floats, Score, System, differences, holm, over_seeds, resampled_sums
from mtlprune.training import hardware
from mtlprune.training.evaluation import evaluate

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ClosedCounts:
    """Counts of one label's runs on one task with the same heads closed.

    Attributes:
        names: the K counts of ``score``.
        runs: seed → (N, K), summed over draws; 0 where the sentence lacks the layer.
    """

    names: tuple[str, ...]
    score: Score
    runs: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def system(self, seeds: tuple[int, ...], times: int = 1) -> System:
        """``times``: the counts as often, which changes no score."""
        return System(times * np.stack([self.runs[seed] for seed in seeds]), self.names, self.score, seeds)


Tables = dict[tuple[str, str, str, str], ClosedCounts]
"""Label of the runs, task, "claimed" or "random" ("": nothing is closed), label whose heads are closed."""


def measure(request: Request) -> Result:
    """All runs on the same sentences. Frames:

    - ``scores``: the main score of each run's task with nothing closed (``other`` ""), with the heads closed that the
      label ``other`` claims (``mode`` claimed), and with each draw of as many others of the same layers (random).
    - ``cells``, wide: for each label of runs, task and closed label the mean ``open``, ``closed`` and ``random`` score;
      ``delta`` = closed − random with interval and p over seeds and sentences (over sentences alone with one seed),
      ``holm``, p corrected over the cells of other tasks, and ``equal``, p of a difference of the margin or more.
    - ``own``, wide: delta of a label's heads in its own runs minus its mean in those of other tasks; mean over labels.
    - ``claimed``: 1 for the heads that are closed for the label ``other``.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: what cannot be loaded or compared; claims of no head or of all.
    """
    reading = read_request(request)
    if groups_of(request.claims, reading) is None:
        raise ClaimError("which heads are to be closed? name runs with gates or with stable claims (--claims)")
    closed = {one.label: one.claimed for one in group(load_claims(request.claims))}
    for label, heads in closed.items():
        if heads.all() or not heads.any():
            raise ClaimError(
                f"{label} claims {'all heads' if heads.any() else 'no head'}, so there are no others to compare with; "
                "name other runs"
            )
    generator = np.random.default_rng([request.seed, 10])
    masks = {
        label: [heads, *(others(heads, generator) for _ in range(request.options.draws))]
        for label, heads in closed.items()
    }
    held: Tables = {}
    result = survey("cross", reading, request, lambda subject: _scored(reading, subject, request, masks, held))
    claimed = pd.concat(
        [head_rows({"claimed": heads.astype(float)}).assign(other=label) for label, heads in closed.items()],
        ignore_index=True,
    )
    made = {"claimed": claimed, "cells": _cells(held, request), "own": _own(held, request, result.about["notes"])}
    return replace(result, frames={**result.frames, **{name: frame for name, frame in made.items() if len(frame)}})


def others(heads: Mask, generator: np.random.Generator) -> Mask:
    """As many heads of each layer as are given, drawn from the others; where these are too few, all of them and some of
    the given. (L, A) → (L, A)"""
    order = generator.random(heads.shape) + heads  # the others come first
    return np.asarray(order.argsort(1).argsort(1) < heads.sum(1, keepdims=True))


def _scored(
    reading: Reading, subject: Subject, request: Request, masks: Mapping[str, list[Mask]], held: Tables
) -> Found | str:
    folder = RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders has no task to score; name a run"
    model = subject.model(request.device)
    places = model.encoder.places
    if model.gates or min(map(len, places.kept)) < places.heads:
        return "some of its heads are closed already; name a run whose heads are all open"
    precision = hardware.dtype(folder.read_config()["train"]["precision"])
    model.gates[SHARED] = gates = Gates(places.layers, places.heads).to(model.device)
    rows = []
    nothing = np.zeros((places.layers, places.heads), bool)
    drawn = [(label, draw, heads) for label, several in masks.items() for draw, heads in enumerate(several)]
    for other, draw, heads in [("", 0, nothing), *drawn]:
        mode = ("random" if draw else "claimed") if other else ""
        gates.fix(torch.from_numpy(~heads).float().to(model.device))
        found = evaluate(model, reading.sentences, precision)
        request.on_batch()
        for task, score in found.main().items():
            rows.append({"task": task, "other": other, "mode": mode, "step": draw, "measure": "score", "value": score})
            kind, name = model.tasks[task].kind, found.names[task]
            names = scores.count_names(kind, name)  # type: ignore[arg-type]
            counts = np.array([[row[key] if row else 0 for key in names] for row in found.counts[task]])
            cell = held.setdefault((subject.label, task, mode, other), ClosedCounts(names, scores.SCORES[kind][name]))  # type: ignore[index]
            cell.runs[subject.seed] = cell.runs.get(subject.seed, 0) + counts
    return Found({"scores": pd.DataFrame(rows)}) if rows else "no sentence has a layer of its tasks"


# -- what the heads of a label are worth -------------------------------------------------------------------------------


def _cells(held: Tables, request: Request) -> pd.DataFrame:
    keys = [key for key in held if key[2] == "claimed"]
    systems = []
    for label, task, _, other in keys:
        seeds = tuple(sorted(held[label, task, "", ""].runs))
        systems.append(held[label, task, "claimed", other].system(seeds, request.options.draws))  # draws are summed
        systems.append(held[label, task, "random", other].system(seeds))
        systems.append(held[label, task, "", ""].system(seeds))
    pairs = [(3 * place, 3 * place + 1) for place in range(len(keys))]
    found = differences(systems, pairs, request.options.resamples, request.seed)
    rows = []
    for place, (key, told) in enumerate(zip(keys, found, strict=True)):
        wide = told.has_seeds
        closed, random, open_ = (
            float(system.scores(system.totals).mean()) for system in systems[3 * place : 3 * place + 3]
        )
        rows.append(
            {"encoder": key[0], "task": key[1], "other": key[3], "open": open_, "closed": closed, "random": random}
            | {"delta": told.delta, "n": told.seeds[0], "equal": told.equivalence_p(request.options.margin)}
            | {"low": told.wide_low if wide else told.low, "high": told.wide_high if wide else told.high}
            | {"p": told.wide_p if wide else told.p}
        )
    frame = pd.DataFrame(rows)
    apart = frame["encoder"] != frame["other"]
    frame.loc[apart, "holm"] = holm(frame.loc[apart, "p"])
    return frame


def _own(held: Tables, request: Request, notes: list[str]) -> pd.DataFrame:
    """One row, or none: where runs and claims have two single tasks in common. Where seeds lack, a note is added."""
    labels = [key[0] for key in held if key[2] == "claimed" and key[0] == key[3] and not is_joint(key[0])]
    places = {key[0]: key for key in held if key[0] in labels and not key[2]}  # label → its only task
    if len(labels) < 2:
        return pd.DataFrame()
    seeds = tuple(sorted(set.intersection(*(set(held[key].runs) for key in places.values()))))
    if not seeds:
        notes.append(f"Own heads are not set against those of others: runs of {', '.join(labels)} share no seed.")
        return pd.DataFrame()
    order = [(label, mode, other) for label in labels for other in labels for mode in ("claimed", "random")]
    systems = [held[label, places[label][1], mode, other].system(seeds) for label, mode, other in order]

    def contrast(sums: list[Floats]) -> Floats:
        """Sums (C, S, K) of each system → (C, S)."""
        found = [system.scores(part) for system, part in zip(systems, sums, strict=True)]
        delta = np.stack(found).reshape(len(labels), len(labels), 2, *found[0].shape)
        delta = delta[:, :, 0] - delta[:, :, 1]  # (runs, closed, C, S)
        own = np.einsum("aacs->acs", delta)
        return np.asarray((own - (delta.sum(0) - own) / (len(labels) - 1)).mean(0))

    observed = contrast([system.totals[None] for system in systems])[0]
    booted = np.concatenate(
        [contrast(sums) for sums in resampled_sums(systems, request.options.resamples, request.seed)]
    )
    return pd.DataFrame([{"n": len(seeds), **over_seeds(observed, booted)}])
