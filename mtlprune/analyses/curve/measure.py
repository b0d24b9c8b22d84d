"""Scores of each task of finished runs with only some heads open, in several orders; sufficient sets of heads.

Letters for shapes: S runs (seeds), N sentences, K counts a score is made of, L layers, A heads a layer, G numbers of
open heads, O orders, C resamples.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.claims.groups import groups_of
from mtlprune.analyses.cross.measure import ClosedCounts
from mtlprune.analyses.curve.maths import (
    Mask,
    Ranking,
    areas,
    examine,
    numbers,
    ranked,
    sufficient_sets,
    within_layers,
)
from mtlprune.analyses.reading import Found, ProbeError, Reading, Subject, read_request, survey, training_sentences
from mtlprune.corpora.tables import batched
from mtlprune.encoder.gates import Gates
from mtlprune.evaluation import scores
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.permutation import tail
from mtlprune.statistics.significance import Floats, holm, over_seeds, resampled_sums
from mtlprune.tasks.base import Task
from mtlprune.training import hardware
from mtlprune.training.ablation import close_with, known_target
from mtlprune.training.evaluation import evaluate
from mtlprune.training.head_gradients import derivatives
from mtlprune.training.pruning.selectors import BATCH, fisher_mask, importance

log = logging.getLogger(__name__)
Order = tuple[str, str, int]
"""What ranks heads ("" for nothing), "" or one of reverse, layers and random, and the number of the draw, from 1."""


@dataclass(eq=False)
class Judge:
    """One task of a run: its scores with only some heads open, each evaluated once, and rankings of its heads.

    Attributes:
        model: of this task alone, in evaluation mode, with all heads and one gate set, which is fixed to masks here.
        train, sentences: on which heads are ranked, and which are scored; at least one has the layer.
        on_batch: called after each evaluation.
    """

    model: MultiTaskModel
    name: str
    train: Sequence[Sentence]
    sentences: Sequence[Sentence]
    precision: torch.dtype = torch.float32
    on_batch: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.task = cast(Task, self.model.tasks[self.name])
        main = scores.main_score(self.name, {self.name: self.task.options.model_dump()})
        self.names, self.rule = scores.count_names(self.task.kind, main), scores.SCORES[self.task.kind][main]
        self._counts: dict[bytes, NDArray[np.int64]] = {}
        self._slopes: dict[bytes, Tensor] = {}

    def open(self, heads: Mask) -> None:
        """Close all but these heads (L, A) from now on."""
        cast(Gates, self.model.gates[SHARED]).fix(torch.from_numpy(heads).to(self.model.device))

    def is_known(self, heads: Mask) -> bool:
        """True where the score is known already."""
        return heads.tobytes() in self._counts

    def counts(self, heads: Mask) -> NDArray[np.int64]:
        """(N, K) with only these heads (L, A) open; 0 where a sentence lacks the layer."""
        if not self.is_known(heads):
            self.open(heads)
            rows = evaluate(self.model, self.sentences, self.precision).counts[self.name]
            counts = [[row[name] if row else 0 for name in self.names] for row in rows]
            self._counts[heads.tobytes()] = np.array(counts)
            self.on_batch()
        return self._counts[heads.tobytes()]

    def score(self, heads: Mask) -> float:
        """In points, with only these heads (L, A) open."""
        return float(self.rule(dict(zip(self.names, self.counts(heads).sum(0).astype(float), strict=True))))

    def slopes(self, heads: Mask) -> Tensor:
        """Derivatives of the loss by each head's output on training sentences, (S, L, A), with only some heads open."""
        if (key := heads.tobytes()) not in self._slopes:
            self.open(heads)
            pairs = [(one, target) for one in self.train if (target := known_target(self.task, one)) is not None]
            constants, parts = self.model.encoder.head_constants, [torch.zeros(0, *heads.shape)]
            for some in batched(sorted(pairs, key=lambda pair: len(pair[0])), BATCH):
                pieces = self.model.encoder.tokenize_all([sentence.words for sentence, _ in some])
                targets = {self.name: [target for _, target in some]}
                parts.append(derivatives(self.model, pieces, targets, self.precision, lambda batch: constants))
            self._slopes[key] = torch.cat(parts)
        return self._slopes[key]

    def rank(self, selector: str, taken: Mask, seed: int) -> Ranking:
        """The ranking by a selector of the heads that are not ``taken``, with those closed."""
        slopes = self.slopes(~taken)
        values = importance(slopes) if selector == "importance" else slopes.double().square().sum(0)
        order = ranked(np.where(taken, -1.0, values.double().numpy()), np.random.default_rng(seed))

        def fisher(keep: int) -> Mask:
            if keep in (0, taken.size):
                return order(keep)
            mask = fisher_mask(slopes, keep, np.random.default_rng(seed)).bool().numpy()
            return np.asarray(mask & ~taken)

        return fisher if selector == "fisher" else order


