"""Score the tasks of finished runs with only some heads open, in several orders, and find sufficient sets of heads.

Letters for shapes: S runs (seeds), N sentences, L layers, A heads per layer, G numbers of open heads, O orders,
C resamples.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import AblatableRun, AblatedCounts, add_counts, join_counts, known_target
from mtlprune.analyses.harness.reading import (
    ProbeError,
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    find_sources,
    read_request,
    survey,
    training_sentences,
)
from mtlprune.analyses.heads.claims.groups import groups_of
from mtlprune.analyses.heads.curve.maths import (
    Ranking,
    areas,
    head_set_tests,
    numbers,
    ranked,
    sufficient_sets,
    within_layers,
)
from mtlprune.corpora.tables import batched
from mtlprune.evaluation.head_masks import Mask
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.contrast import Contrast, corrected, with_verdict
from mtlprune.statistics.resamples import Resampled, System, resampled_scores
from mtlprune.statistics.standard_errors import LEVEL, Floats
from mtlprune.tasks.base import Task
from mtlprune.training.head_gradients import derivatives
from mtlprune.training.pruning.selectors import BATCH, fisher_mask, importance

Order = tuple[str, str, int]
"""An order in which heads are opened: the method that ranks them, the control ("", "reverse" or "random"), and the
number of the draw (from 1; 0 without draws)."""


@dataclass(eq=False)
class HeadSetScorer:
    """Scores and ranks the heads of one task of a run. Every set of open heads is evaluated only once.

    Attributes:
        run: the run, reduced to this task.
        name: name of the task.
        train: sentences on which heads are ranked.
        sentences: sentences that are scored; the layer of the task is annotated in at least one of them.
        on_batch: called after each evaluation.
    """

    run: AblatableRun
    name: str
    train: Sequence[Sentence]
    sentences: Sequence[Sentence]
    on_batch: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.task = cast(Task, self.run.model.tasks[self.name])
        self._counts: dict[bytes, System] = {}
        self._slopes: dict[bytes, Tensor] = {}
        self.size = self.run.size

    def counts(self, heads: Mask) -> System:
        """Return the counts from which scores are computed, with only these heads (L, A) open."""
        if (key := heads.tobytes()) not in self._counts:
            self._counts[key] = self.run.counts(~heads, self.sentences)[self.name]
            self.on_batch()
        return self._counts[key]

    def score(self, heads: Mask) -> float:
        """Return the score in points with only these heads (L, A) open."""
        counts = self.counts(heads)
        return float(counts.scores(counts.totals)[0])

    def slopes(self, heads: Mask) -> Tensor:
        """Return ∂L/∂ξ of each training sentence for each head, with only these heads (L, A) open.

        ξ is a factor of the head's output (see `derivatives`). The result is (N, L, A), for the training sentences with
        known labels of the task, ordered by length.
        """
        if (key := heads.tobytes()) not in self._slopes:
            pairs = [
                (sentence, target)
                for sentence in self.train
                if (target := known_target(self.task, sentence)) is not None
            ]
            run, parts = self.run, [torch.zeros(0, *heads.shape)]
            for batch_of_pairs in batched(sorted(pairs, key=lambda pair: len(pair[0])), BATCH):
                pieces = run.model.encoder.tokenize_sentences([sentence for sentence, _ in batch_of_pairs])
                targets = {self.name: [target for _, target in batch_of_pairs]}
                with run.ablated(~heads):
                    parts.append(derivatives(run.model, pieces, targets, run.precision, lambda batch: run.constants))
            self._slopes[key] = torch.cat(parts)
        return self._slopes[key]

    def rank(self, selector: str, excluded: Mask, seed: int) -> Ranking:
        """Rank the heads that are not excluded by a selector, with the excluded heads closed."""
        slopes = self.slopes(~excluded)
        values = importance(slopes) if selector == "importance" else slopes.double().square().sum(0)
        order = ranked(np.where(excluded, -1.0, values.double().numpy()), np.random.default_rng(seed))

        # Fisher masks are selected separately for each number of heads, so, unlike importance, they need not be nested.
        def fisher(keep: int) -> Mask:
            if keep in (0, excluded.size):
                return order(keep)
            mask = fisher_mask(slopes, keep, np.random.default_rng(seed)).bool().numpy()
            return np.asarray(mask & ~excluded)

        return fisher if selector == "fisher" else order


@dataclass(frozen=True, eq=False)
class _Curves:
    """The input that all runs share.

    Attributes:
        train: training sentences on which heads are ranked.
        gates: for each label of the runs of ``--claims``, mean gates (L, A), which also rank heads.
    """

    reading: Reading
    request: Request
    train: Sequence[Sentence]
    gates: Mapping[str, Floats]


def measure(request: Request) -> Result:
    """Measure all runs on the same sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: if the input cannot be loaded or compared, or if no run can be
            measured.
    """
    sources, options = find_sources(request.names), request.options
    if len(kinds := {source.kind for source in sources}) > 1:
        raise ProbeError(
            f"expected runs of one encoder, found {', '.join(sorted(kinds))}; run the command once for each encoder"
        )
    groups = groups_of(request.claims, sources)
    reading = read_request(request)
    train = training_sentences(reading, request, options.train_sentences)
    study = _Curves(reading, request, train, groups.gates if groups else {})
    surveyed = survey("curve", reading, request, functools.partial(_measured, study))
    result = surveyed.result
    if "sets" in result.frames and (least := 1 / (1 + options.tests)) > LEVEL:
        result.about["notes"].append(
            f"With tests={options.tests} no p of a set is below {least:.2f}, so no set or member can be shown to be "
            "sufficient or needed at 0.05, which takes tests=19."
        )
    return result.with_frames(areas=_areas(join_counts(surveyed.measured), request))


def _measured(study: _Curves, subject: Subject) -> SubjectResult:
    """Measure the curves and the sufficient sets of all tasks of one run.

    Raises:
        SubjectError: no sentence has a layer of its tasks.
    """
    request = study.request
    run = AblatableRun.of(subject, request.device, study.reading.fingerprint, request.store)
    # Optimal constants are fitted with random halves of the heads closed, so that one table serves all orders.
    halves = np.random.default_rng([request.seed, 18]).random((8, *run.size)) >= 0.5
    run = run.contributing(request.options.closed, study.train, list(halves), request.seed)
    frames: dict[str, list[pd.DataFrame]] = {}
    notes, counts = [], dict[tuple[str, Order, int], AblatedCounts]()
    for name in run.model.tasks if subject.task is None else [subject.task]:
        scorer = HeadSetScorer(run.of_task(name), name, study.train, study.reading.sentences, request.on_batch)
        if not any(scorer.task.is_annotated(sentence) for sentence in scorer.sentences):
            notes.append(f"{subject.label}: no sentence has the layer {name}, so it is not scored.")
            continue
        for key, frame in {"curve": _curve(study, subject, scorer, counts), **_sets(study, subject, scorer)}.items():
            frames.setdefault(key, []).append(frame.assign(task=name))
    if not frames:
        raise SubjectError(f"no sentence of {study.reading.split} has a layer of its tasks")
    tables = {key: pd.concat(parts, ignore_index=True) for key, parts in frames.items()}
    return SubjectResult(tables, notes=notes, measured=counts)


def _orders(study: _Curves, subject: Subject, scorer: HeadSetScorer) -> dict[Order, Ranking]:
    """Return all orders in which heads are opened: each ranking, its reverse and its random controls.

    The selectors rank heads, and so do the gates of the task, if ``--claims`` names runs of this task.
    """
    request, no_heads = study.request, np.zeros(scorer.size, bool)
    rankings = {selector: scorer.rank(selector, no_heads, request.seed) for selector in request.options.selectors}
    task, label = scorer.name.upper(), subject.label.split(" (")[0]
    own_gates = next((study.gates[key] for key in (f"{label}:{task}", task, label) if key in study.gates), None)
    if own_gates is not None:
        rankings["gates"] = ranked(own_gates, np.random.default_rng(request.seed))
    orders: dict[Order, Ranking] = {}
    for name, ranking in rankings.items():
        orders[name, "", 0] = ranking
        orders[name, "reverse", 0] = lambda keep, best=ranking: ~best(no_heads.size - keep)  # type: ignore[misc]
        for draw in range(1, request.options.draws + 1):
            generator = np.random.default_rng([request.seed, 21, draw])
            orders[name, "random", draw] = within_layers(ranking, scorer.size, generator)
    return orders


def _curve(
    study: _Curves, subject: Subject, scorer: HeadSetScorer, counts: dict[tuple[str, Order, int], AblatedCounts]
) -> pd.DataFrame:
    """Score all orders, and add their counts to ``counts`` under task, order and number of open heads."""
    open_counts = numbers(scorer.size[0] * scorer.size[1], study.request.options.every)
    masks = {(order, n): best(n) for order, best in _orders(study, subject, scorer).items() for n in open_counts}
    evaluations = len({mask.tobytes() for mask in masks.values()})
    study.request.on_status(subject.part(scorer.name, "curve, evaluation"), evaluations)
    rows = []
    for ((mode, control, draw), keep), mask in masks.items():
        add_counts(counts, (scorer.name, (mode, control, draw), keep), subject.seed, scorer.counts(mask))
        rows.append({"mode": mode, "control": control, "step": draw, "heads": keep, "score": scorer.score(mask)})
    return pd.DataFrame(rows)


def _sets(study: _Curves, subject: Subject, scorer: HeadSetScorer) -> dict[str, pd.DataFrame]:
    """Find the disjoint sufficient sets of a task in a run, and test the first set.

    The result is empty if the score with no head open is within the margin.
    """
    request, options, no_heads = study.request, study.request.options, np.zeros(scorer.size, bool)
    full_score = scorer.score(~no_heads)
    floor = full_score - options.margin
    if scorer.score(no_heads) >= floor:
        return {}
    request.on_status(subject.part(scorer.name, "sufficient sets, evaluation"))  # the total is unknown in advance
    select = functools.partial(scorer.rank, options.selectors[0], seed=request.seed)
    sets = sufficient_sets(scorer.score, select, floor, options.every, no_heads)
    evaluations = 2 * options.tests + int(sets[0].sum()) + min(options.tests, int((~sets[0]).sum()))
    request.on_status(subject.part(scorer.name, "tests of the first set, evaluation"), evaluations)
    tests = head_set_tests(
        scorer.score, sets[0], options.tests, np.random.default_rng([request.seed, 22, subject.seed])
    )
    rows = [
        {"step": step, "heads": int(members.sum()), "all": full_score, "alone": scorer.score(members)}
        for step, members in enumerate(sets, 1)
    ]
    number = np.sum([step * members for step, members in enumerate(sets, 1)], axis=0).astype(float)
    return {"sets": pd.DataFrame([rows[0] | tests, *rows[1:]]), "heads": head_rows({"set": number})}


def _areas(counts: Mapping[tuple[Any, ...], AblatedCounts], request: Request) -> pd.DataFrame:
    """Compute the areas under the curves of all labels and tasks, as means over draws and runs."""
    tables: dict[tuple[str, str], dict[tuple[Order, int], AblatedCounts]] = {}
    for (label, task, order, keep), of_runs in counts.items():
        tables.setdefault((label, task), {})[order, keep] = of_runs
    rows = [
        {"encoder": key[0], "task": key[1], **row} for key, table in tables.items() for row in _rows(table, request)
    ]
    return with_verdict(corrected(pd.DataFrame(rows), [], slice(None)))


def _rows(table: Mapping[tuple[Order, int], AblatedCounts], request: Request) -> Iterator[dict[str, object]]:
    """Yield the rows of the frame ``areas`` for one label and task, from its counts by order and number of heads."""
    orders, open_counts = (list(dict.fromkeys(part)) for part in zip(*table, strict=True))
    seeds = tuple(sorted(next(iter(table.values())).runs))
    systems = [table[order, keep].system(seeds) for order in orders for keep in open_counts]

    def curves(scores: Sequence[Floats]) -> Floats:
        """Arrange the scores (..., S) of all systems as curves, (O, ..., S, G)."""
        return np.moveaxis(np.reshape(scores, (len(orders), len(open_counts), *scores[0].shape)), 1, -1)

    observed, booted = map(
        curves, zip(*resampled_scores(systems, request.options.resamples, request.seed), strict=True)
    )
    performance, areas_of_draws = areas(observed, open_counts), areas(booted, open_counts)  # (O, S), (O, C, S)
    least = np.array(open_counts)[(observed >= observed[..., -1:] - request.options.margin).argmax(-1)]  # (O, S)
    for mode, control in dict.fromkeys(order[:2] for order in orders):
        is_own_order, null = ([order[:2] == (mode, kind) for order in orders] for kind in (control, "random"))
        row = {"mode": mode, "control": control, "n": len(seeds), "p": np.nan}
        row |= {"cpr": performance[is_own_order].mean(), "enough": least[is_own_order].mean()}
        if not control:
            mean, of_null = (
                Resampled(performance[is_order].mean(0), areas_of_draws[is_order].mean(0))
                for is_order in (is_own_order, null)
            )
            row |= Contrast.of(mean - of_null, one_run=True).row()
        yield row
