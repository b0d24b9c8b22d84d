"""Shares of the change of a task's decision that pass through sets of heads, and through each head.

The decision of task t on sentence x of a pair (a, b) is m(x) = L(x, gold of b) − L(x, gold of a), in nats, with
L the loss of t on the sentence. With the outputs of heads S taken from b, m(a) becomes m(a; S); the share that passes
through S is

    Σ over pairs of m(a) − m(a; S)   /   Σ over pairs of m(a) − m(b)

0 where S carries nothing; 1 where putting S alone into a makes it decide as b. Shares of sets need not add up.

Letters for shapes: P pairs, L layers, A heads a layer, C resamples, S runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import torch

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import AblatableRun, known_target
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    find_sources,
    read_request,
    survey,
)
from mtlprune.analyses.heads.claims.groups import claimed_heads
from mtlprune.analyses.heads.exchange import MIN_PAIRS, STEM
from mtlprune.corpora.grammar import Pair, draw_pairs
from mtlprune.corpora.swaps import SWAPPED, swapped_pairs
from mtlprune.corpora.tables import batched
from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.interventions import ablated, head_outputs
from mtlprune.evaluation.head_masks import Mask, random_sets
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, weighted
from mtlprune.statistics.standard_errors import Floats
from mtlprune.tasks.base import Target, Task
from mtlprune.training.head_gradients import sentence_loss

BATCH = 50
_CARRIED_FROM = 0.1
"""A set carries a task's change from this share on."""
LAYERS = ("pos", "ner", "dep", "con", "srl")
"""Layers in which generated sentences differ."""


class Change(NamedTuple):
    """The change that the pairs of one layer make in one run, and what of it passes through each set of heads.

    Attributes:
        whole: (P,) m(a) − m(b).
        decided: the part of pairs with m(a) > 0 > m(b).
        through: label of a set → (1 + D, P) m(a) − m(a; S), of the set and of each draw of random ones.
    """

    full_change: Floats
    decided: float
    through: dict[str, Floats]


_Usable = tuple[Pair, tuple[Target, Target]]
"""Two sentences, and the targets of a task in both."""
Changes = dict[tuple[str, str], dict[int, Change]]
"""Label of runs and task → seed → change."""


def measure(request: Request) -> Result:
    """All runs on the same pairs of sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: what cannot be loaded; claims of no head or of all.
    """
    sets = with_stem(claimed_heads(request.claims, find_sources(request.names)))
    reading = read_request(replace(request, split=request.options.natural or request.split))
    generator = np.random.default_rng([request.seed, 16])
    masks = {name: [heads, *random_sets(heads, request.options.draws, generator)] for name, heads in sets.items()}
    exchanged = survey("exchange", reading, request, partial(_exchanged, reading, request=request, masks=masks))
    changes: Changes = {}
    for (label, seed), of_tasks in exchanged.measured.items():
        for task, change in of_tasks.items():
            changes.setdefault((label, task), {})[seed] = change
    shares = _shares(changes, request)
    cells, contrasts = contrast_frame(_cells(shares, changes), []), contrast_frame(_contrasts(shares))
    return exchanged.result.with_frames(cells=cells, contrasts=contrasts, stems=pd.DataFrame(_stems(shares)))


def with_stem(claimed_heads: Mapping[str, Mask]) -> dict[str, Mask]:
    """The heads (L, A) of each label, and those that three single tasks or more claim, where there are some."""
    single = [heads for label, heads in claimed_heads.items() if not is_joint(label)]
    stem = np.sum(single, axis=0) >= 3 if single else np.zeros(1, bool)
    return {**claimed_heads, **({STEM: stem} if stem.any() else {})}


def _exchanged(
    reading: Reading, subject: Subject, request: Request, masks: Mapping[str, Sequence[Mask]]
) -> SubjectResult:
    run = AblatableRun.of(subject, request.device, reading.fingerprint)
    frames, notes, changes = [], list[str](), dict[str, Change]()
    single_head_masks = np.eye(run.size[0] * run.size[1], dtype=bool).reshape(-1, *run.size)[
        : None if request.options.single else 0
    ]
    exchanges = sum(map(len, masks.values())) + len(single_head_masks)
    natural = reading.sentences if request.options.natural else None
    for name in (name for name in run.model.tasks if name in (LAYERS if natural is None else SWAPPED)):
        pairs = usable_pairs(run.model, name, request.options.pairs, request.seed, natural)
        if len(pairs) < MIN_PAIRS:
            notes.append(
                f"{subject.label}, seed {subject.seed}: {name} is left out, because it has only {len(pairs)} pairs "
                f"with known labels and equal numbers of sub-words, and at least {MIN_PAIRS} are needed."
            )
            continue
        request.on_status(
            subject.part(name, f"sets{' and single heads' * bool(len(single_head_masks))}, exchange"), exchanges
        )
        margins = _Margins(run.model, name, pairs, run.precision)
        changes[name], shares = _change(margins, masks, single_head_masks, request.on_batch)
        if len(single_head_masks):
            frames.append(head_rows({"share": shares.reshape(run.size)}).assign(task=name))
    if not changes:
        raise SubjectError(" ".join(notes).removesuffix(".") or "none of its tasks is a layer in which pairs differ")
    tables = {"heads": pd.concat(frames, ignore_index=True)} if frames else {}
    return SubjectResult(tables, notes=notes, measured=changes)