@dataclass(frozen=True, eq=False)
class _Curves:
    """The sentences that heads are ranked on, gates that rank them, too, and counts of all runs so far."""

    reading: Reading
    request: Request
    train: Sequence[Sentence]
    gates: Mapping[str, Floats]
    tables: dict[tuple[str, str], dict[tuple[Order, int], ClosedCounts]] = field(default_factory=dict)
    """Label and task → order and number of open heads → counts."""


def measure(request: Request) -> Result:
    """All runs on the same sentences. Frames, an order told by what ranks heads (``mode``: a selector, gates, or "" for
    random orders) and ``control`` ("", reverse, layers for heads permuted within layers, random):

    - ``curve``, wide: the ``score`` of each run's task with so many ``heads`` open, by order and draw (``step``).
    - ``areas``, wide: mean ``cpr`` and ``cmd`` over ``n`` runs and draws; ``enough``, the mean of the least number of
      heads with a score within the margin of the whole; of rankings ``delta``, their CPR minus that of heads permuted
      within layers, with interval and p over seeds and sentences (over sentences alone with one run), and ``holm``.
    - ``sets``, wide: of each run and task the disjoint sufficient sets of the first selector (``step``): how many
      ``heads``, the score with ``all`` heads open and with only these (``alone``); of the first one also `examine`. No
      row where all heads closed are within the margin of the whole.
    - ``heads``: by ``task`` the number of the ``set`` that a head is in (0: none), and its ``cost`` in the first one.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: what cannot be loaded or compared; no run that can be measured.
    """
    reading = read_request(request)
    if len(kinds := {source.kind for source in reading.sources}) > 1:
        raise ProbeError(
            f"expected runs of one encoder, found {', '.join(sorted(kinds))}; name them in calls of their own"
        )
    groups = groups_of(request.claims, reading)
    train = training_sentences(reading, request, request.options.train_sentences)
    study = _Curves(reading, request, train, groups.gates if groups else {})
    result = survey("curve", reading, request, lambda subject: _measured(study, subject))
    return replace(result, frames={**result.frames, "areas": _areas(study)})


def _measured(study: _Curves, subject: Subject) -> Found | str:
    request, folder = study.request, RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders has no task to score; name a run"
    if folder.read_manifest()["data"]["fingerprint"] != study.reading.fingerprint:
        return f"it was trained on another corpus than {request.corpus}"
    model = subject.model(request.device)
    places = model.encoder.places
    size = places.layers, places.heads
    if model.gates or min(map(len, places.kept)) < places.heads:
        return "some of its heads are closed already; name a run whose heads are all open"
    model.gates = nn.ModuleDict({SHARED: Gates(*size).to(model.device)})
    halves = torch.from_numpy(np.random.default_rng([request.seed, 18]).random((8, *size)) < 0.5)
    close_with(model, request.options.closed, study.train, list(halves), request.seed)
    precision = hardware.dtype(folder.read_config()["train"]["precision"])
    frames: dict[str, list[pd.DataFrame]] = {}
    notes = []
    for name in model.tasks if subject.task is None else [subject.task]:
        alone = MultiTaskModel(model.encoder, {name: cast(Task, model.tasks[name])})
        alone.gates = model.gates
        judge = Judge(alone, name, study.train, study.reading.sentences, precision, request.on_batch)
        if not any(judge.task.known(sentence) for sentence in judge.sentences):
            notes.append(f"{subject.label}: no sentence has the layer {name}, so it is not scored.")
            continue
        for key, frame in {"curve": _curve(study, subject, judge, size), **_sets(study, subject, judge, size)}.items():
            frames.setdefault(key, []).append(frame.assign(task=name))
    if not frames:
        return f"no sentence of {study.reading.split} has a layer of its tasks"
    return Found({key: pd.concat(some, ignore_index=True) for key, some in frames.items()}, {}, notes)


def _orders(study: _Curves, subject: Subject, judge: Judge, size: tuple[int, int]) -> dict[Order, Ranking]:
    """Each selector's ranking and that by gates, where there are some of the task, with their reverse and controls."""
    request, nothing = study.request, np.zeros(size, bool)
    named = {selector: judge.rank(selector, nothing, request.seed) for selector in request.options.selectors}
    task, label = judge.name.upper(), subject.label.split(" (")[0]
    own = next((study.gates[one] for one in (f"{label}:{task}", task, label) if one in study.gates), None)
    if own is not None:
        named["gates"] = ranked(own, np.random.default_rng(request.seed))
    orders: dict[Order, Ranking] = {}
    for name, ranking in named.items():
        orders[name, "", 0] = ranking
        orders[name, "reverse", 0] = lambda keep, best=ranking: ~best(nothing.size - keep)  # type: ignore[misc]
        for draw in range(1, request.options.draws + 1):
            generator = np.random.default_rng([request.seed, 21, draw])
            orders[name, "layers", draw] = within_layers(ranking, size, generator)
    for draw in range(1, request.options.draws + 1):
        orders["", "random", draw] = ranked(np.zeros(size), np.random.default_rng([request.seed, 19, draw]))
    return orders