def _change(
    margins: "_Margins", masks: Mapping[str, Sequence[Mask]], single_head_masks: Mask, on_batch: Callable[[], None]
) -> tuple[Change, Floats]:
    """The change of one task's margins, and the shares (H,) of it through each head alone, ``each`` (H, L, A)."""
    first, second = margins.of("first"), margins.of("second")

    def passing(heads: Mask) -> Floats:
        on_batch()
        return first - margins.exchanged(heads)

    through = {}
    for label, random_masks in masks.items():
        through[label] = np.stack(list(map(passing, random_masks)))
    change = Change(first - second, float(((first > 0) & (second < 0)).mean()), through)
    return change, np.array([passing(mask).sum() / change.full_change.sum() for mask in single_head_masks])


def usable_pairs(
    model: MultiTaskModel, name: str, size: int, seed: int, natural: Sequence[Sentence] | None = None
) -> list[_Usable]:
    """Pairs that differ in a layer, ``size`` generated or as many of a corpus as can be used, the shortest first; those
    left out have labels that the run does not know, or words of other numbers of sub-words, so that places would not
    correspond."""
    if natural is None:
        layers = [name, "dep+con"] if name in ("dep", "con") else [name]
        drawn_pairs = [pair for layer in layers for pair in draw_pairs(-(-size // len(layers)), seed + 1, (layer,))][
            :size
        ]
    else:
        drawn_pairs = swapped_pairs(natural, name, seed + 1)
    task, usable = cast(Task, model.tasks[name]), list[_Usable]()
    for pair in drawn_pairs:
        first, second = model.encoder.tokenize_all([pair.first.words, pair.second.words])
        targets_of_pair = known_target(task, pair.first), known_target(task, pair.second)
        if (
            np.array_equal(first.counts, second.counts)
            and targets_of_pair[0] is not None
            and targets_of_pair[1] is not None
        ):
            usable.append((pair, (targets_of_pair[0], targets_of_pair[1])))
        if len(usable) == size:
            break
    return sorted(usable, key=lambda usable_pair: len(usable_pair[0].first))  # so that batches have little padding


class _Margins:
    """Decisions (P,) of one task on pairs: how much better the gold of the first sentence fits than the other."""

    def __init__(self, model: MultiTaskModel, name: str, pairs: Sequence[_Usable], precision: torch.dtype) -> None:
        self.model, self.name, self.targets = model, name, [targets for _, targets in pairs]
        encoder, self.precision = model.encoder, precision
        self.batches: list[tuple[list[int], dict[str, EncoderBatch]]] = []
        for rows in batched(range(len(pairs)), BATCH):
            batches_of_sides = {
                side: encoder.collate(encoder.tokenize_all([getattr(pairs[row][0], side).words for row in rows]))
                for side in ("first", "second")
            }
            self.batches.append((rows, {side: batch.to(model.device) for side, batch in batches_of_sides.items()}))
        with autocast(model.device, precision):
            self.outputs_of_second = [
                head_outputs(encoder, batch_of_side["second"]) for _, batch_of_side in self.batches
            ]

    @torch.no_grad()
    def of(self, side: str) -> Floats:
        """The decisions on the first or second sentences as they are."""
        with autocast(self.model.device, self.precision):
            return np.concatenate(
                [self._margins(rows, self.model.encoder(batch_of_side[side])) for rows, batch_of_side in self.batches]
            )

    @torch.no_grad()
    def exchanged(self, heads: Mask) -> Floats:
        """The decisions on the first sentences with the outputs of some heads (L, A) taken from the second."""
        encoder, mask, parts = self.model.encoder, torch.from_numpy(heads), []
        for (rows, batch_of_side), outputs in zip(self.batches, self.outputs_of_second, strict=True):
            with autocast(self.model.device, self.precision), ablated(encoder, mask, "exchange", outputs=outputs):
                parts.append(self._margins(rows, encoder(batch_of_side["first"])))
        return np.concatenate(parts)

    def _margins(self, rows: Sequence[int], encoded: Encoded) -> Floats:
        task = self.model.tasks[self.name]
        losses = [
            [float(sentence_loss(task, encoded.select([place]), self.targets[row][side])) for side in (1, 0)]
            for place, row in enumerate(rows)
        ]
        second, first = np.array(losses).T
        return np.asarray(second - first)


class Share(NamedTuple):
    """The shares of one task's change that pass through one set of heads: (S,) through the set and through random heads
    of the same layers, and their difference, which pairs resample; what each draw adds to it, (D,), mean over seeds."""

    seeds: tuple[int, ...]
    own_share: Floats
    random: Floats
    beyond: Resampled
    draw_shares: Floats


Shares = dict[tuple[str, str, str], Share]
"""Label of runs, task, label of a set → shares."""


def _shares(changes: Changes, request: Request) -> Shares:
    """The shares of all sets; pairs are resampled alike for all sets, apart for each task."""
    shares = {}
    for (label, task), runs in changes.items():
        seeds = tuple(sorted(runs))
        full_change = np.stack([runs[seed].full_change for seed in seeds])  # (S, P)
        size = full_change.shape[1]
        generator = np.random.default_rng([request.seed, 17, LAYERS.index(task)])
        weights = generator.multinomial(size, np.full(size, 1 / size), size=request.options.resamples)  # (C, P)
        for closed_label in runs[seeds[0]].through:
            through = np.stack([runs[seed].through[closed_label] for seed in seeds], 1)  # (1 + D, S, P)
            beyond = through[0] - through[1:].mean(0)
            booted = (beyond @ weights.T / (full_change @ weights.T)).T  # (C, S)
            own_share, *draws = through.sum(2) / full_change.sum(1)  # (S,) each
            random = np.mean(draws, axis=0)
            draw_shares = -np.mean(draws, axis=1)
            shares[label, task, closed_label] = Share(
                seeds, own_share, random, Resampled(own_share - random, booted), draw_shares
            )
    return shares


def _cells(shares: Shares, changes: Changes) -> Iterator[tuple[dict[str, object], Contrast]]:
    """Rows of the frame ``cells``."""
    for (label, task, closed_label), share in shares.items():
        runs = changes[label, task]
        row = {"encoder": label, "task": task, "other": closed_label, "share": share.own_share.mean()}
        row |= {"random": share.random.mean(), "pairs": len(runs[share.seeds[0]].full_change)}
        row |= {"decided": np.mean([run.decided for run in runs.values()])}
        yield row, Contrast.of(share.beyond, one_run=True, draws=share.draw_shares[None])


def _contrasts(shares: Shares) -> Iterator[tuple[dict[str, object], Contrast]]:
    """Rows of the frame ``contrasts``, of labels all of whose tasks claim heads and have the same seeds."""
    for label in dict.fromkeys(label for label, *_ in shares):
        of = {
            (task, closed_label): share
            for (encoder_label, task, closed_label), share in shares.items()
            if encoder_label == label
        }
        tasks = [task for task in LAYERS if (task, task.upper()) in of]
        if len(tasks) < 2 or len({of[task, task.upper()].seeds for task in tasks}) > 1:
            continue
        claimed_labels = [
            closed_label
            for closed_label in dict.fromkeys(closed_label for _, closed_label in of)
            if closed_label != STEM and not is_joint(closed_label)
        ]
        own_weights = {(task, task.upper()): 1 / len(tasks) for task in tasks}
        pairs_of_others = [
            (task, closed_label) for task in tasks for closed_label in claimed_labels if closed_label != task.upper()
        ]
        weights_of_others = dict.fromkeys(pairs_of_others, 1 / len(pairs_of_others))
        terms = {
            "own": own_weights,
            "others": weights_of_others,
            "own minus others": {**own_weights, **{key: -w for key, w in weights_of_others.items()}},
        }
        terms |= {"stem": {(task, STEM): 1 / len(tasks) for task in tasks}} if (tasks[0], STEM) in of else {}
        for name, weights in terms.items():
            figure = weighted([of[key].beyond for key in weights], [*weights.values()])
            by_set: dict[str, Floats] = {}  # a set's draws are the same for all tasks
            for key, weight in weights.items():
                by_set[key[1]] = by_set.get(key[1], 0.0) + weight * of[key].draw_shares
            yield {"encoder": label, "term": name}, Contrast.of(figure, draws=np.stack([*by_set.values()]))


def _stems(shares: Shares) -> Iterator[dict[str, object]]:
    """Rows of the frame ``stems``."""
    carried_by_run: dict[tuple[str, int], list[bool]] = {}
    for (label, _, closed_label), share in shares.items():
        for seed, own_share in zip(share.seeds, share.own_share, strict=True) if closed_label == STEM else ():
            carried_by_run.setdefault((label, seed), []).append(own_share >= _CARRIED_FROM)
    for (label, seed), tasks in sorted(carried_by_run.items()):
        yield {"encoder": label, "seed": seed, "carried": sum(tasks), "of": len(tasks)}