def _curve(study: _Curves, subject: Subject, judge: Judge, size: tuple[int, int]) -> pd.DataFrame:
    """The scores of all orders; their counts go to the tables of the study."""
    begun, opened = time.perf_counter(), numbers(size[0] * size[1], study.request.options.every)
    judge.score(np.ones(size, bool))
    seconds = time.perf_counter() - begun
    masks = {(order, n): best(n) for order, best in _orders(study, subject, judge, size).items() for n in opened}
    total = len({mask.tobytes() for mask in masks.values() if not judge.is_known(mask)})
    where = _where(subject, judge)
    plan = "%s: %d evaluations of %d sentences for the curve, about %.1f minutes; then sufficient sets"
    log.info(plan, where, total, len(judge.sentences), total * seconds / 60)
    study.request.on_status(f"{where}: curve, evaluation", total)
    table = study.tables.setdefault((subject.label, judge.name), {})
    rows = []
    for key, mask in masks.items():
        cell = table.setdefault(key, ClosedCounts(judge.names, judge.rule))
        cell.runs[subject.seed] = judge.counts(mask)
        (mode, control, draw), keep = key
        rows.append({"mode": mode, "control": control, "step": draw, "heads": keep, "score": judge.score(mask)})
    return pd.DataFrame(rows)


def _where(subject: Subject, judge: Judge) -> str:
    return f"{subject.label}, seed {subject.seed}, {judge.name.upper()}"


def _sets(study: _Curves, subject: Subject, judge: Judge, size: tuple[int, int]) -> dict[str, pd.DataFrame]:
    """The disjoint sufficient sets of one run and task, the first one tested; nothing where no head is needed."""
    request, options, nothing = study.request, study.request.options, np.zeros(size, bool)
    whole = judge.score(~nothing)
    if judge.score(nothing) >= whole - options.margin:
        return {}
    request.on_status(f"{_where(subject, judge)}: sufficient sets, evaluation")
    sets = sufficient_sets(
        judge.score,
        lambda taken: judge.rank(options.selectors[0], taken, request.seed),
        *(whole - options.margin, options.every, nothing),
    )
    generator = np.random.default_rng([request.seed, 22, subject.seed])
    request.on_status(f"{_where(subject, judge)}: tests of a set, evaluation", 3 * options.tests + int(sets[0].sum()))
    tests, costs = examine(judge.score, sets[0], options.tests, generator)
    rows = [
        {"step": step, "heads": int(members.sum()), "all": whole, "alone": judge.score(members)}
        for step, members in enumerate(sets, 1)
    ]
    number = np.sum([step * members for step, members in enumerate(sets, 1)], axis=0).astype(float)
    return {"sets": pd.DataFrame([rows[0] | tests, *rows[1:]]), "heads": head_rows({"set": number, "cost": costs})}


# -- areas over seeds and sentences ------------------------------------------------------------------------------------


def _areas(study: _Curves) -> pd.DataFrame:
    """The areas of all orders of all labels and tasks, means over draws."""
    rows = [
        {"encoder": label, "task": task, **row}
        for (label, task), table in study.tables.items()
        for row in _areas_of(table, study.request)
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(holm=holm(frame["p"].to_numpy()))


def _areas_of(table: Mapping[tuple[Order, int], ClosedCounts], request: Request) -> list[dict[str, object]]:
    orders, opened = list(dict.fromkeys(order for order, _ in table)), list(dict.fromkeys(n for _, n in table))
    seeds = tuple(sorted(next(iter(table.values())).runs))
    systems = [table[order, keep].system(seeds) for order in orders for keep in opened]

    def points(sums: Sequence[Floats]) -> Floats:
        """Sums (C, S, K) of each system → scores (O, C, S, G)."""
        values = np.stack([system.scores(part) for system, part in zip(systems, sums, strict=True)])
        return np.moveaxis(values.reshape(len(orders), len(opened), *values.shape[1:]), 1, -1)

    observed = points([system.totals[None] for system in systems])[:, 0]  # (O, S, G)
    performance, distance = areas(observed, opened)  # (O, S)
    sums = resampled_sums(systems, request.options.resamples, request.seed)
    booted = np.concatenate([areas(points(part), opened)[0] for part in sums], axis=1)  # (O, C, S)
    least = np.array(opened)[(observed >= observed[..., -1:] - request.options.margin).argmax(-1)]  # (O, S)
    rows = []
    for mode, control in dict.fromkeys(order[:2] for order in orders):
        own = [order[:2] == (mode, control) for order in orders]
        row = {"mode": mode, "control": control, "n": len(seeds), "p": np.nan}
        row |= {"cpr": performance[own].mean(), "cmd": distance[own].mean(), "enough": least[own].mean()}
        if not control:
            null = [order[:2] == (mode, "layers") for order in orders]
            resampled = booted[own].mean(0) - booted[null].mean(0)  # (C, S)
            figure = over_seeds(performance[own].mean(0) - performance[null].mean(0), resampled)
            if len(seeds) < 2:
                figure["p"] = min(1.0, 2 * min(tail(0.0, sign * resampled[:, 0]) for sign in (1, -1)))
            row |= {name: figure[name] for name in ("delta", "low", "high", "p")}
        rows.append(row)
    return rows
